#include "memcache.h"

#include <stdlib.h>
#include <string.h>

enum { EVENTS_BYTES = 1 << 18 };

const char *const vc_mc_names[VC_MC_NAMES] = {
    "get", "gets", "gat", "gats", "set", "add", "replace", "cas", "touch", "delete", "mg", "ms",
    "md", "mn", "other",
};
const char *const vc_mc_results[VC_MC_RESULTS] = {
    "hit", "miss", "stored", "not_stored", "exists", "not_found", "deleted", "touched", "ok",
};

struct vc_mc {
    vc_mc_config config;
    vc_mc_counts counts;
    uint8_t *events, *taken_events;
    size_t events_used;
};

vc_mc *vc_mc_new(const vc_mc_config *config) {
    vc_mc *mc = calloc(1, sizeof(vc_mc));
    if (!mc) return NULL;
    mc->config = *config;
    mc->events = malloc(EVENTS_BYTES);
    mc->taken_events = malloc(EVENTS_BYTES);
    if (mc->events && mc->taken_events) return mc;
    vc_mc_free(mc);
    return NULL;
}

void vc_mc_free(vc_mc *mc) {
    if (!mc) return;
    free(mc->events);
    free(mc->taken_events);
    free(mc);
}

void vc_mc_change(vc_mc *mc, const vc_mc_config *to) { mc->config.slow_ns = to->slow_ns; }

vc_mc_step vc_mc_execute(vc_mc *mc, vc_mc_stream *stream, const char *data, size_t length,
                         size_t *used, vc_mc_out *out) {
    (void)mc, (void)out;
    *used = 0;
    stream->prefix_length = 0;
    stream->needed = 1;
    if (!length) return VC_MC_MORE;
    if (!stream->is_known) stream->is_binary = (uint8_t)data[0] == 0x80;
    stream->is_known = true;
    return VC_MC_PASS;
}

void vc_mc_get_counts(vc_mc *mc, vc_mc_counts *counts) { *counts = mc->counts; }

const uint8_t *vc_mc_take_events(vc_mc *mc, size_t *length) {
    uint8_t *taken = mc->events;
    *length = mc->events_used;
    mc->events = mc->taken_events;
    mc->taken_events = taken;
    mc->events_used = 0;
    return taken;
}
