#define _GNU_SOURCE
#include "mc_loop.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/queue.h>
#include <unistd.h>

enum {
    RECEIVE_BYTES = 65536,
    INPUT_BYTES_MIN = 1024,
    /* For replies; never more of this memory is used than the largest of them needs. */
    OUT_BYTES = 5 << 18,
    /* Of a turn. A command takes some microseconds, so that a turn takes less than a millisecond. */
    TURN_COMMANDS = 128,
    TURN_REPLY_BYTES = 65536,
    ACCEPTS = 16,
    EVENTS = 64,
    /* After the time for a transfer, a command or a reply must have been this fast since. */
    SLOWEST_BYTES_PER_SECOND = 500,
    /* Receives of what nobody wants, before a connection is closed. */
    DISCARDS = 16,
    STEP_MS = 10,
    NEWS_MS = 100,
    TICK_MS = 1000,
};
static const int64_t MS_NS = 1000000, SECOND_NS = 1000000000;
/* While no connection can be accepted for want of descriptors or memory. */
static const int64_t ACCEPT_PAUSE_NS = 500000000;
static const uint32_t WATCHED = EPOLLIN | EPOLLRDHUP | EPOLLET;
static const char REFUSAL[] = "ERROR Too many open connections\r\n";

typedef struct loop loop;

typedef enum {
    ARRIVED,    /* accepted, not yet with its loop */
    WAITING,    /* for bytes */
    READY,      /* it waits for its turn */
    BUSY,       /* another thread has it */
    SENDING,    /* it waits for room in the socket */
} phase;

/* One connection. */
typedef struct peer {
    TAILQ_ENTRY(peer) near;     /* in the list of its loop */
    TAILQ_ENTRY(peer) idler;    /* while it is idle */
    LIST_ENTRY(peer) any;       /* in that of all, with the mutex */
    STAILQ_ENTRY(peer) next;    /* in the one queue that it is in, if any */
    loop *loop;
    int fd;                 /* -1: closed */
    int number;             /* what `fd` was at first */
    phase phase;
    bool is_readable;       /* bytes may have arrived, or the end */
    bool has_ended;         /* the end has arrived, perhaps after bytes */
    bool watches_room;
    bool wants_more;        /* the command in `input` is not whole */
    bool has_progress;      /* a command was executed since it was last counted */
    bool calls;             /* another thread is to execute the next command */
    bool is_timed;          /* something is held, or is to come */
    _Atomic bool is_doomed; /* to be closed when it is no longer busy */
    _Atomic bool is_idle;   /* it has nothing to do */
    _Atomic int64_t used_ns;            /* when it had something to do last */
    unsigned generation;    /* of the settings that `stream` has */
    vc_mc_stream stream;
    vc_job read;
    char *input;            /* bytes from `at` to `used` are not executed */
    size_t at, used, room;
    char *unsent;
    size_t sent, unsent_length;
    /* While something is held: how many bytes, since when, how much was received or sent since
     * then, and when the last of it was. */
    size_t held;
    int64_t since_ns, progress_ns;
    uint64_t moved;
    char remote[46];
    uint16_t port;          /* of the client */
} peer;

typedef TAILQ_HEAD(peers, peer) peers;
typedef STAILQ_HEAD(queue, peer) queue;

struct loop {
    vc_mc_server *server;
    vc_mc *mc;
    pthread_t thread;
    int epoll, wakeup;
    peers peers;            /* of those that are timed, the last one has made progress last */
    unsigned timed;         /* how many these are */
    peers idle;             /* the first one is idle for the longest time */
    _Atomic int64_t idle_ns;            /* since when it is; 0: there is none */
    queue ready;
    vc_job_owner reads;
    unsigned cold;          /* reads that are to be done */
    bool accepts;
    bool has_executed, has_news;        /* of which Python may not know */
    vc_mc_settings settings;
    unsigned generation;
    int64_t now_ns, tick_ns, news_ns, resume_ns;
    char *buffer;           /* what is received */
    vc_mc_out out;
    _Atomic int64_t turn_ns;            /* when its turn has begun; 0: it waits */
    _Atomic int64_t read_ns;            /* when a read was completed, or begun; 0: none is to do */
    /* With the mutex of the server. */
    queue back;             /* connections that were accepted, or that are no longer busy */
    bool is_woken, has_ended;
    unsigned gives_way;     /* idle connections that are to be closed */
    uint64_t asked, answered;
};

struct vc_mc_server {
    vc_mc_server_config config;
    loop loops[VC_MC_LOOPS_MAX];
    unsigned count;
    vc_mc_figures figures;  /* changed atomically */
    pthread_mutex_t mutex;
    pthread_cond_t calls_changed, answered;
    LIST_HEAD(every, peer) all;
    queue calls;
    vc_mc *waiting;         /* executes them */
    _Atomic int64_t call_ns;            /* when the present one has begun; 0: there is none */
    unsigned running;       /* loops */
    unsigned turn;          /* which loop gets the next connection */
    vc_mc_settings settings;
    unsigned generation;
};

