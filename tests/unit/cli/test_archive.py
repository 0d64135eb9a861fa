"""`volcache export`, and what `load` reads of an archive."""

from __future__ import annotations

import contextlib
import io
import json
import random
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import pytest
from google_crc32c import value as crc32c

from support.command_line import Run, run_volcache
from support.contents import archived
from support.damage import extents, flip
from support.damage import fill as fill_volumes
from support.process import SOURCE
from support.scripted_server import ScriptedServer
from support.stores import open_store
from volcache.cli.archive import write_end, write_value
from volcache.cli.load import LISTED_MAX
from volcache.cli.main import main
from volcache.store import Record

GOLDEN = Path(__file__).parents[2] / "golden" / "v2"
NOW_MS = time.time_ns() // 1_000_000
BLOCK = 512
# Ends with the most memory it had, in KiB.
MEASURED = """
import sys
from volcache.cli import load
from volcache.cli.main import main
load._VALUE_BYTES_MAX = 1 << 20
main()
# What getrusage tells begins with the memory of the process that started this one.
status = open("/proc/self/status").read()
print(status.partition("VmHWM:")[2].split()[0], file=sys.stderr)
"""
RULE = (
    "a key is the path after its first slash: at least one byte, no control bytes,"
    ' not beginning with "-/"'
)


class Kept(NamedTuple):
    """What a store keeps of a value, but for the time it was stored."""

    value: bytes
    content_type: bytes = b""
    content_encoding: bytes = b""
    cache_control: bytes = b""
    expires_ms: int = 0
    flags: int = 0


THREE = {
    b"a/b.txt": Kept(b"text", b"text/x", b"gzip", b"immutable", 0, 7),
    b"short": Kept(b"1", expires_ms=NOW_MS + 2_000_000),
    b"long": Kept(b"2" * 700, expires_ms=NOW_MS + 3_000_000),
}


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """Start what stores all that it is sent."""
    with ScriptedServer(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") as running:
        yield running


def stored(server: ScriptedServer) -> dict[bytes, bytes]:
    """Return the values that a server was sent, by their keys."""
    parts = [one.split(b"\r\n\r\n", 1) for one in server.requests]
    return {unquote_to_bytes(head.split()[1])[1:]: value for head, value in parts}


def fill(directory: Path, values: dict[bytes, Kept]) -> None:
    """Make a store."""
    store = open_store(directory)
    for key, one in values.items():
        options = one._asdict()
        store.put(key, options.pop("value"), **options)
    store.close()


def pack(archive: Path, files: dict[bytes, bytes], **options: Any) -> None:
    """Write an archive as `tar` does; names are bytes."""
    with tarfile.open(archive, "w", **options) as tar:
        for name, value in files.items():
            member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
            member.size = len(value)
            tar.addfile(member, io.BytesIO(value))


def special(kind: bytes, name: str, target: str = "") -> bytes:
    """Return the header of a member that is not a file."""
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member.tobuf(tarfile.GNU_FORMAT)


def exported(root: Path, values: dict[bytes, Kept]) -> bytes:
    """Return the archive of a store with these values."""
    fill(root / "before", values)
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["export", str(root / "before"), str(root / "a.tar")]) == 0
    return (root / "a.tar").read_bytes()


def test_export_to_a_pipe_writes_what_a_file_has(tmp_path: Path) -> None:
    """Lines then go to standard error; tar can read what is written."""
    exported(tmp_path, THREE)
    done = run_volcache("export", str(tmp_path / "before"), "--json")
    (line,) = map(json.loads, done.stderr.splitlines())
    assert line["summary"] == {
        "directory": str(tmp_path / "before"),
        "archive": "-",
        "files": 3,
        "bytes": 705,
        "left_out": 0,
    }
    assert done.stdout == (tmp_path / "a.tar").read_bytes()
    listed = subprocess.run(
        ["tar", "tf", tmp_path / "a.tar"], capture_output=True, check=True
    )
    assert (listed.stdout.split(), listed.stderr) == (list(THREE), b"")


