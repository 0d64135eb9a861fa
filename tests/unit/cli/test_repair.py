"""`volcache repair`: lines that are wrong although their checksums are right."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

import pytest

from support.damage import VOLUME_NUM, VOLUME_SIZE, extents, fill, flip
from support.stores import abandon, keys_of, open_store, value_of
from volcache.cli import main as cli
from volcache.store.index_format import (
    decode_blocks,
    decode_entries,
    decode_index_header,
    encode_block,
    encode_index_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Lines = list[tuple[bytes, int, int]]


def forge(path: Path, change: Callable[[Lines], Lines]) -> None:
    """Write the lines of an index file again, changed, under right checksums."""
    data = path.read_bytes()
    blocks = list(decode_blocks(data))
    named = decode_index_header(data)
    assert named is not None
    lines = [line for block in blocks for line in decode_entries(block.lines)]
    path.write_bytes(
        encode_index_header(named[1])
        + encode_block(change(lines), blocks[-1].volume_end, sealed=blocks[-1].sealed)
    )


def values(directory: Path) -> dict[bytes, bytes]:
    """Return what a store can read."""
    store = open_store(directory, volume_size=VOLUME_SIZE, volume_num=VOLUME_NUM)
    found = {key: value_of(store.get(key)) for key in keys_of(store, directory)}
    store.close()
    return {key: value for key, value in found.items() if value is not None}


def check(directory: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what a check says, without its summary."""
    cli.main(["check", str(directory)])
    return capsys.readouterr().out.splitlines()[:-1]


def swap_keys(lines: Lines) -> Lines:
    """Let two lines name each other's places."""
    (one, *_), (other, *_) = puts = [line for line in lines if line[2]][20:22]
    at = [lines.index(line) for line in puts]
    lines[at[0]], lines[at[1]] = (other, *puts[0][1:]), (one, *puts[1][1:])
    return lines


def name_a_place_far_ahead(lines: Lines) -> Lines:
    """Let an early line name a place near the end."""
    at = next(at for at, line in enumerate(lines) if at > 10 and line[2])
    ahead = [offset for _, offset, size in lines if size][-5] + 1
    return [*lines[:at], (lines[at][0], ahead, 65), *lines[at + 1 :]]


def name_a_place_between(lines: Lines) -> Lines:
    """Let a line name the middle of a record."""
    at, (key, offset, size) = next((n, e) for n, e in enumerate(lines) if e[2] > 200)
    lines[at] = key, offset + 1, size - 1
    return lines


def delete_what_was_not_deleted(lines: Lines) -> Lines:
    """Say of a key that it is gone."""
    return [*lines[:30], (lines[29][0], 0, 0), *lines[30:]]


def leave_out(lines: Lines) -> Lines:
    """Have no line for some records."""
    return lines[:40] + lines[60:]


def say_twice(lines: Lines) -> Lines:
    """Have all lines twice."""
    return lines + lines


def say_nothing(_: Lines) -> Lines:
    """Have no line at all."""
    return []


def shuffle(lines: Lines) -> Lines:
    """Have the lines in another order."""
    random.Random(3).shuffle(lines)  # noqa: S311 - Seeded, to be repeated.
    return lines


@pytest.mark.parametrize(
    "change",
    [
        swap_keys,
        name_a_place_far_ahead,
        name_a_place_between,
        delete_what_was_not_deleted,
        leave_out,
        say_twice,
        say_nothing,
        shuffle,
    ],
)
@pytest.mark.parametrize("volume", ["0", "head"])
def test_wrong_lines_under_right_checksums_are_made_right(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Lines], Lines],
    volume: str,
) -> None:
    """The check names them, the repair writes what a writer would have, once."""
    directory = tmp_path / "store"
    fill(directory)
    number = (
        (directory / "META.txt").read_text().split()[0] if volume == "head" else "0"
    )
    path = directory / "index" / number
    forge(path, lambda lines: lines)
    right, expected = path.read_bytes(), values(directory)
    forge(path, change)
    complaints = check(directory, capsys)
    assert {line.split()[1] for line in complaints} == {f"index/{number}"}

    assert cli.main(["repair", str(directory)]) == 0

    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"index/{number}: written, 0 bytes of it as before, ")
    assert re.search(r", (1 line was|\d+ lines were) wrong or missing$", out[0])
    assert path.read_bytes() == right
    assert check(directory, capsys) == []
    assert values(directory) == expected
    assert cli.main(["repair", str(directory)]) == 0
    assert capsys.readouterr().out.endswith(": 5 volumes, 0 files written\n")


