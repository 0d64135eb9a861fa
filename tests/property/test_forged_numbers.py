"""
Each number in each file of a mount point, replaced by others; the checksums are right.

A start works, or refuses with one line, and so do the tools. What is served was stored, and
nothing is read that is longer than the volumes.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from typing import Final
from unittest import mock

import pytest
from google_crc32c import value as crc32c

from support.extent import SEED, Count, every
from support.histories import MOUNT_POINT, Files, make_disk
from support.simulated import SimulatedFileSystem
from volcache.cli.repair import repair
from volcache.errors import StoreError, VolcacheError
from volcache.store import Store
from volcache.store.format import VOLUME_HEADER_BYTES, prefix_length
from volcache.store.index_format import close_block
from volcache.store.offline import OfflineStore
from volcache.store.volume_check import Counts

pytestmark = [pytest.mark.property, pytest.mark.slow]

VOLUME_SIZE: Final = 4096
VOLUME_NUM: Final = 6
# Read at once by a scan; more than all volumes together.
READ_BYTES_MAX: Final = 2 << 20
KEYS: Final = [b"key %d" % number for number in range(8)]
NUMBERS: Final = (
    *(0, 1, 2**16, 2**31, 2**32 - 1, 2**40, 2**40 + 1, 2**47, 2**56, 2**57 - 1, 2**57),
    *(2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**20),
)

# Offset and length of each number.
HEADER_FIELDS: Final = ((20, 8), (28, 2), (30, 1), (31, 1), (32, 4), (36, 8), (44, 8))
RECORD_FIELDS: Final = (
    *((12, 2), (14, 1), (15, 1), (16, 4), (20, 4), (24, 4), (28, 4), (32, 8), (40, 8)),
    *((48, 8), (56, 2), (58, 1), (59, 1)),
)


class Disk(SimulatedFileSystem):
    """One that no read may ask for more than there is."""

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read."""
        assert length <= READ_BYTES_MAX, length
        return super().pread(fd, length, offset)


def opened(fs: SimulatedFileSystem) -> Store:
    """Open a store with two rings and the clock of the core."""
    return Store.open(
        MOUNT_POINT,
        fs=fs,
        sync_mode="periodic",
        volume_size=VOLUME_SIZE,
        volume_num=VOLUME_NUM,
        eviction="frequency",
    )


def value_of(key: bytes, turn: int) -> bytes:
    """Return the value of a key at a time; each has another one."""
    return b"%b, %d. " % (key, turn) * 20


def fill(fs: SimulatedFileSystem, *, is_stopped: bool) -> None:
    """Store all kinds of records in two mounts."""
    for mount in range(2):
        store = opened(fs)
        for turn in range(mount * 4, mount * 4 + 4):
            for number, key in enumerate(KEYS):
                if store.get(key) is None or number % 2:
                    store.put(key, value_of(key, turn), expires_ms=number * 10**15)
            store.delete(KEYS[turn])
        store.purge(b"key 5")
        store.sync()
        store.put(KEYS[5], value_of(KEYS[5], 9), content_type=b"text/plain")
        store.put(KEYS[6], value_of(KEYS[6], 9))
        if is_stopped or not mount:
            store.close()


@cache
def made(*, is_stopped: bool) -> Files:
    """Return the files of a store that was stopped, or killed."""
    dice = random.Random(1)  # noqa: S311 - The same at each call.
    fs = make_disk({})
    with mock.patch("secrets.randbits", dice.getrandbits):
        fill(fs, is_stopped=is_stopped)
    names = ["META.txt", "LOCK", "PURGE.txt"]
    names += [
        f"{folder}/{n}" for folder in ("data", "index") for n in range(VOLUME_NUM)
    ]
    root = fs._directory(MOUNT_POINT)
    assert {"META.txt", "LOCK", "PURGE.txt"} <= root.names.keys()
    found = {}
    for name in names:
        with suppress(KeyError):
            found[name] = bytes(fs.file(f"{MOUNT_POINT}/{name}").data)
    return found


# --- Forging ------------------------------------------------------------------------


def forged_text(data: bytes, resigned: Callable[[bytes], bytes]) -> Iterator[bytes]:
    """Yield a text with each of its numbers replaced by others."""
    for found in re.finditer(rb"(?<![0-9a-f])[0-9]+(?![0-9a-f])", data):
        for number in NUMBERS:
            # Numbers of a fixed width begin with zeros.
            text = b"%d" % number
            text = text.rjust(len(found[0]), b"0") if found[0][:1] == b"0" else text
            yield resigned(data[: found.start()] + text + data[found.end() :])