def test_export_without_index_files_has_the_live_values(
    tmp_path: Path, run: Run
) -> None:
    """Without deleted and expired ones; without index files they are found in volumes."""
    records: dict[str, str] = {}
    for name in ("healthy", "no_index"):
        archive = tmp_path / name
        summary = f"{archive}: 8 files, 3.5 KiB; left out: 0\n"
        assert run("export", GOLDEN / name, archive) == (0, summary, "")
        assert sorted(archived(archive)) == [
            *("a/hello.txt", "fill/1", "fill/1 more", "fill/2", "fill/2 more"),
            *("grün & 100%", "packed", "turn"),
        ]
        assert archived(archive)["a/hello.txt"] == b"Hello, disk!\n"
        with tarfile.open(archive) as tar:
            assert int(tar.getmember("a/hello.txt").mtime) == 1790000000
            records |= tar.getmember("a/hello.txt").pax_headers
    names = {name for name in records if "volcache" in name}
    section = (GOLDEN.parents[2] / "docs" / "FORMAT.md").read_text()
    section = section.split("## Archives")[1].split("\n## ")[0]
    start = "SCHILY.xattr.user.volcache."
    assert f"`{start}`" in section
    assert all(f"`{name.removeprefix(start)}`" in section for name in names)
    assert len(names) == 7


def test_export_of_keys_that_are_no_paths_encodes_their_names(tmp_path: Path) -> None:
    """Nothing leaves the folder in which an archive is unpacked."""
    keys = [b"../out", b"/tmp/out", b"a/../../out", b"b//c", b"d/", b"e\0", b".", b"ok"]
    exported(tmp_path, dict.fromkeys(keys, Kept(b"")))
    assert sorted(archived(tmp_path / "a.tar")) == [
        *("%2Ftmp%2Fout", ".", "..%2Fout", "a%2F..%2F..%2Fout", "b%2F%2Fc"),
        *("d%2F", "e%00", "ok"),
    ]


def test_export_of_damaged_values_names_and_leaves_them_out(
    tmp_path: Path, run: Run
) -> None:
    """Also if the header of the record is damaged: the index file has the key."""
    directory, archive = tmp_path / "store", tmp_path / "files.tar"
    fill_volumes(directory, records=600)
    live = set(run("dump", "--keys", directory).lines)
    dice = random.Random(1)  # noqa: S311 - Seeded, to be repeated.
    for number, record in enumerate(extents(directory)):
        if number % 5 == 0:  # In the header, or in the value or its checksum.
            offset = record.start + 20 if number % 2 else record.end - 1
            flip(directory / "data" / str(record.volume), offset, dice)
    code, out, _ = run("export", directory, archive)
    *lines, summary = out.splitlines()
    damaged = [line.removeprefix("left out ").split(":")[0] for line in lines]
    assert all(": damaged record: " in line for line in lines)
    assert (code, len(damaged) > 20) == (1, True)
    assert set(damaged) < live
    assert len(set(damaged)) == len(damaged)
    left = {key.replace("%20", " ") for key in live - set(damaged)}
    assert set(archived(archive)) == left
    assert summary.endswith(f"left out: {len(damaged)}")


