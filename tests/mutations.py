"""
Break the store in one place at a time, and check that a test fails each time.

    make mutations

Each mutation is applied to a copy of the source tree, and the tests below are run against
that copy, two copies at a time. The exit code is 0 only if each mutation makes a test fail
and the unchanged sources make none fail.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

if not __package__:  # Run as a script: the helpers are beside it.
    sys.path.insert(0, str(Path(__file__).resolve().parent))

from support.code_changes import Change, changed, move, remove, replace, replace_call

ROOT: Final = Path(__file__).resolve().parents[1]
# From the quick and narrow to the slow and wide; pytest stops at the first that fails.
TESTS: Final = (
    "tests/unit/store",
    "tests/golden",
    "tests/crash/test_power_loss.py",
    "tests/crash/test_bit_rot.py",
    "tests/crash/test_bad_disk.py",
    "tests/crash/test_every_operation.py",
    "tests/property",
)
JOBS: Final = 2
DEADLINE_SECONDS: Final = 600


class Mutation(NamedTuple):
    """A fault, and the changes of one function that cause it."""

    fault: str
    where: str  # `module:function` below `volcache`.
    changes: tuple[Change, ...]

    def apply(self, package: Path) -> None:
        """
        Change the module in a copy of the package.

        Raises:
            NotFoundError: A change is not found exactly once.
        """
        module, _, function = self.where.partition(":")
        path = package.joinpath(*module.split(".")).with_suffix(".py")
        path.write_text(changed(path.read_text(), function, *self.changes))


def mutation(fault: str, where: str, *changes: Change) -> Mutation:
    """Return a mutation of one change or more."""
    return Mutation(fault, where, changes)


MUTATIONS: Final = (
    mutation(
        "a position of another key returns its value",
        "store.format:decode_record",
        replace("data[key_start:key_end] != key", "False"),
    ),
    mutation(
        "a delete does not check the key on the disk",
        "store.store:Store.delete",
        replace("header.key != key", "False"),
    ),
    mutation(
        "a record longer than the index says is damaged",
        "store.store:Store._retry_read",
        replace("isinstance(error, TruncatedReadError)", "False"),
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
        "a record of another volume is accepted",
        "store.format:decode_record",
        replace("found != prefix", "found[:4] != prefix[:4]"),
    ),
    mutation(
        "a reclaimed volume stays in the table of volumes",
        "store.log:CircularLog._reclaim",
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
        "store.recovery:_open_data_files",
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
        move("self._reclaim", before="self._start"),
    ),
    mutation(
        "the header of a volume is written before META.txt names it",
        "store.log:CircularLog._start",
        move("volume.start", before="self._directory.write_manifest"),
    ),
    mutation(
        "a reclaimed volume that a power loss brings back is used",
        "store.inventory:_stale_seqs",
        replace("seq <= reclaimed", "False"),
    ),
    mutation(
        "volumes that a killed process had sealed are not synced",
        "store.log:CircularLog.__init__",
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
    mutation(
        "a stale record of an earlier mount is accepted",
        "store.scan:VolumeReader.header_at",
        replace("header.mount_count < mount_count", "False"),
    ),
)


def first_failure(source: Path, scratch: Path) -> str:
    """Return the test that failed first against a source tree; empty: none did."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header"]
    command += ["-p", "no:cacheprovider", "-p", "no:schemathesis"]
    command += ["-o", f"pythonpath={source} tests", *TESTS]
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        # Failing examples are kept for the next run, where they have no business.
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
    }
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_SECONDS,
    )
    if done.returncode == 0:
        return ""
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    if not failed:
        raise RuntimeError(done.stdout[-2000:] + done.stderr[-2000:])
    return failed[0].split(" ")[1]


def run(mutation: Mutation | None) -> bool:
    """Test a copy of the sources, print the verdict and return whether it is good."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "src")
        shutil.copytree(ROOT / "src", source)
        if mutation is not None:
            mutation.apply(source / "volcache")
        failed = first_failure(source, Path(folder))
    if mutation is None:
        is_good, line = not failed, f"unchanged: {failed or 'all tests pass'}"
    else:
        is_good, line = bool(failed), f"{mutation.fault}: {failed or 'NOT NOTICED'}"
    print(f"{'ok' if is_good else 'BAD':4} {line}", flush=True)  # noqa: T201
    return is_good


def main() -> int:
    """Run the tests against each mutation; 0 if all of them are noticed."""
    with ThreadPoolExecutor(JOBS) as pool:
        verdicts = list(pool.map(run, [None, *MUTATIONS]))
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
