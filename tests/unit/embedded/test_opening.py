"""embedded/opening.py: options, and the size of the volumes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import volcache
from support.embedded import CAPACITY, open_small
from support.process import SOURCE
from support.program import ended
from support.stores import kill, open_store, value_of
from support.tables import each_row
from volcache.cli.check import check
from volcache.embedded import session
from volcache.embedded.errors import StorageLockedError
from volcache.embedded.opening import volume_size_for
from volcache.kinds import GIB, MIB, TIB, format_size
from volcache_client.errors import InvalidArgumentError, StorageError


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity": "1MiB"}, "capacity = '1MiB' .* a size from 4MiB to 64TiB"),
        ({"capacity": 0}, "capacity = 0 "),
        ({"capacity": -(10**9)}, "capacity = -1000000000 "),
        ({"capacity": "10 Gb"}, "units kB, MB, GB, TB, KiB, MiB, GiB, TiB"),
        ({"capacity": "10"}, "text such as"),
        ({"capacity": 10.5}, "capacity = 10.5 "),
        ({"capacity": True}, "capacity = True "),
        ({"volume_size": "4MiB"}, "with capacity = 8MiB there are 2 volumes; .* 4 to"),
        ({"volume_size": 1000}, "volume_size = 1000 "),
        ({"sync_mode": "often"}, '"periodic", "always", "none"'),
        ({"sync_interval": 0}, "a number from 0.01 to 3600"),
        ({"eviction": "lru"}, '"frequency", "fifo"'),
        ({"default_ttl": 0}, "default_ttl=0"),
        ({"default_ttl": "1h"}, "default_ttl='1h'"),
        ({"serializer": "pickle"}, "signing_key"),
        ({"serializer": object()}, "the methods dumps and loads"),
    ],
)
def test_open_with_a_wrong_option_creates_nothing(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    """The error names option, value and what is allowed."""
    with pytest.raises(InvalidArgumentError, match=f"(?s){text}"):
        open_small(tmp_path / "new", **options)
    assert not (tmp_path / "new").exists()


@each_row("directory", ["", "a\0b", b"bytes", 5, None])
def test_open_of_a_wrong_path_is_refused(directory: Any) -> None:
    """An empty one is not the working directory."""
    with pytest.raises(InvalidArgumentError, match="allowed is a path"):
        volcache.open(directory, capacity=CAPACITY)


def test_open_of_a_directory_of_something_else_leaves_it_alone(tmp_path: Path) -> None:
    """The error names a file."""
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(StorageError, match=r"letter\.txt"):
        open_small(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_open_of_an_open_directory_shares_it(tmp_path: Path) -> None:
    """In this process, also by another path; each has its own options and end."""
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    first = open_small(tmp_path / "cache")
    second = open_small(tmp_path / "link", default_ttl=1000)
    first["a"] = b"[1]"
    assert second["a"] == b"[1]"
    first.close()
    second["a"] = b"[2]"
    second.close()
    with open_small(tmp_path / "link") as third:
        assert third["a"] == b"[2]"


def test_open_of_a_directory_that_a_tool_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while a tool has it; after some time, as it may be opened just now."""
    open_small(tmp_path).close()
    monkeypatch.setattr(session, "_WAIT_SECONDS", 0.01)
    store = open_store(tmp_path, volume_size=MIB, volume_num=8)
    with pytest.raises(StorageLockedError, match="in use by another process"):
        open_small(tmp_path)
    store.close()
    open_small(tmp_path).close()


@each_row(
    ("capacity", "size"),
    [
        *((4 * MIB, MIB), (32 * MIB, MIB), (64 * MIB, 2 * MIB), (GIB, 16 * MIB)),
        *((10 * GIB, 160 * MIB), (64 * TIB, TIB)),
    ],
)
def test_volume_size_of_a_new_cache_makes_4_to_64_volumes(
    capacity: int, size: int
) -> None:
    """From 64 MiB on, a value of 1 MiB fits."""
    assert volume_size_for(capacity) == size
    assert 4 <= capacity // size <= 64


