"""Many keys in one call of both clients, and those of many tasks in one turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from support.client_memory import Memory
from support.client_users import client_of, numbers_of, serving
from support.scripted_server import (
    OK,
    Peer,
    answering,
    closing,
    value,
)
from support.waiting import wait_until
from volcache_client import (
    AccessDeniedError,
    Client,
    InvalidArgumentError,
    NodeConnectionError,
    UnavailableError,
)
from volcache_client.exchanges import REQUESTS_MAX

VALUE = value(b"v")
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\nv\r\n0\r\n\r\n"


def answering_in_a_row(
    count: int, answer: Callable[[bytes], bytes]
) -> Callable[[Peer], None]:
    """Return a function that answers when a connection has sent that number of requests."""

    def serve(peer: Peer) -> None:
        while requests := [one for _ in range(count) if (one := peer.request())]:
            peer.send(b"".join(map(answer, requests)))

    return serve


def echoing(request: bytes) -> bytes:
    """Answer with the path, and an ETag."""
    return value(request.split(b" ")[1], b'ETag: "1"\r\n')


def test_many_with_an_error_of_one_key_try_the_others(served: Any) -> None:
    """The error of the first key that has one is raised, when all were tried."""
    stored: set[bytes] = set()

    def answer(request: bytes) -> bytes:
        path = request.split(b" ")[1]
        if b"/bad" in path:
            return value(path).replace(b"200 OK", b"401 No")
        stored.add(path)
        return echoing(request)

    with served(answering(answer)) as (_, client):
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


def test_many_are_sent_before_the_first_is_answered(served: Any) -> None:
    """On one connection if they are few; the result has the order of the keys."""
    wanted = {f"key{number}": b"/key%d" % number for number in range(7)}
    with served(answering_in_a_row(8, echoing)) as (server, client):
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


def test_many_in_flight_are_bounded(served: Any) -> None:
    """On each connection, and the connections; an answer makes room for more."""
    keys = [f"key{number}" for number in range(1000)]
    is_over = threading.Event()

    def serve(peer: Peer) -> None:
        if all(peer.request() for _ in range(REQUESTS_MAX + 1)):
            is_over.set()

    with served(serve, timeout=0.2, on_error="miss", failures=1) as (server, client):
        assert client.get_many(keys) == {}
        assert not is_over.is_set()
        assert server.connections <= 4
    for most, options in ((4, {}), (1, {"connections_max": 1})):
        with served(VALUE, **options) as (server, client):
            assert client.get_many(keys) == dict.fromkeys(keys, b"v")
            assert server.connections <= most


def test_many_with_a_connection_that_fails_lose_only_its_keys(served: Any) -> None:
    """It is one failure of the node; what was answered before is a value."""
    keys = [f"key{number:02d}" for number in range(64)]

    def serve(peer: Peer) -> None:
        for number in range(32):
            request = peer.request()
            if peer.number == 1 and number == 5:
                peer.send(OK + b"Content-Length: 100\r\n\r\nshort")
                return
            peer.send(echoing(request))

    with served(serve, on_error="miss", failures=2) as (_, client):
        found = client.get_many(keys)
        assert len(found) == 64 - 27
        assert all(value == b"/" + key.encode() for key, value in found.items())
        assert client.stats()["errors"] == {"NodeConnectionError": 27}
        assert numbers_of(client)["up"]
    with served(serve) as (_, client):
        with pytest.raises(NodeConnectionError) as raised:
            client.get_many(keys)
        assert raised.value.__notes__ == ["and 26 more of 64 keys"]


@pytest.mark.parametrize("says", [True, False])
def test_many_go_on_when_the_server_closes_between_answers(
    *, says: bool, served: Any
) -> None:
    """As nginx does after that number of requests, and with none of them lost."""
    keys = [f"key{number}" for number in range(100)]

    def serve(peer: Peer) -> None:
        for left in (2, 1, 0):
            if not (request := peer.request()):
                return
            is_last = says and not left
            more = b"Connection: close\r\n" if is_last else b""
            peer.send(value(request.split(b" ")[1], more))

    with served(serve) as (_, client):
        found = client.get_many(keys)
        assert found == {key: b"/" + key.encode() for key in keys}
        assert (numbers_of(client)["failures"], numbers_of(client)["in_use"]) == (0, 0)


@pytest.mark.parametrize("size", [1, 7, 100, 5000])
def test_many_answers_of_any_form_are_read_in_any_parts(size: int, served: Any) -> None:
    """Chunks, misses, empty and long values, interim answers, headers in any case."""
    long = bytes(range(256)) * 300
    forms = {
        "plain": (VALUE, b"v"),
        "chunked": (CHUNKED, b"v"),
        "miss": (b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno", None),
        "empty": (value(b""), b""),
        "long": (value(long), long),
        "unchanged": (b"HTTP/1.1 304 No\r\nContent-Length: 5\r\n\r\n", None),
        "interim": (b"HTTP/1.1 100 C\r\n\r\n" + value(b"i"), b"i"),
        "case": (OK + b"CONTENT-LENGTH:1 \r\nCoNnection: Keep-Alive\r\n\r\nc", b"c"),
    }

    def serve(peer: Peer) -> None:
        paths = [peer.request().split(b" ")[1].decode() for _ in forms]
        found = b"".join(forms[path[1:]][0] for path in paths)
        for at in range(0, len(found), size):
            peer.send(found[at : at + size])

    with served(serve, on_error="miss") as (_, client):
        wanted = {key: read for key, (_, read) in forms.items() if read is not None}
        assert client.get_many(forms) == wanted


@pytest.mark.parametrize(
    "bad",
    [
        OK + b"\r\nno length",
        OK + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        OK + b"Content-Length: +1\r\n\r\na",
        OK + b"Content-Length: 1\r\nTransfer-Encoding: gzip\r\n\r\na",
        VALUE + b"more that was not asked for",
    ],
)
def test_many_answers_with_a_broken_one_end_the_connection(
    bad: bytes, served: Any
) -> None:
    """No key gets the value of another one."""
    with served(closing(value(b"1") + bad), on_error="miss", failures=9) as (_, client):
        found = client.get_many(["a", "b"])
        assert found.pop("a") == b"1"
        assert found in ({}, {"b": b"v"})
        wait_until(lambda: numbers_of(client)["connections"] == 0, "the end")


@pytest.mark.parametrize(
    "answer",
    [
        *(value(bytes(1 << 20)), OK + b"ETag: x\r\ncontent-length: 1\r\n\r\nv"),
        *(CHUNKED, OK + b"\r\nv", b"HTTP/1.1 404 No\r\n\r\n"),
    ],
)
def test_many_with_one_key_ask_once_however_the_answer_comes(
    answer: bytes, served: Any
) -> None:
    """In parts, with other lines, in chunks, or until the end of the connection."""
    with served(closing(answer), on_error="miss") as (server, client):
        found = client.get_many(["key"])
        one = client.get("key")
    assert found == ({} if one is None else {"key": one})
    assert len(server.requests) == 2


def test_many_large_values_are_stored_each_for_itself(served: Any) -> None:
    values = {f"key{n}": bytes([n]) * n * 30_000 for n in range(6)}
    with served(answering(Memory())) as (_, client):
        assert client.set_many(values).keys() == values.keys()
        assert client.get_many(values) == values


# --- The option `batch` -----------------------------------------------------------------


async def test_batch_sends_what_tasks_ask_for_in_one_turn_in_a_row() -> None:
    """On few connections; each task has its own answer or error."""

    def answer(request: bytes) -> bytes:
        if b"/key3 " in request:
            return b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno"
        return echoing(request)

    async with serving(answering_in_a_row(8, answer), batch=True) as (server, client):
        keys = [f"key{number}" for number in range(8)]
        found = await asyncio.gather(*map(client.get, keys), return_exceptions=True)
        assert isinstance(found.pop(3), UnavailableError)
        assert found == [f"/{key}".encode() for key in keys if key != "key3"]
        assert server.connections == 1


async def test_batch_with_a_task_that_was_cancelled_answers_the_others() -> None:
    """Whether or not its request was sent."""
    keys = [f"key{number}" for number in range(8)]
    async with serving(answering(echoing), batch=True) as (_, client):
        for turns in range(4):
            tasks = [asyncio.create_task(client.get(key)) for key in keys]
            for _ in range(turns):
                await asyncio.sleep(0)
            tasks[0].cancel()
            found = await asyncio.gather(*tasks[1:])
            assert found == [f"/{key}".encode() for key in keys[1:]]


@pytest.mark.parametrize("keys", [["a", "b"], ["a", "a"]])
async def test_batch_without_a_server_is_an_error_of_its_own_for_each_task(
    keys: list[str],
) -> None:
    async with client_of("127.0.0.1:1", batch=True) as client:
        calls = map(client.get, keys)
        one, other = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(one, NodeConnectionError)
    assert isinstance(other, NodeConnectionError)
    assert one is not other


async def test_batch_of_tasks_that_ask_for_one_key_asks_once() -> None:
    """Each has a value of its own."""
    async with serving(value(b"[1]"), batch=True, serializer="json") as (
        server,
        client,
    ):
        found: Any = await asyncio.gather(client.get("a"), client.get("a"))
        one, other = found
        assert one == other == [1]
        assert one is not other
        assert len(server.requests) == 1


def test_batch_of_a_client_for_threads_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="batch is an option of AsyncClient"):
        Client("127.0.0.1:1", batch=True)
