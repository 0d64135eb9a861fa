/* The core as the loops call it: which keys are absent, which are remembered, which reads are
 * hits, which records it puts by itself. */
#include "core.h"
#include "check.h"

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    CHECK(vc_core_set(core, fingerprint("value"), slot, 64, 100, false));
    CHECK(!is_absent("value", &is_stale));
    CHECK(vc_core_set(core, fingerprint("deleted"), slot, 200, 100, true));
    CHECK(is_absent("deleted", &is_stale) && !is_stale);
}

/* A hit of a value that is too large is left to whoever reads it. */
static void check_hits(void) {
    vc_lookup found;
    vc_policy_stats policy_stats;
    uint64_t size = 1024; /* a size class */
    CHECK(vc_core_set(core, fingerprint("large"), slot, 400, size, false));
    CHECK(vc_core_lookup(core, bytes("large"), 5, size - 1, &found) && !found.is_raised);
    vc_core_end_read(core);
    vc_core_get_policy_stats(core, &policy_stats);
    CHECK(policy_stats.tokens == 0);
    CHECK(vc_core_lookup(core, bytes("large"), 5, size, &found) && found.is_raised);
    vc_core_end_read(core);
    vc_core_get_policy_stats(core, &policy_stats);
    CHECK(policy_stats.tokens == (double)vc_size_middle(size));
}

/* --- Puts ----------------------------------------------------------------------------- */

static bool refuses, refuses_sync;
static unsigned synced, written;
/* Bytes that are written before a write is refused, unless it is of a header; -1: any. */
static ssize_t room = -1;
static bool is_full; /* from this offset on, no more can be written */
static off_t full_from;
static off_t erased[4];
static unsigned erased_count;

static ssize_t test_pwritev(void *context, int fd, const struct iovec *parts, int count,
                            off_t offset) {
    ssize_t total = 0;
    CHECK(!context && fd == 7 && offset);
    for (int i = 0; i < count; i++) total += (ssize_t)parts[i].iov_len;
    written++;
    errno = EIO;
    if (total == VC_OVERHEAD_BYTES && erased_count < 4) erased[erased_count++] = offset;
    else if (room >= 0 && total > room) total = room, room = 0;
    if (is_full && (!total || offset >= full_from)) errno = ENOSPC, total = 0;
    return refuses || !total ? -1 : total;
}

static int test_sync(void *context, int fd) {
    CHECK(!context && fd == 7);
    synced++;
    errno = ENOSPC;
    return refuses_sync ? -1 : 0;
}

static int64_t us;

static int64_t test_next_us(void *context) { return ++*(int64_t *)context; }

static vc_put put_of(const char *key, unsigned ring) {
    return (vc_put){
        .record.key_length = (uint16_t)strlen(key),
        .record.length = 100,
        .key = bytes(key),
        .value = bytes("a value of one hundred bytes, or whatever is behind these: nobody reads "
                       "it, but its checksum is made"),
        .ring = ring,
    };
}

static vc_status put(const char *key, unsigned ring) {
    vc_put one = put_of(key, ring);
    return vc_core_put(core, &one);
}

