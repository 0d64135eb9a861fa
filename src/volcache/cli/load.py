"""
`volcache load`: store files in running instances, through the ring, many at a time.

Files are sent in batches; one is sent while the next is read. What an instance refuses is
left out; so is, after some tries, what one does not answer.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Final

from volcache.cli.archive import LeftOutError
from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    FileError,
    Line,
    command,
    output,
)
from volcache.cli.progress import above, progress
from volcache.cli.sender import Put, Sender
from volcache.cli.sources import opened
from volcache.cli.streams import Interrupt, writing
from volcache.cli.values import KEY_BYTES_MAX, in_use, put_headers
from volcache.errors import ClientError, ConfigError, InstanceError, ValueTooLargeError
from volcache.keys import parse_key
from volcache.store.index_format import encode_key
from volcache.text import counted, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from volcache.cli.archive import ArchivedValue
    from volcache.cli.sources import Entry, Source

LISTED_MAX: Final = 100  # Lines for files that are left out; the others are counted.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_SAVED_SECONDS: Final = 5.0
_VALUE_BYTES_MAX: Final = 1 << 30  # The largest max_value_size. Values are in memory.


@dataclass(slots=True)
class Outcome:
    """What became of the entries of a source."""

    files: int = 0  # Stored.
    bytes: int = 0  # Of their values.
    left_out: int = 0
    expired: int = 0  # Their lifetimes have ended since the export.
    skipped: int = 0  # Loaded before.
    interrupted: bool = False


class _Load:
    """Hands entries to the instances of their keys."""

    def __init__(
        self,
        sender: Sender,
        arguments: argparse.Namespace,
        report: Callable[[str], None],
    ) -> None:
        self.outcome = Outcome(skipped=_saved(arguments.resume))
        self._report = report
        self._sender, self._headers = sender, put_headers(arguments)
        self._prefix = os.fsencode(arguments.prefix)
        self._place: Path | None = arguments.resume
        self._position = self.outcome.skipped  # How many entries were read.
        self._failed_at: int | None = None  # The first that should be tried again.
        self._saved = time.monotonic()

    def run(self, source: Source, interrupt: Interrupt) -> None:
        """Load all entries that were not loaded before, or those before an interrupt."""
        entries = islice(source.entries, self._position, None)
        report, unit = self._report, "B" if source.total else "files"
        try:
            with progress(source.total or None, "load", unit) as bar:
                self._report = above(bar, report)
                # A list may come from a pipe that has nothing for hours.
                while entry := interrupt.wait_for(partial(next, entries, None)):
                    bar.update(source.position() - bar.n if source.total else 1)
                    self._try(entry)
                    self._end_entry()
        except FileError:
            # What writes to a pipe is interrupted by the same Ctrl-C.
            if not interrupt.is_set:
                raise
        finally:
            self._report = report
            self.outcome.interrupted = interrupt.is_set
            self._settle()
            if (hidden := self.outcome.left_out - LISTED_MAX) > 0:
                report(f"left out {hidden} more")

    def _try(self, entry: Entry) -> None:
        try:
            if entry.why:
                self._leave_out(entry.name, entry.why)
            else:
                self._send(entry)
        except (LeftOutError, ClientError) as error:
            self._leave_out(entry.name, str(error))
        except OSError as error:
            self._leave_out(entry.name, f"cannot be read: {error.strerror}")

    def _send(self, entry: Entry) -> None:
        if entry.size > _VALUE_BYTES_MAX:
            raise ValueTooLargeError(size=entry.size, limit=_VALUE_BYTES_MAX)
        value = entry.read()
        known = entry.known(value)
        name = self._prefix + (entry.name if known is None else known.key)
        key = parse_key(f"/{name.decode('latin-1')}", KEY_BYTES_MAX)
        headers = self._headers if known is None else self._restored(known)
        if headers is None:
            self.outcome.expired += 1
        else:
            self._sender.add(Put(self._position, key, value, headers))

    def _restored(self, known: ArchivedValue) -> dict[str, str] | None:
        """Return the headers with which an export is stored; None: it has expired."""
        texts = [known.cache_control.decode("latin-1")]
        if known.expires_ms:
            seconds = known.expires_ms // 1000 - int(time.time_ns() // 1_000_000_000)
            if seconds <= 0:
                return None
            texts.insert(0, f"max-age={seconds}")
        found = {
            "Content-Type": known.content_type.decode("latin-1"),
            "Content-Encoding": known.content_encoding.decode("latin-1"),
            "Cache-Control": ", ".join(filter(None, texts)),
            "X-Flags": str(known.flags or ""),
        }
        # Anyone may have written the archive: a line end would begin another header.
        if any(map(_CONTROL.search, found.values())):
            raise LeftOutError("has a header with a control character")
        return self._headers | {name: text for name, text in found.items() if text}

    def _leave_out(self, name: bytes, why: str) -> None:
        """Count an entry that is not stored, and report one of the first."""
        self.outcome.left_out += 1
        if self.outcome.left_out <= LISTED_MAX:
            shown = encode_key(name)
            self._report(Line(f"left out {shown}: {why}", key=shown, left_out=why))

    def _end_entry(self) -> None:
        self._position += 1
        self._take()
        if self._place and time.monotonic() - self._saved > _SAVED_SECONDS:
            self._settle()

    def _take(self) -> None:
        """Count what has become of what was sent."""
        ended, self._sender.ended = self._sender.ended, []
        for one in ended:
            put, status, why = one
            if not why:
                self.outcome.files += 1
                self.outcome.bytes += len(put.value)
                continue
            if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                raise InstanceError(why, "give the token by --token-file")
            self._leave_out(put.key, why)
            if one.is_failure:
                failed = put.number if self._failed_at is None else self._failed_at
                self._failed_at = min(failed, put.number)

    def _settle(self) -> None:
        """Wait until all is answered, and keep how far that is."""
        self._sender.wait()
        self._take()
        self._saved = time.monotonic()
        if self._place is not None:
            at = self._position if self._failed_at is None else self._failed_at
            with writing(str(self._place)) as file:
                file.write(b"%d\n" % at)


def _saved(place: Path | None) -> int:
    """
    Return how many entries were loaded before.

    Raises:
        ConfigError: The file has something else.
    """
    text = "0"
    if place is not None:
        with suppress(FileNotFoundError):
            text = place.read_text().strip()
    if not text.isdecimal():
        raise ConfigError(f"{place}: allowed is a file that --resume has written")
    return int(text)


def _summary(place: str, done: Outcome, seconds: float) -> Line:
    """Return the last line."""
    parts = [
        f"{place}: {counted(done.files, 'file', ',')}, {size(done.bytes)}",
        f"left out: {done.left_out}",
        f"expired: {done.expired}" if done.expired else "",
        f"loaded before: {done.skipped}" if done.skipped else "",
        f"{seconds:.1f} s",
        "interrupted" if done.interrupted else "",
    ]
    summary = {"source": place, **asdict(done), "seconds": round(seconds, 3)}
    return Line("; ".join(filter(None, parts)), summary=summary)


def _run(arguments: argparse.Namespace) -> int:
    started, interrupt = time.monotonic(), Interrupt()
    with (
        opened(arguments.source) as source,
        output(as_json=arguments.json) as report,
        interrupt.handled(),
        Sender(in_use(arguments), arguments.timeout) as sender,
    ):
        load = _Load(sender, arguments, report)
        try:
            load.run(source, interrupt)
        finally:
            seconds = time.monotonic() - started
            report(_summary(arguments.source, load.outcome, seconds))
    if load.outcome.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if load.outcome.left_out else EXIT_OK


COMMAND: Final = command("load", _run)
