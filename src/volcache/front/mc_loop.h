/* The loops of the memcached protocol: threads without the interpreter, between the sockets of
 * clients, memcache.h and Python.
 *
 * Turns. Each connection belongs to one loop. In its turn it receives once, and has a bounded
 * number of commands executed; their replies are sent together. One that has more to do waits
 * until all others had their turn. Nothing is received from a connection before what it sent is
 * executed and the replies are in the socket: so a client that does not read gets no more commands
 * executed.
 *
 * What `vc_mc_execute` passes is a job for one thread of Python, which takes the jobs of all loops
 * in their order (`vc_mc_next_job`, `vc_mc_finish_job`). All that arrives on the connection goes to
 * Python until that says that its decoder holds nothing. A record that is not in memory is read by
 * a reader thread, and a value that is to be synced is stored by one. Meanwhile the connection executes nothing here, so that the order of its
 * commands is kept; other connections go on.
 *
 * What is held between two turns, input and replies, is counted for all connections. Above the
 * limit, the connection that has made no progress for the longest time is closed; of those of the
 * same loop, if there are several. One that makes too little progress for too long is closed, too.
 *
 * Threads. The first loop accepts connections, and gives them to all in turn. What a connection
 * has belongs to the thread of its loop, or to whoever has its job: the thread of Python, or a
 * reader thread. The mutex of the server protects what is handed over, and the settings. The
 * functions here are called without Python's lock; `on_news` is called by the thread of a loop,
 * and may take it. */
#ifndef VC_MC_LOOP_H
#define VC_MC_LOOP_H

#include "memcache.h"
#include "readers.h"

enum { VC_MC_LOOPS_MAX = 16 };

/* What may change while connections are open. */
typedef struct {
    vc_mc_rights rights;        /* of a client that has given no token */
    int64_t slow_ns;            /* see `vc_mc_config` */
    /* Monotonic; 0: not yet. From now on accept no connection, answer what has arrived, close; at
     * this time, close all. */
    int64_t end_ns;
} vc_mc_settings;

typedef struct {
    vc_mc_config commands;      /* `on_events` and `context` are set here */
    vc_readers *readers;
    int listening;              /* the socket; the caller's */
    unsigned loops;             /* 1 to VC_MC_LOOPS_MAX */
    unsigned connections;       /* at most */
    uint64_t held_bytes;        /* at most */
    int64_t transfer_ns;        /* without progress; 0: no limit */
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
    uint64_t failed_accepts, accept_error;  /* and errno of the last of them */
    uint64_t cold;                  /* reads by the threads */
} vc_mc_figures;

typedef struct vc_mc_server vc_mc_server;

/* What Python is to execute for a connection: `stream->prefix`, then the data. */
typedef struct {
    uintptr_t id;               /* of the connection */
    const vc_mc_stream *stream; /* NULL: it has ended; there is nothing to execute, now or later */
    const char *data;           /* valid until the job is finished */
    size_t length;
} vc_mc_job;

typedef struct {
    const char *replies;
    size_t length;
    const char *rest;           /* of the data, in which the next command begins; is executed here */
    size_t rest_length;
    size_t held;                /* bytes that Python keeps */
    bool has_executed;          /* a command */
    bool has_more;              /* commands, when the replies are sent */
    bool keeps;                 /* the next bytes are for Python, too */
    bool closes;                /* the connection, when the replies are sent */
    bool has_token;             /* the client has given one: it has these rights */
    vc_mc_rights rights;
} vc_mc_done;

typedef enum { VC_MC_JOB, VC_MC_TIMEOUT, VC_MC_ENDED } vc_mc_wait;

/* Return NULL without memory or descriptors. `config` is copied. */
vc_mc_server *vc_mc_server_new(const vc_mc_server_config *config);
/* The loops have ended, or were never started. */
void vc_mc_server_free(vc_mc_server *server);
/* Start the threads; returns false if there are none. */
bool vc_mc_start(vc_mc_server *server);
/* Wait for a job, at most for a time; below 0: without a limit. VC_MC_ENDED: there will be none. */
vc_mc_wait vc_mc_next_job(vc_mc_server *server, int64_t timeout_ns, vc_mc_job *job);
/* Hand back the job that `vc_mc_next_job` has returned last, unless its connection has ended. */
void vc_mc_finish_job(vc_mc_server *server, const vc_mc_done *done);

/* --- For any thread --- */

/* Wait until all loops use these settings, and have told all news; at most for a second. NULL:
 * those they have. */
void vc_mc_change_settings(vc_mc_server *server, const vc_mc_settings *settings);
void vc_mc_get_figures(vc_mc_server *server, vc_mc_figures *figures);
/* Add what all loops have counted. */
void vc_mc_sum_counts(vc_mc_server *server, vc_mc_counts *counts);
/* For how long the longest turn of a loop has taken, or no read was completed although there are
 * some to do; 0: all wait for clients. */
int64_t vc_mc_stalled_ns(vc_mc_server *server);

#endif
