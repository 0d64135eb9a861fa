/* Reads any bytes as the head of a request and as a chunked body.
 *
 *     request_fuzz FILE...             read files
 *     request_fuzz -r SECONDS SEED     change valid requests at random
 *
 * A head that is written again says the same as before, and is written as it is from then on.
 * A body says the same to the decoder and to a simple one. Both say the same if the bytes
 * arrive in pieces. With -DVC_FUZZER it is a target of libFuzzer. Any failed check aborts. */
#define _GNU_SOURCE
#include "request.h"
#include "fuzz.h"

#include <inttypes.h>
#include <strings.h>

static uint64_t heads_read, complete, refused, bodies_read, whole_bodies;

static size_t some_piece(uint64_t *state, size_t left) {
    size_t piece = 1 + next_random(state) % (next_random(state) % 4 ? 12 : 3000);
    return piece < left ? piece : left;
}

/* --- One head ----------------------------------------------------------------------- */

static bool is_equal(vc_text a, vc_text b) {
    return a.length == b.length && !a.at == !b.at && (!a.at || !memcmp(a.at, b.at, a.length));
}

static bool is_same_name(vc_text a, vc_text b) {
    return a.length == b.length && !strncasecmp(a.at, b.at, a.length);
}

static bool is_inside(vc_text text, const char *data, size_t length) {
    return text.at >= data && text.at + text.length <= data + length;
}

static void check_inside(const vc_request *request, const char *data) {
    size_t length = request->length;
    CHECK(is_inside(request->method_text, data, length));
    /* A target without a path has one that is not among the bytes. */
    CHECK(is_inside(request->path, data, length) || is_equal(request->path, (vc_text){"/", 1}));
    CHECK(!request->query.at || is_inside(request->query, data, length));
    CHECK(!request->authority.at || is_inside(request->authority, data, length));
    CHECK(request->field_count <= VC_FIELDS);
    for (unsigned i = 0; i < request->field_count; i++) {
        const vc_field *field = &request->fields[i];
        CHECK(field->name.length && is_inside(field->name, data, length));
        CHECK(is_inside(field->value, data, length));
    }
}

static void check_same_values(const vc_request *a, const vc_request *b) {
    static char decoded[2][VC_HEAD_BYTES];
    CHECK(a->method == b->method && is_equal(a->method_text, b->method_text));
    size_t length = vc_path_decode(a->path, decoded[0]);
    CHECK(length <= a->path.length && vc_path_decode(b->path, decoded[1]) == length);
    CHECK(!memcmp(decoded[0], decoded[1], length) && is_equal(a->query, b->query));
    CHECK(a->is_http_1_0 == b->is_http_1_0 && a->keeps_alive == b->keeps_alive);
    CHECK(a->is_chunked == b->is_chunked && a->has_length == b->has_length);
    CHECK(a->content_length == b->content_length);
    for (unsigned i = 0; i < VC_FIELD_NAMES; i++) {
        /* Fields that are there twice were joined. */
        CHECK(!a->values[i].at == !b->values[i].at);
        CHECK(vc_request_repeats(a, 1u << i) || is_equal(a->values[i], b->values[i]));
    }
}

/* The head arrives in pieces. */
static void check_pieces(const char *data, size_t length, vc_head state, const vc_request *whole,
                         uint64_t *random) {
    static vc_request request;
    size_t scanned = 0, have = 0;
    vc_head now = VC_HEAD_INCOMPLETE;
    while (have < length && now == VC_HEAD_INCOMPLETE) {
        have += some_piece(random, length - have);
        char *copy = copied(data, have);
        now = vc_request_parse(copy, have, &scanned, &request);
        if (now == VC_HEAD_COMPLETE) {
            CHECK(request.length == whole->length && request.length <= have);
            check_inside(&request, copy);
            check_same_values(whole, &request);
            CHECK(request.awaits_continue == whole->awaits_continue);
            CHECK(is_equal(request.authority, whole->authority));
            CHECK(request.field_count == whole->field_count);
        }
        free(copy);
    }
    CHECK(now == state || !length);
    /* One that is too long may be refused for that, or for what is in it. */
    CHECK(state != VC_HEAD_REFUSED || request.status == whole->status || length >= VC_HEAD_BYTES);
}

