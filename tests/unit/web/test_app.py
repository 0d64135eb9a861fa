"""app.py, admin.py and uploads.py: which request is answered how."""

from __future__ import annotations

import io
import logging
from typing import Any, cast
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.fake_cache import FakeCache
from support.wsgi_client import VALUE_SIZE_MAX, Client, assert_error
from volcache.errors import DiskFullError, StoreClosedError, StoreIOError


@pytest.fixture
def client() -> Client:
    """Return a client of an application with an empty cache."""
    return Client(FakeCache())


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


# --- Uploads ---------------------------------------------------------------------


def test_put_without_length_is_refused(client: Client) -> None:
    """An absent body is not an empty value."""
    assert_error(client.ask("PUT"), 411, "Content-Length", "chunked")
    assert_error(client.ask("PUT", HTTP_TRANSFER_ENCODING="gzip"), 411)
    assert not client.cache.records


@pytest.mark.parametrize("body", [b"", b"value"])
def test_chunked_put_needs_no_length(client: Client, body: bytes) -> None:
    """Its body comes decoded, without a CONTENT_LENGTH."""
    answer = client.ask("PUT", "/key", body, HTTP_TRANSFER_ENCODING="chunked")
    assert answer.status == "200 OK"
    assert client.cache.records[b"key"].value == body


def test_put_over_the_limit_is_refused(client: Client) -> None:
    """413 with both numbers; the limit itself is allowed."""
    assert client.put("/key", bytes(VALUE_SIZE_MAX)).status == "200 OK"
    answer = client.put("/key", bytes(VALUE_SIZE_MAX + 1))
    assert_error(answer, 413, "101 bytes", "0 to 100")
    assert len(client.cache.records[b"key"].value) == VALUE_SIZE_MAX


@pytest.mark.parametrize("length", ["4", "6", "55", "x", "5x", "-5", "+5", " 5", "0"])
def test_length_that_does_not_fit_is_refused(client: Client, length: str) -> None:
    """A body is stored whole or not at all."""
    answer = client.ask("PUT", "/key", b"value", CONTENT_LENGTH=length)
    assert_error(answer, 400, "Content-Length", "5")
    assert not client.cache.records


@pytest.mark.parametrize(
    ("length", "body"), [("05", b"value"), ("0", b""), ("00", b"")]
)
def test_length_may_have_leading_zeros(
    client: Client, length: str, body: bytes
) -> None:
    """As the grammar of HTTP has it."""
    assert client.ask("PUT", "/key", body, CONTENT_LENGTH=length).status == "200 OK"


def test_very_long_length_is_no_bug(client: Client) -> None:
    """Python refuses to convert thousands of digits; they are not converted."""
    assert_error(client.ask("PUT", "/key", b"v", CONTENT_LENGTH="9" * 9999), 400)


def test_value_is_not_copied(client: Client) -> None:
    """What bjoern has buffered is what is stored."""
    body = io.BytesIO()
    body.write(b"v" * 50)
    body.write(b"w" * 50)
    body.seek(0)
    client.call(
        {
            "REQUEST_METHOD": "PUT",
            "PATH_INFO": "/key",
            "CONTENT_LENGTH": "100",
            "wsgi.input": body,
        }
    )
    assert client.cache.records[b"key"].value is body.getvalue()


def test_content_headers_are_kept(client: Client) -> None:
    """Type and encoding come back as they were."""
    client.put("/key.png", b"", CONTENT_TYPE="a/\xe9; b=c", HTTP_CONTENT_ENCODING="br")
    headers = client.ask("GET", "/key.png").headers
    assert headers["Content-Type"] == "a/\xe9; b=c"
    assert headers["Content-Encoding"] == "br"


def test_empty_content_headers_are_as_none(client: Client) -> None:
    """The type is guessed, no encoding is said."""
    client.put("/key.png", b"", CONTENT_TYPE="", HTTP_CONTENT_ENCODING="")
    headers = client.ask("GET", "/key.png").headers
    assert headers["Content-Type"] == "image/png"
    assert "Content-Encoding" not in headers


@pytest.mark.parametrize(
    ("name", "limit"), [("CONTENT_TYPE", 255), ("HTTP_CONTENT_ENCODING", 64)]
)
def test_content_headers_that_cannot_be_given_back_are_refused(
    client: Client, name: str, limit: int
) -> None:
    """Too long, or able to end a header and begin another."""
    assert client.put("/key", b"", **{name: "a" * limit}).status == "200 OK"
    client.ask("DELETE")
    for bad in ("a" * (limit + 1), "a\r\nX-Evil: 1", "\0", "a\tb", "\x7f", "\u20ac"):
        assert_error(client.put("/key", b"", **{name: bad}), 400, "allowed")
    assert not client.cache.records


