/* The memcached protocol: an executor by the contract of protocol.h.
 *
 * All commands of the text protocol, its meta commands and the binary protocol are executed here.
 * What they reply is defined by memcached; docs/MEMCACHE.md lists the differences.
 *
 * What its steps mean:
 *
 *   NEXT    A command, or one key of a get, was executed, or some sets that have arrived together,
 *           with one write.
 *   MORE    `used` may be above 0: values that are too large are skipped as they arrive, and the
 *           keys of a get are used as they arrive.
 *   CALL    Another thread executes the command, with a `vc_mc` whose config has `ask`.
 *
 * What makes a CALL: a lock that is not free soon; a value for which `out` has no room; a read
 * that fails; a key of which only the hot tier may have a copy; a put for which a volume has to be
 * made ready, or that the disk refuses; statistics, flush_all and tokens. Of these, `ask` answers
 * what only Python knows or does.
 *
 * Threads. A `vc_mc` belongs to one thread, a stream to the thread that executes its commands. All
 * functions are for that thread, which has not got Python's lock, except `vc_mc_add_counts`, which
 * any thread may call. The core and the marks are shared. */
#ifndef VC_MEMCACHE_H
#define VC_MEMCACHE_H

#include "answer.h"
#include "lookup.h"
#include "recent.h"

enum {
    VC_MC_KEY_BYTES = 250,
    /* `out` needs this much room when it is empty. */
    VC_MC_OUT_BYTES_MIN = 4096,
    VC_MC_TOKEN_BYTES = 32,
};

/* The commands that are counted. A binary request has the name of the text command; a cas unique
 * makes "cas" of a binary set, add or replace. */
typedef enum {
    VC_MC_GET,
    VC_MC_GETS,
    VC_MC_GAT,
    VC_MC_GATS,
    VC_MC_SET,
    VC_MC_ADD,
    VC_MC_REPLACE,
    VC_MC_APPEND,
    VC_MC_PREPEND,
    VC_MC_CAS,
    VC_MC_INCR,
    VC_MC_DECR,
    VC_MC_TOUCH,
    VC_MC_DELETE,
    VC_MC_MG,
    VC_MC_MS,
    VC_MC_MD,
    VC_MC_MA,
    VC_MC_ME,
    VC_MC_MN,
    VC_MC_NOOP,
    VC_MC_VERSION,
    VC_MC_VERBOSITY,
    VC_MC_QUIT,
    VC_MC_SHUTDOWN,
    VC_MC_FLUSH_ALL,
    VC_MC_STATS,
    VC_MC_AUTH,
    VC_MC_MEMLIMIT,
    VC_MC_CONFIG,
    VC_MC_UNKNOWN,
    VC_MC_NAMES
} vc_mc_name;

typedef enum {
    VC_MC_HIT,
    VC_MC_MISS,
    VC_MC_STORED,
    VC_MC_NOT_STORED,
    VC_MC_EXISTS,
    VC_MC_NOT_FOUND,
    VC_MC_NON_NUMERIC,
    VC_MC_DELETED,
    VC_MC_TOUCHED,
    VC_MC_OK,
    VC_MC_AUTHENTICATED,
    VC_MC_DENIED,
    VC_MC_UNAUTHORIZED,
    VC_MC_FORBIDDEN,
    VC_MC_BAD_KEY,
    VC_MC_TOO_LARGE,
    VC_MC_FAILED,
    VC_MC_ERROR,
    VC_MC_RESULTS
} vc_mc_result;

/* How the metrics name them. */
extern const char *const vc_mc_names[VC_MC_NAMES];
extern const char *const vc_mc_results[VC_MC_RESULTS];

/* What a client may do. With `wants_credentials`, a set of the text protocol gives a token. */
typedef struct {
    bool may_read, may_write, wants_credentials;
} vc_mc_rights;

enum { VC_MC_TOKENS_MAX = 8 };

/* A token that is right, as `ask` has answered it, and what who has given it may do. */
typedef struct {
    uint8_t token[VC_MC_TOKEN_BYTES];
    vc_mc_rights rights;
} vc_mc_token;

typedef struct {
    vc_mc_rights rights; /* of a client that has given no token */
    unsigned count;
    vc_mc_token tokens[VC_MC_TOKENS_MAX];
} vc_mc_access;

