"""errors.py: one tree, and which answer is which error."""

from __future__ import annotations

import copy
import pickle

import pytest

import volcache_client
from volcache_client import errors
from volcache_client.errors import AnswerError, CacheError, NodeError, error_of

CLASSES = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, CacheError)
]
STATUSES = {
    "AccessDeniedError": {401, 403},
    "RefusedRequestError": {400, 405, 411, 414, 416, 417, 421, 431, 501, 505},
    "RefusedValueError": {413},
    "UnavailableError": {408, 429, 500, 502, 503, 504},
    "NotStoredError": {507},
}


def make(kind: type[CacheError]) -> CacheError:
    """Return an error of a class."""
    if issubclass(kind, AnswerError):
        return kind("a:1", 503, b"not now\n")
    if issubclass(kind, NodeError):
        return kind("a:1", "no answer")
    return kind("text")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_error_is_exported_and_documented(kind: type[CacheError]) -> None:
    """`except volcache_client.CacheError` catches each."""
    assert getattr(volcache_client, kind.__name__) is kind
    assert kind.__name__ in volcache_client.__all__
    assert kind.__doc__


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_error_can_be_copied_and_sent_to_another_process(
    kind: type[CacheError],
) -> None:
    """With its text and its attributes."""
    error = make(kind)
    error.add_note("note")
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):  # noqa: S301
        assert type(twin) is kind
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)
        assert twin.__notes__ == ["note"]


def test_error_of_a_status_is_of_one_class() -> None:
    """What is not expected is not volcache."""
    for status in range(300, 600):
        error = error_of("a:1", status, b"")
        names = [name for name, statuses in STATUSES.items() if status in statuses]
        assert [type(error).__name__] == (names or ["UnexpectedAnswerError"])
        assert (error.node, error.status) == ("a:1", status)
        assert str(error) == f"a:1: {status}"


def test_error_of_an_answer_shows_its_first_line() -> None:
    """Printable, and not too long."""
    assert str(error_of("a:1", 507, b"disk full\nmore")) == "a:1: 507 disk full"
    assert str(error_of("a:1", 507, b"\n\n  a\x1b[1m\xff ")) == "a:1: 507 a [1m\ufffd"
    assert len(str(error_of("a:1", 507, b"x" * 100_000))) < 420


def test_errors_that_a_cache_may_hide_are_outages() -> None:
    """A mistake of the caller is never hidden."""
    assert {kind.__name__ for kind in CLASSES if not kind.is_outage} == {
        "AccessDeniedError", "AnswerError", "CacheError", "ClientUsageError",
        "ConflictError", "ForeignValueError", "InvalidArgumentError", "InvalidKeyError",
        "RefusedRequestError", "SerializationError",
    }  # fmt: skip


def test_errors_with_a_class_of_python_are_caught_by_it() -> None:
    """So that code which knows only Python's catches them."""
    assert issubclass(errors.InvalidKeyError, errors.InvalidArgumentError)
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert issubclass(errors.SerializationError, ValueError)
    assert issubclass(errors.NodeConnectionError, ConnectionError)
    assert issubclass(errors.NodeTimeoutError, TimeoutError)
