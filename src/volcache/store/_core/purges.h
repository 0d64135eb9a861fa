/* The prefixes that were purged: what was stored under one of them up to a time is a miss. The
 * native twin of `PurgeList` in purges.py. */
#ifndef VC_PURGES_H
#define VC_PURGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t us;            /* when it was purged */
    const uint8_t *prefix;
    size_t length;          /* at least 1 */
} vc_purge;

/* A list that does not change. */
typedef struct vc_purges vc_purges;

/* Return a list of copies; NULL without memory. */
vc_purges *vc_purges_new(const vc_purge *purges, size_t count);
void vc_purges_free(vc_purges *purges);
/* The time of the newest; 0 if there is none. */
uint64_t vc_purges_newest(const vc_purges *purges);
/* Whether a record that was stored at a time is purged. */
bool vc_purges_cover(const vc_purges *purges, const uint8_t *key, size_t length,
                     uint64_t stored_us);

#endif
