/* The gate: stands between the clients and bjoern, and answers plain requests itself.
 *
 * Protocol
 *   - The head of a request is collected until it is complete, at most VC_HEAD_BYTES, and is
 *     checked (request.h). One that is refused is answered with one line of text; then nothing
 *     more is read, and the connection is closed when the client has closed it, or after
 *     LINGER_NS.
 *   - bjoern is passed one request at a time, written again in one form. Its body follows as it
 *     arrives, never more than was announced. What arrives after it is kept until bjoern waits
 *     for the next request: so requests that are sent without waiting are answered in order.
 *   - A plain GET or HEAD, without a range and with no condition but a simple one, is answered
 *     here from the native core: lookup, one read, check of the record, one `sendmsg`. The answer
 *     has the bytes that the WSGI application would send. Whatever is not an intact, living
 *     record or a key that is certainly absent is passed to bjoern: each decision is made in
 *     Python. A plain DELETE is answered here, too.
 *   - With a hot tier, such reads are counted. What is hot, or only in memcached, is asked for
 *     there without waiting (hot_client.h). A copy of the very record that the index names is sent;
 *     any other is passed to bjoern with the request. Without one, the disk is read.
 *   - The body of a plain PUT is received here, up to COLLECTED_BYTES, and stored by the native
 *     core. What the core leaves to Python is passed to bjoern, whole. If each record is synced, a
 *     thread stores the value, and the connection does nothing else meanwhile.
 *   - A record that is not in memory is read by one of the reader threads, which also sends the
 *     answer; the connection does nothing else meanwhile. A record that bjoern's application is
 *     about to read is read before by such a thread, so that it is in memory then.
 *   - Of the connections whose last request was cold, only some are handled before the loop looks
 *     at the others again, those first that have waited for longest: a client whose records are
 *     in memory does not wait for hundreds of others.
 *   - What a socket has no room for is sent when it has, by the loop.
 *   - Room for a whole body is reserved in `body_memory` before any of it is received, and is free
 *     again when bjoern has answered or the connection ends. So bodies that are half received do
 *     not wait for each other. Requests that find no room wait in their order. The same is reserved
 *     for a record above RECORD_BYTES that bjoern is to send.
 *
 * States of a connection, and what limits its time
 *   IDLE      no byte of a request has arrived        idle
 *   WAITING   bytes have arrived, but others first
 *   HEAD      part of a head has arrived              head, from the first byte on
 *   QUEUED    no room for its body yet                head
 *   ASKING    memcached is asked                      by the client of memcached
 *   BODY      more of the body has to arrive          transfer, without a byte; SLOWEST
 *   BUSY      bjoern answers                          transfer, without a byte sent
 *   COLD      a thread reads the record, or stores the value
 *   SENDING   the rest of an answer is sent           transfer, without a byte sent
 *   LINGER    a refused request was answered          LINGER_NS
 *
 * Threads. All functions are called by the thread that runs bjoern's loop, and need no lock of
 * Python, except `on_events`, `on_pulse` and `on_hot`, which may take it. The reader threads
 * (readers.h) call only the core, `send` and `wake`. */
#ifndef VC_GATE_H
#define VC_GATE_H

#include <sys/uio.h>

#include "answer.h"
#include "clock.h"
#include "common.h"
#include "copies.h"
#include "functions.h"
#include "hot_client.h"
#include "link.h"
#include "plain.h"
#include "readers.h"
#include "request.h"
#include "ring.h"

/* What a client sends and receives, so that tests can do without sockets. As recv(2) and
 * sendmsg(2), without waiting. */
typedef struct {
    ssize_t (*receive)(int fd, void *buffer, size_t length);
    ssize_t (*send)(int fd, const struct iovec *parts, int count);
    void (*shut)(int fd, int how);
} vc_gate_io;

extern const vc_gate_io vc_gate_sockets;

/* More headers of the answers to the pages of one origin. */
typedef struct {
    const char *origin, *headers;
} vc_origin;

enum { VC_MORE_BYTES = 1024 };  /* of such headers, at most */

