/* The loops of the memcached protocol: threads without the interpreter, between the sockets of
 * clients, memcache.h and Python.
 *
 * Turns. Each connection belongs to one loop. In its turn it receives once, and has a bounded
 * number of commands executed; their replies are sent together. One that has more to do waits
 * until all others had their turn. Nothing is received from a connection before what it sent is
 * executed and the replies are in the socket: so a client that does not read gets no more commands
 * executed.
 *
 * A command that may take long (see CALL in memcache.h) is executed by one other thread, which
 * takes those of all loops in their order (`vc_mc_serve_call`). A record that is not in memory is
 * read by a reader thread, and a value that is to be synced is stored by one. Meanwhile the
 * connection executes nothing here, so that the order of its commands is kept; other connections
 * go on.
 *
 * What is held between two turns, input and replies, is counted for all connections. Above the
 * limit, the connection that has made no progress for the longest time is closed; of those of the
 * same loop, if there are several. One that makes too little progress for too long is closed, too.
 * For a new connection above the limit, that is closed which was idle for the longest time, if that
 * is at least a second; otherwise the new one is refused.
 *
 * Threads. The first loop accepts connections, and gives them to all in turn. What a connection
 * has belongs to the thread of its loop, or to the thread that works for it. The mutex of the server protects what is handed over, and the settings. The
 * functions here are called without Python's lock; `on_news` is called by the thread of a loop,
 * and may take it. */
#ifndef VC_MC_LOOP_H
#define VC_MC_LOOP_H

#include "memcache.h"
#include "readers.h"

enum { VC_MC_LOOPS_MAX = 16 };

/* What may change while connections are open. */
typedef struct {
    vc_mc_access access;
    int64_t slow_ns;            /* see `vc_mc_config` */
    /* Monotonic; 0: not yet. From now on accept no connection, answer what has arrived, close; at
     * this time, close all. */
    int64_t end_ns;
} vc_mc_settings;

typedef struct {
    vc_mc_config commands;      /* `on_events` and `context` are set here; `ask` is for calls */
    vc_readers *readers;
    int listening;              /* the socket; the caller's */
    unsigned loops;             /* 1 to VC_MC_LOOPS_MAX */
    unsigned connections;       /* at most */
    uint64_t held_bytes;        /* at most */
    int64_t transfer_ns;        /* without progress; 0: no limit */
    int64_t idle_ns;            /* without a command; 0: no limit */
    /* There are such events, or the figures say what is to be logged. */
    void (*on_news)(void *context, const uint8_t *events, size_t length);
    void *context;
    /* Calls `run`, which is all that the thread of a loop does. */
    void (*in_thread)(void (*run)(void *argument), void *argument);
} vc_mc_server_config;

/* Since the start, except `open` and `held`. */
typedef struct {
    uint64_t bytes_in, bytes_out;
    uint64_t accepted, refused;     /* connections; refused: there were too many */
    uint64_t open, cut;             /* connections; cut: at the end */
    uint64_t held;
    uint64_t closed_for_memory;     /* connections, because too much was held */
    uint64_t closed_idle;           /* for their time, or to make room for others */
    uint64_t failed_accepts, accept_error;  /* and errno of the last of them */
    uint64_t cold;                  /* reads by the threads */
} vc_mc_figures;

/* A connection that is open. */
typedef struct {
    int number;                 /* its descriptor */
    bool is_idle;
    int64_t used_ns;            /* when it has executed a command last, or begun */
    char address[64];           /* "tcp:HOST:PORT", as memcached shows it */
} vc_mc_connection;

typedef struct vc_mc_server vc_mc_server;

typedef enum { VC_MC_SERVED, VC_MC_TIMEOUT, VC_MC_ENDED } vc_mc_wait;

/* Return NULL without memory or descriptors. `config` is copied. */
vc_mc_server *vc_mc_server_new(const vc_mc_server_config *config);
/* The loops have ended, or were never started. */
void vc_mc_server_free(vc_mc_server *server);
/* Start the threads; returns false if there are none. */
bool vc_mc_start(vc_mc_server *server);
/* Wait for a command that may take long, at most for a time, and execute it; below 0: without a
 * limit. VC_MC_ENDED: there will be none. For one thread. */
vc_mc_wait vc_mc_serve_call(vc_mc_server *server, int64_t timeout_ns);

/* --- For any thread --- */

/* Wait until all loops use these settings, and have told all news; at most for a second. NULL:
 * those they have. */
void vc_mc_change_settings(vc_mc_server *server, const vc_mc_settings *settings);
void vc_mc_get_figures(vc_mc_server *server, vc_mc_figures *figures);
/* Return how many connections there are, and tell of the first `room` of them. */
size_t vc_mc_list(vc_mc_server *server, vc_mc_connection *to, size_t room);
/* Add what all loops have counted. */
void vc_mc_sum_counts(vc_mc_server *server, vc_mc_counts *counts);
/* For how long the longest turn of a loop or call has taken, or no read was completed although
 * there are some to do; 0: all wait for clients. */
int64_t vc_mc_stalled_ns(vc_mc_server *server);

#endif
