#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "core_parts.h"
#include "crc32c.h"

enum {
    /* The block size of ext4 and XFS, and the page size of x86 and most ARM. */
    PAGE_BYTES = 4096,
    /* With new pages added this many bytes at a time, the kernel keeps them as one folio. */
    CHUNK_BYTES = 256 << 10,
    /* Fits the L2 cache together with the buckets of some segments. */
    LOAD_WINDOW_BYTES = 384 << 10,
    /* A longer buffer of a writer, as of a start without index files, is given back. */
    LINES_KEPT_BYTES = 1 << 20,
    /* Entries applied at a time: sorted, each segment gets 32 of them. */
    CHANGES_MAX = 1 << 17,
    /* That a put looks at while a sweep is due: about 2 us. */
    SWEEP_BUCKETS = 64,
    NS_PER_SECOND = 1000000000,
};

/* --- System calls ------------------------------------------------------------------ */

static ssize_t os_pread(void *context, int fd, void *buffer, size_t length, off_t offset,
                        bool is_cached) {
    (void)context;
    struct iovec part = {buffer, length};
    return is_cached ? preadv2(fd, &part, 1, offset, RWF_NOWAIT)
                     : pread(fd, buffer, length, offset);
}
static ssize_t os_pwritev(void *context, int fd, const struct iovec *parts, int count,
                          off_t offset) {
    (void)context;
    return pwritev(fd, parts, count, offset);
}
static int os_fdatasync(void *context, int fd) {
    (void)context;
    return fdatasync(fd);
}
const vc_calls vc_os_calls = {os_pread, os_pwritev, os_fdatasync, NULL};

/* --- The write lock ---------------------------------------------------------------- */

bool vc_core_is_mine(vc_core *core) {
    return atomic_load_explicit(&core->owner, memory_order_relaxed) == (uintptr_t)pthread_self();
}

/* glibc has it from 2.30 on; wheels also run with earlier ones. The sanitizer of threads does not
 * know it. */
#ifdef __SANITIZE_THREAD__
#define HAS_CLOCKLOCK false
#else
#define HAS_CLOCKLOCK (pthread_mutex_clocklock != NULL)
#endif
int pthread_mutex_clocklock(vc_mutex *mutex, clockid_t clock, const struct timespec *until)
    __attribute__((weak));

static int lock_until(vc_mutex *mutex, clockid_t clock, const struct timespec *until) VC_UNCHECKED {
    if (clock == CLOCK_REALTIME) return pthread_mutex_timedlock(mutex, until);
    return pthread_mutex_clocklock(mutex, clock, until);
}

/* Wait for the write lock, after those that wait already. */
static bool wait_for_turn(vc_core *core, int64_t wait_ns) VC_UNCHECKED {
    clockid_t clock = HAS_CLOCKLOCK ? CLOCK_MONOTONIC : CLOCK_REALTIME;
    struct timespec until;
    clock_gettime(clock, &until);
    int64_t ns = until.tv_nsec + wait_ns;
    until.tv_sec += ns / NS_PER_SECOND;
    until.tv_nsec = ns % NS_PER_SECOND;
    if (lock_until(&core->turn, clock, &until)) return false;
    bool is_locked = !lock_until(&core->write_lock, clock, &until);
    pthread_mutex_unlock(&core->turn);
    return is_locked;
}

/* From now on, this thread has the write lock. */
static void become_owner(vc_core *core) {
    atomic_store_explicit(&core->owner, (uintptr_t)pthread_self(), memory_order_relaxed);
    core->depth = 1;
}

bool vc_core_try_acquire(vc_core *core, int64_t wait_ns) VC_UNCHECKED {
    if (vc_core_is_mine(core)) {
        core->depth++;
        return true;
    }
    if (pthread_mutex_trylock(&core->write_lock) && !wait_for_turn(core, wait_ns)) return false;
    become_owner(core);
    return true;
}

void vc_core_acquire(vc_core *core) {
    while (!vc_core_try_acquire(core, NS_PER_SECOND)) continue;
}

bool vc_core_release(vc_core *core) VC_UNCHECKED {
    if (!vc_core_is_mine(core)) return false;
    if (!--core->depth) {
        atomic_store_explicit(&core->owner, 0, memory_order_relaxed);
        pthread_mutex_unlock(&core->write_lock);
    }
    return true;
}

uintptr_t vc_core_lend(vc_core *core, uintptr_t to) {
    return atomic_exchange(&core->owner, to ? to : (uintptr_t)pthread_self());
}

/* --- Volumes ----------------------------------------------------------------------- */

/* Wait for the thread that applies changes, if there is one; `full` is empty then. */
static void join(vc_core *core) {
    if (core->has_thread) pthread_join(core->thread, NULL);
    core->has_thread = false;
}

vc_core *vc_core_new(const vc_calls *calls, const uint8_t hash_key[16], uint64_t volume_bytes,
                     uint32_t volumes, uint64_t expected) VC_UNCHECKED {
    vc_core *core = calloc(1, sizeof *core);
    if (!core) return NULL;
    pthread_mutex_init(&core->write_lock, NULL);
    pthread_mutex_init(&core->turn, NULL);
    pthread_mutex_init(&core->mutex, NULL);
    core->calls = *calls;
    core->volume_bytes = volume_bytes;
    for (core->slots = 2; core->slots < 2 * volumes;) core->slots *= 2;
    core->sharing = vc_shared_new(volume_bytes, volumes, core->slots);
    core->shared = core->sharing.at;
    core->index = vc_index_new(hash_key, volume_bytes, volumes, expected, core->shared);
    core->places = calloc(core->slots, sizeof *core->places);
    if (!core->index || !core->places) {
        vc_core_free(core);
        return NULL;
    }
    return core;
}

void vc_core_close(vc_core *core) {
    vc_core_acquire(core);
    memset(core->writers, 0, sizeof core->writers);
    vc_core_release(core);
    pthread_mutex_lock(&core->mutex);
    core->is_closed = true;
    if (core->shared) vc_shared_close(core->shared);
    pthread_mutex_unlock(&core->mutex);
    while (atomic_load(&core->readers)) sched_yield();
}

