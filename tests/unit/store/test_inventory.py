"""Files that do not belong together: what a start refuses, and what it says."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest
from google_crc32c import value as crc32c

from support.damage import overwrite
from support.replaced import mix
from support.stores import (
    VOLUME_NUM,
    BootedFileSystem,
    UnsyncedFileSystem,
    fill_volume,
    kill,
    open_fifo,
    value_of,
)
from volcache.errors import DamagedRecordError, MismatchedFilesError, StoreLockedError
from volcache.store.files import OsFileSystem
from volcache.store.format import (
    VOLUME_HEADER_BYTES,
    decode_header,
    decode_record,
    decode_volume_header,
    encode_record,
    volume_identity,
)
from volcache.store.index_format import (
    decode_blocks,
    decode_entries,
    decode_index_header,
    decode_segments,
    encode_block,
    encode_index_header,
    encode_segment,
)
from volcache.store.manifest import Manifest, decode_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from volcache.store.files import FileSystem
    from volcache.store.format import VolumeUse


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a place for a mount point, with room for others beside it."""
    return tmp_path / "mount"


def files(directory: Path) -> dict[str, bytes]:
    """Return the contents of all files."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def refusal(directory: Path, fs: FileSystem | None = None) -> str:
    """Return why a start is refused, after checking that it has changed nothing."""
    before = files(directory)
    with pytest.raises(MismatchedFilesError) as caught:
        open_fifo(directory, fs=fs)
    # LOCK was created if it was missing: it has to be locked.
    assert {**files(directory), "LOCK": b""} == {**before, "LOCK": b""}
    begin = f"mount point {str(directory)!r}: "
    end = (
        f'. Nothing was changed. Or run "volcache repair {directory}" to go on without'
        " what does not match"
    )
    text = str(caught.value)
    assert text.startswith(begin)
    assert text.endswith(end)
    return text.removeprefix(begin).removesuffix(end)


def manifest_of(directory: Path) -> Manifest:
    """Return META.txt."""
    manifest = decode_manifest((directory / "META.txt").read_bytes())
    assert manifest is not None
    return manifest


def use_of(manifest: Manifest, volume: int) -> VolumeUse:
    """Return the use of a volume that META.txt names."""
    (found,) = (v.use for v in manifest.volumes if v.use.volume == volume)
    return found


def text_of(use: VolumeUse, store_id: int) -> str:
    """Return a use of a volume as the text of a refusal has it."""
    volume, seq, _, salt = use
    return f"volume {volume} seq {seq} salt {salt:016x} of store {store_id:016x}"


def found_in(directory: Path, volume: int) -> str:
    """Return what a data file is, as the text of a refusal has it."""
    data = (directory / "data" / str(volume)).read_bytes()
    header = decode_volume_header(data[:VOLUME_HEADER_BYTES])
    assert header is not None
    return text_of(header.use, header.store_id)


def named_in(directory: Path, volume: int) -> str:
    """Return what an index file is, as the text of a refusal has it."""
    named = decode_index_header((directory / "index" / str(volume)).read_bytes())
    assert named is not None
    return text_of(*named[1])


def make_store(directory: Path, *, turns: int = 6, is_stopped: bool = True) -> None:
    """Make a store of `VOLUME_NUM` volumes."""
    store = open_fifo(directory)
    for turn in range(turns):
        fill_volume(store, b"%d" % turn)
    if is_stopped:
        store.close()
    else:
        kill(store)


def change_store(directory: Path, *, is_stopped: bool = True) -> None:
    """Put one value."""
    store = open_fifo(directory)
    store.put(b"later", b"value")
    if is_stopped:
        store.close()
    else:
        kill(store)


def forge_index(
    directory: Path, volume: int, *, records_left_out: int, is_sealed: bool
) -> None:
    """
    Replace an index file by an intact one without the last records.

    A sealed one says that the volume ends before them.
    """
    path = directory / "index" / str(volume)
    data = path.read_bytes()
    named = decode_index_header(data)
    assert named is not None
    blocks = list(decode_blocks(data))
    segments = [one for block in blocks for one in decode_segments(block.lines)]
    lines = [line for block in blocks for line in decode_entries(block.lines)]
    kept = lines[: len(lines) - records_left_out]
    end = lines[len(kept)][1] if is_sealed else blocks[-1].volume_end
    header, checksum = encode_index_header(named[1])
    block, _ = encode_block(
        kept,
        end,
        sealed=is_sealed,
        previous=checksum,
        before="".join(encode_segment(one) for one in segments if one.start < end),
    )
    path.write_bytes(header + block)


# --- With META.txt -----------------------------------------------------------------


def test_older_meta_is_refused(root: Path) -> None:
    """It does not name the volumes that were started since."""
    mix(root, ["META.txt"])
    manifest = manifest_of(root)
    newest = manifest.active.seq
    why = refusal(root)

    assert why.startswith(
        "META.txt is older than the volumes, or a volume is that of a copy of this mount"
        " point: "
    )
    assert f"data/1 is {found_in(root, 1)}, expected was at most seq {newest}" in why
    assert why.endswith("; put back the files that belong together")


def test_data_file_of_a_copy_that_went_on_is_refused(
    root: Path, tmp_path: Path
) -> None:
    """Its sequence number is higher than any in META.txt."""
    make_store(root)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    store = open_fifo(copy)
    fill_volume(store)
    volume = store.put(b"k", b"v").volume
    store.close()
    shutil.copy(copy / "data" / str(volume), root / "data")
    active = manifest_of(root).active

    assert refusal(root) == (
        "META.txt is older than the volumes, or a volume is that of a copy of this mount"
        f" point: data/{volume} is {found_in(root, volume)}, expected was at most seq"
        f" {active.seq}; put back the files that belong together"
    )


def test_meta_from_before_the_last_start_is_refused(root: Path, tmp_path: Path) -> None:
    """LOCK has the salt of a mount that it does not name."""
    make_store(root)
    earlier = tmp_path / "META.txt"
    shutil.copy(root / "META.txt", earlier)
    change_store(root, is_stopped=False)
    salt = manifest_of(root).volumes[-1].salts[-1]
    shutil.copy(earlier, root)
    manifest = manifest_of(root)
    why = refusal(root)

    assert why.startswith("META.txt and LOCK do not belong together: LOCK is of seq ")
    assert f"of seq {manifest.active.seq} salt {salt:016x} end " in why
    assert f"expected was {text_of(manifest.active, manifest.store_id)}" in why
    assert why.endswith(
        "; put back the right META.txt, or remove LOCK if it is not of this mount point"
    )


def test_lock_of_a_copy_is_refused_until_it_is_removed(
    root: Path, tmp_path: Path
) -> None:
    """Another process has written it."""
    make_store(root)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    change_store(copy, is_stopped=False)
    before = files(root)
    shutil.copy(copy / "LOCK", root)

    assert "or remove LOCK if it is not of this mount point" in refusal(root)
    (root / "LOCK").unlink()
    assert files(root) == {
        name: data for name, data in before.items() if name != "LOCK"
    }
    store = open_fifo(root)
    assert store.get(b"later") is None
    assert value_of(store.get(b"5/0")) is not None
    store.close()


def test_lock_of_another_store_says_nothing(root: Path, tmp_path: Path) -> None:
    """With META.txt or without, no value is lost."""
    make_store(root)
    make_store(tmp_path / "other", turns=9, is_stopped=False)
    for name in ("LOCK", "META.txt"):
        shutil.copy(tmp_path / "other" / "LOCK", root)
        if name == "META.txt":
            (root / name).unlink()
        store = open_fifo(root)
        assert value_of(store.get(b"5/0")) is not None
        assert value_of(store.get(b"3/0")) is not None
        store.close()


def test_replaced_volume_whose_keys_are_not_known_is_refused(root: Path) -> None:
    """Both of its files, by those of an earlier use: what it replaced is not known."""
    mix(root, ["data/1", "index/1"])
    manifest = manifest_of(root)
    expected = text_of(use_of(manifest, 1), manifest.store_id)

    assert refusal(root) == (
        "files do not match META.txt, so that it is unknown which older values they"
        f" replaced: data/1 is {found_in(root, 1)}, expected was {expected}; index/1 is"
        f" {named_in(root, 1)}, expected was {expected}; put back the right files"
    )


def test_replaced_volume_is_refused_after_another_boot(root: Path) -> None:
    """No power loss explains it: the volume was on the disk when the store stopped."""
    mix(root, ["data/1", "index/1"])

    assert "it is unknown which older values they replaced: data/1 is " in refusal(
        root, BootedFileSystem()
    )


def test_active_volume_of_another_store_is_refused_after_a_power_loss(
    root: Path, tmp_path: Path
) -> None:
    """A power loss takes what was written last, but brings no file of another store."""
    make_store(root, is_stopped=False)
    make_store(tmp_path / "other", turns=2)
    active = str(manifest_of(root).active.volume)
    for folder in ("data", "index"):
        shutil.copy(tmp_path / "other" / folder / active, root / folder)

    assert f"data/{active} is {found_in(root, int(active))}" in refusal(
        root, BootedFileSystem()
    )


def test_active_volume_that_was_written_is_refused_if_it_is_an_earlier_one(
    root: Path,
) -> None:
    """LOCK says that the header was written: no kill explains that it is missing."""
    mix(root, [])
    change_store(root, is_stopped=False)
    for name in ("data/2", "index/2"):
        shutil.copy(root.with_name(f"{root.name} earlier") / name, root / name)

    assert f"data/2 is {found_in(root, 2)}" in refusal(root)


def test_replaced_volume_with_another_index_file_is_refused(root: Path) -> None:
    """It is intact and has the right length, but is not the one that META.txt names."""
    mix(root, ["data/2"])
    forge_index(root, 2, records_left_out=1, is_sealed=False)

    assert refusal(root).startswith(
        "data/2 was replaced and its index file is not complete"
    )


def test_replaced_volume_with_a_lost_index_file_is_refused(root: Path) -> None:
    """Then only the data file is named."""
    mix(root, ["data/1"])
    (root / "index" / "1").unlink()
    manifest = manifest_of(root)
    expected = text_of(use_of(manifest, 1), manifest.store_id)

    assert refusal(root) == (
        "files do not match META.txt, so that it is unknown which older values they"
        f" replaced: data/1 is {found_in(root, 1)}, expected was {expected}; put back the"
        " right files"
    )


def test_replaced_volume_with_an_incomplete_index_file_is_refused(root: Path) -> None:
    """The index file is the right one, but its last block is missing."""
    mix(root, ["data/1"])
    path = root / "index" / "1"
    data = path.read_bytes()
    path.write_bytes(data[: list(decode_blocks(data))[-2].file_end])
    manifest = manifest_of(root)
    expected = text_of(use_of(manifest, 1), manifest.store_id)

    assert refusal(root) == (
        "data/1 was replaced and its index file is not complete, so that it is unknown"
        f" which older values it replaced: data/1 is {found_in(root, 1)}, expected was"
        f" {expected}; put back the right file"
    )


def test_replaced_data_file_with_its_index_file_is_left_out(root: Path) -> None:
    """The index file has the keys, so that no older value takes their place."""
    mixed = mix(root, ["data/1"])
    expected = mixed.of({0, 2, 3})
    store = open_fifo(root)

    assert store.recovery.rejected == 1
    found = {key: value_of(store.get(key)) for key in mixed.values}
    assert {key: value for key, value in found.items() if value is not None} == expected
    store.close()


def test_replaced_active_data_file_is_not_written(root: Path) -> None:
    """It may be that of a copy, to be put back there: the next volume is started."""
    mixed = mix(root, ["data/2"])
    before = (root / "data" / "2").read_bytes()
    store = open_fifo(root)

    assert store.put(b"k", b"v").volume == 3
    store.close()
    assert (root / "data" / "2").read_bytes() == before
    store = open_fifo(root)
    assert value_of(store.get(b"k")) == b"v"
    left = mixed.of({0, 1})
    assert {key: value_of(store.get(key)) for key in left} == left
    store.close()


@pytest.mark.parametrize("is_meta_theirs", [True, False])
def test_meta_or_volumes_of_another_store_are_refused(
    root: Path, tmp_path: Path, *, is_meta_theirs: bool
) -> None:
    """No volume is what META.txt says; three of them are named."""
    make_store(root)
    make_store(tmp_path / "other", turns=9)
    if is_meta_theirs:
        shutil.copy(tmp_path / "other" / "META.txt", root)
    else:
        for volume in range(VOLUME_NUM):
            shutil.copy(tmp_path / "other" / "data" / str(volume), root / "data")
    manifest = manifest_of(root)
    oldest = manifest.volumes[0].use
    why = refusal(root)

    assert why.startswith(
        f"{VOLUME_NUM} of {VOLUME_NUM} volumes do not match META.txt: "
    )
    assert (
        f"data/{oldest.volume} is {found_in(root, oldest.volume)}, expected was"
        f" {text_of(oldest, manifest.store_id)}; "
    ) in why
    assert why.count(" expected was ") == 3
    assert why.endswith(" more; put back the right META.txt or the right volumes")


def test_index_file_that_is_newer_than_meta_is_refused(
    root: Path, tmp_path: Path
) -> None:
    """It is that of a copy that went on."""
    make_store(root)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    store = open_fifo(copy)
    fill_volume(store)
    active = store.usage().active_id
    seq = store.usage().active_seq
    store.close()
    shutil.copy(copy / "index" / str(active), root / "index")

    assert refusal(root) == (
        f"index/{active} is newer (seq {seq}) than META.txt (seq"
        f" {manifest_of(root).active.seq}); put back the right files"
    )


@pytest.mark.parametrize("is_meta_theirs", [True, False])
def test_index_file_of_a_copy_is_refused(
    root: Path, tmp_path: Path, *, is_meta_theirs: bool
) -> None:
    """Both have gone on with the same volume, each with a salt of its own."""
    make_store(root)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    change_store(root)
    change_store(copy)
    active = manifest_of(root).active.volume
    name = "META.txt" if is_meta_theirs else f"index/{active}"
    shutil.copy(copy / name, root / name)
    (root / "LOCK").unlink()

    assert refusal(root) == (
        f"index/{active} and META.txt do not belong together: one of them is that of a"
        " copy of this mount point; put back the right file"
    )


def test_data_file_of_a_copy_returns_no_record_of_the_copy(
    root: Path, tmp_path: Path
) -> None:
    """The header is the same, and so are the places of the records; the salts are not."""
    make_store(root)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    for directory in (root, copy):
        store = open_fifo(directory)
        store.put(b"key", directory.name.encode().ljust(9))
        store.close()
    active = manifest_of(root).active.volume
    shutil.copy(copy / "data" / str(active), root / "data")
    store = open_fifo(root)

    assert store.stat(b"key") is None
    assert store.get(b"key") is None
    assert value_of(store.get(b"5/0")) is not None
    store.close()


def test_record_names_its_volume() -> None:
    """One with the salt of another volume, at its own offset, is not accepted."""
    theirs, ours = volume_identity(1, 7), volume_identity(2, 7)
    header = encode_record(theirs, 64, 1, 0, b"", b"", b"", b"key", 5, crc32c(b"value"))
    data = header + b"value"

    assert decode_record(data, theirs, 64, b"key") is not None
    assert decode_header(data, theirs, 64) is not None
    assert decode_header(data, ours, 64) is None
    with pytest.raises(DamagedRecordError):
        decode_record(data, ours, 64, b"key")


# --- Without META.txt --------------------------------------------------------------


def test_volumes_of_two_stores_without_meta_are_refused(
    root: Path, tmp_path: Path
) -> None:
    """The fewer ones are named, with what to do."""
    make_store(root)
    store_id = manifest_of(root).store_id
    make_store(tmp_path / "other")
    shutil.copy(tmp_path / "other" / "data" / "0", root / "data")
    for name in ("META.txt", "LOCK"):
        (root / name).unlink()
    why = refusal(root)

    assert why.startswith(
        "META.txt is missing or damaged, and the volumes belong to 2 stores: data/0 to"
        f" another one than the rest ({store_id:016x}); move away what does not belong here"
    )


def test_store_that_lock_names_is_the_one_that_stays(
    root: Path, tmp_path: Path
) -> None:
    """Even if most volumes are those of another one."""
    make_store(root)
    store_id = manifest_of(root).store_id
    make_store(tmp_path / "other")
    for volume in (0, 2, 3):
        shutil.copy(tmp_path / "other" / "data" / str(volume), root / "data")
    (root / "META.txt").unlink()

    assert (
        "the volumes belong to 2 stores: data/0, data/2, data/3 to another one than the"
        f" rest ({store_id:016x})"
    ) in refusal(root)


def test_missing_volume_without_meta_is_refused(root: Path) -> None:
    """The volumes are counted, and those before it are older."""
    make_store(root)
    manifest = manifest_of(root)
    oldest, lost, after, _ = (listed.use for listed in manifest.volumes)
    (root / "META.txt").unlink()
    for folder in ("data", "index"):
        (root / folder / str(lost.volume)).unlink()

    assert refusal(root) == (
        "META.txt is missing or damaged, and no file is the volume before"
        f" data/{after.volume} (seq {after.seq}), but there are older ones, such as"
        f" data/{oldest.volume} (seq {oldest.seq}); put back the right files"
    )


def test_volume_of_a_copy_without_meta_is_refused(root: Path, tmp_path: Path) -> None:
    """It has the right sequence number, but the next one has followed another salt."""
    make_store(root, turns=3)
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    for directory in (root, copy):
        store = open_fifo(directory)
        for turn in range(2):
            fill_volume(store, b"%d" % turn)
        store.close()
    *_, replaced, last = (listed.use for listed in manifest_of(root).volumes)
    for folder in ("data", "index"):
        shutil.copy(copy / folder / str(replaced.volume), root / folder)
    (root / "META.txt").unlink()

    assert (
        f"no file is the volume before data/{last.volume} (seq {last.seq}), but there are"
        f" older ones, such as data/{replaced.volume} (seq {replaced.seq})"
    ) in refusal(root)


def test_lost_newest_volume_without_meta_is_refused(root: Path) -> None:
    """LOCK names it."""
    make_store(root)
    newest = manifest_of(root).active
    (root / "META.txt").unlink()
    for folder in ("data", "index"):
        (root / folder / str(newest.volume)).unlink()

    assert refusal(root) == (
        "META.txt is missing or damaged, and LOCK names the volume that was written last,"
        " and it is not there; put it back, or remove LOCK if it is not of this mount"
        " point"
    )


def test_older_data_file_without_meta_is_refused(root: Path) -> None:
    """Its index file says that there was a newer use."""
    mix(root, ["data/1"])
    (root / "META.txt").unlink()

    assert (
        f"data/1 and index/1 do not belong together: {found_in(root, 1)} and"
        f" {named_in(root, 1)}"
    ) in refusal(root)


class UnreadableHeader(UnsyncedFileSystem):
    """A disk that cannot read the header of volume 1."""

    def __init__(self) -> None:
        """Wait for the file to be opened."""
        self.fd = -1

    def open(self, path: str, *, create: bool) -> int:
        """Note the descriptor of the volume."""
        fd = super().open(path, create=create)
        if path.endswith("/data/1"):
            self.fd = fd
        return fd

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Refuse the header."""
        if fd == self.fd and offset < VOLUME_HEADER_BYTES:
            raise OSError(5, "Input/output error")
        return OsFileSystem.pread(fd, length, offset)


