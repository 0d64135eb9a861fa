"""app.py: which request is answered how, and what goes wrong."""

from __future__ import annotations

import logging
from typing import Any, cast
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from support.fake_cache import FakeCache
from support.wsgi_client import Client, assert_error
from volcache.errors import DiskFullError, StoreClosedError, StoreIOError


def test_value_comes_back(client: Client) -> None:
    """A PUT is acknowledged, and a GET returns its very bytes."""
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


def test_head_is_a_get_without_its_body(client: Client) -> None:
    """The same headers, the length included."""
    client.put("/key", b"value")
    assert client.ask("HEAD").headers == client.ask("GET").headers
    assert client.ask("HEAD").headers["Content-Length"] == "5"


def test_empty_value_is_a_value(client: Client) -> None:
    """It is no miss, and has a length."""
    client.put("/key", b"")
    got = client.ask("GET")
    assert (got.status, got.body) == ("200 OK", b"")


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_unknown_key_is_a_miss(client: Client, method: str) -> None:
    """404, said to be a miss; with HEAD the length of the text alone."""
    answer = client.ask(method)
    assert answer.headers["X-Cache"] == "MISS"
    if method == "HEAD":
        assert answer.headers == client.ask("GET").headers
    else:
        assert_error(answer, 404, "no value")


def test_deleted_value_is_gone(client: Client) -> None:
    """200 once, then a miss."""
    client.put("/key", b"value")
    assert client.ask("DELETE")[::2] == ("200 OK", b"")
    assert client.ask("DELETE").status == client.ask("GET").status == "404 Not Found"


@pytest.mark.parametrize("method", ["POST", "PATCH", "TRACE", "CONNECT", "LOCK"])
@pytest.mark.parametrize("path", ["/key", "/", None, "/-/healthy"])
def test_other_verbs_are_not_allowed(
    client: Client, method: str, path: str | None
) -> None:
    """405 with what is allowed, whatever the path, even without one."""
    answer = client.ask(method, path)
    assert_error(answer, 405, method, answer.headers["Allow"])


@pytest.mark.parametrize("path", ["/", "*", "/key", None])
def test_options_tells_what_is_allowed(client: Client, path: str | None) -> None:
    """200 for any path: it is the health check of some balancers."""
    answer = client.ask("OPTIONS", path)
    assert answer.status == "200 OK"
    assert answer.headers["Allow"] == "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
@pytest.mark.parametrize(
    "path", ["/", None, "", "*", "/a\n", "/..", "/x/../-/healthy", "/" + 21 * "a"]
)
def test_bad_key_is_refused(client: Client, method: str, path: str | None) -> None:
    """400 for every verb; nothing is stored."""
    answer = client.ask(method, path, CONTENT_LENGTH="0")
    assert answer.status == "400 Bad Request"
    assert not client.cache.records


def test_the_empty_path_says_where_the_page_is(client: Client) -> None:
    """Whoever follows the address in the first line of the log in a browser is told."""
    assert_error(client.ask("GET", "/"), 400, "it is empty", "page", "/-/")


# --- What goes wrong -------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [ValueError("secret"), SystemExit(1), KeyboardInterrupt(), StoreClosedError("x")],
)
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_bug_is_500_and_logged(
    client: Client,
    error: BaseException,
    method: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing escapes, not even what would end bjoern; the client gets no details."""
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
def test_disk_trouble_is_507(
    client: Client, error: Exception, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client learns what, not where; the log one line."""
    client.cache.error = error
    answer = client.put("/key", b"value")
    assert_error(answer, 507, words)
    assert b"secret" not in answer.body
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_environ_without_anything_is_500(client: Client) -> None:
    """No request is too broken for an answer."""
    assert_error(client.call({}), 500)


def test_error_of_head_has_no_body(client: Client) -> None:
    """The length is that of the text a GET would have."""
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
def test_application_keeps_to_wsgi(client: Client, method: str, path: str) -> None:
    """
    The standard library's validator agrees.

    It asks for a Content-Type with every 200, so the answers without a body are not
    for it.
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
def test_conditions_and_ranges_keep_to_wsgi(
    client: Client, method: str, name: str, value: str, status: int
) -> None:
    """The validator agrees with 206, 304, 412 and 416 as well."""
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


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_read_that_finds_nothing_is_503_while_the_disk_cannot_be_read(
    method: str,
) -> None:
    """It says nothing of the key; what is found is answered, and writes are tried."""
    client = Client(FakeCache(), is_ready=False)
    answer = client.ask(method, "/key")
    assert answer.status == "503 Service Unavailable"
    assert answer.headers["Retry-After"] == "1"
    assert "X-Cache" not in answer.headers
    assert client.put("/key", b"value").status == "200 OK"
    assert client.ask(method, "/key").status == "200 OK"
    assert client.ask("DELETE", "/other").status == "404 Not Found"
