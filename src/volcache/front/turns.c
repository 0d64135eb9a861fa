#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "common.h"
#include "connection.h"
#include "forward.h"
#include "transfer.h"

enum {
    /* Of a turn. A request takes some microseconds, so that a turn takes less than a millisecond. */
    TURN_REQUESTS = 128,
    TURN_REPLY_BYTES = 65536,
    TURN_INPUT_BYTES_MIN = 1024,
};
static const int64_t LINGER_NS = INT64_C(2000000000);
/* How long a request waits for memory while others hold it and make no progress; and, in a ring, how
 * long it waits at all: nginx must be able to tell a slow instance from one that hangs. */
static const int64_t PATIENCE_NS = INT64_C(1000000000);

/* --- Input ----------------------------------------------------------------------------------------- */

static size_t turn_left(const vc_connection *c) { return c->used - c->at; }

/* Have room for more after the bytes that are kept; the loop lends its buffer if there are none.
 * Returns the room, 0 without memory. */
static size_t turn_make_room(vc_connection *c) {
    size_t left = turn_left(c), needed = c->stream->needed;
    if (!left) {
        size_t first = c->calls->first_bytes;
        c->input = c->home->buffer;
        c->at = c->used = c->room = 0;
        return first < VC_RECEIVE_BYTES ? first : VC_RECEIVE_BYTES;
    }
    if (c->at) memmove(c->input, c->input + c->at, left);
    c->at = 0;
    c->used = left;
    /* Pieces are added in linear time, however small they are. */
    size_t wanted = needed > left + TURN_INPUT_BYTES_MIN ? needed : 2 * left + TURN_INPUT_BYTES_MIN;
    if (c->room > left && (c->room >= needed || c->room - left >= TURN_INPUT_BYTES_MIN))
        return c->room - left;
    char *input = realloc(c->input, wanted);
    if (!input) return 0;
    c->input = input;
    c->room = wanted;
    return wanted - left;
}

/* Keep what is not executed, outside of the buffer of the loop. Returns false without memory. */
static bool turn_keep(vc_connection *c) {
    size_t left = turn_left(c);
    if (c->input != c->home->buffer) {
        if (!left) vc_connection_drop_input(c);
        return true;
    }
    char *from = c->input + c->at;
    c->input = left ? malloc(left) : NULL;
    c->at = 0;
    c->used = c->room = c->input ? left : 0;
    if (c->input) memcpy(c->input, from, left);
    return c->input || !left;
}

ssize_t vc_connection_receive(vc_connection *c, char *to, size_t room) {
    ssize_t got = vc_loop_receive(&c->watch, to, room);
    if (got > 0) vc_count(&c->home->figures.protocols[c->protocol].bytes_in, (uint64_t)got);
    return got;
}

/* Receive once. Returns false if there is nothing: the connection waits, or is closed. */
static bool turn_receive(vc_connection *c) {
    if (!c->watch.is_readable) return false;
    size_t room = turn_make_room(c);
    ssize_t got = room ? vc_connection_receive(c, c->input + c->used, room) : -1;
    if (got > 0) {
        c->used += (size_t)got;
        return true;
    }
    (void)turn_keep(c);
    if (got < 0) vc_connection_close(c);
    return false;
}

/* --- Waits --------------------------------------------------------------------------------------------- */

/* Begin a job for the threads; the connection waits for it. */
static vc_job *turn_start_job(vc_connection *c) {
    vc_home *home = c->home;
    c->job = (vc_job){.owner = &home->jobs, .added_ns = home->loop.now_ns};
    c->has_job = true;
    if (!home->waiting++) home->job_ns = home->loop.now_ns;
    vc_connection_enter(c, VC_WAITING_FOR_DISK);
    return &c->job;
}

static void turn_add_read(vc_connection *c, const vc_lookup *at) {
    vc_job *job = &c->job;
    job->at = *at;
    job->key = c->stream->key;
    job->key_length = c->stream->key_length;
    vc_readers_add(c->home->server->config.readers, job);
}

static void turn_read(vc_connection *c) {
    vc_job *job = turn_start_job(c);
    if (c->stream->verifies) job->work = vc_transfer_verify;
    vc_count(&c->home->figures.cold, 1);
    turn_add_read(c, &c->stream->found);
}

void vc_connection_work(vc_connection *c,
                        void (*work)(vc_job *job, vc_core *core,
                                     const vc_core_functions *functions),
                        const vc_lookup *at) {
    vc_job *job = turn_start_job(c);
    job->work = work;
    job->keeps_read = true;
    turn_add_read(c, at);
}

