# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""
The native core for Python: thin classes over `core.h`; see `_native.pyi` for the contracts.

Whatever cannot be read here returns None: the caller then reads it in Python, which finds out
why, counts it and raises the error.
"""

import os

from libc.errno cimport EIO, errno
from libc.stdint cimport UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free
from libc.string cimport memcpy, memset
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_New
from posix.types cimport off_t
from posix.unistd cimport close

from volcache.errors import DamagedRecordError
from volcache.store.files import SyncFailedError
from volcache.store.format import RecordHeader, Ring
from volcache.store.index import (
    SHARES, Found, Gap, PolicyStats, Loaded, Run, Step, Torn, Unreadable
)
from volcache.store.index import Disposition

cdef tuple RINGS = tuple(Ring)  # as the core numbers them

# For another extension; see functions.h.
functions = PyCapsule_New(<void *>&vc_functions, VC_FUNCTIONS_NAME, NULL)


cdef extern from *:
    """
    /* A key of 1 to 1024 printable bytes that begins with none of `/.-` and has no `/.`. */
    static int vc_is_plain_key(const uint8_t *at, Py_ssize_t length) {
        if (length < 1 || length > 1024 || (*at >= '-' && *at <= '/')) return 0;
        for (Py_ssize_t i = 0; i < length; i++)
            if (at[i] < ' ' || at[i] == 127 || (at[i] == '.' && at[i - 1] == '/')) return 0;
        return 1;
    }
    /* A `bytes` that is being filled has one reference, which must be a pointer. */
    #define bytes_new(data, n) PyBytes_FromStringAndSize(data, n)
    #define bytes_data(value) PyBytes_AS_STRING(value)
    #define bytes_take(value) (value)
    """
    size_t VC_HEAD_BYTES_MAX(size_t key_length)
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL
    bint vc_is_plain_key(const uint8_t *at, Py_ssize_t length) noexcept
    PyObject *bytes_new(const char *data, Py_ssize_t length) except NULL
    char *bytes_data(PyObject *value)
    bytes bytes_take(PyObject *value)


# Up to here a record is read into a buffer, and the value copied to its `bytes`; above, the
# value is read into its `bytes`, after what is before it. The copy costs less than a page of new
# memory.
cdef enum:
    SMALL_BYTES = 16384
    HEAD_BYTES = 66560
    # Longer records are left to the caller, who reads the header first: the size in the
    # index is up to an eighth too large.
    LARGE_BYTES = 1048576
    READS_MAX = 256


# --- System calls ---------------------------------------------------------------------


cdef class Calls:
    """
    The system calls of a file system, as the core makes them.

    Those that are the functions of `os` are called without the interpreter, all others
    through it: so a test can fail any of them. An exception is kept until `failure`.
    """

    def __cinit__(self, fs not None):
        self.fs = fs
        self.table = vc_os_calls
        self.table.context = <void *>self
        if fs.pread is not os.pread:
            self.table.pread = python_pread
        if fs.pwritev is not os.pwritev:
            self.table.pwritev = python_pwritev
        if fs.sync is not os.fdatasync:
            self.table.fdatasync = python_sync

    cdef object failure(self, int number):
        """Return the exception for a call that failed with this errno."""
        error, self.error = self.error, None
        return error if error is not None else OSError(number, os.strerror(number))

    cdef int refuse_to_continue(self) except -1:
        """Raise what a call has raised that is no refusal of the disk; drop others."""
        error, self.error = self.error, None
        if error is not None and not isinstance(error, OSError):
            raise error
        return 0

    cdef int fail(self, object error) noexcept:
        global errno
        self.error = error
        errno = EIO
        if not isinstance(error, OSError):
            errno = ECANCELED
        elif error.errno:
            errno = error.errno
        return -1


cdef ssize_t python_pread(
    void *context, int fd, void *buffer, size_t length, off_t offset, c_bool is_cached
) noexcept with gil:
    cdef Calls calls = <Calls>context
    cdef bytes data
    try:
        data = calls.fs.pread(fd, length, offset)
    except BaseException as error:
        return calls.fail(error)
    length = min(length, <size_t>PyBytes_GET_SIZE(data))
    memcpy(buffer, data_of(data), length)
    return length


cdef ssize_t python_pwritev(
    void *context, int fd, const iovec *parts, int count, off_t offset
) noexcept with gil:
    cdef Calls calls = <Calls>context
    try:
        buffers = tuple(
            [(<char *>parts[i].iov_base)[: parts[i].iov_len] for i in range(count)]
        )
        return calls.fs.pwritev(fd, buffers, offset)
    except BaseException as error:
        return calls.fail(error)


cdef int python_sync(void *context, int fd) noexcept with gil:
    cdef Calls calls = <Calls>context
    try:
        calls.fs.sync(fd)
    except BaseException as error:
        return calls.fail(error)
    return 0


# --- The clock ------------------------------------------------------------------------


cdef class Clock:
    def __cinit__(self):
        vc_clock_raise(&self.clock.offset_us, vc_machine_us() - monotonic_ns() // 1000)

    def now_us(self):
        return vc_clock_now(&self.clock)

    def now_ms(self):
        return vc_clock_now(&self.clock) // 1000

    def from_machine_ms(self, int64_t ms):
        return ms + (vc_clock_now(&self.clock) - vc_machine_us()) // 1000

    def next_us(self):
        return vc_clock_next(&self.clock)

    def advance_to(self, int64_t us):
        vc_clock_raise(&self.clock.stored_us, us)
        vc_clock_raise(&self.clock.offset_us, us - monotonic_ns() // 1000)


# --- The index ------------------------------------------------------------------------


cdef bint is_plain(object key, const uint8_t **name, size_t *length) noexcept:
    """Find the bytes of a key that is certainly allowed; see `volcache_client.keys`."""
    cdef Py_ssize_t size = 0
    cdef const char *at = NULL
    if type(key) is str:
        try:
            at = PyUnicode_AsUTF8AndSize(key, &size)
        except UnicodeError:
            return False
    elif type(key) is bytes:
        at, size = PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)
    name[0], length[0] = <const uint8_t *>at, size
    return vc_is_plain_key(name[0], size)


cdef str etag_of(uint64_t stored_us, uint32_t checksum):
    cdef char etag[32]
    return etag[: snprintf(
        etag, sizeof(etag), b'"%llx-%08x"', <unsigned long long>stored_us, checksum
    )].decode("ascii")


cdef int fill_put(
    vc_put *put, bytes key, bytes value, bytes content_type, bytes content_encoding,
    bytes cache_control, uint64_t stored_us, uint64_t expires_ms, uint32_t flags,
) except -1:
    cdef vc_record *record = &put.record
    if not 0 < PyBytes_GET_SIZE(key) <= VC_KEY_BYTES_MAX:
        raise ValueError("a key has 1 to 65,535 bytes")
    if max(len(content_type), len(content_encoding), len(cache_control)) > 255:
        raise ValueError("stored headers have at most 255 bytes each")
    if expires_ms >= VC_TIME_END:
        raise ValueError("an expiry is below 2**57 milliseconds")
    put.key, record.key_length = data_of(key), PyBytes_GET_SIZE(key)
    put.type, record.type_length = data_of(content_type), len(content_type)
    put.encoding, record.encoding_length = data_of(content_encoding), len(content_encoding)
    put.cache, record.cache_length = data_of(cache_control), len(cache_control)
    put.value = data_of(value)
    record.length = min(PyBytes_GET_SIZE(value), <Py_ssize_t>VC_VALUE_BYTES_MAX + 1)
    record.stored_us, record.expires_ms, record.flags = stored_us, expires_ms, flags
    record.kind = 0
    return 0


cdef tuple fields_put(
    const vc_record *record, bytes value, bytes content_type, bytes content_encoding,
    bytes cache_control,
):
    return (
        value, content_type, content_encoding, cache_control, record.stored_us,
        record.expires_ms, record.flags, record.volume, record.offset, record.size,
        record.length, record.checksum, "DISK",
    )


cdef int64_t python_next_us(void *context) noexcept with gil:
    return (<Index>context).clock.next_us()


cdef int64_t native_next_us(void *context) noexcept nogil:
    return vc_clock_next(<vc_clock *>context)


cdef class Index:
    def __cinit__(
        self,
        fs,
        bytes hash_key not None,
        *,
        uint64_t volume_bytes,
        uint32_t volumes,
        uint64_t expected=0,
    ):
        if len(hash_key) != 16:
            raise ValueError("the hash key must have 16 bytes")
        self.calls = Calls(fs)
        self.slots = {}
        self.volumes = [None] * len(RINGS)
        self.core = vc_core_new(
            &self.calls.table, data_of(hash_key), volume_bytes, volumes, expected
        )
        if self.core is NULL:
            raise MemoryError("no memory for the index")

    def __dealloc__(self):
        vc_core_free(self.core)

    def close(self):
        with nogil:
            vc_core_close(self.core)

    @property
    def lock(self):
        return WriteLock(self)

    cdef uint64_t fingerprint(self, bytes key) noexcept:
        return vc_core_fingerprint(self.core, data_of(key), PyBytes_GET_SIZE(key))

    @property
    def count(self):
        cdef vc_index_stats stats
        vc_core_stats(self.core, &stats)
        return stats.records

    def live(self, seq):
        cdef vc_live found = vc_core_live(self.core, self.slots[seq])
        return found.records, found.bytes

    def add_volume(self, seq):
        cdef uint32_t slot
        if seq in self.slots:
            return
        slot = vc_core_add_volume(self.core, seq)
        if slot == VC_NO_SLOT:
            raise MemoryError("too many volumes for the index")
        self.slots[seq] = slot

    def bind_volume(self, seq, int fd, uint16_t volume, segments):
        cdef bytearray table = segments_of(segments)
        if not vc_core_bind(
            self.core, self.slots[seq], fd, volume,
            <vc_segment *>PyByteArray_AS_STRING(table), len(segments),
        ):
            raise MemoryError("no memory for the segments of a volume")

    def find(self, bytes key not None):
        cdef vc_entry found
        cdef uint64_t seq
        if not vc_core_find(self.core, self.fingerprint(key), &found, &seq):
            return None
        return None if found.is_tombstone else (seq, found.offset, found.size)

    def is_stale(self, bytes key not None):
        cdef c_bool is_stale = False
        vc_core_is_absent(self.core, data_of(key), PyBytes_GET_SIZE(key), False, &is_stale)
        return is_stale

    def set(
        self, bytes key not None, seq, uint64_t offset, uint64_t size, *, bint tombstone=False
    ):
        cdef uint32_t slot = self.slots[seq]
        cdef uint64_t fingerprint = self.fingerprint(key)
        vc_core_set(self.core, fingerprint, slot, offset, size, tombstone)

    def forget(self, bytes key not None, seq, uint64_t offset):
        cdef uint32_t slot = self.slots[seq]
        return bool(vc_core_bury(self.core, self.fingerprint(key), slot, offset))

    def is_deleted(self, bytes key not None):
        cdef vc_entry found
        cdef uint64_t seq
        cdef bint is_found = vc_core_find(self.core, self.fingerprint(key), &found, &seq)
        return bool(is_found and found.is_tombstone)

    # --- Eviction ---------------------------------------------------------------------

    def set_policy(self, rates):
        cdef vc_policy policy
        policy.hit_rate, policy.write_rate, policy.tokens_max, skip = rates
        policy.skip[0], policy.skip[1] = skip
        if not vc_core_set_policy(self.core, &policy):
            raise MemoryError("no memory for the ghost")

    def set_age(self, seq, unsigned ring, uint64_t born, uint64_t end):
        vc_core_set_age(self.core, self.slots[seq], ring, born, end)

    def ring_for(self, bytes key not None):
        cdef unsigned ring
        ring = vc_core_ring_for(self.core, data_of(key), PyBytes_GET_SIZE(key))
        return None if ring == VC_RING_UNKNOWN else RINGS[ring]

    def accept_displaced(self):
        vc_core_accept_displaced(self.core)

    def hit(self, bytes key not None, uint64_t stored_us):
        return vc_core_hit(self.core, data_of(key), PyBytes_GET_SIZE(key), stored_us)

    def miss(self, bytes key not None):
        cdef uint64_t read = self.fingerprint(key) | VC_MISS
        vc_core_count_reads(self.core, &read, 1)

    def policy_stats(self):
        cdef vc_policy_stats policy_stats
        vc_core_get_policy_stats(self.core, &policy_stats)
        return PolicyStats(policy_stats.tokens, policy_stats.ghost_hits, policy_stats.older_hits)

    def count_older(self, uint64_t stored_us):
        vc_core_set_older(self.core, stored_us)

    @property
    def purge_count(self):
        cdef const vc_purges *purges = vc_core_purges(self.core)
        return vc_purges_count(purges) if purges else 0

    def purges(self):
        cdef const vc_purges *purges = vc_core_purges(self.core)
        cdef const vc_purge *one = vc_purges_oldest(purges) if purges else NULL
        cdef list found = []
        while one:
            found.append((one.us, one.seq, (<const char *>one.prefix)[:one.length]))
            one = one.newer
        return found

    def has_room_for_purge(self, bytes prefix not None, size_t count, size_t size):
        cdef const vc_purges *purges = vc_core_purges(self.core)
        return not purges or vc_purges_have_room(
            purges, data_of(prefix), PyBytes_GET_SIZE(prefix), count, size
        )

    def load_purges(self, purges):
        for time_us, seq, prefix in purges:
            self.reserve_purge(prefix)
            self.add_purge(time_us, seq)

    def reserve_purge(self, bytes prefix not None):
        if not 0 < len(prefix) <= VC_KEY_BYTES_MAX:
            raise ValueError(f"a prefix has 1 to {VC_KEY_BYTES_MAX} bytes")
        if not vc_core_reserve_purge(self.core, data_of(prefix), PyBytes_GET_SIZE(prefix)):
            raise MemoryError("no memory for a purge")

    def add_purge(self, uint64_t time_us, uint64_t seq):
        vc_core_add_purge(self.core, time_us, seq)

    def last_purge_below(self, uint64_t seq):
        cdef const vc_purges *purges = vc_core_purges(self.core)
        return vc_purges_last_below(purges, seq) if purges else 0

    def drop_purges(self, uint64_t seq):
        vc_core_drop_purges(self.core, seq)

    def sweep_purges(self):
        vc_core_sweep_purges(self.core)

    def is_purged(self, bytes key not None, uint64_t stored_us):
        return vc_core_is_purged(self.core, data_of(key), PyBytes_GET_SIZE(key), stored_us)

    def size_ghost(self, uint64_t keys):
        vc_core_size_ghost(self.core, keys)

    def reclaim(self, seq):
        slot = self.slots.pop(seq, None)
        if slot is None:
            return 0, 0
        cdef vc_live lost = vc_core_reclaim(self.core, slot)
        return lost.records, lost.bytes

    # --- Reading ----------------------------------------------------------------------

    def read(self, bytes key not None):
        cdef vc_lookup at
        cdef tuple found = None
        if not vc_core_lookup(
            self.core, data_of(key), PyBytes_GET_SIZE(key), UINT64_MAX, &at
        ):
            return None
        try:
            found = read_record(self.core, key, &at)
        finally:
            vc_core_end_read(self.core)
        if found is None:
            # The caller tries again in Python, and meets what an injected call has raised.
            self.calls.error = None
        return found

    # --- Values, for a program that has nothing else to do ---------------------------

    def value(self, key):
        cdef const uint8_t *name
        cdef size_t length
        cdef vc_lookup at
        cdef uint8_t buffer[SMALL_BYTES]
        cdef vc_record record
        cdef vc_status status = VC_IO_ERROR
        cdef c_bool is_stale = False
        if not is_plain(key, &name, &length):
            return False
        if not vc_core_lookup(self.core, name, length, SMALL_BYTES, &at):
            is_absent = vc_core_is_absent(self.core, name, length, False, &is_stale)
            return None if is_absent and not is_stale else False
        if at.size <= SMALL_BYTES:
            with nogil:
                status = vc_core_read(self.core, name, length, &at, False, buffer, &record)
        vc_core_end_read(self.core)
        if status != VC_OK or record.expires_ms and self.is_over(record.expires_ms):
            self.calls.error = None
            return False
        return (<char *>buffer)[record.prefix : record.size]

    cdef bint is_over(self, uint64_t expires_ms) noexcept:
        if type(self.clock) is not Clock:
            return True
        return expires_ms <= <uint64_t>(vc_clock_now(&(<Clock>self.clock).clock) // 1000)

    def put_value(self, key, bytes value not None, bytes content_type not None):
        cdef vc_put put
        cdef const uint8_t *name
        cdef size_t length
        cdef vc_status status
        if not is_plain(key, &name, &length):
            return None
        fill_put(&put, b"k", value, content_type, b"", b"", 0, 0, 0)
        put.key, put.record.key_length, put.ring = name, length, VC_RING_UNKNOWN
        with nogil:
            status = vc_core_put(self.core, &put)
        if status != VC_OK:
            return None
        return etag_of(put.record.stored_us, put.record.checksum)

    # --- Putting ----------------------------------------------------------------------

    def set_putting(self, clock, uint64_t deferred_bytes, bint syncs, writes):
        cdef vc_putting putting
        self.clock, self.writes, self.syncs = clock, writes, syncs
        putting.next_us, putting.context = python_next_us, <void *>self
        if type(clock) is Clock:
            putting.next_us, putting.context = native_next_us, &(<Clock>clock).clock
        putting.deferred_bytes, putting.syncs = deferred_bytes, syncs
        vc_core_set_putting(self.core, &putting)

    def put(
        self,
        bytes key not None,
        bytes value not None,
        bytes content_type not None,
        bytes content_encoding not None,
        bytes cache_control not None,
        uint64_t stored_us,
        uint64_t expires_ms,
        uint32_t flags,
        volume=None,
    ):
        cdef vc_put put
        cdef vc_status status
        cdef int error
        fill_put(
            &put, key, value, content_type, content_encoding, cache_control, stored_us,
            expires_ms, flags,
        )
        put.ring = VC_RING_UNKNOWN if volume is None else self.set_volume(volume)
        with nogil:
            status = vc_core_put(self.core, &put)
            error = errno
        if not self.has_put(&put, status, error):
            return None
        return fields_put(&put.record, value, content_type, content_encoding, cache_control)

    def change(
        self,
        bytes key not None,
        bytes value,
        bytes content_type not None,
        bytes content_encoding not None,
        bytes cache_control not None,
        uint64_t stored_us,
        uint64_t expires_ms,
        uint32_t flags,
        condition,
        uint64_t now_ms,
    ):
        cdef vc_put put
        cdef vc_condition what
        cdef c_bool is_done = False
        cdef vc_status status
        cdef int error
        what.kind, what.stored_us, what.expires_ms = condition
        fill_put(
            &put, key, value or b"", content_type, content_encoding, cache_control, stored_us,
            expires_ms, flags,
        )
        put.record.kind = value is None
        with nogil:
            status = vc_core_change(self.core, &put, &what, now_ms, True, &is_done)
            error = errno
        self.calls.refuse_to_continue()
        if not self.has_put(&put, status, error):
            return None
        if value is None or not is_done:
            return bool(is_done)
        return fields_put(&put.record, value, content_type, content_encoding, cache_control)

    def holds(self, bytes key not None, condition, uint64_t now_ms):
        cdef vc_condition what
        cdef c_bool holds = False
        what.kind, what.stored_us, what.expires_ms = condition
        if vc_core_holds(self.core, data_of(key), len(key), &what, now_ms, True, &holds) != VC_OK:
            return None
        return bool(holds)

    def group_commit(self, list records not None):
        cdef vc_put puts[16]
        cdef vc_put *pointers[16]
        cdef size_t count = len(records), made = 0, more = 1
        cdef size_t i
        if count > 16:
            raise ValueError("at most 16 records")
        for i, (key, value, _, _, _, _, expires_ms, flags) in enumerate(records):
            memset(&puts[i], 0, sizeof(vc_put))
            puts[i].key, puts[i].record.key_length = data_of(key), len(key)
            puts[i].value, puts[i].record.length = data_of(value), len(value)
            puts[i].record.expires_ms, puts[i].record.flags = expires_ms, flags
            pointers[i] = &puts[i]
        with nogil:
            if self.syncs:
                while made < count:
                    made += vc_core_group_commit(self.core, pointers + made, count - made)
            else:
                while made < count and more:
                    more = vc_core_put_many(self.core, pointers + made, count - made)
                    made += more
        for volume in filter(None, self.volumes):
            (<Writer>volume).calls.refuse_to_continue()
        # Of what `vc_core_put_many` has not made, nothing was done.
        return [i < made and puts[i].status == VC_OK for i in range(count)]

    def delete(self, bytes key not None, uint64_t now_ms, volume=None):
        cdef vc_put put
        cdef c_bool existed = False
        cdef vc_status status
        cdef int error
        if not 0 < PyBytes_GET_SIZE(key) <= VC_KEY_BYTES_MAX:
            return False
        put.key, put.record.key_length = data_of(key), PyBytes_GET_SIZE(key)
        put.ring = VC_RING_UNKNOWN if volume is None else self.set_volume(volume)
        put.started_ns = 0
        with nogil:
            status = vc_core_delete(self.core, &put, now_ms, &existed)
            error = errno
        self.calls.refuse_to_continue()
        return bool(existed) if self.has_put(&put, status, error) else None

    cdef bint has_put(self, const vc_put *put, vc_status status, int error) except -1:
        """Count a record that was put, or raise why it was not; False: it is deferred."""
        if status == VC_DEFERRED or status == VC_GROUPED:
            return False
        if status != VC_OK:
            raise self.put_failure(status, error, put.ring)
        if put.started_ns:
            (<Writer>self.volumes[put.ring]).calls.refuse_to_continue()
            if self.writes is not None:
                self.writes.observe(put.started_ns, put.took_ns)
        return True

    def block_writes(self, *, bint is_blocked):
        vc_core_block_writes(self.core, is_blocked)

    cpdef unsigned set_volume(self, volume) except *:
        cdef Writer writer = volume
        writer.writer.slot = self.slots[volume.seq]
        cdef unsigned ring = vc_core_set_writer(self.core, &writer.writer)
        self.volumes[ring] = volume
        return ring

    cdef object put_failure(self, vc_status status, int error, unsigned ring):
        cdef Writer writer = self.volumes[ring]
        if status == VC_NO_MEMORY:
            return MemoryError("no memory for index entries")
        failure = writer.calls.failure(error)
        if status == VC_IO_ERROR or not isinstance(failure, OSError):
            return failure
        synced = SyncFailedError(failure.errno, failure.strerror)
        synced.__cause__ = failure
        return synced

    @property
    def has_deferred(self):
        return vc_core_has_deferred(self.core)

    def take_deferred(self):
        cdef vc_deferred due = vc_core_take_deferred(self.core)
        unwritten = [one for i, one in enumerate(self.volumes) if due.unwritten >> i & 1]
        refused = [one for i, one in enumerate(self.volumes) if due.refused >> i & 1]
        unsynced = [
            (one, SyncFailedError(due.sync_error, os.strerror(due.sync_error)))
            for i, one in enumerate(self.volumes) if due.unsynced >> i & 1
        ]
        for volume in refused:
            (<Writer>volume).calls.error = None
        return due.bytes, unwritten, refused, unsynced

    # --- Loading ----------------------------------------------------------------------

    def load(self, seq, int fd, segments):
        cdef uint32_t slot = self.slots[seq]
        cdef bytearray table = segments_of(segments)
        cdef vc_lines lines = lines_in(table)
        cdef vc_status status
        cdef int error
        with nogil:
            status = vc_core_load(self.core, slot, fd, &lines)
            error = errno
        if status == VC_IO_ERROR:
            raise self.calls.failure(error)
        if status == VC_NO_MEMORY:
            raise MemoryError("no memory to load an index file")
        return loaded_of(&lines)

    def end_load(self):
        vc_core_end_load(self.core)


cdef class WriteLock:
    cdef Index index  # is needed as long as this
    cdef vc_core *core

    def __cinit__(self, Index index not None):
        self.index = index
        self.core = index.core

    def __enter__(self):
        cdef bint is_acquired
        # Never waits with the lock of the interpreter, which its owner may be waiting for.
        while not vc_core_try_acquire(self.core, 0):
            PyErr_CheckSignals()
            with nogil:
                is_acquired = vc_core_try_acquire(self.core, 1000000000)
            if is_acquired:
                return

    def __exit__(self, *_):
        if not vc_core_release(self.core):
            raise RuntimeError("this thread does not have the lock of the store")

    @property
    def is_mine(self):
        return vc_core_is_mine(self.core)

    def lend(self, uint64_t to=0):
        return vc_core_lend(self.core, to)


cdef bytearray segments_of(segments):
    """Return segments as the core has them."""
    cdef bytearray table = bytearray(len(segments) * sizeof(vc_segment))
    cdef vc_segment *to = <vc_segment *>PyByteArray_AS_STRING(table)
    for i, (start, salt) in enumerate(segments):
        to[i] = vc_segment(start, salt)
    return table


cdef vc_lines lines_in(bytearray segments):
    """Return an index file, of a volume with these segments, of which nothing was read."""
    cdef vc_lines lines
    memset(&lines, 0, sizeof(lines))
    lines.segments = <vc_segment *>PyByteArray_AS_STRING(segments)
    lines.segment_count = PyByteArray_GET_SIZE(segments) // sizeof(vc_segment)
    lines.volume_end = VC_VOLUME_HEADER_BYTES
    return lines


cdef object loaded_of(const vc_lines *lines):
    return Loaded(
        lines.file_end,
        lines.volume_end,
        bool(lines.is_sealed),
        lines.checksum if lines.has_checksum else None,
        lines.named,
        bool(lines.is_of_clone),
        lines.entries,
        lines.last_offset,
    )


cdef tuple read_record(vc_core *core, bytes key, const vc_lookup *at):
    cdef uint8_t bytes_read[HEAD_BYTES]
    cdef const uint8_t *name = data_of(key)
    cdef size_t length = PyBytes_GET_SIZE(key)
    cdef vc_lookup first = at[0]
    cdef bytes value = None
    cdef uint8_t *into
    cdef vc_record record
    cdef vc_status status
    if at.size > LARGE_BYTES:
        return None
    if at.size > SMALL_BYTES:
        first.size = min(at.size, VC_HEAD_BYTES_MAX(length))
    record.key = NULL
    with nogil:
        status = vc_core_read(core, name, length, &first, False, bytes_read, &record)
    if status == VC_OK:
        value = (<char *>bytes_read)[record.prefix : record.size]
    elif status == VC_SHORT and record.key and first.size < at.size:
        value = bytes_take(bytes_new(NULL, record.length))
        into = <uint8_t *>data_of(value)
        with nogil:
            status = vc_core_read_value(core, at, &record, into)
    return fields_of(value, &record) if status == VC_OK else None


cdef tuple fields_of(bytes value, const vc_record *r):
    """Return the fields of a record whose types are in memory still."""
    cdef const char *encoding = <const char *>r.type + r.type_length
    cdef const char *cache = encoding + r.encoding_length
    return (
        value, (<const char *>r.type)[: r.type_length], encoding[: r.encoding_length],
        cache[: r.cache_length], r.stored_us, r.expires_ms, r.flags, r.volume, r.offset,
        r.size, r.length, r.checksum, "DISK",
    )


# --- A guest reads what its owner shares, see shared.h ----------------------------------


cdef class SharedReader:
    cdef vc_guest *guest
    cdef Clock clock
    cdef int folder
    cdef uint64_t[READS_MAX] reads  # for the eviction policy of the owner
    cdef size_t count
    cdef readonly bint is_full

    def __cinit__(self):
        self.folder = -1

    def __init__(self, Clock clock not None, int fd, folder):
        self.clock = clock
        self.folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.guest = vc_guest_new(fd, self.folder)
        if self.guest is NULL:
            raise MemoryError("no memory to map an index")

    def __dealloc__(self):
        vc_guest_free(self.guest)
        close(self.folder)  # Of -1 it is refused.

    cdef object look(
        self, const uint8_t *name, size_t length, bint is_head, bint counts, bint is_value
    ):
        cdef uint8_t buffer[SMALL_BYTES]
        cdef uint8_t *into = buffer
        cdef bytes large
        cdef size_t room
        cdef vc_lookup at
        cdef vc_record record
        cdef vc_guest_result found = vc_guest_find(self.guest, name, length, &at)
        if found == VC_GUEST_FOUND:
            room = min(at.size, VC_HEAD_BYTES_MAX(length)) if is_head else at.size
            if room > SMALL_BYTES:
                large = bytes_take(bytes_new(NULL, room))
                into = <uint8_t *>data_of(large)
            with nogil:
                found = vc_guest_read(
                    self.guest, &at, name, length, into, room, is_head, &record
                )
        if found == VC_GUEST_ASK:
            return False
        if not vc_guest_is_current(self.guest):
            return True
        if counts and not self.is_full:
            at.fingerprint |= VC_MISS if found == VC_GUEST_ABSENT else 0
            self.reads[self.count] = at.fingerprint
            self.count += 1
            self.is_full = self.count == READS_MAX
        if found == VC_GUEST_ABSENT:
            return None
        if record.expires_ms and record.expires_ms <= <uint64_t>self.clock.now_ms():
            return None
        value = b"" if is_head else (<char *>into)[record.prefix : record.size]
        return value if is_value else fields_of(value, &record)

    def read(self, bytes key not None, bint is_head, bint counts):
        return self.look(data_of(key), PyBytes_GET_SIZE(key), is_head, counts, False)

    def value(self, key):
        cdef const uint8_t *name
        cdef size_t length
        if self.is_full or not is_plain(key, &name, &length):
            return False
        found = self.look(name, length, False, True, True)
        return False if found is True else found

    def take(self):
        cdef bytes reads = (<const char *>self.reads)[: self.count * sizeof(uint64_t)]
        self.count = self.is_full = 0
        return reads


# --- Appending ------------------------------------------------------------------------


cdef class Writer:
    def __cinit__(self, fs, int fd, *, use, **_):
        self.calls = Calls(fs)
        self.writer.calls = &self.calls.table
        self.writer.fd = fd
        self.writer.volume = use.volume
        self.writer.salt = use.salt
        self.writer.end = VC_VOLUME_HEADER_BYTES

    def __dealloc__(self):
        vc_writer_free(&self.writer)

    @property
    def fd(self):
        return self.writer.fd

    @fd.setter
    def fd(self, int fd):
        self.writer.fd = fd

    @property
    def end(self):
        return self.writer.end

    @end.setter
    def end(self, uint64_t end):
        self.writer.end = end

    @property
    def synced_end(self):
        return self.writer.synced_end

    @synced_end.setter
    def synced_end(self, uint64_t end):
        self.writer.synced_end = end

    @property
    def capacity(self):
        return self.writer.capacity

    @property
    def length(self):
        return self.writer.length

    def set_room(self, uint64_t length, uint64_t capacity):
        self.writer.length = length
        self.writer.capacity = capacity

    @property
    def salt(self):
        return self.writer.salt

    @salt.setter
    def salt(self, uint64_t salt):
        self.writer.salt = salt

    @property
    def pending(self):
        return self.writer.pending

    @property
    def pending_max(self):
        return self.writer.pending_max

    @pending_max.setter
    def pending_max(self, size_t pending_max):
        self.writer.pending_max = pending_max

    @property
    def index_end(self):
        return self.writer.index_end

    @property
    def index_checksum(self):
        return self.writer.index_checksum

    @index_checksum.setter
    def index_checksum(self, uint32_t checksum):
        self.writer.index_checksum = checksum

    @property
    def is_indexed(self):
        return self.writer.is_indexed

    @is_indexed.setter
    def is_indexed(self, bint is_indexed):
        self.writer.is_indexed = is_indexed

    def set_index_file(self, int fd, uint64_t end):
        self.writer.index_fd, self.writer.index_end = fd, end

    def append_block(self, bytes lines not None, uint64_t end, bint is_sealed):
        cdef const char *data = <const char *>data_of(lines)
        cdef size_t length = PyBytes_GET_SIZE(lines)
        cdef int error = self.writer.index_error
        self.writer.index_error = 0
        if not error and not vc_writer_append_block(
            &self.writer, data, length, end, is_sealed
        ):
            error = errno
        if error:
            raise self.calls.failure(error)

    @property
    def lines(self):
        if not self.writer.lines_used:
            return b""
        return self.writer.lines[: self.writer.lines_used]

    def clear(self):
        vc_writer_clear(&self.writer)

    def add_entry(self, bytes key not None, uint64_t offset, uint64_t size):
        if not vc_writer_add_entry(
            &self.writer, data_of(key), PyBytes_GET_SIZE(key), offset, size
        ):
            raise MemoryError("no memory for index entries")


# --- Reclaiming -----------------------------------------------------------------------


# As the core numbers the results of a step.
cdef tuple ENDS = ("more", "done", "full", "unreadable", "refused", "damaged")


cdef vc_thresholds thresholds_of(thresholds):
    cdef vc_thresholds found
    cdef int i
    for i in range(VC_SIZE_STEPS - 1):
        found.limit[i] = thresholds.limits[i]
    for i in range(VC_SIZE_STEPS):
        found.need[i] = thresholds.needs[i]
    found.hits_taken = thresholds.hits_taken
    found.is_probation = thresholds.is_probation
    found.now_ms = 0
    return found


cdef object disposition_of(const vc_disposition *disposition):
    return Disposition(
        disposition.copied, disposition.copied_bytes, disposition.unused, disposition.unpaid, disposition.expired,
        disposition.damaged, disposition.unreadable, disposition.left, disposition.purged,
    )


cdef class Reclaim:
    cdef vc_reclaim *reclaim
    cdef Index index  # is needed as long as this
    cdef int volume

    def __cinit__(self, Index index not None, seq, int volume):
        self.index = index
        self.volume = volume
        self.reclaim = vc_reclaim_new(index.core, index.slots[seq])
        if self.reclaim is NULL:
            raise MemoryError("no memory to reclaim a volume")

    def __dealloc__(self):
        vc_reclaim_free(self.reclaim)

    def collect(self, uint32_t shares, thresholds):
        cdef uint32_t segments = shares * ((1 << VC_SEGMENT_BITS) // <uint32_t>SHARES)
        cdef vc_thresholds c_thresholds = thresholds_of(thresholds)
        cdef vc_disposition disposition
        with nogil:
            vc_reclaim_collect(self.reclaim, segments, &c_thresholds, &disposition)
        return disposition_of(&disposition)

    def step(self, uint64_t end, uint64_t copy_bytes, thresholds, target, uint64_t now_ms):
        cdef vc_thresholds c_thresholds = thresholds_of(thresholds)
        cdef vc_disposition disposition
        cdef vc_reclaim_result step
        cdef vc_writer *to = NULL
        cdef Writer writer = None
        cdef uint64_t offset = 0
        cdef int error
        c_thresholds.now_ms = now_ms
        if target is not None:
            writer = target
            to = &writer.writer
            to.slot = self.index.slots[target.seq]
        with nogil:
            step = vc_reclaim_step(
                self.reclaim, end, copy_bytes, &c_thresholds, to, &disposition, &offset
            )
            error = errno
        failed = None
        if step == VC_RECLAIM_DAMAGED:
            failed = DamagedRecordError(
                "a check failed before it was copied", self.volume, offset
            )
        elif step == VC_RECLAIM_UNREADABLE:
            failed = self.index.calls.failure(error)
        elif step == VC_RECLAIM_REFUSED:
            failed = writer.calls.failure(error)
        if failed is not None and not isinstance(failed, (OSError, DamagedRecordError)):
            raise failed
        return Step(ENDS[step], disposition_of(&disposition), failed)


# --- Scanning --------------------------------------------------------------------------


cdef struct Order:
    uint64_t last
    bint is_growing


cdef c_bool take_offset(
    void *context, const uint8_t *key, size_t length, uint64_t offset, uint64_t size
) noexcept nogil:
    cdef Order *order = <Order *>context
    if size:
        order.is_growing &= offset > order.last
        order.last = offset
    return True


def read_lines(bytes data not None, segments):
    cdef bytearray table = segments_of(segments)
    cdef vc_lines lines = lines_in(table)
    cdef Order order = Order(0, True)
    cdef const uint8_t *at = data_of(data)
    cdef size_t length = PyBytes_GET_SIZE(data)
    with nogil:
        vc_lines_read(&lines, at, length, take_offset, &order)
    return loaded_of(&lines), bool(order.is_growing)


cdef class Records:
    cdef vc_scan scan
    cdef Calls calls
    # They are needed as long as this:
    cdef object volume, fs
    cdef Index index
    cdef bytearray segments
    cdef bytes lines

    def __cinit__(
        self,
        fs,
        volume,
        uint64_t start,
        uint64_t end=UINT64_MAX,
        uint64_t window=UINT64_MAX,
        bint has_lost=False,
        *,
        uint64_t step=0,
        Index index=None,
        bint adds_entries=False,
        bint has_values=True,
        size_t piece=VC_READ_AHEAD_PIECE_BYTES,
    ):
        self.calls, self.volume, self.fs, self.index = Calls(fs), volume, fs, index
        cdef uint64_t length = 0 if volume.fd < 0 else fs.stat(volume.fd).st_size
        self.scan.length = min(end, length)
        self.scan.ahead = vc_read_ahead_new(
            &self.calls.table, volume.fd, start, self.scan.length, piece
        )
        if self.scan.ahead is NULL:
            raise MemoryError("no memory to read a volume")
        self.segments = segments_of(volume.salts)
        self.scan.segments = <vc_segment *>PyByteArray_AS_STRING(self.segments)
        self.scan.segment_count = len(volume.salts)
        self.scan.volume, self.scan.at = volume.id, start
        self.scan.window, self.scan.step = window, step
        self.scan.has_lost, self.scan.has_values = has_lost, has_values
        if index is not None:
            self.scan.core, self.scan.slot = index.core, index.slots[volume.seq]
        if adds_entries:
            self.scan.writer = &(<Writer>volume).writer

    def __dealloc__(self):
        vc_read_ahead_free(self.scan.ahead)
        vc_writer_free(&self.scan.expected)

    @property
    def at(self):
        return self.scan.at

    @at.setter
    def at(self, uint64_t at):
        self.scan.at = at

    @property
    def length(self):
        return self.scan.length

    @property
    def unreadable(self):
        cdef uint64_t first
        return vc_read_ahead_unreadable(self.scan.ahead, self.scan.length, &first), first

    def expect(self, bytes lines not None, uint64_t length):
        self.lines = lines
        self.scan.lines = data_of(lines)
        self.scan.lines_length = PyBytes_GET_SIZE(lines)
        self.scan.length = min(self.scan.length, length)

    def skip_line(self):
        cdef bint is_comment = True
        while is_comment and self.scan.line_at < self.scan.lines_length:
            is_comment = self.scan.lines[self.scan.line_at] == b"#"
            self.scan.line_at = self.lines.index(b"\n", self.scan.line_at) + 1

    def has_more(self, uint64_t offset):
        cdef uint64_t found
        with nogil:
            found = vc_scan_find(&self.scan, offset)
        self.calls.refuse_to_continue()
        return found != UINT64_MAX

    def __iter__(self):
        return self

    def __next__(self):
        cdef vc_event event
        cdef const vc_record *r = &event.record
        with nogil:
            vc_scan_next(&self.scan, &event)
        self.calls.refuse_to_continue()
        if event.kind == VC_SCAN_RUN:
            return Run(event.end, event.records, event.latest_us)
        if event.kind == VC_SCAN_RECORD or event.kind == VC_SCAN_DAMAGED:
            return Found(header_of(r, event.start), event.kind == VC_SCAN_RECORD)
        if event.kind == VC_SCAN_GAP:
            return Gap(event.start, event.end)
        if event.kind == VC_SCAN_TORN:
            return Torn(event.start)
        if event.kind == VC_SCAN_UNREADABLE:
            return Unreadable(event.start, event.end)
        if event.kind == VC_SCAN_NO_MEMORY:
            raise MemoryError("no memory for index entries")
        raise StopIteration


def decode_header(bytes data not None, uint64_t salt, uint16_t volume, uint64_t offset):
    cdef vc_record record
    cdef vc_status status = vc_record_decode(
        data_of(data), PyBytes_GET_SIZE(data), salt, volume, offset, &record
    )
    return header_of(&record, offset) if status == VC_OK else None


cdef object header_of(const vc_record *r, uint64_t offset):
    cdef const char *encoding = <const char *>r.type + r.type_length
    cdef const char *cache = encoding + r.encoding_length
    cdef const char *key = cache + r.cache_length
    return RecordHeader(
        (<const char *>r.type)[: r.type_length], encoding[: r.encoding_length],
        cache[: r.cache_length], r.stored_us, r.expires_ms, r.flags,
        key[: r.key_length], offset, r.length, r.checksum, r.kind == 1, r.prefix, r.size,
        r.unsynced,
    )