/* What Python is asked, and the results it may have. All others are VC_MC_FAILED, with the reason
 * in `text`. */
typedef enum {
    VC_MC_ASK_GET,    /* HIT with `record`, whose value is `text`, or MISS */
    VC_MC_ASK_STAT,   /* the same without the value */
    VC_MC_ASK_PUT,    /* STORED with `record`, TOO_LARGE */
    VC_MC_ASK_TOUCH,  /* the same, as the version in `put` */
    VC_MC_ASK_DELETE, /* DELETED, NOT_FOUND */
    VC_MC_ASK_FLUSH,  /* in `exptime` seconds: OK, FORBIDDEN */
    VC_MC_ASK_STATS,  /* about `value`: OK with lines "STAT name text" in `text`, or NOT_FOUND */
    VC_MC_ASK_CONFIG, /* OK with the list of instances in `text`, or NOT_FOUND */
    VC_MC_ASK_TOKEN,  /* whether `value` is one: AUTHENTICATED with `rights`, or DENIED */
} vc_mc_question;

typedef struct {
    vc_mc_question question;
    const char *remote;
    vc_text key, value;
    const vc_put *put;
    int64_t exptime;
    /* The answer; what it points to is valid until the next question. */
    vc_text text;
    vc_record record; /* `type` has the text fields, one after the other */
    bool is_copy;     /* of the hot tier */
    bool is_broken;   /* the connection is to be closed: it is unknown what was done */
    vc_mc_rights rights;
    uint8_t token[VC_MC_TOKEN_BYTES]; /* what tells a token from others */
} vc_mc_asked;

typedef struct {
    vc_recent *reads, *won;
    int64_t default_ttl, max_ttl; /* seconds; 0: none, no limit */
    /* Answers what only Python knows or does, for whoever may wait; NULL: this thread may not. */
    vc_mc_result (*ask)(void *ask_context, vc_mc_asked *asked);
    void *ask_context;
} vc_mc_config;

/* One connection. */
typedef struct {
    vc_stream base;
    unsigned generation; /* of `access` that it has */
    vc_mc_rights rights;
    bool has_token; /* the client has given one */
    uint8_t token[VC_MC_TOKEN_BYTES];
    /* Between calls. */
    bool is_known, is_binary; /* by the first byte of the connection, once it was here */
    int64_t started_ns;       /* of the command that has waited */
    size_t scanned;           /* bytes without a line end */
    uint64_t skipped;         /* bytes to come that are part of no command */
    bool skips_line;          /* likewise, up to a line end */
    bool is_series;           /* of gets: the next word is a key, or before it the time */
    bool awaits_time, has_keys;
    vc_mc_name series; /* which get */
    int64_t exptime;   /* of it */
    bool has_sasl, is_sasl_step;
} vc_mc_stream;

/* Since the start. */
typedef struct {
    vc_durations commands[VC_MC_NAMES][VC_MC_RESULTS];
    uint64_t executed; /* of all names and results; changed last */
} vc_mc_counts;

/* Something that Python is told. */
typedef struct {
    vc_event_sizes sizes;
    vc_mc_name name;
    vc_mc_result result;
    bool is_sampled;
    bool wants_read, has_token;  /* of UNAUTHORIZED: what was wanted, and whether with a token */
    int64_t started_ns, took_ns; /* monotonic */
    int64_t read_ns, write_ns;   /* of the store; 0: none */
    char remote[48];
} vc_mc_event;

typedef struct vc_mc vc_mc;

extern const vc_protocol vc_mc_protocol;

/* Return NULL without memory. Both are copied, what they point to must live longer. */
vc_mc *vc_mc_new(const vc_executor *by, const vc_mc_config *config);
void vc_mc_free(vc_mc *mc);
/* Use other settings from the next command on; once before the first one. */
void vc_mc_change(vc_mc *mc, const vc_mc_access *access, int64_t slow_ns);
/* How many commands were counted; any thread. */
uint64_t vc_mc_executed(const vc_mc *mc);
/* Add what was counted since the start. */
void vc_mc_add_counts(const vc_mc *mc, vc_mc_counts *counts, vc_store_counts *of_store);

#endif
