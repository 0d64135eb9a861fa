"""Export and import: values become files, and come back with all that belongs to them."""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import pytest
from google_crc32c import value as crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.command_line import Run
from support.contents import files_of
from support.damage import extents, flip
from support.damage import fill as fill_volumes
from support.stores import UnsyncedFileSystem, open_store
from volcache.cli.dump import dump
from volcache.cli.export import export
from volcache.cli.import_ import ImportLimits, Outcome, import_folder
from volcache.cli.sidecar import NAME, UNFINISHED, Exported, SidecarWriter
from volcache.errors import MountPointError
from volcache.http.upload import read_stored_headers
from volcache.store import Record

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "v2"
LIMITS = ImportLimits(
    volume_size=16 * 1024, volume_num=4, max_value_size=8000, max_key_size=1024
)
NOW_MS = 1_900_000_000_000
HEADER = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=40
).map(lambda text: text.replace("\x7f", "").encode("latin-1"))
PART = st.binary(min_size=1, max_size=20).map(
    lambda name: bytes(byte for byte in name if byte >= 0x20 and byte not in b"/\x7f")
)
# The first byte differs, so that no folder and file have the same name.
KEY = st.tuples(st.lists(PART, max_size=3), PART).map(
    lambda key: b"/".join([*(b"d" + part for part in key[0]), b".f" + key[1]])
)


class Kept(NamedTuple):
    """What a store keeps of a value, but for the time it was stored."""

    value: bytes
    content_type: bytes = b""
    content_encoding: bytes = b""
    cache_control: bytes = b""
    expires_ms: int = 0
    flags: int = 0


KEPT = st.builds(
    Kept,
    st.binary(max_size=300),
    HEADER,
    HEADER,
    st.text(max_size=60).map(
        lambda text: read_stored_headers({"HTTP_CACHE_CONTROL": text})[2]
    ),
    st.just(0) | st.integers(NOW_MS + 1, 1 << 50),
    st.integers(0, (1 << 32) - 1),
)
ODD = [b"\xff\xfe", b"a b%20c", b'"quoted"', "gr\xfcn".encode(), b"\\"]
THREE = {
    b"a/b.txt": Kept(b"text", b"text/x", b"gzip", b"immutable", 0, 7),
    b"short": Kept(b"1", expires_ms=NOW_MS + 1000),
    b"long": Kept(b"2", expires_ms=NOW_MS + 1_000_000),
}


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder but the list, by path."""
    found = files_of(folder)
    found.pop(NAME, None)
    return found


def fill(directory: Path, stored: dict[bytes, Kept]) -> None:
    """Make a store."""
    store = open_store(directory)
    for key, one in stored.items():
        options = one._asdict()
        store.put(key, options.pop("value"), **options)
    store.close()


def exported(root: Path, stored: dict[bytes, Kept]) -> Path:
    """Export a store with these values; return the folder."""
    fill(root / "before", stored)
    assert export(str(root / "before"), str(root / "files"), NOW_MS, lambda _: None)
    return root / "files"


def bring_back(
    root: Path, *, limits: ImportLimits = LIMITS, now_ms: int = NOW_MS
) -> tuple[Outcome, list[str]]:
    """Import the folder `files` into the store `after`; also return what is printed."""
    lines: list[str] = []
    outcome = import_folder(
        str(root / "after"),
        str(root / "files"),
        limits=limits,
        expires_ms=0,
        report=lines.append,
        now_ms=now_ms,
        fs=UnsyncedFileSystem(),
    )
    return outcome, lines


def found(root: Path) -> dict[bytes, Kept]:
    """Return what is in the store `after`."""
    keys = {unquote_to_bytes(row.key) for row in dump(str(root / "after"), 0)}
    store = open_store(root / "after")
    records = {key: record for key in keys if (record := store.get(key))}
    store.close()
    return {
        key: Kept(*(getattr(record, name) for name in Kept._fields))
        for key, record in records.items()
    }


@pytest.mark.slow
@settings(max_examples=25)
@example({key: Kept(key, b"t", flags=1) for key in ODD})
@given(st.dictionaries(KEY, KEPT, max_size=8))
def test_import_restores_everything_that_an_export_wrote(
    stored: dict[bytes, Kept],
) -> None:
    """Every key that is a path, any content type, encoding, directives and lifetime."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        exported(root, stored)
        outcome, _ = bring_back(root)
        assert (outcome.files, outcome.left_out) == (len(stored), 0)
        assert found(root) == stored


