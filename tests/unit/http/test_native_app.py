"""native_app.py: for any request, the fast path answers what `App` answers."""

from __future__ import annotations

import io
import logging
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.extent import examples
from support.native_app import KEY_SIZE_MAX, VALUE_SIZE_MAX, Apps
from support.tables import each_row
from volcache.front import http_date
from volcache.http.responses import format_date

pytestmark = pytest.mark.sampled(4)

BYTES: Final = random.Random(1).randbytes(VALUE_SIZE_MAX + 1)  # noqa: S311
DAY: Final = 86_400
SECOND_MAX: Final = 253_402_300_799

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


@contextmanager
def running(**options: Any) -> Iterator[Apps]:
    """Run both applications in a folder of their own; errors are not logged."""
    with tempfile.TemporaryDirectory() as folder:
        apps = Apps(Path(folder), **options)
        logging.disable()
        try:
            yield apps
        finally:
            logging.disable(logging.NOTSET)
            apps.close()


@pytest.fixture(params=[False, True], ids=["plain", "merged"])
def apps(request: pytest.FixtureRequest) -> Iterator[Apps]:
    """Return both applications with empty stores; headers as WSGI has them, or merged."""
    with running(is_merged=request.param) as both:
        yield both


# --- The same answers --------------------------------------------------------------


@pytest.mark.slow
def test_any_path_is_answered_alike(apps: Apps) -> None:
    """Before and after a PUT, and after a DELETE; also those that are not keys."""
    for path in PATHS:
        for method in ("GET", "HEAD", "PUT", "GET", "HEAD", "DELETE", "GET", "POST"):
            apps.ask(method, path, b"value" if method == "PUT" else b"")
            apps.second += 1


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/a.json", "/x/../b", "/none"])
def test_any_header_is_answered_alike(apps: Apps, path: str) -> None:
    """With every method; most of them change what is stored, so a GET follows."""
    for headers, method in product(HEADERS, METHODS):
        if path != "/none":
            apps.put("/b", b"value", CONTENT_TYPE="a/b")
            apps.put("/a.json", b"value", HTTP_CONTENT_ENCODING="gzip")
        apps.second += 3
        apps.ask(method, path, b"12345", **headers)
        apps.second += 1
        apps.ask("GET", path)
        apps.ask("GET", "/a.json")


def test_plain_requests_are_not_passed_on(apps: Apps) -> None:
    """A GET of a value and a PUT; all others, and a miss, are."""
    for size in (0, 100, 50_000, 900_000):
        apps.put("/key", BYTES[:size], CONTENT_TYPE="text/html")
        apps.ask("GET", "/key")
    apps.put("/key/2", b"")
    apps.ask("GET", "/key/2")
    assert apps.both[0].app.asked == []
    apps.ask("GET", "/none")
    apps.ask("HEAD", "/key")
    apps.ask("GET", "/key", HTTP_RANGE="bytes=0-0")
    apps.ask("DELETE", "/key")
    assert apps.both[0].app.asked == ["GET", "HEAD", "GET", "DELETE"]


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
    """Each twice: the second read knows the length of the content type."""
    for size in SIZES:
        path = f"/{size}"
        value = BYTES[:size]
        assert apps.put(path, value, **types).code == 200
        for _ in range(2):
            assert apps.ask("GET", path).body == [value]
        # Another length of the types than the first read of it has expected.
        apps.put(path, value, CONTENT_TYPE="x")
        assert apps.ask("GET", path).body == [value]
    assert apps.put("/over", BYTES).code == 413
    assert apps.ask("GET", "/over").code == 404


@pytest.mark.slow
@pytest.mark.parametrize("is_clean", [True, False])
def test_values_found_after_a_start_are_answered_alike(
    apps: Apps, *, is_clean: bool
) -> None:
    """The index does not know the lengths of their content types at first."""
    for size in SIZES:
        apps.put(f"/{size}", BYTES[:size], CONTENT_TYPE="t" * (size % 200))
    apps.restart(is_clean=is_clean)
    for _ in range(2):
        for size in SIZES:
            assert apps.ask("GET", f"/{size}").body == [BYTES[:size]]


@pytest.mark.slow
def test_rotation_is_answered_alike(apps: Apps) -> None:
    """A PUT that does not fit the volume is passed on; old values are misses."""
    for number in range(110):
        apps.put(f"/{number % 31}", BYTES[: 400_000 + number])
        apps.second += 1
        for other in range(31):
            apps.ask("GET", f"/{other}")
    assert apps.both[0].side.store.stats.rotations > 4
    assert "PUT" in apps.both[0].app.asked
    assert len(apps.both[0].app.asked) < 110 * 31


