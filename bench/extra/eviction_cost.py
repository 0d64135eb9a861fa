"""
What the eviction policy costs: CPU per GET and PUT with "frequency", relative to "fifo".

Two instances with 64 volumes each get so many PUTs that all volumes are in use. Then they
are measured in turns: GETs of keys that are there, then PUTs of random keys, of which four
times as many exist as fit. During the PUTs nothing is read, so that hardly anything is
copied: what copies cost is the write amplification.

    .venv/bin/python -m bench.extra.eviction_cost [--rounds 9]
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Final

from bench.extra.script import make_parser, measuring
from bench.load import Load, measure_once, turns
from bench.machine import MIB
from bench.report import table
from bench.servers import Contender, Dataset, volcache
from volcache.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    from volcache.store.eviction import Eviction

VOLUME_SIZE: Final = 4 * MIB
VOLUME_NUM: Final = 64
VALUE_BYTES: Final = 1024
STORED: Final = VOLUME_SIZE * VOLUME_NUM // (VALUE_BYTES + 100)
POLICIES: Final[tuple[Eviction, ...]] = ("fifo", "frequency")
CONNECTIONS: Final = 20


def fill(folder: Path, policy: Eviction, keys: list[str]) -> None:
    """Store the keys, the first ones last, so that they are there."""
    store = Store.open(
        str(folder),
        volume_size=VOLUME_SIZE,
        volume_num=VOLUME_NUM,
        sync_mode="none",
        eviction=policy,
    )
    value = bytes(VALUE_BYTES)
    for key in reversed(keys):
        store.put(key.encode(), value)
    store.close()


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="default 9")
    parser.add_argument("--seconds", type=float, default=3, help="of each turn (3)")
    options = parser.parse_args()
    seconds: float = options.seconds
    dataset = Dataset(count=4 * STORED, value_bytes=VALUE_BYTES, is_stored=False)
    present = Dataset(count=STORED // 4, value_bytes=VALUE_BYTES, is_stored=False)
    with measuring(options.directory) as (stack, work):
        contenders: dict[str, Contender] = {}
        for policy in POLICIES:
            fill(work / policy, policy, dataset.keys)
            server = volcache(
                {
                    "mount_point": work / policy,
                    "volume_size": VOLUME_SIZE,
                    "volume_num": VOLUME_NUM,
                    "sync_mode": "none",
                    "eviction": policy,
                }
            )
            contenders[policy] = Contender(server=stack.enter_context(server))
        rows = []
        loads = [
            Load(kind="get", dataset=present, seconds=seconds, connections=CONNECTIONS),
            Load(kind="put", dataset=dataset, seconds=seconds, connections=CONNECTIONS),
        ]
        for load in loads:
            found: dict[str, list[float]] = {policy: [] for policy in POLICIES}
            for _, name in turns(POLICIES, options.rounds):
                found[name].append(measure_once(load, contenders[name])["cpu"])
            pairs = zip(*(found[policy] for policy in POLICIES), strict=True)
            ratios = [new / old for old, new in pairs]
            rows.append(
                [
                    load.kind.upper(),
                    *(f"{min(found[policy]):.2f}" for policy in POLICIES),
                    f"{median(ratios):.3f} ({min(ratios):.2f}-{max(ratios):.2f})",
                ]
            )
    print(table(["request", "fifo, CPU us", "frequency, CPU us", "ratio"], rows))


if __name__ == "__main__":
    main()