static void lock(vc_mc_server *server) { pthread_mutex_lock(&server->mutex); }
static void unlock(vc_mc_server *server) { pthread_mutex_unlock(&server->mutex); }

/* Add to one of the figures; `more` may be below 0. */
static void add(uint64_t *figure, int64_t more) {
    __atomic_fetch_add(figure, (uint64_t)more, __ATOMIC_RELAXED);
}

static uint64_t get(const uint64_t *figure) { return __atomic_load_n(figure, __ATOMIC_RELAXED); }

/* Let a loop look at what was handed to it; with the mutex. */
static void wake(loop *l) {
    if (l->is_woken || l->has_ended) return;
    l->is_woken = true;
    (void)!eventfd_write(l->wakeup, 1);
}

/* Let a connection go on in its loop; with the mutex. */
static void hand_back(peer *p) {
    STAILQ_INSERT_TAIL(&p->loop->back, p, next);
    wake(p->loop);
}

static peer *take_first(queue *from) {
    peer *p = STAILQ_FIRST(from);
    if (p) STAILQ_REMOVE_HEAD(from, next);
    return p;
}

static void make_ready(loop *l, peer *p) {
    p->phase = READY;
    STAILQ_INSERT_TAIL(&l->ready, p, next);
}

/* Let Python have the events. */
static void tell(void *context) {
    loop *l = context;
    size_t length;
    const uint8_t *events = vc_mc_take_events(l->mc, &length);
    const vc_mc_server_config *config = &l->server->config;
    if (length || l->has_news) config->on_news(config->context, events, length);
    l->has_executed = l->has_news = false;
    l->news_ns = l->now_ns + NEWS_MS * MS_NS;
}

/* --- The end of a connection ------------------------------------------------------------- */

static void forget(loop *l, peer *p) {
    if (p->is_timed) l->timed--;
    add(&l->server->figures.held, -(int64_t)p->held);
    p->held = 0;
    p->is_timed = false;
}

static void free_peer(peer *p) {
    lock(p->loop->server);
    LIST_REMOVE(p, any);
    unlock(p->loop->server);
    free(p->input);
    free(p->unsent);
    free(p);
}

/* Note that a connection is idle from now on, or no longer. */
static void set_idle(loop *l, peer *p, bool is_idle) {
    if (p->is_idle) TAILQ_REMOVE(&l->idle, p, idler);
    if (is_idle) TAILQ_INSERT_TAIL(&l->idle, p, idler);
    peer *first = TAILQ_FIRST(&l->idle);
    /* Others that read these may see them late. */
    atomic_store_explicit(&p->is_idle, is_idle, memory_order_relaxed);
    atomic_store_explicit(&p->used_ns, l->now_ns, memory_order_relaxed);
    atomic_store_explicit(&l->idle_ns, first ? first->used_ns : 0, memory_order_relaxed);
}

/* Close a connection. One that another thread has, or that is in the queue for a turn, is freed
 * when it comes from there. */
static void close_peer(loop *l, peer *p) {
    forget(l, p);
    if (p->phase == BUSY) {
        p->is_doomed = true;
        return;
    }
    TAILQ_REMOVE(&l->peers, p, near);
    if (p->is_idle) set_idle(l, p, false);
    close(p->fd);
    p->fd = -1;
    add(&l->server->figures.open, -1);
    if (p->phase != READY) free_peer(p);
}

/* Close so that the client gets what was sent, although it sends more. */
static void close_gently(loop *l, peer *p) {
    shutdown(p->fd, SHUT_WR);
    for (int i = 0; i < DISCARDS; i++)
        if (recv(p->fd, l->buffer, RECEIVE_BYTES, MSG_DONTWAIT) <= 0) break;
    close_peer(l, p);
}

/* --- What is held ------------------------------------------------------------------------ */

/* Whether a client has made too little progress for too long. */
static bool is_too_slow(const loop *l, const peer *p) {
    int64_t limit_ns = l->server->config.transfer_ns, elapsed_ns = l->now_ns - p->since_ns;
    bool moves_little = (int64_t)p->moved < elapsed_ns / SECOND_NS * SLOWEST_BYTES_PER_SECOND;
    return limit_ns && (l->now_ns - p->progress_ns > limit_ns ||
                        (elapsed_ns > limit_ns && moves_little));
}

/* Close the connection that holds something and has made no progress for the longest time. Returns
 * NULL if there is none. */
static peer *close_oldest(loop *l) {
    peer *p = TAILQ_FIRST(&l->peers);
    while (p && !p->held) p = TAILQ_NEXT(p, near);
    if (!p) return NULL;
    close_peer(l, p);
    add(&l->server->figures.closed_for_memory, 1);
    l->has_news = true;
    return p;
}

/* Count what is held for a connection that has just made progress. Returns false if it was closed:
 * it is too slow, or all hold too much. */
