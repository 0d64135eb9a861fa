#include "mc_parts.h"

#include <stdio.h>

vc_text vc_mc_next_word(const char **at, const char *end) {
    const char *stop = memchr(*at, ' ', (size_t)(end - *at));
    vc_text word = {*at, (size_t)((stop ? stop : end) - *at)};
    for (*at += word.length; *at < end && **at == ' ';) ++*at;
    return word;
}

/* --- Numbers ----------------------------------------------------------------------------- */

static bool is_white(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* Read a sign and a number, which ends at the end of the text, at white space or at a NUL byte. */
static bool mc_words_read_number(vc_text word, bool *is_negative, uint64_t *number) {
    const char *at = word.at, *end = word.at + word.length;
    while (at < end && is_white(*at)) at++;
    *is_negative = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) at++;
    bool is_large, has_digits = vc_read_digits(&at, end, number, &is_large);
    return has_digits && !is_large && (at == end || is_white(*at) || !*at);
}

bool vc_mc_read_unsigned(vc_text word, uint64_t largest, uint64_t *number) {
    bool is_negative;
    return mc_words_read_number(word, &is_negative, number) && *number <= largest &&
           !(is_negative && *number);
}

bool vc_mc_read_signed(vc_text word, int64_t *number) {
    bool is_negative;
    uint64_t size;
    if (!mc_words_read_number(word, &is_negative, &size)) return false;
    if (size > (uint64_t)INT64_MAX + is_negative) return false;
    *number = is_negative ? (int64_t)-size : (int64_t)size;
    return true;
}

bool vc_mc_decode_key(vc_mc_command *command) {
    int length = vc_decode_base64(command->key, command->decoded);
    if (length < 0) return false;
    command->key = (vc_text){(const char *)command->decoded, (size_t)length};
    return true;
}

/* --- Keys --------------------------------------------------------------------------------- */

const char *vc_mc_refuse_key(vc_text key, size_t size_max, char reason[VC_MC_REASON_BYTES]) {
    switch (vc_key_check(key)) {
    case VC_KEY_CONTROL:
        return "bad key: it holds a control byte; a key is the path after its first slash,"
               " without control bytes";
    case VC_KEY_RESERVED: return "bad key: the prefix \"-/\" is reserved";
    case VC_KEY_DOTS:
        return "bad key: it holds a segment \".\" or \"..\"; a key is the path of a URL";
    default: break;
    }
    if (key.length <= size_max) return NULL;
    snprintf(reason, VC_MC_REASON_BYTES, "key is %zu bytes long; allowed are 1 to %zu", key.length,
             size_max);
    return reason;
}
