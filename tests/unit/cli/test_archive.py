"""`volcache export` and `import`: values become a tar archive, and come back exactly."""

from __future__ import annotations

import contextlib
import io
import json
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import pytest
from google_crc32c import value as crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.command_line import Run, run_volcache
from support.contents import archived, values
from support.damage import extents, flip
from support.damage import fill as fill_volumes
from support.process import SOURCE
from support.stores import disk_bytes, open_store
from volcache.cli.archive import write_end, write_value
from volcache.cli.dump import dump
from volcache.cli.main import main
from volcache.cli.sources import LISTED_MAX
from volcache.errors import StoreIOError
from volcache.http.upload import read_stored_headers
from volcache.store import Record
from volcache.store.writing import RecordWriter

GOLDEN = Path(__file__).parents[2] / "golden" / "v2"
LIMITS = {"max_value_size": "8000", "max_key_size": "1024"}
LARGE = {"volume_size": 1 << 30, "volume_num": 10}
NOW_MS = time.time_ns() // 1_000_000
BLOCK = 512
HEADER = st.text(
    st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=40
).map(lambda text: text.replace("\x7f", "").encode("latin-1"))
KEY = (
    st.binary(min_size=1, max_size=300)
    .map(lambda name: bytes(byte for byte in name if byte >= 0x20 and byte != 0x7F))
    .filter(lambda key: key and b"." not in key and not key.startswith(b"-/"))
)
# Ends with the most memory it had, in KiB.
MEASURED = """
import sys
from volcache.cli.main import main
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


KEPT = st.builds(
    Kept,
    st.binary(max_size=600),
    HEADER,
    HEADER,
    st.text(max_size=60).map(
        lambda text: read_stored_headers({"HTTP_CACHE_CONTROL": text})[2]
    ),
    st.just(0) | st.integers(NOW_MS + (1 << 30), 1 << 50),
    st.integers(0, (1 << 32) - 1),
)
ODD = [
    *(b"\xff\xfe", b"a b%20c", b'"quoted"', "gr\xfcn".encode(), b"\\", b"/a", b"a/"),
    *(b"a", b"a//b", b"-", b"%2F", b"x" * 255, b"x/" * 400, b"=" * 100),
]
THREE = {
    b"a/b.txt": Kept(b"text", b"text/x", b"gzip", b"immutable", 0, 7),
    b"short": Kept(b"1", expires_ms=NOW_MS + 2_000_000),
    b"long": Kept(b"2" * 700, expires_ms=NOW_MS + 3_000_000),
}


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit values to the small volumes of the tests."""
    for name, value in LIMITS.items():
        monkeypatch.setenv(f"VOLCACHE_{name.upper()}", value)


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    """Return the places of a mount point and of an archive."""
    return tmp_path / "store", tmp_path / "files.tar"


def fill(directory: Path, stored: dict[bytes, Kept]) -> None:
    """Make a store."""
    store = open_store(directory)
    for key, one in stored.items():
        options = one._asdict()
        store.put(key, options.pop("value"), **options)
    store.close()


def kept(directory: Path) -> dict[bytes, Kept]:
    """Return what is in a store."""
    keys = {unquote_to_bytes(row.key) for row in dump(str(directory), 0)}
    store = open_store(directory)
    records = {key: record for key in keys if (record := store.get(key))}
    store.close()
    return {
        key: Kept(*(getattr(record, name) for name in Kept._fields))
        for key, record in records.items()
    }


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


def exported(root: Path, stored: dict[bytes, Kept]) -> bytes:
    """Return the archive of a store with these values; leave an empty store `after`."""
    fill(root / "before", stored)
    open_store(root / "after").close()
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["export", str(root / "before"), str(root / "a.tar")]) == 0
    return (root / "a.tar").read_bytes()


@pytest.mark.slow
@settings(max_examples=25)
@example({key: Kept(key, b"t", flags=1) for key in ODD})
@given(st.dictionaries(KEY, KEPT, max_size=8))
def test_import_restores_everything_that_an_export_wrote(
    stored: dict[bytes, Kept],
) -> None:
    """Any key, content type, encoding, directives and lifetime."""
    with tempfile.TemporaryDirectory() as folder:
        exported(Path(folder), stored)
        assert main(["import", f"{folder}/after", f"{folder}/a.tar"]) == 0
        assert kept(Path(folder, "after")) == stored


