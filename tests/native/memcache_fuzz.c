/* Any bytes as commands of the memcached protocol, as one connection sends them.
 *
 *     memcache_fuzz FILE...             read files
 *     memcache_fuzz -r SECONDS SEED     random streams
 *
 * Each stream is executed twice, on a store in memory that is empty at first: once as it is, and
 * once cut into pieces at random, with little room for replies, and with records that are not in
 * memory. Both times the replies, the counters and the events must be the same. The bytes are in
 * memory of just their length, so that a sanitizer notices any that is read behind them. What
 * Python is asked is answered by the core as far as it can.
 *
 * With -DVC_FUZZER it is a target of libFuzzer. Any failed check aborts. */
#define _GNU_SOURCE
#include "mc_parts.h"
#include "streams.h"
#include "log_lines.h"
#include "memory_store.h"

#include <errno.h>
#include <inttypes.h>

enum {
    CAPACITY = 1 << 16, /* of the volume */
    ROOM = VC_MC_OUT_BYTES_MIN,
    PIECE_MAX = 40,
};

/* What one run of a stream depends on, and what it has shown. */
typedef struct {
    bool is_cut;                    /* and its records may not be in memory */
    uint64_t state;                 /* of the random numbers */
    growing shown;                  /* replies */
    growing told;                   /* what the events say */
    uint64_t reads, writes, misses; /* that were counted */
} run;

static run *current;
/* Those that wait not, and those that may. They are large, so that there are no others. */
static vc_mc mcs[2];
static uint64_t event_count;
static int64_t now_us;
static uint64_t streams, executed, called, cold, flushed, synced, at_once;
static vc_log *access_log;

/* --- The store -------------------------------------------------------------------------- */

static bool is_cold(void) { return current->is_cut && next_random(&current->state) % 4 == 0; }

static int64_t clock_us(void *context) {
    (void)context;
    return now_us;
}

static int64_t next_us(void *context) { return now_us = clock_us(context) + 1000; }

static const vc_clocks clocks = {clock_us, clock_us, NULL};
static vc_reporter reporters[2];

static size_t test_put_many(vc_core *of, vc_put *const *puts, size_t count) {
    CHECK(count > 1 && count <= VC_PUTS_AT_ONCE);
    size_t made = vc_core_put_many(of, puts, count);
    at_once += made;
    return made;
}

/* --- One run ---------------------------------------------------------------------------- */

/* Do what the thread that stores values does. */
static void store_synced(vc_mc_stream *stream, const char *data, size_t length) {
    vc_put *put = &stream->base.put;
    const char *value = (const char *)put->value;
    CHECK(!put->record.length || (value >= data && value + put->record.length <= data + length));
    CHECK(vc_core_group_commit(test_core, &put, 1) == 1);
    synced++;
}

static vc_step step(vc_mc *mc, vc_mc_stream *stream, const uint8_t *data, size_t length,
                    size_t *used, vc_out *out) {
    char *copy = copied(data, length);
    vc_step found = vc_mc_protocol.execute(mc, &stream->base, copy, length, used, out);
    if (found == VC_STEP_TOGETHER) store_synced(stream, copy, length);
    free(copy);
    return found;
}

/* --- In place of Python ----------------------------------------------------------------- */

static uint8_t answered[CAPACITY];

static vc_mc_result answer_get(vc_mc_asked *asked) {
    vc_lookup at;
    const uint8_t *key = (const uint8_t *)asked->key.at;
    if (!vc_core_lookup(test_core, key, asked->key.length, VC_UNCOUNTED, &at)) return VC_MC_MISS;
    vc_status status = vc_core_read(test_core, key, asked->key.length, &at, false, answered,
                                    &asked->record);
    vc_core_end_read(test_core);
    if (status != VC_OK) return VC_MC_FAILED;
    asked->text = (vc_text){(char *)answered + asked->record.prefix, asked->record.length};
    return VC_MC_HIT;
}

