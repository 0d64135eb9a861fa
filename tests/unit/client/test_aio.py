"""What `AsyncClient` puts on the wire, and what it makes of answers."""

from __future__ import annotations

import asyncio
import gc
import gzip
import inspect
import io
import os
import socket
import ssl
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from support.raw_server import Heard, Memory, RawServer, reply, until
from support.tables import each_row
from volcache_client import (
    AsyncClient,
    Client,
    ClientUsageError,
    InvalidArgumentError,
    NodeConnectionError,
    NodeError,
    NodeTimeoutError,
    PoolTimeoutError,
    UnavailableError,
    UnexpectedAnswerError,
)
from volcache_client.aio_uploads import FilePayload
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def client_of(node: Any, **options: Any) -> AsyncClient[bytes]:
    """Return a client with limits that are longer than a loaded machine needs."""
    return AsyncClient(node, **{"timeout": 30.0, "connect_timeout": 30.0, **options})


async def ok(heard: Heard, writer: asyncio.StreamWriter) -> None:
    """Answer 200."""
    answer = reply(b"value", "200 OK", 'ETag: "1"')
    writer.write(answer.removesuffix(b"value") if heard.method == "HEAD" else answer)


async def silent(_heard: Heard, _writer: asyncio.StreamWriter) -> None:
    """Answer nothing."""


def always(answer: bytes, *, close: bool = False) -> Any:
    """Return a script with one answer."""

    async def script(_heard: Heard, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        if close:
            writer.close()

    return script


def closing_reused(then: Callable[..., Awaitable[None]] = ok) -> Any:
    """Return a script that closes the first connection at its second request."""

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        if heard.connection == 1 and heard.number == 2:
            writer.close()
        else:
            await then(heard, writer)

    return script


# --- The same as Client ---------------------------------------------------------------


def public_methods(kind: type) -> dict[str, inspect.Signature]:
    """Return the methods of a client with their parameters; a loop is not forked."""
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, callable)
        if (not name.startswith("_") and name != "after_fork") or name == "__init__"
    }


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    """So that code is moved from threads to tasks by `await`."""
    threads, tasks = public_methods(Client), public_methods(AsyncClient)
    assert threads.keys() == tasks.keys()
    for name in threads:
        of_threads = threads[name].parameters.values()
        of_tasks = tasks[name].parameters.values()
        assert [(p.name, p.kind, p.default) for p in of_threads] == [
            (p.name, p.kind, p.default) for p in of_tasks
        ], name


# --- Requests -------------------------------------------------------------------------


@each_row(
    ("key", "path"),
    [
        ("a", "/a"),
        ("a//b/", "/a//b/"),
        ("%", "/%25"),
        ("%2F", "/%252F"),
        ("?q=1&r", "/%3Fq=1&r"),
        ("#f", "/%23f"),
        ("a b", "/a%20b"),
        ("\N{EURO SIGN}", "/%E2%82%AC"),
        (b"\xff\xfe", "/%FF%FE"),
        ("a:b@c", "/a:b@c"),
        ("..a/...", "/..a/..."),
        ('\\[]{}|^`"<>', "/%5C%5B%5D%7B%7D%7C%5E%60%22%3C%3E"),
    ],
)
def test_sends_the_path_of_a_key_as_it_is(key: str | bytes, path: str) -> None:
    """What has a meaning in a URL is encoded, and nothing is resolved."""

    async def run() -> None:
        async with RawServer(ok) as server, client_of(server.name) as client:
            await client.get(key)
            await client.head(key)
            await client.put(key, b"")
            assert [heard.path for heard in server.heard] == [path] * 3

    asyncio.run(run())


