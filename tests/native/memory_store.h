/* A store whose only volume is in memory.
 *
 * A program defines `is_cold`, whether the next read finds the record not to be in memory, and
 * `next_us`, which gives times of records. */
#ifndef VC_MEMORY_STORE_H
#define VC_MEMORY_STORE_H

#include <errno.h>
#include <stdbool.h>

#include "check.h"
#include "core.h"
#include "functions.h"
#include "news.h"

enum {
    FD = 77,
    INDEX = 78, /* the descriptor of an index file, of which nothing is kept */
    VOLUME_BYTES = 4 << 20,
};

static bool is_cold(void);
static int64_t next_us(void *context);

static uint8_t *volume;
static vc_core *test_core;
static vc_writer writer;
static int reads; /* that are not ended */

static ssize_t test_pread(void *context, int fd, void *buffer, size_t length, off_t offset,
                          bool is_cached) {
    (void)context;
    CHECK(fd == FD && offset > 0 && offset < VOLUME_BYTES);
    if (is_cached && is_cold()) {
        errno = EAGAIN;
        return -1;
    }
    if (length > VOLUME_BYTES - (size_t)offset) length = VOLUME_BYTES - (size_t)offset;
    memcpy(buffer, volume + offset, length);
    return (ssize_t)length;
}

/* Writes at most 50 bytes of a volume at once, unless it is a large value. */
static ssize_t test_pwritev(void *context, int fd, const struct iovec *parts, int count,
                            off_t offset) {
    size_t length = 0;
    (void)context;
    CHECK(fd == FD || fd == INDEX);
    for (int i = 0; i < count; i++) {
        size_t part = parts[i].iov_len;
        if (fd == FD && part < 1000 && length < 50 && length + part > 50) part = 50 - length;
        CHECK((size_t)offset + length + part <= VOLUME_BYTES);
        if (fd == FD) memcpy(volume + offset + length, parts[i].iov_base, part);
        length += part;
        if (part < parts[i].iov_len) break;
    }
    return (ssize_t)length;
}

static int test_sync(void *context, int fd) {
    (void)context;
    CHECK(fd == FD);
    return 0;
}

static const vc_calls calls = {
    .pread = test_pread, .pwritev = test_pwritev, .fdatasync = test_sync};

static bool test_lookup(vc_core *of, const uint8_t *key, size_t length, uint64_t size_max,
                        vc_lookup *found) {
    bool is_found = vc_core_lookup(of, key, length, size_max, found);
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
    functions.end_read = test_end_read;
    return functions;
}

static vc_news test_news;

/* Do what is due, as Python does. */
static void do_due(void) {
    if (!vc_news_take_due(&test_news)) return;
    CHECK(vc_core_has_deferred(test_core) && !vc_core_is_mine(test_core));
    vc_core_take_deferred(test_core);
}

/* Begin with an empty volume of so many bytes. */
static void empty_store(const vc_putting *how, size_t capacity) {
    static const uint8_t hash_key[16] = "requests";
    static uint64_t seq;
    if (!test_core) {
        volume = calloc(1, VOLUME_BYTES);
        test_core = vc_core_new(&calls, hash_key, 1 << 24, 2, 0);
        CHECK(volume && test_core);
    } else {
        vc_core_reclaim(test_core, writer.slot);
        vc_core_take_deferred(test_core);
    }
    vc_core_set_putting(test_core, how);
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
        .capacity = capacity,
    };
    vc_core_set_writer(test_core, &writer);
}

static void free_store(void) {
    vc_core_free(test_core);
    vc_writer_free(&writer);
    free(volume);
}

#endif