static vc_mc_result answer_put(vc_mc_asked *asked) {
    vc_put put = *asked->put;
    vc_core_take_deferred(test_core);
    put.ring = 0;
    if (vc_core_put(test_core, &put) != VC_OK) return VC_MC_FAILED;
    asked->record = put.record;
    current->writes++;
    return VC_MC_STORED;
}

static vc_mc_result answer_delete(vc_mc_asked *asked) {
    vc_put put = {.record.key_length = (uint16_t)asked->key.length, .ring = 0};
    bool existed;
    put.key = (const uint8_t *)asked->key.at;
    vc_core_take_deferred(test_core);
    if (vc_core_delete(test_core, &put, (uint64_t)now_us / 1000, &existed) != VC_OK)
        return VC_MC_FAILED;
    current->writes += put.started_ns != 0;
    return existed ? VC_MC_DELETED : VC_MC_NOT_FOUND;
}

static vc_mc_result answer(void *context, vc_mc_asked *asked) {
    static const char LINES[] = "STAT a 1\r\nSTAT long.name many words\r\n", WORD[] = "word";
    (void)context;
    asked->text = (vc_text){"a reason", 8};
    switch (asked->question) {
    case VC_MC_ASK_GET:
    case VC_MC_ASK_STAT: return answer_get(asked);
    case VC_MC_ASK_PUT:
    case VC_MC_ASK_TOUCH: return answer_put(asked);
    case VC_MC_ASK_DELETE: return answer_delete(asked);
    case VC_MC_ASK_FLUSH: return asked->exptime ? VC_MC_OK : VC_MC_FORBIDDEN;
    case VC_MC_ASK_TOKEN:
        if (asked->value.length != 4 || memcmp(asked->value.at, WORD, 4)) return VC_MC_DENIED;
        memset(asked->token, 7, sizeof asked->token);
        asked->rights = (vc_mc_rights){true, true, false};
        return VC_MC_AUTHENTICATED;
    default:
        asked->text = (vc_text){LINES, sizeof LINES - 1};
        return asked->value.length ? VC_MC_NOT_FOUND : VC_MC_OK;
    }
}

static void read_cold(const vc_stream *at) {
    uint8_t bytes[CAPACITY];
    vc_record record;
    if (next_random(&current->state) % 2)
        vc_core_read(test_core, at->key, at->key_length, &at->found, false, bytes, &record);
    test_end_read(test_core);
    cold++;
}

static void flush(vc_out *out) {
    for (unsigned i = 0; i < out->count; i++)
        add_bytes(&current->shown, out->parts[i].iov_base, out->parts[i].iov_len);
    out->used = out->count = 0;
}

static void take_event(const void *taken) {
    const vc_mc_event *event = taken;
    CHECK(event->name < VC_MC_NAMES && event->result < VC_MC_RESULTS && event->took_ns >= 0);
    CHECK(event->sizes.key_length <= VC_MC_KEY_BYTES && !strcmp(event->remote, "1.2.3.4"));
    add_bytes(&current->told, event + 1, event->sizes.key_length);
    add_bytes(&current->told, &event->name, sizeof event->name);
    add_bytes(&current->told, &event->result, sizeof event->result);
    event_count++;
}

static void take_events(void) {
    for (int i = 0; i < 2; i++) take_from(&reporters[i].events, take_event);
}

/* Do what the thread for calls does. Returns how much was used. */
static size_t call(vc_mc_stream *stream, const uint8_t *data, size_t length) {
    vc_out out = {.at = malloc(ROOM), .room = ROOM};
    size_t used;
    take_events();
    CHECK(step(&mcs[1], stream, data, length, &used, &out) == VC_STEP_NEXT);
    take_events();
    flush(&out);
    free(out.at);
    called++;
    return used;
}

