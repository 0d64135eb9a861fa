"""`volcache repair`: wrong lines with valid checksums, and files it cannot write."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.command_line import Run
from support.contents import values
from support.damage import VOLUME_NUM, VOLUME_SIZE, extents, fill, flip
from support.index_files import rewrite
from support.stores import kill, open_store

pytestmark = pytest.mark.sampled(3)

Check = Callable[[], list[str]]


@pytest.fixture
def check(directory: Path, run: Run) -> Check:
    """Return a function that returns the findings of a check, without its summary."""
    return lambda: run("check", directory).lines[:-1]


def name_a_place_far_ahead(lines: list[bytes]) -> None:
    """Let an early line have an offset near the end."""
    puts = [at for at, line in enumerate(lines) if not line.endswith(b" 0 0\n")]
    key, far = lines[puts[10]].split()[0], int(lines[puts[-5]].split()[1])
    lines[puts[10]] = b"%b %d 65\n" % (key, far + 1)


def test_repair_of_a_line_with_a_far_offset_hides_no_damage(
    directory: Path, run: Run, check: Check
) -> None:
    """Damaged records behind it are still reported, also after a repair."""
    fill(directory)
    (directory / "index" / "0").unlink()
    assert run("repair", directory).code == 0  # The file has one block now.
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    hit = [record for record in extents(directory) if record.volume == 0][50:80:3]
    for record in hit:
        flip(directory / "data" / "0", record.start + 20, dice)  # In its header.
    named = check()
    places = [re.findall(r"\d+", line)[:2] for line in named]
    assert places == [["0", str(record.start)] for record in hit]
    rewrite(directory / "index" / "0", name_a_place_far_ahead)
    assert len(check()) == len(named) + 2
    assert set(named) < set(check())
    first, *_ = run("repair", directory).lines
    assert re.fullmatch(
        r"index/0: rewritten, 0 bytes kept, \d+ records added from the volume,"
        r" 2 lines wrong or missing",
        first,
    )
    assert check() == named
    assert run("repair", directory).out.endswith(": 5 volumes, 0 files written\n")


def test_repair_with_a_directory_as_index_file_repairs_the_rest(
    directory: Path, tmp_path: Path, run: Run, check: Check
) -> None:
    """It is neither moved nor removed, as it may contain files of a user."""
    fill(directory)
    for name in ("1", "2"):
        (directory / "index" / name).unlink()
    (directory / "index" / "1" / "user file").mkdir(parents=True)
    shutil.copytree(directory, tmp_path / "copy")
    reason = "is a directory; move it away and run repair again"
    code, out, _ = run("repair", directory)
    lines = out.splitlines()
    assert (code, lines[0]) == (1, f"index/1: {reason}")
    assert lines[1].startswith("index/2: rewritten, ")
    assert lines[2] == "META.txt: written for 5 volumes"
    assert lines[3] == f"{directory}: 5 volumes, 2 files written, 1 failed"
    place = "damaged index/1 offset 0: is a directory in the place of a file"
    assert check() == [place]
    (directory / "index" / "1" / "user file").rmdir()
    (directory / "index" / "1").rmdir()
    assert run("repair", directory).code == 0
    assert check() == []

    code, out, _ = run("repair", "--json", tmp_path / "copy")
    *rows, last = map(json.loads, out.splitlines())
    written = {row["file"]: row["written"] for row in rows}
    assert (code, written["index/1"]) == (1, False)
    assert written == {"index/1": False, "index/2": True, "META.txt": True}
    assert [row["what"] for row in rows if row["file"] == "index/1"] == [reason]
    summary = {"directory": f"{tmp_path / 'copy'}", "volumes": 5}
    assert last["summary"] == {**summary, "written": 2, "failed": 1}


def test_repair_of_an_unreadable_volume_keeps_its_index_file(
    directory: Path, tmp_path: Path, run: Run
) -> None:
    """Records without a line would be lost when the volume can be opened again."""
    options = {"volume_size": VOLUME_SIZE, "volume_num": VOLUME_NUM}
    store = open_store(directory, **options)
    store.put(b"key", b"value")
    kill(store)
    before = (directory / "index" / "0").read_bytes()
    (directory / "data" / "0").rename(tmp_path / "aside")
    (directory / "data" / "0").mkdir()
    code, out, _ = run("repair", directory)
    assert code == 1
    assert out.startswith("index/0: not changed: data/0 cannot be opened\n")
    assert (directory / "index" / "0").read_bytes() == before
    (directory / "data" / "0").rmdir()
    (tmp_path / "aside").rename(directory / "data" / "0")
    assert run("repair", directory).code == 0
    assert values(directory, **options) == {b"key": b"value"}
