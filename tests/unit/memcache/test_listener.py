"""Memcached clients of a front: turns, limits, the end of connections; sockets.py."""

from __future__ import annotations

import logging
import os
import random
import resource
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import pytest

from support.memcache_talk import Talk
from support.tables import rows
from support.waiting import wait_until
from volcache.access import Access
from volcache.errors import ListenError
from volcache.memcache.sockets import ListeningSocket


def test_pipeline_of_calls_delays_no_other_client(talk: Talk) -> None:
    with talk.client() as greedy, talk.client() as other:
        gate = threading.Event()
        talk.hook = lambda _: gate.wait(20)
        greedy.send(b"stats greedy\r\n" * 500)
        wait_until(lambda: talk.reports, "the first call")
        other.send(b"stats other\r\n")
        with talk.client() as third:
            assert third.ask(b"get a\r\n") == b"END"
        gate.set()
        assert other.line() == b"ERROR"
        assert talk.reports.index(b"other") < 200
        for _ in range(500):
            assert greedy.line() == b"ERROR"


def test_reads_that_found_a_value_are_sampled_one_in_64(talk: Talk) -> None:
    """One in 64, by the last bits of a duration."""
    talk.say("set hit 0 0 1;v")
    with talk.client() as client:
        for _ in range(1000):
            assert client.ask(b"mg none q\r\nmg hit q\r\nmn\r\n") == b"HD"
            assert client.line() == b"MN"
        assert talk.stats.hits == 1000
        assert set(talk.sampled) == {b"hit"}
        assert len(talk.sampled) < 100


