#include "siphash.h"

static inline uint64_t rotate(uint64_t value, unsigned bits) {
    return value << bits | value >> (64 - bits);
}

typedef struct {
    uint64_t v0, v1, v2, v3;
} state;

static inline void sip_round(state *s) {
    s->v0 += s->v1;
    s->v2 += s->v3;
    s->v1 = rotate(s->v1, 13) ^ s->v0;
    s->v3 = rotate(s->v3, 16) ^ s->v2;
    s->v0 = rotate(s->v0, 32);
    s->v2 += s->v1;
    s->v0 += s->v3;
    s->v1 = rotate(s->v1, 17) ^ s->v2;
    s->v3 = rotate(s->v3, 21) ^ s->v0;
    s->v2 = rotate(s->v2, 32);
}

static inline void sip_rounds(state *s, int rounds) {
    while (rounds--) sip_round(s);
}

static inline void add_word(state *s, uint64_t word, int rounds) {
    s->v3 ^= word;
    sip_rounds(s, rounds);
    s->v0 ^= word;
}

/* The last word: up to 7 bytes of data, and the length in its highest byte. */
static inline uint64_t last_word(const uint8_t *data, size_t length) {
    size_t rest = length % 8;
    uint64_t word = 0;
    if (rest > 0 && length >= 8) {
        word = vc_load_8(data + length - 8) >> (64 - 8 * rest);
    } else {
        for (size_t i = 0; i < rest; i++) word |= (uint64_t)data[i] << (8 * i);
    }
    return word | (uint64_t)length << 56;
}

static inline state start(const uint8_t key[16]) {
    uint64_t k0 = vc_load_8(key), k1 = vc_load_8(key + 8);
    return (state){
        k0 ^ 0x736f6d6570736575,
        k1 ^ 0x646f72616e646f6d,
        k0 ^ 0x6c7967656e657261,
        k1 ^ 0x7465646279746573,
    };
}

static inline void add_data(state *s, const uint8_t *data, size_t length, int rounds) {
    for (size_t i = 0; i + 8 <= length; i += 8) add_word(s, vc_load_8(data + i), rounds);
    add_word(s, last_word(data, length), rounds);
}

static inline uint64_t siphash_finish(state *s, int rounds) {
    sip_rounds(s, rounds);
    return s->v0 ^ s->v1 ^ s->v2 ^ s->v3;
}

uint64_t vc_siphash13(const uint8_t key[16], const uint8_t *data, size_t length) {
    state s = start(key);
    add_data(&s, data, length, 1);
    s.v2 ^= 0xff;
    return siphash_finish(&s, 3);
}

void vc_siphash24_128(const uint8_t key[16], const uint8_t *data, size_t length, uint8_t hash[16]) {
    state s = start(key);
    s.v1 ^= 0xee;
    add_data(&s, data, length, 2);
    s.v2 ^= 0xee;
    uint64_t halves[2] = {htole64(siphash_finish(&s, 4))};
    s.v1 ^= 0xdd;
    halves[1] = htole64(siphash_finish(&s, 4));
    memcpy(hash, halves, sizeof halves);
}
