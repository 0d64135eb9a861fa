#define _GNU_SOURCE
#include "text.h"

enum { NUMBER_BYTES = 20 };

vc_text vc_text_trim(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    while (end > at && (end[-1] == ' ' || end[-1] == '\t')) end--;
    return (vc_text){at, (size_t)(end - at)};
}

bool vc_text_next(vc_text *list, vc_text *item) {
    if (!list->length) return false;
    const char *comma = memchr(list->at, ',', list->length), *end = list->at + list->length;
    *item = vc_text_trim(list->at, comma ? comma : end);
    list->at = comma ? comma + 1 : end;
    list->length = (size_t)(end - list->at);
    return true;
}

bool vc_read_digits(const char **at, const char *end, uint64_t *number, bool *is_large) {
    const char *start = *at;
    *is_large = false;
    for (*number = 0; *at < end && **at >= '0' && **at <= '9'; ++*at) {
        uint64_t digit = (uint64_t)(**at - '0');
        *is_large = *is_large || *number > (UINT64_MAX - digit) / 10;
        *number = *is_large ? UINT64_MAX : *number * 10 + digit;
    }
    return *at > start;
}

const char *vc_find_after(const char *head, const char *part) {
    const char *at = strcasestr(head, part);
    return at ? at + strlen(part) : NULL;
}

/* --- Base64 --------------------------------------------------------------------------------- */

static const char BASE64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int vc_decode_base64(vc_text text, uint8_t *to) {
    const uint8_t *start = to;
    if (!text.length || text.length % 4) return -1;
    for (size_t i = 0; i < text.length; i += 4) {
        uint32_t bits = 0;
        unsigned padding = 0;
        for (size_t j = i; j < i + 4; j++) {
            const char *digit = memchr(BASE64, text.at[j], 64);
            bits <<= 6;
            if (text.at[j] == '=' && j >= text.length - 2) padding++;
            else if (!digit || padding) return -1;
            else bits |= (uint32_t)(digit - BASE64);
        }
        *to++ = (uint8_t)(bits >> 16);
        if (padding < 2) *to++ = (uint8_t)(bits >> 8);
        if (padding < 1) *to++ = (uint8_t)bits;
    }
    return (int)(to - start);
}

char *vc_put_base64(char *to, vc_text text) {
    for (size_t i = 0; i < text.length; i += 3) {
        uint32_t bits = 0;
        for (size_t j = i; j < i + 3; j++)
            bits = bits << 8 | (j < text.length ? (uint8_t)text.at[j] : 0);
        for (unsigned j = 0; j < 4; j++)
            *to++ = i + j > text.length ? '=' : BASE64[bits >> (18 - 6 * j) & 63];
    }
    return to;
}

/* --- Numbers -------------------------------------------------------------------------------- */

char *vc_put_number(char *to, uint64_t number) {
    char digits[NUMBER_BYTES];
    int at = NUMBER_BYTES;
    do {
        digits[--at] = (char)('0' + number % 10);
        number /= 10;
    } while (number);
    return vc_put_bytes(to, digits + at, (size_t)(NUMBER_BYTES - at));
}

char *vc_put_hex(char *to, uint64_t number, int width) {
    char digits[NUMBER_BYTES];
    int at = NUMBER_BYTES;
    while (number || NUMBER_BYTES - at < width) {
        digits[--at] = "0123456789abcdef"[number & 15];
        number >>= 4;
    }
    return vc_put_bytes(to, digits + at, (size_t)(NUMBER_BYTES - at));
}
