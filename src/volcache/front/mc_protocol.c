#include "mc_protocol.h"

#include <stdlib.h>

#include "mc_parts.h"

typedef struct {
    vc_stream base;
    vc_mc_stream mc;
    unsigned generation;        /* of the settings that it has */
} mc_protocol_peer;

/* Let the client do what it may by the present settings. */
static void mc_protocol_allow(const vc_mc_executor *executor, mc_protocol_peer *peer) {
    if (peer->generation == executor->generation || peer->mc.is_put) return;
    peer->mc.remote = peer->base.remote;
    vc_mc_allow(&peer->mc, &executor->access);
    peer->generation = executor->generation;
}

/* Wait for the rest of a command, of which `left` bytes are there. Memory grows with what has
 * arrived, not with what a client announces. */
static void mc_protocol_await(mc_protocol_peer *peer, size_t left) {
    size_t most = 2 * left + 1024;
    peer->base.needed = peer->mc.needed < most ? peer->mc.needed : most;
    peer->base.at = left || vc_mc_is_inside(&peer->mc) ? VC_AT_BODY : VC_AT_IDLE;
}

static vc_step mc_protocol_execute(void *context, vc_stream *stream, char *data, size_t length,
                                   size_t *used, vc_out *out) {
    static const vc_step STEPS[] = {
        [VC_MC_NEXT] = VC_STEP_NEXT, [VC_MC_MORE] = VC_STEP_MORE, [VC_MC_COLD] = VC_STEP_DISK,
        [VC_MC_FLUSH] = VC_STEP_FLUSH, [VC_MC_TOGETHER] = VC_STEP_TOGETHER,
        [VC_MC_CALL] = VC_STEP_CALL,
    };
    vc_mc_executor *executor = context;
    mc_protocol_peer *peer = (mc_protocol_peer *)stream;
    vc_mc_stream *mc = &peer->mc;
    vc_mc_out replies = {out->at, out->used, out->room};
    mc_protocol_allow(executor, peer);
    if (stream->waited == VC_WAITED_PUT) mc->put = stream->put;
    vc_mc_step step = vc_mc_execute(executor->mc, mc, data, length, used, &replies);
    vc_out_add(out, out->at + out->used, replies.used - out->used);
    stream->closes = mc->closes;
    if (step == VC_MC_MORE) mc_protocol_await(peer, length - *used);
    if (step == VC_MC_COLD) stream->found = mc->at;
    if (step == VC_MC_TOGETHER) stream->put = mc->put;
    stream->key = mc->key;
    stream->key_length = mc->key_length;
    /* Lines of the log are in the order of commands. */
    const vc_mc_config *config = &executor->mc->config;
    if (step == VC_MC_CALL && config->slow_ns < 0) config->on_events(config->context);
    return STEPS[step];
}

static bool mc_protocol_call(void *caller, vc_stream *stream, const char *data, size_t length,
                             size_t *used, vc_reply *reply) {
    vc_mc *mc = caller;
    mc_protocol_peer *peer = (mc_protocol_peer *)stream;
    vc_mc_out out = {.at = malloc(VC_MC_OUT_BYTES_MIN), .room = VC_MC_OUT_BYTES_MIN};
    bool is_good = out.at && vc_mc_execute(mc, &peer->mc, data, length, used, &out) == VC_MC_NEXT;
    stream->closes = peer->mc.closes;
    *reply = (vc_reply){out.at, out.used};
    mc->config.on_events(mc->config.context);
    return is_good;
}

/* As in memcached, no other client is told why its connection ends. */
static void mc_protocol_refuse(void *context, vc_stream *stream, vc_refusal why, vc_out *out) {
    static const char FULL[] = "ERROR Too many open connections\r\n";
    char *to = out->at + out->used;
    (void)context, (void)stream;
    if (why != VC_REFUSED_CONNECTION) return;
    memcpy(to, FULL, sizeof(FULL) - 1);
    vc_out_add(out, to, sizeof(FULL) - 1);
}

const vc_protocol vc_mc_protocol = {
    .stream_size = sizeof(mc_protocol_peer),
    .first_bytes = SIZE_MAX,
    .execute = mc_protocol_execute,
    .call = mc_protocol_call,
    .refuse = mc_protocol_refuse,
};

void vc_mc_executor_change(vc_mc_executor *executor, const vc_mc_access *access, int64_t slow_ns) {
    executor->access = *access;
    executor->generation++;
    vc_mc_change(executor->mc, &(vc_mc_config){.slow_ns = slow_ns});
}