void vc_core_free(vc_core *core) VC_UNCHECKED {
    if (!core) return;
    join(core);
    if (core->index) vc_index_free(core->index);
    vc_shared_free(&core->sharing);
    for (uint32_t slot = 0; core->places && slot < core->slots; slot++)
        free(core->places[slot].segments);
    free(core->places);
    free(core->filling.at);
    free(core->full.at);
    vc_ghost_free(&core->ghost);
    vc_ghost_free(&core->missed);
    vc_purges_free(core->purges);
    pthread_mutex_destroy(&core->mutex);
    pthread_mutex_destroy(&core->turn);
    pthread_mutex_destroy(&core->write_lock);
    free(core);
}

/* Apply changes. Without the memory to sort them, apply them one by one. */
static void core_apply(vc_core *core, vc_batch *changes) VC_REQUIRES(core->mutex) {
    size_t count = changes->count;
    changes->count = 0;
    if (vc_index_set_many(core->index, changes->at, count)) return;
    for (size_t i = 0; i < count; i++) vc_index_set_many(core->index, &changes->at[i], 1);
}

static void *apply_in_thread(void *argument) {
    vc_core *core = argument;
    pthread_mutex_lock(&core->mutex);
    core_apply(core, &core->full);
    pthread_mutex_unlock(&core->mutex);
    return NULL;
}

/* Let another thread apply the changes kept so far, while more are read. */
static void apply_full(vc_core *core) VC_UNCHECKED {
    join(core);
    vc_batch empty = core->full;
    core->full = core->filling;
    core->filling = empty;
    core->has_thread = !pthread_create(&core->thread, NULL, apply_in_thread, core);
    if (!core->has_thread) apply_in_thread(core);
}

/* If the thread that applies `full` has not begun, this one does it, and leaves it nothing. */
void vc_core_lock(vc_core *core) {
    pthread_mutex_lock(&core->mutex);
    if (core->full.count) core_apply(core, &core->full);
    if (core->filling.count) core_apply(core, &core->filling);
}

uint32_t vc_core_add_volume(vc_core *core, uint64_t seq) {
    vc_core_lock(core);
    uint32_t slot = vc_index_add_volume(core->index);
    if (slot != VC_NO_SLOT) core->places[slot].seq = seq;
    vc_core_unlock(core);
    return slot;
}

/* Let guests know where a slot is; without segments, it is nowhere. */
static void publish_slot(vc_core *core, uint32_t slot) VC_REQUIRES(core->mutex) {
    const vc_place *at = &core->places[slot];
    if (!core->shared) return;
    vc_shared_slot *to = &vc_shared_slots(core->shared)[slot];
    vc_shared_begin(&core->shared->slot_sequence);
    to->volume = at->volume;
    size_t count = at->segments ? at->count : 0;
    to->count = count > VC_SHARED_SALTS ? VC_SHARED_SALTS + 1 : (uint16_t)count;
    for (size_t i = 0; i < count && count <= VC_SHARED_SALTS; i++)
        to->segments[i] = at->segments[i];
    vc_shared_end(&core->shared->slot_sequence);
}

bool vc_core_bind(vc_core *core, uint32_t slot, int fd, uint16_t volume, const vc_segment *segments,
                  size_t count) {
    vc_segment *copy = malloc(count * sizeof *copy);
    if (!copy) return false;
    memcpy(copy, segments, count * sizeof *copy);
    vc_core_lock(core);
    vc_place *at = &core->places[slot];
    vc_segment *before = at->segments;
    at->segments = copy;
    at->count = count;
    at->fd = fd;
    at->volume = volume;
    publish_slot(core, slot);
    vc_core_unlock(core);
    free(before);
    return true;
}

vc_live vc_core_reclaim(vc_core *core, uint32_t slot) {
    vc_core_lock(core);
    vc_live lost = vc_index_reclaim(core->index, slot);
    free(core->places[slot].segments);
    core->places[slot].segments = NULL;
    publish_slot(core, slot);
    vc_core_unlock(core);
    return lost;
}

vc_live vc_core_live(vc_core *core, uint32_t slot) {
    return VC_LOCKED(core, vc_index_live(core->index, slot));
}

void vc_core_set_age(vc_core *core, uint32_t slot, unsigned ring, uint64_t born, uint64_t end) {
    vc_core_lock(core);
    uint64_t skip = core->has_policy ? core->policy.skip[ring] : VC_NEVER - born;
    vc_index_set_age(core->index, slot, ring, born, skip);
    vc_index_advance(core->index, slot, end);
    core->has_probation |= ring == VC_PROBATION;
    vc_core_unlock(core);
}

/* --- Eviction ---------------------------------------------------------------------- */

bool vc_core_set_policy(vc_core *core, const vc_policy *policy) {
    vc_ghost_free(&core->ghost);
    vc_ghost_free(&core->missed);
    core->policy = *policy;
    core->has_policy = vc_ghost_init(&core->ghost, 1) && vc_ghost_init(&core->missed, MISSED_KEYS);
    return core->has_policy;
}

static void add_tokens(vc_core *core, double tokens) VC_REQUIRES(core->mutex) {
    tokens += core->tokens;
    core->tokens = tokens < core->policy.tokens_max ? tokens : core->policy.tokens_max;
}

unsigned vc_core_ring_for(vc_core *core, const uint8_t *key, size_t length) {
    if (!core->has_policy) return VC_MAIN;
    uint64_t fingerprint = vc_core_fingerprint(core, key, length);
    vc_entry entry;
    unsigned ring;
    vc_core_lock(core);
    if (vc_index_get_stats(core->index).displaced != core->displaced_seen) ring = VC_RING_UNKNOWN;
    else if (vc_index_find(core->index, fingerprint, &entry))
        ring = vc_index_ring(core->index, entry.slot);
    else if (core->displaced_seen || vc_ghost_has(&core->ghost, fingerprint) ||
             !vc_ghost_has(&core->missed, fingerprint))
        ring = VC_MAIN;
    else ring = VC_PROBATION;
    vc_core_unlock(core);
    return ring;
}

void vc_core_accept_displaced(vc_core *core) {
    (void)VC_LOCKED(core, core->displaced_seen = vc_index_get_stats(core->index).displaced);
}

