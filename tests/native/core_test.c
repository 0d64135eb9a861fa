/* The core as the gate calls it: which keys are absent, which are remembered, which reads are
 * hits. */
#include "core.h"
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static vc_core *core;
static uint32_t slot;

static const uint8_t *bytes(const char *key) { return (const uint8_t *)key; }

static uint64_t fingerprint(const char *key) {
    return vc_core_fingerprint(core, bytes(key), strlen(key));
}

static unsigned ring_for(const char *key) {
    return vc_core_ring_for(core, bytes(key), strlen(key));
}

static bool is_absent(const char *key, bool *is_stale) {
    return vc_core_is_absent(core, bytes(key), strlen(key), is_stale);
}

static void check_absent(void) {
    bool is_stale = true;
    CHECK(ring_for("missed") == VC_MAIN);
    CHECK(is_absent("missed", &is_stale) && !is_stale);
    CHECK(ring_for("missed") == VC_PROBATION && ring_for("other") == VC_MAIN);
    CHECK(vc_core_set(core, fingerprint("value"), slot, 64, 100, 0));
    CHECK(!is_absent("value", &is_stale));
    vc_core_set_tombstone(core, fingerprint("deleted"), slot, 200, 100);
    CHECK(is_absent("deleted", &is_stale) && !is_stale);
}

/* A hit of a value that is too large is left to whoever reads it. */
static void check_hits(void) {
    vc_lookup found;
    vc_heat heat;
    uint64_t size = vc_size_max(1000);
    CHECK(vc_core_set(core, fingerprint("large"), slot, 400, size, 0));
    CHECK(vc_core_lookup_below(core, bytes("large"), 5, size - 1, &found) && !found.is_raised);
    vc_core_end_read(core);
    vc_core_get_heat(core, &heat);
    CHECK(heat.tokens == 0);
    CHECK(vc_core_lookup_below(core, bytes("large"), 5, size, &found) && found.is_raised);
    vc_core_end_read(core);
    vc_core_get_heat(core, &heat);
    CHECK(heat.tokens == (double)vc_size_middle(size));
}

static void check_evicted(void) {
    bool is_stale = false;
    vc_core_reclaim(core, slot);
    CHECK(is_absent("value", &is_stale) && is_stale);
    CHECK(is_absent("deleted", &is_stale) && !is_stale);
    vc_core_close(core);
    CHECK(!is_absent("value", &is_stale));
}

int main(void) {
    static const uint8_t hash_key[16] = {1};
    static const vc_policy policy = {.hit_rate = 1, .tokens_max = 1e9};
    static const vc_segment segment = {0, 1};
    core = vc_core_new(&vc_os_calls, hash_key, 1 << 24, 4, 0);
    CHECK(core && vc_core_set_policy(core, &policy));
    slot = vc_core_add_volume(core, 1);
    CHECK(slot != VC_NO_SLOT && vc_core_bind(core, slot, -1, 1, &segment, 1));
    vc_core_set_age(core, slot, VC_MAIN, 0, 1 << 20);
    check_absent();
    check_hits();
    check_evicted();
    vc_core_free(core);
    return 0;
}
