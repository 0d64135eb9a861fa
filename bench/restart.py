"""Restarts with very many keys, measured by the pieces of `boot.py`."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from boot import MIB, WAYS, Options, job_of, run_worker
from runner import SkippedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from results import Figures, Rows
    from runner import Bench, Workload


def restarting(which: int) -> Callable[[Bench, Workload], Rows]:
    """Make the measuring of one of the two restarts of a scale."""

    def measure(bench: Bench, workload: Workload) -> Rows:
        keys = bench.scale.restart_keys[which]
        if not keys:
            raise SkippedError("a short look has no time for it")
        bench.close()
        options = Options(keys=keys, key_size=100, value_size=10, volume_size=64 * MIB)
        mount_point = bench.folder / workload.name
        bench.progress(f"{workload.name}: storing {keys} keys")
        run_worker("fill", mount_point, job_of(options))
        rows: Rows = {}
        for number in range(bench.scale.restart_rounds[which]):
            for way in WAYS:
                way.prepare(mount_point)
                opened = json.loads(run_worker("open", mount_point, job_of(options)))
                rows.setdefault(way.name, []).append(figures_of(opened, keys))
                bench.progress(
                    f"{workload.name} {number + 1} {way.name}: {opened['seconds']:.2f} s"
                )
        shutil.rmtree(mount_point)
        return rows

    return measure


def figures_of(opened: dict[str, float], keys: int) -> Figures:
    """Name what opening cost."""
    return {
        "boot": opened["seconds"],
        "keys_rate": keys / opened["seconds"],
        "key_memory": opened["resident"] / keys,
        "key_memory_peak": opened["resident_peak"] / keys,
        "key_objects": opened["objects"] / keys,
    }
