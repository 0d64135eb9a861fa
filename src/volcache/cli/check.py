"""`volcache check`: verify a mount point and report where it is damaged."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Final

from volcache.cli.command import (
    COMPLETES,
    EXIT_FAILED,
    EXIT_OK,
    Command,
    Line,
    add_directory,
    add_json,
    output,
    silence_log,
)
from volcache.cli.progress import above, progress
from volcache.hot.versions import is_damaged
from volcache.store.directory import HOT
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.offline import OfflineStore
from volcache.store.verify import verify
from volcache.store.volume_check import Counts, Finding
from volcache.text import counted, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

_LABELS: Final = {
    "record": "damaged",
    "file": "damaged",
    "torn": "torn",
    "note": "note",
}


def check(directory: str, report: Callable[[str], None]) -> bool:
    """
    Verify everything in a mount point; nothing is changed.

    Args:
        directory: The mount point.
        report: Called with one line for each finding, and with a summary at the end.

    Returns:
        Whether there is no damage. Torn tails and notes are not damage.

    Raises:
        StoreError: The directory cannot be read, is in use, or is not a store.
    """
    store = OfflineStore.inspect(ReadOnlyFileSystem(), directory)
    counts = dict.fromkeys(_LABELS, 0)
    checked = Counts()
    started = time.monotonic()
    try:
        with progress(store.length, "check") as bar:
            findings = verify(store, checked, bar.update)
            for finding in chain(_check_hot(store), findings):
                counts[finding.kind] += 1
                above(bar, report)(_line(finding))
    finally:
        store.close()
    report(_summary(directory, checked, counts, time.monotonic() - started))
    return not (counts["record"] or counts["file"])


def _check_hot(store: OfflineStore) -> Iterator[Finding]:
    """Verify HOT.txt, whose format belongs to the hot tier."""
    with suppress(OSError):  # It is missing for a server, too.
        if is_damaged(store.directory.read_hot()):
            yield Finding("file", HOT, 0, "its checksum is wrong")


def _line(finding: Finding) -> Line:
    label = _LABELS[finding.kind]
    text = f"{label:<7} {finding.file} offset {finding.offset}: {finding.what}"
    return Line(text, **finding._asdict())


def _summary(
    directory: str, checked: Counts, counts: dict[str, int], seconds: float
) -> Line:
    speed = checked.bytes / max(seconds, 1e-6)
    text = (
        f"{directory}: {counted(checked.volumes, 'volume')},"
        f" {counted(checked.records, 'record')}, {counted(checked.keys, 'live key')},"
        f" {size(checked.bytes)}; damaged:"
        f" {counts['record']} in volumes, {counts['file']} elsewhere;"
        f" torn tails: {counts['torn']}; notes: {counts['note']};"
        f" {seconds:.1f} s, {size(speed)}/s"
    )
    is_damaged = bool(counts["record"] or counts["file"])
    summary = {
        "directory": directory,
        "damaged": is_damaged,
        **asdict(checked),
        "findings": counts,
        "seconds": round(seconds, 3),
    }
    return Line(text, summary=summary)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_directory(parser)
    add_json(parser)


def _run(arguments: argparse.Namespace) -> int:
    silence_log()
    with output(as_json=arguments.json) as report:
        return EXIT_OK if check(arguments.directory, report) else EXIT_FAILED


_EPILOG: Final = f"""\
Each line is one finding: "damaged" (a record or file that fails its check), "torn" (a
record that was being written when the process died) or "note" (what else a killed process
leaves). The last line is a summary.
{COMPLETES}

With --json, a finding has "kind" (record: a stored record is damaged; file: another file
is; torn; note), "file", "offset" and "what". The summary has "directory", "damaged",
"volumes", "records", "keys" (live ones), "bytes", "findings" (by kind) and "seconds".

exit code: 0 no damage; 1 damage, or DIR cannot be read
examples:
  volcache check /srv/volcache/1234
  volcache check --json /srv/volcache/1234 | tail -1
"""

COMMAND: Final = Command(
    name="check",
    text="Verify a mount point and report damage; nothing is changed.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