def test_sends_what_the_service_needs_and_keeps_no_cookies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And asks no proxy of the environment."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")

    async def run() -> None:
        script = always(reply(b"v", "200 OK", "Set-Cookie: a=1; Path=/"))
        async with (
            RawServer(script) as server,
            client_of(f"localhost:{server.port}", token="t") as client,  # noqa: S106
        ):
            await client.get("a")
            await client.put("a", b"12345", ttl=1.5, content_type="text/x")
            get, put = server.heard
        for heard in (get, put):
            assert heard.headers["host"] == f"localhost:{server.port}"
            assert heard.headers["accept-encoding"] == "identity"
            assert heard.headers["authorization"] == "Bearer t"
            assert "cookie" not in heard.headers
            assert "transfer-encoding" not in heard.headers
        assert get.connection == put.connection
        assert "content-length" not in get.headers
        assert put.body == b"12345"
        assert put.headers["content-type"] == "text/x"
        assert put.headers["cache-control"] == "max-age=2"

    asyncio.run(run())


def test_purge_sends_its_prefix_and_the_token_of_the_operator() -> None:
    """The prefix is a part of the query, encoded."""

    async def run() -> None:
        async with (
            RawServer(always(reply())) as server,
            client_of(server.name, admin_token="op") as client,  # noqa: S106
        ):
            await client.purge("a b/\N{EURO SIGN}?")
            (heard,) = server.heard
            assert heard.line.startswith(
                "POST /-/purge?prefix=a%20b%2F%E2%82%AC%3F HTTP"
            )
            assert heard.headers["authorization"] == "Bearer op"

    asyncio.run(run())


def test_follows_no_redirect() -> None:
    """It would leave the nodes of the client."""

    async def run() -> None:
        script = always(reply(b"", "302 Found", "Location: /other"))
        async with (
            RawServer(script) as server,
            client_of(server.name) as client,
        ):
            with pytest.raises(UnexpectedAnswerError, match="302"):
                await client.get("a")
            assert len(server.heard) == 1

    asyncio.run(run())


def test_returns_a_compressed_value_as_it_is() -> None:
    """It is part of the value."""

    async def run() -> None:
        stored = gzip.compress(b"text")
        script = always(reply(stored, "200 OK", "Content-Encoding: gzip"))
        async with (
            RawServer(script) as server,
            client_of(server.name) as client,
        ):
            assert await client.get("a") == stored

    asyncio.run(run())


@each_row("size", [0, 1, 65536, (1 << 20) + 1, 5_000_000])
def test_sends_values_of_any_size_without_a_warning(size: int) -> None:
    """Long ones are sent in parts; aiohttp warns of others."""

    async def run() -> None:
        async with (
            RawServer(Memory()) as server,
            client_of(server.name) as client,
        ):
            value = bytes(range(256)) * (size // 256 + 1)
            await client.put("a", value[:size])
            assert server.heard[0].headers["content-length"] == str(size)
            assert await client.get("a") == value[:size]

    asyncio.run(run())


# --- Addresses ------------------------------------------------------------------------


def test_speaks_to_a_unix_socket(tmp_path: Path) -> None:
    """Its connections are counted as well."""

    async def run() -> None:
        path = str(tmp_path / "socket")
        server = await RawServer(Memory()).listen(path=path)
        async with server, client_of(f"unix:{path}") as client:
            await client.put("a", b"1")
            assert await client.get("a") == b"1"
            assert server.heard[0].headers["host"] == "localhost"
            assert client.metrics().nodes[f"unix:{path}"].connections == 1

    asyncio.run(run())


def test_speaks_ipv6() -> None:
    """With brackets in the address and the header."""

    async def run() -> None:
        server = await RawServer(Memory()).listen("::1")
        async with server, client_of(f"[::1]:{server.port}") as client:
            await client.put("a", b"1")
            assert await client.get("a") == b"1"
            assert server.heard[0].headers["host"] == f"[::1]:{server.port}"

    asyncio.run(run())


def test_speaks_tls_and_checks_the_certificate(tmp_path: Path) -> None:
    """A certificate of its own needs a context that trusts it."""
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out", certificate,
         "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True,
        capture_output=True,
    )  # fmt: skip

    async def run() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        trusting = ssl.create_default_context(cafile=str(certificate))
        server = await RawServer(Memory()).listen(context=context)
        url = f"https://{server.name}"
        async with server:
            async with client_of(url, ssl_context=trusting) as client:
                await client.put("a", b"1")
                assert await client.get("a") == b"1"
                assert client.metrics().nodes[server.name].connections == 1
            async with client_of(url) as client:
                with pytest.raises(NodeConnectionError, match=r"(?i)certificate"):
                    await client.get("a")
            assert len(server.heard) == 2

    asyncio.run(run())


