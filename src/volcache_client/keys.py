"""
The rules for keys, prefixes, times to live and numbers, of clients and embedded caches.

A key is what the service accepts as the path of a request, after its first slash, so that
whatever is stored under it can be requested there. The service resolves dot segments; here
they are refused, because two keys that are not equal must not be one entry. So is a slash
at the beginning: whoever gives one has given a path, and a path of the service begins with
one slash more.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import quote_from_bytes

from volcache_client.errors import InvalidArgumentError, InvalidKeyError

if TYPE_CHECKING:
    from datetime import timedelta

    # Seconds, or `math.inf`; None: the default of the cache.
    Ttl = float | timedelta | None

Key = str | bytes  # Of a value, as it is given; text stands for its UTF-8.

# Of an embedded cache. `max_key_size` of a service is a setting, 1024 bytes by default.
KEY_BYTES_MAX: Final = 1024
COUNTER_MAX: Final = 2**64 - 1
TTL_MAX: Final = 2**31  # Seconds, 68 years: the longest time HTTP has a number for.

# Neither reserved nor with a segment at the beginning that may be a dot segment.
_is_ordinary: Final = re.compile(rb"(?!-/|[./])[^\x00-\x1f\x7f]+").fullmatch
_CONTROL_BYTE: Final = re.compile(rb"[\x00-\x1f\x7f]")
_RESERVED: Final = b"-/"
_DOTS: Final = {b".", b".."}
_ALLOWED: Final = (
    "a key is str or bytes: at least one byte (str as UTF-8), without control bytes, not"
    ' beginning with "-/" or a slash, without the segments "." and ".."'
)
_COUNTER: Final = re.compile(rb"[0-9]{1,20}")
_SHOWN_MAX: Final = 60
# Sent as they are in a path; everything else is percent-encoded.
_SAFE: Final = "/~!$&'()*,;=:@"
_is_sent_as_it_is: Final = re.compile(rb"[A-Za-z0-9_.\-/~!$&'()*,;=:@]+").fullmatch


def encode_key(key: Key, before: bytes = b"", size_max: int | None = None) -> bytes:
    """
    Return a key as bytes; text is encoded as UTF-8.

    Args:
        key: As the user gives it.
        before: Is put before the key: the prefix of a client.
        size_max: The most bytes of both; None: the service refuses what is too long.

    Raises:
        InvalidKeyError: The service would not accept it as it is, or it is too long.
    """
    found = before + as_bytes(key)
    if size_max is not None and len(found) > size_max:
        _refuse(found, f"it is {len(found)} bytes long, and allowed are {size_max}")
    if _is_ordinary(found) and found.find(b"/.") < 0:  # Less than `in` takes.
        return found
    if reason := _reason(found):
        _refuse(found, reason)
    return found


def encode_prefix(
    prefix: Key, before: bytes = b"", size_max: int | None = None
) -> bytes:
    """
    Return a prefix of keys as bytes; as `encode_key`.

    Raises:
        InvalidArgumentError: No key begins with it; or it is empty, as all keys begin with
            that.
    """
    given = as_bytes(prefix, "prefix")
    found = before + given
    if not given:
        reason = "it is empty; to drop everything, call clear()"
    elif size_max is not None and len(found) > size_max:
        reason = f"it is {len(found)} bytes long, and keys have 1 to {size_max}"
    else:  # Its last segment may go on.
        reason = _reason(found + b"x")
    if reason:
        raise InvalidArgumentError(f"bad prefix {_shown(found)}: {reason}")
    return found


def path_of(key: bytes) -> str:
    """Return the path of a request for a key, percent-encoded."""
    if _is_sent_as_it_is(key):
        return f"/{key.decode()}"
    return "/" + quote_from_bytes(key, _SAFE)


def exact(data: bytes) -> bytes:
    """Return bytes of a subclass, such as numpy.bytes_, as bytes: C takes no other type."""
    return data if type(data) is bytes else bytes.__getitem__(data, slice(None))


def checked_ttl(ttl: Any, name: str = "ttl") -> float:  # noqa: ANN401 - It is checked.
    """
    Return a time to live.

    Args:
        ttl: Seconds or a timedelta, above 0, at most `TTL_MAX`; `math.inf`: no expiry.
        name: Of the argument, for the error.

    Raises:
        InvalidArgumentError: It is something else.
    """
    if hasattr(
        ttl, "total_seconds"
    ):  # Of timedelta, whose module need not be imported.
        ttl = ttl.total_seconds()
    is_number = isinstance(ttl, int | float) and not isinstance(ttl, bool)
    if is_number and (0 < ttl <= TTL_MAX or ttl == math.inf):
        seconds: float = ttl
        return seconds
    raise InvalidArgumentError(
        f"{name}={ttl!r}; allowed are seconds above 0, at most {TTL_MAX}, a timedelta,"
        " math.inf for no expiry, and None for the default"
    )


def check_counts(**counts: Any) -> None:  # noqa: ANN401 - They are checked.
    """
    Check the arguments of `incr` and `decr`.

    Raises:
        InvalidArgumentError: One is not an integer of 64 bits without a sign.
    """
    for name, count in counts.items():
        if type(count) is not int or not 0 <= count <= COUNTER_MAX:
            raise InvalidArgumentError(
                f"{name}={count!r}; allowed are integers from 0 to 2**64 - 1"
            )


def counted(stored: bytes, change: int) -> bytes:
    """
    Return a number to which another one is added, as `incr` and `decr` store it.

    Raises:
        InvalidArgumentError: What is stored is not a number.
    """
    number = int(stored) if _COUNTER.fullmatch(stored) else -1
    if 0 <= number <= COUNTER_MAX:
        return b"%d" % (max(number + change, 0) & COUNTER_MAX)
    raise InvalidArgumentError(
        "the value is not a number; allowed are ASCII digits, up to 2**64 - 1"
    )


def as_bytes(key: object, what: str = "key") -> bytes:
    """
    Return text as UTF-8, and bytes as they are.

    Raises:
        InvalidKeyError: It is something else, or not valid Unicode.
    """
    try:
        if isinstance(key, str):
            return str.encode(key)
        if isinstance(key, bytes):
            return exact(key)
        raise InvalidKeyError(f"a {what} of type {type(key).__name__}; {_ALLOWED}")
    except UnicodeEncodeError:
        raise InvalidKeyError(
            f"bad {what} {str(key)[:_SHOWN_MAX]!a}: it is not valid Unicode; {_ALLOWED}"
        ) from None


def _reason(key: bytes) -> str:
    """Return why the service has no such key; empty if it has."""
    if not key:
        return "it is empty"
    control = _CONTROL_BYTE.search(key)
    if control is not None:
        return f"it has the control byte 0x{control[0][0]:02X}"
    if key.startswith(_RESERVED):
        return 'the prefix "-/" is reserved for the service'
    if key.startswith(b"/"):
        bare = _shown(key.lstrip(b"/"))
        return f"it begins with a slash; the key of this path is {bare}"
    if _DOTS & set(key.split(b"/")):
        return 'it has a segment "." or "..", which the service would resolve'
    return ""


def _refuse(key: bytes, reason: str) -> NoReturn:
    raise InvalidKeyError(f"bad key {_shown(key)}: {reason}; {_ALLOWED}")


def _shown(key: bytes) -> str:
    return repr(key[:_SHOWN_MAX]) + ("..." if len(key) > _SHOWN_MAX else "")
