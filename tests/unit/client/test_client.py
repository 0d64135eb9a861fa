"""Both clients, against servers that a test scripts."""

from __future__ import annotations

import asyncio
import io
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

import make_client
from support.client_memory import Memory
from support.client_users import TaskClient
from support.scripted_server import (
    OK,
    Peer,
    ScriptedServer,
    always,
    answering,
    closing,
    full_listener,
    value,
)
from support.waiting import wait_until
from volcache_client import (
    AccessDeniedError,
    AsyncClient,
    Client,
    InvalidArgumentError,
    NodeConnectionError,
    NodeDownError,
    NodeError,
    NodeTimeoutError,
    PoolTimeoutError,
    UnavailableError,
    UnexpectedAnswerError,
    ValueTooLargeError,
)
from volcache_client.exchanges import REQUESTS_MAX
from volcache_client.threads import Renewals

# Long enough for a loaded machine; only what must end by a timeout has a short one.
PATIENT: Final = 30.0
SHORT: Final = 0.2
# Of a client that has to get an answer before it has to wait in vain.
LONGER: Final = 1.5
STORED: Final = value(b"v", b'ETag: "1"\r\n')
SOME_BYTES: Final = bytes(range(256))
# Answers as broken servers send them, before they close the connection.
BROKEN: Final = [
    b"",
    b"HTTP/1.1 200 OK\r\n",
    OK + b"Content-Le",
    OK + b"\r\nno length",
    OK + b"Content-Length: 5\r\n\r\nabc",
    OK + b"Content-Length: -5\r\n\r\nabcde",
    OK + b"Content-Length: abc\r\n\r\nabcde",
    OK + b"Content-Length: 9999999\r\n\r\nabc",
    OK + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    OK + "Content-Length: ٣\r\n\r\nabc".encode(),
    OK + b"Content-Length\r\n\r\n",
    OK + b"Name : value\r\n\r\n",
    OK + b"A: b\r\n folded\r\n\r\n",
    OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\nabc",
    b"HTTP/2 200 OK\r\n\r\n",
    b"HTTP/1.1 2x0 OK\r\n\r\n",
    b"SSH-2.0-OpenSSH\r\n\r\n",
    b"\r\n\r\n",
    bytes(range(256)) * 4,
    OK + b"A: " + bytes(200_000),
]


@pytest.fixture(params=[Client, TaskClient], ids=["threads", "tasks"])
def client_of(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function that makes a client with patience, of each kind."""

    def make(server: Any, **options: Any) -> Any:
        nodes = server.name if isinstance(server, ScriptedServer) else server
        wanted = {"timeout": PATIENT, "connect_timeout": PATIENT, **options}
        return request.param(nodes, **wanted)

    return make


def waiting_for(end: threading.Event) -> Callable[[Peer], None]:
    """Return a function that neither reads nor answers."""

    def serve(_: Peer) -> None:
        end.wait(PATIENT)

    return serve


def endless(piece: bytes, first: bytes = b"") -> Callable[[Peer], None]:
    """Return a function that sends a piece again and again, until the client closes."""

    def serve(peer: Peer) -> None:
        peer.request()
        peer.send(first)
        while True:
            peer.send(piece)
            time.sleep(SHORT / 20)

    return serve


def numbers_of(client: Any) -> Any:
    """Return the numbers of the only node."""
    (numbers,) = client.stats()["nodes"].values()
    return numbers


# --- Answers ----------------------------------------------------------------------------


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
def test_a_broken_answer_is_an_error_or_a_miss(data: bytes, client_of: Any) -> None:
    """It is never a shorter value, and counts for the health of the node."""
    with ScriptedServer(closing([], data)) as server:
        with client_of(server, failures=100) as client:
            with pytest.raises(NodeConnectionError, match=server.name):
                client.get("key")
            with (
                pytest.raises((NodeError, UnexpectedAnswerError)),
                client.stream("key") as stream,
            ):
                b"".join(stream)
            wait_until(
                lambda: numbers_of(client)["connections"] == 0, "the end of both"
            )
            numbers = numbers_of(client)
            assert numbers["in_use"] == 0
            assert numbers["failures"] > 0
        with client_of(server, on_error="miss", failures=100) as client:
            assert client.get("key") is None
            assert client.get_or_set("key", lambda: b"made") == b"made"


@pytest.mark.slow
@pytest.mark.parametrize(
    "serve",
    [
        lambda peer: peer.socket.recv(1 << 16) and peer.request(),  # Never answers.
        endless(b"x"),
        endless(b"A: b\r\n", OK),
        endless(b"x", OK + b"Content-Length: 1000000\r\n\r\n"),
        endless(b"1\r\nx\r\n", OK + b"Transfer-Encoding: chunked\r\n\r\n"),
        endless(b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["silence", "status", "headers", "body", "chunks", "continue"],
)
def test_a_slow_answer_ends_at_the_timeout(
    serve: Callable[[Peer], None], client_of: Any
) -> None:
    """Of the whole exchange: a byte now and then does not extend it. The node is down."""
    options = {"timeout": SHORT, "failures": 1}
    with ScriptedServer(serve) as server, client_of(server, **options) as client:
        with pytest.raises(NodeTimeoutError):
            client.get("key")
        with pytest.raises(NodeDownError):  # It is not asked.
            client.get("key")
        numbers = numbers_of(client)
        assert (numbers["connections"], numbers["in_use"], numbers["requests"]) == (
            0,
            0,
            1,
        )


@pytest.mark.slow
def test_a_slow_upload_ends_at_the_timeout(client_of: Any) -> None:
    """The server does not read; a file is not read ahead."""
    body = bytes(64 << 20)
    file = io.BytesIO(body)
    is_over = threading.Event()
    with (
        ScriptedServer(waiting_for(is_over)) as server,
        client_of(server, timeout=SHORT) as client,
    ):
        with pytest.raises(NodeTimeoutError):
            client.set("key", body)
        with pytest.raises(NodeTimeoutError):
            client.set_file("key", file)
        assert file.tell() < len(body) / 2
        is_over.set()


@pytest.mark.slow
def test_a_connection_that_is_not_accepted_ends_in_time(
    client_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a limit of its own; each address of a host has a share of it."""
    with full_listener() as full:
        with (
            client_of(f"127.0.0.1:{full}", connect_timeout=0.05) as client,
            pytest.raises(NodeTimeoutError),
        ):
            client.get("key")
        with always(STORED) as server:
            found = [
                (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))
                for port in (full, server.port)
            ]
            monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **_named: found)
            with client_of("two.test:80", connect_timeout=LONGER) as client:
                assert client.get("key") == b"v"