static bool is_passed(const vc_field *field) {
    switch (field->known) {
    case VC_FIELD_CONTENT_LENGTH:
    case VC_FIELD_TRANSFER_ENCODING:
    case VC_FIELD_CONNECTION:
    case VC_FIELD_EXPECT:
    case VC_FIELD_HOP: return false;
    default: return true;
    }
}

/* Whether a value is what the fields of a name from `first` on say together. */
static bool is_joined(const vc_request *from, unsigned first, vc_text value) {
    static char expected[2 * VC_HEAD_BYTES];
    size_t length = 0;
    for (unsigned i = first; i < from->field_count; i++) {
        const vc_field *field = &from->fields[i];
        if (!is_same_name(field->name, from->fields[first].name)) continue;
        if (i > first && field->value.length) {
            memcpy(expected + length, ", ", 2);
            length += 2;
        }
        memcpy(expected + length, field->value.at, field->value.length);
        length += field->value.length;
    }
    if (from->fields[first].known == VC_FIELD_HOST && from->authority.at)
        return is_equal(from->authority, value);
    /* Without the white space around it. */
    size_t start = 0;
    while (start < length && expected[start] == ' ') start++;
    return is_equal((vc_text){expected + start, length - start}, value);
}

/* The fields that were passed on are those of the head, in their order and each name once. */
static void check_fields(const vc_request *first, const vc_request *second) {
    unsigned at = 0;
    for (unsigned i = 0; i < first->field_count; i++) {
        const vc_field *field = &first->fields[i];
        bool is_first = is_passed(field);
        for (unsigned j = 0; j < i && is_first; j++)
            is_first = !is_same_name(first->fields[j].name, field->name);
        if (!is_first) continue;
        CHECK(at < second->field_count);
        CHECK(is_same_name(second->fields[at].name, field->name));
        CHECK(is_joined(first, i, second->fields[at].value));
        at++;
    }
    for (; at < second->field_count; at++) {
        const vc_field *field = &second->fields[at];
        CHECK(field->known == VC_FIELD_CONTENT_LENGTH || field->known == VC_FIELD_CONNECTION ||
              field->known == VC_FIELD_TRANSFER_ENCODING);
    }
    for (unsigned i = 0; i < second->field_count; i++)
        for (unsigned j = 0; j < i; j++)
            CHECK(!is_same_name(second->fields[i].name, second->fields[j].name));
}

static void check_written(const vc_request *found) {
    static vc_request copied_request, second;
    const vc_request *first = &copied_request;
    copied_request = *found;
    /* A body is written as it was decoded. */
    if (found->is_chunked) copied_request.has_length = !(copied_request.is_chunked = false);
    char *written = allocated(VC_PASSED_BYTES), *again = allocated(VC_PASSED_BYTES);
    size_t scanned = 0, length = vc_request_write(first, written);
    CHECK(length && length <= VC_PASSED_BYTES);
    /* It may be longer than before, and too long to be parsed. */
    if (length <= VC_HEAD_BYTES) {
        char *copy = copied(written, length);
        CHECK(vc_request_parse(copy, length, &scanned, &second) == VC_HEAD_COMPLETE);
        CHECK(second.length == length && !second.authority.at && !second.awaits_continue);
        check_same_values(first, &second);
        check_fields(first, &second);
        CHECK(vc_request_write(&second, again) == length && !memcmp(written, again, length));
        free(copy);
    } else {
        CHECK(first->length > VC_HEAD_BYTES - 1024);
    }
    free(written);
    free(again);
}

