/* Texts: parts of others, without an end of their own. */
#ifndef VC_TEXT_H
#define VC_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

typedef struct {
    const char *at;
    size_t length;
} vc_text;

static inline vc_text vc_text_of(const char *text) { return (vc_text){text, strlen(text)}; }

static inline bool vc_text_equals(vc_text text, vc_text other) {
    return text.length == other.length && !memcmp(text.at, other.at, text.length);
}

static inline bool vc_text_is(vc_text text, const char *other) {
    return vc_text_equals(text, vc_text_of(other));
}

/* The same in upper or lower case. */
static inline bool vc_text_equals_name(vc_text text, vc_text other) {
    return text.length == other.length && !strncasecmp(text.at, other.at, text.length);
}

static inline bool vc_text_is_name(vc_text text, const char *other) {
    return vc_text_equals_name(text, vc_text_of(other));
}

/* Return a text without the spaces and tabs around it. */
vc_text vc_text_trim(const char *at, const char *end);
/* Take the next item of a list with commas. Returns false at its end. */
bool vc_text_next(vc_text *list, vc_text *item);
/* Read the digits at `*at`, which is moved behind them. Returns false if there are none; a number of
 * more than 64 bits is UINT64_MAX, and `*is_large`. */
bool vc_read_digits(const char **at, const char *end, uint64_t *number, bool *is_large);
/* The value of a hexadecimal digit. */
static inline unsigned vc_hex_digit(char digit) {
    return digit <= '9' ? (unsigned)(digit - '0') : (unsigned)((digit | 0x20) - 'a' + 10);
}
/* Return what follows a part of a head, in upper or lower case; NULL: it is not there. */
const char *vc_find_after(const char *head, const char *part);
/* Decode base64 to at most length / 4 * 3 bytes; return how many, or -1 if it is none. */
int vc_decode_base64(vc_text text, uint8_t *to);

/* Those that write return the end of what they have written. */
static inline char *vc_put_bytes(char *to, const void *data, size_t length) {
    memcpy(to, data, length);
    return to + length;
}

static inline char *vc_put_span(char *to, vc_text text) {
    return vc_put_bytes(to, text.at, text.length);
}

static inline char *vc_put_text(char *to, const char *text) {
    return vc_put_span(to, vc_text_of(text));
}

char *vc_put_number(char *to, uint64_t number);
/* At least `width` hexadecimal digits. */
char *vc_put_hex(char *to, uint64_t number, int width);
char *vc_put_base64(char *to, vc_text text);

#endif