/* Let the thread store a value, which is part of the input: that was at `from`. */
static void turn_put(vc_connection *c, const char *from) {
    vc_put *put = &c->stream->put;
    if (put->record.length)
        put->value = (const uint8_t *)c->input + c->at + (put->value - (const uint8_t *)from);
    turn_start_job(c)->put = put;
    vc_readers_put(c->home->server->config.readers, &c->job);
}

static void turn_resume(vc_connection *c, vc_waited waited) {
    c->stream->waited = waited;
    c->stream->waited_ns = vc_monotonic_ns() - c->since_ns;
    vc_connection_enter(c, c->unsent ? VC_SENDING : VC_RECEIVING);
    if (!c->unsent) vc_connection_execute(c);
}

/* What a request asks for needs no wait: execute it again in the next turn. */
static void turn_execute_again(vc_connection *c, vc_waited waited) {
    c->stream->waited = waited;
    c->stream->waited_ns = 0;
    vc_connection_enter(c, VC_RECEIVING);
    vc_connection_queue(c);
}

static void turn_wait_for_memory(vc_connection *c) {
    if (vc_connection_reserve(c)) turn_execute_again(c, VC_WAITED_MEMORY);
    else vc_connection_enter(c, VC_WAITING_FOR_MEMORY);
}

static void turn_ask(vc_connection *c) {
    vc_hot *hot = c->home->server->config.hots[c->home->number];
    if (hot && vc_hot_get(hot, c->stream->item, c)) {
        vc_connection_enter(c, VC_WAITING_FOR_HOT_TIER);
        return;
    }
    c->stream->hot = hot ? VC_COPY_ABSENT : VC_COPY_UNASKED;
    turn_execute_again(c, VC_WAITED_HOT);
}

void vc_connection_on_copy(void *context, void *owner, const uint8_t *record, size_t length) {
    vc_connection *c = owner;
    (void)context;
    c->stream->copy = record;
    c->stream->copy_length = length;
    c->stream->hot = record ? VC_COPY_FOUND : VC_COPY_ABSENT;
    turn_resume(c, VC_WAITED_HOT);
}

/* The call of its request is done. */
static void turn_end_call(vc_connection *c) {
    if (c->is_broken) {
        vc_connection_close(c);
        return;
    }
    c->closes = c->stream->closes;
    vc_connection_use_input(c, 0);
    vc_connection_answered(c);
    if (c->state == VC_SENDING) vc_connection_queue(c);
}

void vc_connections_take_jobs(vc_home *home) {
    for (vc_job *job = vc_job_owner_take(&home->jobs), *next; job; job = next) {
        vc_connection *c = vc_connection_of(job);
        next = job->next;
        if (job->is_call) home->calling--;
        else home->job_ns = --home->waiting ? home->loop.now_ns : 0;
        c->has_job = false;
        if (c->state == VC_CLOSED) {
            if (!c->is_queued) STAILQ_INSERT_TAIL(&home->closed, c, queued);
        } else if (job->is_call) {
            turn_end_call(c);
        } else if (c->transfer) {
            vc_transfer_send(c);
        } else if (job->is_given_up) {
            vc_connection_end_request(c, VC_REFUSED_DISK);
        } else {
            c->stream->status = job->put ? job->put->status : job->status;
            turn_resume(c, job->put ? VC_WAITED_PUT : VC_WAITED_DISK);
        }
    }
}

/* --- Turns ----------------------------------------------------------------------------------------------- */

/* Execute requests; return why no more. */
static vc_step turn_run(vc_connection *c, bool *has_executed) {
    vc_out *out = &c->home->out;
    vc_step step = VC_STEP_NEXT;
    /* What is stored already is answered first. */
    int most = c->stream->waited == VC_WAITED_PUT ? 1 : TURN_REQUESTS;
    for (int i = 0; i < most && step == VC_STEP_NEXT && out->used < TURN_REPLY_BYTES; i++) {
        size_t used = 0;
        c->stream->closes = false;
        step = c->calls->execute(c->executor, c->stream, c->input + c->at, turn_left(c), &used,
                                 out);
        c->at += used;
        c->stream->waited = VC_WAITED_NOT;
        if (step != VC_STEP_MORE) c->stream->needed = 0;
        if (step == VC_STEP_NEXT || step == VC_STEP_VALUE) c->closes = c->stream->closes;
        if (step != VC_STEP_NEXT) break;
        *has_executed = true;
        vc_connection_release(c);
        if (c->closes) break;
    }
    return step;
}

static const vc_state TURN_STATES[] = {VC_IDLE, VC_RECEIVING, VC_COLLECTING};

