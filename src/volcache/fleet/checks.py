"""
Compare the instances of a cluster: what should be the same and is not.

Each check returns findings, one sentence each. Nothing is changed.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from volcache.fleet.health import at, number
from volcache.text import one_line, size, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from volcache.fleet.collector import Watched
    from volcache.fleet.remote import Stats

    # The instances with their numbers, None of one that does not answer.
    _Seen = Sequence[tuple[Watched, Stats | None]]

CLOCK_SECONDS: Final = 3.0  # A clock may differ by this much.
# nginx asks an instance that returns at most 6 seconds after it answers.
RETURN_SECONDS: Final = 10.0
WEIGHT_SHARE: Final = 0.1  # A capacity per unit of weight may differ by this much.
_NAMES_MAX: Final = 5  # Instances that a finding names.
_SHOWN_MAX: Final = 60  # Characters of a value.
_VOTERS_MIN: Final = 3  # With fewer clocks, ours decides.
# Settings that instances have of their own.
_OWN: Final = frozenset(
    {"ip", "port", "mount_point", "log_file", "log_access", "ring_self"}
)
# They belong to the disk: only instances of the same weight are compared.
_BY_DISK: Final = frozenset({"volume_size", "volume_num"})


class Finding(NamedTuple):
    """Something that is not as it should be."""

    check: str  # "answer", "twice", "version", "settings", "ring", "weight", "clock"
    text: str
    instances: list[str]  # Names of those it is about.


def check(instances: Sequence[Watched]) -> list[Finding]:
    """Return everything that is not as it should be, the most important first."""
    seen = [(one, one.stats) for one in instances]
    return [
        *_answers(instances),
        *_twice(seen),
        *_versions(instances),
        *_settings(seen),
        *_rings(instances),
        *_weights(instances),
        *_clocks(instances),
    ]


def refused_keys(
    instances: Iterable[Watched],
) -> tuple[list[str], dict[str, list[str]]]:
    """
    Return whose keys other instances refuse.

    Returns:
        Those that do not answer, of which it is expected; and those that do, each with the
        instances that refuse its keys now.
    """
    known = {urlsplit(one.target.url).netloc: one for one in instances}
    down: dict[str, None] = {}
    up: defaultdict[str, list[str]] = defaultdict(list)
    for one in known.values():
        for owner, seconds in one.about.refused.items():
            other = known.get(owner)
            if other is None or other.figures is None or other.target.is_down:
                down[owner] = None
            elif (other.about.uptime_seconds or 0.0) > seconds + RETURN_SECONDS:
                up[owner].append(one.target.name)
    return list(down), up


def _answers(instances: Sequence[Watched]) -> Iterator[Finding]:
    for one in instances:
        name = one.target.name
        if one.failure and not one.target.is_down:
            reason = one_line(one.failure, 2 * _SHOWN_MAX)
            yield Finding("answer", f"{name} does not answer: {reason}", [name])
        elif one.figures and one.target.is_down:
            text = f"{name} answers, but the list excludes it (down)"
            yield Finding("answer", text, [name])


def _twice(seen: _Seen) -> Iterator[Finding]:
    """Find names that lead to the same process."""
    processes: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    for one, stats in seen:
        started, pid = number(stats, "started"), number(stats, "process", "pid")
        if started and pid:
            processes[pid, started, one.about.mount_point].append(one.target.name)
    for names in processes.values():
        if names[1:]:
            text = f"{listed(names)} are the same instance, which is in the list twice"
            yield Finding("twice", text, names)


def _versions(instances: Sequence[Watched]) -> Iterator[Finding]:
    values = {one.target.name: one.about.version or None for one in instances}
    yield from _differing("version", "version", values)


def _settings(seen: _Seen) -> Iterator[Finding]:
    """Compare each setting that at least one instance tells."""
    groups: defaultdict[tuple[str, int], dict[str, object]] = defaultdict(dict)
    for one, stats in seen:
        settings = at(stats, "settings")
        for name, value in settings.items() if isinstance(settings, dict) else ():
            if name not in _OWN:
                weight = one.target.weight if name in _BY_DISK else 0
                groups[name, weight][one.target.name] = value
    for (name, _), values in groups.items():
        yield from _differing("settings", one_line(name, _SHOWN_MAX), values)


def _differing(
    check: str, what: str, values: Mapping[str, object]
) -> Iterator[Finding]:
    """Yield a finding if instances have different values of something."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in values.items():
        if value is not None:
            groups[json.dumps(value, sort_keys=True)].append(name)
    if len(groups) < 2:  # noqa: PLR2004 - One is what there should be.
        return
    (usual, most), *others = sorted(groups.items(), key=lambda group: -len(group[1]))
    parts = [f"{_value(value)} on {listed(names)}" for value, names in others]
    told = sum(value is not None for value in values.values())
    counts = f"{_value(usual)} on {len(most)} of {told}"
    text = f"{what} differs: {counts}, but {', '.join(parts)}"
    yield Finding(check, text, [name for _, names in others for name in names])


def _value(encoded: str) -> str:
    return one_line(encoded, _SHOWN_MAX)


def _rings(instances: Sequence[Watched]) -> Iterator[Finding]:
    """Find instances that answer, and whose keys others get."""
    for owner, names in refused_keys(instances)[1].items():
        text = (
            f"keys of {owner} are refused by {listed(names)}, although it answers: nginx"
            " does not reach it, or lists of instances differ"
        )
        yield Finding("ring", text, [owner])


def _weights(instances: Sequence[Watched]) -> Iterator[Finding]:
    """Find weights that are not proportional to what the instances can hold."""
    rates = [
        (one.target, one.figures.capacity_bytes)
        for one in instances
        if one.figures and one.figures.capacity_bytes and not one.target.is_down
    ]
    usual = statistics.median([held / target.weight for target, held in rates] or [1])
    for target, held in rates:
        if abs(held / target.weight / usual - 1) > WEIGHT_SHARE:
            wanted = max(1, round(held / usual))
            text = (
                f"{target.name} has weight {target.weight} and holds {size(held)}; in"
                f" proportion to the others its weight would be {wanted}"
            )
            yield Finding("weight", text, [target.name])


def _clocks(instances: Sequence[Watched]) -> Iterator[Finding]:
    """Find clocks that differ from those of most instances."""
    clocks = [(one, one.about.clock_ahead) for one in instances]
    told = [(one, ahead) for one, ahead in clocks if ahead is not None]
    usual, whose = 0.0, "this machine"
    if len(told) >= _VOTERS_MIN:
        usual, whose = statistics.median(ahead for _, ahead in told), "most others"
    for one, ahead in told:
        seconds = abs(ahead - usual)
        if seconds > CLOCK_SECONDS + one.about.clock_error:
            way = "ahead of" if ahead > usual else "behind"
            text = f"the clock of {one.target.name} is {span(seconds)} {way} {whose}"
            yield Finding("clock", text, [one.target.name])


def listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(names[:_NAMES_MAX])
    more = len(names) - _NAMES_MAX
    return f"{shown} and {more} more" if more > 0 else shown
