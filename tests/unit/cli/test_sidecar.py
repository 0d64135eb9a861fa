"""The list of an export: values come back with their types, lifetimes and flags."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote_to_bytes

import pytest
from google_crc32c import value as crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from support.stores import UnsyncedFileSystem, open_store, value_of
from volcache.cli import main as cli
from volcache.cli.dump import dump
from volcache.cli.export import export
from volcache.cli.import_ import Limits, Outcome, import_folder
from volcache.cli.sidecar import NAME, UNFINISHED, Exported, SidecarWriter
from volcache.errors import MountPointError
from volcache.http.upload import read_cache_directives
from volcache.store import Record

if TYPE_CHECKING:
    from volcache.store import Store

LIMITS = Limits(
    volume_size=16 * 1024, volume_num=4, max_value_size=8000, max_key_size=1024
)
NOW_MS = 1_900_000_000_000
HEADER = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=40
).map(lambda text: text.replace("\x7f", "").encode("latin-1"))


class Kept(NamedTuple):
    """What a store keeps of a value, but for the time it was stored."""

    value: bytes
    content_type: bytes
    content_encoding: bytes
    cache_control: bytes
    expires_ms: int
    flags: int


KEPT = st.builds(
    Kept,
    st.binary(max_size=300),
    HEADER,
    HEADER,
    st.text(max_size=60).map(
        lambda text: read_cache_directives({"HTTP_CACHE_CONTROL": text})
    ),
    st.just(0) | st.integers(NOW_MS + 1, 1 << 50),
    st.integers(0, (1 << 32) - 1),
)


def fill(directory: str, stored: dict[bytes, Kept]) -> None:
    """Make a store."""
    store = open_store(directory)
    for key, one in stored.items():
        value, *_ = one
        store.put(
            key, value, **{k: v for k, v in one._asdict().items() if k != "value"}
        )
    store.close()


def found(directory: str) -> dict[bytes, Kept]:
    """Return what is in a store."""
    keys = {unquote_to_bytes(row.key) for row in dump(directory, 0)}
    store: Store = open_store(directory)
    try:
        kept = {}
        for key in keys:
            record = store.get(key)
            if record is not None:
                kept[key] = Kept(*(getattr(record, name) for name in Kept._fields))
        return kept
    finally:
        store.close()


def bring_back(root: str, lines: list[str], limits: Limits = LIMITS) -> Outcome:
    """Import the folder `files` into the store `after`."""
    return import_folder(
        f"{root}/after",
        f"{root}/files",
        limits=limits,
        expires_ms=0,
        report=lines.append,
        now_ms=NOW_MS,
        fs=UnsyncedFileSystem(),
    )


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.dictionaries(
        st.binary(min_size=1, max_size=20).map(
            lambda name: (
                b"." + bytes(b for b in name if b > 0x20 and b not in b"/\x7f.")
            )
        ),
        KEPT,
        max_size=8,
    )
)
def test_import_restores_everything_that_an_export_wrote(
    stored: dict[bytes, Kept],
) -> None:
    """For any content type, encoding, directives, lifetime and flags."""
    stored.pop(b".", None)
    with tempfile.TemporaryDirectory() as root:
        fill(f"{root}/before", stored)
        lines: list[str] = []
        assert export(f"{root}/before", f"{root}/files", NOW_MS, lines.append)
        outcome = bring_back(root, lines)
        assert (outcome.files, outcome.left_out) == (len(stored), 0)
        assert found(f"{root}/after") == stored


def exported(root: Path) -> Path:
    """Export a store with three values, one of which expires; return the folder."""
    fill(
        str(root / "before"),
        {
            b"a/b.txt": Kept(b"text", b"text/x", b"gzip", b"immutable", 0, 7),
            b"short": Kept(b"1", b"", b"", b"", NOW_MS + 1000, 0),
            b"long": Kept(b"2", b"", b"", b"", NOW_MS + 1_000_000, 0),
        },
    )
    assert export(str(root / "before"), str(root / "files"), NOW_MS, lambda _: None)
    return root / "files"


def test_import_without_the_list_stores_plain_values(tmp_path: Path) -> None:
    """As before there were lists; the keys are the same."""
    files = exported(tmp_path)
    (files / NAME).unlink()
    assert bring_back(str(tmp_path), []).files == 3
    assert found(str(tmp_path / "after"))[b"a/b.txt"] == Kept(
        b"text", b"", b"", b"", 0, 0
    )


def test_changed_missing_and_new_files_are_told_apart(tmp_path: Path) -> None:
    """One that is not what was exported is no value of this key; a new one is."""
    files = exported(tmp_path)
    (files / "long").write_bytes(b"3")
    (files / "short").unlink()
    (files / "new").write_bytes(b"new")
    lines: list[str] = []
    outcome = bring_back(str(tmp_path), lines)
    assert (outcome.files, outcome.left_out) == (2, 2)
    assert lines[:2] == [
        f"left out long: is not what was exported: see {NAME}",
        "left out short: its file is missing",
    ]
    assert set(found(str(tmp_path / "after"))) == {b"a/b.txt", b"new"}


def test_lifetimes_end_when_they_would_have_and_are_limited(tmp_path: Path) -> None:
    """What has expired since is not stored; max_ttl is that of the server."""
    files = exported(tmp_path)
    text = (files / NAME).read_bytes()
    assert text.count(str(NOW_MS + 1000).encode()) == 1
    limits = Limits(
        volume_size=16 * 1024,
        volume_num=4,
        max_value_size=8000,
        max_key_size=1024,
        max_ttl=10,
    )
    outcome = import_folder(
        str(tmp_path / "after"),
        str(files),
        limits=limits,
        expires_ms=0,
        report=lambda _: None,
        now_ms=NOW_MS + 1000,
        fs=UnsyncedFileSystem(),
    )
    assert (outcome.files, outcome.expired, outcome.left_out) == (2, 1, 0)
    ends = {key: one.expires_ms for key, one in found(str(tmp_path / "after")).items()}
    assert ends == {b"a/b.txt": NOW_MS + 11_000, b"long": NOW_MS + 11_000}


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda text: text[:-1], "its checksum is wrong: put back"),
        (lambda text: text.replace(b"text/x", b"text/y"), "its checksum is wrong: put"),
        (
            lambda text: text[: text.rindex(b'{"end"')],
            "line 5 is damaged or missing: put",
        ),
        (lambda text: text[:-100], "line 4 is damaged or missing: put back"),
        (lambda text: text + b"x", "its checksum is wrong: put back"),
        (lambda _: b"", "is not the list of an export; remove it"),
        (lambda _: b"[1]\n", "is not the list of an export; remove it"),
        (
            lambda text: text.replace(b'export": 1', b'export": 2', 1),
            "has version 2; allowed is 1; remove it",
        ),
        (lambda text: text * 2, "its checksum is wrong"),
    ],
)
def test_damaged_list_is_refused_before_anything_is_stored(
    tmp_path: Path, damage: object, reason: str
) -> None:
    """With what to do; no value loses its type without a word."""
    path = exported(tmp_path) / NAME
    assert callable(damage)
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(MountPointError) as raised:
        bring_back(str(tmp_path), [])
    assert f"{path}: {reason}" in str(raised.value)
    assert not (tmp_path / "after").exists()


def test_any_flipped_byte_of_the_list_is_noticed(tmp_path: Path) -> None:
    """Whatever it makes of a line."""
    path = exported(tmp_path) / NAME
    text = path.read_bytes()
    for place in range(0, len(text), 7):
        path.write_bytes(text[:place] + bytes([text[place] ^ 4]) + text[place + 1 :])
        with pytest.raises(MountPointError):
            bring_back(str(tmp_path), [])


def test_interrupted_export_is_not_imported(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its list has another name, and says what to do."""
    fill(str(tmp_path / "before"), {b"k": Kept(b"v", b"a/b", b"", b"", 0, 0)})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("volcache.cli.sidecar.os.fsync", fail)
        assert (
            cli.main(["export", str(tmp_path / "before"), str(tmp_path / "files")]) == 1
        )
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("export.jsonl' cannot be written: No space left on device\n")

    assert cli.main(["import", str(tmp_path / "after"), str(tmp_path / "files")]) == 1
    assert capsys.readouterr().err == (
        f"volcache: {tmp_path}/files/{UNFINISHED}: the export was interrupted; export"
        " again, or remove it to import the files without content types and lifetimes\n"
    )