# --- Repeating ------------------------------------------------------------------------


async def read_whole(client: AsyncClient[bytes]) -> None:
    """Open a connection for values as a whole."""
    await client.get("a")


async def read_all(client: AsyncClient[bytes]) -> None:
    """Open a connection for streams and files; read a stream to its end."""
    async with client.stream("a") as stream:
        assert stream is not None
        await stream.read()


@pytest.mark.parametrize(
    "size", [10, (1 << 20) + 10], ids=["sent at once", "sent in parts"]
)
def test_repeats_once_when_a_kept_connection_was_closed(
    size: int, tmp_path: Path
) -> None:
    """The server closes what it has kept; that is no failure."""

    async def run(
        act: Callable[[AsyncClient[bytes]], Awaitable[object]],
        begin: Callable[[AsyncClient[bytes]], Awaitable[object]] = read_whole,
    ) -> None:
        async with (
            RawServer(closing_reused()) as server,
            client_of(server.name) as client,
        ):
            await begin(client)
            await act(client)
            first, second = server.heard[1:]
            assert first[2:] == second[2:]
            assert (first.connection, second.connection) == (1, 2)
            numbers = client.metrics().nodes[server.name]
            assert (numbers.requests, numbers.failures) == (2, 0)
            assert len(second.body) in {0, size}

    value = bytes(size)
    file = tmp_path / "file"
    file.write_bytes(value)
    asyncio.run(run(lambda client: client.get("b")))
    asyncio.run(run(lambda client: client.head("b")))
    asyncio.run(run(lambda client: client.delete("b")))
    asyncio.run(run(lambda client: client.put("b", value)))
    asyncio.run(run(lambda client: client.put_file("b", file), read_all))


def test_never_repeats_a_request_with_a_condition() -> None:
    """It may have been stored, and the answer would be the wrong one."""

    async def run(act: Callable[[AsyncClient[bytes]], Awaitable[object]]) -> None:
        async with (
            RawServer(closing_reused()) as server,
            client_of(server.name) as client,
        ):
            await client.get("a")
            with pytest.raises(NodeConnectionError, match="isconnected"):
                await act(client)
            assert len(server.heard) == 2
            assert client.metrics().nodes[server.name].failures == 1

    asyncio.run(run(lambda client: client.add("b", b"1")))
    asyncio.run(run(lambda client: client.replace("b", b"1", '"1"')))
    asyncio.run(run(lambda client: client.delete("b", '"1"')))


def test_never_repeats_on_a_new_connection() -> None:
    """The server has read it and failed: it would fail again."""

    async def run() -> None:
        async with (
            RawServer(always(b"", close=True)) as server,
            client_of(server.name) as client,
        ):
            with pytest.raises(NodeConnectionError):
                await client.get("a")
            assert len(server.heard) == 1
            assert server.connections == 1

    asyncio.run(run())


def test_repeats_no_more_than_once() -> None:
    """Also when other kept connections are there."""

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        if heard.number == 1 and heard.path == "/a":
            await ok(heard, writer)
        else:
            writer.close()

    async def run() -> None:
        async with (
            RawServer(script) as server,
            client_of(server.name) as client,
        ):
            await asyncio.gather(*(client.get("a") for _ in range(3)))
            before = len(server.heard)
            with pytest.raises(NodeConnectionError):
                await client.get("b")
            assert len(server.heard) == before + 2

    asyncio.run(run())


# --- Wrong answers --------------------------------------------------------------------

