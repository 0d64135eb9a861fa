"""Counters of a real instance agree with its requests, to the last request and byte."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from support.process import ServerProcess
from support.samples import samples_of, total
from support.stores import counted_size
from support.waiting import wait_until
from support.wire import exchange

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from support.memcached import MemcachedProcess
    from support.wire import Reply

pytestmark = pytest.mark.integration

VOLUME_SIZE: Final = 1 << 20
VALUE: Final = b"x" * 1000
SMALL_KEYS: Final = 40  # More than one PUT sweeps of a reclaimed volume.
HEADER_BYTES: Final = 64  # Of a record, without its key.
READS: Final = {"GET", "HEAD"}
FOUND_OR_NOT: Final = {200, 206, 304, 404, 416}
COUNTED_VERBS: Final = {"GET", "HEAD", "PUT", "DELETE"}


class Case(NamedTuple):
    """A request and the status it must have."""

    method: str
    path: str
    status: int
    headers: str = ""
    body: bytes | None = None


# `a` and `b` are stored with `VALUE`, `gone` is deleted, `late` has expired.
CASES: Final = (
    Case("GET", "/a", 200),
    Case("GET", "/%61?x=1", 200),
    Case("HEAD", "/a", 200),
    Case("GET", "/a", 206, "Range: bytes=0-9"),
    Case("GET", "/a", 206, "Range: bytes=-100"),
    Case("GET", "/a", 206, "Range: bytes=0-1,3-4"),
    Case("GET", "/a", 200, "Range: bytes=0-1,1-4"),
    Case("GET", "/b", 416, "Range: bytes=1000-"),
    Case("GET", "/b", 304, "If-None-Match: *"),
    Case("HEAD", "/b", 304, "If-None-Match: *"),
    Case("GET", "/b", 200, 'If-None-Match: "other"'),
    Case("GET", "/b", 412, 'If-Match: "other"'),
    Case("HEAD", "/b", 412, 'If-Match: "other"'),
    Case("GET", "/none", 404),
    Case("HEAD", "/none", 404),
    Case("GET", "/none", 404, "If-None-Match: *"),
    Case("GET", "/none", 404, "Range: bytes=0-9"),
    Case("GET", "/gone", 404),
    Case("GET", "/late", 404),
    Case("HEAD", "/late", 404),
    Case("GET", "/%01", 400),
    Case("HEAD", "/%01", 400),
    Case("GET", "/../..", 400),
    Case("PUT", "/b", 412, "If-None-Match: *", VALUE),
    Case("PUT", "/none", 412, "If-Match: *", VALUE),
    Case("PUT", "/long", 413, "", b"x" * 1_000_001),
    Case("PUT", "/part", 400, "Content-Range: bytes 0-9/20", b"x" * 10),
    Case("PUT", "/empty", 200, "", b""),
    Case("GET", "/empty", 200),
    Case("DELETE", "/gone", 404),
    Case("DELETE", "/b", 412, 'If-Match: "other"'),
    Case("DELETE", "/empty", 200),
    Case("OPTIONS", "/", 200),
    Case("OPTIONS", "/a", 200),
    Case("PROPFIND", "/a", 207),
    Case("PROPFIND", "/none", 404),
    Case("MKCOL", "/folder/", 201),
    Case("POST", "/a", 405, "", b"x"),
    Case("PATCH", "/a", 405, "", b"x"),
    Case("TRACE", "/a", 405),
    Case("GET", "/-/healthy", 200),
    Case("HEAD", "/-/ready", 200),
    Case("GET", "/-/nothing", 404),
    Case("PUT", "/-/key", 405, "", b"x"),
    Case("POST", "/-/flush", 403),
)


class Ledger:
    """Sends requests to one instance and keeps the expected counts."""

    def __init__(self, server: ServerProcess) -> None:
        """Start from what the instance has counted since it started."""
        self._port = server.port
        self._before = self.scrape()
        # A scrape is counted when it is answered: in the next one.
        self.requests = Counter({("GET", "200"): 1})
        self.sources: Counter[str] = Counter()  # of reads of keys: DISK, MEMC, MISS
        self.bytes_in = self.bytes_out = 0

    def scrape(self) -> dict[str, float]:
        """Return all metrics."""
        return samples_of(exchange(self._port, "GET", "/-/metrics").body.decode())

    def counted(self) -> dict[str, float]:
        """Return what the instance has counted since; call it last."""
        return {
            name: value - self._before.get(name, 0)
            for name, value in self.scrape().items()
        }

    def ask(self, case: Case) -> Reply:
        """Send one request."""
        method, path, status, headers, body = case
        reply = exchange(self._port, method, path, body, headers)
        assert reply.status == status, (case, reply)
        verb = method if method in COUNTED_VERBS else "OTHER"
        self.requests[verb, str(status)] += 1
        if path.startswith("/-/"):
            return reply
        if method in READS and status in FOUND_OR_NOT:
            self.sources[reply.headers.get("X-Cache", "DISK")] += 1
        if method == "GET" and status in {200, 206}:
            # Of several parts only the values count: two times two bytes.
            is_multipart = "multipart" in reply.headers["Content-Type"]
            self.bytes_out += 4 if is_multipart else len(reply.body)
        if method == "PUT" and status == 200:
            self.bytes_in += len(body or b"")
        return reply

    def put(self, key: str, value: bytes = VALUE, headers: str = "") -> list[int]:
        """Store a value; return volume, offset and size of its record."""
        reply = self.ask(Case("PUT", f"/{key}", 200, headers, value))
        return [int(number) for number in reply.headers["X-Position"].split(",")]

    def read(self, key: str, status: int = 200) -> str:
        """Read a key; return its `X-Cache`."""
        return self.ask(Case("GET", f"/{key}", status)).headers["X-Cache"]


def assert_sums(ledger: Ledger, found: dict[str, float]) -> None:
    """Check the counts that hold for any requests."""
    name = "volcache_requests_total"
    requests = {k: v for k, v in found.items() if k.startswith(f"{name}{{") and v}
    assert requests == {
        f"{name}{{method={verb},status={status}}}": count
        for (verb, status), count in ledger.requests.items()
    }
    name = "volcache_request_duration_seconds"
    for verb in (*COUNTED_VERBS, "OTHER"):
        count = sum(n for (asked, _), n in ledger.requests.items() if asked == verb)
        assert found[f"{name}_count{{method={verb}}}"] == count
        assert found[f"{name}_bucket{{le=+Inf,method={verb}}}"] == count
    for source in ("DISK", "MEMC"):
        hits = found[f"volcache_hits_total{{source={source}}}"]
        assert hits == ledger.sources[source]
    assert found["volcache_misses_total"] == ledger.sources["MISS"]
    assert found["volcache_received_bytes_total"] == ledger.bytes_in
    assert found["volcache_sent_bytes_total"] == ledger.bytes_out


@pytest.fixture
def server(tmp_path: Path, memcached: MemcachedProcess) -> Iterator[ServerProcess]:
    """An instance with two small volumes, patient with memcached on a busy machine."""
    settings = {
        "volume_size": VOLUME_SIZE,
        "volume_num": 2,
        "max_value_size": 1_000_000,
        "memc_on": True,
        "memc_servers": memcached.address,
        "memc_timeout": 10,
        "log_slow": 0,
    }
    with ServerProcess(tmp_path, settings=settings) as found:
        yield found


def store_misses(found: dict[str, float]) -> dict[str, float]:
    """Return the store misses by reason."""
    name = "volcache_store_misses_total{reason="
    return {k[len(name) : -1]: v for k, v in found.items() if k.startswith(name) and v}


def test_every_kind_of_request_is_counted_once(server: ServerProcess) -> None:
    """By verb and status, as hit or miss, with its bytes, in one histogram."""
    ledger = Ledger(server)
    for key in ("a", "b", "gone"):
        ledger.put(key)
    ledger.put("late", headers="Cache-Control: max-age=1")
    end = time.monotonic() + 1
    wait_until(lambda: time.monotonic() > end, "the end of its lifetime")
    ledger.ask(Case("DELETE", "/gone", 200))
    for case in CASES:
        ledger.ask(case)
    ledger.ask(Case("NO", "/a", 405))
    found = ledger.counted()

    assert_sums(ledger, found)
    stored = ledger.requests["PUT", "200"] + ledger.requests["DELETE", "200"]
    assert found["volcache_disk_write_duration_seconds_count"] == stored
    misses = store_misses(found)
    assert misses.pop("expired") == 2
    # Also a PUT with a condition, a PROPFIND, and two GETs with a bad key.
    assert misses == {"absent": ledger.sources["MISS"] - 2 + 4}


def test_json_and_prometheus_output_agree(server: ServerProcess) -> None:
    """`/-/stats` has the numbers of `/-/metrics`, one request later."""
    ledger = Ledger(server)
    ledger.put("a")
    for case in CASES:
        if case.path in {"/a", "/none"}:
            ledger.ask(case)
    metrics = ledger.scrape()
    stats = json.loads(exchange(server.port, "GET", "/-/stats").body)
    requests = stats["requests"]

    assert requests["total"] == total(metrics, "volcache_requests_total") + 1
    for by in requests["by"]:
        labels = f"method={by['method']},status={by['status']}"
        is_scrape = labels == "method=GET,status=200"
        count = metrics[f"volcache_requests_total{{{labels}}}"] + is_scrape
        assert by["count"] == count
    assert requests["bytes_in"] == metrics["volcache_received_bytes_total"] == 1000
    assert requests["bytes_out"] == metrics["volcache_sent_bytes_total"] > 1000
    assert sum(requests["hits"].values()) > 0
    for source, count in requests["hits"].items():
        assert metrics[f"volcache_hits_total{{source={source}}}"] == count
    assert requests["missed"] == metrics["volcache_misses_total"] > 0
    for reason, count in requests["misses"].items():
        assert metrics[f"volcache_store_misses_total{{reason={reason}}}"] == count
    for verb in (*COUNTED_VERBS, "OTHER"):
        name = f"volcache_request_duration_seconds_count{{method={verb}}}"
        is_scrape = verb == "GET"
        assert sum(stats["latency"][verb]["counts"]) == metrics[name] + is_scrape


def test_reads_from_memcached_are_counted(server: ServerProcess) -> None:
    """With promotions and invalidations."""
    ledger = Ledger(server)
    for key in ("put", "deleted", "kept", "cold"):
        ledger.put(key)
        reads = [ledger.read(key) for _ in range(2 if key == "cold" else 6)]
        assert reads == ["DISK", "DISK", "DISK", "MEMC", "MEMC", "MEMC"][: len(reads)]
    ledger.ask(Case("GET", "/kept", 206, "Range: bytes=0-9"))
    ledger.ask(Case("HEAD", "/kept", 200))
    ledger.put("put")
    ledger.put("put")
    ledger.ask(Case("DELETE", "/deleted", 200))
    ledger.ask(Case("DELETE", "/deleted", 404))
    assert ledger.read("put") == "DISK"
    assert ledger.read("deleted", 404) == "MISS"
    found = ledger.counted()

    assert_sums(ledger, found)
    assert ledger.sources == {"DISK": 13, "MEMC": 10, "MISS": 1}
    assert found["volcache_hot_promotions_total"] == 3
    assert found["volcache_hot_promoted_keys"] == 1
    assert found["volcache_hot_invalidations_total"] == 2
    assert found["volcache_hot_gets_total"] == 10
    assert found["volcache_hot_hits_total"] == 10
    assert found["volcache_hot_call_duration_seconds_count"] == 13
    for name in ("stale", "refused", "failures", "state_changes", "flushes"):
        assert total(found, f"volcache_hot_{name}_total") == 0


def test_failure_of_memcached_is_counted(
    server: ServerProcess, memcached: MemcachedProcess
) -> None:
    """As a failure and a change of state; the read is a disk hit."""
    ledger = Ledger(server)
    ledger.put("a")
    assert [ledger.read("a") for _ in range(4)] == ["DISK", "DISK", "DISK", "MEMC"]
    memcached.kill()
    assert [ledger.read("a") for _ in range(4)] == ["DISK"] * 4
    found = ledger.counted()

    assert_sums(ledger, found)
    assert found["volcache_hot_failures_total{kind=closed}"] == 1
    assert found["volcache_hot_state_changes_total"] == 1
    assert total(ledger.scrape(), "volcache_hot_server_up") == 0
    assert found["volcache_hot_gets_total"] == found["volcache_hot_hits_total"] + 1 == 2


def test_eviction_and_damage_are_counted(server: ServerProcess, tmp_path: Path) -> None:
    """Evicted records, reads of these, a copy that outlives its record."""
    ledger = Ledger(server)
    sizes = [ledger.put(f"small/{number}")[2] for number in range(SMALL_KEYS)]
    assert [ledger.read("small/0") for _ in range(4)][3] == "MEMC"
    ledger.put("small/1")  # The first of that name is dead, and not evicted.
    volume = end = 0
    while volume == 0:
        volume, offset, size = ledger.put("large", b"x" * 100_000)
        end = offset + size
    broken = ledger.put("broken")
    end = sum(broken[1:])
    with (tmp_path / "data" / "1").open("r+b") as file:
        file.seek(end - 1)
        file.write(b"y")
    assert ledger.read("broken", 404) == "MISS"
    assert ledger.read("broken", 404) == "MISS"
    ledger.put("filler", b"x" * (VOLUME_SIZE - end - HEADER_BYTES - len("filler")))
    assert ledger.put("next", b"")[:1] == [0]
    assert ledger.read("small/2", 404) == "MISS"
    assert ledger.read("small/0") == "MEMC"
    found = ledger.counted()

    assert_sums(ledger, found)
    assert found["volcache_rotations_total"] == 2
    assert found["volcache_rotation_duration_seconds_count"] == 2
    assert found["volcache_evicted_records_total"] == SMALL_KEYS
    assert found["volcache_evicted_bytes_total"] == sum(map(counted_size, sizes))
    assert found["volcache_damaged_records_total"] == 1
    assert store_misses(found) == {"damaged": 1, "absent": 1, "evicted": 1}
    assert total(found, "volcache_disk_errors_total") == 0
