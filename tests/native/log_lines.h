/* The lines of the access log in what a program compares. */
#ifndef VC_LOG_LINES_H
#define VC_LOG_LINES_H

#include "fuzz.h"
#include "log.h"

/* Take lines; each is one of ASCII with all its fields, whatever the client has sent. What they say
 * without their times is added. Returns how many there were. */
static uint64_t take_lines(vc_log *log, growing *to) {
    static const char BEGIN[] = "1.2.3.4 - - [";
    size_t length;
    uint64_t dropped, lines = 0;
    const char *at = vc_log_take(log, &length, &dropped), *end = at + length, *stop;
    CHECK(!dropped);
    for (; at < end; at = stop + 1) {
        unsigned quotes = 0;
        stop = memchr(at, '\n', (size_t)(end - at));
        CHECK(stop && !strncmp(at, BEGIN, sizeof BEGIN - 1));
        const char *fields = memmem(at, (size_t)(stop - at), "] ", 2);
        const char *seconds = memmem(at, (size_t)(stop - at), " seconds=", 9);
        CHECK(fields && seconds);
        for (const char *byte = at; byte < stop; byte++) {
            CHECK(*byte >= ' ' && *byte < 0x7F);
            quotes += *byte == '"';
        }
        CHECK(quotes == 8);
        add_bytes(to, fields, (size_t)(seconds - fields));
        lines++;
    }
    return lines;
}

#endif
