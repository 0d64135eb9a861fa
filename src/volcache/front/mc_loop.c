#define _GNU_SOURCE
#include "mc_loop.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum {
    RECEIVE_BYTES = 65536,
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
    DRAIN_STEP_MS = 10,
    NEWS_MS = 100,
    TICK_MS = 1000,
};
static const int64_t MS_NS = 1000000, SECOND_NS = 1000000000;
/* While no connection can be accepted for want of descriptors or memory. */
static const int64_t ACCEPT_PAUSE_NS = 500000000;
static const char REFUSAL[] = "ERROR Too many open connections\r\n";

typedef struct peer peer;
typedef struct loop loop;

typedef enum {
    ARRIVED,    /* accepted, not yet with its loop */
    WAITING,    /* for bytes */
    READY,      /* it waits for its turn */
    BUSY,       /* another thread has it */
    SENDING,    /* it waits for room in the socket */
} phase;

/* One connection. */
struct peer {
    peer *next, *previous;              /* of its loop */
    peer *next_held, *previous_held;    /* of those that hold bytes */
    peer *next_queued;                  /* in the one queue that it is in, if any */
    loop *loop;
    int fd;                 /* -1: closed */
    phase phase;
    bool is_readable;       /* bytes may have arrived, or the end */
    bool has_ended;         /* the end has arrived, perhaps after bytes */
    bool is_reset;
    bool watches_room;
    bool wants_more;        /* the command in `input` is not whole */
    bool has_progress;      /* a command was executed since it was last counted */
    bool is_closing;        /* when all is sent */
    bool is_known;          /* to Python */
    bool has_more;          /* for Python to execute, in `input` or in its decoder */
    bool keeps, has_token;  /* see `vc_mc_done` */
    _Atomic bool is_doomed; /* to be closed when it is no longer busy */
    unsigned generation;    /* of the settings that `stream` has */
    vc_mc_stream stream;
    char *input;            /* bytes from `at` to `used` are not executed */
    size_t at, used, room;
    char *unsent;
    size_t sent, unsent_length;
    size_t python_held;
    /* While something is held: how many bytes, since when, how much was received or sent since
     * then, and when the last of it was. */
    size_t held;
    int64_t since_ns, progress_ns;
    uint64_t moved;
    char remote[46];
};

typedef struct {
    peer *first, *last;
} queue;

struct loop {
    vc_mc_server *server;
    vc_mc *mc;
    pthread_t thread;
    int epoll, wakeup;
    peer *peers;
    queue ready;
    peer *first_held, *last_held;       /* the one without progress for the longest time first */
    bool accepts;
    bool has_executed, has_news;        /* of which Python may not know */
    vc_mc_settings settings;
    unsigned generation;
    int64_t deadline_ns;    /* 0: it is not draining */
    int64_t now_ns, tick_ns, news_ns, resume_ns;
    char *buffer;           /* what is received */
    vc_mc_out out;
    _Atomic int64_t turn_ns;            /* when its turn has begun; 0: it waits */
    _Atomic uint64_t bytes_in, bytes_out, closed_for_memory, cut;
    _Atomic unsigned open;
    /* With the mutex of the server. */
    queue back;             /* connections that were accepted, or that are no longer busy */
    bool is_woken, has_ended;
    uint64_t asked, answered;
};

struct vc_mc_server {
    vc_mc_server_config config;
    loop loops[VC_MC_LOOPS_MAX];
    unsigned count;
    _Atomic uint64_t held, accepted, refused, failed_accepts;
    _Atomic int accept_error;
    pthread_mutex_t mutex;
    pthread_cond_t jobs_changed, answered;
    queue jobs;
    peer *current;          /* the connection of the job that Python has */
    unsigned running;       /* loops */
    vc_mc_settings settings;
    unsigned generation;
    int64_t deadline_ns;
};

