#include "request.h"

#include <stdarg.h>
#include <stdio.h>

/* What a byte may be part of. */
enum { TOKEN = 1, TARGET = 2, VALUE = 4, HOST = 8, HEX = 16, DIGIT = 32 };
enum { WORD = TOKEN | TARGET | VALUE | HOST };

static const uint8_t CLASSES[256] = {
    ['\t'] = VALUE,
    [' '] = VALUE,
    ['!'] = WORD,
    ['"'] = TARGET | VALUE,
    ['#'] = TOKEN | VALUE,
    ['$' ... '\''] = WORD,
    ['(' ... ')'] = TARGET | VALUE | HOST,
    ['*' ... '+'] = WORD,
    [','] = TARGET | VALUE | HOST,
    ['-' ... '.'] = WORD,
    ['/'] = TARGET | VALUE,
    ['0' ... '9'] = WORD | HEX | DIGIT,
    [':' ... ';'] = TARGET | VALUE | HOST,
    ['<'] = TARGET | VALUE,
    ['='] = TARGET | VALUE | HOST,
    ['>' ... '@'] = TARGET | VALUE,
    ['A' ... 'F'] = WORD | HEX,
    ['G' ... 'Z'] = WORD,
    ['['] = TARGET | VALUE | HOST,
    ['\\'] = TARGET | VALUE,
    [']'] = TARGET | VALUE | HOST,
    ['^'] = TOKEN | TARGET | VALUE,
    ['_'] = WORD,
    ['`'] = TOKEN | TARGET | VALUE,
    ['a' ... 'f'] = WORD | HEX,
    ['g' ... 'z'] = WORD,
    ['{'] = TARGET | VALUE,
    ['|'] = TOKEN | TARGET | VALUE,
    ['}'] = TARGET | VALUE,
    ['~'] = WORD,
    [0x80 ... 0xFF] = VALUE,
};

/* Methods that bjoern's parser knows and that may be passed to it; the first ones in the order of
 * `vc_method`. */
static const char *const METHODS[] = {"",        "GET",  "HEAD",   "PUT",      "DELETE", "PROPFIND",
                                      "OPTIONS", "POST", "MKCOL",  "PATCH",    "TRACE",  "COPY",
                                      "MOVE",    "LOCK", "UNLOCK", "PROPPATCH"};
enum { METHOD_COUNT = sizeof(METHODS) / sizeof(METHODS[0]) };

static const struct {
    const char *text;
    vc_field_name name;
} NAMES[] = {
    {"host", VC_FIELD_HOST},
    {"content-length", VC_FIELD_CONTENT_LENGTH},
    {"transfer-encoding", VC_FIELD_TRANSFER_ENCODING},
    {"connection", VC_FIELD_CONNECTION},
    {"expect", VC_FIELD_EXPECT},
    {"upgrade", VC_FIELD_HOP},
    {"keep-alive", VC_FIELD_HOP},
    {"proxy-connection", VC_FIELD_HOP},
    {"http2-settings", VC_FIELD_HOP},
    {"te", VC_FIELD_HOP},
    {"trailer", VC_FIELD_HOP},
    {"x-volcache-remote", VC_FIELD_HOP}, /* VC_REMOTE_FIELD, which only forward.c may set */
    {"authorization", VC_FIELD_AUTHORIZATION},
    {"cache-control", VC_FIELD_CACHE_CONTROL},
    {"content-encoding", VC_FIELD_CONTENT_ENCODING},
    {"content-range", VC_FIELD_CONTENT_RANGE},
    {"content-type", VC_FIELD_CONTENT_TYPE},
    {"expires", VC_FIELD_EXPIRES},
    {"if-match", VC_FIELD_IF_MATCH},
    {"if-modified-since", VC_FIELD_IF_MODIFIED_SINCE},
    {"if-none-match", VC_FIELD_IF_NONE_MATCH},
    {"if-range", VC_FIELD_IF_RANGE},
    {"if-unmodified-since", VC_FIELD_IF_UNMODIFIED_SINCE},
    {"origin", VC_FIELD_ORIGIN},
    {"range", VC_FIELD_RANGE},
    {"service-worker", VC_FIELD_SERVICE_WORKER},
    {"x-flags", VC_FIELD_FLAGS},
};
enum { NAME_COUNT = sizeof(NAMES) / sizeof(NAMES[0]) };

static inline bool is_all(const char *at, const char *end, unsigned class) {
    while (at < end)
        if (!(CLASSES[(uint8_t)*at++] & class)) return false;
    return true;
}

/* --- Refusals ------------------------------------------------------------------------ */

