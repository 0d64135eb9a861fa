/* Events, which Python is told of: one after the other in a buffer. There are two, which take
 * turns, so that events can be added while those before are read. For one thread. */
#ifndef VC_EVENTS_H
#define VC_EVENTS_H

#include <stddef.h>
#include <stdint.h>

enum { VC_EVENTS_BYTES = 1 << 18 };

/* Zero at first. */
typedef struct {
    _Alignas(8) uint8_t buffers[2][VC_EVENTS_BYTES];
    size_t used;        /* of the present one */
    unsigned present;
} vc_events;

/* Return room for an event of `*length` bytes, which are rounded up so that the next one is
 * aligned, too. Without room, `drain` is to make some; NULL: it has not. */
static inline void *vc_events_add(vc_events *events, size_t *length,
                                  void (*drain)(void *context), void *context) {
    *length = (*length + 7) & ~(size_t)7;
    if (events->used + *length > VC_EVENTS_BYTES) drain(context);
    if (events->used + *length > VC_EVENTS_BYTES) return NULL;
    void *added = events->buffers[events->present] + events->used;
    events->used += *length;
    return added;
}

/* Return the events since the last call; valid until the next call. */
static inline const uint8_t *vc_events_take(vc_events *events, size_t *length) {
    const uint8_t *taken = events->buffers[events->present];
    *length = events->used;
    events->present ^= 1;
    events->used = 0;
    return taken;
}

#endif
