/* Any bytes as commands of the memcached protocol, as one connection sends them.
 *
 *     memcache_fuzz FILE...             read files
 *     memcache_fuzz -r SECONDS SEED     random streams
 *
 * Each stream is executed twice, on a store in memory that is empty at first: once as it is, and
 * once cut into pieces at random, with little room for replies, and with records that are not in
 * memory. Both times the replies, what was passed, the counters and the events must be the same.
 * The bytes are in memory of just their length, so that a sanitizer notices any that is read
 * behind them. In place of Python, what is passed is dropped up to the next line or request.
 *
 * With -DVC_FUZZER it is a target of libFuzzer. Any failed check aborts. */
#define _GNU_SOURCE
#include "memcache.h"
#include "fuzz.h"

#include <errno.h>
#include <inttypes.h>

enum {
    FD = 77,
    VOLUME_BYTES = 1 << 16,
    ROOM = VC_MC_OUT_BYTES_MIN,
    PIECE_MAX = 40,
};

/* What one run of a stream depends on, and what it has shown. */
typedef struct {
    bool is_cut;                /* and its records may not be in memory */
    uint64_t state;             /* of the random numbers */
    vc_mc *mc;
    growing shown;              /* replies, and what was passed */
    growing told;               /* what the events say */
    vc_mc_counts counts;
} run;

static uint8_t volume[VOLUME_BYTES];
static run *current;
static int64_t now_us;
static vc_core *core;
static vc_writer writer;
static uint64_t streams, executed, passed, cold, flushed, synced;

/* --- The store -------------------------------------------------------------------------- */

static ssize_t test_pread(void *context, int fd, void *buffer, size_t length, off_t offset) {
    (void)context;
    CHECK(fd == FD && offset > 0 && offset < VOLUME_BYTES);
    if (length > VOLUME_BYTES - (size_t)offset) length = VOLUME_BYTES - (size_t)offset;
    memcpy(buffer, volume + offset, length);
    return (ssize_t)length;
}

static ssize_t test_pread_cached(void *context, int fd, void *buffer, size_t length,
                                 off_t offset) {
    if (current->is_cut && next_random(&current->state) % 4 == 0) {
        errno = EAGAIN;
        return -1;
    }
    return test_pread(context, fd, buffer, length, offset);
}

static ssize_t test_pwritev(void *context, int fd, const struct iovec *parts, int count,
                            off_t offset) {
    size_t length = 0;
    (void)context;
    CHECK(fd == FD);
    for (int i = 0; i < count; i++) {
        CHECK((size_t)offset + length + parts[i].iov_len <= VOLUME_BYTES);
        memcpy(volume + offset + length, parts[i].iov_base, parts[i].iov_len);
        length += parts[i].iov_len;
    }
    return (ssize_t)length;
}

static int64_t clock_us(void *context) {
    (void)context;
    return now_us;
}

static int64_t next_us(void *context) { return now_us = clock_us(context) + 1000; }

static int test_sync(void *context, int fd) {
    (void)context;
    CHECK(fd == FD);
    return 0;
}

static const vc_calls calls = {
    .pread = test_pread, .pread_cached = test_pread_cached, .pwritev = test_pwritev,
    .fdatasync = test_sync};
static const vc_mc_clocks clocks = {clock_us, clock_us, NULL};

static void on_due(void *context) {
    (void)context;
    CHECK(vc_core_is_due(core) && !vc_core_is_mine(core));
    vc_core_take_due(core);
}

/* --- Reads that are begun and ended ----------------------------------------------------- */

static int reads;               /* that are not ended */

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

/* Begin with an empty store. */
static void empty_store(bool syncs) {
    static const uint8_t hash_key[16] = "commands";
    vc_putting how = {.next_us = next_us, .due_bytes = 5000};
    static uint64_t seq;
    if (!core) {
        core = vc_core_new(&calls, hash_key, 1 << 24, 2, 0);
        CHECK(core);
    } else {
        vc_core_reclaim(core, writer.slot);
        vc_core_take_due(core);
    }
    how.syncs = syncs;
    vc_core_set_putting(core, &how);
    vc_writer_free(&writer);
    vc_segment whole = {0, ++seq};
    uint32_t slot = vc_core_add_volume(core, seq);
    CHECK(slot != VC_NO_SLOT && vc_core_bind(core, slot, FD, 9, &whole, 1));
    writer = (vc_writer){
        .calls = &calls,
        .fd = FD,
        .volume = 9,
        .slot = slot,
        .pending_max = SIZE_MAX,
        .salt = whole.salt,
        .end = VC_VOLUME_HEADER_BYTES,
        .capacity = VOLUME_BYTES,
    };
    vc_core_set_writer(core, &writer);
    now_us = INT64_C(1800000000000000);
}

