/* Single HTTP requests, and the answer to each: by the executor, or by the application.
 *
 *     http_test [SEED]
 *
 * The answers are those that http/app.py defines; property/test_http_streams.py compares them. Here
 * is what random requests do not meet: entity tags and dates of values that are there. Any failed
 * check aborts. */
#define _GNU_SOURCE
static void show(void);
#define SHOW_MORE show
#include "check.h"

#include <stdbool.h>

static int test_clock_gettime(clockid_t clock, struct timespec *now);

#define clock_gettime test_clock_gettime
#include "http_store.h"
#include "lookup.c"
#include "http.c"
#include "http_change.c"
#include "http_read.c"
#undef clock_gettime

enum { VALUE_SIZE = 1500000, KEY_SIZE = 60 };

/* Of the values in http_store.h. */
#define DATE_A "Fri, 15 Jan 2027 07:59:51 GMT"
#define BEFORE_A "Fri, 15 Jan 2027 07:59:50 GMT"

static vc_http *http;
static vc_http_stream stream;
static growing reply;
static char tag_a[VC_TAG_BYTES + 3];
static const char *shown = "";

static void show(void) { fprintf(stderr, "%s\n%s\n", shown, reply.at ? reply.at : ""); }

static bool is_cold(void) { return false; }

/* --- One request ------------------------------------------------------------------------ */

/* Execute a request; the answer is in `reply`. Returns the last step. */
static vc_step execute(const char *request) {
    static char room[VC_HTTP_OUT_BYTES_MIN];
    static vc_out out;
    size_t length = strlen(request), used;
    char *data = copied(request, length);
    vc_step step;
    shown = request;
    memset(&stream, 0, sizeof stream);
    out = (vc_out){.at = room, .room = sizeof room};
    while ((step = vc_http_protocol.execute(http, &stream.base, data, length, &used, &out)) ==
               VC_STEP_DISK ||
           step == VC_STEP_MEMORY) {
        do_due();
        stream.base.waited = step == VC_STEP_DISK ? VC_WAITED_DISK : VC_WAITED_MEMORY;
        stream.base.status = VC_OK;
        if (step == VC_STEP_DISK) test_end_read(test_core);
    }
    do_due();
    reply.length = 0;
    for (unsigned i = 0; i < out.count; i++)
        add_bytes(&reply, out.parts[i].iov_base, out.parts[i].iov_len);
    if (step == VC_STEP_VALUE) test_end_read(test_core);
    *reserve(&reply, 1) = 0;
    CHECK(reads == 0);
    vc_http_protocol.end(http, &stream.base);
    free(data);
    return step;
}

/* Write a request with some lines after Host, in which ~ is the tag of the value of /a. */
static const char *make(const char *line, const char *fields, const char *body) {
    static char text[8192];
    size_t length = (size_t)snprintf(text, sizeof text, "%s HTTP/1.1\r\nHost: h\r\n", line);
    for (; *fields; fields++) {
        if (*fields == '~') length += (size_t)sprintf(text + length, "%s", tag_a);
        else if (*fields == '|') length += (size_t)sprintf(text + length, "\r\n");
        else text[length++] = *fields;
    }
    sprintf(text + length, "\r\n\r\n%s", body);
    return text;
}

static int status_of_reply(void) {
    CHECK(reply.length > 12 && !memcmp(reply.at, "HTTP/1.1 ", 9));
    return atoi(reply.at + 9);
}

/* --- Conditions and ranges -------------------------------------------------------------- */

enum { APPLICATION = 0 };

/* What is asked for, with which fields, and the status: APPLICATION, or that of the executor. `has`
 * is in its answer. */
