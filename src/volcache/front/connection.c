#define _GNU_SOURCE
#include "connection.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "common.h"
#include "forward.h"
#include "transfer.h"

enum {
    /* Of a reply that waits for room: in a turn. */
    CONNECTION_SEND_BYTES = 65536,
    /* Receives in a turn of what is not wanted, and before a connection is closed. */
    CONNECTION_DISCARDS = 16,
    /* After the time for a transfer, it must have been this fast since it began. */
    SLOWEST_BYTES_PER_SECOND = 500,
    /* Above the limit for what is reserved; half of that at most. */
    CONNECTION_SLACK_BYTES = 32 << 20,
};
static const int64_t CONNECTION_SECOND_NS = 1000000000;
static const uint32_t CONNECTION_EVENTS = EPOLLIN | EPOLLRDHUP | EPOLLET;

/* --- States --------------------------------------------------------------------------------- */

#define IS(state) (1u << VC_##state)

/* A request that is executed takes no time: it has no state. */
static bool connection_may_enter(const vc_connection *c, vc_state state) {
    switch (c->state) {
    case VC_WAITING_FOR_HOT_TIER: return state != VC_WAITING_FOR_HOT_TIER;
    case VC_WAITING_FOR_APPLICATION: /* The body, and the answer, pass by in pieces. */
        return (IS(COLLECTING) | IS(SENDING) | IS(IDLE) | IS(LINGERING) | IS(CLOSED)) & 1u << state;
    case VC_LINGERING: return state == VC_CLOSED;
    default: return c->state != VC_CLOSED;
    }
}

/* In which it is the client that makes progress, or not. */
static const unsigned CONNECTION_CLIENTS_TURN = IS(IDLE) | IS(RECEIVING) | IS(COLLECTING) |
                                                IS(SENDING) | IS(LINGERING);

static vc_connections *connection_list(vc_connection *c) {
    return &c->home->by_state[c->protocol][c->state];
}

/* Add it to the list of its state, which is in the order of times; it is usually the last. */
static void connection_insert(vc_connection *c) {
    vc_connections *list = connection_list(c);
    vc_connection *before = TAILQ_LAST(list, vc_connections);
    while (before && before->since_ns > c->since_ns)
        before = TAILQ_PREV(before, vc_connections, same_state);
    if (before) TAILQ_INSERT_AFTER(list, before, c, same_state);
    else TAILQ_INSERT_HEAD(list, c, same_state);
    c->home->counts[c->protocol][c->state]++;
}

void vc_connection_begin(vc_connection *c) {
    c->began_ns = c->home->loop.now_ns;
    c->moved = 0;
}

void vc_connection_enter(vc_connection *c, vc_state state) {
    int64_t now_ns = c->home->loop.now_ns;
    bool is_allowed = connection_may_enter(c, state);
    assert(is_allowed);
    (void)is_allowed;
    if (c->state != state) vc_connection_begin(c);
    TAILQ_REMOVE(connection_list(c), c, same_state);
    c->home->counts[c->protocol][c->state]--;
    c->state = state;
    c->since_ns = state == VC_IDLE ? c->idle_ns : now_ns;
    if (state != VC_CLOSED) connection_insert(c);
}

static vc_protocol_figures *connection_figures(const vc_connection *c) {
    return &c->home->figures.protocols[c->protocol];
}

void vc_connection_queue(vc_connection *c) {
    if (c->is_queued) return;
    c->is_queued = true;
    STAILQ_INSERT_TAIL(&c->home->ready, c, queued);
}

/* --- Beginning and end ------------------------------------------------------------------------ */

static void connection_on_ready(vc_watch *watch, uint32_t events) {
    (void)events;
    vc_connection_queue((vc_connection *)watch);
}

bool vc_connection_open(vc_home *home, unsigned protocol, int fd, const char *remote,
                        uint16_t port) {
    vc_connection *c = calloc(1, sizeof(vc_connection));
    const vc_served *served = &home->server->config.protocols[protocol];
    if (!c) return false;
    *c = (vc_connection){
        .watch = {.fd = fd, .ready = connection_on_ready},
        .home = home,
        .protocol = protocol,
        .calls = served->calls,
        .executor = served->executors[home->number],
        .port = port,
        .since_ns = home->loop.now_ns,
        .idle_ns = home->loop.now_ns,
    };
    c->stream = calloc(1, c->calls->stream_size);
    if (!c->stream || !vc_loop_watch(&home->loop, &c->watch, CONNECTION_EVENTS)) {
        free(c->stream);
        free(c);
        return false;
    }
    strncpy(c->remote, remote, sizeof(c->remote) - 1);
    c->stream->remote = c->remote;
    c->stream->fd = fd;
    connection_insert(c);
    return true;
}

