"""Requests to instances: addresses, answers, and what is not an answer."""

from __future__ import annotations

import socket
import threading
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from support.ports import pick_port
from support.tables import each_row
from volcache.errors import ConfigError, InstanceError
from volcache.fleet.remote import Answer, act, ask, each, fetch_stats, url_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def answering(*pieces: bytes, closes: bool = True) -> Iterator[tuple[str, list[bytes]]]:
    """Send the same bytes to each connection; yield the URL and what was received."""
    received: list[bytes] = []
    held: list[socket.socket] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                received.append(connection.recv(1 << 16))
                for piece in pieces:
                    connection.sendall(piece)
                if closes:
                    connection.close()
                else:
                    held.append(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", received
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for connection in held:
            connection.close()


@each_row(
    ("target", "url"),
    [
        ("127.0.0.1:1234", "http://127.0.0.1:1234"),
        ("[::1]:1234", "http://[::1]:1234"),
        ("cache-1:80", "http://cache-1:80"),
        ("http://cache-1", "http://cache-1"),
        ("https://cache-1/", "https://cache-1"),
        ("http://h:1/-/", "http://h:1"),
        ("http://h:1/-/stats", "http://h:1"),
        ("http://h:1/-", "http://h:1"),
        ("http://h:1/disk/1/-/metrics?x=1", "http://h:1/disk/1"),
        ("h:1/-/", "http://h:1"),
    ],
)
def test_an_address_is_a_host_with_a_port_or_a_url(target: str, url: str) -> None:
    """With what a browser shows behind it."""
    assert url_of(target) == url
    assert url_of(url) == url


@each_row(
    "target",
    [
        "",
        "h",
        "h:",
        "h:x",
        "h:70000",
        "ftp://h",
        "http://",
        "http://u@h",
        ":1",
        "[::1",
        "http://[x",
    ],
)
def test_what_is_no_address_is_named(target: str) -> None:
    """With what is allowed."""
    with pytest.raises(ConfigError, match=r"not the address of an instance; allowed"):
        url_of(target)


def test_an_action_is_a_post_with_the_token() -> None:
    """Its answer is the first line."""
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nflushed\n\n") as (
        url,
        received,
    ):
        assert act(url, "/-/flush", "secret") == "flushed"
    assert received[0].startswith(b"POST /-/flush HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret\r\n" in received[0]


def test_a_refused_action_is_an_error_of_one_line() -> None:
    """Without control characters."""
    with (
        answering(b"HTTP/1.1 403 x\r\nContent-Length: 7\r\n\r\no\x1bff\nx\n") as (
            url,
            _,
        ),
        pytest.raises(InstanceError) as error,
    ):
        act(url, "/-/flush", "secret")
    assert str(error.value) == f"{url}: 403 o ff"


@each_row(("volumes", "path"), [(True, b"/-/stats"), (False, b"/-/stats?volumes=0")])
def test_statistics_are_asked_for_with_or_without_volumes(
    volumes: bool,  # noqa: FBT001
    path: bytes,
) -> None:
    """The rest is the same."""
    body = b'{"store": {"keys": 1}, "requests": {"total": 2}}'
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    with answering(head + body) as (url, received):
        assert fetch_stats(url, volumes=volumes)["store"]["keys"] == 1
    assert received[0].startswith(b"GET %b HTTP/1.1\r\n" % path)


@each_row(
    ("sent", "reason"),
    [
        (b"", "closed connection without response"),
        (b"SSH-2.0\r\n\r\n", "the response is not from volcache"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "in the middle"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not from volcache"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "not from volcache"),
        (b"HTTP/1.1 500 x\r\nContent-Length: 0\r\n\r\n", "answered with 500"),
    ],
)
def test_what_is_not_volcache_is_an_error(sent: bytes, reason: str) -> None:
    """Whatever it sends."""
    with answering(sent) as (url, _), pytest.raises(InstanceError, match=reason):
        fetch_stats(url)


@each_row("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"])
def test_an_instance_that_hangs_is_an_error_after_the_timeout(sent: bytes) -> None:
    """Before or in the middle of its answer."""
    with (
        answering(sent, closes=False) as (url, _),
        pytest.raises(InstanceError, match=r"no answer within 0.2 s"),
    ):
        ask(url, "/-/stats", timeout=0.2)


@pytest.mark.slow
@each_row("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"])
def test_an_answer_that_trickles_is_an_error_after_the_timeout(head: bytes) -> None:
    """Although each byte of its head or of its body comes in time."""
    has_ended = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def trickle() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                connection.sendall(head)
                while not has_ended.wait(0.02):
                    connection.sendall(b"H")

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(InstanceError, match=r"no answer within 0.3 s"):
            ask(url, "/-/stats", timeout=0.3)
        has_ended.set()
        thread.join(5)


def test_results_are_in_the_order_of_the_instances() -> None:
    """Errors are among them."""
    down = f"http://127.0.0.1:{pick_port()}"
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as (up, _):
        urls = [down, up, down]
        found = list(each(urls, lambda url: ask(url, "/-/ready")))
    assert [url for url, _ in found] == urls
    assert found[1][1] == Answer(200, b"ok")
    assert "refused" in str(found[0][1])
    assert "refused" in str(found[2][1])


def test_no_instances_have_no_results() -> None:
    """And start no threads."""
    assert list(each([], lambda url: url)) == []


def endless(connection: socket.socket) -> None:
    """Send a body until the client has enough."""
    with closing(connection), suppress(OSError):
        connection.recv(1 << 16)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            connection.sendall(bytes(1 << 16))


def test_endless_answers_of_many_instances_take_bounded_memory() -> None:
    """Each has a limit, and so have all that are read at the same time."""
    with closing(socket.create_server(("127.0.0.1", 0), backlog=100)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threading.Thread(target=endless, args=(connection,)).start()

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        reasons = [
            {str(answer).partition(": ")[2] for _, answer in each([url] * 24, call)}
            for call in (lambda url: fetch_stats(url, volumes=False), fetch_stats)
        ]
        assert reasons[0] == {"the answer is longer than 128KiB"}
        assert "all answers together are longer than 64MiB" in reasons[1]
        # What was counted is counted no longer.
        with pytest.raises(InstanceError, match="the answer is longer than 16MiB"):
            fetch_stats(url)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
