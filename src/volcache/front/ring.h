/* The keys of this instance, as parts of the ring on which nginx distributes them: numbers in
 * ascending order, at each of which a part begins or ends. volcache/ring.py computes them. */
#ifndef VC_RING_H
#define VC_RING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "crc32c.h"

typedef struct {
    const uint32_t *bounds;
    size_t count; /* 0: there is no ring, and all keys are of this instance */
} vc_parts;

/* Whether a path is in one of the parts: if an odd number of bounds is not above its hash. */
static inline bool vc_parts_have(const vc_parts *parts, const void *path, size_t length) {
    if (!parts->count) return true;
    uint32_t hash = vc_crc32(0, path, length);
    size_t low = 0, left = parts->count;
    while (left > 1) { /* Without a branch, which would be mispredicted half of the time. */
        size_t half = left / 2;
        low += parts->bounds[low + half - 1] <= hash ? half : 0;
        left -= half;
    }
    low += parts->bounds[low] <= hash;
    return low & 1;
}

#endif
