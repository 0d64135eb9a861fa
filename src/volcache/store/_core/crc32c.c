/* CRC-32C, and CRC-32 in tables. A CRC is linear, so that of joined inputs is a sum: that of the
 * first one moved over as many zero bytes as the second one has, plus that of the second one
 * from 0. This lets the processor compute three parts of an input at the same time: its
 * instruction takes three cycles, and a new one can start in each.
 *
 * A processor with VPCLMULQDQ and AVX-512 folds longer inputs, in half the time: it multiplies
 * each 16 bytes, a polynomial, by the power of x that stands for the distance to those that it
 * adds them to. What is left has the same CRC and 64 bytes. With 256 bits it would be no faster
 * than three parts. See Gopal and others, "Fast CRC Computation for Generic Polynomials Using
 * PCLMULQDQ Instruction", Intel, 2009. */
#include "crc32c.h"

#include "siphash.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#define INSTRUCTION __attribute__((target("sse4.2,crc32")))
#define NEXT_8(crc, word) ((uint32_t)__builtin_ia32_crc32di((crc), (word)))
#define NEXT_1(crc, byte) __builtin_ia32_crc32qi((crc), (byte))
#define FOLDING __attribute__((target("avx512f,vpclmulqdq,crc32")))
#elif defined(__AARCH64EL__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define INSTRUCTION __attribute__((target("+crc")))
#define NEXT_8(crc, word) __crc32cd((crc), (word))
#define NEXT_1(crc, byte) __crc32cb((crc), (byte))
#define HAS_CRC32 (1UL << 7) /* HWCAP_CRC32 of <asm/hwcap.h> */
#endif

#define POLYNOMIAL 0x82f63b78u /* its lowest bit stands for x^31 */
#define ZIP_POLYNOMIAL 0xedb88320u
/* Bytes of a part, a multiple of 8. The parts of longer ones would be too far from each other for
 * the processor to read them ahead: from memory they take twice as long. */
#define PART 256
#define LANES 4 /* of 64 bytes: a multiplication takes several cycles too */
#define FOLDED (LANES * sizeof(__m512i))
/* What moves 16 bytes over the n bits of one lane or of all: for their first 8 bytes
 * x^(n + 31) modulo the polynomial, for their second ones x^(n - 33); the lowest bit stands for
 * x^31. As a factor of 64 bits this is x^32 times as much, and a product is x times as much; the
 * first 8 bytes stand for x^64 times as much as the second ones. */
#define MOVE_LANE _mm512_set4_epi64(0x9e4addf8, 0x740eef02, 0x9e4addf8, 0x740eef02)
#define MOVE_LANES _mm512_set4_epi64(0xb9e02b86, 0xdcb17aa4, 0xb9e02b86, 0xdcb17aa4)

/* All are filled when the library is loaded, and constant from then on. */
static uint32_t tables[8][256];     /* [n][byte]: the byte and n zero bytes after it */
static uint32_t zip_tables[8][256]; /* the same of CRC-32 */
#ifdef INSTRUCTION
static uint32_t move[4][256]; /* [n][byte]: byte n of a CRC, moved over a part */
static bool has_instruction;
#endif
#ifdef FOLDING
static bool has_folding;
#endif

static void fill_bytes(uint32_t to[8][256], uint32_t polynomial) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ polynomial : crc >> 1;
        to[0][byte] = crc;
    }
    for (unsigned n = 1; n < 8; n++)
        for (unsigned byte = 0; byte < 256; byte++) {
            uint32_t crc = to[n - 1][byte];
            to[n][byte] = crc >> 8 ^ to[0][crc & 255];
        }
}

#ifdef INSTRUCTION
INSTRUCTION static void fill_move(void) {
    for (unsigned n = 0; n < 4; n++)
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t crc = byte << 8 * n;
            for (int i = 0; i < PART; i += 8) crc = NEXT_8(crc, 0);
            move[n][byte] = crc;
        }
}
#endif

#ifdef FOLDING
/* The bits of register XCR0: the system saves the registers of SSE, AVX and AVX-512. */
#define SAVES_ALL 0xe6u

static bool system_saves_all(void) {
    uint32_t low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & SAVES_ALL) == SAVES_ALL;
}

/* Not __builtin_cpu_supports: it needs a library of the compiler, which may bring slower copies
 * of memcpy and memset with it. */
static void ask_processor(void) {
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    has_instruction = (c & bit_SSE4_2) != 0;
    if (!(c & bit_OSXSAVE) || !system_saves_all()) return;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    has_folding = (b & bit_AVX512F) && (c & bit_VPCLMULQDQ);
}
#endif

/* The first of all constructors that may compute a checksum. */
__attribute__((constructor(101))) static void fill_tables(void) {
    fill_bytes(tables, POLYNOMIAL);
    fill_bytes(zip_tables, ZIP_POLYNOMIAL);
#ifdef FOLDING
    ask_processor();
#elif defined(INSTRUCTION)
    has_instruction = (getauxval(AT_HWCAP) & HAS_CRC32) != 0;
#endif
#ifdef INSTRUCTION
    if (has_instruction) fill_move();
#endif
}

