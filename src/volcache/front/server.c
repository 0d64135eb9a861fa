#define _GNU_SOURCE
#include "server.h"

#include <errno.h>
#include <malloc.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"
#include "common.h"
#include "connection.h"
#include "forward.h"

enum {
    SERVER_ACCEPTS = 16,
    /* Of freed memory: as much as `malloc.py` lets the process keep. */
    SERVER_KEPT_BYTES = 64 << 20,
};
static const int64_t SERVER_SECOND_NS = 1000000000;
/* The shortest that there is. */
static const uint64_t SERVER_SLICE_NS = 100000;
static const int64_t SERVER_TICK_NS = 100000000;
/* While jobs are to be done, or the process stops. */
static const int64_t SERVER_STEP_NS = 10000000;
/* While no connection can be accepted for want of descriptors or memory. */
static const int64_t SERVER_ACCEPT_PAUSE_NS = 500000000;
/* Until then in a drain, clients may use a connection for one more request. */
static const int64_t SERVER_QUIET_NS = 200000000;

/* --- Accepting ---------------------------------------------------------------------------------- */

/* Each connection wakes one of the loops. Returns false without memory. */
static bool server_watch_listeners(vc_home *home, bool is_on) {
    bool is_good = true;
    for (unsigned i = 0; i < home->server->config.listener_count; i++) {
        vc_watch *watch = &home->listeners[i].watch;
        if (!is_on) vc_loop_unwatch(&home->loop, watch);
        else is_good = vc_loop_watch(&home->loop, watch, EPOLLIN | EPOLLEXCLUSIVE) && is_good;
    }
    return is_good;
}

/* Close the connection of this loop that was idle longest. */
static bool server_close_idle(vc_home *home, unsigned protocol) {
    vc_connection *c = TAILQ_FIRST(&home->by_state[protocol][VC_IDLE]);
    while (c && c->is_queued) c = TAILQ_NEXT(c, same_state);
    if (!c) return false;
    vc_count(&home->figures.protocols[protocol].closed_room, 1);
    vc_connection_close_gently(c);
    return true;
}

/* Try again later: the socket stays readable, and the loop would spin. */
static void server_pause_accepting(vc_home *home, int error) {
    (void)server_watch_listeners(home, false);
    home->resume_ns = home->loop.now_ns + SERVER_ACCEPT_PAUSE_NS;
    vc_count(&home->figures.failed_accepts, 1);
    home->server->accept_error = (uint64_t)error;
}