def test_live_values_become_files(tmp_path: Path, run: Run) -> None:
    """Without deleted and expired ones; without index files they are found in volumes."""
    for name in ("healthy", "no_index"):
        target = tmp_path / name
        summary = f"{target}: 8 files, 3.5 KiB; left out: 0\n"
        assert run("export", GOLDEN / name, target) == (0, summary, "")
        assert sorted(files(target)) == [
            *("a/hello.txt", "fill/1", "fill/1 more", "fill/2", "fill/2 more"),
            *("grün & 100%", "packed", "turn"),
        ]
        assert files(target)["a/hello.txt"] == b"Hello, disk!\n"


def test_keys_that_are_not_paths_are_listed_and_nothing_leaves_the_target(
    tmp_path: Path, run: Run
) -> None:
    """Above the root, absolute, with a zero byte, too long, a file that is a folder."""
    bad = [b"../out", b"/tmp/out", b"a/../../out", b"b//c", b"d/", b"e\0", b"f" * 300]
    keys = [*bad, b"-", b"good", b"good/below"]
    fill(tmp_path / "store", dict.fromkeys(keys, Kept(b"value")))
    target = tmp_path / "target"
    code, out, _ = run("export", tmp_path / "store", target)
    *lines, summary = out.splitlines()
    assert lines[0] == "left out ../out: is not the path of a file"
    assert "left out -: the name '-' is that of the folder of the list" in lines
    assert (code, len(lines)) == (1, len(bad) + 2)
    assert summary.startswith(f"{target}: 1 file, 5 B; left out: ")
    assert files(target) == {"good": b"value"}
    found = run("export", tmp_path / "store", tmp_path / "again", "--json")
    *rows, last = map(json.loads, found.lines)
    assert [f"left out {row['key']}: {row['left_out']}" for row in rows] == lines
    assert last["summary"] == {
        "directory": f"{tmp_path / 'store'}",
        "target": f"{tmp_path / 'again'}",
        "files": 1,
        "bytes": 5,
        "left_out": len(lines),
    }
    assert {path.name for path in tmp_path.iterdir()} == {"store", "target", "again"}


def test_damaged_values_are_left_out_by_name(tmp_path: Path, run: Run) -> None:
    """Also if the header of the record is damaged: the index file has the key."""
    directory = tmp_path / "store"
    fill_volumes(directory, records=600)
    live = set(run("dump", "--keys", directory).lines)
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    for number, record in enumerate(extents(directory)):
        if number % 5 == 0:  # In the header, or in the value or its checksum.
            offset = record.start + 20 if number % 2 else record.end - 1
            flip(directory / "data" / str(record.volume), offset, dice)
    code, out, _ = run("export", directory, tmp_path / "target")
    *lines, summary = out.splitlines()
    damaged = [line.removeprefix("left out ").split(":")[0] for line in lines]
    assert all(": damaged record: " in line for line in lines)
    assert (code, len(damaged) > 20) == (1, True)
    assert set(damaged) < live
    assert len(set(damaged)) == len(damaged)
    kept = {key.replace("%20", " ") for key in live - set(damaged)}
    assert set(files(tmp_path / "target")) == kept
    assert summary.endswith(f"left out: {len(damaged)}")


def test_import_without_the_list_stores_plain_values(tmp_path: Path) -> None:
    """As before there were lists; the keys are the same."""
    stored = THREE | dict.fromkeys([*ODD, b"a/-/x", b"x" * 255], Kept(b"", b"t"))
    (exported(tmp_path, stored) / NAME).unlink()
    outcome, _ = bring_back(tmp_path)
    assert outcome.files == len(stored)
    assert found(tmp_path) == {key: Kept(one.value) for key, one in stored.items()}


def test_changed_missing_and_new_files_are_told_apart(tmp_path: Path) -> None:
    """One that is not what was exported is no value of this key; a new one is."""
    folder = exported(tmp_path, THREE)
    (folder / "long").write_bytes(b"3")
    (folder / "short").unlink()
    (folder / "new").write_bytes(b"new")
    outcome, lines = bring_back(tmp_path)
    assert (outcome.files, outcome.left_out) == (2, 2)
    assert lines[:2] == [
        f"left out long: is not what was exported: see {NAME}",
        "left out short: its file is missing",
    ]
    assert set(found(tmp_path)) == {b"a/b.txt", b"new"}