BROKEN: Final = {
    "closed": b"",
    "part of the head": b"HTTP/1.1 200 OK\r\nContent-Le",
    "part of the body": b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12345",
    "no length": b"HTTP/1.1 200 OK\r\nETag: x\r\n\r\n12345",
    "part of a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n123",
    "no last chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n1\r\n",
    "bad chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n1\r\n",
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "binary": bytes(range(256)) * 4,
    "bad length": b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n12345",
    "text as length": b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n12345",
    "two lengths": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 5\r\n\r\n12345"
    ),
    "long header": b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
    "bad status": b"HTTP/1.1 twohundred OK\r\nContent-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_an_answer_that_is_not_complete_or_not_http_is_an_error_of_the_node(
    answer: bytes,
) -> None:
    """It is never a value, and the connection is not used again."""

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        if heard.path == "/bad":
            writer.write(answer)
            writer.close()
        else:
            await ok(heard, writer)

    async def run() -> None:
        async with (
            RawServer(script) as server,
            client_of(server.name) as client,
            client_of(server.name, on_error="miss") as tolerant,
        ):
            await client.get("good")
            with pytest.raises(NodeConnectionError, match=server.name):
                await client.get("bad")
            assert await client.get("good") == b"value"
            assert client.metrics().errors == {"NodeConnectionError": 1}
            assert client.metrics().nodes[server.name].in_flight == 0
            assert await tolerant.get("bad") is None
            assert await tolerant.get("good") == b"value"

    asyncio.run(run())


def test_what_arrives_without_a_request_is_no_answer_to_the_next_one() -> None:
    """It would be the value of another key."""

    async def run() -> None:
        writers: list[asyncio.StreamWriter] = []

        async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
            writers.append(writer)
            await ok(heard, writer)

        async with RawServer(script) as server, client_of(server.name) as client:
            assert await client.get("a") == b"value"
            writers[0].write(reply(b"of another key"))
            await turns()
            assert await client.get("b") == b"value"
            assert server.connections == 2

    asyncio.run(run())


async def turns() -> None:
    """Let the loop deliver what was written."""
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_status_of_an_outage_is_an_error_or_a_miss() -> None:
    """As the option says."""

    async def run() -> None:
        script = always(reply(b"wait", "503 Service Unavailable"))
        async with (
            RawServer(script) as server,
            client_of(server.name) as client,
            client_of(server.name, on_error="miss") as tolerant,
        ):
            with pytest.raises(UnavailableError, match="503 wait"):
                await client.get("a")
            assert await tolerant.get("a") is None
            assert await tolerant.put("a", b"1") is None

    asyncio.run(run())


# --- Time -----------------------------------------------------------------------------


