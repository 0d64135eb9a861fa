"""app.py: requests for keys of other instances are refused."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Final
from zlib import crc32

import pytest

from support.stores import FakeClock, open_store
from support.wsgi_client import Client
from volcache.cache import Cache
from volcache.ring import OwnKeys
from volcache_client.ring import HashRing

OWNER: Final = "10.0.0.9:1234"
READS: Final = ("GET", "HEAD")
CHANGES: Final = ("PUT", "DELETE")
HALF: Final = 1 << 31
LOWER: Final = array("I", [0, HALF])
PATHS: Final = [f"/{n}" for n in range(40)]
OWN: Final = [path for path in PATHS if crc32(path.encode()) < HALF]
OTHERS: Final = [path for path in PATHS if path not in OWN]
LOG: Final = "volcache.http.app"


def ring_of(reads: array[int], writes: array[int]) -> OwnKeys:
    """Return a ring on which another instance owns whatever this one does not."""
    return OwnKeys(reads, writes, ((OWNER, 1),), HashRing([OWNER]))


class Served(Client):
    """A client of an application on a store."""

    def status(self, method: str, path: str, body: bytes = b"", **more: str) -> int:
        """Return the status of the answer."""
        length = {"CONTENT_LENGTH": str(len(body))}
        return int(self.ask(method, path, body, **length, **more).status[:3])


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """Yield an instance with a value for each path."""
    with closing(open_store(tmp_path / "store")) as store:
        served = Served(Cache(store), clock=FakeClock())
        for path in PATHS:
            assert served.status("PUT", path, b"old") == 200
        yield served


@pytest.mark.parametrize(
    ("reads", "method", "own", "other"),
    [
        *((LOWER, method, 200, 404) for method in READS),
        *((LOWER, method, 200, 503) for method in CHANGES),
        *((LOWER, "OPTIONS", 200, 200), (LOWER, "PROPFIND", 207, 207)),
        *((LOWER, "MKCOL", 201, 201), (LOWER, "POST", 405, 405)),
        # While a fleet grows, the list before still counts for reads.
        *((array("I", [0]), method, 200, 200) for method in READS),
        *((array("I", [0]), method, 200, 503) for method in CHANGES),
    ],
)
def test_request_for_a_key_of_another_instance_is_a_miss_or_refused(
    served: Served, reads: array[int], method: str, own: int, other: int
) -> None:
    """Also with conditions and ranges; it changes nothing, and is counted."""
    is_refused = other in {404, 503}
    more = [{"HTTP_DEPTH": "0"}]
    if is_refused:
        more += [{"HTTP_IF_MATCH": "*"}, {"HTTP_CACHE_CONTROL": "no-store"}]
        more += [{"HTTP_RANGE": "bytes=0-0"}, {"HTTP_IF_NONE_MATCH": "*"}]
    served.app.ring = ring_of(reads, LOWER)
    for path, headers in product(OTHERS, more):
        assert served.status(method, path, b"new", **headers) == other
    for path in OWN:
        assert served.status(method, path, b"new", HTTP_DEPTH="0") == own
    count = len(OTHERS) * len(more) if is_refused else 0
    counted = {"read": 0, "write": 0, "read" if method in READS else "write": count}
    assert served.app.stats.misdirected() == counted
    served.app.ring = None
    assert {served.ask("GET", path)[2] for path in OTHERS} == {b"old"}


def test_answer_for_a_key_of_another_instance_names_it(served: Served) -> None:
    """Not to health checks, which are never misdirected."""
    served.app.ring = ring_of(LOWER, LOWER)
    miss, refused = (served.ask(method, OTHERS[0], b"") for method in ("GET", "PUT"))
    for answer in (miss, refused):
        assert answer.headers["X-Owner"] == OWNER
        assert answer.body.startswith(b"the key belongs to 10.0.0.9:1234, by the list")
        assert answer.body.endswith(b"try again later\n")
    assert (miss.headers["X-Cache"], refused.headers["Retry-After"]) == ("MISS", "1")
    assert served.status("GET", "/-/healthy") == 200


def test_request_for_a_key_of_another_instance_is_counted_apart(served: Served) -> None:
    """They are a kind of their own; all requests have a duration."""
    stats = served.app.stats
    before = stats.requests()
    total, misses = stats.total, stats.misses
    served.app.ring = ring_of(LOWER, LOWER)
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        served.status(method, OTHERS[0], b"new")
    assert (stats.requests(), stats.misses) == (before, misses)
    assert stats.misdirected() == {"read": 2, "write": 2}
    assert stats.total == total + 4
    assert sum(one.count for one in stats.latencies().values()) == total + 4
    assert not stats.sampled


def test_owners_of_refused_keys_are_named_for_five_minutes(
    served: Served,
) -> None:
    """The last ones first, and not more than ten."""
    served.app.ring = ring_of(LOWER, LOWER)
    served.status("GET", OTHERS[0])
    (at,) = served.app.stats.others.values()
    assert served.app.stats.recent_others(at + 299) == {OWNER: at}
    assert served.app.stats.recent_others(at + 301) == {}
    served.app.stats.others |= {f"h:{n}": at + n for n in range(1, 20)}
    recent = served.app.stats.recent_others(at + 20)
    assert list(recent) == [f"h:{n}" for n in range(19, 9, -1)]


def test_request_with_dot_segments_belongs_to_the_owner_of_its_key(
    served: Served,
) -> None:
    """Not the path as it was written, as nginx hashes what it has resolved."""
    served.app.ring = ring_of(LOWER, LOWER)
    for path in PATHS:
        for written in (f"/x/..{path}", f"/.{path}"):
            is_own = path in OWN
            assert served.status("GET", written) == (200 if is_own else 404)
            assert served.status("PUT", written, b"new") == (200 if is_own else 503)
    assert served.status("GET", "/..") == 400


def test_refused_keys_are_logged_once_in_ten_seconds(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the number since the line before."""
    now = 0
    monkeypatch.setattr(served.app, "_timer", lambda: now)
    served.app.ring = ring_of(LOWER, LOWER)
    with caplog.at_level(logging.INFO, LOG):
        for now in (0, 1, 9_999_999_999, 10_000_000_000):  # noqa: B007 - Read above.
            served.status("GET", OTHERS[0])
    assert [record.getMessage() for record in caplog.records] == [
        f"ring.misdirected requests=1 path={OTHERS[0]!r} owner={OWNER!r}",
        f"ring.misdirected requests=3 path={OTHERS[0]!r} owner={OWNER!r}",
    ]
