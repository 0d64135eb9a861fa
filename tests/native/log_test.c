/* log.c: what lines show, which no client can forge.
 *
 *     log_test SEED */
#include "log.h"

#include <stdlib.h>
#include <string.h>

#include "check.h"

static vc_log *text_log, *json_log;
static const vc_record RECORD = {.volume = 0, .offset = 4096, .size = 1500};

/* Return the only line of a log, without its time. */
static const char *taken(vc_log *log, size_t from) {
    static char line[16384];
    size_t length;
    uint64_t dropped;
    const char *lines = vc_log_take(log, &length, &dropped);
    CHECK(!dropped && length > from && length < sizeof line && lines[length - 1] == '\n');
    memcpy(line, lines, length - 1);
    line[length - 1] = 0;
    for (size_t i = 0; i < length - 1; i++) CHECK(line[i] >= ' ' && line[i] < 0x7F);
    return line + from;
}

enum { TEXT_AT = 41, JSON_AT = 37 }; /* behind "1.1.1.1 - - [...]" and the time */

static void check_line(const vc_log_line *line, const char *text, const char *json) {
    vc_log_add(text_log, line);
    vc_log_add(json_log, line);
    const char *found = taken(text_log, TEXT_AT);
    if (strcmp(found, text)) fprintf(stderr, "%s\n", found);
    CHECK(!strcmp(found, text));
    found = taken(json_log, JSON_AT);
    if (strcmp(found, json)) fprintf(stderr, "%s\n", found);
    CHECK(!strcmp(found, json));
}

static void parse(const char *head, vc_request *request) {
    size_t scanned = 0;
    CHECK(vc_request_parse(head, strlen(head), &scanned, request) == VC_HEAD_COMPLETE);
}

static void check_requests(void) {
    static vc_request request;
    vc_log_line line = {
        .remote = "1.1.1.1",
        .request = &request,
        .status = 200,
        .bytes = 5,
        .took_ns = 12500000,
        .cache = {"DISK", 4},
        .record = &RECORD,
    };
    parse("GET /a%20k%65y?q=1 HTTP/1.1\r\nHost: t\r\nReferer:  http://r/\"\\ \r\n"
          "X-Forwarded-For: 10.0.0.1\r\nUser-Agent: curl/8\r\nX-Forwarded-For: 10.0.0.2\r\n\r\n",
          &request);
    check_line(&line,
               "\"GET /a%20key?q=1 HTTP/1.1\" 200 5 \"http://r/\\x22\\x5C\" \"curl/8\""
               " \"10.0.0.1, 10.0.0.2\" cache=DISK position=0,4096,1500 seconds=0.012500",
               "\"remote\": \"1.1.1.1\", \"method\": \"GET\", \"uri\": \"/a%20key?q=1\","
               " \"protocol\": \"HTTP/1.1\", \"status\": 200, \"bytes\": 5,"
               " \"referer\": \"http://r/\\\\x22\\\\x5C\", \"agent\": \"curl/8\","
               " \"forwarded\": \"10.0.0.1, 10.0.0.2\", \"cache\": \"DISK\","
               " \"position\": \"0,4096,1500\", \"seconds\": 0.012500}");
    line = (vc_log_line){.remote = "1.1.1.1", .request = &request, .status = 405};
    parse("OPTIONS * HTTP/1.0\r\nUser-Agent:\r\n\r\n", &request);
    check_line(&line,
               "\"OPTIONS * HTTP/1.0\" 405 0 \"-\" \"-\" \"-\" cache=- position=- seconds=0.000000",
               "\"remote\": \"1.1.1.1\", \"method\": \"OPTIONS\", \"uri\": \"*\","
               " \"protocol\": \"HTTP/1.0\", \"status\": 405, \"bytes\": 0, \"referer\": null,"
               " \"agent\": null, \"forwarded\": null, \"cache\": null, \"position\": null,"
               " \"seconds\": 0.000000}");
}

static void check_commands(void) {
    vc_log_line line = {
        .remote = "1.1.1.1",
        .command = "get",
        .result = "hit",
        .key = {"a key/\xe9", 7},
        .status = 200,
        .bytes = 27,
        .cache = {"MEMC", 4},
        .record = &RECORD,
    };
    check_line(&line,
               "\"get /a%20key/%E9 memcache\" 200 27 \"-\" \"-\" \"-\" cache=MEMC"
               " position=0,4096,1500 result=hit seconds=0.000000",
               "\"remote\": \"1.1.1.1\", \"method\": \"get\", \"uri\": \"/a%20key/%E9\","
               " \"protocol\": \"memcache\", \"status\": 200, \"bytes\": 27, \"referer\": null,"
               " \"agent\": null, \"forwarded\": null, \"cache\": \"MEMC\","
               " \"position\": \"0,4096,1500\", \"result\": \"hit\", \"seconds\": 0.000000}");
    line = (vc_log_line){.remote = "1.1.1.1", .command = "version", .result = "ok", .status = 200};
    check_line(&line,
               "\"version - memcache\" 200 0 \"-\" \"-\" \"-\" cache=- position=- result=ok"
               " seconds=0.000000",
               "\"remote\": \"1.1.1.1\", \"method\": \"version\", \"uri\": \"-\","
               " \"protocol\": \"memcache\", \"status\": 200, \"bytes\": 0, \"referer\": null,"
               " \"agent\": null, \"forwarded\": null, \"cache\": null, \"position\": null,"
               " \"result\": \"ok\", \"seconds\": 0.000000}");
}

/* A head as long as is allowed makes no line as long; the space is bounded. */
static void check_bounds(void) {
    static char head[VC_HEAD_BYTES];
    static vc_request request;
    char *to = head;
    to += sprintf(to, "GET /");
    for (int i = 0; i < 8000; i++) *to++ = '\'';
    for (int i = 0; i < 2000; i++) to += sprintf(to, "%%e9");
    *to++ = '?';
    for (int i = 0; i < 2000; i++) *to++ = '"';
    to += sprintf(to, " HTTP/1.1\r\nHost: t\r\nReferer: ");
    for (int i = 0; i < 4000; i++) *to++ = '\xe9';
    to += sprintf(to, "\r\nUser-Agent: ");
    for (int i = 0; i < 4000; i++) *to++ = '"';
    to += sprintf(to, "\r\nX-Forwarded-For: ");
    for (int i = 0; i < 500; i++) *to++ = '\\';
    for (int i = 0; i < 10; i++) to += sprintf(to, "\r\nX-Forwarded-For: \\");
    strcpy(to, "\r\n\r\n");
    parse(head, &request);
    vc_log_line line = {.remote = "1.1.1.1", .request = &request, .status = 200};
    vc_log_add(text_log, &line);
    vc_log_add(json_log, &line);
    CHECK(strlen(taken(text_log, 0)) < 8000);
    CHECK(strlen(taken(json_log, 0)) < 9000);
    vc_log *small = vc_log_new(true, 4096);
    size_t length;
    uint64_t dropped;
    CHECK(small);
    for (int i = 0; i < 10; i++) vc_log_add(small, &line);
    (void)vc_log_take(small, &length, &dropped);
    CHECK(dropped == 9 && length < 9000);
    vc_log_add(small, &line);
    (void)vc_log_take(small, &length, &dropped);
    CHECK(dropped == 9 && length);
    vc_log_free(small);
}

int main(void) {
    text_log = vc_log_new(false, 1 << 20);
    json_log = vc_log_new(true, 1 << 20);
    CHECK(text_log && json_log);
    check_requests();
    check_commands();
    check_bounds();
    vc_log_free(text_log);
    vc_log_free(json_log);
    return 0;
}
