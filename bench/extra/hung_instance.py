"""
What an instance costs that hangs, and a machine that disappears, behind the shipped nginx.

Instances of one inventory run on this machine; a quarter of them, if this is root, in a
network namespace. wrk reads stored keys through nginx: with all instances, with one that is
stopped, after it continues, and while packets to the namespace are lost. A refused GET is
one that nginx answers 503 because of its limits: a GET of a key whose instance does not
answer is a miss. Then the CPU of a GET by one instance, with `ring` and without.

    .venv/bin/python -m bench.extra hung_instance
"""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import timeit
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.extra.script import ScriptError, make_parser, measuring
from bench.load import cpu_figures, fill, turns
from bench.machine import MIB, family, usage
from bench.report import table
from bench.servers import IP, Dataset, Server, replaced, volcache
from support.far_machine import FarMachine, NoNamespacesError
from support.nginx import copy_configuration, start_command
from support.waiting import comes_true
from volcache.fleet.folder import plan, write
from volcache.fleet.inventory import load_inventory
from volcache.fleet.render import INSTANCES
from volcache.front import Parts
from volcache.ring import OwnKeys, load_ring
from volcache_client.ring import HashRing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from volcache.fleet.inventory import Instance, Inventory

SCRIPT: Final = Path(__file__).resolve().parents[1] / "hung.lua"
WRK_RESULT: Final = re.compile(r"^figures (\{.*\})$", re.MULTILINE)
DATASET: Final = Dataset(count=4000, value_bytes=1024)
PATHS: Final = [f"/{key}" for key in DATASET.keys]
SETTINGS: Final = f"volume_size = {16 * MIB}\nvolume_num = 3\nsync_mode = 'none'\n"
FIRST_PORT: Final = 21000
MACHINES: Final = 4
FIRST_SECONDS: Final = 3
PROBES: Final = 4
START_SECONDS: Final = 180.0  # Of 40 processes on two cores.


class Turn(NamedTuple):
    """What wrk has seen."""

    ok: int
    misses: int
    refused: int
    failed: int
    seconds: float
    p50: float  # milliseconds
    p99: float

    @property
    def rate(self) -> float:
        """Requests per second that were answered with a value or a miss."""
        return (self.ok + self.misses) / self.seconds


