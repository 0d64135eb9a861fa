"""
What matters most about an instance, as one sentence.

The numbers may come from an older version: what is missing in them is not judged.
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
_SERVER_ERROR: Final = 500
_PROBLEM_MAX: Final = 200  # Characters; what an instance answers may be anything.
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


def health_of(stats: Stats | InstanceError, before: Stats | None = None) -> Health:
    """
    Return what matters most about an instance.

    Args:
        stats: Its numbers, or why there are none.
        before: Its numbers at an earlier time: errors since then are recent ones.
    """
    if isinstance(stats, InstanceError):
        return Health(DOWN, "down", one_line(stats.reason, _PROBLEM_MAX))
    if before is not None and at(before, "started") != at(stats, "started"):
        before = None
    worst = max(_found(stats, before), key=lambda health: health.severity)
    return worst._replace(problem=one_line(worst.problem, _PROBLEM_MAX))


def _found(stats: Stats, before: Stats | None) -> Iterator[Health]:
    """Yield everything that there is to say, the most important of equals first."""
    yield from _readiness(stats)
    yield from _disk(stats)
    yield from _errors(stats, before)
    yield from _damage_at_start(stats)
    yield from _hot_tier(stats)
    yield from _misdirected(stats)
    yield from _answers(stats, before)
    yield from _commands(stats, before)
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


def _errors(stats: Stats, before: Stats | None) -> Iterator[Health]:
    """Tell of errors of the disk: when the last one was, or how many there are."""
    now = number(stats, "now")
    for kind, counter, noun, severity in _ERRORS:
        count = number(stats, "store", counter)
        grown = count - number(before, "store", counter) if before else 0
        if not count:
            continue
        last = at(stats, "store", "last_errors", kind)
        if _is_number(last):
            age = max(0.0, now - float(last))
            text = f"{counted(int(count), noun, ',')}, the last {span(age)} ago"
            what = at(stats, "store", "last_error_texts", kind)
            text += f": {what}" if isinstance(what, str) and what else ""
            if age <= RECENT_SECONDS:
                yield _ill(severity, text)
            elif age <= REMARK_SECONDS:
                yield _ill(WARNING, text)
        elif grown > 0:
            yield _ill(severity, f"{counted(int(grown), noun, ',')} just now")
        else:
            up = span(number(stats, "uptime_seconds"))
            text = f"{counted(int(count), noun, ',')} since its start {up} ago"
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


def _misdirected(stats: Stats) -> Iterator[Health]:
    """Tell of recent requests for keys of other instances."""
    last = at(stats, "requests", "last_misdirected")
    age = max(0.0, number(stats, "now") - float(last)) if _is_number(last) else math.inf
    if age <= RECENT_SECONDS:
        total = sum(
            number(stats, "requests", "misdirected", kind) for kind in ("read", "write")
        )
        count = counted(int(total), "request", ",")
        text = f"{count} misdirected: for keys of other instances, the last {span(age)} ago"
        yield _ill(WARNING, text)


def _answers(stats: Stats, before: Stats | None) -> Iterator[Health]:
    """Tell of answers 5xx: of those since the earlier time, or since the start."""
    now, then = _by_status(stats), _by_status(before) if before else {}
    grown = {status: max(0, n - then.get(status, 0)) for status, n in now.items()}
    total = sum(grown.values())
    failed = {s: n for s, n in grown.items() if s >= _SERVER_ERROR and n}
    share = sum(failed.values()) / total if total else 0.0
    if share > ERROR_SHARE:
        statuses = ", ".join(str(status) for status in sorted(failed))
        when = "" if before else " since its start"
        yield _ill(WARNING, f"{share:.1%} of requests{when} are answered {statuses}")


def _by_status(stats: Stats) -> dict[int, int]:
    """Return the number of answers by status."""
    found: dict[int, int] = {}
    rows = at(stats, "requests", "by")
    for row in rows if isinstance(rows, list) else []:
        status, count = at(row, "status"), at(row, "count")
        if isinstance(status, int) and _is_number(count):
            found[status] = found.get(status, 0) + int(count)
    return found


def _commands(stats: Stats, before: Stats | None) -> Iterator[Health]:
    """Tell of commands of memcached clients that failed, as `_answers` does."""
    total, failed = _failed_commands(stats)
    if before:
        total_then, failed_then = _failed_commands(before)
        total, failed = total - total_then, failed - failed_then
    if total > 0 and failed / total > ERROR_SHARE:
        when = "" if before else " since its start"
        share = f"{failed / total:.1%}"
        yield _ill(WARNING, f"{share} of memcached commands{when} failed")


def _failed_commands(stats: Stats) -> tuple[float, float]:
    """Return the number of commands, and of those that failed."""
    rows = at(stats, "memcache", "by")
    known = rows if isinstance(rows, list) else []
    failed = [row for row in known if at(row, "result") == "failed"]
    return sum(number(row, "count") for row in known), sum(
        number(row, "count") for row in failed
    )


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