/* Find an entry for a read, and count its hit if it is not larger, or the miss. */
static bool core_count_read(vc_core *core, uint64_t fingerprint, uint64_t size_max, vc_entry *entry)
    VC_REQUIRES(core->mutex) {
    bool is_found = vc_index_find(core->index, fingerprint, entry);
    if (!core->has_policy) return is_found;
    if (!is_found) {
        vc_ghost_add(&core->missed, fingerprint);
    } else if (!entry->is_tombstone && entry->size <= size_max) {
        vc_index_hit(core->index, fingerprint, entry);
        add_tokens(core, core->policy.hit_rate * (double)vc_size_middle(entry->size));
    }
    return is_found;
}

/* Count a hit that has raised the hits of a record, if the record is that old. */
static void count_older(vc_core *core, uint64_t stored_us) {
    if (stored_us < atomic_load_explicit(&core->older_us, memory_order_relaxed))
        atomic_fetch_add_explicit(&core->older_hits, 1, memory_order_relaxed);
}

bool vc_core_hit(vc_core *core, const uint8_t *key, size_t length, uint64_t stored_us) {
    uint64_t fingerprint = vc_core_fingerprint(core, key, length);
    vc_entry entry;
    vc_core_lock(core);
    entry.is_raised = false;
    core_count_read(core, fingerprint, UINT64_MAX, &entry);
    vc_core_unlock(core);
    if (entry.is_raised) count_older(core, stored_us);
    return entry.is_raised;
}

void vc_core_count_reads(vc_core *core, const uint64_t *reads, size_t count) {
    vc_entry entry;
    vc_core_lock(core);
    for (size_t i = 0; core->has_policy && i < count; i++) {
        if (reads[i] & VC_MISS) vc_ghost_add(&core->missed, reads[i] & ~VC_MISS);
        else (void)core_count_read(core, reads[i], UINT64_MAX, &entry);
    }
    vc_core_unlock(core);
}

int vc_core_share(vc_core *core) VC_UNCHECKED {
    bool is_shared = core->shared && vc_index_is_shared(core->index);
    return is_shared && vc_shared_hold(core->shared) ? core->sharing.fd : -1;
}

void vc_core_set_older(vc_core *core, uint64_t us) { atomic_store(&core->older_us, us); }

void vc_core_size_ghost(vc_core *core, uint64_t keys) {
    vc_core_lock(core);
    if (core->has_policy) vc_ghost_resize(&core->ghost, keys);
    vc_core_unlock(core);
}

void vc_core_get_policy_stats(vc_core *core, vc_policy_stats *policy_stats) {
    uint64_t older_hits = atomic_load(&core->older_hits);
    *policy_stats = VC_LOCKED(core,
                              ((vc_policy_stats){core->tokens, core->ghost_hits, older_hits}));
}

/* --- Purges ------------------------------------------------------------------------ */

bool vc_core_reserve_purge(vc_core *core, const uint8_t *prefix, size_t length) {
    if (!core->purges) {
        uint64_t secret = vc_core_fingerprint(core, (const uint8_t *)"", 0);
        vc_purges *purges = vc_purges_new(secret);
        if (!purges) return false;
        (void)VC_LOCKED(core, core->purges = purges);
    }
    return vc_purges_reserve(core->purges, prefix, length);
}

static void publish_purges(vc_core *core) {
    uint64_t us = vc_purges_newest_us(core->purges);
    atomic_store(&core->purged_us, us);
    if (core->shared) atomic_store(&core->shared->purged_us, us);
}

void vc_core_add_purge(vc_core *core, uint64_t us, uint64_t seq) {
    vc_core_lock(core);
    vc_purges_commit(core->purges, us, seq);
    publish_purges(core);
    vc_core_unlock(core);
}

void vc_core_drop_purges(vc_core *core, uint64_t seq) {
    if (!core->purges) return;
    vc_core_lock(core);
    /* First: a read that finds no purge finds out that one was dropped. */
    atomic_fetch_add(&core->purge_drops, 1);
    if (core->shared) atomic_fetch_add(&core->shared->purge_drops, 1);
    vc_purges_drop(core->purges, seq);
    publish_purges(core);
    vc_core_unlock(core);
}

void vc_core_sweep_purges(vc_core *core) {
    vc_purge *at = NULL;
    do at = VC_LOCKED(core, core->purges ? vc_purges_sweep(core->purges, at) : NULL);
    while (at);
}

const vc_purges *vc_core_purges(const vc_core *core) { return core->purges; }

bool vc_core_is_purged(vc_core *core, const uint8_t *key, size_t length, uint64_t stored_us) {
    if (stored_us > atomic_load_explicit(&core->purged_us, memory_order_acquire)) return false;
    return VC_LOCKED(core, core->purges && vc_purges_cover(core->purges, key, length, stored_us));
}

/* --- The index --------------------------------------------------------------------- */

/* The key of the hash does not change. */
uint64_t vc_core_fingerprint(const vc_core *core, const uint8_t *key, size_t length) VC_UNCHECKED {
    return vc_index_fingerprint(core->index, key, length);
}

bool vc_core_find(vc_core *core, uint64_t fingerprint, vc_entry *found, uint64_t *seq) {
    vc_core_lock(core);
    bool is_found = vc_index_find(core->index, fingerprint, found);
    if (is_found) *seq = core->places[found->slot].seq;
    vc_core_unlock(core);
    return is_found;
}

bool vc_core_is_position(const vc_core *core, uint64_t offset, uint64_t size) {
    return offset > 0 && size > 0 && size <= VC_RECORD_BYTES_MAX && offset < core->volume_bytes &&
           size <= core->volume_bytes - offset;
}

bool vc_core_set(vc_core *core, uint64_t fingerprint, uint32_t slot, uint64_t offset, uint64_t size,
                 bool is_tombstone) {
    if (!vc_core_is_position(core, offset, size)) return false;
    return VC_LOCKED(core,
                     vc_index_set(core->index, fingerprint, slot, offset, size, is_tombstone));
}

bool vc_core_bury(vc_core *core, uint64_t fingerprint, uint32_t slot, uint64_t offset) {
    vc_entry entry;
    return VC_LOCKED(core, vc_index_find(core->index, fingerprint, &entry) && !entry.is_tombstone &&
                               entry.slot == slot && entry.offset == offset &&
                               vc_index_bury(core->index, fingerprint, entry.word));
}