/* Execute what has arrived. Returns how much of it was used. */
static size_t execute(vc_mc *mc, vc_mc_stream *stream, const uint8_t *data, size_t length,
                      vc_out *out) {
    size_t at = 0, used;
    while (!stream->base.closes) {
        vc_step found = step(mc, stream, data + at, length - at, &used, out);
        take_events();
        do_due();
        CHECK(out->used <= out->room && used <= length - at);
        at += used;
        if (found == VC_STEP_MORE) CHECK(stream->base.needed > length - at);
        if (found == VC_STEP_MORE) return at;
        if (found == VC_STEP_DISK) read_cold(&stream->base);
        if (found == VC_STEP_FLUSH) CHECK(out->used);
        flushed += found == VC_STEP_FLUSH;
        if (found == VC_STEP_FLUSH || found == VC_STEP_CALL) flush(out);
        if (found == VC_STEP_CALL) at += call(stream, data + at, length - at);
        if (found == VC_STEP_NEXT) CHECK(used);
        executed += found == VC_STEP_NEXT;
        if (current->is_cut && next_random(&current->state) % 4 == 0) flush(out);
    }
    return length;
}

static void add_counts(run *to, const vc_store_counts *counts, int sign) {
    to->reads += (uint64_t)sign * count_of(&counts->reads);
    to->writes += (uint64_t)sign * count_of(&counts->writes);
    to->misses += (uint64_t)sign * (counts->absent + counts->evicted + counts->expired);
}

/* Each command is an event, so that the events need not be counted by name and result each time. */
static void check_counts(void) {
    uint64_t sum = 0;
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < VC_MC_NAMES * VC_MC_RESULTS; j++)
            sum += count_of(&mcs[i].counts.commands[0][0] + j);
    CHECK(sum == event_count);
}

static void run_stream(run *this, uint8_t options, const uint8_t *data, size_t length) {
    char room[ROOM];
    vc_putting how = {.next_us = next_us, .deferred_bytes = 5000, .syncs = options & 32};
    vc_core_functions functions = counting_functions();
    functions.put_many = test_put_many;
    vc_executor by = {
        .functions = &functions,
        .clocks = &clocks,
        .key_size = options & 1 ? 250 : 100,
        .value_size = 3000,
        .slow_ns = -1,
        .long_ns = INT64_MAX,
        .sample_mask = 63,
    };
    vc_mc_config config = {
        .reads = vc_recent_new(64),
        .won = vc_recent_new(64),
        .default_ttl = options & 2 ? 60 : 0,
        .max_ttl = options & 4 ? 600 : 0,
    };
    vc_mc_stream stream = {
        .rights = {!(options & 8), !(options & 16), (options & 24) == 24},
        .base.remote = "1.2.3.4",
    };
    current = this;
    if (!access_log) access_log = vc_log_new(false, 1 << 22);
    CHECK(access_log);
    by.log = access_log;
    now_us = INT64_C(1800000000000000);
    empty_store(&how, CAPACITY);
    by.core = test_core;
    CHECK(config.reads && config.won);
    for (int i = 0; i < 2; i++) {
        by.counts = mcs[i].by.counts;
        by.reporter = &reporters[i];
        reporters[i].news = &test_news;
        mcs[i].by = by;
        mcs[i].config = config;
        add_counts(this, &by.counts, -1);
    }
    mcs[1].config.ask = answer;
    vc_out out = {.at = room, .room = ROOM};
    size_t from = 0, to = length;
    do {
        if (this->is_cut) to += 1 + next_random(&this->state) % PIECE_MAX;
        if (to > length || !this->is_cut) to = length;
        from += execute(&mcs[0], &stream, data + from, to - from, &out);
    } while (to < length);
    flush(&out);
    vc_mc_protocol.end(&mcs[0], &stream.base);
    take_events();
    (void)take_lines(access_log, &this->told);
    CHECK(reads == 0);
    for (int i = 0; i < 2; i++) add_counts(this, &mcs[i].by.counts, 1);
    vc_recent_free(config.reads);
    vc_recent_free(config.won);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    if (!length) return 0;
    run whole = {0}, pieces = {.is_cut = true, .state = length};
    run_stream(&whole, data[0], data + 1, length - 1);
    run_stream(&pieces, data[0], data + 1, length - 1);
    check_same(&whole.shown, &pieces.shown, true);
    check_same(&whole.told, &pieces.told, true);
    CHECK(whole.reads == pieces.reads && whole.writes == pieces.writes);
    CHECK(whole.misses == pieces.misses);
    if (streams % 1000 == 0) check_counts();
    streams++;
    return 0;
}