void vc_connection_drop_input(vc_connection *c) {
    if (c->input != c->home->buffer) free(c->input);
    c->input = NULL;
    c->at = c->used = c->room = 0;
}

static void connection_forget(vc_connection *c) {
    if (c->held) TAILQ_REMOVE(&c->home->holders, c, holding);
    c->home->server->held -= c->held;
    c->held = 0;
}

void vc_connection_close(vc_connection *c) {
    vc_home *home = c->home;
    if (c->exchange) vc_forward_abandon(c);
    if (c->state == VC_WAITING_FOR_HOT_TIER)
        vc_hot_cancel(home->server->config.hots[home->number], c);
    vc_connection_release(c);
    connection_forget(c);
    vc_connection_enter(c, VC_CLOSED);
    close(c->watch.fd);
    c->watch.fd = -1;
    home->server->open[c->protocol]--;
    /* Otherwise it is freed when it comes from there. */
    if (!c->is_queued && !c->has_job) STAILQ_INSERT_TAIL(&home->closed, c, queued);
}

void vc_connection_close_gently(vc_connection *c) {
    /* A socket that is closed with unread bytes is reset, and what it has not sent is lost. */
    shutdown(c->watch.fd, SHUT_WR);
    for (int i = 0; i < CONNECTION_DISCARDS; i++)
        if (recv(c->watch.fd, c->home->buffer, VC_RECEIVE_BYTES, MSG_DONTWAIT) <= 0) break;
    vc_connection_close(c);
}

void vc_connections_free_closed(vc_home *home) {
    vc_connection *c;
    while ((c = STAILQ_FIRST(&home->closed))) {
        STAILQ_REMOVE_HEAD(&home->closed, queued);
        if (c->calls->end) c->calls->end(c->executor, c->stream);
        vc_connection_drop_input(c);
        if (c->transfer) vc_transfer_free(c);
        free(c->unsent);
        free(c->stream);
        free(c);
    }
}

/* --- What is held ------------------------------------------------------------------------------- */

/* Of all that is held: more than is reserved, so that small requests go on beside large ones. */
static uint64_t connection_memory_most(const vc_server *server) {
    uint64_t slack = server->config.memory / 2;
    return server->config.memory +
           (slack < CONNECTION_SLACK_BYTES ? slack : CONNECTION_SLACK_BYTES);
}

/* Whether a transfer has made too little progress for too long. */
static bool connection_is_too_slow(const vc_connection *c) {
    int64_t limit_ns = c->home->server->config.transfer_ns;
    int64_t elapsed_ns = c->home->loop.now_ns - c->began_ns;
    return limit_ns && elapsed_ns > limit_ns &&
           (int64_t)c->moved < elapsed_ns / CONNECTION_SECOND_NS * SLOWEST_BYTES_PER_SECOND;
}

/* End a request for a reason; the client is told, unless it is being sent an answer. */
void vc_connection_end_request(vc_connection *c, vc_refusal why) {
    if (c->state == VC_SENDING || c->unsent) vc_connection_close(c);
    else vc_connection_refuse(c, why);
}

void vc_connection_end_slow(vc_connection *c) {
    vc_count(&connection_figures(c)->closed_transfer, 1);
    vc_connection_end_request(c, VC_REFUSED_BODY);
}

/* Count what is held now, after progress. */
static void connection_count(vc_connection *c) {
    uint64_t held = c->room;
    if (held < c->reserved) held = c->reserved;
    held += c->unsent_length + c->extra;
    c->progress_ns = c->home->loop.now_ns;
    if (!held && !c->held) return;
    connection_forget(c);
    c->held = held;
    if (!held) return;
    c->home->server->held += held;
    TAILQ_INSERT_TAIL(&c->home->holders, c, holding);
}

bool vc_connection_end_stalest(vc_home *home, int64_t since_ns) {
    vc_connection *c = TAILQ_FIRST(&home->holders);
    while (c && !(CONNECTION_CLIENTS_TURN & 1u << c->state)) c = TAILQ_NEXT(c, holding);
    if (!c || c->progress_ns > since_ns) return false;
    vc_count(&connection_figures(c)->closed_for_memory, 1);
    if (c->state == VC_LINGERING) vc_connection_close(c);
    else vc_connection_end_request(c, VC_REFUSED_MEMORY);
    return true;
}

