/* The core as the gate calls it: which keys are absent, which are remembered, which reads are
 * hits, which records it puts by itself. */
#include "core.h"
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static vc_core *core;
static uint32_t slot;
static vc_writer writer;

static const uint8_t *bytes(const char *key) { return (const uint8_t *)key; }

static uint64_t fingerprint(const char *key) {
    return vc_core_fingerprint(core, bytes(key), strlen(key));
}

static unsigned ring_for(const char *key) {
    return vc_core_ring_for(core, bytes(key), strlen(key));
}

static bool is_absent(const char *key, bool *is_stale) {
    return vc_core_is_absent(core, bytes(key), strlen(key), true, is_stale);
}

static void check_absent(void) {
    bool is_stale = true;
    CHECK(ring_for("missed") == VC_MAIN);
    CHECK(is_absent("missed", &is_stale) && !is_stale);
    CHECK(ring_for("missed") == VC_PROBATION && ring_for("other") == VC_MAIN);
    CHECK(vc_core_set(core, fingerprint("value"), slot, 64, 100, 0, false));
    CHECK(!is_absent("value", &is_stale));
    CHECK(vc_core_set(core, fingerprint("deleted"), slot, 200, 100, 0, true));
    CHECK(is_absent("deleted", &is_stale) && !is_stale);
}

/* A hit of a value that is too large is left to whoever reads it. */
static void check_hits(void) {
    vc_lookup found;
    vc_heat heat;
    uint64_t size = 1024;   /* a size class */
    CHECK(vc_core_set(core, fingerprint("large"), slot, 400, size, 0, false));
    CHECK(vc_core_lookup(core, bytes("large"), 5, size - 1, &found) && !found.is_raised);
    vc_core_end_read(core);
    vc_core_get_heat(core, &heat);
    CHECK(heat.tokens == 0);
    CHECK(vc_core_lookup(core, bytes("large"), 5, size, &found) && found.is_raised);
    vc_core_end_read(core);
    vc_core_get_heat(core, &heat);
    CHECK(heat.tokens == (double)vc_size_middle(size));
}

/* --- Puts ----------------------------------------------------------------------------- */

static bool refuses;
static unsigned synced;

static ssize_t test_pwritev(void *context, int fd, const struct iovec *parts, int count,
                            off_t offset) {
    ssize_t total = 0;
    CHECK(!context && fd == 7 && offset);
    for (int i = 0; i < count; i++) total += (ssize_t)parts[i].iov_len;
    errno = EIO;
    return refuses ? -1 : total;
}

static int test_sync(void *context, int fd) {
    CHECK(!context && fd == 7);
    synced++;
    return 0;
}

static int64_t test_next_us(void *context) { return ++*(int64_t *)context; }

static vc_status put(const char *key, unsigned ring, bool is_tombstone) {
    vc_put one = {
        .record.key_length = (uint16_t)strlen(key),
        .record.length = 100,
        .record.kind = is_tombstone,
        .key = bytes(key),
        .value = bytes("a value of one hundred bytes, or whatever is behind these: nobody reads "
                       "it, but its checksum is made"),
        .ring = ring,
    };
    return vc_core_put(core, &one);
}