async def dripping(_heard: Heard, writer: asyncio.StreamWriter) -> None:
    """Send a body that takes longer than anybody waits, a byte at a time."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)


@each_row("script", [silent, dripping])
def test_the_timeout_bounds_the_whole_exchange(
    script: Callable[..., Awaitable[None]],
) -> None:
    """Each byte of the body does not begin it again."""

    async def run() -> None:
        async with (
            RawServer(script) as server,
            client_of(server.name, timeout=0.1) as client,
        ):
            with pytest.raises(NodeTimeoutError, match="no answer in time"):
                await client.get("a")
            await until(lambda: not server.open, "the connection to be closed")
            assert client.metrics().nodes[server.name].in_flight == 0

    asyncio.run(run())


def test_waiting_for_a_connection_is_part_of_the_timeout() -> None:
    """It is an error of its own, as the node was not asked."""

    async def run() -> None:
        begin = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
        async with (
            RawServer(always(begin)) as server,
            client_of(server.name, timeout=0.1, connections_max=1) as client,
            client.stream("a"),
        ):
            results = await asyncio.gather(
                *(client.get("a") for _ in range(5)), return_exceptions=True
            )
            assert {type(result) for result in results} == {PoolTimeoutError}
            numbers = client.metrics().nodes[server.name]
            assert (server.most, numbers.failures, numbers.in_flight) == (1, 0, 0)

    asyncio.run(run())


def test_a_connection_that_is_not_accepted_ends_in_time() -> None:
    """It has a limit of its own."""

    async def run() -> None:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(0)
            port = listener.getsockname()[1]
            waiting = [socket.socket() for _ in range(4)]
            for connection in waiting:  # They fill the queue of the listener.
                connection.setblocking(False)  # noqa: FBT003
                connection.connect_ex(("127.0.0.1", port))
            client = AsyncClient(
                f"127.0.0.1:{port}", connect_timeout=0.05, timeout=30.0
            )
            async with client:
                with pytest.raises(NodeTimeoutError, match="no connection in time"):
                    await client.get("a")
            for connection in waiting:
                connection.close()

    asyncio.run(run())


# --- Pools ----------------------------------------------------------------------------


def test_opens_connections_up_to_the_limit_and_counts_them() -> None:
    """Those that the server closes are not counted."""

    async def run() -> None:
        gate = asyncio.Event()

        async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
            await gate.wait()
            await ok(heard, writer)

        async with (
            RawServer(script) as server,
            client_of(server.name, connections_max=3) as client,
        ):
            tasks = [asyncio.create_task(client.get("a")) for _ in range(20)]
            await until(lambda: len(server.heard) == 3, "three requests")
            numbers = client.metrics().nodes[server.name]
            assert (numbers.connections, numbers.in_flight) == (3, 20)
            gate.set()
            assert set(await asyncio.gather(*tasks)) == {b"value"}
            assert server.most == 3
            server.drop()
            await until(
                lambda: client.metrics().nodes[server.name].connections == 0,
                "no connections to be counted",
            )
            assert await client.get("a") == b"value"
            assert client.metrics().nodes[server.name].connections == 1
        assert client.metrics().nodes[server.name].connections == 0

    asyncio.run(run())


def test_closes_the_connections_of_a_removed_node_when_they_are_not_in_use() -> None:
    """What is on its way is answered."""

    async def run() -> None:
        gate = asyncio.Event()

        async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
            if heard.path == "/slow":
                await gate.wait()
            await ok(heard, writer)

        async with RawServer(script) as first, RawServer(ok) as second:
            listed = [first.name]

            async def read_list() -> list[str]:
                return listed

            client = client_of(read_list, refresh_seconds=1e-9)
            async with client:
                slow = asyncio.create_task(client.get("slow"))
                await until(lambda: first.heard, "the request")
                await client.get("a")
                assert first.open == 2
                listed[:] = [second.name]
                await client.get("a")
                assert len(second.heard) == 1
                assert not slow.done()
                gate.set()
                assert await slow == b"value"
                await until(lambda: not first.open, "the connections to be closed")
                assert client.metrics().nodes.keys() == {second.name}

    asyncio.run(run())


# --- Loops and the end ----------------------------------------------------------------


def test_is_used_in_one_loop_only() -> None:
    """An error names what to do; the client still works in its own."""
    name = ""
    client = client_of(lambda: [name])  # No loop is running.

    async def use_elsewhere() -> None:
        with pytest.raises(ClientUsageError, match="belongs to another event loop"):
            await client.get("a")

    async def run() -> None:
        nonlocal name
        async with RawServer(ok) as server, client:
            name = server.name
            await client.get("a")
            await asyncio.to_thread(asyncio.run, use_elsewhere())
            assert await client.get("a") == b"value"

    asyncio.run(run())


def test_refuses_to_work_after_it_was_closed() -> None:
    """Its numbers can still be read."""

    async def run() -> None:
        async with RawServer(ok) as server:
            client = client_of(server.name)
            await client.get("a")
            await client.close()
            await client.close()
            await until(lambda: not server.open, "the connection to be closed")
            for act in (
                client.get("a"),
                client.put("a", b""),
                client.get_or_set("a", lambda: b""),
                client.stream("a").__aenter__(),
                client.__aenter__(),
            ):
                with pytest.raises(ClientUsageError, match="is closed"):
                    await act
            assert client.metrics().operations["get", "hit"] == 1

    asyncio.run(run())


def test_close_ends_what_is_in_work_with_an_error_that_says_so() -> None:
    """Also what waits for a connection; it is no failure of the node."""

    async def run() -> None:
        async with RawServer(silent) as server:
            client = client_of(server.name, connections_max=1)
            tasks = [asyncio.create_task(client.get("a")) for _ in range(3)]
            await until(lambda: server.heard, "a request")
            await client.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} == {ClientUsageError}
            assert client.metrics().nodes[server.name].failures == 0
            assert asyncio.all_tasks() == {asyncio.current_task()} | {
                task for task in asyncio.all_tasks() if "_serve" in repr(task)
            }

    asyncio.run(run())


def test_close_ends_what_waits_for_the_connection_of_a_stream() -> None:
    """Which is broken, but not given back before the end of its block."""

    async def run() -> None:
        begin = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
        async with (
            RawServer(always(begin)) as server,
            client_of(server.name, connections_max=1) as client,
            client.stream("a") as stream,
        ):
            assert stream is not None
            tasks = [asyncio.create_task(client.get("a")) for _ in range(3)]
            await turns()
            await client.close()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            assert {type(result) for result in results} == {ClientUsageError}
            with pytest.raises(ClientUsageError):
                await stream.read()

    asyncio.run(run())


@pytest.mark.slow
def test_a_client_that_was_not_closed_is_named_once() -> None:
    """Not one warning for each connection, by aiohttp; they are closed."""

    async def run() -> None:
        async with RawServer(ok) as server:
            client = client_of(server.name)
            await client.get("a")
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                del client
                gc.collect()
                await until(lambda: not server.open, "the connection to be closed")
            (warning,) = caught
            assert warning.category is ResourceWarning
            assert "an AsyncClient was not closed" in str(warning.message)

    asyncio.run(run())


# The parent uses the client before and after its child.
FORK: Final = """
import asyncio, gc, os, sys, warnings
from volcache_client import AsyncClient, ClientUsageError

