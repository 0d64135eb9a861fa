"""The client for threads, against servers that a test scripts."""

from __future__ import annotations

import io
import os
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

from support.scripted_server import (
    OK,
    Peer,
    ScriptedServer,
    answering,
    recording,
    value,
)
from support.tables import each_row
from support.waiting import wait_until
from volcache_client import (
    AccessDeniedError,
    Client,
    ClientUsageError,
    InvalidArgumentError,
    NodeConnectionError,
    NodeDownError,
    NodeTimeoutError,
    PoolTimeoutError,
    UnavailableError,
    UnexpectedAnswerError,
    ValueTooLargeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Long enough for a loaded machine; only what must end by a timeout has a short one.
PATIENT: Final = 30.0
SHORT: Final = 0.2
# Of a client that has to get an answer before it has to wait in vain.
LONGER: Final = 1.5
BROKEN: Final = {
    "nothing": b"",
    "garbage": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "half a head": OK + b"Content-Le",
    "half a body": OK + b"Content-Length: 10\r\n\r\nhalf",
    "half a chunk": OK + b"Transfer-Encoding: chunked\r\n\r\na\r\nhalf",
    "no last chunk": OK + b"Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
    "no length": OK + b"\r\nhalf",
    "a negative length": OK + b"Content-Length: -4\r\n\r\nhalf",
    "two lengths": OK + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nhalf",
    "a huge length": OK + b"Content-Length: 999999999999999999\r\n\r\nhalf",
    "a huge header": OK + b"A: " + b"x" * 200_000 + b"\r\n\r\n",
}


def client_of(server: ScriptedServer, **options: Any) -> Client[bytes]:
    """Return a client with patience."""
    wanted = {"timeout": PATIENT, "connect_timeout": PATIENT, **options}
    return Client(server.name, **wanted)


def answer_once(data: bytes) -> Callable[[Peer], None]:
    """Return a function that answers the first request and closes."""

    def serve(peer: Peer) -> None:
        if peer.request():
            peer.send(data)

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


# --- Answers ----------------------------------------------------------------------------


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_an_error_of_the_connection(data: bytes) -> None:
    """It is never a shorter value, and counts for the health of the node."""
    with ScriptedServer(answer_once(data)) as server, client_of(server) as client:
        with pytest.raises(NodeConnectionError, match=server.name):
            client.get("key")
        assert client.metrics().nodes[server.name].failures == 1
        assert client.metrics().nodes[server.name].connections == 0


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_broken_answer_is_a_miss_if_outages_are(data: bytes) -> None:
    """With `on_error="miss"`."""
    with (
        ScriptedServer(answer_once(data)) as server,
        client_of(server, on_error="miss", failures=100) as client,
    ):
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
def test_a_slow_answer_ends_at_the_timeout(serve: Callable[[Peer], None]) -> None:
    """Of the whole exchange: a byte now and then does not extend it."""
    with ScriptedServer(serve) as server, client_of(server, timeout=SHORT) as client:
        with pytest.raises(NodeTimeoutError):
            client.get("key")
        assert client.metrics().nodes[server.name].connections == 0


@pytest.mark.slow
def test_a_slow_upload_ends_at_the_timeout() -> None:
    """The server does not read."""
    body = bytes(64 << 20)
    is_over = threading.Event()

    def serve(_: Peer) -> None:
        is_over.wait(PATIENT)

    with ScriptedServer(serve) as server, client_of(server, timeout=SHORT) as client:
        with pytest.raises(NodeTimeoutError):
            client.put("key", body)
        with pytest.raises(NodeTimeoutError):
            client.put_file("key", io.BytesIO(body))
        is_over.set()


def test_a_node_that_does_not_accept_is_an_error_of_the_connection() -> None:
    """And is down after some failures."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        name = f"127.0.0.1:{listener.getsockname()[1]}"
    with Client(name, failures=2) as client:
        for _ in range(2):
            with pytest.raises(NodeConnectionError):
                client.put("key", b"value")
        with pytest.raises(NodeDownError):
            client.put("key", b"value")
        assert client.get("key") is None


@pytest.mark.slow
@each_row("listens", [True, False])
def test_without_the_cache_an_application_works(*, listens: bool) -> None:
    """With `on_error="miss"`, whether the cache hangs or is not there."""
    is_over = threading.Event()

    def serve(_: Peer) -> None:
        is_over.wait(PATIENT)

    with ScriptedServer(serve) as server:
        name = server.name if listens else "127.0.0.1:1"
        with Client(name, timeout=SHORT, on_error="miss") as client:
            keys = ["a", "b"]
            assert client.get_or_set("k", lambda: b"made") == b"made"
            assert client.put("k", b"v") is None
            assert client.put_file("k", io.BytesIO(b"v")) is None
            assert client.put_many(dict.fromkeys(keys, b"v")) == {}
            assert client.get_many(keys) == {}
            assert client.head("k") is None
            assert client.delete("k") is False
            with client.stream("k") as reader:
                assert reader is None
            assert not client.metrics().nodes[name].is_up
        is_over.set()


@each_row(
    ("status", "error"),
    [
        (302, UnexpectedAnswerError),
        (401, AccessDeniedError),
        (503, UnavailableError),
    ],
)
def test_an_answer_that_is_no_value_is_an_error(
    status: int, error: type[Exception]
) -> None:
    """A redirect is not followed, and nothing is repeated."""
    text = b"HTTP/1.1 %d No\r\nLocation: /other\r\nContent-Length: 2\r\n\r\nno" % status
    requests: list[bytes] = []
    serve = recording(requests, text)
    with ScriptedServer(serve) as server, client_of(server) as client:
        with pytest.raises(error, match=f"{server.name}: {status} no"):
            client.get("key")
        assert len(requests) == 1


def test_a_body_that_is_refused_before_it_was_sent_has_its_answer() -> None:
    """The server answers, and closes without reading it."""
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"

    def serve(peer: Peer) -> None:
        peer.socket.recv(1000)
        peer.send(refusal)
        peer.socket.shutdown(socket.SHUT_WR)
        while peer.socket.recv(1 << 20):
            pass

    with ScriptedServer(serve) as server, client_of(server) as client:
        with pytest.raises(ValueTooLargeError):
            client.put("key", bytes(4 << 20))
        with pytest.raises(ValueTooLargeError):
            client.put_file("key", io.BytesIO(bytes(4 << 20)))


# --- Requests ---------------------------------------------------------------------------


@each_row(
    ("key", "path"),
    [
        ("a", b"/a"),
        ("a:b@c", b"/a:b@c"),
        ("a//[x", b"/a//%5Bx"),
        ("a%2Fb", b"/a%252Fb"),
        ("a?b#c", b"/a%3Fb%23c"),
        ("http://x/y", b"/http://x/y"),
        ("ä b", b"/%C3%A4%20b"),
        (b"\xff\\", b"/%FF%5C"),
    ],
)
def test_the_path_of_a_key_is_sent_as_it_is(key: str | bytes, path: bytes) -> None:
    """By each way to send a request."""
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return value(b"" if request.startswith(b"HEAD") else b"v", b'ETag: "1"\r\n')

    with ScriptedServer(answering(answer)) as server, client_of(server) as client:
        client.get(key)
        client.put(key, b"v")
        client.put_file(key, io.BytesIO(b"v"))
        with client.stream(key) as reader:
            assert reader is not None
            assert reader.read() == b"v"
    assert [request.split(b" ")[1] for request in requests] == [path] * 4
    host = f"\r\nHost: {server.name}\r\n".encode()
    assert all(request.count(host) == 1 for request in requests)
    assert all(request.count(b"Accept-Encoding: identity") == 1 for request in requests)


def test_the_token_is_sent() -> None:
    """With each request."""
    requests: list[bytes] = []
    serve = recording(requests, value(b""))
    with ScriptedServer(serve) as server, client_of(server, token="secret") as client:  # noqa: S106
        client.get("key")
        client.put_file("key", io.BytesIO(b"v"))
    assert all(b"\r\nAuthorization: Bearer secret\r\n" in one for one in requests)


def test_proxies_of_the_environment_are_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cache is next door."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with (
        ScriptedServer(answering(lambda _: value(b"v"))) as server,
        client_of(server) as client,
    ):
        assert client.get("key") == b"v"


def test_a_unix_socket_is_a_node(tmp_path: Path) -> None:
    """With the host name `localhost`."""
    requests: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "disk1.sock"))
    listener.listen()
    serve = recording(requests, value(b"v"))
    with (
        ScriptedServer(serve, listener=listener),
        Client(f"unix:{tmp_path}/disk1.sock", timeout=PATIENT) as client,
    ):
        assert client.get("key") == b"v"
    assert b"\r\nHost: localhost\r\n" in requests[0]


def test_an_address_of_ip_version_6_is_a_node() -> None:
    """In brackets."""
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    port = listener.getsockname()[1]
    with (
        ScriptedServer(answering(lambda _: value(b"v")), listener=listener),
        Client(f"http://[::1]:{port}", timeout=PATIENT) as client,
    ):
        assert client.get("key") == b"v"


def test_tls_is_checked_against_the_certificates_of_the_context(tmp_path: Path) -> None:
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
        with Client(name, ssl_context=ours, timeout=PATIENT) as client:
            assert client.get("key") == big
            assert client.get("key") == big
            with client.stream("key") as reader:
                assert reader is not None
                assert b"".join(reader) == big
            assert client.metrics().nodes[f"localhost:{server.port}"].connections == 1
        with (
            Client(name, timeout=PATIENT) as client,
            pytest.raises(NodeConnectionError, match="certificate"),
        ):
            client.get("key")


# --- Connections ------------------------------------------------------------------------


def closing_at_second(peer: Peer) -> None:
    """Answer one request; close when the second one has arrived."""
    if peer.request():
        peer.send(value(b"v", b'ETag: "1"\r\n'))
        peer.request()


def test_a_request_on_a_connection_that_was_closed_meanwhile_is_repeated() -> None:
    """On a new one; that is no failure of the node."""
    with ScriptedServer(closing_at_second) as server, client_of(server) as client:
        for _ in range(3):
            assert client.get("key") == b"v"
            assert client.put("key", b"v") == '"1"'
            assert client.put_file("key", io.BytesIO(b"v")) == '"1"'
            with client.stream("key") as reader:
                assert reader is not None
                assert reader.read() == b"v"
        assert client.metrics().nodes[server.name].failures == 0
        assert server.connections == 12


def test_a_conditional_request_is_not_repeated() -> None:
    """If it was done the first time, its condition would not hold the second time."""
    with ScriptedServer(closing_at_second) as server, client_of(server) as client:
        assert client.add("key", b"v") == '"1"'
        with pytest.raises(NodeConnectionError):
            client.add("key", b"v")
        assert server.connections == 1


def test_a_file_without_positions_is_not_sent_twice() -> None:
    """Its bytes are gone."""
    with ScriptedServer(closing_at_second) as server, client_of(server) as client:
        assert client.get("key") == b"v"
        near, far = os.pipe()
        with os.fdopen(near, "rb") as pipe:
            os.write(far, b"value")
            os.close(far)
            with pytest.raises(NodeConnectionError):
                client.put_file("key", pipe)
        assert server.connections == 1


def test_connections_the_server_has_closed_are_not_used() -> None:
    """Also not for a request that is not repeatable."""
    with (
        ScriptedServer(answer_once(value(b"v", b'ETag: "1"\r\n'))) as server,
        client_of(server) as client,
    ):
        for number in range(3):
            assert client.add("key", b"v") == '"1"'
            wait_until(
                lambda: all(not one.is_alive() for one in server._threads),
                f"the end of connection {number}",
            )
        assert server.connections == 3


def test_bytes_after_an_answer_are_not_the_next_answer() -> None:
    """The connection is closed."""
    data = value(b"v") + value(b"wrong")
    with (
        ScriptedServer(answering(lambda _: data)) as server,
        client_of(server) as client,
    ):
        assert [client.get("key") for _ in range(3)] == [b"v"] * 3
        assert server.connections == 3


def test_connections_are_bounded_and_kept() -> None:
    """Many threads share a few."""
    with (
        ScriptedServer(answering(lambda _: value(b"v"))) as server,
        client_of(server, connections_max=3) as client,
        ThreadPoolExecutor(16) as threads,
    ):
        assert list(threads.map(client.get, ["key"] * 200)) == [b"v"] * 200
        assert 1 <= server.connections <= 3
        numbers = client.metrics().nodes[server.name]
        assert (numbers.connections, numbers.requests) == (server.connections, 200)


@pytest.mark.slow
def test_waiting_for_a_connection_ends_at_the_timeout() -> None:
    """The node was not asked, so that is no failure of the node."""
    with (
        ScriptedServer(answering(lambda _: value(b"value"))) as server,
        client_of(server, connections_max=1, timeout=LONGER) as client,
    ):
        with client.stream("key"), pytest.raises(PoolTimeoutError, match="all 1 conn"):
            client.get("key")
        assert client.get("key") == b"value"
        assert client.metrics().nodes[server.name].failures == 0


def test_the_connections_of_a_node_that_was_removed_are_closed() -> None:
    """With the first request after that."""
    nodes: list[str] = []
    serve = answering(lambda _: value(b"v"))
    with ScriptedServer(serve) as first, ScriptedServer(serve) as second:
        nodes.append(first.name)
        with Client(
            lambda: list(nodes),
            refresh_seconds=1e-6,
            timeout=PATIENT,
            connect_timeout=PATIENT,
        ) as client:
            assert client.get("key") == b"v"
            nodes[:] = [second.name]
            assert client.get("key") == b"v"
            assert client.get("key") == b"v"
            assert list(client.metrics().nodes) == [second.name]
            wait_until(lambda: not first._threads[0].is_alive(), "the end")


def test_a_closed_client_says_so() -> None:
    """It opens no connections again."""
    with ScriptedServer(answering(lambda _: value(b"v"))) as server:
        with client_of(server) as client:
            assert client.get("key") == b"v"
        wait_until(lambda: not server._threads[0].is_alive(), "the end")
        with pytest.raises(ClientUsageError, match="closed"):
            client.get("key")
        with pytest.raises(ClientUsageError, match="closed"):
            client.get_many(["a", "b"])


# --- Streams and files ------------------------------------------------------------------


def test_a_stream_that_ends_early_is_an_error() -> None:
    """Also with `on_error="miss"`: a part was returned already."""
    data = OK + b"Content-Length: 200000\r\n\r\n" + bytes(150_000)
    with (
        ScriptedServer(answer_once(data)) as server,
        client_of(server, on_error="miss") as client,
    ):
        with client.stream("key") as reader:
            assert reader is not None
            assert reader.head.size == 200_000
            assert reader.read(1000) == bytes(1000)
            with pytest.raises(NodeConnectionError):
                b"".join(reader)
        metrics = client.metrics()
        assert metrics.errors == {"NodeConnectionError": 1}
        assert metrics.nodes[server.name].connections == 0


@each_row(
    "framing", [b"", b"Content-Length: -1\r\n", b"Transfer-Encoding: chunked\r\n"]
)
def test_a_stream_of_unknown_length_is_an_error(framing: bytes) -> None:
    """Its head has the size."""
    data = OK + framing + b"\r\n0\r\n\r\n"
    with ScriptedServer(answer_once(data)) as server, client_of(server) as client:
        with pytest.raises(NodeConnectionError), client.stream("key"):
            pass
        assert client.metrics().nodes[server.name].connections == 0


@pytest.mark.slow
def test_a_stream_that_stops_is_an_error() -> None:
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
    ):
        assert reader is not None
        with pytest.raises(NodeTimeoutError):
            reader.read()


def test_a_stream_that_was_read_to_its_end_keeps_its_connection() -> None:
    """Whichever way it was read."""
    with (
        ScriptedServer(answering(lambda _: value(bytes(100_000)))) as server,
        client_of(server) as client,
    ):
        for sizes in ([-1], [100_000], [1, 99_999], [100_000, 1, 0, -1]):
            with client.stream("key") as reader:
                assert reader is not None
                assert sum(len(reader.read(size)) for size in sizes) == 100_000
        assert server.connections == 1


def test_a_stream_that_is_left_closes_its_connection() -> None:
    """What was not read would be the next answer."""
    with (
        ScriptedServer(answering(lambda _: value(bytes(300_000)))) as server,
        client_of(server) as client,
    ):
        for _ in range(2):
            with client.stream("key") as reader:
                assert reader is not None
                assert len(next(iter(reader))) > 0
        assert client.get("key") == bytes(300_000)
        assert server.connections == 3
        assert client.metrics().nodes[server.name].connections == 1


def test_a_stream_of_a_value_that_is_not_there_is_none() -> None:
    """Its connection is kept."""
    missing = b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno"
    with (
        ScriptedServer(answering(lambda _: missing)) as server,
        client_of(server) as client,
    ):
        for _ in range(2):
            with client.stream("key") as reader:
                assert reader is None
        assert server.connections == 1


def test_a_file_that_becomes_shorter_is_never_stored_short() -> None:
    """The announced length is not sent."""
    bodies: list[bytes] = []

    class Shrinking(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            self.truncate(100_000)
            return super().read(size)

    def answer(request: bytes) -> bytes:
        bodies.append(request)
        return value(b"", b'ETag: "1"\r\n')

    with ScriptedServer(answering(answer)) as server, client_of(server) as client:
        with pytest.raises(InvalidArgumentError, match="shorter"):
            client.put_file("key", Shrinking(bytes(200_000)))
        assert client.metrics().nodes[server.name].failures == 0
        assert client.put_file("key", io.BytesIO(b"v")) == '"1"'
    assert len(bodies) == 1


def test_what_is_no_binary_file_is_refused(tmp_path: Path) -> None:
    """By name."""
    with (
        ScriptedServer(answering(lambda _: value(b""))) as server,
        client_of(server) as client,
    ):
        with pytest.raises(InvalidArgumentError, match="neither a path nor a file"):
            client.put_file("key", b"value")  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="not binary"):
            client.put_file("key", io.StringIO("value"))  # type: ignore[arg-type]
        with pytest.raises(FileNotFoundError):
            client.put_file("key", tmp_path / "missing")


def test_the_rest_of_a_file_is_sent_from_its_position() -> None:
    """With its length; chunked if that is not known."""
    requests: list[bytes] = []
    near, far = os.pipe()

    def serve(peer: Peer) -> None:
        requests.append(peer.request())
        peer.send(value(b"", b'ETag: "1"\r\n'))
        data = b""
        while not data.endswith(b"\r\n0\r\n\r\n"):
            data += peer.socket.recv(1 << 16)
        requests.append(data)
        peer.send(value(b"", b'ETag: "1"\r\n'))

    file = io.BytesIO(b"not this, this")
    file.seek(10)
    with ScriptedServer(serve) as server, client_of(server) as client:
        client.put_file("key", file)
        with os.fdopen(near, "rb") as pipe:
            os.write(far, b"value")
            os.close(far)
            client.put_file("key", pipe)
    assert requests[0].endswith(b"\r\n\r\nthis")
    assert b"\r\nTransfer-Encoding: chunked\r\n" in requests[1]
    assert requests[1].endswith(b"\r\n\r\n5\r\nvalue\r\n0\r\n\r\n")


# --- Several keys -----------------------------------------------------------------------


def test_an_error_of_one_key_does_not_prevent_the_others() -> None:
    """The error of the first key that has one is raised, when all were tried."""
    stored: set[bytes] = set()

    def answer(request: bytes) -> bytes:
        if b"/bad" in request.split(b" ")[1]:
            return b"HTTP/1.1 401 No\r\nContent-Length: 2\r\n\r\nno"
        stored.add(request.split(b" ")[1])
        return value(b"", b'ETag: "1"\r\n')

    with ScriptedServer(answering(answer)) as server, client_of(server) as client:
        keys = ["bad1", "a", "bad2", "b", "c"]
        with pytest.raises(AccessDeniedError) as caught:
            client.put_many(dict.fromkeys(keys, b"v"))
        assert caught.value.__notes__ == ["and 1 more of 5 keys"]
        assert stored == {b"/a", b"/b", b"/c"}
        with pytest.raises(AccessDeniedError):
            client.get_many(keys)
        assert client.put_many({}) == {}
        assert client.get_many([]) == {}


def test_one_key_is_not_taken_for_several() -> None:
    """Text can be iterated over."""
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(InvalidArgumentError, match="one key"),
    ):
        client.get_many("key")


def test_many_keys_wait_for_several_answers_at_once() -> None:
    """Up to the limit of connections."""
    together = threading.Barrier(4)

    def answer(_: bytes) -> bytes:
        together.wait(PATIENT)
        return value(b"v")

    with (
        ScriptedServer(answering(answer)) as server,
        client_of(server, connections_max=4) as client,
    ):
        keys = [f"key{number}" for number in range(8)]
        assert client.get_many(keys) == dict.fromkeys(keys, b"v")
        assert server.connections == 4