def test_export_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an error the file is as it was, and nothing else is left."""
    exported(tmp_path, THREE)
    before = (tmp_path / "a.tar").read_bytes()

    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("volcache.cli.export.write_end", fail)
        found = run("export", tmp_path / "before", tmp_path / "a.tar")
    error = f"volcache: {tmp_path}/a.tar: cannot be written: No space left on device\n"
    assert found == (1, "", error)
    assert (tmp_path / "a.tar").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"before", "a.tar"}


def damaged(text: bytes, old: bytes, new: bytes) -> bytes:
    """Replace something that is there once."""
    assert text.count(old) == 1
    return text.replace(old, new)


NO_TAR = "no tar archive (a compressed one: pass it through gzip -dc): "
DAMAGES: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda _: b"", NO_TAR + "empty header"),
    (lambda text: text[:200], NO_TAR + "truncated header"),
    (
        lambda text: text[: 6 * BLOCK + 9],
        "damaged behind the member a/b.txt: truncated header",
    ),
    (
        lambda text: text[:-1536],
        "damaged in the member long: unexpected end of data",
    ),
    (lambda text: text[:-1024], "damaged behind the member long: empty header"),
    (lambda text: text * 2, "damaged behind the member long: data follow the end"),
    (lambda _: b"[1]\n" * 200, NO_TAR + "invalid header"),
    (lambda _: b"\x1f\x8b" * 300, NO_TAR + "invalid header"),
    (
        lambda text: text[:2048] + b"x" + text[2049:],
        "damaged behind the member a/b.txt: bad checksum",
    ),
    (
        lambda text: damaged(text, b"=a/b.txt\n", b"=a/b.txt "),
        NO_TAR + "invalid header",
    ),
    (lambda _: oversized(tarfile.XHDTYPE), NO_TAR + "a header of 8589934591 bytes"),
    (lambda _: oversized(tarfile.GNUTYPE_LONGNAME), NO_TAR + "a header of 8589934591"),
    (lambda _: oversized(tarfile.XGLTYPE), NO_TAR + "a header of 8589934591"),
]


def oversized(kind: bytes) -> bytes:
    """Return a header that promises 8 GiB."""
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, (1 << 33) - 1
    return member.tobuf(tarfile.USTAR_FORMAT) + bytes(5000)


def test_load_of_a_damaged_archive_names_the_member(
    tmp_path: Path, run: Run, server: ScriptedServer
) -> None:
    """Whatever is cut off or changed, no wrong value is stored."""
    text = exported(tmp_path, THREE)
    archive = tmp_path / "a.tar"
    for damage, reason in DAMAGES:
        archive.write_bytes(damage(text))
        code, _, err = run("load", archive, server.name)
        assert (code, err.count("\n")) == (1, 1), reason
        assert err.startswith(f"volcache: {archive}: cannot be read: {reason}")
    for place in range(0, len(text), 97):
        changed = bytes([text[place] ^ 4])
        archive.write_bytes(text[:place] + changed + text[place + 1 :])
        run("load", archive, server.name)
    found = stored(server)
    assert found == {key: one.value for key, one in THREE.items()}
    types = {line for one in server.requests for line in one.split(b"\r\n")}
    assert {line for line in types if line.startswith(b"Content-Type")} == {
        b"Content-Type: text/x"
    }


def test_load_of_a_changed_value_leaves_it_out(
    tmp_path: Path, run: Run, server: ScriptedServer
) -> None:
    """Also one whose content type, or what belongs to it, is another."""
    text = exported(tmp_path, THREE)
    archive = tmp_path / "a.tar"
    for old, new in (
        *((b"text\0", b"test\0"), (b"=text/x\n", b"=text/y\n")),
        (b"volcache.flags=7", b"volcache.flagz=7"),
    ):
        archive.write_bytes(damaged(text, old, new))
        code, out, _ = run("load", archive, server.name)
        assert code == 1
        why = "is not what was exported: its checksum is wrong"
        assert out.startswith(f"left out a/b.txt: {why}")
        assert f"{archive}: 2 files, 701 B; left out: 1; " in out


def test_load_of_a_header_with_a_line_end_leaves_it_out(
    tmp_path: Path, run: Run, server: ScriptedServer
) -> None:
    """Whoever wrote the archive."""
    split = b"a\r\nSet-Cookie: b"
    for texts in ((split, b"", b""), (b"", split, b""), (b"", b"", split)):
        record = Record(b"v", *texts, 1, 0, 0, 0, 64, 90, 1, crc32c(b"v"))
        with (tmp_path / "a.tar").open("wb") as file:
            write_value(file, b"k", record)
            write_end(file)
        code, out, _ = run("load", tmp_path / "a.tar", server.name)
        assert (code, "left out k: has a header with a control" in out) == (1, True)
    assert not server.requests


def test_load_of_an_expired_value_does_not_send_it(
    tmp_path: Path, run: Run, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have what is left of their lifetimes."""
    exported(tmp_path, THREE)
    now = NOW_MS // 1000 + 2100
    monkeypatch.setattr("time.time_ns", lambda: int(now * 1e9))
    found = run("load", tmp_path / "a.tar", server.name, "--json")
    (line,) = map(json.loads, found.lines)
    summary = line["summary"]
    assert (summary["files"], summary["expired"], found.code) == (2, 1, 0)
    assert stored(server).keys() == {b"a/b.txt", b"long"}
    assert b"\r\nCache-Control: max-age=900\r\n" in server.requests[1]