@each_row("is_merged", [False, True])
def test_flags_are_answered_alike(*, is_merged: bool) -> None:
    """Of any size, also with the longest headers; a PUT has none."""
    options: dict[str, Any] = {
        "content_type": b"t" * 255,
        "content_encoding": b"e" * 255,
        "cache_control": b"c" * 255,
    }
    with running(is_merged=is_merged) as apps:
        for flags in (0, 1, 7, 65_535, 2**32 - 1):
            for more in ({}, options):
                for one in apps.both:
                    with one.side.selected():
                        one.cache.put(b"k", b"value", flags=flags, **more)
                answers = [
                    apps.ask("GET", "/k"),
                    apps.ask("HEAD", "/k"),
                    apps.ask("GET", "/k", HTTP_RANGE="bytes=1-2"),
                    apps.ask("GET", "/k", HTTP_IF_NONE_MATCH="ETAG"),
                ]
                for answer in answers:
                    found = dict(answer.headers).get("X-Flags")
                    assert found == (str(flags) if flags else None)
        apps.put("/k", b"value")
        assert "X-Flags" not in dict(apps.ask("GET", "/k").headers)


@each_row("sync_mode", ["always", "none", "periodic"])
def test_every_sync_mode_is_answered_alike(sync_mode: str) -> None:
    """With "always", PUTs are passed on."""
    with running(sync_mode=sync_mode) as apps:
        for number in range(10):
            apps.put(f"/{number}", b"%d" % number)
            apps.ask("GET", f"/{number}")
        assert ("PUT" in apps.both[0].app.asked) == (sync_mode == "always")
        apps.ask("DELETE", "/1")
        for one in apps.both:
            one.side.store.sync()
        apps.ask("GET", "/1")


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
        apps.ask("GET", "/a")
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
    st.sampled_from(["GET", "GET", "GET", "PUT", "PUT", "PUT", "HEAD", "DELETE"]),
    paths,
    bodies,
    st.one_of(st.just({}), typed, lengths, st.sampled_from(HEADERS)),
    st.sampled_from([0, 0, 1, 5, 100, -2]),
)
options = st.fixed_dictionaries(
    {
        "is_merged": st.booleans(),
        "has_hot_tier": st.booleans(),
        "second": st.sampled_from([10, 1_790_000_000, 2**32, SECOND_MAX - 2]),
    },
    optional={"default_ttl": st.just(10), "max_ttl": st.just(60)},
)


@pytest.mark.slow
@pytest.mark.property
@settings(max_examples=examples(150), deadline=None)
@given(st.lists(requests, max_size=40), options)
def test_any_requests_are_answered_alike(
    steps: list[tuple[str, str | None, bytes, dict[str, Any], int]],
    options: dict[str, Any],
) -> None:
    """Status, headers, body, and everything that is counted."""
    with running(**options) as apps:
        for method, path, body, more, seconds in steps:
            apps.ask(method, path, body if method == "PUT" else b"", **more)
            apps.second = max(0, apps.second + seconds)


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

FAULTS: Final = [
    *({"reads": kind} for kind in ("error", "short", "empty", "garbage", "rot")),
    *({"writes": kind} for kind in ("error", "part", "torn")),
    {"reads": "error", "writes": "error"},
]
KEPT: Final = {f"/{size}.bin": BYTES[:size] for size in (0, 9, 1000, 40_000, 1_100_000)}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=str)
@pytest.mark.parametrize("is_merged", [False, True])
@pytest.mark.parametrize("has_hot_tier", [False, True])
def test_disk_that_fails_is_answered_alike(
    fault: dict[str, str], *, is_merged: bool, has_hot_tier: bool
) -> None:
    """While it fails and later; what it has refused to read is still there."""
    with running(
        is_merged=is_merged, has_hot_tier=has_hot_tier, is_faulty=True
    ) as apps:
        for path, value in KEPT.items():
            apps.put(path, value, CONTENT_TYPE="a/b")
        apps.break_disks(**fault)
        codes = {apps.ask(m, p).code for m, p in product(["HEAD", "GET"], KEPT)}
        if fault.get("reads") == "error":
            assert codes == {503}
        elif "reads" in fault:
            assert codes <= {200, 404}
            assert 404 in codes
        for path in ("/new", "/0.bin", "/9.bin"):
            code = apps.put(path, b"new", CONTENT_TYPE="c/d").code
            assert code == (507 if fault.get("writes") in {"error", "torn"} else 200)
        apps.ask("GET", "/new")
        apps.ask("DELETE", "/1000.bin")
        apps.break_disks()
        for path, value in KEPT.items():
            answer = apps.ask("GET", path)
            if path in {"/1100000.bin", "/40000.bin"} and "writes" in fault:
                assert answer.body == [value]
        again = apps.put("/again", b"again")
        assert again.code == 200
        assert apps.ask("GET", "/again").body == [b"again"]
        apps.restart(is_clean=False)
        assert apps.ask("GET", "/again").body == [b"again"]
        for path in KEPT:
            apps.ask("GET", path)