void vc_core_stats(vc_core *core, vc_index_stats *stats) {
    *stats = VC_LOCKED(core, vc_index_get_stats(core->index));
}

/* --- Reading ----------------------------------------------------------------------- */

static vc_status check_value(vc_core *core, const vc_lookup *at, const vc_record *record,
                             const uint8_t *value) {
    if (vc_crc32c(0, value, record->length) != record->checksum) return VC_DAMAGED;
    if (at->is_raised) count_older(core, record->stored_us);
    return VC_OK;
}

/* Check `length` bytes that were read. */
static vc_status check_record(vc_core *core, const uint8_t *key, size_t key_length,
                              const vc_lookup *at, const uint8_t *bytes, size_t length,
                              vc_record *record) {
    vc_status status = vc_record_decode(bytes, length, at->salt, at->volume, at->offset, record);
    if (status != VC_OK) return status;
    if (record->kind) return VC_DAMAGED;
    if (record->key_length != key_length || memcmp(record->key, key, key_length))
        return VC_OTHER_KEY;
    if (vc_core_is_purged(core, key, key_length, record->stored_us)) return VC_PURGED;
    if (at->purge_drops != atomic_load(&core->purge_drops)) return VC_OUTDATED;
    if (record->size > length) return VC_SHORT;
    return check_value(core, at, record, bytes + record->prefix);
}

static bool core_look_up(vc_core *core, const uint8_t *key, size_t length, uint64_t size_max,
                         bool takes_tombstone, vc_lookup *found) {
    uint64_t fingerprint = vc_core_fingerprint(core, key, length);
    vc_entry entry;
    vc_core_lock(core);
    bool is_found = size_max != VC_UNCOUNTED ? core_count_read(core, fingerprint, size_max, &entry)
                                             : vc_index_find(core->index, fingerprint, &entry);
    is_found = is_found && !core->is_closed && (takes_tombstone || !entry.is_tombstone) &&
               core->places[entry.slot].segments;
    if (is_found) {
        const vc_place *at = &core->places[entry.slot];
        *found = (vc_lookup){
            .fingerprint = fingerprint,
            .offset = entry.offset,
            .salt = vc_salt_at(at->segments, at->count, entry.offset),
            .size = entry.size,
            .fd = at->fd,
            .volume = at->volume,
            .is_raised = entry.is_raised,
            .purge_drops = atomic_load(&core->purge_drops),
        };
        atomic_fetch_add(&core->readers, 1);
    }
    vc_core_unlock(core);
    return is_found;
}

bool vc_core_lookup(vc_core *core, const uint8_t *key, size_t length, uint64_t size_max,
                    vc_lookup *found) {
    return core_look_up(core, key, length, size_max, false, found);
}

void vc_core_prefetch(vc_core *core, const struct iovec *keys, size_t count) {
    vc_core_lock(core);
    for (size_t i = 0; i < count; i++)
        vc_index_prefetch(core->index,
                          vc_core_fingerprint(core, keys[i].iov_base, keys[i].iov_len));
    vc_core_unlock(core);
}

bool vc_core_is_absent(vc_core *core, const uint8_t *key, size_t length, bool counts,
                       bool *is_stale) {
    uint64_t fingerprint = vc_core_fingerprint(core, key, length);
    vc_entry entry;
    vc_core_lock(core);
    bool is_found = vc_index_find(core->index, fingerprint, &entry);
    bool is_absent = !core->is_closed && (!is_found || entry.is_tombstone);
    if (is_absent) *is_stale = vc_index_is_stale(core->index, fingerprint);
    if (counts && core->has_policy && !is_found) vc_ghost_add(&core->missed, fingerprint);
    vc_core_unlock(core);
    return is_absent;
}

vc_status vc_core_check(vc_core *core, const uint8_t *key, size_t key_length, const vc_lookup *at,
                        const uint8_t *copy, size_t length, vc_record *record) {
    vc_status status = check_record(core, key, key_length, at, copy, length, record);
    return status == VC_OK && record->size != length ? VC_DAMAGED : status;
}

void vc_core_end_read(vc_core *core) { atomic_fetch_sub(&core->readers, 1); }

vc_status vc_core_read(vc_core *core, const uint8_t *key, size_t key_length, const vc_lookup *at,
                       bool is_cached, uint8_t *record_bytes, vc_record *record) {
    ssize_t got = vc_pread(&core->calls, at->fd, record_bytes, at->size, at->offset, is_cached);
    if (got < 0) return is_cached && errno == EAGAIN ? VC_COLD : VC_IO_ERROR;
    vc_status status = check_record(core, key, key_length, at, record_bytes, (size_t)got, record);
    /* Maybe only the first pages of it are in memory. */
    bool is_cold = is_cached && status != VC_OK && status != VC_PURGED && status != VC_OUTDATED &&
                   (size_t)got < at->size;
    return is_cold ? VC_COLD : status;
}

vc_status vc_core_read_value(vc_core *core, const vc_lookup *at, const vc_record *record,
                             uint8_t *value) {
    uint64_t offset = at->offset + record->prefix;
    ssize_t got = vc_pread(&core->calls, at->fd, value, record->length, offset, false);
    if (got < 0) return VC_IO_ERROR;
    return (size_t)got < record->length ? VC_SHORT : check_value(core, at, record, value);
}

/* --- Appending --------------------------------------------------------------------- */

void vc_writer_clear(vc_writer *writer) {
    writer->lines_used = writer->pending = 0;
    if (writer->lines_room > LINES_KEPT_BYTES) vc_writer_free(writer);
}

void vc_writer_free(vc_writer *writer) {
    free(writer->lines);
    writer->lines = NULL;
    writer->lines_used = writer->lines_room = writer->pending = 0;
}

static bool reserve_line(vc_writer *writer, size_t key_length) {
    size_t needed = writer->lines_used + VC_LINE_BYTES_MAX(key_length);
    if (needed <= writer->lines_room) return true;
    char *lines = realloc(writer->lines, 2 * needed);
    if (!lines) return false;
    writer->lines = lines;
    writer->lines_room = 2 * needed;
    return true;
}

