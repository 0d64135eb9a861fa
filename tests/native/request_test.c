/* Heads of requests and chunked bodies: what is read from them, and what is refused. */
#include "request.h"

#include <stdio.h>

static const char *shown; /* what the current check is about */
#define SHOW_MORE() fprintf(stderr, "with: %.300s\n", shown)
#include "check.h"

enum { TEXT_MAX = 2 * VC_HEAD_BYTES };

/* --- Feeding ------------------------------------------------------------------------ */

static char *arrived; /* what the texts of a request are parts of */

/* Parse a head that arrives in pieces of `step` bytes. */
static vc_head feed(const char *data, size_t length, size_t step, vc_request *request) {
    size_t scanned = 0, have = 0;
    vc_head state;
    do {
        have = have + step < length ? have + step : length;
        free(arrived);
        arrived = copied(data, have);
        state = vc_request_parse(arrived, have, &scanned, request);
    } while (state == VC_HEAD_INCOMPLETE && have < length);
    return state;
}

/* --- Heads that are refused, or not complete ---------------------------------------- */

/* Others are in tests/behaviour/http.txt. */

typedef struct {
    int status; /* 0: not complete */
    const char *head;
    size_t length;
} bad_head;

#define BAD(status, head) {status, head, sizeof(head) - 1}
#define LINE "GET / HTTP/1.1\r\n"
#define START LINE "Host: a\r\n"
#define END "\r\n"