/* --- One run ---------------------------------------------------------------------------- */

/* What a step is given: a copy, in memory of its length. */
/* Do what the thread that stores values does. */
static void store_synced(vc_mc_stream *stream, const char *data, size_t length) {
    vc_put *put = &stream->put;
    const char *value = (const char *)put->value;
    CHECK(!put->record.length ||
          (value >= data && value + put->record.length <= data + length));
    CHECK(vc_core_put_together(core, &put, 1) == 1);
    synced++;
}

static vc_mc_step step(vc_mc *mc, vc_mc_stream *stream, const uint8_t *data, size_t length,
                       size_t *used, vc_mc_out *out) {
    char *copy = copied(data, length);
    vc_mc_step found = vc_mc_execute(mc, stream, copy, length, used, out);
    if (found == VC_MC_TOGETHER) store_synced(stream, copy, length);
    free(copy);
    return found;
}

/* Return how much the place of Python drops; 0: more has to arrive. */
static size_t dropped(const vc_mc_stream *stream, const uint8_t *data, size_t length) {
    if (!stream->is_binary) {
        const uint8_t *end = memchr(data, '\n', length);
        return end ? (size_t)(end - data) + 1 : 0;
    }
    if (length < 24) return 0;
    size_t body = (size_t)data[10] << 8 | data[11];
    return 24 + body <= length ? 24 + body : 0;
}

static void read_cold(const vc_mc_stream *stream) {
    uint8_t bytes[VOLUME_BYTES];
    vc_record record;
    if (next_random(&current->state) % 2)
        vc_core_read(core, stream->key, stream->key_length, &stream->at, bytes, stream->at.size,
                     NULL, 0, &record);
    test_end_read(core);
    cold++;
}

static void flush(vc_mc_out *out) {
    add_bytes(&current->shown, out->at, out->used);
    out->used = 0;
}

/* Show what is passed. What is dropped is shown later: all of it may not be here yet. */
static void show_passed(const vc_mc_stream *stream) {
    CHECK(stream->prefix_length < VC_MC_PREFIX_BYTES);
    add_bytes(&current->shown, "<", 1);
    add_bytes(&current->shown, stream->prefix, stream->prefix_length);
    passed++;
}

static void take_event(const vc_mc_event *event) {
    CHECK(event->name < VC_MC_NAMES && event->result < VC_MC_RESULTS && event->took_ns >= 0);
    CHECK(event->key_length <= VC_MC_KEY_BYTES && !strcmp(event->remote, "1.2.3.4"));
    add_bytes(&current->told, event->key, event->key_length);
    add_bytes(&current->told, &event->name, sizeof event->name);
    add_bytes(&current->told, &event->result, sizeof event->result);
    add_bytes(&current->told, &event->bytes, sizeof event->bytes);
    add_bytes(&current->told, &event->offset, sizeof event->offset);
}

static void take_events(void *context) {
    (void)context;
    size_t length;
    const uint8_t *events = vc_mc_take_events(current->mc, &length);
    for (size_t at = 0; at < length;) {
        const vc_mc_event *event = (const vc_mc_event *)(const void *)(events + at);
        take_event(event);
        at += event->length;
    }
}

/* Execute what has arrived. Returns how much of it was used. */
static size_t execute(vc_mc *mc, vc_mc_stream *stream, const uint8_t *data, size_t length,
                      vc_mc_out *out, bool *is_passing) {
    size_t at = 0, used;
    for (;;) {
        if (*is_passing) {
            used = dropped(stream, data + at, length - at);
            if (!used) return at;
            add_bytes(&current->shown, data + at, used);
            *is_passing = false;
        } else {
            vc_mc_step found = step(mc, stream, data + at, length - at, &used, out);
            CHECK(out->used <= out->room && (found == VC_MC_NEXT) == (used > 0));
            CHECK(used <= length - at);
            if (found == VC_MC_MORE) CHECK(stream->needed > length - at);
            if (found == VC_MC_MORE) return at;
            if (found == VC_MC_COLD) read_cold(stream);
            if (found == VC_MC_FLUSH) CHECK(out->used);
            flushed += found == VC_MC_FLUSH;
            if (found == VC_MC_FLUSH || found == VC_MC_PASS) flush(out);
            if (found == VC_MC_PASS) show_passed(stream), *is_passing = true;
            if (found == VC_MC_NEXT) executed++;
        }
        at += used;
        if (current->is_cut && next_random(&current->state) % 4 == 0) flush(out);
    }
}

