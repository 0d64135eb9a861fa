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

int main(void) {
    test_plain_puts();
    test_others();
    test_longest();
    test_deletes();
    return 0;
}
