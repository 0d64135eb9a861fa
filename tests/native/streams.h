/* What the fuzzers of a protocol share: how streams are made at random, and compared. */
#ifndef VC_STREAMS_H
#define VC_STREAMS_H

#include "common.h"
#include "events.h"
#include "fuzz.h"

/* Both are given back. */
static void check_same(growing *one, growing *other, bool is_compared) {
    CHECK(!is_compared || one->length == other->length);
    CHECK(!is_compared || !one->length || !memcmp(one->at, other->at, one->length));
    free(one->at);
    free(other->at);
}

static uint64_t count_of(const vc_durations *durations) {
    uint64_t count = 0;
    for (int i = 0; i < 64; i++) count += durations->counts[i];
    return count;
}

/* Take all events of a reporter. */
static void take_from(vc_events *from, void (*take)(const void *event)) {
    size_t length;
    const uint8_t *at = vc_events_take(from, &length), *end = at + length;
    for (; at < end; at += ((const vc_event_sizes *)(const void *)at)->length) take(at);
}

#ifndef VC_FUZZER
static uint64_t pick_state;

static uint64_t pick(uint64_t end) { return next_random(&pick_state) % end; }

#define ONE_OF(...)         \
    ((const char *const[]){ \
        __VA_ARGS__}[pick(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))])

static void add_value(growing *to, size_t size) {
    for (size_t i = 0; i < size; i++) add_bytes(to, pick(50) ? "v" : "\r\n" + pick(2), 1);
}

/* Each stream begins with a byte of options; some of the others are changed. */
static void run_streams(void (*make)(growing *), double seconds, uint64_t seed) {
    growing stream = {0};
    pick_state = seed;
    for (time_t start = time(NULL); difftime(time(NULL), start) < seconds;) {
        stream.length = 0;
        make(&stream);
        for (uint64_t changes = pick(3) ? 0 : pick(4); changes && stream.length > 1; changes--)
            stream.at[1 + pick(stream.length - 1)] = (char)pick(256);
        LLVMFuzzerTestOneInput((const uint8_t *)stream.at, stream.length);
    }
    free(stream.at);
}
#endif

#endif