def run_wrk(port: int, paths: Path, connections: int, seconds: int) -> Turn:
    """
    Run wrk once.

    Raises:
        ScriptError: It has no result.
    """
    command = [shutil.which("wrk") or "wrk", "-t1", f"-c{connections}", f"-d{seconds}s"]
    command += ["-s", str(SCRIPT), f"http://{IP}:{port}", "--", str(paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = WRK_RESULT.search(done.stdout)
    if not found:
        raise ScriptError(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    figures = json.loads(found[1])
    return Turn(
        figures["ok"],
        figures["misses"],
        figures["refused"],
        figures["failed"],
        figures["micros"] / 1e6,
        figures["p50"] / 1000,
        figures["p99"] / 1000,
    )


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
        write(work / "rendered", plan(work / "rendered", self.inventory))
        self.nginx = Server(self._nginx)

    def _nginx(self, port: int) -> Sequence[str]:
        folder = self.work / "nginx"
        copy_configuration(folder)
        shutil.copy(self.work / "rendered" / INSTANCES, folder / "volcache")
        for change in (
            replaced("volcache/listen.conf", "127.0.0.1:8080", f"{IP}:{port}"),
            replaced("volcache/log.conf", "/var/log/nginx/", f"{folder}/"),
        ):
            change(folder)
        return start_command(folder, "cluster.conf")

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

    def pid_of(self, port: int) -> int:
        """Return the process of an instance."""
        with http_client(IP, port) as asked:
            asked.request("GET", "/-/stats?volumes=0")
            return int(json.loads(asked.getresponse().read())["process"]["pid"])


@contextmanager
def http_client(host: str, port: int) -> Iterator[http.client.HTTPConnection]:
    """Yield a connection."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        yield connection
    finally:
        connection.close()


def answers(host: str, port: int, path: str = "/-/healthy") -> bool:
    """Return whether a GET is answered 200."""
    try:
        with http_client(host, port) as asked:
            asked.request("GET", path)
            return asked.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False


class Report:
    """
    Rows of one table.

    Beside the load, four connections read keys of instances that are not lost: the times,
    and the number of those that are no values, are theirs.
    """

    def __init__(
        self, fleet: Fleet, paths: Path, connections: int, lost: Iterable[str]
    ) -> None:
        """Begin with none; `lost` are the addresses of instances."""
        port = fleet.nginx.port
        self._load = port, paths, connections
        healthy = fleet.work / "healthy"
        healthy.write_text("\n".join(fleet.paths_without(lost)), encoding="utf-8")
        self._probe = port, healthy, PROBES
        self.rows: list[list[str]] = []
        self._healthy = 0.0

    def measure(self, name: str, seconds: int) -> None:
        """Add a row."""
        with ThreadPoolExecutor(2) as pool:
            probing = pool.submit(run_wrk, *self._probe, seconds)
            turn = run_wrk(*self._load, seconds)
            probe = probing.result()
        self._healthy = self._healthy or turn.rate
        total = turn.ok + turn.misses + turn.refused
        self.rows.append(
            [
                name,
                f"{turn.rate:,.0f}",
                f"{turn.rate / self._healthy:.0%}",
                f"{turn.misses / total:.1%}",
                f"{turn.refused:,}",
                f"{probe.misses + probe.refused + probe.failed + turn.failed:,}",
                f"{probe.p50:.1f}",
                f"{probe.p99:.1f}",
            ]
        )

    def show(self, title: str) -> None:
        """Print the table."""
        head = ["", "requests/s", "of healthy", "misses", "refused"]
        head += ["healthy keys without a value", "their p50 ms", "p99 ms"]
        print(f"\n{title}:\n")
        print(table(head, self.rows), flush=True)


def seconds_until(condition: Callable[[], bool]) -> float:
    """Return how long it took until a condition holds."""
    began = time.monotonic()
    if not comes_true(condition):
        raise ScriptError("it did not come back")
    return time.monotonic() - began


def measure_hung(fleet: Fleet, paths: Path, connections: int, seconds: int) -> None:
    """Measure with all instances, with one that hangs, and when it continues."""
    number = len(fleet.inventory.instances)
    hung = fleet.inventory.instances[1]
    report = Report(fleet, paths, connections, [hung.address])
    pid = fleet.pid_of(hung.port)
    lost = next(iter(set(PATHS) - set(fleet.paths_without([hung.address]))))
    report.measure("all answer", seconds)
    os.kill(pid, signal.SIGSTOP)
    try:
        report.measure(f"one hangs, first {FIRST_SECONDS} s", FIRST_SECONDS)
        report.measure("one hangs, then", seconds)
    finally:
        os.kill(pid, signal.SIGCONT)
    back = seconds_until(lambda: answers(IP, fleet.nginx.port, lost))
    report.measure("it continues", seconds)
    report.show(f"one of {number} instances hangs, {connections} connections")
    print(f"\nIts keys are served again {back:.1f} s after it continues.", flush=True)


def measure_machine(fleet: Fleet, paths: Path, connections: int, seconds: int) -> None:
    """Measure while packets to a machine are lost."""
    if not fleet.far:
        return
    far = fleet.inventory.of(fleet.inventory.machines[-1])
    report = Report(fleet, paths, connections, [found.address for found in far])
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


def measure_cpu(work: Path, stack: ExitStack, seconds: int, rounds: int) -> None:
    """Compare the CPU of GETs by an instance with a ring of 40, and without."""
    servers = {}
    nodes = [f"10.0.0.{n}:1234" for n in range(40)]
    ring = HashRing([(node, 10) for node in nodes])
    own = [
        path
        for path in (f"/c{n}" for n in range(100_000))
        if ring.node(path[1:]) == nodes[0]
    ]
    (work / "own").write_text("\n".join(own), encoding="utf-8")
    (work / "list").write_text(
        "".join(f"server {node} weight=10;\n" for node in nodes), encoding="utf-8"
    )
    lists = {"ring": str(work / "list"), "ring_self": nodes[0]}
    for name, more in (("without", {}), ("with ring", lists)):
        settings = {
            "mount_point": work / name,
            "volume_size": 16 * MIB,
            "volume_num": 3,
        }
        servers[name] = stack.enter_context(volcache({**settings, **more}))
        with http_client(IP, servers[name].port) as asked:
            for path in own:
                asked.request("PUT", path, DATASET.value)
                asked.getresponse().read()
    found: dict[str, list[float]] = {name: [] for name in servers}
    for _, name in turns(list(servers), rounds):
        pids = family(servers[name].pid)
        before = usage(pids)
        turn = run_wrk(servers[name].port, work / "own", 20, seconds)
        used = usage(pids) - before
        found[name].append(cpu_figures(turn.ok, used)["cpu"])
    # What other programs do makes a round longer, never shorter.
    plain, ringed = (min(found[name]) for name in servers)
    print(
        f"\nCPU of a GET: {plain:.2f} µs without ring, {ringed:.2f} µs with 40 instances"
        f" in it, {ringed / plain:.3f} of it; the least of {rounds} rounds each."
        f" A lookup takes {lookup_ns(load_ring([lists['ring']], nodes[0])):.0f} ns."
    )


def lookup_ns(ring: OwnKeys | None) -> float:
    """Return what it takes to find out for a key of 40 bytes whose it is, in C."""
    draw = random.Random(1)  # noqa: S311 - Load, not secrets.
    paths = [b"/" + draw.randbytes(40) for _ in range(10_000)]
    times = []
    for parts in (Parts(ring.writes if ring else ()), Parts()):
        took = timeit.repeat(partial(_look_up, parts, paths), number=1, repeat=50)
        times.append(min(took) / len(paths) * 1e9)
    return times[0] - times[1]


def _look_up(parts: Parts, paths: list[bytes]) -> None:
    for path in paths:
        parts.have(path)


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--seconds", type=int, default=10, help="of each measurement (10)")
    add("--rounds", type=int, default=15, help="of the comparison of CPU (15)")
    add("--only", choices=("hung", "many", "machine", "cpu"), help="one of them")
    options = parser.parse_args()

    def wants(name: str) -> bool:
        return options.only in {None, name}

    with measuring(options.directory) as (stack, work):
        paths = work / "paths"
        paths.write_text("\n".join(PATHS), encoding="utf-8")
        try:
            far = stack.enter_context(FarMachine())
        except NoNamespacesError as error:
            print(f"no machine disappears: {error}")
            far = None
        if wants("hung") or wants("machine"):
            fleet = Fleet(work / "forty", 40, far)
            with fleet.running():
                if wants("hung"):
                    measure_hung(fleet, paths, 64, options.seconds)
                if far and wants("machine"):
                    measure_machine(fleet, paths, 64, options.seconds)
        if wants("many"):
            fleet = Fleet(work / "ten", 10, None)
            with fleet.running():
                measure_hung(fleet, paths, 600, options.seconds)
        if wants("cpu"):
            measure_cpu(work, stack, max(1, options.seconds // 5), options.rounds)


if __name__ == "__main__":
    main()