/* --- Random streams --------------------------------------------------------------------- */

#ifndef VC_FUZZER
static const char *pick_key(void) {
    if (pick(2)) return "a";
    return ONE_OF("b", "c/d", "c", "YQ==", "YiBj", "../x", "\xff", "a.b-c_d:e=1",
                  "long/long/long/long/long/long/long/long/long/long/long/long/long/long/long/"
                  "long/long/long/long/long/long/long/long/long/long/long/long/long/long/long");
}

static void add_get(growing *to) {
    add_text(to, ONE_OF("get", "gets", "gat 10", "gats 0", "gat -1", "get "));
    for (uint64_t keys = 1 + pick(5); keys; keys--) add_text(to, " "), add_text(to, pick_key());
    if (pick(200) == 0)
        for (uint64_t keys = pick(3000); keys; keys--) add_text(to, ONE_OF(" ab", " a", "  "));
    if (pick(200) == 0) add_text(to, " "), add_value(to, 300);
    add_text(to, ONE_OF("\r\n", "\r\n", "\n", " \r\n"));
}

static void add_put(growing *to) {
    char line[400];
    size_t size = pick(20) ? pick(30) : pick(3100);
    const char *name = ONE_OF("set", "set", "add", "replace", "cas", "append", "prepend");
    snprintf(line, sizeof line, "%s %s %s %s %zu%s%s\r\n", name, pick_key(),
             ONE_OF("0", "7", "4294967295", "x"), ONE_OF("0", "0", "30", "4000000000", "-1"), size,
             strcmp(name, "cas") ? "" : ONE_OF(" 1", " 1800000000001000", " 0"),
             ONE_OF("", "", " noreply"));
    add_text(to, line);
    if (pick(3)) add_value(to, size);
    else
        for (size_t i = 0; i < size; i++) add_text(to, i < 20 ? "7" : " ");
    add_text(to, pick(30) ? "\r\n" : "x");
}

/* Plain sets, some of which are refused. */
static void add_sets(growing *to) {
    char line[400];
    for (uint64_t sets = 2 + pick(25); sets; sets--) {
        size_t size = pick(30) ? pick(30) : pick(3100);
        snprintf(line, sizeof line, "set %s 7 %s %zu%s\r\n", pick_key(),
                 pick(10) ? "0" : ONE_OF("30", "-1", "x"), size, ONE_OF("", "", " noreply"));
        add_text(to, line);
        add_value(to, size);
        add_text(to, pick(30) ? "\r\n" : "x");
    }
}

static void add_meta(growing *to) {
    char line[400];
    const char *name = ONE_OF("mg", "mg", "ms", "md", "ma", "me");
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
                            "F9", "ME", "MR", "MA", "MP", "MI", "MD", "C1800000000001000", "C0",
                            "N5", "N-1", "R60", "J8", "D3", "D18446744073709551615", "vv", "T"));
    }
    add_text(to, "\r\n");
    if (strcmp(name, "ms")) return;
    add_value(to, size);
    add_text(to, "\r\n");
}