static inline uint32_t by_tables(uint32_t by[8][256], uint32_t crc, const uint8_t *at,
                                 size_t length) {
    crc = ~crc;
    for (; length >= 8; at += 8, length -= 8) {
        uint64_t word = vc_load_8(at) ^ crc;
        crc = by[7][word & 255] ^ by[6][word >> 8 & 255] ^ by[5][word >> 16 & 255] ^
              by[4][word >> 24 & 255] ^ by[3][word >> 32 & 255] ^ by[2][word >> 40 & 255] ^
              by[1][word >> 48 & 255] ^ by[0][word >> 56];
    }
    for (; length; at++, length--) crc = by[0][(crc ^ *at) & 255] ^ crc >> 8;
    return ~crc;
}

uint32_t vc_crc32c_tables(uint32_t crc, const void *data, size_t length) {
    return by_tables(tables, crc, data, length);
}

uint32_t vc_crc32(uint32_t crc, const void *data, size_t length) {
    return by_tables(zip_tables, crc, data, length);
}

bool vc_crc32c_is_one_bit(uint32_t difference, size_t length) {
    if (length > 1 << 20) return false;
    /* What a flip of the last bit makes, of the one before it, and so on. */
    uint32_t made = POLYNOMIAL;
    for (size_t bit = 0; bit < 8 * length; bit++) {
        if (made == difference) return true;
        made = made >> 1 ^ (made & 1 ? POLYNOMIAL : 0);
    }
    return false;
}

#ifdef INSTRUCTION
static inline uint32_t moved(uint32_t crc) {
    return move[0][crc & 255] ^ move[1][crc >> 8 & 255] ^ move[2][crc >> 16 & 255] ^
           move[3][crc >> 24];
}

/* The CRC with three parts more. */
INSTRUCTION static inline uint32_t three_parts(uint32_t crc, const uint8_t *at) {
    uint32_t second = 0, third = 0;
    for (const uint8_t *end = at + PART; at < end; at += 8) {
        crc = NEXT_8(crc, vc_load_8(at));
        second = NEXT_8(second, vc_load_8(at + PART));
        third = NEXT_8(third, vc_load_8(at + 2 * PART));
    }
    return moved(moved(crc) ^ second) ^ third;
}

INSTRUCTION static uint32_t by_instruction(uint32_t crc, const uint8_t *at, size_t length) {
    crc = ~crc;
    for (; length >= 3 * PART; at += 3 * PART, length -= 3 * PART) crc = three_parts(crc, at);
    for (; length >= 8; at += 8, length -= 8) crc = NEXT_8(crc, vc_load_8(at));
    for (; length; at++, length--) crc = NEXT_1(crc, *at);
    return ~crc;
}
#endif

#ifdef FOLDING
/* `sum`, moved, plus the next bytes. */
FOLDING static inline __m512i folded(__m512i sum, __m512i by, __m512i next) {
    __m512i first = _mm512_clmulepi64_epi128(sum, by, 0x00);
    return first ^ _mm512_clmulepi64_epi128(sum, by, 0x11) ^ next;
}

/* Of FOLDED bytes or more. */
FOLDING static uint32_t by_folding(uint32_t crc, const uint8_t *at, size_t length) {
    const uint8_t *end = at + length;
    __m512i sums[LANES] = {_mm512_zextsi128_si512(_mm_cvtsi32_si128((int)~crc))};
    for (size_t n = 0; n < LANES; n++) sums[n] ^= _mm512_loadu_si512(at + n * sizeof *sums);
    for (at += FOLDED; (size_t)(end - at) >= FOLDED; at += FOLDED)
        for (size_t n = 0; n < LANES; n++)
            sums[n] = folded(sums[n], MOVE_LANES, _mm512_loadu_si512(at + n * sizeof *sums));
    for (size_t n = 1; n < LANES; n++) sums[0] = folded(sums[0], MOVE_LANE, sums[n]);
    for (; (size_t)(end - at) >= sizeof *sums; at += sizeof *sums)
        sums[0] = folded(sums[0], MOVE_LANE, _mm512_loadu_si512(at));
    crc = by_instruction(~0u, (const uint8_t *)sums, sizeof *sums); /* from 0 */
    return by_instruction(crc, at, (size_t)(end - at));
}
#endif

uint32_t vc_crc32c_instruction(uint32_t crc, const void *data, size_t length) {
#ifdef INSTRUCTION
    if (has_instruction) return by_instruction(crc, data, length);
#endif
    return vc_crc32c_tables(crc, data, length);
}

uint32_t vc_crc32c(uint32_t crc, const void *data, size_t length) {
#ifdef FOLDING
    if (has_folding && length >= FOLDED) return by_folding(crc, data, length);
#endif
    return vc_crc32c_instruction(crc, data, length);
}
