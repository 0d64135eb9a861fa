/* The loops that serve clients: threads without the interpreter, one event loop each. All listening
 * sockets are watched by all of them, so that the kernel spreads the connections.
 *
 * Threads. The functions here may be called by any thread, without the lock of the interpreter. */
#ifndef VC_SERVER_H
#define VC_SERVER_H

#include "hot_client.h"
#include "protocol.h"
#include "readers.h"

enum { VC_LOOPS_MAX = 16, VC_LISTENERS = 4 };
/* What is served. The application is told which requests are of the operator's address. */
enum { VC_HTTP, VC_ADMIN, VC_MEMCACHED, VC_PROTOCOLS };

typedef struct vc_server vc_server;

/* A protocol, and the limits of its connections. */
typedef struct {
    const vc_protocol *calls; /* NULL: it is not served */
    void *executors[VC_LOOPS_MAX];
    void *caller;             /* of `calls->call` */
    int64_t head_ns, idle_ns; /* 0: no limit */
    unsigned connections;     /* at most */
} vc_served;

typedef struct {
    int fd; /* of a socket; the caller's; it does not block */
    unsigned protocol;
} vc_listening;

typedef struct {
    unsigned loops; /* 1 to VC_LOOPS_MAX */
    vc_served protocols[VC_PROTOCOLS];
    vc_listening listeners[VC_LISTENERS];
    unsigned listener_count;
    uint64_t memory;     /* bytes held for clients, at most */
    int64_t transfer_ns; /* 0: no limit */
    vc_core *core;
    const vc_core_functions *functions;
    vc_readers *readers;
    vc_hot *hots[VC_LOOPS_MAX]; /* NULL: the loop does not ask memcached */
    const char *application;    /* path of bjoern's socket; NULL: there is none */
    /* Let a loop use what was changed: before the start, and after a change by the thread of each
     * loop, between two rounds. VC_LOOPS_MAX: the thread for calls, before each call. */
    void (*on_change)(void *context, unsigned loop);
    void *context;
} vc_server_config;

/* Of one protocol. */
typedef struct {
    uint64_t accepted, open, idle;
    uint64_t bytes_in, bytes_out;
    uint64_t turned_away;                               /* not accepted: there were too many */
    uint64_t closed_room;                               /* idle, because there were too many */
    uint64_t closed_idle, closed_head, closed_transfer; /* at the end of their time */
    uint64_t closed_for_memory;                         /* because too much was held */
    uint64_t cut;                                       /* at the end */
} vc_protocol_figures;

/* Since the start, except what is said to be present. */
typedef struct {
    vc_protocol_figures protocols[VC_PROTOCOLS];
    uint64_t failed_accepts;
    uint64_t cold;                                 /* reads by the threads */
    uint64_t waiting_for_disk, waiting_for_memory; /* connections, at present */
    uint64_t held, reserved;                       /* bytes, at present */
    uint64_t accept_error;                         /* errno of the last that failed */
} vc_server_figures;

/* A connection that is open. */
typedef struct {
    int number; /* its descriptor */
    bool is_idle;
    int64_t used_ns;  /* when it has executed a request last, or begun */
    char address[64]; /* "tcp:HOST:PORT", "tcp6:[HOST]:PORT" or "unix" */
} vc_listed;

/* Return NULL without memory or descriptors. `config` is copied. */
vc_server *vc_server_new(const vc_server_config *config);
/* The loops have ended, or were never started. */
void vc_server_free(vc_server *server);
/* Start the threads; returns false if there are none. */
bool vc_server_start(vc_server *server);
/* What `on_change` reads may be changed from the one to the other, by one thread at a time. The
 * second waits until all loops have called it, at most for a second. */
void vc_server_begin_change(vc_server *server);
void vc_server_end_change(vc_server *server);
/* In a ring, a wait is shorter than the patience of nginx. */
void vc_server_set_ring(vc_server *server, bool is_in_ring);
/* Accept nothing more, answer what has arrived, close idle connections; close all after a time.
 * Returns when all are closed; the threads have ended then. */
void vc_server_drain(vc_server *server, int64_t drain_ns);
/* Wait for a request that may take long, at most for a time, and execute it; below 0: without a
 * limit. Returns false if there will be none. For one thread. */
bool vc_server_serve_call(vc_server *server, int64_t timeout_ns);
/* Write the first `room` connections of a protocol; at most for a second. Returns how many. For one
 * thread at a time. */
size_t vc_server_list(vc_server *server, unsigned protocol, vc_listed *to, size_t room);
void vc_server_get_figures(vc_server *server, vc_server_figures *figures);
/* For how long the longest round of a loop has taken, no read was completed although there are some
 * to do, or bjoern makes no progress although requests wait for it; 0: all wait for clients. */
int64_t vc_server_stalled_ns(vc_server *server);

#endif
