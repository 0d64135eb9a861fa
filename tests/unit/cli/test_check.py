"""`volcache check`: reports all damage and nothing else, and changes nothing."""

from __future__ import annotations

import json
import os
import random
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from support.command_line import Run
from support.contents import files_of, values
from support.damage import VOLUME_NUM, VOLUME_SIZE, Extent, extents, fill, flip
from support.tiers import make_keys
from volcache.hot.versions import encode

Damage = Callable[[Path, random.Random], Any]
GOLDEN = Path(__file__).parents[2] / "golden" / "v2"
OPTIONS = {"volume_size": VOLUME_SIZE, "volume_num": VOLUME_NUM}


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
def test_check_after_a_thousand_flips_reports_each_damaged_record(
    directory: Path, run: Run
) -> None:
    """
    Each damaged record with its place, no other one; a store reads the rest.

    A repair changes nothing: the index files have the keys of the damaged records. If they
    are damaged as well, all volumes in which values may be outdated are left out.
    """
    fill(directory)
    records, expected = flip_a_thousand(directory)
    before = files_of(directory)
    code, out, _ = run("check", directory)
    lines = out.splitlines()
    assert code == 1
    assert len(expected) > 500
    assert damaged_at(lines) == expected
    assert len(lines) == len(expected) + 1
    assert f" {len(records) - len(expected)} records," in lines[-1]
    assert files_of(directory) == before
    readable = values(directory, **OPTIONS)
    assert f" {len(readable)} live keys," in lines[-1]

    repaired = run("repair", directory)
    assert repaired == (0, f"{directory}: 5 volumes, 0 files written\n", "")
    assert run("check", directory).lines[:-1] == lines[:-1]

    damage_index_files(directory)
    out = run("repair", directory).out
    assert "META.txt: written for 1 volume, 5 volumes left out\n" in out
    assert run("check", directory).code == 0
    assert values(directory, **OPTIONS).items() <= readable.items()


def damage_index_files(directory: Path) -> None:
    """Remove one and damage the others."""
    dice = random.Random(8)  # noqa: S311 - Seeded, to be repeated.
    removed, *others = sorted((directory / "index").iterdir())
    for path in others:
        flip_many(path, dice)
    removed.unlink()


@pytest.mark.slow
def test_repair_of_damaged_index_files_keeps_all_readable_values(
    directory: Path, run: Run
) -> None:
    """The headers of the records have all keys: no volume is left out."""
    fill(directory)
    records = extents(directory)
    dice = random.Random(7)  # noqa: S311 - Seeded, to be repeated.
    # A volume's last record would be taken for a torn one.
    hit = {
        record
        for record, following in pairwise(records)
        if record.end - record.start > 100 and record.volume == following.volume
    }
    for record in hit:  # With the longest of these keys, the value begins before 100.
        offset = dice.randrange(record.start + 100, record.end)
        flip(directory / "data" / str(record.volume), offset, dice)
    readable = values(directory, **OPTIONS)
    damage_index_files(directory)
    code, out, _ = run("repair", directory)
    assert (code, "META.txt: written for 5 volumes\n" in out) == (0, True)
    found = run("check", directory)
    assert (found.code, len(found.lines)) == (1, len(hit) + 1)
    assert damaged_at(found.lines) == {(record.volume, record.start) for record in hit}
    assert values(directory, **OPTIONS) == readable


@pytest.mark.parametrize("seed", range(6))
def test_check_and_repair_of_any_damage_end_with_a_verdict(
    directory: Path, run: Run, seed: int
) -> None:
    """Flipped, cut, random, missing, directories and pipes: never a traceback."""
    fill(directory)
    dice = random.Random(seed)  # noqa: S311 - Seeded, to be repeated.
    files = [path for path in directory.rglob("*") if path.is_file()]
    for path in dice.sample(sorted(files), 4):
        damage = dice.choice([*DAMAGES, *REPLACEMENTS])
        if damage in REPLACEMENTS:
            path.unlink()
        damage(path, dice)
    code, out, err = run("check", directory)
    assert (code, bool(out), bool(err)) in {(1, True, False), (1, False, True)}
    repaired = run("repair", directory)
    if not repaired.err:
        why = ("is a directory; move it away", "not changed: data/")
        failed = {
            line.split(":")[0]
            for line in repaired.lines
            if any(text in line for text in why)
        }
        assert repaired.code == bool(failed)
        # A volume that was not started yet has notes.
        lines = [line.split() for line in run("check", directory).lines[:-1]]
        found = {line[1] for line in lines if line[0] == "damaged"}
        assert {file for file in found if not file.startswith("data/")} <= failed


