/* What the executors of all protocols do with the store and the hot tier: to find the record of a
 * key, to read it or let a thread read it, to change it, to count that and to tell Python.
 *
 * Threads. All functions are for the thread of the executor. */
#ifndef VC_LOOKUP_H
#define VC_LOOKUP_H

#include "clock.h"
#include "common.h"
#include "copies.h"
#include "functions.h"
#include "log.h"
#include "news.h"
#include "protocol.h"

/* Microseconds since the epoch, so that tests can set the time. */
typedef struct {
    int64_t (*store_us)(void *context); /* by the clock of the store */
    int64_t (*machine_us)(void *context);
    void *context;
} vc_clocks;

/* How records are read whose pages may not be in memory. Some file systems cannot tell whether
 * they are: then all are read at once from one in memory, and by threads from any other. */
typedef enum { VC_CACHED_FIRST, VC_AT_ONCE, VC_BY_THREADS } vc_reading;

/* Since the start. */
typedef struct {
    vc_durations reads, writes;
    uint64_t absent, evicted, expired; /* misses by reason */
    uint64_t errors; /* of reads, as Python has counted them; in what it has seen only */
} vc_store_counts;

/* What all have; the last fields are zero at first. */
typedef struct {
    vc_core *core;
    const vc_core_functions *functions;
    const vc_clocks *clocks;
    vc_copies *copies; /* NULL: there is no hot tier */
    vc_reporter *reporter;
    vc_log *log;              /* a line for each request; NULL: none */
    size_t key_size;          /* of the longest key, in bytes */
    uint64_t value_size;      /* of the longest value, in bytes */
    int64_t slow_ns, long_ns; /* requests that took longer are events */
    uint64_t sample_mask;     /* reads, too, if a number from their times has none of these bits */
    vc_reading reading;
    bool is_lock_held; /* by another thread, when it was tried last */
    vc_store_counts counts;
} vc_executor;

/* The record of a key, as a request wants it. */
typedef struct {
    vc_executor *by;
    vc_stream *stream;
    const uint8_t *key;
    size_t key_length;
} vc_wanted;

/* Milliseconds since the epoch by the clock of the store. */
static inline int64_t vc_now_ms(const vc_executor *by) {
    return by->clocks->store_us(by->clocks->context) / 1000;
}

static inline bool vc_took_long(const vc_executor *by, int64_t took_ns) {
    return took_ns > by->slow_ns || took_ns > by->long_ns;
}

/* --- Finding and reading -------------------------------------------------------------------- */

/* How memcached may be used for the key; `item` may be NULL. */
vc_copy_use vc_find_copy(const vc_wanted *wanted, uint8_t item[VC_ITEM_BYTES]);
/* Look the key up, as `vc_core_lookup` does. If it `counts`, a hit of it is counted, once for a
 * request. */
bool vc_find_record(const vc_wanted *wanted, bool counts, uint64_t size_max, vc_lookup *at);
/* Return the counter of misses to count this one in; NULL: it is not certain that there is no value.
 * If it `counts`, the core remembers that the key was asked for. */
uint64_t *vc_find_absent(const vc_wanted *wanted, bool counts);
/* Read the record that was found into at->size bytes, or its head. VC_COLD: a thread has to, but not
 * after DISK, or if this one `waits`. */
vc_status vc_read_record(const vc_wanted *wanted, const vc_lookup *at, bool is_head, bool waits,
                         uint8_t *bytes, vc_record *record);
/* Let the caller of the executor own the read, for DISK or VALUE. Returns false without memory; then
 * it is ended. */
bool vc_hand_over(const vc_wanted *wanted, const vc_lookup *at);
/* Count a read of a key that is not promoted. Python is told if the key is hot. */
void vc_count_read(const vc_wanted *wanted, const vc_record *record);

/* --- Changing ------------------------------------------------------------------------------- */

/* Acquire the write lock. Another thread that has it for long, as during a sync, holds up one
 * request only. */
bool vc_acquire_soon(vc_executor *by);
/* Make a plain put, or take what a thread has made of it. VC_GROUPED: see `vc_put_later`. */
vc_status vc_put_record(const vc_wanted *wanted, vc_put *put);
/* The same for several puts, as `vc_core_put_many` does; without a hot tier. */
size_t vc_put_records(vc_executor *by, vc_put *const *puts, size_t count);
/* Let a thread make a put: what it points to is copied, except the value. Returns false without
 * memory. */
bool vc_put_later(const vc_wanted *wanted, const vc_put *put);
/* A change was made, by whoever has the lock still if there is a hot tier: invalidate its copies, and
 * count it. */
void vc_end_change(const vc_wanted *wanted, const vc_put *put);
/* Delete the key; as `vc_core_delete`. */
vc_status vc_delete_record(const vc_wanted *wanted, vc_put *put, bool *existed);

/* --- Streams -------------------------------------------------------------------------------- */

/* Return memory of the stream, with what is at the beginning of it already; NULL: there is none. */
uint8_t *vc_stream_keep(vc_stream *stream, size_t length);
/* The request is over. */
static inline void vc_stream_reset(vc_stream *stream) { stream->is_read = stream->is_put = false; }
/* For `vc_protocol.end`. */
void vc_stream_end(void *executor, vc_stream *stream);

#endif