def test_unreadable_header_without_meta_is_refused(root: Path) -> None:
    """The volume may be newer than any other one."""
    make_store(root)
    (root / "META.txt").unlink()

    with pytest.raises(MismatchedFilesError, match="data/1 cannot be read"):
        open_fifo(root, fs=UnreadableHeader())
    open_fifo(root).close()


@pytest.mark.parametrize("lost", ["none", "META.txt", "LOCK", "META.txt and LOCK"])
@pytest.mark.parametrize("is_stopped", [True, False])
def test_files_that_belong_together_are_never_refused(
    root: Path, lost: str, *, is_stopped: bool
) -> None:
    """Whichever of them is lost."""
    make_store(root, is_stopped=is_stopped)
    for name in ("META.txt", "LOCK"):
        if name in lost:
            (root / name).unlink()
    store = open_fifo(root)

    for turn in (3, 4, 5):
        assert value_of(store.get(b"%d/0" % turn)) is not None
    assert value_of(store.get(b"5/0")) is not None
    store.close()


# --- Keys that are not known -------------------------------------------------------


def make_superseded(directory: Path) -> int:
    """
    Store a key in two volumes, with other keys in the second one.

    Returns:
        The id of the second volume.
    """
    store = open_fifo(directory)
    store.put(b"same", b"old")
    fill_volume(store, b"old")
    store.put(b"before", b"value")
    store.put(b"same", b"new")
    store.put(b"after", b"value")
    volume = store.usage().active_id
    fill_volume(store, b"newer")
    store.close()
    return volume


