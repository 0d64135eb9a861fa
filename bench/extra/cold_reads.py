"""
Reads of files that are in memory, while other clients read files that are not.

Four connections read 500 keys again and again; 64 read random keys of all. Each is
measured alone and at the same time. The page cache is emptied before each turn; the 500
keys are then read once.

    .venv/bin/python -m bench.extra.cold_reads
    .venv/bin/python -m bench.extra.cold_reads --threads 4,16 --tree /path/to/another
    .venv/bin/python -m bench.extra.cold_reads --instances 1,4,16 --tree /path/to/another

With `--instances`, the cold keys are spread over several instances of the other tree, each
read by its share of the 64 connections, and nothing else is measured.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.extra.script import ScriptError, make_parser, measuring
from bench.machine import MIB, ROOT, drop_pages, usage
from bench.report import table
from bench.servers import volcache
from volcache.store import Store

if TYPE_CHECKING:
    from contextlib import ExitStack

    from bench.servers import Server

VALUE: Final = bytes(range(256)) * 4
VOLUME_SIZE: Final = 160 * MIB
RECORD_BYTES_MAX: Final = 1200
HOT_KEYS: Final = 500
HOT_CONNECTIONS: Final = 4
COLD_CONNECTIONS: Final = 64
SCRIPT: Final = """
math.randomseed({seed})
request = function() return wrk.format(nil, "/k" .. math.random({first}, {last})) end
"""
FIGURES: Final = re.compile(
    r"99%\s+([\d.]+)(us|ms|s).*Requests/sec:\s+([\d.]+)", re.DOTALL
)
MILLISECONDS: Final = {"us": 0.001, "ms": 1.0, "s": 1000.0}


class Reader:
    """wrk with one thread and some of the keys."""

    def __init__(
        self,
        work: Path,
        server: Server,
        *,
        first: int,
        last: int,
        connections: int,
        seconds: int,
    ) -> None:
        script = work / f"read-{first}-{connections}.lua"
        script.write_text(SCRIPT.format(seed=first + 1, first=first, last=last))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency"]
        self._process = subprocess.Popen(
            [*command, "-s", str(script), server.url], stdout=subprocess.PIPE, text=True
        )

    def figures(self) -> tuple[float, float]:
        """
        Wait until it ends; return requests per second, and the 99th percentile in ms.

        Raises:
            ScriptError: An answer was wrong.
        """
        output, _ = self._process.communicate()
        found = FIGURES.search(output)
        if found is None or "Non-2xx" in output or "Socket errors" in output:
            raise ScriptError(f"wrk failed:\n{output}")
        percentile, unit, rate = found.groups()
        return float(rate), float(percentile) * MILLISECONDS[unit]


def fill(folder: Path, keys: int) -> int:
    """Store the keys; return the number of volumes."""
    volumes = max(2, keys * RECORD_BYTES_MAX // VOLUME_SIZE + 2)
    store = Store.open(
        str(folder), volume_size=VOLUME_SIZE, volume_num=volumes, sync_mode="none"
    )
    for number in range(keys):
        store.put(b"k%d" % number, VALUE)
    store.close()
    return volumes


def measure(
    work: Path, folder: Path, server: Server, keys: int, seconds: int
) -> list[str]:
    """Return a row: each load alone, both at the same time, CPU of the latter."""

    def hot(duration: int) -> Reader:
        return Reader(
            work,
            server,
            first=0,
            last=HOT_KEYS - 1,
            connections=HOT_CONNECTIONS,
            seconds=duration,
        )

    def cold() -> Reader:
        drop_pages(folder)
        hot(1).figures()
        return Reader(
            work,
            server,
            first=HOT_KEYS,
            last=keys - 1,
            connections=COLD_CONNECTIONS,
            seconds=seconds,
        )

    hot(1).figures()
    alone = hot(seconds).figures()
    cold_alone = cold().figures()
    reader = cold()
    before = usage([server.pid])
    beside = hot(seconds).figures()
    cold_beside = reader.figures()
    used = usage([server.pid]) - before
    answers = (beside[0] + cold_beside[0]) * seconds
    return [
        *(f"{rate:.0f}/s, {late:.2f} ms" for rate, late in (alone, cold_alone)),
        *(f"{rate:.0f}/s, {late:.2f} ms" for rate, late in (beside, cold_beside)),
        f"{beside[0] / alone[0]:.3f}",
        f"{(used.user + used.system) / answers * 1e6:.1f}",
    ]


def measure_spread(
    stack: ExitStack, work: Path, tree: Path, count: int, keys: int, seconds: int
) -> list[str]:
    """Return a row: cold reads of several instances at once, all answers and the CPU."""
    servers = []
    for number in range(count):
        folder = work / f"{count}-{number}"
        volumes = fill(folder, keys // count)
        settings = {
            "mount_point": folder,
            "volume_size": VOLUME_SIZE,
            "volume_num": volumes,
            "log_slow": 0,
        }
        servers.append(stack.enter_context(volcache(settings, tree)))
    drop_pages(work)
    before = usage([server.pid for server in servers])
    readers = [
        Reader(
            work,
            server,
            first=0,
            last=keys // count - 1,
            connections=COLD_CONNECTIONS // count,
            seconds=seconds,
        )
        for server in servers
    ]
    found = [reader.figures() for reader in readers]
    used = usage([server.pid for server in servers]) - before
    rate = sum(answers for answers, _ in found)
    for server in servers:
        server.terminate()
    late = max(late for _, late in found)
    cpu = (used.user + used.system) / (rate * seconds) * 1e6
    return [f"{count} instances", f"{rate:.0f}/s", f"{late:.2f} ms", f"{cpu:.1f}"]


def run_one(
    stack: ExitStack, tree: Path, settings: dict[str, object], **arguments: object
) -> list[str]:
    """Start an instance, measure it and stop it."""
    server = stack.enter_context(volcache(settings, tree))
    row = measure(server=server, **arguments)  # type: ignore[arg-type]
    server.terminate()
    return row


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--keys", type=int, default=2_000_000, help="how many are stored (2000000)")
    add("--seconds", type=int, default=3, help="of each load (3)")
    add("--threads", default="4,16", help="values of read_threads (4,16)")
    add("--tree", type=Path, help="another revision to measure as well")
    add("--instances", default="", help="numbers of instances of the other tree")
    add("--rounds", type=int, default=1, help="how often (1)")
    options = parser.parse_args()
    rows = []
    with measuring(options.directory) as (stack, work):
        if options.instances:
            for count in map(int, options.instances.split(",")):
                tree = options.tree or ROOT
                rows.append(
                    measure_spread(
                        stack, work, tree, count, options.keys, options.seconds
                    )
                )
            print(table(["server", "answers", "99 % within", "CPU µs"], rows))
            return
        folder = work / "data"
        volumes = fill(folder, options.keys)
        settings = {
            "mount_point": folder,
            "volume_size": VOLUME_SIZE,
            "volume_num": volumes,
            "log_slow": 0,
        }
        runs: list[tuple[str, Path, dict[str, object]]] = [
            (f"read_threads = {count}", ROOT, {**settings, "read_threads": int(count)})
            for count in options.threads.split(",")
        ]
        if options.tree:
            runs.append((str(options.tree.name), options.tree, {**settings}))
        for _ in range(options.rounds):
            for name, tree, chosen in runs:
                row = run_one(
                    stack,
                    tree,
                    chosen,
                    work=work,
                    folder=folder,
                    keys=options.keys,
                    seconds=options.seconds,
                )
                rows.append([name, *row])
                print(rows[-1], flush=True)
    head = ["server", "hot alone", "cold alone", "hot at once", "cold at once"]
    print(table([*head, "hot kept", "CPU µs"], rows))


if __name__ == "__main__":
    main()
