/* What core.c, reclaim.c and scan.c share: the parts of a `vc_core`, and its mutex. */
#ifndef VC_CORE_PARTS_H
#define VC_CORE_PARTS_H

#include <stdatomic.h>

#include "core.h"
#include "ghost.h"
#include "guest.h"
#include "shared.h"
#include "sync.h"

typedef struct {
    uint64_t seq;
    vc_segment *segments; /* NULL: not bound */
    size_t count;
    int fd;
    uint16_t volume;
} vc_place;

typedef struct {
    vc_change *at; /* CHANGES_MAX, or NULL */
    size_t count;
} vc_batch;

struct vc_core {
    /* Not checked by clang: its owner may acquire it again. */
    vc_mutex write_lock;
    vc_mutex turn;          /* held while the write lock is waited for */
    atomic_uintptr_t owner; /* of the write lock; 0: no thread */
    unsigned depth;         /* how often its owner has acquired it */
    vc_putting putting;
    vc_writer *writers[VC_RINGS];
    vc_deferred deferred;
    bool is_blocked;
    vc_mutex mutex;
    vc_calls calls;
    vc_index *index VC_GUARDED_BY(mutex);
    vc_sharing sharing;
    vc_shared *shared; /* of it, with the index; NULL: it is not shared */
    uint64_t volume_bytes;
    vc_place *places VC_GUARDED_BY(mutex); /* by slot */
    uint32_t slots;
    /* Changes that are loaded, but not applied yet; a thread may be applying `full`. */
    vc_batch filling, full VC_GUARDED_BY(mutex);
    pthread_t thread;
    bool has_thread;
    atomic_uint readers;
    bool is_closed VC_GUARDED_BY(mutex);

    /* They do not change when there are other threads. */
    vc_policy policy;
    bool has_policy;
    bool has_probation VC_GUARDED_BY(mutex);
    double tokens VC_GUARDED_BY(mutex);
    vc_ghost ghost VC_GUARDED_BY(mutex), missed VC_GUARDED_BY(mutex);
    uint64_t ghost_hits VC_GUARDED_BY(mutex), displaced_seen VC_GUARDED_BY(mutex);
    atomic_ullong older_hits, older_us;

    /* Changed with both locks, read with one of them. NULL: there never was one. */
    vc_purges *purges;
    atomic_ullong purged_us; /* the time of the newest of them; 0: none */
    atomic_uint purge_drops; /* how often some were dropped with volumes */
};

static inline ssize_t vc_pread(const vc_calls *calls, int fd, void *buffer, size_t length,
                               uint64_t offset, bool is_cached) {
    return calls->pread(calls->context, fd, buffer, length, (off_t)offset, is_cached);
}
void vc_core_lock(vc_core *core) VC_ACQUIRES(core->mutex);
static inline void vc_core_unlock(vc_core *core) VC_RELEASES(core->mutex) {
    pthread_mutex_unlock(&core->mutex);
}
/* The value of an expression, computed with the mutex. */
#define VC_LOCKED(core, expression)        \
    ({                                     \
        vc_core_lock(core);                \
        __auto_type value_ = (expression); \
        vc_core_unlock(core);              \
        value_;                            \
    })
/* Whether an entry can have this position. A file whose checksums are right may still name
 * any numbers. */
bool vc_core_is_position(const vc_core *core, uint64_t offset, uint64_t size);
/* Add the entry of a record: a deletion has neither offset nor size in the index file. */
bool vc_writer_add_record(vc_writer *writer, const uint8_t *key, size_t length,
                          const vc_record *record);
/* Keep a change for later: many together, sorted, miss the cache less often. Returns false without
 * memory. Any other call for the index applies those that are kept. */
bool vc_core_add_change(vc_core *core, const vc_change *change);

#endif