def cut(directory: Path, volume: int, offset: int) -> None:
    """Replace all bytes of a data file from an offset on by zeros."""
    path = directory / "data" / str(volume)
    data = path.read_bytes()
    path.write_bytes(data[:offset].ljust(len(data), b"\0"))


def found_after_start(directory: Path) -> dict[bytes, bytes | None]:
    """Start, and return some of the values that `make_superseded` has stored."""
    store = open_fifo(directory)
    keys = (b"old/1", b"before", b"same")
    found = {key: value_of(store.get(key)) for key in keys}
    assert store.count
    store.close()
    return found


NOTHING = {b"old/1": None, b"before": None, b"same": None}


def test_records_missing_before_the_end_in_meta_drop_the_volume(root: Path) -> None:
    """And all older ones: one of them may have been a newer value."""
    volume = make_superseded(root)
    store = open_fifo(root)
    record = store.get(b"same")
    store.close()
    assert record is not None
    (root / "index" / str(volume)).unlink()
    cut(root, volume, record.offset)

    assert found_after_start(root) == NOTHING


def test_gap_without_an_index_file_drops_the_volume(root: Path) -> None:
    """The records in it may have been newer values."""
    volume = make_superseded(root)
    store = open_fifo(root)
    record = store.get(b"same")
    store.close()
    assert record is not None
    (root / "index" / str(volume)).unlink()
    overwrite(root / "data" / str(volume), record.offset, b"\xff" * record.size)

    assert found_after_start(root) == NOTHING


