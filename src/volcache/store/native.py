"""
The native core, if it was built; otherwise the same in Python.

The core is an extension module in C, built when volcache is installed. Where that was not
possible, everything works in Python, with several times the CPU and the memory. The
environment variable VOLCACHE_PURE=1 selects Python, for tests.
"""

from __future__ import annotations

import logging
import os
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, TypedDict, Unpack, cast

from volcache.store.clock import Clock
from volcache.store.index import Index, PythonIndex
from volcache.store.writer import PythonWriter, Writer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from volcache.store._core._native import Comparison, Gate, GateLog, NativeApp
    from volcache.store.files import FileSystem
    from volcache.store.index import Loaded

_logger = logging.getLogger("volcache.store")

WHY_NOT = "VOLCACHE_PURE is set" if os.environ.get("VOLCACHE_PURE") else ""
if not WHY_NOT:
    try:
        from volcache.store._core import _native
    except ImportError as error:
        WHY_NOT = str(error)
IS_NATIVE = not WHY_NOT

# One index has positions of 48 bits: twice as many volumes as there are, because those
# reclaimed still have entries, and the offset in a volume.
_POSITION_BITS: Final = 48
_VOLUMES_MAX: Final = 65_536
_VOLUME_BYTES_MIN: Final = 2**24
_VOLUME_BYTES_MAX: Final = 2**40


class GateOptions(TypedDict):
    """See `_native.Gate`."""

    link: int
    allow: str
    answers: bool
    headers: str
    origins: Mapping[str, str]
    log: GateLog
    log_answer: Callable[..., None] | None
    threads: int
    connections: int
    head_timeout: float
    idle_timeout: float
    transfer_timeout: float
    body_memory: int


def hash_key_of(store_id: int) -> bytes:
    """
    Return the secret key of the hash of keys.

    The same at every start: two keys with one fingerprint then have it again, so a key
    that was a miss and was deleted does not come back.
    """
    data = store_id.to_bytes(8, "little")
    return blake2b(data, digest_size=16, person=b"volcache index").digest()


def make_index(
    fs: FileSystem, store_id: int, *, volumes: int, volume_bytes: int, expected: int
) -> Index:
    """
    Return an empty index.

    Args:
        fs: Reads the data files.
        store_id: Of the store.
        volumes: The maximum number of live volumes.
        volume_bytes: The longest volume.
        expected: The number of keys, if known, for the first allocation.
    """
    volume_bytes = max(volume_bytes, _VOLUME_BYTES_MIN)
    bits = (volume_bytes - 1).bit_length() + (2 * volumes - 1).bit_length()
    fits = (
        bits <= _POSITION_BITS
        and volumes <= _VOLUMES_MAX
        and volume_bytes <= _VOLUME_BYTES_MAX
    )
    if IS_NATIVE and fits:
        return _native.Index(
            fs,
            hash_key_of(store_id),
            volume_bytes=volume_bytes,
            volumes=volumes,
            expected=expected,
        )
    return PythonIndex()


def make_native_reclaim(
    index: Index, seq: int, volume: int, length: int
) -> _native.Reclaim:
    """
    Begin to reclaim a sealed volume of a native index; see reclaim.py.

    Args:
        index: Is native.
        seq: Of the volume.
        volume: Its id.
        length: Its end.
    """
    return _native.Reclaim(cast("_native.Index", index), seq, volume, length)


def make_writer(fs: FileSystem, fd: int, volume: int) -> Writer:
    """Return a writer for a data file; see `Writer`."""
    if IS_NATIVE:
        return _native.Writer(fs, fd, volume)
    return PythonWriter(fs, fd, volume)


def make_clock() -> Clock:
    """Return a clock of the machine."""
    if IS_NATIVE:
        return cast("Clock", _native.Clock())
    return Clock()


def read_lines(
    data: bytes, segments: Collection[tuple[int, int]]
) -> tuple[Loaded, bool] | None:
    """
    Find the valid part of an index file; None without the native core.

    Args:
        data: The file; its first line is right.
        segments: Of the volume.

    Returns:
        What it says, and whether the offsets of its entries grow.
    """
    return _native.read_lines(data, segments) if IS_NATIVE else None


def make_comparison(
    fs: FileSystem, fd: int, volume: int, length: int, lines: bytes
) -> Comparison:
    """Compare records with lines from `read_lines`; see `_native.Comparison`."""
    return _native.Comparison(fs, fd, volume, length, lines)


def make_native_app(
    app: object, parts: object, types: Mapping[bytes, str], *, is_merged: bool
) -> NativeApp:
    """
    Return the fast path of an application; see http/native_app.py.

    Args:
        app: An `App`.
        parts: Of its store, from `Store.core_parts`.
        types: Content types by suffix.
        is_merged: Pass all headers as the value of the first one.
    """
    table = _native.ContentTypes(types)
    return _native.NativeApp(app, parts, table, is_merged=is_merged)


def make_gate(
    app: object,
    parts: object,
    types: Mapping[bytes, str],
    **options: Unpack[GateOptions],
) -> Gate | None:
    """
    Return a gate that is installed in bjoern; None without the native core.

    Args:
        app: An `App`.
        parts: Of its store, from `Store.core_parts`.
        types: Content types by suffix.
        options: Those of `_native.Gate`.

    Raises:
        ImportError: bjoern was built for another version of the gate.
    """
    if not IS_NATIVE:
        return None
    return _native.Gate(app, parts, _native.ContentTypes(types), **options)


def warn_if_python() -> None:
    """Log one warning if the native core is missing."""
    if not IS_NATIVE:
        _logger.warning("core.python reason=%r", WHY_NOT)
