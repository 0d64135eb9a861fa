/* Any bytes as HTTP requests, as one connection sends them.
 *
 *     http_fuzz FILE...             read files
 *     http_fuzz -r SECONDS SEED     random streams
 *
 * Each stream is executed twice, on a store in memory with a few values: once as it is, and once cut
 * into pieces at random, with replies that are sent at random, and with records that are not in
 * memory. Both times the replies, what is forwarded, the counters and the events must be the same.
 * The bytes are in memory of just their length, so that a sanitizer notices any that is read behind
 * them. Memory that an executor or a stream has is given back, reads that are begun are ended, and
 * a request asks for memory at most once.
 *
 * http.c and its parts are included, not linked: the test has its own clock, and lets malloc fail.
 * With -DVC_FUZZER it is a target of libFuzzer. Any failed check aborts. */
#define _GNU_SOURCE
#include "streams.h"

#include <inttypes.h>
#include <stdbool.h>

static int test_clock_gettime(clockid_t clock, struct timespec *now);
static void *test_realloc(void *memory, size_t bytes);
static void test_free(void *memory);

#define clock_gettime test_clock_gettime
#include "http_store.h"
#include "log_lines.h"
#define realloc test_realloc
#define free test_free
#include "lookup.c"
#include "http.c"
#include "http_change.c"
#include "http_read.c"
#undef clock_gettime
#undef realloc
#undef free

enum { PIECE_MAX = 60 };

/* What one run of a stream depends on, and what it has shown. */
typedef struct {
    bool is_cut;       /* and its records may not be in memory */
    bool has_failures; /* of malloc: replies are not compared */
    uint64_t state;    /* of the random numbers */
    vc_http *http;
    vc_http_stream stream;
    growing shown; /* replies, and what is forwarded */
    growing told;  /* what events and log lines say */
    vc_http_counts counts;
    vc_store_counts of_store;
    uint64_t forward_left; /* bytes of a body that is forwarded */
} run;

static run *current;
static int kept; /* blocks of memory */
static uint64_t streams, executed, forwarded, cold, flushed, synced, sent_later, logged;
static vc_log *access_log;

/* --- What the executor calls ------------------------------------------------------------ */

static bool is_cold(void) {
    return current->is_cut && !current->stream.base.is_read &&
           next_random(&current->state) % 4 == 0;
}

static void *test_realloc(void *memory, size_t bytes) {
    if (current->has_failures && next_random(&current->state) % 3 == 0) return NULL;
    kept += !memory;
    return realloc(memory, bytes);
}

static void test_free(void *memory) {
    kept -= memory != NULL;
    free(memory);
}

/* --- One run ---------------------------------------------------------------------------- */

static size_t total_of(const vc_out *out) {
    size_t total = 0;
    for (unsigned i = 0; i < out->count; i++) total += out->parts[i].iov_len;
    return total;
}

/* Send all but the last bytes of what is in `out`. */
static void flush(vc_out *out, size_t dropped) {
    size_t total = total_of(out);
    CHECK(dropped <= total && out->used <= out->room);
    for (unsigned i = 0; i < out->count; i++)
        add_bytes(&current->shown, out->parts[i].iov_base, out->parts[i].iov_len);
    current->shown.length -= dropped;
    out->used = out->count = 0;
}

static void take_event(const void *taken) {
    const vc_http_event *event = taken;
    CHECK(event->answer <= VC_HTTP_ANSWERS && event->took_ns >= 0);
    add_bytes(&current->told, event + 1, event->sizes.key_length);
    add_bytes(&current->told, &event->method, sizeof event->method);
    add_bytes(&current->told, &event->answer, sizeof event->answer);
    add_bytes(&current->told, &event->status, sizeof event->status);
}

static void take_events(void) { take_from(&test_reporter.events, take_event); }

/* Do what a thread does for a connection. */
static void read_record(vc_stream *stream) {
    uint8_t *bytes = allocated(stream->found.size);
    vc_record record;
    stream->status = vc_core_read(test_core, stream->key, stream->key_length, &stream->found, false,
                                  bytes, &record);
    free(bytes);
    test_end_read(test_core);
    stream->waited = VC_WAITED_DISK;
    cold++;
}

static void store_value(vc_stream *stream, const char *data, size_t length) {
    vc_put *put = &stream->put, *puts[] = {put};
    const char *value = (const char *)put->value;
    CHECK(!put->record.length || (value >= data && value + put->record.length <= data + length));
    CHECK(vc_core_group_commit(test_core, puts, 1) == 1);
    stream->waited = VC_WAITED_PUT;
    synced++;
}

/* Send a part of a value from the disk. */
static void send_value(const vc_stream *stream) {
    const vc_lookup *at = &stream->found;
    CHECK(stream->value_offset + stream->value_length + 4 <= at->size);
    add_bytes(&current->shown, volume + at->offset + stream->value_offset, stream->value_length);
    test_end_read(test_core);
    sent_later++;
}

/* Show a body that is forwarded. Returns how many bytes of it are there. */
static size_t forward_body(const char *data, size_t length) {
    run *this = current;
    size_t used = length < this->forward_left ? length : (size_t)this->forward_left;
    add_bytes(&this->shown, data, used);
    this->forward_left -= used;
    return used;
}