static bool hold(loop *l, peer *p) {
    vc_mc_server *server = l->server;
    bool is_new = p->has_progress || !p->is_timed, is_open = true;
    peer *closed = NULL;
    p->has_progress = false;
    forget(l, p);
    p->held = p->room + p->unsent_length;
    p->is_timed = p->held || vc_mc_is_inside(&p->stream);
    if (!p->is_timed) return true;
    add(&server->figures.held, (int64_t)p->held);
    l->timed++;
    if (!is_new && is_too_slow(l, p)) {
        close_peer(l, p);
        return false;
    }
    p->progress_ns = l->now_ns;
    if (is_new) {
        p->since_ns = l->now_ns;
        p->moved = 0;
    }
    TAILQ_REMOVE(&l->peers, p, near);
    TAILQ_INSERT_TAIL(&l->peers, p, near);
    while (get(&server->figures.held) > server->config.held_bytes && (closed = close_oldest(l)))
        is_open = closed != p && is_open;
    return is_open;
}

static void close_slow(loop *l) {
    peer *next;
    for (peer *p = TAILQ_FIRST(&l->peers); p && l->timed; p = next) {
        next = TAILQ_NEXT(p, near);
        bool waits = p->phase == WAITING || p->phase == SENDING;
        if (waits && p->is_timed && is_too_slow(l, p)) close_peer(l, p);
    }
}

/* Close the connection that is idle for the longest time. One that has its turn soon may have a
 * command. Returns false if there is none that is idle since a time. */
static bool close_idle(loop *l, int64_t since_ns) {
    peer *p = TAILQ_FIRST(&l->idle);
    while (p && p->phase != WAITING) p = TAILQ_NEXT(p, idler);
    if (!p || p->used_ns > since_ns) return false;
    close_peer(l, p);
    add(&l->server->figures.closed_idle, 1);
    return true;
}

/* --- Sending ------------------------------------------------------------------------------- */

static void watch_room(loop *l, peer *p, bool is_on) {
    struct epoll_event event = {.events = WATCHED | (is_on ? EPOLLOUT : 0), .data.ptr = p};
    if (p->watches_room != is_on) (void)epoll_ctl(l->epoll, EPOLL_CTL_MOD, p->fd, &event);
    p->watches_room = is_on;
}