def test_load_of_a_large_archive_takes_bounded_memory(
    server: ScriptedServer,
) -> None:
    """Many headers, and a file that is longer than a value, are read in pieces."""
    large = tarfile.TarInfo("large")
    large.size = 64 << 20
    with subprocess.Popen(
        [sys.executable, "-c", MEASURED, "load", "-", server.name],
        env={"PYTHONPATH": str(SOURCE)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin
        process.stdin.write(special(tarfile.FIFOTYPE, "pipe") * 40_000)
        process.stdin.write(large.tobuf(tarfile.GNU_FORMAT) + bytes(large.size))
        process.stdin.write(special(tarfile.REGTYPE, "k") + bytes(1024))
        out, err = process.communicate()
    assert int(err) < 40 << 10  # 30 MiB; 46 with all headers, 160 with the file.
    assert b": 1 file, 0 B; left out: 40001; " in out


@pytest.mark.parametrize("kind", ["gnu", "pax", "ustar"])
def test_load_of_an_archive_of_tar_stores_its_files(
    tmp_path: Path, server: ScriptedServer, kind: str
) -> None:
    """As `tar -c . | volcache load -` does it; links and pipes are left out."""
    folder = tmp_path / "files"
    deep = folder.joinpath("d" * 90, "e" * 90)
    deep.mkdir(parents=True)
    files = {
        f"{deep.relative_to(folder)}/f": b"deep",
        "a b": b"1",
        "gr\xfcn": bytes(513),
    }
    for name, value in files.items():
        (folder / name).write_bytes(value)
    (folder / "link").symlink_to("a b")
    tar = ["tar", f"--format={kind}", "--sort=name", "-C", str(folder), "-c", "."]
    packed = subprocess.run(tar, capture_output=True, check=True).stdout
    done = run_volcache("load", "-", server.name, data=packed)
    line, summary = done.stdout.decode().splitlines()
    assert line == "left out link: is not a regular file"
    assert (done.returncode, "left out: 1" in summary) == (1, True)
    assert stored(server) == {name.encode(): value for name, value in files.items()}


def test_load_of_what_is_no_value_lists_it(
    tmp_path: Path, run: Run, server: ScriptedServer
) -> None:
    """One line each, with the reason; the rest is stored."""
    archive = tmp_path / "files.tar"
    names = dict.fromkeys((b"line\nend", b"-/healthy", b"../up"), b"")
    pack(archive, {**names, b"good": b"g"})
    more = (
        special(tarfile.LNKTYPE, "hard", "good"),
        special(tarfile.FIFOTYPE, "pipe"),
        special(b"V", "label"),
    )
    archive.write_bytes(b"".join(more) + archive.read_bytes())
    code, out, err = run("load", archive, server.name)
    *lines, summary = out.splitlines()
    assert lines == [
        "left out hard: is a hard link; tar --hard-dereference writes its contents",
        "left out pipe: is not a regular file",
        "left out label: is not a regular file",
        f"left out line%0Aend: bad key: it holds the control byte 0x0A; {RULE}",
        f'left out -/healthy: bad key: the prefix "-/" is reserved; {RULE}',
        f'left out ../up: bad key: ".." resolves above the root; {RULE}',
    ]
    assert (code, err) == (1, "")
    assert ": 1 file, 1 B; left out: 6; " in summary
    assert stored(server) == {b"good": b"g"}
    *rows, last = map(json.loads, run("load", archive, server.name, "--json").lines)
    assert [f"left out {row['key']}: {row['left_out']}" for row in rows] == lines
    assert last["summary"].pop("seconds") >= 0
    assert last["summary"] == {
        "source": str(archive),
        "files": 1,
        "bytes": 1,
        "left_out": 6,
        "expired": 0,
        "skipped": 0,
        "interrupted": False,
    }
    archive.write_bytes(more[1] * LISTED_MAX + archive.read_bytes())
    found = run("load", archive, server.name)  # The first hundred have a line each.
    assert (len(found.lines), found.lines[-2]) == (LISTED_MAX + 2, "left out 6 more")