def test_bug_closes_its_connection_only(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    """After an answer; what follows is not executed."""

    def fail(_: bytes) -> None:
        raise ZeroDivisionError

    with talk.client() as other:
        talk.hook = fail
        with talk.client() as client:
            client.send(b"stats\r\nmn\r\n")
            assert client.rest() == b"SERVER_ERROR internal error\r\n"
        assert other.ask(b"get key\r\n") == b"END"
        (error,) = (r for r in caplog.records if r.levelno == logging.ERROR)
        assert (error.message, bool(error.exc_info)) == (
            "memcache.failed command=-",
            True,
        )
        wait_until(lambda: talk.stats.connections == 1, "the other to be closed")


@pytest.mark.slow
def test_client_that_sends_too_slowly_is_closed_and_an_idle_one_is_not(
    tmp_path: Path,
) -> None:
    """One that sends no more, and one that makes progress all the time, but little."""
    # Longer than the time until the first look.
    with Talk(tmp_path, front={"transfer": 1.1}) as talk, ExitStack() as stack:
        clients = [stack.enter_context(talk.client()) for _ in range(5)]
        idle, partial, slow, *skipped = clients
        partial.send(b"set key 0 0 10\r\nabc")
        # What is skipped, as it is too large or after an error, is not held.
        skipped[0].send(b"set key 0 0 100000\r\nabc")
        skipped[1].send(b"get" + b" k" * 2000 + b" " + b"k" * 3000)
        assert skipped[0].line().startswith(b"SERVER_ERROR object too large")
        assert skipped[1].line() == b"CLIENT_ERROR bad command line format"
        for client in (partial, *skipped):
            assert client.rest() == b""
        slow.send(b"set key 0 0 1000\r\n")
        slow.socket.settimeout(0.03)
        sent, is_over = 0, False
        while not is_over:
            with suppress(TimeoutError):
                is_over = not slow.socket.recv(10)
            if not is_over:
                slow.send(b"x")
                sent += 1
        assert sent < 900
        assert idle.ask(b"get key\r\n") == b"END"
        assert int(talk.stats.total) == 2003


def test_incomplete_commands_above_the_memory_close_the_oldest(tmp_path: Path) -> None:
    """The one without progress for the longest time is closed."""
    with Talk(tmp_path, front={"memory": 4000}) as talk, ExitStack() as stack:
        clients = []
        for _ in range(8):
            client = stack.enter_context(talk.client())
            client.send(b"set key 0 0 1000\r\n" + b"x" * 900)
            clients.append(client)
            wait_until(lambda: talk.stats.bytes_in >= 916 * len(clients), "its bytes")
        assert clients[0].rest() == clients[1].rest() == b""
        for client in clients[-2:]:
            assert client.ask(b"x" * 100 + b"\r\n") == b"STORED"


def test_connections_above_the_limit_are_refused(tmp_path: Path) -> None:
    """With the words of memcached; a closed one makes room."""
    with Talk(tmp_path, front={"connections": 2}) as talk:
        with talk.client() as one, talk.client() as two:
            one.send(b"set a 0 0 2\r\n")  # It is not idle.
            two.send(b"get a")
            wait_until(lambda: talk.stats.bytes_in == 18, "the bytes")
            with talk.client() as three:
                assert three.rest() == b"ERROR Too many open connections\r\n"
            assert talk.stats.connections_refused == 1
        wait_until(lambda: talk.stats.connections == 0, "both to be closed")
        with talk.client() as client:
            assert client.ask(b"mn\r\n") == b"MN"
        assert talk.stats.connections_total == 3


def test_connection_above_the_limit_replaces_the_oldest_idle_one(
    tmp_path: Path,
) -> None:
    """To a new one above the limit."""
    with Talk(tmp_path, front={"connections": 3}) as talk, ExitStack() as stack:
        clients = [stack.enter_context(talk.client()) for _ in range(3)]
        for client in clients:
            assert client.ask(b"mn\r\n") == b"MN"
        assert clients[0].ask(b"mn\r\n") == b"MN"
        new = stack.enter_context(talk.client())
        assert new.ask(b"mn\r\n") == b"MN"
        assert clients[1].rest() == b""
        for client in clients[::2]:
            assert client.ask(b"mn\r\n") == b"MN"
        assert talk.stats.connections_idle == 1
        assert talk.stats.connections_refused == 0


@pytest.mark.slow
def test_idle_connections_are_closed_after_their_time(tmp_path: Path) -> None:
    """Not one that uses it, nor one in the middle of a command."""
    with Talk(tmp_path, front={"memcache_idle": 1.5}) as talk, ExitStack() as stack:
        idle, busy, partial = (stack.enter_context(talk.client()) for _ in range(3))
        partial.send(b"get k")
        started = time.monotonic()
        idle.socket.settimeout(0.2)
        is_closed = False
        while not is_closed:
            assert busy.ask(b"mn\r\n") == b"MN"
            with suppress(TimeoutError):
                is_closed = not idle.socket.recv(1)
        assert time.monotonic() - started >= 1.5
        assert partial.ask(b"ey\r\n") == b"END"
        assert talk.stats.connections_idle == 1


def test_stats_conns_lists_both_sides_of_each_connection(talk: Talk) -> None:
    """With the names of memcached, and the addresses of both sides."""
    with talk.client() as client, talk.client() as other:
        assert other.ask(b"mn\r\n") == b"MN"
        client.send(b"stats conns\r\n")
        lines = []
        while (line := client.line()) != b"END":
            lines.append(line.decode().split(" ", 2)[1:])
        names = [one.socket.getsockname() for one in (client, other)]
        hosts = [f"{host}:{port}" for host, port in names]
        found = {value: name.partition(":")[0] for name, value in lines}
        assert set(found) >= {f"tcp:{host}" for host in hosts}
        numbers = {found[f"tcp:{host}"] for host in hosts}
        assert sorted(name.split(":") for name, _ in lines) == sorted(
            [number, name]
            for number in numbers
            for name in ("addr", "listen_addr", "state", "secs_since_last_cmd")
        )


@pytest.mark.slow
def test_accept_without_descriptors_pauses_and_goes_on_later(
    talk: Talk, caplog: pytest.LogCaptureFixture
) -> None:
    """The loop does not spin, and goes on when there are some."""
    with talk.client() as first, ExitStack() as stack:
        first.send(b"m")  # It is not idle, and cannot give way.
        wait_until(lambda: talk.stats.bytes_in == 1, "its byte")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        client = socket.socket()
        stack.callback(client.close)
        client.settimeout(20)
        # No descriptor above that of the client may be used, nor one below that is free.
        taken = stack.enter_context(ExitStack())
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, limits[1]))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        with suppress(OSError):
            while True:
                taken.callback(os.close, os.dup(0))
        client.connect(talk.address)
        client.send(b"mn\r\n")
        used = time.process_time()
        wait_until(lambda: "connections.accept_failed" in caplog.text, "the event")
        assert "Too many open files" in caplog.text
        assert first.ask(b"n\r\n") == b"MN"
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        taken.close()
        assert client.recv(10) == b"MN\r\n"
        assert time.process_time() - used < 0.3


