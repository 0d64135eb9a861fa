"""Requests, answers, streams and files of both clients, against scripted servers."""

from __future__ import annotations

import io
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from support.client_users import PATIENT, numbers_of
from support.scripted_server import (
    OK,
    Peer,
    ScriptedServer,
    answering,
    closing,
    full_listener,
    hanging,
    value,
)
from support.waiting import wait_until
from volcache_client import (
    AccessDeniedError,
    InvalidArgumentError,
    NodeConnectionError,
    NodeDownError,
    NodeError,
    NodeTimeoutError,
    UnavailableError,
    UnexpectedAnswerError,
    ValueTooLargeError,
)

SHORT: Final = 0.2
# Of a client that has to get an answer before it has to wait in vain.
LONGER: Final = 1.5
STORED: Final = value(b"v", b'ETag: "1"\r\n')
CHUNKED: Final = OK + b"Transfer-Encoding: chunked\r\n\r\n"
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
    CHUNKED + b"-1\r\n\r\n",
    CHUNKED + b"0x1\r\na\r\n0\r\n\r\n",
    CHUNKED + b"2\r\nabc\r\n0\r\n\r\n",
    CHUNKED + b"3\r\nabc\r\n",
    CHUNKED + b"9\r\nabc",
    b"HTTP/2 200 OK\r\n\r\n",
    b"HTTP/1.1 2x0 OK\r\n\r\n",
    b"SSH-2.0-OpenSSH\r\n\r\n",
    b"\r\n\r\n",
    bytes(range(256)) * 4,
    OK + b"A: " + bytes(200_000),
]


def endless(piece: bytes, first: bytes = b"") -> Callable[[Peer], None]:
    """Return a function that sends a piece again and again, until the client closes."""

    def serve(peer: Peer) -> None:
        peer.request()
        peer.send(first)
        while True:
            peer.send(piece)
            time.sleep(SHORT / 20)

    return serve


# --- Answers ----------------------------------------------------------------------------


@pytest.mark.parametrize("data", BROKEN, ids=range(len(BROKEN)))
def test_get_of_a_broken_answer_is_an_error_or_a_miss(data: bytes, served: Any) -> None:
    """It is never a shorter value, and counts for the health of the node."""
    with served(closing(data), failures=100) as (server, client):
        with pytest.raises(NodeConnectionError, match=server.name):
            client.get("key")
        with (
            pytest.raises((NodeError, UnexpectedAnswerError)),
            client.stream("key") as stream,
        ):
            b"".join(stream)
        wait_until(lambda: numbers_of(client)["connections"] == 0, "the end of both")
        assert numbers_of(client)["in_use"] == 0
        assert numbers_of(client)["failures"] > 0
    with served(closing(data), on_error="miss", failures=100) as (_, client):
        assert client.get("key") is None
        assert client.get_or_set("key", lambda: b"made") == b"made"


