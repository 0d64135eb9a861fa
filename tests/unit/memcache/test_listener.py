"""listener.py: turns, limits and the end of connections, with a scripted service."""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.memcache import RawClient
from support.tables import each_row
from support.waiting import wait_until
from volcache.access import Access
from volcache.errors import ListenError
from volcache.memcache.command_log import CommandLog
from volcache.memcache.commands import Command, Get, Result, Status, WireLimits
from volcache.memcache.listener import ConnectionLimits, Listener
from volcache.memcache.protocol import decoder_for
from volcache.memcache.service import ClientSession
from volcache.memcache.sockets import ListeningSocket
from volcache.monitoring.commands import CommandStats
from volcache.store import Record

HIT = Result(Status.HIT, Record(b"v", b"", b"", b"", 1, 0, 0, 7, 64, 72, 1, 0))


class Service:
    """Finds one key, `hit`; calls a function for each command."""

    def __init__(self) -> None:
        """Serve everyone."""
        self.access = Access()
        self.commands: list[Command] = []
        self.hook: Callable[[ClientSession, Command], object] = (
            lambda _session, _command: None
        )
        self.flush_at: float | None = None  # By the monotonic clock.

    def session(self, remote: str) -> ClientSession:
        """Return a session that may do everything."""
        return ClientSession(remote, self.access)

    def execute(self, session: ClientSession, command: Command) -> Result:
        """Answer."""
        self.commands.append(command)
        self.hook(session, command)
        if isinstance(command, Get):
            return HIT if command.key == b"hit" else Result(Status.MISS)
        return Result(Status.OK)

    def seconds_to_flush(self) -> float | None:
        """Return the time until the flush; None: there is none."""
        return None if self.flush_at is None else self.flush_at - time.monotonic()

    def flush_if_due(self) -> None:
        """Forget the flush if it is due."""
        if self.flush_at is not None and self.flush_at <= time.monotonic():
            self.flush_at = None


class Case(NamedTuple):
    """A running listener."""

    service: Service
    listener: Listener
    stats: CommandStats
    address: tuple[str, int]
    sampled: list[bytes]

    def client(self) -> RawClient:
        """Connect."""
        return RawClient(self.address)


@contextmanager
def running(pulse: Callable[[], None] | None = None, **limits: Any) -> Iterator[Case]:
    """Run a listener with these limits."""
    listening = ListeningSocket("127.0.0.1:0")
    service, stats = Service(), CommandStats()
    sampled: list[bytes] = []
    listener = Listener(
        listening,
        service,  # type: ignore[arg-type]
        partial(decoder_for, WireLimits(250, 1000)),
        limits=ConnectionLimits(**{"connections": 100, **limits}),
        stats=stats,
        log=CommandLog(0, lambda _: (0, 0)),
        sample=sampled.append,
    )
    address = listening.socket.getsockname()
    if pulse is not None:
        listener.set_pulse(0.01, pulse)
    listener.start()
    try:
        yield Case(service, listener, stats, address, sampled)
    finally:
        listener.drain(0)
        listener.close()


def test_clients_take_turns() -> None:
    """One that has sent many commands does not delay another until they are done."""
    with running() as case, case.client() as greedy, case.client() as other:
        gate = threading.Event()
        case.service.hook = lambda _session, _command: gate.wait(20)
        greedy.send(b"get greedy\r\n" * 500)
        wait_until(lambda: case.service.commands, "the first command")
        other.send(b"get other\r\n")
        gate.set()
        assert other.line() == b"END"
        names = [c.key for c in case.service.commands if isinstance(c, Get)]
        assert names.index(b"other") < 200
        for _ in range(500):
            assert greedy.line() == b"END"


def test_some_keys_that_were_found_are_sampled() -> None:
    """One in 64, by the last bits of a duration."""
    with running() as case, case.client() as client:
        for _ in range(1000):
            assert client.ask(b"mg none q\r\nmg hit q\r\nmn\r\n") == b"HD"
            assert client.line() == b"MN"
        assert set(case.sampled) == {b"hit"}
        assert len(case.sampled) < 1000


def test_bug_closes_its_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    """Whether the service notes it, or raises."""
    with running() as case, case.client() as other:

        def fail(session: ClientSession, command: Command) -> None:
            key = getattr(command, "key", b"")
            session.is_broken = key == b"broken"
            if key == b"raise":
                raise ZeroDivisionError

        case.service.hook = fail
        with case.client() as client:
            client.send(b"get broken\r\nget next\r\n")
            assert client.rest() == b"END\r\n"
        with case.client() as client:
            client.send(b"get raise\r\n")
            assert client.rest() == b""
        assert other.ask(b"get key\r\n") == b"END"
        assert [r.message for r in caplog.records if r.levelno == logging.ERROR] == [
            "memcache.failed command=-"
        ]
        wait_until(lambda: case.stats.connections == 1, "the others to be closed")


@pytest.mark.slow
def test_incomplete_command_is_ended_and_an_idle_connection_is_not() -> None:
    """After the time without progress."""
    with running(transfer_seconds=0.2) as case:
        with case.client() as idle, case.client() as partial:
            partial.send(b"set key 0 0 10\r\nabc")
            assert partial.rest() == b""
            assert idle.ask(b"get key\r\n") == b"END"
        assert case.service.commands == [
            Get("get", b"key", reply=case.service.commands[0].reply)
        ]