static void add_other(growing *to) {
    char line[400];
    snprintf(line, sizeof line, "%s %s%s\r\n", ONE_OF("delete", "touch", "mn", "incr", "decr"),
             pick_key(), ONE_OF("", " 10", " noreply", " 10 noreply", " 18446744073709551615"));
    add_text(to, pick(4) ? line
                         : ONE_OF("stats\r\n", "stats x\r\n", "flush_all\r\n", "flush_all 5\r\n",
                                  "version\r\n", "verbosity 1\r\n", "config get cluster\r\n",
                                  "cache_memlimit 64\r\n", "set x 0 0 6\r\nu word\r\n", "x\r\n",
                                  "set x 0 0 5\r\nu bad\r\n", "set x 0 0 3\r\nabcde\r\n"));
    if (pick(300) == 0) add_text(to, "quit\r\n");
}

/* Sizes of extras that are right for most opcodes. */
static uint8_t extras_of(uint8_t opcode) {
    switch (opcode) {
    case 1:
    case 2:
    case 3:
    case 0x11:
    case 0x12:
    case 0x13: return 8;
    case 5:
    case 6:
    case 0x15:
    case 0x16: return 20;
    case 0x1B:
    case 0x1C:
    case 0x1D:
    case 0x1E:
    case 0x23:
    case 0x24: return 4;
    default: return 0;
    }
}

static void add_binary(growing *to) {
    uint8_t header[24 + 20] = {0x80, (uint8_t)pick(0x26), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 'o'};
    uint8_t opcode = header[1], extras = header[4] = extras_of(opcode);
    bool has_key = !strchr("\x07\x08\x0a\x0b\x17\x18\x1b\x20", opcode ? opcode : 'x');
    bool is_login = opcode == 0x21 || opcode == 0x22;
    bool is_put = extras == 8 || opcode == 0xE || opcode == 0xF || opcode == 0x19 || opcode == 0x1A;
    const char *key = !has_key ? "" : is_login ? "PLAIN" : opcode == 0x10 ? "" : pick_key();
    size_t size = is_login ? 7 : !is_put ? 0 : pick(20) ? pick(30) : pick(3100);
    size_t body = strlen(key) + size + extras;
    header[3] = (uint8_t)strlen(key);
    header[10] = (uint8_t)(body >> 8);
    header[11] = (uint8_t)body;
    if (opcode == 7 && pick(50)) return;
    if (extras == 20) header[31] = 5, header[39] = 6, header[43] = (uint8_t)pick(3);
    else if (extras) header[23 + extras] = (uint8_t)pick(100);
    if (pick(5) == 0) memcpy(header + 16, "\0\6\x65\x16\x1c\x6d\xa3\xe8", 8);
    if (pick(30) == 0) header[pick(24)] = (uint8_t)pick(256);
    add_bytes(to, header, (size_t)24 + extras);
    add_text(to, key);
    if (is_login) add_bytes(to, "a\0u\0word" + (pick(3) == 0), 7);
    else if (pick(3)) add_value(to, size);
    else
        for (size_t i = 0; i < size; i++) add_text(to, i < 20 ? "7" : " ");
}

static void make_stream(growing *to) {
    static void (*const TEXTS[])(growing *) = {add_get,  add_put,  add_put,  add_meta,
                                               add_meta, add_sets, add_other};
    uint8_t options = pick(4) ? (uint8_t)pick(8) : (uint8_t)pick(64);
    bool is_binary = pick(3) == 0;
    add_bytes(to, &options, 1);
    for (uint64_t commands = pick(20); commands; commands--)
        (is_binary ? add_binary : TEXTS[pick(7)])(to);
}

static void run_random(double seconds, uint64_t seed) {
    run_streams(make_stream, seconds, seed);
    printf("%" PRIu64 " streams; %" PRIu64 " commands executed, %" PRIu64 " calls, %" PRIu64
           " cold, %" PRIu64 " times full, %" PRIu64 " synced, %" PRIu64 " sets at once\n",
           streams, executed, called, cold, flushed, synced, at_once);
    vc_log_free(access_log);
    free_store();
}
#endif