def flip_many(path: Path, dice: random.Random) -> None:
    """Flip bytes in the whole file."""
    for _ in range(50):
        flip(path, dice.randrange(path.stat().st_size), dice)


DAMAGES: list[Damage] = [
    flip_many,
    lambda path, dice: os.truncate(path, dice.randrange(path.stat().st_size)),
    lambda path, dice: path.write_bytes(dice.randbytes(path.stat().st_size)),
]
# Of the file that was there: nothing, a directory, and a pipe without a writer.
REPLACEMENTS: list[Damage] = [
    lambda *_: None,
    lambda path, _: path.mkdir(),
    lambda path, _: os.mkfifo(path),
]


def test_check_of_golden_directories_counts_their_damage(run: Run) -> None:
    """A torn tail is not damage."""
    for name, code, counts in (
        ("healthy", 0, (0, 0, 0, 0)),
        ("no_index", 1, (0, 3, 0, 1)),
        ("no_meta", 1, (0, 1, 0, 0)),
        ("torn_tail", 0, (0, 0, 1, 1)),
        ("bit_rot", 1, (1, 0, 0, 0)),
    ):
        found = run("check", GOLDEN / name)
        assert found.code == code, name
        summary = "damaged: {} in volumes, {} elsewhere; torn tails: {}; notes: {};"
        assert summary.format(*counts) in found.lines[-1]
        assert len(found.lines) == sum(counts) + 1


def test_check_json_has_an_object_for_each_finding(run: Run) -> None:
    """And counts them by kind."""
    directory = str(GOLDEN / "torn_tail")
    code, out, _ = run("check", directory, "--json")
    torn, note, last = map(json.loads, out.splitlines())
    what = "a record was being written"
    assert torn == {"kind": "torn", "file": "data/1", "offset": 836, "what": what}
    what = "2 records have no entry yet, as after a kill"
    assert (code, note["kind"], note["what"]) == (0, "note", what)
    assert last["summary"].pop("seconds") >= 0
    assert last["summary"] == {
        "directory": directory,
        "damaged": False,
        "volumes": 3,
        "records": 10,
        "keys": 10,
        "bytes": 5568,
        "findings": {"record": 0, "file": 0, "torn": 1, "note": 1},
    }


def test_check_of_a_flip_outside_of_records_names_the_file(
    tmp_path: Path, run: Run
) -> None:
    """META.txt, an index file, the header of the active volume and of another one."""
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    for number, (file, offset) in enumerate(
        [("META.txt", 4), ("index/1", 300), ("data/1", 60), ("data/2", 60)]
    ):
        directory = tmp_path / str(number)
        fill(directory)
        assert (directory / "META.txt").read_text().startswith("1\n")
        flip(directory / file, offset, dice)
        found = run("check", directory)
        assert found.code == 1
        assert [line.split()[:2] for line in found.lines[:-1]] == [["damaged", file]]


def test_repair_of_a_damaged_hot_txt_removes_it(directory: Path, run: Run) -> None:
    """It is replaced as a whole, so a part of it is damage as well; none is not."""
    versions = make_keys()
    versions.promote(b"key")
    whole = encode(
        versions, "store 0123456789abcdef mount 1 directory 1:2 boot 01234567"
    )
    fill(directory, records=10)
    hot = directory / "HOT.txt"
    for content in (whole, b""):
        hot.write_bytes(content)
        assert run("check", directory).code == 0
    for content in (whole[:-1], whole.replace(b"mount 1", b"mount 2"), b"#"):
        hot.write_bytes(content)
        found = run("check", directory)
        assert found.lines[0] == "damaged HOT.txt offset 0: its checksum is wrong"
        assert (found.code, len(found.lines)) == (1, 2)
    code, out, _ = run("repair", directory)
    assert code == 0
    assert out.startswith("HOT.txt: removed; all copies in memcached")
    assert run("check", directory).code == 0
    hot.mkdir()
    place = "damaged HOT.txt offset 0: is a directory in the place of a file"
    assert run("check", directory).lines[0] == place
