"""Small embedded caches, and a program that uses every method as a user would."""

from __future__ import annotations

import random
import sys
from collections.abc import ItemsView, KeysView, ValuesView
from contextlib import suppress
from mmap import mmap
from pathlib import Path
from typing import Any, TypeAlias, assert_type

import volcache
from volcache.embedded.errors import UnknownResultError
from volcache.embedded.links import Owner

Cache: TypeAlias = volcache.EmbeddedCache[bytes]

CAPACITY = "8MiB"  # The least is 4 MiB.


def open_small(directory: Path | str, **options: Any) -> Cache:
    """Open a small cache that does not sync; options as for `volcache.open`."""
    options = {"capacity": CAPACITY, "sync_mode": "none", **options}
    cache: Cache = volcache.open(directory, **options)
    return cache


def owner_of(cache: Cache) -> Owner:
    """Return what has the store of a cache open in this process."""
    link = cache._session.link
    assert isinstance(link, Owner)
    return link


def count_up(directory: Path, times: int) -> None:
    """Increment a number in a cache, in another process."""
    with open_small(directory, capacity="64MiB") as cache:
        for _ in range(times):
            cache.incr("n", initial=1)


def write_versions(cache: Cache, keys: int, version: int) -> None:
    """Store a version of each key, and delete some."""
    for number in range(keys):
        name = b"%d" % number
        if (number + version) % 10:
            cache[name] = b"%b %d " % (name, version) + bytes(number % 3000)
        else:
            cache.delete(name)


def read_versions(cache: Cache, keys: int, reads: int) -> int:
    """Read random keys; return how many there were, all whole and none outdated."""
    chance, seen, found = random.Random(keys), dict[int, int](), 0  # noqa: S311
    for _ in range(reads):
        number = chance.randrange(keys)
        value = cache.get(b"%d" % number)
        if value is None:
            continue
        name, version, rest = value.split(b" ", 2)
        assert (int(name), len(rest)) == (number, number % 3000), value[:40]
        assert int(version) >= seen.get(number, 0), (number, version, seen[number])
        seen[number] = int(version)
        found += 1
    return found


def check_history(cache: Cache, marks: memoryview, number: int) -> None:
    """
    Read a key that only one process changes at a time.

    `marks` has two numbers for each key: the version that is being stored, and the last one
    that was acknowledged. Each seventh is a deletion.
    """
    least = marks[2 * number + 1]
    value = cache.get(b"%d" % number)
    most = marks[2 * number]
    if value is None:
        assert most // 7 * 7 >= least, (number, least, most)
        return
    name, version, rest = value.split(b" ", 2)
    assert (int(name), len(rest)) == (number, 37 * int(version) % 2000), value[:40]
    assert least <= int(version) <= most, (number, version, least, most)


def make_history(directory: Path, file: Path, first: int, keys: int) -> None:
    """Change 8 keys and read all of them until the process is killed; never return."""
    with file.open("r+b") as opened, mmap(opened.fileno(), 0) as area:
        chance, marks = random.Random(), memoryview(area).cast("Q")  # noqa: S311
        cache = open_small(directory, capacity="64MiB")
        while True:
            number = chance.randrange(first, first + 8)
            version = marks[2 * number] = marks[2 * number] + 1
            value = b"%d %d %b" % (number, version, bytes(37 * version % 2000))
            # It may have been deleted or not: the mark of the last one stays.
            with suppress(UnknownResultError):
                if version % 7:
                    cache[b"%d" % number] = value
                else:
                    cache.delete(b"%d" % number)
                marks[2 * number + 1] = version
            for _ in range(9):
                check_history(cache, marks, chance.randrange(keys))


class Fraction:
    """A serializer with a type of its own."""

    @staticmethod
    def dumps(obj: float, /) -> str:
        """Return a number as text."""
        return repr(obj)

    @staticmethod
    def loads(s: bytes, /) -> float:
        """Return the number."""
        return float(s)


def use_as_a_typed_program(directory: Path) -> None:
    """Use the interface; the type checker knows the type of each result."""
    with volcache.open(directory / "bytes", capacity=CAPACITY) as cache:
        assert_type(cache, volcache.EmbeddedCache[bytes])
        cache["a"] = b"1"
        assert_type(cache["a"], bytes)
        assert_type(cache.get("b"), bytes | None)
        assert_type(cache.get("b", b""), bytes)
        assert_type(cache.get("b", 0), bytes | int)
        assert_type(cache.pop("b", None), bytes | None)
        assert_type(cache.set("a", b"2", ttl=60), str)
        assert_type(cache.stat("a"), volcache.Stat | None)
        assert_type(cache.get_item("a"), volcache.Item[bytes] | None)
        assert_type(cache.incr("n", initial=1), int | None)
        assert_type(cache.get_or_set("c", lambda: b"3"), bytes)
        assert_type(cache.get_many(["a", "c"]), dict[str, bytes])
        assert_type(cache.keys(), KeysView[bytes])
        assert_type(cache.values(), ValuesView[bytes])
        assert_type(cache.items(), ItemsView[bytes, bytes])
        for key in cache:
            assert_type(key, bytes)

        @cache.memoize(ttl=60, prefix="read")
        def read(name: str, *, times: int = 1) -> bytes:
            return name.encode() * times

        assert_type(read("x", times=2), bytes)
        assert_type(read.key("x"), str | bytes)
    with volcache.open(
        directory / "json", capacity=CAPACITY, serializer="json"
    ) as any_:
        any_["list"] = [1, 2]
    with volcache.open(
        directory / "typed", capacity=CAPACITY, serializer=Fraction()
    ) as floats:
        assert_type(floats, volcache.EmbeddedCache[float])
        floats["half"] = 0.5
        assert_type(floats["half"], float)
        floats["half"] = "text"  # type: ignore[assignment]
        raise_if_text(floats)


def raise_if_text(floats: volcache.EmbeddedCache[float]) -> None:
    """Show that types are of the checker: the wrong value was stored as it was."""
    try:
        sys.stdout.write(f"{floats['half']}\n")
    except volcache.CacheError:
        return
    raise AssertionError("text was read as a number")
