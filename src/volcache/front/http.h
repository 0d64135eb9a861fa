/* HTTP: what clients usually send, executed as the WSGI application would answer it, without I/O
 * and without the interpreter; see protocol.h for the steps.
 *
 * Executed here are GET, HEAD, PUT and DELETE of a key: with conditions, one range, a token as
 * Bearer or Basic, a lifetime, and a body with a length or in chunks. The application
 * (http/app.py) defines every answer. It gets, by VC_STEP_FORWARD, every other request and each
 * one that is not certain to be answered here as it would answer it: several ranges, other
 * methods, `/-/`, a key that is not in its usual form, a wrong token, another instance's key, a
 * record that is damaged or expired, a disk that refuses, a volume that is full.
 *
 * A GET looks the key up, reads the record into the reply with one call, checks it, and writes
 * the headers before it. A record larger than VC_HTTP_RECORD_BYTES is verified by a thread and
 * sent from the disk. The value of a PUT is a part of `data`; one larger than
 * VC_HTTP_COLLECTED_BYTES, and each one that is synced, is stored by a thread. A change with a
 * condition is decided and made with the write lock.
 *
 * Threads: as protocol.h says. `vc_http_change` is for the thread of the loop; the functions that
 * only read figures are for any thread. */
#ifndef VC_HTTP_H
#define VC_HTTP_H

#include "answer.h"
#include "lifetimes.h"
#include "lookup.h"
#include "ring.h"
#include "tokens.h"

enum {
    VC_HTTP_OUT_BYTES_MIN = 5 << 18,   /* of the buffer of `out` */
    VC_HTTP_COLLECTED_BYTES = 1 << 20, /* of a value that the loop itself stores */
    VC_HTTP_MORE_BYTES = 1024,         /* of more headers, at most */
    VC_HTTP_HEADERS_BYTES = VC_HEADERS_BYTES + VC_HTTP_MORE_BYTES + 256,
    VC_HTTP_RECORD_BYTES = VC_HTTP_OUT_BYTES_MIN - VC_HTTP_HEADERS_BYTES, /* that is read whole */
    VC_HTTP_FIRST_BYTES = 4096,
};

/* The answers that are counted for each method, as the application counts them. */
typedef enum {
    VC_ANSWER_HIT,
    VC_ANSWER_COPY,
    VC_ANSWER_MISS,
    VC_ANSWER_DONE, /* a change was made */
    VC_ANSWER_PART,
    VC_ANSWER_COPY_PART,
    VC_ANSWER_UNMODIFIED,
    VC_ANSWER_FAILED, /* a condition */
    VC_HTTP_ANSWERS,  /* of an event: the request was refused */
} vc_http_answer;
enum { VC_HTTP_METHODS = VC_DELETE + 1 };

/* How the metrics name them. */
typedef struct {
    const char *status, *source;
} vc_http_name;
extern const vc_http_name vc_http_names[VC_HTTP_ANSWERS];

/* More headers of the answers to the pages of one origin. */
typedef struct {
    const char *origin, *headers;
} vc_origin;

/* What may change while requests are executed. The texts must live as long as the executor. */
typedef struct {
    bool answers;            /* if not, every request is forwarded */
    vc_parts ring, writable; /* GETs, changes of other keys are forwarded */
    vc_tokens may_read, may_write;
    int64_t default_ttl, max_ttl; /* seconds; 0: none */
    /* More headers of the answers to requests for a key, each as "\r\nName: value"; NULL: none.
     * Those of an origin replace them in answers to its pages. */
    const char *headers;
    const vc_origin *origins;
    unsigned origin_count;
} vc_http_settings;

typedef struct {
    bool memory_first; /* memcached is not asked for records that are in memory */
    vc_types types;
    /* Whether a key without an entry is absent for certain: not while reads fail. Set to false
     * by a read that fails, and to true by whoever has found out that the disk is good. */
    atomic_bool *is_ready;
    const atomic_bool *is_draining; /* connections are to be closed after their next answer */
    vc_query_use query;
    const char *allow; /* methods, for a 405 */
} vc_http_config;

/* Something that Python is told. */
typedef struct {
    vc_event_sizes sizes; /* its key is the path */
    vc_method method;
    vc_http_answer answer;
    int status; /* of a request that was refused */
    bool is_sampled;
    int64_t started_ns, took_ns, disk_ns; /* monotonic; 0: nothing was read or written */
    int64_t hot_ns;                       /* how long memcached was waited for */
} vc_http_event;

/* Since the start. */
typedef struct {
    vc_durations answers[VC_HTTP_METHODS][VC_HTTP_ANSWERS];
    uint64_t bytes_in, bytes_out;
} vc_http_counts;

typedef struct vc_http vc_http;

extern const vc_protocol vc_http_protocol;

/* Return NULL without memory. Both are copied, what they point to must live longer. */
vc_http *vc_http_new(const vc_executor *by, const vc_http_config *config);
void vc_http_free(vc_http *http);
/* Use other settings from the next request on. */
void vc_http_change(vc_http *http, const vc_http_settings *settings, int64_t slow_ns);
/* Add what was counted since the start; any thread. */
void vc_http_add_counts(const vc_http *http, vc_http_counts *counts, vc_store_counts *of_store);

#endif
