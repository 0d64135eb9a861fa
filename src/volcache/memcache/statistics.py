"""What `stats` returns: numbers since the last reset, and settings."""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.histogram import NS_PER_SECOND
from volcache.monitoring.commands import KINDS
from volcache.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from volcache.cache import Cache
    from volcache.monitoring.commands import CommandStats

# The version that is followed. Clients compare it with versions of memcached.
VERSION: Final = "1.6.18"
_READS: Final = (*KINDS["get"], "gat", "gats")
_SETS: Final = KINDS["set"]
_TOUCHES: Final = KINDS["touch"]
# Names, the commands that count, and which of their results; empty: any.
_COUNTED: Final[tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]] = (
    ("cmd_get", _READS, ("hit", "miss")),
    ("cmd_set", _SETS, ()),
    ("cmd_flush", ("flush_all",), ()),
    ("cmd_touch", _TOUCHES, ()),
    ("cmd_meta", ("mg", "ms", "md", "ma", "mn", "me"), ()),
    ("get_hits", _READS, ("hit",)),
    ("get_misses", _READS, ("miss",)),
    ("delete_misses", KINDS["delete"], ("not_found",)),
    ("delete_hits", KINDS["delete"], ("deleted",)),
    ("incr_misses", ("incr",), ("not_found",)),
    ("incr_hits", ("incr",), ("stored",)),
    ("decr_misses", ("decr",), ("not_found",)),
    ("decr_hits", ("decr",), ("stored",)),
    ("cas_misses", ("cas",), ("not_found",)),
    ("cas_hits", ("cas",), ("stored",)),
    ("cas_badval", ("cas",), ("exists",)),
    ("touch_hits", _TOUCHES, ("touched", "hit")),
    ("touch_misses", _TOUCHES, ("not_found", "miss")),
    ("store_too_large", _SETS, ("too_large",)),
    ("auth_cmds", ("auth",), ()),
    ("auth_errors", ("auth",), ("denied",)),
)


class ServerFacts(NamedTuple):
    """What `stats` shows of the settings."""

    listen: str
    connections_max: int
    value_size: int
    threads: int = 1
    idle_seconds: float = 0.0  # 0 = no limit


class ServerStatistics:
    """Answers `stats`; for one thread."""

    def __init__(
        self,
        cache: Cache,
        stats: CommandStats,
        facts: ServerFacts,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """
        Begin.

        Args:
            cache: Asked for its usage.
            stats: What the listener counts.
            facts: Of the settings.
            clock: Nanoseconds since the epoch.
        """
        self._store = cache.store
        self._stats = stats
        self._facts = facts
        self._clock = clock
        self._started = time.monotonic()
        # Descriptor, client, whether it is idle, and the seconds since its last command.
        self.connections: Callable[[], list[tuple[int, str, bool, float]]] = list
        self._baseline: dict[tuple[str, str], int] = {}  # at the last "stats reset"
        self._connections_before = 0
        self._evictions_before = 0

    @property
    def port(self) -> str:
        """Return the TCP port of the protocol; empty: it has a unix socket."""
        listen = self._facts.listen
        return "" if listen.startswith("/") else listen.rpartition(":")[2]

    def report(
        self, argument: bytes, *, needs_token: bool, may_flush: bool
    ) -> bytes | None:
        """
        Return the lines that a client asks for; None: there are no such ones.

        The last two are settings that may change.
        """
        self._stats.flush()
        pairs: Iterable[tuple[str, object]] = ()
        if argument == b"reset":
            self._baseline = self._stats.commands()
            self._connections_before = self._stats.connections_total
            self._evictions_before = self._store.stats.evicted_records
        elif argument == b"settings":
            pairs = self._settings(needs_token=needs_token, may_flush=may_flush)
        elif argument == b"conns":
            pairs = self._connections()
        elif not argument:
            pairs = self._general()
        elif argument not in {b"items", b"slabs", b"sizes"}:  # There are no slabs.
            return None
        return "".join(f"STAT {name} {value}\r\n" for name, value in pairs).encode()

    def _settings(
        self, *, needs_token: bool, may_flush: bool
    ) -> Iterable[tuple[str, object]]:
        facts = self._facts
        is_unix = not self.port
        host = facts.listen.rpartition(":")[0]
        return (
            ("maxbytes", self._capacity()),
            ("maxconns", facts.connections_max),
            ("tcpport", self.port or 0),
            ("udpport", 0),
            ("inter", "NULL" if is_unix else host),
            ("evictions", "on"),
            ("domain_socket", facts.listen if is_unix else "NULL"),
            ("umask", "700"),
            ("num_threads", facts.threads),
            ("cas_enabled", "yes"),
            ("binding_protocol", "auto-negotiate"),
            ("auth_enabled_sasl", _yes(needs_token)),
            ("auth_enabled_ascii", _yes(needs_token)),
            ("item_size_max", facts.value_size),
            ("flush_enabled", _yes(may_flush)),
            ("dump_enabled", "no"),
            ("idle_timeout", round(facts.idle_seconds)),
        )

    def _connections(self) -> Iterable[tuple[str, object]]:
        listen = self._facts.listen
        kind = "tcp6" if listen.startswith("[") else "tcp"
        for number, address, is_idle, seconds in self.connections():
            yield f"{number}:addr", address
            if address != "unix":
                yield f"{number}:listen_addr", f"{kind}:{listen}"
            yield f"{number}:state", "conn_read" if is_idle else "conn_parse_cmd"
            yield f"{number}:secs_since_last_cmd", int(seconds)

    def _capacity(self) -> int:
        usage = self._store.usage(volumes=False)
        return usage.volume_num * usage.volume_size

    def _general(self) -> Iterable[tuple[str, object]]:
        stats, store = self._stats, self._store
        times = resource.getrusage(resource.RUSAGE_SELF)
        return (
            ("pid", os.getpid()),
            ("uptime", int(time.monotonic() - self._started)),
            ("time", self._clock() // NS_PER_SECOND),
            ("version", VERSION),
            ("volcache_version", __version__),
            ("pointer_size", 64),
            ("rusage_user", f"{times.ru_utime:.6f}"),
            ("rusage_system", f"{times.ru_stime:.6f}"),
            ("max_connections", self._facts.connections_max),
            ("curr_connections", stats.connections),
            ("total_connections", stats.connections_total - self._connections_before),
            ("rejected_connections", stats.connections_refused),
            ("idle_kicks", stats.connections_idle),
            *((name, self._counted(*counted)) for name, *counted in _COUNTED),
            ("bytes_read", stats.bytes_in),
            ("bytes_written", stats.bytes_out),
            ("limit_maxbytes", self._capacity()),
            ("accepting_conns", 1),
            ("threads", self._facts.threads),
            ("bytes", store.usage(volumes=False).live),
            ("curr_items", store.count),
            ("total_items", self._counted(_SETS, ("stored",))),
            ("evictions", store.stats.evicted_records - self._evictions_before),
        )

    def _counted(self, names: tuple[str, ...], results: tuple[str, ...]) -> int:
        """Return how many commands with these results there were since the last reset."""
        return sum(
            number - self._baseline.get(answer, 0)
            for answer, number in self._stats.commands().items()
            if answer[0] in names and (not results or answer[1] in results)
        )


def _yes(value: object) -> str:
    return "yes" if value else "no"
