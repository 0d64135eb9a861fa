"""`volcache check`: reports all damage and nothing else, and changes nothing."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.contents import values
from support.damage import VOLUME_NUM, VOLUME_SIZE, Extent, extents, fill, flip
from support.full_output import run_with_full_output
from support.process import SOURCE
from support.replaced import mix
from support.stores import kill, open_store
from support.unheard import VOLCACHE, run_unheard
from volcache.cli import main as cli
from volcache.errors import MismatchedFilesError
from volcache.hot.versions import KeyVersions

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parents[2] / "golden" / "v2"


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
def test_repair_with_intact_index_files_changes_nothing(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They have the keys of the damaged records, which are still reported."""
    directory = tmp_path / "store"
    shutil.copytree(filled, directory)
    flip_a_thousand(directory)
    before = run(capsys, "check", str(directory))[1][:-1]

    code, lines, _ = run(capsys, "repair", str(directory))

    assert (code, lines) == (0, [f"{directory}: 5 volumes, 0 files written"])
    assert run(capsys, "check", str(directory))[1][:-1] == before


def damage_index_files(directory: Path) -> None:
    """Remove one and damage the others."""
    dice = random.Random(8)  # noqa: S311 - Seeded, to be repeated.
    removed, *others = sorted((directory / "index").iterdir())
    for path in others:
        flip_many(path, dice)
    removed.unlink()


@pytest.mark.slow
def test_after_a_repair_no_value_is_outdated(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If neither index file nor volume has a key, all that may be outdated is left out."""
    directory = tmp_path / "store"
    shutil.copytree(filled, directory)
    flip_a_thousand(directory)
    shutil.copytree(directory, tmp_path / "before")
    damage_index_files(directory)

    code, lines, _ = run(capsys, "repair", str(directory))

    assert code == 0
    assert "META.txt: written for 1 volume, 5 volumes left out" in lines
    code, lines, _ = run(capsys, "check", str(directory))
    assert code == 0
    options = {"volume_size": VOLUME_SIZE, "volume_num": VOLUME_NUM}
    readable = values(directory, **options)
    assert readable.items() <= values(tmp_path / "before", **options).items()


@pytest.mark.slow
def test_after_a_repair_only_damaged_values_are_reported(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The headers of the records have all keys: no volume is left out."""
    directory = tmp_path / "store"
    shutil.copytree(filled, directory)
    records = extents(directory)
    dice = random.Random(7)  # noqa: S311 - Seeded, to be repeated.
    # With the longest of these keys, the value begins before this offset. A volume's
    # last record would be taken for a torn one.
    hit = {
        record
        for record, following in pairwise(records)
        if record.end - record.start > 100 and record.volume == following.volume
    }
    hit = set(dice.sample(sorted(hit), 500))
    for record in hit:
        offset = dice.randrange(record.start + 100, record.end)
        flip(directory / "data" / str(record.volume), offset, dice)
    options = {"volume_size": VOLUME_SIZE, "volume_num": VOLUME_NUM}
    shutil.copytree(directory, tmp_path / "before")
    damage_index_files(directory)

    code, lines, _ = run(capsys, "repair", str(directory))

    assert code == 0
    assert "META.txt: written for 5 volumes" in lines
    code, lines, _ = run(capsys, "check", str(directory))
    assert code == 1
    assert len(lines) == len(hit) + 1
    assert damaged_at(lines) == {(record.volume, record.start) for record in hit}
    assert f": 5 volumes, {len(records) - len(hit)} records," in lines[-1]
    assert values(directory, **options) == values(tmp_path / "before", **options)


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
        lines = run(capsys, "check", str(directory))[1][:-1]
        # A volume that was not started yet has notes.
        found = {line.split()[1] for line in lines if line.startswith("damaged")}
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
    ("file", "offset"),
    [("META.txt", 4), ("index/1", 300), ("data/1", 60), ("data/2", 60)],
)
def test_flipped_byte_outside_of_records_is_reported_with_its_file(
    filled: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    offset: int,
) -> None:
    """META.txt, an index file, the header of the active volume and of another one."""
    assert (filled / "META.txt").read_text().startswith("1\n")
    directory = tmp_path / "store"
    shutil.copytree(filled, directory)
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    flip(directory / file, offset, dice)

    code, lines, _ = run(capsys, "check", str(directory))

    assert code == 1
    assert [line.split(" ")[:2] for line in lines[:-1]] == [["damaged", file]]


