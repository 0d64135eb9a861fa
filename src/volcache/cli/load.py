"""
`volcache load`: store files in running instances, through the ring, many at a time.

The main thread reads the source. Each instance has a few connections, with a thread for
each, which sends some files in a row. What is in flight is bounded. What an instance
refuses is left out; so is, after some tries, what one does not answer.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
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
from volcache.cli.import_ import LISTED_MAX, interrupt_flag
from volcache.cli.progress import above, progress
from volcache.cli.sender import NO_ANSWER, Put, Sender
from volcache.cli.sources import opened
from volcache.cli.values import KEY_BYTES_MAX, in_use, put_headers
from volcache.errors import ClientError, ConfigError, InstanceError
from volcache.keys import parse_key
from volcache.store.index_format import encode_key
from volcache.text import counted, size

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from volcache.cli.archive import ArchivedValue
    from volcache.cli.sources import Entry, Source

_SAVED_SECONDS: Final = 5.0


@dataclass(slots=True)
class Outcome:
    """The result of a load."""

    files: int = 0  # Stored.
    bytes: int = 0  # Of their values.
    left_out: int = 0
    expired: int = 0  # Their lifetimes have ended since the export.
    skipped: int = 0  # Loaded before.
    interrupted: bool = False


class _Load:
    """Reads entries and hands them to the instances of their keys."""

    def __init__(
        self,
        sender: Sender,
        headers: dict[str, str],
        prefix: bytes,
        report: Callable[[str], None],
    ) -> None:
        self._sender, self._headers, self._prefix = sender, headers, prefix
        self._report = report
        self.outcome = Outcome()
        self._position = 0  # How many entries were read.
        self._failed_at: int | None = None  # The first that should be tried again.

    def run(
        self,
        source: Source,
        place: Path | None,
        is_interrupted: Callable[[], bool],
    ) -> None:
        """Load all entries, or those before an interrupt; `place` is of --resume."""
        done = self.outcome
        done.skipped = self._position = _saved(place)
        saved = time.monotonic()
        unit = "files" if source.total is None else "B"
        with progress(source.total, "load", unit) as bar:
            self._report = above(bar, self._report)
            entries = islice(source.entries, self._position, None)
            while not is_interrupted() and (entry := next(entries, None)) is not None:
                self._add(entry)
                self._position += 1
                if source.total is None:
                    bar.update()
                else:
                    bar.update(source.position() - bar.n)
                if place and time.monotonic() - saved > _SAVED_SECONDS:
                    self._settle(place)
                    saved = time.monotonic()
            self._settle(place)
        done.interrupted = is_interrupted()
        if (hidden := done.left_out - LISTED_MAX) > 0:
            self._report(f"left out {hidden} more")

    def _add(self, entry: Entry) -> None:
        if entry.why:
            self._leave_out(entry.name, entry.why)
            return
        try:
            value = entry.read()
            known = entry.known(value)
            name = self._prefix + (entry.name if known is None else known.key)
            key = parse_key(f"/{name.decode('latin-1')}", KEY_BYTES_MAX)
            headers = self._headers if known is None else self._restored(known)
        except (LeftOutError, ClientError) as error:
            self._leave_out(entry.name, str(error))
        except OSError as error:
            self._leave_out(entry.name, f"cannot be read: {error.strerror}")
        else:
            if headers is None:
                self.outcome.expired += 1
            else:
                self._sender.add(Put(self._position, key, value, headers))
        self._take()

    def _restored(self, known: ArchivedValue) -> dict[str, str] | None:
        """Return the headers with which an export is stored; None: it has expired."""
        if known.flags:
            raise LeftOutError("has flags of memcached; volcache import keeps them")
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
        }
        return self._headers | {name: text for name, text in found.items() if text}

    def _take(self) -> None:
        """Count what has become of what was sent."""
        while self._sender.ended:
            put, status, why = self._sender.ended.popleft()
            if not why:
                self.outcome.files += 1
                self.outcome.bytes += len(put.value)
                continue
            if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
                raise InstanceError(why, "give the token by --token-file")
            self._leave_out(put.key, why)
            if status == NO_ANSWER or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                failed = put.number if self._failed_at is None else self._failed_at
                self._failed_at = min(failed, put.number)

    def _leave_out(self, name: bytes, why: str) -> None:
        self.outcome.left_out += 1
        if self.outcome.left_out <= LISTED_MAX:
            shown = encode_key(name)
            self._report(Line(f"left out {shown}: {why}", key=shown, left_out=why))

    def _settle(self, place: Path | None) -> None:
        """Wait until all is answered, and keep how far that is."""
        self._sender.wait()
        self._take()
        if place is None:
            return
        at = self._position if self._failed_at is None else self._failed_at
        try:
            place.write_text(f"{at}\n")
        except OSError as error:
            raise FileError(str(place), "written", error) from error


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


def _summary(source: str, done: Outcome, seconds: float) -> Line:
    skipped = f" loaded before: {done.skipped};" if done.skipped else ""
    expired = f" expired: {done.expired};" if done.expired else ""
    text = (
        f"{source}: {counted(done.files, 'file', ',')}, {size(done.bytes)};"
        f" left out: {done.left_out};{skipped}{expired} {seconds:.1f} s"
        f"{'; interrupted' if done.interrupted else ''}"
    )
    rounded = {"seconds": round(seconds, 3)}
    return Line(text, summary={"source": source, **asdict(done), **rounded})


def _run(arguments: argparse.Namespace) -> int:
    started = time.monotonic()
    headers = put_headers(arguments)
    with (
        opened(arguments.source) as source,
        output(as_json=arguments.json) as report,
        interrupt_flag() as is_interrupted,
        Sender(in_use(arguments), arguments.timeout) as sender,
    ):
        load = _Load(sender, headers, os.fsencode(arguments.prefix), report)
        try:
            load.run(source, arguments.resume, is_interrupted)
        finally:
            seconds = time.monotonic() - started
            report(_summary(arguments.source, load.outcome, seconds))
    if load.outcome.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if load.outcome.left_out else EXIT_OK


COMMAND: Final = command("load", _run)
