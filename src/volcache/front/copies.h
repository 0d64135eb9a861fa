/* Which keys have copies in memcached, and which are about to get one.
 *
 * A key that was read from the disk often is *promoted*: its record is copied to memcached. The
 * item there is named after the key, the *version* of the key, and the *epoch*, a random number.
 * Nothing is deleted from memcached: a put or delete of a promoted key increases its version, so
 * that its items are never looked up again, and a new epoch does so for all keys.
 *
 * Keys are told apart by a keyed hash of 64 bits. Two keys that have it in common share their
 * version, which makes copies unreachable that need not be, and nothing else: the 128 bits of a
 * name, and the key in the record, tell them apart.
 *
 * All is bounded: versions (a promotion that finds no room is refused, and then a new epoch is to
 * begin), keys that are asked first (the one promoted first is read from the disk again), and
 * counters (a key that was not read for long is forgotten).
 *
 * Threads. Any thread may call the functions, with or without the write lock of the store. A mutex
 * is held for a few operations in memory; nothing is waited for inside. */
#ifndef VC_COPIES_H
#define VC_COPIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { VC_EPOCH_BYTES = 16, VC_ITEM_BYTES = 16 };

typedef struct vc_copies vc_copies;

typedef struct {
    uint32_t reads;      /* from the disk that make a key hot; at least 1 */
    int64_t duration_ms; /* the longest time from the first of them to the last */
    uint32_t keys;       /* with a version, at most */
    uint32_t first;      /* asked first, at most */
    uint32_t counted;    /* with a counter, at most */
} vc_copies_config;

/* Return an empty table, whose epoch is to be begun; NULL without memory. */
vc_copies *vc_copies_new(const vc_copies_config *config);
void vc_copies_free(vc_copies *copies);

/* --- What answers requests calls ------------------------------------------------------- */

typedef enum {
    VC_NO_COPY,    /* memcached has no valid copy, for certain */
    VC_COPY,       /* it may have one; the disk is read first */
    VC_COPY_FIRST, /* likewise, and it is asked before the disk is read */
} vc_copy_use;

/* Whether memcached may have a copy of a key. If so, `item` is set to the name of its item, unless
 * it is NULL; the item begins with it. */
vc_copy_use vc_copies_find(vc_copies *copies, const uint8_t *key, size_t length,
                           uint8_t item[VC_ITEM_BYTES]);
/* Make all copies of a key unreachable: after each change of the key in the store, by whoever
 * made it and still has the write lock. Returns whether there may have been one. */
bool vc_copies_invalidate(vc_copies *copies, const uint8_t *key, size_t length);
/* Count a read of a key from the disk. Returns whether the key is hot now and is to be promoted,
 * by Cache.promote; it is counted anew from then on. */
bool vc_copies_count_read(vc_copies *copies, const uint8_t *key, size_t length, int64_t now_ms);
/* Whether to ask memcached first: once the copy is sent; no longer once memcached has none. */
void vc_copies_ask_first(vc_copies *copies, const uint8_t *key, size_t length, bool is_first);

/* --- Promotion and flush --------------------------------------------------------------- */

/* Register a key as promoted, before its copy is compared with the store and sent; return the
 * name of the item. If the key is invalidated from now on, this name is not looked up again.
 * Returns false without room for its version. */
bool vc_copies_promote(vc_copies *copies, const uint8_t *key, size_t length,
                       uint8_t item[VC_ITEM_BYTES]);
/* The name that an item of the key has, or would have. */
void vc_copies_name(vc_copies *copies, const uint8_t *key, size_t length,
                    uint8_t item[VC_ITEM_BYTES]);
/* Make all copies unreachable, and forget all reads, in constant time; `epoch` is random. */
void vc_copies_begin_epoch(vc_copies *copies, const uint8_t epoch[VC_EPOCH_BYTES]);

/* --- Over a restart -------------------------------------------------------------------- */

typedef struct {
    uint64_t hash;    /* of the key */
    uint64_t version; /* twice, plus 1 while the key is promoted */
} vc_copies_entry;

/* Add what an earlier process had in this epoch. Returns false without room. */
bool vc_copies_add(vc_copies *copies, vc_copies_entry entry);

typedef struct {
    uint8_t epoch[VC_EPOCH_BYTES];
    uint32_t keys, first, counted;
    uint64_t invalidations; /* since the start */
} vc_copies_state;

/* Return the state, and up to `room` entries. */
void vc_copies_get_state(vc_copies *copies, vc_copies_state *state, vc_copies_entry *entries,
                         size_t room);

#endif
