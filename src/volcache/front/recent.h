/* A number for each of some versions of values, those that were marked last; in memory.
 *
 * A version is `stored_us` of its record: no two records of a store have the same, and a touch
 * keeps it. A mark is in one of 8 places, which the version selects; a new one replaces the one of
 * them that was set least recently. So a version is forgotten when about as many others as there
 * are places were marked after it.
 *
 * Any thread may call these. There is no lock: two threads that set marks in one place at the
 * same time leave one of them, and one that reads meanwhile may see the number of the other. */
#ifndef VC_RECENT_H
#define VC_RECENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vc_recent vc_recent;

/* Return a table of `count` places, a power of two and at least 8; NULL without memory. */
vc_recent *vc_recent_new(size_t count);
void vc_recent_free(vc_recent *marks);
/* Let the processor fetch the places of a version, which are about to be used. */
void vc_recent_prefetch(const vc_recent *marks, uint64_t version);
/* Mark a version, above 0, with a number. */
void vc_recent_put(vc_recent *marks, uint64_t version, uint32_t number);
/* Return false if a version has no mark; 0, of what was stored as expired, has none. */
bool vc_recent_get(const vc_recent *marks, uint64_t version, uint32_t *number);

#endif
