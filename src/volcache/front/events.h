/* Events, which Python is told of: one after the other in a buffer. There are two, which take
 * turns, so that events can be added while those before are read. One thread adds, another takes. */
#ifndef VC_EVENTS_H
#define VC_EVENTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VC_EVENTS_BYTES = 1 << 18 };

/* Zero at first. */
typedef struct {
    _Alignas(8) uint8_t buffers[2][VC_EVENTS_BYTES];
    size_t used; /* of the present one */
    unsigned present;
    pthread_mutex_t mutex;
} vc_events;

/* Return room for an event of `*length` bytes, which are rounded up so that the next one is
 * aligned, too; `vc_events_end` follows. NULL: there is none. */
static inline void *vc_events_add(vc_events *events, size_t *length) {
    *length = (*length + 7) & ~(size_t)7;
    pthread_mutex_lock(&events->mutex);
    void *added = events->buffers[events->present] + events->used;
    if (events->used + *length <= VC_EVENTS_BYTES) events->used += *length;
    else added = NULL;
    if (!added) pthread_mutex_unlock(&events->mutex);
    return added;
}

/* The event is written. */
static inline void vc_events_end(vc_events *events) { pthread_mutex_unlock(&events->mutex); }

/* Return the events since the last call; valid until the next call. */
static inline const uint8_t *vc_events_take(vc_events *events, size_t *length) {
    pthread_mutex_lock(&events->mutex);
    const uint8_t *taken = events->buffers[events->present];
    *length = events->used;
    events->present ^= 1;
    events->used = 0;
    pthread_mutex_unlock(&events->mutex);
    return taken;
}

#endif