bool vc_writer_add_entry(vc_writer *writer, const uint8_t *key, size_t length, uint64_t offset,
                         uint64_t size) {
    if (!reserve_line(writer, length)) return false;
    writer->lines_used += vc_line_encode(writer->lines + writer->lines_used, key, length, offset,
                                         size);
    writer->pending++;
    return true;
}

/* Write all of the parts, which are changed. The kernel may write only some of them: `at` is where
 * what is written ends. */
static bool write_all(const vc_calls *calls, int fd, struct iovec *parts, int count, uint64_t *at) {
    while (count) {
        ssize_t written = calls->pwritev(calls->context, fd, parts, count, (off_t)*at);
        if (written < 0) return false;
        if (!written) {
            errno = EIO;
            return false;
        }
        *at += (uint64_t)written;
        size_t left = (size_t)written;
        while (count && left >= parts->iov_len) {
            left -= parts->iov_len;
            parts++;
            count--;
        }
        if (count && left) {
            parts->iov_base = (char *)parts->iov_base + left;
            parts->iov_len -= left;
        }
    }
    return true;
}

bool vc_writer_append_block(vc_writer *writer, const char *lines, size_t length, uint64_t end,
                            bool is_sealed) {
    char checkpoint[VC_CHECKPOINT_BYTES_MAX];
    uint32_t checksum = writer->index_checksum;
    size_t more = vc_checkpoint_encode(checkpoint, lines, length, end, is_sealed, &checksum);
    struct iovec parts[2] = {{(void *)lines, length}, {checkpoint, more}};
    uint64_t at = writer->index_end;
    if (!write_all(writer->calls, writer->index_fd, parts, 2, &at)) return false;
    writer->index_end += length + more;
    writer->index_checksum = checksum;
    return true;
}

/* Whether a record fits at an offset; its lengths are set here. */
static bool has_room(const vc_writer *writer, uint64_t offset, vc_record *record) {
    record->prefix = VC_OVERHEAD_BYTES + (uint32_t)vc_record_types(record) + record->key_length;
    record->size = (uint64_t)record->prefix + record->length;
    return record->length <= VC_VALUE_BYTES_MAX && offset + record->size <= writer->capacity;
}

/* The bytes before an offset that may not be on the disk. */
static uint32_t unsynced_before(const vc_writer *writer, uint64_t offset) {
    uint64_t synced_end = writer->synced_end;
    uint64_t bytes = offset > synced_end ? offset - synced_end : 0;
    return bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
}

/* Encode a record, which is to be written at an offset. */
static void encode_record(const vc_writer *writer, vc_put *put, uint64_t offset, uint8_t *prefix) {
    vc_record *record = &put->record;
    record->offset = offset;
    record->volume = writer->volume;
    record->unsynced = unsynced_before(writer, offset);
    record->checksum = vc_crc32c(0, put->value, record->length);
    vc_record_encode(prefix, writer->salt, record, put->type, put->encoding, put->cache, put->key);
}

/* Write the parts of records from `at` to `end`, and zeros up to a multiple of `unit`, for which
 * `parts` has room; see `write_all`. */
static bool write_parts(vc_writer *writer, struct iovec *parts, int count, uint64_t *at,
                        uint64_t end, uint64_t unit) {
    static uint8_t zeros[CHUNK_BYTES]; /* Not const: all of it is one page of zeros. */
    uint64_t written_end = writer->written_end;
    if (end > written_end) {
        written_end = (end + unit - 1) / unit * unit;
        if (written_end > writer->capacity) written_end = writer->capacity;
        if (written_end > end) parts[count++] = (struct iovec){zeros, (size_t)(written_end - end)};
    }
    if (!write_all(writer->calls, writer->fd, parts, count, at)) return false;
    writer->written_end = written_end;
    return true;
}

bool vc_writer_add_record(vc_writer *writer, const uint8_t *key, size_t length,
                          const vc_record *record) {
    return vc_writer_add_entry(writer, key, length, record->kind ? 0 : record->offset,
                               record->kind ? 0 : record->size);
}

static bool sync_volume(const vc_writer *writer) {
    return !writer->calls->fdatasync(writer->calls->context, writer->fd);
}

vc_status vc_writer_append(vc_writer *writer, vc_put *put, bool sync) {
    uint8_t prefix[VC_PREFIX_BYTES_MAX];
    vc_record *record = &put->record;
    uint64_t at = writer->end;
    if (!has_room(writer, at, record)) return VC_NO_ROOM;
    if (!reserve_line(writer, record->key_length)) return VC_NO_MEMORY;
    encode_record(writer, put, at, prefix);
    struct iovec parts[3] = {{prefix, record->prefix}, {(void *)put->value, record->length}};
    uint64_t end = at + record->size, unit = sync ? PAGE_BYTES : CHUNK_BYTES;
    if (!write_parts(writer, parts, record->length ? 2 : 1, &at, end, unit)) return VC_IO_ERROR;
    if (sync && !sync_volume(writer)) return VC_SYNC_ERROR;
    writer->end = end;
    if (sync) writer->synced_end = end;
    vc_writer_add_record(writer, put->key, record->key_length, record);
    return VC_OK;
}

void vc_core_set_putting(vc_core *core, const vc_putting *how) { core->putting = *how; }

void vc_core_block_writes(vc_core *core, bool is_blocked) { core->is_blocked = is_blocked; }

unsigned vc_core_set_writer(vc_core *core, vc_writer *writer) {
    unsigned ring = VC_LOCKED(core, vc_index_ring(core->index, writer->slot));
    core->writers[ring] = writer;
    return ring;
}

/* Count a put; its key still has the entry from before. */
static void count_put(vc_core *core, uint64_t fingerprint, uint64_t size) VC_REQUIRES(core->mutex) {
    vc_entry entry;
    add_tokens(core, core->policy.write_rate * (double)size);
    if (vc_index_find(core->index, fingerprint, &entry)) return;
    core->ghost_hits += vc_ghost_remove(&core->ghost, fingerprint);
    vc_ghost_remove(&core->missed, fingerprint);
}