static const struct {
    const char *line, *fields;
    int status;
    const char *has;
} READS[] = {
    {"GET /a", "X: y", 200, "\r\n\r\nvalue of a"},
    {"HEAD /a", "X: y", 200, "Content-Length: 10\r\n"},
    {"GET /none", "X: y", 404, "\r\n\r\nno value is stored under this key\n"},
    {"HEAD /none", "X: y", 404, "X-Cache: MISS"},
    {"GET /old", "X: y", APPLICATION, ""},
    {"GET /-/stats", "X: y", APPLICATION, ""},
    {"GET /a/../b", "X: y", APPLICATION, ""},
    {"POST /a", "Content-Length: 0", APPLICATION, ""},
    {"GET /a", "Service-Worker: script", APPLICATION, ""},
    /* Entity tags. */
    {"GET /a", "If-None-Match: ~", 304, "ETag: "},
    {"GET /a", "If-None-Match: W/~", 304, ""},
    {"HEAD /a", "If-None-Match: \"x\", ~", 304, ""},
    {"GET /a", "If-None-Match: *", 304, ""},
    {"GET /a", "If-None-Match: \"x\"", 200, "value of a"},
    {"GET /a", "If-None-Match: \"x\"|If-None-Match: ~", APPLICATION, ""},
    {"GET /a", "If-Match: ~", 200, "value of a"},
    {"GET /a", "If-Match: *", 200, ""},
    {"GET /a", "If-Match: W/~", 412, "If-Match is false: the stored file has the entity tag \""},
    {"HEAD /a", "If-Match: \"x\"", 412, "Content-Length: 79\r\n"},
    {"GET /a", "If-Match: \"x\"|If-Unmodified-Since: " DATE_A, 412, ""},
    /* Dates. */
    {"GET /a", "If-Modified-Since: " DATE_A, 304, "Last-Modified: " DATE_A},
    {"GET /a", "If-Modified-Since: Fri, 15 Jan 2027 08:00:00 GMT", 304, ""},
    {"GET /a", "If-Modified-Since: Fri, 15 Jan 2027 08:00:01 GMT", 200, ""},
    {"GET /a", "If-Modified-Since: " BEFORE_A, 200, ""},
    {"GET /a", "If-Modified-Since: " DATE_A "|If-None-Match: \"x\"", 200, ""},
    {"GET /a", "If-Modified-Since: 2027-01-15", APPLICATION, ""},
    {"GET /a", "If-Unmodified-Since: " DATE_A, 200, ""},
    {"GET /a", "If-Unmodified-Since: " BEFORE_A, 412,
     "If-Unmodified-Since is false: the stored file is newer\n"},
    {"GET /a", "If-Unmodified-Since: Fri, 30 Feb 2027 07:59:51 GMT", APPLICATION, ""},
    /* Ranges. */
    {"GET /c", "Range: bytes=2-4", 206, "\r\n\r\n234"},
    {"GET /c", "Range: bytes=2-4", 206, "Content-Range: bytes 2-4/10\r\n"},
    {"GET /c", "Range: bytes=7-", 206, "\r\n\r\n789"},
    {"GET /c", "Range: bytes=-1", 206, "\r\n\r\n9"},
    {"GET /c", "Range: bytes=-100", 206, "\r\n\r\n0123456789"},
    {"GET /c", "Range: bytes=9-999999999999999999", 206, "\r\n\r\n9"},
    {"HEAD /c", "Range: bytes=2-4", 200, "Content-Length: 10\r\n"},
    {"GET /c", "Range: bytes=10-", APPLICATION, ""},
    {"GET /c", "Range: bytes=-0", APPLICATION, ""},
    {"GET /c", "Range: bytes=4-2", APPLICATION, ""},
    {"GET /c", "Range: bytes=0-1,3-4", APPLICATION, ""},
    {"GET /c", "Range: items=0-1", APPLICATION, ""},
    {"GET /b.txt", "Range: bytes=0-", APPLICATION, ""},
    {"GET /a", "Range: bytes=0-1|If-Range: ~", 206, "\r\n\r\nva"},
    {"GET /a", "Range: bytes=0-1|If-Range: \"x\"", 200, "value of a"},
    {"GET /a", "Range: bytes=0-1|If-Range: " DATE_A, 206, ""},
    {"GET /a", "Range: bytes=0-1|If-Range: " BEFORE_A, 200, ""},
    {"GET /a", "Range: bytes=0-1|If-None-Match: ~", 304, ""},
    {"GET /none", "Range: bytes=0-1", 404, ""},
};

static void test_reads(void) {
    for (unsigned i = 0; i < COUNT(READS); i++) {
        vc_step step = execute(make(READS[i].line, READS[i].fields, ""));
        CHECK((step == VC_STEP_FORWARD) == (READS[i].status == APPLICATION));
        if (step == VC_STEP_FORWARD) continue;
        CHECK(step == VC_STEP_NEXT && status_of_reply() == READS[i].status);
        CHECK(strstr(reply.at, READS[i].has));
        CHECK(!memcmp(READS[i].line, "GET", 3) || !strcmp(strstr(reply.at, "\r\n\r\n"), "\r\n\r\n"));
    }
}

/* --- Changes ---------------------------------------------------------------------------- */

