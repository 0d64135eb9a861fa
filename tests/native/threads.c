/* One thread that writes and four that read, on real files.
 *
 *     threads SECONDS SEED
 *
 * The writer appends records, overwrites and deletes keys, and uses the volumes in a circle:
 * it reclaims the oldest one while its records may be read. Each value says which version of
 * which key it is. What a reader gets is the latest version or a newer one; a miss or damage
 * only if the volume was reclaimed, or if this version was purged. At the end of each round the store is closed while the
 * readers go on. Any failed check aborts. */
#define _GNU_SOURCE
#include "core.h"
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    READERS = 4,
    VOLUMES = 4,
    KEYS = 300,
    NAME_BYTES = 8,             /* a prefix that only one key has */
    KEY_BYTES_MAX = NAME_BYTES + 90,
    PURGES = 100,
    TYPE_BYTES_MAX = 40,
    VALUE_BYTES_MAX = 40000,
    RECORD_BYTES_MAX = VC_OVERHEAD_BYTES + 2 * TYPE_BYTES_MAX + KEY_BYTES_MAX + VALUE_BYTES_MAX,
    VOLUME_BYTES = 256 << 10,
    ROUND_SECONDS = 3,
};

/* What the writer has finished for a key: version, and the turn of the volume it is in. */
#define NOTE(version, turn) ((uint64_t)(version) << 32 | (turn))
#define VERSION_OF(note) ((uint32_t)((note) >> 32))
#define TURN_OF(note) ((uint32_t)(note))

typedef struct {
    uint64_t reads, ok, apart, misses, damaged, purged, outdated, after_close;
} counts;

typedef struct {
    pthread_t thread;
    uint64_t random;
    counts counts;
    atomic_bool is_inside;      /* between a lookup and `vc_core_end_read` */
} reader;

static vc_core *core;
static int descriptors[VOLUMES];
static _Atomic uint32_t begun[KEYS];    /* the version of which the writing has begun */
static _Atomic uint64_t finished[KEYS]; /* a NOTE; 0: never written */
static _Atomic uint32_t oldest_turn;    /* earlier ones are reclaimed, or being so */
static _Atomic uint32_t purge_begun[PURGES], purged[PURGES];    /* versions, by key */
static atomic_bool is_closed, is_ending;
static uint64_t stored, deletions, rotations, rebound;

static uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t next_random(uint64_t *state) {
    return mixed(*state += 0x9e3779b97f4a7c15u);
}

/* --- What a version of a key is; version 0 is that before the first ------------------- */

static uint64_t nature(uint32_t key, uint32_t version) {
    return mixed((uint64_t)key << 32 | version);
}

static bool is_deletion(uint32_t key, uint32_t version) {
    return version == 0 || nature(key, version) % 7 == 0;
}

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

/* Fill with bytes of which each 8 depend on key, version and place. */
static void make_bytes(uint8_t *out, uint32_t length, uint32_t key, uint32_t version) {
    uint64_t start = nature(key, version);
    for (uint32_t i = 0; i < length; i += 8) {
        uint64_t word = start + i;
        memcpy(out + i, &word, length - i < 8 ? length - i : 8);
    }
}

/* A type has no control byte. */
static void make_type(uint8_t *to, uint32_t length, uint32_t key, uint32_t version) {
    make_bytes(to, length, key, version);
    for (uint32_t i = 0; i < length; i++) to[i] |= 0x80;
}

static size_t make_key(uint8_t out[KEY_BYTES_MAX], uint32_t key) {
    size_t length = (size_t)snprintf((char *)out, 9, "key %04u", key);
    memset(out + length, 'k', key % 90);
    return length + key % 90;
}

/* The salt of a record says in which turn it was written. */
static uint64_t make_salt(uint32_t turn, unsigned segment) {
    return mixed(turn * 2 + segment) << 32 | turn;
}

/* --- System calls ---------------------------------------------------------------------
 * ThreadSanitizer takes a read of a file for something that waits for a write before it: it
 * would not see that nothing else orders the two. It does not know calls that are made so. */
