"""
The memcached protocol: CPU per command next to memcached, and the latency of HTTP under it.

The load is `memcache_load.c`, one thread with 20 connections. CPU is that of all threads of
the server. Latency is that of one client of HTTP that sends a request at a time, with a
pause of half a millisecond, while the protocol is idle or loaded as much as it can be.

    .venv/bin/python -m bench.extra.memcache_cost [--rounds 9] [--seconds 0.5]
"""

from __future__ import annotations

import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.client import IP
from bench.extra.script import ScriptError, make_parser, measuring
from bench.load import turns
from bench.machine import MIB, ROOT, usage
from bench.report import table
from bench.servers import memcached, volcache
from support.ports import pick_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from bench.servers import Server

SOURCE: Final = ROOT / "bench" / "extra" / "memcache_load.c"
VALUE_BYTES: Final = 1024
KEYS: Final = 20_000
CONNECTIONS: Final = 20
COMMANDS: Final = (("get", 1), ("set", 1), ("get", 16), ("set", 16))
REQUESTS: Final = 1500
PAUSE: Final = 0.0005
MILLISECONDS: Final = 1000.0
MICROSECONDS: Final = 1e6


class Contender(NamedTuple):
    """A server and its port for the protocol."""

    server: Server
    port: int


def load_command(
    program: Path, port: int, depth: int, seconds: float, verb: str
) -> list[str]:
    """Return the command that loads a server."""
    words = (program, port, CONNECTIONS, depth, seconds, verb, VALUE_BYTES, KEYS)
    return [str(word) for word in words]


def run_load(command: list[str]) -> list[float]:
    """
    Load a server; return commands, seconds, p50 and p99 in microseconds.

    Raises:
        ScriptError: An answer was wrong.
    """
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise ScriptError(ended.stderr.strip())
    return [float(word) for word in ended.stdout.split()]


def cpu_rows(
    program: Path, contenders: dict[str, Contender], rounds: int, seconds: float
) -> Iterator[list[str]]:
    """Measure each command in turns; yield a row for each server and command."""
    for verb, depth in COMMANDS:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for _, name in turns(list(contenders), rounds):
            server, port = contenders[name]
            before = usage([server.pid])
            count, took, *_ = run_load(
                load_command(program, port, depth, seconds, verb)
            )
            used = usage([server.pid]) - before
            cpu = (used.user + used.system) * MICROSECONDS / count
            found[name].append((cpu, count / took))
        for name, runs in found.items():
            cpus, rates = zip(*runs, strict=True)
            what = f"{verb}, {depth} at a time" if depth > 1 else verb
            yield [
                what,
                name,
                f"{median(cpus):.1f}",
                f"{min(cpus):.1f}",
                f"{median(rates):,.0f}",
            ]


def ask(connection: socket.socket, request: bytes) -> None:
    """Send a request over HTTP and receive the response."""
    connection.sendall(request)
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    if head[9:10] != b"2":
        raise ScriptError(head.decode(errors="replace").splitlines()[0])
    _, _, length = head.partition(b"Content-Length: ")
    missing = int(length.split()[0]) - len(body) if length else 0
    while missing > 0:
        missing -= len(connection.recv(65536))


def latencies(port: int, make: Callable[[int], bytes]) -> tuple[float, float, float]:
    """Return p50, p99 and the longest time of requests, in milliseconds."""
    times = []
    with socket.create_connection((IP, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(REQUESTS):
            started = time.perf_counter()
            ask(connection, make(number % 1000))
            times.append((time.perf_counter() - started) * MILLISECONDS)
            time.sleep(PAUSE)
    times.sort()
    return times[len(times) // 2], times[len(times) * 99 // 100], times[-1]


@contextmanager
def loaded(command: list[str] | None) -> Iterator[None]:
    """Let a load run."""
    if command is None:
        yield
        return
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(0.3)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def latency_rows(program: Path, contender: Contender) -> Iterator[list[str]]:
    """Yield a row for each load."""
    value = bytes(VALUE_BYTES)
    head = b"PUT /http%d HTTP/1.1\r\nHost: bench\r\nContent-Length: %d\r\n\r\n%s"
    requests = {
        "PUT": lambda number: head % (number, len(value), value),
        "GET": lambda number: b"GET /http%d HTTP/1.1\r\nHost: bench\r\n\r\n" % number,
    }
    loads: dict[str, tuple[str, int] | None] = {
        "none": None,
        "get": ("get", 1),
        "get, 32 at a time": ("get", 32),
        "set": ("set", 1),
        "set, 32 at a time": ("set", 32),
    }
    server, port = contender
    for name, load in loads.items():
        command = None
        if load is not None:
            command = load_command(program, port, load[1], 600, load[0])
        with loaded(command):
            figures = [latencies(server.port, make) for make in requests.values()]
        yield [name, *(f"{value:.2f}" for runs in figures for value in runs)]


def started(work: Path, stack: ExitStack) -> dict[str, Contender]:
    """Start the servers."""
    port = pick_port(IP)
    settings = {
        "mount_point": work / "data",
        "volume_size": 16 * MIB,
        "volume_num": 64,
        "memcache_listen": f"{IP}:{port}",
    }
    ours = stack.enter_context(volcache(settings))
    other = stack.enter_context(memcached(256))
    return {
        "volcache": Contender(ours, port),
        "memcached": Contender(other, other.port),
    }


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="default 9")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each turn (0.5)")
    options = parser.parse_args()
    with measuring(options.directory) as (stack, work):
        program = work / "memcache_load"
        subprocess.run(["gcc", "-O2", "-o", str(program), str(SOURCE)], check=True)
        contenders = started(work, stack)
        for _, port in contenders.values():
            run_load(load_command(program, port, 1, 0, "fill"))
        cpu = list(cpu_rows(program, contenders, options.rounds, options.seconds))
        print(
            table(["command", "server", "CPU µs, median", "least", "commands/s"], cpu),
            flush=True,
        )
        rows = list(latency_rows(program, contenders["volcache"]))
    heads = [
        f"{verb} {what}, ms"
        for verb in ("PUT", "GET")
        for what in ("p50", "p99", "max")
    ]
    print("\n" + table(["load on the protocol", *heads], rows))


if __name__ == "__main__":
    main()
