"""`--json` of the offline tools: an object per line, the last one is the summary."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from support.full_output import run_with_full_output
from support.stores import open_store
from support.unheard import run_unheard
from volcache.cli import main as cli

GOLDEN = Path(__file__).parents[2] / "golden" / "v2"


def run(
    capsys: pytest.CaptureFixture[str], *argv: str
) -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
    """Run a command; return its exit code, its lines and its summary."""
    code = cli.main([*argv, "--json"])
    out, err = capsys.readouterr()
    assert err == ""
    *lines, last = map(json.loads, out.splitlines())
    assert not any("summary" in line for line in lines)
    (summary,) = last.values()
    return code, lines, summary


def test_check_has_an_object_for_each_finding(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And counts them by kind."""
    directory = str(GOLDEN / "torn_tail")
    code, lines, summary = run(capsys, "check", directory)
    assert code == 0
    assert lines[0] == {
        "kind": "torn",
        "file": "data/1",
        "offset": 836,
        "what": "a record was being written",
    }
    assert lines[1]["kind"] == "note"
    assert summary.pop("seconds") >= 0
    assert summary == {
        "directory": directory,
        "damaged": False,
        "volumes": 3,
        "records": 10,
        "keys": 10,
        "bytes": 5568,
        "findings": {"record": 0, "file": 0, "torn": 1, "note": 1},
    }


def test_repair_has_an_object_for_each_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also for those that cannot be written; the exit code is that of the text."""
    directory = tmp_path / "store"
    shutil.copytree(GOLDEN / "healthy", directory)
    (directory / "index" / "0").unlink()
    (directory / "index" / "1").unlink()
    (directory / "index" / "1").mkdir()
    code, lines, summary = run(capsys, "repair", str(directory))
    assert code == 1
    found = {line["file"]: line["written"] for line in lines}
    assert found == {"index/0": True, "index/1": False, "META.txt": True}
    assert all(line["what"] for line in lines)
    assert summary == {
        "directory": str(directory),
        "volumes": 3,
        "written": 2,
        "failed": 1,
    }


def test_export_and_import_have_an_object_for_each_key_that_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Keys are percent-encoded, as by dump."""
    store = open_store(tmp_path / "store")
    for key in (b"../out", b"a b", b"-"):
        store.put(key, b"value")
    store.close()
    target = tmp_path / "files"

    code, lines, summary = run(capsys, "export", str(tmp_path / "store"), str(target))
    assert code == 1
    assert lines == [
        {"key": "../out", "left_out": "is not the path of a file"},
        {"key": "-", "left_out": "the name '-' is that of the folder of the list"},
    ]
    assert summary == {
        "directory": str(tmp_path / "store"),
        "target": str(target),
        "files": 1,
        "bytes": 5,
        "left_out": 2,
    }

    (target / "new%").symlink_to(tmp_path)
    code, lines, summary = run(capsys, "import", str(tmp_path / "new"), str(target))
    assert code == 1
    assert lines == [{"key": "new%25", "left_out": "is a symbolic link"}]
    assert summary.pop("seconds") >= 0
    assert summary == {
        "directory": str(tmp_path / "new"),
        "files": 1,
        "bytes": 5,
        "left_out": 1,
        "expired": 0,
        "overflows": False,
        "interrupted": False,
        "overwritten": 0,
    }


@pytest.mark.slow
def test_reader_that_goes_away_or_a_full_disk_is_handled_as_for_text(
    tmp_path: Path, *, unbuffered: bool
) -> None:
    """The exit codes are the same."""
    argv = ["check", "--json", str(GOLDEN / "torn_tail")]
    assert run_unheard(tmp_path, *argv, unbuffered=unbuffered) == (0, "")
    assert run_with_full_output(tmp_path, *argv, unbuffered=unbuffered) == (
        1,
        "volcache: standard output cannot be written: No space left on device\n",
    )
