/* The rules for plain requests: each request is as it should be but for one part.
 *
 *     plain_test [SEED]
 *
 * Any failed check aborts. */
#include "plain.h"

#include "check.h"

enum { KEY_SIZE = 10 };

static vc_request request;
static vc_put found;

/* Judge a request with these lines of its head after the first one. */
static bool is_put(const char *method, const char *path, const char *lines) {
    static char head[VC_HEAD_BYTES];
    size_t scanned = 0;
    int length = snprintf(head, sizeof head, "%s /p HTTP/1.1\r\nHost: a\r\n%s\r\n", method, lines);
    CHECK(vc_request_parse(head, (size_t)length, &scanned, &request) == VC_HEAD_COMPLETE);
    return vc_plain_put(&request, (vc_text){path, strlen(path)}, KEY_SIZE, &found);
}

#define LENGTH "Content-Length: 3\r\n"

static void test_plain_puts(void) {
    const char *path = "/a/b\xc3\xbc.txt";
    CHECK(is_put("PUT", path, LENGTH "Content-Type: a/b; c\r\nContent-Encoding: gzip\r\n"));
    const vc_record *record = &found.record;
    CHECK(record->key_length == 9 && !memcmp(found.key, path + 1, 9));
    CHECK(record->type_length == 6 && !memcmp(found.type, "a/b; c", 6));
    CHECK(record->encoding_length == 4 && !memcmp(found.encoding, "gzip", 4));
    CHECK(record->length == 3 && found.ring == VC_RING_UNKNOWN && !record->expires_ms);
}

/* What has to be decided, or refused, in Python. */
static void test_others(void) {
    static const char *const LINES[] = {
        "", "Transfer-Encoding: chunked\r\n", LENGTH "If-Match: *\r\n",
        LENGTH "If-None-Match: *\r\n", LENGTH "If-Modified-Since: x\r\n",
        LENGTH "If-Unmodified-Since: x\r\n", LENGTH "Cache-Control: no-cache\r\n",
        LENGTH "Expires: 0\r\n", LENGTH "Content-Range: bytes 0-2/9\r\n",
        LENGTH "Content-Type: a\r\nContent-Type: b\r\n",
        LENGTH "Content-Encoding: a\r\nContent-Encoding: b\r\n",
        LENGTH "Content-Type: a\tb\r\n", LENGTH "Content-Type: \xfc\r\n",
        LENGTH "Content-Encoding: \x80\r\n",
    };
    static const char *const PATHS[] = {"/", "/-/stats", "/a/../b", "/.", "/a\n", "/a\x7f",
                                        "/12345678901", "a"};
    for (unsigned i = 0; i < COUNT(LINES); i++) CHECK(!is_put("PUT", "/a", LINES[i]));
    for (unsigned i = 0; i < COUNT(PATHS); i++) CHECK(!is_put("PUT", PATHS[i], LENGTH));
    CHECK(is_put("PUT", "/1234567890", LENGTH) && !is_put("POST", "/a", LENGTH));
}

/* Judge the condition of a GET for a record that was stored in a second, in another second. */
static vc_verdict verdict_of(const char *lines, int64_t stored, int64_t second) {
    vc_record record = {.stored_us = (uint64_t)stored * 1000000 + 999999, .checksum = 0xabc};
    CHECK(!is_put("GET", "/a", lines));
    return vc_is_unmodified(&request, &record, second);
}

