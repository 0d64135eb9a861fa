"""
One vocabulary: the same cases with `Client`, `AsyncClient` and `EmbeddedCache`.

The methods are those of the table in docs/PYTHON.md.
"""

from __future__ import annotations

import inspect
import math
import pickle
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, Final

import pytest

import volcache
from support.client_users import TaskClient
from support.process import ADMIN_TOKEN, MIB, ServerProcess, Servers
from support.tables import each_row
from support.waiting import wait_until
from volcache_client import (
    AsyncClient,
    Client,
    ClientUsageError,
    ConflictError,
    InvalidArgumentError,
    InvalidKeyError,
    Item,
    SerializationError,
    Stat,
    ValueTooLargeError,
)

pytestmark = pytest.mark.integration

PAGE: Final = Path(__file__).parents[2] / "docs" / "PYTHON.md"
KINDS: Final = (Client, AsyncClient, volcache.EmbeddedCache)
NEVER: Final[list[float]] = [2**31 - 60, math.inf]
PATIENCE: Final[dict[str, Any]] = {"timeout": 30, "connect_timeout": 30}
SECRET: Final = "of-the-operator"  # noqa: S105 - Of the tests.
# Few volumes: an embedded cache has a descriptor for each.
SMALL: Final[dict[str, Any]] = {"capacity": "64MiB", "volume_size": "1MiB"}
Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def server(servers: Servers) -> Iterator[ServerProcess]:
    """One instance for all cases."""
    with servers.server() as running:
        yield running


@pytest.fixture(params=["threads", "tasks", "owner", "guest"])
def opened(
    request: pytest.FixtureRequest, server: ServerProcess, tmp_path: Path
) -> Iterator[Opened]:
    """Return a function that opens an empty cache, with a serializer and more."""
    if request.param in {"owner", "guest"}:
        opening: Opened = partial(volcache.open, tmp_path / "cache", **SMALL)
        with ExitStack() as stack:
            if request.param == "guest":
                stack.enter_context(opening())
            yield opening
        return
    kind: Any = Client if request.param == "threads" else TaskClient
    opening = partial(kind, [server.url], **PATIENCE, admin_token=ADMIN_TOKEN)
    with opening() as client:
        client.clear()
    yield opening


@pytest.fixture
def cache(opened: Opened) -> Iterator[Any]:
    """An empty cache of bytes."""
    with opened() as found:
        yield found


# --- Signatures ------------------------------------------------------------------------