def test_pulse_without_requests_is_called_at_its_interval(tmp_path: Path) -> None:
    names: list[str] = []

    def pulse() -> None:
        names.append(threading.current_thread().name)

    with Talk(tmp_path, front={"pulse": pulse}) as talk:
        wait_until(lambda: len(names) >= 3, "the calls")
    assert set(names) == {"front"}
    assert talk.front.stalled_seconds() == 0


def test_flush_is_executed_when_it_is_due(
    talk: Talk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Although no client sends anything; one that is due in years delays no command."""
    due: list[float] = []

    def left() -> float | None:
        return due[-1] - time.monotonic() if due else None

    monkeypatch.setattr(talk.service, "seconds_to_flush", left)
    monkeypatch.setattr(talk.service, "flush_if_due", due.clear)
    with talk.client() as client:
        for seconds in (2**31 / 1000, 2.0**63, 0.01):
            due.append(time.monotonic() + seconds)
            for _ in range(2):
                assert client.ask(b"stats none\r\n") == b"ERROR"
        wait_until(lambda: not due, "the flush")
    assert not [r for r in caplog.records if r.levelno >= logging.ERROR]


def test_drain_answers_what_has_arrived_and_waits_for_the_rest(talk: Talk) -> None:
    """And waits for an incomplete command until the deadline only."""
    with talk.client() as partial, talk.client() as busy:
        idle = talk.client()
        partial.send(b"get key")
        wait_until(lambda: talk.stats.bytes_in == 7, "the bytes")
        busy.send(b"get key\r\n" * 300)
        assert busy.line() == b"END"
        draining = threading.Thread(target=talk.front.drain, args=(20,))
        draining.start()
        assert idle.rest() == b""
        assert busy.rest() == b"END\r\n" * 299
        with pytest.raises(OSError, match="refused"):
            talk.client()
        partial.send(b"\r\n")
        assert partial.rest() == b"END\r\n"
        draining.join()
        idle.close()


def test_change_of_tokens_affects_open_connections(talk: Talk) -> None:
    """In both directions; the next `set` of a connection has the token."""
    refused = b"CLIENT_ERROR unauthenticated"
    talk.change(Access(), may_flush=False)
    with talk.client() as client:
        assert client.ask(b"flush_all\r\n") == b"CLIENT_ERROR flush_all not allowed"
        assert client.ask(b"get key\r\n") == b"END"
        talk.change(Access(read="ab", write="cd"))
        assert client.ask(b"get key\r\n") == refused
        assert client.ask(b"set auth 0 0 4\r\na ab\r\n") == b"STORED"
        assert client.ask(b"delete key\r\n") == refused
        assert client.ask(b"get key\r\n") == b"END"
        talk.change(Access(read="other", write="cd"))
        assert client.ask(b"get key\r\n") == refused
    talk.change(Access())
    with talk.client() as client:
        assert client.ask(b"get key\r\n") == b"END"
        talk.change(Access(write="cd"))
        assert client.ask(b"delete key\r\n") == refused
        assert client.ask(b"set auth 0 0 4\r\na cd\r\n") == b"STORED"
        assert client.ask(b"delete key\r\n") == b"NOT_FOUND"


# --- Pipelines ---------------------------------------------------------------------------


def mixed(count: int) -> list[bytes]:
    """Return commands of text and meta, calls, and some errors."""
    kinds = (
        b"set a 3 0 5\r\nvalue\r\n",
        b"get a\r\n",
        b"get a b c a\r\n",
        b"append a 0 0 1\r\nx\r\n",
        b"set n 0 0 1\r\n7\r\n",
        b"incr n 5\r\n",
        b"mg a v f q\r\nmn\r\n",
        b"ms b 2 T0\r\nhi\r\n",
        b"bogus\r\n",
        b"set c 0 0 4000\r\n" + b"c" * 4000 + b"\r\n",  # Too large.
        b"gat 0 a b\r\n",
        b"delete b\r\n",
        b"set d 0 0 2\r\nlong\r\n",
        b"add e 0 0 1 noreply\r\ne\r\n",
        b"version\r\n",
        b"stats none\r\n",
    )
    choose = random.Random(count).choice  # noqa: S311 - Repeatable.
    return [choose(kinds) for _ in range(count)]


def test_pipeline_is_answered_in_order(tmp_path: Path) -> None:
    """10,000 commands, some of them calls: as one after the other."""
    sent = mixed(10_000)
    with Talk(tmp_path / "alone") as alone:
        expected = b"".join(map(alone.ask, sent))
    for threads in (1, 3):
        folder = tmp_path / f"{threads}"
        with Talk(folder, front={"threads": threads}) as talk, talk.client() as client:
            sender = threading.Thread(target=client.send, args=(b"".join(sent),))
            sender.start()
            assert client.read(len(expected)) == expected
            sender.join()
            assert client.ask(b"mn\r\n") == b"MN"


def test_client_that_sends_no_more_gets_all_replies(talk: Talk) -> None:
    """A client that sends no more gets all of them, then the end."""
    with talk.client() as client:
        client.send(b"set a 0 0 1\r\nx\r\n" + b"get a\r\nincr a 1\r\n" * 500)
        client.socket.shutdown(socket.SHUT_WR)
        replies = b"VALUE a 0 1\r\nx\r\nEND\r\nCLIENT_ERROR cannot increment"
        found = client.rest()
        assert found.startswith(b"STORED\r\n" + replies)
        assert found.count(b"VALUE a ") == found.count(b"CLIENT_ERROR ") == 500


def test_client_that_does_not_read_waits_alone(talk: Talk) -> None:
    """Its commands are executed when it reads; those of others are meanwhile."""
    count = 8000
    with talk.client() as deaf, talk.client() as other:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        assert other.ask(b"set k 0 0 1000\r\n" + b"v" * 1000 + b"\r\n") == b"STORED"
        sender = threading.Thread(target=deaf.send, args=(b"get k\r\n" * count,))
        sender.start()

        def waits() -> bool:
            before = talk.stats.total
            for _ in range(100):
                assert other.ask(b"mn\r\n") == b"MN"
            return before > 1 and talk.stats.total == before + 100

        wait_until(waits, "the sockets to be full")
        assert talk.stats.hits < count
        assert deaf.read(count * 1023).count(b"END\r\n") == count
        sender.join()


# --- sockets.py ------------------------------------------------------------------------


@rows("127.0.0.1:0", "[::1]:0", "localhost:0")
def test_name_of_a_listening_socket_has_its_port(address: str) -> None:
    """As in the setting."""
    with closing(ListeningSocket(address, "memcache_listen")) as listening:
        host, _, port = listening.name.rpartition(":")
        assert host in {"127.0.0.1", "[::1]"}
        assert int(port) > 0


def test_close_of_a_socket_leaves_the_file_of_another_process(tmp_path: Path) -> None:
    """If it has taken the place of this one."""
    path = tmp_path / "socket"
    with closing(ListeningSocket(str(path), "memcache_listen")):
        path.unlink()
        path.write_bytes(b"")
    assert path.exists()


@rows(
    ("192.0.2.1:11211", "Cannot assign requested address; use an address of this"),
    ("/nowhere/socket", "No such file or directory; create the directory"),
    ("/" + "x" * 200, "path too long"),
    ("host.invalid:11211", "check the address"),
)
def test_listen_on_a_wrong_address_names_the_setting_and_the_remedy(
    address: str, reason: str
) -> None:
    """And the remedy."""
    text = f"memcache_listen: cannot listen on .*{reason}"
    with pytest.raises(ListenError, match=text):
        ListeningSocket(address, "memcache_listen")