def test_lifetimes_end_when_they_would_have_and_are_limited(tmp_path: Path) -> None:
    """What has expired since is not stored; max_ttl is that of the server."""
    text = (exported(tmp_path, THREE) / NAME).read_bytes()
    assert text.count(str(NOW_MS + 1000).encode()) == 1
    limits = replace(LIMITS, max_ttl=10)
    outcome, _ = bring_back(tmp_path, limits=limits, now_ms=NOW_MS + 1000)
    assert (outcome.files, outcome.expired, outcome.left_out) == (2, 1, 0)
    ends = {key: one.expires_ms for key, one in found(tmp_path).items()}
    assert ends == {b"a/b.txt": NOW_MS + 11_000, b"long": NOW_MS + 11_000}


DAMAGES: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda text: text[:-1], "its checksum is wrong: put back"),
    (lambda text: text.replace(b"text/x", b"text/y"), "its checksum is wrong: put"),
    (lambda text: text[: text.rindex(b'{"end"')], "line 5 is damaged or missing: put"),
    (lambda text: text[:-100], "line 4 is damaged or missing: put back"),
    (lambda text: text + b"x", "its checksum is wrong: put back"),
    (lambda _: b"", "is not the list of an export; remove it"),
    (lambda _: b"[1]\n", "is not the list of an export; remove it"),
    (
        lambda text: text.replace(b'export": 1', b'export": 2', 1),
        "has version 2; allowed is 1; remove it",
    ),
    (lambda text: text * 2, "its checksum is wrong"),
]


def test_damaged_list_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    """With what to do; no value loses its type without a word."""
    path = exported(tmp_path, THREE) / NAME
    text = path.read_bytes()
    for damage, reason in DAMAGES:
        path.write_bytes(damage(text))
        with pytest.raises(MountPointError) as raised:
            bring_back(tmp_path)
        assert f"{path}: {reason}" in str(raised.value)
    for place in range(0, len(text), 7):
        path.write_bytes(text[:place] + bytes([text[place] ^ 4]) + text[place + 1 :])
        with pytest.raises(MountPointError):
            bring_back(tmp_path)
    assert not (tmp_path / "after").exists()


def test_interrupted_export_is_not_imported(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list has another name, and says what to do."""
    fill(tmp_path / "before", {b"k": Kept(b"v", b"a/b")})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("volcache.cli.sidecar.os.fsync", fail)
        code, out, err = run("export", tmp_path / "before", tmp_path / "files")
    assert (code, out) == (1, "")
    assert err.endswith("export.jsonl' cannot be written: No space left on device\n")
    assert run("import", tmp_path / "after", tmp_path / "files") == (
        1,
        "",
        (
            f"volcache: {tmp_path}/files/{UNFINISHED}: the export was interrupted;"
            " export again, or remove it to import the files without content types"
            " and lifetimes\n"
        ),
    )


def test_list_that_is_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    """Nothing outside of the folder is read, and nothing blocks."""
    path = exported(tmp_path, THREE) / NAME
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(MountPointError, match="cannot be read: Too many levels"):
        bring_back(tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(MountPointError, match="is not a regular file"):
        bring_back(tmp_path)


def test_list_has_the_documented_form(tmp_path: Path) -> None:
    """Lines of JSON with a header and an end, as in docs/FORMAT.md."""
    text = (exported(tmp_path, THREE) / NAME).read_bytes()
    first, *rows, last = map(json.loads, text.splitlines())
    assert first["volcache_export"] == 1
    assert set(first) == {"volcache_export", "store", "exported_ms"}
    (row,) = [row for row in rows if row["key"] == "a/b.txt"]
    assert row.pop("stored_ms") > 0
    assert row == {
        "key": "a/b.txt",
        "size": 4,
        "checksum": "2f5319e1",
        "expires_ms": 0,
        "content_type": "text/x",
        "content_encoding": "gzip",
        "cache_control": "immutable",
        "flags": 7,
    }
    assert set(last["end"]) == {"records", "checksum"}
    assert last["end"]["records"] == 3
    document = (ROOT / "docs" / "FORMAT.md").read_text()
    section = document.split("## The list of an export")[1].split("\n## ")[0]
    assert all(f"`{name}`" in section for name in Exported._fields)


def test_value_that_a_put_would_refuse_is_left_out(tmp_path: Path) -> None:
    """A header that would be two is not stored, whoever wrote the list."""
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "k").write_bytes(b"v")
    split = b"a\r\nSet-Cookie: b"
    record = Record(b"v", split, b"", b"", 1, 0, 0, 0, 64, 90, 1, crc32c(b"v"))
    writer = SidecarWriter(str(folder), 1, 0)
    writer.add(b"k", record)
    writer.finish()
    outcome, lines = bring_back(tmp_path)
    assert outcome.left_out == 1
    assert "Content-Type contains a control character" in lines[0]
