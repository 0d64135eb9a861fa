/* The prefixes that were purged: what was stored under one of them up to a time is a miss.
 *
 * A lookup takes a step for each byte of the key, and a probe for each length of a prefix that
 * occurs, whatever the number of prefixes. Whoever changes the table excludes all others. */
#ifndef VC_PURGES_H
#define VC_PURGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vc_purge vc_purge;
struct vc_purge {
    uint64_t us;             /* when it was purged */
    uint64_t seq;            /* of the newest volume then */
    vc_purge *next;          /* in the same bucket */
    vc_purge *older, *newer; /* in the order in which they were added */
    uint32_t hash;
    uint32_t length; /* of the prefix, at least 1 */
    uint8_t prefix[];
};

typedef struct vc_purges vc_purges;

/* Return an empty table; NULL without memory. The hash of prefixes depends on `secret`. */
vc_purges *vc_purges_new(uint64_t secret);
void vc_purges_free(vc_purges *purges);
/* Have the memory for one more prefix, in place of one that was reserved before. Nothing that
 * others see is changed. Returns false without memory. */
bool vc_purges_reserve(vc_purges *purges, const uint8_t *prefix, size_t length);
/* Add the prefix that was reserved; it replaces the same one. Cannot fail. */
void vc_purges_commit(vc_purges *purges, uint64_t us, uint64_t seq);
/* Remove the oldest ones as long as their `seq` is lower. */
void vc_purges_drop(vc_purges *purges, uint64_t seq);
/* The time of the last of those that this would remove; 0: there is none. */
uint64_t vc_purges_last_below(const vc_purges *purges, uint64_t seq);
/* Remove some of those that a newer one covers, from `one` on, the oldest if NULL; return where
 * to go on. NULL: these were all. */
vc_purge *vc_purges_sweep(vc_purges *purges, vc_purge *one);
/* Whether a record that was stored at a time is purged. */
bool vc_purges_cover(const vc_purges *purges, const uint8_t *key, size_t length,
                     uint64_t stored_us);
/* The oldest; NULL: there is none. */
const vc_purge *vc_purges_oldest(const vc_purges *purges);
/* The time of the newest; 0: there is none. */
uint64_t vc_purges_newest_us(const vc_purges *purges);
size_t vc_purges_count(const vc_purges *purges);
/* Whether the table has at most so many prefixes, with so many bytes, when one is added and
 * those that it covers are removed. */
bool vc_purges_have_room(const vc_purges *purges, const uint8_t *prefix, size_t length,
                         size_t count_max, size_t bytes_max);

#endif
