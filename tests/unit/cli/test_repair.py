"""`volcache repair`: wrong lines with valid checksums, and files it cannot write."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.contents import values
from support.damage import VOLUME_NUM, VOLUME_SIZE, extents, fill, flip
from support.full_output import run_with_full_output
from support.replaced import ACTIVE, EARLIER, mix, newer_than
from support.stores import kill, open_store
from support.unheard import run_unheard
from volcache.cli import main as cli
from volcache.hot.versions import KeyVersions
from volcache.store.index_format import (
    decode_blocks,
    decode_entries,
    decode_index_header,
    encode_block,
    encode_index_header,
    encode_segment,
)
from volcache.store.manifest import decode_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.sampled(3)

GOLDEN = Path(__file__).parents[2] / "golden" / "v2"
Lines = list[tuple[bytes, int, int]]


def forge(path: Path, change: Callable[[Lines], Lines], meta: Path) -> None:
    """Rewrite an index file with changed lines and valid checksums, as META.txt has it."""
    data = path.read_bytes()
    manifest = decode_manifest(meta.read_bytes())
    assert manifest is not None
    blocks = list(decode_blocks(data))
    named = decode_index_header(data)
    assert named is not None
    lines = [line for block in blocks for line in decode_entries(block.lines)]
    (listed,) = [v for v in manifest.volumes if v.use == named[1].use]
    # A segment without a record is not named.
    segments = [s for s in listed.segments if s.start < blocks[-1].volume_end]
    header, checksum = encode_index_header(named[1])
    sealed = blocks[-1].sealed
    block, _ = encode_block(
        change(lines),
        blocks[-1].volume_end,
        sealed=sealed,
        previous=checksum,
        before="".join(map(encode_segment, segments)),
    )
    path.write_bytes(header + block)


def stored(directory: Path) -> dict[bytes, bytes]:
    """Return what a store can read."""
    return values(directory, volume_size=VOLUME_SIZE, volume_num=VOLUME_NUM)


def check(directory: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the findings of a check, without its summary."""
    cli.main(["check", str(directory)])
    return capsys.readouterr().out.splitlines()[:-1]


def swap_keys(lines: Lines) -> Lines:
    """Swap the keys of two lines."""
    (one, *_), (other, *_) = puts = [line for line in lines if line[2]][20:22]
    at = [lines.index(line) for line in puts]
    lines[at[0]], lines[at[1]] = (other, *puts[0][1:]), (one, *puts[1][1:])
    return lines


def name_a_place_far_ahead(lines: Lines) -> Lines:
    """Let an early line have an offset near the end."""
    at = next(at for at, line in enumerate(lines) if at > 10 and line[2])
    ahead = [offset for _, offset, size in lines if size][-5] + 1
    return [*lines[:at], (lines[at][0], ahead, 65), *lines[at + 1 :]]


def name_a_place_between(lines: Lines) -> Lines:
    """Let a line have an offset inside a record."""
    at, (key, offset, size) = next((n, e) for n, e in enumerate(lines) if e[2] > 200)
    lines[at] = key, offset + 1, size - 1
    return lines


def delete_what_was_not_deleted(lines: Lines) -> Lines:
    """Add the line of a deletion that did not happen."""
    return [*lines[:30], (lines[29][0], 0, 0), *lines[30:]]


def leave_out(lines: Lines) -> Lines:
    """Remove the lines of some records."""
    return lines[:40] + lines[60:]


def repeat_lines(lines: Lines) -> Lines:
    """Repeat all lines."""
    return lines + lines


def remove_lines(_: Lines) -> Lines:
    """Remove all lines."""
    return []