def test_records_missing_before_the_end_in_lock_drop_the_volume(root: Path) -> None:
    """A process that was killed had written them."""
    store = open_fifo(root)
    store.put(b"same", b"old")
    fill_volume(store)
    store.put(b"before", b"value")
    record = store.put(b"same", b"new")
    store.sync()
    kill(store)
    (root / "index" / str(record.volume)).unlink()
    cut(root, record.volume, record.offset)
    store = open_fifo(root)

    assert [key for key in (b"same", b"before", b"fill/1") if store.get(key)] == []
    store.close()


def test_earlier_files_of_a_volume_without_meta_drop_it(root: Path) -> None:
    """Its index file was sealed before the next volume was started."""
    store = open_fifo(root)
    store.put(b"same", b"old")
    fill_volume(store)
    volume = str(store.put(b"before", b"value").volume)
    store.sync()
    earlier = files(root)
    store.put(b"same", b"new")
    fill_volume(store, b"more")
    store.put(b"last", b"value")
    store.close()
    for folder in ("data", "index"):
        name = f"{folder}/{volume}"
        (root / name).write_bytes(earlier[name])
    (root / "META.txt").unlink()
    store = open_fifo(root)

    assert [key for key in (b"same", b"before", b"fill/1") if store.get(key)] == []
    assert value_of(store.get(b"last")) == b"value"
    store.close()