/* The lifetime is in seconds; -1: the value does not expire. */
static const struct {
    const char *line, *fields;
    int status, lifetime;
    const char *directives;
} CHANGES[] = {
    {"PUT /n", "Content-Length: 3", 200, -1, ""},
    {"PUT /n", "Transfer-Encoding: chunked", 200, -1, ""},
    {"PUT /n", "Content-Length: 3|Cache-Control: max-age=60", 200, 60, ""},
    {"PUT /n", "Content-Length: 3|Cache-Control: public, MAX-AGE=7 ,s-maxage=9,a=b,public", 200, 7,
     "public, a=b"},
    {"PUT /n", "Content-Length: 3|Cache-Control: max-age=0, immutable", 200, -1, "immutable"},
    {"PUT /n", "Content-Length: 3|Cache-Control: max-age=-5", 200, -1, ""},
    {"PUT /n", "Content-Length: 3|Cache-Control: max-age=99999999999", 200, 1 << 30, ""},
    {"PUT /n", "Content-Length: 3|Cache-Control: max-age=x", APPLICATION, 0, ""},
    {"PUT /n", "Content-Length: 3|Cache-Control: a=\"b\"", APPLICATION, 0, ""},
    {"PUT /n", "Content-Length: 3|Expires: Fri, 15 Jan 2027 08:01:00 GMT", 200, 60, ""},
    {"PUT /n", "Content-Length: 3|Expires: Fri, 15 Jan 2027 07:01:00 GMT", 200, -1, ""},
    {"PUT /n", "Content-Length: 3|Expires: 0", 200, -1, ""},
    {"PUT /n", "Content-Length: 3|Expires: soon", APPLICATION, 0, ""},
    {"PUT /n", "Content-Length: 3|Content-Range: bytes 0-2/3", APPLICATION, 0, ""},
    {"PUT /n", "Content-Length: 3|X-Flags: 0", APPLICATION, 0, ""},
    {"PUT /n", "Content-Length: 3|Content-Type: a|Content-Type: b", APPLICATION, 0, ""},
    {"PUT /n", "Content-Length: 3|Content-Type: \xfc", APPLICATION, 0, ""},
    /* Conditions. */
    {"PUT /a", "Content-Length: 3|If-None-Match: *", 412, 0, ""},
    {"PUT /a", "Content-Length: 3|If-Match: ~", 200, -1, ""},
    {"PUT /a", "Content-Length: 3|If-Match: \"x\"", 412, 0, ""},
    {"PUT /a", "Content-Length: 3|If-Unmodified-Since: " BEFORE_A, 412, 0, ""},
    {"PUT /a", "Content-Length: 3|If-Unmodified-Since: " DATE_A, 200, -1, ""},
    {"PUT /none", "Content-Length: 3|If-None-Match: *", 200, -1, ""},
    {"PUT /none", "Content-Length: 3|If-Match: *", 412, 0, ""},
    {"PUT /old", "Content-Length: 3|If-None-Match: *", APPLICATION, 0, ""},
    {"DELETE /a", "If-Match: \"x\"", 412, 0, ""},
    {"DELETE /a", "If-Match: ~", 200, 0, ""},
    {"DELETE /a", "X: y", 200, 0, ""},
    {"DELETE /none", "If-Match: \"x\"", 404, 0, ""},
    {"DELETE /none", "X: y", 404, 0, ""},
};

static void check_stored(const char *path, int lifetime, const char *directives) {
    char line[100], expected[200];
    snprintf(line, sizeof line, "GET %s", path);
    CHECK(execute(make(line, "X: y", "")) == VC_STEP_NEXT && status_of_reply() == 200);
    CHECK(!strcmp(strstr(reply.at, "\r\n\r\n"), "\r\n\r\nabc"));
    if (lifetime > 0 && lifetime < 1 << 30)
        snprintf(expected, sizeof expected, "Cache-Control: max-age=%d%s%s\r\n", lifetime,
                 *directives ? ", " : "", directives);
    else
        snprintf(expected, sizeof expected, "Cache-Control: %s%s",
                 lifetime > 0 ? "max-age=2147483" : *directives ? directives : "no-cache", "");
    CHECK(strstr(reply.at, expected));
}

static void test_changes(void) {
    for (unsigned i = 0; i < COUNT(CHANGES); i++) {
        const char *line = CHANGES[i].line, *fields = CHANGES[i].fields;
        bool is_put = !memcmp(line, "PUT", 3);
        fill_store(false, false);
        const char *body = !is_put ? "" : strstr(fields, "chunked") ? "1;x\r\na\r\n02\r\nbc\r\n0\r\n\r\n"
                                                                    : "abc";
        vc_step step = execute(make(line, fields, body));
        CHECK((step == VC_STEP_FORWARD) == (CHANGES[i].status == APPLICATION));
        if (step == VC_STEP_FORWARD) continue;
        CHECK(step == VC_STEP_NEXT && status_of_reply() == CHANGES[i].status);
        if (is_put && CHANGES[i].status == 200)
            check_stored(line + 4, CHANGES[i].lifetime, CHANGES[i].directives);
    }
}

