#include "mc_protocol.h"

#include <stdlib.h>

#include "mc_parts.h"

static vc_step mc_protocol_execute(void *context, vc_stream *base, char *data, size_t length,
                                   size_t *used, vc_out *out) {
    vc_mc_executor *executor = context;
    vc_mc_stream *stream = (vc_mc_stream *)base;
    /* Let the client do what it may by the present settings. */
    if (stream->generation != executor->generation && !stream->is_put) {
        vc_mc_allow(stream, &executor->access);
        stream->generation = executor->generation;
    }
    return vc_mc_execute(executor->mc, stream, data, length, used, out);
}

static bool mc_protocol_call(void *caller, vc_stream *base, const char *data, size_t length,
                             size_t *used, vc_reply *reply) {
    vc_mc *mc = caller;
    vc_out out = {.at = malloc(VC_MC_OUT_BYTES_MIN), .room = VC_MC_OUT_BYTES_MIN};
    bool is_good =
        out.at && vc_mc_execute(mc, (vc_mc_stream *)base, data, length, used, &out) == VC_STEP_NEXT;
    *reply = (vc_reply){out.at, out.count ? out.parts->iov_len : 0};
    if (reply->length) memmove(out.at, out.parts->iov_base, reply->length);
    return is_good;
}

/* As in memcached, no other client is told why its connection ends. */
static void mc_protocol_refuse(void *context, vc_stream *stream, vc_refusal why, vc_out *out) {
    static const char FULL[] = "ERROR Too many open connections\r\n";
    (void)context, (void)stream;
    if (why == VC_REFUSED_CONNECTION) vc_mc_add_reply(out, FULL, sizeof(FULL) - 1, VC_MC_NONE, "");
}

const vc_protocol vc_mc_protocol = {
    .stream_size = sizeof(vc_mc_stream),
    .first_bytes = SIZE_MAX,
    .execute = mc_protocol_execute,
    .call = mc_protocol_call,
    .refuse = mc_protocol_refuse,
};

void vc_mc_executor_change(vc_mc_executor *executor, const vc_mc_access *access, int64_t slow_ns) {
    executor->access = *access;
    executor->generation++;
    executor->mc->config.slow_ns = slow_ns;
}
