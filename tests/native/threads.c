/* Three threads that write and four that read, on real files.
 *
 *     threads SECONDS SEED
 *
 * The writers put records, some of them synced, and overwrite and delete keys; each key has one
 * writer. They use the
 * volumes in a circle: whoever finds no room, or has to do what is due, acquires the write lock,
 * and reclaims the oldest volume while its records may be read. Each value says which version of
 * which key it is. What a reader gets is the latest version or a newer one; a miss or damage
 * only if the volume was reclaimed, or if this version was purged. At the end of each round the
 * store is closed while the readers go on. Before each round, a file is read by a thread that is
 * ahead of this one. Any failed check aborts. */
#define _GNU_SOURCE
#include "read_ahead.h"
#include "versions.h"

#include <inttypes.h>
#include <pthread.h>

enum {
    WRITERS = 3,
    READERS = 4,
    NAME_BYTES = 8, /* a prefix that only one key has */
    KEY_BYTES_MAX = NAME_BYTES + 90,
    PURGES = 100,
    TYPE_BYTES_MAX = 40,
    VALUE_BYTES_MAX = 40000,
    RECORD_BYTES_MAX = VC_OVERHEAD_BYTES + 2 * TYPE_BYTES_MAX + KEY_BYTES_MAX + VALUE_BYTES_MAX,
    ROUND_SECONDS = 3,
    PENDING_MAX = 40,
    AHEAD_BYTES = 5 << 20,
    DUE_BYTES = 100 << 10,
};

/* What is counted of reads. */
enum { READS, OK, MISSES, PURGED, OUTDATED, DAMAGED, APART, AFTER_CLOSE, COUNTS };

typedef struct {
    pthread_t thread;
    uint64_t random;
    uint64_t counts[COUNTS];
    atomic_bool is_inside; /* between a lookup and `vc_core_end_read` */
} reader;

static _Atomic uint32_t purge_begun[PURGES], purged[PURGES]; /* versions, by key */
static atomic_bool is_closed, is_ending;
static atomic_ulong stored, deletions, refused, dues, synced, unsynced;
static unsigned long rebound; /* with the write lock */
static unsigned owners;       /* of it */

static uint32_t value_length(uint32_t key, uint32_t version) {
    uint64_t n = nature(key, version);
    return (uint32_t)(n >> 8) % (n >> 60 ? 1500 : VALUE_BYTES_MAX);
}

static uint8_t type_length(uint32_t key, uint32_t version) {
    return (uint8_t)((nature(key, version) >> 40) % 3 * (TYPE_BYTES_MAX / 2));
}

static uint8_t encoding_length(uint32_t key, uint32_t version) {
    return (uint8_t)((nature(key, version) >> 50) % 4);
}

static uint8_t cache_length(uint32_t key, uint32_t version) {
    return (uint8_t)((nature(key, version) >> 53) % 5);
}

/* A type has no control byte. */
static void make_type(uint8_t *to, uint32_t length, uint32_t key, uint32_t version) {
    make_bytes(to, length, key, version);
    for (uint32_t i = 0; i < length && i < TYPE_BYTES_MAX; i++) to[i] |= 0x80;
}

static size_t make_key(uint8_t out[KEY_BYTES_MAX], uint32_t key) {
    size_t length = (size_t)snprintf((char *)out, 9, "key %04u", key);
    memset(out + length, 'k', key % 90);
    return length + key % 90;
}

/* --- System calls -------------------------------------------------------------------- */

static ssize_t failing_pwritev(void *context, int fd, const struct iovec *parts, int count,
                               off_t offset) {
    static _Thread_local unsigned calls;
    if (calls++ % 256 == 255) {
        errno = EIO;
        return -1;
    }
    return hidden_pwritev(context, fd, parts, count, offset);
}

static int failing_sync(void *context, int fd) {
    static _Thread_local unsigned calls;
    (void)context, (void)fd;
    errno = EIO;
    return calls++ % 64 == 63 ? -1 : 0;
}

static vc_calls system_calls(void) {
    vc_calls calls = vc_os_calls;
    calls.pread = slow_pread;
    calls.pwritev = failing_pwritev;
    calls.fdatasync = failing_sync;
    return calls;
}

/* --- The writers ---------------------------------------------------------------------- */

typedef struct {
    pthread_t thread;
    uint64_t random;
    uint32_t number;
} keeper;

/* Be the only one between this and `release`, whoever puts meanwhile. */
static void acquire(void) {
    vc_core_acquire(core);
    CHECK(vc_core_is_mine(core) && vc_core_try_acquire(core, 0));
    CHECK(!owners++);
}

static void release(void) {
    CHECK(!--owners);
    CHECK(vc_core_release(core) && vc_core_release(core));
}

