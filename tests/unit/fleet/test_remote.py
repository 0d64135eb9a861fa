"""Requests to instances: addresses, answers, and what is not an answer."""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial

import pytest

from support.scripted_server import Peer, ScriptedServer, sending, value
from support.tables import rows
from volcache.errors import ConfigError, InstanceError
from volcache.fleet.remote import act, each, fetch_stats, url_of


@rows(
    ("127.0.0.1:1234", "http://127.0.0.1:1234"),
    *(("[::1]:1234", "http://[::1]:1234"), ("cache-1:80", "http://cache-1:80")),
    ("http://cache-1", "http://cache-1"),
    *(("https://cache-1/", "https://cache-1"), ("http://h:1/-/", "http://h:1")),
    *(("http://h:1/-/stats", "http://h:1"), ("http://h:1/-", "http://h:1")),
    ("http://h:1/disk/1/-/metrics?x=1", "http://h:1/disk/1"),
    ("h:1/-/", "http://h:1"),
)
def test_url_of_an_address_is_that_before_the_operator_paths(
    target: str, url: str
) -> None:
    """With what a browser shows behind it."""
    assert url_of(target) == url
    assert url_of(url) == url


@rows(
    *("", "h", "h:", "h:x", "h:70000", "ftp://h", "http://", "http://u@h"),
    *(":1", "[::1", "http://[x"),
)
def test_url_of_what_is_no_address_is_refused(target: str) -> None:
    """With what is allowed."""
    with pytest.raises(ConfigError, match=r"not the address of an instance; allowed"):
        url_of(target)


def test_act_sends_a_post_with_the_token() -> None:
    """Its answer is the first line; an error has no control characters."""
    with sending(value(b"flushed\n\n")) as (name, received):
        assert act(f"http://{name}", "/-/flush", "secret", timeout=30) == "flushed"
    assert received[0].startswith(b"POST /-/flush HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret\r\n" in received[0]
    refused = b"HTTP/1.1 409 x\r\nContent-Length: 7\r\n\r\no\x1bff\nx\n"
    with sending(refused) as (name, _), pytest.raises(InstanceError) as error:
        act(f"http://{name}", "/-/flush", "secret", timeout=30)
    assert str(error.value) == f"http://{name}: 409 o ff"


def test_fetch_stats_asks_for_no_volumes() -> None:
    """A list of 65,535 volumes would have 11 MB."""
    body = b'{"store": {"keys": 1}, "requests": {"total": 2}}'
    with ScriptedServer(value(body)) as server:
        assert fetch_stats(f"http://{server.name}")["store"]["keys"] == 1
    assert server.requests[0].startswith(b"GET /-/stats?volumes=0 HTTP/1.1\r\n")


@rows(
    (b"", "disconnected before the answer"),
    (b"SSH-2.0\r\n\r\n", "not an answer of HTTP/1"),
    (
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
        "disconnected within the answer",
    ),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not from volcache"),
    (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "not from volcache"),
    (b"HTTP/1.1 500 x\r\nContent-Length: 0\r\n\r\n", "answered with 500"),
)
def test_fetch_stats_of_another_program_is_an_error(sent: bytes, reason: str) -> None:
    """Whatever it sends."""
    with sending(sent) as (name, _), pytest.raises(InstanceError, match=reason):
        fetch_stats(f"http://{name}")


@pytest.mark.slow
@rows(
    (b"", b""),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b""),
    (b"", b"H"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", b"H"),
)
def test_fetch_of_an_answer_without_end_ends_at_the_timeout(
    head: bytes, more: bytes
) -> None:
    """Although each byte of its head or of its body may come in time."""
    has_ended = threading.Event()

    def trickle(peer: Peer) -> None:
        peer.send(head)
        while not has_ended.wait(0.02):
            peer.send(more)

    with ScriptedServer(trickle) as server:
        with pytest.raises(InstanceError, match=r"no answer within 0.3 s"):
            fetch_stats(f"http://{server.name}", timeout=0.3)
        has_ended.set()


def test_fetch_of_an_endless_answer_takes_bounded_memory() -> None:
    """As do those of many instances."""

    def serve(peer: Peer) -> None:
        with suppress(OSError):
            peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:  # Until the client has enough.
                peer.send(bytes(1 << 16))

    with ScriptedServer(serve) as server:
        answers = each([f"http://{server.name}"] * 12, partial(fetch_stats, timeout=60))
        reasons = {str(answer).partition(": ")[2] for _, answer in answers}
    assert reasons == {"the answer is longer than 131072 bytes"}
