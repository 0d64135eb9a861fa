"""The small servers that volcache is held against answer what they are said to."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import pytest

import floor
import ladder
import one_file_per_key

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Make = Callable[[Path], Callable[[dict[str, Any], Any], list[bytes]]]

SIZE = 100


def stepping(step: str) -> Make:
    """Return what makes the application of a step of the ladder."""
    return lambda folder: ladder.Ladder(step, 3, SIZE, folder).application()


MAKERS: dict[str, Make] = {
    "floor": lambda _: floor.make_application(SIZE),
    "one file per key": lambda folder: one_file_per_key.make_application(str(folder)),
    **{step: stepping(step) for step in ladder.STEPS},
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
def test_a_value_that_is_put_is_answered_with_as_many_bytes(
    name: str, tmp_path: Path
) -> None:
    """With the length that is announced."""
    application = MAKERS[name](tmp_path)
    if name == "one file per key":
        assert ask(application, "GET") == ("404 Not Found", 0, b"")
    else:
        status, length, value = ask(application, "GET")
        assert (status, length, len(value)) == ("200 OK", SIZE, SIZE)
    assert ask(application, "PUT", b"x" * SIZE) == ("200 OK", 0, b"")


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    """By the two that keep it."""
    for name in ("one file per key", ladder.DISK):
        application = MAKERS[name](tmp_path)
        ask(application, "PUT", b"y" * SIZE)
        assert ask(application, "GET") == ("200 OK", SIZE, b"y" * SIZE)


def test_the_last_step_notices_another_value(tmp_path: Path) -> None:
    """The checksum is compared, not only computed."""
    application = MAKERS[ladder.CHECKSUMS](tmp_path)
    ask(application, "PUT", b"y" * SIZE)
    with pytest.raises(ValueError, match="damaged"):
        ask(application, "GET")
