"""`App` and `NativeApp` on equal stores: each request goes to both."""

from __future__ import annotations

import errno
import io
import os
import random
import re
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest import mock

from support.native import BareProcess, Side, counted
from support.stores import ProcessFileSystem, UnsyncedFileSystem
from volcache.cache import Cache
from volcache.hot.memcached import MemcachedTier
from volcache.hot.promotion import MissCounters
from volcache.hot.versions import KeyVersions
from volcache.http.app import App, RequestLimits
from volcache.http.native_app import with_fast_path

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from wsgiref.types import StartResponse

    from volcache.http.responses import WsgiApp

KEY_SIZE_MAX: Final = 60
VALUE_SIZE_MAX: Final = 1_200_000
VOLUME_SIZE: Final = 8 << 20
_ETAG: Final = re.compile(r'"([0-9a-f]+)-([0-9a-f]{8})"')
_US_PER_MS: Final = 1000


class Answer(NamedTuple):
    """A response; `headers` are sorted."""

    status: str
    headers: list[tuple[str, str]]
    body: list[bytes]

    @property
    def code(self) -> int:
        """The status as a number."""
        return int(self.status[:3])

    def header(self, name: str) -> str:
        """Return the value of a header."""
        return dict(self.headers)[name]

    def without_time(self) -> Answer:
        """
        Return the answer with its entity tag to the millisecond.

        A put that the native path gives up has taken a time, and its record gets the next
        one, a microsecond later.
        """
        headers = [
            (name, _ETAG.sub(_to_milliseconds, value)) for name, value in self.headers
        ]
        return self._replace(headers=headers)


def _to_milliseconds(tag: re.Match[str]) -> str:
    return f'"{int(tag[1], 16) // _US_PER_MS:x}-{tag[2]}"'