/* --- Tokens ----------------------------------------------------------------------------- */

static void test_tokens(void) {
    static const struct {
        const char *given;
        bool is_right;
    } ROWS[] = {
        {"Bearer secret", true}, {"bEARER \t secret", true}, {"Bearer gr\xc3\xbcn", true},
        {"Bearer secre", false}, {"Bearer secrets", false}, {"Bearer Secret", false},
        {"Bearer\tsecret", false}, {"Bearersecret", false}, {"Bearer", false}, {"", false},
        {"secret", false}, {"Basic secret", false}, {"Bearer x, Bearer secret", false},
        {"Basic OnNlY3JldA==", true}, {"basic  dXNlcjpzZWNyZXQ=", true},
        {"Basic dXNlcjpzZWNyZXQ", false}, {"Basic dXNlcjpzZWNyZX", false},
        {"Basic c2VjcmV0", false}, {"Basic dTpzOmVjcmV0", false}, {"Basic ====", false},
        {"Basic OnNlY3JldB==", false}, {"Basic", false}, {"Basic ", false},
    };
    vc_tokens tokens = {.right = {{"secret", 6}, {"gr\xc3\xbcn", 5}}, .count = 2}, none = {0};
    for (unsigned i = 0; i < COUNT(ROWS); i++) {
        vc_text given = {ROWS[i].given, strlen(ROWS[i].given)};
        shown = ROWS[i].given;
        CHECK(vc_tokens_allow(&tokens, given) == ROWS[i].is_right);
        CHECK(vc_tokens_allow(&none, given));
    }
    CHECK(!vc_tokens_allow(&tokens, (vc_text){NULL, 0}));
    vc_http_settings settings = {.answers = true, .may_read = tokens};
    vc_http_change(http, &settings, INT64_MAX);
    CHECK(execute(make("GET /a", "Authorization: Bearer secret", "")) == VC_STEP_NEXT);
    CHECK(execute(make("GET /a", "Authorization: x", "")) == VC_STEP_FORWARD);
    /* The second of two is not compared: the application refuses both. */
    CHECK(execute(make("GET /a", "Authorization: x|Authorization: Bearer secret", "")) ==
          VC_STEP_FORWARD);
}

/* --- Dates ------------------------------------------------------------------------------ */

static void test_dates(void) {
    char text[VC_DATE_BYTES + 1] = {0};
    uint64_t random = 1;
    for (int i = 0; i < 20000; i++) {
        int64_t second = (int64_t)(next_random(&random) % (uint64_t)VC_SECOND_MAX);
        vc_put_date(text, second);
        shown = text;
        CHECK(vc_parse_date((vc_text){text, VC_DATE_BYTES}) == second);
        text[next_random(&random) % VC_DATE_BYTES] ^= 0x40;
        CHECK(vc_parse_date((vc_text){text, VC_DATE_BYTES}) != second);
    }
}

int main(void) {
    atomic_bool is_ready = true, is_draining = false;
    vc_core_functions functions = counting_functions();
    fill_store(false, false);
    vc_executor by = {
        .core = test_core,
        .functions = &functions,
        .clocks = &test_clocks,
        .reporter = &test_reporter,
        .key_size = KEY_SIZE,
        .value_size = VALUE_SIZE,
        .long_ns = INT64_MAX,
        .sample_mask = 63,
    };
    vc_http_config config = {
        .types = test_types,
        .is_ready = &is_ready,
        .is_draining = &is_draining,
        .allow = "GET, PUT",
    };
    vc_http_settings settings = {.answers = true};
    http = vc_http_new(&by, &config);
    CHECK(http);
    vc_http_change(http, &settings, INT64_MAX);
    CHECK(execute(make("GET /a", "X: y", "")) == VC_STEP_NEXT);
    const char *tag = strstr(reply.at, "ETag: ") + 6;
    memcpy(tag_a, tag, (size_t)(strchr(tag, '\r') - tag));
    test_reads();
    test_changes();
    test_dates();
    fill_store(false, false);
    test_tokens();
    vc_http_free(http);
    free_store();
    vc_types_free(test_types);
    free(reply.at);
    return 0;
}
