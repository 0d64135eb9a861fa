"""Keys of other libraries, as keys that the service has."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

# What the service refuses or would resolve, and the sign of what was replaced.
_UNSAFE: Final = re.compile(rb"^/|[\x00-\x1f\x7f%]|(?:(?<=/)|^)\.{1,2}(?=/|$)")
# A key may have 1024 bytes by default, the prefix of the client included.
_BYTES_MAX: Final = 512


def safe_key(key: str) -> str:
    """
    Return a text as a key that every instance accepts; two texts have two keys.

    Control characters, `%`, segments `.` and `..`, and a slash at the beginning are
    percent-encoded. What is then
    longer than 512 bytes ends with its SHA-256 instead. What stands before the key must be
    empty or end with a slash, and one of the two must not be empty.
    """
    if key.isascii() and len(key) <= _BYTES_MAX and not _UNSAFE.search(key.encode()):
        return key
    data = _UNSAFE.sub(_quoted, key.encode("utf-8", "surrogatepass"))
    try:
        text = data.decode()
    except UnicodeDecodeError:  # Lone surrogates.
        text = "".join(chr(b) if b < 0x80 else f"%{b:02X}" for b in data)  # noqa: PLR2004
    data = text.encode()
    if len(data) <= _BYTES_MAX:
        return text
    # Otherwise a percent sign is followed by a digit of base 16.
    start = data[: _BYTES_MAX - 66].decode(errors="ignore")
    return f"{start}%~{sha256(data).hexdigest()}"


def _quoted(found: re.Match[bytes]) -> bytes:
    return b"".join(b"%%%02X" % byte for byte in found[0])
