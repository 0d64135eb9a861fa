/* What the test programs share. */
#ifndef VC_CHECK_H
#define VC_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* A program may define what else it shows of a check that has failed. */
#ifndef SHOW_MORE
#define SHOW_MORE() ((void)0)
#endif

#define CHECK(condition)                                                    \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            SHOW_MORE();                                                    \
            abort();                                                        \
        }                                                                   \
    } while (0)

static inline uint64_t mixed(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint64_t next_random(uint64_t *state) { return mixed(*state += 0x9e3779b97f4a7c15u); }

static inline double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline void *allocated(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    CHECK(memory);
    return memory;
}

/* A copy that ends where its memory ends: ASan sees a read behind it. */
static inline void *copied(const void *data, size_t length) {
    void *memory = allocated(length);
    if (length) memcpy(memory, data, length);
    return memory;
}

/* --- Bytes that become more --------------------------------------------------------- */

typedef struct {
    char *at;
    size_t length, room;
} growing;

static inline char *reserve(growing *to, size_t more) {
    if (to->length + more > to->room) {
        to->room = 2 * (to->length + more);
        to->at = realloc(to->at, to->room);
        CHECK(to->at);
    }
    return to->at + to->length;
}

static inline void add_bytes(growing *to, const void *data, size_t length) {
    if (length) memcpy(reserve(to, length), data, length);
    to->length += length;
}

static inline void add_text(growing *to, const char *text) { add_bytes(to, text, strlen(text)); }

/* Replace `removed` bytes at `at`, or what there is of them, by others. */
static inline void replace_bytes(growing *to, size_t at, size_t removed, const void *bytes,
                                 size_t length) {
    size_t after = to->length - at;
    removed = removed < after ? removed : after;
    reserve(to, length);
    memmove(to->at + at + length, to->at + at + removed, after - removed);
    if (length) memcpy(to->at + at, bytes, length);
    to->length += length - removed;
}

#endif
