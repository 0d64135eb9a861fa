"""Counters of a real instance agree with its requests, to the last request and byte."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

import pytest

from support.memcached import MemcachedProcess
from support.process import MIB, ServerProcess, Servers
from support.samples import samples_of, total
from support.waiting import wait_until
from support.wire import Reply, Talk, exchange

pytestmark = pytest.mark.integration

VALUE: Final = b"x" * 1000
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
    *(Case("GET", "/a", 200), Case("GET", "/%61?x=1", 200), Case("HEAD", "/a", 200)),
    Case("GET", "/a", 206, "Range: bytes=0-9"),
    Case("GET", "/a", 206, "Range: bytes=-100"),
    Case("GET", "/a", 206, "Range: bytes=0-1,3-4"),
    Case("GET", "/a", 200, "Range: bytes=0-1,1-4"),
    Case("GET", "/b", 416, "Range: bytes=1000-"),
    Case("GET", "/b", 304, "If-None-Match: *"),
    Case("HEAD", "/b", 304, "If-None-Match: *"),
    Case("GET", "/b", 200, 'If-None-Match: "other"'),
    Case("GET", "/b", 412, 'If-Match: "other"'),
    *(Case("HEAD", "/b", 412, 'If-Match: "other"'), Case("GET", "/none", 404)),
    *(Case("HEAD", "/none", 404), Case("GET", "/none", 404, "If-None-Match: *")),
    *(Case("GET", "/none", 404, "Range: bytes=0-9"), Case("GET", "/gone", 404)),
    *(Case("GET", "/late", 404), Case("HEAD", "/late", 404), Case("GET", "/%01", 400)),
    *(Case("HEAD", "/%01", 400), Case("GET", "/../..", 400)),
    Case("PUT", "/b", 412, "If-None-Match: *", VALUE),
    Case("PUT", "/none", 412, "If-Match: *", VALUE),
    Case("PUT", "/long", 413, "", b"x" * (MIB + 1)),
    Case("PUT", "/part", 400, "Content-Range: bytes 0-9/20", b"x" * 10),
    *(Case("PUT", "/empty", 200, "", b""), Case("GET", "/empty", 200)),
    *(Case("DELETE", "/gone", 404), Case("DELETE", "/b", 412, 'If-Match: "other"')),
    *(Case("DELETE", "/empty", 200), Case("OPTIONS", "/", 200)),
    *(Case("OPTIONS", "/a", 200), Case("PROPFIND", "/a", 207)),
    *(Case("PROPFIND", "/none", 404), Case("MKCOL", "/folder/", 201)),
    *(Case("POST", "/a", 405, "", b"x"), Case("PATCH", "/a", 405, "", b"x")),
    *(Case("TRACE", "/a", 405), Case("GET", "/-/healthy", 200)),
    *(Case("HEAD", "/-/ready", 200), Case("GET", "/-/nothing", 404)),
    *(Case("PUT", "/-/key", 405, "", b"x"), Case("POST", "/-/flush", 401)),
)


# Refused by the loops: what is sent, and the verb and the status that count.
REFUSED: Final = (
    (b"GET /a HTTP/1.1\r\n\r\n", "GET", "400"),
    (b"GET /a HTTP/2.0\r\nHost: t\r\n\r\n", "GET", "505"),
    (b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", "OTHER", "400"),  # TLS.
)


class Ledger:
    """Sends requests to one instance and keeps the expected counts."""

    def __init__(self, server: ServerProcess) -> None:
        """Start from what the instance has counted since it started."""
        self.port = server.port
        self._before = self.scrape()
        # A scrape is counted when it is answered: in the next one.
        self.requests = Counter({("GET", "200"): 1})
        self.sources: Counter[str] = Counter()  # of reads of keys: DISK, MEMC, MISS
        self.bytes_in = self.bytes_out = 0

    def scrape(self) -> dict[str, float]:
        """Return all metrics."""
        return samples_of(exchange(self.port, "GET", "/-/metrics").body.decode())

    def counted(self) -> dict[str, float]:
        """Return what the instance has counted since; call it last."""
        return {
            name: value - self._before.get(name, 0)
            for name, value in self.scrape().items()
        }

    def ask(self, case: Case) -> Reply:
        """Send one request."""
        method, path, status, headers, body = case
        reply = exchange(self.port, method, path, body, headers)
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

    def put(self, key: str, headers: str = "") -> None:
        """Store `VALUE`."""
        self.ask(Case("PUT", f"/{key}", 200, headers, VALUE))

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
def ledger(servers: Servers, memcached: MemcachedProcess) -> Iterator[Ledger]:
    """Count on an instance that is patient with memcached on a busy machine."""
    address = memcached.address
    with servers.server(memc_on=True, memc_servers=address, memc_timeout=10) as server:
        yield Ledger(server)


def test_request_of_any_kind_is_counted_once(ledger: Ledger) -> None:
    """By verb and status, as hit or miss, with its bytes, in one histogram."""
    for key in ("a", "b", "gone"):
        ledger.put(key)
    ledger.put("late", headers="Cache-Control: max-age=1")
    end = time.monotonic() + 1
    wait_until(lambda: time.monotonic() > end, "the end of its lifetime")
    ledger.ask(Case("DELETE", "/gone", 200))
    for case in CASES:
        ledger.ask(case)
    ledger.ask(Case("NO", "/a", 405))
    for data, verb, status in REFUSED:
        with Talk(ledger.port) as talk:
            talk.send(data)
            assert str(talk.read().status) == status
        ledger.requests[verb, status] += 1
    found = ledger.counted()

    assert_sums(ledger, found)
    stored = ledger.requests["PUT", "200"] + ledger.requests["DELETE", "200"]
    assert found["volcache_disk_write_duration_seconds_count"] == stored
    name = "volcache_store_misses_total{reason="
    misses = {
        k[len(name) : -1]: v for k, v in found.items() if k.startswith(name) and v
    }
    # Also a PUT with a condition and a PROPFIND. A bad key is not looked up.
    assert misses == {"absent": ledger.sources["MISS"] - 2 + 2, "expired": 2}


def test_reads_from_memcached_are_counted(
    ledger: Ledger, memcached: MemcachedProcess
) -> None:
    """With promotions and invalidations."""
    ledger.put("cold")
    assert [ledger.read("cold") for _ in range(2)] == ["DISK"] * 2
    for number, key in enumerate(("put", "deleted", "kept"), memcached.items() + 1):
        ledger.put(key)
        assert [ledger.read(key) for _ in range(3)] == ["DISK"] * 3
        wait_until(partial(lambda n: memcached.items() == n, number), "the promotion")
        assert [ledger.read(key) for _ in range(3)] == ["MEMC"] * 3
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
