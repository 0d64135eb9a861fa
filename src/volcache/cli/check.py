"""`volcache check`: look for damage, and say where it is."""

from __future__ import annotations

import time
from itertools import chain
from typing import TYPE_CHECKING

from volcache.cli.progress import above, in_words, progress
from volcache.hot.versions import first_damage
from volcache.store.directory import HOT, read_whole
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.offline import OfflineStore
from volcache.store.verify import Counts, Finding, verify
from volcache.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LABELS = {"record": "damaged", "file": "damaged", "torn": "torn", "note": "note"}


def check(directory: str, say: Callable[[str], None]) -> bool:
    """
    Look at everything in a mount point, and change nothing.

    Args:
        directory: That nobody serves.
        say: Takes one line for each finding, and a last one with all figures.

    Returns:
        Whether there is no damage.

    Raises:
        StoreError: The directory cannot be looked at, is in use, or no store's.
    """
    store = OfflineStore.inspect(ReadOnlyFileSystem(), directory)
    counts = dict.fromkeys(("record", "file", "torn", "note"), 0)
    seen = Counts()
    started = time.monotonic()
    try:
        with progress(store.length, "check") as bar:
            findings = verify(store, seen, bar.update)
            for finding in chain(_check_hot(store), findings):
                counts[finding.kind] += 1
                above(bar, say)(_line(finding))
    finally:
        store.close()
    say(_summary(directory, seen, counts, time.monotonic() - started))
    return not (counts["record"] or counts["file"])


def _check_hot(store: OfflineStore) -> Iterator[Finding]:
    """Look at HOT.txt, which is the hot tier's."""
    data = read_whole(store.directory, store.directory.hot)
    found = first_damage(data, store.inventory.manifest.store_id)
    if found is not None:
        yield Finding("file", HOT, *found)


def _line(finding: Finding) -> str:
    label = _LABELS[finding.kind]
    return f"{label:<7} {finding.file} offset {finding.offset}: {finding.what}"


def _summary(
    directory: str, seen: Counts, counts: dict[str, int], seconds: float
) -> str:
    speed = seen.bytes / max(seconds, 1e-6) / 1e9
    return (
        f"{directory}: {counted(seen.volumes, 'volume')},"
        f" {counted(seen.records, 'record')}, {counted(seen.keys, 'live key')},"
        f" {in_words(seen.bytes)}; damaged:"
        f" {counts['record']} in volumes, {counts['file']} elsewhere;"
        f" torn tails: {counts['torn']}; notes: {counts['note']};"
        f" {seconds:.1f} s, {speed:.2f} GB/s"
    )
