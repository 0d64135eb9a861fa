/* Requests that may take long: one thread, which may have the lock of the interpreter, executes
 * those of all loops, in their order. */
#include <stdlib.h>

#include "clock.h"
#include "common.h"
#include "connection.h"

void vc_calls_add(vc_connection *c) {
    vc_server *server = c->home->server;
    c->job = (vc_job){.owner = &c->home->jobs, .is_call = true};
    c->has_job = true;
    c->home->calling++;
    vc_connection_enter(c, VC_WAITING_FOR_APPLICATION);
    pthread_mutex_lock(&server->mutex);
    STAILQ_INSERT_TAIL(&server->calls, c, called);
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->mutex);
}

/* Take a connection that waits for a call; with the mutex. NULL: there was none in time. */
static vc_connection *calls_next(vc_server *server, int64_t until_ns) {
    bool is_in_time = true;
    while (STAILQ_EMPTY(&server->calls)) {
        if (!is_in_time || !server->running) return NULL;
        is_in_time = vc_condition_wait(&server->changed, &server->mutex, until_ns);
    }
    vc_connection *c = STAILQ_FIRST(&server->calls);
    STAILQ_REMOVE_HEAD(&server->calls, called);
    return c;
}

/* Execute the next request of a connection; its reply is to be sent. */
static void calls_run(vc_connection *c) {
    const vc_served *served = &c->home->server->config.protocols[c->protocol];
    size_t used = 0;
    vc_reply reply = {0};
    c->is_broken = !served->calls->call(served->caller, c->stream, c->input + c->at,
                                        c->used - c->at, &used, &reply);
    c->at += used;
    c->sent = 0;
    c->unsent = reply.length ? reply.at : NULL;
    c->unsent_length = reply.length;
    if (!reply.length) free(reply.at);
}

bool vc_server_serve_call(vc_server *server, int64_t timeout_ns) {
    int64_t until_ns = timeout_ns < 0 ? INT64_MAX : vc_monotonic_ns() + timeout_ns;
    pthread_mutex_lock(&server->mutex);
    vc_connection *c = calls_next(server, until_ns);
    bool has_ended = !server->running;
    pthread_mutex_unlock(&server->mutex);
    if (!c) return !has_ended;
    server->call_ns = vc_monotonic_ns();
    vc_server_take_change(server, VC_LOOPS_MAX);
    calls_run(c);
    server->call_ns = 0;
    vc_job_end(&c->job);
    return true;
}
