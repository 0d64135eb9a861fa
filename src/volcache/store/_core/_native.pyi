"""The native core; `Index` and `Writer` are those of index.py and writer.py."""

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol
from wsgiref.types import StartResponse, WSGIEnvironment

from volcache.store.eviction import Rates, Terms
from volcache.store.files import FileSystem
from volcache.store.format import RecordFields, Ring
from volcache.store.index import Heat, Loaded, Position, Replayed, Step
from volcache.store.purges import PurgeList
from volcache.store.stats import Fate
from volcache.store.volume import Volume
from volcache.store.writer import Writer as _Writer

def crc32c(data: bytes, crc: int = 0) -> int:
    """Return the CRC-32C of the bytes with the checksum `crc` followed by `data`."""

def size_max(size: int) -> int:
    """Return the largest size of the class of `size`; at most an eighth more."""

def size_middle(size: int) -> int:
    """Return the middle of the class of `size`, by which live bytes are counted."""

class Clock:
    """A `volcache.store.clock.Clock` of the machine; see there."""

    def now_us(self) -> int: ...
    def now_ms(self) -> int: ...
    def from_machine_ms(self, ms: int) -> int: ...
    def next_us(self) -> int: ...
    def advance_to(self, us: int) -> None: ...

class Index:
    """
    An index of fingerprints; see `volcache.store.index.Index`.

    `read` may be called without the lock of the store. Two keys with one fingerprint,
    which is one pair in 2^50, share an entry: the key set last has it.
    """

    is_native: bool

    def __init__(
        self,
        fs: FileSystem,
        hash_key: bytes,
        *,
        volume_bytes: int,
        volumes: int,
        expected: int = 0,
    ) -> None:
        """
        Allocate an empty index.

        Args:
            fs: Reads the data files.
            hash_key: 16 bytes, secret.
            volume_bytes: No offset is higher; 2^24 to 2^40.
            volumes: That are live at a time; 1 to 65,536. The product of the two, each
                rounded up to a power of two, is at most 2^47.
            expected: The number of keys; 0 if not known.

        Raises:
            MemoryError: There is no memory, or the product is too large.
        """

    @property
    def count(self) -> int: ...
    @property
    def stale(self) -> int: ...
    @property
    def is_sweeping(self) -> bool: ...
    @property
    def displaced(self) -> int: ...
    @property
    def memory(self) -> int:
        """The bytes of all buckets."""
    def live(self, seq: int) -> tuple[int, int]: ...
    def add_volume(self, seq: int) -> None: ...
    def bind_volume(
        self, seq: int, fd: int, volume: int, salts: Iterable[tuple[int, int]]
    ) -> None: ...
    def find(self, key: bytes) -> Position | None: ...
    def hits(self, key: bytes) -> int:
        """Return how often a key was read since it was set, at most 3."""
    def is_stale(self, key: bytes) -> bool: ...
    def set(self, key: bytes, seq: int, offset: int, size: int) -> None: ...
    def put(self, key: bytes, seq: int, offset: int, size: int) -> None: ...
    def set_tombstone(self, key: bytes, seq: int, offset: int, size: int) -> None: ...
    def forget(self, key: bytes, seq: int, offset: int) -> bool: ...
    def is_deleted(self, key: bytes) -> bool: ...
    def set_policy(self, rates: Rates) -> None: ...
    def set_age(self, seq: int, ring: Ring, born: int, end: int) -> None: ...
    def ring_for(self, key: bytes) -> Ring | None: ...
    def accept_displaced(self) -> None: ...
    def hit(self, key: bytes) -> bool: ...
    def miss(self, key: bytes) -> None: ...
    def heat(self) -> Heat: ...
    def count_older(self, stored_us: int) -> None: ...
    def count_older_hit(self, stored_us: int) -> None: ...
    def set_purges(self, purges: PurgeList) -> None: ...
    def size_ghost(self, keys: int) -> None: ...
    def reclaim(self, seq: int) -> tuple[int, int]: ...
    def sweep(self, budget: int) -> None: ...
    def read(self, key: bytes) -> RecordFields | None: ...
    def load(
        self, seq: int, fd: int, segments: Iterable[tuple[int, int]]
    ) -> Loaded | None: ...
    def end_load(self) -> None: ...
    def replay(
        self,
        seq: int,
        data: bytes,
        salt: int,
        volume: int,
        offset: int,
        limit: int,
        writer: _Writer,
    ) -> Replayed: ...
    def close(self) -> None: ...

class Writer:
    """See `volcache.store.writer.Writer`."""

    fd: int
    end: int
    capacity: int
    salt: int

    def __init__(self, fs: FileSystem, fd: int, volume: int) -> None: ...
    @property
    def pending(self) -> int: ...
    @property
    def lines(self) -> bytes: ...
    def clear(self) -> None: ...
    def add_entry(self, key: bytes, offset: int, size: int) -> None: ...
    def append(
        self,
        key: bytes,
        value: bytes,
        content_type: bytes,
        content_encoding: bytes,
        cache_control: bytes,
        stored_us: int,
        expires_ms: int,
        flags: int,
        is_tombstone: bool,
        sync: bool,
    ) -> tuple[int, int, int]: ...

class Reclaim:
    """See `volcache.store.reclaim.Reclaim`."""

    def __init__(self, index: Index, seq: int, volume: int, length: int) -> None: ...
    def collect(self, shares: int, terms: Terms) -> Fate: ...
    def step(
        self,
        end: int,
        copy_bytes: int,
        terms: Terms,
        target: Volume | None,
        now_ms: int,
    ) -> Step: ...