static const bad_head BAD_HEADS[] = {
    BAD(0, "CONNECT a:1 HTTP/7.7\r\n"),
    /* Lines. */
    BAD(400, "GET / HTTP/1.1\n"),
    BAD(400, "GET / HTTP/1.1\n\n"),
    BAD(400, LINE "\n"),
    BAD(400, START "\n"),
    BAD(400, START "A: b\n" END),
    BAD(400, START "A: b\r\r\n" END),
    BAD(400, START "A: b\rc\r\n" END),
    BAD(400, START "\r\r\n" END),
    BAD(400, END END),
    /* The first line. */
    BAD(400, " GET / HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET\r\nHost: a\r\n" END),
    BAD(400, "GET \r\nHost: a\r\n" END),
    BAD(400, "GET /\r\nHost: a\r\n" END),
    BAD(400, "GET / \r\nHost: a\r\n" END),
    BAD(400, "GET /  HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET  / HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET / HTTP/1.1 \r\nHost: a\r\n" END),
    BAD(400, "GET / /b HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET / http/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET / HTTP/1\r\nHost: a\r\n" END),
    BAD(400, "GET / HTTP/1.11\r\nHost: a\r\n" END),
    BAD(400, "GET / HTTP/1,1\r\nHost: a\r\n" END),
    BAD(400, "GET / HTTP/a.1\r\nHost: a\r\n" END),
    BAD(400, "GET / HTTP/1.x\r\nHost: a\r\n" END),
    BAD(400, "GET / HTTPS/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET / HTTP/1.1\0\r\nHost: a\r\n" END),
    BAD(505, "GET / HTTP/0.9\r\nHost: a\r\n" END),
    BAD(505, "GET / HTTP/1.2\r\nHost: a\r\n" END),
    /* Methods. */
    BAD(405, "CONNECT / HTTP/1.1\r\nHost: a\r\n" END),
    BAD(405, "GETS / HTTP/1.1\r\nHost: a\r\n" END),
    BAD(405, "GE / HTTP/1.1\r\nHost: a\r\n" END),
    BAD(405, "A-METHOD-WITH-A-VERY-LONG-NAME-THAT-NO-SERVER-IS-LIKELY-TO-KNOW-OF-TODAY"
             " / HTTP/1.1\r\n" END),
    /* Targets. */
    BAD(400, "GET /% HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET /%4 HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "OPTIONS ** HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET a/b HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET ?a HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET a:80 HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET http:// HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET http:///a HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET http://?a HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET http:/a HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET https://b/a HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET ftp://b/a HTTP/1.1\r\nHost: a\r\n" END),
    BAD(400, "GET http://b/%zz HTTP/1.1\r\nHost: a\r\n" END),
    /* Fields. */
    BAD(400, START ": b\r\n" END),
    BAD(400, START "A\r\n" END),
    BAD(400, START "A b\r\n" END),
    BAD(400, START "A: b\r\n c\r\n" END),
    BAD(400, START "A: b\r\n\tc: d\r\n" END),
    BAD(400, LINE " Host: a\r\n" END),
    BAD(400, LINE "\tHost: a\r\nHost: a\r\n" END),
    /* Host. */
    BAD(400, LINE "Hos: a\r\n" END),
    BAD(400, START "host: b\r\n" END),
    BAD(400, "GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n" END),
    BAD(400, "GET http://b/ HTTP/1.1\r\n" END),
    /* Framing. */
    BAD(400, START "Content-Length:\r\n" END),
    BAD(400, START "Content-Length: \r\n" END),
    BAD(400, START "Content-Length: 1000000000000000000\r\n" END),
    BAD(400, START "Content-Length: 18446744073709551616\r\n" END),
    BAD(400, START "Content-Length: 000000000000000000005\r\n" END),
    BAD(400, START "Content-Length: 18446744073709551621\r\n" END),
    BAD(400, START "Content-Length: 5\r\nContent-Length: 5\r\n" END),
    BAD(400, START "Content-Length : 5\r\n" END),
    BAD(400, START "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n" END),
    BAD(400, "PUT / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n" END),
    BAD(400, START "Transfer-Encoding : chunked\r\n" END),
    BAD(400, START "Transfer-Encoding: \x0b"
                   "chunked\r\n" END),
    BAD(501, START "Transfer-Encoding:\r\n chunked\r\n" END),
    BAD(501, START "Transfer-Encoding: chunked, gzip\r\n" END),
    BAD(501, START "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n" END),
    BAD(501, START "Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n" END),
    BAD(501, START "Transfer-Encoding: identity\r\n" END),
    BAD(501, START "Transfer-Encoding: chunked,\r\n" END),
    BAD(501, START "Transfer-Encoding: ,chunked\r\n" END),
    BAD(501, START "Transfer-Encoding: chunked;a=b\r\n" END),
    BAD(501, START "Transfer-Encoding: \"chunked\"\r\n" END),
    BAD(501, START "Transfer-Encoding:\r\n" END),
    BAD(417, START "Expect: 100-continue, 100-continue\r\n" END),
    BAD(417, START "Expect:\r\n" END),
};

static void check_bad_head(const bad_head *row) {
    static vc_request whole, pieces;
    shown = row->head;
    vc_head state = feed(row->head, row->length, row->length, &whole);
    CHECK(state == (row->status ? VC_HEAD_REFUSED : VC_HEAD_INCOMPLETE));
    CHECK(!row->status || whole.status == row->status);
    CHECK(!row->status || (strlen(whole.reason) > 10 && strlen(whole.reason) < VC_TEXT_BYTES));
    for (size_t step = 1; step < 4 && step < row->length; step++) {
        CHECK(feed(row->head, row->length, step, &pieces) == state);
        CHECK(!row->status || pieces.status == row->status);
    }
}

/* --- Heads that are complete -------------------------------------------------------- */

enum { ALIVE = 1, OLD = 2, AWAITS = 8, CHUNKED = 16 };

typedef struct {
    const char *head, *written, *path;
    unsigned flags;
    long length; /* Content-Length; -1: there is none */
    vc_method method;
} good_head;

#define GET_LINE "GET / HTTP/1.1\r\n"
#define OLD_LINE "GET / HTTP/1.0\r\n"
#define PUT_START "PUT /a HTTP/1.1\r\nHost: a\r\n"
#define CLOSES "Connection: close\r\n\r\n"
/* What is written as it is. */
#define SAME(head) head END, head END

static const good_head GOOD_HEADS[] = {
    {SAME(START), "/", ALIVE, -1, VC_GET},
    {LINE "Host:\r\n" END, LINE "Host: \r\n" END, "/", ALIVE, -1, VC_GET},
    {LINE "hOST:a:80\t \r\n" END, LINE "Host: a:80\r\n" END, "/", ALIVE, -1, VC_GET},
    {SAME(LINE "Host: [::1]:80\r\n"), "/", ALIVE, -1, VC_GET},
    /* Methods. */
    {SAME("HEAD /a HTTP/1.1\r\nHost: a\r\n"), "/a", ALIVE, -1, VC_HEAD},
    {SAME("DELETE /a HTTP/1.1\r\nHost: a\r\n"), "/a", ALIVE, -1, VC_DELETE},
    {SAME("PROPFIND /a HTTP/1.1\r\nHost: a\r\n"), "/a", ALIVE, -1, VC_PROPFIND},
    {SAME("PROPPATCH /a HTTP/1.1\r\nHost: a\r\n"), "/a", ALIVE, -1, VC_OTHER_METHOD},
    {SAME("OPTIONS * HTTP/1.1\r\nHost: a\r\n"), "*", ALIVE, -1, VC_OTHER_METHOD},
    {SAME("OPTIONS / HTTP/1.1\r\nHost: a\r\n"), "/", ALIVE, -1, VC_OTHER_METHOD},
    /* Targets. */
    {SAME("GET /%41%2f%00 HTTP/1.1\r\nHost: a\r\n"), "/A/", ALIVE, -1, VC_GET},
    {SAME("GET /a?b=%zz?c HTTP/1.1\r\nHost: a\r\n"), "/a", ALIVE, -1, VC_GET},
    {SAME("GET /a? HTTP/1.1\r\nHost: a\r\n"), "/a", ALIVE, -1, VC_GET},
    {SAME("GET //a/../*:@;\"<>\\^`{|} HTTP/1.1\r\nHost: a\r\n"), "//a/../*:@;\"<>\\^`{|}", ALIVE,
     -1, VC_GET},
    {"GET http://b:8080/a?c HTTP/1.1\r\nHost: a\r\n" END,
     "GET /a?c HTTP/1.1\r\nHost: b:8080\r\n" END, "/a", ALIVE, -1, VC_GET},
    {"GET HTTP://b HTTP/1.1\r\nA: 1\r\nHost: a\r\n" END, GET_LINE "A: 1\r\nHost: b\r\n" END, "/",
     ALIVE, -1, VC_GET},
    {"GET http://b?c/d HTTP/1.1\r\nHost:\r\n" END, "GET /?c/d HTTP/1.1\r\nHost: b\r\n" END, "/",
     ALIVE, -1, VC_GET},
    {"GET http://b/ HTTP/1.0\r\n" END, OLD_LINE CLOSES, "/", OLD, -1, VC_GET},
    {SAME("GET /http://b/ HTTP/1.1\r\nHost: a\r\n"), "/http://b/", ALIVE, -1, VC_GET},
    /* Whether the connection is used again. */
    {OLD_LINE END, OLD_LINE CLOSES, "/", OLD, -1, VC_GET},
    {OLD_LINE "Connection: keep-alive\r\n" END, OLD_LINE "Connection: keep-alive\r\n\r\n", "/",
     OLD | ALIVE, -1, VC_GET},
    {OLD_LINE "connection: x ,\tKEEP-Alive\t,y\r\n" END, OLD_LINE "Connection: keep-alive\r\n\r\n",
     "/", OLD | ALIVE, -1, VC_GET},
    {OLD_LINE "Connection: keep-alive\r\nConnection: close\r\n" END, OLD_LINE CLOSES, "/", OLD, -1,
     VC_GET},
    {OLD_LINE "Connection: keep-alives\r\n" END, OLD_LINE CLOSES, "/", OLD, -1, VC_GET},
    {START "Connection: close\r\n" END, START CLOSES, "/", 0, -1, VC_GET},
    {START "Connection: keep-alive, Close\r\n" END, START CLOSES, "/", 0, -1, VC_GET},
    {START "Connection: ,,close,\r\n" END, START CLOSES, "/", 0, -1, VC_GET},
    {START "Connection: closed, lose, c lose\r\n" END, START END, "/", ALIVE, -1, VC_GET},
    {START "Connection:\r\n" END, START END, "/", ALIVE, -1, VC_GET},
    {START "Connection: a\r\nConnection: b\r\nConnection: close\r\n" END, START CLOSES, "/", 0, -1,
     VC_GET},
    /* Fields of this connection only. */
    {START "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk\r\n"
           "Keep-Alive: 5\r\nProxy-Connection: close\r\nTE: trailers\r\nTrailer: a\r\n"
           "x-volcache-REMOTE: 1.2.3.4\r\n" END,
     START END, "/", ALIVE, -1, VC_GET},
    {START "UPGRADE: a\r\nUpgrade-Insecure-Requests: 1\r\nTea: b\r\n" END,
     START "Upgrade-Insecure-Requests: 1\r\nTea: b\r\n" END, "/", ALIVE, -1, VC_GET},
    {"PUT /a HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 3\r\n" END,
     PUT_START "Content-Length: 3\r\n" END, "/a", ALIVE | AWAITS, 3, VC_PUT},
    {"PUT /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n" END,
     "PUT /a HTTP/1.0\r\nContent-Length: 3\r\n" CLOSES, "/a", OLD, 3, VC_PUT},
    /* Other fields. */
    {START "A:b\r\nB:  c\t\r\nC: d  e\r\nD:\r\n" END,
     START "A: b\r\nB: c\r\nC: d  e\r\nD: \r\n" END, "/", ALIVE, -1, VC_GET},
    {START "a: 1\r\nB: 2\r\nA: 3\r\nb: 4\r\nA: 5\r\n" END, START "a: 1, 3, 5\r\nB: 2, 4\r\n" END,
     "/", ALIVE, -1, VC_GET},
    {START "a:\r\nA: 1\r\nb: 2\r\nb:\r\n" END, START "a: , 1\r\nb: 2\r\n" END, "/", ALIVE, -1,
     VC_GET},
    {SAME(START "A: gr\xc3\xbcn \xff\r\n!#$%&'*+-.^_`|~: :\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "A_B: 1\r\nA-B: 2\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "Range: bytes=0-1\r\n"), "/", ALIVE, -1, VC_GET},
    {START "IF-NONE-MATCH: \"a\"\r\nIf-None-Match: \"b\"\r\n" END,
     START "IF-NONE-MATCH: \"a\", \"b\"\r\n" END, "/", ALIVE, -1, VC_GET},
    {SAME(START "If-Match: *\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "If-Modified-Since: x\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "If-Unmodified-Since: x\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "If-Range: x\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "Authorization: x\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "Cache-Control: x\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "expires: 0\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "Content-Range: x\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "Content-Type: a/b\r\nContent-Encoding: c\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "service-worker: script\r\n"), "/", ALIVE, -1, VC_GET},
    {SAME(START "Ranges: x\r\nCookie: Range: x\r\n"), "/", ALIVE, -1, VC_GET},
    /* Framing. */
    {START "Content-Length: 5 \r\n" END, START "Content-Length: 5\r\n" END, "/", ALIVE, 5, VC_GET},
    {START "content-length:\t0005\r\n" END, START "Content-Length: 5\r\n" END, "/", ALIVE, 5,
     VC_GET},
    {START "Content-Length: 000\r\n" END, START "Content-Length: 0\r\n" END, "/", ALIVE, 0, VC_GET},
    {START "Content-Length: 00000000000000000005\r\n" END, START "Content-Length: 5\r\n" END, "/",
     ALIVE, 5, VC_GET},
    {SAME(START "Content-Length: 999999999999999999\r\n"), "/", ALIVE, 999999999999999999, VC_GET},
    {"PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n" END, PUT_START END, "/a",
     ALIVE | CHUNKED, -1, VC_PUT},
    {"PUT /a HTTP/1.1\r\nHost: a\r\ntransfer-encoding:CHUNKED\t\r\nConnection: close\r\n" END,
     PUT_START CLOSES, "/a", CHUNKED, -1, VC_PUT},
    {"PUT /a HTTP/1.1\r\nContent-Length: 4\r\nB: c\r\nHost: a\r\n" END,
     "PUT /a HTTP/1.1\r\nB: c\r\nHost: a\r\nContent-Length: 4\r\n" END, "/a", ALIVE, 4, VC_PUT},
};

static void check_values(const good_head *row, const vc_request *request) {
    static char path[VC_HEAD_BYTES], written[VC_PASSED_BYTES];
    CHECK(request->length == strlen(row->head) && request->method == row->method);
    CHECK(request->is_http_1_0 == !!(row->flags & OLD));
    CHECK(request->keeps_alive == !!(row->flags & ALIVE));
    CHECK(request->awaits_continue == !!(row->flags & AWAITS));
    CHECK(request->is_chunked == !!(row->flags & CHUNKED));
    CHECK(request->has_length == (row->length >= 0));
    CHECK(row->length < 0 || request->content_length == (uint64_t)row->length);
    size_t length = vc_path_decode(request->path, path);
    CHECK(length >= strlen(row->path) && !memcmp(path, row->path, strlen(row->path)));
    CHECK(length <= strlen(row->path) + 1); /* One has a NUL at its end. */
    size_t count = vc_request_write(request, written);
    CHECK(count == strlen(row->written) && !memcmp(written, row->written, count));
}

static void check_good_head(const good_head *row) {
    static vc_request request;
    static char longer[TEXT_MAX];
    size_t length = strlen(row->head);
    shown = row->head;
    for (size_t step = 1; step < 6; step++) {
        size_t piece = step < 5 ? step : length;
        CHECK(feed(row->head, length, piece, &request) == VC_HEAD_COMPLETE);
        check_values(row, &request);
    }
    /* What follows the head is not looked at. */
    memcpy(longer, row->head, length);
    memcpy(longer + length, "\n\0\n\nrest", 8);
    CHECK(feed(longer, length + 8, length + 8, &request) == VC_HEAD_COMPLETE);
    check_values(row, &request);
}

/* --- Every byte in every place ------------------------------------------------------ */

static const char ALNUM[] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

static bool is_of(int byte, const char *other) {
    return byte && (strchr(ALNUM, byte) || strchr(other, byte));
}

static bool is_token(int byte) { return is_of(byte, "!#$%&'*+-.^_`|~"); }

/* Visible, and in an URI; and the eight bytes that clients send without encoding them. */
static bool is_target(int byte) {
    return is_of(byte, "-._~:/?[]@!$&'()*+,;=%"
                       "\"<>\\^`{|}");
}

static bool is_host(int byte) { return is_of(byte, "-._~:[]!$&'()*+,;=%"); }

static bool is_value(int byte) {
    return byte == '\t' || byte == ' ' || (byte > 0x20 && byte != 0x7F);
}

/* Of an absolute target: the authority may end there. */
static bool is_authority(int byte) { return is_host(byte) || byte == '/' || byte == '?'; }

/* A colon ends the name. */
static bool is_name(int byte) { return is_token(byte) || byte == ':'; }

static bool is_digit(int byte) { return byte >= '0' && byte <= '9'; }

/* Of a length, after which there may be white space. */
static bool is_first_digit(int byte) { return is_digit(byte) || byte == ' ' || byte == '\t'; }

static bool is_hex(int byte) { return byte && strchr("0123456789abcdefABCDEF", byte); }

#define REST " HTTP/1.1\r\nHost: a\r\n\r\n"

static const struct {
    const char *before, *after;
    bool (*allows)(int byte);
} PLACES[] = {
    {"GET /", "41" REST, is_target},
    {"GET /?", REST, is_target},
    {"GET /%", "1" REST, is_hex},
    {"GET /%4", REST, is_hex},
    {"GET http://b", "1/c" REST, is_authority},
    {LINE "Host: a", "b\r\n\r\n", is_host},
    {START, "A: b\r\n\r\n", is_token},
    {START "a", ": b\r\n\r\n", is_name},
    {START "A: b", "c\r\n\r\n", is_value},
    {START "Content-Length: ", "2\r\n\r\n", is_first_digit},
    {START "Content-Length: 1", "2\r\n\r\n", is_digit},
};

/* Parse a head with one byte in it that may be any, whole and byte by byte. */
static vc_head try(const char *before, int byte, const char *after, vc_request *request) {
    static char head[200];
    size_t length = strlen(before);
    memcpy(head, before, length);
    head[length++] = (char)byte;
    memcpy(head + length, after, strlen(after));
    length += strlen(after);
    vc_head state = feed(head, length, 1, request);
    CHECK(feed(head, length, length, request) == state);
    return state;
}

static void check_bytes(void) {
    static vc_request request;
    static char text[100];
    shown = text;
    for (int byte = 0; byte < 256; byte++) {
        snprintf(text, sizeof text, "byte %02x of the method", byte);
        vc_head state = try("G", byte, "T /" REST, &request);
        if (byte == 'E') CHECK(state == VC_HEAD_COMPLETE);
        else CHECK(state == VC_HEAD_REFUSED && request.status == (is_token(byte) ? 405 : 400));
        /* TLS, and others that do not speak HTTP, are told so at once. */
        state = try("", byte, "", &request);
        CHECK(state == (is_token(byte) ? VC_HEAD_INCOMPLETE : VC_HEAD_REFUSED));
        for (size_t i = 0; i < COUNT(PLACES); i++) {
            snprintf(text, sizeof text, "byte %02x after %s", byte, PLACES[i].before);
            state = try(PLACES[i].before, byte, PLACES[i].after, &request);
            CHECK(state == (PLACES[i].allows(byte) ? VC_HEAD_COMPLETE : VC_HEAD_REFUSED));
            CHECK(state == VC_HEAD_COMPLETE || request.status == 400);
        }
    }
}

static void check_paths(void) {
    char path[4], decoded[4];
    for (int byte = 0; byte < 256; byte++) {
        for (int form = 0; form < 2; form++) {
            snprintf(path, sizeof path, form ? "%%%02X" : "%%%02x", byte);
            vc_text text = {path, 3};
            shown = path;
            CHECK(vc_path_decode(text, decoded) == 1 && (uint8_t)decoded[0] == byte);
        }
    }
}

/* --- Keys --------------------------------------------------------------------------- */

static const struct {
    const char *target;
    const char *keys[3]; /* by `vc_query_use`; NULL: it is left to Python */
} KEYS[] = {
    {"/a%3fb", {"/a?b", "/a?b", "/a?b"}}, {"/a?", {"/a", "/a", "/a"}},
    {"/a?b", {"/a", "/a?b", NULL}},       {"/%61?b=%62&?", {"/a", "/a?b=%62&?", NULL}},
    {"/a??", {"/a", "/a??", NULL}},       {"http://h/a?b", {"/a", "/a?b", NULL}},
    {"/a/..?b", {"/a/..", NULL, NULL}},   {"/?b", {"/", NULL, NULL}},
    {"http://h?b", {"/", NULL, NULL}},    {"/-/stats?b", {"/-/stats", NULL, NULL}},
    {"/%0a?b", {"/\n", NULL, NULL}},
};

/* A room of any size is enough, or is not used. */
static void check_key(const vc_request *request, vc_query_use use, const char *expected) {
    for (size_t room = 0; room < 40; room++) {
        char *key = allocated(room);
        size_t length = vc_request_key(request, use, key, room);
        CHECK(length <= room && (length || !expected || room <= strlen(shown)));
        CHECK(!length || (expected && length == strlen(expected)));
        CHECK(!length || !memcmp(key, expected, length));
        free(key);
    }
}

static void check_keys(void) {
    static vc_request request;
    char head[100];
    for (size_t i = 0; i < COUNT(KEYS); i++) {
        shown = KEYS[i].target;
        snprintf(head, sizeof head, "GET %s HTTP/1.1\r\nHost: a\r\n\r\n", shown);
        size_t length = strlen(head);
        CHECK(feed(head, length, length, &request) == VC_HEAD_COMPLETE);
        for (int use = VC_QUERY_IGNORE; use <= VC_QUERY_REFUSE; use++)
            check_key(&request, (vc_query_use)use, KEYS[i].keys[use]);
    }
}

/* --- Limits ------------------------------------------------------------------------- */

/* Write a head of `length` bytes. */
static void fill_head(char *to, size_t length) {
    size_t used = (size_t)sprintf(to, START "A: ");
    memset(to + used, 'x', length - used);
    memcpy(to + length - 4, "\r\n\r\n", 4);
}

static void check_length(void) {
    static char head[TEXT_MAX];
    static vc_request request;
    shown = "a long head";
    for (size_t step = 1000; step < TEXT_MAX; step += 31768) {
        for (size_t length = VC_HEAD_BYTES - 5; length < VC_HEAD_BYTES + 6; length++) {
            fill_head(head, length);
            vc_head state = feed(head, length, step, &request);
            CHECK(state == (length <= VC_HEAD_BYTES ? VC_HEAD_COMPLETE : VC_HEAD_REFUSED));
            CHECK(length <= VC_HEAD_BYTES || request.status == 431);
        }
        fill_head(head, VC_HEAD_BYTES + 100);
        CHECK(feed(head, VC_HEAD_BYTES - 1, step, &request) == VC_HEAD_INCOMPLETE);
        CHECK(feed(head, VC_HEAD_BYTES, step, &request) == VC_HEAD_REFUSED);
        CHECK(request.status == 431);
    }
}

static void check_field_count(void) {
    static char head[TEXT_MAX], written[VC_PASSED_BYTES];
    static vc_request request;
    shown = "many fields";
    for (unsigned count = VC_FIELDS - 2; count < VC_FIELDS + 3; count++) {
        for (int is_same_name = 0; is_same_name < 2; is_same_name++) {
            size_t used = (size_t)sprintf(head, START);
            for (unsigned i = 1; i < count; i++)
                used += (size_t)sprintf(head + used, "a%u:%u\r\n", is_same_name ? 0 : i, i);
            used += (size_t)sprintf(head + used, "\r\n");
            vc_head state = feed(head, used, used, &request);
            if (count > VC_FIELDS) {
                CHECK(state == VC_HEAD_REFUSED && request.status == 431);
            } else {
                CHECK(state == VC_HEAD_COMPLETE && request.field_count == count);
                CHECK(strtoul(request.fields[count - 1].value.at, NULL, 10) == count - 1);
                CHECK(vc_request_write(&request, written));
            }
        }
    }
}

/* The longest head, with fields that become longer when they are written. */
static void check_room(void) {
    static char head[TEXT_MAX], written[VC_PASSED_BYTES];
    static vc_request request;
    shown = "the longest head";
    size_t used = (size_t)sprintf(head, "PUT /a HTTP/1.1\r\nContent-Length:0\r\nHost:\r\n");
    for (int i = 0; i < VC_FIELDS - 4; i++)
        used += (size_t)sprintf(head + used, "%c%c:\r\n", 'a' + i % 26, '0' + i / 26);
    used += (size_t)sprintf(head + used, "Connection:close\r\nA:");
    memset(head + used, 'x', VC_HEAD_BYTES - used);
    memcpy(head + VC_HEAD_BYTES - 4, "\r\n\r\n", 4);
    CHECK(feed(head, VC_HEAD_BYTES, VC_HEAD_BYTES, &request) == VC_HEAD_COMPLETE);
    CHECK(request.field_count == VC_FIELDS);
    size_t length = vc_request_write(&request, written);
    CHECK(length > VC_HEAD_BYTES && length <= VC_PASSED_BYTES);
}

/* --- Chunked bodies ----------------------------------------------------------------- */

typedef struct {
    const char *sent, *body; /* `body` is NULL if `sent` is refused */
    bool is_whole;
} chunked;

#define LAST "0\r\n\r\n"

static const chunked BODIES[] = {
    {LAST, "", true},
    {"000\r\n\r\n", "", true},
    {"1\r\na\r\n" LAST, "a", true},
    {"3\r\nabc\r\n4\r\nd\r\nf\r\n" LAST, "abcd\r\nf", true},
    {"A\r\n0123456789\r\na\r\n0123456789\r\n" LAST, "01234567890123456789", true},
    {"00000000000000000002\r\nab\r\n" LAST, "ab", true},
    {"00000000000000000000\r\n\r\n", "", true},
    {"0000000000000000000a\r\n0123456789\r\n" LAST, "0123456789", true},
    {"00000000000000000010\r\n0123456789abcdef\r\n" LAST, "0123456789abcdef", true},
    {"5\r\n0\r\n\r\n\r\n" LAST, "0\r\n\r\n", true},
    /* Extensions. */
    {"2;a\r\nab\r\n0;b=\"c;d\"\r\n\r\n", "ab", true},
    {"2; a = b\r\nab\r\n0 \r\n\r\n", "ab", true},
    {"2\t\r\nab\r\n" LAST, "ab", true},
    {"2;\r\nab\r\n0;\xc3\xbc\r\n\r\n", "ab", true},
    /* Trailers. */
    {"2\r\nab\r\n0\r\nA: b\r\nContent-Length: 9\r\n\r\n", "ab", true},
    {"0\r\na:\r\n\r\n", "", true},
    /* Not all of it. */
    {"fffffffffffffff\r\nabc", "abc", false},
    {"000fffffffffffffff\r\nabc", "abc", false},
    /* Refused. */
    {"\r\n", NULL, false},
    {"\n", NULL, false},
    {" 2\r\nab\r\n", NULL, false},
    {";a\r\n", NULL, false},
    {"x\r\n", NULL, false},
    {"0x2\r\nab\r\n", NULL, false},
    {"-2\r\nab\r\n", NULL, false},
    {"+2\r\nab\r\n", NULL, false},
    {"2\nab\r\n", NULL, false},
    {"2\r\rab\r\n", NULL, false},
    {"2\rab\r\n", NULL, false},
    {"2,\r\nab\r\n", NULL, false},
    {"2\r\nab\n", NULL, false},
    {"2\r\nabc\r\n", NULL, false},
    {"2\r\nab\rx\r\n", NULL, false},
    {"2\r\nab\r\n\r\n", NULL, false},
    {"2;a\n", NULL, false},
    {"2;\x01\r\n", NULL, false},
    {"2;\x7f\r\n", NULL, false},
    {"2;a\rb\r\n", NULL, false},
    {"0\n", NULL, false},
    {"0\r\n\n", NULL, false},
    {"0\r\n A: b\r\n", NULL, false},
    {"0\r\n: b\r\n", NULL, false},
    {"0\r\nA: b\n", NULL, false},
    {"0\r\nA: b\r\r\n", NULL, false},
    {"0\r\nA: \x01\r\n", NULL, false},
    {"0\r\n\r\r\n", NULL, false},
    {"1000000000000000\r\n", NULL, false},
    {"0001000000000000000\r\n", NULL, false},
    {"ffffffffffffffff\r\n", NULL, false},
    {"10000000000000002\r\nab\r\n", NULL, false},
    {"000000000000000000002\r\nab\r\n", NULL, false},
    {"2 ;a\r\nab\r\n", NULL, false},
    {"2 2\r\nab\r\n", NULL, false},
    {"0\r\na\r\n\r\n", NULL, false},
};

/* What was decoded. */
typedef struct {
    char text[TEXT_MAX];
    size_t length, used;
    vc_chunks_state state;
    const char *reason;
} decoded;

/* Decode `sent`, of which first `first` bytes arrive, then `second`, then all. */
static void decode(const char *sent, size_t length, size_t first, size_t second, decoded *to) {
    const size_t ends[] = {first, second, length};
    vc_chunks chunks = {0};
    *to = (decoded){.state = VC_CHUNKS_MORE};
    for (size_t i = 0; i < COUNT(ends); i++) {
        size_t piece = ends[i] - to->used, used = 0, written = 0;
        char *copy = copied(sent + to->used, piece), *out = allocated(piece);
        to->state = vc_chunks_take(&chunks, copy, piece, &used, out, &written, &to->reason);
        if (to->state != VC_CHUNKS_REFUSED) {
            CHECK(used <= piece && written <= used);
            CHECK(to->state == VC_CHUNKS_END || !memchr(copy + used, '\n', piece - used));
            memcpy(to->text + to->length, out, written);
            to->length += written;
            to->used += used;
        }
        free(copy);
        free(out);
        if (to->state != VC_CHUNKS_MORE) break;
    }
}

static void check_body(const chunked *row) {
    static decoded result;
    size_t length = strlen(row->sent);
    shown = row->sent;
    for (size_t first = 0; first <= length; first++) {
        for (size_t second = first; second <= length; second++) {
            decode(row->sent, length, first, second, &result);
            if (!row->body) {
                CHECK(result.state == VC_CHUNKS_REFUSED && strlen(result.reason) > 10);
                continue;
            }
            CHECK(result.state == (row->is_whole ? VC_CHUNKS_END : VC_CHUNKS_MORE));
            CHECK(result.length == strlen(row->body));
            CHECK(!memcmp(result.text, row->body, result.length) && result.used == length);
        }
    }
    if (!row->is_whole) return;
    /* The next request is left alone. */
    char longer[200];
    int all = snprintf(longer, sizeof longer, "%s0\r\n\r\nGET", row->sent);
    for (size_t cut = 0; cut <= (size_t)all; cut++) {
        decode(longer, (size_t)all, cut, (size_t)all, &result);
        CHECK(result.state == VC_CHUNKS_END && result.used == length);
    }
}

/* Lines and trailers have an end. */
static void check_long_lines(void) {
    static const char *const STARTS[] = {"1;", "0\r\nA: ", "1 "};
    static decoded result;
    static char sent[20000];
    for (size_t i = 0; i < COUNT(STARTS); i++) {
        shown = STARTS[i];
        size_t start = strlen(shown);
        memcpy(sent, shown, start);
        memset(sent + start, i == 2 ? ' ' : 'x', sizeof sent - start);
        decode(sent, 3000, 1000, 2000, &result);
        CHECK(result.state == VC_CHUNKS_MORE);
        decode(sent, sizeof sent, 1000, 2000, &result);
        CHECK(result.state == VC_CHUNKS_REFUSED);
    }
    shown = "many trailers";
    size_t used = (size_t)sprintf(sent, "0\r\n");
    while (used < 19000) used += (size_t)sprintf(sent + used, "A: b\r\n");
    decode(sent, used, 1000, 2000, &result);
    CHECK(result.state == VC_CHUNKS_REFUSED);
    shown = "many chunks";
    for (used = 0; used < 19000;) used += (size_t)sprintf(sent + used, "1\r\nb\r\n");
    used += (size_t)sprintf(sent + used, LAST);
    decode(sent, used, 1000, 10000, &result);
    CHECK(result.state == VC_CHUNKS_END);
}

/* `total` counts the bytes of a chunk when it begins. */
static void check_total(void) {
    vc_chunks chunks = {0};
    char out[100];
    size_t used, written;
    const char *reason;
    shown = "the total";
    CHECK(vc_chunks_take(&chunks, "2\r\nab\r\n400\r\nc", 13, &used, out, &written, &reason) ==
          VC_CHUNKS_MORE);
    CHECK(chunks.total == 0x402 && used == 13);
}

int main(void) {
    for (size_t i = 0; i < COUNT(BAD_HEADS); i++) check_bad_head(&BAD_HEADS[i]);
    for (size_t i = 0; i < COUNT(GOOD_HEADS); i++) check_good_head(&GOOD_HEADS[i]);
    check_bytes();
    check_paths();
    check_keys();
    check_length();
    check_field_count();
    check_room();
    for (size_t i = 0; i < COUNT(BODIES); i++) check_body(&BODIES[i]);
    check_long_lines();
    check_total();
    free(arrived);
    return 0;
}
