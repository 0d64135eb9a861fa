"""`volcache check`: every damage is found, none invented, nothing changed."""

from __future__ import annotations

import os
import random
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.damage import VOLUME_NUM, VOLUME_SIZE, Extent, extents, fill, flip
from support.stores import abandon, keys_of, open_store
from volcache.cli import main as cli

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parents[2] / "golden" / "v1"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a healthy directory; tests take copies."""
    directory = tmp_path_factory.mktemp("filled") / "store"
    fill(directory)
    return directory


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str], str]:
    """Run a command; return its exit code, its lines and its errors."""
    code = cli.main(list(argv))
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


def snapshot(directory: Path) -> dict[Path, tuple[int, bytes]]:
    """Return every file with its time of change and its bytes."""
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


def damaged_at(lines: list[str]) -> set[tuple[int, int]]:
    """Return volume and offset of each damaged record that was reported."""
    found = (re.match(r"damaged data/(\d+) offset (\d+): ", line) for line in lines)
    return {(int(match[1]), int(match[2])) for match in found if match}


def flip_a_thousand(directory: Path) -> tuple[list[Extent], set[tuple[int, int]]]:
    """Flip bytes of records; return all records, and the places of those hit."""
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


def test_a_thousand_flipped_bytes_are_exactly_the_damage_reported(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each record hit is named by its place, no other one is, and a store agrees."""
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
    store = open_store(directory, volume_size=VOLUME_SIZE, volume_num=VOLUME_NUM)
    keys = keys_of(store, directory)
    readable = sum(store.get(key) is not None for key in keys)
    assert f" {readable} live keys," in lines[-1]
    store.close()


def test_a_repair_leaves_exactly_the_damaged_records_to_report(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thousand flipped bytes, whole index files or spoiled ones: none complains."""
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

    # Without its line, a record whose header is damaged is one with what lies beside it.
    assert code == 1
    assert all(line.split()[1].startswith("data/") for line in lines[:-1])
    whole = {(r.volume, r.start) for r in records} - expected
    assert damaged_at(lines) <= expected
    assert f" {len(whole)} records," in lines[-1]


@pytest.mark.parametrize("seed", range(6))
def test_no_damage_to_any_file_ends_the_check(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    """Flipped, cut, random, missing and directories: a verdict, never a traceback."""
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
    code, said, err = run(capsys, "repair", str(directory))
    folders = {f"index/{path.name}" for path in (directory / "index").glob("*/")}
    if not err:
        closed = {f"index/{path.name}" for path in (directory / "data").glob("*/")}
        left = {line.split(":")[0] for line in said if ": left" in line}
        assert left <= closed
        assert code == bool(folders | left)
        assert {line.split(":")[0] for line in said if "move" in line} == folders
        found = {
            line.split()[1] for line in run(capsys, "check", str(directory))[1][:-1]
        }
        assert {
            file for file in found if not file.startswith("data/")
        } <= folders | left


def flip_many(path: Path, dice: random.Random) -> None:
    """Flip bytes all over the file."""
    for _ in range(50):
        flip(path, dice.randrange(path.stat().st_size), dice)


def cut(path: Path, dice: random.Random) -> None:
    """Take away the end."""
    os.truncate(path, dice.randrange(path.stat().st_size))


def scramble(path: Path, dice: random.Random) -> None:
    """Put noise in its place."""
    path.write_bytes(dice.randbytes(path.stat().st_size))


def remove(path: Path, _: random.Random) -> None:
    """Take it away."""
    path.unlink()


def make_directory(path: Path, _: random.Random) -> None:
    """Put a directory in its place."""
    path.unlink()
    path.mkdir()


def make_pipe(path: Path, _: random.Random) -> None:
    """Put a pipe in its place, from which nothing ever comes."""
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
def test_golden_directories_get_their_verdict(
    capsys: pytest.CaptureFixture[str],
    name: str,
    code: int,
    counts: tuple[int, int, int, int],
) -> None:
    """A healthy one is clean; a torn tail is no damage; the rest is."""
    found, lines, _ = run(capsys, "check", str(GOLDEN / name))

    assert found == code
    summary = "damaged: {} in volumes, {} elsewhere; torn tails: {}; notes: {};"
    assert summary.format(*counts) in lines[-1]
    assert len(lines) == sum(counts) + 1


def test_what_a_kill_leaves_is_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines that were still buffered are a note."""
    store = open_store(tmp_path)
    store.put(b"key", b"value")
    abandon(store)

    code, lines, _ = run(capsys, "check", str(tmp_path))

    assert code == 0
    assert lines[0].startswith("note    index/0 offset ")
    assert "1 record has no entry yet, as after a kill" in lines[0]
    assert lines[1].startswith(f"{tmp_path}: 1 volume, 1 record, 1 live key, ")


def test_a_directory_in_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A running store keeps us out, and is not disturbed."""
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
def test_what_is_no_mount_point_is_said_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    make: Callable[[Path], None],
) -> None:
    """An empty directory, a file, nothing at all; and nothing is made."""
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
def test_a_flipped_byte_outside_of_records_is_told_by_its_file(
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


def test_a_damaged_line_of_hot_txt_is_found(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hot tier's file is looked at by its own rules."""
    directory = tmp_path / "store"
    shutil.copytree(filled, directory)
    hot = directory / "HOT.txt"
    hot.write_bytes(b"# volcache hot 1 store 0123456789abcdef\n")
    code, lines, _ = run(capsys, "check", str(directory))
    assert code == 1
    assert lines[0] == "damaged HOT.txt offset 0: the first line does not check out"
    hot.write_bytes(b"# volcache hot 1 sto")
    assert run(capsys, "check", str(directory))[0] == 0