@pytest.mark.property
@given(st.text(st.characters(max_codepoint=255), max_size=30))
def test_kept_header_never_holds_a_control_character(value: str) -> None:
    """Headers are sent as they are."""
    client = Client(FakeCache())
    client.put("/key", b"", CONTENT_TYPE=value)
    got = client.ask("GET")
    if got.status == "200 OK":
        kept = got.headers["Content-Type"]
        assert kept == (value or "application/octet-stream")
        assert not any(ord(c) < 32 or ord(c) == 127 for c in kept)


# --- The operator's paths --------------------------------------------------------


def test_healthy_says_ok(client: Client) -> None:
    """200 and one line, without asking the cache."""
    client.cache.error = StoreIOError("broken")
    assert client.ask("GET", "/-/healthy")[::2] == ("200 OK", b"ok\n")
    assert client.ask("HEAD", "/-/healthy").headers["Content-Length"] == "3"


@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 503)])
def test_ready_says_whether_requests_should_come(
    *, is_ready: bool, status: int
) -> None:
    """503 sends nginx elsewhere; what is asked for all the same is answered."""
    client = Client(FakeCache(), is_ready=is_ready)

    assert client.ask("GET", "/-/ready").status.startswith(str(status))
    assert client.ask("HEAD", "/-/ready").body == b""
    assert client.ask("GET", "/-/healthy").status == "200 OK"


def test_the_prefix_alone_is_the_page(client: Client) -> None:
    """HTML for GET, its headers for HEAD; it is no key."""
    page = client.ask("GET", "/-/")
    assert (page.status, page.headers["Content-Type"]) == (
        "200 OK",
        "text/html; charset=utf-8",
    )
    assert page.body.startswith(b"<!doctype html>")
    assert client.ask("HEAD", "/-/").body == b""
    assert "X-Cache" not in page.headers


@pytest.mark.parametrize("path", ["/-/x", "/-/healthy/", "/-//"])
def test_unknown_admin_path_is_not_found(client: Client, path: str) -> None:
    """404, and no miss: it is no key."""
    answer = client.ask("GET", path)
    assert_error(answer, 404, "/-/healthy")
    assert "X-Cache" not in answer.headers


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
@pytest.mark.parametrize("path", ["/-/", "/-/healthy", "/-/x"])
def test_nothing_under_the_prefix_changes_anything(
    client: Client, method: str, path: str
) -> None:
    """405 whatever the path."""
    client.put("/key", b"value")
    assert_error(client.ask(method, path, CONTENT_LENGTH="0"), 405, "GET, HEAD")
    assert list(client.cache.records) == [b"key"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_flush_is_a_post(client: Client, method: str) -> None:
    """A link that is followed, or a crawler, drops nothing."""
    client.put("/key", b"value")
    answer = client.ask(method, "/-/flush", HTTP_AUTHORIZATION="Bearer secret")
    assert answer.status.startswith("405 ")
    assert answer.headers["Allow"] == "POST, OPTIONS"
    assert list(client.cache.records) == [b"key"]


@pytest.mark.parametrize(
    ("token", "given", "status"),
    [
        ("", "Bearer ", 403),
        ("", "", 403),
        ("secret", "", 401),
        ("secret", "Bearer wrong", 401),
        ("secret", "Bearer", 401),
        ("secret", "Basic secret", 401),
        ("secret", "Bearer secret", 200),
        ("secret", "bearer  secret", 200),
    ],
)
def test_flush_needs_the_token(token: str, given: str, status: int) -> None:
    """Without a token in the settings it is off; a wrong one drops nothing."""
    client = Client(FakeCache(), admin_token=token)
    client.put("/key", b"value")
    answer = client.ask("POST", "/-/flush", HTTP_AUTHORIZATION=given)
    assert_error(answer, status)
    assert list(client.cache.records) == ([] if status == 200 else [b"key"])


def test_options_under_the_prefix(client: Client) -> None:
    """What is allowed there."""
    assert client.ask("OPTIONS", "/-/x").headers["Allow"] == "GET, HEAD, OPTIONS"


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


@pytest.mark.parametrize("length", ["3", None])
def test_input_of_another_server_is_read(client: Client, length: str | None) -> None:
    """An input that can only be read is read to its length, or to its end."""
    body = io.BufferedReader(cast("io.RawIOBase", io.BytesIO(b"new")))
    environ: dict[str, Any] = {"wsgi.input": body}
    if length is None:
        environ["HTTP_TRANSFER_ENCODING"] = "chunked"
    else:
        environ["CONTENT_LENGTH"] = length
    client.call({"REQUEST_METHOD": "PUT", "PATH_INFO": "/key", **environ})
    assert client.cache.records[b"key"].value == b"new"


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
