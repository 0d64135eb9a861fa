"""`volcache import`: files of a folder become keys, and nothing else is touched."""

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

from support.stores import (
    UnsyncedFileSystem,
    disk_bytes,
    keys_of,
    open_store,
    value_of,
)
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
    """Let values fit the small volumes of the tests."""
    for name, value in ENVIRON.items():
        monkeypatch.setenv(name, value)


def put_files(folder: Path, files: dict[bytes, bytes]) -> None:
    """Write files under their names as bytes."""
    for name, value in files.items():
        path = folder / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)


def values(directory: Path | str, **options: int) -> dict[bytes, bytes | None]:
    """Return what a store answers for every key it has."""
    store = open_store(directory, **options)
    found = {key: value_of(store.get(key)) for key in keys_of(store, directory)}
    store.close()
    return found


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, list[str], str]:
    """Run an import; return its exit code, its lines and its errors."""
    code = cli.main(["import", *argv])
    out, err = capsys.readouterr()
    return code, out.splitlines(), err


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(
        # A folder and a file must not have one name; so they differ in the first byte.
        st.tuples(st.lists(NAME, max_size=3), NAME).map(
            lambda key: b"/".join([*(b"d" + part for part in key[0]), b".f" + key[1]])
        ),
        st.binary(max_size=300),
        max_size=12,
    )
)
def test_an_import_brings_back_what_an_export_wrote(
    stored: dict[bytes, bytes],
) -> None:
    """Every key that a PUT can have and that is a path, byte for byte."""
    with tempfile.TemporaryDirectory() as root:
        store = open_store(f"{root}/before")
        for key, value in stored.items():
            store.put(key, value)
        store.close()
        said: list[str] = []
        assert export(f"{root}/before", f"{root}/files", 0, said.append)

        outcome = import_folder(
            f"{root}/after",
            f"{root}/files",
            limits=LIMITS,
            expires_ms=0,
            say=said.append,
            fs=UnsyncedFileSystem(),
        )

        assert (outcome.files, outcome.left_out) == (len(stored), 0)
        assert values(f"{root}/after") == stored


def test_names_are_the_keys_whatever_bytes_they_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spaces, signs, bytes that are no UTF-8, dots, an empty value; and a summary."""
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
    assert summary.startswith(f"{target}: 7 files, {size} bytes; left out: 0; ")
    assert summary.endswith(" s")
    assert values(target, volume_size=1 << 30, volume_num=10) == files


def test_what_is_there_stays_and_a_key_that_is_imported_has_its_new_value(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As by a PUT; twice does the same, and a check finds nothing to say."""
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


