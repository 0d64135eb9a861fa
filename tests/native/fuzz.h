/* What the programs that read any bytes share: `main`, and changes of valid input. Each defines
 * `run_random`. */
#ifndef VC_FUZZ_H
#define VC_FUZZ_H

#include "check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length);

#ifndef VC_FUZZER
static void run_random(double seconds, uint64_t seed);

static inline void run_file(const char *path) {
    static uint8_t data[1 << 20];
    FILE *file = fopen(path, "rb");
    CHECK(file);
    size_t length = fread(data, 1, sizeof data, file);
    fclose(file);
    uint8_t *copy = copied(data, length);
    LLVMFuzzerTestOneInput(copy, length);
    free(copy);
}

/* Read files, or "-r SECONDS SEED": random input. */
int main(int count, char **arguments) {
    if (count == 4 && !strcmp(arguments[1], "-r"))
        run_random(atof(arguments[2]), strtoull(arguments[3], NULL, 10));
    else
        for (int i = 1; i < count; i++) run_file(arguments[i]);
}

/* Change something anywhere in a text, with one of some words. */
static inline void mutate(growing *text, const char *const words[], size_t count, uint64_t *state) {
    size_t at = next_random(state) % (text->length + 1);
    const char *word = words[next_random(state) % count];
    char piece[300];
    size_t length = next_random(state) % sizeof piece;
    switch (next_random(state) % 9) {
    case 0:
        if (at < text->length) text->at[at] ^= (char)(1 << next_random(state) % 8);
        break;
    case 1: replace_bytes(text, at, 0, word, strlen(word)); break;
    case 2: replace_bytes(text, at, strlen(word), word, strlen(word)); break;
    case 3: replace_bytes(text, at, next_random(state) % 20, "", 0); break;
    case 4: /* A part of it again, elsewhere. */
        length = length < text->length - at ? length : text->length - at;
        memcpy(piece, text->at + at, length);
        replace_bytes(text, next_random(state) % (text->length + 1), 0, piece, length);
        break;
    case 5: /* Any byte. */
        piece[0] = (char)next_random(state);
        replace_bytes(text, at, next_random(state) % 2, piece, 1);
        break;
    case 6: /* A digit. */
        while (at < text->length && (text->at[at] < '0' || text->at[at] > '9')) at++;
        if (at < text->length) text->at[at] = (char)('0' + next_random(state) % 10);
        break;
    default: /* At the beginning of a line. */
        while (at > 0 && text->at[at - 1] != '\n') at--;
        replace_bytes(text, at, 0, word, strlen(word));
    }
}
#endif

#endif