@pytest.mark.slow
@pytest.mark.parametrize("listens", [True, False])
def test_without_the_cache_an_application_works(
    *, listens: bool, client_of: Any
) -> None:
    """With `on_error="miss"`, whether the cache hangs or is not there."""
    is_over = threading.Event()
    with ScriptedServer(waiting_for(is_over)) as server:
        name = server.name if listens else "127.0.0.1:1"
        with client_of(name, timeout=SHORT, on_error="miss") as client:
            keys = ["a", "b"]
            assert client.get_or_set("k", lambda: b"made") == b"made"
            assert client.set("k", b"v") is None
            assert client.set_file("k", io.BytesIO(b"v")) is None
            assert client.set_many(dict.fromkeys(keys, b"v")) == {}
            assert client.get_many(keys) == {}
            assert client.stat("k") is None
            assert client.delete("k") is False
            with client.stream("k") as reader:
                assert reader is None
            assert not numbers_of(client)["up"]
        is_over.set()


def test_a_mistake_is_raised_also_without_a_list_of_nodes(client_of: Any) -> None:
    """An outage of what lists the nodes does not hide it."""

    def listed() -> list[str]:
        raise OSError("out of order")

    with client_of(listed, on_error="miss") as client:
        assert client.get("k") is None
        with pytest.raises(InvalidArgumentError):
            client.get("/k")
        with pytest.raises(InvalidArgumentError):
            client.set("k", b"v", ttl=-1)
        with pytest.raises(InvalidArgumentError):
            client.purge("p")


@pytest.mark.parametrize(
    ("status", "error"),
    [(302, UnexpectedAnswerError), (401, AccessDeniedError), (503, UnavailableError)],
)
def test_an_answer_that_is_no_value_is_an_error(
    status: int, error: type[Exception], client_of: Any
) -> None:
    """A redirect is not followed, and nothing is repeated."""
    text = b"HTTP/1.1 %d No\r\nLocation: /other\r\nContent-Length: 2\r\n\r\nno" % status
    with always(text) as server, client_of(server) as client:
        reason = "redirect to /other" if status == 302 else "no"
        with pytest.raises(error, match=f"{server.name}: {status} {reason}"):
            client.get("key")
        with pytest.raises(error, match=reason), client.stream("key"):
            pass
        assert len(server.requests) == 2


def test_a_body_that_is_refused_before_it_was_sent_has_its_answer(
    client_of: Any,
) -> None:
    """The server answers, and closes; or it neither closes nor reads what is sent."""
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"

    def refuse(peer: Peer) -> None:
        peer.socket.recv(1000)
        peer.send(refusal)

    def serve(peer: Peer) -> None:
        refuse(peer)
        peer.socket.shutdown(socket.SHUT_WR)
        while peer.socket.recv(1 << 20):
            pass

    def ignore(peer: Peer) -> None:
        refuse(peer)
        is_over.wait(2 * PATIENT)

    is_over = threading.Event()
    with ScriptedServer(ignore) as server, client_of(server) as client:
        for body in (bytes(32 << 20), io.BytesIO(bytes(32 << 20))):
            with pytest.raises(ValueTooLargeError):
                (client.set if isinstance(body, bytes) else client.set_file)("a", body)
        is_over.set()
    with ScriptedServer(refuse) as server, client_of(server) as client:
        for _ in range(20):
            with pytest.raises(ValueTooLargeError):
                client.set("key", bytes(4 << 20))
    with ScriptedServer(serve) as server, client_of(server) as client:
        with pytest.raises(ValueTooLargeError):
            client.set("key", bytes(4 << 20))
        with pytest.raises(ValueTooLargeError):
            client.set_file("key", io.BytesIO(bytes(4 << 20)))


