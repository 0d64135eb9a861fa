/* Which requests are plain: the gate answers them, without Python.
 *
 * These rules are stricter than those of the application. What fails one of them is passed to it,
 * and may well be answered there. */
#ifndef VC_PLAIN_H
#define VC_PLAIN_H

#include <stdbool.h>

#include "conditions.h"
#include "core.h"
#include "request.h"
#include "tokens.h"

/* The value of a field; empty if there are several. */
static inline vc_text vc_only(const vc_request *request, vc_field_name name) {
    vc_text value = request->values[name];
    if (vc_request_repeats(request, 1u << name)) value.length = 0;
    return value;
}

/* Whether the answer depends on a field that only the application looks at. */
static inline bool vc_is_special(const vc_request *request) {
    return vc_request_has(request, VC_FIELD_RANGE) || vc_request_has(request, VC_FIELD_IF_RANGE) ||
           vc_request_has(request, VC_FIELD_IF_MATCH) ||
           vc_request_has(request, VC_FIELD_IF_UNMODIFIED_SINCE) ||
           vc_request_has(request, VC_FIELD_SERVICE_WORKER);
}

/* Whether a DELETE deletes the key of a path, now and for ever. */
bool vc_plain_delete(const vc_request *request, vc_text path, size_t key_size);

/* Whether a PUT stores its body as it is under a path, now and for ever; a key has up to
 * `key_size` bytes. If so, set what `put` is to store, without its value. The texts are parts of
 * the request and of `path`. */
bool vc_plain_put(const vc_request *request, vc_text path, size_t key_size, vc_put *put);

#endif