#ifdef __SANITIZE_THREAD__
#define PREAD(fd, buffer, length, offset) syscall(SYS_pread64, fd, buffer, length, offset)
#define PWRITEV(fd, parts, count, offset) \
    syscall(SYS_pwritev, fd, parts, (long)(count), offset, 0l)
#else
#define PREAD pread
#define PWRITEV pwritev
#endif

/* A read is not atomic: some are slow, so that the record changes meanwhile. */
static ssize_t slow_pread(void *context, int fd, void *buffer, size_t length, off_t offset) {
    static _Thread_local unsigned calls;
    size_t first = length;
    (void)context;
    if (calls++ % 8 == 0) first = length < 300 ? length / 2 : 300;
    ssize_t got = PREAD(fd, buffer, first, offset);
    if (got < 0 || (size_t)got < first || first == length) return got;
    for (int left = 60; left > 0; left--) sched_yield();
    got = PREAD(fd, (char *)buffer + first, length - first, offset + (off_t)first);
    return got < 0 ? got : got + (ssize_t)first;
}

static ssize_t slow_preadv(void *context, int fd, const struct iovec *parts, int count,
                           off_t offset) {
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t got = slow_pread(context, fd, parts[i].iov_base, parts[i].iov_len,
                                 offset + (off_t)total);
        if (got < 0) return got;
        total += got;
        if ((size_t)got < parts[i].iov_len) break;
    }
    return total;
}

static ssize_t plain_pwritev(void *context, int fd, const struct iovec *parts, int count,
                             off_t offset) {
    (void)context;
    return PWRITEV(fd, parts, count, offset);
}

static vc_calls system_calls(void) {
    vc_calls calls = vc_os_calls;
    calls.pread = slow_pread;
    calls.preadv = slow_preadv;
    calls.pwritev = plain_pwritev;
    return calls;
}

/* --- The writer ----------------------------------------------------------------------- */

typedef struct {
    vc_writer writer;
    vc_calls calls;
    uint32_t turn, slots[VOLUMES];
    uint64_t random;
} writing;

static void start_volume(writing *w) {
    uint32_t turn = ++w->turn, id = turn % VOLUMES;
    if (turn > VOLUMES) {
        atomic_store(&oldest_turn, turn - VOLUMES + 1);
        vc_core_reclaim(core, w->slots[id]);
        rotations++;
    }
    vc_writer_free(&w->writer);
    w->writer = (vc_writer){
        .fd = descriptors[id],
        .volume = (uint16_t)id,
        .salt = make_salt(turn, 0),
        .end = VC_VOLUME_HEADER_BYTES,
        .capacity = VOLUME_BYTES,
    };
    w->slots[id] = vc_core_add_volume(core, turn);
    CHECK(w->slots[id] != VC_NO_SLOT);
    vc_segment whole = {0, w->writer.salt};
    CHECK(vc_core_bind(core, w->slots[id], descriptors[id], (uint16_t)id, &whole, 1));
}

/* What follows in the volume has another salt, as after a start. */
static void start_segment(writing *w) {
    uint32_t id = w->turn % VOLUMES;
    w->writer.salt = make_salt(w->turn, 1);
    vc_segment both[2] = {{0, make_salt(w->turn, 0)}, {w->writer.end, w->writer.salt}};
    CHECK(vc_core_bind(core, w->slots[id], descriptors[id], (uint16_t)id, both, 2));
    rebound++;
}