static bool is_later(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

/* --- Queues ---------------------------------------------------------------------------- */

static void append(queue *to, peer *p) {
    p->next_queued = NULL;
    if (to->last) to->last->next_queued = p;
    else to->first = p;
    to->last = p;
}

static peer *take_first(queue *from) {
    peer *p = from->first;
    if (!p) return NULL;
    from->first = p->next_queued;
    if (!from->first) from->last = NULL;
    return p;
}

static queue take_all(queue *from) {
    queue all = *from;
    *from = (queue){0};
    return all;
}

/* Let a loop look at what was handed to it; with the mutex. */
static void wake(loop *l) {
    if (l->is_woken || l->has_ended) return;
    l->is_woken = true;
    (void)!eventfd_write(l->wakeup, 1);
}

static void lock(vc_mc_server *server) { pthread_mutex_lock(&server->mutex); }
static void unlock(vc_mc_server *server) { pthread_mutex_unlock(&server->mutex); }

static void add_job(vc_mc_server *server, peer *p) {
    lock(server);
    append(&server->jobs, p);
    pthread_cond_signal(&server->jobs_changed);
    unlock(server);
}

static void make_ready(loop *l, peer *p) {
    p->phase = READY;
    append(&l->ready, p);
}

/* --- News ------------------------------------------------------------------------------ */

/* Let Python have the events. */
static void tell(loop *l) {
    size_t length;
    const uint8_t *events = vc_mc_take_events(l->mc, &length);
    const vc_mc_server_config *config = &l->server->config;
    if (length || l->has_news) config->on_news(config->context, events, length);
    l->has_executed = l->has_news = false;
    l->news_ns = l->now_ns + NEWS_MS * MS_NS;
}

static void on_events(void *context) { tell(context); }

/* --- The end of a connection ------------------------------------------------------------- */

static void forget(loop *l, peer *p) {
    if (!p->held) return;
    if (p->previous_held) p->previous_held->next_held = p->next_held;
    else l->first_held = p->next_held;
    if (p->next_held) p->next_held->previous_held = p->previous_held;
    else l->last_held = p->previous_held;
    atomic_fetch_sub_explicit(&l->server->held, p->held, memory_order_relaxed);
    p->held = 0;
}

static void free_peer(peer *p) {
    free(p->input);
    free(p->unsent);
    free(p);
}

/* Free a connection that is closed; if Python knows it, when that has forgotten it. */
static void dispose(peer *p) {
    p->is_doomed = false;
    if (p->is_known) add_job(p->loop->server, p);
    else free_peer(p);
}

/* Close a connection. One that another thread has, or that is in the queue for a turn, is freed
 * when it comes from there. */
static void close_peer(loop *l, peer *p) {
    forget(l, p);
    if (p->phase == BUSY) {
        p->is_doomed = true;
        return;
    }
    if (p->previous) p->previous->next = p->next;
    else l->peers = p->next;
    if (p->next) p->next->previous = p->previous;
    close(p->fd);
    p->fd = -1;
    l->open--;
    if (p->phase != READY) dispose(p);
}

/* Close so that the client gets what was sent, although it sends more. */
static void close_gently(loop *l, peer *p) {
    shutdown(p->fd, SHUT_WR);
    for (int i = 0; i < DISCARDS; i++)
        if (recv(p->fd, l->buffer, RECEIVE_BYTES, MSG_DONTWAIT) <= 0) break;
    close_peer(l, p);
}

/* --- What is held ------------------------------------------------------------------------ */

static void append_held(loop *l, peer *p, size_t count) {
    p->held = count;
    p->next_held = NULL;
    p->previous_held = l->last_held;
    if (l->last_held) l->last_held->next_held = p;
    else l->first_held = p;
    l->last_held = p;
    atomic_fetch_add_explicit(&l->server->held, count, memory_order_relaxed);
}

/* Whether a client has made too little progress for too long. */
static bool is_too_slow(const loop *l, const peer *p) {
    int64_t limit_ns = l->server->config.transfer_ns, elapsed_ns = l->now_ns - p->since_ns;
    bool moves_little = (int64_t)p->moved < elapsed_ns / SECOND_NS * SLOWEST_BYTES_PER_SECOND;
    return limit_ns && (l->now_ns - p->progress_ns > limit_ns ||
                        (elapsed_ns > limit_ns && moves_little));
}

/* Count what is held for a connection that has just made progress. Returns false if it was closed:
 * it is too slow, or all hold too much. */
static bool hold(loop *l, peer *p) {
    vc_mc_server *server = l->server;
    size_t count = p->used + p->python_held + p->unsent_length;
    bool is_new = p->has_progress || !p->held, is_open = true;
    p->has_progress = false;
    forget(l, p);
    if (!count) return true;
    if (!is_new && is_too_slow(l, p)) {
        close_peer(l, p);
        return false;
    }
    p->progress_ns = l->now_ns;
    if (is_new) {
        p->since_ns = l->now_ns;
        p->moved = 0;
    }
    append_held(l, p, count);
    while (l->first_held && server->held > server->config.held_bytes) {
        is_open = is_open && l->first_held != p;
        close_peer(l, l->first_held);
        l->closed_for_memory++;
        l->has_news = true;
    }
    return is_open;
}

static void close_slow(loop *l) {
    peer *next;
    for (peer *p = l->first_held; p; p = next) {
        next = p->next_held;
        if ((p->phase == WAITING || p->phase == SENDING) && is_too_slow(l, p)) close_peer(l, p);
    }
}

/* --- Sending ------------------------------------------------------------------------------- */

static void watch(loop *l, peer *p, bool room) {
    struct epoll_event event = {
        .events = EPOLLIN | EPOLLRDHUP | EPOLLET | (room ? EPOLLOUT : 0),
        .data.ptr = p,
    };
    if (p->watches_room != room) (void)epoll_ctl(l->epoll, EPOLL_CTL_MOD, p->fd, &event);
    p->watches_room = room;
}

/* Send what the socket has room for. Returns -1 if the client has gone. */
static ssize_t send_some(loop *l, peer *p, const char *data, size_t length) {
    ssize_t sent = send(p->fd, data, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return is_later(errno) ? 0 : -1;
    atomic_fetch_add_explicit(&l->bytes_out, (uint64_t)sent, memory_order_relaxed);
    p->moved += (uint64_t)sent;
    return sent;
}

/* Send the replies of a turn, and keep what the socket has no room for. Returns false if the
 * connection is to be closed. */
static bool send_replies(loop *l, peer *p) {
    if (!l->out.used) return true;
    ssize_t sent = send_some(l, p, l->out.at, l->out.used);
    if (sent < 0) return false;
    size_t left = l->out.used - (size_t)sent;
    if (!left) return true;
    p->unsent = malloc(left);
    if (!p->unsent) return false;
    memcpy(p->unsent, l->out.at + sent, left);
    p->unsent_length = left;
    p->sent = 0;
    return true;
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
        watch(l, p, false);
        return hold(l, p);
    }
    p->phase = SENDING;
    bool is_first = !p->watches_room;
    if ((!sent && !is_first) || hold(l, p)) watch(l, p, true);
    return false;
}

/* --- Input ----------------------------------------------------------------------------------- */

/* Have room for more after the bytes that are kept. Returns false without memory. */
static bool make_room(peer *p) {
    size_t left = p->used - p->at;
    if (p->at) memmove(p->input, p->input + p->at, left);
    p->at = 0;
    p->used = left;
    if (p->room - left >= RECEIVE_BYTES / 64) return true;
    /* Pieces are added in linear time, however small they are. */
    size_t room = 2 * left + RECEIVE_BYTES / 64;
    char *input = realloc(p->input, room);
    if (!input) return false;
    p->input = input;
    p->room = room;
    return true;
}

/* Keep what was received and is not executed. Returns false without memory. */
static bool keep(peer *p, const char *data, size_t length) {
    if (p->input && data >= p->input && data < p->input + p->room) {
        p->at = (size_t)(data - p->input);
    } else if (length) {
        p->input = malloc(length);
        if (!p->input) return false;
        memcpy(p->input, data, length);
        p->at = 0;
        p->used = p->room = length;
    }
    if (length) return true;
    free(p->input);
    p->input = NULL;
    p->at = p->used = p->room = 0;
    return true;
}

typedef struct {
    const char *at;
    size_t length;
} bytes;

/* Receive once. Returns true if there is something to execute; otherwise the connection waits, or
 * is closed. */
static bool receive(loop *l, peer *p, bytes *data) {
    if (!p->is_readable) return false;
    bool has_input = p->used > p->at;
    if (has_input && !make_room(p)) {
        close_peer(l, p);
        return false;
    }
    char *to = has_input ? p->input + p->used : l->buffer;
    size_t room = has_input ? p->room - p->used : RECEIVE_BYTES;
    ssize_t got = recv(p->fd, to, room, MSG_DONTWAIT);
    if (got < 0 && is_later(errno)) {
        if (errno != EINTR) p->is_readable = false;
        if (l->deadline_ns && !p->held) close_gently(l, p);
        else if (p->is_readable) make_ready(l, p);
        return false;
    }
    if (got <= 0) {
        close_peer(l, p);
        return false;
    }
    if ((size_t)got < room && !p->has_ended) p->is_readable = false;
    atomic_fetch_add_explicit(&l->bytes_in, (uint64_t)got, memory_order_relaxed);
    p->moved += (uint64_t)got;
    if (has_input) p->used += (size_t)got;
    *data = has_input ? (bytes){p->input + p->at, p->used - p->at} : (bytes){to, (size_t)got};
    return true;
}

/* --- Turns -------------------------------------------------------------------------------------- */

/* Let Python execute what is there. */
static void pass(loop *l, peer *p) {
    if (l->settings.slow_ns < 0) tell(l); /* Lines are in the order of commands. */
    if (!hold(l, p)) return;
    p->phase = BUSY;
    p->is_known = true;
    add_job(l->server, p);
}

/* Read a record into memory. */
static void read_cold(loop *l, peer *p) {
    const vc_mc_config *config = &l->server->config.commands;
    const vc_mc_stream *stream = &p->stream;
    uint8_t *buffer = malloc(stream->at.size);
    vc_record record;
    if (buffer)
        config->functions->read(config->core, stream->key, stream->key_length, &stream->at, buffer,
                                stream->at.size, NULL, 0, &record);
    config->functions->end_read(config->core);
    free(buffer);
}

/* Execute commands of a turn; return why no more. What is executed is no longer in `data`. */
static vc_mc_step execute(loop *l, peer *p, bytes *data) {
    vc_mc_step step = VC_MC_NEXT;
    if (p->generation != l->generation) {
        if (p->has_token) return VC_MC_PASS;
        p->generation = l->generation;
        p->stream.may_read = l->settings.may_read;
        p->stream.may_write = l->settings.may_write;
        p->stream.wants_credentials = l->settings.wants_credentials;
    }
    for (int i = 0; i < TURN_COMMANDS && step == VC_MC_NEXT; i++) {
        size_t used = 0;
        step = vc_mc_execute(l->mc, &p->stream, data->at, data->length, &used, &l->out);
        data->at += used;
        data->length -= used;
        if (step == VC_MC_NEXT) p->has_progress = l->has_executed = true;
        if (l->out.used >= TURN_REPLY_BYTES) break;
    }
    return step;
}

/* Execute commands and send the replies. */
static void serve_data(loop *l, peer *p, bytes data) {
    vc_mc_step step = VC_MC_MORE;
    l->out.used = 0;
    if (!p->wants_more || data.length >= p->stream.needed) step = execute(l, p, &data);
    p->wants_more = step == VC_MC_MORE;
    if (!keep(p, data.at, data.length) || !send_replies(l, p)) {
        close_peer(l, p);
        return;
    }
    if (step == VC_MC_COLD) read_cold(l, p);
    p->has_more = step == VC_MC_PASS;
    if (p->unsent) {
        p->phase = SENDING;
        if (hold(l, p)) watch(l, p, true);
    } else if (p->has_more) {
        pass(l, p);
    } else if (hold(l, p) && (step != VC_MC_MORE || p->is_readable)) {
        make_ready(l, p);
    }
}

/* Let a connection have its turn. */
static void serve(loop *l, peer *p) {
    bytes data = {p->input + p->at, p->used - p->at};
    p->phase = WAITING;
    if (p->is_doomed || p->is_reset) {
        close_peer(l, p);
    } else if (p->unsent && !send_rest(l, p)) {
        return; /* It goes on when all is sent. */
    } else if (p->is_closing) {
        close_gently(l, p);
    } else if (p->has_more) {
        pass(l, p);
    } else if ((!data.length || p->wants_more) && !receive(l, p, &data)) {
        return;
    } else if (!p->keeps) {
        serve_data(l, p, data);
    } else if (keep(p, data.at, data.length)) {
        pass(l, p);
    } else {
        close_peer(l, p);
    }
}

static void serve_ready(loop *l) {
    queue turn = take_all(&l->ready);
    peer *p;
    while ((p = take_first(&turn))) {
        if (p->fd >= 0) serve(l, p);
        else dispose(p);
    }
}

static void on_ready(loop *l, peer *p, uint32_t events) {
    p->is_readable = p->is_readable || (events & ~(uint32_t)EPOLLOUT);
    p->has_ended = p->has_ended || (events & (EPOLLRDHUP | EPOLLHUP));
    /* The replies to what it has sent are not read. */
    p->is_reset = p->is_reset || ((events & EPOLLERR) && p->phase != WAITING);
    if (p->phase == WAITING || (p->phase == SENDING && (events & (EPOLLOUT | EPOLLERR))))
        make_ready(l, p);
}

/* --- Accepting ---------------------------------------------------------------------------------- */

static unsigned count_open(vc_mc_server *server) {
    unsigned open = 0;
    for (unsigned i = 0; i < server->count; i++) open += server->loops[i].open;
    return open;
}

static void watch_clients(loop *l, bool is_on) {
    struct epoll_event event = {.events = is_on ? EPOLLIN : 0, .data.ptr = l->server};
    (void)epoll_ctl(l->epoll, EPOLL_CTL_MOD, l->server->config.listening, &event);
}

/* Try again later: the socket stays readable, and the loop would spin. */
static void pause_accepting(loop *l, int error) {
    watch_clients(l, false);
    l->resume_ns = l->now_ns + ACCEPT_PAUSE_NS;
    l->server->accept_error = error;
    l->server->failed_accepts++;
    l->has_news = true;
}

static void refuse(loop *l, int fd) {
    (void)!send(fd, REFUSAL, sizeof(REFUSAL) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    close(fd);
    l->server->refused++;
    l->has_news = true;
}

/* Give a new connection to the loop that has the fewest. */
static void give(vc_mc_server *server, peer *p) {
    lock(server);
    for (unsigned i = 0; i < server->count; i++) {
        loop *l = &server->loops[i];
        if (!l->has_ended && (!p->loop || l->open < p->loop->open)) p->loop = l;
    }
    p->loop->open++;
    append(&p->loop->back, p);
    wake(p->loop);
    unlock(server);
}

static void accept_clients(loop *l) {
    vc_mc_server *server = l->server;
    for (int i = 0; i < ACCEPTS && l->accepts; i++) {
        struct sockaddr_storage address;
        socklen_t length = sizeof(address);
        struct sockaddr *from = (struct sockaddr *)&address;
        int fd = accept4(server->config.listening, from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                pause_accepting(l, errno);
            return; /* Or the client has gone. */
        }
        if (count_open(server) >= server->config.connections) {
            refuse(l, fd);
            continue;
        }
        peer *p = calloc(1, sizeof(peer));
        if (!p) {
            close(fd);
            continue;
        }
        p->fd = fd;
        p->stream.remote = p->remote;
        if (address.ss_family == AF_UNIX) strcpy(p->remote, "unix");
        else if (getnameinfo(from, length, p->remote, sizeof(p->remote), NULL, 0, NI_NUMERICHOST))
            p->remote[0] = 0;
        server->accepted++;
        give(server, p);
    }
}

/* --- A loop -------------------------------------------------------------------------------------- */

static void adopt(loop *l, peer *p) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.ptr = p};
    p->next = l->peers;
    if (l->peers) l->peers->previous = p;
    l->peers = p;
    if (epoll_ctl(l->epoll, EPOLL_CTL_ADD, p->fd, &event)) close_peer(l, p);
}

