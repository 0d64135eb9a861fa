"""
A fake instance that serves the page and `/-/stats` with numbers that a test sets.

A test can also restart it, or make it unreachable.
"""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

from support.ports import pick_port
from volcache.http.admin import page_response
from volcache.monitoring.commands import KINDS
from volcache.settings import Config, visible_settings

BUCKETS: Final = 64
VOLUME_SIZE: Final = 1 << 30
_RECOVERY: Final = (
    "entries",
    "scanned",
    "torn",
    "damaged",
    "rebuilt",
    "dropped",
    "stale",
    "rejected",
    "unknown",
)
_STORE_COUNTERS: Final = (
    *("rotations", "evicted_records", "evicted_bytes", "damaged_records"),
    *("purges", "purge_entries"),
    *("read_errors", "write_errors", "sync_errors", "index_errors"),
)
ERROR_KINDS: Final = ("read", "write", "sync", "index", "damaged")
_TIMED: Final = (
    *("GET", "HEAD", "PUT", "DELETE", "OTHER"),
    *("disk_read", "disk_write", "rotation", "sync", "memcached"),
)
_DROPPED: Final = (
    *("unread", "limited", "expired", "purged", "damaged", "unreadable", "skipped"),
)
_FAILURES: Final = ("closed", "other", "protocol", "refused", "timeout")
_HOT_COUNTERS: Final = (
    *("promoted_keys", "gets", "hits", "stale", "promotions", "refused"),
    *("invalidations", "flushes", "state_changes"),
)


def now_seconds() -> float:
    """Return the time, as in `/-/stats`."""
    return time.time_ns() / 1e9


def volume(
    number: int,
    *,
    used: int = 0,
    dead: int = 0,
    state: str,
    sequence: int = 0,
    ring: str = "main",
) -> dict[str, Any]:
    """Return one volume; used bytes that are not dead are live."""
    return {
        "id": number,
        "sequence": 0 if state == "empty" else sequence or number + 1,
        "state": state,
        "ring": None if state == "empty" else ring,
        "size": VOLUME_SIZE,
        "used_bytes": used,
        "live_records": (used - dead) // 65536,
        "live_bytes": used - dead,
        "dead_bytes": dead,
        "began": None if state == "empty" else now_seconds() - 3600,
    }


def empty_stats(*, volumes: int = 4) -> dict[str, Any]:
    """Return the numbers of an instance that was started a moment ago."""
    now = now_seconds()
    states = ["active"] + ["empty"] * (volumes - 1)
    return {
        "version": "0.1.0",
        "now": now,
        "started": now - 1,
        "uptime_seconds": 1.0,
        "boot_seconds": 0.002,
        "ready": True,
        "store": {
            "mount_point": "data",
            "sync_mode": "periodic",
            "volume_size": VOLUME_SIZE,
            "volume_num": volumes,
            "eviction": "fifo",
            "put_bytes": 0,
            "next_reclaimed": None,
            **dict.fromkeys(("keys", "live_bytes", "dead_bytes"), 0),
            "free_bytes": volumes * VOLUME_SIZE,
            "given_up_volumes": 0,
            "active": {"id": 0, "sequence": 1, "write_position": 0, "began": now - 1},
            "oldest_began": now - 1,
            "states": {"active": 1, "sealed": 0, "reclaiming": 0, "empty": volumes - 1},
            "disk": {
                "state": None,
                "free_bytes": 6 * VOLUME_SIZE,
                "total_bytes": 8 * VOLUME_SIZE,
                "volumes": volumes,
                "limited": False,
            },
            **dict.fromkeys(_STORE_COUNTERS, 0),
            "last_errors": dict.fromkeys(ERROR_KINDS),
            "last_error_texts": dict.fromkeys(ERROR_KINDS),
            "recovery": {**dict.fromkeys(_RECOVERY, 0), "meta_lost": False},
            "volumes": [volume(i, state=state) for i, state in enumerate(states)],
        },
        "requests": {
            "total": 0,
            "by": [],
            "bytes_in": 0,
            "bytes_out": 0,
            "hits": {"MEMC": 0, "DISK": 0},
            "missed": 0,
            "unauthorized": dict.fromkeys(("read", "write", "admin"), 0),
            "misses": dict.fromkeys(
                ("absent", "expired", "purged", "evicted", "damaged", "unreadable"), 0
            ),
        },
        "latency": {
            name: {"counts": [0] * BUCKETS, "sum_seconds": 0.0} for name in _TIMED
        },
        "rings": None,
        "scrub": None,
        "hot": None,
        "memcache": None,
        "hottest": [],
        "server": {
            "gate": True,
            "open": 3,
            "idle": 2,
            "limit": 1000,
            "accepted": 10,
            "closed": {"head": 0, "idle": 0, "room": 0, "transfer": 0},
            "turned_away": 0,
            "cold_reads": 0,
            "waiting_reads": 0,
            "body_bytes": 0,
            "waiting_bodies": 0,
        },
        "process": {
            "pid": 1,
            "rss_bytes": 50 << 20,
            "cpu_seconds": 0.1,
            "open_fds": 20,
            "max_fds": 1024,
            "threads": 3,
        },
        "settings": visible_settings(
            Config(volume_num=volumes, volume_size=VOLUME_SIZE)
        ),
    }


