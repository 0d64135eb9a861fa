"""The goals of the data plane."""

from __future__ import annotations

from bench.extra.data_plane import GOALS, Goal
from bench.report import Result
from bench.workloads import WORKLOADS
from support.tables import rows

RESULT = Result(
    name="hot-tier",
    text="GET",
    rounds={
        "hot tier": [{"cpu": 30.0, "own": 12.0, "rate": 50.0, "p99": 2.0}] * 2,
        "volcache": [{"cpu": 6.0, "rate": 100.0}, {"cpu": 4.0, "rate": 50.0}],
    },
)


@rows(
    (Goal("", "hot-tier", "volcache", 2.5, "own", "cpu"), 2.5, True),
    (Goal("", "hot-tier", "volcache", 2.4, "own", "cpu"), 2.5, False),
    (Goal("", "hot-tier", "volcache", 1.3, part=5.0), 1.25, True),
    (Goal("", "hot-tier", "volcache", 0.75, "rate"), 0.75, True),
    (Goal("", "hot-tier", "volcache", 0.8, "rate"), 0.75, False),
    (Goal("", "hot-tier", "", 3, "p99"), 2.0, True),
)
def test_a_goal_is_a_limit_of_a_ratio_or_a_figure(
    goal: Goal, figure: float, *, is_met: bool
) -> None:
    """A rate is to be higher, all others lower."""
    spread = goal.spread(RESULT)
    assert spread is not None
    assert round(spread.median, 6) == figure
    assert goal.is_met(spread.median) == is_met


def test_each_goal_names_a_workload_and_its_contenders() -> None:
    """A name that nothing measures would leave its goal out of the table."""
    known = {one.name: one.contenders for one in WORKLOADS}
    others = {"memcached-hangs", "cold-flood", "cold-rate", "two-clients"}
    for goal in GOALS:
        if goal.workload not in others:
            assert goal.other in known[goal.workload][1:]