def shuffle(lines: Lines) -> Lines:
    """Change the order of the lines."""
    random.Random(3).shuffle(lines)  # noqa: S311 - Seeded, to be repeated.
    return lines


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        swap_keys,
        name_a_place_far_ahead,
        name_a_place_between,
        delete_what_was_not_deleted,
        leave_out,
        repeat_lines,
        remove_lines,
        shuffle,
    ],
)
@pytest.mark.parametrize("volume", ["0", "active"])
def test_wrong_lines_with_valid_checksums_are_corrected(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[Lines], Lines],
    volume: str,
) -> None:
    """The check reports them; the repair writes what the server would have, once."""
    directory = tmp_path / "store"
    fill(directory)
    number = (
        (directory / "META.txt").read_text().split()[0] if volume == "active" else "0"
    )
    path, meta = directory / "index" / number, directory / "META.txt"
    expected = stored(directory)
    forge(path, lambda lines: lines, meta)
    right = path.read_bytes()
    forge(path, change, meta)
    findings = check(directory, capsys)
    assert {line.split()[1] for line in findings} == {f"index/{number}"}

    assert cli.main(["repair", str(directory)]) == 0

    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith(f"index/{number}: rewritten, 0 bytes kept, ")
    assert re.search(r", (1 line|\d+ lines) wrong or missing$", out[0])
    assert path.read_bytes() == right
    assert check(directory, capsys) == []
    assert stored(directory) == expected
    assert cli.main(["repair", str(directory)]) == 0
    assert capsys.readouterr().out.endswith(": 5 volumes, 0 files written\n")


def test_every_start_after_a_repair_finds_files_that_belong_together(
    tmp_path: Path,
) -> None:
    """Also after mounts that have written nothing, before the repair and after it."""
    store = open_store(tmp_path)
    store.put(b"key", b"value")
    store.close()
    open_store(tmp_path).close()
    (tmp_path / "index" / "0").unlink()

    assert cli.main(["repair", str(tmp_path)]) == 0

    for _ in range(3):
        assert values(tmp_path) == {b"key": b"value"}
        assert cli.main(["check", str(tmp_path)]) == 0


def test_one_line_with_a_far_offset_hides_no_other_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Damaged records behind it are still reported, also after a repair."""
    directory = tmp_path / "store"
    fill(directory)
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    hit = [record for record in extents(directory) if record.volume == 0][50:80:3]
    for record in hit:
        flip(directory / "data" / "0", record.start + 20, dice)  # In its header.
    named = check(directory, capsys)
    assert [place(line) for line in named] == [record[:2] for record in hit]
    meta = directory / "META.txt"
    forge(directory / "index" / "0", name_a_place_far_ahead, meta)
    assert len(check(directory, capsys)) == len(named) + 2
    assert set(named) < set(check(directory, capsys))

    assert cli.main(["repair", str(directory)]) == 0

    capsys.readouterr()
    assert check(directory, capsys) == named


def place(line: str) -> tuple[int, ...]:
    """Return volume and offset of damage."""
    _, file, _, offset, *_ = line.split()
    return int(file.removeprefix("data/")), int(offset.rstrip(":"))


def test_directory_in_place_of_an_index_file_is_reported_and_the_rest_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is neither moved nor removed, as it may contain files of a user."""
    directory = tmp_path / "store"
    fill(directory)
    whole = {path.name: path.read_bytes() for path in (directory / "index").iterdir()}
    for name in ("1", "2"):
        (directory / "index" / name).unlink()
    (directory / "index" / "1" / "user file").mkdir(parents=True)

    assert cli.main(["repair", str(directory)]) == 1

    out = capsys.readouterr().out.splitlines()
    assert out[0] == "index/1: is a directory; move it away and run repair again"
    assert out[1].startswith("index/2: rewritten, ")
    assert out[2] == "META.txt: written for 5 volumes"
    assert out[3] == f"{directory}: 5 volumes, 2 files written, 1 failed"
    assert check(directory, capsys) == [
        "damaged index/1 offset 0: is a directory in the place of a file"
    ]
    (directory / "index" / "1" / "user file").rmdir()
    (directory / "index" / "1").rmdir()
    assert cli.main(["repair", str(directory)]) == 0
    meta = directory / "META.txt"
    for name, data in whole.items():
        forge(directory / "index" / name, lambda lines: lines, meta)
        (tmp_path / name).write_bytes(data)
        forge(tmp_path / name, lambda lines: lines, meta)
        assert (directory / "index" / name).read_bytes() == (
            tmp_path / name
        ).read_bytes()