/* Send what the socket has room for. Returns -1 if the client has gone. */
static ssize_t send_some(loop *l, peer *p, const char *data, size_t length) {
    ssize_t sent = send(p->fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return vc_is_later(errno) ? 0 : -1;
    add(&l->server->figures.bytes_out, sent);
    p->moved += (uint64_t)sent;
    return sent;
}

/* Returns false without memory. */
static bool copy(char **to, size_t *to_length, const char *from, size_t length) {
    *to_length = length;
    *to = length ? malloc(length) : NULL;
    if (*to) memcpy(*to, from, length);
    return *to || !length;
}

/* Send the replies of a turn, and keep what the socket has no room for. Returns false if the
 * connection is to be closed. */
static bool send_replies(loop *l, peer *p) {
    vc_mc_out *out = &l->out;
    ssize_t sent = out->used ? send_some(l, p, out->at, out->used) : 0;
    p->sent = 0;
    return sent >= 0 &&
           copy(&p->unsent, &p->unsent_length, out->at + sent, out->used - (size_t)sent);
}

/* Wait until the socket has room. */
static void wait_for_room(loop *l, peer *p) {
    p->phase = SENDING;
    if (hold(l, p)) watch_room(l, p, true);
}

/* Send what is left of replies. Returns true if that is all, and the connection is open. */
static bool send_rest(loop *l, peer *p) {
    ssize_t sent = send_some(l, p, p->unsent + p->sent, p->unsent_length - p->sent);
    if (sent < 0) {
        close_peer(l, p);
        return false;
    }
    p->sent += (size_t)sent;
    if (p->sent == p->unsent_length) {
        free(p->unsent);
        p->unsent = NULL;
        p->unsent_length = 0;
        watch_room(l, p, false);
        return hold(l, p);
    }
    wait_for_room(l, p);
    return false;
}

/* --- Input ----------------------------------------------------------------------------------- */

/* Have room for more after the bytes that are kept; the loop lends its buffer if there are none.
 * Returns false without memory. */
static bool make_room(loop *l, peer *p) {
    size_t left = p->used - p->at;
    if (!left) {
        p->input = l->buffer;
        p->room = RECEIVE_BYTES;
        return true;
    }
    if (p->at) memmove(p->input, p->input + p->at, left);
    p->at = 0;
    p->used = left;
    if (p->room - left >= INPUT_BYTES_MIN) return true;
    /* Pieces are added in linear time, however small they are. */
    size_t room = 2 * left + INPUT_BYTES_MIN;
    char *input = realloc(p->input, room);
    if (!input) return false;
    p->input = input;
    p->room = room;
    return true;
}

/* Keep what is not executed, outside of the buffer of the loop. Returns false without memory. */
static bool keep(const loop *l, peer *p) {
    char *input = p->input;
    size_t left = p->used - p->at;
    if (left && input != l->buffer) return true;
    bool is_good = copy(&p->input, &p->used, input + p->at, left);
    if (input != l->buffer) free(input);
    p->at = 0;
    p->room = p->used;
    return is_good;
}

static void wait_for_bytes(loop *l, peer *p) {
    p->is_readable = false;
    if (!p->is_timed) set_idle(l, p, true);
}

/* Receive once. Returns false if there is nothing: the connection waits, or is closed. */
static bool receive(loop *l, peer *p) {
    if (!p->is_readable) return false;
    ssize_t got = make_room(l, p) ? recv(p->fd, p->input + p->used, p->room - p->used, MSG_DONTWAIT)
                                  : 0;
    if (got > 0) {
        if ((size_t)got < p->room - p->used && !p->has_ended) p->is_readable = false;
        p->used += (size_t)got;
        p->moved += (uint64_t)got;
        add(&l->server->figures.bytes_in, got);
        return true;
    }
    bool is_waiting = got < 0 && vc_is_later(errno);
    (void)keep(l, p);
    if (is_waiting && (!l->settings.end_ns || p->is_timed)) wait_for_bytes(l, p);
    else if (is_waiting) close_gently(l, p);
    else close_peer(l, p);
    return false;
}

/* --- Turns -------------------------------------------------------------------------------------- */

/* Let another thread execute the next command. */
static void call(loop *l, peer *p) {
    vc_mc_server *server = l->server;
    if (l->settings.slow_ns < 0) tell(l); /* Lines are in the order of commands. */
    p->calls = false;
    if (!hold(l, p)) return;
    p->phase = BUSY;
    lock(server);
    STAILQ_INSERT_TAIL(&server->calls, p, next);
    pthread_cond_signal(&server->calls_changed);
    unlock(server);
}

static bool on_read(vc_job *job, const uint8_t *bytes) {
    (void)job, (void)bytes;
    return true;
}

static void on_reads(void *context) {
    loop *l = context;
    lock(l->server);
    wake(l);
    unlock(l->server);
}

/* Begin a job for the readers; the connection waits for it. */
static vc_job *start_job(loop *l, peer *p) {
    p->phase = BUSY;
    p->read = (vc_job){.owner = &l->reads};
    if (!l->cold++) l->read_ns = l->now_ns;
    return &p->read;
}

/* Let the thread store a value, which is part of the input: that was at `from`. */
static void start_put(loop *l, peer *p, const char *from) {
    vc_put *put = &p->stream.put;
    if (put->record.length)
        put->value = (const uint8_t *)p->input + p->at + (put->value - (const uint8_t *)from);
    start_job(l, p)->put = put;
    vc_readers_put(l->server->config.readers, &p->read);
    (void)hold(l, p);
}

/* Let a thread read a record, so that it is in memory. */
static void start_read(loop *l, peer *p) {
    vc_job *read = start_job(l, p);
    read->at = p->stream.at;
    read->key = p->stream.key;
    read->key_length = p->stream.key_length;
    read->added_ns = l->now_ns;
    add(&l->server->figures.cold, 1);
    vc_readers_add(l->server->config.readers, &p->read);
    (void)hold(l, p);
}

/* Execute commands of a turn; return why no more. */
static vc_mc_step execute(loop *l, peer *p) {
    vc_mc_step step = VC_MC_NEXT;
    /* What is stored already is answered first. */
    int most = p->stream.is_put ? 1 : TURN_COMMANDS;
    if (p->generation != l->generation && !p->stream.is_put) {
        vc_mc_allow(&p->stream, &l->settings.access);
        p->generation = l->generation;
    }
    for (int i = 0; i < most && step == VC_MC_NEXT && l->out.used < TURN_REPLY_BYTES; i++) {
        size_t used = 0;
        step = vc_mc_execute(l->mc, &p->stream, p->input + p->at, p->used - p->at, &used, &l->out);
        p->at += used;
        if (step == VC_MC_NEXT) p->has_progress = l->has_executed = true;
        if (p->stream.closes) break;
    }
    return step;
}

/* Execute commands and send the replies. */
static void serve_commands(loop *l, peer *p) {
    bool is_whole = !p->wants_more || p->used - p->at >= p->stream.needed;
    l->out.used = 0;
    vc_mc_step step = is_whole ? execute(l, p) : VC_MC_MORE;
    const char *rest = p->input + p->at;
    p->wants_more = step == VC_MC_MORE;
    p->calls = step == VC_MC_CALL;
    bool is_good = keep(l, p) && send_replies(l, p);
    if (step == VC_MC_COLD) start_read(l, p);
    if (step == VC_MC_TOGETHER && is_good) start_put(l, p, rest);
    if (!is_good) close_peer(l, p);
    else if (p->phase == BUSY) return;
    else if (p->unsent) wait_for_room(l, p);
    else if (p->stream.closes) close_gently(l, p);
    else if (p->calls) call(l, p);
    else if (!hold(l, p)) return;
    else if (step != VC_MC_MORE || p->is_readable) make_ready(l, p);
    else if (!p->is_timed) set_idle(l, p, true);
}

/* Let a connection have its turn. */
static void serve(loop *l, peer *p) {
    p->phase = WAITING;
    if (p->is_idle) set_idle(l, p, false);
    if (p->is_doomed) close_peer(l, p);
    else if (p->unsent && !send_rest(l, p)) return; /* It goes on when all is sent. */
    else if (p->stream.closes) close_gently(l, p);
    else if (p->calls) call(l, p);
    else if ((p->at == p->used || p->wants_more) && !receive(l, p)) return;
    else serve_commands(l, p);
}

static void serve_ready(loop *l) {
    queue turn = STAILQ_HEAD_INITIALIZER(turn);
    peer *p;
    STAILQ_CONCAT(&turn, &l->ready);
    while ((p = take_first(&turn))) {
        if (p->fd >= 0) serve(l, p);
        else free_peer(p);
    }
    if (l->cold) vc_readers_wake(l->server->config.readers);
}

static void on_ready(loop *l, peer *p, uint32_t events) {
    p->is_readable = p->is_readable || (events & ~(uint32_t)EPOLLOUT);
    p->has_ended = p->has_ended || (events & (EPOLLRDHUP | EPOLLHUP));
    if (p->phase == WAITING || (p->phase == SENDING && (events & (EPOLLOUT | EPOLLERR))))
        make_ready(l, p);
}

/* --- Accepting ---------------------------------------------------------------------------------- */

static void watch_clients(loop *l, bool is_on) {
    struct epoll_event event = {.events = is_on ? EPOLLIN : 0, .data.ptr = l->server};
    (void)epoll_ctl(l->epoll, EPOLL_CTL_MOD, l->server->config.listening, &event);
}

/* Let the connection be closed that is idle for the longest time. Returns false if none is idle for
 * a second. */
static bool make_way(loop *l) {
    vc_mc_server *server = l->server;
    loop *found = NULL;
    int64_t oldest_ns = l->now_ns - SECOND_NS;
    for (loop *one = server->loops; one < server->loops + server->count; one++) {
        int64_t idle_ns = one->idle_ns;
        if (!idle_ns || idle_ns > oldest_ns) continue;
        found = one;
        oldest_ns = idle_ns;
    }
    if (!found) return false;
    if (found == l) return close_idle(l, oldest_ns);
    lock(server);
    found->gives_way++;
    wake(found);
    unlock(server);
    return true;
}

/* Try again later: the socket stays readable, and the loop would spin. */
static void pause_accepting(loop *l, int error) {
    vc_mc_figures *figures = &l->server->figures;
    if (error == EMFILE || error == ENFILE) (void)make_way(l);
    watch_clients(l, false);
    l->resume_ns = l->now_ns + ACCEPT_PAUSE_NS;
    __atomic_store_n(&figures->accept_error, (uint64_t)error, __ATOMIC_RELAXED);
    add(&figures->failed_accepts, 1);
    l->has_news = true;
}

static void refuse(loop *l, int fd) {
    (void)!send(fd, REFUSAL, sizeof(REFUSAL) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(fd);
    add(&l->server->figures.refused, 1);
    l->has_news = true;
}

/* Give a new connection to the next loop. */
static void give(vc_mc_server *server, peer *p) {
    add(&server->figures.accepted, 1);
    add(&server->figures.open, 1);
    lock(server);
    LIST_INSERT_HEAD(&server->all, p, any);
    do p->loop = &server->loops[server->turn++ % server->count];
    while (p->loop->has_ended);
    hand_back(p);
    unlock(server);
}

/* Returns false if none is waiting, or none can be accepted. */
static bool accept_client(loop *l) {
    vc_mc_server *server = l->server;
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    struct sockaddr *from = (struct sockaddr *)&address;
    int fd = accept4(server->config.listening, from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            pause_accepting(l, errno);
        return false; /* Or the client has gone. */
    }
    /* Another loop may not have made way yet. */
    uint64_t open = get(&server->figures.open), most = server->config.connections;
    bool has_room = open < most || (open < most + ACCEPTS && make_way(l));
    peer *p = has_room ? calloc(1, sizeof(peer)) : NULL;
    if (!p) {
        refuse(l, fd);
        return true;
    }
    p->fd = p->number = fd;
    p->used_ns = l->now_ns;
    p->stream.remote = p->remote;
    /* The port is at the same place of both kinds of addresses. */
    if (address.ss_family != AF_UNIX)
        p->port = ntohs(((struct sockaddr_in *)(void *)&address)->sin_port);
    if (address.ss_family == AF_UNIX) strcpy(p->remote, "unix");
    else if (getnameinfo(from, length, p->remote, sizeof(p->remote), NULL, 0, NI_NUMERICHOST))
        p->remote[0] = 0;
    give(server, p);
    return true;
}

/* --- A loop -------------------------------------------------------------------------------------- */

static void adopt(loop *l, peer *p) {
    struct epoll_event event = {.events = WATCHED, .data.ptr = p};
    TAILQ_INSERT_HEAD(&l->peers, p, near);
    set_idle(l, p, true);
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, p->fd, &event)) close_peer(l, p);
}