def resigned_file(data: bytes) -> bytes:
    """Return META.txt or PURGE.txt with the right checksum."""
    text = data[: data.rindex(b"checksum ")]
    return text + b"checksum %08x\n" % crc32c(text)


def resigned_lines(data: bytes) -> bytes:
    """Return LOCK with the right checksums."""
    first, *lines = data.splitlines(keepends=True)
    texts = [line[: line.rindex(b" ") + 1] for line in lines]
    return first + b"".join(text + b"%08x\n" % crc32c(text) for text in texts)


def resigned_index(data: bytes) -> bytes:
    """Return an index file with the right checksums."""
    result, block, previous = b"", b"", None
    for line in data.splitlines(keepends=True):
        found = re.match(rb"# checkpoint ([0-9]+) (open|sealed) ", line)
        if found is None:
            block += line
            continue
        sealed = found[2] == b"sealed"
        added, previous = close_block(
            block, int(found[1]), sealed=sealed, previous=previous
        )
        result, block = result + added, b""
    return result + block


def forged_fields(
    data: bytes,
    start: int,
    fields: tuple[tuple[int, int], ...],
    end_of: Callable[[bytes], int],
) -> Iterator[bytes]:
    """Yield a volume with other numbers from an offset on; `end_of`: of what is summed."""
    for at, length in fields:
        for number in NUMBERS:
            if number >> 8 * length:
                continue
            forged = bytearray(data)
            field = number.to_bytes(length, "little")
            forged[start + at : start + at + length] = field
            end = start + end_of(bytes(forged[start : start + 64]))
            if end + 4 <= len(forged):
                struct.pack_into("<I", forged, end, crc32c(bytes(forged[start:end])))
                yield bytes(forged)


def forged_volume(data: bytes) -> Iterator[bytes]:
    """Yield a volume with other numbers in its header, and in some of its records."""
    if not any(data):
        return
    yield from forged_fields(data, 0, HEADER_FIELDS, lambda _: VOLUME_HEADER_BYTES - 4)
    starts = [found.start() for found in re.finditer(rb"VLR\x02", data)]
    for start in sorted({*starts[:1], *starts[len(starts) // 2 :][:1], *starts[-2:]}):
        yield from forged_fields(
            data, start, RECORD_FIELDS, lambda head: prefix_length(head) - 4
        )


def forged(files: Files) -> Iterator[tuple[str, bytes]]:
    """Yield the name of a file, and what it has instead."""
    for name, data in files.items():
        if name.startswith("data/"):
            found = forged_volume(data)
        elif name.startswith("index/"):
            found = forged_text(data, resigned_index)
        else:
            resigned = resigned_lines if name == "LOCK" else resigned_file
            found = forged_text(data, resigned)
        yield from ((name, other) for other in found)


# --- Looking ------------------------------------------------------------------------


def start(fs: SimulatedFileSystem) -> Store | None:
    """Start; None: it was refused, with one line."""
    try:
        return opened(fs)
    except StoreError as error:
        why = str(error)
    assert "\n" not in why
    assert fs.descriptors == 0
    return None


def look(files: Files) -> bool:
    """Start on files and use all parts of the store; return whether they were served."""
    with (
        suppress(VolcacheError),
        OfflineStore.inspect(Disk(make_disk(files).root), MOUNT_POINT) as offline,
    ):
        list(offline.check(Counts()))
        index = offline.replay()
        list(offline.records(index))
    fs = Disk(make_disk(files).root)
    store = start(fs)
    is_served = store is not None
    if store is None:
        with suppress(VolcacheError):
            repair(MOUNT_POINT, fs, lambda _: None)
        store = start(fs)
    if store is None:
        return False
    for key in KEYS:
        record = store.get(key)
        allowed = [value_of(key, turn) for turn in range(10)]
        assert record is None or record.value in allowed, key
    store.usage()
    store.delete(KEYS[0])
    store.purge(b"key 7")
    for number in range(20):
        store.put(b"new %d" % number, bytes(900))
        store.get(KEYS[number % len(KEYS)])
    store.sync()
    store.close()
    again = start(fs)
    assert again is not None
    record = again.get(b"new 19")
    assert record is not None
    assert record.value == bytes(900)
    return is_served


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_start_with_a_forged_number_works_or_is_refused(
    record_property: Count, *, is_stopped: bool
) -> None:
    """And so do check, repair, and all that is done then."""
    files = made(is_stopped=is_stopped)
    cases = list(forged(files))
    served = refused = 0
    for case in every(40, len(cases)):
        name, data = cases[case]
        try:
            is_served = look({**files, name: data})
        except Exception as error:
            raise AssertionError(case, name, SEED) from error
        served, refused = served + is_served, refused + (not is_served)
    assert served
    assert refused
    record_property("forged_numbers", served + refused)
