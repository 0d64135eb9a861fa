/* Tokens of clients, as http/auth.py finds them: `Bearer TOKEN`, or the password of `Basic`. */
#ifndef VC_TOKENS_H
#define VC_TOKENS_H

#include <stdbool.h>

#include "request.h"

enum { VC_TOKENS = 4 };

/* Any of these is right. */
typedef struct {
    vc_text right[VC_TOKENS];
    unsigned count; /* 0: no token is needed */
} vc_tokens;

/* Whether this is one of the tokens. Takes a time that does not depend on what is right. */
bool vc_tokens_have(const vc_tokens *tokens, vc_text given);
/* Whether a request with this `Authorization` may be answered. If not, the application decides: it
 * counts wrong tokens, and reads forms that are not read here. */
bool vc_tokens_allow(const vc_tokens *tokens, vc_text authorization);

#endif
