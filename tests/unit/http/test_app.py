"""app.py: responses by method and path, and responses to errors."""

from __future__ import annotations

import logging
from itertools import count, product
from typing import Any, cast
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from support.fake_cache import FakeCache
from support.stores import FakeClock
from support.wsgi_client import Client, assert_error
from volcache.cache import Cache
from volcache.errors import (
    DiskFullError,
    StoreIOError,
    StoreLockedError,
    UnreadableRecordError,
)
from volcache.store import Store


def test_head_304_and_412_do_not_read_the_value(client: Client) -> None:
    client.put("/key", b"value")
    client.now_ms += 2000
    client.ask("HEAD")
    for name, value in (
        ("NONE_MATCH", "*"),
        ("MODIFIED_SINCE", "Sat, 21 Nov 2026 09:00:02 GMT"),
        ("MATCH", "x"),
    ):
        answer = client.ask("GET", "/key", b"", **{f"HTTP_IF_{name}": value})
        assert answer.status[:3] in {"304", "412"}
    assert client.cache.reads == 0


# --- What goes wrong -------------------------------------------------------------


def test_request_that_meets_a_bug_is_500_and_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """No exception escapes, not even one that would end bjoern; clients get no details."""
    errors = (ValueError("secret"), SystemExit(1), KeyboardInterrupt())
    for error in (*errors, StoreLockedError("x")):
        client.cache.error = error
        for method in ("GET", "PUT", "DELETE"):
            caplog.clear()
            answer = client.ask(method, CONTENT_LENGTH="0")
            assert_error(answer, 500, "internal error")
            assert b"secret" not in answer.body
            [record] = caplog.records
            assert record.exc_info is not None
            assert record.exc_info[1] is error
            assert f"method={method} path='/key'" in record.getMessage()
        assert client.ask("HEAD").headers == client.ask("GET").headers
    assert_error(client.call({}), 500)


