"""Volumes that are overwritten under full write load, beside bare writes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from os import sync
from typing import TYPE_CHECKING, Final

from contenders import Keys
from latency import Run
from load import LoadError
from machine import ROOT
from page_cache import forget_files
from pwrite_loop import Job
from runner import measure_once, run_figures
from traffic import Dose, Traffic

if TYPE_CHECKING:
    from contenders import Contender
    from results import Figures, Rows
    from runner import Bench, Workload

VALUE_BYTES: Final = 1024
RECORD_BYTES: Final = VALUE_BYTES + 70  # With its header and its key.
VOLUMES: Final = 2
FILL_BYTES: Final = 256 * 1024
SYNC_SECONDS: Final = 1.0  # As volcache does by default.
BARE: Final = {"pwrite": 0.0, "pwrite, fdatasync every second": SYNC_SECONDS}
PUT: Final = Traffic(kind="put")


def measure_rotation(bench: Bench, workload: Workload) -> Rows:
    """Write as fast as volcache takes it, then as many bytes as fast without it."""
    scale = bench.scale
    volume = scale.rotation_volume
    keys = Keys(
        count=scale.keys,
        value_bytes=VALUE_BYTES,
        stored=False,
        volume_size=volume,
        volume_num=VOLUMES,
    )
    stage = bench.stage(workload.name, keys)
    servers = [name for name in bench.rows_of(workload) if name not in BARE]
    contenders = {name: stage.contender(name) for name in servers}
    dose = Dose(seconds=scale.rotation_seconds, connections=scale.connections, sample=0)
    for name in servers:
        fill_all_volumes(contenders[name], keys, dose)
    rows: Rows = {name: [] for name in bench.rows_of(workload)}
    rate = 0.0
    for number, name in bench.turns(servers):
        # A slot whose turn comes was written long ago: no page of it is in memory.
        forget_files(stage.folder)
        figures = measure_once(contenders[name], keys, PUT, dose)
        written = figures["rate"] * dose.seconds * RECORD_BYTES
        figures["rotations"] = written / volume
        rows[name].append(figures)
        bench.progress(
            f"{workload.name} {number + 1} {name}: p99.9 {figures['p999']:.2f} ms,"
            f" at most {figures['max']:.2f} ms, {figures['rotations']:.1f} volumes"
        )
        if name != "volcache":
            continue
        rate = figures["rate"]
        for bare, synced_every in BARE.items():
            sync()
            rows[bare].append(measure_bare(bench, rate, synced_every))
    return rows


def fill_all_volumes(contender: Contender, keys: Keys, dose: Dose) -> None:
    """Write until every volume has been full, so that each turn overwrites them."""
    large = replace(keys, value_bytes=FILL_BYTES)
    written = 0.0
    while written < keys.volume_num * keys.volume_size:
        figures = measure_once(contender, large, PUT, replace(dose, seconds=1))
        written += figures["rate"] * FILL_BYTES


def measure_bare(bench: Bench, rate: float, synced_every: float) -> Figures:
    """
    Write without a server.

    Raises:
        LoadError: The process failed.
    """
    folder = bench.folder / "pwrite"
    folder.mkdir()
    job = Job(
        record_bytes=RECORD_BYTES,
        file_bytes=bench.scale.rotation_volume,
        files=VOLUMES,
        rate=rate,
        seconds=bench.scale.rotation_seconds,
        synced_every=synced_every,
    )
    script = str(ROOT / "bench" / "pwrite_loop.py")
    done = subprocess.run(
        [sys.executable, script, str(folder), json.dumps(asdict(job))],
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(folder)
    if done.returncode:
        raise LoadError(f"{script} failed:\n{done.stderr}")
    return run_figures(Run(**json.loads(done.stdout)))
