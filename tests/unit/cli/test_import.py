"""`volcache import`: files of a folder become values; other keys do not change."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.contents import values
from support.full_output import run_with_full_output
from support.stores import UnsyncedFileSystem, disk_bytes, open_store
from support.unheard import run_unheard
from volcache.cli import main as cli
from volcache.cli.export import export
from volcache.cli.import_ import LISTED_MAX, Limits, import_folder
from volcache.errors import StoreIOError
from volcache.hot.versions import KeyVersions
from volcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIMITS = Limits(
    volume_size=16 * 1024, volume_num=4, max_value_size=8000, max_key_size=1024
)
ENVIRON = {"VOLCACHE_MAX_VALUE_SIZE": "8000", "VOLCACHE_MAX_KEY_SIZE": "1024"}
NAME = st.binary(min_size=1, max_size=20).map(
    lambda name: bytes(byte for byte in name if byte > 0x20 and byte not in b"/\x7f")
)


@pytest.fixture(autouse=True)
def _limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit values to the small volumes of the tests."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


def put_files(folder: Path, files: dict[bytes, bytes]) -> None:
    """Write files; names are bytes."""
    for name, value in files.items():
        path = folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str], str]:
    """Run an import; return its exit code, its lines and its errors."""
    code = cli.main(["import", *argv])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        # The first byte differs, so that no folder and file have the same name.
        st.tuples(st.lists(NAME, max_size=3), NAME).map(
            lambda key: b"/".join([*(b"d" + part for part in key[0]), b".f" + key[1]])
        ),
        st.binary(max_size=300),
        max_size=12,
    )
)
def test_import_restores_what_an_export_wrote(
    stored: dict[bytes, bytes],
) -> None:
    """Every key that is allowed in a PUT and is a path, byte for byte."""
    with tempfile.TemporaryDirectory() as root:
        store = open_store(f"{root}/before")
        for key, value in stored.items():
            store.put(key, value)
        store.close()
        lines: list[str] = []
        assert export(f"{root}/before", f"{root}/files", 0, lines.append)

        outcome = import_folder(
            f"{root}/after",
            f"{root}/files",
            limits=LIMITS,
            expires_ms=0,
            report=lines.append,
            fs=UnsyncedFileSystem(),
        )

        assert (outcome.files, outcome.left_out) == (len(stored), 0)
        assert values(f"{root}/after") == stored


@pytest.mark.slow
def test_file_names_become_keys_whatever_bytes_they_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spaces, punctuation, invalid UTF-8, dots, an empty value; and a summary."""
    files = {
        b"a/b/c.txt": b"text",
        b"with space & 100%#": b"",
        "gr\xfcn".encode(): b"\0\xff",
        b"\xff\xfe\x80": b"x",
        b".hidden/..two/...": b"dots",
        b"x" * 255: b"long",
        b"a/-/x": b"only the first name is reserved",
    }
    put_files(tmp_path / "files", files)
    target = tmp_path / "store"

    code, lines, err = run(capsys, str(target), str(tmp_path / "files"))

    assert (code, err) == (0, "")
    size = sum(map(len, files.values()))
    (summary,) = lines
    assert summary.startswith(f"{target}: 7 files, {size} B; left out: 0; ")
    assert summary.endswith(" s")
    assert values(target, volume_size=1 << 30, volume_num=10) == files


