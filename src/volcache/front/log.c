#include "log.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "clock.h"

enum {
    LOG_WORD_BYTES = 200, /* of a field */
    LOG_PATH_BYTES = 4096,
    /* Three fields in quotes and a query, with five bytes for each, and what else a line has. */
    LOG_LINE_BYTES = LOG_PATH_BYTES + 4 * (5 * LOG_WORD_BYTES) + 2048,
};

struct vc_log {
    pthread_mutex_t mutex;
    bool is_json;
    size_t room, used; /* of the present buffer */
    unsigned present;
    uint64_t dropped;
    int64_t second; /* of `time` */
    char time[32];
    char *buffers[2];
};

/* --- What comes from clients ------------------------------------------------------------------ */

static bool log_is_plain(uint8_t byte) {
    bool is_letter = (byte | 0x20) >= 'a' && (byte | 0x20) <= 'z';
    /* "!", "$" to ";", "=", "@", "_" and "~", without "%" and '"'. */
    return is_letter || (byte >= '$' && byte <= ';' && byte != '%') || byte == '_' || byte == '=' ||
           byte == '~' || byte == '@' || byte == '!';
}

static char *log_put_hex(char *to, uint8_t byte) {
    *to++ = "0123456789ABCDEF"[byte >> 4];
    *to++ = "0123456789ABCDEF"[byte & 15];
    return to;
}

/* Write a text percent-encoded; "-" if there is none. `is_encoded`: it is already, perhaps more than
 * need be. */
static char *log_put_word(char *to, vc_text text, size_t most, bool is_encoded) {
    const char *end = to + most;
    if (!text.length) *to++ = '-';
    for (size_t i = 0; i < text.length; i++) {
        if (to > end - 3) return vc_put_text(to, "...");
        uint8_t byte = (uint8_t)text.at[i];
        if (is_encoded && byte == '%' && i + 2 < text.length) {
            byte = (uint8_t)(vc_hex_digit(text.at[i + 1]) << 4 | vc_hex_digit(text.at[i + 2]));
            i += 2;
        }
        if (!log_is_plain(byte)) {
            *to++ = '%';
            to = log_put_hex(to, byte);
        } else {
            *to++ = (char)byte;
        }
    }
    return to;
}

/* Write a text for a field in double quotes, as nginx does. `left`: bytes that may be shown; below
 * 0: it was cut. */
static char *log_put_quoted(const vc_log *log, char *to, vc_text text, int *left) {
    for (size_t i = 0; i < text.length && *left >= 0; i++, --*left) {
        char byte = text.at[i];
        if (!*left) to = vc_put_text(to, "...");
        else if (byte >= ' ' && byte < 0x7F && byte != '"' && byte != '\\') *to++ = byte;
        else to = log_put_hex(vc_put_text(to, log->is_json ? "\\\\x" : "\\x"), (uint8_t)byte);
    }
    return to;
}

/* Write the values of all header fields of a name. */
static char *log_put_header(const vc_log *log, char *to, const vc_request *request,
                            const char *name) {
    int left = LOG_WORD_BYTES;
    char *start = to;
    *to++ = '"';
    for (unsigned i = 0; request && i < request->field_count; i++) {
        const vc_field *field = &request->fields[i];
        if (!field->value.length || !vc_text_is_name(field->name, name)) continue;
        if (to != start + 1) to = log_put_quoted(log, to, vc_text_of(", "), &left);
        to = log_put_quoted(log, to, field->value, &left);
    }
    if (to == start + 1) return vc_put_text(start, log->is_json ? "null" : "\"-\"");
    *to++ = '"';
    return to;
}

/* Write what a request or a command asks for. */
static char *log_put_uri(const vc_log *log, char *to, const vc_log_line *line) {
    int left = LOG_WORD_BYTES;
    if (!line->request) {
        if (line->key.length) *to++ = '/';
        return log_put_word(to, line->key, LOG_PATH_BYTES, false);
    }
    to = log_put_word(to, line->request->path, LOG_PATH_BYTES, true);
    if (!line->request->query.length) return to;
    *to++ = '?';
    return log_put_quoted(log, to, line->request->query, &left);
}

/* --- Lines -------------------------------------------------------------------------------------- */

/* Write a time as nginx does: "21/Nov/2026:09:00:00 +0000"; or "2026-11-21T09:00:00". */
static void log_update_time(vc_log *log, int64_t second) {
    struct tm now;
    if (second == log->second) return;
    log->second = second;
    strftime(log->time, sizeof(log->time),
             log->is_json ? "%Y-%m-%dT%H:%M:%S" : "%d/%b/%Y:%H:%M:%S +0000",
             gmtime_r(&second, &now));
}

/* Write a field that may be absent. */
static char *log_put_field(const vc_log *log, char *to, vc_text text) {
    if (!text.at) return vc_put_text(to, log->is_json ? "null" : "-");
    if (log->is_json) *to++ = '"';
    to = log_put_word(to, text, LOG_WORD_BYTES, false);
    if (log->is_json) *to++ = '"';
    return to;
}

