#include "recent.h"

#include <stdatomic.h>
#include <stdlib.h>

enum { PLACES = 8, CACHE_LINE_BYTES = 64 };

typedef struct {
    atomic_ullong version; /* 0: none */
    atomic_ullong value;   /* the turn in which it was set, and the number */
} mark;

struct vc_recent {
    unsigned shift; /* of a hash, to the number of a set */
    atomic_uint turns;
    mark sets[][PLACES];
};

vc_recent *vc_recent_new(size_t count) {
    vc_recent *marks = calloc(1, sizeof(vc_recent) + count * sizeof(mark));
    if (!marks) return NULL;
    marks->shift = 64;
    for (size_t sets = count / PLACES; sets > 1; sets /= 2) marks->shift--;
    return marks;
}

void vc_recent_free(vc_recent *marks) { free(marks); }

static uint64_t load(const atomic_ullong *from) {
    return atomic_load_explicit(from, memory_order_relaxed);
}

/* Times follow one another closely: all their bits select the set. */
static size_t set_of(const vc_recent *marks, uint64_t version) {
    return marks->shift < 64 ? (size_t)(version * 0x9e3779b97f4a7c15u >> marks->shift) : 0;
}

void vc_recent_prefetch(const vc_recent *marks, uint64_t version) {
    const char *set = (const char *)marks->sets[set_of(marks, version)];
    for (size_t i = 0; i < PLACES * sizeof(mark); i += CACHE_LINE_BYTES)
        __builtin_prefetch(set + i);
}

void vc_recent_put(vc_recent *marks, uint64_t version, uint32_t number) {
    mark *set = marks->sets[set_of(marks, version)], *to = set;
    uint32_t turn = atomic_load_explicit(&marks->turns, memory_order_relaxed) + 1, oldest = 0;
    atomic_store_explicit(&marks->turns, turn, memory_order_relaxed);
    for (mark *at = set; at < set + PLACES; at++) {
        uint64_t found = load(&at->version);
        uint32_t age = found ? turn - (uint32_t)(load(&at->value) >> 32) : UINT32_MAX;
        if (found == version) age = UINT32_MAX;
        if (age > oldest) to = at, oldest = age;
        if (found == version) {
            to = at;
            break;
        }
    }
    atomic_store_explicit(&to->value, (uint64_t)turn << 32 | number, memory_order_relaxed);
    atomic_store_explicit(&to->version, version, memory_order_release);
}

bool vc_recent_get(const vc_recent *marks, uint64_t version, uint32_t *number) {
    const mark *set = marks->sets[set_of(marks, version)];
    if (!version) return false; /* A place without a mark has it. */
    for (const mark *at = set; at < set + PLACES; at++) {
        if (atomic_load_explicit(&at->version, memory_order_acquire) != version) continue;
        *number = (uint32_t)load(&at->value);
        return true;
    }
    return false;
}