static void server_turn_away(vc_home *home, unsigned protocol, int fd) {
    const vc_served *served = &home->server->config.protocols[protocol];
    vc_stream *stream = calloc(1, served->calls->stream_size);
    vc_out *out = &home->out;
    out->used = out->count = 0;
    if (stream) {
        served->calls->refuse(served->executors[home->number], stream, VC_REFUSED_CONNECTION, out);
        struct msghdr message = {.msg_iov = out->parts, .msg_iovlen = out->count};
        (void)!sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    free(stream);
    close(fd);
    vc_count(&home->figures.protocols[protocol].turned_away, 1);
}

/* The port is at the same place of both kinds of addresses. */
static uint16_t server_port(const struct sockaddr *address) {
    if (address->sa_family == AF_UNIX) return 0;
    return ntohs(((const struct sockaddr_in *)(const void *)address)->sin_port);
}

static void server_name_client(const struct sockaddr *address, socklen_t length, char *name,
                               size_t room) {
    if (address->sa_family == AF_UNIX) strcpy(name, "unix");
    else if (getnameinfo(address, length, name, (socklen_t)room, NULL, 0, NI_NUMERICHOST))
        *name = 0;
}

static void server_take(vc_home *home, unsigned protocol, int fd, const char *name, uint16_t port) {
    vc_server *server = home->server;
    bool has_room = server->open[protocol] < server->config.protocols[protocol].connections ||
                    server_close_idle(home, protocol);
    if (!has_room || !vc_connection_open(home, protocol, fd, name, port)) {
        server_turn_away(home, protocol, fd);
        return;
    }
    server->open[protocol]++;
    vc_count(&home->figures.protocols[protocol].accepted, 1);
}

/* Returns false if none is waiting, or none can be accepted. */
static bool server_accept(vc_home *home, int listening, unsigned protocol) {
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    char name[46];
    int fd = accept4(listening, (struct sockaddr *)&address, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        server_name_client((struct sockaddr *)&address, length, name, sizeof(name));
        server_take(home, protocol, fd, name, server_port((struct sockaddr *)&address));
        return true;
    }
    bool is_full = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (!is_full) return false; /* Or the client has gone. */
    if (errno == EMFILE && server_close_idle(home, protocol)) return true;
    server_pause_accepting(home, errno);
    return false;
}

static void server_on_client(vc_watch *watch, uint32_t events) {
    const vc_listener *listener = (vc_listener *)watch;
    (void)events;
    for (int i = 0; i < SERVER_ACCEPTS; i++)
        if (!server_accept(listener->home, watch->fd, listener->protocol)) return;
}

/* --- Rounds -------------------------------------------------------------------------------------- */

/* Close what waits for no reply. */
static void server_drain_home(vc_home *home) {
    vc_server *server = home->server;
    int64_t now_ns = home->loop.now_ns;
    bool is_over = now_ns >= server->end_ns;
    bool is_late = now_ns - server->drain_ns >= (server->end_ns - server->drain_ns) / 2;
    for (unsigned p = 0; p < VC_PROTOCOLS; p++) {
        const vc_protocol *calls = server->config.protocols[p].calls;
        bool is_told = calls && calls->tells_end;
        for (unsigned state = 0; state < VC_CLOSED; state++) {
            vc_connection *c, *next;
            if (!is_over && state != VC_IDLE && state != VC_LINGERING) continue;
            for (c = TAILQ_FIRST(&home->by_state[p][state]); c; c = next) {
                next = TAILQ_NEXT(c, same_state);
                if (is_over) vc_count(&home->figures.protocols[p].cut, 1);
                else if (c->is_queued ||
                         (!is_told && !is_late && now_ns - c->since_ns < SERVER_QUIET_NS))
                    continue;
                if (is_told && state == VC_IDLE) vc_connection_refuse(c, VC_REFUSED_END);
                else vc_connection_close_gently(c);
            }
        }
    }
}

static bool server_is_empty(const vc_home *home) {
    unsigned open = 0;
    for (unsigned p = 0; p < VC_PROTOCOLS; p++)
        for (unsigned state = 0; state < VC_CLOSED; state++) open += home->counts[p][state];
    return !open && !home->waiting && !home->calling;
}

/* Add the connections of a loop to the list that is asked for; with the mutex. */
static void server_list_home(vc_home *home) {
    vc_server *server = home->server;
    for (unsigned state = 0; state < VC_CLOSED; state++) {
        vc_connection *c = TAILQ_FIRST(&home->by_state[server->listed_protocol][state]);
        for (; c; c = TAILQ_NEXT(c, same_state)) {
            if (server->listed_count >= server->listed_room) return;
            vc_listed *to = &server->listed[server->listed_count++];
            const char *form = !c->port                 ? "%s"
                               : strchr(c->remote, ':') ? "tcp6:[%s]:%u"
                                                        : "tcp:%s:%u";
            *to = (vc_listed){c->watch.fd, state == VC_IDLE, c->idle_ns, ""};
            snprintf(to->address, sizeof(to->address), form, c->remote, c->port);
        }
    }
}

void vc_server_take_change(vc_server *server, unsigned loop) {
    if (!server->config.on_change) return;
    pthread_mutex_lock(&server->changing);
    server->config.on_change(server->config.context, loop);
    pthread_mutex_unlock(&server->changing);
}

/* Do what `server_ask` asks for. */
static void server_answer(vc_home *home) {
    vc_server *server = home->server;
    pthread_mutex_lock(&server->mutex);
    uint64_t asked = server->asked;
    bool has_deferred = server->done[home->number] < asked;
    pthread_mutex_unlock(&server->mutex);
    if (!has_deferred) return;
    vc_server_take_change(server, home->number);
    pthread_mutex_lock(&server->mutex);
    if (server->listed) server_list_home(home);
    server->done[home->number] = asked;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->mutex);
}

static void server_on_woken(void *context) {
    vc_home *home = context;
    vc_connections_take_jobs(home);
    if (home->server->drain_ns && !home->is_draining) {
        vc_hot *hot = home->server->config.hots[home->number];
        if (hot) vc_hot_hurry(hot);
        home->is_draining = true;
        home->resume_ns = 0;
        (void)server_watch_listeners(home, false);
        home->tick_ns = 0;
    }
    server_answer(home);
}

/* Give back freed memory after much was held: malloc does so only at the end of the heap. */
static void server_trim(vc_server *server) {
    uint64_t held = server->held;
    if (held > server->most_held) server->most_held = held;
    if (server->most_held <= SERVER_KEPT_BYTES || held > server->most_held / 2) return;
    server->most_held = held;
    malloc_trim(SERVER_KEPT_BYTES);
}

static void server_tick(vc_home *home) {
    home->tick_ns = home->loop.now_ns + SERVER_TICK_NS;
    vc_connections_tick(home);
    vc_connections_take_jobs(home);
    if (home->upstreams) home->bjoern_ns = vc_upstreams_stalled_since(home->upstreams);
    if (!home->number) server_trim(home->server);
    if (home->resume_ns && home->loop.now_ns >= home->resume_ns) {
        home->resume_ns = 0;
        (void)server_watch_listeners(home, true);
    }
}

