"""nginx/volcache/origin.conf: misses are filled from an origin, and stored once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from support.origin import LIMIT, Filled
from support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Filled]:
    """Start an origin, instances and nginx, of which a test may stop any."""
    with ExitStack() as stack:
        yield Filled(tmp_path, stack)


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    with ExitStack() as stack:
        yield Filled(tmp_path_factory.mktemp("origin"), stack)


@pytest.fixture
def filled(_shared: Filled) -> Filled:
    """Return those that run on, with an origin that was not asked yet."""
    _shared.origin.asked.clear()
    _shared.origin.heads.clear()
    return _shared


def test_clients_that_miss_one_file_are_one_request_to_the_origin(
    filled: Filled,
) -> None:
    """It is stored once, on the instance of its key, with type, encoding and lifetime."""
    headers = {
        "Content-Type": "text/x",
        "Content-Encoding": "x-own",
        "Cache-Control": "public, max-age=5000",
    }
    filled.origin.answers["/a%20b?w=1"] = 200, headers, b"value"
    filled.origin.answers["/a%20b?w=2"] = 200, {}, b"other"
    filled.origin.held.clear()
    with ThreadPoolExecutor(30) as pool:
        asked = [pool.submit(filled.get, "/a%20b?w=1") for _ in range(30)]
        wait_until(
            lambda: filled.origin.asked["HEAD /a%20b?w=1"], "the origin to be asked"
        )
        time.sleep(1)  # The time that the origin takes; the others wait for it.
        filled.origin.held.set()
        found = [one.result() for one in asked]
    assert {(one.status_code, one.content) for one in found} == {(200, b"value")}
    assert {one.headers["Content-Type"] for one in found} == {"text/x"}
    assert filled.origin.asked == {"HEAD /a%20b?w=1": 1, "GET /a%20b?w=1": 1}
    (copy,) = filled.stored("/a%20b?w=1")
    assert copy.content == b"value"
    assert copy.headers["Content-Type"] == "text/x"
    assert copy.headers["Content-Encoding"] == "x-own"
    assert 4900 < int(copy.headers["Cache-Control"].removeprefix("max-age=")) <= 5000
    # Through our usual server it is the same key; another query is another one.
    assert requests.get(f"{filled.nginx.url}/a%20b?w=1", timeout=30).content == b"value"
    assert filled.get("/a%20b?w=2").content == b"other"
    (copy,) = filled.stored("/a%20b?w=2")
    assert 3500 < int(copy.headers["Cache-Control"].removeprefix("max-age=")) <= 3600


@pytest.mark.parametrize(
    ("status", "headers", "length"),
    [
        (404, {}, 5),
        (500, {"Cache-Control": "max-age=60"}, 5),
        (200, {"Cache-Control": "no-store"}, 5),
        (200, {"Cache-Control": "private, max-age=60"}, 5),
        (200, {"Cache-Control": "max-age=0"}, 5),
        (200, {"Set-Cookie": "a=b", "Cache-Control": "max-age=60"}, 5),
        (200, {"Vary": "Accept-Language", "Cache-Control": "max-age=60"}, 5),
        (200, {"Transfer-Encoding": "chunked", "Cache-Control": "max-age=60"}, 5),
        (200, {"Cache-Control": "max-age=60"}, LIMIT + 1),
    ],
    ids=str,
)
def test_other_answers_are_passed_and_not_stored(
    filled: Filled, tmp_path: Path, status: int, headers: dict[str, str], length: int
) -> None:
    """Also those above the limit; the origin is asked each time."""
    path = f"/{tmp_path.name}"
    filled.origin.answers[path] = status, headers, b"v" * length
    for _ in range(2):
        found = filled.get(path, Cookie="a=b", Authorization="Bearer x")
        assert (found.status_code, found.content) == (status, b"v" * length)
    assert filled.stored(path) == []
    heads = filled.origin.heads
    assert not any(one["Cookie"] or one["Authorization"] for one in heads)


def test_old_answers_are_sent_while_the_origin_is_dead(own: Filled) -> None:
    """And what volcache has, without asking it."""
    own.origin.answers["/old"] = 200, {"Cache-Control": "max-age=1"}, b"one"
    own.origin.answers["/kept"] = 200, {"Cache-Control": "max-age=900"}, b"two"
    assert own.get("/old").content == b"one"
    assert own.get("/kept").content == b"two"
    own.origin.stop()
    wait_until(lambda: own.stored("/old") == [], "its end")
    wait_until(
        lambda: own.get("/old").headers["X-Cache-Nginx"] in {"STALE", "UPDATING"},
        "an old answer",
    )
    for path, value in (("/old", b"one"), ("/kept", b"two")):
        found = own.get(path)
        assert (found.status_code, found.content) == (200, value)
    assert own.get("/none").status_code == 502
    # The first cache is small: volcache has what it has forgotten.
    own.nginx.kill()
    for file in (own.nginx.folder / "volcache-origin").rglob("*"):
        if file.is_file():
            file.unlink()
    own.nginx.restart()
    found = own.get("/kept")
    assert (found.content, found.headers["X-Cache"]) == (b"two", "DISK")


def test_instances_that_are_down_are_misses(own: Filled) -> None:
    """The answers come from the origin."""
    own.origin.answers["/a"] = 200, {}, b"value"
    for one in own.instances:
        one.kill()
    found = own.get("/a")
    assert (found.status_code, found.content) == (200, b"value")
