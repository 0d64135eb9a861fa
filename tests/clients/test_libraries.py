"""
Libraries that need no adapter, with the settings of docs/ADAPTERS.md.

Every test runs with memcached as well, so that what it expects is what an application of
memcached expects.
"""

from __future__ import annotations

import asyncio
import gc
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import aiocache
import celery
import dogpile.cache
import flask
import flask_caching
import flask_session
import limits
import pymemcache
import pytest
from celery.contrib.testing.worker import start_worker
from django.conf import settings
from django.core.cache import CacheHandler

from support.memcache_clients import PYLIBMC

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.integration,
    # Most of the libraries leave their sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

PAGE: Final = Path(__file__).parents[2] / "docs" / "ADAPTERS.md"
NAMES: Final[dict[str, object]] = {
    "Cache": aiocache.Cache,
    "Celery": celery.Celery,
    "Client": pymemcache.Client,
    "make_region": dogpile.cache.make_region,
    "storage_from_string": limits.storage.storage_from_string,
}
VALUE: Final[dict[str, object]] = {"text": "ä", "list": [1, None, {"a": 2.5}]}
Settings = Callable[[str], Any]


def rows() -> dict[str, tuple[str, str]]:
    """Return version and settings of each library in the table."""
    section = PAGE.read_text().split("\n## Libraries that need none\n")[1]
    row = r"^\| ([\w.-]+) \| ([\d.]+) \| [^|]+ \| `([^`]+)` \|"
    found = re.findall(row, section.split("\n## ")[0], re.MULTILINE)
    return {name: (released, text) for name, released, text in found}


@pytest.fixture
def configured(port: int) -> Iterator[Settings]:
    """Return a function that evaluates a row, with the address of a server."""

    def evaluate(name: str) -> Any:
        released, text = rows()[name]
        assert version(name) == released
        assert "127.0.0.1:11211" in text
        text = text.replace("127.0.0.1:11211", f"127.0.0.1:{port}")
        return eval(text, dict(NAMES))  # noqa: S307 - Of the document.

    yield evaluate
    gc.collect()


def test_each_row_has_a_test() -> None:
    """By the name of the library."""
    tests = "".join(name for name in globals() if name.startswith("test_"))
    for name in rows():
        assert re.sub(r"\W", "_", name.lower()) in tests


@pytest.mark.skipif(PYLIBMC is None, reason="pylibmc is not built for this Python")
def test_flask_caching(configured: Settings) -> None:
    """Views, functions and values."""
    app = flask.Flask(__name__)
    cache = flask_caching.Cache(app, config=configured("Flask-Caching"))
    calls: list[object] = []

    @app.route("/page")
    @cache.cached(timeout=60)
    def page() -> str:
        calls.append("page")
        return "seen"

    @cache.memoize(60)
    def price(article: str) -> dict[str, object]:
        calls.append(article)
        return VALUE

    for _ in range(2):
        assert app.test_client().get("/page").text == "seen"
        assert price("a") == VALUE
    assert calls == ["page", "a"]
    cache.delete_memoized(price, "a")
    assert price("a") == VALUE
    assert calls == ["page", "a", "a"]
    assert cache.set_many({"x": VALUE, "y": 1}) == ["x", "y"]
    assert cache.get_many("x", "y", "none") == [VALUE, 1, None]
    assert cache.add("x", 2) is False
    assert cache.delete("x") is True
    assert cache.has("x") is False


def test_flask_session(configured: Settings) -> None:
    """A session is kept, changed and removed."""
    app = flask.Flask(__name__)
    app.config.update(configured("Flask-Session"))
    flask_session.Session(app)

    @app.route("/<user>")
    def name(user: str) -> str:
        before = str(flask.session.get("user"))
        flask.session["user"] = user
        return before

    @app.route("/out/")
    def out() -> str:
        flask.session.clear()
        return ""

    with app.test_client() as client:
        seen = [client.get(path).text for path in ("/ann", "/ben", "/out/", "/cid")]
    assert seen == ["None", "ann", "", "None"]