@pytest.mark.slow
def test_slow_sender_is_ended() -> None:
    """Although it makes progress all the time."""
    with running(transfer_seconds=0.5) as case, case.client() as slow:
        slow.send(b"set key 0 0 1000\r\n")
        slow.socket.settimeout(0.05)
        sent = 0
        is_over = False
        while not is_over:
            with suppress(TimeoutError):
                is_over = not slow.socket.recv(10)
            if not is_over:
                slow.send(b"x")
                sent += 1
        assert sent < 900


def test_memory_of_all_incomplete_commands_is_limited() -> None:
    """The one without progress for the longest time is closed."""
    with running(held_bytes=3000) as case:
        clients = []
        for _ in range(5):
            client = case.client()
            client.send(b"set key 0 0 1000\r\n" + b"x" * 900)
            clients.append(client)
            wait_until(lambda: case.stats.bytes_in >= 916 * len(clients), "its bytes")
        assert clients[0].rest() == clients[1].rest() == b""
        for client in clients[-2:]:
            client.send(b"x" * 100 + b"\r\n")
            assert client.line() != b""
        for client in clients:
            client.close()


def test_connections_above_the_limit_are_refused() -> None:
    """With the words of memcached; a closed one makes room."""
    with running(connections=2) as case:
        with case.client() as one, case.client() as two:
            assert one.ask(b"mn\r\n") == two.ask(b"mn\r\n") == b"MN"
            with case.client() as three:
                assert three.rest() == b"ERROR Too many open connections\r\n"
            assert case.stats.connections_refused == 1
        wait_until(lambda: case.stats.connections == 0, "both to be closed")
        with case.client() as client:
            assert client.ask(b"mn\r\n") == b"MN"
        assert case.stats.connections_total == 3


@pytest.mark.slow
def test_accepting_pauses_without_descriptors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop does not spin, and goes on when there are some."""
    with running() as case, case.client() as first:
        assert first.ask(b"mn\r\n") == b"MN"
        calls = []

        def refuse(_socket: socket.socket) -> None:
            calls.append(1)
            if len(calls) < 3:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            monkeypatch.undo()
            raise BlockingIOError

        monkeypatch.setattr(socket.socket, "accept", refuse)
        with case.client() as client:
            assert client.ask(b"mn\r\n") == b"MN"
        assert len(calls) == 3
        assert "memcache.accept_failed" in caplog.text


def test_pulse_is_called_in_the_thread() -> None:
    """At its interval, although no client sends anything."""
    names: list[str] = []
    with running(pulse=lambda: names.append(threading.current_thread().name)) as case:
        wait_until(lambda: len(names) >= 3, "the calls")
    assert set(names) == {"memcache"}
    assert case.listener.stalled_seconds() == 0


def test_flush_is_asked_for_when_it_is_due(caplog: pytest.LogCaptureFixture) -> None:
    """Although no client sends anything; one that is due in years delays no command."""
    with running() as case, case.client() as client:
        for seconds in (2**31 / 1000, 2.0**63, 0.01):
            case.service.flush_at = time.monotonic() + seconds
            for _ in range(2):
                assert client.ask(b"get key\r\n") == b"END"
        wait_until(lambda: case.service.flush_at is None, "the flush")
    assert not caplog.records


def test_drain_finishes_what_has_arrived() -> None:
    """And waits for an incomplete command until the deadline only."""
    with running() as case, case.client() as partial, case.client() as busy:
        idle = case.client()
        partial.send(b"get key")
        wait_until(lambda: case.stats.bytes_in == 7, "the bytes")
        busy.send(b"get key\r\n" * 300)
        assert busy.line() == b"END"
        case.listener.drain(20)
        assert idle.rest() == b""
        assert busy.rest() == b"END\r\n" * 299
        with pytest.raises(OSError, match="refused"):
            case.client()
        partial.send(b"\r\n")
        assert partial.rest() == b"END\r\n"
        case.listener.close()
        idle.close()


def test_changed_tokens_reach_the_protocol() -> None:
    """Of a connection that is open: its next `set` has the token."""
    with running() as case, case.client() as client:
        assert client.ask(b"get key\r\n") == b"END"
        case.service.access = Access(write="secret")
        client.send(b"set auth 0 0 6\r\na b cd\r\n")
        wait_until(lambda: len(case.service.commands) == 2, "the command")
        assert type(case.service.commands[1]).__name__ == "Authenticate"


# --- sockets.py ------------------------------------------------------------------------


@each_row("address", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_address_is_shown_with_its_port(address: str) -> None:
    """As in the setting."""
    listening = ListeningSocket(address)
    host, _, port = listening.name.rpartition(":")
    assert host in {"127.0.0.1", "[::1]"}
    assert int(port) > 0
    listening.close()


def test_file_of_another_process_is_not_removed(tmp_path: Path) -> None:
    """If it has taken the place of this one."""
    path = tmp_path / "socket"
    listening = ListeningSocket(str(path))
    path.unlink()
    path.write_bytes(b"")
    listening.close()
    assert path.exists()


@each_row(
    ("address", "reason"),
    [
        ("192.0.2.1:11211", "Cannot assign requested address; use an address of this"),
        ("/nowhere/socket", "No such file or directory; create the directory"),
        ("/" + "x" * 200, "path too long"),
        ("host.invalid:11211", "check the address"),
    ],
)
def test_refused_address_names_the_setting(address: str, reason: str) -> None:
    """And the remedy."""
    with pytest.raises(
        ListenError, match=f"memcache_listen: cannot listen on .*{reason}"
    ):
        ListeningSocket(address)