__attribute__((format(printf, 3, 4))) static vc_head request_refuse(vc_request *request, int status,
                                                                    const char *format, ...) {
    va_list values;
    va_start(values, format);
    request->status = status;
    vsnprintf(request->reason, sizeof(request->reason), format, values);
    va_end(values);
    return VC_HEAD_REFUSED;
}

static vc_head refuse_bad(vc_request *request, const char *why) {
    return request_refuse(request, 400, "bad request: %s", why);
}

/* --- The request line ----------------------------------------------------------------- */

static bool parse_method(vc_request *request, vc_text text) {
    request->method_text = text;
    for (unsigned i = VC_GET; i < METHOD_COUNT; i++)
        if (vc_text_is(text, METHODS[i])) {
            request->method = i <= VC_PROPFIND ? i : VC_OTHER_METHOD;
            return true;
        }
    return false;
}

static vc_head parse_target(vc_request *request, const char *at, const char *end) {
    if (at < end && *at == '*' && end - at == 1) {
        if (!vc_text_is_name(request->method_text, "OPTIONS"))
            return refuse_bad(request, "the target * is for OPTIONS only");
        request->path = (vc_text){at, 1};
        return VC_HEAD_COMPLETE;
    }
    if (end - at > 7 && !strncasecmp(at, "http://", 7)) {
        const char *slash = at += 7;
        while (slash < end && *slash != '/' && *slash != '?') slash++;
        request->authority = (vc_text){at, (size_t)(slash - at)};
        if (slash == at || !is_all(at, slash, HOST))
            return refuse_bad(request, "the target names no host");
        at = slash;
    }
    const char *mark = memchr(at, '?', (size_t)(end - at)), *stop = mark ? mark : end;
    request->path = (vc_text){at, (size_t)(stop - at)};
    if (request->authority.at && at == stop) request->path = (vc_text){"/", 1};
    if (mark) request->query = (vc_text){mark + 1, (size_t)(end - mark - 1)};
    if (!request->path.length || request->path.at[0] != '/')
        return refuse_bad(request,
                          "the target is no path; allowed is a path that begins with a slash");
    for (const char *p = at; p < stop; p++) {
        if (*p != '%') continue;
        if (stop - p < 3 || !is_all(p + 1, p + 3, HEX))
            return refuse_bad(
                request,
                "a % in the path is not followed by two hexadecimal digits; a % itself is %25");
    }
    return VC_HEAD_COMPLETE;
}

static vc_head parse_line(vc_request *request, const char *at, const char *end) {
    const char *space = memchr(at, ' ', (size_t)(end - at));
    if (!space || space == at || !is_all(at, space, TOKEN))
        return refuse_bad(request, "allowed is METHOD PATH HTTP/1.1 in the first line");
    bool is_known = parse_method(request, (vc_text){at, (size_t)(space - at)});
    const char *target = space + 1, *version = end;
    while (version > target && version[-1] != ' ') version--;
    if (version <= target)
        return refuse_bad(request, "no version; allowed is METHOD PATH HTTP/1.1 in the first line");
    size_t length = (size_t)(end - version);
    if (length != 8 || memcmp(version, "HTTP/", 5) || !(CLASSES[(uint8_t)version[5]] & DIGIT) ||
        version[6] != '.' || !(CLASSES[(uint8_t)version[7]] & DIGIT))
        return refuse_bad(
            request,
            "the first line does not end with a version; allowed are HTTP/1.1 and HTTP/1.0");
    if (version[5] != '1' || (version[7] != '0' && version[7] != '1'))
        return request_refuse(request, 505,
                              "HTTP version not supported; allowed are HTTP/1.1 and HTTP/1.0");
    request->is_http_1_0 = version[7] == '0';
    if (!is_all(target, version - 1, TARGET))
        return refuse_bad(request, "the target has a space, a # or another byte that is not "
                                   "allowed; write it as % and two hexadecimal digits");
    if (!is_known) {
        size_t shown = request->method_text.length < 40 ? request->method_text.length : 40;
        return request_refuse(request, 405, "method %.*s is not allowed; allowed are ", (int)shown,
                              request->method_text.at);
    }
    return parse_target(request, target, version - 1);
}

/* --- Fields --------------------------------------------------------------------------- */

static vc_field_name known_name(vc_text name) {
    for (unsigned i = 0; i < NAME_COUNT; i++)
        if ((name.at[0] | 0x20) == NAMES[i].text[0] && vc_text_is_name(name, NAMES[i].text))
            return NAMES[i].name;
    return VC_FIELD_UNKNOWN;
}