/* What is due defers plain puts, until it is taken; only who can wait syncs. */
static void check_puts(void) {
    static const vc_calls calls = {.pwritev = test_pwritev, .fdatasync = test_sync};
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
    CHECK(put("put", VC_RING_UNKNOWN) == VC_DEFERRED);
    CHECK(vc_core_set_writer(core, &writer) == VC_MAIN);
    vc_core_set_putting(core, &how);
    CHECK(put("put", VC_RING_UNKNOWN) == VC_OK && us == 1 && writer.pending == 1);
    CHECK(!is_absent("put", &is_stale) && !vc_core_has_deferred(core));
    CHECK(put("put", VC_RING_UNKNOWN) == VC_OK && !vc_core_has_deferred(core));
    CHECK(!vc_core_take_deferred(core).bytes && put("put", VC_RING_UNKNOWN) == VC_OK);
    CHECK(vc_core_has_deferred(core) && put("put", VC_RING_UNKNOWN) == VC_DEFERRED);
    CHECK(put("put", VC_MAIN) == VC_OK);
    vc_deferred due = vc_core_take_deferred(core);
    CHECK(due.bytes == 4 * 167 && due.unwritten == 1u << VC_MAIN && !due.refused);
    CHECK(!vc_core_has_deferred(core) && !vc_core_take_deferred(core).bytes);
    writer.pending_max = 100;
    refuses = true;
    CHECK(put("refused", VC_RING_UNKNOWN) == VC_IO_ERROR && errno == EIO);
    CHECK(put("refused", VC_RING_UNKNOWN) == VC_DEFERRED && is_absent("refused", &is_stale));
    CHECK(vc_core_take_deferred(core).refused == 1u << VC_MAIN && writer.end == 5000 + 4 * 167);
    refuses = false;
    how.syncs = true;
    vc_core_set_putting(core, &how);
    CHECK(put("synced", VC_RING_UNKNOWN) == VC_GROUPED && !synced);
    CHECK(put("synced", VC_MAIN) == VC_OK && synced == 1);
    writer.capacity = writer.end + 64 + strlen("too long") + 100 - 1;
    CHECK(put("too long", VC_MAIN) == VC_DEFERRED);
    writer.capacity++;
    CHECK(put("too long", VC_MAIN) == VC_OK && writer.end == writer.capacity);
}

static vc_put several[4];
static vc_writer probation;

/* Put values by a function of the core; return how many of the keys it says were put. */
static size_t put_by(size_t (*function)(vc_core *, vc_put *const *, size_t),
                     const char *const keys[], size_t count) {
    vc_put *puts[4];
    for (size_t i = 0; i < count; i++) {
        several[i] = put_of(keys[i], VC_RING_UNKNOWN);
        puts[i] = &several[i];
    }
    return function(core, puts, count);
}

static size_t group_commit(const char *const keys[], size_t count) {
    return put_by(vc_core_group_commit, keys, count);
}

static size_t put_many(const char *const keys[], size_t count) {
    return put_by(vc_core_put_many, keys, count);
}

/* Two volumes are written, with one sync for each of them. */
static void check_together(void) {
    static const char *const KEYS[] = {"together 1", "together 2", "asked for", "together 1"};
    bool is_stale;
    uint32_t other = vc_core_add_volume(core, 5);
    vc_segment whole = {0, 1};
    CHECK(vc_core_bind(core, other, 8, 8, &whole, 1));
    vc_core_set_age(core, other, VC_PROBATION, 0, VC_VOLUME_HEADER_BYTES);
    vc_core_take_deferred(core);
    writer.capacity = writer.end + 1000;
    probation = writer;
    probation.lines = NULL;
    vc_writer_clear(&probation);
    probation.lines_room = 0;
    probation.slot = other;
    probation.end = 200;
    CHECK(vc_core_set_writer(core, &probation) == VC_PROBATION);
    CHECK(is_absent("asked for", &is_stale));
    uint64_t end = writer.end;
    size_t pending = writer.pending, lines = writer.lines_used;
    synced = 0;
    CHECK(group_commit(KEYS, 4) == 3 && synced == 2);
    for (int i = 0; i < 3; i++) CHECK(several[i].status == VC_OK && several[i].took_ns >= 0);
    CHECK(several[2].ring == VC_PROBATION && probation.end > 200 && probation.pending == 1);
    CHECK(writer.end == end + 2 * 174 && writer.synced_end == writer.end);
    /* Each says from where on nothing was synced when it was written. */
    CHECK(several[1].record.unsynced == several[0].record.unsynced + 174);
    CHECK(writer.pending == pending + 2 && !is_absent("together 2", &is_stale));
    /* No sync helps if the write failed, but those before are stored. */
    refuses = true;
    CHECK(group_commit(KEYS, 2) == 2 && several[0].status == VC_IO_ERROR && synced == 2);
    CHECK(several[1].status == VC_DEFERRED && writer.end == end + 2 * 174);
    refuses = false;
    CHECK(group_commit(KEYS, 1) == 1 && several[0].status == VC_DEFERRED);
    vc_deferred due = vc_core_take_deferred(core);
    /* The second one cannot be erased. */
    CHECK(due.refused == 1u << VC_MAIN && due.unsynced == due.refused);
    /* If a sync fails, nothing was put. */
    static const char *const NEW[] = {"never 1", "never 2"};
    pending = writer.pending, lines = writer.lines_used, end = writer.end;
    refuses_sync = true;
    CHECK(group_commit(NEW, 2) == 2 && is_absent("never 1", &is_stale));
    for (int i = 0; i < 2; i++) CHECK(several[i].status == VC_SYNC_ERROR);
    refuses_sync = false;
    CHECK(writer.end == end && writer.pending == pending && writer.lines_used == lines);
    CHECK(vc_core_has_deferred(core));
    due = vc_core_take_deferred(core);
    CHECK(due.unsynced == 1u << VC_MAIN && due.refused == due.unsynced);
    CHECK(due.sync_error == ENOSPC);
    vc_core_block_writes(core, true);
    CHECK(group_commit(KEYS, 1) == 1 && several[0].status == VC_DEFERRED);
    vc_core_block_writes(core, false);
    /* What is due is told with the last one, and defers none. */
    writer.pending_max = 1;
    CHECK(group_commit(KEYS, 2) == 2 && !several[0].has_deferred && several[1].has_deferred);
    CHECK(group_commit(KEYS, 1) == 1 && several[0].status == VC_OK);
    vc_writer_free(&probation);
    writer.pending_max = 100;
    vc_core_take_deferred(core);
    vc_core_set_putting(core, &(vc_putting){test_next_us, &us, 400, false});
}