def test_key_that_is_the_folder_of_the_list_is_left_out(tmp_path: Path) -> None:
    """It is listed."""
    fill(str(tmp_path / "before"), {b"-": Kept(b"v", b"", b"", b"", 0, 0)})
    lines: list[str] = []
    assert not export(str(tmp_path / "before"), str(tmp_path / "t"), 0, lines.append)
    assert lines[0] == "left out -: the name '-' is that of the folder of the list"


def test_list_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """Nothing outside of the folder is read."""
    files = exported(tmp_path)
    (files / NAME).rename(tmp_path / "moved")
    (files / NAME).symlink_to(tmp_path / "moved")
    with pytest.raises(MountPointError, match="cannot be read: Too many levels"):
        bring_back(str(tmp_path), [])
    (files / NAME).unlink()
    os.mkfifo(files / NAME)
    with pytest.raises(MountPointError, match="is not a regular file"):
        bring_back(str(tmp_path), [])


def test_list_has_the_documented_form(tmp_path: Path) -> None:
    """Lines of JSON with a header and an end, as in docs/FORMAT.md."""
    text = (exported(tmp_path) / NAME).read_bytes()
    first, *rows, last = map(json.loads, text.splitlines())
    assert first["volcache_export"] == 1
    assert set(first) == {"volcache_export", "store", "exported_ms"}
    (row,) = [row for row in rows if row["key"] == "a/b.txt"]
    assert row | {"stored_ms": 0} == {
        "key": "a/b.txt",
        "size": 4,
        "checksum": "2f5319e1",
        "stored_ms": 0,
        "expires_ms": 0,
        "content_type": "text/x",
        "content_encoding": "gzip",
        "cache_control": "immutable",
        "flags": 7,
    }
    assert set(last["end"]) == {"records", "checksum"}
    assert last["end"]["records"] == 3
    document = (Path(__file__).parents[3] / "docs" / "FORMAT.md").read_text()
    section = document.split("## The list of an export")[1].split("\n## ")[0]
    assert all(f"`{name}`" in section for name in Exported._fields)