static void stop_accepting(loop *l) {
    if (l->accepts) (void)epoll_ctl(l->epoll, EPOLL_CTL_DEL, l->server->config.listening, NULL);
    l->accepts = false;
}

/* Take over what other threads have handed to the loop. */
static void take_back(loop *l) {
    vc_mc_server *server = l->server;
    lock(server);
    queue back = take_all(&l->back);
    uint64_t asked = l->asked;
    l->is_woken = false;
    bool is_changed = l->generation != server->generation;
    l->settings = server->settings;
    l->generation = server->generation;
    l->deadline_ns = server->deadline_ns;
    unlock(server);
    if (is_changed) vc_mc_change(l->mc, &(vc_mc_config){.slow_ns = l->settings.slow_ns});
    if (l->deadline_ns) stop_accepting(l);
    peer *p;
    while ((p = take_first(&back))) {
        bool has_arrived = p->phase == ARRIVED;
        p->phase = WAITING;
        p->progress_ns = l->now_ns; /* It did not wait for its client. */
        if (has_arrived) adopt(l, p);
        else if (p->is_doomed || hold(l, p)) make_ready(l, p);
    }
    if (asked == l->answered) return;
    tell(l);
    lock(server);
    l->answered = asked;
    pthread_cond_broadcast(&server->answered);
    unlock(server);
}

