"""The cache backend of Django: what Django documents of a cache."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.cache import CacheHandler, caches
from django.core.cache.backends.base import CacheKeyWarning
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings
from django.views.decorators.cache import cache_page

from support.pages import blocks
from support.ports import pick_port
from support.process import ServerProcess
from support.waiting import wait_until
from volcache_client import (
    Client,
    InvalidArgumentError,
    NodeError,
    SerializationError,
)
from volcache_client.adapters.django import NEVER, VolcacheCache
from volcache_client.methods import AsyncMethods

Make = Callable[..., VolcacheCache]

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

PAGE = Path(__file__).parents[3] / "docs" / "ADAPTERS.md"
BACKEND = "volcache_client.adapters.django.VolcacheCache"
VALUES = [
    None, True, 0, -1, 2**70, 0.5, "", "text é \U0001f600", [], [1, [2]], {},
    {"a": {"b": [None]}},
    # What JSON lacks.
    datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.5"), (1, (2,)), {3: {4}}, b"\0",
]  # fmt: skip
ODD_KEYS = [
    "", ".", "..", "a/../b", "a/./b", "./", "/", "//", "%", "%2E", "a b", "a\nb", "\x7f",
    "é", "é\udc80", "x" * 600, "x" * 601, "é" * 600, "?a=b#c", "-/stats", "~lease/a",
    "%~" + "0" * 64,
]  # fmt: skip
_names = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def configured(server: ServerProcess) -> None:
    """Configure Django once, as a project does."""
    settings.configure(
        ALLOWED_HOSTS=["testserver"],
        SECRET_KEY="of-this-test",  # noqa: S106 - Of this test.
        CACHES={
            "default": {"BACKEND": BACKEND, "LOCATION": server.url},
            "json": {
                "BACKEND": BACKEND,
                "LOCATION": [server.url],
                "TIMEOUT": 60,
                "VERSION": 7,
                "KEY_PREFIX": "site",
                "OPTIONS": {
                    "serializer": "json",
                    "timeout": 20,
                    "connect_timeout": 20,
                },
            },
        },
    )
    django.setup()


@pytest.fixture
def make(server: ServerProcess) -> Make:
    """Make a cache with keys of its own."""

    def made(location: Any = None, options: Any = (), **params: Any) -> VolcacheCache:
        prefix = f"django-{os.getpid()}-{next(_names)}/"
        chosen = {
            "prefix": prefix,
            "timeout": 20.0,
            "connect_timeout": 20.0,
            **dict(options),
        }
        return VolcacheCache(location or server.url, {"OPTIONS": chosen, **params})

    return made


@pytest.fixture
def cache(make: Make) -> VolcacheCache:
    """Return a cache with the settings that are the default."""
    return make()


def remaining(cache: VolcacheCache, key: str) -> float:
    """Return the seconds until a value expires."""
    head = cache.client.stat(cache.make_key(key))
    assert head is not None
    return math.inf if head.ttl is None else head.ttl


def test_backend_of_djangos_settings_is_made() -> None:
    """Also of a list of instances, with options of the client."""
    for name in ("default", "json"):
        caches[name].set("key", [name])
    assert caches["default"].get("key") == ["default"]
    assert caches["json"].get("key") == ["json"]
    assert caches["json"].client.get("site:7:key") == ["json"]


def test_backends_of_the_same_settings_share_a_client() -> None:
    """Django makes a backend for each thread, but there is one pool of connections."""
    first, second = CacheHandler(), CacheHandler()
    assert first["json"] is not second["json"]
    assert first["json"].client is second["json"].client
    assert first["json"].client is not first["default"].client


@pytest.mark.parametrize("value", VALUES, ids=map(repr, VALUES))
def test_set_of_any_value_then_get_returns_it(
    cache: VolcacheCache, value: object
) -> None:
    """None is a value, too."""
    cache.set("key", value)
    assert cache.get("key", "default") == value
    assert type(cache.get("key", "default")) is type(value)
    assert cache.has_key("key")
    assert "key" in cache


@pytest.mark.parametrize(
    ("serializer", "value", "error"),
    [
        ("json", object(), SerializationError),
        ("pickle", lambda: None, SerializationError),
        ("pickle", lambda: None, pickle.PicklingError),  # As in other backends.
    ],
)
def test_set_of_a_value_without_a_serializer_stores_nothing(
    make: Make, serializer: str, value: object, error: type[Exception]
) -> None:
    cache = make(options={"serializer": serializer})
    with pytest.raises(error):
        cache.set("key", value)
    assert not cache.has_key("key")


@pytest.mark.filterwarnings("ignore::django.core.cache.CacheKeyWarning")
def test_set_of_odd_keys_stores_each_for_itself(make: Make) -> None:
    """Also those that the service refuses or resolves."""
    cache = make(KEY_FUNCTION=lambda key, *_: key)
    for key in ODD_KEYS:
        cache.set(key, key.encode("utf-8", "backslashreplace").decode())
    for key in ODD_KEYS:
        assert cache.get(key) == key.encode("utf-8", "backslashreplace").decode()
        assert cache.delete(key)
        assert not cache.has_key(key)


def test_set_of_a_key_that_others_refuse_warns(cache: VolcacheCache) -> None:
    """As Django does with its own backends."""
    with pytest.warns(CacheKeyWarning):
        cache.set("a key", 1)


def test_keys_of_versions_and_prefixes_are_apart(make: Make) -> None:
    """As in all backends."""
    options = {"prefix": f"versions-{os.getpid()}/"}
    one, other = make(options=options), make(options=options, KEY_PREFIX="other")
    one.set("key", 1)
    one.set("key", 2, version=2)
    other.set("key", 3)
    assert (one.get("key"), one.get("key", version=2), other.get("key")) == (1, 2, 3)
    assert one.incr_version("key") == 2
    assert one.get("key") is None
    assert one.get("key", version=2) == 1
    assert one.decr_version("key", version=2) == 1
    assert one.get("key") == 1


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [(30, 30), (0.5, 1), (None, NEVER), (1e12, NEVER)],
)
def test_set_with_a_timeout_expires_then(
    cache: VolcacheCache, timeout: float | None, expected: int
) -> None:
    """None is 68 years, whatever `default_ttl` of the service is."""
    cache.set("key", 1, timeout)
    assert expected - 25 <= remaining(cache, "key") <= expected


@pytest.mark.parametrize(("setting", "expected"), [(50, 50), (None, NEVER)])
def test_operations_without_a_timeout_have_that_of_the_settings(
    make: Make, setting: int | None, expected: int
) -> None:
    """For all methods that store."""
    cache = make(TIMEOUT=setting)
    cache.set("set", 1)
    cache.add("add", 1)
    cache.set_many({"many": 1})
    cache.get_or_set("get_or_set", 1)
    cache.set("touch", 1, 1000)
    cache.touch("touch")
    for key in ("set", "add", "many", "get_or_set", "touch"):
        assert expected - 40 <= remaining(cache, key) <= expected


def test_get_of_an_expired_value_is_a_miss(cache: VolcacheCache) -> None:
    """For all methods that read."""
    cache.set("key", 1, 1)
    wait_until(lambda: cache.get("key") is None, "the value to expire")
    assert not cache.has_key("key")
    assert cache.get_many(["key"]) == {}
    assert cache.add("key", 2)


@pytest.mark.parametrize("timeout", [0, -1, -0.5])
def test_operations_with_a_timeout_of_zero_or_less_store_nothing(
    cache: VolcacheCache, timeout: float
) -> None:
    """And what was there before is not returned either."""
    for key in ("set", "many", "touch"):
        cache.set(key, "before")
    cache.set("set", 1, timeout)
    assert cache.set_many({"many": 1}, timeout) == []
    assert cache.touch("touch", timeout)
    assert cache.add("add", 1, timeout)
    assert cache.get_or_set("get_or_set", lambda: 5, timeout) == 5
    for key in ("set", "many", "touch", "add", "get_or_set"):
        assert not cache.has_key(key), key


def test_add_stores_only_what_is_missing(cache: VolcacheCache) -> None:
    """And says whether it did, as `delete` does; a miss is the default."""
    assert cache.get("key") is None
    assert cache.get("key", 7) == 7
    assert not cache.has_key("key")
    assert not cache.delete("key")
    assert cache.add("key", 1)
    assert not cache.add("key", 2)
    assert not cache.add("key", 2, 0)
    assert cache.get("key") == 1
    cache.set("key", None)
    assert cache.delete("key")


def test_touch_changes_the_timeout_only(cache: VolcacheCache) -> None:
    """And says whether there was a value."""
    assert not cache.touch("key", 100)
    cache.set("key", [1], 1000)
    assert cache.touch("key", 100)
    assert cache.get("key") == [1]
    assert remaining(cache, "key") <= 100
    assert cache.touch("key", None)
    assert remaining(cache, "key") > 1000


def test_many_values_are_set_read_and_deleted(cache: VolcacheCache) -> None:
    """Those that are missing are left out."""
    values = {f"key{number}": number for number in range(40)}
    assert cache.set_many(values) == []
    assert cache.get_many([*values, "missing"]) == values
    cache.delete_many(["key0", "missing", "key1"])
    assert sorted(cache.get_many(values)) == sorted([*values][2:])
    assert cache.get_many([]) == cache.get_many(iter(())) == {}


def test_set_that_cannot_store_removes_the_value_before(make: Make) -> None:
    """Here because it is larger than the service accepts."""
    cache = make(options={"on_error": "miss"})
    large = "x" * (2 << 20)
    for key in ("one", "many"):
        cache.set(key, "before")
    cache.set("one", large)
    assert cache.set_many({"many": large, "small": 1}) == ["many"]
    assert cache.get_many(["one", "many", "small"]) == {"small": 1}


def test_incr_and_decr_change_a_number(cache: VolcacheCache) -> None:
    """Below zero as well; the timeout stays."""
    cache.set("key", 5, 100)
    assert cache.incr("key") == 6
    assert cache.incr("key", 10) == 16
    assert cache.decr("key", 20) == -4
    assert cache.get("key") == -4
    assert remaining(cache, "key") <= 100
    cache.set("never", 1, None)
    assert cache.incr("never") == 2
    assert remaining(cache, "never") > 10**6


def test_incr_of_a_missing_value_is_an_error(cache: VolcacheCache) -> None:
    """As in all backends."""
    with pytest.raises(ValueError, match="key"):
        cache.incr("key")
    with pytest.raises(ValueError, match="key"):
        cache.decr("key")
    cache.set("text", "abc")
    with pytest.raises(TypeError):
        cache.incr("text")


def test_incr_by_many_at_once_loses_nothing(cache: VolcacheCache) -> None:
    """Each step is one of the service, of threads and of tasks."""

    async def use() -> None:
        await asyncio.gather(*(cache.aincr("key") for _ in range(20)))

    cache.set("key", 0)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: cache.incr("key"), range(80)))
    asyncio.run(use())
    assert cache.get("key") == 100


def test_incr_ends_if_the_service_does_not_store_the_result(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a full disk and `on_error="miss"`: a write returns None."""
    cache = make()
    cache.set("key", 1)

    async def drop(*_: object) -> None: ...

    monkeypatch.setattr(AsyncMethods, "cas", drop)
    with pytest.raises(ValueError, match="key"):
        cache.incr("key")
    assert cache.get("key") == 1


