"""
What matters most about an instance, as one sentence.

What is missing in the numbers is not judged.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from volcache.errors import InstanceError
from volcache.text import counted, one_line, span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.fleet.remote import Stats

HEALTHY: Final = 0
WARNING: Final = 1
DEGRADED: Final = 2
DOWN: Final = 3

# An error is a problem for five minutes, and a remark for a day.
RECENT_SECONDS: Final = 300.0
REMARK_SECONDS: Final = 86400.0
ERROR_SHARE: Final = 0.01  # of all answers
DESCRIPTOR_SHARE: Final = 0.8  # of the limit
_PROBLEM_MAX: Final = 200  # Characters; what an instance answers may be anything.
_NAME_MAX: Final = 100
_OTHERS_MAX: Final = 10
# Kind of error: the counter in `store`, what it is called, how bad a recent one is.
_ERRORS: Final = (
    ("write", "write_errors", "write error", DEGRADED),
    ("read", "read_errors", "read error", DEGRADED),
    ("sync", "sync_errors", "sync error", DEGRADED),
    ("index", "index_errors", "error of an index file", WARNING),
    ("damaged", "damaged_records", "damaged record", WARNING),
)


class Health(NamedTuple):
    """How an instance is."""

    severity: int  # HEALTHY, WARNING, DEGRADED or DOWN
    state: str  # "ok", "warning", "degraded", "not ready" or "down"
    problem: str  # One sentence without a full stop; empty if it is healthy.


def health_of(stats: Stats | InstanceError) -> Health:
    """
    Return what matters most about an instance.

    Args:
        stats: Its numbers, or why there are none.
    """
    if isinstance(stats, InstanceError):
        return Health(DOWN, "down", one_line(stats.reason, _PROBLEM_MAX))
    worst = max(_found(stats), key=lambda health: health.severity)
    return worst._replace(problem=one_line(worst.problem, _PROBLEM_MAX))


def _found(stats: Stats) -> Iterator[Health]:
    """Yield everything that there is to say, the most important of equals first."""
    yield from _readiness(stats)
    yield from _disk(stats)
    yield from _errors(stats)
    yield from _damage_at_start(stats)
    yield from _hot_tier(stats)
    yield from _answers(stats)
    yield from _descriptors(stats)
    yield Health(HEALTHY, "ok", "")


def _readiness(stats: Stats) -> Iterator[Health]:
    if stats.get("ready") is False:
        problem = stats.get("problem")
        if not isinstance(problem, str) or not problem:
            problem = "it is stopping, or its disk cannot be read"
        yield Health(DEGRADED, "not ready", problem)


def _disk(stats: Stats) -> Iterator[Health]:
    """Tell of a disk that refuses to write, or has less space than the settings say."""
    state = at(stats, "store", "disk", "state")
    if isinstance(state, str):
        yield Health(DEGRADED, "degraded", f"the disk refuses to write: it is {state}")
    if at(stats, "store", "disk", "limited") is True:
        space = number(stats, "store", "disk", "volumes")
        volumes = counted(int(number(stats, "store", "volume_num")), "volume", ",")
        yield _ill(WARNING, f"the disk has space for {space:,.0f} of {volumes}")


def _errors(stats: Stats) -> Iterator[Health]:
    """Tell of errors of the disk, and when the last one was."""
    for kind, counter, noun, severity in _ERRORS:
        last = at(stats, "store", "last_errors", kind)
        if not _is_number(last):
            continue
        age = max(0.0, number(stats, "now") - float(last))
        count = counted(int(number(stats, "store", counter)), noun, ",")
        text = f"{count}, the last {span(age)} ago"
        what = at(stats, "store", "last_error_texts", kind)
        text += f": {what}" if isinstance(what, str) and what else ""
        if age <= RECENT_SECONDS:
            yield _ill(severity, text)
        elif age <= REMARK_SECONDS:
            yield _ill(WARNING, text)


def _ill(severity: int, text: str) -> Health:
    return Health(severity, "degraded" if severity == DEGRADED else "warning", text)


def _damage_at_start(stats: Stats) -> Iterator[Health]:
    if at(stats, "store", "recovery", "meta_lost") is True:
        yield _ill(WARNING, "META.txt was lost, and rebuilt at its start")
    if damaged := int(number(stats, "store", "recovery", "damaged")):
        yield _ill(WARNING, f"{counted(damaged, 'damaged place', ',')} at its start")


def _hot_tier(stats: Stats) -> Iterator[Health]:
    servers = at(stats, "hot", "servers")
    if not isinstance(servers, list):
        return
    known = [row for row in servers if isinstance(row, dict)]
    down = [str(row.get("address", "")) for row in known if row.get("up") is False]
    if down:
        which = f"{len(down)} of {len(known)} memcached servers" if known[1:] else ""
        verb = "are" if len(down) > 1 else "is"
        yield _ill(WARNING, f"{which or 'memcached'} {verb} down: {', '.join(down)}")


def _answers(stats: Stats) -> Iterator[Health]:
    """Tell of failures, as a share of all in the last minutes."""
    share, statuses = _failed(at(stats, "requests", "recent"), "status")
    if share > ERROR_SHARE:
        yield _ill(WARNING, f"{share:.1%} of the last requests are answered {statuses}")
    share, _ = _failed(at(stats, "memcache", "recent"), "result")
    if share > ERROR_SHARE:
        yield _ill(WARNING, f"{share:.1%} of the last memcached commands failed")


def _failed(rows: object, column: str) -> tuple[float, str]:
    """Return the share of failures in a table, and which there were."""
    found = {
        str(at(row, column)): max(0.0, number(row, "count"))
        for row in (rows if isinstance(rows, list) else [])
    }
    failed = {
        value: n
        for value, n in found.items()
        if n and (value == "failed" or (value.isdecimal() and int(value) >= 500))  # noqa: PLR2004
    }
    return sum(failed.values()) / (sum(found.values()) or 1), ", ".join(sorted(failed))


def refused(stats: Stats) -> dict[str, float]:
    """Return of which instances keys were refused lately, and how many seconds ago."""
    rows, now = at(stats, "requests", "others"), number(stats, "now")
    return {
        one_line(owner, _NAME_MAX): max(0.0, now - number(row, "last"))
        for row in (rows if isinstance(rows, list) else [])[:_OTHERS_MAX]
        if isinstance(owner := at(row, "owner"), str)
    }


def _descriptors(stats: Stats) -> Iterator[Health]:
    used = number(stats, "process", "open_fds")
    limit = number(stats, "process", "max_fds")
    if limit and used > DESCRIPTOR_SHARE * limit:
        text = f"{used:,.0f} of {limit:,.0f} file descriptors are in use"
        yield _ill(WARNING, text)


def at(stats: Any, *keys: str) -> Any:  # noqa: ANN401 - As JSON has it.
    """Return what JSON has at a path of keys; None if there is nothing."""
    for key in keys:
        if not isinstance(stats, dict):
            return None
        stats = stats.get(key)
    return stats


def number(stats: Any, *keys: str) -> float:  # noqa: ANN401 - As JSON has it.
    """Return the number that JSON has at a path of keys; 0 if there is none."""
    found = at(stats, *keys)
    return float(found) if _is_number(found) else 0.0


def _is_number(value: object) -> bool:
    """Return whether a value of JSON is a finite number that Python converts."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
