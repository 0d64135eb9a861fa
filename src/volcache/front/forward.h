/* Requests that the application answers: to bjoern on its Unix socket, and back.
 *
 * A request goes on a connection of its own, one of those that are kept or a new one; so none waits
 * for the client of another. Its body is forwarded as it arrives. bjoern gets it in one canonical
 * form, with the client's address in a field that a client cannot set (VC_REMOTE_FIELD). Its answer is
 * sent on as the client takes it. If the client goes, the rest of the answer is dropped: bjoern
 * would report a connection that is closed before. */
#ifndef VC_FORWARD_H
#define VC_FORWARD_H

#include "connection.h"

#define VC_REMOTE_FIELD "X-Volcache-Remote"
/* Before the address of a client of the operator's address. */
#define VC_ADMIN_PREFIX "admin "

typedef struct vc_upstreams vc_upstreams;

/* Return NULL without memory. `path`: of bjoern's socket; it lives longer. */
vc_upstreams *vc_upstreams_new(vc_home *home, const char *path);
/* Since when bjoern has neither taken nor sent a byte, although requests wait for it; 0: none does. */
int64_t vc_upstreams_stalled_since(const vc_upstreams *upstreams);
/* Close all connections to bjoern. */
void vc_upstreams_free(vc_upstreams *upstreams);

/* Begin the exchange that `stream->forward` describes; its body begins with the rest of the input.
 * Returns false without memory. */
bool vc_forward_open(vc_connection *c);
/* Move bytes in both directions, a bounded number; nothing is unsent to the client. */
void vc_forward_serve(vc_connection *c);
/* It waits for the application: end a request that has waited since a time, or let it go on. bjoern
 * does what it was sent, and its answer is dropped; the operator's requests may take their time. */
void vc_forward_tick(vc_connection *c, int64_t since_ns);
/* The connection ends. */
void vc_forward_abandon(vc_connection *c);

#endif
