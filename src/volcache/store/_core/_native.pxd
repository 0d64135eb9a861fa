"""
What another extension may use of this one; see `_native.pyi`.

The functions in C are in the table `vc_functions` instead: see functions.h.
"""

from libc.stdint cimport uint8_t
from cpython.bytes cimport PyBytes_AS_STRING

from volcache.store._core.core cimport *


cdef enum:
    # Entries are written to the index file this many at a time, as in volume.py.
    INDEX_BATCH = 512
    # Buckets that a put looks at while a sweep is due: about 2 us.
    SWEEP_BUCKETS = 64


cdef inline const uint8_t *data_of(bytes value) noexcept:
    return <const uint8_t *>PyBytes_AS_STRING(value)


cdef class Calls:
    cdef vc_calls table
    cdef object fs
    cdef object error
    cdef object failure(self, int number)
    cdef int fail(self, object error) noexcept


cdef class Clock:
    cdef vc_clock clock


cdef class Index:
    cdef vc_core *core
    cdef Calls calls
    cdef dict slots  # by sequence number
    cdef uint64_t fingerprint(self, bytes key) noexcept
    cdef vc_index_stats get_stats(self) noexcept


cdef class Writer:
    cdef vc_writer writer
    cdef Calls calls


cdef struct Reading:
    vc_record record
    uint8_t types[VC_TYPES_BYTES_MAX]  # content type, encoding and directives


cdef bytes read_record(Index index, const uint8_t *key, size_t length, Reading *reading)
cdef vc_status append_record(
    Writer writer,
    vc_record *record,
    const uint8_t *content_type,
    const uint8_t *encoding,
    const uint8_t *cache,
    const uint8_t *key,
    const uint8_t *value,
    bint sync,
    int *error,
) noexcept
