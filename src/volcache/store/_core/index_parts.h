/* The bytes of the index, see index.h, for its owner and for those who map it to read. */
#ifndef VC_INDEX_PARTS_H
#define VC_INDEX_PARTS_H

#include "index.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

/* Parts of a word and of the flags. */
#define VC_POSITION_MASK (((uint64_t)1 << 48) - 1)
#define VC_TOMBSTONE_MASK(k) (1u << (10 + (k)))
#define VC_OVERFLOW_ONE (1u << 24)

typedef struct {
    uint32_t tag[VC_BUCKET_ENTRIES];
    uint32_t flags;
    uint64_t word[VC_BUCKET_ENTRIES];
} vc_bucket;
_Static_assert(sizeof(vc_bucket) == 64, "a bucket is a cache line");

/* The highest size in the class that a word names. */
uint64_t vc_size_max(uint64_t word);

static inline uint64_t vc_full_tag(uint64_t word, uint32_t tag) {
    return (word >> 56 & 15) << 32 | tag;
}

/* It rises with the tag, so growing a segment reads and writes it mostly in order. */
static inline uint32_t vc_first_bucket(uint64_t tag, uint32_t buckets) {
    return (uint32_t)((tag >> 4) * buckets >> 32);
}

/* Another one than the first, unless there is only one. */
static inline uint32_t vc_second_bucket(uint64_t tag, uint32_t buckets, uint32_t first) {
    uint64_t mixed = tag * 0x9E3779B97F4A7C15 >> 32;
    uint32_t i = (uint32_t)(mixed * buckets >> 32);
    if (i == first) i = i + 1 < buckets ? i + 1 : 0;
    return i;
}

/* Returns the entry's number in the bucket, or -1. */
static inline int vc_bucket_match(const vc_bucket *b, uint64_t tag) {
    uint32_t low = (uint32_t)tag;
#if defined(__SSE2__)
    __m128i equal = _mm_cmpeq_epi32(_mm_load_si128((const __m128i *)b->tag),
                                    _mm_set1_epi32((int)low));
    unsigned mask = (unsigned)_mm_movemask_ps(_mm_castsi128_ps(equal));
    mask |= (unsigned)(b->tag[4] == low) << 4;
#else
    unsigned mask = 0;
    for (int k = 0; k < VC_BUCKET_ENTRIES; k++) mask |= (unsigned)(b->tag[k] == low) << k;
#endif
    for (; mask != 0; mask &= mask - 1) {
        int k = __builtin_ctz(mask);
        if (b->word[k] != 0 && vc_full_tag(b->word[k], low) == tag) return k;
    }
    return -1;
}

#endif