def test_sealed_index_file_that_ends_early_hides_no_record(root: Path) -> None:
    """META.txt has the end of the volume: the rest is found by a scan."""
    volume = make_superseded(root)
    forge_index(root, volume, records_left_out=3, is_sealed=True)
    store = open_fifo(root)

    assert store.recovery.scanned == 3
    assert value_of(store.get(b"same")) == b"new"
    store.close()


def test_deletion_whose_record_is_damaged_stays(root: Path) -> None:
    """Its entry was in the index file when the delete returned."""
    store = open_fifo(root)
    store.put(b"key", b"value")
    last = store.put(b"other", b"value")
    store.delete(b"key")
    kill(store)
    overwrite(root / "data" / "0", last.offset + last.size, b"\xff" * 60)
    store = open_fifo(root)

    assert store.get(b"key") is None
    assert value_of(store.get(b"other")) == b"value"
    store.close()


@pytest.mark.parametrize("is_index_lost", [False, True])
def test_snapshot_of_the_hot_tier_needs_the_last_index_file(
    root: Path, *, is_index_lost: bool
) -> None:
    """It shows that the files are those of the last process."""
    store = open_fifo(root)
    store.put(b"key", b"value")
    store.write_hot_snapshot(lambda binding: binding.encode())
    store.close()
    if is_index_lost:
        (root / "index" / "0").unlink()
    store = open_fifo(root)

    assert bool(store.take_hot_snapshot()[0]) is not is_index_lost
    assert value_of(store.get(b"key")) == b"value"
    store.close()