# --- Requests ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "path"),
    [
        *(("a", b"/a"), ("a:b@c", b"/a:b@c"), ("a//b/", b"/a//b/")),
        *(("a%2Fb", b"/a%252Fb"), ("a?b=1&c#d", b"/a%3Fb=1&c%23d")),
        *(("http://x/y", b"/http://x/y"), ("..a/...", b"/..a/...")),
        ('\\[]{}|^`"<>', b"/%5C%5B%5D%7B%7D%7C%5E%60%22%3C%3E"),
        *(("ä b", b"/%C3%A4%20b"), (b"\xff\\", b"/%FF%5C")),
    ],
)
def test_a_request_has_the_path_of_its_key_and_what_the_service_needs(
    key: str | bytes, path: bytes, client_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each way to send one; a proxy of the environment is not asked."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    def answer(request: bytes) -> bytes:
        more = b'ETag: "1"\r\nSet-Cookie: a=1; Path=/\r\n'
        if request.startswith(b"HEAD"):
            return OK + more + b"Content-Length: 1\r\n\r\n"
        return value(b"v", more)

    with (
        ScriptedServer(answering(answer)) as server,
        client_of(server, token="secret") as client,  # noqa: S106
    ):
        client.get(key)
        assert client.stat(key).size == 1
        client.set(key, b"v", ttl=1.5, content_type="text/x")
        client.set_file(key, io.BytesIO(b"v"), ttl=5)
        with client.stream(key) as reader:
            assert reader.read() == b"v"
        host = f"\r\nHost: {server.name}\r\n".encode()
    requests = server.requests
    assert [request.split(b" ")[1] for request in requests] == [path] * 5
    for request in requests:
        assert request.count(host) == 1
        assert request.count(b"\r\nAccept-Encoding: identity\r\n") == 1
        assert request.count(b"\r\nAuthorization: Bearer secret\r\n") == 1
        assert b"Cookie" not in request
    for request, wanted in (
        (requests[2], b"Content-Type: text/x,Cache-Control: max-age=2"),
        (
            requests[3],
            b"Content-Type: application/octet-stream,Cache-Control: max-age=5",
        ),
    ):
        head, _, body = request.partition(b"\r\n\r\n")
        assert {*wanted.split(b","), b"Content-Length: 1"} < {*head.split(b"\r\n")}
        assert body == b"v"


def test_purge_sends_its_prefix_and_the_token_of_the_operator(client_of: Any) -> None:
    """The prefix is a part of the query, encoded."""
    with (
        always(value(b"")) as server,
        client_of(server, admin_token="op") as client,  # noqa: S106
    ):
        client.purge("a b/\N{EURO SIGN}?")
    (request,) = server.requests
    assert request.startswith(b"POST /-/purge?prefix=a%20b%2F%E2%82%AC%3F HTTP")
    assert b"\r\nAuthorization: Bearer op\r\n" in request


def test_a_compressed_value_is_returned_as_it_is(client_of: Any) -> None:
    """It is part of the value."""
    with (
        always(value(b"not gzip", b"Content-Encoding: gzip\r\n")) as server,
        client_of(server) as client,
    ):
        assert client.get("a") == b"not gzip"
        with client.stream("a") as reader:
            assert reader.read() == b"not gzip"


@pytest.mark.parametrize("size", [0, 1, 1 << 16, (1 << 20) + 1, 5_000_000])
def test_values_of_any_size_are_sent_and_returned(
    size: int, client_of: Any, tmp_path: Path
) -> None:
    """Long ones are sent in parts; a file is sent from its position, and stays open."""
    stored: list[bytes] = []

    def answer(request: bytes) -> bytes:
        if request.startswith(b"PUT"):
            stored.append(request.partition(b"\r\n\r\n")[2])
        return value(stored[-1] if request.startswith(b"GET") else b"")

    wanted = (SOME_BYTES * (size // 256 + 1))[:size]
    file = io.BytesIO(b"skip" + wanted)
    file.seek(4)
    with ScriptedServer(answering(answer)) as server, client_of(server) as client:
        client.set("a", wanted)
        client.set_file("a", file)
        assert not file.closed
        (tmp_path / "file").write_bytes(wanted)
        client.set_file("a", tmp_path / "file")
        assert stored == [wanted] * 3
        assert client.get("a") == wanted
        with client.stream("a") as reader:
            assert (reader.stat.size, b"".join(reader)) == (size, wanted)


def test_a_unix_socket_is_a_node(tmp_path: Path, client_of: Any) -> None:
    """With the host name `localhost`; its connections are counted as well."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "disk1.sock"))
    listener.listen()
    with (
        ScriptedServer(answering(lambda _: STORED), listener=listener) as server,
        client_of(f"unix:{tmp_path}/disk1.sock") as client,
    ):
        assert client.get("key") == b"v"
        assert numbers_of(client)["connections"] == 1
    assert b"\r\nHost: localhost\r\n" in server.requests[0]


def test_a_unix_socket_whose_queue_is_full_is_waited_for(
    tmp_path: Path, client_of: Any
) -> None:
    """The system refuses such a connection at once."""
    path = str(tmp_path / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(0)
    waiting = []
    with suppress(BlockingIOError):
        while True:
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)  # noqa: FBT003
            waiting[-1].connect(path)
    serve = answering(lambda _: value(b"v"))
    with client_of(f"unix:{path}") as client, ThreadPoolExecutor(1) as threads:
        found = threads.submit(client.get, "key")
        wait_until(lambda: numbers_of(client)["in_use"], "the request")
        with ScriptedServer(serve, listener=listener):
            assert found.result(PATIENT) == b"v"
            for one in waiting:
                one.close()


def test_an_address_of_ip_version_6_is_a_node(client_of: Any) -> None:
    """In brackets, also in the header."""
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    name = f"[::1]:{listener.getsockname()[1]}"
    with (
        ScriptedServer(answering(lambda _: STORED), listener=listener) as server,
        client_of(f"http://{name}") as client,
    ):
        assert client.get("key") == b"v"
    assert f"\r\nHost: {name}\r\n".encode() in server.requests[0]


def test_tls_is_checked_against_the_certificates_of_the_context(
    tmp_path: Path, client_of: Any
) -> None:
    """The default are those of the system, which do not have ours."""
    made = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        " -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
        " -keyout key.pem -out cert.pem"
    )
    subprocess.run(made.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    big = bytes(3 << 20)
    with ScriptedServer(
        answering(lambda _: value(big)),
        wrap=lambda one: context.wrap_socket(one, server_side=True),
    ) as server:
        name = f"https://localhost:{server.port}"
        ours = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        with client_of(name, ssl_context=ours) as client:
            assert client.get("key") == big
            assert client.get("key") == big
            assert numbers_of(client)["connections"] == 1
            with client.stream("key") as reader:
                assert b"".join(reader) == big
            client.set("key", big)
            client.set_file("key", io.BytesIO(big))
            assert server.connections == 1
        for wrong, trusted in ((name, None), (f"https://{server.name}", ours)):
            with (
                client_of(wrong, ssl_context=trusted) as client,
                pytest.raises(NodeConnectionError, match="the certificate is not"),
            ):
                client.get("key")


# --- Connections ------------------------------------------------------------------------


def closing_at_second(peer: Peer) -> None:
    """Answer one request; close when the second one has arrived."""
    if peer.request():
        peer.send(STORED)
        peer.request()


def test_a_request_on_a_connection_that_was_closed_meanwhile_is_repeated(
    client_of: Any,
) -> None:
    """On a new one; that is no failure of the node."""
    long = bytes((1 << 20) + 10)
    with ScriptedServer(closing_at_second) as server, client_of(server) as client:
        for calls in range(6, 19, 6):
            assert client.get("key") == b"v"
            assert client.set("key", long) == '"1"'
            assert client.delete("key")
            for _ in range(2):
                with client.stream("key") as reader:
                    assert reader.read() == b"v"
            assert client.set_file("key", io.BytesIO(long)) == '"1"'
            assert server.connections == calls
        assert numbers_of(client)["failures"] == 0


def set_pipe(client: Any) -> Any:
    """Store what a pipe has, whose length is not known."""
    near, far = os.pipe()
    with os.fdopen(near, "rb") as pipe:
        os.write(far, b"value")
        os.close(far)
        return client.set_file("key", pipe)


@pytest.mark.parametrize(
    "act",
    [
        lambda client: client.add("key", b"v"),
        lambda client: client.cas("key", b"v", '"1"'),
        lambda client: client.replace("key", b"v"),
        lambda client: client.delete("key", '"1"'),
        set_pipe,
    ],
    ids=["add", "cas", "replace", "delete", "pipe"],
)
def test_a_conditional_request_or_a_pipe_is_not_sent_twice(
    act: Callable[[Any], object], client_of: Any
) -> None:
    """The condition does not hold the second time; the bytes are gone."""
    with ScriptedServer(closing_at_second) as server, client_of(server) as client:
        assert client.get("key") == b"v"
        with pytest.raises(NodeConnectionError, match=r"isconnected|reset|roken"):
            act(client)
        assert server.connections == 1
        assert numbers_of(client)["failures"] == 1


def test_a_request_is_not_repeated_on_a_new_connection(client_of: Any) -> None:
    """The server has read it and failed: it would fail again."""

    def serve(peer: Peer) -> None:
        peer.request()
        if peer.number == 0:
            peer.send(STORED)
            peer.request()

    with ScriptedServer(serve) as server, client_of(server) as client:
        assert client.get("a") == b"v"
        for count in (3, 4):
            with pytest.raises(NodeConnectionError):
                client.get("b")
            assert len(server.requests) == count
        with pytest.raises(NodeConnectionError), client.stream("b"):
            pass
        assert len(server.requests) == 5


def test_connections_the_server_has_closed_are_not_used(client_of: Any) -> None:
    """Also not for a request that is not repeatable."""
    with ScriptedServer(closing([], STORED)) as server, client_of(server) as client:
        for number in range(3):
            assert client.add("key", b"v") == '"1"'
            wait_until(lambda: not server.open, f"the end of connection {number}")
        assert server.connections == 3


def test_bytes_after_an_answer_are_not_the_next_answer(client_of: Any) -> None:
    """The connection is closed."""
    with always(value(b"v") + value(b"wrong")) as server, client_of(server) as client:
        assert [client.get("key") for _ in range(3)] == [b"v"] * 3
        assert server.connections == 3


def test_connections_are_bounded_and_kept(client_of: Any) -> None:
    """Many threads share a few; those that the server closes are not counted."""
    with (
        always(value(b"v")) as server,
        client_of(server, connections_max=3) as client,
        ThreadPoolExecutor(16) as threads,
    ):
        assert list(threads.map(client.get, ["key"] * 200)) == [b"v"] * 200
        assert 1 <= server.connections <= 3
        numbers = numbers_of(client)
        assert (numbers["connections"], numbers["requests"]) == (
            server.connections,
            200,
        )


@pytest.mark.slow
def test_waiting_for_a_connection_ends_at_the_timeout(client_of: Any) -> None:
    """The node was not asked, so that is no failure of the node."""
    with (
        always(value(b"value")) as server,
        client_of(server, connections_max=1, timeout=LONGER) as client,
    ):
        with client.stream("key"), pytest.raises(PoolTimeoutError):
            client.get("key")
        assert client.get("key") == b"value"
        numbers = numbers_of(client)
        assert (numbers["failures"], numbers["in_use"]) == (0, 0)


def test_the_connections_of_a_node_that_was_removed_are_closed(client_of: Any) -> None:
    """With the first request after that; one that is in use, when it is free."""
    nodes: list[str] = []
    long = bytes(3 << 20)
    with always(value(long)) as first, always(value(b"v")) as second:
        nodes.append(first.name)
        with client_of(lambda: list(nodes), refresh_seconds=1e-6) as client:
            with client.stream("key") as reader:
                assert client.get("key") == long
                nodes[:] = [second.name]
                assert client.get("key") == b"v"
                assert list(client.stats()["nodes"]) == [second.name]
                wait_until(lambda: first.open == 1, "the end of the idle one")
                assert reader.read() == long
            wait_until(lambda: not first.open, "the end")


# --- Streams and files ------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["raise", "miss"])
def test_a_stream_that_ends_early_is_an_error(on_error: str, client_of: Any) -> None:
    """Also with `on_error="miss"`: a part was returned already."""
    has_begun = threading.Event()

    def serve(peer: Peer) -> None:
        peer.request()
        peer.send(OK + b"Content-Length: 200000\r\n\r\n" + bytes(150_000))
        has_begun.wait(PATIENT)

    with (
        ScriptedServer(serve) as server,
        client_of(server, on_error=on_error) as client,
    ):
        with client.stream("key") as reader:
            assert reader.stat.size == 200_000
            assert reader.read(1000) == bytes(1000)
            has_begun.set()
            with pytest.raises(NodeConnectionError):
                b"".join(reader)
        assert client.stats()["errors"] == {"NodeConnectionError": 1}
        assert numbers_of(client)["connections"] == 0


@pytest.mark.slow
def test_a_stream_that_stops_is_an_error(client_of: Any) -> None:
    """At the timeout between two parts."""
    data = OK + b"Content-Length: 200000\r\n\r\n" + bytes(150_000)

    def serve(peer: Peer) -> None:
        peer.request()
        peer.send(data)
        peer.request()

    with (
        ScriptedServer(serve) as server,
        client_of(server, timeout=LONGER) as client,
        client.stream("key") as reader,
        pytest.raises(NodeTimeoutError),
    ):
        reader.read()


def test_a_stream_that_was_read_to_its_end_keeps_its_connection(client_of: Any) -> None:
    """Whichever way it was read."""
    with always(value(bytes(100_000))) as server, client_of(server) as client:
        for sizes in ([-1], [100_000], [1, 99_999], [100_000, 1, 0, -1]):
            with client.stream("key") as reader:
                assert sum(len(reader.read(size)) for size in sizes) == 100_000
        assert server.connections == 1


def test_a_stream_that_is_left_closes_its_connection(client_of: Any) -> None:
    """What was not read would be the next answer."""
    with always(value(bytes(3_000_000))) as server, client_of(server) as client:
        for _ in range(2):
            with client.stream("key") as reader:
                assert len(next(iter(reader))) > 0
        assert client.get("key") == bytes(3_000_000)
        assert server.connections == 3
        assert numbers_of(client)["connections"] == 1


class Failing(io.BytesIO):
    """A file of which only the first block can be read."""

    def read(self, size: int | None = -1) -> bytes:
        """Fail as a disk does."""
        if self.tell():
            raise OSError(5, "the disk")
        return super().read(size)


class Shrinking(io.BytesIO):
    """A file that becomes shorter."""

    def read(self, size: int | None = -1) -> bytes:
        """Return what is left."""
        self.truncate(100_000)
        return super().read(size)


@pytest.mark.parametrize(
    ("file", "error"), [(Failing, OSError), (Shrinking, InvalidArgumentError)]
)
def test_a_file_that_fails_is_never_stored_short(
    file: type[io.BytesIO], error: type[Exception], client_of: Any
) -> None:
    """The announced length is not sent; that is no failure of the node."""
    with always(STORED) as server, client_of(server) as client:
        with pytest.raises(error, match=r"the disk|became shorter"):
            client.set_file("key", file(bytes(200_000)))
        assert numbers_of(client)["failures"] == 0
        assert client.set_file("key", io.BytesIO(b"v")) == '"1"'
    assert len(server.requests) == 1


def test_a_file_without_positions_is_sent_in_chunks(client_of: Any) -> None:
    """Its length is not known."""
    requests: list[bytes] = []

    def serve(peer: Peer) -> None:
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += peer.socket.recv(1 << 16)
        requests.append(data)
        peer.send(STORED)

    with ScriptedServer(serve) as server, client_of(server) as client:
        assert set_pipe(client) == '"1"'
    assert b"\r\nTransfer-Encoding: chunked\r\n" in requests[0]
    assert requests[0].endswith(b"\r\n\r\n5\r\nvalue\r\n0\r\n\r\n")


# --- Several keys -----------------------------------------------------------------------


def test_an_error_of_one_key_does_not_prevent_the_others(client_of: Any) -> None:
    """The error of the first key that has one is raised, when all were tried."""
    stored: set[bytes] = set()

    def answer(request: bytes) -> bytes:
        path = request.split(b" ")[1]
        if b"/bad" in path:
            return b"HTTP/1.1 401 No\r\nContent-Length: %d\r\n\r\n%b" % (
                len(path),
                path,
            )
        stored.add(path)
        return STORED

    with ScriptedServer(answering(answer)) as server, client_of(server) as client:
        keys = ["bad1", "a", "bad2", "b", "c"]
        with pytest.raises(AccessDeniedError, match="bad1") as caught:
            client.set_many(dict.fromkeys(keys, b"v"))
        assert caught.value.__notes__ == ["and 1 more of 5 keys"]
        assert stored == {b"/a", b"/b", b"/c"}
        with pytest.raises(AccessDeniedError, match="bad2"):
            client.get_many(reversed(keys))
        assert client.set_many({}) == {}
        assert client.get_many([]) == {}
        with pytest.raises(InvalidArgumentError, match="is one key"):
            client.get_many("key")


def answering_in_a_row(count: int, answer: Callable[[bytes], bytes]) -> ScriptedServer:
    """Return a server that answers when it has so many requests on a connection."""

    def serve(peer: Peer) -> None:
        while requests := [one for _ in range(count) if (one := peer.request())]:
            peer.send(b"".join(map(answer, requests)))

    return ScriptedServer(serve)


def echoing(request: bytes) -> bytes:
    """Answer with the path, and an ETag."""
    return value(request.split(b" ")[1], b'ETag: "1"\r\n')


def test_many_keys_are_sent_before_the_first_is_answered(client_of: Any) -> None:
    """On one connection if they are few; the result has the order of the keys."""
    wanted = {f"key{number}": b"/key%d" % number for number in range(7)}
    with answering_in_a_row(8, echoing) as server, client_of(server) as client:
        found = client.get_many([*wanted, b"key7", "key1"])
        assert list(found.items()) == [*wanted.items(), (b"key7", b"/key7")]
        etags = client.set_many({**wanted, "key8": b"8"}, ttl=9)
        assert list(etags) == [*wanted, "key8"]
        assert client.delete_many([*wanted, "key8"]) == 8
        assert server.connections == 1
        assert b"\r\nCache-Control: max-age=9\r\n" in server.requests[8]
        assert client.stats()["operations"] == {
            "get": {"hit": 8}, "set": {"done": 8}, "delete": {"done": 8},
        }  # fmt: skip
        assert (numbers_of(client)["requests"], numbers_of(client)["in_use"]) == (24, 0)


def test_many_keys_in_flight_are_bounded(client_of: Any) -> None:
    """On each connection, and the connections; an answer makes room for more."""
    keys = [f"key{number}" for number in range(1000)]
    most = REQUESTS_MAX + 1
    is_over = threading.Event()

    def serve(peer: Peer) -> None:
        if all(peer.request() for _ in range(most)):
            is_over.set()

    with (
        ScriptedServer(serve) as server,
        client_of(server, timeout=SHORT, on_error="miss", failures=1) as client,
    ):
        assert client.get_many(keys) == {}
        assert not is_over.is_set()
        assert server.connections <= 4
    with always(value(b"v")) as server, client_of(server) as client:
        assert client.get_many(keys) == dict.fromkeys(keys, b"v")
        assert server.connections <= 4
    with always(value(b"v")) as server, client_of(server, connections_max=1) as client:
        assert len(client.get_many(keys)) == 1000
        assert server.connections == 1


def test_connection_that_fails_costs_only_its_keys(client_of: Any) -> None:
    """It is one failure of the node; what was answered before is a value."""
    keys = [f"key{number:02d}" for number in range(64)]

    def serve(peer: Peer) -> None:
        for number in range(32):
            request = peer.request()
            if peer.number == 1 and number == 5:
                peer.send(OK + b"Content-Length: 100\r\n\r\nshort")
                return
            peer.send(echoing(request))

    with (
        ScriptedServer(serve) as server,
        client_of(server, on_error="miss", failures=2) as client,
    ):
        found = client.get_many(keys)
        assert len(found) == 64 - 27
        assert all(value == b"/" + key.encode() for key, value in found.items())
        assert client.stats()["errors"] == {"NodeConnectionError": 27}
        assert numbers_of(client)["up"]
    with ScriptedServer(serve) as server, client_of(server) as client:
        with pytest.raises(NodeConnectionError) as raised:
            client.get_many(keys)
        assert raised.value.__notes__ == ["and 26 more of 64 keys"]


@pytest.mark.parametrize("says", [True, False])
def test_many_keys_go_on_when_the_server_closes_between_answers(
    *, says: bool, client_of: Any
) -> None:
    """As nginx does after so many requests, and with none of them lost."""
    keys = [f"key{number}" for number in range(100)]

    def serve(peer: Peer) -> None:
        for left in (2, 1, 0):
            request = peer.request()
            if not request:
                return
            path = request.split(b" ")[1]
            is_last = says and not left
            peer.send(value(path, b"Connection: close\r\n" if is_last else b""))

    with ScriptedServer(serve) as server, client_of(server) as client:
        found = client.get_many(keys)
        assert found == {key: b"/" + key.encode() for key in keys}
        assert numbers_of(client)["failures"] == 0
        assert numbers_of(client)["in_use"] == 0


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_many_answers_of_any_form_are_read_in_any_parts(
    size: int, client_of: Any
) -> None:
    """Chunks, misses, empty and long values, interim answers, headers in any case."""
    long = SOME_BYTES * 300
    forms = {
        b"/plain": value(b"v"),
        b"/chunked": OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nv\r\n0\r\n\r\n",
        b"/miss": b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno",
        b"/empty": value(b""),
        b"/long": value(long),
        b"/unchanged": b"HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n",
        b"/interim": b"HTTP/1.1 100 C\r\n\r\n" + value(b"i"),
        b"/case": OK + b"CONTENT-LENGTH:1 \r\nCoNnection: Keep-Alive\r\n\r\nc",
    }
    keys = [f"{form[1:].decode()}" for form in forms]

    def serve(peer: Peer) -> None:
        found = b"".join(forms[peer.request().split(b" ")[1]] for _ in keys)
        for at in range(0, len(found), size):
            peer.send(found[at : at + size])

    with (
        ScriptedServer(serve) as server,
        client_of(server, on_error="miss") as client,
    ):
        assert client.get_many(keys) == {
            "plain": b"v", "chunked": b"v", "empty": b"", "long": long, "interim": b"i",
            "case": b"c",
        }  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        OK + b"\r\nno length",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        OK + b"Content-Length: +1\r\n\r\na",
        OK + b"Content-Length: 1\r\nTransfer-Encoding: gzip\r\n\r\na",
        value(b"v") + b"more that was not asked for",
    ],
)
def test_many_answers_with_a_broken_one_end_the_connection(
    bad: bytes, client_of: Any
) -> None:
    """No key gets the value of another one."""
    with (
        ScriptedServer(closing([], value(b"1") + bad)) as server,
        client_of(server, on_error="miss", failures=100) as client,
    ):
        found = client.get_many(["a", "b"])
        assert found.pop("a") == b"1"
        assert found in ({}, {"b": b"v"})
        wait_until(lambda: numbers_of(client)["connections"] == 0, "the end")


@pytest.mark.parametrize(
    "answer",
    [
        *(value(bytes(1 << 20)), OK + b"ETag: x\r\ncontent-length: 1\r\n\r\nv"),
        OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nv\r\n0\r\n\r\n",
        *(OK + b"\r\nv", b"HTTP/1.1 404 No\r\n\r\n"),
    ],
)
def test_many_with_one_key_asks_once_however_the_answer_comes(
    answer: bytes, client_of: Any
) -> None:
    """In parts, with other lines, in chunks, or until the end of the connection."""
    requests: list[bytes] = []
    with (
        ScriptedServer(closing(requests, answer)) as server,
        client_of(server, on_error="miss") as client,
    ):
        found = client.get_many(["key"])
        one = client.get("key")
    assert found == ({} if one is None else {"key": one})
    assert len(requests) == 2


def test_many_large_values_are_stored(client_of: Any) -> None:
    """Those that are not small are sent each for itself."""
    values = {f"key{n}": bytes([n]) * n * 30_000 for n in range(6)}
    memory = Memory()
    with ScriptedServer(answering(memory)) as server, client_of(server) as client:
        assert client.set_many(values).keys() == values.keys()
        assert client.get_many(values) == values


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 99999999999\r\n\r\n",
        OK + b"Content-Length: 1001\r\n\r\n" + bytes(1001),
        OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 1001,
        OK + b"\r\n" + bytes(1001),
    ],
)
def test_value_above_the_limit_is_an_error_before_it_is_in_memory(
    answer: bytes, client_of: Any
) -> None:
    """A miss with `on_error="miss"`; the node is up. No end of it is waited for."""
    is_over = threading.Event()

    def serve(peer: Peer) -> None:
        peer.request()
        peer.send(answer)
        is_over.wait(PATIENT)

    with ScriptedServer(serve) as server:
        with client_of(server, max_value_size=1000, failures=1) as client:
            for _ in range(3):
                with pytest.raises(ValueTooLargeError, match="max_value_size, 1000 b"):
                    client.get("key")
            assert numbers_of(client)["up"]
            with pytest.raises(ValueTooLargeError):
                client.get_many(["key"])
        with client_of(server, max_value_size=1000, on_error="miss") as client:
            assert client.get("key") is None
        is_over.set()


def test_value_of_the_limit_is_read(client_of: Any) -> None:
    """Also in short chunks, and as one of many keys; a longer one costs only itself."""
    chunks = OK + b"Transfer-Encoding: chunked\r\n\r\n" + b"2\r\nab\r\n" * 500

    def answer(request: bytes) -> bytes:
        path = request.split(b" ")[1]
        if path == b"/chunks":
            return chunks + b"0\r\n\r\n"
        return value(bytes(1001 if path == b"/long" else 1000))

    with ScriptedServer(answering(answer)) as server:
        with client_of(server, max_value_size=1000, on_error="miss") as client:
            assert client.get("chunks") == b"ab" * 500
            assert client.get("plain") == bytes(1000)
            assert client.get("long") is None
            keys = ["plain", "long", "chunks", "also plain"]
            found = client.get_many(keys)
            assert [*found] == ["plain", "chunks", "also plain"]
        with (
            client_of(server, max_value_size=10) as client,
            client.stream("long") as reader,
        ):
            assert len(reader.read()) == 1001


async def test_batch_sends_what_tasks_ask_for_in_one_turn() -> None:
    """In a row, on few connections; each task has its own answer or error."""

    def answer(request: bytes) -> bytes:
        if b"/key3 " in request:
            return b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno"
        return echoing(request)

    async with (
        answering_in_a_row(8, answer) as server,
        AsyncClient(server.name, batch=True, timeout=PATIENT) as client,
    ):
        keys = [f"key{number}" for number in range(8)]
        found = await asyncio.gather(*map(client.get, keys), return_exceptions=True)
        assert isinstance(found.pop(3), UnavailableError)
        assert found == [f"/{key}".encode() for key in keys if key != "key3"]
        assert server.connections == 1


async def test_batch_without_a_task_that_was_cancelled_answers_the_others() -> None:
    """Whether or not its request was sent."""
    keys = [f"key{number}" for number in range(8)]
    async with (
        ScriptedServer(answering(echoing)) as server,
        AsyncClient(server.name, batch=True, timeout=PATIENT) as client,
    ):
        for turns in range(4):
            tasks = [asyncio.create_task(client.get(key)) for key in keys]
            for _ in range(turns):
                await asyncio.sleep(0)
            tasks[0].cancel()
            found = await asyncio.gather(*tasks[1:])
            assert found == [f"/{key}".encode() for key in keys[1:]]


@pytest.mark.parametrize("keys", [["a", "b"], ["a", "a"]])
async def test_batch_without_a_server_is_an_error_for_each_task(
    keys: list[str],
) -> None:
    """The errors are separate objects, also those of one key."""
    async with AsyncClient("127.0.0.1:1", batch=True, timeout=PATIENT) as client:
        one, other = await asyncio.gather(
            *map(client.get, keys), return_exceptions=True
        )
    assert isinstance(one, NodeConnectionError)
    assert isinstance(other, NodeConnectionError)
    assert one is not other


async def test_batch_of_tasks_that_ask_for_one_key_asks_once() -> None:
    """Each has a value of its own."""
    async with (
        ScriptedServer(answering(lambda _: value(b"[1]"))) as server,
        AsyncClient(
            server.name, batch=True, serializer="json", timeout=PATIENT
        ) as client,
    ):
        one, other = await asyncio.gather(client.get("a"), client.get("a"))
        assert one == other == [1]
        assert one is not other
        assert len(server.requests) == 1


def test_batch_of_a_client_for_threads_is_refused() -> None:
    """It has no turns."""
    with pytest.raises(InvalidArgumentError, match="batch is an option of AsyncClient"):
        Client("127.0.0.1:1", batch=True)


# --- Values that are made once ----------------------------------------------------------


# The name of the lease of "key", and what is made once.
LEASE: Final = sha256(b"key").hexdigest()


@pytest.mark.parametrize("error", [None, KeyError("made")], ids=["value", "error"])
def test_of_many_that_miss_a_key_one_makes_the_value(
    error: Exception | None, client_of: Any
) -> None:
    """Each has a value of its own, or the error; then the next call makes it."""
    calls: list[int] = []

    def make() -> list[int]:
        calls.append(1)
        wait_until(lambda: client.stats()["waits"] == 15, "all others")
        if error is not None:
            raise error
        return [1]

    def ask(_: int) -> Any:
        try:
            return client.get_or_set("key", made, 60)
        except KeyError as raised:
            return raised

    with (
        ScriptedServer(answering(Memory())) as server,
        client_of(server, serializer="json") as client,
        ThreadPoolExecutor(16) as threads,
    ):
        # The loop must not wait for the threads that it serves.
        is_of_tasks = isinstance(client, TaskClient)
        made = partial(asyncio.to_thread, make) if is_of_tasks else make
        found = list(threads.map(ask, range(16)))
        numbers = client.stats()
        assert len(calls) == 1
        assert client.get_or_set("key", lambda: [2]) == ([2] if error else [1])
    if error is None:
        assert found == [[1]] * 16
        assert len({id(one) for one in found}) == 16
        assert (numbers["made"], numbers["nodes"][server.name]["failures"]) == (1, 0)
    else:
        assert [str(one) for one in found] == [str(error)] * 16


@pytest.mark.parametrize("error", [None, KeyError("made")], ids=["value", "error"])
def test_a_stale_value_is_returned_while_one_caller_renews_it(
    error: Exception | None, client_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits; after an error, which is logged, it is stale and not made at once."""
    calls: list[int] = []
    may_end = threading.Event()

    def make() -> list[int]:
        calls.append(1)
        may_end.wait(PATIENT)
        if error is not None:
            raise error
        return [2]

    with (
        ScriptedServer(answering(Memory())) as server,
        client_of(server, serializer="json") as client,
    ):
        made = make
        if isinstance(client, TaskClient):
            made = partial(asyncio.to_thread, make)  # type: ignore[assignment]
        ask = partial(client.get_or_set, "key", made, 60, stale=100)
        client.set("key", [1], ttl=101)
        assert ask() == [1]  # It is fresh.
        client.set("key", [1], ttl=99)
        assert [ask() for _ in range(5)] == [[1]] * 5
        may_end.set()
        if error is None:
            wait_until(lambda: client.get("key") == [2], "the new value")
            assert (client.stat("key").ttl, ask()) == (160, [2])
        else:
            wait_until(lambda: "was not renewed" in caplog.text, "the error")
            assert ask() == [1]
        wait_until(lambda: not client.exists("~lease/" + LEASE), "the lease")
        assert len(calls) == 1
        assert client.stats()["made"] == (0 if error else 1)


def test_a_client_is_closed_while_it_renews(
    client_of: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not wait for `make`, and nothing is logged."""
    may_end, has_begun = threading.Event(), threading.Event()

    def make() -> bytes:
        has_begun.set()
        may_end.wait(PATIENT)
        return b"new"

    with ScriptedServer(answering(Memory())) as server, client_of(server) as client:
        made = make
        if isinstance(client, TaskClient):
            made = partial(asyncio.to_thread, make)  # type: ignore[assignment]
        client.set("key", b"old", ttl=9)
        assert client.get_or_set("key", made, stale=10) == b"old"
        assert has_begun.wait(PATIENT)
        client.close()
        assert client.closed
        may_end.set()
    assert "renewed" not in caplog.text


def test_renewals_have_a_bound() -> None:
    """In all, for a key, and after a failure."""
    now = [0.0]
    renewals = Renewals(lambda: now[0], 10)
    assert [renewals.begin(b"%d" % one) for one in range(9)] == [True] * 8 + [False]
    assert not renewals.begin(b"1")
    renewals.ended(b"1", None)
    renewals.ended(b"2", KeyError("made"))
    assert [renewals.begin(key) for key in (b"1", b"2", b"8")] == [True, False, True]
    renewals.ended(b"1", None)
    now[0] = 11.0
    assert renewals.begin(b"2")


# --- The client as an object ------------------------------------------------------------


def test_a_client_is_shown_without_its_tokens(tmp_path: Path) -> None:
    """With its first address and its state."""
    secret = {"token": "secret", "admin_token": "secret"}
    shown = {
        "http://10.0.0.1:8080, 1 node": "10.0.0.1:8080",
        "https://a:443, 2 nodes": ["https://a:443", "b:1"],
        f"unix:{tmp_path}/s, 1 node": f"unix:{tmp_path}/s",
        "nodes not known yet": lambda: ["a:1"],
    }
    for kind in (Client, AsyncClient):
        for text, nodes in shown.items():
            client: Any = kind(nodes, **secret)  # type: ignore[call-overload]
            assert repr(client) == f"<{kind.__name__} {text}, open>"
    with Client("a:1") as closed:
        pass
    assert repr(closed) == "<Client http://a:1, 1 node, closed>"


_WINDOWS: Final = """
import asyncio, concurrent.futures.thread, os, random, select, socket, ssl, sys
del select.poll, os.register_at_fork
from volcache_client import AsyncClient, Client
with Client(sys.argv[1]) as client:
    del socket.AF_UNIX
    for size in (1, 1, 5_000_000):
        client.set("key", bytes(size))
        assert client.get("key") == bytes(size)
    assert client.add("key", b"") is None
    socket.AF_UNIX = 1  # Of asyncio.
async def main():
    async with AsyncClient(sys.argv[1]) as client:
        assert await client.add("key", b"") is None
        assert len(await client.get("key")) == 5_000_000
asyncio.run(main())
"""


def test_client_without_what_unix_has_works() -> None:
    """Neither `poll` nor forks nor sockets of unix."""
    with ScriptedServer(answering(Memory())) as server:
        subprocess.run([sys.executable, "-c", _WINDOWS, server.name], check=True)
        assert server.connections == 2


def test_types_of_the_client_for_threads_are_made_of_those_for_asyncio() -> None:
    """`tools/make_client.py` was run after the last change."""
    assert make_client.MADE.read_text("utf-8") == make_client.made()