def test_volumes_stay_as_they_are_unless_settings_say_otherwise(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No oldest volume is given up, and none takes a gigabyte, by a default."""
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
    """A file of them gives volumes and times to live; a wrong one is exit code 2."""
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
    assert 50_000 < record.expires_ms - record.stored_ms <= 60_000
    store.close()
    config.write_text("volume_num = 1\n")
    code, lines, err = run(capsys, *arguments, "--config", str(config))
    assert (code, lines) == (2, [])
    assert err.startswith(f"volcache: {config}: volume_num = 1 is not allowed; ")


def test_what_is_no_key_or_no_file_is_listed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line each with the reason; the rest is imported; nothing outside is read."""
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

    def refuse(path: bytes, flags: int, *mode: int) -> int:
        if path == bytes(files / "shy"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return plain_open(path, flags, *mode)

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
        "left out pipe: is no regular file",
        "left out shy: cannot be read: Permission denied",
        "left out to%20file: is a symbolic link",
        "left out to%20folder: is a symbolic link",
        f'left out -/healthy: bad key: the prefix "-/" is reserved; {rule}',
        f"left out {deep.decode()}: key is 1205 bytes long; allowed are 1 to 1024",
    ]
    assert ": 1 file, 1 byte; left out: 8; " in lines[-1]
    assert values(tmp_path / "store", volume_size=1 << 30, volume_num=10) == {
        b"good": b"g"
    }


def test_a_file_that_grows_is_left_out_and_an_unreadable_folder_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No more than the limit is read of a file that had less when it was looked at."""
    files = tmp_path / "files"
    put_files(files, {b"growing": b"1", b"closed/in": b"", b"good": b""})
    plain_open, plain_scan = os.open, os.scandir

    def grow(path: bytes, flags: int, *mode: int) -> int:
        fd = plain_open(path, flags, *mode)
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
    said: list[str] = []
    outcome = import_folder(
        str(tmp_path / "store"),
        str(files),
        limits=LIMITS,
        expires_ms=0,
        say=said.append,
    )
    assert capsys.readouterr() == ("", "")
    assert (outcome.files, outcome.left_out) == (1, 2)
    assert said[:2] == [
        "left out growing: value is 10000 bytes long; allowed are 0 to 8000",
        "left out closed: cannot be read: Permission denied",
    ]


def test_a_long_list_of_what_is_left_out_comes_to_an_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first hundred have a line, the others a number."""
    (tmp_path / "files").mkdir()
    for number in range(LISTED_MAX + 7):
        (tmp_path / "files" / str(number)).symlink_to("nowhere")
    code, lines, _ = run(capsys, str(tmp_path / "store"), str(tmp_path / "files"))
    assert code == 1
    assert len(lines) == LISTED_MAX + 2
    assert lines[-2] == "left out 7 more"
    assert f" left out: {LISTED_MAX + 7};" in lines[-1]


def test_a_folder_that_does_not_fit_is_said_before_and_the_last_files_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said exactly when the cycle comes round to what was imported first."""
    record = 64 + 3 + 1000
    fit = (LIMITS.volume_size - 64) // record * LIMITS.volume_num
    for number in (fit, fit + 1):
        files = {b"%03d" % n: bytes([n % 251]) * 1000 for n in range(number)}
        put_files(tmp_path / "files", files)
        directory = tmp_path / f"store {number}"
        open_store(directory).close()

        code, lines, _ = run(capsys, str(directory), str(tmp_path / "files"))

        found = values(directory)
        assert all(files[key] == value for key, value in found.items())
        if number == fit:
            assert (code, len(lines), len(found)) == (0, 1, fit)
        else:
            assert code == 1
            assert lines[0] == (
                f"does not fit: {number * record / 1000:.1f} kB into 4 volumes of 16.4 kB;"
                " the cycle overwrites the first files"
            )
            assert "overwritten by the cycle: 15 records;" in lines[1]
            assert sorted(found) == sorted(files)[15:]


def interrupt_at(
    monkeypatch: pytest.MonkeyPatch, number: int, raise_: Callable[[], object]
) -> None:
    """Do something in the middle of the n-th put."""
    plain, puts = Store.put, []

    def put(self: Store, key: bytes, value: bytes, *, expires_ms: int) -> object:
        puts.append(key)
        if len(puts) == number:
            raise_()
        return plain(self, key, value, expires_ms=expires_ms)

    monkeypatch.setattr(Store, "put", put)


def test_ctrl_c_ends_between_two_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file under way is stored, the store is closed, the handler is as before."""
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
    assert lines[0] == "interrupted: what was imported is kept, the rest is not in it"
    assert ": 4 files, 20 bytes; left out: 0; " in lines[1]
    assert lines[1].endswith(" s; interrupted")
    assert cli.main(["check", str(tmp_path / "store")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1  # Closed: no line is missing.
    assert sorted(values(tmp_path / "store")) == [b"0", b"1", b"2", b"3"]


class WatchedFileSystem(UnsyncedFileSystem):
    """Tells which files are changed, in order."""

    def __init__(self) -> None:
        """Have seen nothing."""
        self.changes: list[str] = []
        self._names: dict[int, str] = {}

    def open(self, path: str, *, create: bool) -> int:
        """Remember whose descriptor it is."""
        fd = super().open(path, create=create)
        self._names[fd] = Path(path).name
        return fd

    def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:  # type: ignore[override]
        """Note a write of a record."""
        if any(b"VLR" in buffer[:3] for buffer in buffers):
            self.changes.append(f"record in {self._names[fd]}")
        return os.pwritev(fd, buffers, offset)

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        """Note the file that is replaced."""
        Path(source).replace(target)
        self.changes.append(Path(target).name)


def test_no_copy_in_memcached_is_believed_after_an_import(tmp_path: Path) -> None:
    """A new epoch is on the disk before the first record is; without one, none is made."""
    put_files(tmp_path / "files", {b"key": b"after"})
    directory = tmp_path / "store"

    def imported() -> list[str]:
        fs = WatchedFileSystem()
        import_folder(
            str(directory),
            str(tmp_path / "files"),
            limits=LIMITS,
            expires_ms=0,
            say=lambda _: None,
            fs=fs,
        )
        return fs.changes

    assert imported() == ["META.txt", "record in 0"]
    assert not (directory / "HOT.txt").exists()
    store = open_store(directory)
    names = KeyVersions(store.journal(), store_id=store.store_id, boot_id="boot")
    names.record_promotion(b"key")
    before = names.name(b"key")
    names.close()
    store.close()

    changes = imported()

    assert changes[0] == "META.txt"
    assert set(changes[1:-1]) == {"HOT.txt"}
    assert changes[-1] == "record in 0"
    store = open_store(directory)
    names = KeyVersions(store.journal(), store_id=store.store_id, boot_id="boot")
    assert not names.may_hold(b"key")
    assert names.name(b"key") != before
    names.close()
    store.close()


def test_a_disk_that_refuses_ends_the_import_with_what_is_in_it(
    tmp_path: Path,
) -> None:
    """The error is raised, a line says what there is, and the store is closed."""
    put_files(tmp_path / "files", {b"%d" % n: b"value" for n in range(9)})
    said: list[str] = []

    class FailingFileSystem(WatchedFileSystem):
        def pwritev(self, fd: int, buffers: Sequence[bytes], offset: int) -> int:  # type: ignore[override]
            if len(self.changes) > 2:  # META.txt and two records.
                raise OSError(errno.EIO, "Input/output error")
            return super().pwritev(fd, buffers, offset)

    with pytest.raises(StoreIOError, match="disk refused to write: Input/output"):
        import_folder(
            str(tmp_path / "store"),
            str(tmp_path / "files"),
            limits=LIMITS,
            expires_ms=0,
            say=said.append,
            fs=FailingFileSystem(),
        )
    assert len(said) == 1
    assert ": 2 files, 10 bytes; left out: 0; " in said[0]
    assert sorted(values(tmp_path / "store")) == [b"0", b"1"]


def test_a_hot_txt_that_cannot_be_replaced_stops_the_import_before_any_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rather none than one that memcached may later contradict."""
    open_store(tmp_path / "store").close()
    (tmp_path / "store" / "HOT.txt").mkdir()
    put_files(tmp_path / "files", {b"key": b"value"})
    code, lines, err = run(capsys, str(tmp_path / "store"), str(tmp_path / "files"))
    assert code == 1
    assert (
        err == "volcache: HOT.txt of the mount point cannot be used: Is a directory\n"
    )
    assert ": 0 files, " in lines[0]
    (tmp_path / "store" / "HOT.txt").rmdir()
    assert values(tmp_path / "store") == {}


def test_a_directory_in_use_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A running store keeps us out, and is not disturbed."""
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
            "one of 'folder/store' and 'folder' lies in the other",
        ),
        ("folder", ".", "one of 'folder' and '.' lies in the other"),
        (
            "other",
            "folder",
            "mount point 'other' is not a volcache directory: it contains",
        ),
    ],
)
def test_what_cannot_be_is_said_in_one_line_and_makes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    directory: str,
    source: str,
    message: str,
) -> None:
    """A source that is none, one in the other, a directory of somebody else."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    put_files(tmp_path, {b"other/file": b""})
    before = sorted(tmp_path.rglob("*"))
    code, lines, err = run(capsys, directory, source)
    assert (code, lines, err.count("\n")) == (1, [], 1)
    assert err.startswith(f"volcache: {message}")
    assert sorted(tmp_path.rglob("*")) == before