/* Returns false if a value is not 1 to 18 digits, with at most two zeros before them. */
static bool parse_length(vc_text text, uint64_t *length) {
    const char *at = text.at, *end = text.at + text.length;
    bool is_large;
    return text.length <= 20 && vc_read_digits(&at, end, length, &is_large) && at == end &&
           *length < UINT64_C(1000000000000000000);
}

/* Whether a list of tokens has this one. */
static bool has_token(vc_text list, const char *token) {
    vc_text item;
    while (vc_text_next(&list, &item))
        if (vc_text_is_name(item, token)) return true;
    return false;
}

typedef struct {
    bool has_host, has_coding, has_close, has_keep_alive;
} framing;

static void keep_value(vc_request *request, const vc_field *field) {
    if (request->values[field->known].at) request->repeated |= 1u << field->known;
    request->values[field->known] = field->value;
}

static vc_head parse_known(vc_request *request, const vc_field *field, framing *seen) {
    switch (field->known) {
    case VC_FIELD_HOST:
        if (seen->has_host) return refuse_bad(request, "two Host fields; allowed is one");
        seen->has_host = true;
        if (!is_all(field->value.at, field->value.at + field->value.length, HOST))
            return refuse_bad(request, "Host is not a name and a port");
        break;
    case VC_FIELD_CONTENT_LENGTH:
        if (request->has_length)
            return refuse_bad(request, "two Content-Length fields; allowed is one");
        if (!parse_length(field->value, &request->content_length))
            return refuse_bad(request, "Content-Length is not a number; allowed are digits");
        request->has_length = true;
        break;
    case VC_FIELD_TRANSFER_ENCODING:
        if (seen->has_coding || !vc_text_is_name(field->value, "chunked"))
            return request_refuse(request, 501,
                                  "Transfer-Encoding is not known; allowed is chunked, once");
        seen->has_coding = request->is_chunked = true;
        break;
    case VC_FIELD_CONNECTION:
        seen->has_close |= has_token(field->value, "close");
        seen->has_keep_alive |= has_token(field->value, "keep-alive");
        break;
    case VC_FIELD_EXPECT:
        if (!vc_text_is_name(field->value, "100-continue"))
            return request_refuse(request, 417, "Expect is not known; allowed is 100-continue");
        request->awaits_continue = true;
        break;
    case VC_FIELD_UNKNOWN:
    case VC_FIELD_HOP: break;
    default: keep_value(request, field); break;
    }
    return VC_HEAD_COMPLETE;
}

static vc_head parse_field(vc_request *request, const char *at, const char *end, framing *seen) {
    if (request->field_count == VC_FIELDS)
        return request_refuse(request, 431, "too many header fields; allowed are %d", VC_FIELDS);
    const char *colon = memchr(at, ':', (size_t)(end - at));
    if (!colon || colon == at || !is_all(at, colon, TOKEN))
        return refuse_bad(request, "a header line is not NAME: VALUE; allowed are letters, digits "
                                   "and !#$%&'*+-.^_`|~ in a name");
    vc_text value = vc_text_trim(colon + 1, end);
    if (!is_all(value.at, value.at + value.length, VALUE))
        return refuse_bad(request, "a header has a control byte; allowed is text");
    vc_field *field = &request->fields[request->field_count++];
    field->name = (vc_text){at, (size_t)(colon - at)};
    field->value = value;
    field->known = known_name(field->name);
    return parse_known(request, field, seen);
}

static vc_head check_framing(vc_request *request, const framing *seen) {
    if (!request->is_http_1_0 && !seen->has_host)
        return refuse_bad(request, "no Host field; HTTP/1.1 needs one");
    if (request->is_chunked && request->has_length)
        return refuse_bad(request, "both Content-Length and Transfer-Encoding; allowed is one");
    if (request->is_chunked && request->is_http_1_0)
        return refuse_bad(request, "HTTP/1.0 has no Transfer-Encoding");
    request->keeps_alive = !seen->has_close && (!request->is_http_1_0 || seen->has_keep_alive);
    if (request->is_http_1_0) request->awaits_continue = false;
    return VC_HEAD_COMPLETE;
}

/* Return the length of the head, 0 if its end has not arrived, -1 if a line ends without CR. */
static long request_find_end(const char *data, size_t length, size_t *scanned) {
    const char *end = data + length, *at = data + *scanned;
    while (at < end) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        if (!feed) break;
        if (feed == data || feed[-1] != '\r') return -1;
        if (feed - data >= 3 && feed[-2] == '\n') return feed + 1 - data;
        at = feed + 1;
    }
    *scanned = length;
    return 0;
}