def test_get_or_set_calls_the_function_once(cache: VolcacheCache) -> None:
    """A plain value is stored as it is."""
    numbers = itertools.count(2)
    for _ in range(2):
        assert cache.get_or_set("key", lambda: [next(numbers)]) == [2]
    assert cache.get_or_set("plain", 3) == cache.get("plain") == 3
    assert cache.get_or_set("none", lambda: None) is None
    assert cache.has_key("none")


def test_clear_removes_all_versions_and_prefixes_and_nothing_else(
    make: Make, server: ServerProcess
) -> None:
    """Everything below the prefix of OPTIONS."""
    token = server.settings["admin_token"]
    options = {"prefix": f"clear-{os.getpid()}/", "admin_token": token}
    one, other, apart = (
        make(options=options), make(options=options, KEY_PREFIX="a"), make(),
    )  # fmt: skip
    for cache in (one, other, apart):
        cache.set("key", 1)
        cache.set("key", 2, version=2)
    one.clear()
    assert one.get("key") is one.get("key", version=2) is other.get("key") is None
    assert (apart.get("key"), apart.get("key", version=2)) == (1, 2)
    one.set("key", 3)
    assert one.get("key") == 3


def test_async_methods_do_the_same(cache: VolcacheCache) -> None:
    """Those of Django and those of this backend."""

    async def use() -> None:
        await cache.aset("key", 1)
        assert await cache.aget("key") == 1
        assert not await cache.aadd("key", 2)
        assert await cache.ahas_key("key")
        assert await cache.aincr("key", 4) == 5
        assert await cache.adecr("key") == 4
        assert await cache.atouch("key", 100)
        assert await cache.aset_many({"a": 1, "b": 2}) == []
        assert await cache.aget_many(["a", "b", "c"]) == {"a": 1, "b": 2}
        await cache.adelete_many(["a"])
        assert await cache.aget_or_set("a", lambda: 9) == 9
        assert await cache.aincr_version("a") == 2
        assert await cache.adelete("key")
        assert await cache.aget("key", "none") == "none"

    asyncio.run(use())