/* All is sent: go on with the request that is not whole, or with the next one. */
static void turn_go_on(vc_connection *c) {
    if (c->closes) {
        vc_connection_linger(c);
        return;
    }
    vc_connection_enter(c, c->stream->needed ? TURN_STATES[c->stream->at] : VC_IDLE);
    if (turn_left(c) || c->watch.is_readable) vc_connection_queue(c);
}

/* Wait for the rest of a request. */
static void turn_await(vc_connection *c, bool has_executed) {
    vc_state state = TURN_STATES[c->stream->at];
    /* Empty lines do not make an idle connection younger, nor further bytes a head. */
    if (state != c->state || has_executed) vc_connection_enter(c, state);
    if (has_executed) vc_connection_begin(c);
    if (c->watch.is_readable) vc_connection_queue(c);
}

/* Do what a step asks for; `from`: where the data was. */
static void turn_follow(vc_connection *c, vc_step step, const char *from, bool has_executed) {
    if (step == VC_STEP_DISK) {
        turn_read(c);
        return;
    }
    if (step == VC_STEP_TOGETHER) {
        turn_put(c, from);
        return;
    }
    if (c->unsent) {
        vc_connection_enter(c, VC_SENDING);
        return;
    }
    switch (step) {
    case VC_STEP_MORE: turn_await(c, has_executed); return;
    case VC_STEP_MEMORY: turn_wait_for_memory(c); return;
    case VC_STEP_HOT: turn_ask(c); return;
    case VC_STEP_FORWARD: vc_forward_serve(c); return;
    case VC_STEP_CALL: vc_calls_add(c); return;
    case VC_STEP_VALUE: vc_transfer_go_on(c); return;
    default: break;
    }
    if (has_executed) turn_go_on(c);
    else vc_connection_queue(c);
}

/* Begin what the caller of the executor owns from now on, before anything can fail. */
static bool turn_own(vc_connection *c, vc_step step) {
    if (step == VC_STEP_FORWARD) return vc_forward_open(c);
    return step != VC_STEP_VALUE || vc_transfer_open(c);
}

/* Execute requests, send the replies, and go on as the last one asks for. */
void vc_connection_execute(vc_connection *c) {
    const vc_server_config *config = &c->home->server->config;
    vc_out *out = &c->home->out;
    bool has_executed = false;
    out->used = out->count = 0;
    vc_step step = turn_run(c, &has_executed);
    const char *from = c->input + c->at;
    if (has_executed) c->idle_ns = c->home->loop.now_ns;
    bool has_memory = turn_keep(c) && turn_own(c, step);
    if (!has_memory) vc_connection_close(c);
    else if (vc_connection_send(c, out->parts, out->count) && vc_connection_progress(c, 0)) {
        turn_follow(c, step, from, has_executed);
        return;
    }
    bool owns_read = step == VC_STEP_DISK || (step == VC_STEP_VALUE && !has_memory);
    if (owns_read) config->functions->end_read(config->core);
}

void vc_connection_use_input(vc_connection *c, size_t length) {
    c->at += length;
    if (!turn_left(c)) vc_connection_drop_input(c);
}

void vc_connection_answered(vc_connection *c) {
    c->idle_ns = c->home->loop.now_ns;
    vc_connection_release(c);
    c->stream->needed = 0;
    if (!vc_connection_progress(c, 0)) return;
    if (c->unsent) vc_connection_enter(c, VC_SENDING);
    else turn_go_on(c);
}

/* Receive what is missing, and execute when it is there. */
static void turn_continue(vc_connection *c) {
    size_t needed = c->stream->needed ? c->stream->needed : 1, left = turn_left(c);
    if (c->stream->waited == VC_WAITED_NOT && left < needed) {
        bool is_body = c->state == VC_COLLECTING;
        if (!turn_receive(c)) return;
        if (is_body && !vc_connection_progress(c, turn_left(c) - left)) return;
        if (is_body && turn_left(c) < needed) {
            if (c->watch.is_readable) vc_connection_queue(c);
            return;
        }
    }
    vc_connection_execute(c);
}

static void turn_serve(vc_connection *c) {
    bool was_sending = c->state == VC_SENDING;
    /* Replies and input belong to the thread for calls. */
    if (c->state == VC_WAITING_FOR_APPLICATION && c->has_job) return;
    if (c->unsent && !vc_connection_flush(c)) return;
    switch (c->state) {
    case VC_LINGERING:
        if (!vc_connection_discard(c)) vc_connection_close(c);
        return;
    case VC_WAITING_FOR_MEMORY:
    case VC_WAITING_FOR_DISK:
    case VC_WAITING_FOR_HOT_TIER: return;
    default: break;
    }
    if (c->exchange) vc_forward_serve(c);
    else if (c->transfer) vc_transfer_go_on(c);
    else if (was_sending && c->stream->waited == VC_WAITED_NOT) turn_go_on(c);
    else turn_continue(c);
}

