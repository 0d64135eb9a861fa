"""
Kinds of values: what a setting or an option may be, and how it is read.

In settings.toml a kind is a name of `_KINDS`, or one that `make_kind` makes of a range
or of choices.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

TTL_MAX: Final = 2**31  # Seconds, 68 years: the longest time HTTP has a number for.

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB
UNITS: Final = {
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
}
VOLUME_SIZE_MIN: Final = MIB
AUTO: Final = 0  # The value of a number that is determined at the start.

_SIZE: Final = re.compile(rf"([0-9]{{1,15}}) ?({'|'.join(UNITS)})")
_LINE: Final = re.compile(r"[^\x00-\x1f\x7f]*")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+|/[!-~]+")
_SERVER: Final = re.compile(
    r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}|/[!-~]+"
)
_LISTEN: Final = re.compile(
    r"|([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}|/[!-~]{1,106}"
)
_PORT_MAX: Final = 65535
_IPV6: Final = 6
_INTERFACE: Final = re.compile(r"[A-Za-z0-9_.-]{1,15}")  # Of the network.
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}")
_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])"
    r"(:(?P<port>[1-9][0-9]{0,4}))?"
)
_ORIGIN_LENGTH_MAX: Final = 255
_SECRET_LENGTH_MAX: Final = 1024

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Kind(Generic[T_co]):
    """
    What a value may be.

    Attributes:
        allowed: The allowed values, to follow the words "allowed is".
        from_toml: Checks a value as TOML has it. Raises TypeError or ValueError, without
            the value, which may be secret.
        read: Reads text of an environment variable as the value that TOML would have.
        unit: Of a number, such as "bytes"; empty: it has none.
    """

    allowed: str
    from_toml: Callable[[object], T_co]
    read: Callable[[str], object] = str
    unit: str = ""


# --- Numbers ---------------------------------------------------------------------


def _in_range(convert: type[N], raw: object, low: N, high: N) -> N:
    if isinstance(raw, bool) or not isinstance(raw, (int, convert)):
        raise TypeError
    if not low <= raw <= high:  # NaN is in no range.
        raise ValueError
    return convert(raw)


def _range(words: str, convert: type[N], low: N, high: N, unit: str) -> Kind[N]:
    shown = f" ({unit})" if unit else ""
    allowed = f"{words} from {low} to {high}{shown}"
    return Kind(allowed, lambda raw: _in_range(convert, raw, low, high), convert, unit)


def integer(low: int, high: int, unit: str = "") -> Kind[int]:
    """Allow an integer from `low` to `high`, both included; a bool is rejected."""
    return _range("an integer", int, low, high, unit)


def number(low: float, high: float, unit: str = "") -> Kind[float]:
    """Allow a number from `low` to `high`, both included, returned as float."""
    return _range("a number", float, low, high, unit)


def size(low: int, high: int) -> Kind[int]:
    """Allow a number of bytes, or text with a unit such as "160MiB"."""
    return Kind(
        f"a size from {format_size(low)} to {format_size(high)}: an integer (bytes), or"
        f' text such as "160MiB" with one of the units {", ".join(UNITS)}',
        lambda raw: _in_range(int, _in_bytes(raw), low, high),
        lambda value: value if value.endswith("B") else int(value),
        "bytes",
    )


def _in_bytes(raw: object) -> Any:  # noqa: ANN401 - Checked by the kind.
    """Return the number of a size that has a unit; anything else as it is."""
    if not isinstance(raw, str):
        return raw
    match = _SIZE.fullmatch(raw)
    if match is None:
        raise ValueError
    return int(match[1]) * UNITS[match[2]]


def format_size(number: int) -> str:
    """Write a size in the largest unit that needs no fraction: `1MiB`, `1000`, `0`."""
    units = sorted(UNITS.items(), key=lambda unit: -unit[1])
    fitting = (
        f"{number // n}{name}" for name, n in units if number and number % n == 0
    )
    return next(fitting, str(number))


def or_auto(kind: Kind[int]) -> Kind[int]:
    """Allow also the word "auto", which is read as `AUTO`."""
    return Kind(
        f'{kind.allowed}, or "auto"',
        lambda raw: AUTO if raw == "auto" else kind.from_toml(raw),
        lambda value: value if value == "auto" else kind.read(value),
        kind.unit,
    )


def _flag(raw: object) -> bool:
    if not isinstance(raw, bool):
        raise TypeError
    return raw


# --- Text ------------------------------------------------------------------------


def text(rule: str, is_valid: Callable[[str], object]) -> Kind[str]:
    """Allow text for which `is_valid` returns true; it may also raise ValueError."""

    def check(raw: object) -> str:
        if not isinstance(raw, str):
            raise TypeError
        if not is_valid(raw):
            raise ValueError
        return raw

    return Kind(rule, check)


def choice(*words: str) -> Kind[str]:
    """Allow one of a few words, exactly as written."""
    shown = ", ".join(f'"{word}"' for word in words)
    return text(f"one of {shown}", words.__contains__)


def texts(rule: str, is_valid: Callable[[str], object]) -> Kind[tuple[str, ...]]:
    """Allow a list of texts, none of them twice, for which `is_valid` returns true."""

    def check(raw: object) -> tuple[str, ...]:
        if not isinstance(raw, list) or len(set(map(str, raw))) != len(raw):
            raise TypeError
        if not all(isinstance(one, str) and is_valid(one) for one in raw):
            raise ValueError
        return tuple(raw)

    return Kind(
        f"a list, possibly empty, of {rule}; in the environment, separated by commas",
        check,
        lambda value: [part.strip() for part in value.split(",") if part.strip()],
    )


def _is_path(value: str) -> bool:
    return bool(value) and _LINE.fullmatch(value) is not None


def is_ip_address(value: str) -> bool:
    """Return whether a value is an IP address; one of IPv6 may name an interface."""
    address, sign, interface = value.partition("%")
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return False
    is_interface = _INTERFACE.fullmatch(interface) is not None
    return not sign or (version == _IPV6 and is_interface)


def _is_listen_address(value: str) -> bool:
    if _LISTEN.fullmatch(value) is None:
        return False
    return value[:1] in {"", "/"} or int(value.rpartition(":")[2]) <= _PORT_MAX


def _is_origin(value: str) -> bool:
    """Return whether a browser may send this as the origin of a page."""
    match = _ORIGIN.fullmatch(value)
    if match is None or len(value) > _ORIGIN_LENGTH_MAX:
        return False
    # Browsers leave the default port out, so it would never be equal.
    return (match["scheme"], match["port"]) not in {("http", "80"), ("https", "443")}


def _is_secret(value: str) -> bool:
    """Return whether a header can carry this token."""
    is_short = len(value) <= _SECRET_LENGTH_MAX
    return is_short and value.isprintable() and value == value.strip()


def _origins() -> Kind[tuple[str, ...]]:
    """Allow a list of origins, or "*", which stands alone."""
    listed = texts(
        "origins as browsers send them, scheme://host or scheme://host:port (in lower case,"
        " without the default port, without a path)",
        _is_origin,
    )
    return Kind(
        f'"*" for all origins, or {listed.allowed}',
        lambda raw: ("*",) if raw in ("*", ["*"]) else listed.from_toml(raw),
        listed.read,
    )


# --- The table -------------------------------------------------------------------

FLAG: Final = Kind("true or false", _flag, {"true": True, "false": False}.get)
ADDRESS: Final = text(
    'an IPv4 or IPv6 address such as "127.0.0.1", "0.0.0.0", "::1" or "fe80::1%eth0"',
    is_ip_address,
)
SECRET: Final = text(
    f"text of up to {_SECRET_LENGTH_MAX} characters without control characters and without"
    " spaces around it",
    _is_secret,
)
# Names of hosts are not resolved.
_KINDS: Final[Mapping[str, Kind[Any]]] = {
    "flag": FLAG,
    "line": text("text without control characters", _LINE.fullmatch),
    "path": text("text that is not empty and without control characters", _is_path),
    "address": ADDRESS,
    "host": text(
        "a host name, an IPv4 or IPv6 address, or the path of a unix socket",
        _HOST.fullmatch,
    ),
    "listen_address": text(
        '"host:port", "[IPv6]:port" or the absolute path of a unix socket, up to 107 bytes',
        _is_listen_address,
    ),
    "secret": SECRET,
    "servers": texts(
        '"host:port", "[IPv6]:port" or the path of a unix socket', _SERVER.fullmatch
    ),
    "host_names": texts(
        'host names without a port, such as "cache-1.example.org"', _HOST_NAME.fullmatch
    ),
    # At most two, see `config.py`.
    "lists": texts(
        "one or two paths of nginx's list of instances, in the second place the list before"
        " an instance was added",
        _is_path,
    ),
    "origins": _origins(),
}


def make_kind(row: Mapping[str, Any]) -> Kind[Any]:
    """Return the kind that a row of settings.toml describes."""
    match row:
        case {"kind": "integer", "range": [low, high]}:
            kind: Kind[Any] = integer(low, high, row.get("unit", ""))
        case {"kind": "number", "range": [low, high]}:
            kind = number(low, high, row.get("unit", ""))
        case {"kind": "size", "range": ends}:
            kind = size(*map(_in_bytes, ends))
        case {"kind": "choice", "choices": words}:
            kind = choice(*words)
        case _:
            kind = _KINDS[row["kind"]]
    return or_auto(kind) if row.get("auto") else kind
