/* What a PUT says of how long its value lives, and the directives that are stored with it, as
 * http/upload.py reads them. What is not in the usual form is left to the application. */
#ifndef VC_LIFETIMES_H
#define VC_LIFETIMES_H

#include <stdbool.h>

#include "request.h"

enum { VC_DIRECTIVES_BYTES = 255 };

typedef struct {
    uint64_t expires_ms;                  /* by the clock of the machine; 0: never */
    char directives[VC_DIRECTIVES_BYTES]; /* of Cache-Control, without its lifetime */
    uint8_t directives_length;
} vc_lifetime;

/* Returns false if the application has to decide. `now_ms`: by the clock of the machine;
 * `default_ttl`, `max_ttl`: seconds, 0: none. */
bool vc_read_lifetime(const vc_request *request, int64_t now_ms, int64_t default_ttl,
                      int64_t max_ttl, vc_lifetime *lifetime);

#endif
