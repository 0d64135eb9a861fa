"""
What the scrub costs: latency and CPU of GETs and PUTs at several rates, relative to none.

All instances have the same values, of which the requests read a part that is in memory. So
the disk is read by the scrub only, and PUTs write to it. Instances that are not measured
are stopped.

    .venv/bin/python -m bench.extra.scrub_cost [--rates 10,50,200] [--rounds 9]
"""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Final, Literal

from bench.extra.script import make_parser, measuring
from bench.load import Load, measure_once, turns
from bench.machine import MIB
from bench.report import table
from bench.servers import Contender, Dataset, volcache
from volcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Row = list[str]

VOLUME_SIZE: Final = 16 * MIB
VOLUME_NUM: Final = 64
VALUE_BYTES: Final = 10_000
STORED: Final = VOLUME_SIZE * VOLUME_NUM // (VALUE_BYTES + 100) * 9 // 10
LOADS: Final[tuple[tuple[Literal["get", "put"], int], ...]] = (
    ("get", 20),
    ("get", 1),
    ("put", 20),
)
FIGURES: Final = {"p50": "ms", "p99": "ms", "cpu": "us"}


def fill(folder: Path, keys: list[str]) -> None:
    """Store the keys."""
    store = Store.open(
        str(folder),
        volume_size=VOLUME_SIZE,
        volume_num=VOLUME_NUM,
        sync_mode="none",
        eviction="fifo",
    )
    value = bytes(VALUE_BYTES)
    for key in keys:
        store.put(key.encode(), value)
    store.close()


@contextmanager
def running(contender: Contender) -> Iterator[None]:
    """Let an instance run that is stopped before and after."""
    os.kill(contender.server.pid, signal.SIGCONT)
    yield
    os.kill(contender.server.pid, signal.SIGSTOP)


def compared(load: Load, contenders: dict[str, Contender], rounds: int) -> list[Row]:
    """Measure a load; return a row for each rate above 0."""
    found: dict[str, list[dict[str, float]]] = {rate: [] for rate in contenders}
    for _, rate in turns(list(contenders), rounds):
        with running(contenders[rate]):
            found[rate].append(dict(measure_once(load, contenders[rate])))
    rows = []
    for rate in list(contenders)[1:]:
        row = [f"{load.kind.upper()}, {load.connections} connections", rate]
        for figure, unit in FIGURES.items():
            pairs = zip(found["0"], found[rate], strict=True)
            ratios = sorted(new[figure] / old[figure] for old, new in pairs)
            low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
            best = min(run[figure] for run in found[rate])
            row.append(
                f"{median(ratios):.2f} ({low:.2f}-{high:.2f}), {best:.2f} {unit}"
            )
        rows.append(row)
    return rows


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--rates", default="10,50,200", help="MB/s (10,50,200)")
    parser.add_argument("--rounds", type=int, default=9, help="default 9")
    parser.add_argument("--seconds", type=float, default=3, help="of each turn (3)")
    options = parser.parse_args()
    seconds: float = options.seconds
    stored = Dataset(count=STORED, value_bytes=VALUE_BYTES, is_stored=False)
    some = Dataset(count=STORED // 10, value_bytes=VALUE_BYTES, is_stored=False)
    with measuring(options.directory) as (stack, work):
        contenders: dict[str, Contender] = {}
        for rate in ["0", *options.rates.split(",")]:
            fill(work / rate, stored.keys)
            server = volcache(
                {
                    "mount_point": work / rate,
                    "volume_size": VOLUME_SIZE,
                    "volume_num": VOLUME_NUM,
                    "sync_mode": "none",
                    "eviction": "fifo",
                    "scrub_rate": int(rate) * 1_000_000,
                }
            )
            contender = Contender(server=stack.enter_context(server))
            os.kill(contender.server.pid, signal.SIGSTOP)
            # A stopped process does not end.
            stack.callback(os.kill, contender.server.pid, signal.SIGCONT)
            contenders[rate] = contender
        rows = []
        for kind, connections in LOADS:
            load = Load(
                kind=kind, dataset=some, seconds=seconds, connections=connections
            )
            rows += compared(load, contenders, options.rounds)
    headers = ["request", "MB/s", "p50, least", "p99, least", "CPU per request, least"]
    print(table(headers, rows))


if __name__ == "__main__":
    main()