static vc_text log_position(const vc_log_line *line, char *to) {
    const vc_record *record = line->record;
    if (!record) return line->position;
    char *end = vc_put_number(to, record->volume);
    end = vc_put_number(vc_put_text(end, ","), record->offset);
    end = vc_put_number(vc_put_text(end, ","), record->size);
    return (vc_text){to, (size_t)(end - to)};
}

static char *log_put_seconds(char *to, int64_t ns) {
    uint64_t micros = (uint64_t)(ns + 500) / 1000, rest = micros % 1000000;
    to = vc_put_number(to, micros / 1000000);
    *to = '.';
    for (int i = 6; i; rest /= 10) to[i--] = (char)('0' + rest % 10);
    return to + 7;
}

static char *log_put_line(const vc_log *log, char *to, const vc_log_line *line, int64_t now_us) {
    const bool is_json = log->is_json;
    const vc_request *request = line->request;
    vc_text method = request ? request->method_text : vc_text_of(line->command);
    char place[80];
    if (is_json)
        to += sprintf(to, "{\"time\": \"%s.%03dZ\", \"remote\": \"", log->time,
                      (int)(now_us / 1000 % 1000));
    to = log_put_word(to, vc_text_of(line->remote), LOG_WORD_BYTES, false);
    if (!is_json) to = vc_put_text(vc_put_text(vc_put_text(to, " - - ["), log->time), "]");
    to = vc_put_text(to, is_json ? "\", \"method\": \"" : " \"");
    to = log_put_word(to, method, LOG_WORD_BYTES, false);
    to = log_put_uri(log, vc_put_text(to, is_json ? "\", \"uri\": \"" : " "), line);
    to = vc_put_text(to, is_json ? "\", \"protocol\": \"" : " ");
    to = vc_put_text(to, !request ? "memcache" : request->is_http_1_0 ? "HTTP/1.0" : "HTTP/1.1");
    to = vc_put_text(to, is_json ? "\", \"status\": " : "\" ");
    to = vc_put_number(to, (uint64_t)line->status);
    to = vc_put_number(vc_put_text(to, is_json ? ", \"bytes\": " : " "), line->bytes);
    to = vc_put_text(to, is_json ? ", \"referer\": " : " ");
    to = log_put_header(log, to, request, "referer");
    to = vc_put_text(to, is_json ? ", \"agent\": " : " ");
    to = log_put_header(log, to, request, "user-agent");
    to = vc_put_text(to, is_json ? ", \"forwarded\": " : " ");
    to = log_put_header(log, to, request, "x-forwarded-for");
    to = log_put_field(log, vc_put_text(to, is_json ? ", \"cache\": " : " cache="), line->cache);
    to = log_put_field(log, vc_put_text(to, is_json ? ", \"position\": " : " position="),
                       log_position(line, place));
    if (!request)
        to = log_put_field(log, vc_put_text(to, is_json ? ", \"result\": " : " result="),
                           vc_text_of(line->result));
    to = log_put_seconds(vc_put_text(to, is_json ? ", \"seconds\": " : " seconds="), line->took_ns);
    return vc_put_text(to, is_json ? "}\n" : "\n");
}

void vc_log_add(vc_log *log, const vc_log_line *line) {
    pthread_mutex_lock(&log->mutex);
    if (log->used + LOG_LINE_BYTES > log->room) {
        log->dropped++;
    } else {
        int64_t now_us = vc_machine_us();
        char *to = log->buffers[log->present] + log->used;
        log_update_time(log, now_us / 1000000);
        log->used += (size_t)(log_put_line(log, to, line, now_us) - to);
    }
    pthread_mutex_unlock(&log->mutex);
}

const char *vc_log_take(vc_log *log, size_t *length, uint64_t *dropped) {
    pthread_mutex_lock(&log->mutex);
    const char *taken = log->buffers[log->present];
    *length = log->used;
    *dropped = log->dropped;
    log->present ^= 1;
    log->used = 0;
    pthread_mutex_unlock(&log->mutex);
    return taken;
}

vc_log *vc_log_new(bool is_json, size_t bytes_max) {
    vc_log *log = calloc(1, sizeof(vc_log));
    if (!log) return NULL;
    pthread_mutex_init(&log->mutex, NULL);
    log->is_json = is_json;
    log->second = -1;
    log->room = bytes_max / 2 + LOG_LINE_BYTES;
    for (int i = 0; i < 2; i++) log->buffers[i] = malloc(log->room);
    if (log->buffers[0] && log->buffers[1]) return log;
    vc_log_free(log);
    return NULL;
}

void vc_log_free(vc_log *log) {
    if (!log) return;
    for (int i = 0; i < 2; i++) free(log->buffers[i]);
    free(log);
}
