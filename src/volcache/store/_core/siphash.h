/* SipHash: a keyed hash, so that a client that does not know the key cannot choose keys that
 * collide. With 1 and 3 rounds for tables; with 2 and 4 rounds, and 128 bits, for names. Source:
 * Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012. */
#ifndef VC_SIPHASH_H
#define VC_SIPHASH_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* 8 bytes, the first one is the lowest. */
static inline uint64_t vc_load_8(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return le64toh(word);
}

uint64_t vc_siphash13(const uint8_t key[16], const uint8_t *data, size_t length);
void vc_siphash24_128(const uint8_t key[16], const uint8_t *data, size_t length, uint8_t hash[16]);

#endif
