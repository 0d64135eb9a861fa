# What several parts of the front use.

from volcache.histogram import LONG_NS
from volcache.monitoring.requests import SAMPLE_MASK

cdef int64_t LONG = LONG_NS
cdef int64_t SAMPLED = SAMPLE_MASK


def http_date(int64_t second):
    cdef char text[VC_DATE_BYTES]
    if not 0 <= second <= VC_SECOND_MAX:
        raise ValueError("no date")
    return text[: vc_put_date(text, second) - text].decode("ascii")


cdef class AccessLog:
    cdef vc_log *log
    cdef readonly uint64_t dropped

    def __cinit__(self, *, bint as_json, size_t bytes_max=16 << 20):
        self.log = vc_log_new(as_json, bytes_max)
        if self.log is NULL:
            raise MemoryError("no memory for the access log")

    def __dealloc__(self):
        vc_log_free(self.log)

    def take(self):
        cdef size_t length
        cdef const char *lines = vc_log_take(self.log, &length, &self.dropped)
        return lines[:length]


cdef class Parts:
    """Bounds for C; without a ring there are none."""

    cdef bytes data
    cdef vc_parts parts

    def __init__(self, bounds=()):
        self.data = bytes(bounds)
        self.parts.bounds = <const uint32_t *>data_of(self.data)
        self.parts.count = len(bounds)

    def have(self, bytes path not None):
        return vc_parts_have(&self.parts, data_of(path), PyBytes_GET_SIZE(path))