def test_imported_keys_get_new_values_and_others_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by a PUT; a second import changes nothing, and a check has no findings."""
    store = open_store(tmp_path / "store")
    store.put(b"old", b"kept")
    store.put(b"both", b"before")
    store.close()
    put_files(tmp_path / "files", {b"both": b"after", b"new": b"new"})
    expected = {b"old": b"kept", b"both": b"after", b"new": b"new"}
    for _ in range(2):
        assert run(capsys, str(tmp_path / "store"), str(tmp_path / "files"))[0] == 0
        assert cli.main(["check", str(tmp_path / "store")]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 1
        assert values(tmp_path / "store") == expected


def test_existing_volumes_stay_unless_the_settings_give_others(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No default drops the oldest volume or allocates a gigabyte."""
    directory = tmp_path / "store"
    store = open_store(directory, volume_size=16_384, volume_num=12)
    for number in range(11 * 16):
        store.put(b"%d" % number, bytes(900))
    assert store.stats.rotations == 10
    store.close()
    before = values(directory, volume_size=16_384, volume_num=12)
    put_files(tmp_path / "files", {b"new": b"value"})

    assert run(capsys, str(directory), str(tmp_path / "files"))[0] == 0

    expected = before | {b"new": b"value"}
    assert values(directory, volume_size=16_384, volume_num=12) == expected
    assert disk_bytes(directory) == 11 * 16_384

    monkeypatch.setenv("VOLCACHE_VOLUME_NUM", "2")
    assert run(capsys, str(directory), str(tmp_path / "files"))[0] == 0
    assert disk_bytes(directory) == 2 * 16_384


