/* CRC-32C by folding, by the instruction, by tables and bit by bit: all agree. */
#include "crc32c.h"

#include "check.h"

#define LENGTH_MAX 4200 /* all lengths up to this one */
#define LARGE_MAX 65536
#define LARGE_RUNS 3000

static uint32_t bit_by_bit(uint32_t crc, const uint8_t *data, size_t length) {
    crc = ~crc;
    while (length--) {
        crc ^= *data++;
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static uint8_t *random_bytes(uint64_t *state, size_t length) {
    uint8_t *data = allocated(length);
    for (size_t i = 0; i < length; i++) data[i] = (uint8_t)next_random(state);
    return data;
}

static const struct {
    const char *name;
    uint32_t (*crc)(uint32_t crc, const void *data, size_t length);
} ways[] = {
    {"fastest", vc_crc32c},
    {"by the instruction", vc_crc32c_instruction},
    {"by tables", vc_crc32c_tables},
};

static void expect_of_all(uint32_t start, const uint8_t *data, size_t length, uint32_t expected) {
    for (size_t i = 0; i < COUNT(ways); i++) {
        uint32_t found = ways[i].crc(start, data, length);
        if (found == expected) continue;
        fprintf(stderr, "%s, %zu bytes: %08x, not %08x\n", ways[i].name, length, found, expected);
        exit(1);
    }
}

static void check_vectors(void) {
    static const struct {
        const char *data;
        size_t length;
        uint32_t crc;
    } vectors[] = {
        {"", 0, 0},
        {"123456789", 9, 0xe3069283},
        {"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32, 0x8a9136aa},
    };
    for (size_t i = 0; i < COUNT(vectors); i++) {
        const char *data = vectors[i].data;
        expect_of_all(0, (const uint8_t *)data, vectors[i].length, vectors[i].crc);
    }
}

/* Every length at every alignment, at the end of its memory: ASan sees a read behind it. */
static void check_small(uint64_t *state) {
    uint8_t *bytes = random_bytes(state, LENGTH_MAX + 1);
    for (size_t alignment = 0; alignment < 16; alignment++) {
        uint32_t start = (uint32_t)next_random(state), expected = start;
        for (size_t length = 0; length <= LENGTH_MAX; length++) {
            uint8_t *memory = allocated(alignment + length + 1);
            uint8_t *data = memory + alignment + 1;
            memcpy(data, bytes, length);
            expect_of_all(start, data, length, expected);
            expected = bit_by_bit(expected, bytes + length, 1);
            free(memory);
        }
    }
    free(bytes);
}

/* Lengths around multiples of the sizes of the parts, in one piece and in two. */
static void check_large(uint64_t *state) {
    static const size_t parts[] = {8, 256, 768, 1024, 3072, 4096, 12288, 24576};
    for (int run = 0; run < LARGE_RUNS; run++) {
        size_t part = parts[next_random(state) % COUNT(parts)];
        size_t length = (1 + next_random(state) % (LARGE_MAX / part)) * part;
        length += next_random(state) % 17;
        length -= next_random(state) % 8;
        size_t alignment = next_random(state) % 16;
        uint8_t *memory = random_bytes(state, alignment + length);
        const uint8_t *data = memory + alignment;
        size_t split = next_random(state) % (length + 1), rest = length - split;
        uint32_t expected = bit_by_bit(0, data, length);
        expect_of_all(0, data, length, expected);
        uint32_t first = bit_by_bit(0, data, split);
        expect_of_all(0, data, split, first);
        expect_of_all(first, data + split, rest, expected);
        free(memory);
    }
}

int main(int count, char **arguments) {
    uint64_t state = count > 1 ? strtoull(arguments[1], NULL, 10) : 1;
    check_vectors();
    check_small(&state);
    check_large(&state);
    return 0;
}
