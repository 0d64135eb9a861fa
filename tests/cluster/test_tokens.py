"""Tokens: those of nginx, those of the instances through nginx, and its output."""

from __future__ import annotations

import subprocess
import sys
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest

import nginx_tokens
from support.nginx import Nginx, with_mode
from support.stub_instance import instance_text, stub_instance
from support.wire import exchange

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.stub_instance import StubInstance

pytestmark = [pytest.mark.sampled(8), pytest.mark.integration]

READ = "r3ad+/=token"
WRITE = 'wr$it"e\\{4}.*é'
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


@pytest.fixture(scope="module")
def stub() -> Iterator[StubInstance]:
    """Run an instance that answers as it is told."""
    with stub_instance() as running:
        yield running


@pytest.fixture(scope="module", params=["pinned", "failover", "growing"])
def nginx(
    request: pytest.FixtureRequest,
    stub: StubInstance,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Nginx]:
    """Run nginx with both tokens."""
    tokens = {"volcache/tokens.conf": nginx_tokens.render(READ, WRITE)}
    files = with_mode(request.param) | tokens
    folder = tmp_path_factory.mktemp("tokens") / "nginx"
    with Nginx(folder, [stub.name], files=files) as running:
        yield running


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
    *(basic(WRITE + "x", user) for user in USERS),
    *(basic(WRITE[:-1], user) for user in USERS),
    *(basic("x" + WRITE, user) for user in USERS),
    b"Authorization: Basic " + b64encode(WRITE.encode()),
    b"Authorization: Basic " + b64encode(b"u:" + WRITE.encode()) + b"x",
    b"Authorization: Basic u:" + WRITE.encode(),
]


@pytest.mark.parametrize("header", RIGHT)
def test_token_for_writing_is_enough(header: bytes, nginx: Nginx) -> None:
    """As Bearer or as the password of any user, as UTF-8 or latin-1."""
    for method in ("GET", "HEAD", "PROPFIND", "PUT", "DELETE", "MKCOL"):
        assert status(nginx, method, header) == 200


@pytest.mark.parametrize("header", WRONG)
def test_wrong_token_is_refused(
    header: bytes, nginx: Nginx, stub: StubInstance
) -> None:
    """401 with both schemes; the instance receives nothing."""
    stub.received.clear()
    for method in ("GET", "HEAD", "PROPFIND", "PUT", "DELETE", "MKCOL"):
        assert status(nginx, method, header) == 401
    reply = exchange(nginx.port, "GET", "/200", headers=header.decode("latin-1"))
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
    stub.received.clear()
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


@pytest.mark.parametrize(
    ("read", "write", "expected"),
    [("", "w", (200, 401)), ("r", "", (401, 200))],
    ids=["write", "read"],
)
def test_one_token_protects_one_kind_of_requests(
    read: str, write: str, expected: tuple[int, int], stub: StubInstance, tmp_path: Path
) -> None:
    """The other kind is open, as in an instance."""
    files = {"volcache/tokens.conf": nginx_tokens.render(read, write)}
    with Nginx(tmp_path / "nginx", [stub.name], files=files) as nginx:
        assert (
            status(nginx, "GET", b"X: 1"),
            status(nginx, "PUT", b"X: 1"),
        ) == expected
        header = bearer(read or write)
        assert (status(nginx, "GET", header), status(nginx, "PUT", header)) == (
            200,
            200,
        )


def test_without_tokens_in_nginx_those_of_the_instance_are_required(
    stub: StubInstance, tmp_path: Path
) -> None:
    """As shipped, nginx forwards Authorization, and the 401 of the instance unchanged."""
    with Nginx(tmp_path / "nginx", [stub.name]) as nginx:
        for method in ("GET", "PUT"):
            stub.received.clear()
            reply = exchange(nginx.port, method, "/401", b"", "Authorization: Bearer x")
            assert reply.status == 401
            assert reply.body == instance_text(401)
            assert reply.headers.get_all("WWW-Authenticate") == [
                'Basic realm="instance"'
            ]
            assert stub.received[0].headers["Authorization"] == "Bearer x"


def run_script(text: str) -> subprocess.CompletedProcess[str]:
    """Run the script with settings on standard input."""
    return subprocess.run(
        [sys.executable, nginx_tokens.__file__],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


def test_script_writes_the_file_from_settings() -> None:
    """Other settings are ignored; without a token, or with an invalid one, it refuses."""
    done = run_script('port = 1234\nread_token = "a "')
    assert done.returncode == 1
    assert "without spaces" in done.stderr
    done = run_script("port = 1234")
    assert done.returncode == 1
    assert "read_token and write_token" in done.stderr
    done = run_script('port = 1234\nwrite_token = "secret"')
    assert done.stdout == nginx_tokens.render("", "secret")
