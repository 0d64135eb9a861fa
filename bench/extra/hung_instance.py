"""
What an instance costs that hangs, and a machine that disappears, behind the shipped nginx.

Instances of one inventory run on this machine; a quarter of them, if this is root, in a
network namespace. wrk reads stored keys through nginx: with all instances, with one that is
stopped, after it continues, and while packets to the namespace are lost. A refused GET is
one that nginx answers 503 because of its limits: a GET of a key whose instance does not
answer is a miss. Beside the load, four connections read keys of instances that are not
lost: the times, and the number of those that are no values, are theirs.

    .venv/bin/python -m bench.extra hung_instance
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import requests

from bench.extra.script import ScriptError, make_parser, measuring
from bench.load import fill
from bench.machine import MIB, ROOT
from bench.report import table
from bench.servers import IP, Dataset, nginx_in_front
from support.far_machine import FarMachine, NoNamespacesError
from support.waiting import comes_true
from volcache.cli.cluster import apply_change
from volcache.fleet.folder import plan
from volcache.fleet.inventory import load_inventory
from volcache.fleet.render import INSTANCES
from volcache_client.ring import HashRing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from volcache.fleet.inventory import Instance, Inventory

DATASET: Final = Dataset(count=4000, value_bytes=1024)
PATHS: Final = [f"/{key}" for key in DATASET.keys]
SETTINGS: Final = f"volume_size = {16 * MIB}\nvolume_num = 3\nsync_mode = 'none'\n"
FIRST_PORT: Final = 21000
MACHINES: Final = 4
FIRST_SECONDS: Final = 3
PROBES: Final = 4
START_SECONDS: Final = 180.0  # Of 40 processes on two cores.
HEAD: Final = [
    *("", "requests/s", "of healthy", "misses", "refused"),
    *("healthy keys without a value", "their p50 ms", "p99 ms"),
]


def run_wrk(port: int, paths: Path, connections: int, seconds: int) -> dict[str, int]:
    """
    Return what wrk has seen: answers by status, and what get.lua says.

    Raises:
        ScriptError: It has no result.
    """
    command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s"]
    command += [f"{ROOT}/bench/hung.lua", f"http://{IP}:{port}", "--", str(paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found: dict[str, int] = {}
    for line in done.stdout.splitlines():
        found |= json.loads(line) if line.startswith("{") else {}
    if not found:
        raise ScriptError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return found


def answers(host: str, port: int, path: str = "/-/healthy") -> bool:
    """Return whether a GET is answered 200."""
    try:
        return requests.get(f"http://{host}:{port}{path}", timeout=5).ok
    except requests.RequestException:
        return False


class Fleet:
    """The instances of an inventory, and nginx in front of them."""

    def __init__(self, work: Path, number: int, far: FarMachine | None) -> None:
        """Write the files; nothing is started yet."""
        self.far = far
        self.work = work
        work.mkdir()
        (work / "settings.toml").write_text(SETTINGS, encoding="utf-8")
        own = number // MACHINES if far else 0
        lines = [f"[defaults]\ndisks = {own or number}\n[machines]"]
        for n in range(MACHINES if far else 1):
            address = far.address if far and n == MACHINES - 1 else IP
            port = FIRST_PORT + n * own
            lines.append(f'm{n + 1} = {{ address = "{address}", port = {port} }}')
        file = work / "inventory.toml"
        file.write_text("\n".join(lines), encoding="utf-8")
        self.inventory: Inventory = load_inventory(file)
        for change in plan(work / "rendered", self.inventory).changes:
            apply_change(work / "rendered", change)
        listed = (work / "rendered" / INSTANCES).read_text(encoding="utf-8")
        self.nginx = nginx_in_front(listed, work / "nginx")

    def _command(self, instance: Instance) -> list[str]:
        settings = {
            "ip": instance.machine.listen,
            "port": instance.port,
            "mount_point": self.work / instance.name,
            "ring": self.work / "rendered" / INSTANCES,
            "ring_self": instance.address,
        }
        command = [sys.executable, "-m", "volcache", "serve"]
        command.append(str(self.work / "settings.toml"))
        command += [f"--set={name}={value}" for name, value in settings.items()]
        if self.far and instance.machine.address == self.far.address:
            return ["ip", "netns", "exec", self.far.name, *command]
        return command

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run everything, with a value for each path."""
        with ExitStack() as stack:
            for instance in self.inventory.instances:
                with (self.work / f"{instance.name}.log").open("wb") as log:
                    process = subprocess.Popen(
                        self._command(instance), stdout=log, stderr=log
                    )
                stack.callback(process.wait)
                stack.callback(process.terminate)
            for found in self.inventory.instances:
                place = found.machine.address, found.port
                if not comes_true(partial(answers, *place), START_SECONDS):
                    raise ScriptError(f"{found.name} does not answer")
            stack.enter_context(self.nginx)
            fill(self.nginx, DATASET)
            yield

    def paths_without(self, lost: Iterable[str]) -> list[str]:
        """Return the paths whose keys are not those of some instances."""
        nodes = [(found.address, found.weight) for found in self.inventory.instances]
        ring = HashRing(nodes)
        return [path for path in PATHS if ring.node(path[1:]) not in set(lost)]