def read_lines(data: bytes, segments: Iterable[tuple[int, int]]) -> tuple[Loaded, bool]:
    """
    Find the valid part of an index file.

    Args:
        data: The file; its first line is right.
        segments: Of the volume.

    Returns:
        What it says, and whether the offsets of its entries grow.
    """

class Comparison:
    """Compares the records of a volume with the lines of its index file."""

    def __init__(
        self, fs: FileSystem, fd: int, volume: int, length: int, lines: bytes
    ) -> None:
        """
        Begin with the first line.

        Args:
            fs: Reads the data file.
            fd: Of the data file.
            volume: Its id.
            length: Nothing behind is read.
            lines: The valid part of the index file.
        """

    @property
    def at(self) -> int:
        """Where in `lines` the next line begins."""
    def skip(self, count: int) -> None:
        """Pass as many entries."""
    def run(
        self, index: object, seq: int, salt: int, offset: int, limit: int
    ) -> Replayed:
        """
        Pass intact records that follow each other and have the next lines.

        Stops where something cannot be read, too.

        Args:
            index: Gets the positions of the records passed; None: nothing does.
            seq: Of the volume.
            salt: Of the records.
            offset: Of the first record.
            limit: Records that begin here or later are not passed.
        """

class ContentTypes:
    """Content types by the suffix of a key, with its dot and in lower case."""

    def __init__(self, types: Mapping[bytes, str]) -> None: ...

class GateLog(Protocol):
    """What the gate tells; its methods must not raise."""

    def full(self, open_: int, closed_idle: int, turned_away: int) -> None:
        """There were too many connections: so many since the last call."""

    def failed(self, error: BaseException) -> None:
        """What the gate has counted could not be taken over."""

class Gate:
    """The gate in front of bjoern, installed from its beginning to `close`."""

    def __init__(
        self,
        app: object,
        parts: object,
        types: ContentTypes,
        *,
        link: int,
        allow: str,
        answers: bool,
        headers: str,
        origins: Mapping[str, str],
        log: GateLog,
        log_answer: Callable[..., None] | None,
        threads: int,
        connections: int,
        body_memory: int,
        head_timeout: float,
        idle_timeout: float,
        transfer_timeout: float,
    ) -> None:
        """
        Start the reader threads and install the gate.

        Args:
            app: An `App`: its counters and limits are those of the gate.
            parts: Of its store, from `Store.core_parts`; None: nothing is answered here.
            types: For values stored without a content type.
            link: Address of the `vc_link` in bjoern.
            allow: The methods that are allowed, for a 405.
            answers: Whether plain GETs are answered here.
            headers: More of them for the answers to requests for a key: CR LF, then one
                header, for each; ASCII, less than 1 KiB.
            origins: What replaces them in answers to pages, by origin.
            log: Is told what the operator should know.
            log_answer: Called for each answer; see `AccessLog.add_native`.
            threads: That read records which are not in memory, 1 to 64.
            connections: The most at a time.
            body_memory: Bytes for the bodies of all requests.
            head_timeout: Seconds for the head of a request; 0 = no limit.
            idle_timeout: Seconds without a request; 0 = no limit.
            transfer_timeout: Seconds without a byte of a body or an answer; 0 = no limit.

        Raises:
            ImportError: bjoern was built for another version of the gate.
            MemoryError: There is no memory, or no thread can be started.
        """

    def close(self) -> None:
        """Stop the threads; bjoern's loop must have ended."""

    def flush(self) -> None:
        """Add to the counters in Python what was counted since the last time."""

    def set_ready(self) -> None:
        """Note whether the disk can be read: if not, no key is known to be absent."""

    def stats(self) -> dict[str, int]:
        """Return the figures of connections and cold reads."""

    def change(
        self, *, answers: bool, headers: str, origins: Mapping[str, str]
    ) -> None:
        """
        Take over other values, and the `slow_ns` of the application, from now on.

        Only in the thread that answers requests, as `set_pulse` and `stalled_seconds`.
        The arguments are those of the constructor. Headers are kept until the gate ends.
        """

    def set_pulse(self, seconds: float, pulse: Callable[[], None]) -> None:
        """Call a function at an interval, by the loop, beginning with its next tick."""

    def call_soon(self, function: Callable[[], None]) -> None:
        """Let the loop call a function within a tenth of a second; from any thread."""

    def stalled_seconds(self) -> float:
        """Return for how long reader threads have completed no read; 0: none waits."""

class NativeApp:
    """
    A WSGI application that answers plain requests, and passes on all others.

    See `volcache.http.native_app`.
    """

    def __init__(
        self,
        app: object,
        parts: object,
        types: ContentTypes,
        *,
        is_merged: bool,
    ) -> None: ...

    gate: Gate | None
    # Answers in place of `answer`, which it may call; None: nothing is in front of it.
    front: Callable[[WSGIEnvironment, StartResponse], list[bytes]] | None

    def refresh(self) -> None:
        """Take over the `slow_ns` of the application."""

    def flush(self) -> None:
        """Add to the counters in Python what was counted since the last time."""

    def answer(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]:
        """Answer one request, without `front`."""

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> list[bytes]: ...

def http_date(second: int) -> str:
    """
    Return seconds since the epoch as an HTTP date.

    Raises:
        ValueError: It is before 1970 or after the year 9999.
    """