def methods() -> dict[str, str]:
    """Return the signatures in the table."""
    table = PAGE.read_text().split("\n## Methods\n")[1].split("\n\n- ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
    listed = re.findall(r"`(\w+)(?:\((.*?)\))?`", " ".join(cells))
    found = dict(listed)
    return found | {"decr": found["incr"]}


def parameters(kind: type, name: str) -> list[tuple[str, Any, Any]]:
    """Return names, kinds and defaults of the parameters of a method."""
    signature = inspect.signature(getattr(kind, name))
    return [(one.name, one.kind, one.default) for one in signature.parameters.values()]


def test_signatures_are_the_same_and_in_the_table() -> None:
    """What is only in one of them is the mapping, or documented apart."""
    for name, listed in methods().items():
        if name == "closed":
            continue
        first, *others = (parameters(kind, name) for kind in KINDS)
        assert all(other == first for other in others), name
        shown = [
            one if default is inspect.Parameter.empty else f"{one}={default!r}"
            for one, _, default in first[1:]
        ]
        assert ", ".join(shown) == listed, name
    for kind in KINDS:
        public = {name for name in dir(kind) if not name.startswith("_")}
        embedded = {"exclusive", "sync", "directory", "capacity", "volume_size"}
        embedded |= {"read_items", *dir(dict)}  # For the views of the mapping.
        assert public - methods().keys() <= embedded, kind


def test_calls_of_the_page_for_users_of_other_caches_work(cache: Any) -> None:
    """Each row, with all that were before it."""
    text = (PAGE.parent / "SWITCHING.md").read_text()
    calls = re.findall(r"^\| `(cache\..*?)` \|", text, re.MULTILINE)
    assert len(calls) > 20
    for call in calls:
        eval(call, {"cache": cache})  # noqa: S307 - Of the page.
    assert cache.closed


# --- Results ---------------------------------------------------------------------------


def test_values_are_read_as_they_were_stored(cache: Any) -> None:
    """By str and bytes; a miss is the default."""
    etag = cache.set("k", b"one", 60, content_type="a/b")
    assert isinstance(etag, str)
    assert (cache.get("k"), cache.get(b"k")) == (b"one", b"one")
    assert (cache.get("none"), cache.get("none", b"other")) == (None, b"other")
    stat = cache.stat("k")
    assert isinstance(stat, Stat)
    assert (stat.size, stat.etag, stat.content_type) == (3, etag, "a/b")
    assert 30 < (stat.ttl or 0) <= 60
    assert re.fullmatch(r"\d+,\d+,\d+", stat.position)
    item = cache.get_item("k")
    assert isinstance(item, Item)
    assert (item.value, item.stat.etag) == (b"one", etag)
    assert cache.stat("none") is cache.get_item("none") is None
    for value in (
        b"",
        bytearray(b"two"),
        memoryview(b"twotwo")[::2],
        bytes(range(256)),
    ):
        assert cache.set("k", value) != etag
        assert cache.get("k") == bytes(value)


def test_times_are_seconds_or_a_timedelta(cache: Any) -> None:
    """In each place; the time left is seen."""
    minute = timedelta(minutes=1)
    cache.set("k", b"v", minute)
    assert 30 < cache.ttl("k") <= 60
    assert cache.expire("k", timedelta(hours=1))
    assert 3000 < cache.ttl("k") <= 3600
    assert cache.get("k", touch=minute) == b"v"
    assert 30 < cache.ttl("k") <= 60
    assert cache.get("k", touch=math.inf) == b"v"
    assert cache.ttl("k") == math.inf
    assert cache.get("none", b"default", touch=5) == b"default"
    assert cache.ttl("none") is None
    assert cache.get_or_set("made", lambda: b"m", minute, stale=minute) == b"m"
    assert cache.incr("n", initial=1, ttl=minute) == 1
    for wrong in (timedelta(0), timedelta(seconds=-1)):
        with pytest.raises(InvalidArgumentError, match="a timedelta"):
            cache.set("k", b"v", wrong)


def test_exists_tells_whether_there_is_a_value(cache: Any) -> None:
    """An empty one is one."""
    cache.set("k", b"")
    assert cache.exists("k") is True
    assert cache.exists("none") is False


def test_append_adds_to_a_value_that_is_there(cache: Any) -> None:
    """Type and time to live stay."""
    assert cache.append("k", b"a") is None
    assert not cache.exists("k")
    cache.set("k", b"a", 60, content_type="text/x")
    assert cache.append("k", bytearray(b"bc")) == 3
    assert cache.get("k") == b"abc"
    assert cache.stat("k").content_type == "text/x"
    assert 30 < cache.ttl("k") <= 60
    with pytest.raises(InvalidArgumentError, match="append: a str"):
        cache.append("k", "text")


def test_append_of_many_threads_loses_nothing(cache: Any) -> None:
    """Each is one step."""
    cache.set("k", b"")
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: cache.append("k", b"x"), range(12)))
    assert cache.get("k") == b"x" * 12


def test_pop_returns_a_value_to_one_caller(cache: Any) -> None:
    """As of a dict."""
    cache.set("k", b"v")
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: cache.pop("k", None), range(8)))
    assert sorted(found, key=bool) == [None] * 7 + [b"v"]
    with pytest.raises(KeyError):
        cache.pop("k")


