"""
What another extension may use of this one; see `_native.pyi`.

The functions in C are in the table `vc_functions` instead: see functions.h.
"""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from cpython.bytes cimport PyBytes_AS_STRING

from volcache.store._core.core cimport *


cdef inline const uint8_t *data_of(bytes value) noexcept:
    return <const uint8_t *>PyBytes_AS_STRING(value)


cdef bint is_plain(object key, const uint8_t **name, size_t *length) noexcept
cdef str etag_of(uint64_t stored_us, uint32_t checksum)


cdef class Calls:
    cdef vc_calls table
    cdef object fs
    cdef object error
    cdef object failure(self, int number)
    cdef int refuse_to_continue(self) except -1
    cdef int fail(self, object error) noexcept


cdef class Clock:
    cdef vc_clock clock


cdef class Index:
    cdef vc_core *core
    cdef Calls calls
    cdef dict slots  # by sequence number
    cdef list volumes  # that are written, by ring
    cdef object clock, writes
    cdef bint syncs
    cpdef unsigned set_volume(self, volume) except *
    cdef bint has_put(self, const vc_put *put, vc_status status, int error) except -1
    cdef object put_failure(self, vc_status status, int error, unsigned ring)
    cdef bint is_over(self, uint64_t expires_ms) noexcept
    cdef uint64_t fingerprint(self, bytes key) noexcept


cdef class Writer:
    cdef vc_writer writer
    cdef Calls calls
