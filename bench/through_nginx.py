"""
What nginx costs: the same requests straight to an instance and through nginx.

Three instances behind one nginx with the configuration of this repository, and with one
thing changed at a time. The cases take turns; CPU is that of the process per request.

    .venv/bin/python bench/through_nginx.py --seconds 3 --rounds 3
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from load import LoadError, run_wrk
from machine import describe, warnings
from report import Spread, bullets, table
from servers import Change, nginx_before, replaced, unchanged, volcache
from support.program import ProgramError

if TYPE_CHECKING:
    from latency import Run
    from processes import Server

KEYS: Final = 4_000
VALUE_BYTES: Final = 1024
CONNECTIONS: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One case in one round; CPU in microseconds per request."""

    rate: float
    p99_ms: float
    nginx_us: float
    instance_us: float


VARIANTS: Final[dict[str, Change]] = {
    "nginx": unchanged,
    "nginx, no access log": replaced("volcache/log.conf", "access_log", "#"),
    "nginx, log not buffered": replaced(
        "volcache/log.conf", " buffer=64k flush=1s", ""
    ),
    "nginx, no kept connections": replaced("volcache.conf", "    keepalive ", "    #"),
    "nginx, no reuseport": replaced("volcache/listen.conf", " reuseport", ""),
    "nginx, small buffers": replaced(
        "volcache/proxy.conf", "proxy_buffers            34 32k", "proxy_buffers 264 4k"
    ),
}


def load(url: str, script: str, seconds: int) -> Run:
    """Run wrk once."""
    arguments = (
        [str(KEYS)] if script == "wrk_get.lua" else [str(VALUE_BYTES), str(KEYS)]
    )
    return run_wrk(
        url,
        connections=CONNECTIONS,
        seconds=seconds,
        script=script,
        arguments=arguments,
    )


def measure(
    target: Server, instances: list[Server], script: str, seconds: int
) -> Figure:
    """
    Run a case once.

    Args:
        target: Which server is asked: an instance or nginx.
        instances: All instances.
        script: What wrk sends.
        seconds: How long.

    """
    front = [target] if target not in instances else []

    def used() -> tuple[float, float]:
        sums = [
            sum(use.user + use.system for use in (s.usage() for s in servers))
            for servers in (front, instances)
        ]
        return sums[0], sums[1]

    before = used()
    run = load(target.url, script, seconds)
    after = used()
    scale = 1_000_000 / run.requests
    return Figure(
        rate=run.rate,
        p99_ms=run.p99,
        nginx_us=(after[0] - before[0]) * scale,
        instance_us=(after[1] - before[1]) * scale,
    )


def start_instances(stack: ExitStack, work: Path) -> list[Server]:
    """Start three instances and give them the keys."""
    servers = []
    for number in range(3):
        settings = {"mount_point": work / f"disk{number}", "volume_size": 128 << 20}
        servers.append(stack.enter_context(volcache(settings)))
    return servers


def start_nginx(
    stack: ExitStack, work: Path, instances: list[Server]
) -> dict[str, Server]:
    """Start an nginx of each kind."""
    found = {}
    for number, (name, change) in enumerate(VARIANTS.items()):
        server = nginx_before(instances, work / f"nginx{number}", change)
        found[name] = stack.enter_context(server)
    return found


def main() -> int:
    """Measure and report; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[1])
    parser.add_argument("--seconds", type=int, default=3, help="of load each (3)")
    parser.add_argument("--rounds", type=int, default=3, help="in turns (3)")
    options = parser.parse_args()
    try:
        with ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            print(bullets(describe(work), warnings(work)), flush=True)
            instances = start_instances(stack, work)
            targets = {"direct": instances[0], **start_nginx(stack, work, instances)}
            for target in targets.values():  # Drawn at random, all keys are met.
                load(target.url, "wrk_put.lua", options.seconds)
            for script in ("wrk_get.lua", "wrk_put.lua"):
                rounds: dict[str, list[Figure]] = {name: [] for name in targets}
                for _ in range(options.rounds):
                    for name, target in targets.items():
                        figure = measure(target, instances, script, options.seconds)
                        rounds[name].append(figure)
                print_table(script, rounds)
    except (LoadError, ProgramError) as error:
        print(f"no figures: {error}", file=sys.stderr)
        return 1
    return 0


def print_table(script: str, rounds: dict[str, list[Figure]]) -> None:
    """Print the medians of each case."""
    print(f"\n{script}, {VALUE_BYTES} bytes, {CONNECTIONS} connections:\n")
    rows = [
        [
            name,
            f"{Spread.of([f.rate for f in figures]).median:.0f}",
            f"{Spread.of([f.p99_ms for f in figures]).median:.2f}",
            f"{Spread.of([f.nginx_us for f in figures]).median:.1f}",
            f"{Spread.of([f.instance_us for f in figures]).median:.1f}",
        ]
        for name, figures in rounds.items()
    ]
    head = ["case", "requests/s", "p99 ms", "nginx CPU µs", "instance CPU µs"]
    print(table(head, rows))


if __name__ == "__main__":
    sys.exit(main())
