"""native_app.py: for any request, the fast path answers what `App` answers."""

from __future__ import annotations

import errno
import io
import logging
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count, product
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.clocks import ManualClock
from support.extent import examples
from support.native import BareProcess
from support.simulated import SimulatedFileSystem
from support.stores import UnsyncedFileSystem, open_store
from support.tables import each_row
from support.wsgi_client import called
from volcache.cache import Cache
from volcache.errors import BadKeyError, KeyTooLongError, UnreadableRecordError
from volcache.front import http_date
from volcache.http.app import App, RequestLimits
from volcache.http.native_app import with_fast_path
from volcache.http.responses import format_date
from volcache.keys import parse_key

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

pytestmark = pytest.mark.sampled(4)

DAY: Final = 86_400
SECOND_MAX: Final = 253_402_300_799
KEY_SIZE_MAX: Final = 60
VALUE_SIZE_MAX: Final = 1_200_000
BYTES: Final = random.Random(1).randbytes(VALUE_SIZE_MAX + 1)  # noqa: S311
ETAG: Final = re.compile(rb"\b([0-9a-f]+)-([0-9a-f]{8})\b")

WORDS: Final = (
    "/a /a/b.json /.git /x/.git /a. /a..b /a.PNG // /0 /a/ /a//b /- /-a /--/ /-."
    " /-/healthy /-/ /-/x /-/stats /../-/x /x/../-/healthy /a/../b /./a /.. /a/."
)
PATHS: Final = [
    *WORDS.split(),
    *("/a/..", "/", "", "*", "a", "a/b", "/a b", "/a\xff", "/\x80", "/gr\xc3\xbcn.txt"),
    *("/\x00", "/a\n", "/a\r\nb", "/a\x7f", "/a\x1f", "/\u0100", "/a\u20ac", None),
    *("/\U0001f600", "/" + "k" * 70_000, "/./" + "k" * KEY_SIZE_MAX),
    *("/" + "k" * (KEY_SIZE_MAX + more) for more in (-1, 0, 1)),
]
DATE: Final = "Sat, 21 Nov 2026 09:00:00 GMT"
# Values of headers; "|" is between two of them.
VALUES: Final = {
    "HTTP_RANGE": "bytes=0-1|bytes=1-|bytes=-2|bytes=9999999-|x||bytes=0-1,3-4",
    "HTTP_SERVICE_WORKER": "script",
    "HTTP_IF_RANGE": '"ETAG"',
    "HTTP_IF_NONE_MATCH": '"ETAG"|W/"ETAG", "x"|*|"x"|',
    "HTTP_IF_MATCH": '"ETAG"|"x"|*',
    "HTTP_IF_MODIFIED_SINCE": f"{DATE}|x",
    "HTTP_IF_UNMODIFIED_SINCE": f"{DATE}|Sat, 21 Nov 1996 09:00:00 GMT",
    "HTTP_CACHE_CONTROL": f"max-age=5|no-cache|max-age=5, public, immutable|{'c' * 256}"
    "|max-age=0|max-age=x|max-age=99999999999|",
    "HTTP_EXPIRES": f"{DATE}|0|Fri, 31 Dec 9999 23:59:59 GMT",
    "HTTP_CONTENT_RANGE": "bytes 0-1/2",
    "HTTP_TRANSFER_ENCODING": "chunked",
    "CONTENT_LENGTH": f"|0|00|05|5|5 | 5|+5|-5|5.0|\u0665|x|{'5' * 30}"
    "|18446744073709551621",
    "CONTENT_TYPE": f"|text/plain|text/\xe9\xff\xa0| x |x: y, z|{'t' * 255}|{'t' * 256}"
    "|a\r\nB: c|a\x00|a\x7f|a\x85b|a\tb|\u0100|\U0001f600",
    "HTTP_CONTENT_ENCODING": f"|gzip|{'e' * 64}|{'e' * 65}|br\n|\u0100",
}
HEADERS: Final[list[dict[str, Any]]] = [
    {},
    *({name: value} for name, found in VALUES.items() for value in found.split("|")),
    {"HTTP_RANGE": "bytes=0-1", "HTTP_IF_RANGE": '"ETAG"'},
    {"HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": None},
    {"HTTP_TRANSFER_ENCODING": "gzip", "CONTENT_LENGTH": ""},
    {"CONTENT_TYPE": "\xff" * 255, "HTTP_CONTENT_ENCODING": "\xfe" * 64},
    {"CONTENT_TYPE": "text/html", "HTTP_CONTENT_ENCODING": "br"},
    *({name: None} for name in ("CONTENT_LENGTH", "REQUEST_METHOD", "PATH_INFO")),
    {"wsgi.input": None},
    {"REQUEST_METHOD": None, "PATH_INFO": None, "wsgi.input": None},
]
METHODS: Final = ["GET", "HEAD", "PUT", "DELETE", "get", "POST"]
# The path of a value of up to 16 KiB, of one up to 1 MiB, and of a larger one differ; the
# size in the index is a little larger than that of the record.
SIZES: Final = [
    *(0, 1, 5, 100, 4096, 14_000, 14_336, 14_337, 15_000, 16_000),
    *(range(16_384 - 200, 16_384 + 8, 13)),
    *(16_384, 16_385, 18_000, 65_536, 100_000, 917_000, 983_000, 1_000_000),
    *((1 << 20) - 200, (1 << 20) - 65, (1 << 20) - 64, (1 << 20) - 1, 1 << 20),
    *((1 << 20) + 1, VALUE_SIZE_MAX),
]