static void run_stream(run *this, uint8_t options, const uint8_t *data, size_t length) {
    char room[ROOM];
    vc_core_functions functions = vc_functions;
    functions.lookup = test_lookup;
    functions.peek = test_peek;
    functions.end_read = test_end_read;
    vc_mc_config config = {
        .core = core,
        .functions = &functions,
        .clocks = &clocks,
        .reads = vc_marks_new(64),
        .won = vc_marks_new(64),
        .key_size = options & 1 ? 250 : 100,
        .value_size = 3000,
        .default_ttl = options & 2 ? 60 : 0,
        .max_ttl = options & 4 ? 600 : 0,
        .slow_ns = -1,
        .long_ns = INT64_MAX,
        .sample_mask = 63,
        .on_events = take_events,
        .on_due = on_due,
    };
    vc_mc_stream stream = {
        .rights = {!(options & 8), !(options & 16), (options & 24) == 24},
        .remote = "1.2.3.4",
    };
    current = this;
    empty_store(options & 32);
    config.core = core;
    vc_mc *mc = this->mc = vc_mc_new(&config);
    CHECK(mc && config.reads && config.won);
    vc_mc_out out = {room, 0, ROOM};
    size_t from = 0, to = length;
    bool is_passing = false;
    do {
        if (this->is_cut) to += 1 + next_random(&this->state) % PIECE_MAX;
        if (to > length || !this->is_cut) to = length;
        from += execute(mc, &stream, data + from, to - from, &out, &is_passing);
    } while (to < length);
    flush(&out);
    take_events(NULL);
    CHECK(reads == 0);
    vc_mc_add_counts(mc, &this->counts);
    vc_mc_free(mc);
    vc_marks_free(config.reads);
    vc_marks_free(config.won);
}

static uint64_t count_of(const vc_durations *durations) {
    uint64_t count = 0;
    for (int i = 0; i < 64; i++) count += durations->counts[i];
    return count;
}

/* Both are given back. */
static void check_same(growing *one, growing *other) {
    CHECK(one->length == other->length);
    CHECK(!one->length || !memcmp(one->at, other->at, one->length));
    free(one->at);
    free(other->at);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    if (!length) return 0;
    run whole = {0}, pieces = {.is_cut = true, .state = length};
    run_stream(&whole, data[0], data + 1, length - 1);
    run_stream(&pieces, data[0], data + 1, length - 1);
    check_same(&whole.shown, &pieces.shown);
    check_same(&whole.told, &pieces.told);
    const vc_durations *one = &whole.counts.commands[0][0], *other = &pieces.counts.commands[0][0];
    for (size_t i = 0; i < VC_MC_NAMES * VC_MC_RESULTS; i++)
        CHECK(count_of(&one[i]) == count_of(&other[i]));
    CHECK(count_of(&whole.counts.reads) == count_of(&pieces.counts.reads));
    CHECK(count_of(&whole.counts.writes) == count_of(&pieces.counts.writes));
    CHECK(whole.counts.absent + whole.counts.evicted ==
          pieces.counts.absent + pieces.counts.evicted);
    streams++;
    return 0;
}

/* --- Random streams --------------------------------------------------------------------- */

#ifndef VC_FUZZER
static uint64_t state;

static uint64_t pick(uint64_t end) { return next_random(&state) % end; }

#define ONE_OF(...) \
    ((const char *const[]){__VA_ARGS__}[pick(sizeof((const char *const[]){__VA_ARGS__}) / \
                                             sizeof(char *))])

static void add_value(growing *to, size_t size) {
    for (size_t i = 0; i < size; i++) add_bytes(to, pick(50) ? "v" : "\r\n" + pick(2), 1);
}

static const char *pick_key(void) {
    if (pick(2)) return "a";
    return ONE_OF("b", "c/d", "c", "YQ==", "YiBj", "../x", "\xff", "a.b-c_d:e=1",
                  "long/long/long/long/long/long/long/long/long/long/long/long/long/long/long/"
                  "long/long/long/long/long/long/long/long/long/long/long/long/long/long/long");
}

static void add_get(growing *to) {
    add_text(to, ONE_OF("get", "gets", "gat 10", "gats 0", "gat -1", "get "));
    for (uint64_t keys = 1 + pick(5); keys; keys--) add_text(to, " "), add_text(to, pick_key());
    if (pick(1000) == 0)
        for (uint64_t keys = pick(40000); keys; keys--) add_text(to, " ab");
    add_text(to, ONE_OF("\r\n", "\r\n", "\n", " \r\n"));
}

