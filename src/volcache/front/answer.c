#define _GNU_SOURCE
#include "answer.h"

#include <stdlib.h>
#include <string.h>

static char *put_two(char *to, int64_t number) {
    *to++ = (char)('0' + number / 10);
    *to++ = (char)('0' + number % 10);
    return to;
}

char *vc_put_date(char *to, int64_t second) {
    int64_t days = second / 86400, rest = second % 86400;
    /* The calendar repeats after 400 years of 146,097 days. The year begins in March here, so
     * that the leap day is its last: then the months before it have fixed lengths. */
    int64_t day = days + 719468, era = day / 146097;
    day -= era * 146097;
    int64_t year = (day - day / 1460 + day / 36524 - day / 146096) / 365;
    day -= 365 * year + year / 4 - year / 100;
    int64_t month = (5 * day + 2) / 153;
    day -= (153 * month + 2) / 5;
    month += month < 10 ? 2 : -10;
    year += 400 * era + (month < 2);
    to = vc_put_bytes(to, &"ThuFriSatSunMonTueWed"[3 * (days % 7)], 3);
    to = put_two(vc_put_text(to, ", "), day + 1);
    to = vc_put_bytes(vc_put_text(to, " "), &"JanFebMarAprMayJunJulAugSepOctNovDec"[3 * month], 3);
    to = put_two(put_two(vc_put_text(to, " "), year / 100), year % 100);
    to = put_two(vc_put_text(to, " "), rest / 3600);
    to = put_two(vc_put_text(to, ":"), rest / 60 % 60);
    to = put_two(vc_put_text(to, ":"), rest % 60);
    return vc_put_text(to, " GMT");
}

/* --- Content types -------------------------------------------------------------------- */

/* NULL: there is none. */
static const char *find_type(const vc_types *types, const uint8_t *key, size_t length) {
    const uint8_t *dot = memrchr(key, '.', length);
    if (!dot) return NULL;
    size_t size = (size_t)(key + length - dot);
    if (size >= VC_SUFFIX_BYTES) return NULL;
    char suffix[VC_SUFFIX_BYTES] = {0};
    for (size_t i = 0; i < size; i++)
        suffix[i] = (char)(dot[i] >= 'A' && dot[i] <= 'Z' ? dot[i] | 0x20 : dot[i]);
    size_t low = 0, high = types->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = memcmp(suffix, types->rows[middle].suffix, VC_SUFFIX_BYTES);
        if (!order) return types->rows[middle].type;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

const char *vc_types_guess(const vc_types *types, const uint8_t *key, size_t length) {
    const uint8_t *mark = memchr(key, '?', length);
    const char *found = mark ? find_type(types, key, (size_t)(mark - key)) : NULL;
    if (!found) found = find_type(types, key, length);
    return found ? found : "application/octet-stream";
}

/* --- Headers -------------------------------------------------------------------------- */

char *vc_put_tag(char *to, const vc_record *record) {
    to = vc_put_hex(to, record->stored_us, 1);
    return vc_put_hex(vc_put_text(to, "-"), record->checksum, 8);
}

/* Write Content-Length, which bjoern looks for by its name, X-Position and ETag. */
static char *put_position(char *to, uint64_t length, const vc_record *record) {
    to = vc_put_number(vc_put_text(to, "Content-Length: "), length);
    to = vc_put_number(vc_put_text(to, "\r\nX-Position: "), record->volume);
    to = vc_put_number(vc_put_text(to, ","), record->offset);
    to = vc_put_number(vc_put_text(to, ","), record->size);
    return vc_put_text(vc_put_tag(vc_put_text(to, "\r\nETag: \""), record), "\"");
}

/* A client that is told nothing may guess a lifetime from Last-Modified. */
static char *put_cache_control(char *to, const vc_record *record, int64_t remaining_ms) {
    if (record->expires_ms) {
        to = vc_put_text(to, "max-age=");
        to = vc_put_number(to, remaining_ms > 0 ? (uint64_t)remaining_ms / 1000 : 0);
        if (record->cache_length) to = vc_put_text(to, ", ");
    } else if (!record->cache_length) {
        return vc_put_text(to, "no-cache");
    }
    return vc_put_bytes(to, record->type + record->type_length + record->encoding_length,
                        record->cache_length);
}

/* Write what follows Content-Type. */
static char *put_rest(char *to, const vc_record *record, int64_t second, int64_t remaining_ms) {
    int64_t stored = (int64_t)(record->stored_us / 1000000);
    to = vc_put_text(to, "\r\nAccept-Ranges: bytes\r\nX-Content-Type-Options: nosniff"
                         "\r\nContent-Security-Policy: sandbox\r\nCache-Control: ");
    to = put_cache_control(to, record, remaining_ms);
    if (stored < second) to = vc_put_date(vc_put_text(to, "\r\nLast-Modified: "), stored + 1);
    if (record->encoding_length) {
        to = vc_put_text(to, "\r\nContent-Encoding: ");
        to = vc_put_bytes(to, record->type + record->type_length, record->encoding_length);
    }
    if (record->flags) to = vc_put_number(vc_put_text(to, "\r\nX-Flags: "), record->flags);
    return to;
}

char *vc_put_unmodified_headers(char *to, const vc_record *record, int64_t second,
                                int64_t remaining_ms) {
    to = vc_put_text(put_position(to, record->length, record), "\r\nX-Cache: DISK");
    return put_rest(to, record, second, remaining_ms);
}

char *vc_put_headers_from(char *to, const char *source, const vc_record *record, uint64_t length,
                          const vc_types *guess, int64_t second, int64_t remaining_ms) {
    to = put_position(to, length, record);
    to = vc_put_bytes(vc_put_text(to, "\r\nX-Cache: "), source, 4);
    to = vc_put_text(to, "\r\nContent-Type: ");
    if (record->type_length) to = vc_put_bytes(to, record->type, record->type_length);
    else to = vc_put_text(to, vc_types_guess(guess, record->key, record->key_length));
    return put_rest(to, record, second, remaining_ms);
}

char *vc_put_stored_headers(char *to, const vc_record *record) {
    return put_position(to, 0, record);
}
