"""Files of a store that were replaced by those of a copy, or of another store."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from support.command_line import Run
from support.contents import values
from support.replaced import ACTIVE, EARLIER, mix, newer_than
from support.stores import open_store
from volcache.cli.dump import dump
from volcache.errors import MismatchedFilesError

REFUSED = "damaged META.txt offset 0: a server refuses to start with these files\n"


def uses_of(lines: list[str]) -> list[tuple[str, ...]]:
    """Return file, volume, sequence number and store of what was found and expected."""
    use = r"volume (\d+) seq (\d+) salt [0-9a-f]{16} of store ([0-9a-f]{16})"
    form = re.compile(rf"damaged (\S+) offset 0: expected {use}, found {use}")
    matches = filter(None, map(form.fullmatch, lines))
    return [match.group(1, 5, 6, 7, 2, 3, 4) for match in matches]


def test_check_of_a_replaced_data_file_reports_both_uses(
    directory: Path, run: Run
) -> None:
    """
    It is reported with its present and its expected use.

    Its index file has the keys of its values, which are misses: older records of them are
    superseded, and nothing is left out.
    """
    whole = mix(directory, ["data/1"])
    found = run("check", directory)
    ((*use, store_id, volume, seq, expected_id),) = uses_of(found.lines)
    assert (use, [volume, seq]) == (["data/1", "1", "2"], ["1", "6"])
    assert store_id == expected_id
    assert (found.code, len(found.lines)) == (1, 2)
    rows = list(dump(str(directory), 0))
    assert {row.volume for row in rows} == {3, 0, 2}
    live = {row.key.encode() for row in rows if row.state == "live"}
    assert live == set(whole.of([3, 0, 2]))
    done = f"{directory}: 4 volumes, 0 files written\n"
    assert run("repair", directory) == (0, done, "")
    assert values(directory) == whole.of([3, 0, 2])


def test_repair_of_a_replaced_active_volume_keeps_its_end(
    directory: Path, run: Run
) -> None:
    """A start knows by it that the index file has all keys, and is not refused."""
    whole = mix(directory, [f"data/{ACTIVE}"])
    (directory / "index" / "0").unlink()
    assert "META.txt: written for 4 volumes\n" in run("repair", directory).out
    assert values(directory) == whole.of([3, 0, 1])


def test_repair_of_an_earlier_meta_txt_writes_it_from_volumes(
    directory: Path, run: Run
) -> None:
    """They are newer than it says; LOCK confirms that the newest is there."""
    whole = mix(directory, ["META.txt"])
    code, out, _ = run("check", directory)
    assert (code, out.count(REFUSED)) == (1, 1)
    assert "damaged data/1 offset 0: expected volume 1 seq 2 " in out
    code, out, _ = run("repair", directory)
    assert (code, "META.txt: written for 4 volumes" in out) == (0, True)
    assert run("check", directory).code == 0
    assert values(directory) == whole.values


def test_tools_refuse_a_directory_with_a_replaced_volume(
    directory: Path, run: Run
) -> None:
    """It is unknown which of the older records are live, or which may become files."""
    mix(directory, ["data/1", "index/1"])
    found = run("check", directory)
    files = [(use[0], use[2], use[5]) for use in uses_of(found.lines)]
    assert files[:2] == [("data/1", "2", "6"), ("index/1", "2", "6")]
    assert (found.code, REFUSED in found.out) == (1, True)
    with pytest.raises(MismatchedFilesError):
        open_store(directory)
    target = directory.with_name("target")
    for words in (["dump", directory], ["export", directory, target]):
        code, out, err = run(*words)
        assert (code, out, err.count("\n")) == (1, "", 1)
        names = ["data/1", "index/1"]
        assert err == f"volcache: {MismatchedFilesError(str(directory), names)}\n"
    assert not target.exists()


@pytest.mark.parametrize("volume", [0, 1, ACTIVE])
def test_repair_of_a_replaced_volume_leaves_out_all_older_ones(
    directory: Path, run: Run, volume: int
) -> None:
    """The others have all their values; the next repair and start have nothing to do."""
    names = [f"data/{volume}", f"index/{volume}"]
    whole = mix(directory, names if volume in EARLIER else [])
    if volume not in EARLIER:  # The copy has the same use of volume 0.
        other = directory.with_name("other")
        assert mix(other, []).values == whole.values
        for name in names:
            shutil.copy(other / name, directory / name)
    kept = newer_than(volume)
    code, out, _ = run("repair", directory)
    assert code == 0
    # If the active volume is left out, a new one takes its place.
    number = f"{len(kept)} volumes" if len(kept) > 1 else "1 volume"
    left_out = 4 - len(kept)
    assert f"META.txt: written for {number}, {left_out} volumes left out\n" in out
    lines = run("check", directory).lines
    damaged = [line for line in lines if line.startswith("damaged")]
    if volume in EARLIER:
        assert damaged == []
    else:  # It is not read, and stays until its id is used next.
        (line,) = damaged
        assert line.startswith("damaged data/0 offset 12: belongs to another store, ")
    code, out, _ = run("repair", directory)
    assert (code, out.endswith(", 0 files written\n")) == (0, True)
    assert values(directory) == whole.of(kept)
    store = open_store(directory)
    store.put(b"new", b"value")
    store.close()
    assert values(directory) == {**whole.of(kept), b"new": b"value"}
