#include "purges.h"

#include <stdlib.h>
#include <string.h>

#include "record.h"

enum {
    BUCKETS = 1 << 16, /* most are never touched, and take no memory then */
    SWEEP_STEPS = 64,
    WORD_BITS = 64,
    WORDS = (VC_KEY_BYTES_MAX + 1) / WORD_BITS,
};
/* The hash of a prefix is a polynomial modulo this prime, so that one pass over a key has the
 * hashes of all its prefixes. Keys that collide cannot be chosen without the secret. */
#define PRIME ((uint64_t)0x7FFFFFFF)

struct vc_purges {
    uint64_t factor, newest_us;
    size_t count, bytes;
    vc_purge *oldest, *newest, *reserved;
    uint64_t lengths[WORDS];               /* a bit for each length of a prefix that occurs */
    uint32_t counts[VC_KEY_BYTES_MAX + 1]; /* of prefixes, by length */
    vc_purge *buckets[BUCKETS];
};

static uint32_t hash_on(const vc_purges *purges, uint32_t hash, const uint8_t *data,
                        size_t length) {
    uint64_t sum = hash;
    for (size_t i = 0; i < length; i++) {
        sum = sum * purges->factor + data[i] + 1;
        sum = (sum & PRIME) + (sum >> 31);
        if (sum >= PRIME) sum -= PRIME;
    }
    return (uint32_t)sum;
}

vc_purges *vc_purges_new(uint64_t secret) {
    vc_purges *purges = calloc(1, sizeof(vc_purges));
    if (purges) purges->factor = 256 + secret % (PRIME - 256);
    return purges;
}

void vc_purges_free(vc_purges *purges) {
    if (!purges) return;
    for (vc_purge *one = purges->oldest, *newer; one; one = newer) {
        newer = one->newer;
        free(one);
    }
    free(purges->reserved);
    free(purges);
}

/* --- Changes ----------------------------------------------------------------------- */

bool vc_purges_reserve(vc_purges *purges, const uint8_t *prefix, size_t length) {
    vc_purge *one = malloc(sizeof(vc_purge) + length);
    if (!one) return false;
    one->hash = hash_on(purges, 0, prefix, length);
    one->length = (uint32_t)length;
    memcpy(one->prefix, prefix, length);
    free(purges->reserved);
    purges->reserved = one;
    return true;
}

/* Return the purge of a prefix, if there is one that was made at `us` or later. */
static vc_purge *find_since(const vc_purges *purges, uint32_t hash, const uint8_t *prefix,
                            size_t length, uint64_t us) {
    vc_purge *one = purges->buckets[hash % BUCKETS];
    while (one && (one->us < us || one->hash != hash || one->length != length ||
                   memcmp(one->prefix, prefix, length)))
        one = one->next;
    return one;
}

static void purges_add(vc_purges *purges, vc_purge *one) {
    vc_purge **bucket = &purges->buckets[one->hash % BUCKETS];
    one->next = *bucket;
    *bucket = one;
    one->older = purges->newest;
    one->newer = NULL;
    *(one->older ? &one->older->newer : &purges->oldest) = one;
    purges->newest = one;
    purges->count++;
    purges->bytes += one->length;
    if (!purges->counts[one->length]++)
        purges->lengths[one->length / WORD_BITS] |= (uint64_t)1 << one->length % WORD_BITS;
}

static void remove_one(vc_purges *purges, vc_purge *one) {
    vc_purge **at = &purges->buckets[one->hash % BUCKETS];
    while (*at != one) at = &(*at)->next;
    *at = one->next;
    *(one->older ? &one->older->newer : &purges->oldest) = one->newer;
    *(one->newer ? &one->newer->older : &purges->newest) = one->older;
    purges->count--;
    purges->bytes -= one->length;
    if (!--purges->counts[one->length])
        purges->lengths[one->length / WORD_BITS] &= ~((uint64_t)1 << one->length % WORD_BITS);
    free(one);
}

void vc_purges_commit(vc_purges *purges, uint64_t us, uint64_t seq) {
    vc_purge *one = purges->reserved;
    purges->reserved = NULL;
    one->us = us;
    one->seq = seq;
    vc_purge *same = find_since(purges, one->hash, one->prefix, one->length, 0);
    if (same) remove_one(purges, same);
    purges_add(purges, one);
    if (us > purges->newest_us) purges->newest_us = us;
}

void vc_purges_drop(vc_purges *purges, uint64_t seq) {
    while (purges->oldest && purges->oldest->seq < seq) remove_one(purges, purges->oldest);
    if (!purges->oldest) purges->newest_us = 0;
}

vc_purge *vc_purges_sweep(vc_purges *purges, vc_purge *one) {
    if (!one) one = purges->oldest;
    for (int left = SWEEP_STEPS; one && left; left--) {
        vc_purge *newer = one->newer;
        /* Later than its own time, it can be covered by others only. */
        if (vc_purges_cover(purges, one->prefix, one->length, one->us + 1)) remove_one(purges, one);
        one = newer;
    }
    return one;
}

/* --- Questions --------------------------------------------------------------------- */

bool vc_purges_cover(const vc_purges *purges, const uint8_t *key, size_t length,
                     uint64_t stored_us) {
    uint32_t hash = 0;
    size_t at = 0, words = length / WORD_BITS + 1;
    for (size_t word = 0; word < words && word < WORDS; word++) {
        for (uint64_t bits = purges->lengths[word]; bits; bits &= bits - 1) {
            size_t end = word * WORD_BITS + (size_t)__builtin_ctzll(bits);
            if (end > length) return false;
            hash = hash_on(purges, hash, key + at, end - at);
            at = end;
            if (find_since(purges, hash, key, end, stored_us)) return true;
        }
    }
    return false;
}

const vc_purge *vc_purges_oldest(const vc_purges *purges) { return purges->oldest; }

uint64_t vc_purges_newest_us(const vc_purges *purges) { return purges->newest_us; }

uint64_t vc_purges_last_below(const vc_purges *purges, uint64_t seq) {
    uint64_t us = 0;
    for (const vc_purge *one = purges->oldest; one && one->seq < seq; one = one->newer)
        us = one->us;
    return us;
}

size_t vc_purges_count(const vc_purges *purges) { return purges->count; }

bool vc_purges_have_room(const vc_purges *purges, const uint8_t *prefix, size_t length,
                         size_t count_max, size_t bytes_max) {
    size_t count = purges->count + 1, bytes = purges->bytes + length;
    if (count <= count_max && bytes <= bytes_max) return true;
    for (const vc_purge *one = purges->oldest; one; one = one->newer)
        if (one->length >= length && !memcmp(one->prefix, prefix, length)) {
            count--;
            bytes -= one->length;
        }
    return count <= count_max && bytes <= bytes_max;
}
