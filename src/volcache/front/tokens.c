#include "tokens.h"

enum { DECODED_BYTES = 1024 };

static bool tokens_equal(vc_text text, vc_text other) {
    uint8_t difference = 0;
    if (text.length != other.length) return false;
    for (size_t i = 0; i < text.length; i++) difference |= (uint8_t)(text.at[i] ^ other.at[i]);
    return !difference;
}

bool vc_tokens_have(const vc_tokens *tokens, vc_text given) {
    bool is_right = false;
    for (unsigned i = 0; i < tokens->count; i++) is_right |= tokens_equal(given, tokens->right[i]);
    return is_right;
}

static bool tokens_allow_basic(const vc_tokens *tokens, vc_text encoded) {
    uint8_t decoded[DECODED_BYTES];
    if (encoded.length / 4 * 3 > DECODED_BYTES) return false;
    int length = vc_decode_base64(encoded, decoded);
    const char *colon = length > 0 ? memchr(decoded, ':', (size_t)length) : NULL;
    if (!colon) return false;
    return vc_tokens_have(
        tokens, (vc_text){colon + 1, (size_t)((const char *)decoded + length - colon - 1)});
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
