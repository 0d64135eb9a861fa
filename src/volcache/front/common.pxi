# What several parts of the front use.

from time import time_ns

from volcache.histogram import LONG_NS
from volcache.monitoring.requests import SAMPLE_MASK

cdef int64_t LONG = LONG_NS


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


# --- Executors --------------------------------------------------------------------------------


cdef int64_t native_store_us(void *context) noexcept nogil:
    return vc_clock_now(<vc_clock *>context)


cdef int64_t native_machine_us(void *context) noexcept nogil:
    return vc_machine_us()


cdef int64_t python_store_us(void *context) noexcept with gil:
    return (<Clocks>context).store.now_us()


cdef int64_t python_machine_us(void *context) noexcept with gil:
    return (<Clocks>context).machine_ns() // 1000


cdef class Clocks:
    """The clocks of a store and of the machine; those of tests are in Python."""

    cdef vc_clocks clocks
    cdef object store, machine_ns

    def __init__(self, store, machine_ns=time_ns):
        self.store, self.machine_ns = store, machine_ns
        self.clocks = vc_clocks(python_store_us, python_machine_us, <void *>self)
        if type(store) is Clock:
            self.clocks = vc_clocks(
                native_store_us, native_machine_us, &(<Clock>store).clock
            )


cdef vc_executor executor_of(
    Index index, Clocks clocks, Copies copies, AccessLog access_log, limits
):
    """Return what executors have; all must live longer than those."""
    cdef vc_executor by
    memset(&by, 0, sizeof(by))
    by.core, by.functions, by.clocks = index.core, functions, &clocks.clocks
    if copies is not None:
        by.copies = copies.copies
    if access_log is not None:
        by.log = access_log.log
    by.key_size, by.value_size = limits.key_size, limits.value_size
    by.long_ns, by.sample_mask = LONG_NS, SAMPLE_MASK
    return by


cdef add_new_durations(object histogram, const vc_durations *now, vc_durations *seen):
    """Add what was counted since the last call."""
    cdef list counts = histogram.counts
    cdef int i
    if now.total_ns == seen.total_ns:
        return
    for i in range(64):
        if now.counts[i] != seen.counts[i]:
            counts[i] += now.counts[i] - seen.counts[i]
    histogram.total_ns += now.total_ns - seen.total_ns
    seen[0] = now[0]


cdef add_store_counts(object stats, const vc_store_counts *now, vc_store_counts *seen):
    """Likewise, for all executors of a protocol."""
    # A read may be older than an error that was counted since the last call.
    if now.reads.total_ns != seen.reads.total_ns and stats.read_errors == seen.errors:
        stats.read_errors_in_row = 0
    add_new_durations(stats.reads, &now.reads, &seen.reads)
    add_new_durations(stats.writes, &now.writes, &seen.writes)
    stats.absent_reads += now.absent - seen.absent
    stats.evicted_reads += now.evicted - seen.evicted
    stats.expired_reads += now.expired - seen.expired
    seen[0] = now[0]
    seen.errors = stats.read_errors


cdef take_hot(vc_reporter *reporter, promote):
    cdef size_t length, at = 0
    cdef const uint8_t *events = vc_events_take(&reporter.hot, &length)
    cdef const vc_hot_event *event
    while at < length:
        event = <const vc_hot_event *>(events + at)
        at += event.sizes.length
        promote((<const char *>(event + 1))[: event.sizes.key_length], event.expires_ms)
