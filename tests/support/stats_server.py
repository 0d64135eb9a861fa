"""
A fake instance that serves the page and `/-/stats` with numbers that a test sets.

A test can also restart it, or make it unreachable.
"""

from __future__ import annotations

import json
import socket
import time
from copy import deepcopy
from dataclasses import replace
from functools import cache
from typing import Any, Final, Self

from support.instances import operator_of, watch_tiered
from support.ports import pick_port
from support.scripted_server import ScriptedServer, answering
from support.simulated import SimulatedFileSystem
from support.stores import open_store
from volcache.http.admin import page_response
from volcache.settings import DEFAULTS, visible_settings

VOLUME_SIZE: Final = 1 << 30


@cache
def _sample() -> dict[str, Any]:
    """Return the numbers of a real instance with all parts, each of them 0."""
    store = open_store("/srv", fs=SimulatedFileSystem())
    stats = json.loads(operator_of(watch_tiered(store)).ask("GET", "/-/stats").body)
    stats["server"] = {key: value or 0 for key, value in stats["server"].items()}
    store.close()
    return {key: _zeroed(value) for key, value in stats.items()}


def _zeroed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _zeroed(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_zeroed(one) for one in value]
    return 0 if isinstance(value, int | float) else value


def _part(name: str, **values: Any) -> dict[str, Any]:
    """Return a part of the numbers, some of them as given."""
    part: dict[str, Any] = deepcopy(_sample()[name])
    return part | values


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
    disk = {"free_bytes": 6 * VOLUME_SIZE, "total_bytes": 8 * VOLUME_SIZE}
    return deepcopy(_sample()) | {
        "version": "0.1.0",
        "now": now,
        "started": now - 1,
        "uptime_seconds": 1.0,
        "boot_seconds": 0.002,
        "ready": True,
        "store": _part(
            "store",
            sync_mode="periodic",
            volume_size=VOLUME_SIZE,
            volume_num=volumes,
            eviction="fifo",
            free_bytes=volumes * VOLUME_SIZE,
            active={"id": 0, "sequence": 1, "write_position": 0, "began": now - 1},
            oldest_began=now - 1,
            states={"active": 1, "sealed": 0, "reclaiming": 0, "empty": volumes - 1},
            disk={"state": None, "volumes": volumes, "limited": False, **disk},
            volumes=[volume(i, state=state) for i, state in enumerate(states)],
        ),
        **dict.fromkeys(("rings", "scrub", "hot", "memcache")),
        "server": _part(
            "server",
            open=3,
            idle=2,
            limit=1000,
            accepted=10,
            closed=dict.fromkeys(("head", "idle", "room", "transfer"), 0),
        ),
        "process": {
            "pid": 1,
            "rss_bytes": 50 << 20,
            "cpu_seconds": 0.1,
            "open_fds": 20,
            "max_fds": 1024,
            "threads": 3,
            "thread_failures": 0,
        },
        "settings": visible_settings(
            replace(DEFAULTS, volume_num=volumes, volume_size=VOLUME_SIZE)
        ),
    }


def hot_tier(*, is_up: bool) -> dict[str, Any]:
    """Return the numbers of a hot tier with one memcached and no hits."""
    found = _part("hot", servers=[{"address": "127.0.0.1:11211", "up": is_up}])
    found["failures"]["refused"] = 0 if is_up else 3
    return found


def memcache(*, hits: int = 0, misses: int = 0, stored: int = 0) -> dict[str, Any]:
    """Return the numbers of the memcached protocol; each command takes 130 us at most."""
    rows = [("get", "hit", hits), ("get", "miss", misses), ("set", "stored", stored)]
    found = _part(
        "memcache",
        total=hits + misses + stored,
        by=[{"command": c, "result": r, "count": n} for c, r, n in rows if n],
        hits=hits,
        misses=misses,
        stored=stored,
        bytes_in=1000 * stored,
        bytes_out=1000 * hits,
        connections={"open": 3, "accepted": 12, "refused": 0},
    )
    found["latency"]["get"]["counts"][17] = hits + misses
    found["latency"]["set"]["counts"][17] = stored
    return found


def two_rings(
    volumes: list[dict[str, Any]], *, reclaiming: int | None = None
) -> dict[str, Any]:
    """Return the numbers of two rings, of volumes with the policy "frequency"."""
    done = None if reclaiming is None else 0.5
    return _part(
        "rings",
        by=[_ring(name, volumes) for name in ("main", "probation")],
        probation_limit_bytes=len(volumes) * VOLUME_SIZE // 8,
        write_amplification=1.0,
        **dict.fromkeys(("gained_hits", "gained_hits_ratio")),
        reclaim={"volume": reclaiming, "done_ratio": done},
    )


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
        self.history: list[dict[str, Any]] = []
        self.answer: tuple[int, bytes] | None = None
        self.told: list[str] = []
        self.reply = (200, "done")
        self.clock_ahead = 0.0
        self.asked: list[str] = []  # paths, with their queries
        self.port = pick_port()
        self._server: ScriptedServer | None = None

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
        listener = socket.create_server(("127.0.0.1", self.port))
        self._server = ScriptedServer(answering(self._answer), listener=listener)
        self._server.__enter__()

    def stop(self) -> None:
        """Refuse connections from now on."""
        if self._server:
            self._server.__exit__()
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

    def _answer(self, request: bytes) -> bytes:
        """Return the page, the numbers, or the reply to a POST, which is kept."""
        line, *lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        method, target, _ = line.split(" ")
        path, _, query = target.partition("?")
        status, headers, body = 404, [("Content-Type", "application/json")], b""
        if method == "POST":
            tokens = [one[15:] for one in lines if one.startswith("Authorization: ")]
            self.told.append(f"{target} {''.join(tokens)}")
            status, body = self.reply[0], f"{self.reply[1]}\n".encode()
        else:
            self.asked.append(target)
        if target == "/-/":
            _, headers, (body,), _ = page_response()
            status = 200
        elif path == "/-/history":
            status, body = 200, json.dumps(self.history).encode()
        elif path == "/-/stats":
            status, body = self.answer or (200, self.encoded(query))
        fields = {**dict(headers), "Content-Length": str(len(body))}
        text = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return f"HTTP/1.1 {status} x\r\n{text}\r\n".encode() + body
