"""
Break the store in one place at a time, and check that a test fails each time.

    make mutations
    python tests/mutations.py [python|c]

Each mutation is applied to a copy of the source tree, and tests are run against that copy,
two copies at a time: for Python those below, without the native core; for C those that
mutations_c.py names, with it. The exit code is 0 only if the unchanged sources make no test
fail, and each mutation makes one fail, except those that say why none does.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if not __package__:  # Run as a script: the helpers are beside it.
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from mutations_c import C_MUTATIONS, CMutation
from support.c_changes import Objects
from support.code_changes import (
    Change,
    NotFoundError,
    changed,
    move,
    remove,
    replace,
    replace_call,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
# From the quick and narrow to the slow and wide; pytest stops at the first that fails.
TESTS: Final = (
    "tests/unit/test_cache.py",
    "tests/unit/http/test_dates.py",
    "tests/unit/store",
    "tests/golden",
    "tests/unit/hot",
    "tests/crash/test_refused_writes.py",
    "tests/crash/test_bad_disk.py",
    "tests/crash/test_bit_rot.py",
    "tests/crash/test_replaced_files.py",
    "tests/crash/test_every_operation.py",
    "tests/crash/test_power_loss.py",
    "tests/property",
)
JOBS: Final = 2
DEADLINE_SECONDS: Final = 600
PROGRAM_DEADLINE_SECONDS: Final = 60
# Of a single test, where it can be interrupted.
TEST_SECONDS: Final = 100
# How long a program with random input of its own runs if it finds nothing.
PROGRAM_SECONDS: Final = "4"
# What may become of a mutation, or of the unchanged sources.
GOOD: Final = frozenset(("noticed", "with a reason", "unchanged"))


class Mutation(NamedTuple):
    """A fault, and the changes of one function that cause it."""

    fault: str
    where: str  # `module:function` below `volcache`.
    changes: tuple[Change, ...]
    survives: str = ""  # Why no test fails.

    def changed_file(self, package: Path) -> tuple[Path, str]:
        """
        Return the path of the module in a package, and its changed source.

        Raises:
            NotFoundError: A change is not found exactly once.
        """
        module, _, function = self.where.partition(":")
        path = package.joinpath(*module.split(".")).with_suffix(".py")
        return path, changed(path.read_text(), function, *self.changes)


def mutation(fault: str, where: str, *changes: Change) -> Mutation:
    """Return a mutation of one change or more."""
    return Mutation(fault, where, changes)


MUTATIONS: Final = (
    # --- A record that is read ---------------------------------------------------------
    mutation(
        "a position of another key returns its value",
        "store.format:decode_record",
        replace("data[key_start:key_end] != key", "False"),
    ),
    mutation(
        "the checksum of a value is not compared",
        "store.format:decode_record",
        replace("crc32c(value) != checksum", "False"),
    ),
    mutation(
        "the checksum of a record's header is not compared",
        "store.format:decode_record",
        replace("crc32c(data[:value_start]) != _CHECKED", "False"),
    ),
    mutation(
        "a record with another salt is read",
        "store.format:decode_record",
        replace("found != prefix", "found[:4] != prefix[:4]"),
    ),
    mutation(
        "a record of another offset is read",
        "store.format:decode_record",
        replace("at != offset", "False"),
    ),
    mutation(
        "a record of another volume is read",
        "store.format:decode_record",
        replace("kind & _KIND_MAX != volume", "(kind & _KIND_MAX) >> 16"),
    ),
    mutation(
        "a header with another salt is accepted",
        "store.format:decode_header",
        replace("data.startswith(prefix)", "data.startswith(prefix[:4])"),
    ),
    mutation(
        "a header of another offset is accepted",
        "store.format:decode_header",
        replace("at != offset", "False"),
    ),
    mutation(
        "a header of another volume is accepted",
        "store.format:decode_header",
        replace("volume_found != volume", "False"),
    ),
    mutation(
        "a record longer than the index says is damaged",
        "store.store:Store._retry_read",
        replace("isinstance(error, TruncatedReadError)", "False"),
    ),
    mutation(
        "a record that the disk cannot read is a miss",
        "store.store:Store._count_failed_read",
        replace("isinstance(error, OSError)", "False"),
    ),
    mutation(
        "a delete does not check the key on the disk",
        "store.store:Store.delete",
        replace("header.key != key", "False"),
    ),
    # --- Files that were replaced ------------------------------------------------------
    mutation(
        "a replaced data file is used",
        "store.inventory:_Comparison.compare",
        replace("(header.use, header.store_id) != (use, self._store_id)", "False"),
    ),
    mutation(
        "a replaced data file is taken for one that a crash explains",
        "store.inventory:_Comparison._is_stale",
        replace(
            "header.store_id != self._store_id or header.use.seq >= listed.use.seq",
            "False",
        ),
    ),
    mutation(
        "a synced volume is taken for one that a power loss took",
        "store.inventory:_Comparison._is_stale",
        replace("listed.state != 'synced'", "True"),
    ),
    mutation(
        "a volume that was written is taken for one not started",
        "store.inventory:_Comparison._is_stale",
        replace("not is_written", "True"),
    ),
    mutation(
        "a volume whose keys are not known is ignored",
        "store.inventory:_with_refusal",
        replace("inventory.unknown_ids", "False"),
    ),
    mutation(
        "most volumes may be those of another use",
        "store.inventory:_with_refusal",
        replace("2 * len(inventory.rejected_ids) > number", "False"),
    ),
    mutation(
        "META.txt may be older than a data file",
        "store.inventory:_with_refusal",
        replace_call("_newer", "[]"),
    ),
    mutation(
        "LOCK may contradict META.txt",
        "store.inventory:_with_refusal",
        replace_call("_contradiction", "None"),
    ),
    mutation(
        "META.txt may be older than an index file",
        "store.recovery:Replay.replay",
        replace("other.seq > self._active.seq", "False"),
    ),
    mutation(
        "an index file with a block of a copy is used",
        "store.index_file:IndexContents.read",
        replace_call("self._are_ours", "True"),
    ),
    mutation(
        "an index file without its last blocks is complete",
        "store.recovery:is_whole",
        replace(
            "(contents.volume_end, contents.checksum)"
            " == (listed.end, listed.index_checksum)",
            "True",
        ),
    ),
    mutation(
        "an index file of the right length but other contents is complete",
        "store.recovery:is_whole",
        replace(
            "(contents.volume_end, contents.checksum)"
            " == (listed.end, listed.index_checksum)",
            "contents.volume_end == listed.end",
        ),
    ),
    mutation(
        "a sealed index file may end before its volume",
        "store.recovery:is_whole",
        replace("contents.volume_end >= listed.end", "True"),
    ),
    mutation(
        "a replaced volume needs no complete index file",
        "store.recovery:Replay._check_known",
        replace("volume.id in self._inventory.rejected_ids", "False"),
    ),
    mutation(
        "a replaced volume is written further",
        "store.recovery:_Recovery._write_header",
        replace("volume.id in inventory.rejected_ids", "False"),
    ),
    mutation(
        "a mount writes records with the salt of the mount before",
        "store.recovery:_Recovery._write_files",
        remove("active.add_segment"),
    ),
    # --- Without META.txt --------------------------------------------------------------
    mutation(
        "volumes that do not follow each other are used",
        "store.inventory:_sequence",
        replace("not is_previous", "False"),
    ),
    mutation(
        "the previous salt is not compared",
        "store.inventory:_sequence",
        replace("last.header.previous_salt == found.listed('open').salts[-1]", "True"),
    ),
    mutation(
        "a reclaimed volume is used",
        "store.inventory:_Rebuilt._chain",
        replace("one.use.seq >= oldest_seq", "True"),
    ),
    mutation(
        "volumes of two stores are used",
        "store.inventory:_Rebuilt._store_id",
        replace("len(counted) > 1", "False"),
    ),
    mutation(
        "the volume that LOCK names may be missing",
        "store.inventory:_Rebuilt.inventory",
        replace("progress and not is_confirmed", "False"),
    ),
    mutation(
        "an index file may be newer than its volume",
        "store.inventory:_Rebuilt._candidates",
        replace("other != name", "False"),
    ),
    mutation(
        "the time is not taken from the headers",
        "store.inventory:_Rebuilt.inventory",
        replace("max((header.started_ms for header in headers), default=0)", "0"),
    ),
    # --- Keys that are not known -------------------------------------------------------
    mutation(
        "a gap in a volume hides no key",
        "store.recovery:Replay._is_known",
        replace("tail.has_gap", "False"),
    ),
    mutation(
        "records missing before the end in META.txt hide no key",
        "store.recovery:Replay._is_known",
        replace("tail.end >= listed.end", "True"),
    ),
    mutation(
        "records missing before the end in LOCK hide no key",
        "store.recovery:Replay._is_known",
        replace("tail.end >= line.end", "True"),
    ),
    mutation(
        "an earlier index file hides no key without META.txt",
        "store.recovery:Replay._is_known",
        replace("contents.is_ours and contents.is_whole", "False"),
    ),
    mutation(
        "a volume whose keys are not all known stays",
        "store.inventory:outdated_bounds",
        replace("use.seq + 1", "use.seq"),
    ),
    mutation(
        "a header that cannot be read is no record",
        "store.scan:_between",
        replace_call("reader.may_hide_record", "False"),
    ),
    mutation(
        "a value that cannot be read is damaged",
        "store.scan:_check_value",
        replace("reader.is_unreadable(header.offset, end)", "False"),
    ),
    mutation(
        "a header with a wrong bit is not corrected",
        "store.scan:scan_records",
        replace_call("reader.corrected_header_at", "None"),
    ),
    mutation(
        "a value with a wrong bit is torn",
        "store.scan:_check_value",
        replace_call("is_one_bit_wrong", "False"),
    ),
    # --- The clock ---------------------------------------------------------------------
    mutation(
        "the clock goes back",
        "store.clock:Clock.now_us",
        replace("now - elapsed > self._offset_us", "True"),
    ),
    mutation(
        "two records have the same time",
        "store.clock:Clock.next_us",
        replace("self._stored_us + 1", "self._stored_us"),
    ),
    mutation(
        "a time of the machine is not converted",
        "store.clock:Clock.from_machine_ms",
        replace("(self.now_us() - self._machine_us()) // 1000", "0"),
    ),
    mutation(
        "a start does not advance the clock",
        "store.recovery:_Recovery._replay_files",
        remove("self._clock.advance_to"),
    ),
    mutation(
        "a start ignores the time in META.txt",
        "store.recovery:Replay.__init__",
        replace("manifest.time_us", "0"),
    ),
    mutation(
        "a start ignores the time in LOCK",
        "store.recovery:Replay.__init__",
        replace("line.time_us", "0"),
    ),
    mutation(
        "a start ignores the time of scanned records",
        "store.recovery:Replay._replay_record",
        remove("self.latest_us"),
    ),
    mutation(
        "a start ignores the time of the last indexed record",
        "store.recovery:Replay._see_time_of",
        remove("self.latest_us"),
    ),
    mutation(
        "a purged record is returned",
        "store.store:Store._current",
        replace("purges.covers(key, record.stored_us)", "False"),
    ),
    mutation(
        "a purged record is copied",
        "store.reclaim:PythonReclaim._copy",
        replace("self._index.purges.covers(key, header.stored_us)", "False"),
    ),
    mutation(
        "an earlier PURGE.txt is used",
        "store.purges:_is_next",
        replace("file.listed == listed", "True"),
    ),
    mutation(
        "an expiry that was seen is not noted",
        "store.store:Store._current",
        remove("self._log.note_expiry"),
    ),
    mutation(
        "a date may name two values",
        "http.responses:ValueHeaders.make",
        replace("modified <= self.second", "True"),
    ),
    mutation(
        "a date that was sent is not seen by the store",
        "http.responses:ValueHeaders.update",
        remove("self._remaining_ms"),
    ),
    mutation(
        "If-Modified-Since may be in the future",
        "http.preconditions:is_not_modified",
        replace("modified <= date <= now", "modified <= date"),
    ),
    # --- Copies in the hot tier --------------------------------------------------------
    mutation(
        "a put leaves the copies of its key",
        "cache:Cache.put",
        remove("self.drop_copies"),
    ),
    mutation(
        "a delete leaves the copies of its key",
        "cache:Cache.delete",
        replace("self.drop_copies(key)", "True"),
    ),
    mutation(
        "copies are invalidated before a delete is on the disk",
        "cache:Cache.delete",
        move("self.drop_copies", before="self.store.delete"),
    ),
    mutation(
        "a copy is promoted although its record was replaced meanwhile",
        "hot.memcached:MemcachedTier.promote",
        replace("is_current()", "True"),
    ),
    mutation(
        "a touch leaves the copies of its key",
        "cache:Cache.touch",
        remove("self.drop_copies"),
    ),
    mutation(
        "a touch makes a new version",
        "store.store:Store.touch",
        replace("record.stored_us", "None"),
    ),
    mutation(
        "a damaged record that a touch has made is taken for a copy of the one before",
        "store.recovery:Replay._has_original",
        replace("other.expires_ms", "header.expires_ms"),
    ),
    mutation(
        "a conditional PUT lets other threads come between",
        "http.app:App._put",
        replace("self.cache.exclusive()", "suppress()"),
    ),
    mutation(
        "the snapshot of another mount is used",
        "hot.versions:KeyVersions._resume",
        replace("not text.startswith(first)", "False"),
    ),
    mutation(
        "a copy of HOT.txt is used",
        "store.store:Store.take_hot_snapshot",
        replace("self._directory.identify_hot() == valid", "True"),
    ),
    mutation(
        "the snapshot is used without the last files",
        "store.recovery:_Recovery.run",
        replace("self._replay.is_clean", "True"),
    ),
    # --- Writing -----------------------------------------------------------------------
    mutation(
        "LOCK alone locks a directory",
        "store.directory:StoreDirectory.open",
        replace("_take_lock(fs, path, descriptors[0])", "None"),
    ),
    mutation(
        "a reclaimed volume stays in the table of volumes",
        "store.log:CircularLog._drop",
        replace_call("self.volumes.pop", "self.volumes[seq]"),
    ),
    mutation(
        "META.txt is not synced before it is renamed",
        "store.files:replace_file",
        remove("fs.sync"),
    ),
    mutation(
        "the name of META.txt is not synced",
        "store.files:replace_file",
        remove("fs.sync_directory"),
    ),
    mutation(
        "the names of new volumes are not synced",
        "store.recovery:_create_data_files",
        remove("directory.fs.sync_directory"),
    ),
    mutation(
        "a deletion is not written to the volume",
        "store.store:Store.delete",
        remove("self._append"),
    ),
    mutation(
        "the index entry of a deletion waits for others",
        "store.store:Store.delete",
        replace("volume.has_index_backlog", "True"),
    ),
    mutation(
        "a volume is reclaimed in memory before META.txt is written",
        "store.log:CircularLog._rotate",
        move("self._drop", before="self._start"),
    ),
    mutation(
        "the header of a volume is written before META.txt names it",
        "store.log:CircularLog._start",
        replace_call(
            "remove_index_file",
            "volume.start(0, mount_count=0, oldest_seq=0, previous_salt=0)",
        ),
    ),
    mutation(
        "volumes that a killed process had sealed are not synced",
        "store.log:CircularLog._resume",
        remove("self._unsynced.extend"),
    ),
    mutation(
        "sync mode always does not sync",
        "store.store:Store._append",
        replace("self._syncs_each", "False"),
    ),
    mutation(
        "a volume whose sync failed is written further",
        "store.log:CircularLog._retire_unsynced",
        remove("failed.retire"),
    ),
    # --- What the disk has refused -----------------------------------------------------
    mutation(
        "a refused record is not erased",
        "store.log:CircularLog._settle",
        remove("volume.erase_refused"),
    ),
    mutation(
        "that a refused record is erased is not synced",
        "store.log:CircularLog._settle",
        replace('self._sync_mode == "always"', "False"),
    ),
    mutation(
        "META.txt does not say where a volume ends whose sync has failed",
        "store.log:CircularLog._settle",
        remove("self._write_manifest"),
    ),
    mutation(
        "a value is stored although another one that was refused is not erased",
        "store.log:CircularLog.settle",
        replace("self._unsettled", "False"),
    ),
    mutation(
        "after a refused append the other ring is written further",
        "store.log:CircularLog.hold",
        remove("active.hold"),
    ),
    mutation(
        "a deletion of nothing is answered although a refused value may return",
        "store.store:Store.delete",
        remove("self._log.settle"),
    ),
    mutation(
        "a volume whose sync has failed stays open in META.txt",
        "store.log:CircularLog._retire_unsynced",
        remove("self.hold"),
    ),
    mutation(
        "a volume without its header is written",
        "store.log:CircularLog._start",
        remove("self.hold"),
    ),
    mutation(
        "a volume is started although the last one has no header",
        "store.log:CircularLog._rotate",
        remove("self._settle"),
    ),
    mutation(
        "LOCK names a volume that has no header",
        "store.log:CircularLog.note_progress",
        replace("self._refusal or self._unsettled", "self._refusal"),
    ),
    mutation(
        "a volume is given up although META.txt names it",
        "store.log:CircularLog._give_up_oldest",
        remove("self.hold"),
    ),
    mutation(
        "a start uses what is behind the end of a closed volume",
        "store.recovery:tail_reader",
        replace("listed.end or WHOLE_VOLUME", "WHOLE_VOLUME"),
    ),
    mutation(
        "a record replaces one that was stored later in the other ring",
        "store.recovery:Replay._is_outdated",
        replace("other.stored_us > header.stored_us", "False"),
    ),
    mutation(
        "the clock of a start is behind the last record of a volume",
        "store.recovery:Replay.replay",
        remove("self._see_time_of"),
    ),
    # --- What is evicted first ---------------------------------------------------------
    mutation(
        "META.txt does not say that a reclaim of probation has begun",
        "store.log:CircularLog._begin_reclaim",
        remove("self._write_manifest"),
    ),
    mutation(
        "the oldest volume of probation is reclaimed first",
        "store.log:CircularLog._victim",
        replace("probation[0].seq <= self._probation_first", "True"),
    ),
    mutation(
        "a lower volume_num removes the volumes that are written",
        "store.recovery:_Recovery._oldest",
        replace("self._newest(self._found)", "[]"),
    ),
    mutation(
        "what a start must reclaim first is written",
        "store.recovery:_Recovery._newest",
        replace("self._may_be_outdated(v)", "False"),
    ),
)


class Ended(NamedTuple):
    """How a command ended; it is `None` if it had to be killed after its time."""

    code: int | None
    stdout: str
    stderr: str


def ended(
    command: Sequence[str | Path],
    seconds: float,
    environment: dict[str, str] | None = None,
    folder: Path = ROOT,
) -> Ended:
    """Run a command; whatever it has started is killed with it after its time."""
    process = subprocess.Popen(
        list(map(str, command)),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        return Ended(None, stdout, stderr)
    return Ended(process.returncode, stdout, stderr)


def first_failure(
    source: Path,
    scratch: Path,
    tests: Iterable[str] = TESTS,
    *,
    folder: Path = ROOT,
    is_pure: bool = True,
) -> str:
    """
    Return the test that failed first against a source tree; empty: none did.

    Args:
        source: Of the packages.
        scratch: For what the tests leave behind.
        tests: Paths in `folder`.
        folder: Of the tests; those that start servers take the sources beside it.
        is_pure: Without the native core.
    """
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header"]
    command += ["-p", "no:cacheprovider", "-p", "no:schemathesis"]
    # The same examples each time, and no deadline: a slow example is not a failure.
    command += ["--hypothesis-profile=ci"]
    command += [f"--timeout={TEST_SECONDS}"]
    command += ["-o", f"pythonpath={source} tests", *tests]
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        # Where the tests take samples, the same ones each time.
        "SEED": "1",
        # Failing examples are kept for the next run, where they have no business.
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
    }
    environment.pop("VOLCACHE_PURE", None)
    if is_pure:  # The native core would do in C what was changed in Python.
        environment["VOLCACHE_PURE"] = "1"
    done = ended(command, DEADLINE_SECONDS, environment, folder)
    if done.code == 0:
        return ""
    if done.code is not None and done.code < 0:
        return f"pytest: {ending(done)}"
    failed = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR "))
    ]
    if done.code != 1 or not failed:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return failed[0].partition(" ")[2].partition(" - ")[0]


def ending(done: Ended) -> str:
    """Return how a process that failed ended."""
    if done.code is None:
        return "did not end"
    if done.code < 0:
        return f"ended by {signal.Signals(-done.code).name}"
    return f"exit code {done.code}"


def first_failed_program(objects: Objects, names: Iterable[str]) -> str:
    """Run programs of tests/native, linked with some objects; empty: none has failed."""
    for name in names:
        test = ROOT / "tests" / "native" / f"{name}.c"
        program = objects.program(test)
        corpus = sorted((test.parent / "corpus" / name).glob("*"))
        runs: list[list[str | Path]] = [[PROGRAM_SECONDS, "1"]]
        if name.endswith("_test"):
            runs = [["1"]]
        elif name.endswith("_fuzz"):
            runs = [[*corpus], ["-r", *runs[0]]] if corpus else [["-r", *runs[0]]]
        for arguments in runs:
            done = ended([program, *arguments], PROGRAM_DEADLINE_SECONDS)
            if done.code != 0:
                said = done.stderr.replace(f"{ROOT}/", "").splitlines()
                return f"{name}: {said[0] if said else ending(done)}"
    return ""


def python_failure(mutation: Mutation | None, folder: Path) -> str:
    """Return the test that fails first with a mutation of Python; empty: none."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source)
    if mutation is not None:
        path, text = mutation.changed_file(source / "volcache")
        path.write_text(text)
    return first_failure(source, folder)