/* Let a connection go on that another thread had. */
static void go_on(loop *l, peer *p) {
    bool has_arrived = p->phase == ARRIVED;
    p->phase = WAITING;
    /* It did not wait for its client. */
    p->since_ns += l->now_ns - p->progress_ns;
    p->progress_ns = l->now_ns;
    if (has_arrived) adopt(l, p);
    else if (p->is_doomed || hold(l, p)) make_ready(l, p);
}

static void take_reads(loop *l) {
    for (vc_job *job = vc_job_owner_take(&l->reads, NULL), *next; job; job = next) {
        next = job->next;
        l->read_ns = --l->cold ? l->now_ns : 0;
        go_on(l, (peer *)(void *)((char *)job - offsetof(peer, read)));
    }
}

/* Use the settings; with the mutex. */
static void take_settings(loop *l) {
    const vc_mc_server *server = l->server;
    if (l->generation == server->generation) return;
    l->settings = server->settings;
    l->generation = server->generation;
    vc_mc_change(l->mc, &(vc_mc_config){.slow_ns = l->settings.slow_ns});
    if (l->settings.end_ns && l->accepts) watch_clients(l, false);
    l->accepts = l->accepts && !l->settings.end_ns;
}

/* Take over what other threads have handed to the loop. */
static void take_back(loop *l) {
    vc_mc_server *server = l->server;
    queue back = STAILQ_HEAD_INITIALIZER(back);
    peer *p;
    lock(server);
    STAILQ_CONCAT(&back, &l->back);
    uint64_t asked = l->asked;
    unsigned gives_way = l->gives_way;
    l->is_woken = false;
    l->gives_way = 0;
    take_settings(l);
    unlock(server);
    take_reads(l);
    while ((p = take_first(&back))) go_on(l, p);
    while (gives_way-- && close_idle(l, l->now_ns)) continue;
    if (asked == l->answered) return;
    tell(l);
    lock(server);
    l->answered = asked;
    pthread_cond_broadcast(&server->answered);
    unlock(server);
}