static void end_forward(void) {
    static const char HEAD[] =
        "HTTP/1.1 200 OK\r\nX-Cache: DISK\r\nX-Position: 1,2,3\r\nConnection: close\r\n\r\n";
    if (current->forward_left) return;
    vc_http_protocol.answered(current->http, &current->stream.base, HEAD, 3);
}

/* Returns how many bytes behind the head are used. */
static size_t start_forward(const vc_forward *forward, const char *data) {
    add_text(&current->shown, "<");
    add_bytes(&current->shown, forward->head, forward->head_length);
    forwarded++;
    if (forward->gap) {
        add_bytes(&current->shown, data, forward->body_length);
        return forward->body_length + forward->gap;
    }
    current->forward_left = forward->body_length;
    return 0;
}

/* Execute what has arrived. Returns how much of it was used; `*ends`: the connection. */
static size_t execute(char *data, size_t length, vc_out *out, bool *ends) {
    run *this = current;
    vc_stream *stream = &this->stream.base;
    size_t at = 0;
    while (!*ends) {
        if (this->forward_left) {
            at += forward_body(data + at, length - at);
            end_forward();
            if (this->forward_left) return at;
            *ends = stream->closes;
            continue;
        }
        size_t used, before = total_of(out), left = length - at;
        /* A copy of just this length, which the executor may change. */
        char *copy = copied(data + at, left);
        bool had_memory = this->stream.has_memory;
        vc_step step = vc_http_protocol.execute(this->http, stream, copy, left, &used, out);
        size_t interim = step == VC_STEP_MORE || step == VC_STEP_FORWARD ? total_of(out) - before
                                                                         : 0;
        CHECK(used <= left && (!interim || interim == 25));
        stream->waited = VC_WAITED_NOT;
        take_events();
        do_due();
        if (step == VC_STEP_TOGETHER) store_value(stream, copy, left);
        memcpy(data + at, copy, left);
        free(copy);
        at += used;
        if (interim || step == VC_STEP_VALUE || step == VC_STEP_FORWARD) flush(out, interim);
        switch (step) {
        case VC_STEP_MORE: CHECK(stream->needed > length - at); return at;
        case VC_STEP_MEMORY:
            CHECK(!had_memory && stream->reserve);
            stream->waited = VC_WAITED_MEMORY;
            break;
        case VC_STEP_DISK: read_record(stream); break;
        case VC_STEP_VALUE:
            send_value(stream);
            *ends = stream->closes;
            break;
        case VC_STEP_FORWARD:
            at += start_forward(&stream->forward, data + at);
            end_forward();
            *ends = stream->closes && !this->forward_left;
            break;
        case VC_STEP_FLUSH:
            CHECK(out->used);
            flush(out, 0);
            flushed++;
            break;
        case VC_STEP_NEXT:
            CHECK(used && total_of(out) > before);
            *ends = stream->closes;
            executed++;
            break;
        default: CHECK(step == VC_STEP_TOGETHER);
        }
        if (this->is_cut && next_random(&this->state) % 4 == 0) flush(out, 0);
    }
    return at;
}

static void run_stream(run *this, uint8_t options, const uint8_t *data, size_t length) {
    static char room[VC_HTTP_OUT_BYTES_MIN];
    static vc_out out;
    static const vc_origin origins[] = {{"http://page", "\r\nVary: Origin"}};
    fill_store(options & 1, options & 2);
    if (!access_log) access_log = vc_log_new(false, 1 << 22);
    CHECK(access_log);
    vc_http_settings settings = {
        .answers = true,
        .default_ttl = options & 8 ? 60 : 0,
        .max_ttl = options & 16 ? 600 : 0,
        .headers = options & 32 ? "\r\nX-More: 1" : NULL,
        .origins = origins,
        .origin_count = options & 32 ? 1 : 0,
    };
    if (options & 128)
        settings.may_read = settings.may_write = (vc_tokens){.right = {{"t", 1}}, .count = 1};
    current = this;
    vc_http *http = this->http = make_http(options & 4 ? access_log : NULL);
    vc_http_change(http, &settings, options & 64 ? -1 : INT64_MAX);
    this->stream.base.remote = "1.2.3.4";
    out = (vc_out){.at = room, .room = sizeof room};
    /* As after replies that have left little room. */
    if (this->is_cut) out.used = out.room - next_random(&this->state) % 20000;
    char *copy = copied(data, length);
    size_t from = 0, to = length;
    bool ends = false;
    do {
        if (this->is_cut) to += 1 + next_random(&this->state) % PIECE_MAX;
        if (to > length || !this->is_cut) to = length;
        from += execute(copy + from, to - from, &out, &ends);
    } while (to < length && !ends);
    flush(&out, 0);
    vc_http_protocol.end(http, &this->stream.base);
    take_events();
    logged += take_lines(access_log, &this->told);
    CHECK(reads == 0 && kept == 0);
    vc_http_add_counts(http, &this->counts, &this->of_store);
    vc_http_free(http);
    kept = 0;
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    if (!length) return 0;
    static run whole, pieces;
    whole = (run){0};
    pieces = (run){.is_cut = true, .has_failures = length % 16 == 7, .state = length};
    run_stream(&whole, data[0], data + 1, length - 1);
    run_stream(&pieces, data[0], data + 1, length - 1);
    bool is_compared = !pieces.has_failures;
    check_same(&whole.shown, &pieces.shown, is_compared);
    check_same(&whole.told, &pieces.told, is_compared);
    const vc_durations *answers = *whole.counts.answers, *others = *pieces.counts.answers;
    for (size_t i = 0; i < VC_HTTP_METHODS * VC_HTTP_ANSWERS && is_compared; i++)
        CHECK(count_of(&answers[i]) == count_of(&others[i]));
    CHECK(!is_compared || whole.counts.bytes_out == pieces.counts.bytes_out);
    streams++;
    return 0;
}

