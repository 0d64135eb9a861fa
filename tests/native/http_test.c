/* Which HTTP requests are answered without the application, and dates.
 *
 *     http_test [SEED]
 *
 * What is answered, and by whomever, is in behaviour/http.txt. Any failed check aborts. */
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

/* Of a value in http_store.h. */
#define DATE_A "Fri, 15 Jan 2027 07:59:51 GMT"

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

/* --- Which requests --------------------------------------------------------------------- */

#define PUT_N "PUT /n", "Content-Length: 3"

/* Of each, the line, the fields, and whether the application answers it. */
static const struct {
    const char *line, *fields;
    bool is_forwarded;
} REQUESTS[] = {
    {"GET /a", "X: y", false},
    {"HEAD /none", "X: y", false},
    {"GET /old", "X: y", true},
    {"GET /-/stats", "X: y", true},
    {"GET /a/../b", "X: y", true},
    {"GET /none/.", "X: y", true},
    {"GET /.none/...", "X: y", false},
    {"POST /a", "Content-Length: 0", true},
    {"GET /a", "Service-Worker: script", true},
    {"HEAD /a", "If-None-Match: \"x\", ~", false},
    {"GET /a", "If-None-Match: \"x\"|If-None-Match: ~", true},
    {"GET /a", "If-Match: \"x\"|If-Unmodified-Since: " DATE_A, false},
    {"GET /a", "If-Modified-Since: " DATE_A, false},
    {"GET /a", "If-Modified-Since: 2027-01-15", true},
    {"GET /a", "If-Unmodified-Since: Fri, 30 Feb 2027 07:59:51 GMT", true},
    {"GET /c", "Range: bytes=9-999999999999999999", false},
    {"GET /c", "Range: bytes=10-", true},
    {"GET /c", "Range: bytes=4-2", true},
    {"GET /c", "Range: bytes=0-1,3-4", true},
    {"GET /b.txt", "Range: bytes=0-", true},
    {"GET /a", "Range: bytes=0-1|If-Range: " DATE_A, false},
    {PUT_N, false},
    {"PUT /n", "Transfer-Encoding: chunked", false},
    {PUT_N "|Cache-Control: public, MAX-AGE=7 ,s-maxage=9,a=b", false},
    {PUT_N "|Cache-Control: max-age=x", true},
    {PUT_N "|Cache-Control: a=\"b\"", true},
    {PUT_N "|Expires: Fri, 15 Jan 2027 08:01:00 GMT", false},
    {PUT_N "|Expires: soon", true},
    {PUT_N "|Content-Range: bytes 0-2/3", true},
    {PUT_N "|X-Flags: 0", true},
    {PUT_N "|Content-Type: a|Content-Type: b", true},
    {PUT_N "|Content-Type: \xfc", true},
    {"PUT /a", "Content-Length: 3|If-Match: ~", false},
    {"PUT /old", "Content-Length: 3|If-None-Match: *", true},
    {"DELETE /a", "If-Match: \"x\"", false},
    {"GET /a", "Authorization: Bearer secret", false},
};

static void test_requests(void) {
    for (unsigned i = 0; i < COUNT(REQUESTS); i++) {
        const char *line = REQUESTS[i].line, *fields = REQUESTS[i].fields;
        bool is_put = !memcmp(line, "PUT", 3);
        fill_store(false, false);
        const char *body = !is_put                     ? ""
                           : strstr(fields, "chunked") ? "1;x\r\na\r\n02\r\nbc\r\n0\r\n\r\n"
                                                       : "abc";
        vc_step step = execute(make(line, fields, body));
        CHECK(step == (REQUESTS[i].is_forwarded ? VC_STEP_FORWARD : VC_STEP_NEXT));
    }
}

static void test_tokens(void) {
    vc_tokens tokens = {.right = {{"secret", 6}}, .count = 1};
    vc_http_settings settings = {.answers = true, .may_read = tokens};
    vc_http_change(http, &settings, INT64_MAX);
    CHECK(execute(make("GET /a", "Authorization: Bearer secret", "")) == VC_STEP_NEXT);
    CHECK(execute(make("GET /a", "Authorization: x", "")) == VC_STEP_FORWARD);
    /* The second of two is not compared: the application refuses both. */
    CHECK(execute(make("GET /a", "Authorization: x|Authorization: Bearer secret", "")) ==
          VC_STEP_FORWARD);
}

/* --- Dates ------------------------------------------------------------------------------ */

/* As glibc has it. */
static void check_date(int64_t second) {
    char text[VC_DATE_BYTES + 1] = {0}, expected[VC_DATE_BYTES + 1];
    struct tm parts;
    CHECK(strftime(expected, sizeof expected, "%a, %d %b %Y %T GMT", gmtime_r(&second, &parts)));
    vc_put_date(text, second);
    shown = text;
    CHECK(!strcmp(text, expected));
}

static void test_dates(void) {
    char text[VC_DATE_BYTES + 1] = {0};
    uint64_t random = 1;
    /* The last and the first second of each month, until the end of the year 9999. */
    for (int month = 0; month <= 12 * (9999 - 1970) + 12; month++) {
        struct tm first = {.tm_year = 70 + month / 12, .tm_mon = month % 12, .tm_mday = 1};
        int64_t second = timegm(&first);
        if (month) check_date(second - 1);
        if (second <= VC_SECOND_MAX) check_date(second);
    }
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
    fill_store(false, false);
    vc_http_settings settings = {.answers = true};
    http = make_http(NULL);
    vc_http_change(http, &settings, INT64_MAX);
    CHECK(execute(make("GET /a", "X: y", "")) == VC_STEP_NEXT);
    const char *tag = strstr(reply.at, "ETag: ") + 6;
    memcpy(tag_a, tag, (size_t)(strchr(tag, '\r') - tag));
    test_requests();
    test_dates();
    fill_store(false, false);
    test_tokens();
    vc_http_free(http);
    free_store();
    free(reply.at);
    return 0;
}