@pytest.mark.slow
@pytest.mark.parametrize(
    "serve",
    [
        hanging(),
        endless(b"x"),
        endless(b"A: b\r\n", OK),
        endless(b"x", OK + b"Content-Length: 1000000\r\n\r\n"),
        endless(b"1\r\nx\r\n", CHUNKED),
        endless(b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
    ids=["silence", "status", "headers", "body", "chunks", "continue"],
)
def test_get_of_a_slow_answer_ends_at_the_timeout(
    serve: Callable[[Peer], None], served: Any
) -> None:
    """Of the whole exchange: a byte now and then does not extend it. The node is down."""
    with served(serve, timeout=SHORT, failures=1) as (_, client):
        for error in (NodeTimeoutError, NodeDownError):  # Then it is not asked.
            with pytest.raises(error):
                client.get("key")
        wanted = {"connections": 0, "in_use": 0, "requests": 1}
        assert wanted.items() <= numbers_of(client).items()


@pytest.mark.slow
def test_set_to_a_server_that_does_not_read_ends_at_the_timeout(served: Any) -> None:
    """A file is not read ahead."""
    file = io.BytesIO(bytes(64 << 20))
    with served(hanging(), timeout=SHORT) as (_, client):
        with pytest.raises(NodeTimeoutError):
            client.set("key", file.getvalue())
        with pytest.raises(NodeTimeoutError):
            client.set_file("key", file)
        assert file.tell() < len(file.getvalue()) / 2


@pytest.mark.slow
def test_connection_that_is_not_accepted_ends_in_time(
    connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a limit of its own; each address of a host has a share of it."""
    with full_listener() as full, ScriptedServer(STORED) as server:
        with (
            connect(f"127.0.0.1:{full}", connect_timeout=0.05) as client,
            pytest.raises(NodeTimeoutError),
        ):
            client.get("key")
        found = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))
            for port in (full, server.port)
        ]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **_named: found)
        with connect("two.test:80", connect_timeout=LONGER) as client:
            assert client.get("key") == b"v"


@pytest.mark.slow
@pytest.mark.parametrize("listens", [True, False])
def test_operations_without_a_cache_are_misses(*, listens: bool, connect: Any) -> None:
    """With `on_error="miss"`, whether the cache hangs or is not there."""
    with ScriptedServer(hanging()) as server:
        name = server.name if listens else "127.0.0.1:1"
        with connect(name, timeout=SHORT, on_error="miss") as client:
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


@pytest.mark.parametrize(
    ("status", "error"),
    [(302, UnexpectedAnswerError), (401, AccessDeniedError), (503, UnavailableError)],
)
def test_get_of_an_answer_without_a_value_is_an_error(
    status: int, error: type[Exception], served: Any
) -> None:
    """A redirect is not followed, and nothing is repeated."""
    text = b"HTTP/1.1 %d No\r\nLocation: /other\r\nContent-Length: 2\r\n\r\nno" % status
    with served(text) as (server, client):
        reason = "redirect to /other" if status == 302 else "no"
        with pytest.raises(error, match=f"{server.name}: {status} {reason}"):
            client.get("key")
        with pytest.raises(error, match=reason), client.stream("key"):
            pass
        assert len(server.requests) == 2


REFUSAL: Final = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"


def refuse_and_close(peer: Peer) -> None:
    """Answer before the body is there."""
    peer.socket.recv(1000)
    peer.send(REFUSAL)


def refuse_and_read(peer: Peer) -> None:
    """Answer before the body is there, and read the rest of it."""
    refuse_and_close(peer)
    peer.socket.shutdown(socket.SHUT_WR)
    while peer.socket.recv(1 << 20):
        pass


@pytest.mark.parametrize(
    ("serve", "size", "times"),
    [
        (hanging(REFUSAL), 32 << 20, 1),
        (refuse_and_close, 4 << 20, 20),
        (refuse_and_read, 4 << 20, 1),
    ],
    ids=["hangs", "closes", "reads"],
)
def test_set_of_a_body_that_is_refused_early_has_its_answer(
    serve: Callable[[Peer], None], size: int, times: int, served: Any
) -> None:
    """Whatever the server does with what is sent."""
    with served(serve) as (_, client):
        for _ in range(times):
            with pytest.raises(ValueTooLargeError):
                client.set("key", bytes(size))
        with pytest.raises(ValueTooLargeError):
            client.set_file("key", io.BytesIO(bytes(size)))


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 99999999999\r\n\r\n",
        OK + b"Content-Length: 1001\r\n\r\n" + bytes(1001),
        CHUNKED + b"1\r\na\r\n" * 1001,
        OK + b"\r\n" + bytes(1001),
    ],
)
def test_get_of_a_value_above_the_limit_is_an_error_before_it_is_in_memory(
    answer: bytes, served: Any
) -> None:
    """A miss with `on_error="miss"`; the node is up. No end of it is waited for."""
    with served(hanging(answer), max_value_size=1000, failures=1) as (_, client):
        for _ in range(3):
            with pytest.raises(ValueTooLargeError, match="max_value_size, 1000 b"):
                client.get("key")
        assert numbers_of(client)["up"]
        with pytest.raises(ValueTooLargeError):
            client.get_many(["key"])
    options = {"max_value_size": 1000, "on_error": "miss"}
    with served(hanging(answer), **options) as (_, client):
        assert client.get("key") is None


def test_get_of_a_value_of_the_limit_returns_it(served: Any) -> None:
    """Also in short chunks, and as one of many keys; a longer one costs only itself."""

    def answer(request: bytes) -> bytes:
        path = request.split(b" ")[1]
        if path == b"/chunks":
            return CHUNKED + b"2\r\nab\r\n" * 500 + b"0\r\n\r\n"
        return value(bytes(1001 if path == b"/long" else 1000))

    options = {"max_value_size": 1000, "on_error": "miss"}
    with served(answering(answer), **options) as (_, client):
        assert client.get("chunks") == b"ab" * 500
        assert client.get("plain") == bytes(1000)
        assert client.get("long") is None
        keys = ["plain", "long", "chunks", "also plain"]
        assert [*client.get_many(keys)] == ["plain", "chunks", "also plain"]
        with client.stream("long") as reader:
            assert len(reader.read()) == 1001


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
def test_request_has_the_path_of_its_key_and_what_the_service_needs(
    key: str | bytes, path: bytes, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By each way to send one; a proxy of the environment is not asked."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    def answer(request: bytes) -> bytes:
        answer = value(b"v", b'ETag: "1"\r\nSet-Cookie: a=1; Path=/\r\n')
        return answer.removesuffix(b"v") if request.startswith(b"HEAD") else answer

    with served(answering(answer), token="secret") as (server, client):  # noqa: S106
        client.get(key)
        assert client.stat(key).size == 1
        client.set(key, b"v", ttl=1.5, content_type="text/x")
        client.set_file(key, io.BytesIO(b"v"), ttl=5)
        with client.stream(key) as reader:
            assert reader.read() == b"v"
    heads = [request.partition(b"\r\n\r\n")[0] for request in server.requests]
    assert [head.split(b" ")[1] for head in heads] == [path] * 5
    needed = [
        *(f"Host: {server.name}".encode(), b"Accept-Encoding: identity"),
        b"Authorization: Bearer secret",
    ]
    for head in heads:
        assert [head.split(b"\r\n").count(line) for line in needed] == [1, 1, 1]
        assert b"Cookie" not in head
    put = {b"Content-Length: 1", b"Content-Type: text/x", b"Cache-Control: max-age=2"}
    assert put < {*heads[2].split(b"\r\n")}
    put = {b"Content-Type: application/octet-stream", b"Cache-Control: max-age=5"}
    assert put < {*heads[3].split(b"\r\n")}
    assert all(request.endswith(b"\r\n\r\nv") for request in server.requests[2:4])


def test_purge_sends_its_prefix_encoded_and_the_token_of_the_operator(
    served: Any,
) -> None:
    with served(value(b""), admin_token="op") as (server, client):  # noqa: S106
        client.purge("a b/\N{EURO SIGN}?")
    (request,) = server.requests
    assert request.startswith(b"POST /-/purge?prefix=a%20b%2F%E2%82%AC%3F HTTP")
    assert b"\r\nAuthorization: Bearer op\r\n" in request


def test_get_of_a_compressed_value_returns_it_as_it_is(served: Any) -> None:
    with served(value(b"not gzip", b"Content-Encoding: gzip\r\n")) as (_, client):
        assert client.get("a") == b"not gzip"
        with client.stream("a") as reader:
            assert reader.read() == b"not gzip"


@pytest.mark.parametrize("size", [0, 1, 1 << 16, (1 << 20) + 1, 5_000_000])
def test_set_and_get_of_any_size_keep_the_value(
    size: int, served: Any, tmp_path: Path
) -> None:
    """Long ones are sent in parts; a file is sent from its position, and stays open."""
    stored: list[bytes] = []

    def answer(request: bytes) -> bytes:
        if request.startswith(b"PUT"):
            stored.append(request.partition(b"\r\n\r\n")[2])
        return value(stored[-1] if request.startswith(b"GET") else b"")

    wanted = (bytes(range(256)) * (size // 256 + 1))[:size]
    file = io.BytesIO(b"skip" + wanted)
    file.seek(4)
    (tmp_path / "file").write_bytes(wanted)
    with served(answering(answer)) as (_, client):
        client.set("a", wanted)
        client.set_file("a", file)
        assert not file.closed
        client.set_file("a", tmp_path / "file")
        assert stored == [wanted] * 3
        assert client.get("a") == wanted
        with client.stream("a") as reader:
            assert (reader.stat.size, b"".join(reader)) == (size, wanted)


# --- Streams and files ------------------------------------------------------------------


@pytest.mark.parametrize("on_error", ["raise", "miss"])
@pytest.mark.parametrize(
    "error",
    [NodeConnectionError, pytest.param(NodeTimeoutError, marks=pytest.mark.slow)],
)
def test_stream_that_ends_or_stops_early_is_an_error(
    error: type[Exception], on_error: str, served: Any
) -> None:
    """With any `on_error`: a part was returned already. `timeout` is between two parts."""
    has_begun = threading.Event()

    def serve(peer: Peer) -> None:
        peer.request()
        peer.send(OK + b"Content-Length: 200000\r\n\r\n" + bytes(150_000))
        has_begun.wait(PATIENT)
        if error is NodeTimeoutError:
            peer.hang()

    timeout = LONGER if error is NodeTimeoutError else PATIENT
    with served(serve, on_error=on_error, timeout=timeout) as (_, client):
        with client.stream("key") as reader:
            assert reader.stat.size == 200_000
            assert reader.read(1000) == bytes(1000)
            has_begun.set()
            with pytest.raises(error):
                b"".join(reader)
        assert client.stats()["errors"] == {error.__name__: 1}
        assert numbers_of(client)["connections"] == 0


def test_stream_that_was_read_to_its_end_keeps_its_connection(served: Any) -> None:
    with served(value(bytes(100_000))) as (server, client):
        for sizes in ([-1], [100_000], [1, 99_999], [100_000, 1, 0, -1]):
            with client.stream("key") as reader:
                assert sum(len(reader.read(size)) for size in sizes) == 100_000
        assert server.connections == 1


def test_stream_that_is_left_closes_its_connection(served: Any) -> None:
    """What was not read would be the next answer."""
    with served(value(bytes(3_000_000))) as (server, client):
        for _ in range(2):
            with client.stream("key") as reader:
                assert len(next(iter(reader))) > 0
        assert client.get("key") == bytes(3_000_000)
        assert (server.connections, numbers_of(client)["connections"]) == (3, 1)


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
def test_set_file_of_a_file_that_fails_stores_nothing(
    file: type[io.BytesIO], error: type[Exception], served: Any
) -> None:
    """The announced length is not sent; that is no failure of the node."""
    with served(STORED) as (server, client):
        with pytest.raises(error, match=r"the disk|became shorter"):
            client.set_file("key", file(bytes(200_000)))
        assert numbers_of(client)["failures"] == 0
        assert client.set_file("key", io.BytesIO(b"v")) == '"1"'
    assert len(server.requests) == 1


def set_pipe(client: Any) -> Any:
    """Store what a pipe has, whose length is not known."""
    near, far = os.pipe()
    with os.fdopen(near, "rb") as pipe:
        os.write(far, b"value")
        os.close(far)
        return client.set_file("key", pipe)


def test_set_file_of_a_pipe_is_sent_in_chunks(served: Any) -> None:
    """Its length is not known."""
    requests: list[bytes] = []

    def serve(peer: Peer) -> None:
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += peer.socket.recv(1 << 16)
        requests.append(data)
        peer.send(STORED)

    with served(serve) as (_, client):
        assert set_pipe(client) == '"1"'
    assert b"\r\nTransfer-Encoding: chunked\r\n" in requests[0]
    assert requests[0].endswith(b"\r\n\r\n5\r\nvalue\r\n0\r\n\r\n")


# --- Requests that are sent again -------------------------------------------------------


def close_at_second(peer: Peer) -> None:
    """Answer one request; close when the second one has arrived."""
    if peer.request():
        peer.send(STORED)
        peer.request()


def test_request_on_a_connection_that_was_closed_meanwhile_is_sent_again(
    served: Any,
) -> None:
    """On a new one; that is no failure of the node."""
    long = bytes((1 << 20) + 10)
    with served(close_at_second) as (server, client):
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
def test_request_with_a_condition_or_of_a_pipe_is_not_sent_twice(
    act: Callable[[Any], object], served: Any
) -> None:
    """The condition does not hold the second time; the bytes are gone."""
    with served(close_at_second) as (server, client):
        assert client.get("key") == b"v"
        with pytest.raises(NodeConnectionError, match=r"isconnected|reset|roken"):
            act(client)
        assert (server.connections, numbers_of(client)["failures"]) == (1, 1)


def test_request_that_breaks_a_new_connection_is_not_sent_again(served: Any) -> None:
    """The server has read it and failed: it would fail again."""

    def serve(peer: Peer) -> None:
        peer.request()
        if peer.number == 0:
            peer.send(STORED)
            peer.request()

    with served(serve) as (server, client):
        assert client.get("a") == b"v"
        for count in (3, 4):
            with pytest.raises(NodeConnectionError):
                client.get("b")
            assert len(server.requests) == count
        with pytest.raises(NodeConnectionError), client.stream("b"):
            pass
        assert len(server.requests) == 5


def test_connection_that_the_server_has_closed_is_not_used(served: Any) -> None:
    """Also not for a request that is not repeatable."""
    with served(closing(STORED)) as (server, client):
        for number in range(3):
            assert client.add("key", b"v") == '"1"'
            wait_until(lambda: not server.open, f"the end of connection {number}")
        assert server.connections == 3
