"""Cold reads by several instances in folders of one disk."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import client
from contenders import Keys, Stage
from page_cache import forget
from proc import family, resident_bytes, usage
from runner import MIB, cost_figures, run_figures
from traffic import Dose, Traffic, listed

if TYPE_CHECKING:
    from results import Figures, Rows
    from runner import Bench, Workload

VALUE_BYTES: Final = 1024
CONNECTIONS: Final = 32  # Two for each of the sixteen.
SAMPLE: Final = Traffic(kind="sample")


def measure_instances(bench: Bench, workload: Workload) -> Rows:
    """Read the same number of cold values from every number of instances in turn."""
    bench.close()
    rows: Rows = {name: [] for name in workload.rows}
    with ExitStack() as stack:
        groups = {
            name: start_group(bench, stack, int(name.partition(" ")[0]))
            for name in workload.rows
        }
        for number, name in bench.turns(workload.rows):
            figures = measure_group(bench, groups[name], number)
            rows[name].append(figures)
            bench.progress(
                f"{workload.name} {number + 1} {name}: {figures['rate']:.0f}/s"
            )
    return rows


def start_group(bench: Bench, stack: ExitStack, instances: int) -> list[Stage]:
    """Start so many instances that share the keys among them."""
    folder = bench.folder / f"instances-{instances}"
    folder.mkdir()
    keys = Keys(
        count=bench.scale.keys // instances,
        value_bytes=VALUE_BYTES,
        volume_size=64 * MIB,
        volume_num=2,
    )
    stages = [Stage(stack, folder / str(number), keys) for number in range(instances)]
    for stage in stages:
        stage.contender("volcache")
    return stages


def measure_group(bench: Bench, stages: list[Stage], number: int) -> Figures:
    """
    Read from a group of instances once, each key at most once.

    Raises:
        LoadError: An answer is not 200.
    """
    scale = bench.scale
    servers = [stage.contender("volcache").server for stage in stages]
    pids = [pid for server in servers for pid in family(server.pid)]
    dose = Dose(
        seconds=0,
        connections=CONNECTIONS,
        sample=scale.sample // len(stages),
        number=number,
    )
    parts = [
        [client.http_get(key) for key in listed(SAMPLE, stage.keys, dose)]
        for stage in stages
    ]
    forget(bench.folder, everything=bench.drops_everything)
    loop = client.ClosedLoop([server.port for server in servers], CONNECTIONS)
    before = usage(pids)
    try:
        run = loop.run_parted(parts, client.is_whole_http)
    finally:
        loop.close()
    figures = run_figures(run) | cost_figures(run.requests, usage(pids) - before)
    figures["resident"] = resident_bytes(pids) / MIB
    return figures
