/* Connections: their states, memory and time limits, and the waits of their requests.
 *
 * Turns. In its turn, a connection receives at most once and has a bounded number of requests
 * executed; the replies of a turn leave in one sendmsg. One that has more to do waits until all
 * others of its loop had their turn. Nothing is executed for a connection while a reply waits for
 * room in its socket: who does not read gets nothing executed.
 *
 * States, and what limits their time
 *   IDLE                     no byte of a request              idle
 *   RECEIVING                part of a head                    head, from its first byte on
 *   COLLECTING               part of a body                    transfer, SLOWEST
 *   WAITING_FOR_MEMORY       there is no room for its body     head; in a ring PATIENCE
 *   WAITING_FOR_DISK         a thread reads or writes          in a ring PATIENCE, for a read
 *   WAITING_FOR_HOT_TIER     memcached is asked                by the client of memcached
 *   WAITING_FOR_APPLICATION  bjoern answers                    in a ring PATIENCE
 *                            or a call goes on                 none
 *   SENDING                  a reply waits for room            transfer, SLOWEST
 *   LINGERING                the last reply is sent            LINGER
 * `transfer`: no byte has moved for so long. SLOWEST: or fewer than 500 bytes per second since the
 * transfer began, after so long. Empty lines between requests change no state and no time: so
 * without a complete request, a connection ends within the times for a head and for idleness.
 *
 * Memory. What is held for a client between two turns is counted for all connections under one
 * budget: input, bodies, replies, pieces of values. A request that needs much asks for it first
 * (VC_STEP_MEMORY) and waits. If the budget is exceeded, or a request has waited for PATIENCE, the
 * connection of the loop that has made no progress for the longest time is closed; PATIENCE at
 * least in the second case.
 *
 * Threads. A connection belongs to the thread of its loop. */
#ifndef VC_CONNECTION_H
#define VC_CONNECTION_H

#include <pthread.h>
#include <stddef.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "hot_client.h"
#include "loop.h"
#include "protocol.h"
#include "readers.h"
#include "server.h"

typedef enum {
    VC_IDLE,
    VC_RECEIVING,
    VC_COLLECTING,
    VC_WAITING_FOR_MEMORY,
    VC_WAITING_FOR_DISK,
    VC_WAITING_FOR_HOT_TIER,
    VC_WAITING_FOR_APPLICATION,
    VC_SENDING,
    VC_LINGERING,
    VC_CLOSED,
    VC_STATES
} vc_state;

typedef struct vc_connection vc_connection;
typedef struct vc_home vc_home;
typedef TAILQ_HEAD(vc_connections, vc_connection) vc_connections;

struct vc_connection {
    vc_watch watch;
    TAILQ_ENTRY(vc_connection) same_state; /* by `since_ns` */
    TAILQ_ENTRY(vc_connection) holding;    /* among those that hold bytes, by `progress_ns` */
    STAILQ_ENTRY(vc_connection) queued;    /* for a turn, or to be freed */
    STAILQ_ENTRY(vc_connection) called;    /* for a call */
    vc_home *home;
    unsigned protocol;
    const vc_protocol *calls; /* of it */
    void *executor;
    vc_state state;
    bool is_queued;
    bool awaits_room; /* the loop is told when there is room in its socket */
    bool closes;      /* when all is sent */
    bool is_broken;   /* by a call: it is to be closed at once */
    int64_t since_ns; /* in this state */
    int64_t idle_ns;  /* since when no request was executed */
    /* Of a body, or of what is sent: since when, how much, and when the last of it. */
    int64_t began_ns, progress_ns;
    uint64_t moved;
    char *input; /* bytes from `at` to `used` are not executed */
    size_t at, used, room;
    char *unsent;
    size_t sent, unsent_length;
    uint64_t reserved; /* for its request */
    uint64_t held;     /* all of it, as counted */
    size_t extra;      /* bytes of `exchange` or `transfer` */
    vc_job job;
    bool has_job; /* a thread has it; the connection is in memory until it is back */
    struct vc_exchange *exchange; /* with the application; NULL: none */
    struct vc_transfer *transfer; /* of a large value; NULL: none */
    char remote[46];
    uint16_t port; /* of the client; 0: it has none */
    vc_stream *stream;
};

/* A listening socket, as one loop watches it. */
typedef struct {
    vc_watch watch;
    vc_home *home;
    unsigned protocol;
} vc_listener;

/* What the connections of one loop share. */
struct vc_home {
    vc_server *server;
    unsigned number; /* of its loop */
    vc_loop loop;
    pthread_t thread;
    vc_connections by_state[VC_PROTOCOLS][VC_STATES];
    unsigned counts[VC_PROTOCOLS][VC_STATES];
    vc_connections holders;
    STAILQ_HEAD(vc_queue, vc_connection) ready, closed;
    vc_job_owner jobs;
    unsigned waiting;          /* jobs that are to be done */
    unsigned calling;          /* connections that wait for a call */
    _Atomic int64_t job_ns;    /* when a job was done, or the first one begun; 0: none waits */
    _Atomic int64_t bjoern_ns; /* since when bjoern makes no progress; 0: it does, or need not */
    int64_t tick_ns;           /* when the next one is due */
    int64_t resume_ns;         /* when to accept again; 0: it accepts */
    bool is_draining;
    vc_listener listeners[VC_LISTENERS];
    char *buffer; /* what is received */
    vc_out out;
    struct vc_upstreams *upstreams;
    vc_server_figures figures;
};

