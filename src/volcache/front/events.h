/* Events, which Python is told of: one after the other in a buffer. There are two, which take
 * turns, so that events can be added while those before are read. One thread adds, another takes. */
#ifndef VC_EVENTS_H
#define VC_EVENTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { VC_EVENTS_BYTES = 1 << 18 };

/* An event begins with them; its key is behind its struct. */
typedef struct {
    uint32_t length; /* of the whole event, in bytes: the next one is aligned, too */
    uint32_t key_length;
} vc_event_sizes;

/* Zero at first. */
typedef struct {
    _Alignas(8) uint8_t buffers[2][VC_EVENTS_BYTES];
    size_t used; /* of the present one */
    unsigned present;
    pthread_mutex_t mutex;
} vc_events;

/* Add an event of `size` bytes, which is followed by a key. Returns false without room. */
static inline bool vc_events_add(vc_events *events, vc_event_sizes *event, size_t size,
                                 const void *key, size_t key_length) {
    size_t length = (size + key_length + 7) & ~(size_t)7;
    pthread_mutex_lock(&events->mutex);
    bool has_room = events->used + length <= VC_EVENTS_BYTES;
    if (has_room) {
        uint8_t *to = events->buffers[events->present] + events->used;
        *event = (vc_event_sizes){(uint32_t)length, (uint32_t)key_length};
        memcpy(to, event, size);
        if (key_length) memcpy(to + size, key, key_length);
        events->used += length;
    }
    pthread_mutex_unlock(&events->mutex);
    return has_room;
}

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