static void tick(loop *l) {
    if (l->now_ns >= l->tick_ns) {
        int64_t idle_ns = l->server->config.idle_ns;
        close_slow(l);
        while (idle_ns && close_idle(l, l->now_ns - idle_ns)) continue;
        l->tick_ns = l->now_ns + TICK_MS * MS_NS;
    }
    if ((l->has_executed || l->has_news) && l->now_ns >= l->news_ns) tell(l);
    if (l->resume_ns && l->now_ns >= l->resume_ns) {
        l->resume_ns = 0;
        if (l->accepts) watch_clients(l, true);
    }
}

static int timeout_ms(const loop *l) {
    if (!STAILQ_EMPTY(&l->ready)) return 0;
    /* A read may wait behind one that hangs, until the loop has looked. */
    if (l->settings.end_ns || l->cold) return STEP_MS;
    if (l->has_executed || l->has_news || l->resume_ns) return NEWS_MS;
    return l->timed || (l->server->config.idle_ns && l->idle_ns) ? TICK_MS : -1;
}

static void wait_for_events(loop *l) {
    struct epoll_event events[EVENTS];
    l->turn_ns = 0;
    int count = epoll_wait(l->epoll, events, EVENTS, timeout_ms(l));
    l->turn_ns = l->now_ns = vc_monotonic_ns();
    bool is_woken = false, has_clients = false;
    for (int i = 0; i < count; i++) {
        void *about = events[i].data.ptr;
        if (about == l) is_woken = true;
        else if (about == l->server) has_clients = true;
        else on_ready(l, about, events[i].events);
    }
    if (is_woken) take_back(l);
    for (int i = 0; has_clients && l->accepts && i < ACCEPTS; i++) has_clients = accept_client(l);
}

/* Let all connections have a turn that wait for bytes: those without any are closed. After the
 * time for the drain, close all. */
static void drain(loop *l) {
    bool is_late = l->now_ns >= l->settings.end_ns;
    peer *next;
    for (peer *p = TAILQ_FIRST(&l->peers); p; p = next) {
        next = TAILQ_NEXT(p, near);
        if (is_late && !p->is_doomed) {
            add(&l->server->figures.cut, 1);
            close_peer(l, p);
        } else if (p->phase == WAITING) {
            p->is_readable = true;
            make_ready(l, p);
        }
    }
}

