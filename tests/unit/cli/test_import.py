"""`volcache import`: files of a folder become values; other keys do not change."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Run
from support.contents import values
from support.stores import disk_bytes, open_store
from support.tiers import make_keys
from volcache.cli.import_ import LISTED_MAX, ImportLimits
from volcache.errors import StoreIOError
from volcache.hot.versions import encode
from volcache.store import Store

LIMITS = ImportLimits(
    volume_size=16 * 1024, volume_num=4, max_value_size=8000, max_key_size=1024
)
DEFAULT = {"volume_size": 1 << 30, "volume_num": 10}


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit values to the small volumes of the tests."""
    monkeypatch.setenv("VOLCACHE_MAX_VALUE_SIZE", "8000")
    monkeypatch.setenv("VOLCACHE_MAX_KEY_SIZE", "1024")


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    """Return the places of a mount point and of a folder to import."""
    return tmp_path / "store", tmp_path / "files"


def put_files(folder: Path, files: dict[bytes, bytes]) -> None:
    """Write files; names are bytes."""
    for name, value in files.items():
        path = folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)


def test_existing_volumes_stay_unless_the_settings_give_others(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """No default drops the oldest volume or allocates a gigabyte."""
    directory, folder = paths
    options = {"volume_size": 16_384, "volume_num": 12}
    store = open_store(directory, **options)
    for number in range(11 * 16):
        store.put(b"%d" % number, bytes(900))
    assert store.stats.rotations == 10
    store.close()
    expected = values(directory, **options) | {b"new": b"value"}
    put_files(folder, {b"new": b"value"})
    assert run("import", *paths).code == 0
    assert values(directory, **options) == expected
    assert disk_bytes(directory) == 11 * 16_384
    monkeypatch.setenv("VOLCACHE_VOLUME_NUM", "2")
    assert run("import", *paths).code == 0
    assert disk_bytes(directory) == 2 * 16_384


def test_settings_are_those_of_the_server(
    paths: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    """A settings file sets volumes and expiry; a wrong setting is exit code 2."""
    config = tmp_path / "conf.toml"
    config.write_text("volume_size = 1048576\nvolume_num = 3\nmax_ttl = 60\n")
    put_files(paths[1], {b"key": b"value"})
    assert run("import", *paths, "--config", config).code == 0
    assert disk_bytes(paths[0]) == 1 << 20
    assert len(list((paths[0] / "data").iterdir())) == 3
    store = open_store(paths[0])
    record = store.get(b"key")
    assert record is not None
    assert 50_000 < record.expires_ms - record.stored_us // 1000 <= 60_000
    store.close()
    config.write_text("volume_num = 1\n")
    code, out, err = run("import", *paths, "--config", config)
    assert (code, out) == (2, "")
    assert err.startswith(f"volcache: {config}: volume_num = 1 is not allowed; ")


def test_files_that_cannot_be_imported_are_listed(
    paths: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    """One line each, with the reason; the rest is imported; no link is followed."""
    files, outside = paths[1], tmp_path / "outside"
    put_files(outside, {b"secret": b"s"})
    deep = b"/".join([b"d" * 200] * 6)
    names = dict.fromkeys((b"line\nend", b"-/healthy", deep), b"")
    put_files(files, {**names, b"good": b"g", b"large": bytes(8001)})
    (files / "to file").symlink_to(outside / "secret")
    (files / "to folder").symlink_to(outside)
    os.mkfifo(files / "pipe")
    (files / "empty").mkdir()
    code, out, err = run("import", *paths)
    rule = (
        "a key is the path after its first slash: at least one byte, no control bytes,"
        ' not beginning with "-/"'
    )
    *lines, summary = out.splitlines()
    assert lines == [
        "left out large: value is 8001 bytes long; allowed are 0 to 8000",
        f"left out line%0Aend: bad key: it holds the control byte 0x0A; {rule}",
        "left out pipe: is not a regular file",
        "left out to%20file: is a symbolic link",
        "left out to%20folder: is a symbolic link",
        f'left out -/healthy: bad key: the prefix "-/" is reserved; {rule}',
        f"left out {deep.decode()}: key is 1205 bytes long; allowed are 1 to 1024",
    ]
    assert (code, err) == (1, "")
    assert ": 1 file, 1 B; left out: 7; " in summary
    assert summary.endswith(" s")
    assert values(paths[0], **DEFAULT) == {b"good": b"g"}
    *rows, last = map(json.loads, run("import", *paths, "--json").lines)
    assert [f"left out {row['key']}: {row['left_out']}" for row in rows] == lines
    assert last["summary"].pop("seconds") >= 0
    assert last["summary"] == {
        "directory": str(paths[0]),
        "files": 1,
        "bytes": 1,
        "left_out": 7,
        "expired": 0,
        "overwritten": 0,
        "overflows": False,
        "interrupted": False,
    }
    for number in range(LISTED_MAX):  # The first hundred have a line each.
        (files / f"{number}").symlink_to("nowhere")
    found = run("import", *paths)
    assert (len(found.lines), found.lines[-2]) == (LISTED_MAX + 2, "left out 7 more")
    assert f" left out: {LISTED_MAX + 7};" in found.lines[-1]


def test_files_that_change_after_they_were_listed_are_left_out(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Also one that grows while it is read, and what cannot be read; nothing blocks."""
    files, denied = paths[1], PermissionError(errno.EACCES, "Permission denied")
    changes: dict[str, Callable[[Path], object]] = {
        "grown": lambda path: path.write_bytes(bytes(9000)),
        "link": lambda path: path.symlink_to("good"),
        "pipe": os.mkfifo,
    }
    names = (b"closed/in", b"good", b"growing", b"shy", *map(str.encode, changes))
    put_files(files, dict.fromkeys(names, b""))
    plain_open, plain_scan, plain_read = os.open, os.scandir, os.read

    def open_(name: bytes, *rest: int, **options: int) -> int:
        path = files / os.fsdecode(name)
        if path == files / "shy":
            raise denied
        if change := changes.get(path.name) if path.parent == files else None:
            path.unlink()
            change(path)
        is_growing = path == files / "growing"
        read = (lambda *_: b"x" * 5000) if is_growing else plain_read
        fd = plain_open(name, *rest, **options)
        monkeypatch.setattr("os.read", read)
        return fd

    def scan(path: bytes) -> object:
        if path == bytes(files / "closed/"):
            raise denied
        return plain_scan(path)

    monkeypatch.setattr("volcache.cli.tree.os.open", open_)
    monkeypatch.setattr("volcache.cli.tree.os.scandir", scan)
    found = run("import", *paths)
    assert (found.code, found.err) == (1, "")
    assert found.lines[:-1] == [
        "left out growing: value is 10000 bytes long; allowed are 0 to 8000",
        "left out grown: value is 9000 bytes long; allowed are 0 to 8000",
        "left out link: cannot be read: Too many levels of symbolic links",
        "left out pipe: cannot be read: is not a regular file",
        "left out shy: cannot be read: Permission denied",
        "left out closed: cannot be read: Permission denied",
    ]
    assert values(paths[0], **DEFAULT) == {b"good": b""}


@pytest.mark.parametrize(("eviction", "volumes"), [("fifo", 4), ("frequency", 3)])
def test_folder_that_does_not_fit_is_reported_and_the_last_files_stay(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
    eviction: str,
    volumes: int,
) -> None:
    """
    Reported exactly if the first imported files will be overwritten.

    With "frequency", one volume is always free for copies.
    """
    monkeypatch.setenv("VOLCACHE_EVICTION", eviction)
    record = 64 + 3 + 1000
    fit = (LIMITS.volume_size - 64) // record * volumes
    for number in (fit, fit + 1):
        files = {b"%03d" % n: bytes([n % 251]) * 1000 for n in range(number)}
        put_files(tmp_path / "files", files)
        directory = tmp_path / f"store {number}"
        open_store(directory, eviction=eviction).close()
        code, out, _ = run("import", directory, tmp_path / "files")
        lines, found = out.splitlines(), values(directory)
        assert all(files[key] == value for key, value in found.items())
        if number == fit:
            assert (code, len(lines), len(found)) == (0, 1, fit)
        else:
            assert code == 1
            assert lines[0] == (
                f"does not fit: {number * record / 1024:.1f} KiB into {volumes} volumes of"
                " 16.0 KiB; the first files will be overwritten"
            )
            assert " overwritten: 15 records;" in lines[1]
            assert sorted(found) == sorted(files)[15:]


def at_fourth_put(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen before the put of the key 3."""
    plain = Store.put

    def put(self: Store, key: bytes, value: bytes, **options: Any) -> object:
        if key == b"3":
            act()
        return plain(self, key, value, **options)

    monkeypatch.setattr(Store, "put", put)


def test_ctrl_c_ends_the_import_between_two_files(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """The current file is stored, the store closed and the handler restored."""
    put_files(paths[1], {b"%d" % n: b"value" for n in range(9)})
    open_store(paths[0]).close()
    at_fourth_put(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, out, err = run("import", *paths)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    first, second = out.splitlines()
    assert (code, err) == (130, "")
    assert first == "interrupted: the files before are imported, the rest is not"
    assert ": 4 files, 20 B; left out: 0; " in second
    assert second.endswith(" s; interrupted")
    found = run("check", paths[0])
    assert (found.code, len(found.lines)) == (0, 1)  # Closed: no line is missing.
    assert sorted(values(paths[0])) == [b"0", b"1", b"2", b"3"]


def test_write_error_ends_the_import_with_a_summary(
    paths: tuple[Path, Path], run: Run
) -> None:
    """
    The error is one line, the imported files are counted, and the store is closed.

    What was stored before is kept, and a second import adds the other files.
    """

    def fail() -> None:
        raise StoreIOError("the disk refused")

    files = {b"%d" % n: b"value" for n in range(9)}
    put_files(paths[1], files)
    store = open_store(paths[0])
    for key in (b"old", b"0", b"3"):
        store.put(key, b"before")
    store.close()
    with pytest.MonkeyPatch.context() as patch:
        at_fourth_put(patch, fail)
        code, out, err = run("import", *paths)
    assert (code, err) == (1, "volcache: the disk refused\n")
    assert ": 3 files, 15 B; left out: 0; " in out
    before = {b"old": b"before", b"3": b"before"}
    assert values(paths[0]) == dict(list(files.items())[:3]) | before
    assert run("import", *paths).code == 0
    assert values(paths[0]) == files | {b"old": b"before"}


def test_import_invalidates_all_copies_in_memcached(
    paths: tuple[Path, Path], run: Run
) -> None:
    """The mount that HOT.txt is bound to was not the last one any more."""
    directory, hot = paths[0], paths[0] / "HOT.txt"

    def mount(*, promotes: bool) -> tuple[bool, bytes]:
        """Return whether a start has a copy, and under which id; then stop."""
        store = open_store(directory)
        versions = make_keys(*store.take_hot_snapshot())
        found = versions.may_hold(b"key"), versions.name(b"key")
        if promotes:
            versions.promote(b"key")
        store.write_hot_snapshot(partial(encode, versions))
        store.close()
        return found

    _, item_id = mount(promotes=True)
    assert mount(promotes=False) == (True, item_id)
    snapshot = hot.read_bytes()
    put_files(paths[1], {b"key": b"new"})
    assert run("import", *paths).code == 0
    assert hot.read_bytes() == snapshot
    is_held, other_id = mount(promotes=False)
    assert (is_held, other_id == item_id) == (False, False)
    hot.unlink()
    hot.mkdir()  # Neither read nor written.
    put_files(paths[1], {b"key": b"newest"})
    assert run("import", *paths).code == 0
    hot.rmdir()
    assert values(directory) == {b"key": b"newest"}