/* Let the index have a record that was appended. */
static void add_entry(vc_core *core, const vc_put *put, uint32_t slot) {
    const vc_record *record = &put->record;
    uint64_t fingerprint = vc_core_fingerprint(core, put->key, record->key_length);
    vc_core_lock(core);
    vc_index_sweep(core->index, SWEEP_BUCKETS);
    if (core->has_policy) {
        vc_index_advance(core->index, slot, record->offset + record->size);
        if (!record->kind) count_put(core, fingerprint, record->size);
    }
    vc_index_set(core->index, fingerprint, slot, record->offset, record->size, record->kind != 0);
    vc_core_unlock(core);
}

/* Write the pending entries to the index file, or leave that to others. */
static void write_entries(vc_core *core, vc_writer *writer, unsigned ring) {
    if (writer->is_indexed &&
        !vc_writer_append_block(writer, writer->lines, writer->lines_used, writer->end, false)) {
        writer->is_indexed = false;
        writer->index_error = errno;
    }
    if (writer->is_indexed) vc_writer_clear(writer);
    else core->deferred.unwritten |= 1u << ring;
}

/* Set when a record is put. */
static void set_time(vc_core *core, vc_put *put) {
    if (!put->record.stored_us)
        put->record.stored_us = (uint64_t)core->putting.next_us(core->putting.context);
}

/* Let the index have a record that was appended, and say what is due. */
static void accept(vc_core *core, const vc_put *put, vc_writer *writer) {
    add_entry(core, put, writer->slot);
    core->deferred.bytes += put->record.size;
    if (put->record.kind) write_entries(core, writer, put->ring);
    else if (writer->pending >= writer->pending_max) core->deferred.unwritten |= 1u << put->ring;
}

static vc_status core_append(vc_core *core, vc_put *put, vc_writer *writer) {
    set_time(core, put);
    put->started_ns = vc_monotonic_ns();
    vc_status status = vc_writer_append(writer, put, core->putting.syncs);
    put->took_ns = vc_monotonic_ns() - put->started_ns;
    if (status == VC_IO_ERROR || status == VC_SYNC_ERROR) core->deferred.refused |= 1u << put->ring;
    if (status == VC_OK) accept(core, put, writer);
    return status;
}

/* Whether a record without a ring may be appended. */
static bool is_plain(vc_core *core, const vc_writer *writer, const vc_record *record) {
    return !core->is_blocked && !vc_core_has_deferred(core) &&
           (!record->kind || writer->is_indexed);
}

vc_status vc_core_put(vc_core *core, vc_put *put) {
    bool has_ring = put->ring != VC_RING_UNKNOWN;
    if (!has_ring && core->putting.syncs) return VC_GROUPED;
    if (!vc_core_try_acquire(core, VC_LOCK_WAIT_NS)) return VC_DEFERRED;
    if (!has_ring) put->ring = vc_core_ring_for(core, put->key, put->record.key_length);
    vc_writer *writer = put->ring < VC_RINGS ? core->writers[put->ring] : NULL;
    bool is_possible = writer && has_room(writer, writer->end, &put->record) &&
                       (has_ring || is_plain(core, writer, &put->record));
    vc_status status = is_possible ? core_append(core, put, writer) : VC_DEFERRED;
    put->has_deferred = vc_core_has_deferred(core);
    vc_core_release(core);
    return status;
}

/* What is put together into the volume of a ring. Nothing of it is before the `end` of the writer
 * until all of it counts. */
typedef struct {
    uint64_t end;
    size_t lines_used, pending; /* of the writer, before */
} group;

static void take_lines_back(vc_writer *writer, const group *from) {
    writer->lines_used = from->lines_used;
    writer->pending = from->pending;
}

/* After a write that was refused at an offset: let no start find records behind the first one. That
 * one is erased, or hidden, as after any other write. More than was said may have been written. */
static void erase_others(vc_core *core, vc_put *const *puts, size_t count, uint64_t at) {
    const vc_writer *writer = core->writers[puts[0]->ring];
    uint8_t zeros[VC_OVERHEAD_BYTES] = {0};
    for (size_t i = 1; i < count; i++) {
        struct iovec part = {zeros, sizeof zeros};
        uint64_t from = puts[i]->record.offset;
        if (write_all(writer->calls, writer->fd, &part, 1, &from)) continue;
        /* A full disk has no block there in which it could be. */
        if (errno == ENOSPC && from >= at) continue;
        /* As after a failed sync: META.txt says where the volume ends. */
        core->deferred.sync_error = errno;
        core->deferred.unsynced |= 1u << puts[0]->ring;
    }
}

/* Write records at once, up to the first one that another volume has to have, or that has no room.
 * Returns how many; 0: nothing was done. If the disk refuses, it is as if none had been put. */
static size_t write_run(vc_core *core, vc_put *const *puts, size_t count, group rings[VC_RINGS]) {
    uint8_t prefixes[VC_PREFIX_BYTES_MAX];
    struct iovec parts[2 * VC_PUTS_AT_ONCE + 1];
    size_t made = 0, used = 0;
    int part_count = 0;
    int64_t started_ns = vc_monotonic_ns();
    vc_writer *writer = NULL;
    group run = {0};
    for (; made < count && made < VC_PUTS_AT_ONCE; made++) {
        vc_put *put = puts[made];
        vc_record *record = &put->record;
        put->ring = vc_core_ring_for(core, put->key, record->key_length);
        if (!made && put->ring < VC_RINGS && (writer = core->writers[put->ring]))
            run = (group){rings[put->ring].end, writer->lines_used, writer->pending};
        if (!writer || put->ring != puts[0]->ring || !has_room(writer, run.end, record) ||
            used + record->prefix > sizeof prefixes || !reserve_line(writer, record->key_length))
            break;
        put->started_ns = started_ns;
        set_time(core, put);
        encode_record(writer, put, run.end, prefixes + used);
        vc_writer_add_record(writer, put->key, record->key_length, record);
        parts[part_count++] = (struct iovec){prefixes + used, record->prefix};
        if (record->length)
            parts[part_count++] = (struct iovec){(void *)put->value, record->length};
        used += record->prefix;
        run.end += record->size;
    }
    if (!made) return 0;
    unsigned ring = puts[0]->ring;
    uint64_t at = rings[ring].end, unit = core->putting.syncs ? PAGE_BYTES : CHUNK_BYTES;
    bool is_written = write_parts(writer, parts, part_count, &at, run.end, unit);
    for (size_t i = 0; i < made; i++)
        puts[i]->status = is_written ? VC_OK : i ? VC_DEFERRED : VC_IO_ERROR;
    if (is_written) {
        rings[ring].end = run.end;
    } else {
        core->deferred.refused |= 1u << ring;
        erase_others(core, puts, made, at);
        take_lines_back(writer, &run);
    }
    return made;
}