def hot_tier(*, is_up: bool) -> dict[str, Any]:
    """Return the numbers of a hot tier with one memcached and no hits."""
    return {
        "servers": [{"address": "127.0.0.1:11211", "up": is_up}],
        **dict.fromkeys(_HOT_COUNTERS, 0),
        "failures": {**dict.fromkeys(_FAILURES, 0), "refused": 0 if is_up else 3},
    }


def memcache(*, hits: int = 0, misses: int = 0, stored: int = 0) -> dict[str, Any]:
    """Return the numbers of the memcached protocol; each command takes 130 us at most."""
    rows = [("get", "hit", hits), ("get", "miss", misses), ("set", "stored", stored)]
    found: dict[str, Any] = {
        "total": hits + misses + stored,
        "by": [{"command": c, "result": r, "count": n} for c, r, n in rows if n],
        "hits": hits,
        "misses": misses,
        "stored": stored,
        "bytes_in": 1000 * stored,
        "bytes_out": 1000 * hits,
        "connections": {"open": 3, "accepted": 12, "refused": 0},
        "latency": {
            kind: {"counts": [0] * BUCKETS, "sum_seconds": 0.0} for kind in KINDS
        },
    }
    found["latency"]["get"]["counts"][17] = hits + misses
    found["latency"]["set"]["counts"][17] = stored
    return found


def two_rings(
    volumes: list[dict[str, Any]], *, reclaiming: int | None = None
) -> dict[str, Any]:
    """Return the numbers of two rings, of volumes with the policy "frequency"."""
    return {
        "by": [_ring(name, volumes) for name in ("main", "probation")],
        "probation_limit_bytes": len(volumes) * VOLUME_SIZE // 8,
        "reinserted_records": 0,
        "reinserted_bytes": 0,
        "dropped": dict.fromkeys(_DROPPED, 0),
        "write_amplification": 1.0,
        "ghost_hits": 0,
        "older_hits": 0,
        "gained_hits": None,
        "gained_hits_ratio": None,
        "reinsertable_bytes": 0,
        "reclaim": {
            "volume": reclaiming,
            "done_ratio": None if reclaiming is None else 0.5,
        },
    }


def _ring(name: str, volumes: list[dict[str, Any]]) -> dict[str, Any]:
    found = [volume for volume in volumes if volume["ring"] == name]
    return {
        "ring": name,
        "volumes": len(found),
        **{
            key: sum(volume[key] for volume in found)
            for key in ("used_bytes", "live_bytes", "live_records")
        },
        "began": min((volume["began"] for volume in found), default=None),
    }


