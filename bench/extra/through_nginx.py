"""
The cost of nginx: the same requests to an instance, and through nginx.

Three instances behind nginx with the configuration in `nginx/`, and with one thing of it
changed at a time. CPU is that of all workers, and of all instances, per request.

    .venv/bin/python -m bench.extra.through_nginx --seconds 3 --rounds 3
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bench.extra.script import make_parser, measuring
from bench.load import Load, cpu_figures, fill, start_load, turns
from bench.machine import MIB, family, usage
from bench.report import Spread, table
from bench.servers import (
    Contender,
    Dataset,
    Server,
    nginx_in_front,
    replaced,
    volcache,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.load import Figures
    from bench.servers import Change

INSTANCES: Final = 3
DATASET: Final = Dataset(count=4_000, value_bytes=1024)
VARIANTS: Final[dict[str, Sequence[Change]]] = {
    "nginx": (),
    "no access log": [replaced("volcache/log.conf", "access_log", "#")],
    "log not buffered": [replaced("volcache/log.conf", " buffer=64k flush=1s", "")],
    "no kept connections to instances": [
        replaced("volcache.conf", "    keepalive ", "    #")
    ],
    "no reuseport": [replaced("volcache/listen.conf", " reuseport", "")],
    "small buffers (4 KiB)": [
        replaced(
            "volcache/proxy.conf",
            "proxy_buffers            34 32k",
            "proxy_buffers 264 4k",
        )
    ],
}


def measure(target: Server, instances: Sequence[Server], load: Load) -> Figures:
    """
    Run a load once, against an instance or nginx.

    Raises:
        LoadError: An answer is wrong.
    """
    front = [] if target in instances else family(target.pid)
    behind = [pid for server in instances for pid in family(server.pid)]
    before = usage(front), usage(behind)
    run = start_load(load, Contender(server=target)).result()
    used = usage(front) - before[0], usage(behind) - before[1]
    nginx, instance = (cpu_figures(run.requests, one)["cpu"] for one in used)
    return {"rate": run.rate, "p99": run.p99, "nginx": nginx, "instance": instance}


def print_table(kind: str, rounds: dict[str, list[Figures]]) -> None:
    """Print the medians of each case."""
    print(f"\n{kind.upper()} of {DATASET.value_bytes} bytes:\n")
    digits = {"rate": 0, "p99": 2, "nginx": 1, "instance": 1}
    rows = [
        [
            name,
            *(
                f"{Spread.of([one[field] for one in figures]).median:.{places}f}"
                for field, places in digits.items()
            ),
        ]
        for name, figures in rounds.items()
    ]
    head = ["case", "requests/s", "p99 ms", "nginx CPU µs", "instance CPU µs"]
    print(table(head, rows), flush=True)


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--seconds", type=float, default=3, help="of load in each turn (3)")
    add("--rounds", type=int, default=3, help="in which all take turns (3)")
    options = parser.parse_args()
    with measuring(options.directory) as (stack, work):
        instances = [
            stack.enter_context(
                volcache({"mount_point": work / str(n), "volume_size": 128 * MIB})
            )
            for n in range(INSTANCES)
        ]
        targets = {"direct, one instance": instances[0]}
        for number, (name, changes) in enumerate(VARIANTS.items()):
            front = nginx_in_front(instances, work / f"nginx{number}", changes)
            targets[name] = stack.enter_context(front)
        for target in (instances[0], targets["nginx"]):
            fill(target, DATASET)
        for kind in ("get", "put"):
            load = Load(
                kind=kind, dataset=DATASET, seconds=options.seconds, connections=20
            )
            rounds: dict[str, list[Figures]] = {name: [] for name in targets}
            for _, name in turns(list(targets), options.rounds):
                rounds[name].append(measure(targets[name], instances, load))
            print_table(kind, rounds)


if __name__ == "__main__":
    main()