def test_aiocache(configured: Settings) -> None:
    """Commands, counters and the lock of its decorators."""

    async def use() -> None:
        async with configured("aiocache") as cache:
            assert await cache.set("aio", VALUE, ttl=60)
            assert await cache.get("aio") == VALUE
            assert await cache.multi_set([("aio1", 1), ("aio2", 2)])
            assert await cache.multi_get(["aio1", "aio", "none"]) == [1, VALUE, None]
            with pytest.raises(ValueError, match="already exists"):
                await cache.add("aio", 1)
            assert await cache.increment("aio1", 41) == 42
            assert await cache.exists("aio1")
            assert await cache.expire("aio1", 60)
            async with aiocache.lock.OptimisticLock(cache, "aio") as lock:
                assert await lock.cas(3)
            async with aiocache.lock.RedLock(cache, "aio", lease=5):
                assert await cache.get("aio") == 3
            assert await cache.delete("aio") == 1
            assert not await cache.exists("aio")

    asyncio.run(use())


def test_dogpile_cache(configured: Settings) -> None:
    """Values are made once, under its distributed lock."""
    region = configured("dogpile.cache")
    calls: list[int] = []

    def make(number: int) -> int:
        calls.append(number)
        return number * number

    square = region.cache_on_arguments()(make)
    assert [square(3), square(3), square(4)] == [9, 9, 16]
    square.invalidate(3)
    assert square(3) == 9
    assert calls == [3, 4, 3]
    region.set_multi({"dog": VALUE, "dog2": 2})
    missing = dogpile.cache.api.NO_VALUE
    assert region.get_multi(["dog", "dog2", "none"]) == [VALUE, 2, missing]
    region.delete("dog")
    assert region.get("dog") is missing


def test_limits(configured: Settings) -> None:
    """Each strategy stops the request that is one too many."""
    storage = configured("limits")
    limit = limits.parse("3/hour")
    for strategy in (
        limits.strategies.FixedWindowRateLimiter,
        limits.strategies.SlidingWindowCounterRateLimiter,
    ):
        limiter = strategy(storage)
        assert [limiter.hit(limit, strategy.__name__) for _ in range(4)] == [
            True,
            True,
            True,
            False,
        ]
        reset, left = limiter.get_window_stats(limit, strategy.__name__)
        assert left == 0
        assert 0 < reset - datetime.now(UTC).timestamp() <= 3601
        limiter.clear(limit, strategy.__name__)
        assert limiter.test(limit, strategy.__name__)


def test_django_pymemcache(configured: Settings) -> None:
    """Values, counters and timeouts."""
    if not settings.configured:
        settings.configure()
    cache = CacheHandler({"default": configured("django-pymemcache")})["default"]
    assert cache.set_many({"django": VALUE, "n": 1}, 60) == []
    assert cache.get_many(["django", "n", "none"]) == {"django": VALUE, "n": 1}
    assert cache.add("django", "not stored") is False
    assert cache.incr("n", 41) == 42
    assert cache.touch("n", 60) is True
    assert cache.delete("django") is True
    assert cache.get_or_set("django", lambda: "made", 60) == "made"
    cache.close()


def test_celery(configured: Settings) -> None:
    """Results of tasks; a chord, whose counter the back end keeps."""
    app = configured("Celery")
    app.conf.update(broker_url="memory://", worker_hijack_root_logger=False)

    def twice(number: int) -> int:
        return number * 2

    def add(numbers: list[int]) -> int:
        return sum(numbers)

    double, total = (app.task(shared=False)(function) for function in (twice, add))
    with start_worker(app, perform_ping_check=False, shutdown_timeout=60):
        result = celery.chord(double.s(number) for number in range(5))(total.s())
        assert result.get(timeout=60) == 20
    found = app.AsyncResult(result.id)
    assert found.state == "SUCCESS"
    found.forget()
    assert app.AsyncResult(result.id).state == "PENDING"
