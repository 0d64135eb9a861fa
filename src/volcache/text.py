"""
Text: counts, sizes and durations for people, files, client input made safe for a log line.

Client input is escaped to printable ASCII that cannot end its field, so that a path or a
header cannot forge a log line, a field or a terminal colour. Nothing is lost: the
original bytes can be decoded from the escaped form.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from volcache.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_SIZE_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_MINUTE: Final = 60
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
# The characters that a path holds unescaped (RFC 3986): no space, no quote, no control.
_PATH_SAFE: Final = "/~!$&'()*+,;=:@"
_UNSAFE: Final = re.compile(r"[^ !#-\[\]-~]")
_CUT: Final = "..."


def counted(count: int, noun: str, form: str = "d") -> str:
    """
    Return a number with its noun: "1 file", "2 files".

    Args:
        count: The number.
        noun: In the singular; the plural is formed with an `s`.
        form: Of the number, as `format` takes it.
    """
    return f"{count:{form}} {noun}{'' if count == 1 else 's'}"


def parse_number(text: str, most: int) -> int | None:
    """Return the number that ASCII digits name; None if there is none up to `most`."""
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
    return int(text) if is_number and int(text) <= most else None


def size(count: float) -> str:
    """Return a number of bytes in the largest fitting unit: "512 B", "1.5 MiB"."""
    power = 0
    while count >= 1023.5 and power < len(_SIZE_UNITS) - 1:  # noqa: PLR2004 - 1024 rounded.
        count /= 1024
        power += 1
    return f"{count:.{1 if power else 0}f} {_SIZE_UNITS[power]}"


def duration(seconds: float) -> str:
    """Return a short time with two digits: "93 µs", "1.2 ms"."""
    for unit, factor in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3)):
        value = seconds * factor
        if value < 999.5:  # noqa: PLR2004 - 1000 when rounded.
            return f"{value:.{0 if value >= 10 else 1}f} {unit}"  # noqa: PLR2004
    return f"{seconds:.1f} s"


def span(seconds: float) -> str:
    """Return a long time in its two largest units: "1 d 1 h", "2 min 5 s"."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


def one_line(text: str, size_max: int) -> str:
    """
    Return text from elsewhere on one line, for a terminal.

    White space is one space each, control characters are question marks, and text longer
    than `size_max` characters is cut, with `...` appended.
    """
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))
    return shown if len(shown) <= size_max else shown[:size_max] + _CUT


def escape_path(path: str, size_max: int) -> str:
    """
    Return a path percent-encoded, as it would stand in a request line.

    Args:
        path: Decoded, one character per byte, as WSGI passes it.
        size_max: Characters after which it is cut, with `...` appended.
    """
    text = quote(path, safe=_PATH_SAFE, encoding="latin-1", errors="replace")
    return text if len(text) <= size_max else text[:size_max] + _CUT


def escape_header(text: str, size_max: int) -> str:
    r"""
    Return a header for a field in double quotes.

    Quotes, backslashes and everything but printable ASCII become `\xHH`, one per byte, as
    in nginx's logs. Text longer than `size_max` is cut before, with `...` appended.
    """
    if len(text) > size_max:
        text = text[:size_max] + _CUT
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    """Escape one character; WSGI has latin-1 only, other callers may have any."""
    character = match.group()
    encoding = "latin-1" if character <= "\xff" else "utf-8"
    found = character.encode(encoding, "surrogatepass")
    return "".join(f"\\x{byte:02X}" for byte in found)


def read_text(path: Path, *, mib: int = 16) -> str:
    """
    Return the text of a file of at most `mib` MiB; a byte order mark is left out.

    Raises:
        ConfigError: It cannot be read, is too large, or is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            found = file.read((mib << 20) + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(found) > mib << 20:
        raise ConfigError(f"{path}: larger than the {mib} MiB allowed")
    try:
        return found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"{path}: not UTF-8 text: invalid byte at offset {error.start}"
        raise ConfigError(message) from error