void vc_connections_serve(vc_home *home) {
    struct vc_queue turn = STAILQ_HEAD_INITIALIZER(turn);
    vc_connection *c;
    STAILQ_CONCAT(&turn, &home->ready);
    while ((c = STAILQ_FIRST(&turn))) {
        STAILQ_REMOVE_HEAD(&turn, queued);
        c->is_queued = false;
        if (c->state != VC_CLOSED) turn_serve(c);
        else if (!c->has_job) STAILQ_INSERT_TAIL(&home->closed, c, queued);
    }
    if (home->waiting) vc_readers_wake(home->server->config.readers);
}

/* --- Time ------------------------------------------------------------------------------------------------ */

static int64_t turn_limit_ns(const vc_home *home, unsigned protocol, vc_state state) {
    const vc_server *server = home->server;
    const vc_served *served = &server->config.protocols[protocol];
    switch (state) {
    case VC_IDLE: return served->idle_ns;
    case VC_RECEIVING: return served->head_ns;
    case VC_WAITING_FOR_MEMORY: return server->is_in_ring ? PATIENCE_NS : served->head_ns;
    case VC_COLLECTING:
    case VC_SENDING: return server->config.transfer_ns;
    case VC_LINGERING: return LINGER_NS;
    default: return 0;
    }
}

static void turn_time_out(vc_connection *c) {
    vc_protocol_figures *figures = &c->home->figures.protocols[c->protocol];
    switch (c->state) {
    case VC_IDLE:
        vc_count(&figures->closed_idle, 1);
        vc_connection_close_gently(c);
        return;
    case VC_RECEIVING:
        vc_count(&figures->closed_head, 1);
        vc_connection_end_request(c, VC_REFUSED_HEAD);
        return;
    case VC_WAITING_FOR_MEMORY: vc_connection_end_request(c, VC_REFUSED_MEMORY); return;
    case VC_LINGERING: vc_connection_close(c); return;
    default: vc_connection_end_slow(c);
    }
}

void vc_connections_tick(vc_home *home) {
    int64_t now_ns = home->loop.now_ns;
    int64_t patient_ns = home->server->is_in_ring ? now_ns - PATIENCE_NS : INT64_MIN;
    vc_connection *c, *next;
    for (unsigned p = 0; p < VC_PROTOCOLS; p++) {
        for (unsigned state = 0; state < VC_CLOSED; state++) {
            int64_t limit_ns = turn_limit_ns(home, p, state);
            while (limit_ns && (c = TAILQ_FIRST(&home->by_state[p][state])) &&
                   now_ns - c->since_ns >= limit_ns)
                turn_time_out(c);
        }
        for (c = TAILQ_FIRST(&home->by_state[p][VC_WAITING_FOR_APPLICATION]); c; c = next) {
            next = TAILQ_NEXT(c, same_state);
            if (c->exchange) vc_forward_tick(c, patient_ns); /* Or a call goes on. */
        }
    }
    if (home->server->is_in_ring)
        vc_readers_give_up(home->server->config.readers, &home->jobs, patient_ns);
}

/* Returns whether a request of this loop has waited for memory too long, and no connection of the loop
 * can give way. */
static bool turn_admit(vc_home *home, unsigned protocol, int64_t stale_ns) {
    vc_connection *c;
    while ((c = TAILQ_FIRST(&home->by_state[protocol][VC_WAITING_FOR_MEMORY]))) {
        if (!vc_connection_reserve(c)) {
            if (c->since_ns > stale_ns) return false;
            if (!vc_connection_end_stalest(home, stale_ns)) return true;
        }
        if (c->reserved && c->state == VC_WAITING_FOR_MEMORY) turn_resume(c, VC_WAITED_MEMORY);
    }
    return false;
}

void vc_connections_admit(vc_home *home) {
    _Atomic unsigned *waiting = &home->server->short_of_memory;
    int64_t stale_ns = home->loop.now_ns - PATIENCE_NS;
    unsigned own = 1u << home->number;
    bool is_short = false;
    for (unsigned p = 0; p < VC_PROTOCOLS; p++) is_short |= turn_admit(home, p, stale_ns);
    if (is_short) *waiting |= own;
    else if (*waiting & own) *waiting &= ~own;
    /* One gives way to another loop, which asks again if it needs more. */
    if (*waiting & ~own && vc_connection_end_stalest(home, stale_ns)) *waiting = 0;
}