static bool is_stored(const char *key) {
    vc_entry found;
    uint64_t seq;
    return vc_core_find(core, fingerprint(key), &found, &seq);
}

/* If the disk refuses a write in the middle, nothing is put, and the headers behind the first one
 * that are written are erased: the next record may end where one of them begins. */
static void check_refused_many(void) {
    static const char *const NEW[] = {"refused 1", "refused 2", "refused 3", "refused 4"};
    uint64_t end = writer.end;
    size_t pending = writer.pending, lines = writer.lines_used;
    /* With a full disk, no header is where nothing can be written. */
    for (int i = 0; i < 2; i++) {
        is_full = i;
        full_from = (off_t)end + 2 * 173 + 10;
        erased_count = 0;
        room = 2 * 173 + 10;
        CHECK(!put_many(NEW, 4) && !is_stored("refused 1"));
        CHECK(writer.end == end && writer.pending == pending && writer.lines_used == lines);
        CHECK(erased_count == 3 && erased[2] == (off_t)end + 3 * 173);
        CHECK(!put_many(NEW, 4) && put(NEW[0], VC_RING_UNKNOWN) == VC_DEFERRED);
        vc_deferred due = vc_core_take_deferred(core);
        CHECK(due.refused == 1u << VC_MAIN && !due.unsynced);
        room = -1;
        is_full = false;
    }
    /* What cannot be erased is hidden as after a failed sync. */
    refuses = true;
    CHECK(!put_many(NEW, 4));
    refuses = false;
    vc_deferred due = vc_core_take_deferred(core);
    CHECK(due.unsynced == 1u << VC_MAIN && due.refused == due.unsynced && due.sync_error == EIO);
}