/* --- Random streams --------------------------------------------------------------------- */

#ifndef VC_FUZZER
static void add_field(growing *to) {
    add_text(to,
             ONE_OF("Range: bytes=0-1", "Range: bytes=3-", "Range: bytes=-4", "Range: bytes=9-9",
                    "Range: bytes=10-", "Range: bytes=0-0,2-3", "If-Match: *", "If-Match: \"x\"",
                    "If-None-Match: *", "If-None-Match: \"x\", W/\"y\"",
                    "If-Modified-Since: Fri, 15 Jan 2027 07:59:55 GMT",
                    "If-Modified-Since: Fri, 15 Jan 2027 07:00:00 GMT",
                    "If-Unmodified-Since: Fri, 15 Jan 2027 07:59:55 GMT",
                    "If-Unmodified-Since: Fri, 15 Jan 2027 07:00:00 GMT", "If-Range: \"x\"",
                    "Cache-Control: max-age=60, public", "Cache-Control: no-cache",
                    "Cache-Control: max-age=0", "Expires: Sat, 16 Jan 2027 00:00:00 GMT",
                    "Expires: 0", "Authorization: Bearer t",
                    "Authorization: Basic OnQ=", "Authorization: Bearer x", "Content-Type: a/b",
                    "Content-Encoding: gzip", "Origin: http://page", "Expect: 100-continue",
                    "Connection: close", "Service-Worker: script", "Content-Range: x",
                    "Referer: http://a/\"\\\xe9 b", "User-Agent: ", "X-Forwarded-For: 1.1.1.1"));
    add_text(to, "\r\n");
}

static void add_chunks(growing *to, size_t size) {
    char line[40];
    while (size) {
        size_t some = 1 + pick(size);
        snprintf(line, sizeof line, "%zx%s\r\n", some, pick(5) ? "" : ";a");
        add_text(to, line);
        add_value(to, some);
        add_text(to, "\r\n");
        size -= some;
    }
    add_text(to, pick(5) ? "0\r\n\r\n" : "0\r\nT: u\r\n\r\n");
}

static void add_request(growing *to) {
    char line[100];
    const char *method = ONE_OF("GET", "GET", "GET", "HEAD", "PUT", "PUT", "DELETE", "OPTIONS");
    bool has_body = !strcmp(method, "PUT") || pick(20) == 0, is_chunked = pick(3) == 0;
    size_t size = pick(20) ? pick(40) : pick(9000);
    if (pick(20000) == 0) size = VC_HTTP_COLLECTED_BYTES + 1;
    snprintf(line, sizeof line, "%s %s%s HTTP/1.%d\r\nHost: h\r\n", method,
             ONE_OF("/a", "/a", "/b.txt", "/c", "/old", "/large", "/none", "/%61", "/a/../b",
                    "/-/x", "/new"),
             pick(9) ? "" : "?q", pick(9) ? 1 : 0);
    add_text(to, line);
    for (uint64_t fields = pick(2) ? 0 : pick(4); fields; fields--) add_field(to);
    snprintf(line, sizeof line, "Content-Length: %zu\r\n", size);
    if (has_body) add_text(to, is_chunked ? "Transfer-Encoding: chunked\r\n" : line);
    add_text(to, "\r\n");
    if (!has_body) return;
    if (is_chunked) add_chunks(to, size);
    else add_value(to, size);
}

static void make_stream(growing *to) {
    uint8_t options = (uint8_t)(pick(256) & (pick(8) ? 0x7f : 0xff) & (pick(40) ? ~2u : ~0u));
    add_bytes(to, &options, 1);
    for (uint64_t requests = pick(12); requests; requests--) {
        add_request(to);
        if (pick(9) == 0) add_text(to, "\r\n");
    }
}

static void run_random(double seconds, uint64_t seed) {
    run_streams(make_stream, seconds, seed);
    printf("%" PRIu64 " streams; %" PRIu64 " requests executed, %" PRIu64 " forwarded, %" PRIu64
           " cold, %" PRIu64 " times full, %" PRIu64 " synced, %" PRIu64 " from the disk, %" PRIu64
           " logged\n",
           streams, executed, forwarded, cold, flushed, synced, sent_later, logged);
    CHECK(logged);
    vc_log_free(access_log);
    free_store();
}
#endif
