#include "plain.h"

enum {
    TYPE_BYTES = 255,       /* of a Content-Type that is stored */
    ENCODING_BYTES = 64,
};

/* Whether a field is stored as it is, by a test that fails for some. */
static bool is_storable(vc_text text, size_t length_max) {
    if (text.length > length_max) return false;
    for (size_t i = 0; i < text.length; i++)
        if ((uint8_t)text.at[i] < 0x20 || (uint8_t)text.at[i] >= 0x7F) return false;
    return true;
}

bool vc_plain_delete(const vc_request *request, vc_text path, size_t key_size) {
    return request->method == VC_DELETE && !vc_is_special(request) && !vc_has_condition(request) &&
           !request->is_chunked && !request->content_length && path.length - 1 <= key_size &&
           vc_path_is_ordinary(path.at, path.length);
}

bool vc_plain_put(const vc_request *request, vc_text path, size_t key_size, vc_put *put) {
    vc_text type = request->values[VC_FIELD_CONTENT_TYPE];
    vc_text encoding = request->values[VC_FIELD_CONTENT_ENCODING];
    if (request->method != VC_PUT || !request->has_length || vc_is_special(request) ||
        vc_has_condition(request) || vc_request_has(request, VC_FIELD_CACHE_CONTROL) ||
        vc_request_has(request, VC_FIELD_EXPIRES) ||
        vc_request_has(request, VC_FIELD_CONTENT_RANGE) ||
        vc_request_repeats(request, 1u << VC_FIELD_CONTENT_TYPE | 1u << VC_FIELD_CONTENT_ENCODING) || path.length - 1 > key_size ||
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
