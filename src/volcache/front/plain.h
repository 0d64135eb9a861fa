/* Which requests are plain: the gate answers them, without Python.
 *
 * These rules are stricter than those of the application. What fails one of them is passed to it,
 * and may well be answered there. */
#ifndef VC_PLAIN_H
#define VC_PLAIN_H

#include <stdbool.h>

#include "answer.h"
#include "core.h"
#include "request.h"

enum { VC_TOKENS = 4 };

/* Any of these is right. */
typedef struct {
    vc_text right[VC_TOKENS];
    unsigned count;             /* 0: no token is needed */
} vc_tokens;

/* Whether a request may be answered with what it has of `Authorization`. Compares in a time that
 * does not depend on what is right. */
bool vc_tokens_allow(const vc_tokens *tokens, vc_text authorization);

/* Whether a request has a condition that `vc_is_unmodified` evaluates. */
static inline bool vc_has_condition(const vc_request *request) {
    return request->if_none_match.at || request->if_modified_since.at;
}

typedef enum { VC_MODIFIED, VC_UNMODIFIED, VC_UNDECIDED } vc_verdict;

/* Evaluate the conditions of a GET or HEAD in a second: an If-None-Match of one tag, otherwise an
 * If-Modified-Since of the date in Last-Modified. All others are undecided. */
vc_verdict vc_is_unmodified(const vc_request *request, const vc_record *record, int64_t second);

/* Whether a DELETE deletes the key of a path, now and for ever. */
bool vc_plain_delete(const vc_request *request, vc_text path, size_t key_size);

/* Whether a PUT stores its body as it is under a path, now and for ever; a key has up to
 * `key_size` bytes. If so, set what `put` is to store, without its value. The texts are parts of
 * the request and of `path`. */
bool vc_plain_put(const vc_request *request, vc_text path, size_t key_size, vc_put *put);

#endif