vc_head vc_request_parse(const char *data, size_t length, size_t *scanned, vc_request *request) {
    long found = request_find_end(data, length, scanned);
    /* All but the fields, which are written before they are read. */
    memset(request, 0, offsetof(vc_request, fields));
    request->status = 0;
    request->reason[0] = 0;
    if (found < 0)
        return refuse_bad(request, "a line ends without CR LF; allowed is CR LF after each line");
    if (!found && length && !(CLASSES[(uint8_t)data[0]] & TOKEN))
        return refuse_bad(request, "this is not HTTP/1.1 without TLS");
    if (found ? found > VC_HEAD_BYTES : length >= VC_HEAD_BYTES)
        return request_refuse(request, 431,
                              "the head of the request is too long; allowed are %d bytes",
                              VC_HEAD_BYTES);
    if (!found) return VC_HEAD_INCOMPLETE;
    request->length = (size_t)found;
    const char *at = data, *end = data + found - 2;
    framing seen = {0};
    for (bool is_first = true; at < end; is_first = false) {
        const char *feed = memchr(at, '\n', (size_t)(end - at));
        const char *stop = feed - 1;
        vc_head state = is_first ? parse_line(request, at, stop)
                                 : parse_field(request, at, stop, &seen);
        if (state != VC_HEAD_COMPLETE) return state;
        at = feed + 1;
    }
    return check_framing(request, &seen);
}

/* --- Paths ---------------------------------------------------------------------------- */

size_t vc_path_decode(vc_text path, char *to) {
    char *start = to;
    const char *at = path.at, *end = path.at + path.length;
    while (at < end) {
        if (*at != '%') {
            *to++ = *at++;
            continue;
        }
        *to++ = (char)(vc_hex_digit(at[1]) << 4 | vc_hex_digit(at[2]));
        at += 3;
    }
    return (size_t)(to - start);
}

vc_key_fault vc_key_check(vc_text key) {
    const char *at = key.at, *end = key.at + key.length;
    if (key.length > 1 && at[0] == '-' && at[1] == '/') return VC_KEY_RESERVED;
    for (; at < end; at++) {
        if ((uint8_t)*at < 0x20 || *at == 0x7F) return VC_KEY_CONTROL;
        if (*at != '.' || (at > key.at && at[-1] != '/')) continue;
        const char *stop = at + 1 + (at + 1 < end && at[1] == '.');
        if (stop == end || *stop == '/') return VC_KEY_DOTS;
    }
    return VC_KEY_GOOD;
}

size_t vc_request_key(const vc_request *request, vc_query_use use, char *to, size_t room) {
    vc_text query = request->query;
    if (use == VC_QUERY_IGNORE) query.length = 0;
    if (request->path.length + query.length + 1 > room) return 0;
    size_t length = vc_path_decode(request->path, to);
    if (!query.length) return length;
    /* Dot segments are resolved without the query. */
    if (use == VC_QUERY_REFUSE || length < 2 || vc_key_check((vc_text){to + 1, length - 1}))
        return 0;
    to[length++] = '?';
    memcpy(to + length, query.at, query.length);
    return length + query.length;
}

/* --- Writing -------------------------------------------------------------------------- */

static bool has_name(const vc_request *request, unsigned first, unsigned end, vc_text name) {
    for (unsigned i = first; i < end; i++)
        if (vc_text_equals_name(request->fields[i].name, name)) return true;
    return false;
}

/* Write a field with the values of all fields of its name, if it is the first of them. */
static char *put_field(char *to, const vc_request *request, unsigned number) {
    const vc_field *field = &request->fields[number];
    if (has_name(request, 0, number, field->name)) return to;
    to = vc_put_span(vc_put_text(vc_put_span(to, field->name), ": "), field->value);
    for (unsigned i = number + 1; i < request->field_count; i++) {
        /* White space at the end of a line would not be part of the value. */
        if (!request->fields[i].value.length || !has_name(request, i, i + 1, field->name)) continue;
        to = vc_put_span(vc_put_text(to, ", "), request->fields[i].value);
    }
    return vc_put_text(to, "\r\n");
}

