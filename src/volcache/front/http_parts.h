/* What http.c, http_read.c and http_change.c share: one request, and how it is answered. */
#ifndef VC_HTTP_PARTS_H
#define VC_HTTP_PARTS_H

#include "conditions.h"
#include "http.h"
#include "request.h"

enum { VC_HTTP_VERIFIED = 64, VC_HTTP_VALUE_MOVED_BYTES = 4096 };

/* A record whose value was verified at this position. */
typedef struct {
    uint64_t salt, offset;
} vc_http_place;

struct vc_http {
    vc_executor by;
    vc_http_config config;
    vc_http_settings settings;
    vc_http_counts counts;
    vc_date date;
    vc_request request;
    vc_http_place verified[VC_HTTP_VERIFIED];
    char path[VC_HEAD_BYTES];
    char head[VC_PASSED_BYTES];          /* that is forwarded */
    uint8_t prefix[VC_PREFIX_BYTES_MAX]; /* of a record whose value is not read */
};

/* One connection. What is after `logged_ns` is 0 at the beginning of a request. */
typedef struct {
    vc_stream base;
    /* Of the request that is forwarded: bytes of its head in `memory`; 0: none is, or no log. */
    size_t logged_length;
    int64_t logged_ns;   /* when it began */
    const char *headers; /* more of them for the answer; NULL: none */
    vc_method method;
    int64_t started_ns; /* 0: no head is complete */
    int64_t hot_ns;     /* how long memcached was waited for */
    size_t scanned;     /* bytes of the head that have no end of a head */
    bool is_asked;      /* memcached, for `asked` */
    bool has_memory, has_continued;
    uint8_t asked[VC_ITEM_BYTES];
    vc_chunks chunks;
    size_t decoded, taken; /* bytes of a chunked body: as decoded, as they have arrived */
} vc_http_stream;

/* A request whose head is complete. */
typedef struct {
    vc_http *http;
    vc_http_stream *stream;
    vc_request *request;
    char *data; /* from its head on */
    size_t length;
    vc_out *out;
    vc_text path; /* decoded */
    vc_wanted wanted;
    bool keeps_alive;
    size_t body; /* bytes in `data` that its body takes */
} vc_http_job;

enum { VC_HTTP_NOT_READ = -1 }; /* `disk_ns` of an answer for which no disk was used */

/* --- http.c --- */

/* Whether a request for a key is for this instance, and has a right token. */
bool vc_http_is_mine(const vc_http_job *job, const vc_parts *parts, const vc_tokens *tokens);
/* Whether the key may be absent, or stored. */
bool vc_http_has_good_key(const vc_http_job *job);
/* Let the application answer. */
vc_step vc_http_forward(vc_http_job *job);
/* Wait for a thread that reads the record. */
vc_step vc_http_wait_for_disk(vc_http_job *job, const vc_lookup *at, bool verifies);
/* End a request whose answer is in `out`, and count it. `record` is NULL without one; `disk_ns`:
 * how long it was read or written; `bytes`: of a value that are sent. */
vc_step vc_http_answered(vc_http_job *job, vc_http_answer answer, const vc_record *record,
                         int64_t disk_ns, uint64_t bytes);
/* Write what follows the other headers of an answer. */
char *vc_http_put_end(const vc_http_job *job, char *to);
/* Answer with headers that begin at the end of `out` and were written up to `to`. */
vc_step vc_http_send_headers(vc_http_job *job, vc_http_answer answer, char *to,
                             const vc_record *record, int64_t disk_ns);
/* Answer a miss, or with a condition that failed. */
vc_step vc_http_send_miss(vc_http_job *job);
vc_step vc_http_send_failed(vc_http_job *job, vc_verdict verdict, const vc_record *record);
/* Read the head of the record that was found, as `vc_read_record` does. */
vc_status vc_http_read_head(vc_http_job *job, const vc_lookup *at, vc_record *record);
/* Whether a record that was read may be used here. */
bool vc_http_is_plain(const vc_http_job *job, const vc_record *record);

static inline char *vc_http_room(const vc_http_job *job) { return job->out->at + job->out->used; }

/* --- http_read.c --- */

vc_step vc_http_get(vc_http_job *job);
vc_step vc_http_head(vc_http_job *job);

/* --- http_change.c --- */

/* Whether a PUT or DELETE may be executed here. */
bool vc_http_may_put(const vc_http_job *job);
bool vc_http_may_delete(const vc_http_job *job);
/* The body of a PUT is whole. */
vc_step vc_http_store(vc_http_job *job, const uint8_t *value, uint64_t length);
vc_step vc_http_delete(vc_http_job *job);

#endif
