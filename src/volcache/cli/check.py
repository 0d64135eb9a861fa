"""`volcache check`: verify a mount point and report where it is damaged."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Final

from volcache.cli.command import Line, offline_command
from volcache.cli.progress import above, progress
from volcache.hot.versions import is_damaged
from volcache.store.directory import HOT
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.offline import OfflineStore
from volcache.store.volume_check import Anomaly, Counts
from volcache.text import counted, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_DAMAGE: Final = ("record", "file")  # the kinds of anomalies that are damage


def check(directory: str, report: Callable[[str], None]) -> bool:
    """
    Verify everything in a mount point; nothing is changed.

    Args:
        directory: The mount point.
        report: Called with one line for each anomaly, and with a summary at the end.

    Returns:
        Whether there is no damage. Torn tails and notes are not damage.

    Raises:
        StoreError: The directory cannot be read, is in use, or is not a store.
    """
    kinds = dict.fromkeys((*_DAMAGE, "torn", "note"), 0)
    counts = Counts()
    started = time.monotonic()
    with (
        OfflineStore.inspect(ReadOnlyFileSystem(), directory) as store,
        progress(store.length, "check") as bar,
    ):
        for found in chain(_check_hot(store), store.check(counts)):
            bar.update(counts.bytes - bar.n)
            if isinstance(found, Anomaly):
                kinds[found.kind] += 1
                above(bar, report)(_line(found))
    report(_summary(directory, counts, kinds, time.monotonic() - started))
    return not (kinds["record"] or kinds["file"])


def _check_hot(store: OfflineStore) -> Iterator[Anomaly]:
    """Verify HOT.txt, whose format belongs to the hot tier."""
    with suppress(OSError):  # It is missing for a server, too.
        if is_damaged(store.directory.read(HOT) or b""):
            yield Anomaly("file", HOT, 0, "its checksum is wrong")


def _line(found: Anomaly) -> Line:
    label = "damaged" if found.kind in _DAMAGE else found.kind
    text = f"{label:<7} {found.file} offset {found.offset}: {found.what}"
    return Line(text, **found._asdict())


def _summary(
    directory: str, counts: Counts, kinds: dict[str, int], seconds: float
) -> Line:
    text = (
        f"{directory}: {counted(counts.volumes, 'volume')},"
        f" {counted(counts.records, 'record')}, {counted(counts.keys, 'live key')},"
        f" {size(counts.bytes)}; damaged:"
        f" {kinds['record']} in volumes, {kinds['file']} elsewhere;"
        f" torn tails: {kinds['torn']}; notes: {kinds['note']};"
        f" {seconds:.1f} s, {size(counts.bytes / max(seconds, 1e-6))}/s"
    )
    summary = {
        "directory": directory,
        "damaged": bool(kinds["record"] or kinds["file"]),
        **asdict(counts),
        "findings": kinds,
        "seconds": round(seconds, 3),
    }
    return Line(text, summary=summary)


COMMAND: Final = offline_command(
    "check", lambda arguments, report: check(arguments.directory, report)
)