/* What follows in the volume has another salt, as after a start. */
static void start_segment(void) {
    uint32_t id = w.turn % VOLUMES;
    w.writer.salt = make_salt(w.turn, 1);
    vc_segment both[2] = {{0, make_salt(w.turn, 0)}, {w.writer.end, w.writer.salt}};
    CHECK(vc_core_bind(core, w.slots[id], descriptors[id], (uint16_t)id, both, 2));
    rebound++;
}

/* Do what is due, and make room for any record. */
static void prepare(void) {
    vc_deferred due = vc_core_take_deferred(core);
    CHECK(!due.bytes || due.bytes >= DUE_BYTES);
    CHECK(!vc_core_has_deferred(core));
    dues += due.bytes || due.unwritten;
    refused += due.refused != 0;
    if (due.unwritten) vc_writer_clear(&w.writer);
    unsynced += due.unsynced != 0;
    if (due.unsynced || w.writer.end + RECORD_BYTES_MAX > w.writer.capacity) start_volume();
}

/* Put a record without a ring; values are synced now and then. */
static vc_status put_plain(keeper *k, vc_put *put) {
    put->ring = VC_RING_UNKNOWN;
    if (put->record.kind || next_random(&k->random) % 4) return vc_core_put(core, put);
    CHECK(vc_core_group_commit(core, &put, 1) == 1);
    synced += put->status == VC_OK;
    return put->status;
}

/* Put a record; return the turn of its volume, or one before it. */
static uint32_t put_record(keeper *k, vc_put *put) {
    while (true) {
        uint32_t turn = atomic_load(&latest_turn);
        vc_status status = put_plain(k, put);
        if (status == VC_DEFERRED) {
            acquire();
            prepare();
            turn = atomic_load(&latest_turn);
            if (next_random(&k->random) % 2) {
                put->ring = VC_MAIN;
                status = vc_core_put(core, put);
            }
            release();
        }
        if (status == VC_OK) return turn;
        CHECK(status == VC_DEFERRED || status == VC_IO_ERROR || status == VC_SYNC_ERROR);
    }
}

static void write_version(keeper *k, uint32_t key) {
    static _Thread_local uint8_t value[VALUE_BYTES_MAX], type[TYPE_BYTES_MAX + 8];
    uint8_t name[KEY_BYTES_MAX];
    uint32_t version = VERSION_OF(atomic_load(&finished[key])) + 1;
    bool is_put = !is_deletion(key, version);
    vc_put put = {
        .type = type,
        .encoding = (const uint8_t *)"abcd",
        .cache = (const uint8_t *)"efghi",
        .key = name,
        .value = value,
        .record.key_length = (uint16_t)make_key(name, key),
        .record.stored_us = version,
        .record.expires_ms = key,
        .record.kind = !is_put,
    };
    vc_record *record = &put.record;
    if (is_put) {
        record->length = value_length(key, version);
        record->type_length = type_length(key, version);
        record->encoding_length = encoding_length(key, version);
        record->cache_length = cache_length(key, version);
    }
    make_bytes(value, record->length, key, version);
    make_type(type, record->type_length, key, version);
    atomic_store(&begun[key], version);
    uint32_t turn = put_record(k, &put);
    atomic_store(&finished[key], NOTE(version, turn));
    stored += is_put;
    deletions += !is_put;
}

/* Purge what a key has now, and keep the purges of all others. */
static void purge(uint32_t key) {
    uint8_t name[KEY_BYTES_MAX];
    make_key(name, key);
    atomic_store(&purge_begun[key], VERSION_OF(atomic_load(&finished[key])));
    CHECK(vc_core_reserve_purge(core, name, NAME_BYTES));
    vc_core_add_purge(core, atomic_load(&purge_begun[key]), 1);
    if (key % 16 == 0) vc_core_sweep_purges(core);
    if (key % 16 == 1) vc_core_drop_purges(core, 0); /* None, but readers look again. */
    atomic_store(&purged[key], atomic_load(&purge_begun[key]));
}

/* What Python does beside puts. */
static void change_more(uint64_t dice) {
    acquire();
    if (dice % 4 == 0) purge((uint32_t)(dice >> 8) % PURGES);
    if (dice % 4 == 1 && w.writer.salt == make_salt(w.turn, 0)) start_segment();
    if (dice % 4 == 2) vc_writer_clear(&w.writer);
    if (dice % 4 == 3) sched_yield();
    release();
}

static void *write_always(void *argument) {
    keeper *k = argument;
    while (!atomic_load(&is_ending)) {
        uint64_t dice = next_random(&k->random);
        /* Some keys are written often; half of them seldom, so that volumes take them. */
        uint32_t range = dice % 4 ? KEYS / 10 : KEYS;
        uint32_t key = (uint32_t)(dice >> 8) % (range / WRITERS) * WRITERS + k->number;
        write_version(k, key);
        if ((dice >> 40) % 16 == 0) change_more(dice >> 44);
        if ((dice >> 50) % 8 == 1) sched_yield();
    }
    return NULL;
}