def test_copy_of_the_snapshot_of_the_hot_tier_is_not_used(root: Path) -> None:
    """META.txt has the inode of the file that the last process has written."""
    store = open_fifo(root)
    store.write_hot_snapshot(lambda binding: binding.encode())
    store.close()
    shutil.copy(root / "HOT.txt", root / "HOT.txt.new")
    (root / "HOT.txt.new").rename(root / "HOT.txt")
    store = open_fifo(root)

    assert store.take_hot_snapshot()[0] == b""
    store.close()


def test_directory_without_lock_is_still_locked(root: Path) -> None:
    """LOCK can be removed by hand while a process serves the directory."""
    store = open_fifo(root)
    (root / "LOCK").unlink()

    with pytest.raises(StoreLockedError):
        open_fifo(root)
    store.close()


# --- Leftovers ---------------------------------------------------------------------


def make_leftovers(root: Path, before: Path) -> None:
    """Remove four of six volumes and delete two keys; put the removed files back."""
    store = open_fifo(root, volume_num=6)
    for turn in range(6):
        store.put(b"same", b"%d" % turn)
        fill_volume(store, b"%d" % turn)
    store.close()
    shutil.copytree(root, before)
    store = open_fifo(root, volume_num=2)
    for key in (b"same", b"5/0"):
        assert store.delete(key)
    kept = {found.id for found in store.usage().volumes if found.state != "empty"}
    store.close()
    for folder in ("data", "index"):
        for volume in set(range(6)) - kept:
            shutil.copy(before / folder / str(volume), root / folder)