warnings.simplefilter("error", ResourceWarning)
client = AsyncClient(sys.argv[1], timeout=30.0, connect_timeout=30.0)

async def use():
    return await client.get("a")

def child():
    global client
    sys.unraisablehook = lambda _: os._exit(8)
    try:
        asyncio.run(use())
    except ClientUsageError:
        pass
    else:
        os._exit(9)
    if sys.argv[2] == "deleted":
        del client
        gc.collect()
        os._exit(7)
    sys.unraisablehook = lambda _: None
    sys.exit(7)

runner = asyncio.Runner()
with runner:
    assert runner.run(use()) == b"value"
    pid = os.fork()
    if not pid:
        runner.close = lambda: None
        child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert runner.run(use()) == b"value"
    runner.run(client.close())
"""


@pytest.mark.slow
@each_row("end", ["deleted", "exit"])
def test_the_child_of_a_fork_leaves_the_connections_of_its_parent_alone(
    end: str,
) -> None:
    """Its calls are errors; what it deletes closes nothing of the parent."""

    async def run() -> None:
        async with RawServer(ok) as server:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", FORK, server.name, end,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "src")},
            )  # fmt: skip
            assert await process.wait() == 0
            assert server.connections == 1

    asyncio.run(run())


def test_a_client_may_be_forgotten_when_its_loop_has_ended() -> None:
    """The warning of asyncio for a connection that ended with it is not ours."""

    async def run() -> AsyncClient[bytes]:
        async with RawServer(ok) as server:
            client = client_of(server.name)
            await client.get("a")
            server.drop()
            await until(
                lambda: client.metrics().nodes[server.name].connections == 0,
                "the connection to be closed",
            )
            return client

    clients = [asyncio.run(run())]
    with pytest.warns(ResourceWarning, match="an AsyncClient was not closed") as caught:
        clients.clear()
    assert len(caught) == 1


@pytest.mark.slow
def test_a_client_that_was_never_used_needs_no_close() -> None:
    """It has nothing that could be closed."""
    client = AsyncClient("127.0.0.1:1")
    del client
    gc.collect()
    with pytest.raises(InvalidArgumentError):
        AsyncClient("127.0.0.1:1", timeout=-1)
    gc.collect()


# --- Many keys ------------------------------------------------------------------------


def test_reads_and_writes_many() -> None:
    """In the order of the keys, with no more connections than allowed."""

    async def run() -> None:
        async with (
            RawServer(Memory()) as server,
            client_of(server.name, connections_max=4) as client,
        ):
            stored = {f"k{number}": b"%d" % number for number in range(50)}
            etags = await client.put_many(stored, ttl=9)
            assert list(etags) == list(stored)
            assert {heard.headers["cache-control"] for heard in server.heard} == {
                "max-age=9"
            }
            keys = [*reversed(stored), "missing", "k1"]
            found = await client.get_many(iter(keys))
            assert list(found) == list(reversed(stored))
            assert found == stored
            assert server.most == 4
            assert await client.get_many([]) == {}
            assert await client.get_many([b"k1"]) == {b"k1": b"1"}
            with pytest.raises(InvalidArgumentError, match="is one key"):
                await client.get_many("k1")

    asyncio.run(run())


def test_of_many_keys_all_are_tried_and_the_first_error_is_raised() -> None:
    """The others are counted in a note."""

    async def script(heard: Heard, writer: asyncio.StreamWriter) -> None:
        number = int(heard.path[1:])
        status = "200 OK" if number % 2 else "503 Service Unavailable"
        writer.write(reply(heard.path.encode(), status))

    async def run() -> None:
        async with (
            RawServer(script) as server,
            client_of(server.name) as client,
        ):
            with pytest.raises(UnavailableError, match="503 /0") as caught:
                await client.get_many(str(number) for number in range(9))
            assert caught.value.__notes__ == ["and 4 more of 9 keys"]
            assert len(server.heard) == 9
        async with client_of(server.name, on_error="miss") as tolerant:
            assert await tolerant.get_many(["1"]) == {}

    asyncio.run(run())


# --- Streams and files ----------------------------------------------------------------


def test_a_stream_is_read_in_parts_and_gives_its_connection_back() -> None:
    """One that is not read to its end is closed."""

    async def run() -> None:
        value = bytes(range(256)) * 4000
        async with (
            RawServer(Memory()) as server,
            client_of(server.name, connections_max=1) as client,
        ):
            await client.put("a", value)
            for _ in range(3):
                async with client.stream("a") as stream:
                    assert stream is not None
                    assert stream.head.size == len(value)
                    assert stream.head.etag == '"1"'
                    begin = await stream.read(300_000)
                    assert len(begin) == 300_000
                    rest = b"".join([part async for part in stream])
                    assert begin + rest == value
                    assert await stream.read() == b""
            async with client.stream("a") as stream:
                assert stream is not None
                assert await stream.read() == value
            assert server.connections == 2  # That of the put was closed before.
            async with client.stream("a") as stream:
                assert stream is not None
                await stream.read(10)
            with pytest.raises(ClientUsageError, match="the stream is closed"):
                await stream.read(10)
            async with client.stream("missing") as none:
                assert none is None
            assert server.connections == 3  # What was not read was closed.
            numbers = client.metrics()
            assert numbers.operations["stream", "hit"] == 5
            assert numbers.operations["stream", "miss"] == 1

    asyncio.run(run())


@each_row("on_error", ["raise", "miss"])
def test_a_stream_that_breaks_raises_with_any_on_error(on_error: Any) -> None:
    """Parts of the value were already used: it cannot be a miss."""

    async def run() -> None:
        part = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b"x" * 5000
        async with (
            RawServer(always(part, close=True)) as server,
            client_of(server.name, on_error=on_error) as client,
        ):
            async with client.stream("a") as stream:
                assert stream is not None
                assert await stream.read(3000) == b"x" * 3000
                with pytest.raises(NodeConnectionError):
                    await stream.read()
            assert client.metrics().errors == {"NodeConnectionError": 1}

    asyncio.run(run())


def test_a_stream_waits_for_each_part_no_longer_than_the_timeout() -> None:
    """It begins again with each part."""

    async def run() -> None:
        part = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\nxx"
        async with (
            RawServer(always(part)) as server,
            client_of(server.name, timeout=0.1) as client,
            client.stream("a") as stream,
        ):
            assert stream is not None
            assert await stream.read(2) == b"xx"
            with pytest.raises(NodeTimeoutError):
                await stream.read(2)

    asyncio.run(run())


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_a_stream_is_not_complete_when_its_answer_is_not(answer: bytes) -> None:
    """Whatever is missing."""

    async def run() -> None:
        async with (
            RawServer(always(answer, close=True)) as server,
            client_of(server.name) as client,
        ):
            with pytest.raises((NodeError, UnexpectedAnswerError)):
                await read_all(client)
            await until(lambda: not server.open, "the connection to be closed")

    asyncio.run(run())


class Watched(io.BytesIO):
    """A file that notes which threads read it."""

    def __init__(self, content: bytes) -> None:
        """Take what it has."""
        super().__init__(content)
        self.threads: set[int] = set()

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as a file does."""
        self.threads.add(threading.get_ident())
        return super().read(size)


