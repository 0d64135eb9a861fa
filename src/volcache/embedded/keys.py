"""
The keys and times to live of an embedded cache, checked.

A key is what the server accepts as the path of a request, after its first slash, so that
whatever is stored here can be requested there. The server resolves dot segments; here they
are refused, because two keys that are not equal must not be one entry. So is a slash at the
beginning: whoever gives one has given a path, and the value would be missed at that path.
"""

from __future__ import annotations

import math
import re
from typing import Final, NoReturn

from volcache.errors import BadKeyError, BadPrefixError, KeyTooLongError
from volcache.keys import prefix_problem
from volcache.kinds import KIB, TTL_MAX

KEY_BYTES_MAX: Final = KIB
RESERVED: Final = b"-/"

# Neither reserved nor with a segment that begins with a dot, which may be a dot segment.
_ordinary: Final = re.compile(rb"(?!-/|[./])[^\x00-\x1f\x7f]{1,%d}" % KEY_BYTES_MAX)
_is_ordinary: Final = _ordinary.fullmatch
_CONTROL_BYTE: Final = re.compile(rb"[\x00-\x1f\x7f]")
_ALLOWED: Final = (
    f"a key is str or bytes: 1 to {KEY_BYTES_MAX} bytes (str as UTF-8), without control"
    ' bytes, not beginning with "-/" or a slash, without the segments "." and ".."'
)
_SHOWN_MAX: Final = 60


def encode_key(key: str | bytes) -> bytes:
    """
    Return a key as bytes; text is encoded as UTF-8.

    Raises:
        TypeError: It is neither str nor bytes.
        BadKeyError: The server would not accept it as it is.
        KeyTooLongError: It is longer than `KEY_BYTES_MAX`.
    """
    found = _as_bytes(key, "key")
    if _is_ordinary(found) and b"/." not in found:
        return found
    return _checked(found)


def encode_prefix(prefix: str | bytes) -> bytes:
    """
    Return a prefix of keys as bytes; text is encoded as UTF-8.

    Raises:
        TypeError: It is neither str nor bytes.
        BadPrefixError: No key begins with it; or it is empty, as all keys begin with that.
    """
    found = _as_bytes(prefix, "prefix")
    if why := prefix_problem(found, KEY_BYTES_MAX, "call clear()"):
        raise BadPrefixError(f"bad prefix {_shown(found)}: {why}")
    return found


def exact(data: bytes) -> bytes:
    """Return bytes of a subclass, such as numpy.bytes_, as bytes: C takes no other type."""
    return data if type(data) is bytes else bytes.__getitem__(data, slice(None))


def _as_bytes(key: object, what: str) -> bytes:
    if isinstance(key, bytes):
        return exact(key)
    if not isinstance(key, str):
        raise TypeError(f"a {what} of type {type(key).__name__}; {_ALLOWED}")
    try:
        return str.encode(key)
    except UnicodeEncodeError:
        raise BadKeyError(
            f"bad {what} {key[:_SHOWN_MAX]!a}: it is not valid Unicode; {_ALLOWED}"
        ) from None


def _checked(key: bytes) -> bytes:
    """Return a key that is not ordinary; the same errors as `encode_key`."""
    if not key:
        _refuse(key, "it is empty")
    if len(key) > KEY_BYTES_MAX:
        raise KeyTooLongError(size=len(key), limit=KEY_BYTES_MAX)
    control = _CONTROL_BYTE.search(key)
    if control is not None:
        _refuse(key, f"it holds the control byte 0x{control[0][0]:02X}")
    if key.startswith(RESERVED):
        _refuse(key, 'the prefix "-/" is reserved for the server')
    if key.startswith(b"/"):
        bare = _shown(key.lstrip(b"/"))
        _refuse(key, f"it begins with a slash; the key of this path is {bare}")
    if {b".", b".."} & set(key.split(b"/")):
        _refuse(key, 'it has a segment "." or "..", which the server resolves')
    return key


def _refuse(key: bytes, why: str) -> NoReturn:
    raise BadKeyError(f"bad key {_shown(key)}: {why}; {_ALLOWED}")


def _shown(key: bytes) -> str:
    return repr(key[:_SHOWN_MAX]) + ("..." if len(key) > _SHOWN_MAX else "")


def checked_ttl(ttl: float) -> float:
    """
    Return a time to live.

    Args:
        ttl: Seconds, above 0, at most `TTL_MAX`; `math.inf`: no expiry.

    Raises:
        TypeError: It is no number.
        ValueError: It is out of range.
    """
    allowed = (
        f"allowed is a number of seconds above 0, at most {TTL_MAX}, or math.inf for no"
        " expiry"
    )
    if isinstance(ttl, bool) or not isinstance(ttl, int | float):
        raise TypeError(f"ttl = {ttl!r} is not allowed; {allowed}")
    if not (0 < ttl <= TTL_MAX or ttl == math.inf):
        raise ValueError(f"ttl = {ttl!r} is not allowed; {allowed}")
    return ttl
