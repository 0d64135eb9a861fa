#define _GNU_SOURCE
#include "forward.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common.h"
#include "request.h"

enum {
    FORWARD_HEAD_BYTES = 16384, /* of an answer */
    FORWARD_KEPT = 16,          /* connections without a request, at most */
    FORWARD_ACTIVE = 512,       /* with one; bjoern answers one after the other anyway */
    FORWARD_ROUNDS = 8,         /* of a turn */
};

/* A connection to bjoern. */
typedef struct vc_upstream {
    vc_watch watch;
    SLIST_ENTRY(vc_upstream) next;
    vc_upstreams *pool;
    struct vc_exchange *exchange; /* NULL: it is kept, or what comes is dropped */
    bool is_busy;                 /* the answer to its request is not whole */
    bool closes;                  /* it is not used again */
    bool is_head;                 /* the answer has no body */
    bool has_head;                /* the head of the answer is whole */
    uint64_t left;                /* bytes of the answer's body that are to come */
    int64_t since_ns;             /* without an exchange: since when its answer is awaited */
    size_t head_used;
    char head[FORWARD_HEAD_BYTES];
} vc_upstream;

struct vc_upstreams {
    vc_home *home;
    const char *path;
    unsigned kept, active;
    int64_t progress_ns; /* when bjoern took or sent bytes */
    SLIST_HEAD(vc_upstream_list, vc_upstream) idle, busy;
};

/* A request and its answer. */
struct vc_exchange {
    vc_connection *client;
    vc_upstream *upstream; /* NULL: it waits for one */
    char *request;         /* bytes from `at` to `used` are to be sent */
    size_t at, used;
    uint64_t body_left;
    bool is_head, keeps_alive, is_reserved;
    bool has_answer; /* some of it was sent */
    size_t gap;
    uint64_t bytes;
};

/* --- Connections to bjoern -------------------------------------------------------------------- */

static void forward_close_upstream(vc_upstream *u) {
    vc_upstreams *pool = u->pool;
    if (u->is_busy) SLIST_REMOVE(&pool->busy, u, vc_upstream, next);
    else SLIST_REMOVE(&pool->idle, u, vc_upstream, next);
    *(u->is_busy ? &pool->active : &pool->kept) -= 1;
    if (u->exchange) u->exchange->upstream = NULL;
    close(u->watch.fd);
    free(u);
}

/* Its answer is whole: keep it for the next request. */
static void forward_keep_upstream(vc_upstream *u) {
    vc_upstreams *pool = u->pool;
    if (u->closes || pool->kept == FORWARD_KEPT) {
        forward_close_upstream(u);
        return;
    }
    SLIST_REMOVE(&pool->busy, u, vc_upstream, next);
    pool->active--;
    SLIST_INSERT_HEAD(&pool->idle, u, next);
    pool->kept++;
    u->exchange = NULL;
    u->is_busy = false;
}

static bool forward_drop_answer(vc_upstream *u);

static void forward_on_ready(vc_watch *watch, uint32_t events) {
    vc_upstream *u = (vc_upstream *)watch;
    (void)events;
    if (u->exchange) vc_connection_queue(u->exchange->client);
    else if (u->is_busy) (void)forward_drop_answer(u);
    else if (watch->is_readable) forward_close_upstream(u);
}

static vc_upstream *forward_connect(vc_upstreams *pool) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    vc_upstream *u = calloc(1, sizeof(vc_upstream));
    if (!u) return NULL;
    strncpy(address.sun_path, pool->path, sizeof(address.sun_path) - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    u->watch = (vc_watch){.fd = fd, .ready = forward_on_ready};
    u->pool = pool;
    if (fd >= 0 && !connect(fd, (struct sockaddr *)&address, sizeof(address)) &&
        vc_loop_watch(&pool->home->loop, &u->watch, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET)) {
        SLIST_INSERT_HEAD(&pool->idle, u, next);
        pool->kept++;
        return u;
    }
    if (fd >= 0) close(fd);
    free(u);
    return NULL;
}