def test_value_that_a_put_would_refuse_is_left_out(tmp_path: Path) -> None:
    """A header that would be two is not stored, whoever wrote the list."""
    files = tmp_path / "files"
    files.mkdir()
    (files / "k").write_bytes(b"v")
    split = b"a\r\nSet-Cookie: b"
    record = Record(b"v", split, b"", b"", 1, 0, 0, 0, 64, 90, 1, crc32c(b"v"))
    writer = SidecarWriter(str(files), 1, 0)
    writer.add(b"k", record)
    writer.finish()
    lines: list[str] = []
    assert bring_back(str(tmp_path), lines).left_out == 1
    assert "Content-Type contains a control character" in lines[0]


def test_odd_names_keep_their_types(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, spaces, percent signs and quotes."""
    keys = [b"\xff\xfe", b"a b%20c", b'"quoted"', "gr\xfcn".encode(), b"\\"]
    stored = {key: Kept(quote(key).encode(), b"t", b"", b"", 0, 1) for key in keys}
    fill(str(tmp_path / "before"), stored)
    assert export(str(tmp_path / "before"), str(tmp_path / "files"), 0, lambda _: None)
    assert bring_back(str(tmp_path), []).left_out == 0
    assert found(str(tmp_path / "after")) == stored
    store = open_store(tmp_path / "after")
    assert value_of(store.get(b"\xff\xfe")) == b"%FF%FE"
    store.close()
