"""
What the disk does by itself: one write after the other, and nothing else.

Writes as many bytes at a time, at the same rate, into files of the same length made
beforehand in the same way, as volcache under full write load; one after the other, then
the first again. Prints a `latency.Run` as JSON.

    .venv/bin/python bench/pwrite_loop.py FOLDER JOB

JOB is a `Job` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from latency import summarise

if TYPE_CHECKING:
    from collections.abc import Sequence

TICK_SECONDS: Final = 0.001  # Writes come in bursts of what is due since the last.


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """`synced_every` is in seconds, 0 for never; `rate` is in writes a second."""

    record_bytes: int
    file_bytes: int
    files: int
    rate: float
    seconds: float
    synced_every: float


def open_files(folder: Path, job: Job) -> list[int]:
    """Make the files, with their room on the disk taken."""
    found = []
    for number in range(job.files):
        descriptor = os.open(folder / f"p{number}", os.O_RDWR | os.O_CREAT, 0o600)
        os.posix_fallocate(descriptor, 0, job.file_bytes)
        found.append(descriptor)
    return found


def sync_until(end: threading.Event, files: Sequence[int], seconds: float) -> None:
    """Force the files to the disk from time to time, as volcache does."""
    while not end.wait(seconds):
        for descriptor in files:
            os.fdatasync(descriptor)


def write_for_a_while(files: Sequence[int], job: Job) -> list[float]:
    """Write and return how long each write took, in seconds."""
    record = os.urandom(job.record_bytes)
    per_file = job.file_bytes // job.record_bytes
    latencies: list[float] = []
    began = time.perf_counter()
    while (passed := time.perf_counter() - began) < job.seconds:
        for number in range(len(latencies), int(passed * job.rate)):
            file, place = divmod(number, per_file)
            before = time.perf_counter()
            os.pwrite(files[file % len(files)], record, place * job.record_bytes)
            latencies.append(time.perf_counter() - before)
        time.sleep(TICK_SECONDS)
    return latencies


def main() -> None:
    """Write, and print what came of it."""
    folder, text = sys.argv[1:]
    job = Job(**json.loads(text))
    files = open_files(Path(folder), job)
    end = threading.Event()
    syncing = threading.Thread(target=sync_until, args=(end, files, job.synced_every))
    if job.synced_every:
        syncing.start()
    latencies = write_for_a_while(files, job)
    end.set()
    if job.synced_every:
        syncing.join()
    # One "connection" that is not always busy: no request was held up by another.
    print(json.dumps(asdict(summarise(latencies, job.seconds, 0))))


if __name__ == "__main__":
    main()