@pytest.fixture
def locked(cache: Any) -> Callable[..., Any]:
    """Return `lock` of a cache, as a context manager of threads."""
    if not isinstance(cache, TaskClient):
        return cache.lock  # type: ignore[no-any-return]

    @contextmanager
    def lock(*words: Any, **named: Any) -> Iterator[int]:
        context = cache._client.lock(*words, **named)
        token = cache.wait(context.__aenter__())
        try:
            yield token
        finally:
            cache.wait(context.__aexit__(None, None, None))

    return lock


def test_lock_is_held_by_one_at_a_time_and_its_token_grows(locked: Any) -> None:
    """Until the end of the block, also by an error; or until its time is over."""
    tokens = []
    for _ in range(3):
        with suppress(ZeroDivisionError), locked("k", 60) as token:
            tokens.append(token)
            with pytest.raises(ConflictError, match="held by another"), locked("k", 60):
                pass
            raise ZeroDivisionError
    assert tokens == sorted(set(tokens))
    with locked("k", 1) as first, locked("k", 60, wait=30) as second:
        assert second > first


def test_lock_excludes_other_threads(cache: Any, locked: Any) -> None:
    """Each waits for its turn; nothing that it protects is lost."""
    cache.set("count", b"0")

    def add(_: int) -> int:
        with locked("k", 60, wait=60) as token:
            cache.set("count", b"%d" % (int(cache.get("count")) + 1))
            return int(token)

    with ThreadPoolExecutor(4) as threads:
        tokens = list(threads.map(add, range(8)))
    assert cache.get("count") == b"8"
    assert len(set(tokens)) == 8


def test_pickle_of_a_cache_is_refused_with_the_reason(cache: Any) -> None:
    """In one line."""
    if isinstance(cache, TaskClient):
        cache = cache._client
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(cache)


def test_set_many_and_get_many_return_the_keys_as_given(cache: Any) -> None:
    """Results have the keys as they were given."""
    found = cache.set_many({"a": b"1", b"b": b"2"}, 60)
    assert found == {"a": cache.stat("a").etag, b"b": cache.stat("b").etag}
    assert cache.get_many(["a", "b", b"b", "none"]) == {
        "a": b"1",
        "b": b"2",
        b"b": b"2",
    }
    assert cache.get_many([]) == {}
    assert cache.delete_many(iter(["a", "b", "none"])) == 2
    assert cache.get_many(["a", "b"]) == {}


def test_conditions_are_decided_with_the_change(cache: Any) -> None:
    """By whether there is a value, or by its ETag."""
    assert cache.replace("k", b"none") is None
    assert cache.cas("k", b"none", '"0-0"') is None
    assert cache.delete("k") is False
    first = cache.add("k", b"1", 60)
    assert cache.add("k", b"2") is None
    second = cache.replace("k", b"2")
    assert cache.cas("k", b"3", first) is None
    third = cache.cas("k", b"3", second, 60)
    assert cache.stat("k").etag == third
    assert cache.delete("k", second) is False
    assert cache.delete("k", third) is True
    assert cache.get("k") is None


def test_numbers_are_counted_as_by_memcached(cache: Any) -> None:
    """64 bits; the time to live stays."""
    assert cache.incr("n") is cache.decr("n") is None
    assert cache.incr("n", initial=41, ttl=60) == 41
    assert cache.incr("n") == 42
    assert cache.decr("n", 2) == 40
    assert cache.get("n") == b"40"
    assert cache.stat("n").ttl <= 60
    assert cache.decr("n", 100) == 0
    assert cache.incr("n", 2**64 - 1) == 2**64 - 1
    assert cache.incr("n", 2) == 1
    assert cache.decr("m", initial=7) == 7
    for value in (b"", b"-1", b"1.0", b" 1", b"text", b"1" * 21, b"%d" % 2**64):
        cache.set("n", value)
        with pytest.raises(InvalidArgumentError, match="not a number"):
            cache.incr("n")
        assert cache.get("n") == value


