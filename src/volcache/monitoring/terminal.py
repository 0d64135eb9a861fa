"""
The numbers of a running instance, asked for over HTTP and told in words.

Knows `/-/stats` as OPERATIONS.md has it and nothing else of the instance, which may be on
another machine and of another version. Prints nothing itself.
"""

from __future__ import annotations

import http.client
import json
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from volcache.errors import ConfigError, InstanceError
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TIMEOUT_SECONDS: Final = 5.0
ANSWER_BYTES_MAX: Final = 64 << 20
REFRESH_SECONDS: Final = 1.0
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 86400
_HOTTEST: Final = 5
_HOME: Final = "\x1b[H"
_TO_END_OF_LINE: Final = "\x1b[K"
_TO_END_OF_SCREEN: Final = "\x1b[J"
_ERRORS: Final = (
    *("damaged_records", "read_errors", "write_errors"),
    *("sync_errors", "index_errors"),
)

Stats = dict[str, Any]


def fetch(url: str) -> Stats:
    """
    Ask an instance for its numbers.

    Args:
        url: Where it is, such as `http://127.0.0.1:1234`.

    Raises:
        ConfigError: The URL is none of http or https.
        InstanceError: There is no answer, or not one of `/-/stats`.
    """
    where = urlsplit(url)
    kinds = {
        "http": http.client.HTTPConnection,
        "https": http.client.HTTPSConnection,
    }
    try:
        host, port = where.hostname, where.port
    except ValueError:
        host = port = None
    if where.scheme not in kinds or not host:
        message = f"{url}: not a URL such as http://127.0.0.1:1234"
        raise ConfigError(message)
    connection = kinds[where.scheme](host, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", f"{where.path.rstrip('/')}/-/stats")
        answer = connection.getresponse()
        body = answer.read(ANSWER_BYTES_MAX)
        if answer.status != HTTPStatus.OK:
            raise InstanceError(url, f"/-/stats is answered with {answer.status}")
        stats = json.loads(body)
        _ = stats["store"]["keys"], stats["requests"]["total"]
    except OSError as error:
        raise InstanceError(url, error.strerror or str(error)) from error
    except (http.client.HTTPException, ValueError, LookupError, TypeError) as error:
        raise InstanceError(url, "the answer is not one of volcache's") from error
    else:
        return dict(stats)
    finally:
        connection.close()


def report(stats: Stats, before: Stats | None = None) -> list[str]:
    """
    Tell numbers in lines of text.

    Args:
        stats: As `fetch` returned them.
        before: Earlier ones of the same process: rates are those since then. Without
            them, or when the instance was started again, those since the start.

    Raises:
        InstanceError: Something is missing.
    """
    if before and before.get("started") != stats.get("started"):
        before = None
    try:
        lines = list(_lines(stats, before))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise InstanceError("the instance", "numbers are missing") from error
    # What is shown was sent by somebody: it must not steer a terminal.
    return ["".join(c if c.isprintable() else "?" for c in line) for line in lines]


def refresh(
    url: str, write: Callable[[str], object], *, pause: Callable[[float], None]
) -> None:
    """
    Write the report of an instance over itself, again and again, until interrupted.

    An instance that is gone later is said so and asked again.

    Raises:
        ConfigError, InstanceError: As `fetch`, for the first time.
    """
    before: Stats | None = None
    stats = fetch(url)
    lines = report(stats)
    while True:
        ended = [f"{line}{_TO_END_OF_LINE}\n" for line in lines]
        write("".join([_HOME, *ended, _TO_END_OF_SCREEN]))
        pause(REFRESH_SECONDS)
        try:
            before, stats = stats, fetch(url)
            lines = report(stats, before)
        except InstanceError as error:
            lines = [str(error), f"asked again every {span(REFRESH_SECONDS)}"]


def _lines(stats: Stats, before: Stats | None) -> Iterator[str]:
    """Yield the report, one subject a line."""
    store, requests = stats["store"], stats["requests"]
    ready = "ready" if stats["ready"] else "NOT READY"
    uptime = span(stats["uptime_seconds"])
    yield f"volcache {stats['version']} at {store['mount_point']}, up {uptime}, {ready}"
    seconds = max(
        stats["now"] - before["now"] if before else stats["uptime_seconds"], 1e-3
    )
    old = before["requests"] if before else None
    yield f"reads     {_reads(requests, old)}"
    asked = _since(requests, old, "total") / seconds
    given, taken = (
        _since(requests, old, n) / seconds for n in ("bytes_out", "bytes_in")
    )
    yield (
        f"requests  {asked:,.1f}/s, {size(given)}/s out, {size(taken)}/s in; "
        f"{requests['total']:,} since the start"
    )
    for name, label in (("GET", "GET"), ("PUT", "PUT"), ("disk_read", "disk")):
        yield f"{label:<9} {_durations(stats, before, name)}"
    head = store["head"]
    yield (
        f"volumes   {store['volume_num']} of {size(store['volume_size'])}; "
        f"volume {head['id']} is written up to {size(head['write_position'])}; "
        f"{size(store['live_bytes'])} live, {size(store['dead_bytes'])} dead, "
        f"{size(store['free_bytes'])} free; {counted(store['keys'], 'key', ',')}"
    )
    yield f"hot tier  {_hot(stats['hot'])}"
    errors = [f"{n.replace('_', ' ')} {store[n]:,}" for n in _ERRORS if store[n]]
    yield f"errors    {', '.join(errors) or 'none'}"
    hottest = [
        f"{row['key']} (about {row['reads']:,})" for row in stats["hottest"][:_HOTTEST]
    ]
    yield f"hottest   {', '.join(hottest) or 'not enough reads yet'}"


def _since(now: Stats, before: Stats | None, name: str) -> int:
    """Return how much a counter has grown."""
    return max(0, int(now[name]) - int(before[name] if before else 0))


def _reads(now: Stats, before: Stats | None) -> str:
    """Tell where reads were answered from."""
    hits = {
        name: _since(now["hits"], before and before["hits"], name)
        for name in now["hits"]
    }
    missed = _since(now, before, "missed")
    reads = sum(hits.values()) + missed
    if not reads:
        return "none" if before else "none yet"
    found = ", ".join(f"{n / reads:.1%} {name}" for name, n in hits.items())
    return f"{1 - missed / reads:.1%} hits: {found}; {missed / reads:.1%} misses"


def _durations(stats: Stats, before: Stats | None, name: str) -> str:
    """Tell how long half and nearly all of something took."""
    counts = list(stats["latency"][name]["counts"])
    if before:
        old = before["latency"][name]["counts"]
        counts = [max(0, n - o) for n, o in zip(counts, old, strict=False)]
    if not sum(counts):
        return "none"
    half, most = (duration(quantile(counts, share)) for share in (0.5, 0.99))
    return f"half within {half}, 99 of 100 within {most}"


def _hot(hot: Stats | None) -> str:
    """Tell how memcached is."""
    if hot is None:
        return "off"
    servers = [f"{s['address']} {'up' if s['up'] else 'DOWN'}" for s in hot["servers"]]
    failures = [f"{kind} {n:,}" for kind, n in hot["failures"].items() if n]
    told = f"{', '.join(servers)}; {counted(hot['promoted_keys'], 'key', ',')} promoted"
    return f"{told}; failures: {', '.join(failures)}" if failures else told


def quantile(counts: list[int], share: float) -> float:
    """
    Return the seconds that a share of all durations stay below.

    Args:
        counts: At place i, how many took from 2^(i-1) up to 2^i nanoseconds; one at least.
        share: Such as 0.99. Within a place, durations are taken as even by logarithm.
    """
    wanted, below = share * sum(counts), 0
    for place, count in enumerate(counts):
        if count and below + count >= wanted:
            return float(2.0 ** (place - 1 + (wanted - below) / count) / 1e9)
        below += count
    return float(2.0 ** len(counts) / 1e9)


def size(count: float) -> str:
    """Return bytes in the unit that suits them."""
    units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while count >= 1023.5 and len(units) > 1:  # noqa: PLR2004 - 1024 when rounded.
        count /= 1024
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


def duration(seconds: float) -> str:
    """Return a short time with two digits."""
    for unit, factor in (("ns", 1e9), ("µs", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:  # noqa: PLR2004 - 1000 when rounded.
            value = seconds * factor
            digits = f"{value:.0f}" if value >= 10 else f"{value:.1f}"  # noqa: PLR2004
            return f"{digits} {unit}"
    return f"{seconds:.1f} s"


def span(seconds: float) -> str:
    """Return a long time in its two largest units."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"
