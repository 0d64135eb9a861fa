"""What the headers of an answer say, and what may be put into those of a request."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from volcache_client.errors import (
    InvalidArgumentError,
    UnexpectedAnswerError,
    error_of,
)
from volcache_client.keys import TTL_MAX, checked_ttl
from volcache_client.messages import Stat

if TYPE_CHECKING:
    from volcache_client.messages import Answer
    from volcache_client.nodes import Node

_ETAG: Final = re.compile(r'"[!#-~]*"')
_DIGITS_MAX: Final = 18
# 34 years: the value was stored for the longest time, which stands for no expiry.
_NEVER: Final = TTL_MAX // 2
_OK: Final = 200
_PRECONDITION_FAILED: Final = 412


def stat_of(answer: Answer, size: int) -> Stat:
    """Return what the headers of an answer say of a value."""
    headers = answer.headers
    return Stat(
        size=size,
        etag=headers.get("ETag", ""),
        content_type=headers.get("Content-Type", ""),
        ttl=_time_left(headers.get("Cache-Control", "")),
        tier=headers.get("X-Cache", ""),
        position=headers.get("X-Position", ""),
    )


def size_of(node: Node, answer: Answer) -> int:
    """
    Return the size of a value by the head of its answer.

    Raises:
        UnexpectedAnswerError: It has none.
    """
    size = number_in(answer.headers.get("Content-Length", ""))
    if size is not None:
        return size
    raise UnexpectedAnswerError(node.name, answer.status, b"no Content-Length")


def etag_of(node: Node, answer: Answer) -> str | None:
    """
    Return the ETag of the answer to a PUT; None if its condition does not hold.

    Raises:
        AnswerError: It was not stored.
    """
    if answer.status == _OK:
        return answer.headers.get("ETag", "")
    if answer.status == _PRECONDITION_FAILED:
        return None
    raise error_of(node.name, answer.status, answer.body)


def max_age(ttl: Any) -> int:  # noqa: ANN401 - It is checked.
    """
    Return a time to live as the service accepts it, rounded up.

    Raises:
        InvalidArgumentError: See `checked_ttl`.
    """
    # Without a time, the service may have a default.
    return math.ceil(min(checked_ttl(ttl), TTL_MAX))


def checked_etag(etag: Any) -> str:  # noqa: ANN401 - It is checked.
    """
    Return an ETag.

    Raises:
        InvalidArgumentError: It is not one, quotes included.
    """
    if isinstance(etag, str) and _ETAG.fullmatch(etag):
        return etag
    raise InvalidArgumentError(
        f"etag={etag!r}; allowed is what `set`, `stat` and `get_item` return"
    )


def checked_type(content_type: str) -> str:
    """
    Return a content type.

    Raises:
        InvalidArgumentError: It has characters that no header has.
    """
    if re.fullmatch(r"[ -~\x80-\xff]+", content_type) and content_type.strip():
        return content_type
    raise InvalidArgumentError(
        f"content_type={content_type!r}; allowed is ISO 8859-1 without control characters"
    )


def _time_left(cache_control: str) -> int | None:
    for directive in cache_control.split(","):
        name, _, seconds = directive.strip().partition("=")
        if name.lower() == "max-age" and (left := number_in(seconds)) is not None:
            return left if left < _NEVER else None
    return None


def number_in(text: str) -> int | None:
    """Return a number; None if it has another character than a digit, or too many."""
    is_number = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    return int(text) if is_number else None
