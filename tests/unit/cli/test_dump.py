"""`volcache dump`: every record once, with its state."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from support.damage import extents, fill
from support.full_output import run_with_full_output
from support.replaced import mix
from support.unheard import run_unheard
from volcache.cli import main as cli
from volcache.cli.dump import STATES, dump

GOLDEN = Path(__file__).parents[2] / "golden" / "v2"


def lines_of(capsys: pytest.CaptureFixture[str], *argv: str) -> list[str]:
    """Run a dump that succeeds; return its lines."""
    assert cli.main(["dump", *argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_each_record_is_one_line_in_the_order_of_the_disk(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All columns, and all states a healthy directory has."""
    lines = lines_of(capsys, str(GOLDEN / "healthy"))
    assert "1 5 main 439 98 1790000000000 0 text/plain live a/hello.txt" in lines
    assert "1 5 main 764 72 1790000000000 0 - superseded deleted" in lines
    assert "1 5 main 836 71 1790000000000 0 - tombstone deleted" in lines
    assert len(lines) == 11
    columns = [line.split(" ") for line in lines]
    places = [tuple(int(row[at]) for at in (0, 1, 3)) for row in columns]
    assert places == sorted(places, key=lambda place: place[1:])
    assert {place[:2] for place in places} == {(2, 3), (0, 4), (1, 5)}


def test_expired_and_damaged_records_have_their_states(tmp_path: Path) -> None:
    """A record is live up to the millisecond it expires; a changed value is damaged."""
    directory = tmp_path / "store"
    shutil.copytree(GOLDEN / "healthy", directory)
    volume = directory / "data" / "1"
    data = volume.read_bytes()
    volume.write_bytes(data.replace(b"Hello, disk!", b"Hello, dusk!"))
    for now_ms, state in ((1790000000999, "live"), (1790000001000, "expired")):
        states = {row.key: row.state for row in dump(str(directory), now_ms)}
        assert states["later%20gone"] == state
        assert states["a/hello.txt"] == "damaged"


def test_json_names_each_column(capsys: pytest.CaptureFixture[str]) -> None:
    """One object per line; numbers are numbers."""
    healthy = str(GOLDEN / "healthy")
    *rows, last = map(json.loads, lines_of(capsys, "--json", healthy))
    (hello,) = [row for row in rows if row["key"] == "a/hello.txt"]
    assert hello == {
        "volume": 1,
        "seq": 5,
        "ring": "main",
        "offset": 439,
        "size": 98,
        "stored": 1790000000000,
        "expires": 0,
        "type": "text/plain",
        "state": "live",
        "key": "a/hello.txt",
    }
    states = dict.fromkeys(STATES, 0) | Counter(row["state"] for row in rows)
    assert last == {
        "summary": {"directory": healthy, "records": len(rows), "states": states}
    }


def test_keys_are_those_of_live_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each key once, without superseded records; the whole dump has every record."""
    fill(tmp_path / "store")
    keys = lines_of(capsys, "--keys", str(tmp_path / "store"))
    assert len(keys) == len(set(keys)) > 500
    lines = lines_of(capsys, str(tmp_path / "store"))
    assert len(lines) == len(extents(tmp_path / "store"))
    assert sum(" live " in line for line in lines) == len(keys)


def test_directory_with_a_replaced_volume_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is unknown which of the older records are live."""
    mix(tmp_path / "store", ["data/1", "index/1"])
    assert cli.main(["dump", str(tmp_path / "store")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        f"volcache: mount point '{tmp_path / 'store'}': files do not match META.txt,"
    )
    assert err.count("\n") == 1
    assert 'Nothing was changed. Or run "volcache repair ' in err


def test_records_of_a_replaced_data_file_are_not_listed(tmp_path: Path) -> None:
    """Its index file has the keys, so the older records of these are superseded."""
    whole = mix(tmp_path / "store", ["data/1"])
    rows = list(dump(str(tmp_path / "store"), 0))
    assert {row.volume for row in rows} == {3, 0, 2}
    live = {row.key.encode() for row in rows if row.state == "live"}
    assert live == set(whole.of([3, 0, 2]))


@pytest.mark.slow
def test_dump_ends_if_its_reader_goes_away(*, unbuffered: bool) -> None:
    """There is nothing else to do; exit code 0."""
    assert run_unheard(GOLDEN, "dump", "healthy", unbuffered=unbuffered) == (0, "")


@pytest.mark.slow
def test_full_disk_under_the_output_is_one_line(*, unbuffered: bool) -> None:
    """Exit code 1."""
    assert run_with_full_output(GOLDEN, "dump", "healthy", unbuffered=unbuffered) == (
        1,
        "volcache: standard output cannot be written: No space left on device\n",
    )