class Upper:
    """A serializer of a project."""

    def dumps(self, value: str) -> bytes:
        """Return capitals."""
        return value.upper().encode()

    def loads(self, stored: bytes) -> str:
        """Return text."""
        return stored.decode()


@pytest.mark.parametrize("serializer", [Upper, Upper(), f"{__name__}.Upper"])
def test_serializer_of_a_project_is_used(
    make: Make,
    serializer: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A class, an object, or its dotted path."""
    monkeypatch.setitem(sys.modules, __name__, sys.modules[Upper.__module__])
    cache = make(options={"serializer": serializer})
    cache.set("key", "abc")
    assert cache.get("key") == "ABC"


@pytest.mark.parametrize(
    ("location", "options", "match"),
    [
        ("", {}, "node"),
        ("memory", {}, "node"),
        ([], {}, "empty"),
        (None, {"MAX_ENTRIES": 5}, "MAX_ENTRIES"),
        (None, {"timeout": "soon"}, "timeout"),
        (None, {"serializer": 5}, "dumps"),
    ],
)
def test_settings_that_are_wrong_are_named(
    server: ServerProcess, location: Any, options: dict[str, Any], match: str
) -> None:
    """When the cache is first used, before anything is sent."""
    where = server.url if location is None else location
    with pytest.raises(InvalidArgumentError, match=match):
        VolcacheCache(where, {"OPTIONS": options})


def test_operations_in_an_outage_are_errors_or_misses(make: Make) -> None:
    """As the option `on_error` says."""
    url = f"http://127.0.0.1:{pick_port()}"
    with pytest.raises(NodeError):
        make(url).get("key")
    cache = make(url, {"on_error": "miss"})
    cache.set("key", 1)
    assert cache.get("key") is None
    assert not cache.add("key", 1)
    assert not cache.delete("key")
    assert not cache.touch("key")
    assert cache.get_many(["key"]) == {}
    assert cache.set_many({"key": 1}) == ["key"]
    assert cache.get_or_set("key", lambda: 5) == 5
    with pytest.raises(ValueError, match="key"):
        cache.incr("key")


def test_get_of_a_value_not_signed_by_the_project_is_a_miss(
    make: Make, client: Client[bytes]
) -> None:
    """For all methods that read; nothing of them runs."""
    cache = make(options={"prefix": client._core.prefix.decode()})
    cache.set("page", HttpResponse(b"text", headers={"X-Name": "value"}))
    page = cache.get("page")
    assert (page.content, page["X-Name"]) == (b"text", "value")
    where = cache.make_key("page")
    stored = client.get(where)
    assert stored is not None
    for changed in (b"", stored[:-1], stored[32:], bytes(32) + stored[32:], b"[1]"):
        client.set(where, changed)
        assert cache.get("page", "none") == "none"
        assert cache.get_many(["page"]) == {}
        with pytest.raises(ValueError, match="page"):
            cache.incr("page")
        assert cache.get_or_set("page", lambda: 5) == cache.get("page") == 5


def test_get_of_a_value_signed_with_a_fallback_key_returns_it(make: Make) -> None:
    """As with other signatures of Django."""
    cache = make()
    cache.set("key", 5)
    options = {"prefix": cache.client._core.prefix.decode()}
    with override_settings(
        SECRET_KEY="new",  # noqa: S106 - Of this test.
        SECRET_KEY_FALLBACKS=[settings.SECRET_KEY],
    ):
        assert make(options=options).get("key") == 5
    with override_settings(SECRET_KEY="new"):  # noqa: S106 - Of this test.
        assert make(options=options).get("key") is None


def test_cache_page_keeps_a_page(server: ServerProcess) -> None:
    """With the settings that are the default."""
    numbers = itertools.count()

    def view(_: HttpRequest) -> HttpResponse:
        return HttpResponse(str(next(numbers)))

    options = {"prefix": f"pages-{os.getpid()}/"}
    page = {"BACKEND": BACKEND, "LOCATION": server.url, "OPTIONS": options}
    with override_settings(CACHES={"default": page}):
        view = cache_page(60)(view)
        answers = [view(RequestFactory().get("/a?b=c")) for _ in range(2)]
    assert [answer.content for answer in answers] == [b"0", b"0"]


def test_sessions_are_kept(server: ServerProcess) -> None:
    """With the serializer that is the default."""
    options = {"prefix": f"sessions-{os.getpid()}/"}
    place = {"BACKEND": BACKEND, "LOCATION": server.url, "OPTIONS": options}
    with override_settings(CACHES={"default": place}):
        store = import_module("django.contrib.sessions.backends.cache").SessionStore
        session = store()
        session["cart"] = [1, {"article": "é"}]
        session.save()
        again = store(session.session_key)
        assert again["cart"] == [1, {"article": "é"}]
        again.cycle_key()
        assert not store().exists(session.session_key)
        assert store(again.session_key)["cart"] == session["cart"]


def test_examples_of_the_page_work(server: ServerProcess) -> None:
    """Those of Django's settings, cachetools and CacheControl."""
    found: dict[str, Any] = {}
    closing = contextlib.ExitStack()
    for block in blocks(PAGE):
        text = block.text.replace("http://cache.example:8080", server.url)
        text = text.replace("): ...", "): return [article, calls.append(article)]")
        exec(compile(text, PAGE.name, "exec"), found)  # noqa: S102 - Ours.
        if "CACHES" in block.text:
            place = found["CACHES"]["default"]
            cache = VolcacheCache(place["LOCATION"], place)
            cache.set("page", {1})
            assert cache.get("page") == {1}
        elif "cachetools" in block.text:
            calls: list[str] = []
            found["calls"] = calls
            for _ in range(2):
                assert found["price"]("a", currency="USD") == ["a", None]
            assert calls == ["a"]
            assert found["client"].get("a/USD") == ["a", None]
            assert found["client"].ttl("a/USD") <= 60
        if "import" in block.text:
            closing.callback(found["client"].close)
    url = f"{server.url}/-/ready"
    assert found["session"].get(url).status_code == 200
    found["Storage"]().set(url, b"answer")
    assert found["Storage"]().get(url) == b"answer"
    found["Storage"]().delete(url)
    assert found["Storage"]().get(url) is None
    closing.close()


def test_import_without_django_says_what_to_install() -> None:
    """If Django is not there."""
    program = (
        "import sys; sys.modules['django'] = None\n"
        "import volcache_client.adapters.django"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "pip install Django" in done.stderr
