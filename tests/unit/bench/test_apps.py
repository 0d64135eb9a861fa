"""The WSGI applications that volcache is compared with."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

from bench.apps import files, floor
from bench.extra.ladder import CHECKSUMS, DISK, STEPS, Ladder
from bench.servers import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Make = Callable[[Path], Callable[[dict[str, Any], Any], list[bytes]]]

SIZE = 100


def make_step(step: str) -> Make:
    """Return what makes the application of a step of the ladder."""
    return lambda folder: Ladder(step, Dataset(count=3, value_bytes=SIZE), folder)


MAKERS: dict[str, Make] = {
    "floor": lambda _: floor(str(SIZE)),
    "files": lambda folder: files(str(folder)),
    **{step: make_step(step) for step in STEPS},
}


def ask(application: Any, verb: str, body: bytes = b"") -> tuple[str, int, bytes]:
    """Return status, Content-Length and body of an answer for the key k1."""
    seen: list[tuple[str, list[tuple[str, str]]]] = []
    environ = {
        "REQUEST_METHOD": verb,
        "PATH_INFO": "/k1",
        "wsgi.input": io.BytesIO(body),
    }
    answer = application(environ, lambda *given: seen.append(given))
    ((status, headers),) = seen
    return status, int(dict(headers)["Content-Length"]), b"".join(answer)


@pytest.mark.parametrize("name", MAKERS)
def test_a_get_is_answered_with_the_announced_bytes_and_a_put_with_none(
    name: str, tmp_path: Path
) -> None:
    """Of one file per key, a key that is not stored is a miss."""
    application = MAKERS[name](tmp_path)
    if name == "files":
        assert ask(application, "GET") == ("404 Not Found", 0, b"")
    else:
        status, length, value = ask(application, "GET")
        assert (status, length, len(value)) == ("200 OK", SIZE, SIZE)
    assert ask(application, "PUT", b"x" * SIZE) == ("200 OK", 0, b"")


def test_the_floor_answers_gets_with_the_status_it_was_given() -> None:
    """To compare with misses."""
    status, _, _ = ask(floor(str(SIZE), "404 Not Found"), "GET")
    assert status == "404 Not Found"


def test_the_value_that_was_put_is_read_back(tmp_path: Path) -> None:
    """By the applications that store it."""
    for name in ("files", DISK):
        application = MAKERS[name](tmp_path)
        ask(application, "PUT", b"y" * SIZE)
        assert ask(application, "GET") == ("200 OK", SIZE, b"y" * SIZE)


def test_the_last_step_compares_the_checksum(tmp_path: Path) -> None:
    """It is the checksum of another value."""
    application = MAKERS[CHECKSUMS](tmp_path)
    ask(application, "PUT", b"y" * SIZE)
    with pytest.raises(ValueError, match="checksum"):
        ask(application, "GET")