def test_index_file_of_an_unreadable_volume_is_not_sealed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Records without a line would be lost when the volume can be opened again."""
    directory = tmp_path / "store"
    store = open_store(directory, volume_size=VOLUME_SIZE, volume_num=VOLUME_NUM)
    store.put(b"key", b"value")
    kill(store)
    before = (directory / "index" / "0").read_bytes()
    (directory / "data" / "0").rename(tmp_path / "aside")
    (directory / "data" / "0").mkdir()

    assert cli.main(["repair", str(directory)]) == 1

    out = capsys.readouterr().out.splitlines()
    assert out[0] == "index/0: not changed: data/0 cannot be opened"
    assert (directory / "index" / "0").read_bytes() == before
    (directory / "data" / "0").rmdir()
    (tmp_path / "aside").rename(directory / "data" / "0")
    assert cli.main(["repair", str(directory)]) == 0
    assert stored(directory) == {b"key": b"value"}


@pytest.mark.parametrize("volume", [0, 1, ACTIVE])
def test_replaced_volume_is_left_out_with_all_older_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], volume: int
) -> None:
    """The others have all their values; the next repair and start have nothing to do."""
    directory = tmp_path / "store"
    names = [f"data/{volume}", f"index/{volume}"]
    mixed = mix(directory, names if volume in EARLIER else [])
    if volume not in EARLIER:  # The copy has the same use of volume 0.
        other = mix(tmp_path / "other", [])
        assert other.values == mixed.values
        for name in names:
            shutil.copy(tmp_path / "other" / name, directory / name)
    kept = newer_than(volume)

    assert cli.main(["repair", str(directory)]) == 0

    out = capsys.readouterr().out.splitlines()
    # If the active volume is left out, a new one takes its place.
    number = f"{len(kept)} volumes" if len(kept) > 1 else "1 volume"
    left_out = 4 - len(kept)
    assert out[-2] == f"META.txt: written for {number}, {left_out} volumes left out"
    damaged = [line for line in check(directory, capsys) if line.startswith("damaged")]
    if volume in EARLIER:
        assert damaged == []
    else:  # It is not read, and stays until its id is used next.
        (line,) = damaged
        assert line.startswith("damaged data/0 offset 12: belongs to another store, ")
    assert cli.main(["repair", str(directory)]) == 0
    assert capsys.readouterr().out.endswith(", 0 files written\n")
    assert values(directory) == mixed.of(kept)
    store = open_store(directory)
    store.put(b"new", b"value")
    store.close()
    assert values(directory) == {**mixed.of(kept), b"new": b"value"}


def test_replaced_data_file_hides_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its index file has the keys of its values, which are misses; nothing is left out."""
    directory = tmp_path / "store"
    mixed = mix(directory, ["data/1"])

    assert cli.main(["repair", str(directory)]) == 0

    assert capsys.readouterr().out == f"{directory}: 4 volumes, 0 files written\n"
    assert values(directory) == mixed.of([3, 0, 2])


def test_earlier_meta_txt_is_written_from_the_volumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """LOCK confirms that the newest volume is there: nothing is left out."""
    directory = tmp_path / "store"
    mixed = mix(directory, ["META.txt"])

    assert cli.main(["repair", str(directory)]) == 0

    assert "META.txt: written for 4 volumes" in capsys.readouterr().out
    assert check(directory, capsys) == []
    assert values(directory) == mixed.values


def test_damaged_hot_txt_is_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next start begins a new epoch with and without it."""
    directory = tmp_path / "store"
    fill(directory, records=10)
    (directory / "HOT.txt").write_bytes(KeyVersions().encode("store 1")[:-1])
    assert len(check(directory, capsys)) == 1
    assert cli.main(["repair", str(directory)]) == 0
    assert capsys.readouterr().out.startswith(
        "HOT.txt: removed; all copies in memcached"
    )
    assert check(directory, capsys) == []


@pytest.mark.slow
def test_repair_completes_if_its_reader_goes_away(
    tmp_path: Path, *, unbuffered: bool
) -> None:
    """Every file is written."""
    shutil.copytree(GOLDEN / "no_index", tmp_path / "store")
    assert run_unheard(tmp_path, "repair", "store", unbuffered=unbuffered) == (0, "")
    assert cli.main(["check", str(tmp_path / "store")]) == 0


@pytest.mark.slow
def test_repair_completes_if_the_disk_under_its_output_is_full(
    tmp_path: Path, *, unbuffered: bool
) -> None:
    """One line on standard error, exit code 1, and every file is written."""
    shutil.copytree(GOLDEN / "no_index", tmp_path / "store")
    assert run_with_full_output(tmp_path, "repair", "store", unbuffered=unbuffered) == (
        1,
        "volcache: standard output cannot be written: No space left on device\n",
    )
    assert cli.main(["check", str(tmp_path / "store")]) == 0