/* Returns whether what was put together is on the disk, if each record is to be synced. If not, it
 * is as if it had not been put, except that a start may find it. */
static bool sync_group(vc_core *core, unsigned ring, const group *from) {
    vc_writer *writer = core->writers[ring];
    if (!writer || from->end == writer->end) return true;
    if (!core->putting.syncs || sync_volume(writer)) {
        writer->end = from->end;
        if (core->putting.syncs) writer->synced_end = from->end;
        return true;
    }
    core->deferred.sync_error = errno;
    core->deferred.refused |= 1u << ring;
    core->deferred.unsynced |= 1u << ring;
    take_lines_back(writer, from);
    return false;
}

/* Put records with the write lock, only the first run of them if it is the `only` one. Returns how
 * many were made or not, as their status says. */
static size_t put_group(vc_core *core, vc_put *const *puts, size_t count, bool is_only) {
    group rings[VC_RINGS] = {0};
    bool is_synced[VC_RINGS];
    size_t made = 0;
    for (unsigned ring = 0; ring < VC_RINGS; ring++) {
        const vc_writer *writer = core->writers[ring];
        if (writer) rings[ring] = (group){writer->end, writer->lines_used, writer->pending};
    }
    while (made < count && !(made && is_only)) {
        bool is_possible = !core->is_blocked && !core->deferred.refused;
        size_t run = is_possible ? write_run(core, puts + made, count - made, rings) : 0;
        if (!run) puts[made]->status = VC_DEFERRED;
        made += run ? run : 1;
    }
    for (unsigned ring = 0; ring < VC_RINGS; ring++)
        is_synced[ring] = sync_group(core, ring, &rings[ring]);
    int64_t now_ns = vc_monotonic_ns();
    for (size_t i = 0; i < made; i++) {
        vc_put *put = puts[i];
        put->has_deferred = false;
        if (put->status != VC_OK) continue;
        put->took_ns = now_ns - put->started_ns;
        if (is_synced[put->ring]) accept(core, put, core->writers[put->ring]);
        else put->status = VC_SYNC_ERROR;
    }
    if (made) puts[made - 1]->has_deferred = vc_core_has_deferred(core);
    return made;
}

size_t vc_core_put_many(vc_core *core, vc_put *const *puts, size_t count) {
    struct iovec keys[VC_PUTS_AT_ONCE];
    if (core->putting.syncs) return 0;
    if (count > VC_PUTS_AT_ONCE) count = VC_PUTS_AT_ONCE;
    for (size_t i = 0; i < count; i++)
        keys[i] = (struct iovec){(void *)puts[i]->key, puts[i]->record.key_length};
    vc_core_prefetch(core, keys, count);
    if (!vc_core_try_acquire(core, VC_LOCK_WAIT_NS)) return 0;
    size_t made = vc_core_has_deferred(core) ? 0 : put_group(core, puts, count, true);
    vc_core_release(core);
    return made && puts[0]->status == VC_OK ? made : 0;
}

/* Whether one of the puts before has the same key. Its ring may be another one when these are in
 * the index, but the records of a key have to be in one ring. */
static bool is_again(const uint64_t *fingerprints, size_t at) {
    for (size_t i = 0; i < at; i++)
        if (fingerprints[i] == fingerprints[at]) return true;
    return false;
}

size_t vc_core_group_commit(vc_core *core, vc_put *const *puts, size_t count) {
    uint64_t fingerprints[VC_GROUP_PUTS_MAX];
    size_t different = 0;
    for (; different < count && different < VC_GROUP_PUTS_MAX; different++) {
        const vc_put *put = puts[different];
        fingerprints[different] = vc_core_fingerprint(core, put->key, put->record.key_length);
        if (is_again(fingerprints, different)) break;
    }
    while (!wait_for_turn(core, NS_PER_SECOND)) continue;
    become_owner(core);
    size_t made = put_group(core, puts, different, false);
    vc_core_release(core);
    return made;
}

/* Read the header of the last record of a key, which may be a tombstone if the caller takes that;
 * from the disk only if it `waits`. VC_OTHER_KEY: there is none. */
static vc_status read_last(vc_core *core, const uint8_t *key, size_t key_length,
                           bool takes_tombstone, bool waits, vc_record *record) {
    uint8_t head[VC_PREFIX_BYTES_MAX];
    size_t length = VC_HEAD_BYTES_MAX(key_length);
    vc_lookup at;
    vc_status status = VC_SHORT;
    if (!core_look_up(core, key, key_length, VC_UNCOUNTED, takes_tombstone, &at))
        return VC_OTHER_KEY;
    /* Twice, if another key has the same fingerprint and is longer. */
    for (int reads = 0; reads < 2 && status == VC_SHORT; reads++) {
        if (length > at.size) length = at.size;
        ssize_t got = vc_pread(&core->calls, at.fd, head, length, at.offset, !waits);
        status = got < 0
                     ? VC_IO_ERROR
                     : vc_record_decode(head, (size_t)got, at.salt, at.volume, at.offset, record);
        length = record->prefix;
    }
    vc_core_end_read(core);
    if (status == VC_OK &&
        (record->key_length != key_length || memcmp(record->key, key, key_length)))
        return VC_OTHER_KEY;
    record->key = key;
    return status;
}

/* Whether the last record of a key is a value that a read would return. */
static bool is_value(vc_core *core, const vc_record *last, uint64_t now_ms) {
    return !last->kind && !(last->expires_ms && last->expires_ms <= now_ms) &&
           !vc_core_is_purged(core, last->key, last->key_length, last->stored_us);
}

/* Find out whether a key has a value. VC_OTHER_KEY: no tombstone is needed. Two keys with one
 * fingerprint have it at every start: the record of the other key hides that of this one then,
 * too. A key that the index has lost for want of memory may be there after a start. */
