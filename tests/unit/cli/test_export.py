"""`volcache export`: live values as files, never outside of the target."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from support.stores import open_store
from volcache.cli import main as cli

if TYPE_CHECKING:
    import pytest

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"


def files(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_live_values_become_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte for byte, without what was deleted or has expired."""
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
    assert capsys.readouterr().out == f"{target}: 8 files, 3.6 kB; left out: 0\n"


def test_keys_that_are_no_paths_are_listed_and_nothing_leaves_the_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Above the root, absolute, with a zero, too long, a file that is a folder."""
    store = open_store(tmp_path / "store")
    bad = [b"../out", b"/tmp/out", b"a/../../out", b"b//c", b"d/", b"e\0", b"f" * 300]
    for key in [*bad, b"good", b"good/below"]:
        store.put(key, b"value")
    store.close()
    target = tmp_path / "target"

    assert cli.main(["export", str(tmp_path / "store"), str(target)]) == 1

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "left out ../out: is no path of a file"
    assert len(lines) == len(bad) + 2
    assert lines[-1].startswith(f"{target}: 1 file, 5 bytes; left out: ")
    assert files(target) == {"good": b"value"}
    assert {path.name for path in tmp_path.iterdir()} == {"store", "target"}


def test_a_folder_that_holds_something_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is written over, and no link in it is followed."""
    (tmp_path / "mine").touch()
    assert cli.main(["export", str(GOLDEN / "healthy"), str(tmp_path)]) == 1
    assert "is not empty" in capsys.readouterr().err
    assert files(tmp_path) == {"mine": b""}
