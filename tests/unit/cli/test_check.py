"""`volcache check`: reports all damage and nothing else, and changes nothing."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.contents import values
from support.damage import VOLUME_NUM, VOLUME_SIZE, Extent, extents, fill, flip
from support.full_output import run_with_full_output
from support.process import SOURCE
from support.stores import kill, open_store
from support.unheard import VOLCACHE, run_unheard
from volcache.cli import main as cli

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a healthy directory; tests work on copies."""
    directory = tmp_path_factory.mktemp("filled") / "store"
    fill(directory)
    return directory


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str], str]:
    """Run a command; return its exit code, its lines and its errors."""
    code = cli.main(list(argv))
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def snapshot(directory: Path) -> dict[Path, tuple[int, bytes]]:
    """Return the modification time and the content of every file."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


def damaged_at(lines: list[str]) -> set[tuple[int, int]]:
    """Return volume and offset of each damaged record in the report."""
    found = (re.match(r"damaged data/(\d+) offset (\d+): ", line) for line in lines)
    return {(int(match[1]), int(match[2])) for match in found if match}


def flip_a_thousand(directory: Path) -> tuple[list[Extent], set[tuple[int, int]]]:
    """Flip bytes of records; return all records, and the places of the damaged ones."""
    records = extents(directory)
    dice = random.Random(7)  # noqa: S311 - Seeded, to be repeated.
    hit = set()
    for _ in range(1000):
        record = dice.choice(records)
        offset = dice.randrange(record.start, record.end)
        if (record.volume, offset) not in hit:
            hit.add((record.volume, offset))
            flip(directory / "data" / str(record.volume), offset, dice)
    return records, {
        (r.volume, r.start)
        for r in records
        if any((r.volume, at) in hit for at in range(r.start, r.end))
    }


@pytest.mark.slow
def test_a_thousand_flipped_bytes_are_reported_exactly(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each damaged record with its place, no other one; a store reads the rest."""
    directory = tmp_path / "store"
    shutil.copytree(filled, directory)
    records, expected = flip_a_thousand(directory)
    before = snapshot(directory)

    code, lines, _ = run(capsys, "check", str(directory))

    assert code == 1
    assert len(expected) > 500
    assert damaged_at(lines) == expected
    assert len(lines) == len(expected) + 1
    assert f" {len(records) - len(expected)} records," in lines[-1]
    assert snapshot(directory) == before
    readable = values(directory, volume_size=VOLUME_SIZE, volume_num=VOLUME_NUM)
    assert f" {len(readable)} live keys," in lines[-1]


