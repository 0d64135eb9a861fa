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

static inline bool vc_text_is(vc_text text, const char *other) {
    return text.length == strlen(other) && !memcmp(text.at, other, text.length);
}

/* The same in upper or lower case. */
static inline bool vc_text_is_name(vc_text text, const char *other) {
    return text.length == strlen(other) && !strncasecmp(text.at, other, text.length);
}

/* Return a text without the spaces and tabs around it. */
vc_text vc_text_trim(const char *at, const char *end);
/* Take the next item of a list with commas. Returns false at its end. */
bool vc_text_next(vc_text *list, vc_text *item);
/* Read the digits at `*at`, which is moved behind them. Returns false if there are none; a number of
 * more than 64 bits is UINT64_MAX, and `*is_large`. */
bool vc_read_digits(const char **at, const char *end, uint64_t *number, bool *is_large);
/* Decode base64 to at most length / 4 * 3 bytes; return how many, or -1 if it is none. */
int vc_decode_base64(vc_text text, uint8_t *to);

/* Those that write return the end of what they have written. */
static inline char *vc_put_bytes(char *to, const void *data, size_t length) {
    memcpy(to, data, length);
    return to + length;
}

static inline char *vc_put_text(char *to, const char *text) {
    return vc_put_bytes(to, text, strlen(text));
}

char *vc_put_number(char *to, uint64_t number);
/* At least `width` hexadecimal digits. */
char *vc_put_hex(char *to, uint64_t number, int width);
char *vc_put_base64(char *to, vc_text text);

#endif