/* Returns the length of the head, 0 if it is not complete. */
static size_t check_head(const char *data, size_t length, uint64_t *random) {
    static vc_request request;
    char *copy = copied(data, length);
    size_t scanned = 0;
    vc_head state = vc_request_parse(copy, length, &scanned, &request);
    heads_read++;
    if (state == VC_HEAD_REFUSED) {
        CHECK(request.status >= 400 && request.status <= 505 && *request.reason);
        CHECK(memchr(request.reason, 0, VC_TEXT_BYTES));
        refused++;
    }
    if (state == VC_HEAD_COMPLETE) {
        CHECK(request.length <= length && request.length <= VC_HEAD_BYTES);
        CHECK(!memcmp(copy + request.length - 4, "\r\n\r\n", 4));
        check_inside(&request, copy);
        check_written(&request);
        complete++;
    }
    check_pieces(data, length, state, &request, random);
    free(copy);
    return state == VC_HEAD_COMPLETE ? request.length : 0;
}

/* --- One chunked body --------------------------------------------------------------- */

typedef struct {
    vc_chunks_state state;
    size_t used;
    char *body;
    size_t length;
} verdict;

enum { SIZE_MAX_BYTES = 20, LINE_MAX_BYTES = 4096 }; /* with its end, or of all trailers */

static bool is_token(char byte) {
    return byte && strchr("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"
                          "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
                          byte);
}

static bool is_text(const char *at, size_t length) {
    while (length && (*at == '\t' || ((uint8_t)*at >= 0x20 && *at != 0x7F))) at++, length--;
    return !length;
}

/* Find the end of the line, of which `limit` bytes are allowed; VC_CHUNKS_END if it is there. */
static vc_chunks_state find_line(const char *at, size_t length, size_t limit, size_t *line) {
    for (*line = 0; *line < length && *line < limit; ++*line) {
        if (at[*line] != '\n') continue;
        return *line && at[--*line] == '\r' ? VC_CHUNKS_END : VC_CHUNKS_REFUSED;
    }
    return length < limit ? VC_CHUNKS_MORE : VC_CHUNKS_REFUSED;
}

/* Read the size in a line. Spaces may follow it up to the end of the line, but no extension. */
static bool read_size(const char *line, size_t length, uint64_t *size) {
    static const char HEX[] = "0123456789abcdef";
    size_t at = 0, zeros = 0;
    for (*size = 0; at < length; at++) {
        const char *digit = line[at] && line[at] >= '0' ? strchr(HEX, line[at] | 0x20) : NULL;
        if (!digit) break;
        *size = *size * 16 + (uint64_t)(digit - HEX);
        if (!*size) zeros++;
        if (at >= SIZE_MAX_BYTES || at + 1 - zeros > 15) return false;
    }
    if (!at) return false;
    if (at < length && line[at] == ';') return is_text(line + at, length - at);
    while (at < length && (line[at] == ' ' || line[at] == '\t')) at++;
    return at == length;
}

/* A name, a colon and any text. */
static bool is_trailer(const char *line, size_t length) {
    size_t name = 0;
    while (name < length && is_token(line[name])) name++;
    return name && name < length && line[name] == ':' && is_text(line + name, length - name);
}

/* Decode a body as RFC 9112 says, from all of its bytes. */
static verdict judge(const char *data, size_t length) {
    verdict found = {.state = VC_CHUNKS_REFUSED, .body = allocated(length)};
    size_t line, first = 0; /* the last size */
    for (bool is_last = false;;) {
        const char *at = data + found.used;
        size_t left = length - found.used, trailers = is_last ? found.used - first : 0;
        uint64_t size;
        vc_chunks_state state = find_line(at, left, LINE_MAX_BYTES - trailers, &line);
        if (state != VC_CHUNKS_END) {
            found.state = state;
            return found;
        }
        if (is_last ? line && !is_trailer(at, line) : !read_size(at, line, &size)) return found;
        if (!is_last) first = found.used;
        found.used += line + 2;
        if (is_last && !line) {
            found.state = VC_CHUNKS_END;
            return found;
        }
        is_last = is_last || !size;
        if (is_last) continue;
        size_t some = size < length - found.used ? (size_t)size : length - found.used;
        memcpy(found.body + found.length, data + found.used, some);
        found.length += some;
        found.used += some;
        if (some < size) state = VC_CHUNKS_MORE;
        else state = find_line(data + found.used, length - found.used, LINE_MAX_BYTES, &line);
        if (state == VC_CHUNKS_END && line) state = VC_CHUNKS_REFUSED;
        if (state != VC_CHUNKS_END) {
            found.state = state;
            return found;
        }
        found.used += 2;
    }
}

