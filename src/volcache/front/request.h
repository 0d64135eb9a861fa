/* Requests as they arrive: the grammar of RFC 9112, without I/O.
 *
 * Stricter than many servers, because this one is followed by another parser: what two of them
 * could read differently is refused. A head is the request line and the fields up to the empty
 * line; every line ends with CR LF. */
#ifndef VC_REQUEST_H
#define VC_REQUEST_H

#include "text.h"

enum {
    VC_HEAD_BYTES = 32768, /* of the longest head */
    VC_FIELDS = 100,       /* of a head, at most */
    VC_TEXT_BYTES = 160,   /* of a text that says why a request was refused */
};

/* Methods that are treated differently; all others are VC_OTHER_METHOD, as is none. */
typedef enum { VC_OTHER_METHOD, VC_GET, VC_HEAD, VC_PUT, VC_DELETE, VC_PROPFIND } vc_method;

/* The fields that are known by name. */
typedef enum {
    VC_FIELD_UNKNOWN,
    VC_FIELD_HOST,
    VC_FIELD_CONTENT_LENGTH,
    VC_FIELD_TRANSFER_ENCODING,
    VC_FIELD_CONNECTION,
    VC_FIELD_EXPECT,
    VC_FIELD_HOP, /* of this connection only, or not for clients: not passed on */
    /* Those of which the value is kept. */
    VC_FIELD_AUTHORIZATION,
    VC_FIELD_CACHE_CONTROL,
    VC_FIELD_CONTENT_ENCODING,
    VC_FIELD_CONTENT_RANGE,
    VC_FIELD_CONTENT_TYPE,
    VC_FIELD_EXPIRES,
    VC_FIELD_FLAGS,
    VC_FIELD_IF_MATCH,
    VC_FIELD_IF_MODIFIED_SINCE,
    VC_FIELD_IF_NONE_MATCH,
    VC_FIELD_IF_RANGE,
    VC_FIELD_IF_UNMODIFIED_SINCE,
    VC_FIELD_ORIGIN,
    VC_FIELD_RANGE,
    VC_FIELD_SERVICE_WORKER,
    VC_FIELD_NAMES,
} vc_field_name;

typedef struct {
    vc_text name, value; /* of the value, without the white space around it */
    vc_field_name known;
} vc_field;

/* A head. All texts are parts of the bytes that were parsed. */
typedef struct {
    size_t length; /* of the head, with its empty line */
    vc_method method;
    vc_text method_text;
    vc_text path;      /* begins with a slash, or is "*"; percent-encoded, but valid */
    vc_text query;     /* after the question mark; at == NULL: there is none */
    vc_text authority; /* of an absolute target; at == NULL: there is none */
    bool is_http_1_0;
    bool keeps_alive;     /* the client wants to use the connection again */
    bool awaits_continue; /* it waits for "100 Continue" */
    bool is_chunked;
    bool has_length;
    /* Of the fields whose value is kept: the last one of each name; at == NULL: there is none. */
    vc_text values[VC_FIELD_NAMES];
    uint32_t repeated; /* names of which there are several: a bit for each */
    uint64_t content_length;
    unsigned field_count;
    vc_field fields[VC_FIELDS];
    /* Of a head that is refused: what the answer says. */
    int status;
    char reason[VC_TEXT_BYTES];
} vc_request;

typedef enum { VC_HEAD_INCOMPLETE, VC_HEAD_COMPLETE, VC_HEAD_REFUSED } vc_head;

static inline bool vc_request_has(const vc_request *request, vc_field_name name) {
    return request->values[name].at;
}

/* Whether any of these fields stands more than once; `names` has a bit for each. */
static inline bool vc_request_repeats(const vc_request *request, uint32_t names) {
    return request->repeated & names;
}

/* Parse the head at the start of some bytes; empty lines before it must be skipped already.
 * `scanned` is 0 for the first bytes of a head; pass it again when more bytes have arrived, so
 * that none is searched twice. */
vc_head vc_request_parse(const char *data, size_t length, size_t *scanned, vc_request *request);

/* Decode a valid path; returns the bytes written, at most path.length. */
size_t vc_path_decode(vc_text path, char *to);

/* Why a text is no key, as keys.py says; its length is not looked at. */
typedef enum { VC_KEY_GOOD, VC_KEY_CONTROL, VC_KEY_RESERVED, VC_KEY_DOTS } vc_key_fault;
vc_key_fault vc_key_check(vc_text key);

/* The setting `query`, in the order of its choices. */
typedef enum { VC_QUERY_IGNORE, VC_QUERY_KEY, VC_QUERY_REFUSE } vc_query_use;

/* Write a slash and the key of a request: its decoded path; with VC_QUERY_KEY also a question mark
 * and the query as it is. An empty query is none. Returns the bytes written; 0: `room` is too
 * small, or Python has to decide: the query is refused, or follows a path that is no key. */
size_t vc_request_key(const vc_request *request, vc_query_use use, char *to, size_t room);

/* Write the head again, in the one form that bjoern's parser cannot misread: no fields of this
 * connection only, each name once, one framing. Returns the length, at most VC_PASSED_BYTES: a field
 * grows by a space, and the framing and Connection by less than 100 bytes. */
enum { VC_PASSED_BYTES = VC_HEAD_BYTES + 4096 };
size_t vc_request_write(const vc_request *request, char *to);

/* --- Chunked bodies ----------------------------------------------------------------- */

typedef struct {
    int state;
    size_t trailers; /* bytes of the last size, and of what follows it */
    uint64_t left;   /* bytes of this chunk that are to come */
    uint64_t total;  /* bytes of the chunks that began */
} vc_chunks;

typedef enum { VC_CHUNKS_MORE, VC_CHUNKS_END, VC_CHUNKS_REFUSED } vc_chunks_state;

/* Take the bytes of a body that was sent in chunks.
 *   used     how many of `length` bytes belong to the body, without a line that is not whole: they
 *            are not given again;
 *   to       what is in the chunks: at most `length` bytes; it may be `data` or before it;
 *   written  how many.
 * After VC_CHUNKS_REFUSED, `reason` says why. `chunks` is 0 at first. */
vc_chunks_state vc_chunks_take(vc_chunks *chunks, const char *data, size_t length, size_t *used,
                               char *to, size_t *written, const char **reason);

#endif
