/* A table of recently seen keys: 16 bits of each fingerprint, in buckets of 8. In each bucket
 * the oldest is dropped for the newest. A key that was never added is found with a
 * probability of 8 / 65,536. The number of buckets is a power of two, so there is room for
 * half of the keys asked for to all of them. Not thread-safe. */
#ifndef VC_GHOST_H
#define VC_GHOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint16_t (*buckets)[8];
    uint64_t mask; /* number of buckets - 1 */
} vc_ghost;

/* An empty table for up to `keys` keys; false without memory. */
bool vc_ghost_init(vc_ghost *ghost, uint64_t keys);
void vc_ghost_free(vc_ghost *ghost);
/* Have room for up to `keys` keys from now on. Without memory, nothing changes. */
void vc_ghost_resize(vc_ghost *ghost, uint64_t keys);
void vc_ghost_add(vc_ghost *ghost, uint64_t fingerprint);
bool vc_ghost_has(const vc_ghost *ghost, uint64_t fingerprint);
/* Returns whether it was there. */
bool vc_ghost_remove(vc_ghost *ghost, uint64_t fingerprint);

#endif
