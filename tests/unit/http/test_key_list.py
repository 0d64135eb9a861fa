"""`GET /-/keys`: all keys of a running instance, a page at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import pytest

from support.stores import open_store
from volcache.errors import BadQueryError
from volcache.http.key_list import list_keys
from volcache.store import Store

TOKEN: Final = "open-sesame"  # noqa: S105 - Of no server.
SLOW: Final = (
    3_000_000  # Nanoseconds that each look at the clock takes: one is too many.
)
KEYS: Final = [
    *(b"a/%d" % number for number in range(200)),
    *(b"\xff\xfe", b"a b%20c?d#e", b'"', "gr\xfcn".encode(), b"b/" * 400),
]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of several volumes, with some keys that are not there any more."""
    store = open_store(tmp_path, volume_num=16)
    for key in [*KEYS, b"a/gone"]:
        store.put(key, bytes(400))
    store.put(b"a/7", b"new")
    store.delete(b"a/gone")
    yield store
    store.close()


def page(
    store: Store, query: str = "", *, is_slow: bool = False
) -> tuple[list[bytes], str]:
    """Return the keys of a page, and the cursor behind it."""
    clock = iter(range(0, 1 << 62, SLOW if is_slow else 1))
    text = list_keys(store, query, timer=lambda: next(clock))
    *rows, last = [json.loads(line) for line in text.splitlines()]
    assert list(last) == ["after"]
    assert text.isascii()
    return [unquote_to_bytes(row["key"]) for row in rows], last["after"] or ""


def pages(store: Store, query: str = "", **options: Any) -> Iterator[list[bytes]]:
    """Yield all pages."""
    after = ""
    while True:
        more = f"&after={after}" if after else ""
        keys, after = page(store, f"{query}{more}".strip("&"), **options)
        yield keys
        if not after:
            return


def test_list_of_keys_with_any_limit_has_each_key_once(store: Store) -> None:
    """Whatever the limit and the time of a page are; each page has an end."""
    for query, expected in (
        ("", KEYS),
        ("limit=1000", KEYS),
        ("limit=1", KEYS),
        ("limit=7", KEYS),
        ("prefix=a/1", [key for key in KEYS if key.startswith(b"a/1")]),
        ("prefix=%FF%fe&limit=2", [b"\xff\xfe"]),
        ("prefix=/gr%C3%BCn", ["gr\xfcn".encode()]),
        ("prefix=none", []),
    ):
        for is_slow in (False, True):
            found = list(pages(store, query, is_slow=is_slow))
            assert sorted(key for keys in found for key in keys) == sorted(expected)
            limit = (
                int(query.rpartition("limit=")[2] or 1000) if "limit" in query else 1000
            )
            assert all(len(keys) <= limit for keys in found)
            if is_slow:  # However many keys have the prefix.
                assert len(found) >= len(KEYS) / 2
    assert [len(keys) for keys in pages(store)] == [len(KEYS)]


def test_list_of_keys_after_a_forged_cursor_has_only_stored_keys(store: Store) -> None:
    """It is not trusted: no page fails, and each ends."""
    _, cursor = page(store, "limit=50")
    numbers = cursor.split(".")
    for place in range(len(numbers)):
        for value in ("0", "1", "77", "4095", "9" * 20):
            changed = ".".join([*numbers[:place], value, *numbers[place + 1 :]])
            try:
                keys, _ = page(store, f"after={changed}")
            except BadQueryError:
                continue
            assert set(keys) <= set(KEYS), changed
