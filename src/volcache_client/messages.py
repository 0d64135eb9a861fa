"""What is sent to a node and what it answers, independent of the library that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from volcache_client.uploads import Upload

V = TypeVar("V")
T = TypeVar("T")


class Request(NamedTuple):
    """
    A request of HTTP.

    Attributes:
        method: Such as "GET".
        path: Percent-encoded, with its query.
        headers: Without `Host` and `Content-Length`.
        body: None for a request without one; an `Upload` is read while it is sent.
        is_repeatable: Whether it may be sent again when the connection, which was open
            from before, broke before anything was answered.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | Upload | None = None
    is_repeatable: bool = True


class Answer(NamedTuple):
    """
    An answer of HTTP.

    Attributes:
        status: Such as 200.
        headers: Case-insensitive.
        body: All of it.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


class Stat(NamedTuple):
    """
    What is known of a stored value without reading it.

    Attributes:
        size: Bytes.
        etag: Of this value, for `cas` and `delete`; each value that is stored has another.
        content_type: As it was stored, or guessed by the service.
        ttl: Seconds until it expires; None = it does not.
        tier: Where it was read: "DISK" or "MEMC" (memcached); empty = not known.
        position: Volume, offset and size of its record, "1,4096,1100"; empty = not known.
    """

    size: int
    etag: str
    content_type: str
    ttl: float | None
    tier: str
    position: str


class Item(NamedTuple, Generic[V]):
    """A stored value and what is known of it."""

    value: V
    stat: Stat


if TYPE_CHECKING:
    Operation = Coroutine[Any, Any, T]