/* Values are put with one write, in their order, up to one that another volume has to have. */
static void check_many(void) {
    static const char *const KEYS[] = {"many 1", "many 2", "many 1", "many 3"};
    static const char *const OTHER[] = {"many 4", "asked for", "many 5"};
    vc_entry found;
    uint64_t seq, end = writer.end;
    size_t pending = writer.pending;
    writer.capacity = end + 3 * 170 + 20;
    written = 0;
    CHECK(put_many(KEYS, 4) == 3 && written == 1);
    CHECK(writer.end == end + 3 * 170 && writer.pending == pending + 3);
    CHECK(vc_core_find(core, fingerprint("many 1"), &found, &seq) && found.offset == end + 2 * 170);
    CHECK(several[1].record.stored_us == several[0].record.stored_us + 1);
    CHECK(!several[1].has_deferred && several[2].has_deferred && vc_core_has_deferred(core));
    CHECK(!is_stored("many 3") && !put_many(KEYS, 4));
    vc_core_take_deferred(core);
    CHECK(!put_many(KEYS, 1)); /* there is no room */
    writer.capacity = probation.capacity = writer.end + 2000;
    CHECK(put_many(OTHER, 3) == 1 && several[0].ring == VC_MAIN);
    vc_core_block_writes(core, true);
    CHECK(!put_many(KEYS, 1));
    vc_core_block_writes(core, false);
    vc_core_set_putting(core, &(vc_putting){test_next_us, &us, 400, true});
    CHECK(!put_many(KEYS, 1));
    vc_core_set_putting(core, &(vc_putting){test_next_us, &us, 400, false});
    vc_core_take_deferred(core);
    check_refused_many();
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
    CHECK(put("busy", VC_RING_UNKNOWN) == VC_DEFERRED);
    sem_post(&may_release);
    CHECK(vc_core_try_acquire(core, INT64_C(3600000000000)) && vc_core_release(core));
    CHECK(!pthread_join(owner, NULL));
}

/* --- Deletions ------------------------------------------------------------------------ */

static vc_status delete(const char *key, unsigned ring, bool *existed) {
    vc_put one = {.key = bytes(key), .record.key_length = (uint16_t)strlen(key), .ring = ring};
    uint64_t end = writer.end;
    vc_status status = vc_core_delete(core, &one, 1000, existed);
    CHECK((writer.end > end) == (one.started_ns != 0));
    return status;
}

static vc_status put_value(const char *key, uint64_t expires_ms) {
    vc_put one = put_of(key, VC_MAIN);
    one.record.length = 5;
    one.record.expires_ms = expires_ms;
    return vc_core_put(core, &one);
}

static bool ends_with(FILE *file, const char *text) {
    char end[64] = {0};
    CHECK(!fseek(file, -(long)strlen(text), SEEK_END) &&
          fread(end, 1, strlen(text), file) == strlen(text));
    return !memcmp(end, text, strlen(text));
}

static bool is_cold;

static ssize_t test_pread(void *context, int fd, void *buffer, size_t length, off_t offset,
                          bool is_cached) {
    errno = EAGAIN;
    if (is_cached && is_cold) return -1;
    return vc_os_calls.pread(context, fd, buffer, length, offset, false);
}

/* What another key, a purge, a tombstone or the disk hides. */
static void check_hidden(void) {
    bool existed;
    uint64_t end = writer.end;
    CHECK(put_value("hides", 0) == VC_OK);
    CHECK(vc_core_set(core, fingerprint("hidden"), slot, end, 100, false));
    CHECK(delete("hidden", VC_RING_UNKNOWN, &existed) == VC_OK && !existed);
    CHECK(writer.pending == 1);
    CHECK(vc_core_reserve_purge(core, bytes("hid"), 3));
    vc_core_add_purge(core, us, 1);
    CHECK(delete("hides", VC_RING_UNKNOWN, &existed) == VC_OK && !existed && !writer.pending);
    end = writer.end;
    CHECK(put_value("again", 0) == VC_OK);
    CHECK(delete("again", VC_RING_UNKNOWN, &existed) == VC_OK && existed);
    CHECK(vc_core_set(core, fingerprint("again"), slot, end + VC_OVERHEAD_BYTES + 10, 100, false));
    CHECK(delete("again", VC_RING_UNKNOWN, &existed) == VC_DEFERRED);
    CHECK(put_value("cold", 0) == VC_OK);
    is_cold = true;
    CHECK(delete("cold", VC_RING_UNKNOWN, &existed) == VC_DEFERRED && writer.pending == 1);
    is_cold = false;
}

