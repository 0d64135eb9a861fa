/* A store in memory with a few values, for the programs that execute HTTP requests. The clock of the
 * machine stands still at Fri, 15 Jan 2027 08:00:00 GMT; the values were stored ten seconds
 * before.
 *
 * A program defines `is_cold`, whether the next read finds the record not to be in memory, and
 * VALUE_SIZE, KEY_SIZE; it includes http.c and its parts after this file. */
#ifndef VC_HTTP_STORE_H
#define VC_HTTP_STORE_H

#include <errno.h>
#include <stdbool.h>

#include "answer.h"
#include "check.h"
#include "clock.h"
#include "core.h"
#include "functions.h"

enum {
    FD = 77,
    INDEX = 78,                 /* the descriptor of an index file, of which nothing is kept */
    VOLUME_BYTES = 4 << 20,
    LARGE_BYTES = 1400000,
};
static const uint64_t STORED_US = UINT64_C(1799999990000000);

static bool is_cold(void);

static uint8_t *volume;
static vc_core *test_core;
static vc_clock store_clock;
static vc_types *test_types;
static vc_writer writer;
static int reads;               /* that are not ended */

static int test_clock_gettime(clockid_t clock, struct timespec *now) {
    *now = (struct timespec){clock == CLOCK_REALTIME ? 1800000000 : 1000, 5000};
    return 0;
}

static ssize_t test_pread(void *context, int fd, void *buffer, size_t length, off_t offset) {
    (void)context;
    CHECK(fd == FD && offset > 0 && offset < VOLUME_BYTES);
    if (length > VOLUME_BYTES - (size_t)offset) length = VOLUME_BYTES - (size_t)offset;
    memcpy(buffer, volume + offset, length);
    return (ssize_t)length;
}

static ssize_t test_pread_cached(void *context, int fd, void *buffer, size_t length,
                                 off_t offset) {
    if (is_cold()) {
        errno = EAGAIN;
        return -1;
    }
    return test_pread(context, fd, buffer, length, offset);
}

static ssize_t test_pwritev(void *context, int fd, const struct iovec *parts, int count,
                            off_t offset) {
    size_t length = 0;
    (void)context;
    CHECK(fd == FD || fd == INDEX);
    for (int i = 0; i < count; i++) {
        CHECK((size_t)offset + length + parts[i].iov_len <= VOLUME_BYTES);
        if (fd == FD) memcpy(volume + offset + length, parts[i].iov_base, parts[i].iov_len);
        length += parts[i].iov_len;
    }
    return (ssize_t)length;
}

static int test_sync(void *context, int fd) {
    (void)context;
    CHECK(fd == FD);
    return 0;
}

static const vc_calls calls = {
    .pread = test_pread, .pread_cached = test_pread_cached, .pwritev = test_pwritev,
    .fdatasync = test_sync};

static bool test_lookup(vc_core *of, const uint8_t *key, size_t length, uint64_t size_max,
                        vc_lookup *found) {
    bool is_found = vc_core_lookup(of, key, length, size_max, found);
    reads += is_found;
    return is_found;
}

static bool test_peek(vc_core *of, const uint8_t *key, size_t length, vc_lookup *found) {
    bool is_found = vc_core_peek(of, key, length, found);
    reads += is_found;
    return is_found;
}

static void test_end_read(vc_core *of) {
    vc_core_end_read(of);
    reads--;
}

/* Functions that count the reads. */
static vc_core_functions counting_functions(void) {
    vc_core_functions functions = vc_functions;
    functions.lookup = test_lookup;
    functions.peek = test_peek;
    functions.end_read = test_end_read;
    return functions;
}

static int64_t next_us(void *context) {
    (void)context;
    return vc_clock_next(&store_clock);
}

static void on_due(void *context) {
    (void)context;
    CHECK(!vc_core_is_mine(test_core));
    vc_core_take_due(test_core);
}

/* --- The values ------------------------------------------------------------------------- */

static uint64_t stored_us;     /* of the last value */

static void put_value(const char *key, const char *type, const char *value, size_t length,
                  uint64_t lives_ms) {
    vc_put put = {
        .record.key_length = (uint16_t)strlen(key),
        .record.type_length = (uint8_t)strlen(type),
        .record.length = (uint32_t)length,
        .record.stored_us = ++stored_us,
        .type = (const uint8_t *)type,
        .encoding = (const uint8_t *)type,
        .cache = (const uint8_t *)type,
        .key = (const uint8_t *)key,
        .value = (const uint8_t *)value,
        .ring = 0,
    };
    if (lives_ms) put.record.expires_ms = put.record.stored_us / 1000 + lives_ms;
    CHECK(vc_core_put(test_core, &put) == VC_OK);
}

/* Begin with some values. */
static void fill_store(bool syncs, bool has_large) {
    static const uint8_t hash_key[16] = "requests";
    static char large[LARGE_BYTES];
    vc_putting how = {.next_us = next_us, .due_bytes = 50000};
    static uint64_t seq;
    if (!test_core) {
        volume = calloc(1, VOLUME_BYTES);
        test_core = vc_core_new(&calls, hash_key, 1 << 24, 2, 0);
        test_types = vc_types_new(1);
        CHECK(volume && test_core && test_types && vc_types_add(test_types, ".txt", "text/plain"));
    } else {
        vc_core_reclaim(test_core, writer.slot);
        vc_core_take_due(test_core);
    }
    vc_core_set_putting(test_core, &how);
    vc_writer_free(&writer);
    vc_segment whole = {0, ++seq};
    uint32_t slot = vc_core_add_volume(test_core, seq);
    CHECK(slot != VC_NO_SLOT && vc_core_bind(test_core, slot, FD, 9, &whole, 1));
    writer = (vc_writer){
        .calls = &calls,
        .fd = FD,
        .volume = 9,
        .slot = slot,
        .pending_max = SIZE_MAX,
        .index_fd = INDEX,
        .is_indexed = true,
        .salt = whole.salt,
        .end = VC_VOLUME_HEADER_BYTES,
        .capacity = VOLUME_BYTES,
    };
    vc_core_set_writer(test_core, &writer);
    store_clock = (vc_clock){0};
    stored_us = STORED_US;
    put_value("a", "", "value of a", 10, 0);
    put_value("b.txt", "", "", 0, 60000);
    put_value("c", "text/html; charset=x", "0123456789", 10, 0);
    put_value("old", "", "x", 1, 1);
    if (has_large) put_value("large", "", large, LARGE_BYTES, 0);
    how.syncs = syncs;
    vc_core_set_putting(test_core, &how);
    vc_core_take_due(test_core);
}

#endif