static void test_conditions(void) {
    static const struct {
        const char *lines;
        vc_verdict verdict;
    } ROWS[] = {
        {"", VC_MODIFIED},
        {"If-None-Match: \"f423f-00000abc\"\r\n", VC_UNMODIFIED},
        {"If-None-Match: W/\"f423f-00000abc\"\r\n", VC_UNMODIFIED},
        {"If-None-Match: w/\"f423f-00000abc\"\r\n", VC_UNDECIDED},
        {"If-None-Match: \"F423f-00000abc\"\r\n", VC_MODIFIED},
        {"If-None-Match: \"f423f-00000abcd\"\r\n", VC_MODIFIED},
        {"If-None-Match: f423f-00000abc\r\n", VC_UNDECIDED},
        {"If-None-Match: \"f423f-00000abc\r\n", VC_UNDECIDED},
        {"If-None-Match: \"\r\n", VC_UNDECIDED},
        {"If-None-Match: \"\"\r\n", VC_MODIFIED},
        {"If-None-Match: W/\r\n", VC_UNDECIDED},
        {"If-None-Match: *\r\n", VC_UNDECIDED},
        {"If-None-Match:\r\n", VC_UNDECIDED},
        {"If-None-Match: \"x\", \"f423f-00000abc\"\r\n", VC_UNDECIDED},
        {"If-None-Match: \"x\"\r\nIf-None-Match: \"f423f-00000abc\"\r\n", VC_UNDECIDED},
        {"If-Modified-Since: Thu, 01 Jan 1970 00:00:01 GMT\r\n", VC_UNMODIFIED},
        {"If-Modified-Since: Thu, 01 Jan 1970 00:00:02 GMT\r\n", VC_UNDECIDED},
        {"If-Modified-Since: Thu, 1 Jan 1970 00:00:01 GMT\r\n", VC_UNDECIDED},
        {"If-Modified-Since:\r\n", VC_UNDECIDED},
        /* The tag takes precedence. */
        {"If-Modified-Since: Thu, 01 Jan 1970 00:00:01 GMT\r\nIf-None-Match: \"x\"\r\n",
         VC_MODIFIED},
    };
    for (unsigned i = 0; i < COUNT(ROWS); i++)
        CHECK(verdict_of(ROWS[i].lines, 0, 5) == ROWS[i].verdict);
    /* A date may be compared when it is over. */
    CHECK(verdict_of(ROWS[15].lines, 0, 1) == VC_UNMODIFIED);
    CHECK(verdict_of(ROWS[15].lines, 0, 0) == VC_UNDECIDED);
}

static bool is_delete(const char *path, const char *lines) {
    CHECK(!is_put("DELETE", path, lines));
    return vc_plain_delete(&request, (vc_text){path, strlen(path)}, KEY_SIZE);
}

static void test_deletes(void) {
    CHECK(is_delete("/a", "") && is_delete("/a", "Content-Length: 0\r\n"));
    CHECK(!is_delete("/a", LENGTH) && !is_delete("/a", "Transfer-Encoding: chunked\r\n"));
    CHECK(!is_delete("/a", "If-Match: *\r\n") && !is_delete("/a", "If-None-Match: \"a\"\r\n"));
    CHECK(!is_delete("/a", "If-Modified-Since: x\r\n"));
    CHECK(!is_delete("/12345678901", "") && !is_delete("/-/a", "") && !is_delete("/./a", ""));
    CHECK(is_delete("/1234567890", ""));
    CHECK(!is_put("PUT", "/a", "") &&
          !vc_plain_delete(&request, (vc_text){"/a", 2}, KEY_SIZE));
}

/* The longest that a record has room for. */
static void test_longest(void) {
    static const struct {
        const char *name;
        int longest;
    } ROWS[] = {{"Content-Type", 255}, {"Content-Encoding", 64}};
    char text[300], lines[400];
    memset(text, '~', sizeof text);
    for (unsigned i = 0; i < COUNT(ROWS); i++) {
        for (int more = -1; more < 2; more++) {
            snprintf(lines, sizeof lines, LENGTH "%s: %.*s\r\n", ROWS[i].name,
                     ROWS[i].longest + more, text);
            CHECK(is_put("PUT", "/a", lines) == (more < 1));
        }
    }
}

static void test_tokens(void) {
    static const struct {
        const char *given;
        bool is_right;
    } ROWS[] = {
        {"Bearer secret", true}, {"bEARER \t secret", true}, {"Bearer gr\xc3\xbcn", true},
        {"Bearer secre", false}, {"Bearer secrets", false}, {"Bearer Secret", false},
        {"Bearer\tsecret", false}, {"Bearersecret", false}, {"Bearer", false}, {"", false},
        {"secret", false}, {"Basic secret", false}, {"Bearer x, Bearer secret", false},
    };
    vc_tokens tokens = {.right = {{"secret", 6}, {"gr\xc3\xbcn", 5}}, .count = 2}, none = {0};
    for (unsigned i = 0; i < COUNT(ROWS); i++) {
        vc_text given = {ROWS[i].given, strlen(ROWS[i].given)};
        CHECK(vc_tokens_allow(&tokens, given) == ROWS[i].is_right);
        CHECK(vc_tokens_allow(&none, given));
    }
    CHECK(!vc_tokens_allow(&tokens, (vc_text){NULL, 0}));
    /* The second of two is not compared: Python refuses both. */
    CHECK(is_put("PUT", "/a", LENGTH "Authorization: Bearer secret\r\nauthorization: x\r\n"));
    CHECK(!vc_tokens_allow(&tokens, request.authorization));
    CHECK(is_put("PUT", "/a", LENGTH "Authorization: Bearer secret\r\n"));
    CHECK(vc_tokens_allow(&tokens, request.authorization));
}

int main(void) {
    test_plain_puts();
    test_others();
    test_longest();
    test_conditions();
    test_deletes();
    test_tokens();
    return 0;
}
