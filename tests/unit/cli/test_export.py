"""`volcache export`: live values become files, all of them below the target."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.damage import extents, fill, flip
from support.full_output import run_with_full_output
from support.replaced import mix
from support.stores import open_store
from support.unheard import run_unheard
from volcache.cli import main as cli
from volcache.cli.sidecar import NAME

GOLDEN = Path(__file__).parents[2] / "golden" / "v2"


def files(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder but the list, by path."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    found = {str(path.relative_to(folder)): path.read_bytes() for path in paths}
    found.pop(NAME, None)
    return found


def test_live_values_become_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte for byte, without deleted and expired ones."""
    target = tmp_path / "target"
    assert cli.main(["export", str(GOLDEN / "healthy"), str(target)]) == 0
    assert files(target) == {
        "turn": b"2",
        "fill/1": b"1" * 1500,
        "fill/1 more": b"1" * 300,
        "fill/2": b"2" * 1500,
        "fill/2 more": b"2" * 300,
        "a/hello.txt": b"Hello, disk!\n",
        "grün & 100%": b"",
        "packed": b"\x1f\x8b",
    }
    assert capsys.readouterr().out == f"{target}: 8 files, 3.5 KiB; left out: 0\n"


def test_keys_that_are_not_paths_are_listed_and_nothing_leaves_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above the root, absolute, with a zero byte, too long, a file that is a folder."""
    store = open_store(tmp_path / "store")
    bad = [b"../out", b"/tmp/out", b"a/../../out", b"b//c", b"d/", b"e\0", b"f" * 300]
    for key in [*bad, b"good", b"good/below"]:
        store.put(key, b"value")
    store.close()
    target = tmp_path / "target"

    assert cli.main(["export", str(tmp_path / "store"), str(target)]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "left out ../out: is not the path of a file"
    assert len(lines) == len(bad) + 2
    assert lines[-1].startswith(f"{target}: 1 file, 5 B; left out: ")
    assert files(target) == {"good": b"value"}
    assert {path.name for path in tmp_path.iterdir()} == {"store", "target"}


def test_folder_that_is_not_empty_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file is overwritten, and no link in it is followed."""
    (tmp_path / "mine").touch()
    assert cli.main(["export", str(GOLDEN / "healthy"), str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert files(tmp_path) == {"mine": b""}


def test_damaged_values_are_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also if the header of the record is damaged: the index file has the key."""
    directory = tmp_path / "store"
    fill(directory, records=600)
    assert cli.main(["dump", "--keys", str(directory)]) == 0
    live = set(capsys.readouterr().out.splitlines())
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    for number, record in enumerate(extents(directory)):
        if number % 5 == 0:  # In the header, or in the value or its checksum.
            offset = record.start + 20 if number % 2 else record.end - 1
            flip(directory / "data" / str(record.volume), offset, dice)

    assert cli.main(["export", str(directory), str(tmp_path / "target")]) == 1

    *lines, summary = capsys.readouterr().out.splitlines()
    damaged = [line.removeprefix("left out ").split(":")[0] for line in lines]
    assert all(": damaged record: " in line for line in lines)
    assert len(damaged) > 20
    assert set(damaged) < live
    assert len(set(damaged)) == len(damaged)
    assert set(files(tmp_path / "target")) == {
        key.replace("%20", " ") for key in live - set(damaged)
    }
    assert summary.endswith(f"left out: {len(damaged)}")


@pytest.mark.slow
def test_records_without_index_files_are_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are found in the volumes."""
    directory = tmp_path / "store"
    fill(directory)
    assert cli.main(["export", str(directory), str(tmp_path / "before")]) == 0
    for path in (directory / "index").iterdir():
        path.unlink()
    assert cli.main(["export", str(directory), str(tmp_path / "after")]) == 0
    assert files(tmp_path / "after") == files(tmp_path / "before")
    assert len(files(tmp_path / "after")) > 500
    assert capsys.readouterr().err == ""


def test_directory_with_a_replaced_volume_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No value that may be outdated becomes a file."""
    mix(tmp_path / "store", ["data/1", "index/1"])
    target = tmp_path / "target"
    assert cli.main(["export", str(tmp_path / "store"), str(target)]) == 1
    assert ": files do not match META.txt," in capsys.readouterr().err
    assert not any(target.rglob("*"))


def store_with_two_bad_keys(directory: Path) -> None:
    """Make a store with two keys that are paths and two that are not."""
    store = open_store(directory)
    for key in (b"../out", b"one", b"..", b"two"):
        store.put(key, key)
    store.close()


@pytest.mark.slow
def test_export_completes_if_its_reader_goes_away(
    tmp_path: Path, *, unbuffered: bool
) -> None:
    """Files after a key that is left out are written; the exit code is 1."""
    store_with_two_bad_keys(tmp_path / "store")
    assert run_unheard(
        tmp_path, "export", "store", "target", unbuffered=unbuffered
    ) == (1, "")
    assert files(tmp_path / "target") == {"one": b"one", "two": b"two"}


@pytest.mark.slow
def test_export_completes_if_the_disk_under_its_output_is_full(
    tmp_path: Path, *, unbuffered: bool
) -> None:
    """One line on standard error, exit code 1."""
    store_with_two_bad_keys(tmp_path / "store")
    assert run_with_full_output(
        tmp_path, "export", "store", "target", unbuffered=unbuffered
    ) == (1, "volcache: standard output cannot be written: No space left on device\n")
    assert files(tmp_path / "target") == {"one": b"one", "two": b"two"}