/* Only what finds the record in memory, and can write the index file, is a plain deletion. */
static void check_deletions(void) {
    vc_putting how = {test_next_us, &us, 1 << 20, false};
    FILE *data = tmpfile(), *entries = tmpfile();
    bool existed, is_stale;
    vc_segment segment = {0, 7};
    CHECK(data && entries && vc_core_bind(core, slot, fileno(data), 1, &segment, 1));
    vc_writer_free(&writer);
    writer = (vc_writer){
        .calls = &vc_os_calls,
        .fd = fileno(data),
        .volume = 1,
        .slot = slot,
        .salt = 7,
        .end = 5000,
        .capacity = 1 << 16,
        .pending_max = 100,
        .index_fd = fileno(entries),
        .is_indexed = true,
    };
    vc_core_set_putting(core, &how);
    vc_core_take_deferred(core);
    CHECK(put_value("first", 0) == VC_OK && put_value("past", 1000) == VC_OK);
    CHECK(put_value("later", 1001) == VC_OK && put_value("torn", 0) == VC_OK);
    uint64_t torn = writer.end;
    CHECK(put_value("last", 0) == VC_OK && writer.pending == 5);
    CHECK(delete("first", VC_RING_UNKNOWN, &existed) == VC_OK && existed);
    CHECK(is_absent("first", &is_stale) && !writer.pending);
    CHECK(ends_with(entries, "\n") && writer.index_end == (uint64_t)ftell(entries));
    CHECK(delete("first", VC_RING_UNKNOWN, &existed) == VC_OK && !existed);
    CHECK(delete("past", VC_RING_UNKNOWN, &existed) == VC_OK && !existed && !writer.pending);
    CHECK(delete("later", VC_RING_UNKNOWN, &existed) == VC_OK && existed);
    vc_core_block_writes(core, true);
    CHECK(delete("nothing", VC_RING_UNKNOWN, &existed) == VC_DEFERRED);
    CHECK(put("held", VC_RING_UNKNOWN) == VC_DEFERRED);
    vc_core_block_writes(core, false);
    CHECK(delete("nothing", VC_RING_UNKNOWN, &existed) == VC_OK && !existed);
    CHECK(pwrite(fileno(data), "", 1, (off_t)torn - 6) == 1);
    CHECK(delete("torn", VC_RING_UNKNOWN, &existed) == VC_DEFERRED && writer.pending == 0);
    CHECK(delete("torn", VC_MAIN, &existed) == VC_OK && existed);
    check_hidden();
    writer.index_fd = -1;
    CHECK(delete("last", VC_RING_UNKNOWN, &existed) == VC_OK && existed);
    CHECK(writer.pending == 2 && vc_core_take_deferred(core).unwritten == 1u << VC_MAIN);
    CHECK(put_value("more", 0) == VC_OK);
    CHECK(delete("more", VC_RING_UNKNOWN, &existed) == VC_DEFERRED);
    CHECK(delete("more", VC_MAIN, &existed) == VC_OK && existed && writer.pending == 4);
    CHECK(vc_core_take_deferred(core).unwritten == 1u << VC_MAIN);
    fclose(data);
    fclose(entries);
}

static void check_evicted(void) {
    bool is_stale = false;
    vc_core_reclaim(core, slot);
    CHECK(is_absent("value", &is_stale) && is_stale);
    CHECK(is_absent("deleted", &is_stale) && !is_stale);
    writer.capacity = 1 << 20;
    vc_core_close(core);
    CHECK(!is_absent("value", &is_stale));
    CHECK(put("value", VC_MAIN) == VC_DEFERRED);
}

int main(void) {
    static const uint8_t hash_key[16] = {1};
    static const vc_policy policy = {.hit_rate = 1, .tokens_max = 1e9};
    static const vc_segment segment = {0, 1};
    vc_calls calls = vc_os_calls;
    calls.pread = test_pread;
    core = vc_core_new(&calls, hash_key, 1 << 24, 4, 0);
    CHECK(core && vc_core_set_policy(core, &policy));
    slot = vc_core_add_volume(core, 1);
    CHECK(slot != VC_NO_SLOT && vc_core_bind(core, slot, -1, 1, &segment, 1));
    vc_core_set_age(core, slot, VC_MAIN, 0, 1 << 20);
    check_absent();
    check_hits();
    check_puts();
    check_together();
    check_many();
    check_busy();
    check_deletions();
    check_evicted();
    vc_core_free(core);
    vc_writer_free(&writer);
    return 0;
}