def uses_of(line: str) -> list[tuple[str, ...]]:
    """Return file, volume and sequence number of what was found and what was expected."""
    form = (
        r"damaged (\S+) offset 0: is volume (\d+) seq (\d+) salt [0-9a-f]{16} of store"
        r" ([0-9a-f]{16}), expected was volume (\d+) seq (\d+) salt [0-9a-f]{16} of store"
        r" ([0-9a-f]{16})"
    )
    found = re.fullmatch(form, line)
    return [found.groups()] if found else []


def test_replaced_data_file_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its present and its expected use; its index file is right and has no fault."""
    directory = tmp_path / "store"
    mix(directory, ["data/1"])

    code, lines, _ = run(capsys, "check", str(directory))

    assert code == 1
    ((file, *found, store_id, volume, seq, expected_id),) = uses_of(lines[0])
    assert (file, found, [volume, seq]) == ("data/1", ["1", "2"], ["1", "6"])
    assert store_id == expected_id
    assert len(lines) == 2


def test_replaced_volume_is_reported_and_that_a_start_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Data file and index file belong together, but not to the others."""
    directory = tmp_path / "store"
    mix(directory, ["data/1", "index/1"])
    before = snapshot(directory)

    code, lines, _ = run(capsys, "check", str(directory))

    assert code == 1
    uses = [use for line in lines for use in uses_of(line)]
    files = [(file, found, expected) for file, _, found, _, _, expected, _ in uses]
    assert files[:2] == [("data/1", "2", "6"), ("index/1", "2", "6")]
    assert (
        "damaged META.txt offset 0: a server refuses to start: files do not match"
        in ("".join(lines))
    )
    assert snapshot(directory) == before
    with pytest.raises(MismatchedFilesError):
        open_store(directory)


def test_volume_of_another_store_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the place of a valid volume it is not the expected one."""
    directory = tmp_path / "store"
    mix(directory, [])
    mix(tmp_path / "other", [])
    shutil.copy(tmp_path / "other" / "data" / "1", directory / "data" / "1")

    code, lines, _ = run(capsys, "check", str(directory))

    assert code == 1
    ((*_, store_id, _, _, expected_id),) = uses_of(lines[0])
    assert store_id != expected_id
    assert f"\nstore {expected_id}\n" in (directory / "META.txt").read_text()


def test_earlier_meta_txt_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The volumes are newer than it says."""
    directory = tmp_path / "store"
    mix(directory, ["META.txt"])

    code, lines, _ = run(capsys, "check", str(directory))

    assert code == 1
    refused = "damaged META.txt offset 0: a server refuses to start: META.txt is older"
    assert sum(line.startswith(refused) for line in lines) == 1


def test_damaged_hot_txt_is_reported(
    filled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is replaced as a whole, so a part of it is damage as well; none is not."""
    directory = tmp_path / "store"
    shutil.copytree(filled, directory)
    versions = KeyVersions()
    versions.record_promotion(b"key")
    whole = versions.encode(
        "store 0123456789abcdef mount 1 directory 1:2 boot 01234567"
    )
    hot = directory / "HOT.txt"
    for content in (whole, b""):
        hot.write_bytes(content)
        assert run(capsys, "check", str(directory))[0] == 0
    for content in (whole[:-1], whole.replace(b"mount 1", b"mount 2"), b"#"):
        hot.write_bytes(content)
        code, lines, _ = run(capsys, "check", str(directory))
        assert code == 1
        assert lines[0] == "damaged HOT.txt offset 0: its checksum is wrong"
        assert len(lines) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("bit_rot", 1), ("torn_tail", 0)])
def test_exit_code_is_the_verdict_if_the_reader_goes_away(
    name: str, code: int, *, unbuffered: bool
) -> None:
    """0 means "no damage" and nothing else."""
    assert run_unheard(GOLDEN, "check", name, unbuffered=unbuffered) == (code, "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bit_rot", "healthy"])
def test_full_disk_under_the_output_is_one_line(name: str, *, unbuffered: bool) -> None:
    """Exit code 1, with and without damage."""
    assert run_with_full_output(GOLDEN, "check", name, unbuffered=unbuffered) == (
        1,
        "volcache: standard output cannot be written: No space left on device\n",
    )


@pytest.mark.slow
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