@pytest.mark.slow
def test_after_a_repair_only_damaged_records_are_reported(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a thousand flipped bytes, with intact and with damaged index files."""
    directory = tmp_path / "store"
    shutil.copytree(filled, directory)
    records, expected = flip_a_thousand(directory)
    before = run(capsys, "check", str(directory))[1][:-1]

    assert run(capsys, "repair", str(directory))[0] == 0
    assert run(capsys, "check", str(directory))[1][:-1] == before

    dice = random.Random(8)  # noqa: S311 - Seeded, to be repeated.
    paths = sorted((directory / "index").iterdir())
    for path in paths[1:]:
        flip_many(path, dice)
    paths[0].unlink()
    assert run(capsys, "repair", str(directory))[0] == 0
    code, lines, _ = run(capsys, "check", str(directory))

    # Without its line, a record with a damaged header is part of a larger gap.
    assert code == 1
    assert all(line.split()[1].startswith("data/") for line in lines[:-1])
    whole = {(r.volume, r.start) for r in records} - expected
    assert damaged_at(lines) <= expected
    assert f" {len(whole)} records," in lines[-1]


@pytest.mark.parametrize("seed", range(6))
def test_any_damage_to_any_file_gets_a_verdict(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """Flipped, cut, random, missing, directories and pipes: never a traceback."""
    directory = tmp_path / "store"
    shutil.copytree(filled, directory)
    dice = random.Random(seed)  # noqa: S311 - Seeded, to be repeated.
    files = [path for path in directory.rglob("*") if path.is_file()]
    for path in dice.sample(sorted(files), 4):
        dice.choice([flip_many, cut, scramble, remove, make_directory, make_pipe])(
            path, dice
        )

    code, lines, err = run(capsys, "check", str(directory))

    assert (code, bool(lines), bool(err)) in {(1, True, False), (1, False, True)}
    code, repaired, err = run(capsys, "repair", str(directory))
    folders = {f"index/{path.name}" for path in (directory / "index").glob("*/")}
    if not err:
        closed = {f"index/{path.name}" for path in (directory / "data").glob("*/")}
        left = {line.split(":")[0] for line in repaired if ": not changed" in line}
        assert left <= closed
        assert code == bool(folders | left)
        assert {line.split(":")[0] for line in repaired if "move" in line} == folders
        found = {
            line.split()[1] for line in run(capsys, "check", str(directory))[1][:-1]
        }
        assert {
            file for file in found if not file.startswith("data/")
        } <= folders | left


def flip_many(path: Path, dice: random.Random) -> None:
    """Flip bytes in the whole file."""
    for _ in range(50):
        flip(path, dice.randrange(path.stat().st_size), dice)


def cut(path: Path, dice: random.Random) -> None:
    """Cut off the end."""
    os.truncate(path, dice.randrange(path.stat().st_size))


def scramble(path: Path, dice: random.Random) -> None:
    """Replace the content by random bytes."""
    path.write_bytes(dice.randbytes(path.stat().st_size))


def remove(path: Path, _: random.Random) -> None:
    """Remove it."""
    path.unlink()


def make_directory(path: Path, _: random.Random) -> None:
    """Replace it by a directory."""
    path.unlink()
    path.mkdir()


def make_pipe(path: Path, _: random.Random) -> None:
    """Replace it by a pipe without a writer."""
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    ("name", "code", "counts"),
    [
        ("healthy", 0, (0, 0, 0, 0)),
        ("no_index", 1, (0, 4, 0, 0)),
        ("no_meta", 1, (0, 1, 0, 0)),
        ("torn_tail", 0, (0, 0, 1, 1)),
        ("bit_rot", 1, (1, 0, 0, 0)),
    ],
)
def test_golden_directories_have_their_verdicts(
    capsys: pytest.CaptureFixture[str],
    name: str,
    code: int,
    counts: tuple[int, int, int, int],
) -> None:
    """A torn tail is not damage."""
    found, lines, _ = run(capsys, "check", str(GOLDEN / name))

    assert found == code
    summary = "damaged: {} in volumes, {} elsewhere; torn tails: {}; notes: {};"
    assert summary.format(*counts) in lines[-1]
    assert len(lines) == sum(counts) + 1


def test_unindexed_records_after_a_kill_are_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Index lines that were still buffered are not damage."""
    store = open_store(tmp_path)
    store.put(b"key", b"value")
    kill(store)

    code, lines, _ = run(capsys, "check", str(tmp_path))

    assert code == 0
    assert lines[0].startswith("note    index/0 offset ")
    assert "1 record has no entry yet, as after a kill" in lines[0]
    assert lines[1].startswith(f"{tmp_path}: 1 volume, 1 record, 1 live key, ")


def test_directory_in_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The running store is not disturbed."""
    store = open_store(tmp_path)
    code, lines, err = run(capsys, "check", str(tmp_path))
    assert (code, lines) == (1, [])
    assert err == (
        f"volcache: mount point '{tmp_path}' is in use by another process (process id"
        f" {os.getpid()}); stop it, or give another mount_point\n"
    )
    store.put(b"key", b"value")
    store.close()


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda _: None])
def test_directory_that_is_not_a_store_is_one_error_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], None],
) -> None:
    """An empty directory, a file, a missing path; nothing is created."""
    path = tmp_path / "other"
    make(path)
    before = list(tmp_path.rglob("*"))
    code, lines, err = run(capsys, "check", str(path))
    assert (code, lines, err.count("\n")) == (1, [], 1)
    assert err.startswith(f"volcache: mount point '{path}' ")
    assert list(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("file", "offset"), [("META.txt", 4), ("index/1", 300), ("data/1", 60)]
)
def test_flipped_byte_outside_of_records_is_reported_with_its_file(
    filled: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    offset: int,
) -> None:
    """META.txt, an index file and the end of a volume's header."""
    directory = tmp_path / "store"
    shutil.copytree(filled, directory)
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    flip(directory / file, offset, dice)

    code, lines, _ = run(capsys, "check", str(directory))

    assert code == 1
    assert [line.split(" ")[:2] for line in lines[:-1]] == [["damaged", file]]


def test_damaged_line_of_hot_txt_is_reported(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A first line without a newline is torn, which is not damage."""
    directory = tmp_path / "store"
    shutil.copytree(filled, directory)
    hot = directory / "HOT.txt"
    hot.write_bytes(b"# volcache hot 1 store 0123456789abcdef\n")
    code, lines, _ = run(capsys, "check", str(directory))
    assert code == 1
    assert lines[0] == "damaged HOT.txt offset 0: the first line fails its checksum"
    hot.write_bytes(b"# volcache hot 1 sto")
    assert run(capsys, "check", str(directory))[0] == 0


@pytest.mark.parametrize(("name", "code"), [("bit_rot", 1), ("torn_tail", 0)])
def test_exit_code_is_the_verdict_if_the_reader_goes_away(
    name: str, code: int, *, unbuffered: bool
) -> None:
    """0 means "no damage" and nothing else."""
    assert run_unheard(GOLDEN, "check", name, unbuffered=unbuffered) == (code, "")


@pytest.mark.parametrize("name", ["bit_rot", "healthy"])
def test_full_disk_under_the_output_is_one_line(name: str, *, unbuffered: bool) -> None:
    """Exit code 1, with and without damage."""
    assert run_with_full_output(GOLDEN, "check", name, unbuffered=unbuffered) == (
        1,
        "volcache: standard output cannot be written: No space left on device\n",
    )


def test_closed_output_is_not_an_error() -> None:
    """As `>&-` leaves it."""
    command = f"exec {sys.executable} -c '{VOLCACHE}' check healthy >&-"
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=GOLDEN,
        env={"PYTHONPATH": str(SOURCE), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, "")