def test_pipe_is_as_good_as_a_file(tmp_path: Path) -> None:
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
    again = run_volcache("import", str(tmp_path / "after"), data=done.stdout, **LIMITS)
    assert (again.returncode, again.stderr) == (0, b"")
    assert kept(tmp_path / "after") == THREE
    listed = subprocess.run(
        ["tar", "tf", tmp_path / "a.tar"], capture_output=True, check=True
    )
    assert (listed.stdout.split(), listed.stderr) == (list(THREE), b"")


def test_live_values_are_exported(tmp_path: Path, run: Run) -> None:
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


def test_keys_that_are_not_paths_have_names_that_are(tmp_path: Path) -> None:
    """Nothing leaves the folder in which an archive is unpacked."""
    keys = [b"../out", b"/tmp/out", b"a/../../out", b"b//c", b"d/", b"e\0", b".", b"ok"]
    exported(tmp_path, dict.fromkeys(keys, Kept(b"")))
    assert sorted(archived(tmp_path / "a.tar")) == [
        *("%2Ftmp%2Fout", ".", "..%2Fout", "a%2F..%2F..%2Fout", "b%2F%2Fc"),
        *("d%2F", "e%00", "ok"),
    ]


def test_damaged_values_are_left_out_by_name(
    paths: tuple[Path, Path], run: Run
) -> None:
    """Also if the header of the record is damaged: the index file has the key."""
    directory, archive = paths
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


