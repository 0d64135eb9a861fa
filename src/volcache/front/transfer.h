/* Large values: verified by a thread, and sent from the disk in pieces that threads read.
 *
 * No whole value is in memory. Its volume may be overwritten meanwhile: so the head of the record is
 * read again after each piece. Volumes are written from their beginning: if the head is intact, what
 * was read after it is, too. Otherwise the connection is closed. */
#ifndef VC_TRANSFER_H
#define VC_TRANSFER_H

#include "connection.h"

/* Verify the value of a record without keeping it; for `vc_job.work`. */
void vc_transfer_verify(vc_job *job, vc_core *core, const vc_core_functions *functions);

/* Begin to send what `stream` describes; owns its read. Returns false without memory. */
bool vc_transfer_open(vc_connection *c);
/* All before it is sent: read the next piece, or end. */
void vc_transfer_go_on(vc_connection *c);
/* A piece was read. */
void vc_transfer_send(vc_connection *c);
void vc_transfer_free(vc_connection *c);

#endif