size_t vc_request_write(const vc_request *request, char *to) {
    const char *start = to;
    to = vc_put_text(vc_put_span(to, request->method_text), " ");
    to = vc_put_span(to, request->path);
    if (request->query.at) to = vc_put_span(vc_put_text(to, "?"), request->query);
    to = vc_put_text(to, request->is_http_1_0 ? " HTTP/1.0\r\n" : " HTTP/1.1\r\n");
    for (unsigned i = 0; i < request->field_count; i++) {
        switch (request->fields[i].known) {
        case VC_FIELD_HOST:
            to = vc_put_span(vc_put_text(to, "Host: "),
                             request->authority.at ? request->authority : request->fields[i].value);
            to = vc_put_text(to, "\r\n");
            break;
        case VC_FIELD_CONTENT_LENGTH: /* These are written below, if at all. */
        case VC_FIELD_TRANSFER_ENCODING:
        case VC_FIELD_CONNECTION:
        case VC_FIELD_EXPECT:
        case VC_FIELD_HOP: break;
        default: to = put_field(to, request, i); break;
        }
    }
    if (request->has_length) {
        to = vc_put_number(vc_put_text(to, "Content-Length: "), request->content_length);
        to = vc_put_text(to, "\r\n");
    }
    if (!request->keeps_alive) to = vc_put_text(to, "Connection: close\r\n");
    else if (request->is_http_1_0) to = vc_put_text(to, "Connection: keep-alive\r\n");
    return (size_t)(vc_put_text(to, "\r\n") - start);
}

/* --- Chunked bodies --------------------------------------------------------------------- */

enum { CHUNK_SIZE, CHUNK_END, TRAILER, BODY_END };
enum { SIZE_DIGITS = 15, SIZE_BYTES = 20, LINE_BYTES = 4096 };
static const char BAD_CHUNK[] =
    "bad request: the body is not chunked as it says; allowed is a size in hexadecimal digits"
    " before each chunk";

/* Read the line before a chunk. Returns why it is refused; NULL: it is not. */
static const char *read_chunk_size(const char *at, const char *end, uint64_t *size) {
    const char *start = at;
    unsigned digits = 0;
    for (*size = 0; at < end && CLASSES[(uint8_t)*at] & HEX; at++) {
        /* Zeros at the start do not count. */
        if (*size || *at != '0') digits++;
        if (digits > SIZE_DIGITS || at - start == SIZE_BYTES)
            return "bad request: a chunk is too large";
        *size = *size << 4 | vc_hex_digit(*at);
    }
    if (at == start) return BAD_CHUNK;
    if (at < end && *at == ';') return is_all(at, end, VALUE) ? NULL : BAD_CHUNK;
    /* Some clients fill the line up; no digits may follow. */
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    return at == end ? NULL : BAD_CHUNK;
}

static bool is_trailer(const char *at, const char *end) {
    const char *colon = memchr(at, ':', (size_t)(end - at));
    return colon && colon > at && is_all(at, colon, TOKEN) && is_all(colon, end, VALUE);
}

/* Take a line, without its end. Returns why it is refused; NULL: it is not. */
static const char *take_chunk_line(vc_chunks *chunks, const char *at, const char *end) {
    const char *error = NULL;
    switch (chunks->state) {
    case CHUNK_SIZE:
        error = read_chunk_size(at, end, &chunks->left);
        chunks->total += chunks->left;
        chunks->state = chunks->left ? CHUNK_END : TRAILER;
        return error;
    case CHUNK_END: chunks->state = CHUNK_SIZE; return at == end ? NULL : BAD_CHUNK;
    default:
        if (at == end) chunks->state = BODY_END;
        else if (!is_trailer(at, end)) error = BAD_CHUNK;
        return error;
    }
}

vc_chunks_state vc_chunks_take(vc_chunks *chunks, const char *data, size_t length, size_t *used,
                               char *to, size_t *written, const char **reason) {
    const char *at = data, *end = data + length;
    *written = 0;
    while (at < end && chunks->state != BODY_END) {
        size_t left = (size_t)(end - at), some = left < chunks->left ? left : (size_t)chunks->left;
        if (some) {
            memmove(to + *written, at, some);
            *written += some;
            at += some;
            chunks->left -= some;
            continue;
        }
        size_t most = LINE_BYTES - chunks->trailers;
        const char *feed = memchr(at, '\n', left < most ? left : most);
        *reason = NULL;
        if (!feed && left < most) break;
        if (!feed) *reason = "bad request: a line of a chunked body is too long";
        else if (feed == at || feed[-1] != '\r') *reason = BAD_CHUNK;
        else *reason = take_chunk_line(chunks, at, feed - 1);
        if (*reason) return VC_CHUNKS_REFUSED;
        if (chunks->state == TRAILER) chunks->trailers += (size_t)(feed + 1 - at);
        at = feed + 1;
    }
    *used = (size_t)(at - data);
    return chunks->state == BODY_END ? VC_CHUNKS_END : VC_CHUNKS_MORE;
}
