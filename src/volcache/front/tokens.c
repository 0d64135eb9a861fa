#include "tokens.h"

#include <string.h>
#include <strings.h>

enum { DECODED_BYTES = 1024 };

static bool tokens_equal(vc_text text, vc_text other) {
    uint8_t difference = 0;
    if (text.length != other.length) return false;
    for (size_t i = 0; i < text.length; i++)
        difference |= (uint8_t)(text.at[i] ^ other.at[i]);
    return !difference;
}

bool vc_tokens_have(const vc_tokens *tokens, vc_text given) {
    bool is_right = false;
    for (unsigned i = 0; i < tokens->count; i++) is_right |= tokens_equal(given, tokens->right[i]);
    return is_right;
}

/* The six bits that a digit of base64 stands for; -1: it is none. */
static int tokens_digit(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Decode what an encoder writes; anything else is refused. Returns the length, -1 if refused. */
static int tokens_decode(vc_text from, char to[DECODED_BYTES]) {
    size_t length = 0, padding = 0;
    if (!from.length || from.length % 4 || from.length / 4 * 3 > DECODED_BYTES) return -1;
    while (padding < 2 && from.at[from.length - 1 - padding] == '=') padding++;
    for (size_t i = 0; i < from.length; i += 4) {
        uint32_t bits = 0;
        size_t digits = i + 4 < from.length ? 4 : 4 - padding;
        for (size_t j = 0; j < 4; j++) {
            int digit = j < digits ? tokens_digit(from.at[i + j]) : 0;
            if (digit < 0) return -1;
            bits = bits << 6 | (uint32_t)digit;
        }
        for (size_t j = 0; j + 1 < digits; j++) to[length++] = (char)(bits >> (16 - 8 * j));
        if (digits < 4 && bits & ((1u << 8 * padding) - 1)) return -1;
    }
    return (int)length;
}

static bool tokens_allow_basic(const vc_tokens *tokens, vc_text encoded) {
    char decoded[DECODED_BYTES];
    int length = tokens_decode(encoded, decoded);
    const char *colon = length > 0 ? memchr(decoded, ':', (size_t)length) : NULL;
    if (!colon) return false;
    return vc_tokens_have(tokens,
                          (vc_text){colon + 1, (size_t)(decoded + length - colon - 1)});
}

/* Return what follows a scheme and a space; at == NULL for another scheme. */
static vc_text tokens_after(vc_text authorization, const char *scheme) {
    size_t length = strlen(scheme);
    if (authorization.length <= length || strncasecmp(authorization.at, scheme, length))
        return (vc_text){NULL, 0};
    while (length < authorization.length &&
           (authorization.at[length] == ' ' || authorization.at[length] == '\t'))
        length++;
    return (vc_text){authorization.at + length, authorization.length - length};
}

bool vc_tokens_allow(const vc_tokens *tokens, vc_text authorization) {
    if (!tokens->count) return true;
    vc_text token = tokens_after(authorization, "bearer ");
    if (token.at) return vc_tokens_have(tokens, token);
    token = tokens_after(authorization, "basic ");
    return token.at && tokens_allow_basic(tokens, token);
}