typedef struct {
    const vc_link *link;
    const vc_gate_io *io;
    vc_core *core;              /* NULL: everything is passed to bjoern */
    const vc_core_functions *functions;
    vc_clock *clock;
    vc_copies *copies;          /* NULL: there is no hot tier */
    vc_hot *hot;                /* NULL: only Python asks memcached */
    bool memory_first;          /* memcached is not asked for records that are in memory */
    const vc_types *types;
    bool answers, puts;         /* plain GETs, plain PUTs */
    bool logs_all;              /* an event for each answer */
    vc_parts ring, writable;    /* GETs, PUTs of other keys are passed to bjoern */
    vc_tokens may_read, may_write; /* requests without one of these, too */
    size_t key_size;            /* of the longest key, in bytes */
    vc_query_use query;
    uint64_t value_size;        /* of the longest body, in bytes */
    uint64_t body_memory;       /* for bodies and large answers; at least `value_size` */
    vc_readers *readers;
    unsigned connections;       /* at most */
    int64_t head_ns, idle_ns, transfer_ns;  /* 0: no limit */
    int64_t slow_ns;            /* answers that took longer are events */
    int64_t long_ns;            /* likewise, and reads */
    int64_t sample_mask;        /* answers whose duration has none of these bits, too */
    const char *allow;          /* methods, for a 405 */
    /* More headers of the answers to requests for a key, each as "\r\nName: value"; NULL: none.
     * Those of an origin replace them in answers to its pages. */
    const char *headers;
    const vc_origin *origins;
    unsigned origin_count;
    void (*on_events)(void *context);   /* events are to be drained; may take Python's lock */
    void (*on_pulse)(void *context);    /* see `vc_gate_set_pulse`; likewise; NULL: none */
    /* A key is hot and is to be promoted; likewise. */
    void (*on_hot)(void *context, const uint8_t *key, size_t length, const vc_record *record);
    void (*on_due)(void *context);      /* see `is_due` of `vc_put`; likewise */
    void *context;
} vc_gate_config;

/* What the gate answers; Python has the same list in gate.pxi. */
typedef enum {
    VC_GET_HIT,
    VC_GET_COPY,                /* the value was in memcached */
    VC_GET_MISS,
    VC_PUT_STORED,
    VC_HEAD_HIT,
    VC_HEAD_MISS,
    VC_GET_UNMODIFIED,
    VC_HEAD_UNMODIFIED,
    VC_DELETE_DONE,
    VC_DELETE_MISS,
    VC_ANSWERS,                 /* of an event: the request was refused */
} vc_answer;

/* Something that Python is told. `text` is: path, head of the request, if they have a length. */
typedef struct {
    uint32_t length;            /* of the whole event, with its text, in bytes */
    uint32_t path_length, head_length;
    vc_answer answer;
    int status, method;         /* of a request that was refused; vc_method */
    bool is_sampled;
    int64_t started_ns, took_ns, disk_ns;   /* monotonic; 0: nothing was read or written */
    int64_t hot_ns;             /* how long memcached was waited for */
    int64_t ended_us;           /* since the epoch */
    uint64_t offset, size, bytes;
    uint16_t volume;
    char address[46];
    char text[];
} vc_event;

/* Counted since the last `vc_gate_take_counts`. */
typedef struct {
    vc_durations answers[VC_ANSWERS], reads, writes;
    uint64_t bytes_in, bytes_out;
    uint64_t absent, evicted;       /* misses by reason */
} vc_gate_counts;

/* Since the start. */
typedef struct {
    unsigned open, idle, most;      /* connections: now, without a request, at most at a time */
    uint64_t accepted;
    uint64_t closed_idle, closed_head, closed_transfer;     /* at the end of their time */
    uint64_t closed_for_room;       /* idle, because there were too many connections */
    uint64_t turned_away;           /* not accepted: none was idle */
    uint64_t passed;                /* requests that bjoern has answered */
    uint64_t cold;                  /* reads by the threads */
    unsigned waiting;               /* for a thread, now */
    unsigned waiting_bodies;        /* for room, now */
    uint64_t body_bytes;            /* that are reserved now */
} vc_gate_stats;

typedef struct vc_gate vc_gate;

/* Return a gate; NULL without memory. `config` is copied, what it points to must live longer. */
vc_gate *vc_gate_new(const vc_gate_config *config);
/* Wait for the reads that the threads have begun. No connection is open. */
void vc_gate_free(vc_gate *gate);
/* For `vc_link.install`. */
const vc_hooks *vc_gate_hooks(vc_gate *gate);

/* Take over what the reader threads have done, so that it is counted. */
void vc_gate_poll(vc_gate *gate);
void vc_gate_take_counts(vc_gate *gate, vc_gate_counts *counts);
void vc_gate_get_stats(vc_gate *gate, vc_gate_stats *stats);
/* Return the events since the last call, one after the other; valid until the next call. */
const uint8_t *vc_gate_take_events(vc_gate *gate, size_t *length);
/* Whether a key without an entry is absent for certain: not while reads fail. */
void vc_gate_set_ready(vc_gate *gate, bool is_ready);
/* From the next request on, use of `to`: `answers`, `puts`, `ring`, `writable`, `may_read`,
 * `may_write`, `headers`, `origins` and `slow_ns`. The headers must live as long as the gate:
 * answers may be on their way. */
void vc_gate_change(vc_gate *gate, const vc_gate_config *to);
/* Call `on_pulse` at an interval, first with the next tick of the loop; 0: no longer. */
void vc_gate_set_pulse(vc_gate *gate, int64_t interval_ns);
/* Call `on_pulse` with the next tick; from any thread. */
void vc_gate_ask_pulse(vc_gate *gate);
/* Close each connection after its next answer; from any thread. */
void vc_gate_drain(vc_gate *gate);
/* How long no reader thread has completed a read, although there are some to do; else 0. */
int64_t vc_gate_stalled_ns(vc_gate *gate);

#endif