/* Give an exchange a connection. Returns false if it has to wait for one. */
static bool forward_get_upstream(struct vc_exchange *e) {
    vc_upstreams *pool = e->client->home->upstreams;
    if (pool->active == FORWARD_ACTIVE) return false;
    vc_upstream *u = SLIST_FIRST(&pool->idle);
    if (!u) u = forward_connect(pool);
    if (!u) return false;
    SLIST_REMOVE_HEAD(&pool->idle, next);
    pool->kept--;
    SLIST_INSERT_HEAD(&pool->busy, u, next);
    pool->active++;
    u->is_busy = true;
    u->has_head = u->closes = false;
    u->head_used = 0;
    u->is_head = e->is_head;
    u->exchange = e;
    e->upstream = u;
    return true;
}

vc_upstreams *vc_upstreams_new(vc_home *home, const char *path) {
    vc_upstreams *pool = calloc(1, sizeof(vc_upstreams));
    if (pool) *pool = (vc_upstreams){.home = home, .path = path};
    return pool;
}

void vc_upstreams_free(vc_upstreams *pool) {
    vc_upstream *u;
    if (!pool) return;
    while ((u = SLIST_FIRST(&pool->idle))) forward_close_upstream(u);
    while ((u = SLIST_FIRST(&pool->busy))) forward_close_upstream(u);
    free(pool);
}

/* --- The answer ----------------------------------------------------------------------------------- */

/* Understand the head of an answer. Returns false if it has no length. */
static bool forward_parse_head(vc_upstream *u) {
    const char *length = vc_find_after(u->head, "\r\nContent-Length:");
    const char *connection = vc_find_after(u->head, "\r\nConnection:");
    int status = atoi(u->head + sizeof("HTTP/1.1"));
    bool has_body = !u->is_head && status != 204 && status != 304;
    u->has_head = true;
    u->left = has_body && length ? strtoull(length, NULL, 10) : 0;
    u->closes = !connection || !strcasestr(connection, "keep-alive");
    return length || !has_body;
}

/* Take bytes of a head; return how many, -1 if it is malformed. */
static ssize_t forward_take_head(vc_upstream *u, const char *data, size_t length) {
    size_t before = u->head_used, room = FORWARD_HEAD_BYTES - 1 - before;
    memcpy(u->head + before, data, length < room ? length : room);
    u->head_used += length < room ? length : room;
    u->head[u->head_used] = 0;
    size_t start = before < 3 ? 0 : before - 3;
    const char *end = memmem(u->head + start, u->head_used - start, "\r\n\r\n", 4);
    if (!end) return u->head_used == FORWARD_HEAD_BYTES - 1 ? -1 : (ssize_t)length;
    u->head_used = (size_t)(end - u->head) + 4;
    u->head[u->head_used] = 0;
    return forward_parse_head(u) ? (ssize_t)(u->head_used - before) : -1;
}

/* Receive some of an answer to `to`: `*body` bytes of it belong to the body, and `*skipped` are
 * before them. Returns 1 if there were some, 0 if none are there, -1 if it has failed. */
static int forward_receive(vc_upstream *u, char *to, size_t room, size_t *skipped, size_t *body) {
    *skipped = *body = 0;
    if (!u->watch.is_readable) return 0;
    ssize_t got = vc_loop_receive(&u->watch, to, room);
    if (got <= 0) return (int)got;
    u->pool->progress_ns = u->pool->home->loop.now_ns;
    if (!u->has_head) {
        ssize_t used = forward_take_head(u, to, (size_t)got);
        if (used < 0) return -1;
        *skipped = (size_t)used;
        if (!u->has_head) return 1;
    }
    *body = (size_t)got - *skipped;
    if (*body > u->left) return -1;
    u->left -= *body;
    return 1;
}

/* Receive the rest of an answer that is not wanted. */
static bool forward_drop_answer(vc_upstream *u) {
    vc_home *home = u->pool->home;
    size_t skipped, body;
    int got;
    while ((got = forward_receive(u, home->buffer, VC_RECEIVE_BYTES, &skipped, &body)) > 0) {
        if (!u->has_head || u->left) continue;
        forward_keep_upstream(u);
        return true;
    }
    if (got < 0) forward_close_upstream(u);
    return got == 0;
}

/* --- The request ------------------------------------------------------------------------------------ */

