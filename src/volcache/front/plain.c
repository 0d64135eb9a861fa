#include "plain.h"

#include <string.h>
#include <strings.h>

enum {
    TYPE_BYTES = 255,       /* of a Content-Type that is stored */
    ENCODING_BYTES = 64,
};

static bool is_equal(vc_text text, vc_text other) {
    uint8_t difference = 0;
    if (text.length != other.length) return false;
    for (size_t i = 0; i < text.length; i++)
        difference |= (uint8_t)(text.at[i] ^ other.at[i]);
    return !difference;
}

bool vc_tokens_allow(const vc_tokens *tokens, vc_text authorization) {
    static const char SCHEME[] = "bearer ";
    size_t start = sizeof(SCHEME) - 1;
    bool is_right = false;
    if (!tokens->count) return true;
    if (authorization.length <= start || strncasecmp(authorization.at, SCHEME, start))
        return false;
    while (authorization.at[start] == ' ' || authorization.at[start] == '\t') start++;
    vc_text token = {authorization.at + start, authorization.length - start};
    for (unsigned i = 0; i < tokens->count; i++) is_right |= is_equal(token, tokens->right[i]);
    return is_right;
}

/* Whether a field is stored as it is, by a test that fails for some. */
static bool is_storable(vc_text text, size_t length_max) {
    if (text.length > length_max) return false;
    for (size_t i = 0; i < text.length; i++)
        if ((uint8_t)text.at[i] < 0x20 || (uint8_t)text.at[i] >= 0x7F) return false;
    return true;
}

static bool is_text(vc_text text, const char *other, size_t length) {
    return text.length == length && !memcmp(text.at, other, length);
}

/* Whether a list of one tag has the tag of a record; both are compared weakly. */
static vc_verdict compare_tag(vc_text list, const vc_record *record) {
    char tag[VC_TAG_BYTES + 2] = "\"", *end = vc_put_tag(tag + 1, record);
    *end++ = '"';
    if (list.length > 2 && !memcmp(list.at, "W/", 2)) list.at += 2, list.length -= 2;
    if (list.length < 2 || list.at[0] != '"' ||
        memchr(list.at + 1, '"', list.length - 1) != list.at + list.length - 1)
        return VC_UNDECIDED;
    return is_text(list, tag, (size_t)(end - tag)) ? VC_UNMODIFIED : VC_MODIFIED;
}

vc_verdict vc_is_unmodified(const vc_request *request, const vc_record *record, int64_t second) {
    char date[VC_DATE_BYTES];
    int64_t modified = (int64_t)(record->stored_us / 1000000) + 1;
    if (request->if_none_match.at) return compare_tag(request->if_none_match, record);
    if (!request->if_modified_since.at) return VC_MODIFIED;
    if (modified > second) return VC_UNDECIDED;
    vc_put_date(date, modified);
    return is_text(request->if_modified_since, date, VC_DATE_BYTES) ? VC_UNMODIFIED
                                                                    : VC_UNDECIDED;
}

bool vc_plain_delete(const vc_request *request, vc_text path, size_t key_size) {
    return request->method == VC_DELETE && !request->is_special && !vc_has_condition(request) &&
           !request->is_chunked && !request->content_length && path.length - 1 <= key_size &&
           vc_path_is_ordinary(path.at, path.length);
}

bool vc_plain_put(const vc_request *request, vc_text path, size_t key_size, vc_put *put) {
    vc_text type = request->content_type, encoding = request->content_encoding;
    if (request->method != VC_PUT || !request->has_length || request->is_special ||
        vc_has_condition(request) ||
        request->is_special_put || path.length - 1 > key_size ||
        !vc_path_is_ordinary(path.at, path.length) || !is_storable(type, TYPE_BYTES) ||
        !is_storable(encoding, ENCODING_BYTES))
        return false;
    *put = (vc_put){
        .record.key_length = (uint16_t)(path.length - 1),
        .record.type_length = (uint8_t)type.length,
        .record.encoding_length = (uint8_t)encoding.length,
        .record.length = request->content_length,
        .type = (const uint8_t *)type.at,
        .encoding = (const uint8_t *)encoding.at,
        .key = (const uint8_t *)path.at + 1,
        .ring = VC_RING_UNKNOWN,
    };
    return true;
}