/* Let the decoder take a body in pieces; it writes to `out`. */
static verdict decode(const char *data, size_t length, uint64_t *random, char *out) {
    vc_chunks chunks = {0};
    verdict found = {.state = VC_CHUNKS_MORE, .body = out};
    for (size_t arrived = 0; arrived < length && found.state == VC_CHUNKS_MORE;) {
        arrived += random ? some_piece(random, length - arrived) : length;
        size_t piece = arrived - found.used, used = 0, written = 0;
        const char *reason = NULL;
        char *copy = copied(data + found.used, piece), *to = allocated(piece);
        found.state = vc_chunks_take(&chunks, copy, piece, &used, to, &written, &reason);
        if (found.state == VC_CHUNKS_REFUSED) {
            CHECK(reason && *reason && strlen(reason) < VC_TEXT_BYTES);
        } else {
            CHECK(used <= piece && written <= used);
            memcpy(out + found.length, to, written);
            found.length += written;
            found.used += used;
        }
        free(copy);
        free(to);
    }
    return found;
}

static void check_body(const char *data, size_t length, uint64_t *random) {
    verdict expected = judge(data, length);
    bodies_read++;
    whole_bodies += expected.state == VC_CHUNKS_END;
    for (int i = 0; i < 3; i++) {
        /* Each piece is at least one byte. */
        char *out = allocated(length);
        verdict found = decode(data, length, i ? random : NULL, out);
        CHECK(found.state == expected.state);
        if (found.state != VC_CHUNKS_REFUSED) {
            CHECK(found.used == expected.used);
            CHECK(found.length == expected.length);
            CHECK(!memcmp(found.body, expected.body, found.length));
        }
        free(out);
    }
    free(expected.body);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    const char *text = (const char *)data;
    uint64_t random = length;
    for (size_t i = 0; i < length; i++) random = random * 31 + data[i];
    check_body(text, length, &random);
    /* The caller has skipped empty lines. */
    while (length >= 2 && !memcmp(text, "\r\n", 2)) text += 2, length -= 2;
    size_t head = check_head(text, length, &random);
    if (head) check_body(text + head, length - head, &random);
    return 0;
}

#ifndef VC_FUZZER
static const char *const SAMPLES[] = {
    "GET /a/b.txt HTTP/1.1\r\nHost: a\r\n\r\n",
    "GET /%41%2F?b=c HTTP/1.1\r\nHost: a:80\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n\r\n",
    "PUT http://b:8080/a?x HTTP/1.1\r\nhost:a\r\nContent-Length: 5\r\nX-TTL:\t60 \r\n\r\nabcde",
    "PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\nExpect: 100-continue\r\n\r\n"
    "5\r\nabcde\r\nA;b=c\r\n0123456789\r\n0\r\nD: e\r\n\r\n",
    "HEAD / HTTP/1.0\r\nConnection: keep-alive, x\r\nIf-None-Match: \"a\"\r\n"
    "if-none-match: \"b\"\r\nRange: bytes=0-1\r\n\r\n",
    "OPTIONS * HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\nUpgrade: h2c\r\nA:\r\na: 1\r\n"
    "A:\r\nB: 2\r\n\r\n",
    "DELETE /a HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nAuthorization: x\r\nA: 1\r\n"
    "A: 2\r\n\r\n",
    "3\r\nabc\r\n10\r\n0123456789abcdef\r\n1;x\r\na\r\n00\r\nA: b\r\nC: d\r\n\r\n",
};