/* --- The readers ---------------------------------------------------------------------- */

static void check_value(const vc_lookup *at, const vc_record *record, const uint8_t *value,
                        uint32_t key, uint64_t before) {
    static _Thread_local uint8_t expected[VALUE_BYTES_MAX];
    uint32_t version = (uint32_t)record->stored_us;
    CHECK(record->expires_ms == key && version == record->stored_us);
    CHECK(version >= VERSION_OF(before) && version <= atomic_load(&begun[key]));
    CHECK(!is_deletion(key, version));
    CHECK(record->length == value_length(key, version));
    CHECK(record->type_length == type_length(key, version));
    CHECK(record->encoding_length == encoding_length(key, version));
    CHECK(record->size <= at->size && record->size == record->prefix + (uint64_t)record->length);
    CHECK(record->offset == at->offset && record->volume == at->volume);
    make_type(expected, record->type_length, key, version);
    CHECK(!memcmp(record->type, expected, record->type_length));
    const uint8_t *encoding = record->type + record->type_length;
    CHECK(!memcmp(encoding, "abcd", record->encoding_length));
    CHECK(record->cache_length == cache_length(key, version));
    CHECK(!memcmp(encoding + record->encoding_length, "efghi", record->cache_length));
    make_bytes(expected, record->length, key, version);
    CHECK(!memcmp(value, expected, record->length));
}

static vc_status read_found(reader *r, const uint8_t *name, size_t name_length, const vc_lookup *at,
                            uint32_t key, uint64_t before, uint64_t *version) {
    static _Thread_local uint8_t head[RECORD_BYTES_MAX * 5 / 4], apart[RECORD_BYTES_MAX];
    vc_record record = {0};
    vc_lookup part = *at;
    if (next_random(&r->random) % 2) part.size = VC_HEAD_BYTES_MAX(name_length);
    if (part.size > at->size) part.size = at->size;
    vc_status status = vc_core_read(core, name, name_length, &part, false, head, &record);
    bool is_apart = status == VC_SHORT && record.key && part.size < at->size;
    if (is_apart) status = vc_core_read_value(core, at, &record, apart);
    r->counts[APART] += is_apart;
    if (status == VC_OK)
        check_value(at, &record, is_apart ? apart : head + record.prefix, key, before);
    if (status == VC_OK || status == VC_PURGED) *version = record.stored_us;
    return status;
}

static void read_key(reader *r, uint32_t key) {
    uint8_t name[KEY_BYTES_MAX];
    size_t name_length = make_key(name, key);
    bool was_closed = atomic_load(&is_closed);
    uint64_t before = atomic_load(&finished[key]);
    uint32_t purged_before = key < PURGES ? atomic_load(&purged[key]) : 0;
    vc_lookup at;
    bool is_found = vc_core_lookup(core, name, name_length, UINT64_MAX, &at);
    CHECK(!(is_found && was_closed));
    if (was_closed) {
        r->counts[AFTER_CLOSE]++;
        return;
    }
    r->counts[READS]++;
    if (!is_found) {
        CHECK(!must_be_found(key, before) || atomic_load(&is_ending));
        r->counts[MISSES]++;
        return;
    }
    atomic_store(&r->is_inside, true);
    /* Some wait until the writer begins to overwrite the volume, but not for ever. */
    uint64_t dice = next_random(&r->random);
    for (int left = dice % 64 ? (int)(dice >> 8) % 3 : 5000; left > 0; left--) {
        if (dice % 64 == 0 && atomic_load(&oldest_turn) > (uint32_t)at.salt) break;
        sched_yield();
    }
    uint64_t version;
    vc_status status = read_found(r, name, name_length, &at, key, before, &version);
    if (status == VC_OK) {
        CHECK(version > purged_before);
        r->counts[OK]++;
    } else if (status == VC_PURGED) {
        CHECK(key < PURGES && version <= atomic_load(&purge_begun[key]));
        r->counts[PURGED]++;
    } else if (status == VC_OUTDATED) {
        r->counts[OUTDATED]++;
    } else {
        CHECK(status == VC_DAMAGED || status == VC_SHORT);
        CHECK(atomic_load(&oldest_turn) > (uint32_t)at.salt);
        r->counts[DAMAGED]++;
    }
    atomic_store(&r->is_inside, false);
    vc_core_end_read(core);
}

static void *read_always(void *argument) {
    reader *r = argument;
    while (r->counts[AFTER_CLOSE] < 1000) {
        uint64_t dice = next_random(&r->random);
        read_key(r, (uint32_t)(dice >> 8) % (dice % 2 ? KEYS / 10 : KEYS));
        if (dice >> 60 == 0) {
            vc_index_stats stats;
            vc_core_stats(core, &stats);
            CHECK(stats.displaced == 0 && stats.records <= KEYS);
        }
    }
    return NULL;
}