/* What is due defers plain puts, until it is taken; only who can wait syncs. */
static void check_puts(void) {
    static const vc_calls calls = {.pwritev = test_pwritev, .fdatasync = test_sync};
    static int64_t us;
    writer = (vc_writer){
        .calls = &calls,
        .fd = 7,
        .slot = slot,
        .end = 5000,
        .capacity = 6000,
        .pending_max = 3,
    };
    vc_putting how = {test_next_us, &us, 400, false};
    bool is_stale;
    CHECK(put("put", VC_RING_UNKNOWN, false) == VC_DEFERRED);
    CHECK(vc_core_set_writer(core, &writer) == VC_MAIN);
    vc_core_set_putting(core, &how);
    CHECK(put("put", VC_RING_UNKNOWN, false) == VC_OK && us == 1 && writer.pending == 1);
    CHECK(!is_absent("put", &is_stale) && !vc_core_is_due(core));
    CHECK(put("put", VC_RING_UNKNOWN, true) == VC_OK && is_absent("put", &is_stale));
    CHECK(!vc_core_take_due(core).bytes && put("put", VC_RING_UNKNOWN, false) == VC_OK);
    CHECK(vc_core_is_due(core) && put("put", VC_RING_UNKNOWN, false) == VC_DEFERRED);
    CHECK(put("put", VC_MAIN, false) == VC_OK);
    vc_due due = vc_core_take_due(core);
    CHECK(due.bytes == 4 * 167 && due.unwritten == 1u << VC_MAIN && !due.refused);
    CHECK(!vc_core_is_due(core) && !vc_core_take_due(core).bytes);
    writer.pending_max = 100;
    refuses = true;
    CHECK(put("refused", VC_RING_UNKNOWN, false) == VC_IO_ERROR && errno == EIO);
    CHECK(put("refused", VC_RING_UNKNOWN, false) == VC_DEFERRED && is_absent("refused", &is_stale));
    CHECK(vc_core_take_due(core).refused == 1u << VC_MAIN && writer.end == 5000 + 4 * 167);
    refuses = false;
    how.syncs = true;
    vc_core_set_putting(core, &how);
    CHECK(put("synced", VC_RING_UNKNOWN, false) == VC_DEFERRED && !synced);
    CHECK(put("synced", VC_MAIN, false) == VC_OK && synced == 1);
    writer.capacity = writer.end + 64 + strlen("too long") + 100 - 1;
    CHECK(put("too long", VC_MAIN, false) == VC_DEFERRED);
    writer.capacity++;
    CHECK(put("too long", VC_MAIN, false) == VC_OK && writer.end == writer.capacity);
}

static sem_t is_owned, may_release;

static void *own(void *unused) {
    (void)unused;
    vc_core_acquire(core);
    sem_post(&is_owned);
    sem_wait(&may_release);
    CHECK(vc_core_release(core));
    return NULL;
}

/* A thread that serves clients does not wait for the owner of the write lock. */
static void check_busy(void) {
    pthread_t owner;
    sem_init(&is_owned, 0, 0);
    sem_init(&may_release, 0, 0);
    CHECK(!pthread_create(&owner, NULL, own, NULL));
    sem_wait(&is_owned);
    CHECK(!vc_core_try_acquire(core, 0) && !vc_core_try_acquire(core, 1000000));
    CHECK(!vc_core_is_mine(core) && !vc_core_release(core));
    CHECK(put("busy", VC_RING_UNKNOWN, false) == VC_DEFERRED);
    sem_post(&may_release);
    CHECK(vc_core_try_acquire(core, INT64_C(3600000000000)) && vc_core_release(core));
    CHECK(!pthread_join(owner, NULL));
}

static void check_evicted(void) {
    bool is_stale = false;
    vc_core_reclaim(core, slot);
    CHECK(is_absent("value", &is_stale) && is_stale);
    CHECK(is_absent("deleted", &is_stale) && !is_stale);
    writer.capacity = 1 << 20;
    vc_core_close(core);
    CHECK(!is_absent("value", &is_stale));
    CHECK(put("value", VC_MAIN, true) == VC_DEFERRED);
}

int main(void) {
    static const uint8_t hash_key[16] = {1};
    static const vc_policy policy = {.hit_rate = 1, .tokens_max = 1e9};
    static const vc_segment segment = {0, 1};
    core = vc_core_new(&vc_os_calls, hash_key, 1 << 24, 4, 0);
    CHECK(core && vc_core_set_policy(core, &policy));
    slot = vc_core_add_volume(core, 1);
    CHECK(slot != VC_NO_SLOT && vc_core_bind(core, slot, -1, 1, &segment, 1));
    vc_core_set_age(core, slot, VC_MAIN, 0, 1 << 20);
    check_absent();
    check_hits();
    check_puts();
    check_busy();
    check_evicted();
    vc_core_free(core);
    vc_writer_free(&writer);
    return 0;
}
