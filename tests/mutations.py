"""
Take out what carries the load, one piece at a time, and see a test fail.

    make mutations

Each mutation is made in a copy of the source tree and the tests named with it are run
against that copy. The exit code is 0 only if every mutation makes a test fail, and the
tests pass without any.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

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
DEADLINE_SECONDS: Final = 300


class Mutation(NamedTuple):
    """A piece of code, and what stands in its place when it is gone."""

    what: str
    file: str
    old: str
    new: str


MUTATIONS: Final = (
    Mutation(
        "the checksum of a value is not compared",
        "format.py",
        "if crc32c(value) != checksum:",
        "if False:",
    ),
    Mutation(
        "the checksum of a record's header is not compared",
        "format.py",
        "or crc32c(data[:value_start]) != _CHECKED",
        "or False",
    ),
    Mutation(
        "a volume is not part of what a record must be",
        "format.py",
        "or not data.startswith(identity):\n        raise",
        "or not data.startswith(identity[:4]):\n        raise",
    ),
    Mutation(
        "a reclaimed volume stays in the table of volumes",
        "log.py",
        "            volume = self.volumes.pop(seq)\n            if volume.id",
        "            volume = self.volumes[seq]\n            if volume.id",
    ),
    Mutation(
        "META.txt is not synced before it is renamed",
        "files.py",
        "        write_all(fs, fd, data, 0)\n        fs.sync(fd)",
        "        write_all(fs, fd, data, 0)",
    ),
    Mutation(
        "the name of META.txt is not synced",
        "files.py",
        "    fs.sync_directory(os.path.dirname(path))",
        "    return",
    ),
    Mutation(
        "the names of new volumes are not synced",
        "recovery.py",
        "        mount.fs.sync_directory(mount.data)\n    except",
        "        pass\n    except",
    ),
    Mutation(
        "a deletion is not written to the volume",
        "volume.py",
        "        self.append(active, (key, 0, 0), (tombstone,), len(tombstone))\n",
        "        active.pending.append((key, 0, 0))\n",
    ),
    Mutation(
        "a deletion's line waits for others",
        "volume.py",
        "        if self._index_batch == _INDEX_BATCH:\n",
        "        if False:\n",
    ),
    Mutation(
        "a volume is forgotten in memory before the disk says so",
        "log.py",
        "        start_volume(self._mount, active, meta, self._clock(), self._stats)\n"
        "        self.meta = meta\n"
        "        self._reclaim(volume_id, everything=is_flush)",
        "        self._reclaim(volume_id, everything=is_flush)\n"
        "        start_volume(self._mount, active, meta, self._clock(), self._stats)\n"
        "        self.meta = meta",
    ),
    Mutation(
        "the header of a volume is written before META.txt names it",
        "log.py",
        "    mount.write_meta(meta)\n    volume.write_header(mount.fs, meta, now_ms)",
        "    volume.write_header(mount.fs, meta, now_ms)\n    mount.write_meta(meta)",
    ),
    Mutation(
        "a reclaimed volume that a power loss brings back counts",
        "inventory.py",
        "        self._drop_stale(seqs)\n",
        "",
    ),
    Mutation(
        "volumes a killed process had sealed are not synced",
        "log.py",
        "            self._sealed.extend(self.volumes[seq] for seq in sorted("
        "self.volumes))\n            self._sealed.remove(self.active)",
        "            pass",
    ),
    Mutation(
        "mode always does not sync",
        "volume.py",
        "        if self._syncs_each:\n",
        "        if False:\n",
    ),
    Mutation(
        "a volume whose sync failed is written further",
        "log.py",
        "                failed.retired = True\n                failed.capacity = 0\n",
        "                pass\n",
    ),
    Mutation(
        "a mount count does not tell a ghost",
        "scan.py",
        "if header is None or header.mount_count < mount_count:",
        "if header is None:",
    ),
)


def run_tests(source: Path) -> str:
    """Return the test that failed first against a source tree; empty: none did."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p"]
    command += ["no:cacheprovider", "-o", f"pythonpath={source} tests", *TESTS]
    environment = {**os.environ, "PYTHONPATH": str(source)}
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


def try_mutation(mutation: Mutation | None) -> str:
    """Run the tests against a copy of the sources with one piece taken out."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "src")
        shutil.copytree(ROOT / "src", source)
        if mutation is not None:
            path = source / "volcache" / "store" / mutation.file
            text = path.read_text()
            if text.count(mutation.old) != 1:
                raise RuntimeError(f"not found exactly once: {mutation.what}")
            path.write_text(text.replace(mutation.old, mutation.new))
        return run_tests(source)


def main() -> int:
    """Try all of them; 0 if each was noticed."""
    failed = try_mutation(None)
    print(f"{'ok' if not failed else 'BAD':4} nothing taken out: {failed or 'passes'}")  # noqa: T201
    bad = bool(failed)
    for mutation in MUTATIONS:
        failed = try_mutation(mutation)
        bad = bad or not failed
        verdict = "ok" if failed else "BAD"
        print(f"{verdict:4} {mutation.what}: {failed or 'NOT NOTICED'}", flush=True)  # noqa: T201
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