def test_settings_are_those_of_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A settings file sets volumes and expiry; a wrong setting is exit code 2."""
    config = tmp_path / "conf.toml"
    config.write_text("volume_size = 1048576\nvolume_num = 3\nmax_ttl = 60\n")
    put_files(tmp_path / "files", {b"key": b"value"})
    arguments = [str(tmp_path / "store"), str(tmp_path / "files")]

    assert run(capsys, *arguments, "--config", str(config))[0] == 0

    assert disk_bytes(tmp_path / "store") == 1 << 20
    assert len(list((tmp_path / "store" / "data").iterdir())) == 3
    store = open_store(tmp_path / "store")
    record = store.get(b"key")
    assert record is not None
    assert 50_000 < record.expires_ms - record.stored_us // 1000 <= 60_000
    store.close()
    config.write_text("volume_num = 1\n")
    code, lines, err = run(capsys, *arguments, "--config", str(config))
    assert (code, lines) == (2, [])
    assert err.startswith(f"volcache: {config}: volume_num = 1 is not allowed; ")


@pytest.mark.slow
def test_files_that_cannot_be_imported_are_listed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line each, with the reason; the rest is imported; no link is followed."""
    files = tmp_path / "files"
    outside = tmp_path / "outside"
    put_files(outside, {b"secret": b"s"})
    deep = b"/".join([b"d" * 200] * 6)
    put_files(
        files,
        {
            b"good": b"g",
            b"large": bytes(8001),
            b"line\nend": b"",
            deep: b"",
            b"shy": b"",
        },
    )
    put_files(files, {b"-/healthy": b""})
    (files / "to file").symlink_to(outside / "secret")
    (files / "to folder").symlink_to(outside)
    os.mkfifo(files / "pipe")
    (files / "empty").mkdir()
    plain_open = os.open

    def refuse(path: bytes, flags: int, *mode: int, **options: int) -> int:
        if path == bytes(files / "shy"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return plain_open(path, flags, *mode, **options)

    monkeypatch.setattr("volcache.cli.tree.os.open", refuse)

    code, lines, err = run(capsys, str(tmp_path / "store"), str(files))

    assert (code, err) == (1, "")
    rule = (
        "a key is the path after its first slash: at least one byte, no control bytes,"
        ' not beginning with "-/"'
    )
    assert lines[:-1] == [
        "left out large: value is 8001 bytes long; allowed are 0 to 8000",
        f"left out line%0Aend: bad key: it holds the control byte 0x0A; {rule}",
        "left out pipe: is not a regular file",
        "left out shy: cannot be read: Permission denied",
        "left out to%20file: is a symbolic link",
        "left out to%20folder: is a symbolic link",
        f'left out -/healthy: bad key: the prefix "-/" is reserved; {rule}',
        f"left out {deep.decode()}: key is 1205 bytes long; allowed are 1 to 1024",
    ]
    assert ": 1 file, 1 B; left out: 8; " in lines[-1]
    assert values(tmp_path / "store", volume_size=1 << 30, volume_num=10) == {
        b"good": b"g"
    }


def test_growing_file_is_left_out_and_unreadable_folder_is_listed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At most the limit is read of a file that was smaller when it was listed."""
    files = tmp_path / "files"
    put_files(files, {b"growing": b"1", b"closed/in": b"", b"good": b""})
    plain_open, plain_scan = os.open, os.scandir

    def grow(path: bytes, flags: int, *mode: int, **options: int) -> int:
        fd = plain_open(path, flags, *mode, **options)
        if path == bytes(files / "growing"):
            monkeypatch.setattr("os.read", lambda *_: b"x" * 5000)
        return fd

    def refuse(path: bytes) -> object:
        if path == bytes(files / "closed"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return plain_scan(path)

    put_files(files, {b"growing": b"1"})
    monkeypatch.setattr("volcache.cli.tree.os.scandir", refuse)
    monkeypatch.setattr("volcache.cli.tree.os.open", grow)
    lines: list[str] = []
    outcome = import_folder(
        str(tmp_path / "store"),
        str(files),
        limits=LIMITS,
        expires_ms=0,
        report=lines.append,
    )
    assert capsys.readouterr() == ("", "")
    assert (outcome.files, outcome.left_out) == (1, 2)
    assert lines[:2] == [
        "left out growing: value is 10000 bytes long; allowed are 0 to 8000",
        "left out closed: cannot be read: Permission denied",
    ]


def test_list_of_files_left_out_is_limited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first hundred have a line each; the others are counted."""
    (tmp_path / "files").mkdir()
    for number in range(LISTED_MAX + 7):
        (tmp_path / "files" / str(number)).symlink_to("nowhere")
    code, lines, _ = run(capsys, str(tmp_path / "store"), str(tmp_path / "files"))
    assert code == 1
    assert len(lines) == LISTED_MAX + 2
    assert lines[-2] == "left out 7 more"
    assert f" left out: {LISTED_MAX + 7};" in lines[-1]


@pytest.mark.parametrize(("eviction", "volumes"), [("fifo", 4), ("frequency", 3)])
def test_folder_that_does_not_fit_is_reported_and_the_last_files_stay(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    eviction: str,
    volumes: int,
) -> None:
    """
    Reported exactly if the first imported files will be overwritten.

    With "frequency", one volume is always free for copies.
    """
    monkeypatch.setenv("VOLCACHE_EVICTION", eviction)
    record = 64 + 3 + 1000
    fit = (LIMITS.volume_size - 64) // record * volumes
    for number in (fit, fit + 1):
        files = {b"%03d" % n: bytes([n % 251]) * 1000 for n in range(number)}
        put_files(tmp_path / "files", files)
        directory = tmp_path / f"store {number}"
        open_store(directory, eviction=eviction).close()

        code, lines, _ = run(capsys, str(directory), str(tmp_path / "files"))

        found = values(directory)
        assert all(files[key] == value for key, value in found.items())
        if number == fit:
            assert (code, len(lines), len(found)) == (0, 1, fit)
        else:
            assert code == 1
            assert lines[0] == (
                f"does not fit: {number * record / 1024:.1f} KiB into {volumes} volumes of"
                " 16.0 KiB; the first files will be overwritten"
            )
            assert " overwritten: 15 records;" in lines[1]
            assert sorted(found) == sorted(files)[15:]


def interrupt_at(
    monkeypatch: pytest.MonkeyPatch, number: int, raise_: Callable[[], object]
) -> None:
    """Call a function during the n-th put."""
    plain, puts = Store.put, []

    def put(self: Store, key: bytes, value: bytes, *, expires_ms: int) -> object:
        puts.append(key)
        if len(puts) == number:
            raise_()
        return plain(self, key, value, expires_ms=expires_ms)

    monkeypatch.setattr(Store, "put", put)


def test_ctrl_c_ends_the_import_between_two_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The current file is stored, the store closed and the handler restored."""
    put_files(tmp_path / "files", {b"%d" % n: b"value" for n in range(9)})
    open_store(tmp_path / "store").close()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupt_at(monkeypatch, 4, lambda: signal.raise_signal(signal.SIGINT))
        code, lines, err = run(capsys, str(tmp_path / "store"), str(tmp_path / "files"))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert (code, err) == (130, "")
    assert lines[0] == "interrupted: the files before are imported, the rest is not"
    assert ": 4 files, 20 B; left out: 0; " in lines[1]
    assert lines[1].endswith(" s; interrupted")
    assert cli.main(["check", str(tmp_path / "store")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1  # Closed: no line is missing.
    assert sorted(values(tmp_path / "store")) == [b"0", b"1", b"2", b"3"]


class WatchedFileSystem(UnsyncedFileSystem):
    """Records which files are changed, in order."""

    def __init__(self) -> None:
        """Start with no changes."""
        self.changes: list[str] = []
        self._names: dict[int, str] = {}

    def open(self, path: str, *, create: bool) -> int:
        """Remember the file of the descriptor."""
        fd = super().open(path, create=create)
        self._names[fd] = Path(path).name
        return fd

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:  # type: ignore[override]
        """Record the write of a record."""
        if any(b"VLR" in buffer[:3] for buffer in buffers):
            self.changes.append(f"record in {self._names[fd]}")
        return os.pwritev(fd, buffers, offset)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        """Record the file that is replaced."""
        Path(source).replace(target)
        self.changes.append(Path(target).name)


def import_one(directory: Path, folder: Path, value: bytes) -> list[str]:
    """Import a file with the key `key`; return which files were changed, in order."""
    put_files(folder, {b"key": value})
    fs = WatchedFileSystem()
    import_folder(
        str(directory),
        str(folder),
        limits=LIMITS,
        expires_ms=0,
        report=lambda _: None,
        fs=fs,
    )
    return fs.changes


def resumed(directory: Path) -> tuple[bool, bytes]:
    """Return whether a start has a copy of `key`, and under which id; then stop."""
    store = open_store(directory)
    versions = KeyVersions(*store.take_hot_snapshot())
    found = versions.may_hold(b"key"), versions.item_id(b"key")
    store.write_hot_snapshot(versions.encode)
    store.close()
    return found


def test_import_invalidates_all_copies_in_memcached(tmp_path: Path) -> None:
    """The mount that HOT.txt is bound to was not the last one any more."""
    directory, folder = tmp_path / "store", tmp_path / "files"
    # A new mount point, the start, the record, the stop.
    meta = "META.txt"
    assert import_one(directory, folder, b"old") == [meta, meta, "record in 0", meta]
    assert not (directory / "HOT.txt").exists()
    store = open_store(directory)
    versions = KeyVersions(*store.take_hot_snapshot())
    versions.record_promotion(b"key")
    store.write_hot_snapshot(versions.encode)
    store.close()
    assert resumed(directory) == (True, versions.item_id(b"key"))
    snapshot = (directory / "HOT.txt").read_bytes()

    assert import_one(directory, folder, b"new") == [meta, "record in 0", meta]

    assert (directory / "HOT.txt").read_bytes() == snapshot
    is_held, item_id = resumed(directory)
    assert not is_held
    assert item_id != versions.item_id(b"key")
    assert values(directory) == {b"key": b"new"}


def test_hot_txt_that_cannot_be_read_does_not_stop_the_import(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is neither read nor written."""
    open_store(tmp_path / "store").close()
    (tmp_path / "store" / "HOT.txt").mkdir()
    put_files(tmp_path / "files", {b"key": b"value"})
    code, lines, err = run(capsys, str(tmp_path / "store"), str(tmp_path / "files"))
    assert (code, err) == (0, "")
    assert ": 1 file, 5 B; left out: 0; " in lines[0]
    (tmp_path / "store" / "HOT.txt").rmdir()
    assert values(tmp_path / "store") == {b"key": b"value"}


def test_write_error_ends_the_import_with_a_summary(
    tmp_path: Path,
) -> None:
    """The error is raised, the imported files are counted, and the store is closed."""
    put_files(tmp_path / "files", {b"%d" % n: b"value" for n in range(9)})
    lines: list[str] = []

    class FailingFileSystem(WatchedFileSystem):
        def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:  # type: ignore[override]
            if len(self.changes) > 3:  # META.txt twice, and two records.
                raise OSError(errno.EIO, "Input/output error")
            return super().pwritev(fd, buffers, offset)

    with pytest.raises(StoreIOError, match="disk refused to write: Input/output"):
        import_folder(
            str(tmp_path / "store"),
            str(tmp_path / "files"),
            limits=LIMITS,
            expires_ms=0,
            report=lines.append,
            fs=FailingFileSystem(),
        )
    assert len(lines) == 1
    assert ": 2 files, 10 B; left out: 0; " in lines[0]
    assert sorted(values(tmp_path / "store")) == [b"0", b"1"]


def test_directory_in_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The running store is not disturbed."""
    (tmp_path / "files").mkdir()
    store = open_store(tmp_path / "store")
    code, lines, err = run(capsys, str(tmp_path / "store"), str(tmp_path / "files"))
    assert (code, lines) == (1, [])
    assert err == (
        f"volcache: mount point '{tmp_path / 'store'}' is in use by another process"
        f" (process id {os.getpid()}); stop it, or give another mount_point\n"
    )
    store.put(b"key", b"value")
    store.close()


@pytest.mark.parametrize(
    ("directory", "source", "message"),
    [
        ("store", "missing", "'missing' cannot be used: No such file or directory"),
        ("store", "file", "'file' cannot be used: Not a directory"),
        (
            "folder/store",
            "folder",
            "one of 'folder/store' and 'folder' contains the other",
        ),
        ("folder", ".", "one of 'folder' and '.' contains the other"),
        (
            "other",
            "folder",
            "mount point 'other' is not a volcache directory: it contains",
        ),
    ],
)
def test_wrong_folders_are_one_error_line_and_create_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    directory: str,
    source: str,
    message: str,
) -> None:
    """A source that is not a folder, one inside the other, a directory of other files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    put_files(tmp_path, {b"other/file": b""})
    before = sorted(tmp_path.rglob("*"))
    code, lines, err = run(capsys, directory, source)
    assert (code, lines, err.count("\n")) == (1, [], 1)
    assert err.startswith(f"volcache: {message}")
    assert sorted(tmp_path.rglob("*")) == before


def folder_with_a_link(root: Path) -> None:
    """Make a store, and a folder with a link and a file."""
    open_store(root / "store").close()
    put_files(root / "files", {b"b": b"value"})
    (root / "files" / "a").symlink_to("b")


@pytest.mark.slow
def test_import_completes_if_its_reader_goes_away(
    tmp_path: Path, *, unbuffered: bool
) -> None:
    """Files after one that is left out are stored; the exit code is 1."""
    folder_with_a_link(tmp_path)
    assert run_unheard(tmp_path, "import", "store", "files", unbuffered=unbuffered) == (
        1,
        "",
    )
    assert values(tmp_path / "store") == {b"b": b"value"}


@pytest.mark.slow
def test_import_completes_if_the_disk_under_its_output_is_full(
    tmp_path: Path, *, unbuffered: bool
) -> None:
    """One line on standard error, exit code 1, and every file is stored."""
    folder_with_a_link(tmp_path)
    assert run_with_full_output(
        tmp_path, "import", "store", "files", unbuffered=unbuffered
    ) == (1, "volcache: standard output cannot be written: No space left on device\n")
    assert values(tmp_path / "store") == {b"b": b"value"}