/* --- Rounds --------------------------------------------------------------------------- */

/* Read a file from random places on, and give it up anywhere. */
static void read_ahead(uint64_t *random) {
    static uint8_t data[AHEAD_BYTES];
    for (size_t i = 0; i < AHEAD_BYTES; i += 8) {
        uint64_t word = next_random(random);
        memcpy(data + i, &word, sizeof word);
    }
    FILE *file = tmpfile();
    CHECK(file && fwrite(data, AHEAD_BYTES, 1, file) == 1 && fflush(file) == 0);
    for (int i = 0; i < 20; i++) {
        uint64_t offset = next_random(random) % AHEAD_BYTES;
        uint64_t end = AHEAD_BYTES - next_random(random) % 2 * 1000;
        vc_read_ahead *ahead = vc_read_ahead_new(&vc_os_calls, fileno(file), offset, end,
                                                 VC_READ_AHEAD_PIECE_BYTES);
        CHECK(ahead);
        for (int left = (int)(next_random(random) % 100); left; left--) {
            size_t have, needed = 1 + next_random(random) % VC_READ_AHEAD_BYTES_MAX;
            const uint8_t *at = vc_read_ahead_get(ahead, offset, needed, &have);
            CHECK(have >= needed || offset + have == end || (offset > end && !have));
            CHECK(!memcmp(at, data + offset, have));
            offset += next_random(random) % (have + 1);
            if (next_random(random) % 20 == 0) offset = next_random(random) % AHEAD_BYTES;
        }
        vc_read_ahead_free(ahead);
    }
    fclose(file);
}

static void run_round(double seconds, uint64_t *random, uint64_t total[COUNTS]) {
    static const uint8_t hash_key[16] = "threads";
    static reader readers[READERS];
    static keeper writers[WRITERS];
    vc_calls calls = system_calls();
    core = vc_core_new(&calls, hash_key, 1 << 24, VOLUMES, 0);
    CHECK(core);
    memset(readers, 0, sizeof readers);
    for (int i = 0; i < KEYS; i++) begun[i] = 0;
    for (int i = 0; i < KEYS; i++) finished[i] = 0;
    for (int i = 0; i < PURGES; i++) purge_begun[i] = purged[i] = 0;
    oldest_turn = 0;
    is_closed = is_ending = false;
    open_files();
    vc_putting how = {.deferred_bytes = DUE_BYTES};
    vc_core_set_putting(core, &how);
    memset(&w, 0, sizeof w);
    w.calls = calls;
    w.pending_max = PENDING_MAX;
    start_volume();
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i].number = i;
        writers[i].random = next_random(random);
        CHECK(!pthread_create(&writers[i].thread, NULL, write_always, &writers[i]));
    }
    for (int i = 0; i < READERS; i++) {
        readers[i].random = next_random(random);
        CHECK(!pthread_create(&readers[i].thread, NULL, read_always, &readers[i]));
    }
    for (double end = seconds_now() + seconds; seconds_now() < end;) usleep(1000);
    atomic_store(&is_ending, true);
    for (int i = 0; i < WRITERS; i++) CHECK(!pthread_join(writers[i].thread, NULL));
    vc_core_close(core);
    for (int i = 0; i < READERS; i++) CHECK(!atomic_load(&readers[i].is_inside));
    atomic_store(&is_closed, true);
    for (int i = 0; i < VOLUMES; i++) close(descriptors[i]);
    for (int i = 0; i < READERS; i++) {
        CHECK(!pthread_join(readers[i].thread, NULL));
        for (int j = 0; j < COUNTS; j++) total[j] += readers[i].counts[j];
    }
    vc_writer_free(&w.writer);
    vc_core_free(core);
}

int main(int count, char **arguments) {
    double left = count > 1 ? atof(arguments[1]) : 5;
    uint64_t random = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    uint64_t total[COUNTS] = {0};
    int rounds = 0;
    for (; left > 0; left -= ROUND_SECONDS, rounds++) {
        read_ahead(&random);
        run_round(left < ROUND_SECONDS ? left : ROUND_SECONDS, &random, total);
    }
    CHECK(synced);
    printf("%d rounds; %lu puts (%lu synced, %lu syncs failed), %lu deletions, %lu refused,"
           " %lu rotations, %lu segments, due %lu times\n",
           rounds, stored, synced, unsynced, deletions, refused, rotations, rebound, dues);
    printf("reads, ok, misses, purged, outdated, damaged, with the value apart, after the end:");
    for (int i = 0; i < COUNTS; i++) printf(" %" PRIu64, total[i]);
    puts("");
    return 0;
}