static void tick(loop *l) {
    if (l->now_ns >= l->tick_ns) {
        close_slow(l);
        l->tick_ns = l->now_ns + TICK_MS * MS_NS;
    }
    if ((l->has_executed || l->has_news) && l->now_ns >= l->news_ns) tell(l);
    if (l->resume_ns && l->now_ns >= l->resume_ns) {
        l->resume_ns = 0;
        if (l->accepts) watch_clients(l, true);
    }
}

static int timeout_ms(const loop *l) {
    if (l->ready.first) return 0;
    if (l->deadline_ns) return DRAIN_STEP_MS;
    if (l->has_executed || l->has_news || l->resume_ns) return NEWS_MS;
    return l->first_held ? TICK_MS : -1;
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
    if (has_clients) accept_clients(l);
}

/* Let all connections have a turn that wait for bytes: those without any are closed. After the
 * time for the drain, close all. */
static void drain(loop *l) {
    bool is_late = l->now_ns >= l->deadline_ns;
    peer *next;
    for (peer *p = l->peers; p; p = next) {
        next = p->next;
        if (is_late && !p->is_doomed) {
            l->cut++;
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
    if (!l->deadline_ns || l->peers || l->ready.first) return false;
    tell(l);
    lock(server);
    l->has_ended = !l->back.first;
    if (l->has_ended) {
        l->turn_ns = 0;
        server->running--;
        pthread_cond_broadcast(&server->answered);
        pthread_cond_signal(&server->jobs_changed);
    }
    unlock(server);
    return l->has_ended;
}

static void *run(void *context) {
    loop *l = context;
    pthread_setname_np(pthread_self(), "memcache");
    take_back(l);
    do {
        wait_for_events(l);
        if (l->deadline_ns) drain(l);
        serve_ready(l);
        tick(l);
    } while (!end_if_empty(l));
    return NULL;
}

/* --- The server ------------------------------------------------------------------------------------ */

static bool open_loop(vc_mc_server *server, loop *l) {
    vc_mc_config commands = server->config.commands;
    struct epoll_event woken = {.events = EPOLLIN | EPOLLET, .data.ptr = l};
    struct epoll_event arrived = {.events = EPOLLIN, .data.ptr = server};
    commands.on_events = on_events;
    commands.context = l;
    l->server = server;
    l->has_ended = true; /* Until it is started. */
    l->accepts = l == server->loops;
    l->mc = vc_mc_new(&commands);
    l->buffer = malloc(RECEIVE_BYTES);
    l->out = (vc_mc_out){.at = malloc(OUT_BYTES), .room = OUT_BYTES};
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->wakeup = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    return l->mc && l->buffer && l->out.at &&
           !epoll_ctl(l->epoll, EPOLL_CTL_ADD, l->wakeup, &woken) &&
           (!l->accepts ||
            !epoll_ctl(l->epoll, EPOLL_CTL_ADD, server->config.listening, &arrived));
}

static void close_loop(loop *l) {
    vc_mc_free(l->mc);
    free(l->buffer);
    free(l->out.at);
    if (l->epoll >= 0) close(l->epoll);
    if (l->wakeup >= 0) close(l->wakeup);
}

vc_mc_server *vc_mc_server_new(const vc_mc_server_config *config) {
    vc_mc_server *server = calloc(1, sizeof(vc_mc_server));
    pthread_condattr_t by_monotonic_clock;
    if (!server) return NULL;
    server->config = *config;
    server->generation = 1;
    pthread_mutex_init(&server->mutex, NULL);
    pthread_condattr_init(&by_monotonic_clock);
    pthread_condattr_setclock(&by_monotonic_clock, CLOCK_MONOTONIC);
    pthread_cond_init(&server->jobs_changed, &by_monotonic_clock);
    pthread_cond_init(&server->answered, &by_monotonic_clock);
    pthread_condattr_destroy(&by_monotonic_clock);
    while (server->count < config->loops && server->count < VC_MC_LOOPS_MAX) {
        if (!open_loop(server, &server->loops[server->count++])) {
            vc_mc_server_free(server);
            return NULL;
        }
    }
    return server;
}

void vc_mc_server_free(vc_mc_server *server) {
    if (!server) return;
    for (unsigned i = 0; i < server->count; i++) {
        if (server->loops[i].thread) pthread_join(server->loops[i].thread, NULL);
        close_loop(&server->loops[i]);
    }
    pthread_cond_destroy(&server->jobs_changed);
    pthread_cond_destroy(&server->answered);
    pthread_mutex_destroy(&server->mutex);
    free(server);
}

bool vc_mc_start(vc_mc_server *server) {
    bool is_first_good = true;
    lock(server);
    for (unsigned i = 0; i < server->count && is_first_good; i++) {
        loop *l = &server->loops[i];
        l->has_ended = pthread_create(&l->thread, NULL, run, l) != 0;
        if (l->has_ended) l->thread = 0;
        server->running += !l->has_ended;
        is_first_good = server->running > 0;
    }
    unlock(server);
    return is_first_good;
}

/* --- Jobs for Python --------------------------------------------------------------------------------- */

/* Wait with the mutex until a time; 0: without a limit. Returns false when it has come. */
static bool wait_until(vc_mc_server *server, pthread_cond_t *condition, int64_t until_ns) {
    struct timespec until = {.tv_sec = until_ns / SECOND_NS, .tv_nsec = until_ns % SECOND_NS};
    if (!until_ns) return !pthread_cond_wait(condition, &server->mutex);
    return pthread_cond_timedwait(condition, &server->mutex, &until) != ETIMEDOUT;
}

/* Let a connection go on in its loop; with the mutex. */
static void hand_back(peer *p) {
    append(&p->loop->back, p);
    wake(p->loop);
}

vc_mc_wait vc_mc_next_job(vc_mc_server *server, int64_t timeout_ns, vc_mc_job *job) {
    int64_t until_ns = timeout_ns < 0 ? 0 : vc_monotonic_ns() + timeout_ns;
    bool is_late = false;
    peer *p;
    lock(server);
    while (!(p = take_first(&server->jobs)) || p->is_doomed) {
        if (p) hand_back(p);
        else if (is_late || !server->running) break;
        else is_late = !wait_until(server, &server->jobs_changed, until_ns);
    }
    bool has_ended = !server->running;
    if (p) p->generation = server->generation;
    unlock(server);
    if (!p) return has_ended ? VC_MC_ENDED : VC_MC_TIMEOUT;
    *job = (vc_mc_job){
        .id = (uintptr_t)p,
        .is_gone = p->fd < 0,
        .is_binary = p->stream.is_binary,
        .remote = p->remote,
        .prefix = p->stream.prefix,
        .prefix_length = p->stream.prefix_length,
        .data = p->input + p->at,
        .length = p->used - p->at,
    };
    if (job->is_gone) free_peer(p);
    else server->current = p;
    return VC_MC_JOB;
}

/* Returns false without memory. */
static bool copy(char **to, size_t *to_length, const char *from, size_t length) {
    *to = length ? malloc(length) : NULL;
    *to_length = length;
    if (!length) return true;
    if (!*to) return false;
    memcpy(*to, from, length);
    return true;
}

void vc_mc_finish_job(vc_mc_server *server, const vc_mc_done *done) {
    peer *p = server->current;
    free(p->input);
    p->at = p->sent = 0;
    if (!copy(&p->input, &p->used, done->rest, done->rest_length) ||
        !copy(&p->unsent, &p->unsent_length, done->replies, done->length))
        p->is_doomed = true;
    p->room = p->used;
    p->python_held = done->held;
    p->has_progress = p->has_progress || done->has_executed;
    p->wants_more = false;
    p->stream.prefix_length = 0;
    p->has_more = done->has_more;
    p->keeps = done->keeps;
    p->is_closing = done->closes;
    p->has_token = done->has_token;
    p->stream.may_read = done->may_read;
    p->stream.may_write = done->may_write;
    p->stream.wants_credentials = done->wants_credentials;
    lock(server);
    hand_back(p);
    unlock(server);
}

/* --- For any thread ------------------------------------------------------------------------------------ */

/* Let all loops take over what has changed, and wait for them; with the mutex. */
static void ask_all(vc_mc_server *server) {
    int64_t until_ns = vc_monotonic_ns() + SECOND_NS;
    bool is_in_time = true;
    for (unsigned i = 0; i < server->count; i++) {
        server->loops[i].asked++;
        wake(&server->loops[i]);
    }
    for (unsigned i = 0; i < server->count; i++) {
        loop *l = &server->loops[i];
        uint64_t asked = l->asked;
        while (!l->has_ended && l->answered < asked && is_in_time)
            is_in_time = wait_until(server, &server->answered, until_ns);
    }
}

void vc_mc_change_settings(vc_mc_server *server, const vc_mc_settings *settings) {
    lock(server);
    server->settings = *settings;
    server->generation++;
    ask_all(server);
    unlock(server);
}

void vc_mc_drain(vc_mc_server *server, int64_t ns) {
    lock(server);
    int64_t deadline_ns = vc_monotonic_ns() + ns;
    if (!server->deadline_ns || deadline_ns < server->deadline_ns)
        server->deadline_ns = deadline_ns;
    ask_all(server);
    unlock(server);
}

void vc_mc_flush(vc_mc_server *server) {
    lock(server);
    ask_all(server);
    unlock(server);
}

void vc_mc_get_figures(vc_mc_server *server, vc_mc_figures *figures) {
    *figures = (vc_mc_figures){
        .accepted = server->accepted,
        .refused = server->refused,
        .failed_accepts = server->failed_accepts,
        .accept_error = server->accept_error,
        .held = server->held,
    };
    for (unsigned i = 0; i < server->count; i++) {
        loop *l = &server->loops[i];
        figures->bytes_in += l->bytes_in;
        figures->bytes_out += l->bytes_out;
        figures->closed_for_memory += l->closed_for_memory;
        figures->cut += l->cut;
        figures->open += l->open;
    }
}

void vc_mc_sum_counts(vc_mc_server *server, vc_mc_counts *counts) {
    enum { WORDS = sizeof(vc_mc_counts) / sizeof(uint64_t) };
    for (unsigned i = 0; i < server->count; i++) {
        vc_mc_counts more;
        vc_mc_get_counts(server->loops[i].mc, &more);
        for (int word = 0; word < WORDS; word++)
            ((uint64_t *)counts)[word] += ((uint64_t *)&more)[word];
    }
}

int64_t vc_mc_stalled_ns(vc_mc_server *server) {
    int64_t now_ns = vc_monotonic_ns(), stalled_ns = 0;
    for (unsigned i = 0; i < server->count; i++) {
        int64_t turn_ns = server->loops[i].turn_ns;
        if (turn_ns && now_ns - turn_ns > stalled_ns) stalled_ns = now_ns - turn_ns;
    }
    return stalled_ns;
}
