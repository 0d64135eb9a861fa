/* The keys of the hot tier, changed by some threads at a time.
 *
 *     copies_threads SECONDS SEED
 *
 * Each thread promotes, invalidates and reads keys of its own and some of all, with little room, so
 * that epochs begin and keys are forgotten all the time. Of its own keys it knows: a name that it
 * was told before an invalidation is never the name again. Any failed check aborts. */
#define _GNU_SOURCE
#include "copies.h"
#include "check.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { THREADS = 4, KEYS = 24, SHARED = 8 };

static vc_copies *copies;
static time_t ends;

typedef struct {
    pthread_t thread;
    unsigned number;
    uint64_t random;
} worker;

static unsigned below(worker *w, unsigned limit) {
    w->random = w->random * 6364136223846793005 + 1442695040888963407;
    return (unsigned)(w->random >> 33) % limit;
}

static void check_state(worker *w) {
    vc_copies_state state;
    vc_copies_entry entries[KEYS];
    vc_copies_get_state(copies, &state, entries, KEYS);
    CHECK(state.keys <= 16 && state.first <= 4 && state.counted <= 6);
    if (below(w, 50)) return;
    uint8_t epoch[VC_EPOCH_BYTES];
    for (unsigned i = 0; i < VC_EPOCH_BYTES; i++) epoch[i] = (uint8_t)below(w, 256);
    vc_copies_begin_epoch(copies, epoch);
    for (unsigned i = 0; i < state.keys && i < KEYS && below(w, 2); i++)
        (void)vc_copies_add(copies, entries[i]);
}

static void change(worker *w) {
    char key[24];
    bool is_own = below(w, 2);
    uint8_t old[VC_ITEM_BYTES], item[VC_ITEM_BYTES];
    size_t length = (size_t)snprintf(key, sizeof(key), "%u/%u", is_own ? w->number : 99,
                                     below(w, is_own ? 4 : SHARED));
    const uint8_t *bytes = (const uint8_t *)key;
    switch (below(w, 5)) {
    case 0:
        if (!vc_copies_promote(copies, bytes, length, old)) return check_state(w);
        vc_copies_ask_first(copies, bytes, length, below(w, 4));
        if (!is_own || below(w, 2)) return;
        vc_copies_invalidate(copies, bytes, length);
        CHECK(vc_copies_find(copies, bytes, length, item) == VC_NO_COPY);
        vc_copies_name(copies, bytes, length, item);
        CHECK(memcmp(old, item, VC_ITEM_BYTES));
        return;
    case 1: vc_copies_invalidate(copies, bytes, length); return;
    case 2: (void)vc_copies_find(copies, bytes, length, item); return;
    case 3:
        for (unsigned reads = below(w, 4); reads--;)
            (void)vc_copies_count_read(copies, bytes, length, time(NULL) + below(w, 3));
        return;
    default: check_state(w);
    }
}

static void *work(void *context) {
    worker *w = context;
    while (time(NULL) < ends)
        for (int i = 0; i < 1000; i++) change(w);
    return NULL;
}

int main(int count, char **words) {
    CHECK(count == 3);
    vc_copies_config config = {.reads = 3, .duration_ms = 2, .keys = 16, .first = 4, .counted = 6};
    uint8_t epoch[VC_EPOCH_BYTES] = {1};
    worker workers[THREADS];
    ends = time(NULL) + atoi(words[1]);
    copies = vc_copies_new(&config);
    CHECK(copies);
    vc_copies_begin_epoch(copies, epoch);
    for (unsigned i = 0; i < THREADS; i++) {
        workers[i].number = i;
        workers[i].random = strtoull(words[2], NULL, 10) * 31 + i;
        CHECK(!pthread_create(&workers[i].thread, NULL, work, &workers[i]));
    }
    for (unsigned i = 0; i < THREADS; i++) pthread_join(workers[i].thread, NULL);
    vc_copies_free(copies);
    puts("copies_threads: ok");
    return 0;
}
