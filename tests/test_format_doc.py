"""docs/FORMAT.md against the code and against the golden directories."""

from __future__ import annotations

import re
from pathlib import Path
from struct import Struct

from support.records import FIELDS, IDENTITY
from volcache.geometry import VOLUME_BYTES_MAX
from volcache.store import format as record_format
from volcache.store.native import decode_record

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "FORMAT.md").read_text()
HEALTHY = ROOT / "tests" / "golden" / "v2" / "healthy"


def blocks(kind: str) -> list[str]:
    """Return the fenced blocks of a kind."""
    return re.findall(rf"```{kind}\n(.*?)```", TEXT, re.DOTALL)


def table_after(heading: str) -> list[tuple[str, str]]:
    """Return offset and length in the rows of the table under a heading."""
    section = TEXT.split(f"### {heading}")[1].split("\n### ")[0]
    return re.findall(r"^\| (\d+|…) \| (\d+|…) \|", section, re.MULTILINE)


def dump(data: bytes, start: int) -> str:
    """Return bytes as `xxd -s start` shows them."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        pairs = " ".join(row[n : n + 2].hex() for n in range(0, len(row), 2))
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{start + at:08x}: {pairs:<39}  {text}\n")
    return "".join(lines)


def field_offsets(*structs: Struct) -> list[int]:
    """Return the offsets of the fields of consecutive structs."""
    offsets, at = [], 0
    for struct in structs:
        for part in re.findall(r"\d*[a-zA-Z]", struct.format.lstrip("<")):
            if not part.endswith("x"):
                offsets.append(at)
            at += Struct("<" + part).size
    return offsets


def power(number: int) -> str:
    """Return a power of two as the page writes it."""
    digits = str(number.bit_length() - 1)
    return "2" + digits.translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def test_the_bounds_are_those_of_the_code() -> None:
    """Each constant, as its row has it."""
    for name, text in (
        ("volume id", f"{record_format.VOLUME_ID_MAX:,}"),
        (
            "sequence number",
            f"at most {power(record_format.SEQ_MAX + 1)} ",
        ),
        (
            "mount count",
            f"at most {power(record_format.MOUNT_COUNT_MAX + 1)} ",
        ),
        ("time, microseconds", f"below {power(record_format.TIME_END)} "),
        ("expiry time, milliseconds", f"below {power(record_format.TIME_END)} |"),
        ("length of a key or prefix", f"1 to {record_format.KEY_BYTES_MAX:,}"),
        ("length of a value", f"at most {power(record_format.VALUE_BYTES_MAX)};"),
        ("end of a volume, start of a segment", f"at most {power(VOLUME_BYTES_MAX)};"),
    ):
        (row,) = re.findall(rf"^\| {name} \|.*$", TEXT, re.MULTILINE)
        assert text in row
    assert f"a time of {power(record_format.CLOCK_END)} microseconds" in TEXT


def test_the_hexdumps_are_the_bytes_of_the_golden_volume() -> None:
    """The worked example has the bytes on the disk."""
    data = (HEALTHY / "data" / "1").read_bytes()
    header, record = blocks("hexdump")

    assert header == dump(data[:64], 0)
    assert record == dump(data[439 : 439 + 98], 439)


def test_the_worked_record_decodes_to_the_documented_fields() -> None:
    """Key, type, value, time and checksum as in the text."""
    data = (HEALTHY / "data" / "1").read_bytes()
    header = record_format.decode_volume_header(data)
    assert header is not None
    place = record_format.Place(header.use.salt, 1, 439)
    record = decode_record(data[439:537], place, b"a/hello.txt")

    assert record is not None
    assert (record.value, record.content_type) == (b"Hello, disk!\n", b"text/plain")
    assert f"= {record.stored_us}, " in TEXT
    assert f"salt `{header.use.salt:016x}`" in TEXT
    assert f"salt before `{header.previous_salt:016x}`" in TEXT
    assert f"`{record.checksum:08x}`" in TEXT


def test_the_example_files_are_those_of_the_golden_directory() -> None:
    """Index file and META.txt are shown as they are."""
    assert blocks("index") == [(HEALTHY / "index" / "1").read_text()]
    assert blocks("meta") == [(HEALTHY / "META.txt").read_text()]


def test_the_byte_tables_have_no_gap_and_agree_with_the_code() -> None:
    """Each row starts at the end of the previous one, and at the offset in the struct."""
    for heading, structs in (
        ("Volume header", (record_format._VOLUME_HEADER,)),
        ("Record", (IDENTITY, FIELDS)),
    ):
        rows = [
            (int(at), int(n)) for at, n in table_after(heading) if "…" not in at + n
        ]
        ends = [at + length for at, length in rows]
        assert [at for at, _ in rows][1:] == ends[:-1], heading
        starts = {at for at, _ in rows}
        assert set(field_offsets(*structs)) <= starts, heading
    assert sum(int(n) for _, n in table_after("Volume header")) == 64
