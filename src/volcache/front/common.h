/* What the loops have in common. */
#ifndef VC_COMMON_H
#define VC_COMMON_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

/* Durations by order of magnitude, as in histogram.py. */
typedef struct {
    uint64_t counts[64];
    uint64_t total_ns;
} vc_durations;

/* Add to a counter that only this thread changes, and that others read meanwhile. */
static inline void vc_count(uint64_t *counter, uint64_t more) {
    __atomic_store_n(counter, *counter + more, __ATOMIC_RELAXED);
}

static inline void vc_observe(vc_durations *durations, int64_t ns) {
    vc_count(&durations->counts[ns > 0 ? 64 - __builtin_clzll((unsigned long long)ns) : 0], 1);
    vc_count(&durations->total_ns, (uint64_t)ns);
}

/* Whether a call that failed is to be tried again later. */
static inline bool vc_is_later(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

#endif