class FakeServer:
    """One memcached, as `MemcachedTier` sees it."""

    is_up = True

    def __init__(self) -> None:
        """Hold no items."""
        self.items: dict[bytes, bytes] = {}

    def get(self, name: bytes) -> bytes | None:
        """Return an item."""
        return self.items.get(name)

    def set(self, name: bytes, item: bytes, _expire: int) -> bool:
        """Store an item."""
        self.items[name] = item
        return True

    def probe(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Keep the items."""


class FaultyDisk(ProcessFileSystem):
    """A disk whose reads and writes fail as a test wants; equally for equal calls."""

    reads = writes = ""
    halves = 0

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read, or not, or something else."""
        self.before_call("pread", ())
        if self.reads == "error":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        data = os.pread(fd, length, offset)
        if self.reads == "short":
            return data[: len(data) // 2]
        if self.reads == "empty":
            return b""
        if self.reads == "garbage":
            return random.Random(offset).randbytes(len(data))  # noqa: S311
        if self.reads == "rot":
            rotten = bytearray(data)
            for at in range(-offset % 53, len(rotten), 53):
                rotten[at] ^= 64
            return bytes(rotten)
        return data

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:
        """Write, or a part, or nothing."""
        self.before_call("pwritev", ())
        data = b"".join(buffers)
        self.halves += 1
        if self.writes == "error" or (self.writes == "torn" and self.halves % 2 == 0):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.writes in {"part", "torn"}:
            data = data[: len(data) // 3 + 1]
        return os.pwritev(fd, [data], offset)


class CountedApp(App):
    """An application that remembers the methods of the requests it was asked."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Begin with none."""
        super().__init__(*arguments, **options)
        self.asked: list[str] = []

    def __call__(
        self, environ: dict[str, Any], start_response: StartResponse
    ) -> list[bytes]:
        """Answer a request."""
        self.asked.append(environ.get("REQUEST_METHOD", ""))
        return super().__call__(environ, start_response)


class Instance:
    """A store, a cache and an application."""

    cache: Cache
    app: CountedApp
    wsgi: WsgiApp

    def __init__(
        self,
        side: Side,
        limits: RequestLimits,
        clock_ns: Callable[[], int],
        *,
        is_fast: bool,
        is_merged: bool,
        has_hot_tier: bool,
    ) -> None:
        """Serve the store of one side; `is_fast` is with the fast path."""
        self.side = side
        self.is_merged = is_merged and is_fast
        self.is_fast = is_fast
        self.hot: MemcachedTier | None = None
        self._limits = limits
        self._clock_ns = clock_ns
        self._has_hot_tier = has_hot_tier
        self.serve()

    def serve(self) -> None:
        """Create everything but the store."""
        promotion = None
        if self._has_hot_tier:
            with mock.patch("volcache.hot.servers.Server", return_value=FakeServer()):
                self.hot = MemcachedTier(
                    ["m"], KeyVersions(), timeout=0.05, item_size_max=1 << 20
                )
            promotion = MissCounters(
                count=2, duration_ms=60_000, clock=lambda: self._clock_ns() // 1_000_000
            )
        self.cache = Cache(self.side.store, self.hot, promotion)
        self.app = CountedApp(
            self.cache,
            self._limits,
            clock=self._clock_ns,
            # Each request is in a second of its own, so it reads the clock.
            timer=count(step=1_000_000_000).__next__,
        )
        self.wsgi = self.app
        if self.is_fast:
            self.wsgi = with_fast_path(self.app, is_merged=self.is_merged)

    def restart(self, *, is_clean: bool) -> None:
        """Stop or kill the process, and start another; the hot tier is empty then."""
        if is_clean:
            self.side.close()
        else:
            self.side.kill()
        self.side.start()
        self.serve()

    def ask(self, environ: dict[str, Any]) -> Answer:
        """Send one request."""
        found: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(
            status: str, headers: list[tuple[str, str]], *_: object
        ) -> Any:
            found.append((status, headers))

        with self.side.selected():
            body = self.wsgi(environ, start_response)
        [(status, headers)] = found
        assert type(status) is str
        assert type(headers) is list
        assert all(type(header) is tuple for header in headers)
        if self.is_merged and len(headers) == 1:
            [(name, value)] = headers
            lines = f"{name}: {value}".split("\r\n")
            headers = [self._parts(line) for line in lines]
        assert type(body) is list
        assert len({name for name, _ in headers}) == len(headers)
        return Answer(status, sorted(headers), body)

    @staticmethod
    def _parts(line: str) -> tuple[str, str]:
        name, colon, value = line.partition(": ")
        assert colon, line
        return name, value

    def counted(self) -> dict[str, Any]:
        """Return what was counted by now."""
        if self.is_fast:
            self.wsgi.flush()  # type: ignore[attr-defined]
        stats = self.app.stats
        counts = counted(self.side.store)
        counts["answers"] = {k: h.count for k, h in stats.answers.items() if h.count}
        counts["bytes"] = (stats.bytes_in, stats.bytes_out)
        counts["hits"] = stats.hits()
        counts["promoted"] = list(self.cache.promoted)
        if self.hot is not None:
            hot = self.hot.stats
            counts["hot"] = (hot.gets, hot.hits, hot.promotions, hot.invalidations)
        for name in ("reads", "writes"):
            histogram = getattr(self.side.store.stats, name)
            assert histogram.count == sum(histogram.counts)
            assert histogram.total_ns >= 0
        return counts


class Apps:
    """Both applications, and one clock, which stands still between requests."""

    def __init__(  # noqa: PLR0913 - By keyword.
        self,
        folder: Path,
        *,
        is_merged: bool = False,
        has_hot_tier: bool = False,
        is_faulty: bool = False,
        default_ttl: int = 0,
        max_ttl: int = 0,
        second: int = 1_790_000_000,
        **options: Any,
    ) -> None:
        """
        Begin with two empty stores.

        Args:
            folder: For both.
            is_merged: See `with_fast_path`.
            has_hot_tier: The second read of a key promotes it.
            is_faulty: The disks are `FaultyDisk`s.
            default_ttl: A setting.
            max_ttl: Likewise.
            second: The time.
            options: As for `Store.open`.
        """
        self.second = second
        self.disks: list[FaultyDisk] = []
        options.setdefault("volume_size", VOLUME_SIZE)
        options.setdefault("volume_num", 3)
        limits = RequestLimits(
            key_size=KEY_SIZE_MAX,
            value_size=VALUE_SIZE_MAX,
            default_ttl=default_ttl,
            max_ttl=max_ttl,
        )
        self.both = [
            Instance(
                Side(
                    folder / name,
                    # Not at the end of a second: the next time of a record is in it.
                    machine_us=lambda: self.second * 1_000_000 + 500_000,
                    disk=self._faulty if is_faulty else self._bare,
                    **options,
                ),
                limits,
                # Its last nanosecond, so that the second is over at the next request.
                lambda: self.second * 1_000_000_000 + 999_999_999,
                has_hot_tier=has_hot_tier,
                is_fast=name == "fast",
                is_merged=is_merged,
            )
            for name in ("fast", "plain")
        ]

    def _faulty(self) -> FaultyDisk:
        self.disks.append(FaultyDisk(UnsyncedFileSystem()))
        return self.disks[-1]

    @staticmethod
    def _bare() -> ProcessFileSystem:
        return BareProcess(UnsyncedFileSystem())

    def break_disks(self, *, reads: str = "", writes: str = "") -> None:
        """Make the disks fail; without arguments, repair them."""
        for disk in self.disks:
            disk.reads, disk.writes, disk.halves = reads, writes, 0

    def check(self, make: Callable[[Instance], dict[str, Any]]) -> Answer:
        """Send a request, made for each application, to both; return the answer."""
        answers = [one.ask(make(one)) for one in self.both]
        fast, slow = (answer.without_time() for answer in answers)
        assert (fast.status, fast.headers) == (slow.status, slow.headers), (fast, slow)
        assert fast.body == slow.body
        first, second = (one.counted() for one in self.both)
        unequal = {name: (first[name], second[name]) for name in first}
        unequal = {name: pair for name, pair in unequal.items() if pair[0] != pair[1]}
        assert not unequal, unequal
        return answers[1]

    def ask(
        self, method: str, path: str | None, body: bytes = b"", **more: Any
    ) -> Answer:
        """
        Send one request; further arguments are added to environ, None removes one.

        A PUT has the right Content-Length by default. In a text, ETAG stands for the tag
        that the key has.
        """

        def make(one: Instance) -> dict[str, Any]:
            environ: dict[str, Any] = {
                "REQUEST_METHOD": method,
                "PATH_INFO": path,
                "wsgi.input": io.BytesIO(body),
            }
            if method == "PUT":
                environ["CONTENT_LENGTH"] = str(len(body))
            environ |= {
                name: value.replace("ETAG", tag_of(one, path))
                if isinstance(value, str)
                else value
                for name, value in more.items()
            }
            environ |= {"wsgi.input": more["stream"]()} if "stream" in more else {}
            return {name: value for name, value in environ.items() if value is not None}

        return self.check(make)

    def put(self, path: str, body: bytes, **more: Any) -> Answer:
        """Store a value."""
        return self.ask("PUT", path, body, **more)

    def restart(self, *, is_clean: bool = True) -> None:
        """Stop or kill both, and start them."""
        for one in self.both:
            one.restart(is_clean=is_clean)

    def close(self) -> None:
        """Stop both."""
        self.break_disks()
        for one in self.both:
            if one.hot is not None:
                one.hot.close()
            one.side.close()


def tag_of(one: Instance, path: str | None) -> str:
    """Return the entity tag of the record of a path; "none" without one."""
    store = one.side.store
    copy = store.read_raw((path or "")[1:].encode("latin-1", "replace"))
    if copy is None:
        return "none"
    record = store.validate((path or "")[1:].encode("latin-1", "replace"), copy)
    return f"{record.stored_us:x}-{record.checksum:08x}" if record else "none"
