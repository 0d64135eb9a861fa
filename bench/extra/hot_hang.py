"""
The latency of GETs while memcached hangs, next to an instance without memcached.

Both instances serve the same files. memcached is stopped by a signal: it still accepts
connections, but does not answer. The first second, which contains the one request that
waits for the time-out, is reported apart. Then both are loaded in turns of one second.

    .venv/bin/python -m bench.extra.hot_hang --rounds 10
"""

from __future__ import annotations

import itertools
import signal
from typing import Final

from bench import client
from bench.client import Run, closed_loop
from bench.extra.script import make_parser, measuring
from bench.machine import MIB
from bench.report import Spread, table
from bench.servers import PROMOTING_READS, Server, fill, memcached, volcache

CONNECTIONS: Final = 20
KEYS: Final = [f"k{number}" for number in range(50)]
VALUE: Final = b"x" * 1024
READS: Final = [client.http_get(key) for key in KEYS]


def load(server: Server) -> Run:
    """Read the files for a second."""
    return closed_loop(
        {server.port: itertools.cycle(READS)},
        client.is_complete_http,
        connections=CONNECTIONS,
        seconds=1,
    )


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="of one second (10)")
    options = parser.parse_args()
    with measuring(options.directory) as (stack, work):
        tier = stack.enter_context(memcached(64))
        common = {"volume_size": 16 * MIB, "volume_num": 2}
        hot = {"memc_on": True, "memc_servers": f"127.0.0.1:{tier.port}"}
        servers = {
            "no memcached": volcache({"mount_point": work / "a", **common}),
            "memcached hangs": volcache({"mount_point": work / "b", **common, **hot}),
        }
        for server in servers.values():
            stack.enter_context(server)
            puts = (client.http_put(key, VALUE) for key in KEYS)
            fill(server, puts, client.is_complete_http)
            fill(server, READS * PROMOTING_READS, client.is_complete_http)
        tier.send_signal(signal.SIGSTOP)
        stack.callback(tier.send_signal, signal.SIGCONT)
        first = load(servers["memcached hangs"])
        found: dict[str, list[Run]] = {name: [] for name in servers}
        for _ in range(options.rounds):
            for name, server in servers.items():
                found[name].append(load(server))
    print(f"\nslowest request of the first second: {first.max:.1f} ms\n")
    rows = [
        [
            name,
            *(
                Spread.of([getattr(run, field) for run in runs]).text(2)
                for field in ("p50", "p99", "p999", "max")
            ),
        ]
        for name, runs in found.items()
    ]
    print(table(["", "p50 ms", "p99 ms", "p99.9 ms", "max ms"], rows))


if __name__ == "__main__":
    main()
