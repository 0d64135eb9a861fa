"""versions.py: ids of items, and HOT.txt over restarts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.stores import (
    UnsyncedFileSystem,
    kill,
    open_store,
    signed,
)
from support.tiers import make_keys
from volcache.front import Copies
from volcache.hot.versions import encode, is_damaged
from volcache.store import Store

BINDING = "store 5f0c64d3c1f0a7be mount 7 directory 2049:131 boot 77d0c2aa"


def continues(later: Copies, earlier: Copies) -> bool:
    """Return whether the epoch goes on, so that items are found."""
    return later.name(b"never promoted") == earlier.name(b"never promoted")


def test_id_of_an_invalidated_key_is_never_used_again() -> None:
    """However often it is invalidated, and after any restart."""
    versions = make_keys()
    seen = set()
    for _ in range(5):
        versions.promote(b"k")
        versions.promote(b"k")
        assert versions.may_hold(b"k")
        seen.add(versions.name(b"k"))
        versions.invalidate(b"k")
        assert not versions.may_hold(b"k")
        assert versions.name(b"k") not in seen
        versions = make_keys(encode(versions, BINDING), BINDING)
        assert versions.name(b"k") not in seen
        assert not versions.may_hold(b"k")

    assert len(seen) == 5


def test_invalidation_of_a_key_that_was_not_promoted_changes_nothing() -> None:
    """A put of a key that is not hot takes no memory."""
    versions = make_keys()
    versions.promote(b"hot")
    before = encode(versions, BINDING)
    versions.invalidate(b"k")

    assert encode(versions, BINDING) == before


def test_full_memory_begins_a_new_epoch() -> None:
    """The number of keys is bounded; the last key is promoted in the new epoch."""
    versions = make_keys(keys=10)
    for number in range(11):
        versions.promote(b"%d" % number)

    assert versions.may_hold(b"10")
    assert not versions.may_hold(b"0")
    assert encode(versions, BINDING).count(b"\n") == 1 + 1 + 1 + 1


# --- The snapshot ----------------------------------------------------------------


def versions_of_two_keys() -> Copies:
    """Return versions with a promoted key and one that was invalidated."""
    versions = make_keys()
    versions.promote(b"a")
    versions.promote(b"b")
    versions.invalidate(b"b")
    return versions


def begins_anew(data: bytes, versions: Copies, binding: str = BINDING) -> bool:
    """Return whether a snapshot is not used at all: neither its epoch nor a key."""
    later = make_keys(data, binding)
    return not continues(later, versions) and not later.may_hold(b"a")


def test_snapshot_has_the_documented_lines() -> None:
    """Epoch, a hash of each key with its version, and a checksum."""
    text = encode(versions_of_two_keys(), BINDING)
    first, epoch, a, b, checksum = text.decode().splitlines()

    assert first == f"# volcache hot 3 {BINDING}"
    assert [len(word) for word in epoch.split()] == [5, 32]
    assert [len(line.split()[0]) for line in (a, b)] == [16, 16]
    assert [line.split()[1] for line in (a, b)] == ["1", "2"]
    assert text == signed(text[: text.index(b"checksum")])
    assert checksum.startswith("checksum ")
    assert not is_damaged(text)


def test_snapshot_of_another_binding_begins_a_new_epoch() -> None:
    """Another store, mount, directory or boot; it is not damaged."""
    versions = versions_of_two_keys()
    text = encode(versions, BINDING)
    for old, new in (
        *(("store 5", "store 6"), ("mount 7", "mount 8"), ("mount 7", "mount 6")),
        *((":131", ":132"), ("2049:", "2050:"), ("boot 77", "boot 78"), (BINDING, "")),
    ):
        assert begins_anew(text, versions, BINDING.replace(old, new))


@pytest.mark.slow
def test_damaged_snapshot_begins_a_new_epoch() -> None:
    """No version is lost while an item of an older one may be found."""
    versions = versions_of_two_keys()
    good = encode(versions, BINDING)
    damaged = [good + more for more in (b"\n", b"x", b"checksum 00000000\n")]
    damaged += [good[:length] for length in range(1, len(good))]
    for bit in range(len(good) * 8):
        flipped = bytearray(good)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for data in damaged:
        assert begins_anew(data, versions), data
        assert is_damaged(data), data
    assert begins_anew(b"", versions)
    assert not is_damaged(b"")


def test_snapshot_with_an_unknown_line_begins_a_new_epoch() -> None:
    """Although its checksum is right."""
    versions = versions_of_two_keys()
    lines = encode(versions, BINDING).splitlines(keepends=True)[:-1]
    assert not begins_anew(signed(b"".join(lines)), versions)
    unknown = (b"0123 1\n", b"0123456789abcdef -1\n", b"0123456789abcdef 1", b"\n")
    for changed in (
        *(lines[:1], [lines[0], *lines[2:]]),
        *([*lines, line] for line in unknown),
        [lines[0].replace(b"hot 3", b"hot 2"), *lines[1:]],
    ):
        assert begins_anew(signed(b"".join(changed)), versions), changed


# --- HOT.txt in a mount point ----------------------------------------------------


class Machine(UnsyncedFileSystem):
    """The disk of a machine that can boot again, or does not tell that it did."""

    boot = ""

    def boot_id(self) -> str:
        """Return the id of this boot; empty if it is not known."""
        return self.boot


def opened(
    directory: Path, machine: UnsyncedFileSystem | None = None
) -> tuple[Store, Copies]:
    """Start a process that serves a mount point with a hot tier."""
    options: dict[str, Any] = {"fs": machine} if machine else {}
    store = open_store(directory, **options)
    return store, make_keys(*store.take_hot_snapshot())


@contextmanager
def mounted(
    directory: Path, machine: UnsyncedFileSystem | None = None
) -> Iterator[Copies]:
    """Serve a mount point and stop cleanly; return the versions."""
    store, versions = opened(directory, machine)
    yield versions
    store.write_hot_snapshot(partial(encode, versions))
    store.close()


def assert_begins_anew(
    directory: Path, versions: Copies, machine: UnsyncedFileSystem | None = None
) -> None:
    """Check that the next start knows nothing of some versions."""
    with mounted(directory, machine) as later:
        assert not continues(later, versions)
        assert not later.may_hold(b"a")


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[Path, Copies]:
    """Return a mount point that was stopped cleanly, and its last versions."""
    folder = tmp_path / "stopped"
    with mounted(folder) as versions:
        versions.promote(b"a")
    assert (folder / "HOT.txt").exists()
    return folder, versions


def test_start_after_a_clean_stop_continues(stopped: tuple[Path, Copies]) -> None:
    """As often as it is stopped; HOT.txt is gone while the process runs."""
    folder, versions = stopped
    for number in range(3):
        with mounted(folder) as later:
            assert not (folder / "HOT.txt").exists()
            assert continues(later, versions)
            assert later.may_hold(b"a")
            assert later.may_hold(b"%d" % (number - 1)) == (number > 0)
            later.promote(b"%d" % number)


def run_and_kill(folder: Path) -> None:
    """Take the snapshot, which can be taken once."""
    store, _ = opened(folder)
    assert store.take_hot_snapshot() == (b"", "")
    kill(store)


def run_and_restore(folder: Path) -> None:
    """Restore HOT.txt alone, after a process that was killed."""
    snapshot = (folder / "HOT.txt").read_bytes()
    run_and_kill(folder)
    (folder / "HOT.txt").write_bytes(snapshot)


def stop_and_restore(folder: Path) -> None:
    """Restore HOT.txt alone, after an invalidation that was recorded in another."""
    snapshot = (folder / "HOT.txt").read_bytes()
    with mounted(folder) as later:
        later.invalidate(b"a")
    (folder / "HOT.txt").write_bytes(snapshot)


def kill_early(folder: Path) -> None:
    """Kill a process before it takes the snapshot."""
    kill(open_store(folder))


def store_without_the_tier(folder: Path) -> None:
    """Put what is not recorded."""
    store = open_store(folder)
    store.put(b"a", b"new")
    store.close()


@pytest.mark.parametrize(
    "happens",
    [
        *(run_and_kill, run_and_restore, stop_and_restore, kill_early),
        *(store_without_the_tier, lambda folder: open_store(folder).close()),
    ],
)
def test_start_without_what_happened_meanwhile_begins_a_new_epoch(
    stopped: tuple[Path, Copies], happens: Callable[[Path], None]
) -> None:
    """What was put, deleted or invalidated may be unknown; a snapshot is used once."""
    folder, versions = stopped
    happens(folder)
    assert_begins_anew(folder, versions)


@pytest.mark.parametrize("is_moved", [False, True])
def test_clone_begins_a_new_epoch(
    stopped: tuple[Path, Copies], *, is_moved: bool
) -> None:
    """Also in the place of the original, which goes on if it was moved away."""
    folder, versions = stopped
    clone = folder.with_name("clone")
    shutil.copytree(folder, clone)
    if is_moved:
        folder.rename(folder.with_name("original"))
        clone.rename(folder)
        folder, clone = folder.with_name("original"), folder
    assert_begins_anew(clone, versions)
    with mounted(folder) as later:
        assert continues(later, versions)


@pytest.mark.parametrize("boots", [("1", "2"), ("1", ""), ("", "")])
def test_start_after_another_boot_begins_a_new_epoch(
    tmp_path: Path, boots: tuple[str, str]
) -> None:
    """A power loss may have lost what a stop wrote; also if the boot is not known."""
    machine = Machine()
    machine.boot, then = boots
    with mounted(tmp_path, machine) as versions:
        versions.promote(b"a")
    assert (tmp_path / "HOT.txt").exists() == bool(machine.boot)
    machine.boot = then
    assert_begins_anew(tmp_path, versions, machine)


def refuse(disk: UnsyncedFileSystem, call: str) -> None:
    """Let HOT.txt not be removed or replaced."""

    def refused(*paths: str) -> None:
        if paths[-1].endswith("HOT.txt"):
            raise PermissionError(13, "Permission denied")
        getattr(UnsyncedFileSystem, call)(*([disk] if call == "unlink" else []), *paths)

    setattr(disk, call, refused)


@pytest.mark.parametrize("call", ["unlink", "rename"])
def test_disk_that_refuses_begins_a_new_epoch(
    tmp_path: Path, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The start and the stop go on; one line is logged."""
    disk = UnsyncedFileSystem()
    if call == "rename":
        refuse(disk, call)
    with mounted(tmp_path, disk) as versions:
        versions.promote(b"a")
    refuse(disk, call)
    with mounted(tmp_path, disk) as later:
        assert not continues(later, versions)
        assert not later.may_hold(b"a")
        delattr(disk, call)
    assert "hot.snapshot_failed" in caplog.text
    with mounted(tmp_path, disk) as latest:
        assert continues(latest, later)
