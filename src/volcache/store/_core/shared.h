/* What guests of a store read without asking: its index and where its volumes are, in one mapping
 * of a file in memory. The process that owns the store writes it, all others map it to read.
 *
 *   vc_shared | vc_shared_slot[slots] | the groups of the index, `window_bytes` for each
 *
 * A group has a window of its own, so that it grows in its place; pages that were never written
 * take no memory. Writers have the mutex of the core. They count a sequence number before and after
 * each change of a group, or of a slot. A guest takes no lock: it reads, and what it has read is
 * right if the number is even and still the same. A record is then read and checked as in the
 * owner; so what a guest returns was in the store at the moment of its lookup.
 *
 * What a guest cannot decide, it asks the owner: a record that a purge may cover, one that fails a
 * check, a sequence number that changes all the time.
 *
 * When the owner ends, also by a kill, the kernel marks `owner` (a robust futex) before it releases
 * any lock of the process. A lookup after which there is no mark was made before another process
 * could be the owner. */
#ifndef VC_SHARED_H
#define VC_SHARED_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "index.h"
#include "lines.h"
#include "record.h"

enum {
    VC_SHARED_GROUPS = (1 << VC_SEGMENT_BITS) / VC_GROUP_SEGMENTS,
    VC_SHARED_SALTS = 7, /* a volume that more mounts have written is read by its owner */
};

typedef struct {
    uint16_t volume;
    uint16_t count; /* of segments; 0: nothing is to be read there */
    vc_segment segments[VC_SHARED_SALTS];
} vc_shared_slot;

typedef struct vc_shared {
    uint64_t bytes, slots_at, groups_at, window_bytes;
    uint8_t hash_key[16];
    uint32_t offset_bits, slots;
    /* The id of the thread that serves the guests; 0: the store is closed, or not shared yet. */
    atomic_uint owner;
    struct robust_list held;
    struct robust_list_head holds;
    atomic_uint purge_drops;
    atomic_ullong purged_us;
    atomic_uint slot_sequence;
    atomic_uint sequences[VC_SHARED_GROUPS];
    /* Of segments, in buckets from the beginning of the group. */
    struct {
        uint32_t first, buckets;
    } segments[1 << VC_SEGMENT_BITS];
} vc_shared;

/* --- The owner ---------------------------------------------------------------------------- */

typedef struct {
    vc_shared *at; /* NULL: there is none, and nothing is shared */
    size_t bytes;
    int fd;
    pid_t process; /* a forked child does not have the mapping */
} vc_sharing;

/* Return a mapping for an index. */
vc_sharing vc_shared_new(uint64_t volume_bytes, uint32_t volumes, uint32_t slots);
void vc_shared_free(const vc_sharing *sharing);
/* Guests may read as long as this thread is there. Returns false if that cannot be known. */
bool vc_shared_hold(vc_shared *shared);
static inline void vc_shared_close(vc_shared *shared) { atomic_store(&shared->owner, 0); }
static inline vc_shared_slot *vc_shared_slots(const vc_shared *shared) {
    return (vc_shared_slot *)((char *)shared + shared->slots_at);
}
static inline char *vc_shared_group(const vc_shared *shared, uint32_t group) {
    return (char *)shared + shared->groups_at + group * shared->window_bytes;
}
static inline void vc_shared_begin(atomic_uint *sequence) {
    atomic_store_explicit(sequence, atomic_load_explicit(sequence, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
}
static inline void vc_shared_end(atomic_uint *sequence) {
    atomic_store_explicit(sequence, atomic_load_explicit(sequence, memory_order_relaxed) + 1,
                          memory_order_release);
}

#endif