def test_times_to_live_are_seconds_or_never(cache: Any) -> None:
    """A touch changes them, but not the type; numbers and conditions do not."""
    cache.set("k", b"v", 0.5, content_type="text/é")
    cache.set("never", b"v", math.inf)
    assert (cache.stat("never").ttl or math.inf) >= NEVER[0]
    assert cache.touch("k", 100) is True
    assert 90 < cache.stat("k").ttl <= 100
    assert cache.stat("k").content_type == "text/é"
    assert cache.touch("k", math.inf) is True
    assert (cache.stat("k").ttl or math.inf) >= NEVER[0]
    assert cache.touch("none", 5) is False
    cache.touch("k", 0.5)
    wait_until(lambda: cache.get("k") is None, "the end of its time")
    assert cache.add("k", b"again") is not None


def test_prefixes_and_everything_are_invalidated(cache: Any) -> None:
    """In constant time; what is stored later is there."""
    cache.set_many({"a/1": b"1", "a/2": b"2", "b/1": b"3"})
    assert cache.purge("a/") is None
    assert cache.get_many(["a/1", "a/2", "b/1"]) == {"b/1": b"3"}
    assert cache.delete("a/2") is False
    assert cache.add("a/1", b"new")
    assert cache.get("a/1") == b"new"
    assert cache.clear() is None
    assert cache.get_many(["a/1", "b/1"]) == {}


def test_files_are_stored_and_read_in_parts(cache: Any, tmp_path: Path) -> None:
    """Without the serializer."""
    data = bytes(range(256)) * 1000
    (tmp_path / "file").write_bytes(data)
    assert cache.set_file("f", tmp_path / "file", 60, content_type="a/b")
    with (tmp_path / "file").open("rb") as file:
        file.seek(1000)
        assert cache.set_file("rest", file)
    with cache.stream("f") as reader:
        assert (reader.stat.size, reader.stat.content_type) == (len(data), "a/b")
        assert reader.read(10) == data[:10]
        assert b"".join(reader) == data[10:]
        assert reader.read() == b""
    assert cache.get("rest") == data[1000:]
    with cache.stream("none") as reader:
        assert reader is None


def test_set_with_a_serializer_stores_what_json_has(opened: Opened) -> None:
    """What JSON has; None is a value."""
    with opened(serializer="json") as cache:
        values: list[Any] = [{"a": [1, 2.5, None, "ä"]}, [], "text", None, True]
        for value in values:
            assert cache.set("k", value)
            assert cache.get_item("k").value == value
        assert cache.stat("k").content_type == "application/json"
        assert cache.get_or_set("made", lambda: None) is None
        assert cache.get_many(["made"]) == {"made": None}
        assert cache.incr("n", initial=1) == 1
        with pytest.raises(SerializationError):
            cache.set("k", {1: (2, 3)})
        cache.set_file("bad", Path(__file__))
        with pytest.raises(SerializationError):
            cache.get("bad")


# --- Values that are made --------------------------------------------------------------


