/* The index: fingerprint of a key -> position of its record. No keys are in memory.
 *
 * The top 13 bits of a fingerprint select one of 8,192 segments, the next 36 are the tag.
 * A segment is an array of buckets of 64 bytes, one cache line, with 5 entries each; the tag
 * alone selects the two buckets that an entry may be in (cuckoo hashing), so an entry can be
 * moved without its key, and a lookup reads at most two lines. When a segment is 92 % full
 * it grows by an eighth; only its own entries move, so no call takes long. 16 segments lie
 * one after the other in a *group*, which is mapped by itself: no maximum has to be chosen,
 * and only the last page of a group is partly used.
 *
 *   bucket   tag[5] u32 | flags u32 | word[5] u64
 *   flags    bits 0-9    hits, 2 bits per entry: 0, 1, 2, 3 or more
 *            bits 10-14  tombstone, 1 bit per entry
 *            bits 24-31  how many entries have this as their first bucket and lie in their
 *                        second: 0 ends a lookup (255 stays)
 *   word     bits 0-47   slot << offset_bits | offset
 *            bits 48-55  size class: 5-bit exponent and 3-bit fraction, rounded up
 *            bits 56-59  high 4 bits of the tag
 *   An entry is empty if its word is 0: no record is at offset 0 of a volume.
 *
 * Two keys with one fingerprint share an entry: the one set last has it, the other one is a
 * miss. With 49 bits that is one key in 2^50 / keys. The reader of a record compares the key.
 *
 * A *slot* stands for one use of one volume, from `add_volume` to `reclaim`. The entries of a
 * reclaimed slot are stale: never found, and removed by `sweep`. A slot is used again when no
 * stale entry of it is left.
 *
 * No function is thread-safe: see core.h. */
#ifndef VC_INDEX_H
#define VC_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VC_SEGMENT_BITS = 13,
    VC_TAG_BITS = 36,
    VC_FINGERPRINT_BITS = VC_SEGMENT_BITS + VC_TAG_BITS,
    VC_BUCKET_ENTRIES = 5,
    VC_GROUP_SEGMENTS = 16,
};
#define VC_NO_SLOT UINT32_MAX
#define VC_TOMBSTONE UINT32_MAX /* as the size of a change */
#define VC_NEVER UINT64_MAX     /* an age that no record has */

/* The rings, as docs/FORMAT.md numbers them. */
enum { VC_MAIN, VC_PROBATION, VC_RINGS };

typedef struct vc_index vc_index;
typedef struct vc_shared vc_shared;

/* What an entry says. `word` identifies it for `vc_index_bury` and others. */
typedef struct {
    uint64_t word;
    uint64_t offset;
    uint64_t size; /* at least that of the record, at most an eighth more */
    uint32_t slot;
    unsigned hits; /* 0 to 3 */
    bool is_tombstone;
    bool is_raised; /* `vc_index_hit` has counted a hit: not if there were 3 */
} vc_entry;

/* One entry to be set, as `vc_index_set_many` takes it. */
typedef struct {
    uint64_t fingerprint;
    uint64_t offset;
    uint32_t slot;
    uint32_t size; /* or VC_TOMBSTONE */
} vc_change;

typedef struct {
    uint64_t records; /* tombstones are not counted */
    uint64_t bytes;   /* by the middle of each record's size class */
} vc_live;

typedef struct {
    uint64_t records;   /* live */
    uint64_t displaced; /* live entries lost since the start because there was no room */
} vc_index_stats;

/* Return an empty index, or NULL without memory.
 *   hash_key       secret: with it, keys could be made to collide.
 *   volume_bytes   no offset is higher; 2^24 to 2^40.
 *   volumes        that are live at a time, at most; 1 to 65,536. There are twice as many
 *                  slots, so `volume_bytes` * `volumes` * 2, each rounded up to a power of
 *                  two, is at most 2^48; otherwise NULL.
 *   expected       keys, for the first allocation; 0 if unknown.
 *   shared         where it is to be, see shared.h; NULL: in mappings of its own. */
vc_index *vc_index_new(const uint8_t hash_key[16], uint64_t volume_bytes, uint32_t volumes,
                       uint64_t expected, vc_shared *shared);
/* Whether its groups are in `shared`: not if they do not fit. */
bool vc_index_is_shared(const vc_index *index);
void vc_index_free(vc_index *index);

uint64_t vc_index_fingerprint(const vc_index *index, const uint8_t *key, size_t length);

/* Let the processor fetch where the entry of a fingerprint is, before it is looked up. */
void vc_index_prefetch(const vc_index *index, uint64_t fingerprint);
/* Find the live entry of a fingerprint; tombstones included. */
bool vc_index_find(const vc_index *index, uint64_t fingerprint, vc_entry *found);
/* The same, and count a hit if the record is old enough: see `vc_index_set_age`. */
bool vc_index_hit(vc_index *index, uint64_t fingerprint, vc_entry *found);

/* Whether there is a stale entry: the key was in a volume that was reclaimed lately. */
bool vc_index_is_stale(const vc_index *index, uint64_t fingerprint);

/* Set the entry of a fingerprint; it has no hits. `slot` must be live, `offset` between 1 and
 * the maximum, `size` between 1 and 2^31. Returns false if another live entry, or this one,
 * was displaced: its key is a miss from now on. */
bool vc_index_set(vc_index *index, uint64_t fingerprint, uint32_t slot, uint64_t offset,
                  uint64_t size, bool is_tombstone);
/* Apply changes in their order, those of one segment together; `changes` is reordered.
 * Returns false without memory: nothing was applied. */
bool vc_index_set_many(vc_index *index, vc_change *changes, size_t count);

/* Make the live entry of a fingerprint a tombstone at the same position if it is still the one
 * with this `word`. */
bool vc_index_bury(vc_index *index, uint64_t fingerprint, uint64_t word);
/* Set its position and hits if it is still the one with this `word`. */
bool vc_index_move(vc_index *index, uint64_t fingerprint, uint64_t word, uint32_t slot,
                   uint64_t offset, unsigned hits);

/* Return a free slot, now live. If none is free, stale entries are swept first, in one go.
 * VC_NO_SLOT: `volumes` are live already. */
uint32_t vc_index_add_volume(vc_index *index);
/* Make the entries of a live slot stale, in constant time; return what was lost. */
vc_live vc_index_reclaim(vc_index *index, uint32_t slot);
vc_live vc_index_live(const vc_index *index, uint32_t slot);
/* Say which ring a slot is in, and how far the clock of the ring was when its volume was
 * started. Hits of a record count only when `skip` bytes, at most VC_NEVER - `born`, have been
 * appended after it. Of a new slot, `skip` is 0. */
void vc_index_set_age(vc_index *index, uint32_t slot, unsigned ring, uint64_t born, uint64_t skip);
/* Advance the clock of the ring that a slot is in: its volume ends there now. */
void vc_index_advance(vc_index *index, uint32_t slot, uint64_t end);
unsigned vc_index_ring(const vc_index *index, uint32_t slot);
/* Call `visit` for each record of a slot in one of the 2^VC_SEGMENT_BITS segments. */
void vc_index_visit(const vc_index *index, uint32_t segment, uint32_t slot,
                    void (*visit)(void *context, uint64_t fingerprint, const vc_entry *entry),
                    void *context);
/* Look at up to `buckets` buckets for stale entries, if a sweep is due. */
void vc_index_sweep(vc_index *index, uint32_t buckets);

vc_index_stats vc_index_get_stats(const vc_index *index);

/* The middle of the class of sizes that `size` is in. */
uint64_t vc_size_middle(uint64_t size);

#endif