static const char *const WORDS[] = {
    "\r\n",
    "\r",
    "\n",
    "\r\n\r\n",
    " ",
    "\t",
    ":",
    ": ",
    ",",
    ", ",
    ";",
    "/",
    "?",
    "#",
    "%",
    "%4",
    "%41",
    "%00",
    "*",
    "0",
    "00",
    "1",
    "5",
    "f",
    "F",
    "ff",
    "fffffffffffffff",
    "0000000000000000",
    "10000000000000000",
    "+5",
    "-1",
    "5, 5",
    "999999999999999999",
    "\xff",
    "\xc3\xbc",
    "\x01",
    "\x7f",
    "GET ",
    "HEAD ",
    "PUT ",
    "CONNECT ",
    "get ",
    "http://",
    "http://b",
    "HTTP://b/",
    " HTTP/1.1\r\n",
    " HTTP/1.0\r\n",
    " HTTP/2.0\r\n",
    "HTTP/1.",
    "Host: a\r\n",
    "Host: b\r\n",
    "Host : a\r\n",
    " folded\r\n",
    "Content-Length: 5\r\n",
    "Content-Length: 5 \r\n",
    "content-length:0\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Transfer-Encoding: gzip\r\n",
    "Connection: close\r\n",
    "Connection: keep-alive\r\n",
    "Connection: a, CLOSE ,b\r\n",
    "Expect: 100-continue\r\n",
    "Keep-Alive: 5\r\n",
    "TE: trailers\r\n",
    "Upgrade: x\r\n",
    "A: 1\r\n",
    "a:2\r\n",
    "A:\r\n",
    "a: ,\r\n",
    "B: 1\r\n",
    "Range: x\r\n",
    "If-Match: x\r\n",
    "5\r\nabcde\r\n",
    "0\r\n\r\n",
    "1;x\r\na\r\n",
    "",
    "",
};

/* Add many fields, or a long one, before the last line of the head. */
static void enlarge(growing *text, uint64_t *state) {
    static char field[VC_HEAD_BYTES + 100];
    char *end = memmem(text->at, text->length, "\r\n\r\n", 4);
    if (!end) return;
    size_t at = (size_t)(end - text->at) + 2;
    if (next_random(state) % 2) {
        for (uint64_t left = 90 + next_random(state) % 12; left; left--) {
            int length = snprintf(field, sizeof field, "F%u: %u\r\n",
                                  (unsigned)(next_random(state) % 200), (unsigned)left);
            replace_bytes(text, at, 0, field, (size_t)length);
        }
    } else {
        size_t length = VC_HEAD_BYTES - at - 2 + next_random(state) % 8 - 4;
        memset(field, 'x', length);
        memcpy(field, "L:", 2);
        memcpy(field + length - 2, "\r\n", 2);
        replace_bytes(text, at, 0, field, length);
    }
}

static void run_random(double seconds, uint64_t seed) {
    growing text = {0};
    uint64_t runs = 0, state = seed;
    for (time_t start = time(NULL); difftime(time(NULL), start) < seconds; runs++) {
        const char *first = SAMPLES[next_random(&state) % COUNT(SAMPLES)];
        text.length = 0;
        add_text(&text, first);
        if (next_random(&state) % 100 == 0) enlarge(&text, &state);
        for (uint64_t left = next_random(&state) % 8; left; left--)
            mutate(&text, WORDS, COUNT(WORDS), &state);
        LLVMFuzzerTestOneInput((const uint8_t *)text.at, text.length);
    }
    printf("%" PRIu64 " runs, %" PRIu64 " heads: %" PRIu64 " complete, %" PRIu64
           " refused; %" PRIu64 " bodies: %" PRIu64 " whole\n",
           runs, heads_read, complete, refused, bodies_read, whole_bodies);
    free(text.at);
}
#endif