def test_put_that_the_disk_refuses_is_507_with_the_cause(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets the cause without paths; the log gets one line."""
    for error, words in (
        (DiskFullError(volume=3, needed=10, free=2), "needs 10 bytes, 2 are free"),
        (StoreIOError("write failed"), "write failed"),
        (OSError(28, "No space left on device", "/srv/secret"), "No space left"),
    ):
        caplog.clear()
        client.cache.error = error
        answer = client.put("/key", b"value")
        assert_error(answer, 507, words)
        assert b"secret" not in answer.body
        assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_response_of_each_status_conforms_to_wsgi() -> None:
    """
    The validator of the standard library accepts the responses.

    It requires a Content-Type with every 200, so responses without a body are left out.
    """
    none_match, match = "HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH"
    for method, path, name, value, status in (
        *((method, "/key", "x", "", 200) for method in ("GET", "HEAD")),
        *((method, "/miss", "x", "", 404) for method in ("GET", "HEAD")),
        *((method, "/key", none_match, "*", 304) for method in ("GET", "HEAD")),
        *((method, "/key", match, '"x"', 412) for method in ("HEAD", "PUT", "DELETE")),
        *(("PUT", "/", "x", "", 400), ("POST", "/key", "x", "", 405)),
        ("GET", "/-/healthy", "x", "", 200),
        ("GET", "/key", "HTTP_RANGE", "bytes=1-2", 206),
        ("GET", "/key", "HTTP_RANGE", "bytes=9-", 416),
    ):
        client = Client(FakeCache())
        client.put("/key", b"value")
        environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": ""}
        environ |= {"SCRIPT_NAME": "", "HTTP_TRANSFER_ENCODING": "chunked", name: value}
        setup_testing_defaults(environ)
        seen: list[str] = []

        def start_response(line: str, *_: object, seen: list[str] = seen) -> Any:
            seen.append(line)
            return lambda _data: None

        answer = validator(client.app)(environ, start_response)
        assert bool(b"".join(answer)) == (method != "HEAD" and status != 304)
        cast("Any", answer).close()
        assert seen[0].startswith(str(status))


def test_get_of_no_value_while_the_disk_cannot_be_read_is_503(client: Client) -> None:
    """The key may have a value. Hits are answered, and writes are tried."""
    client.cache.is_disk_readable = False
    for method in ("GET", "HEAD"):
        client.ask("DELETE", "/key")
        answer = client.ask(method, "/key")
        assert answer.status == "503 Service Unavailable"
        assert answer.headers["Retry-After"] == "1"
        assert "X-Cache" not in answer.headers
        assert client.put("/key", b"value").status == "200 OK"
        assert client.ask(method, "/key").status == "200 OK"
        assert client.ask("DELETE", "/other").status == "404 Not Found"


def test_request_for_an_unreadable_record_is_503_and_changes_nothing(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """It is neither a hit nor a miss; no condition is true or false, nothing changes."""
    client.put("/key", b"value")
    before = dict(client.cache.records)
    error = UnreadableRecordError("the disk cannot be read: Input/output error")
    client.cache.read_error = error
    reads: list[tuple[str, dict[str, str]]] = [
        *((method, {}) for method in ("GET", "HEAD", "PROPFIND")),
        *((method, {"HTTP_RANGE": "bytes=0-1"}) for method in ("GET", "HEAD")),
    ]
    conditions = [
        *({f"HTTP_IF_{name}": "*"} for name in ("MATCH", "NONE_MATCH")),
        *({f"HTTP_IF_{name}": '"other"'} for name in ("MATCH", "NONE_MATCH")),
        {"HTTP_IF_UNMODIFIED_SINCE": "Sat, 21 Nov 2026 09:00:00 GMT"},
    ]
    for method, headers in (
        *reads,
        *product(("GET", "HEAD", "PUT", "DELETE"), conditions),
    ):
        answer = client.ask(method, "/key", b"new", CONTENT_LENGTH="3", **headers)
        assert answer.status == "503 Service Unavailable"
        if method != "HEAD":
            assert_error(answer, 503, "cannot be read", "try again")
        assert answer.headers["Retry-After"] == "1"
        assert not {"X-Cache", "ETag"} & answer.headers.keys()
        assert client.cache.records == before
    assert not caplog.records
    # Without a condition, nothing need be known of it.
    assert client.put("/key", b"new").status == "200 OK"
    assert client.ask("DELETE", "/key").status == "200 OK"
    client.cache.read_error = None
    assert client.ask("GET", "/key").status == "404 Not Found"


def test_slow_request_is_logged_with_its_disk_time(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every kind of read; what was waited for is counted from its start."""
    cache: Any = FakeCache()
    client = Client(cache, timer=count(0, 50_000_000).__next__)
    client.put("/key", b"value")
    since: list[int] = []

    def waited_since(started_ns: int) -> tuple[int, int]:
        since.append(started_ns)
        return 30_000_000, 0

    monkeypatch.setattr(cache, "waited_since", waited_since, raising=False)
    client.app.set_slow(0.02)
    for method, headers in (("GET", {}), ("HEAD", {}), ("GET", {"HTTP_RANGE": "0"})):
        client.ask(method, "/key", b"", **headers)
    end = (
        " method={} key=key status=200 seconds=0.050000"
        " memcached=0.000000 disk=0.030000 rest=0.020000 left_out=0"
    )
    lines = [f"request.slow{end.format(method)}" for method in ("GET", "HEAD", "GET")]
    assert caplog.messages == lines
    assert since == [100_000_000, 200_000_000, 300_000_000]


def test_get_of_a_key_above_the_limit_is_answered_and_sampled(store: Store) -> None:
    """Above a lowered limit, or named by another path of the same key."""
    for path, key in (
        ("/longer than the limit", b"longer than the limit"),
        ("/a/b", b"a/b"),
        ("/x/../a/./b", b"a/b"),
    ):
        store.put(key, b"value")
        client = Client(Cache(store), clock=FakeClock(), timer=lambda: 0)
        assert client.ask("GET", path).body == b"value"
        assert client.ask("GET", path, HTTP_IF_NONE_MATCH="*").status[:3] == "304"
        assert client.ask("HEAD", path).status == "200 OK"
        assert client.app.stats.sampled[key] == 3
        assert client.ask("GET", "/absent").status == "404 Not Found"