def test_archive_gets_its_name_when_it_is_complete(
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
    assert {path.name for path in tmp_path.iterdir()} == {"after", "before", "a.tar"}


def test_expired_values_are_not_stored_and_lifetimes_are_limited(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """max_ttl is that of the server."""
    exported(tmp_path, THREE)
    monkeypatch.setenv("VOLCACHE_MAX_TTL", "2500")
    now = NOW_MS // 1000 + 2100
    monkeypatch.setattr("time.time_ns", lambda: int(now * 1e9))
    found = run("import", tmp_path / "after", tmp_path / "a.tar", "--json")
    (line,) = map(json.loads, found.lines)
    summary = line["summary"]
    assert (summary["files"], summary["expired"], found.code) == (2, 1, 0)
    ends = {
        key: one.expires_ms // 1000 for key, one in kept(tmp_path / "after").items()
    }
    assert ends.keys() == {b"a/b.txt", b"long"}
    assert ends[b"long"] == THREE[b"long"].expires_ms // 1000
    assert abs(ends[b"a/b.txt"] - now - 2500) < 60


def damaged(text: bytes, old: bytes, new: bytes) -> bytes:
    """Replace something that is there once."""
    assert text.count(old) == 1
    return text.replace(old, new)


DAMAGES: list[tuple[Callable[[bytes], bytes], str]] = [
    (lambda _: b"", "it is empty"),
    (lambda text: text[:200], "it ends at its beginning"),
    (lambda text: text[: 6 * BLOCK + 9], "it ends behind the member a/b.txt"),
    (lambda text: text[:-1536], "it ends in the member long"),
    (lambda text: text[:-1024], "it ends behind the member long"),
    (lambda text: text * 2, "data follow its end; it may be several archives"),
    (lambda _: b"[1]\n" * 200, "it is not a tar archive"),
    (lambda _: b"\x1f\x8b" * 300, "it is compressed; pass it through gzip -dc first"),
    (
        lambda text: text[:2048] + b"x" + text[2049:],
        "it is damaged behind the member a/b.txt: bad checksum",
    ),
    (
        lambda text: damaged(text, b"=a/b.txt\n", b"=a/b.txt "),
        "it is damaged at its beginning: a record",
    ),
    (
        lambda _: special(tarfile.XHDTYPE, "x")[:124] + b"77777777777" + bytes(400),
        "it is not a tar archive",
    ),
    (lambda _: oversized(tarfile.XHDTYPE), "a header at its beginning has 8589934591"),
    (
        lambda _: oversized(tarfile.GNUTYPE_LONGNAME),
        "a header at its beginning has 858",
    ),
    (lambda _: oversized(tarfile.XGLTYPE), "it ends at its beginning"),
    (lambda _: special(tarfile.GNUTYPE_SPARSE, "s"), "'s' is sparse; use tar without"),
]


def oversized(kind: bytes) -> bytes:
    """Return a header that promises 8 GiB."""
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, (1 << 33) - 1
    return member.tobuf(tarfile.USTAR_FORMAT) + bytes(5000)


def test_damaged_archive_is_one_line_with_the_member(tmp_path: Path, run: Run) -> None:
    """Whatever is cut off or changed, no wrong value is stored."""
    text = exported(tmp_path, THREE)
    archive = tmp_path / "a.tar"
    for damage, reason in DAMAGES:
        archive.write_bytes(damage(text))
        code, _, err = run("import", tmp_path / "after", archive)
        assert (code, err.count("\n")) == (1, 1), reason
        assert err.startswith(f"volcache: {archive}: cannot be read: {reason}")
    found = kept(tmp_path / "after")
    assert found.items() <= THREE.items()
    for place in range(0, len(text), 97):
        changed = bytes([text[place] ^ 4])
        archive.write_bytes(text[:place] + changed + text[place + 1 :])
        run("import", tmp_path / "after", archive)
    names = {key for key, one in kept(tmp_path / "after").items() if THREE[key] != one}
    assert not names


def test_changed_value_is_left_out(tmp_path: Path, run: Run) -> None:
    """Also one whose content type, or what belongs to it, is another."""
    text = exported(tmp_path, THREE)
    archive = tmp_path / "a.tar"
    for old, new in (
        *((b"text\0", b"test\0"), (b"=text/x\n", b"=text/y\n")),
        (b"volcache.flags=7", b"volcache.flagz=7"),
    ):
        archive.write_bytes(damaged(text, old, new))
        code, out, _ = run("import", tmp_path / "after", archive)
        assert code == 1
        why = "is not what was exported: its checksum is wrong"
        assert out.startswith(f"left out a/b.txt: {why}")
        assert f"{tmp_path}/after: 2 files, 701 B; left out: 1; " in out


def test_value_that_a_put_would_refuse_is_left_out(tmp_path: Path, run: Run) -> None:
    """A header that would be two is not stored, whoever wrote the archive."""
    open_store(tmp_path / "after").close()
    split = b"a\r\nSet-Cookie: b"
    record = Record(b"v", split, b"", b"", 1, 0, 0, 0, 64, 90, 1, crc32c(b"v"))
    with (tmp_path / "a.tar").open("wb") as file:
        write_value(file, b"k", record)
        write_end(file)
    code, out, _ = run("import", tmp_path / "after", tmp_path / "a.tar")
    assert (code, "Content-Type contains a control character" in out) == (1, True)
    assert kept(tmp_path / "after") == {}


def test_memory_does_not_grow_with_the_archive(tmp_path: Path) -> None:
    """Many headers, and a file of 512 MiB, are read in pieces."""
    open_store(tmp_path / "store").close()
    large = tarfile.TarInfo("large")
    large.size = 1 << 29
    command = [sys.executable, "-c", MEASURED, "import", str(tmp_path / "store")]
    with subprocess.Popen(
        command,
        env={"PYTHONPATH": str(SOURCE), "VOLCACHE_MAX_VALUE_SIZE": "8000"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(special(tarfile.XHDTYPE, "r") * 5000)
        process.stdin.write(large.tobuf(tarfile.GNU_FORMAT))
        for _ in range(1 << 9):
            process.stdin.write(bytes(1 << 20))
        process.stdin.write(special(tarfile.REGTYPE, "k") + bytes(1024))
        process.stdin.close()
        out, err = process.stdout.read().decode(), process.stderr.read()
    assert int(err) < 256 << 10
    assert out.startswith("left out large: value is 536870912 bytes long; allowed are")
    assert ": 1 file, 0 B; left out: 1; " in out


def test_existing_volumes_stay_unless_the_settings_give_others(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """No default drops the oldest volume or allocates a gigabyte."""
    directory, archive = paths
    options = {"volume_size": 16_384, "volume_num": 12}
    store = open_store(directory, **options)
    for number in range(11 * 16):
        store.put(b"%d" % number, bytes(900))
    assert store.stats.rotations == 10
    store.close()
    expected = values(directory, **options) | {b"new": b"value"}
    pack(archive, {b"new": b"value"})
    assert run("import", *paths).code == 0
    assert values(directory, **options) == expected
    assert disk_bytes(directory) == 11 * 16_384
    monkeypatch.setenv("VOLCACHE_VOLUME_NUM", "2")
    assert run("import", *paths).code == 0
    assert disk_bytes(directory) == 2 * 16_384


def test_settings_are_those_of_the_server(
    paths: tuple[Path, Path], tmp_path: Path, run: Run
) -> None:
    """A settings file sets volumes and expiry; a wrong setting is exit code 2."""
    config = tmp_path / "conf.toml"
    config.write_text("volume_size = 1048576\nvolume_num = 3\nmax_ttl = 60\n")
    pack(paths[1], {b"key": b"value"})
    assert run("import", *paths, "--config", config).code == 0
    assert len(list((paths[0] / "data").iterdir())) == 3
    store = open_store(paths[0])
    record = store.get(b"key")
    assert record is not None
    assert 50_000 < record.expires_ms - record.stored_us // 1000 <= 60_000
    store.close()
    config.write_text("volume_num = 1\n")
    code, out, err = run("import", *paths, "--config", config)
    assert (code, out) == (2, "")
    assert err.startswith(f"volcache: {config}: volume_num = 1 is not allowed; ")


@pytest.mark.parametrize("kind", ["gnu", "pax", "ustar"])
def test_folder_of_files_is_imported_from_tar(tmp_path: Path, kind: str) -> None:
    """As `tar -c . | volcache import` does it; links and pipes are left out."""
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
    done = run_volcache("import", str(tmp_path / "store"), data=packed, **LIMITS)
    line, summary = done.stdout.decode().splitlines()
    assert line == "left out link: is a symbolic link"
    assert (done.returncode, "left out: 1" in summary) == (1, True)
    expected = {name.encode(): value for name, value in files.items()}
    assert values(tmp_path / "store", **LARGE) == expected


def test_files_that_cannot_be_imported_are_listed(
    paths: tuple[Path, Path], run: Run
) -> None:
    """One line each, with the reason; the rest is imported."""
    directory, archive = paths
    deep = b"/".join([b"d" * 200] * 6)
    names = dict.fromkeys((b"line\nend", b"-/healthy", b"../up", deep), b"")
    pack(archive, {**names, b"large": bytes(8001), b"good": b"g"})
    more = (
        special(tarfile.LNKTYPE, "hard", "good"),
        special(tarfile.FIFOTYPE, "pipe"),
        special(tarfile.CHRTYPE, "device"),
        special(b"V", "label"),
    )
    archive.write_bytes(b"".join(more) + archive.read_bytes())
    code, out, err = run("import", *paths)
    *lines, summary = out.splitlines()
    assert lines == [
        "left out hard: is a hard link; tar --hard-dereference writes its contents",
        "left out pipe: is a pipe",
        "left out device: is a device",
        "left out label: is not a regular file",
        f"left out line%0Aend: bad key: it holds the control byte 0x0A; {RULE}",
        f'left out -/healthy: bad key: the prefix "-/" is reserved; {RULE}',
        f'left out ../up: bad key: ".." resolves above the root; {RULE}',
        f"left out {deep.decode()}: key is 1205 bytes long; allowed are 1 to 1024",
        "left out large: value is 8001 bytes long; allowed are 0 to 8000",
    ]
    assert (code, err) == (1, "")
    assert ": 1 file, 1 B; left out: 9; " in summary
    assert values(directory, **LARGE) == {b"good": b"g"}
    *rows, last = map(json.loads, run("import", *paths, "--json").lines)
    assert [f"left out {row['key']}: {row['left_out']}" for row in rows] == lines
    assert last["summary"].pop("seconds") >= 0
    assert last["summary"] == {
        "directory": str(directory),
        "files": 1,
        "bytes": 1,
        "left_out": 9,
        "expired": 0,
        "overwritten": 0,
        "overflows": False,
        "interrupted": False,
    }
    archive.write_bytes(more[1] * LISTED_MAX + archive.read_bytes())
    found = run("import", *paths)  # The first hundred have a line each.
    assert (len(found.lines), found.lines[-2]) == (LISTED_MAX + 2, "left out 9 more")


@pytest.mark.parametrize(("eviction", "volumes"), [("fifo", 4), ("frequency", 3)])
def test_archive_that_does_not_fit_is_reported_and_the_last_files_stay(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Run,
    eviction: str,
    volumes: int,
) -> None:
    """
    Reported exactly if the first imported files are overwritten.

    With "frequency", one volume is always free for copies.
    """
    monkeypatch.setenv("VOLCACHE_EVICTION", eviction)
    fit = (16_384 - 64) // (64 + 3 + 1000) * volumes
    for number in (fit, fit + 1):
        files = {b"%03d" % n: bytes([n % 251]) * 1000 for n in range(number)}
        pack(tmp_path / "files", files)
        directory = tmp_path / f"store {number}"
        open_store(directory, eviction=eviction).close()
        code, out, _ = run("import", directory, tmp_path / "files")
        lines, found = out.splitlines(), values(directory)
        assert all(files[key] == value for key, value in found.items())
        if number == fit:
            assert (code, len(lines), len(found)) == (0, 1, fit)
        else:
            why = "16.0 KiB: the first files are overwritten"
            assert lines[0] == f"does not fit into {volumes} volumes of {why}"
            assert code == 1
            assert " overwritten: 15 records;" in lines[1]
            assert sorted(found) == sorted(files)[15:]


def at_fourth_put(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let something happen before the put of the key 3."""
    plain = RecordWriter.put

    def put(self: RecordWriter, key: bytes, value: bytes, **options: Any) -> object:
        if key == b"3":
            act()
        return plain(self, key, value, **options)

    monkeypatch.setattr(RecordWriter, "put", put)


def test_ctrl_c_ends_the_import_between_two_files(
    paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """The current file is stored, the store closed and the handler restored."""
    pack(paths[1], {b"%d" % n: b"value" for n in range(9)})
    open_store(paths[0]).close()
    at_fourth_put(monkeypatch, lambda: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code, out, err = run("import", *paths)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    first, second = out.splitlines()
    assert (code, err) == (130, "")
    assert first == "interrupted: the files before are imported, the rest is not"
    assert ": 4 files, 20 B; left out: 0; " in second
    assert second.endswith(" s; interrupted")
    found = run("check", paths[0])
    assert (found.code, len(found.lines)) == (0, 1)  # Closed: no line is missing.
    assert sorted(values(paths[0])) == [b"0", b"1", b"2", b"3"]


def test_write_error_ends_the_import_with_a_summary(
    paths: tuple[Path, Path], run: Run
) -> None:
    """
    The error is one line, the imported files are counted, and the store is closed.

    What was stored before is kept, and a second import adds the other files.
    """

    def fail() -> None:
        raise StoreIOError("the disk refused")

    files = {b"%d" % n: b"value" for n in range(9)}
    pack(paths[1], files)
    store = open_store(paths[0])
    for key in (b"old", b"0", b"3"):
        store.put(key, b"before")
    store.close()
    with pytest.MonkeyPatch.context() as patch:
        at_fourth_put(patch, fail)
        code, out, err = run("import", *paths)
    assert (code, err) == (1, "volcache: the disk refused\n")
    assert ": 3 files, 15 B; left out: 0; " in out
    before = {b"old": b"before", b"3": b"before"}
    assert values(paths[0]) == dict(list(files.items())[:3]) | before
    assert run("import", *paths).code == 0
    assert values(paths[0]) == files | {b"old": b"before"}