def c_failure(objects: Objects, mutation: CMutation | None, folder: Path) -> str:
    """Return the test or program that fails first with a mutation of C; empty: none."""
    source = folder / "src"
    shutil.copytree(ROOT / "src", source)
    names = dict.fromkeys(test for one in C_MUTATIONS for test in one.tests)
    if mutation is not None:
        path, text = mutation.changed_file(source / "volcache")
        path.write_text(text)
        names = dict.fromkeys(mutation.tests)
    objects = objects.within(source, folder, changed=mutation.file if mutation else "")
    failed = first_failed_program(objects, [name for name in names if "/" not in name])
    paths = [name for name in names if "/" in name]
    if failed or not paths:
        return failed
    objects.extension()
    for name in ("tests", "tools", "conf"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "pyproject.toml", folder)
    return first_failure(source, folder, paths, folder=folder, is_pure=False)


class Trial(NamedTuple):
    """A mutation to be tested, or the unchanged sources."""

    language: str
    failure: Callable[[Path], str]  # What fails first, in a folder of its own.
    mutation: Mutation | CMutation | None = None


def judge(trial: Trial) -> tuple[str, str]:
    """Print what becomes of a trial; return its language and the word it is counted by."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            failed = trial.failure(Path(folder))
        except (NotFoundError, RuntimeError) as error:
            failed, word = f"cannot be tested: {error}", "not tested"
        else:
            word = "noticed" if failed else "NOT NOTICED"
    fault = f"{trial.language}: unchanged"
    if trial.mutation is None:
        word = "unchanged" if word == "NOT NOTICED" else "unchanged fails"
        failed = failed or "all tests pass"
    else:
        fault = trial.mutation.fault
        if not failed and trial.mutation.survives:
            failed, word = trial.mutation.survives, "with a reason"
    verdict = "ok" if word in GOOD else "BAD"
    print(f"{verdict:4} {fault}: {failed or word}", flush=True)  # noqa: T201
    return trial.language, word


def trials(languages: Sequence[str], folder: Path) -> list[Trial]:
    """Return what is to be tested; `folder` is for what is built once."""
    found: list[Trial] = []
    if "python" in languages:
        found += [
            Trial("python", partial(python_failure, one), one)
            for one in (None, *MUTATIONS)
        ]
    if "c" in languages:
        objects = Objects.of(ROOT / "src", folder)
        found += [
            Trial("c", partial(c_failure, objects, one), one)
            for one in (None, *C_MUTATIONS)
        ]
    return found


def main(arguments: Sequence[str]) -> int:
    """Test each mutation of Python, C or both; 0 if all are noticed or have a reason."""
    languages = arguments or ("python", "c")
    if not {"python", "c"}.issuperset(languages):
        print("usage: mutations.py [python|c]", file=sys.stderr)  # noqa: T201
        return 2
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(JOBS) as pool:
        words = Counter(pool.map(judge, trials(languages, Path(folder))))
    counts = [
        f"{language}: "
        + ", ".join(f"{n} {word}" for (of, word), n in words.items() if of == language)
        for language in languages
    ]
    print("; ".join(counts))  # noqa: T201
    return 0 if GOOD.issuperset(word for _, word in words) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
