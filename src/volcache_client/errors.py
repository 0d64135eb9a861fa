"""
Errors of clients and embedded caches: one tree, with `CacheError` as its root.

An error is an *outage* if the cache, not the caller, is the reason: with `on_error="miss"`
an outage is not raised, and the operation has the result of a miss.
"""

from __future__ import annotations

from typing import ClassVar, Final

_LINE_CHARACTERS_MAX: Final = 400


class CacheError(Exception):
    """Root of all errors of this package; they can be copied and pickled."""

    is_outage: ClassVar[bool] = False

    def __reduce__(self) -> tuple[object, ...]:
        # The arguments of most classes are not those that `Exception` keeps.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(
    kind: type[CacheError], args: tuple[object, ...], attributes: dict[str, object]
) -> CacheError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class InvalidArgumentError(CacheError, ValueError):
    """An argument or option is not allowed; the text names what is."""


class InvalidKeyError(InvalidArgumentError):
    """A key that the service cannot have, or would take for another key."""


class ClientUsageError(CacheError, RuntimeError):
    """The cache is closed, belongs to another event loop, or would wait for itself."""


class SerializationError(CacheError, ValueError):
    """A serializer does not accept the value, or what is stored."""


class ForeignValueError(SerializationError):
    """What is stored was not written by this serializer with this key: a miss."""


class ConflictError(CacheError):
    """Others have changed the value again and again; it is as they have left it."""


class ValueTooLargeError(CacheError):
    """A value is larger than the cache stores."""

    is_outage = True  # A value that is not stored is what a cache may answer.


class StorageError(CacheError):
    """The directory or the disk of an embedded cache has failed."""

    is_outage = True


class DiscoveryError(CacheError):
    """There is no list of nodes: its file or function failed, and never worked before."""

    is_outage = True


class NodeError(CacheError):
    """
    A node did not answer.

    Whether it has done what it was asked is unknown, except after `NodeDownError`.

    Attributes:
        node: Its name, such as "10.0.0.1:1234".
    """

    is_outage = True

    def __init__(self, node: str, reason: str) -> None:
        """Take the name of the node and what happened."""
        super().__init__(f"{node}: {reason}")
        self.node = node


class NodeDownError(NodeError):
    """The node failed before and is not asked until its back-off ends; nothing was sent."""


class NodeConnectionError(NodeError, ConnectionError):
    """No connection to the node, or one that broke before the answer was complete."""


class NodeTimeoutError(NodeError, TimeoutError):
    """The node did not answer in time."""


class PoolTimeoutError(NodeTimeoutError):
    """No connection to the node became free in time; nothing was sent."""


class AnswerError(CacheError):
    """
    A node answered that it did not do it.

    Attributes:
        node: Its name.
        status: The status of HTTP, 300 to 599.
    """

    def __init__(self, node: str, status: int, body: bytes = b"") -> None:
        """Take the first line of the body as the reason."""
        text = body[: 4 * _LINE_CHARACTERS_MAX].decode(errors="replace")
        line = text.strip().partition("\n")[0][:_LINE_CHARACTERS_MAX]
        reason = "".join(c if c.isprintable() else " " for c in line)
        super().__init__(f"{node}: {status} {reason}".rstrip())
        self.node = node
        self.status = status


class RefusedRequestError(AnswerError):
    """400, 405, 411, 414, 416, 417, 421, 431, 501 or 505: not valid there."""


class AccessDeniedError(AnswerError):
    """401 or 403: the token is missing or wrong, or the path is not for clients."""


class RefusedValueError(ValueTooLargeError, AnswerError):
    """413: larger than `max_value_size` of the service, or than nginx accepts."""


class UnavailableError(AnswerError):
    """408, 429, 500, 502, 503 or 504: not now."""

    is_outage = True


class NotStoredError(AnswerError):
    """507: the disk of the node refused to write."""

    is_outage = True


class UnexpectedAnswerError(AnswerError):
    """What answers is not volcache, or another version of it."""

    is_outage = True


_KINDS: Final[dict[int, type[AnswerError]]] = {
    **dict.fromkeys((401, 403), AccessDeniedError),
    **dict.fromkeys(
        (400, 405, 411, 414, 416, 417, 421, 431, 501, 505), RefusedRequestError
    ),
    **dict.fromkeys((408, 429, 500, 502, 503, 504), UnavailableError),
    413: RefusedValueError,
    507: NotStoredError,
}


def error_of(node: str, status: int, body: bytes) -> AnswerError:
    """Return the error for an answer that is not a success."""
    return _KINDS.get(status, UnexpectedAnswerError)(node, status, body)
