"""The C interface of the core; see the headers."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from posix.types cimport off_t


cdef extern from "<errno.h>" nogil:
    enum: ECANCELED


cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len


cdef extern from "index.h" nogil:
    enum: VC_TYPES_UNKNOWN
    enum: VC_NO_SLOT
    enum: VC_SEGMENT_BITS
    ctypedef struct vc_entry:
        uint64_t offset, size
        uint32_t slot
        unsigned hits
        bint is_tombstone
    ctypedef struct vc_live:
        uint64_t records, bytes
    ctypedef struct vc_index_stats:
        uint64_t records
    uint64_t vc_size_middle(uint64_t size)


cdef extern from "purges.h" nogil:
    ctypedef struct vc_purge:
        uint64_t us, seq
        const vc_purge *newer
        uint32_t length
        const uint8_t *prefix
    ctypedef struct vc_purges:
        pass
    const vc_purge *vc_purges_oldest(const vc_purges *purges)
    uint64_t vc_purges_last_below(const vc_purges *purges, uint64_t seq)
    size_t vc_purges_count(const vc_purges *purges)
    bint vc_purges_have_room(const vc_purges *purges, const uint8_t *prefix, size_t length,
                             size_t count_max, size_t bytes_max)


cdef extern from "record.h" nogil:
    enum: VC_VOLUME_HEADER_BYTES
    enum: VC_OVERHEAD_BYTES
    enum: VC_KEY_BYTES_MAX
    enum: VC_VALUE_BYTES_MAX
    const uint64_t VC_TIME_END
    ctypedef enum vc_status:
        VC_OK
        VC_IO_ERROR
        VC_NO_MEMORY
        VC_DEFERRED
        VC_TOGETHER
    ctypedef struct vc_record:
        uint64_t offset, stored_us, expires_ms, size
        uint32_t length, checksum, flags, unsynced, prefix
        uint16_t volume, key_length
        uint8_t type_length, encoding_length, cache_length, kind
        const uint8_t *type


cdef extern from "<stdbool.h>" nogil:
    ctypedef bint c_bool "bool"


cdef extern from "lines.h" nogil:
    ctypedef struct vc_segment:
        uint64_t start, salt
    ctypedef struct vc_lines:
        const vc_segment *segments
        size_t segment_count, named
        uint64_t file_end, volume_end, entries, last_offset
        uint32_t checksum
        bint has_checksum, is_sealed, is_of_copy
    ctypedef c_bool (*vc_lines_take)(void *context, const uint8_t *key, size_t length,
                                   uint64_t offset, uint64_t size) noexcept
    size_t vc_lines_read(vc_lines *lines, const uint8_t *data, size_t length,
                         vc_lines_take take, void *context)


cdef extern from "core.h" nogil:
    ctypedef struct vc_calls:
        ssize_t (*pread)(void *context, int fd, void *buffer, size_t length,
                         off_t offset) noexcept
        ssize_t (*pread_cached)(void *context, int fd, void *buffer, size_t length,
                                off_t offset) noexcept
        ssize_t (*preadv)(void *context, int fd, const iovec *parts, int count,
                          off_t offset) noexcept
        ssize_t (*pwritev)(void *context, int fd, const iovec *parts, int count,
                           off_t offset) noexcept
        int (*fdatasync)(void *context, int fd) noexcept
        void *context
    const vc_calls vc_os_calls

    ctypedef struct vc_core:
        pass
    vc_core *vc_core_new(const vc_calls *calls, const uint8_t *hash_key,
                         uint64_t volume_bytes, uint32_t volumes, uint64_t expected)
    void vc_core_close(vc_core *core)
    void vc_core_free(vc_core *core)
    bint vc_core_try_acquire(vc_core *core, int64_t wait_ns)
    bint vc_core_release(vc_core *core)
    uint64_t vc_core_lend(vc_core *core, uint64_t to)
    bint vc_core_is_mine(vc_core *core)
    uint32_t vc_core_add_volume(vc_core *core, uint64_t seq)
    bint vc_core_bind(vc_core *core, uint32_t slot, int fd, uint16_t volume,
                      const vc_segment *segments, size_t count)
    vc_live vc_core_reclaim(vc_core *core, uint32_t slot)
    vc_live vc_core_live(vc_core *core, uint32_t slot)
    uint64_t vc_core_fingerprint(const vc_core *core, const uint8_t *key, size_t length)
    bint vc_core_find(vc_core *core, uint64_t fingerprint, vc_entry *found, uint64_t *seq)
    bint vc_core_set(vc_core *core, uint64_t fingerprint, uint32_t slot, uint64_t offset,
                     uint64_t size, int types, bint is_tombstone)
    bint vc_core_bury(vc_core *core, uint64_t fingerprint, uint32_t slot, uint64_t offset)

    ctypedef struct vc_policy:
        double hit_rate, write_rate, tokens_max
        uint64_t skip[2]
    enum: VC_RING_UNKNOWN
    ctypedef struct vc_heat:
        double tokens
        uint64_t ghost_hits, older_hits
    void vc_core_set_age(vc_core *core, uint32_t slot, unsigned ring, uint64_t born,
                         uint64_t end)
    bint vc_core_set_policy(vc_core *core, const vc_policy *policy)
    unsigned vc_core_ring_for(vc_core *core, const uint8_t *key, size_t length)
    void vc_core_accept_displaced(vc_core *core)
    void vc_core_miss(vc_core *core, const uint8_t *key, size_t length)
    bint vc_core_hit(vc_core *core, const uint8_t *key, size_t length, uint64_t stored_us)
    void vc_core_set_older(vc_core *core, uint64_t us)
    void vc_core_size_ghost(vc_core *core, uint64_t keys)
    bint vc_core_reserve_purge(vc_core *core, const uint8_t *prefix, size_t length)
    void vc_core_add_purge(vc_core *core, uint64_t us, uint64_t seq)
    void vc_core_drop_purges(vc_core *core, uint64_t seq)
    void vc_core_sweep_purges(vc_core *core)
    const vc_purges *vc_core_purges(const vc_core *core)
    bint vc_core_is_purged(vc_core *core, const uint8_t *key, size_t length,
                           uint64_t stored_us)
    void vc_core_get_heat(vc_core *core, vc_heat *heat)

    void vc_core_stats(vc_core *core, vc_index_stats *stats)

    ctypedef struct vc_lookup:
        uint64_t size
        int types
    bint vc_core_lookup(vc_core *core, const uint8_t *key, size_t length, uint64_t size_max,
                        vc_lookup *found)
    bint vc_core_is_absent(vc_core *core, const uint8_t *key, size_t length, bint counts,
                           c_bool *is_stale)
    vc_status vc_core_read(vc_core *core, const uint8_t *key, size_t key_length,
                           const vc_lookup *at, uint8_t *head, size_t split, uint8_t *value,
                           size_t room, vc_record *record)
    void vc_core_end_read(vc_core *core)

    ctypedef struct vc_writer:
        const vc_calls *calls
        int fd
        uint16_t volume
        uint32_t slot
        uint64_t salt, end, synced_end, capacity, length
        char *lines
        size_t lines_used, pending, pending_max
        int index_fd
        uint64_t index_end
        uint32_t index_checksum
        bint is_indexed
        int index_error
    void vc_writer_free(vc_writer *writer)
    void vc_writer_clear(vc_writer *writer)
    bint vc_writer_append_block(vc_writer *writer, const char *lines, size_t length,
                                uint64_t end, bint is_sealed)
    bint vc_writer_add_entry(vc_writer *writer, const uint8_t *key, size_t length,
                             uint64_t offset, uint64_t size)

    ctypedef struct vc_put:
        vc_record record
        const uint8_t *type
        const uint8_t *encoding
        const uint8_t *cache
        const uint8_t *key
        const uint8_t *value
        unsigned ring
        int64_t started_ns, took_ns
        vc_status status
    ctypedef struct vc_putting:
        int64_t (*next_us)(void *context) noexcept
        void *context
        uint64_t due_bytes
        bint syncs
    ctypedef struct vc_due:
        uint64_t bytes
        unsigned unwritten, refused, unsynced
        int sync_error
    void vc_core_set_putting(vc_core *core, const vc_putting *how)
    unsigned vc_core_set_writer(vc_core *core, vc_writer *writer)
    void vc_core_hold(vc_core *core, bint is_held)
    vc_status vc_core_put(vc_core *core, vc_put *put)
    enum: VC_PUTS_TOGETHER
    size_t vc_core_put_many(vc_core *core, vc_put **puts, size_t count)
    size_t vc_core_put_together(vc_core *core, vc_put **puts, size_t count)
    vc_status vc_core_delete(vc_core *core, vc_put *put, uint64_t now_ms, c_bool *existed)
    ctypedef enum vc_if: VC_IF_ANY
    ctypedef struct vc_condition:
        vc_if kind
        uint64_t stored_us, expires_ms
    vc_status vc_core_change(vc_core *core, vc_put *put, const vc_condition *condition,
                             uint64_t now_ms, c_bool *is_done)
    bint vc_core_is_due(vc_core *core)
    vc_due vc_core_take_due(vc_core *core)

    vc_status vc_core_load(vc_core *core, uint32_t slot, int fd, vc_lines *lines)
    void vc_core_end_load(vc_core *core)


cdef extern from "scan.h" nogil:
    enum: VC_AHEAD_PIECE_BYTES
    ctypedef struct vc_ahead
    vc_ahead *vc_ahead_new(const vc_calls *calls, int fd, uint64_t start, uint64_t end,
                           size_t piece)
    size_t vc_ahead_unreadable(vc_ahead *ahead, uint64_t end, uint64_t *first)
    void vc_ahead_free(vc_ahead *ahead)

    ctypedef struct vc_scan:
        vc_ahead *ahead
        const vc_segment *segments
        size_t segment_count
        uint16_t volume
        uint64_t at, length, window, step
        bint has_lost, has_values
        vc_core *core
        uint32_t slot
        vc_writer *writer
        const uint8_t *lines
        size_t lines_length, line_at
        vc_writer expected
    ctypedef enum vc_scan_kind:
        VC_SCAN_RUN
        VC_SCAN_RECORD
        VC_SCAN_DAMAGED
        VC_SCAN_GAP
        VC_SCAN_TORN
        VC_SCAN_UNREADABLE
        VC_SCAN_NO_MEMORY
    ctypedef struct vc_event:
        vc_scan_kind kind
        uint64_t start, end, records, latest_us
        vc_record record
    void vc_scan_next(vc_scan *scan, vc_event *event)
    uint64_t vc_scan_find(vc_scan *scan, uint64_t offset)


cdef extern from "reclaim.h" nogil:
    enum: VC_SIZE_STEPS
    ctypedef struct vc_terms:
        double limit[3]
        int need[4]
        unsigned hits_taken
        bint is_probation
        uint64_t now_ms
    ctypedef struct vc_fate:
        uint64_t copied, copied_bytes, unused, unpaid, expired, damaged, unreadable, left
        uint64_t purged
    ctypedef enum vc_reclaim_result:
        VC_RECLAIM_MORE
        VC_RECLAIM_DONE
        VC_RECLAIM_FULL
        VC_RECLAIM_UNREADABLE
        VC_RECLAIM_REFUSED
        VC_RECLAIM_DAMAGED
    ctypedef struct vc_reclaim:
        pass
    vc_reclaim *vc_reclaim_new(vc_core *core, uint32_t slot, uint64_t length)
    void vc_reclaim_free(vc_reclaim *reclaim)
    void vc_reclaim_collect(vc_reclaim *reclaim, uint32_t segments, const vc_terms *terms,
                            vc_fate *fate)
    vc_reclaim_result vc_reclaim_step(vc_reclaim *reclaim, uint64_t end, uint64_t copy_bytes,
                            const vc_terms *terms, vc_writer *writer, vc_fate *fate,
                            uint64_t *offset)


cdef extern from "clock.h" nogil:
    ctypedef struct vc_clock:
        int64_t stored_us, offset_us
    int64_t monotonic_ns "vc_monotonic_ns"()
    int64_t vc_machine_us()
    int64_t vc_clock_raise(int64_t *to, int64_t value)
    int64_t vc_clock_now(vc_clock *clock)
    int64_t vc_clock_next(vc_clock *clock)


cdef extern from "functions.h" nogil:
    const char *VC_FUNCTIONS_NAME
    ctypedef struct vc_core_functions:
        vc_status (*read)(vc_core *core, const uint8_t *key, size_t key_length,
                          const vc_lookup *at, uint8_t *head, size_t split, uint8_t *value,
                          size_t room, vc_record *record) noexcept nogil
        void (*end_read)(vc_core *core) noexcept nogil
        vc_status (*put)(vc_core *core, vc_put *put) noexcept nogil
    const vc_core_functions vc_functions