@each_row("size", [0, 1, 1 << 16, (1 << 20) + 1, 3_000_000])
def test_a_file_is_read_in_a_thread_from_its_position(size: int) -> None:
    """The loop does not wait for the disk, and the file stays open."""

    async def run() -> None:
        value = bytes(range(256)) * (size // 256 + 1)
        file = Watched(b"skip" + value[:size])
        file.seek(4)
        async with (
            RawServer(Memory()) as server,
            client_of(server.name) as client,
        ):
            assert await client.put_file("a", file, ttl=5)
            (heard,) = server.heard
            assert heard.body == value[:size]
            assert heard.headers["content-length"] == str(size)
            assert heard.headers["content-type"] == "application/octet-stream"
            assert heard.headers["cache-control"] == "max-age=5"
            assert threading.get_ident() not in file.threads
            assert not file.closed

    asyncio.run(run())


class Limit:
    """
    Stands for the limit of time of an upload.

    Attributes:
        events: What happened, in turn.
    """

    def __init__(self) -> None:
        """Begin."""
        self.events: list[str] = []

    def expired(self) -> bool:
        """Whether the time is over."""
        return False

    def reschedule(self, when: float | None) -> None:
        """Note whether it is set or removed."""
        self.events.append("no limit" if when is None else "limit")

    async def write(self, part: bytes) -> None:
        """Note that a part was sent."""
        self.events.append(f"sent {len(part)}")


def test_the_limit_of_a_file_begins_with_each_part_and_rests_while_it_is_read() -> None:
    """A slow disk is no failure of the node."""

    async def run() -> None:
        limit: Any = Limit()
        upload = Upload(io.BytesIO(bytes((1 << 20) + 1)))
        await FilePayload(upload, limit, 9.0).write(limit)
        read = ["no limit", "limit"]
        block = ["limit", "sent 65536"]
        assert limit.events == [
            *read, *16 * block, *read, "limit", "sent 1", *read
        ]  # fmt: skip

    asyncio.run(run())


class Failing(Watched):
    """A file that ends or fails after a while."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Fail at the second block."""
        if self.tell():
            return self.fail()
        return super().read(size)

    def fail(self) -> bytes:
        """Fail as a disk does."""
        raise OSError(5, "the disk")


class Shorter(Failing):
    """A file that becomes shorter."""

    def fail(self) -> bytes:
        """End."""
        return b""


@each_row(("kind", "error"), [(Failing, OSError), (Shorter, InvalidArgumentError)])
def test_a_file_that_fails_is_no_failure_of_the_node(
    kind: type[Failing], error: type[Exception]
) -> None:
    """Its own error is raised, and nothing is stored."""

    async def run() -> None:
        async with (
            RawServer(Memory()) as server,
            client_of(server.name) as client,
        ):
            with pytest.raises(error, match=r"the disk|became shorter"):
                await client.put_file("a", kind(bytes(200_000)))
            await until(lambda: not server.open, "the connection to be closed")
            assert not server.heard
            assert client.metrics().nodes[server.name].failures == 0
            assert await client.get("a") is None

    asyncio.run(run())


def test_a_file_may_take_longer_than_the_timeout_but_none_of_its_parts() -> None:
    """A node that does not read is not waited for."""

    async def run() -> None:
        async def stop_reading(
            _reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await stop.wait()
            writer.close()

        stop = asyncio.Event()
        server = await asyncio.start_server(stop_reading, "127.0.0.1", 0, limit=1024)
        name = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        client = client_of(name, timeout=0.2)
        async with client:
            with pytest.raises(NodeTimeoutError):
                await client.put_file("a", io.BytesIO(bytes(30_000_000)))
        stop.set()
        server.close()
        await server.wait_closed()

    asyncio.run(run())
