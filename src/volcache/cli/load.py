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
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import TYPE_CHECKING, Final

from volcache.cli.archive import LeftOutError
from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    command,
    output,
)
from volcache.cli.import_ import summary_line
from volcache.cli.sender import NO_ANSWER, Put, Sender
from volcache.cli.sources import EntryReader, Outcome, opened
from volcache.cli.streams import Interrupt, writing
from volcache.cli.values import KEY_BYTES_MAX, in_use, put_headers
from volcache.errors import ConfigError, InstanceError
from volcache.keys import parse_key

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from volcache.cli.archive import ArchivedValue
    from volcache.cli.sources import Entry, Source

_SAVED_SECONDS: Final = 5.0


@dataclass(slots=True)
class LoadOutcome(Outcome):
    """The result of a load."""

    skipped: int = 0  # Loaded before.


class _Load(EntryReader):
    """Hands entries to the instances of their keys."""

    def __init__(
        self,
        sender: Sender,
        arguments: argparse.Namespace,
        report: Callable[[str], None],
    ) -> None:
        self.outcome = LoadOutcome(skipped=_saved(arguments.resume))
        super().__init__(self.outcome, report)
        self._sender, self._headers = sender, put_headers(arguments)
        self._prefix = os.fsencode(arguments.prefix)
        self._place: Path | None = arguments.resume
        self._position = self.outcome.skipped  # How many entries were read.
        self._failed_at: int | None = None  # The first that should be tried again.
        self._saved = time.monotonic()

    def run(self, source: Source, interrupt: Interrupt) -> None:
        """Load all entries that were not loaded before, or those before an interrupt."""
        left = source._replace(entries=islice(source.entries, self._position, None))
        self.read(left, "load", interrupt)
        self._settle()
        self.report_hidden()

    def end(self) -> None:
        """Count the entry, and what has become of those that were sent."""
        self._position += 1
        self._take()
        if self._place and time.monotonic() - self._saved > _SAVED_SECONDS:
            self._settle()

    def take(self, entry: Entry) -> None:
        """Send it soon."""
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
            self.leave_out(put.key, why)
            if status == NO_ANSWER or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
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


def _run(arguments: argparse.Namespace) -> int:
    started, interrupt = time.monotonic(), Interrupt()
    with (
        opened(arguments.source) as source,
        output(as_json=arguments.json) as report,
        interrupt.handled(),
        Sender(in_use(arguments), arguments.timeout) as sender,
    ):
        load = _Load(sender, arguments, report)
        done = load.outcome
        try:
            load.run(source, interrupt)
        finally:
            seconds = time.monotonic() - started
            before = f" loaded before: {done.skipped};" if done.skipped else ""
            report(summary_line(arguments.source, done, before, seconds))
    if done.interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if done.left_out else EXIT_OK


COMMAND: Final = command("load", _run)
