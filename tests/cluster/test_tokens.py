"""Tokens: those of nginx, those of the instances through nginx, and its output."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable

import pytest

import nginx_tokens
from support.nginx import Nginx
from support.stub_instance import StubInstance
from support.wire import exchange

pytestmark = pytest.mark.integration

READ = "r3ad+/=token"
WRITE = 'wr$it"e\\{4}.*é'
TOKENS = "volcache/tokens.conf"
METHODS = ("GET", "HEAD", "PROPFIND", "PUT", "DELETE", "MKCOL")
USERS = ["", "u", "us", "use", "user", "a+b@c", "é"]


def bearer(token: str, *, scheme: str = "Bearer", encoding: str = "utf-8") -> bytes:
    """Return a header."""
    return f"Authorization: {scheme} ".encode() + token.encode(encoding)


def basic(
    token: str, user: str, *, scheme: str = "Basic", encoding: str = "utf-8"
) -> bytes:
    """Return a header."""
    text = b64encode(f"{user}:{token}".encode(encoding))
    return f"Authorization: {scheme} ".encode() + text


@pytest.fixture
def nginx(mode: dict[str, str], nginx_with: Callable[..., Nginx]) -> Nginx:
    """Return nginx with both tokens, in each failure mode."""
    return nginx_with(mode | {TOKENS: nginx_tokens.render(READ, WRITE)})


def status(nginx: Nginx, method: str, header: bytes) -> int:
    """Return the status of a request with a header."""
    return exchange(
        nginx.port,
        method,
        "/200",
        b"" if method == "PUT" else None,
        header.decode("latin-1"),
    ).status


RIGHT = [
    *(
        header
        for encoding in ("utf-8", "latin-1")
        for header in (
            bearer(WRITE, encoding=encoding),
            *(basic(WRITE, user, encoding=encoding) for user in USERS),
        )
    ),
    bearer(WRITE, scheme="bearer"),
    basic(WRITE, "u", scheme="BASIC"),
]
WRONG = [
    b"X: 1",
    b"Authorization:",
    b"Authorization: Bearer",
    b"Authorization: " + WRITE.encode(),
    bearer(WRITE.upper()),
    bearer(WRITE + "x"),
    bearer("x" + WRITE),
    bearer(WRITE[:-1]),
    bearer(WRITE, scheme="Digest"),
    bearer(b64encode(WRITE.encode()).decode()),
    basic(WRITE.upper(), "u"),
    *(
        basic(wrong, user)
        for wrong in (WRITE + "x", WRITE[:-1], "x" + WRITE)
        for user in USERS
    ),
    b"Authorization: Basic " + b64encode(WRITE.encode()),
    b"Authorization: Basic " + b64encode(b"u:" + WRITE.encode()) + b"x",
    b"Authorization: Basic u:" + WRITE.encode(),
]


def test_token_for_writing_is_enough(nginx: Nginx) -> None:
    """As Bearer or as the password of any user, as UTF-8 or latin-1."""
    for header in RIGHT:
        for method in METHODS:
            assert status(nginx, method, header) == 200, (method, header)


def test_wrong_token_is_refused(nginx: Nginx, stub: StubInstance) -> None:
    """401 with both schemes; the instance receives nothing."""
    for header in WRONG:
        for method in METHODS:
            assert status(nginx, method, header) == 401, (method, header)
    reply = exchange(nginx.port, "GET", "/200")
    assert reply.headers.get_all("WWW-Authenticate") == [
        'Basic realm="volcache", charset="UTF-8"',
        'Bearer realm="volcache"',
    ]
    assert reply.headers["Content-Type"] == "text/plain"
    assert b"send Authorization: Bearer <token>" in reply.body
    assert reply.body.count(b"\n") == 1
    assert not stub.received


def test_token_for_reading_is_not_enough_to_write(nginx: Nginx) -> None:
    """Reads only, with either scheme."""
    for header in (bearer(READ), *(basic(READ, user) for user in USERS)):
        assert status(nginx, "GET", header) == 200
        assert status(nginx, "PROPFIND", header) == 200
        assert status(nginx, "PUT", header) == 401
        assert status(nginx, "DELETE", header) == 401


def test_preflight_and_health_check_need_no_token(
    nginx: Nginx, stub: StubInstance
) -> None:
    """OPTIONS is forwarded; paths of the operator are forbidden with any token."""
    headers = "Origin: https://page.example\nAccess-Control-Request-Method: PUT"
    reply = exchange(nginx.port, "OPTIONS", "/200", headers=headers)
    assert reply.status == 200
    assert reply.headers["Access-Control-Allow-Origin"] == "https://page.example"
    assert stub.received[0].headers["Access-Control-Request-Method"] == "PUT"
    assert status(nginx, "OPTIONS", b"X: 1") == 200
    for header in (b"X: 1", bearer(WRITE)):
        reply = exchange(
            nginx.port, "GET", "/-/stats", headers=header.decode("latin-1")
        )
        assert reply.status == 403


def test_one_token_protects_one_kind_of_requests(
    nginx_with: Callable[..., Nginx],
) -> None:
    """The other kind is open, as in an instance."""
    for read, write, expected in (("", "w", (200, 401)), ("r", "", (401, 200))):
        nginx = nginx_with({TOKENS: nginx_tokens.render(read, write)})
        for header, statuses in (
            (b"X: 1", expected),
            (bearer(read or write), (200,) * 2),
        ):
            found = tuple(status(nginx, method, header) for method in ("GET", "PUT"))
            assert found == statuses


def test_script_writes_the_file_from_settings() -> None:
    """Other settings are ignored; without a token, or with an invalid one, it refuses."""
    for text, code, shown in (
        ('port = 1234\nread_token = "a "', 1, "without spaces"),
        ("port = 1234", 1, "read_token and write_token"),
        ('port = 1\nwrite_token = "secret"', 0, nginx_tokens.render("", "secret")),
    ):
        done = subprocess.run(
            [sys.executable, nginx_tokens.__file__],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, shown in done.stdout + done.stderr) == (code, True)