static void write_version(writing *w, uint32_t key) {
    static uint8_t value[VALUE_BYTES_MAX], type[TYPE_BYTES_MAX + 8];
    uint8_t name[KEY_BYTES_MAX];
    size_t name_length = make_key(name, key);
    uint32_t version = VERSION_OF(atomic_load(&finished[key])) + 1;
    bool is_put = !is_deletion(key, version);
    vc_record record = {
        .key_length = (uint16_t)name_length,
        .stored_us = version,
        .expires_ms = key,
        .kind = !is_put,
    };
    if (is_put) {
        record.length = value_length(key, version);
        record.type_length = type_length(key, version);
        record.encoding_length = encoding_length(key, version);
        record.cache_length = cache_length(key, version);
    }
    make_bytes(value, record.length, key, version);
    make_type(type, record.type_length, key, version);
    atomic_store(&begun[key], version);
    vc_status status;
    do {
        status = vc_writer_append(&w->writer, &w->calls, &record, type,
                                  (const uint8_t *)"abcd", (const uint8_t *)"efghi", name,
                                  value, false);
        if (status == VC_NO_ROOM) start_volume(w);
    } while (status == VC_NO_ROOM);
    CHECK(status == VC_OK);
    uint64_t fingerprint = vc_core_fingerprint(core, name, name_length);
    uint32_t slot = w->slots[w->turn % VOLUMES];
    int types = vc_record_types(&record);
    if (is_put)
        CHECK(vc_core_set(core, fingerprint, slot, record.offset, record.size,
                          version % 3 ? VC_TYPES_UNKNOWN : types));
    else
        vc_core_set_tombstone(core, fingerprint, slot, record.offset, record.size);
    atomic_store(&finished[key], NOTE(version, w->turn));
    stored += is_put;
    deletions += !is_put;
}

/* Purge what a key has now, and keep the purges of all others. */
static void purge(uint32_t key) {
    uint8_t names[PURGES][KEY_BYTES_MAX];
    vc_purge list[PURGES];
    size_t count = 0;
    atomic_store(&purge_begun[key], VERSION_OF(atomic_load(&finished[key])));
    for (uint32_t i = 0; i < PURGES; i++) {
        if (!atomic_load(&purge_begun[i])) continue;
        make_key(names[i], i);
        list[count++] = (vc_purge){atomic_load(&purge_begun[i]), names[i], NAME_BYTES};
    }
    CHECK(vc_core_set_purges(core, list, count));
    atomic_store(&purged[key], atomic_load(&purge_begun[key]));
}