def test_one_line_far_ahead_is_one_complaint_and_hides_no_other_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines behind it still name the records that are damaged, also after a repair."""
    directory = tmp_path / "store"
    fill(directory)
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    hit = [record for record in extents(directory) if record.volume == 0][50:80:3]
    for record in hit:
        flip(directory / "data" / "0", record.start + 20, dice)  # In its header.
    named = check(directory, capsys)
    assert [place(line) for line in named] == [record[:2] for record in hit]
    forge(directory / "index" / "0", name_a_place_far_ahead)
    assert len(check(directory, capsys)) == len(named) + 2
    assert set(named) < set(check(directory, capsys))

    assert cli.main(["repair", str(directory)]) == 0

    capsys.readouterr()
    assert check(directory, capsys) == named


def place(line: str) -> tuple[int, ...]:
    """Return volume and offset of damage."""
    _, file, _, offset, *_ = line.split()
    return int(file.removeprefix("data/")), int(offset.rstrip(":"))


def test_a_directory_in_the_place_of_an_index_file_is_named_and_the_rest_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may hold what somebody wants: nothing of it is moved or removed."""
    directory = tmp_path / "store"
    fill(directory)
    whole = {path.name: path.read_bytes() for path in (directory / "index").iterdir()}
    for name in ("1", "2"):
        (directory / "index" / name).unlink()
    (directory / "index" / "1" / "of somebody").mkdir(parents=True)

    assert cli.main(["repair", str(directory)]) == 1

    out = capsys.readouterr().out.splitlines()
    assert out[0] == "index/1: is a directory; move it away and repair again"
    assert out[1].startswith("index/2: written, ")
    assert out[2] == f"{directory}: 5 volumes, 1 file written, 1 not"
    assert check(directory, capsys) == [
        "damaged index/1 offset 0: is a directory in the place of a file"
    ]
    (directory / "index" / "1" / "of somebody").rmdir()
    (directory / "index" / "1").rmdir()
    assert cli.main(["repair", str(directory)]) == 0
    for name, data in whole.items():
        forge(directory / "index" / name, lambda lines: lines)
        (tmp_path / name).write_bytes(data)
        forge(tmp_path / name, lambda lines: lines)
        assert (directory / "index" / name).read_bytes() == (
            tmp_path / name
        ).read_bytes()


def test_a_volume_that_cannot_be_opened_is_not_declared_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records of it that have no line yet would be lost when it can be again."""
    directory = tmp_path / "store"
    store = open_store(directory, volume_size=VOLUME_SIZE, volume_num=VOLUME_NUM)
    store.put(b"key", b"value")
    abandon(store)
    before = (directory / "index" / "0").read_bytes()
    (directory / "data" / "0").rename(tmp_path / "aside")
    (directory / "data" / "0").mkdir()

    assert cli.main(["repair", str(directory)]) == 1

    out = capsys.readouterr().out.splitlines()
    assert out[0] == "index/0: left as it is, for data/0 cannot be opened"
    assert (directory / "index" / "0").read_bytes() == before
    (directory / "data" / "0").rmdir()
    (tmp_path / "aside").rename(directory / "data" / "0")
    assert cli.main(["repair", str(directory)]) == 0
    assert values(directory) == {b"key": b"value"}


def test_a_damaged_hot_txt_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that a check has nothing to say; a start begins a new epoch either way."""
    directory = tmp_path / "store"
    fill(directory, records=10)
    (directory / "HOT.txt").write_bytes(b"# volcache hot 1 store 0123456789abcdef\n")
    assert len(check(directory, capsys)) == 1
    assert cli.main(["repair", str(directory)]) == 0
    assert capsys.readouterr().out.startswith("HOT.txt: removed, copies in memcached")
    assert check(directory, capsys) == []