/* Send what is kept for bjoern. Returns false if it failed. */
static bool forward_send_kept(struct vc_exchange *e) {
    ssize_t sent = send(e->upstream->watch.fd, e->request + e->at, e->used - e->at,
                        MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return vc_is_later(errno);
    e->upstream->pool->progress_ns = e->client->home->loop.now_ns;
    e->at += (size_t)sent;
    if (e->at < e->used) return true;
    free(e->request);
    e->request = NULL;
    e->at = e->used = e->client->extra = 0;
    return true;
}

/* Send bytes, and keep what its socket has no room for. */
static bool forward_send(struct vc_exchange *e, const char *data, size_t length) {
    e->request = malloc(length);
    if (!e->request) return false;
    memcpy(e->request, data, length);
    e->used = e->client->extra = length;
    return forward_send_kept(e);
}

static bool forward_is_body_sent(const struct vc_exchange *e) {
    return e->at == e->used && !e->body_left;
}

/* Take some of the body from the client and forward it. Returns 1 if some was moved, 0 if none can be
 * now, or the exchange has ended, -1 if it has failed. */
static int forward_take_body(struct vc_exchange *e) {
    vc_connection *c = e->client;
    size_t left = c->used - c->at;
    size_t most = e->body_left < VC_RECEIVE_BYTES ? (size_t)e->body_left : VC_RECEIVE_BYTES;
    if (left) {
        size_t piece = left < most ? left : most;
        e->body_left -= piece;
        bool is_good = forward_send(e, c->input + c->at, piece);
        vc_connection_use_input(c, piece);
        return is_good ? 1 : -1;
    }
    if (c->state != VC_COLLECTING) vc_connection_enter(c, VC_COLLECTING);
    if (!c->watch.is_readable) return 0;
    ssize_t got = vc_connection_receive(c, c->home->buffer, most);
    if (got < 0) vc_connection_close(c);
    if (got <= 0) return 0;
    e->body_left -= (size_t)got;
    if (!forward_send(e, c->home->buffer, (size_t)got)) return -1;
    return vc_connection_progress(c, (size_t)got);
}

/* --- Exchanges -------------------------------------------------------------------------------------- */

bool vc_forward_open(vc_connection *c) {
    const vc_forward *from = &c->stream->forward;
    static const char FIELD[] = VC_REMOTE_FIELD ": ";
    struct vc_exchange *e = calloc(1, sizeof(struct vc_exchange));
    const char *line = memmem(from->head, from->head_length, "\r\n", 2);
    size_t first = (size_t)(line - from->head) + 2;
    size_t length = from->head_length + strlen(c->remote) + 22 + sizeof(VC_ADMIN_PREFIX);
    char *request = malloc(length);
    if (!e || !request) {
        free(e);
        free(request);
        return false;
    }
    char *to = request;
    memcpy(to, from->head, first);
    to += first;
    to += sprintf(to, "%s%s%s\r\n", FIELD, c->protocol == VC_ADMIN ? VC_ADMIN_PREFIX : "",
                  c->remote);
    memcpy(to, from->head + first, from->head_length - first);
    *e = (struct vc_exchange){
        .client = c,
        .request = request,
        .used = (size_t)(to - request) + from->head_length - first,
        .body_left = from->body_length,
        .is_head = from->is_head,
        .keeps_alive = from->keeps_alive,
        .is_reserved = from->is_reserved,
        .gap = from->gap,
    };
    c->exchange = e;
    c->extra = e->used;
    return true;
}

static void forward_free(vc_connection *c) {
    free(c->exchange->request);
    free(c->exchange);
    c->exchange = NULL;
    c->extra = 0;
}

/* Tell the protocol what was answered. */
static void forward_tell(const struct vc_exchange *e) {
    vc_connection *c = e->client;
    c->calls->answered(c->executor, c->stream, e->upstream->head, e->bytes);
}

void vc_forward_abandon(vc_connection *c) {
    struct vc_exchange *e = c->exchange;
    vc_upstream *u = e->upstream;
    bool is_sent = forward_is_body_sent(e);
    if (u && e->has_answer) forward_tell(e);
    if (u) {
        u->exchange = NULL;
        u->since_ns = c->state == VC_WAITING_FOR_APPLICATION ? c->since_ns : c->home->loop.now_ns;
    }
    forward_free(c);
    if (!u) return;
    /* bjoern says nothing of a request that is not whole. */
    if (is_sent) (void)forward_drop_answer(u);
    else forward_close_upstream(u);
}

static void forward_give_up(vc_connection *c) {
    if (c->exchange->has_answer) vc_connection_close(c);
    else vc_connection_refuse(c, VC_REFUSED_APPLICATION);
}

/* The application has failed. */
static void forward_fail(vc_connection *c) {
    if (c->exchange->upstream) forward_close_upstream(c->exchange->upstream);
    forward_give_up(c);
}

void vc_forward_tick(vc_connection *c, int64_t since_ns) {
    if (c->since_ns <= since_ns && !c->exchange->is_reserved) forward_give_up(c);
    else vc_connection_queue(c); /* It may wait for a connection to bjoern. */
}

int64_t vc_upstreams_stalled_since(const vc_upstreams *pool) {
    int64_t oldest_ns = 0;
    for (const vc_upstream *u = SLIST_FIRST(&pool->busy); u; u = SLIST_NEXT(u, next)) {
        const vc_connection *c = u->exchange ? u->exchange->client : NULL;
        if (c && c->state != VC_WAITING_FOR_APPLICATION) continue;
        int64_t since_ns = c ? c->since_ns : u->since_ns;
        if (!oldest_ns || since_ns < oldest_ns) oldest_ns = since_ns;
    }
    return oldest_ns && oldest_ns < pool->progress_ns ? pool->progress_ns : oldest_ns;
}

static void forward_end(vc_connection *c) {
    struct vc_exchange *e = c->exchange;
    bool is_body_sent = forward_is_body_sent(e);
    c->closes = !e->keeps_alive || !is_body_sent;
    if (!is_body_sent) e->upstream->closes = true;
    vc_connection_use_input(c, e->gap);
    forward_tell(e);
    forward_keep_upstream(e->upstream);
    forward_free(c);
    vc_connection_answered(c);
}

/* Send a part of the answer. Returns false if nothing is left to be done now. */
static bool forward_answer(vc_connection *c, size_t skipped, size_t body) {
    static char CLOSE[] = "\r\nConnection: close\r\n\r\n",
                KEEP[] = "\r\nConnection: Keep-Alive\r\n\r\n";
    struct vc_exchange *e = c->exchange;
    vc_upstream *u = e->upstream;
    struct iovec parts[3];
    unsigned count = 0;
    if (!u->has_head) return true;
    if (!e->has_answer) {
        size_t head = u->head_used;
        bool is_known = head > sizeof(KEEP) &&
                        !memcmp(u->head + head - (sizeof(KEEP) - 1), KEEP, sizeof(KEEP) - 1);
        if (is_known && !e->keeps_alive) head -= sizeof(KEEP) - 1;
        else e->keeps_alive = is_known && e->keeps_alive;
        parts[count++] = (struct iovec){u->head, head};
        if (head != u->head_used) parts[count++] = (struct iovec){CLOSE, sizeof(CLOSE) - 1};
    }
    if (body) parts[count++] = (struct iovec){c->home->buffer + skipped, body};
    e->has_answer = true;
    e->bytes += body;
    bool is_whole = !u->left;
    if (!vc_connection_send(c, parts, count)) return false;
    if (is_whole) {
        forward_end(c);
        return false;
    }
    vc_connection_enter(c, c->unsent ? VC_SENDING : VC_WAITING_FOR_APPLICATION);
    return vc_connection_progress(c, 0) && !c->unsent;
}

/* Wait for the application, unless it is the client that has to go on. */
static void forward_await(vc_connection *c) {
    struct vc_exchange *e = c->exchange;
    bool is_clients_turn = e->upstream && e->at == e->used && !forward_is_body_sent(e);
    if (!is_clients_turn && c->state != VC_WAITING_FOR_APPLICATION)
        vc_connection_enter(c, VC_WAITING_FOR_APPLICATION);
}

void vc_forward_serve(vc_connection *c) {
    struct vc_exchange *e = c->exchange;
    size_t skipped, body;
    if (!e->upstream && !forward_get_upstream(e)) {
        forward_await(c);
        return;
    }
    for (int i = 0; i < FORWARD_ROUNDS; i++) {
        int moved = e->at < e->used && !forward_send_kept(e) ? -1 : 0;
        if (!moved && e->at == e->used && !forward_is_body_sent(e)) moved = forward_take_body(e);
        if (!c->exchange) return;
        int got = moved < 0 ? -1
                            : forward_receive(e->upstream, c->home->buffer, VC_RECEIVE_BYTES,
                                              &skipped, &body);
        if (got < 0) {
            forward_fail(c);
            return;
        }
        if (got && !forward_answer(c, skipped, body)) return;
        if (!got && !moved) {
            forward_await(c);
            return;
        }
    }
    vc_connection_queue(c);
}