def test_open_with_another_capacity_keeps_the_volume_size(tmp_path: Path) -> None:
    """Unless another one is given, or it does not fit the capacity."""
    with open_small(tmp_path, volume_size="2MiB") as cache:
        cache["a"] = b"1"
    with open_small(tmp_path) as cache:
        assert cache.volume_size == 2 * MIB
        assert cache["a"] == b"1"
    with pytest.raises(
        InvalidArgumentError, match="has volumes of 2MiB, so allowed is at least"
    ):
        open_small(tmp_path, capacity="4MiB")
    with open_small(tmp_path, capacity="4MiB", volume_size="1MiB") as cache:
        assert cache["a"] == b"1"
    with open_small(tmp_path, capacity="8GiB") as cache:
        assert cache.volume_size == 128 * MIB
        assert cache["a"] == b"1"


def test_open_with_a_lower_capacity_drops_the_oldest_values(tmp_path: Path) -> None:
    """Those that are there are right."""
    with open_small(tmp_path, capacity="16MiB", eviction="fifo") as cache:
        for number in range(12):
            cache[f"{number}"] = b"%d" % number + bytes(900_000)
        assert len(cache) == 12
    with open_small(tmp_path, capacity="4MiB", eviction="fifo") as cache:
        assert b"11" in list(cache)
        assert b"0" not in list(cache)
        assert all(value.startswith(key) for key, value in cache.items())


@pytest.mark.parametrize("capacity", [None, "4MiB", "10GiB", "64TiB"])
def test_first_value_of_any_capacity_takes_less_than_4_mib(
    tmp_path: Path, capacity: str | None
) -> None:
    """Whatever the capacity, also one that is larger than the disk."""
    with volcache.open(tmp_path / "cache", capacity=capacity) as cache:
        cache["a"] = b"1"
        cache.get_or_set("b", lambda: b"2")
        files = [path.stat() for path in (tmp_path / "cache").rglob("*")]
        assert sum(found.st_blocks for found in files) * 512 < 4 * MIB
        assert format_size(cache.capacity) == (capacity or "1GiB")
    with volcache.open(tmp_path / "cache", capacity=capacity) as again:
        assert dict(again.items()) == {b"a": b"1", b"b": b"2"}
        assert again.volume_size == cache.volume_size


def test_open_without_a_capacity_drops_nothing(tmp_path: Path) -> None:
    """As the volumes are longer than the default."""
    with open_small(tmp_path, capacity="4GiB", volume_size="1GiB") as cache:
        for number in range(200):
            cache[f"{number}"] = bytes(20_000)
        cache.get_or_set("other", lambda: b"1")  # In another volume.
    with volcache.open(tmp_path, volume_size="64MiB") as cache:
        assert cache.capacity == 2 * GIB
        assert len(cache) == 201


def test_tools_and_server_accept_sparse_volumes(tmp_path: Path) -> None:
    """And the reverse; also after a kill."""
    values = {b"%d" % number: b"%d" % number * 500 for number in range(300)}
    with open_small(tmp_path / "a", capacity="256MiB") as cache:
        cache.set_many(values)
        shutil.copytree(
            tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("socket")
        )
    for directory in (tmp_path / "a", tmp_path / "b"):
        lines: list[str] = []
        assert check(str(directory), lines.append), lines
        store = open_store(directory, volume_size=4 * MIB, volume_num=64)
        found = {key: value_of(store.get(key)) for key in values}
        assert (found, store.recovery.damaged) == (values, 0)
        kill(store)
        with open_small(directory, capacity="256MiB") as cache:
            assert dict(cache.items()) == values


@pytest.mark.slow
def test_import_and_open_load_no_server_module() -> None:
    """And `import volcache` next to nothing."""
    text = (
        "import json, sys\n"
        "import volcache\n"
        "first = sorted(name for name in sys.modules if 'volcache' in name)\n"
        "volcache.open\n"
        "names = ['bjoern', 'pymemcache', 'prometheus_client', 'tqdm', 'shtab',\n"
        "    'asyncio', 'http.client', 'volcache.http', 'volcache.hot', 'pickle']\n"
        "print(json.dumps([first, [name for name in names if name in sys.modules]]))\n"
    )
    done = ended([sys.executable, "-c", text], {"PYTHONPATH": str(SOURCE)})
    assert json.loads(done.stdout) == [["volcache"], []]
