#include "ghost.h"

#include <stdlib.h>
#include <string.h>

enum { WAYS = 8, TAG_SHIFT = 33 };

/* Buckets and tags are of different bits: a fingerprint has 49. */
static uint16_t *ghost_bucket_of(const vc_ghost *ghost, uint64_t fingerprint) {
    return ghost->buckets[fingerprint & ghost->mask];
}

/* 0 is an empty place. */
static uint16_t ghost_tag_of(uint64_t fingerprint) {
    uint16_t tag = (uint16_t)(fingerprint >> TAG_SHIFT);
    return tag ? tag : 1;
}

static uint64_t buckets_for(uint64_t keys) {
    uint64_t buckets = 1;
    while (2 * buckets * WAYS <= keys) buckets *= 2;
    return buckets;
}

bool vc_ghost_init(vc_ghost *ghost, uint64_t keys) {
    uint64_t buckets = buckets_for(keys);
    ghost->buckets = calloc(buckets, sizeof *ghost->buckets);
    ghost->mask = buckets - 1;
    return ghost->buckets != NULL;
}

void vc_ghost_free(vc_ghost *ghost) {
    free(ghost->buckets);
    ghost->buckets = NULL;
}

/* A key of a bucket is found in both halves that it is split into, until it is dropped; two
 * buckets that become one keep the newest of each. */
void vc_ghost_resize(vc_ghost *ghost, uint64_t keys) {
    uint64_t old = ghost->mask + 1, buckets = buckets_for(keys);
    vc_ghost to;
    if (buckets == old || !vc_ghost_init(&to, keys)) return;
    uint64_t kept = buckets > old ? WAYS : WAYS * buckets / old;
    if (!kept) kept = 1;
    for (uint64_t i = old > buckets ? old : buckets; i-- > 0;) {
        const uint16_t *from = ghost->buckets[i & ghost->mask];
        uint16_t *into = to.buckets[i & to.mask];
        memmove(into + kept, into, (WAYS - kept) * sizeof *into);
        memcpy(into, from, kept * sizeof *into);
    }
    vc_ghost_free(ghost);
    *ghost = to;
}

static int ghost_find(const uint16_t *bucket, uint16_t tag) {
    for (int i = 0; i < WAYS; i++)
        if (bucket[i] == tag) return i;
    return -1;
}

void vc_ghost_add(vc_ghost *ghost, uint64_t fingerprint) {
    uint16_t *bucket = ghost_bucket_of(ghost, fingerprint), tag = ghost_tag_of(fingerprint);
    if (ghost_find(bucket, tag) >= 0) return;
    memmove(bucket + 1, bucket, (WAYS - 1) * sizeof *bucket);
    bucket[0] = tag;
}

bool vc_ghost_has(const vc_ghost *ghost, uint64_t fingerprint) {
    return ghost_find(ghost_bucket_of(ghost, fingerprint), ghost_tag_of(fingerprint)) >= 0;
}

bool vc_ghost_remove(vc_ghost *ghost, uint64_t fingerprint) {
    uint16_t *bucket = ghost_bucket_of(ghost, fingerprint);
    int i = ghost_find(bucket, ghost_tag_of(fingerprint));
    if (i < 0) return false;
    memmove(bucket + i, bucket + i + 1, (size_t)(WAYS - 1 - i) * sizeof *bucket);
    bucket[WAYS - 1] = 0;
    return true;
}
