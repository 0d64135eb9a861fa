/* Plain memcached commands: bytes in, replies out, without I/O and without the interpreter.
 *
 * What is plain is executed here: text get, gets, gat, gats, set, add, replace, cas, touch and
 * delete; meta mg, ms, md and mn; binary get, set, add, replace, delete, noop and their quiet
 * forms. Everything else is passed, whole and unchanged, to memcache/ in Python, which defines
 * every reply, counter and effect: see text.py, meta.py, binary.py, executor.py and replies.py.
 *
 * Use, for each connection, whenever bytes have arrived or a step before allows it:
 *
 *     vc_mc_step step = vc_mc_execute(mc, stream, data, length, &used, &out);
 *
 *   data    all bytes that have arrived and are not used; they may be elsewhere in the next call.
 *   NEXT    a command, or one key of a get, was executed, and used `used` of them. Its reply, maybe
 *           of no bytes, is in `out`.
 *   MORE    the command is not whole: call again when `stream->needed` bytes are there, at least
 *           one more than now. Also the answer to no bytes.
 *   PASS    nothing was done. Python executes `stream->prefix`, then `data`, until its decoder
 *           holds no bytes and skips none; then the next bytes come here again. The prefix is not
 *           empty if keys of a get were answered here: it is then the beginning of a get of those
 *           that are left. What is in `out` is sent before. `is_binary` says which decoder, not
 *           the first byte of `data`.
 *   COLD    the record of a key is not in memory. The caller owns the read of `stream->at` with
 *           the key in `stream->key`: it lets a thread read the record with `functions->read` into
 *           any buffer, whatever comes of it, and calls `functions->end_read`; then it calls
 *           again. If the connection ends, only `end_read` is needed.
 *   TOGETHER  each record is synced, and the caller owns `stream->put`: it lets
 *           `functions->put_together` make it, and then calls again with the same data. Its value
 *           is part of `data`, unless it has no bytes, and moves with it.
 *   FLUSH   there is no room in `out`: send it, then call again with an empty one.
 *
 * Threads. A `vc_mc` belongs to the thread of one loop, a stream to the `vc_mc` of its loop. All
 * functions are for that thread, which has not got Python's lock, except `vc_mc_add_counts`, which
 * any thread may call. The core and the marks are shared. */
#ifndef VC_MEMCACHE_H
#define VC_MEMCACHE_H

#include "copies.h"
#include "gate.h"
#include "marks.h"

enum {
    VC_MC_KEY_BYTES = 250,
    VC_MC_PREFIX_BYTES = 32,
    /* `out` needs this much room when it is empty. Values that have less are passed. */
    VC_MC_OUT_BYTES_MIN = 4096,
};

typedef enum {
    VC_MC_NEXT, VC_MC_MORE, VC_MC_PASS, VC_MC_COLD, VC_MC_FLUSH,
    VC_MC_TOGETHER
} vc_mc_step;

/* The commands that are counted. A binary request has the name of the text command; a cas unique
 * makes "cas" of a binary set, add or replace. */
typedef enum {
    VC_MC_GET, VC_MC_GETS, VC_MC_GAT, VC_MC_GATS, VC_MC_SET, VC_MC_ADD, VC_MC_REPLACE, VC_MC_CAS,
    VC_MC_TOUCH, VC_MC_DELETE, VC_MC_MG, VC_MC_MS, VC_MC_MD, VC_MC_MN, VC_MC_NOOP, VC_MC_NAMES
} vc_mc_name;

typedef enum {
    VC_MC_HIT, VC_MC_MISS, VC_MC_STORED, VC_MC_NOT_STORED, VC_MC_EXISTS, VC_MC_NOT_FOUND,
    VC_MC_DELETED, VC_MC_TOUCHED, VC_MC_OK, VC_MC_RESULTS
} vc_mc_result;

/* How the metrics name them. */
extern const char *const vc_mc_names[VC_MC_NAMES];
extern const char *const vc_mc_results[VC_MC_RESULTS];

/* Microseconds since the epoch, so that tests can set the time. */
typedef struct {
    int64_t (*store_us)(void *context);     /* by the clock of the store */
    int64_t (*machine_us)(void *context);
    void *context;
} vc_mc_clocks;