bool vc_connection_progress(vc_connection *c, size_t bytes) {
    vc_home *home = c->home;
    vc_server *server = home->server;
    c->moved += bytes;
    connection_count(c);
    if (bytes && (c->state == VC_COLLECTING || c->state == VC_SENDING)) {
        vc_connection_enter(c, c->state);
        if (connection_is_too_slow(c)) {
            vc_connection_end_slow(c);
            return false;
        }
    }
    while (server->held > connection_memory_most(server) &&
           vc_connection_end_stalest(home, INT64_MAX)) {}
    return c->state != VC_CLOSED && c->state != VC_LINGERING;
}

bool vc_connection_reserve(vc_connection *c) {
    vc_server *server = c->home->server;
    uint64_t bytes = c->stream->reserve, reserved = server->reserved;
    if (reserved && reserved + bytes > server->config.memory) return false;
    server->reserved += bytes;
    c->reserved = bytes;
    connection_count(c);
    return true;
}

void vc_connection_release(vc_connection *c) {
    c->home->server->reserved -= c->reserved;
    c->reserved = 0;
}

/* --- Sending ------------------------------------------------------------------------------------- */

/* Returns how many bytes were sent, -1 if the connection was closed. */
static ssize_t connection_send_now(vc_connection *c, const struct iovec *parts, unsigned count) {
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = count};
    ssize_t sent = sendmsg(c->watch.fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && vc_is_later(errno)) return 0;
    if (sent < 0) vc_connection_close(c);
    else vc_count(&connection_figures(c)->bytes_out, (uint64_t)sent);
    return sent;
}

/* Be told when there is room in the socket, from now on. Until it was full once, the loop does not
 * ask for that: a Unix socket reports room whenever the other side has received something. */
static bool connection_await_room(vc_connection *c) {
    if (c->awaits_room) return true;
    c->awaits_room = vc_loop_change(&c->home->loop, &c->watch, CONNECTION_EVENTS | EPOLLOUT);
    if (!c->awaits_room) vc_connection_close(c);
    return c->awaits_room;
}

bool vc_connection_send(vc_connection *c, const struct iovec *parts, unsigned count) {
    size_t total = 0, skipped = 0;
    for (unsigned i = 0; i < count; i++) total += parts[i].iov_len;
    if (!total) return true;
    ssize_t sent = connection_send_now(c, parts, count);
    if (sent < 0) return false;
    if ((size_t)sent == total) return true;
    c->unsent_length = total - (size_t)sent;
    c->unsent = malloc(c->unsent_length);
    c->sent = 0;
    if (!c->unsent) {
        vc_connection_close(c);
        return false;
    }
    char *to = c->unsent;
    for (unsigned i = 0; i < count; skipped += parts[i++].iov_len) {
        size_t done = (size_t)sent > skipped ? (size_t)sent - skipped : 0;
        if (done >= parts[i].iov_len) continue;
        memcpy(to, (char *)parts[i].iov_base + done, parts[i].iov_len - done);
        to += parts[i].iov_len - done;
    }
    return connection_await_room(c);
}

bool vc_connection_flush(vc_connection *c) {
    size_t left = c->unsent_length - c->sent;
    size_t length = left < CONNECTION_SEND_BYTES ? left : CONNECTION_SEND_BYTES;
    struct iovec part = {c->unsent + c->sent, length};
    ssize_t sent = connection_send_now(c, &part, 1);
    if (sent < 0) return false;
    if ((size_t)sent == length && length < left) vc_connection_queue(c);
    c->sent += (size_t)sent;
    if (c->sent == c->unsent_length) {
        free(c->unsent);
        c->unsent = NULL;
        c->unsent_length = 0;
    } else if (!connection_await_room(c)) {
        return false;
    }
    return (!sent || vc_connection_progress(c, (size_t)sent)) && !c->unsent;
}

/* --- Refusing --------------------------------------------------------------------------------------- */

void vc_connection_linger(vc_connection *c) {
    shutdown(c->watch.fd, SHUT_WR);
    vc_connection_enter(c, VC_LINGERING);
    vc_connection_release(c);
    vc_connection_drop_input(c);
    connection_count(c);
    vc_connection_queue(c);
}

void vc_connection_refuse(vc_connection *c, vc_refusal why) {
    vc_home *home = c->home;
    if (c->exchange) vc_forward_abandon(c);
    home->out.used = home->out.count = 0;
    c->calls->refuse(c->executor, c->stream, why, &home->out);
    /* What there is no room for is not worth a wait. */
    if (connection_send_now(c, home->out.parts, home->out.count) >= 0) vc_connection_linger(c);
}

bool vc_connection_discard(vc_connection *c) {
    for (int i = 0; i < CONNECTION_DISCARDS; i++) {
        ssize_t got = recv(c->watch.fd, c->home->buffer, VC_RECEIVE_BYTES, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && !vc_is_later(errno))) return false;
        if (got < 0) return true;
    }
    vc_connection_queue(c);
    return true;
}
