"""
Compare the instances of a cluster: what should be the same and is not.

Each check returns findings, one sentence each. Nothing is changed.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.fleet.collector import capacity_bytes
from volcache.fleet.health import at, number
from volcache.text import one_line, size, span

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from volcache.fleet.collector import Watched
    from volcache.fleet.remote import Stats
    from volcache.fleet.targets import Target

CLOCK_SECONDS: Final = 3.0  # A clock may differ by this much.
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


class _Seen(NamedTuple):
    """An instance, with its numbers if it has answered."""

    target: Target
    stats: Stats | None
    watched: Watched


class Finding(NamedTuple):
    """Something that is not as it should be."""

    check: str  # "answer", "twice", "version", "settings", "weight", "clock", "gate"
    text: str
    instances: list[str]  # Names of those it is about.


def check(instances: Sequence[Watched]) -> list[Finding]:
    """Return everything that is not as it should be, the most important first."""
    seen = [_Seen(one.target, one.stats, one) for one in instances]
    return [
        *_answers(seen),
        *_twice(seen),
        *_versions(seen),
        *_settings(seen),
        *_weights(seen),
        *_gates(seen),
        *_clocks(seen),
    ]


def _answers(seen: Sequence[_Seen]) -> Iterator[Finding]:
    for one in seen:
        name = one.target.name
        if one.stats is None and not one.target.is_down:
            reason = one_line(one.watched.failure, 2 * _SHOWN_MAX)
            yield Finding("answer", f"{name} does not answer: {reason}", [name])
        elif one.stats is not None and one.target.is_down:
            text = f"{name} answers, but the list excludes it (down)"
            yield Finding("answer", text, [name])


def _twice(seen: Sequence[_Seen]) -> Iterator[Finding]:
    """Find names that lead to the same process."""
    processes: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    for one in seen:
        started = number(one.stats, "started")
        pid = number(one.stats, "process", "pid")
        where = at(one.stats, "store", "mount_point")
        if started and pid and isinstance(where, str):
            processes[pid, started, where].append(one.target.name)
    for names in processes.values():
        if names[1:]:
            text = f"{_listed(names)} are the same instance, which is in the list twice"
            yield Finding("twice", text, names)


def _versions(seen: Sequence[_Seen]) -> Iterator[Finding]:
    values = {s.target.name: at(s.stats, "version") for s in seen if s.stats}
    yield from _differing("version", "version", values)


def _settings(seen: Sequence[_Seen]) -> Iterator[Finding]:
    """Compare each setting that at least one instance tells."""
    known: dict[str, dict[str, object]] = {}
    weights = {one.target.name: one.target.weight for one in seen}
    for one in seen:
        settings = at(one.stats, "settings")
        if isinstance(settings, dict):
            known[one.target.name] = {str(k): v for k, v in settings.items()}
    names = dict.fromkeys(name for found in known.values() for name in found)
    for name in names:
        if name in _OWN:
            continue
        values = {who: has[name] for who, has in known.items() if name in has}
        groups: defaultdict[int, dict[str, object]] = defaultdict(dict)
        for who, value in values.items():
            groups[weights[who] if name in _BY_DISK else 0][who] = value
        for group in groups.values():
            yield from _differing("settings", one_line(name, _SHOWN_MAX), group)


def _differing(check: str, what: str, values: dict[str, object]) -> Iterator[Finding]:
    """Yield a finding if instances have different values of something."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name, value in values.items():
        if value is not None:
            groups[json.dumps(value, sort_keys=True)].append(name)
    if len(groups) < 2:  # noqa: PLR2004 - One is what there should be.
        return
    (usual, most), *others = sorted(groups.items(), key=lambda group: -len(group[1]))
    parts = [f"{_value(value)} on {_listed(names)}" for value, names in others]
    counts = f"{_value(usual)} on {len(most)} of {len(values)}"
    text = f"{what} differs: {counts}, but {', '.join(parts)}"
    yield Finding(check, text, [name for _, names in others for name in names])


def _value(encoded: str) -> str:
    return one_line(encoded, _SHOWN_MAX)


def _weights(seen: Sequence[_Seen]) -> Iterator[Finding]:
    """Find weights that are not proportional to what the instances can hold."""
    rates = {
        one.target.name: (one.target, capacity_bytes(one.stats))
        for one in seen
        if one.stats and not one.target.is_down and capacity_bytes(one.stats)
    }
    if not rates:
        return
    usual = statistics.median(held / target.weight for target, held in rates.values())
    for name, (target, held) in rates.items():
        if abs(held / target.weight / usual - 1) > WEIGHT_SHARE:
            wanted = max(1, round(held / usual))
            text = (
                f"{name} has weight {target.weight} and holds {size(held)}; in proportion"
                f" to the others its weight would be {wanted}"
            )
            yield Finding("weight", text, [name])


def _gates(seen: Sequence[_Seen]) -> Iterator[Finding]:
    names = [
        one.target.name for one in seen if at(one.stats, "server", "gate") is False
    ]
    if names:
        yield Finding("gate", f"bjoern has no gate on {_listed(names)}", names)


def _clocks(seen: Sequence[_Seen]) -> Iterator[Finding]:
    """Find clocks that differ from those of most instances."""
    told = [one for one in seen if number(one.stats, "now")]
    usual = 0.0
    if len(told) >= _VOTERS_MIN:
        usual = statistics.median(one.watched.about.clock_ahead for one in told)
    for one in told:
        ahead = one.watched.about.clock_ahead - usual
        if abs(ahead) > CLOCK_SECONDS + one.watched.about.clock_error:
            whose = "most others" if len(told) >= _VOTERS_MIN else "this machine"
            way = "ahead of" if ahead > 0 else "behind"
            text = f"the clock of {one.target.name} is {span(abs(ahead))} {way} {whose}"
            yield Finding("clock", text, [one.target.name])


def _listed(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(names[:_NAMES_MAX])
    more = len(names) - _NAMES_MAX
    return f"{shown} and {more} more" if more > 0 else shown
