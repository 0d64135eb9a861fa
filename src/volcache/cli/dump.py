"""`volcache dump`: list every record in the order of a start, one per line."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.cli.command import offline_command, print_line
from volcache.store.files import ReadOnlyFileSystem
from volcache.store.index import Found
from volcache.store.index_format import encode_key
from volcache.store.offline import OfflineStore

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator


STATES: Final = ("live", "superseded", "expired", "purged", "damaged", "tombstone")


class RecordLine(NamedTuple):
    """A record; the fields are the columns."""

    volume: int
    seq: int
    ring: str
    offset: int
    size: int
    stored: int  # Milliseconds since 1970.
    expires: int  # Milliseconds since 1970; 0: never.
    type: str
    state: str
    key: str


def dump(directory: str, now_ms: int) -> Iterator[RecordLine]:
    """
    Yield a line for each record: of ring probation, then of ring main, each oldest first.

    Args:
        directory: The mount point.
        now_ms: The time at which records count as expired, milliseconds since 1970.

    Raises:
        StoreError: The directory cannot be read, is in use, or is not a store.
    """
    with OfflineStore.inspect(ReadOnlyFileSystem(), directory) as store:
        index = store.replay()
        for volume, found, is_current in store.records(index):
            if isinstance(found, Found):
                header = found.header
                state = "expired" if 0 < header.expires_ms <= now_ms else "live"
                if not found.intact:
                    state = "damaged"
                elif header.tombstone:
                    state = "tombstone"
                elif not is_current:
                    state = "superseded"
                elif index.is_purged(header.key, header.stored_us):
                    state = "purged"
                yield RecordLine(
                    volume.id,
                    volume.seq,
                    volume.use.ring.name.lower(),
                    header.offset,
                    header.size,
                    header.stored_us // 1000,
                    header.expires_ms,
                    encode_key(header.content_type),
                    state,
                    encode_key(header.key),
                )


def _run(arguments: argparse.Namespace, _: object) -> bool:
    """Print each line at once: the command ends when the reader of them goes away."""
    states = dict.fromkeys(STATES, 0)
    for row in dump(arguments.directory, time.time_ns() // 1_000_000):
        states[row.state] += 1
        if arguments.keys:
            if row.state == "live":
                print_line(json.dumps({"key": row.key}) if arguments.json else row.key)
        elif arguments.json:
            print_line(json.dumps(row._asdict()))
        else:
            print_line(" ".join(str(field) or "-" for field in row))
    if arguments.json:
        numbers = {"directory": arguments.directory, "records": sum(states.values())}
        print_line(json.dumps({"summary": {**numbers, "states": states}}))
    return True


COMMAND: Final = offline_command("dump", _run)