/* Returns whether the loop has ended: it is draining, and no connection is open. */
static bool end_if_empty(loop *l) {
    vc_mc_server *server = l->server;
    if (!l->settings.end_ns || !TAILQ_EMPTY(&l->peers) || !STAILQ_EMPTY(&l->ready)) return false;
    tell(l);
    /* A thread may still be on its way out of a read. */
    vc_readers_end(server->config.readers, &l->reads);
    lock(server);
    l->has_ended = STAILQ_EMPTY(&l->back);
    if (l->has_ended) {
        l->turn_ns = 0;
        server->running--;
        pthread_cond_broadcast(&server->answered);
        pthread_cond_signal(&server->calls_changed);
    }
    unlock(server);
    return l->has_ended;
}

static void run(void *context) {
    loop *l = context;
    take_back(l);
    do {
        wait_for_events(l);
        if (l->settings.end_ns) drain(l);
        serve_ready(l);
        tick(l);
    } while (!end_if_empty(l));
}

static void *run_thread(void *context) {
    loop *l = context;
    pthread_setname_np(pthread_self(), "memcache");
    l->server->config.in_thread(run, l);
    return NULL;
}

/* --- The server ------------------------------------------------------------------------------------ */

/* Returns false without memory or descriptors. */
static bool open_loop(vc_mc_server *server, loop *l) {
    vc_mc_config commands = server->config.commands;
    struct epoll_event woken = {.events = EPOLLIN | EPOLLET, .data.ptr = l};
    struct epoll_event arrived = {.events = EPOLLIN, .data.ptr = server};
    commands.on_events = tell;
    commands.context = l;
    commands.ask = NULL;
    l->server = server;
    l->has_ended = true; /* Until it is started. */
    l->accepts = l == server->loops;
    l->mc = vc_mc_new(&commands);
    l->buffer = malloc(RECEIVE_BYTES);
    l->out = (vc_mc_out){.at = malloc(OUT_BYTES), .room = OUT_BYTES};
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->reads = (vc_job_owner){.use = on_read, .wake = on_reads, .context = l};
    vc_job_owner_start(&l->reads);
    TAILQ_INIT(&l->peers);
    TAILQ_INIT(&l->idle);
    STAILQ_INIT(&l->ready);
    STAILQ_INIT(&l->back);
    return l->mc && l->buffer && l->out.at &&
           !epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->wakeup, &woken) &&
           (!l->accepts ||
            !epoll_ctl(l->epoll, EPOLL_CTL_ADD, server->config.listening, &arrived));
}

/* Let Python have the events of calls. */
static void tell_of_calls(void *context) {
    vc_mc_server *server = context;
    size_t length;
    const uint8_t *events = vc_mc_take_events(server->waiting, &length);
    if (length) server->config.on_news(server->config.context, events, length);
}

vc_mc_server *vc_mc_server_new(const vc_mc_server_config *config) {
    vc_mc_server *server = calloc(1, sizeof(vc_mc_server));
    vc_mc_config commands = config->commands;
    pthread_condattr_t by_monotonic_clock;
    if (!server) return NULL;
    server->config = *config;
    commands.on_events = tell_of_calls;
    commands.context = server;
    server->waiting = vc_mc_new(&commands);
    STAILQ_INIT(&server->calls);
    LIST_INIT(&server->all);
    pthread_mutex_init(&server->mutex, NULL);
    pthread_condattr_init(&by_monotonic_clock);
    pthread_condattr_setclock(&by_monotonic_clock, CLOCK_MONOTONIC);
    pthread_cond_init(&server->calls_changed, &by_monotonic_clock);
    pthread_cond_init(&server->answered, &by_monotonic_clock);
    pthread_condattr_destroy(&by_monotonic_clock);
    while (server->count < config->loops && server->count < VC_MC_LOOPS_MAX) {
        if (!open_loop(server, &server->loops[server->count++]) || !server->waiting) {
            vc_mc_server_free(server);
            return NULL;
        }
    }
    return server;
}

void vc_mc_server_free(vc_mc_server *server) {
    if (!server) return;
    for (loop *l = server->loops; l < server->loops + server->count; l++) {
        if (l->thread) pthread_join(l->thread, NULL);
        vc_mc_free(l->mc);
        free(l->buffer);
        free(l->out.at);
        close(l->epoll);
        close(l->wakeup);
    }
    vc_mc_free(server->waiting);
    free(server);
}

bool vc_mc_start(vc_mc_server *server) {
    lock(server);
    for (loop *l = server->loops; l < server->loops + server->count; l++) {
        l->has_ended = pthread_create(&l->thread, NULL, run_thread, l) != 0;
        if (l->has_ended) l->thread = 0;
        if (l->has_ended && l->accepts) break;
        server->running += !l->has_ended;
    }
    unlock(server);
    return server->running;
}

/* --- Calls --------------------------------------------------------------------------------------------- */