class Answer(NamedTuple):
    """A response."""

    status: str
    headers: dict[str, str]
    body: list[bytes]

    @property
    def code(self) -> int:
        """The status as a number."""
        return int(self.status[:3])


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


class Apps:
    """`App` and the fast path on one store, whose clock stands still between requests."""

    def __init__(
        self,
        folder: Path,
        *,
        is_merged: bool = False,
        limits: Any = None,
        **options: Any,
    ) -> None:
        """Begin with an empty store; `options` as for `open_store`."""
        self.second = 1_790_000_000
        self.folder, self._is_merged = folder, is_merged
        self._limits = RequestLimits(
            key_size=KEY_SIZE_MAX, value_size=VALUE_SIZE_MAX, **(limits or {})
        )
        disk = {"fs": BareProcess(UnsyncedFileSystem()), "volume_size": 8 << 20}
        self._options: dict[str, Any] = disk | {"volume_num": 12} | options
        self.start()

    def start(self) -> None:
        """Open the store."""
        self.store = open_store(
            self.folder,
            # Not at the end of a second: the next time of a record is in it.
            clock=ManualClock(lambda: self.second * 1_000_000 + 500_000, lambda: 0),
            **self._options,
        )
        self.cache = Cache(self.store)
        self.app = CountedApp(
            self.cache,
            self._limits,
            # Its last nanosecond, so that the second is over at the next request.
            clock=lambda: self.second * 1_000_000_000 + 999_999_999,
            timer=count(step=1_000_000_000).__next__,
        )
        self.fast = with_fast_path(self.app, is_merged=self._is_merged)

    def call(self, wsgi: Any, environ: dict[str, Any]) -> Answer:
        """Send a request to one of them."""
        status, headers, body = called(wsgi, environ)
        if self._is_merged and wsgi is self.fast and len(headers) == 1:
            lines = "{}: {}".format(*headers[0]).split("\r\n")
            headers = [
                (name, text) for name, _, text in (x.partition(": ") for x in lines)
            ]
        assert all(type(header) is tuple for header in headers)
        return Answer(status, dict(headers), body)

    def counted(self) -> Counter[object]:
        """Return what was counted by now."""
        self.fast.flush()
        stats, store = self.app.stats, self.store.stats
        found: Counter[object] = Counter({k: h.count for k, h in stats.answers.items()})
        found.update(stats.hits())
        found.update(to=stats.bytes_in, of=stats.bytes_out)
        found.update(reads=store.reads.count, writes=store.writes.count)
        return found

    def ask(
        self,
        method: str,
        path: str | None,
        body: bytes = b"",
        *,
        before: Callable[[], object] = lambda: None,
        stream: Callable[[], Any] | None = None,
        **more: Any,
    ) -> Answer:
        """
        Send one request to each; all that can be seen has to be the same.

        A PUT has the right Content-Length by default. In a text, ETAG stands for the tag
        that the key has.

        Args:
            method: In environ.
            path: Likewise.
            body: Likewise.
            before: Makes the state that each begins with.
            stream: Makes another input.
            more: Further parts of environ; None removes one.
        """
        seen = []
        for wsgi in (self.app, self.fast):
            before()
            environ: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path}
            environ["wsgi.input"] = stream() if stream else io.BytesIO(body)
            if method == "PUT":
                environ["CONTENT_LENGTH"] = str(len(body))
            for name, text in more.items():
                is_text = isinstance(text, str)
                environ[name] = (
                    text.replace("ETAG", self._tag(path)) if is_text else text
                )
            environ = {k: v for k, v in environ.items() if v is not None}
            old = self.counted()
            answer = self.call(wsgi, environ)
            found = self.counted()
            found.subtract(old)
            counted = {name: number for name, number in found.items() if number}
            seen.append((_timeless(answer), counted, self._stored(path)))
        assert seen[0] == seen[1]
        return seen[0][0]

    def put(self, path: str, body: bytes, **more: Any) -> Answer:
        """Store a value."""
        return self.ask("PUT", path, body, **more)

    def _tag(self, path: str | None) -> str:
        record = self._record(path)
        return f"{record.stored_us:x}-{record.checksum:08x}" if record else "none"

    def _stored(self, path: str | None) -> tuple[object, ...] | None:
        """Return what is stored under a path, without its time to the microsecond."""
        record = self._record(path)
        if record is None:
            return None
        return (*record[:4], record.stored_us // 1000, record.expires_ms, record.flags)

    def _record(self, path: str | None) -> Any:
        key = key_of(path)
        with suppress(UnreadableRecordError):
            return key and self.store.peek(key)
        return None


def key_of(path: Any) -> bytes | None:
    """Return the key of a path, if it has one."""
    with suppress(BadKeyError, KeyTooLongError, TypeError, AttributeError):
        return parse_key(path, size_max=KEY_SIZE_MAX)
    return None


def _timeless(answer: Answer) -> Answer:
    """Remove what differs between two records of one millisecond."""

    def coarse(data: bytes) -> bytes:
        return ETAG.sub(lambda tag: b"%x-%b" % (int(tag[1], 16) // 1000, tag[2]), data)

    headers = {k: coarse(v.encode()).decode() for k, v in answer.headers.items()}
    if "X-Position" in headers:
        headers["X-Position"] = headers["X-Position"].rpartition(",")[2]
    # Also in the boundaries of parts, and in the reason of a 412.
    body = [coarse(data) if len(data) < 1000 else data for data in answer.body]
    return answer._replace(headers=headers, body=body)


@contextmanager
def running(**options: Any) -> Iterator[Apps]:
    """Run both applications in a folder of their own; errors are not logged."""
    with TemporaryDirectory() as folder:
        apps = Apps(Path(folder), **options)
        logging.disable()
        try:
            yield apps
        finally:
            logging.disable(logging.NOTSET)
            apps.store.close()


@pytest.fixture(params=[False, True], ids=["plain", "merged"])
def apps(request: pytest.FixtureRequest) -> Iterator[Apps]:
    """Return both applications; headers as WSGI has them, or merged."""
    with running(is_merged=request.param) as both:
        yield both


# --- The same answers --------------------------------------------------------------


@pytest.mark.slow
def test_any_path_is_answered_alike(apps: Apps) -> None:
    """With and without a value; also those that are not keys."""
    for path, is_there in product(PATHS, (False, True)):
        key = key_of(path)

        def store(key: bytes | None = key, *, is_there: bool = is_there) -> None:
            if key and is_there:
                apps.store.put(key, b"old")
            elif key:
                apps.store.delete(key)

        for method in METHODS:
            apps.ask(method, path, b"value" if method == "PUT" else b"", before=store)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/a.json", "/x/../b", "/none"])
def test_any_header_is_answered_alike(apps: Apps, path: str) -> None:
    """With every method; of a value of this second, and of an older one."""

    def store() -> None:
        apps.store.put(b"b", b"value", content_type=b"a/b")
        apps.store.put(b"a.json", b"value", content_encoding=b"gzip")
        apps.store.delete(b"none")

    for headers, method in product(HEADERS, METHODS):
        apps.ask(method, path, b"12345", before=store, **headers)
        if method in {"GET", "HEAD"}:
            apps.second += 3
            apps.ask(method, path, **headers)


def test_plain_requests_are_not_passed_on(apps: Apps) -> None:
    """A GET of a value and a PUT; all others, and a miss, are."""
    plain: list[tuple[str, int, dict[str, str]]] = [
        (method, size, {}) for size in (0, 100, 900_000) for method in ("PUT", "GET")
    ]
    others = [("HEAD", 0, {}), ("GET", 0, {"HTTP_RANGE": "bytes=0-0"})]
    for number, (method, size, more) in enumerate([*plain, *others, ("DELETE", 0, {})]):
        environ = {"REQUEST_METHOD": method, "PATH_INFO": "/key", **more}
        environ["CONTENT_LENGTH"] = str(size)
        apps.call(apps.fast, environ | {"wsgi.input": io.BytesIO(BYTES[:size])})
        assert len(apps.app.asked) == max(0, number - len(plain) + 1)
    apps.call(apps.fast, {"REQUEST_METHOD": "GET", "PATH_INFO": "/key"})
    assert apps.app.asked == ["HEAD", "GET", "DELETE", "GET"]


LONGEST: Final = {"CONTENT_TYPE": "t" * 255, "HTTP_CONTENT_ENCODING": "e" * 64}
TYPES: Final[list[dict[str, str]]] = [
    {},
    LONGEST | {"HTTP_CACHE_CONTROL": "c" * 255},
    {"CONTENT_TYPE": "text/html"},
    {"HTTP_CACHE_CONTROL": "max-age=9, public"},
]


@pytest.mark.slow
@pytest.mark.parametrize("types", TYPES)
def test_values_of_any_size_are_answered_alike(
    apps: Apps, types: dict[str, str]
) -> None:
    """Also after a start: the index does not know the lengths of their types then."""
    for size in SIZES:
        path = f"/{size}"
        # Another length of the types than the first read of it has expected.
        for more in (types, {"CONTENT_TYPE": "x"}, types):
            assert apps.put(path, BYTES[:size], **more).code == 200
            assert apps.ask("GET", path).body == [BYTES[:size]]
    assert apps.put("/over", BYTES).code == 413
    apps.store.close()
    apps.start()
    for size in SIZES:
        assert apps.ask("GET", f"/{size}").body == [BYTES[:size]]


def test_value_that_does_not_fit_the_volume_is_passed_on(apps: Apps) -> None:
    """Old values are misses."""
    for number in range(110):
        assert apps.put(f"/{number % 31}", BYTES[: 400_000 + number]).code == 200
        apps.ask("GET", f"/{(number + 1) % 31}")
    assert apps.store.stats.rotations > 4


@pytest.mark.slow
@each_row("limits", [{"default_ttl": 10}, {"max_ttl": 60}, {}])
def test_expiry_is_answered_alike(limits: dict[str, int]) -> None:
    """Before and after the time to live, with the limits of the settings."""
    with running(limits=limits) as apps:
        lifetimes = ("", "0", "1", "5", "100", "99999999999")
        for ttl in lifetimes:
            more = {"HTTP_CACHE_CONTROL": f"max-age={ttl}"} if ttl else {}
            apps.put(f"/k{ttl}", b"value", **more)
        # The clock of the machine is set back, too.
        for step, ttl in product((0, 1, 1, 3, -2, 5, 50, 100, 10_000), lifetimes):
            apps.second += step if not ttl else 0
            apps.ask("GET", f"/k{ttl}")
            apps.ask("HEAD", f"/k{ttl}")


def test_flags_are_answered_alike(apps: Apps) -> None:
    """Of any size, also with the longest headers; a PUT has none."""
    names = ("content_type", "content_encoding", "cache_control")
    longest: dict[str, Any] = dict.fromkeys(names, b"x" * 255)
    for flags, more in product((0, 7, 2**32 - 1), ({}, longest)):
        apps.store.put(b"k", b"value", flags=flags, **more)
        for name in ("HTTP_ACCEPT", "HTTP_RANGE", "HTTP_IF_NONE_MATCH"):
            part: dict[str, Any] = {
                name: "ETAG" if name != "HTTP_RANGE" else "bytes=1-2"
            }
            found = apps.ask("GET", "/k", **part).headers.get("X-Flags")
            assert found == (str(flags) if flags else None)
    assert "X-Flags" not in apps.put("/k", b"value").headers


def test_put_that_is_synced_is_passed_on() -> None:
    """With "always"."""
    with running(sync_mode="always") as apps:
        apps.put("/a", b"value")
        assert apps.app.asked == ["PUT"] * 2


class BadStream:
    """An input that fails, or returns something else than bytes."""

    def __init__(self, answer: Any) -> None:
        """Return or raise the answer."""
        self._answer = answer

    def getvalue(self) -> Any:
        """Return or raise the answer."""
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer


def only_readable() -> SimpleNamespace:
    """Return the input of another WSGI server."""
    return SimpleNamespace(read=io.BytesIO(b"value").read)


def test_other_inputs_are_answered_alike(apps: Apps) -> None:
    """No exception leaves the fast path either: the process would end, or hang up."""
    for length in ("5", "", None, "3", "05"):
        apps.put("/a", b"", CONTENT_LENGTH=length, stream=only_readable)
    errors = (MemoryError(), SystemExit(1), KeyboardInterrupt())
    for answer in (None, 5, "value", "text", *errors):
        bad = BadStream(answer)
        answered = apps.put("/a", b"", CONTENT_LENGTH="5", stream=lambda one=bad: one)
        assert answered.code == (400 if answer == "text" else 500)
        assert apps.put("/a", b"value").code == 200


def test_environ_of_other_types_is_answered_alike(apps: Apps) -> None:
    """WSGI does not allow it; neither application may raise or crash."""
    others: dict[str, list[Any]] = {
        "CONTENT_LENGTH": [5, b"5"],
        "CONTENT_TYPE": [b"text/plain", 7],
        "HTTP_CONTENT_ENCODING": [b"gzip", []],
        "PATH_INFO": [b"/a"],
        "REQUEST_METHOD": [b"PUT", 5],
    }
    for name, values in others.items():
        for method, value in product(("PUT", "GET"), values):
            apps.ask(method, "/a", b"value", **{name: value})


# --- Any request -------------------------------------------------------------------

latin = st.text(st.characters(max_codepoint=255), max_size=20)
paths = st.one_of(
    st.sampled_from(["/a", "/b.txt", "/c/d"]),
    st.sampled_from(PATHS),
    latin.map("/{}".format),
    st.text(max_size=5).map("/{}".format),
)
bodies = st.one_of(
    st.binary(max_size=40), st.sampled_from(SIZES).map(lambda size: BYTES[:size])
)
typed = st.fixed_dictionaries(
    {}, optional={"CONTENT_TYPE": latin, "HTTP_CONTENT_ENCODING": latin}
)
lengths = st.one_of(
    st.text("0123456789 +-_", max_size=4), latin, st.text(max_size=3)
).map(lambda text: {"CONTENT_LENGTH": text})
requests = st.tuples(
    st.sampled_from(["GET", "PUT"]),
    paths,
    bodies,
    st.one_of(st.just({}), typed, lengths, st.sampled_from(HEADERS)),
    st.sampled_from([0, 0, 1, 5, 100, -2]),
)
seconds = st.sampled_from([10, 1_790_000_000, 2**32, SECOND_MAX - 2])


@pytest.mark.slow
@pytest.mark.property
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(requests, max_size=40), st.booleans(), seconds)
def test_any_requests_are_answered_alike(
    steps: list[tuple[str, str | None, bytes, dict[str, Any], int]],
    is_merged: bool,  # noqa: FBT001
    second: int,
) -> None:
    """Status, headers, body, what is counted and what is stored, at any time."""
    with running(is_merged=is_merged) as apps:
        apps.second = second
        for method, path, body, more, later in steps:
            # Two PUTs with a condition begin with the same state.
            is_changed = method == "PUT" and any("IF_" in name for name in more)
            flush = apps.store.flush if is_changed else bool
            data = body if method == "PUT" else b""
            apps.ask(method, path, data, before=flush, **more)
            apps.second = max(0, apps.second + later)


# --- Dates -------------------------------------------------------------------------


def seconds_to_try() -> Iterator[int]:
    """Yield the ends of all months of all years, and more of the years in use."""
    for year in range(1970, 10_000):
        for month in range(1, 13):
            first = int(datetime(year, month, 1, tzinfo=UTC).timestamp())
            yield from (max(0, first - 1), first)
        yield int(datetime(year, 2, 28, 12, tzinfo=UTC).timestamp()) + DAY
    yield from range(0, 140 * 365 * DAY, DAY + 61)
    dice = random.Random(5)  # noqa: S311 - To be repeated.
    for _ in range(20_000):
        yield dice.randrange(SECOND_MAX + 1)
    yield SECOND_MAX


@pytest.mark.slow
def test_dates_are_those_of_the_application() -> None:
    """Leap years and the turns of months, years and centuries, from 1970 to 9999."""
    for second in seconds_to_try():
        assert http_date(second) == format_date(second)


@each_row("second", [-1, SECOND_MAX + 1, -(2**63), 2**63 - 1])
def test_no_date_is_before_1970_or_after_9999(second: int) -> None:
    """They are not formatted natively."""
    with pytest.raises(ValueError, match="no date"):
        http_date(second)


# --- A disk that fails -------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["pread", "pwritev", "torn", "rot"])
def test_disk_that_fails_is_answered_alike(fault: str) -> None:
    """While it fails and later; what it has refused to read is still there."""
    disk = SimulatedFileSystem()
    with running(fs=disk) as apps:
        for size, method in product((0, 9, 1000, 40_000, 1_100_000), ("GET", "PUT")):

            def store(size: int = size) -> None:
                disk.failing.clear()
                disk.fail_share = 0.3 * (fault == "torn")
                record = apps.store.put(b"key", BYTES[:size], content_type=b"a/b")
                if fault == "rot":
                    data = disk.file(f"{apps.folder}/data/{record.volume}").data
                    data[record.offset + record.size - 1] ^= 64
                else:
                    disk.failing["pread" if fault == "pread" else "pwritev"] = errno.EIO

            code = apps.ask(method, "/key", b"new", before=store).code
            reads = {"pread": 503, "rot": 404}
            writes = {"pwritev": 507, "torn": 507}
            assert code == (reads if method == "GET" else writes).get(fault, 200)
            disk.failing.clear()
            if fault != "rot":
                assert apps.ask("GET", "/key").code == 200
