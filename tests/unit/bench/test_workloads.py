"""The table of workloads, and how it is selected from."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from bench.workloads import (
    COMPARISON_ROUNDS,
    FULL,
    QUICK,
    WORKLOADS,
    Scale,
    Workload,
    select,
    setup_seconds,
)

TEN_MINUTES = 600


def estimate(workloads: list[Workload], scale: Scale) -> float:
    """Return the seconds a run is expected to take."""
    turns = sum(workload.seconds(scale) for workload in workloads)
    return turns + setup_seconds(workloads, scale)


def test_each_workload_has_its_own_name_and_all_are_measured_by_default() -> None:
    """A name selects one workload."""
    names = [workload.name for workload in WORKLOADS]
    assert len(set(names)) == len(names)
    assert [workload.name for workload in select("")] == names


def test_workloads_are_measured_in_the_order_of_the_table() -> None:
    """In whatever order they are asked for."""
    found = select("misses, write-1k")
    assert [workload.name for workload in found] == ["write-1k", "misses"]


def test_an_unknown_name_is_an_error_that_lists_the_names() -> None:
    """Before anything is started."""
    with pytest.raises(
        ValueError, match=r"unknown workload: reed; choose from: .*read-1k"
    ):
        select("read-1k,reed")


def test_a_full_run_and_a_full_comparison_take_less_than_ten_minutes() -> None:
    """By estimate; a quick run takes less than one and a half."""
    assert estimate(select(""), FULL) < TEN_MINUTES
    rounds = replace(FULL, rounds=COMPARISON_ROUNDS)
    assert estimate(select("", compares=True), rounds) < TEN_MINUTES
    assert estimate(select(""), QUICK) < 90


def test_a_comparison_has_two_contenders_only() -> None:
    """Workloads that start with something else than volcache are left out."""
    found = select("", compares=True)
    assert {workload.contenders for workload in found} == {("volcache", "base")}
    names = [workload.name for workload in found]
    assert {"read-1k", "write-1k", "misses"} <= set(names)
    with pytest.raises(ValueError, match="unknown workload: hot-tier"):
        select("hot-tier", compares=True)


def test_workloads_with_the_same_dataset_stand_together() -> None:
    """Their servers are filled once."""
    datasets = [workload.dataset(FULL) for workload in WORKLOADS]
    changes = sum(a != b for a, b in pairwise(datasets))
    assert changes == len(set(datasets)) - 1
