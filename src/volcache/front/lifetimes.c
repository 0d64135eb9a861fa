#include "lifetimes.h"

#include "conditions.h"

enum { DIRECTIVES_MAX = 16 };
/* As in upload.py: a longer max-age counts as 68 years, a later Expires as the year 2514. */
static const uint64_t AGE_SECONDS_MAX = UINT64_C(1) << 31;
static const int64_t EXPIRES_SECONDS_MAX = INT64_C(1) << 34;

typedef struct {
    vc_text name, value; /* value.at == NULL: there is none */
} directive;

static bool is_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }
static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Read a directive that is NAME or NAME=TOKEN; anything else is not in the usual form. */
static bool read_directive(const char *at, const char *end, directive *found) {
    const char *start = at;
    if (!is_letter(*at)) return false;
    while (at < end && (is_letter(*at) || is_digit(*at) || *at == '-')) at++;
    found->name = (vc_text){start, (size_t)(at - start)};
    found->value = (vc_text){NULL, 0};
    if (at == end) return true;
    if (*at++ != '=' || at == end) return false;
    found->value = (vc_text){at, (size_t)(end - at)};
    for (; at < end; at++)
        if (!is_letter(*at) && !is_digit(*at) && !memchr("!#$%&'*+.^_`|~-", *at, 15)) return false;
    return true;
}

/* Read how many seconds max-age says; 0 for a negative number. */
static bool read_age(vc_text text, int64_t *seconds) {
    const char *at = text.at, *end = text.at + text.length;
    bool is_negative = *at == '-', is_large;
    uint64_t number;
    at += is_negative;
    if (!vc_read_digits(&at, end, &number, &is_large) || at < end) return false;
    *seconds = is_negative                ? 0
               : number < AGE_SECONDS_MAX ? (int64_t)number
                                          : (int64_t)AGE_SECONDS_MAX;
    return true;
}

/* Add a directive to those that are stored; each is stored once. */
static bool keep_directive(vc_lifetime *to, vc_text *kept, unsigned *count, vc_text text) {
    size_t length = to->directives_length, gap = length ? 2 : 0;
    for (unsigned i = 0; i < *count; i++)
        if (vc_text_equals(kept[i], text)) return true;
    if (*count == DIRECTIVES_MAX || length + gap + text.length > VC_DIRECTIVES_BYTES) return false;
    memcpy(to->directives + length, ", ", gap);
    memcpy(to->directives + length + gap, text.at, text.length);
    to->directives_length = (uint8_t)(length + gap + text.length);
    kept[(*count)++] = text;
    return true;
}

/* Read Cache-Control; `*seconds` is -1 without max-age. */
static bool read_directives(vc_text list, vc_lifetime *to, int64_t *seconds) {
    vc_text kept[DIRECTIVES_MAX], item;
    unsigned count = 0;
    while (vc_text_next(&list, &item)) {
        directive found;
        if (!item.length) continue;
        if (!read_directive(item.at, item.at + item.length, &found)) return false;
        bool is_age = vc_text_is_name(found.name, "max-age");
        if (is_age && found.value.at && *seconds < 0 && !read_age(found.value, seconds))
            return false;
        if (!is_age && !vc_text_is_name(found.name, "s-maxage") &&
            !keep_directive(to, kept, &count, item))
            return false;
    }
    return true;
}

/* Read Expires: seconds since the epoch, 0 if that is in the past. */
static bool read_expires(vc_text text, int64_t *second) {
    *second = vc_text_is(text, "0") || vc_text_is(text, "-1") ? 0 : vc_parse_date(text);
    return *second >= 0;
}

bool vc_read_lifetime(const vc_request *request, int64_t now_ms, int64_t default_ttl,
                      int64_t max_ttl, vc_lifetime *lifetime) {
    vc_text control = request->values[VC_FIELD_CACHE_CONTROL];
    vc_text expires = request->values[VC_FIELD_EXPIRES];
    int64_t seconds = -1, date = 0, end = 0;
    lifetime->directives_length = 0;
    lifetime->expires_ms = 0;
    if (vc_request_repeats(request, 1u << VC_FIELD_CACHE_CONTROL | 1u << VC_FIELD_EXPIRES) ||
        (control.at && !read_directives(control, lifetime, &seconds)))
        return false;
    if (seconds > 0) end = now_ms + seconds * 1000;
    if (seconds < 0 && expires.at) {
        if (!read_expires(expires, &date)) return false;
        if (date > EXPIRES_SECONDS_MAX) date = EXPIRES_SECONDS_MAX;
        if (date * 1000 > now_ms) end = date * 1000;
    }
    if (!end && default_ttl) end = now_ms + default_ttl * 1000;
    if (max_ttl && (!end || end > now_ms + max_ttl * 1000)) end = now_ms + max_ttl * 1000;
    lifetime->expires_ms = (uint64_t)end;
    return true;
}
