/* The clock of a store, see clock.py: it never goes back. Any thread may call these. */
#ifndef VC_CLOCK_H
#define VC_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

typedef struct {
    _Atomic int64_t stored_us; /* of the last record */
    _Atomic int64_t offset_us; /* the time is this plus what has elapsed; it only grows */
} vc_clock;

static inline int64_t vc_monotonic_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline int64_t vc_machine_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* Set to a value unless it is higher; return the higher one. */
static inline int64_t vc_clock_raise(_Atomic int64_t *to, int64_t value) {
    int64_t seen = atomic_load_explicit(to, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak(to, &seen, value)) continue;
    return seen < value ? value : seen;
}

/* Microseconds since the epoch. */
static inline int64_t vc_clock_now(vc_clock *clock) {
    int64_t machine = vc_machine_us(), elapsed = vc_monotonic_ns() / 1000;
    return elapsed + vc_clock_raise(&clock->offset_us, machine - elapsed);
}

/* Likewise, and later than for every record before; not by two threads at a time. */
static inline int64_t vc_clock_next(vc_clock *clock) {
    int64_t now = vc_clock_now(clock), last = atomic_load(&clock->stored_us);
    if (now <= last) { /* What META.txt has must not be earlier. */
        now = last + 1;
        vc_clock_raise(&clock->offset_us, now - vc_monotonic_ns() / 1000);
    }
    atomic_store(&clock->stored_us, now);
    return now;
}

#endif