struct vc_server {
    vc_server_config config;
    vc_home homes[VC_LOOPS_MAX];
    unsigned count;                  /* of loops */
    _Atomic uint64_t held, reserved; /* by all connections */
    /* Loops, a bit each, whose requests wait for memory that connections of others hold. */
    _Atomic unsigned short_of_memory;
    _Atomic uint64_t accept_error;
    uint64_t most_held; /* since freed memory was given back; of the first loop */
    _Atomic uint64_t open[VC_PROTOCOLS];
    _Atomic bool is_in_ring;
    _Atomic int64_t drain_ns; /* when the drain began; 0: not yet */
    _Atomic int64_t end_ns;   /* when all are closed */
    pthread_mutex_t changing; /* what `on_change` reads */
    pthread_mutex_t mutex;
    pthread_cond_t changed;             /* a loop has done what was asked for, or has ended */
    _Atomic int64_t call_ns;            /* when the present one has begun; 0: there is none */
    uint64_t asked, done[VC_LOOPS_MAX]; /* with the mutex, as the following */
    struct vc_queue calls;              /* connections that wait for one */
    vc_listed *listed;                  /* is to have all connections; NULL: no list is asked for */
    unsigned listed_protocol;
    size_t listed_count, listed_room;
    unsigned running; /* loops */
};

enum {
    VC_RECEIVE_BYTES = 65536,
    /* For replies; never more of this memory is used than the largest of them needs. */
    VC_REPLY_BYTES = 5 << 18,
};

/* Take over a descriptor that was accepted. Returns false without memory. */
bool vc_connection_open(vc_home *home, unsigned protocol, int fd, const char *remote,
                        uint16_t port);
/* Close without ado; the memory is freed at the end of the round. */
void vc_connection_close(vc_connection *c);
/* Close so that the client gets what was sent, although it sends more. */
void vc_connection_close_gently(vc_connection *c);
/* Free those that were closed; at the end of a round. */
void vc_connections_free_closed(vc_home *home);

/* --- Of connection.c, for turns.c and forward.c ------------------------------------------ */

/* Enter a state, also the present one: its time begins. */
void vc_connection_enter(vc_connection *c, vc_state state);
/* Another body, or something else to be sent: its speed is measured from now on. */
void vc_connection_begin(vc_connection *c);
/* Let it have a turn. */
void vc_connection_queue(vc_connection *c);
/* Count what is held, after bytes have moved. Returns false if no request goes on: it is too slow,
 * or all hold too much. */
bool vc_connection_progress(vc_connection *c, size_t bytes);
/* Count what `stream->reserve` asks for. Returns false if there is no room for it. */
bool vc_connection_reserve(vc_connection *c);
/* What was reserved is free again. */
void vc_connection_release(vc_connection *c);
/* End the connection of a loop that has made no progress for the longest time, if it has made none
 * since a time. Returns false if there is none. */
bool vc_connection_end_stalest(vc_home *home, int64_t since_ns);
/* Send bytes, and keep what the socket has no room for as `unsent`, of which there is none before.
 * Returns false if it was closed. */
bool vc_connection_send(vc_connection *c, const struct iovec *parts, unsigned count);
/* Send what was kept. Returns false if that is not all, or if no request goes on. */
bool vc_connection_flush(vc_connection *c);
/* Reply that a request was refused, and take no other. */
void vc_connection_refuse(vc_connection *c, vc_refusal why);
/* The same, or close, if an answer is being sent. */
void vc_connection_end_request(vc_connection *c, vc_refusal why);
void vc_connection_end_slow(vc_connection *c);
/* All is sent: drop what the client sends until it has closed its side, at most for LINGER. */
void vc_connection_linger(vc_connection *c);
/* Receive what is not wanted, a bounded number of times. Returns false at its end. */
bool vc_connection_discard(vc_connection *c);
void vc_connection_drop_input(vc_connection *c);

/* --- Of turns.c ---------------------------------------------------------------------------- */

/* All that are queued have their turn. */
void vc_connections_serve(vc_home *home);
/* Enforce the time limits. */
void vc_connections_tick(vc_home *home);
/* Let requests go on for which there is memory. */
void vc_connections_admit(vc_home *home);
/* Take what the threads have done. */
void vc_connections_take_jobs(vc_home *home);
/* Let a thread do something with a read that goes on; `job->status` is set then. */
void vc_connection_work(vc_connection *c,
                        void (*work)(vc_job *job, vc_core *core,
                                     const vc_core_functions *functions),
                        const vc_lookup *at);
/* The connection of a job. */
static inline vc_connection *vc_connection_of(vc_job *job) {
    return (vc_connection *)(void *)((char *)job - offsetof(vc_connection, job));
}
/* memcached has answered, or not; for `vc_hot_install`. */
void vc_connection_on_copy(void *context, void *owner, const uint8_t *record, size_t length);
void vc_connection_execute(vc_connection *c);
/* Receive from the client: bytes, 0 if none are there, -1 at the end. */
ssize_t vc_connection_receive(vc_connection *c, char *to, size_t room);
/* Some of the input is used. */
void vc_connection_use_input(vc_connection *c, size_t length);
/* Its request is answered. Go on with the next one. */
void vc_connection_answered(vc_connection *c);

/* --- Of calls.c, and of server.c for it ------------------------------------------------------ */

/* Let the thread for calls execute the next request. */
void vc_calls_add(vc_connection *c);
/* Let a loop, or the thread for calls, use what was changed. */
void vc_server_take_change(vc_server *server, unsigned loop);

#endif
