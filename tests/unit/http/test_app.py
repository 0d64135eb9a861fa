"""app.py: responses by method and path, and responses to errors."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any, cast
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from support.fake_cache import FakeCache
from support.refusing_disk import RefusingDisk
from support.stores import UnsyncedFileSystem, open_store
from support.tables import each_row
from support.wsgi_client import Client, assert_error
from volcache.cache import Cache
from volcache.errors import (
    DiskFullError,
    StoreIOError,
    StoreLockedError,
    UnreadableRecordError,
)
from volcache.http.app import App, Limits
from volcache.http.slow_log import SlowLog

if TYPE_CHECKING:
    from pathlib import Path

    from volcache.store import Store


def test_get_returns_the_stored_bytes(client: Client) -> None:
    """A PUT is acknowledged, and a GET returns the same bytes."""
    put = client.put("/a b/\xc3\xa9.json", b"value")
    assert put.status == "200 OK"
    assert put.body == b""
    got = client.ask("GET", "/a b/\xc3\xa9.json", QUERY_STRING="v=1")
    assert got.status == "200 OK"
    assert got.body == b"value"
    assert got.headers["Content-Type"] == "application/json"
    for name in ("X-Position", "ETag"):
        assert got.headers[name] == put.headers[name]
    assert list(client.cache.records) == [b"a b/\xc3\xa9.json"]


def test_head_returns_the_headers_of_a_get(client: Client) -> None:
    """Content-Length included."""
    client.put("/key", b"value")
    assert client.ask("HEAD").headers == client.ask("GET").headers
    assert client.ask("HEAD").headers["Content-Length"] == "5"


def test_empty_value_is_stored(client: Client) -> None:
    """It is not a miss, and has a length."""
    client.put("/key", b"")
    got = client.ask("GET")
    assert (got.status, got.body) == ("200 OK", b"")


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_unknown_key_is_a_miss(client: Client, method: str) -> None:
    """404 with X-Cache: MISS; for HEAD only the length of the text."""
    answer = client.ask(method)
    assert answer.headers["X-Cache"] == "MISS"
    if method == "HEAD":
        assert answer.headers == client.ask("GET").headers
    else:
        assert_error(answer, 404, "no value")


def test_second_delete_is_a_miss(client: Client) -> None:
    """200 once, then 404."""
    client.put("/key", b"value")
    assert client.ask("DELETE")[::2] == ("200 OK", b"")
    assert client.ask("DELETE").status == client.ask("GET").status == "404 Not Found"


@pytest.mark.parametrize("method", ["POST", "PATCH", "TRACE", "CONNECT", "LOCK"])
@pytest.mark.parametrize("path", ["/key", "/", None, "/-/healthy"])
def test_other_methods_are_not_allowed(
    client: Client, method: str, path: str | None
) -> None:
    """405 with Allow for any path, and for a request without a path."""
    answer = client.ask(method, path)
    assert_error(answer, 405, method, answer.headers["Allow"])


@pytest.mark.parametrize("path", ["/", "*", "/key", None])
def test_options_lists_the_allowed_methods(client: Client, path: str | None) -> None:
    """200 for any path: load balancers use it as a health check."""
    answer = client.ask("OPTIONS", path)
    assert answer.status == "200 OK"
    assert answer.headers["Allow"] == "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "path", ["/", None, "", "*", "/a\n", "/..", "/x/../-/healthy", "/" + 21 * "a"]
)
def test_bad_key_is_refused(client: Client, method: str, path: str | None) -> None:
    """400 for every method; nothing is stored."""
    answer = client.ask(method, path, CONTENT_LENGTH="0")
    assert answer.status == "400 Bad Request"
    assert not client.cache.records


def test_empty_path_names_the_page(client: Client) -> None:
    """The first line of the log shows this address; people open it in a browser."""
    assert_error(client.ask("GET", "/"), 400, "it is empty", "page", "/-/")


# --- What goes wrong -------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [ValueError("secret"), SystemExit(1), KeyboardInterrupt(), StoreLockedError("x")],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_bug_is_500_and_logged(
    client: Client,
    error: BaseException,
    method: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No exception escapes, not even one that would end bjoern; clients get no details."""
    client.cache.error = error
    answer = client.ask(method, CONTENT_LENGTH="0")
    assert_error(answer, 500, "internal error")
    assert b"secret" not in answer.body
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is error
    assert f"method={method} path='/key'" in record.getMessage()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DiskFullError(volume=3, needed=10, free=2), "needs 10 bytes, 2 are free"),
        (StoreIOError("write failed"), "write failed"),
        (OSError(28, "No space left on device", "/srv/secret"), "No space left"),
    ],
)
def test_failed_disk_is_507(
    client: Client, error: Exception, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client gets the cause without paths; the log gets one line."""
    client.cache.error = error
    answer = client.put("/key", b"value")
    assert_error(answer, 507, words)
    assert b"secret" not in answer.body
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_empty_environ_is_500(client: Client) -> None:
    """Every request is answered."""
    assert_error(client.call({}), 500)


def test_error_response_to_head_has_no_body(client: Client) -> None:
    """The length is that of the text for a GET."""
    client.cache.error = ValueError()
    assert client.ask("HEAD").headers == client.ask("GET").headers


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/key"),
        ("HEAD", "/key"),
        ("GET", "/miss"),
        ("HEAD", "/miss"),
        ("PUT", "/"),
        ("POST", "/key"),
        ("GET", "/-/healthy"),
    ],
)
def test_responses_conform_to_wsgi(client: Client, method: str, path: str) -> None:
    """
    The validator of the standard library accepts the responses.

    It requires a Content-Type with every 200, so responses without a body are left out.
    """
    client.put("/key", b"value")
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "QUERY_STRING": ""}
    environ["SCRIPT_NAME"] = ""
    setup_testing_defaults(environ)
    answer = validator(client.app)(environ, lambda *_: lambda _data: None)
    body = b"".join(answer)
    cast("Any", answer).close()
    assert bool(body) == (method != "HEAD")


@pytest.mark.parametrize(
    ("method", "name", "value", "status"),
    [
        ("GET", "HTTP_IF_NONE_MATCH", "*", 304),
        ("HEAD", "HTTP_IF_NONE_MATCH", "*", 304),
        ("GET", "HTTP_IF_MATCH", '"other"', 412),
        ("HEAD", "HTTP_IF_MATCH", '"other"', 412),
        ("PUT", "HTTP_IF_MATCH", '"other"', 412),
        ("PUT", "HTTP_IF_NONE_MATCH", "*", 412),
        ("DELETE", "HTTP_IF_MATCH", '"other"', 412),
        ("GET", "HTTP_RANGE", "bytes=1-2", 206),
        ("GET", "HTTP_RANGE", "bytes=9-", 416),
    ],
)
def test_conditional_responses_conform_to_wsgi(
    client: Client, method: str, name: str, value: str, status: int
) -> None:
    """The validator accepts 206, 304, 412 and 416."""
    client.put("/key", b"value")
    environ = {"REQUEST_METHOD": method, "PATH_INFO": "/key", "QUERY_STRING": ""}
    environ |= {"SCRIPT_NAME": "", "HTTP_TRANSFER_ENCODING": "chunked", name: value}
    setup_testing_defaults(environ)
    seen = []

    def start_response(line: str, *_: object) -> Any:
        seen.append(line)
        return lambda _data: None

    answer = validator(client.app)(environ, start_response)
    b"".join(answer)
    cast("Any", answer).close()
    assert seen[0].startswith(str(status))


@each_row("method", ["GET", "HEAD"])
def test_miss_is_503_while_the_disk_cannot_be_read(
    method: str,
) -> None:
    """The key may have a value. Hits are answered, and writes are tried."""
    client = Client(FakeCache(), is_ready=False)
    answer = client.ask(method, "/key")
    assert answer.status == "503 Service Unavailable"
    assert answer.headers["Retry-After"] == "1"
    assert "X-Cache" not in answer.headers
    assert client.put("/key", b"value").status == "200 OK"
    assert client.ask(method, "/key").status == "200 OK"
    assert client.ask("DELETE", "/other").status == "404 Not Found"


UNREADABLE = UnreadableRecordError("the disk cannot be read: Input/output error")
# All requests that must know whether the key has a value, and which one.
NEEDS_THE_RECORD = [
    ("GET", {}),
    ("HEAD", {}),
    ("PROPFIND", {}),
    *((m, {"HTTP_RANGE": "bytes=0-1"}) for m in ("GET", "HEAD")),
    *(
        (method, {name: value})
        for method in ("GET", "HEAD", "PUT", "DELETE")
        for name, value in (
            ("HTTP_IF_NONE_MATCH", "*"),
            ("HTTP_IF_NONE_MATCH", '"other"'),
            ("HTTP_IF_MATCH", "*"),
            ("HTTP_IF_MATCH", '"other"'),
            ("HTTP_IF_UNMODIFIED_SINCE", "Sat, 21 Nov 2026 09:00:00 GMT"),
        )
    ),
]


@pytest.mark.parametrize(("method", "headers"), NEEDS_THE_RECORD)
def test_unreadable_record_is_503(
    client: Client,
    method: str,
    headers: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is neither a hit nor a miss; no condition is true or false, nothing changes."""
    client.put("/key", b"value")
    before = dict(client.cache.records)
    client.cache.read_error = UNREADABLE
    answer = client.ask(method, "/key", b"new", CONTENT_LENGTH="3", **headers)
    if method == "HEAD":
        assert answer.status == "503 Service Unavailable"
    else:
        assert_error(answer, 503, "cannot be read", "try again")
    assert answer.headers["Retry-After"] == "1"
    assert "X-Cache" not in answer.headers
    assert "ETag" not in answer.headers
    assert client.cache.records == before
    assert not caplog.records


def test_unreadable_record_can_be_replaced_and_deleted(client: Client) -> None:
    """Without a condition, nothing need be known of it."""
    client.put("/a", b"old")
    client.put("/b", b"old")
    client.cache.read_error = UNREADABLE
    assert client.put("/a", b"new").status == "200 OK"
    assert client.ask("DELETE", "/b").status == "200 OK"
    client.cache.read_error = None
    assert client.ask("GET", "/a").body == b"new"
    assert client.ask("GET", "/b").status == "404 Not Found"


def test_requests_to_a_store_whose_disk_cannot_be_read(tmp_path: Path) -> None:
    """503 for the records, 404 for other keys; a DELETE deletes."""
    disk: Any = RefusingDisk()
    store = open_store(tmp_path, fs=disk)
    app = App(Cache(store), Limits(key_size=99, value_size=100))

    def status(method: str, key: str, **more: str) -> str:
        seen: list[str] = []
        environ = {"REQUEST_METHOD": method, "PATH_INFO": f"/{key}", **more}
        app(environ, lambda line, *_: seen.append(line))  # type: ignore[arg-type]
        return seen[0][:3]

    store.put(b"kept", b"value")
    store.put(b"deleted", b"value")
    disk.refuses_reads = True
    assert status("GET", "kept") == status("PROPFIND", "kept") == "503"
    assert status("HEAD", "absent") == status("PROPFIND", "absent") == "404"
    assert status("DELETE", "kept", HTTP_IF_MATCH="*") == "503"
    assert status("DELETE", "deleted") == "200"
    assert status("DELETE", "deleted") == "404"
    disk.refuses_reads = False
    assert status("GET", "kept") == "200"
    assert status("GET", "deleted") == "404"
    store.close()


class SlowFileSystem(UnsyncedFileSystem):
    """A disk whose reads take 30 ms once `is_slow` is set."""

    is_slow = False

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read, slowly."""
        if self.is_slow:
            time.sleep(0.03)
        return os.pread(fd, length, offset)


def test_slow_request_is_logged_with_its_disk_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For every kind of read; the time spent on the disk is part of the total."""
    disk = SlowFileSystem()
    store = open_store(tmp_path, fs=disk)
    limits = Limits(key_size=100, value_size=1000)
    app = App(Cache(store), limits, slow_log=SlowLog(0.02))
    store.put(b"key", b"value")
    disk.is_slow = True
    for method, headers in (("GET", {}), ("HEAD", {}), ("GET", {"HTTP_RANGE": "0"})):
        app(
            {"REQUEST_METHOD": method, "PATH_INFO": "/key", **headers},
            lambda *_: lambda _data: None,
        )
    store.close()
    assert len(caplog.messages) == 3
    for line in caplog.messages:
        event, *pairs = line.split()
        fields = dict(pair.split("=") for pair in pairs)
        assert (event, fields["key"], fields["status"]) == (
            "request.slow",
            "key",
            "200",
        )
        assert float(fields["memcached"]) == 0
        assert 0.03 <= float(fields["disk"]) <= float(fields["seconds"])


def test_stored_key_above_a_lowered_limit_is_answered(store: Store) -> None:
    """Also when the request is sampled for the hottest keys."""
    store.put(b"longer than the limit", b"value")
    app = App(Cache(store), Limits(key_size=3, value_size=100), timer=lambda: 0)
    seen: list[str] = []
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/longer than the limit"}
    body = app(environ, lambda status, *_: seen.append(status))  # type: ignore[arg-type]
    assert (seen, body) == (["200 OK"], [b"value"])
    assert app.stats.sampled[b"longer than the limit"] == 1


def test_sample_counts_a_path_by_its_canonical_key(store: Store) -> None:
    """Two paths of one key are one key among the hottest."""
    store.put(b"a/b", b"value")
    app = App(Cache(store), Limits(key_size=3, value_size=100), timer=lambda: 0)
    for path in ("/a/b", "/x/../a/./b"):
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": path}
        app(environ, lambda *_: None)  # type: ignore[arg-type]
    assert app.stats.sampled == {b"a/b": 2}


def test_stored_key_that_is_not_valid_is_answered(store: Store) -> None:
    """Volumes that something else wrote may hold one; no exception leaves the app."""
    store.put(b"control \x01 byte", b"value")
    app = App(Cache(store), Limits(key_size=99, value_size=100), timer=lambda: 0)
    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/control \x01 byte"}
    body = app(environ, lambda *_: None)  # type: ignore[arg-type]
    assert body == [b"value"]
    assert not app.stats.sampled