/* Wait with the mutex until a time. Returns false when it has come. */
static bool wait_until(vc_mc_server *server, pthread_cond_t *condition, int64_t until_ns) {
    struct timespec until = {.tv_sec = until_ns / SECOND_NS, .tv_nsec = until_ns % SECOND_NS};
    return pthread_cond_timedwait(condition, &server->mutex, &until) != ETIMEDOUT;
}

/* Take a connection that waits for a call; with the mutex. NULL: there was none in time. */
static peer *take_call(vc_mc_server *server, int64_t until_ns) {
    bool is_in_time = true;
    for (;;) {
        peer *p = take_first(&server->calls);
        if (p && !p->is_doomed) return p;
        if (p) hand_back(p);
        else if (!is_in_time || !server->running) return NULL;
        else is_in_time = wait_until(server, &server->calls_changed, until_ns);
    }
}

/* Execute the next command of a connection; its reply is to be sent. */
static void run_call(vc_mc_server *server, peer *p) {
    vc_mc_out out = {.at = malloc(VC_MC_OUT_BYTES_MIN), .room = VC_MC_OUT_BYTES_MIN};
    size_t used = 0;
    if (!out.at || vc_mc_execute(server->waiting, &p->stream, p->input + p->at, p->used - p->at,
                                 &used, &out) != VC_MC_NEXT)
        p->is_doomed = true;
    p->at += used;
    if (p->at == p->used) {
        free(p->input);
        p->input = NULL;
        p->at = p->used = p->room = 0;
    }
    p->sent = 0;
    p->unsent = out.used ? out.at : NULL;
    p->unsent_length = out.used;
    if (!out.used) free(out.at);
    p->has_progress = true;
    tell_of_calls(server);
}

vc_mc_wait vc_mc_serve_call(vc_mc_server *server, int64_t timeout_ns) {
    lock(server);
    peer *p = take_call(server, timeout_ns < 0 ? INT64_MAX : vc_monotonic_ns() + timeout_ns);
    bool has_ended = !server->running;
    vc_mc_change(server->waiting, &(vc_mc_config){.slow_ns = server->settings.slow_ns});
    unlock(server);
    if (!p) return has_ended ? VC_MC_ENDED : VC_MC_TIMEOUT;
    server->call_ns = vc_monotonic_ns();
    run_call(server, p);
    server->call_ns = 0;
    lock(server);
    hand_back(p);
    unlock(server);
    return VC_MC_SERVED;
}

/* --- For any thread ------------------------------------------------------------------------------------ */

void vc_mc_change_settings(vc_mc_server *server, const vc_mc_settings *settings) {
    int64_t until_ns = vc_monotonic_ns() + SECOND_NS;
    bool is_in_time = true;
    lock(server);
    if (settings) {
        server->settings = *settings;
        server->generation++;
    }
    for (loop *l = server->loops; l < server->loops + server->count; l++) {
        l->asked++;
        wake(l);
    }
    for (loop *l = server->loops; l < server->loops + server->count; l++) {
        uint64_t asked = l->asked;
        while (!l->has_ended && l->answered < asked && is_in_time)
            is_in_time = wait_until(server, &server->answered, until_ns);
    }
    unlock(server);
}

void vc_mc_get_figures(vc_mc_server *server, vc_mc_figures *figures) {
    const uint64_t *from = (const uint64_t *)&server->figures;
    for (size_t i = 0; i < sizeof(*figures) / sizeof(*from); i++)
        ((uint64_t *)figures)[i] = get(&from[i]);
}

size_t vc_mc_list(vc_mc_server *server, vc_mc_connection *to, size_t room) {
    size_t count = 0;
    lock(server);
    for (peer *p = LIST_FIRST(&server->all); p; p = LIST_NEXT(p, any), count++) {
        if (count >= room) continue;
        vc_mc_connection *one = &to[count];
        *one = (vc_mc_connection){p->number, p->is_idle, p->used_ns, ""};
        const char *form = !p->port ? "%s" : strchr(p->remote, ':') ? "tcp6:[%s]:%u" : "tcp:%s:%u";
        snprintf(one->address, sizeof(one->address), form, p->remote, p->port);
    }
    unlock(server);
    return count;
}

void vc_mc_sum_counts(vc_mc_server *server, vc_mc_counts *counts) {
    for (loop *l = server->loops; l < server->loops + server->count; l++)
        vc_mc_add_counts(l->mc, counts);
    vc_mc_add_counts(server->waiting, counts);
}

int64_t vc_mc_stalled_ns(vc_mc_server *server) {
    int64_t now_ns = vc_monotonic_ns(), call_ns = server->call_ns;
    int64_t since_ns = call_ns ? call_ns : now_ns;
    for (loop *l = server->loops; l < server->loops + server->count; l++) {
        int64_t turn_ns = l->turn_ns, read_ns = l->read_ns;
        if (turn_ns && turn_ns < since_ns) since_ns = turn_ns;
        if (read_ns && read_ns < since_ns) since_ns = read_ns;
    }
    return now_ns - since_ns;
}