def add_errors(
    stats: dict[str, Any], kind: str, count: int, *, seconds_ago: float = 0.0
) -> None:
    """Count errors of the disk, the last of them some time ago."""
    store = stats["store"]
    store["damaged_records" if kind == "damaged" else f"{kind}_errors"] += count
    store["last_errors"][kind] = now_seconds() - seconds_ago
    store["last_error_texts"][kind] = "[Errno 5] Input/output error"


def add_reads(
    stats: dict[str, Any], hits: int, misses: int, *, bucket: int = 17
) -> None:
    """Count GETs, all in one bucket of the histogram; 17 is from 65 to 131 µs."""
    requests = stats["requests"]
    requests["total"] += hits + misses
    requests["hits"]["DISK"] += hits
    requests["missed"] += misses
    requests["misses"]["absent"] += misses
    requests["bytes_out"] += hits * 65536
    for status, count in ((200, hits), (404, misses)):
        same = [row for row in requests["by"] if row["status"] == status]
        if same:
            same[0]["count"] += count
        else:
            row = {"method": "GET", "status": status, "count": count}
            requests["by"].append(row)
    stats["latency"]["GET"]["counts"][bucket] += hits + misses
    stats["latency"]["disk_read"]["counts"][bucket - 1] += hits


class StatsServer:
    """
    Serves the page and `stats` on a port of its own, until the context ends.

    `stats` may be changed at any time; `now` and `uptime_seconds` are set at each request.
    `answer`, when it is not None, is sent instead. With `volumes=0`, the list of volumes is
    empty. A POST is kept in `told`, with its token, and answered with `reply`.
    """

    def __init__(self, stats: dict[str, Any]) -> None:
        """Choose a port; do not listen yet."""
        self.stats = stats
        self.answer: tuple[int, bytes] | None = None
        self.told: list[str] = []
        self.reply = (200, "done")
        self.clock_ahead = 0.0
        self.asked: list[str] = []  # paths, with their queries
        self.port = pick_port()
        self._server: ThreadingHTTPServer | None = None

    @property
    def name(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """The address without a slash at the end."""
        return f"http://{self.name}"

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    def start(self) -> None:
        """Listen, on the same port each time."""
        server = _Listener(("127.0.0.1", self.port), self)
        threading.Thread(target=server.serve_forever, args=[0.02], daemon=True).start()
        self._server = server

    def stop(self) -> None:
        """Refuse connections from now on."""
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def encoded(self, query: str = "") -> bytes:
        """Return the body of `/-/stats` at this moment."""
        now = now_seconds()
        stats = {
            **self.stats,
            "now": now + self.clock_ahead,
            "uptime_seconds": now - self.stats["started"],
        }
        if query == "volumes=0":
            stats["store"] = {**stats["store"], "volumes": []}
        return json.dumps(stats).encode()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], owner: StatsServer) -> None:
        super().__init__(address, _Handler)
        self.owner = owner


class _Handler(BaseHTTPRequestHandler):
    server: _Listener

    def do_GET(self) -> None:
        """Send the page or the numbers."""
        owner = self.server.owner
        path, _, query = self.path.partition("?")
        owner.asked.append(self.path)
        if path == "/-/":
            _, headers, (body,), _ = page_response()
            self._send(200, headers, body)
        elif path == "/-/stats":
            status, body = owner.answer or (200, owner.encoded(query))
            self._send(status, [("Content-Type", "application/json")], body)
        else:
            self._send(404, [], b"")

    def do_POST(self) -> None:
        """Keep what was asked for."""
        owner = self.server.owner
        owner.told.append(f"{self.path} {self.headers.get('Authorization', '')}")
        status, text = owner.reply
        self._send(status, [], f"{text}\n".encode())

    def _send(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""
