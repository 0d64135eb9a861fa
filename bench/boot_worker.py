"""
The processes `boot.py` starts: one fills a store, the others open it and look at it.

    PYTHONPATH=src .venv/bin/python bench/boot_worker.py fill DIRECTORY JOB
    PYTHONPATH=src .venv/bin/python bench/boot_worker.py open DIRECTORY JOB

JOB is a `Job` as JSON; `open` prints an `Opened` as JSON.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Final

from volcache.store import Store

NOT_OURS: Final = (type, ModuleType, FunctionType, BuiltinFunctionType)
SAMPLES: Final = 1000


class WrongStoreError(RuntimeError):
    """A key that was put is not there: the figures would mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the store holds."""

    keys: int
    key_bytes: int
    value_bytes: int
    volume_size: int
    volume_num: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """What opening cost; memory in bytes for all keys together."""

    seconds: float
    resident: int
    resident_peak: int
    objects: int


def key_of(number: int, key_bytes: int) -> bytes:
    """Make the key of a number: a path, as long as asked for."""
    return b"bench/%0*d" % (key_bytes - len(b"bench/"), number)


def open_store(directory: str, job: Job) -> Store:
    """Open the store; nothing is synced before it is closed."""
    return Store.open(
        directory,
        volume_size=job.volume_size,
        volume_num=job.volume_num,
        sync_mode="none",
    )


def fill(directory: str, job: Job) -> None:
    """Put every key once and close."""
    store = open_store(directory, job)
    value = b"v" * job.value_bytes
    for number in range(job.keys):
        store.put(key_of(number, job.key_bytes), value)
    store.close()


def memory_bytes(name: str) -> int:
    """Return a line of `/proc/self/status`, such as VmRSS."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def objects_bytes(root: object) -> int:
    """Add up `sys.getsizeof` of everything an object holds, each thing once."""
    seen = {id(root)}
    waiting = [root]
    total = 0
    while waiting:
        item = waiting.pop()
        total += sys.getsizeof(item)
        for held in gc.get_referents(item):
            if id(held) not in seen and not isinstance(held, NOT_OURS):
                seen.add(id(held))
                waiting.append(held)
    return total


def open_and_measure(directory: str, job: Job) -> Opened:
    """
    Time the opening and weigh what it made.

    Raises:
        WrongStoreError: A key is missing.
    """
    gc.collect()
    resident = memory_bytes("VmRSS")
    begin = time.perf_counter()
    store = open_store(directory, job)
    seconds = time.perf_counter() - begin
    peak = memory_bytes("VmHWM") - resident
    gc.collect()
    resident = memory_bytes("VmRSS") - resident
    objects = objects_bytes(store)
    for number in range(0, job.keys, max(1, job.keys // SAMPLES)):
        if store.get(key_of(number, job.key_bytes)) is None:
            raise WrongStoreError(f"key {number} is missing")
    store.close()
    return Opened(
        seconds=seconds, resident=resident, resident_peak=peak, objects=objects
    )


def main() -> None:
    """Do what the first argument says."""
    verb, directory, text = sys.argv[1:]
    job = Job(**json.loads(text))
    if verb == "fill":
        fill(directory, job)
    else:
        print(json.dumps(asdict(open_and_measure(directory, job))))


if __name__ == "__main__":
    main()