static void *write_always(void *argument) {
    writing *w = argument;
    while (!atomic_load(&is_ending)) {
        uint64_t dice = next_random(&w->random);
        /* Some keys are written often; half of them seldom, so that volumes take them. */
        uint32_t range = dice % 4 ? KEYS / 10 : KEYS;
        write_version(w, (uint32_t)(dice >> 8) % range);
        if (dice >> 40 & 1) vc_core_sweep(core, 16);
        if ((dice >> 45) % 64 == 0) purge((uint32_t)(dice >> 8) % PURGES);
        if ((dice >> 41) % 64 == 0 && (uint32_t)w->writer.salt == w->turn &&
            w->writer.salt == make_salt(w->turn, 0))
            start_segment(w);
        if ((dice >> 50) % 512 == 0) vc_writer_free(&w->writer);
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

/* Whether what was finished `before` must have been found: it is still the last version,
 * and its volume was not reclaimed. */
static bool must_be_found(uint32_t key, uint64_t before) {
    return before && !is_deletion(key, VERSION_OF(before)) &&
           atomic_load(&begun[key]) == VERSION_OF(before) &&
           atomic_load(&oldest_turn) <= TURN_OF(before);
}

static vc_status read_found(reader *r, const uint8_t *name, size_t name_length,
                            const vc_lookup *at, uint32_t key, uint64_t before,
                            uint64_t *version) {
    static _Thread_local uint8_t head[RECORD_BYTES_MAX * 5 / 4], value[RECORD_BYTES_MAX * 5 / 4];
    uint64_t dice = next_random(&r->random);
    size_t split = VC_OVERHEAD_BYTES + name_length;
    if (at->types > 0 && dice & 1) split += (size_t)at->types;
    /* Some of the header is read with the value. */
    if (dice & 2) split -= (dice >> 8) % name_length;
    bool is_apart = dice & 4 && split < at->size;
    vc_record record;
    vc_status status;
    if (is_apart)
        status = vc_core_read(core, name, name_length, at, head, split, value,
                              at->size - split, &record);
    else
        status = vc_core_read(core, name, name_length, at, head, at->size, NULL, 0, &record);
    r->counts.apart += is_apart;
    if (status == VC_OK)
        check_value(at, &record, is_apart ? value : head + record.prefix, key, before);
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
    bool is_found = vc_core_lookup(core, name, name_length, &at);
    CHECK(!(is_found && was_closed));
    if (was_closed) {
        r->counts.after_close++;
        return;
    }
    r->counts.reads++;
    if (!is_found) {
        CHECK(!must_be_found(key, before) || atomic_load(&is_ending));
        r->counts.misses++;
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
        r->counts.ok++;
    } else if (status == VC_PURGED) {
        CHECK(key < PURGES && version <= atomic_load(&purge_begun[key]));
        r->counts.purged++;
    } else if (status == VC_OUTDATED) {
        r->counts.outdated++;
    } else {
        CHECK(status == VC_DAMAGED || status == VC_SHORT);
        CHECK(atomic_load(&oldest_turn) > (uint32_t)at.salt);
        r->counts.damaged++;
    }
    atomic_store(&r->is_inside, false);
    vc_core_end_read(core);
}

static void *read_always(void *argument) {
    reader *r = argument;
    while (r->counts.after_close < 1000) {
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

static void open_files(void) {
    char folder[] = "/tmp/threads.XXXXXX", path[64];
    CHECK(mkdtemp(folder));
    for (int i = 0; i < VOLUMES; i++) {
        snprintf(path, sizeof path, "%s/%d", folder, i);
        descriptors[i] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        CHECK(descriptors[i] >= 0 && ftruncate(descriptors[i], VOLUME_BYTES) == 0);
        CHECK(unlink(path) == 0);
    }
    CHECK(rmdir(folder) == 0);
}

static void sleep_for(double seconds) {
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) && errno == EINTR) {}
}

static void run_round(double seconds, uint64_t *random, counts *total) {
    static const uint8_t hash_key[16] = "threads";
    static reader readers[READERS];
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
    writing w = {.calls = calls, .random = next_random(random)};
    start_volume(&w);
    pthread_t writer;
    CHECK(!pthread_create(&writer, NULL, write_always, &w));
    for (int i = 0; i < READERS; i++) {
        readers[i].random = next_random(random);
        CHECK(!pthread_create(&readers[i].thread, NULL, read_always, &readers[i]));
    }
    sleep_for(seconds);
    atomic_store(&is_ending, true);
    CHECK(!pthread_join(writer, NULL));
    vc_core_close(core);
    for (int i = 0; i < READERS; i++) CHECK(!atomic_load(&readers[i].is_inside));
    atomic_store(&is_closed, true);
    for (int i = 0; i < VOLUMES; i++) close(descriptors[i]);
    for (int i = 0; i < READERS; i++) {
        CHECK(!pthread_join(readers[i].thread, NULL));
        const counts *one = &readers[i].counts;
        total->reads += one->reads;
        total->ok += one->ok;
        total->apart += one->apart;
        total->misses += one->misses;
        total->damaged += one->damaged;
        total->purged += one->purged;
        total->outdated += one->outdated;
        total->after_close += one->after_close;
    }
    vc_writer_free(&w.writer);
    vc_core_free(core);
}

int main(int count, char **arguments) {
    double left = count > 1 ? atof(arguments[1]) : 5;
    uint64_t random = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    counts total = {0};
    int rounds = 0;
    for (; left > 0; left -= ROUND_SECONDS, rounds++)
        run_round(left < ROUND_SECONDS ? left : ROUND_SECONDS, &random, &total);
    printf("%d rounds; %" PRIu64 " puts, %" PRIu64 " deletions, %" PRIu64 " rotations, %" PRIu64
           " segments\n",
           rounds, stored, deletions, rotations, rebound);
    printf("%" PRIu64 " reads: %" PRIu64 " ok, %" PRIu64 " misses, %" PRIu64 " purged, %" PRIu64
           " outdated, %" PRIu64 " damaged; %" PRIu64 " with the value apart; %" PRIu64 " after the end\n",
           total.reads, total.ok, total.misses, total.purged, total.outdated, total.damaged,
           total.apart, total.after_close);
    return 0;
}