static int64_t server_turn(void *context) {
    vc_home *home = context;
    vc_connections_admit(home);
    vc_connections_serve(home);
    if (home->loop.now_ns >= home->tick_ns) server_tick(home);
    if (home->is_draining) {
        server_drain_home(home);
        if (server_is_empty(home)) vc_loop_end(&home->loop);
    }
    vc_hot *hot = home->server->config.hots[home->number];
    int64_t late_ns = hot ? vc_hot_settle(hot) : INT64_MAX;
    vc_connections_free_closed(home);
    if (!STAILQ_EMPTY(&home->ready)) return 0;
    int64_t wait_ns = home->waiting || home->is_draining ? SERVER_STEP_NS
                                                         : home->tick_ns - home->loop.now_ns;
    return late_ns < wait_ns ? late_ns : wait_ns;
}

/* Let this thread take the processor, when it wakes up, from one that runs for longer at a time. The
 * kernel has this since Linux 6.12, and ignores the slice before. */
static void server_ask_for_short_slices(void) {
    struct { /* `struct sched_attr` of the kernel, whose header is at odds with that of pthreads */
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {
        .size = sizeof(attributes),
        .flags = 8, /* SCHED_FLAG_KEEP_POLICY */
        .nice = getpriority(PRIO_PROCESS, 0),
        .runtime = SERVER_SLICE_NS,
    };
    (void)!syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static void *server_run(void *context) {
    vc_home *home = context;
    vc_server *server = home->server;
    pthread_setname_np(pthread_self(), "front");
    server_ask_for_short_slices();
    vc_loop_run(&home->loop);
    if (server->config.hots[home->number])
        vc_hot_install(server->config.hots[home->number], NULL, NULL, NULL);
    vc_upstreams_free(home->upstreams);
    home->upstreams = NULL;
    /* A thread may still be on its way out of a job. The readers may end before the server is freed. */
    if (server->config.readers) vc_readers_end(server->config.readers, &home->jobs);
    pthread_mutex_lock(&server->mutex);
    server->running--;
    server->done[home->number] = UINT64_MAX;
    pthread_cond_broadcast(&server->changed);
    pthread_mutex_unlock(&server->mutex);
    return NULL;
}

/* --- The server ------------------------------------------------------------------------------------ */

static void server_wake(void *context) { vc_loop_wake(&((vc_home *)context)->loop); }

/* Returns false without memory or descriptors. */
static bool server_open_home(vc_server *server, unsigned number) {
    const vc_server_config *config = &server->config;
    vc_home *home = &server->homes[number];
    home->server = server;
    home->number = number;
    home->jobs = (vc_job_owner){.wake = server_wake, .context = home};
    vc_job_owner_start(&home->jobs);
    for (unsigned p = 0; p < VC_PROTOCOLS; p++)
        for (unsigned state = 0; state < VC_STATES; state++) TAILQ_INIT(&home->by_state[p][state]);
    TAILQ_INIT(&home->holders);
    STAILQ_INIT(&home->ready);
    STAILQ_INIT(&home->closed);
    home->buffer = malloc(VC_RECEIVE_BYTES);
    home->out.at = malloc(VC_REPLY_BYTES);
    home->out.room = VC_REPLY_BYTES;
    if (config->application) home->upstreams = vc_upstreams_new(home, config->application);
    vc_loop_owner owner = {server_turn, server_on_woken, home};
    bool is_good = vc_loop_open(&home->loop, &owner) && home->buffer && home->out.at &&
                   (home->upstreams || !config->application);
    for (unsigned i = 0; i < config->listener_count; i++)
        home->listeners[i] = (vc_listener){
            {.fd = config->listeners[i].fd, .ready = server_on_client},
            home,
            config->listeners[i].protocol};
    if (is_good && config->hots[number])
        vc_hot_install(config->hots[number], &home->loop, vc_connection_on_copy, home);
    return is_good && server_watch_listeners(home, true);
}

vc_server *vc_server_new(const vc_server_config *config) {
    vc_server *server = calloc(1, sizeof(vc_server));
    if (!server) return NULL;
    server->config = *config;
    STAILQ_INIT(&server->calls);
    pthread_mutex_init(&server->changing, NULL);
    pthread_mutex_init(&server->mutex, NULL);
    vc_condition_start(&server->changed);
    while (server->count < config->loops && server->count < VC_LOOPS_MAX) {
        if (server_open_home(server, server->count++)) continue;
        vc_server_free(server);
        return NULL;
    }
    return server;
}

void vc_server_free(vc_server *server) {
    if (!server) return;
    for (vc_home *home = server->homes; home < server->homes + server->count; home++) {
        if (home->thread) pthread_join(home->thread, NULL);
        vc_upstreams_free(home->upstreams);
        vc_loop_close(&home->loop);
        free(home->buffer);
        free(home->out.at);
    }
    free(server);
}

bool vc_server_start(vc_server *server) {
    for (unsigned i = 0; i < server->count; i++) vc_server_take_change(server, i);
    pthread_mutex_lock(&server->mutex);
    for (vc_home *home = server->homes; home < server->homes + server->count; home++) {
        bool is_started = !pthread_create(&home->thread, NULL, server_run, home);
        if (!is_started) home->thread = 0;
        server->running += is_started;
        if (!is_started) server->done[home->number] = UINT64_MAX;
    }
    unsigned running = server->running;
    pthread_mutex_unlock(&server->mutex);
    return running;
}

/* --- For any thread ---------------------------------------------------------------------------------- */

static void server_wake_all(vc_server *server) {
    for (unsigned i = 0; i < server->count; i++) vc_loop_wake(&server->homes[i].loop);
}

/* Let each loop look for what is to be done; wait until all have, at most for a second. */
static void server_ask(vc_server *server) {
    int64_t until_ns = vc_monotonic_ns() + SERVER_SECOND_NS;
    bool is_in_time = true;
    pthread_mutex_lock(&server->mutex);
    uint64_t asked = ++server->asked;
    server_wake_all(server);
    for (unsigned i = 0; i < server->count && server->running; i++)
        while (server->done[i] < asked && is_in_time)
            is_in_time = vc_condition_wait(&server->changed, &server->mutex, until_ns);
    pthread_mutex_unlock(&server->mutex);
}

void vc_server_begin_change(vc_server *server) { pthread_mutex_lock(&server->changing); }

void vc_server_end_change(vc_server *server) {
    pthread_mutex_unlock(&server->changing);
    server_ask(server);
}

size_t vc_server_list(vc_server *server, unsigned protocol, vc_listed *to, size_t room) {
    pthread_mutex_lock(&server->mutex);
    server->listed = to;
    server->listed_protocol = protocol;
    server->listed_count = 0;
    server->listed_room = room;
    pthread_mutex_unlock(&server->mutex);
    server_ask(server);
    pthread_mutex_lock(&server->mutex);
    server->listed = NULL;
    size_t count = server->listed_count;
    pthread_mutex_unlock(&server->mutex);
    return count;
}

void vc_server_set_ring(vc_server *server, bool is_in_ring) { server->is_in_ring = is_in_ring; }

void vc_server_drain(vc_server *server, int64_t drain_ns) {
    int64_t now_ns = vc_monotonic_ns();
    server->end_ns = now_ns + drain_ns;
    server->drain_ns = now_ns;
    server_wake_all(server);
    pthread_mutex_lock(&server->mutex);
    while (server->running) pthread_cond_wait(&server->changed, &server->mutex);
    pthread_mutex_unlock(&server->mutex);
}

static void server_add_figures(const vc_home *home, vc_server_figures *to) {
    vc_add_counts(to, &home->figures, sizeof(*to));
    for (unsigned p = 0; p < VC_PROTOCOLS; p++) {
        to->protocols[p].idle += home->counts[p][VC_IDLE];
        to->waiting_for_disk += home->counts[p][VC_WAITING_FOR_DISK];
        to->waiting_for_memory += home->counts[p][VC_WAITING_FOR_MEMORY];
    }
}

void vc_server_get_figures(vc_server *server, vc_server_figures *figures) {
    memset(figures, 0, sizeof(*figures));
    for (unsigned i = 0; i < server->count; i++) server_add_figures(&server->homes[i], figures);
    for (unsigned p = 0; p < VC_PROTOCOLS; p++) figures->protocols[p].open = server->open[p];
    figures->accept_error = server->accept_error;
    figures->held = server->held;
    figures->reserved = server->reserved;
}

int64_t vc_server_stalled_ns(vc_server *server) {
    int64_t now_ns = vc_monotonic_ns(), call_ns = server->call_ns;
    int64_t longest_ns = call_ns ? now_ns - call_ns : 0;
    for (vc_home *home = server->homes; home < server->homes + server->count; home++) {
        int64_t stalled_ns = vc_loop_stalled_ns(&home->loop);
        const int64_t since_ns[] = {home->job_ns, home->bjoern_ns};
        if (stalled_ns > longest_ns) longest_ns = stalled_ns;
        for (int i = 0; i < 2; i++)
            if (since_ns[i] && now_ns - since_ns[i] > longest_ns) longest_ns = now_ns - since_ns[i];
    }
    return longest_ns;
}