def test_get_or_set_makes_a_value_once(cache: Any) -> None:
    """What `make` raises is raised, and nothing is stored."""
    made: list[int] = []

    def make() -> bytes:
        made.append(1)
        return b"%d" % len(made)

    assert [cache.get_or_set("k", make, 60) for _ in range(3)] == [b"1"] * 3
    assert cache.stat("k").ttl <= 60
    with pytest.raises(ZeroDivisionError):
        cache.get_or_set("none", lambda: 1 // 0)
    assert cache.get("none") is None
    cache.delete("k")
    assert cache.get_or_set("k", make) == b"2"


def test_get_or_set_returns_a_stale_value_while_it_is_renewed(cache: Any) -> None:
    """Until the renewed one is there; nobody waits for it."""
    made: list[int] = []

    def find() -> bytes:
        def make() -> bytes:
            made.append(1)
            return b"%d" % len(made)

        found: bytes = cache.get_or_set("k", make, 0.5, stale=60)
        return found

    assert find() == b"1"
    wait_until(lambda: find() == b"2", "the renewed value")
    assert len(made) == 2


def test_memoize_keeps_results_of_functions(cache: Any) -> None:
    """All ways to write a call have one key."""
    calls: list[int] = []

    def area(width: int, height: int = 1) -> bytes:
        calls.append(width)
        return b"%d" % (width * height)

    async def task_area(width: int, height: int = 1) -> bytes:
        return area(width, height)

    is_tasks = isinstance(cache, TaskClient)
    wait = cache.wait if is_tasks else lambda found: found
    function = cache.memoize(60, prefix="area")(task_area if is_tasks else area)
    found = [wait(function(*a, **k)) for a, k in (((2,), {}), ((), {"width": 2}))]
    assert found == [b"2", b"2"]
    assert calls == [2]
    assert function.key(2) == function.key(width=2, height=1)
    assert wait(function.forget(2)) is True
    assert wait(function.forget(2)) is False
    assert cache.get(function.key(2)) is None
    by_key = cache.memoize(key=lambda width: f"area/{width}")
    assert wait(by_key(task_area if is_tasks else area)(5)) == b"5"
    assert cache.get("area/5") == b"5"


# --- Errors ----------------------------------------------------------------------------

WRONG_KEYS: Final[list[Any]] = ["", "/a", "a/../b", "a\n", "-/x", "\ud800", 5]
WRONG_TTLS: Final[list[Any]] = [0, -1, math.nan, -math.inf, 2**31 + 1, "5", True]
REFUSED: Final[list[tuple[Callable[[Any], Any], type[Exception]]]] = [
    (lambda cache: cache.set("k", "text"), SerializationError),
    (lambda cache: cache.set("k", None), SerializationError),
    (lambda cache: cache.set("k", b"", content_type="a\nb"), InvalidArgumentError),
    (lambda cache: cache.set("k", bytes(2 * MIB)), ValueTooLargeError),
    (lambda cache: cache.cas("k", b"", "none"), InvalidArgumentError),
    (lambda cache: cache.cas("k", b"", 'W/"1"'), InvalidArgumentError),
    (lambda cache: cache.delete("k", "none"), InvalidArgumentError),
    (lambda cache: cache.get_many("abc"), InvalidArgumentError),
    (lambda cache: cache.set_file("k", 5), InvalidArgumentError),
    (lambda cache: cache.set_file("k", StringIO("text")), InvalidArgumentError),
    (lambda cache: cache.set_file("k", "/none"), FileNotFoundError),
    *(
        (
            partial(lambda cache, delta: cache.incr("k", delta), delta=delta),
            InvalidArgumentError,
        )
        for delta in (-1, 2**64, 1.0, "1", True)
    ),
    (lambda cache: cache.incr("k", initial=-1), InvalidArgumentError),
    (lambda cache: cache.purge(""), InvalidArgumentError),
    (lambda cache: cache.purge("/a"), InvalidArgumentError),
    (lambda cache: cache.get_or_set("k", bytes, stale=-1), InvalidArgumentError),
    (lambda cache: cache.memoize(key=str, prefix="p")(bytes), InvalidArgumentError),
    (lambda cache: cache.memoize()(lambda: b""), InvalidArgumentError),
    # At once, before a function is called.
    (lambda cache: cache.memoize(bytes), InvalidArgumentError),
    (lambda cache: cache.memoize(0), InvalidArgumentError),
    (lambda cache: cache.memoize(stale=-1), InvalidArgumentError),
]


def error_of(call: Callable[[Any], Any], cache: Any) -> type[Exception] | None:
    """Return the class of what a call raises."""
    try:
        call(cache)
    except Exception as error:  # noqa: BLE001 - Compared by the test.
        return type(error)
    return None


def test_call_with_a_wrong_argument_raises_the_same_error(cache: Any) -> None:
    """And stores nothing."""
    calls = list(REFUSED)
    for key in WRONG_KEYS:
        calls += [
            (partial(call, key=key), InvalidKeyError)
            for call in (
                lambda cache, key: cache.get(key),
                lambda cache, key: cache.get_many(["k", key]),
                lambda cache, key: cache.stat(key),
                lambda cache, key: cache.delete(key),
                lambda cache, key: cache.set(key, b""),
                lambda cache, key: cache.touch(key, 5),
            )
        ]
    for ttl in WRONG_TTLS:
        calls += [
            (partial(call, ttl=ttl), InvalidArgumentError)
            for call in (
                lambda cache, ttl: cache.set("k", b"", ttl),
                lambda cache, ttl: cache.touch("k", ttl),
            )
        ]
    found = [error_of(call, cache) for call, _ in calls]
    pairs = enumerate(zip(found, (error for _, error in calls), strict=True))
    assert not {
        number: raised
        for number, (raised, expected) in pairs
        if raised is None or not issubclass(raised, expected)
    }
    assert cache.get("k") is None
    with pytest.raises(InvalidKeyError, match="the key of this path is b'abs'"):
        cache.set("//abs", b"")


def test_get_or_set_that_needs_its_own_result_is_refused(cache: Any) -> None:
    """Instead of waiting for itself."""
    used = getattr(cache, "_client", cache)

    def make() -> Any:  # Of tasks, what is awaited.
        return used.get_or_set("k", make)

    with pytest.raises(ClientUsageError):
        cache.get_or_set("k", make)


def test_call_of_a_closed_cache_is_refused(opened: Opened) -> None:
    """By each method; it shows its state, and may be closed again."""
    with opened() as cache:
        shown = repr(getattr(cache, "_client", cache))
        assert (cache.closed, shown.endswith("open>")) == (False, True)
        cache.close()
        assert cache.closed
        calls: list[Callable[[], Any]] = [
            lambda: cache.get("k"),
            lambda: cache.set("k", b""),
            lambda: cache.incr("k"),
            lambda: cache.purge("k"),
            lambda: cache.get_or_set("k", bytes),
        ]
        for call in calls:
            with pytest.raises(ClientUsageError):
                call()
        cache.close()


# --- What not all of them have ---------------------------------------------------------


def test_mapping_operators_read_store_and_delete(opened: Opened) -> None:
    """A fleet is not listed by its clients, and tasks do not wait in an operator."""
    assert not {"__getitem__", "__contains__"} & set(dir(AsyncClient))
    with opened() as cache:
        if isinstance(cache, TaskClient):
            pytest.skip("it is no mapping")
        cache["k"] = b"v"
        assert (cache["k"], "k" in cache, "none" in cache) == (b"v", True, False)
        listing: list[Callable[[Any], Any]] = [list, len, dict]
        if isinstance(cache, volcache.EmbeddedCache):
            assert [call(cache) for call in listing] == [[b"k"], 1, {b"k": b"v"}]
        else:
            for call in listing[:2]:
                with pytest.raises(TypeError, match="volcache ls"):
                    call(cache)
        del cache["k"]
        assert error_of(lambda cache: cache["k"], cache) is KeyError
        assert error_of(lambda cache: cache.__delitem__("k"), cache) is KeyError


@pytest.mark.parametrize("kind", [Client, TaskClient])
def test_a_client_with_a_prefix_clears_what_is_below_it(
    server: ServerProcess, kind: type
) -> None:
    """By `clear`; an empty prefix is refused there, too."""
    options = {**PATIENCE, "admin_token": ADMIN_TOKEN}
    with kind([server.url], **options) as client:
        client.set_many({"a/1": b"1", "b/1": b"2"})
        with kind([server.url], prefix="a/", **options) as below:
            assert (
                error_of(lambda cache: cache.purge(""), below) is InvalidArgumentError
            )
            assert below.get("1") == b"1"
            assert below.clear() is None
        assert client.get_many(["a/1", "b/1"]) == {"b/1": b"2"}


@each_row("kind", [Client, TaskClient])
def test_a_client_that_cannot_purge_says_what_it_needs(kind: type) -> None:
    """The token of the operator, and the instances; it is not shown."""
    with kind("http://127.0.0.1:1", token=SECRET) as client:
        for call in (client.clear, lambda: client.purge("a/")):
            with pytest.raises(InvalidArgumentError, match="admin_token"):
                call()
        assert SECRET not in repr(getattr(client, "_client", client))