typedef struct {
    vc_core *core;
    const vc_core_functions *functions;
    const vc_mc_clocks *clocks;
    vc_marks *reads, *won;      /* shared with the executor in Python */
    vc_copies *copies;          /* NULL: there is no hot tier */
    size_t key_size;            /* of a value that is stored, at most */
    uint64_t value_size;
    int64_t default_ttl, max_ttl;   /* seconds; 0: none, no limit */
    int64_t slow_ns;            /* commands that took longer are events; -1: all are */
    int64_t long_ns;            /* likewise, and reads and writes */
    int64_t sample_mask;        /* hits, too, if a number from their time has none of these bits */
    /* Events are to be drained, in this thread; may take Python's lock. */
    void (*on_events)(void *context);
    void *context;
    /* What is due after a put is to be done, so that the next put is plain; likewise. */
    void (*on_due)(void *due_context);
    void *due_context;
} vc_mc_config;

/* What a client may do. With `wants_credentials`, all commands are passed. */
typedef struct {
    bool may_read, may_write, wants_credentials;
} vc_mc_rights;

/* One connection. All is 0 at first, except what the caller sets. */
typedef struct {
    vc_mc_rights rights;        /* set by the caller, and again whenever the tokens change */
    const char *remote;         /* the address of the client, for events; the caller's */
    /* Results. */
    bool is_known, is_binary;   /* by the first byte of the connection, once it was here */
    size_t needed;              /* of MORE: bytes */
    char prefix[VC_MC_PREFIX_BYTES];    /* of PASS; of its length only */
    size_t prefix_length;
    vc_lookup at;               /* of COLD */
    vc_put put;                 /* of TOGETHER */
    uint8_t key[VC_MC_KEY_BYTES];
    size_t key_length;
    /* Between calls. */
    bool is_warm;               /* the record of the next key was read after COLD */
    bool is_put;                /* the next command has made `put` after TOGETHER */
    int64_t started_ns;         /* when it was asked for, or to be put */
    size_t scanned;             /* bytes without a line end */
    size_t line_left;           /* of a get whose keys are not all answered: with its line end */
    vc_mc_name series;          /* which get */
    int64_t exptime;            /* of it */
} vc_mc_stream;

/* Replies; the memory is the caller's. */
typedef struct {
    char *at;
    size_t used, room;
} vc_mc_out;

/* Since the start. */
typedef struct {
    vc_durations commands[VC_MC_NAMES][VC_MC_RESULTS];
    vc_durations reads, writes;     /* of the store */
    uint64_t absent, evicted;       /* misses by reason */
} vc_mc_counts;

/* Something that Python is told. */
typedef struct {
    uint32_t length;            /* of the whole event, with its key, in bytes */
    uint32_t key_length;
    vc_mc_name name;
    vc_mc_result result;
    bool is_sampled;
    bool is_hot;                /* the key is to be promoted */
    bool has_record;            /* then there is a position */
    int64_t started_ns, took_ns;    /* monotonic */
    int64_t read_ns, write_ns;  /* of the store; 0: none */
    uint64_t offset, size, expires_ms;  /* of the record */
    uint64_t bytes;             /* of the reply */
    uint16_t volume;
    char remote[46];
    char key[];
} vc_mc_event;

typedef struct vc_mc vc_mc;

/* Return NULL without memory. `config` is copied, what it points to must live longer. */
vc_mc *vc_mc_new(const vc_mc_config *config);
void vc_mc_free(vc_mc *mc);
/* Use `slow_ns` of `to` from now on. */
void vc_mc_change(vc_mc *mc, const vc_mc_config *to);
vc_mc_step vc_mc_execute(vc_mc *mc, vc_mc_stream *stream, const char *data, size_t length,
                         size_t *used, vc_mc_out *out);
/* Add what was counted since the start. */
void vc_mc_add_counts(const vc_mc *mc, vc_mc_counts *counts);
/* Return the events since the last call, one after the other; valid until the next call. */
const uint8_t *vc_mc_take_events(vc_mc *mc, size_t *length);

#endif
