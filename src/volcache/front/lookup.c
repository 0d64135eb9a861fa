#include "lookup.h"

#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/vfs.h>

/* --- Finding and reading -------------------------------------------------------------------- */

vc_copy_use vc_find_copy(const vc_wanted *wanted, uint8_t item[VC_ITEM_BYTES]) {
    vc_copies *copies = wanted->by->copies;
    return copies ? vc_copies_find(copies, wanted->key, wanted->key_length, item) : VC_NO_COPY;
}

bool vc_find_record(const vc_wanted *wanted, bool counts, uint64_t size_max, vc_lookup *at) {
    const vc_executor *by = wanted->by;
    if (!counts || wanted->stream->is_read) size_max = VC_UNCOUNTED;
    return by->functions->lookup(by->core, wanted->key, wanted->key_length, size_max, at);
}

uint64_t *vc_find_absent(const vc_wanted *wanted, bool counts) {
    vc_executor *by = wanted->by;
    bool is_stale;
    if (!by->functions->is_absent(by->core, wanted->key, wanted->key_length, counts, &is_stale))
        return NULL;
    return is_stale ? &by->counts.evicted : &by->counts.absent;
}

static bool lookup_is_in_ram(int fd) {
    struct statfs about;
    return !fstatfs(fd, &about) && (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC);
}

static vc_status lookup_read(const vc_wanted *wanted, const vc_lookup *at, vc_reading *how,
                             uint8_t *bytes, vc_record *record) {
    const vc_executor *by = wanted->by;
    const vc_core_functions *functions = by->functions;
    const uint8_t *key = wanted->key;
    size_t length = wanted->key_length;
    if (*how == VC_CACHED_FIRST) {
        errno = 0;
        vc_status status = functions->read(by->core, key, length, at, true, bytes, record);
        if (status != VC_IO_ERROR || (errno != EOPNOTSUPP && errno != ENOSYS)) return status;
        *how = lookup_is_in_ram(at->fd) ? VC_AT_ONCE : VC_BY_THREADS;
    }
    if (*how == VC_BY_THREADS) return VC_COLD;
    return functions->read(by->core, key, length, at, false, bytes, record);
}

vc_status vc_read_record(const vc_wanted *wanted, const vc_lookup *at, bool is_head, bool waits,
                         uint8_t *bytes, vc_record *record) {
    vc_executor *by = wanted->by;
    vc_reading at_once = VC_AT_ONCE;
    vc_reading *how = waits || wanted->stream->is_read ? &at_once : &by->reading;
    vc_lookup part = *at;
    size_t most = VC_HEAD_BYTES_MAX(wanted->key_length);
    if (is_head && part.size > most) part.size = most;
    record->key = NULL;
    vc_status status = lookup_read(wanted, &part, how, bytes, record);
    /* Only the value is short, if the head was decoded. If it is small, it was checked, too. */
    return is_head && status == VC_SHORT && record->key ? VC_OK : status;
}

bool vc_hand_over(const vc_wanted *wanted, const vc_lookup *at) {
    const vc_executor *by = wanted->by;
    vc_stream *stream = wanted->stream;
    uint8_t *key = vc_stream_keep(stream, wanted->key_length);
    if (!key) {
        by->functions->end_read(by->core);
        return false;
    }
    stream->key = memcpy(key, wanted->key, wanted->key_length);
    stream->key_length = wanted->key_length;
    stream->found = *at;
    stream->is_read = true;
    return true;
}

void vc_count_read(const vc_wanted *wanted, const vc_record *record) {
    const vc_executor *by = wanted->by;
    if (by->copies && vc_copies_count_read(by->copies, wanted->key, wanted->key_length,
                                           vc_monotonic_ns() / 1000000))
        vc_report_hot(by->reporter, wanted->key, wanted->key_length, record);
}

/* --- Changing ------------------------------------------------------------------------------- */

bool vc_acquire_soon(vc_executor *by) {
    int64_t wait_ns = by->is_lock_held ? 0 : VC_LOCK_WAIT_NS;
    by->is_lock_held = !by->functions->try_acquire(by->core, wait_ns);
    return !by->is_lock_held;
}

static void lookup_count_change(vc_executor *by, const vc_put *put) {
    if (!put->started_ns) return; /* Nothing was written. */
    vc_observe(&by->counts.writes, put->took_ns);
    if (put->has_deferred && by->reporter) vc_report_due(by->reporter);
}

/* The invalidation comes after the change: a thread that promotes the key meanwhile sees the one or the
 * other. */
void vc_end_change(const vc_wanted *wanted, const vc_put *put) {
    vc_executor *by = wanted->by;
    if (by->copies) vc_copies_invalidate(by->copies, wanted->key, wanted->key_length);
    lookup_count_change(by, put);
}

vc_status vc_put_record(const vc_wanted *wanted, vc_put *put) {
    const vc_executor *by = wanted->by;
    if (wanted->stream->is_put) *put = wanted->stream->put;
    else put->status = by->functions->put(by->core, put);
    if (put->status == VC_OK) vc_end_change(wanted, put);
    return put->status;
}

size_t vc_put_records(vc_executor *by, vc_put *const *puts, size_t count) {
    size_t made = by->functions->put_many(by->core, puts, count);
    for (size_t i = 0; i < made; i++) lookup_count_change(by, puts[i]);
    return made;
}

/* Copy bytes to `*to`, which is moved behind them; returns where they are. */
static const uint8_t *lookup_copy(uint8_t **to, const uint8_t *from, size_t length) {
    uint8_t *at = *to;
    if (length) memcpy(at, from, length);
    *to += length;
    return at;
}

bool vc_put_later(const vc_wanted *wanted, const vc_put *put) {
    const vc_record *record = &put->record;
    vc_put *kept = &wanted->stream->put;
    uint8_t *at = vc_stream_keep(wanted->stream, record->key_length + vc_record_types(record));
    if (!at) return false;
    *kept = *put;
    kept->key = lookup_copy(&at, put->key, record->key_length);
    kept->type = lookup_copy(&at, put->type, record->type_length);
    kept->encoding = lookup_copy(&at, put->encoding, record->encoding_length);
    kept->cache = lookup_copy(&at, put->cache, record->cache_length);
    wanted->stream->is_put = true;
    return true;
}

vc_status vc_delete_record(const vc_wanted *wanted, vc_put *put, bool *existed) {
    const vc_executor *by = wanted->by;
    *put = (vc_put){
        .record.key_length = (uint16_t)wanted->key_length,
        .key = wanted->key,
        .ring = VC_RING_UNKNOWN,
    };
    vc_status status = by->functions->delete(by->core, put, (uint64_t)vc_now_ms(by), existed);
    if (status == VC_OK) vc_end_change(wanted, put);
    return status;
}

/* --- Streams -------------------------------------------------------------------------------- */

uint8_t *vc_stream_keep(vc_stream *stream, size_t length) {
    uint8_t *memory = realloc(stream->memory, length ? length : 1);
    if (memory) stream->memory = memory;
    return memory;
}

void vc_stream_end(void *executor, vc_stream *stream) {
    (void)executor;
    free(stream->memory);
}
