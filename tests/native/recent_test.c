/* recent.c: the versions that were marked last have numbers.
 *
 *     recent_test [SEED] */
#include "recent.h"

#include "check.h"

enum { PLACES = 1024 };

/* Times in microseconds, as close as the values are that follow one another. */
static uint64_t version_at(unsigned number) { return UINT64_C(1790000000000000) + 3 * number; }

/* Whether a version has this number; -1: none. */
static bool is_marked(const vc_recent *marks, unsigned version, int64_t expected) {
    uint32_t number = 0;
    bool is_there = vc_recent_get(marks, version_at(version), &number);
    return expected < 0 ? !is_there : is_there && number == expected;
}

static void check_numbers(vc_recent *marks) {
    static const uint32_t NUMBERS[] = {0, 7, UINT32_MAX};
    CHECK(is_marked(marks, 0, -1));
    for (size_t i = 0; i < COUNT(NUMBERS); i++) {
        vc_recent_put(marks, version_at(0), NUMBERS[i]);
        CHECK(is_marked(marks, 0, NUMBERS[i]) && is_marked(marks, 1, -1));
    }
}

/* Nearly as many are remembered as there are places, and no old one; marked again is late. */
static void check_latest(vc_recent *marks) {
    unsigned found = 0;
    for (unsigned i = 1; i < 6 * PLACES; i++) {
        vc_recent_put(marks, version_at(i), 1);
        vc_recent_put(marks, version_at(0), 2);
    }
    CHECK(is_marked(marks, 0, 2));
    for (unsigned i = 1; i <= 4 * PLACES; i++) CHECK(is_marked(marks, i, -1));
    for (unsigned i = 6 * PLACES - PLACES / 2; i < 6 * PLACES; i++) found += is_marked(marks, i, 1);
    CHECK(found > PLACES / 2 * 95 / 100);
}

/* With 8 places, exactly the oldest is forgotten. */
static void check_oldest(vc_recent *marks) {
    for (unsigned i = 0; i < 8; i++) vc_recent_put(marks, version_at(i), 1);
    vc_recent_put(marks, version_at(0), 1);
    vc_recent_put(marks, version_at(8), 1);
    for (unsigned i = 0; i < 9; i++) CHECK(is_marked(marks, i, i == 1 ? -1 : 1));
}

int main(void) {
    vc_recent *marks = vc_recent_new(PLACES), *few = vc_recent_new(8);
    CHECK(marks && few);
    check_numbers(marks);
    check_latest(marks);
    check_oldest(few);
    vc_recent_free(marks);
    vc_recent_free(few);
    return 0;
}