static vc_status find_deleted(vc_core *core, const vc_put *put, uint64_t now_ms, bool *existed) {
    bool has_ring = put->ring != VC_RING_UNKNOWN;
    vc_record record = {0};
    vc_index_stats stats;
    vc_status status = read_last(core, put->key, put->record.key_length, false, has_ring, &record);
    *existed = status != VC_OTHER_KEY;
    if (!*existed) {
        vc_core_stats(core, &stats);
        return stats.displaced ? VC_OK : VC_OTHER_KEY;
    }
    if (status != VC_OK || record.kind) return has_ring ? VC_OK : VC_DEFERRED;
    *existed = is_value(core, &record, now_ms);
    return VC_OK;
}

vc_status vc_core_delete(vc_core *core, vc_put *put, uint64_t now_ms, bool *existed) {
    if (!vc_core_try_acquire(core, VC_LOCK_WAIT_NS)) return VC_DEFERRED;
    bool has_ring = put->ring != VC_RING_UNKNOWN;
    vc_status status = VC_DEFERRED;
    put->record = (vc_record){.key_length = put->record.key_length, .kind = 1};
    put->type = put->encoding = put->cache = put->value = put->key; /* 0 bytes of each */
    put->started_ns = 0;
    if (has_ring || !(core->is_blocked || core->deferred.refused))
        status = find_deleted(core, put, now_ms, existed);
    if (status == VC_OK) status = vc_core_put(core, put);
    vc_core_release(core);
    return status == VC_OTHER_KEY ? VC_OK : status;
}

vc_status vc_core_holds(vc_core *core, const uint8_t *key, size_t length,
                        const vc_condition *condition, uint64_t now_ms, bool waits, bool *holds) {
    vc_record record = {0};
    vc_status status = read_last(core, key, length, true, waits, &record);
    if (status != VC_OK && status != VC_OTHER_KEY) return VC_DEFERRED;
    bool is_last = status == VC_OK;
    bool is_there = is_last && is_value(core, &record, now_ms);
    bool is_same = is_there && record.stored_us == condition->stored_us &&
                   (condition->expires_ms == UINT64_MAX ||
                    record.expires_ms == condition->expires_ms);
    const bool ANSWERS[] = {
        [VC_IF_ANY] = true,
        [VC_IF_ABSENT] = !is_there,
        [VC_IF_PRESENT] = is_there,
        [VC_IF_SAME] = is_same,
        [VC_IF_OLDER] = !is_last || record.stored_us <= condition->stored_us,
    };
    *holds = ANSWERS[condition->kind];
    return VC_OK;
}

vc_status vc_core_change(vc_core *core, vc_put *put, const vc_condition *condition, uint64_t now_ms,
                         bool waits, bool *is_done) {
    vc_status status = VC_OK;
    *is_done = true;
    put->ring = VC_RING_UNKNOWN;
    put->started_ns = 0;
    if (!vc_core_try_acquire(core, VC_LOCK_WAIT_NS)) return VC_DEFERRED;
    if (condition->kind)
        status = vc_core_holds(core, put->key, put->record.key_length, condition, now_ms, waits,
                               is_done);
    if (status == VC_OK && *is_done)
        status = put->record.kind ? vc_core_delete(core, put, now_ms, is_done)
                                  : vc_core_put(core, put);
    vc_core_release(core);
    return status;
}

bool vc_core_has_deferred(vc_core *core) {
    const vc_deferred *due = &core->deferred;
    return due->bytes >= core->putting.deferred_bytes || due->unwritten || due->refused;
}

vc_deferred vc_core_take_deferred(vc_core *core) {
    vc_deferred due = core->deferred;
    core->deferred = (vc_deferred){.bytes = due.bytes < core->putting.deferred_bytes ? due.bytes
                                                                                     : 0};
    due.bytes -= core->deferred.bytes;
    return due;
}

/* --- Loading ----------------------------------------------------------------------- */

bool vc_core_add_change(vc_core *core, const vc_change *change) {
    vc_batch *to = &core->filling;
    if (!to->at) to->at = malloc(CHANGES_MAX * sizeof *to->at);
    if (!to->at) return false;
    to->at[to->count++] = *change;
    if (to->count == CHANGES_MAX) apply_full(core);
    return true;
}

typedef struct {
    vc_core *core;
    uint32_t slot;
    vc_status status;
} loading;

static bool take_entry(void *context, const uint8_t *key, size_t length, uint64_t offset,
                       uint64_t size) {
    loading *to = context;
    /* A record behind the end of all volumes is lost, and hides older ones. */
    bool is_there = vc_core_is_position(to->core, offset, size);
    vc_change change = {
        .fingerprint = vc_core_fingerprint(to->core, key, length),
        /* The line of a deletion has no offset. */
        .offset = is_there ? offset : VC_VOLUME_HEADER_BYTES,
        .slot = to->slot,
        .size = is_there ? (uint32_t)size : VC_TOMBSTONE,
    };
    if (!vc_core_add_change(to->core, &change)) to->status = VC_NO_MEMORY;
    return to->status == VC_OK;
}

vc_status vc_core_load(vc_core *core, uint32_t slot, int fd, vc_lines *lines) {
    size_t room = 0, filled = 0;
    uint64_t at = lines->file_end;
    uint8_t *window = NULL;
    loading to = {core, slot, VC_OK};
    while (to.status == VC_OK) {
        if (filled == room) { /* At first, or a block is longer than the window. */
            room = room ? 2 * room : LOAD_WINDOW_BYTES;
            uint8_t *longer = realloc(window, room);
            if (!longer) {
                to.status = VC_NO_MEMORY;
                break;
            }
            window = longer;
        }
        ssize_t got = vc_pread(&core->calls, fd, window + filled, room - filled, at, false);
        if (got < 0) to.status = VC_IO_ERROR;
        if (got <= 0) break;
        at += (uint64_t)got;
        filled += (size_t)got;
        size_t used = vc_lines_read(lines, window, filled, take_entry, &to);
        if (lines->is_damaged || lines->is_of_clone) break;
        filled -= used;
        if (filled) memmove(window, window + used, filled);
    }
    free(window);
    return to.status;
}

void vc_core_end_load(vc_core *core) {
    join(core);
    vc_core_lock(core);
    free(core->filling.at);
    free(core->full.at);
    core->filling = core->full = (vc_batch){NULL, 0};
    vc_core_unlock(core);
}
