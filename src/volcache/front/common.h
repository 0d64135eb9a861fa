/* What the loops have in common. */
#ifndef VC_COMMON_H
#define VC_COMMON_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

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

/* Add counters that another thread changes; both are structs of uint64_t, of so many bytes. */
static inline void vc_add_counts(void *to, const void *more, size_t size) {
    for (size_t i = 0; i < size / sizeof(uint64_t); i++)
        ((uint64_t *)to)[i] += __atomic_load_n((const uint64_t *)more + i, __ATOMIC_RELAXED);
}

/* Whether a read that ended at a time is sampled: if a number made of it has none of the bits of the
 * mask. On some machines the clock shows multiples of 40 ns only, so that all bits are mixed. */
static inline bool vc_is_sample(int64_t ended_ns, uint64_t mask) {
    return !((uint64_t)ended_ns * UINT64_C(0x9e3779b97f4a7c15) >> 32 & mask);
}

/* A condition that is waited for until a time by the monotonic clock. */
static inline void vc_condition_start(pthread_cond_t *condition) {
    pthread_condattr_t by_monotonic_clock;
    pthread_condattr_init(&by_monotonic_clock);
    pthread_condattr_setclock(&by_monotonic_clock, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &by_monotonic_clock);
    pthread_condattr_destroy(&by_monotonic_clock);
}

/* Wait with the mutex. Returns false when the time has come. */
static inline bool vc_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex,
                                     int64_t until_ns) {
    struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
    return pthread_cond_timedwait(condition, mutex, &until) != ETIMEDOUT;
}

/* Whether a call that failed is to be tried again later. */
static inline bool vc_is_later(int error) {
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

#endif
