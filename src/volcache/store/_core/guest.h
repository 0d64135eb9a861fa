/* How a process that does not own a store reads it, see shared.h. */
#ifndef VC_GUEST_H
#define VC_GUEST_H

#include "core.h"

typedef struct vc_guest vc_guest;
typedef enum { VC_GUEST_FOUND, VC_GUEST_ABSENT, VC_GUEST_ASK, VC_GUEST_LOST } vc_guest_result;

/* Map what the owner shares; the descriptors are the caller's, and that of the folder of data files
 * stays open. NULL: it cannot be used. */
vc_guest *vc_guest_new(int fd, int folder);
void vc_guest_free(vc_guest *guest);
/* Look a key up. FOUND: it is to be read. ABSENT is certain if `vc_guest_is_current` says so
 * afterwards. For one thread at a time. */
vc_guest_result vc_guest_find(vc_guest *guest, const uint8_t *key, size_t length, vc_lookup *at);
/* Read the first `room` bytes of the record and check them; FOUND: also its value, unless it is
 * a `head` only. Waits for the disk. For any thread. */
vc_guest_result vc_guest_read(const vc_guest *guest, const vc_lookup *at, const uint8_t *key,
                              size_t length, uint8_t *bytes, size_t room, bool is_head,
                              vc_record *record);
/* Whether the owner had the store still when the last lookup was made. */
bool vc_guest_is_current(const vc_guest *guest);

#endif
