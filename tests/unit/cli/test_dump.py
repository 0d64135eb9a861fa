"""`volcache dump`: every record once, with its state."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

from support.command_line import Run
from support.damage import fill
from volcache.cli.dump import STATES, dump

GOLDEN = Path(__file__).parents[2] / "golden" / "v2"


def test_dump_prints_a_line_for_each_record_in_disk_order(run: Run) -> None:
    """All columns, and all states a healthy directory has."""
    code, out, _ = run("dump", GOLDEN / "healthy")
    lines = out.splitlines()
    assert "1 5 main 439 98 1790000000000 0 text/plain live a/hello.txt" in lines
    assert "1 5 main 764 72 1790000000000 0 - superseded deleted" in lines
    assert "1 5 main 836 71 1790000000000 0 - tombstone deleted" in lines
    assert (code, len(lines)) == (0, 11)
    columns = [line.split(" ") for line in lines]
    places = [tuple(int(row[at]) for at in (0, 1, 3)) for row in columns]
    assert places == sorted(places, key=lambda place: place[1:])
    assert {place[:2] for place in places} == {(2, 3), (0, 4), (1, 5)}


def test_dump_of_expired_and_damaged_records_shows_their_states(tmp_path: Path) -> None:
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


def test_dump_json_names_each_column(run: Run) -> None:
    """One object per line; numbers are numbers, and a type may be missing."""
    healthy = str(GOLDEN / "healthy")
    *rows, last = map(json.loads, run("dump", "--json", healthy).lines)
    names = "volume seq ring offset size stored expires type state key"
    assert {" ".join(row) for row in rows} == {names}
    texts = [" ".join(str(v) or "-" for v in row.values()) for row in rows]
    assert texts == run("dump", healthy).lines
    states = dict.fromkeys(STATES, 0) | Counter(row["state"] for row in rows)
    assert last == {
        "summary": {"directory": healthy, "records": len(rows), "states": states}
    }


def test_dump_keys_prints_each_live_key_once(tmp_path: Path, run: Run) -> None:
    """Each key once, without superseded records; the whole dump has every record."""
    fill(tmp_path / "store")
    keys = run("dump", "--keys", tmp_path / "store").lines
    assert len(keys) == len(set(keys)) > 500
    lines = run("dump", tmp_path / "store").lines
    index = b"".join(path.read_bytes() for path in (tmp_path / "store/index").iterdir())
    assert len(lines) == len(re.findall(rb"^[^#]", index, re.MULTILINE))
    assert sum(" live " in line for line in lines) == len(keys)
