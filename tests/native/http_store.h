/* A store in memory with a few values, for the programs that execute HTTP requests. The clock of the
 * machine stands still at Fri, 15 Jan 2027 08:00:00 GMT; the values were stored ten seconds
 * before.
 *
 * A program defines `is_cold`, whether the next read finds the record not to be in memory; it
 * includes http.c and its parts after this file. */
#ifndef VC_HTTP_STORE_H
#define VC_HTTP_STORE_H

#include "answer.h"
#include "clock.h"
#include "http.h"
#include "lookup.h"
#include "memory_store.h"

enum { LARGE_BYTES = 1400000, VALUE_SIZE = 1500000, KEY_SIZE = 60 };
static const uint64_t STORED_US = UINT64_C(1799999990000000);

static vc_clock store_clock;
static const vc_type TYPES[] = {{".txt", "text/plain"}};
static vc_reporter test_reporter = {.news = &test_news};

static int test_clock_gettime(clockid_t clock, struct timespec *now) {
    *now = (struct timespec){clock == CLOCK_REALTIME ? 1800000000 : 1000, 5000};
    return 0;
}

static int64_t next_us(void *context) {
    (void)context;
    return vc_clock_next(&store_clock);
}

static int64_t store_us(void *context) { return vc_clock_now(context); }

static int64_t machine_us(void *context) {
    (void)context;
    return vc_machine_us();
}

static const vc_clocks test_clocks = {store_us, machine_us, &store_clock};

/* --- The values ------------------------------------------------------------------------- */

static uint64_t stored_us; /* of the last value */

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
    static char large[LARGE_BYTES];
    vc_putting how = {.next_us = next_us, .deferred_bytes = 50000};
    empty_store(&how, VOLUME_BYTES);
    store_clock = (vc_clock){0};
    stored_us = STORED_US;
    put_value("a", "", "value of a", 10, 0);
    put_value("b.txt", "", "", 0, 60000);
    put_value("c", "text/html; charset=x", "0123456789", 10, 0);
    put_value("old", "", "x", 1, 1);
    if (has_large) put_value("large", "", large, LARGE_BYTES, 0);
    how.syncs = syncs;
    vc_core_set_putting(test_core, &how);
    vc_core_take_deferred(test_core);
}

/* Return an executor, whose disk is good. */
static vc_http *make_http(vc_log *log) {
    static atomic_bool is_ready, is_draining;
    static vc_core_functions functions;
    functions = counting_functions();
    is_ready = true;
    vc_executor by = {
        .core = test_core,
        .functions = &functions,
        .clocks = &test_clocks,
        .reporter = &test_reporter,
        .log = log,
        .key_size = KEY_SIZE,
        .value_size = VALUE_SIZE,
        .long_ns = INT64_MAX,
        .sample_mask = 63,
    };
    vc_http_config config = {
        .types = {TYPES, 1},
        .is_ready = &is_ready,
        .is_draining = &is_draining,
        .allow = "GET, PUT",
    };
    vc_http *http = vc_http_new(&by, &config);
    CHECK(http);
    return http;
}

#endif