def test_no_removed_volume_returns_when_volume_num_is_raised_again(
    root: Path, tmp_path: Path
) -> None:
    """Even if its files do; and none of its records, when its id is used again."""
    make_leftovers(root, tmp_path / "before")
    removed = [b"same", b"5/0", *(b"%d/0" % turn for turn in range(4))]
    store = open_fifo(root, volume_num=6)
    for turn in range(8):
        assert [key for key in removed if store.get(key)] == []
        fill_volume(store, b"new %d" % turn)
        kill(store)
        store = open_fifo(root, volume_num=6)
    store.close()


def test_removed_volumes_that_return_without_meta_have_no_wrong_value(
    root: Path, tmp_path: Path
) -> None:
    """They were evicted by age: what superseded their records is still there."""
    make_leftovers(root, tmp_path / "before")
    (root / "META.txt").unlink()
    store = open_fifo(root, volume_num=6)

    assert store.get(b"same") is None
    assert store.get(b"5/0") is None
    store.close()


def test_volume_reclaimed_by_a_flush_does_not_return_without_meta(root: Path) -> None:
    """The header of the volume that the flush has started ends what is valid."""
    make_store(root)
    store = open_fifo(root)
    store.flush()
    store.put(b"after", b"value")
    store.close()
    (root / "META.txt").unlink()
    store = open_fifo(root)

    assert store.count == 1
    assert value_of(store.get(b"after")) == b"value"
    store.close()


def test_damaged_header_is_no_other_file(root: Path) -> None:
    """Its bytes say nothing, but the index file and META.txt agree: nothing is lost."""
    make_store(root)
    overwrite(root / "data" / "0", 20, b"\xff")
    store = open_fifo(root)

    assert store.recovery.rejected == 0
    assert store.recovery.damaged == 1
    assert value_of(store.get(b"4/0")) is not None
    store.close()