class Report:
    """Rows of one table, about the time before and after `lost` instances are lost."""

    def __init__(self, fleet: Fleet, connections: int, lost: Iterable[str]) -> None:
        """Begin with none; `lost` are addresses."""
        self._port = fleet.nginx.port
        self._connections = connections
        self._all, self._kept = fleet.work / "all", fleet.work / "healthy"
        self._all.write_text("\n".join(PATHS), encoding="utf-8")
        self._kept.write_text("\n".join(fleet.paths_without(lost)), encoding="utf-8")
        self._rows: list[list[str]] = []
        self._healthy = 0.0

    def measure(self, name: str, seconds: int) -> None:
        """Add a row."""
        with ThreadPoolExecutor() as pool:
            probing = pool.submit(run_wrk, self._port, self._kept, PROBES, seconds)
            turn = run_wrk(self._port, self._all, self._connections, seconds)
            probe = probing.result()
        served = turn["ok"] + turn["misses"]
        rate = served * 1e6 / turn["micros"]
        self._healthy = self._healthy or rate
        lost = probe["misses"] + probe["refused"] + probe["failed"] + turn["failed"]
        self._rows.append(
            [
                *(name, f"{rate:,.0f}", f"{rate / self._healthy:.0%}"),
                f"{turn['misses'] / (served + turn['refused']):.1%}",
                *(f"{turn['refused']:,}", f"{lost:,}"),
                *(f"{probe[name] / 1000:.1f}" for name in ("p50", "p99")),
            ]
        )

    def show(self, title: str) -> None:
        """Print the table."""
        print(f"\n{title}:\n\n{table(HEAD, self._rows)}", flush=True)


def measure_hung(fleet: Fleet, connections: int, seconds: int) -> None:
    """Measure with all instances, with one that hangs, and when it continues."""
    hung = fleet.inventory.instances[1]
    report = Report(fleet, connections, [hung.address])
    url = f"http://{IP}:{hung.port}/-/stats?volumes=0"
    pid = requests.get(url, timeout=5).json()["process"]["pid"]
    lost = next(iter(set(PATHS) - set(fleet.paths_without([hung.address]))))
    report.measure("all answer", seconds)
    os.kill(pid, signal.SIGSTOP)
    try:
        report.measure(f"one hangs, first {FIRST_SECONDS} s", FIRST_SECONDS)
        report.measure("one hangs, then", seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
    began = time.monotonic()
    if not comes_true(partial(answers, IP, fleet.nginx.port, lost)):
        raise ScriptError("it did not come back")
    back = time.monotonic() - began
    report.measure("it continues", seconds)
    number = len(fleet.inventory.instances)
    report.show(f"one of {number} instances hangs, {connections} connections")
    print(f"\nIts keys are served again {back:.1f} s after it continues.", flush=True)


def measure_machine(fleet: Fleet, connections: int, seconds: int) -> None:
    """Measure while packets to a machine are lost."""
    if not fleet.far:
        return
    far = fleet.inventory.of(fleet.inventory.machines[-1])
    report = Report(fleet, connections, [found.address for found in far])
    report.measure("all answer", seconds)
    fleet.far.disappear()
    report.measure(f"a machine is gone, first {FIRST_SECONDS} s", FIRST_SECONDS)
    report.measure("a machine is gone, then", seconds)
    fleet.far.appear()
    number = len(fleet.inventory.instances)
    report.show(
        f"a machine with {len(far)} of {number} instances disappears, {connections}"
        " connections"
    )


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--seconds", type=int, default=10, help="of each measurement (10)")
    add("--instances", type=int, default=40, help="of the first inventory (40)")
    options = parser.parse_args()
    with measuring(options.directory) as (stack, work):
        try:
            far = stack.enter_context(FarMachine())
        except NoNamespacesError as error:
            print(f"no machine disappears: {error}")
            far = None
        fleet = Fleet(work / "many", options.instances, far)
        with fleet.running():
            measure_hung(fleet, 64, options.seconds)
            measure_machine(fleet, 64, options.seconds)
        fleet = Fleet(work / "ten", 10, None)
        with fleet.running():
            measure_hung(fleet, 600, options.seconds)


if __name__ == "__main__":
    main()