static void add_put(growing *to) {
    char line[400];
    size_t size = pick(20) ? pick(30) : pick(3100);
    const char *name = ONE_OF("set", "set", "add", "replace", "cas", "append");
    snprintf(line, sizeof line, "%s %s %s %s %zu%s%s\r\n", name, pick_key(),
             ONE_OF("0", "7", "4294967295", "x"), ONE_OF("0", "0", "30", "4000000000", "-1"), size,
             strcmp(name, "cas") ? "" : ONE_OF(" 1", " 1800000000001000", " 0"),
             ONE_OF("", "", " noreply"));
    add_text(to, line);
    add_value(to, size);
    add_text(to, pick(30) ? "\r\n" : "x");
}

static void add_meta(growing *to) {
    char line[400];
    const char *name = ONE_OF("mg", "mg", "ms", "md");
    size_t size = pick(30);
    snprintf(line, sizeof line, "%s %s", name, pick_key());
    add_text(to, line);
    if (!strcmp(name, "ms")) {
        snprintf(line, sizeof line, " %zu", size);
        add_text(to, line);
    }
    for (uint64_t flags = pick(6); flags; flags--) {
        add_text(to, " ");
        add_text(to, ONE_OF("k", "t", "s", "v", "c", "f", "q", "b", "Oxyz", "T30", "h", "l", "u",
                            "F9", "ME", "MR", "C1800000000001000", "C0", "N5", "vv", "T"));
    }
    add_text(to, "\r\n");
    if (strcmp(name, "ms")) return;
    add_value(to, size);
    add_text(to, "\r\n");
}

static void add_other(growing *to) {
    char line[400];
    snprintf(line, sizeof line, "%s %s%s\r\n", ONE_OF("delete", "touch", "mn", "incr"), pick_key(),
             ONE_OF("", " 10", " noreply", " 10 noreply"));
    add_text(to, line);
}

static void add_binary(growing *to) {
    static const uint8_t OPCODES[] = {0, 1, 2, 3, 4, 9, 0xA, 0xB, 0xC, 0xD, 0x11, 0x12, 0x13, 0x14};
    uint8_t header[32] = {0x80, OPCODES[pick(sizeof OPCODES)], 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 'o'};
    const char *key = header[1] == 0xA ? "" : pick_key();
    bool is_put = (header[1] & 0xF) >= 1 && (header[1] & 0xF) <= 3;
    size_t size = is_put ? pick(20) ? pick(30) : pick(3100) : 0;
    size_t body = strlen(key) + size + (is_put ? 8 : 0);
    header[3] = (uint8_t)strlen(key);
    header[4] = is_put ? 8 : 0;
    header[10] = (uint8_t)(body >> 8);
    header[11] = (uint8_t)body;
    if (pick(5) == 0) memcpy(header + 16, "\0\6\x65\x16\x1c\x6d\xa3\xe8", 8);
    if (pick(30) == 0) header[pick(24)] = (uint8_t)pick(256);
    add_bytes(to, header, is_put ? 32 : 24);
    add_text(to, key);
    add_value(to, size);
}

static void make_stream(growing *to) {
    static void (*const TEXTS[])(growing *) = {add_get, add_put, add_put, add_meta, add_meta,
                                               add_other};
    uint8_t options = pick(4) ? (uint8_t)pick(8) : (uint8_t)pick(64);
    bool is_binary = pick(3) == 0;
    to->length = 0;
    add_bytes(to, &options, 1);
    for (uint64_t commands = pick(20); commands; commands--)
        (is_binary ? add_binary : TEXTS[pick(6)])(to);
    for (uint64_t changes = pick(3) ? 0 : pick(4); changes && to->length > 1; changes--)
        to->at[1 + pick(to->length - 1)] = (char)pick(256);
}

static void run_random(double seconds, uint64_t seed) {
    growing stream = {0};
    state = seed;
    for (time_t start = time(NULL); difftime(time(NULL), start) < seconds;) {
        make_stream(&stream);
        LLVMFuzzerTestOneInput((const uint8_t *)stream.at, stream.length);
    }
    free(stream.at);
    printf("%" PRIu64 " streams; %" PRIu64 " commands executed, %" PRIu64 " passed, %" PRIu64
           " cold, %" PRIu64 " times full, %" PRIu64 " synced\n",
           streams, executed, passed, cold, flushed, synced);
    vc_core_free(core);
    vc_writer_free(&writer);
}
#endif
