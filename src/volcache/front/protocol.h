/* The contract between a connection and a protocol.
 *
 * A connection (connection.h) owns sockets, memory, time limits and waits. A protocol executes
 * requests: bytes in, replies out, without I/O and without the interpreter. It says with each step
 * what has to happen before it goes on:
 *
 *     vc_step step = protocol->execute(executor, stream, data, length, &used, &out);
 *
 *   data       All bytes that have arrived and are not used. They may be elsewhere in the next call.
 *              A protocol may decode within them: what it changes stays changed.
 *   NEXT       A request was executed; its first `used` bytes are done, and its reply, perhaps of
 *              no bytes, is in `out`. With `stream->closes`, the connection is closed when all of
 *              `out` is sent.
 *   MORE       The request is not whole: call again when `stream->needed` bytes are there, at least
 *              one more than after `used`. `stream->at` says which time limit holds meanwhile.
 *              `used` bytes that belong to no request, as empty lines, may be dropped. `out` may
 *              have an interim reply.
 *   MEMORY     `stream->reserve` bytes are to be counted for the request before it goes on: for a
 *              body that is to arrive, or for an answer. The connection waits until there is room
 *              for them, and then calls again with the same data. They are free again when the
 *              request was executed. Not asked for twice by a request.
 *   DISK       The record of a key is not in memory. The caller owns the read of `stream->found`,
 *              with the key in `stream->key`: a thread reads the record, or verifies it without
 *              keeping it (`stream->verifies`), and calls `end_read`. Then the caller calls again
 *              with the same data; `stream->waited` is VC_WAITED_DISK and `stream->status` says how
 *              the read ended.
 *   TOGETHER   The caller owns `stream->put`: a thread makes it (`group_commit`). Then as for DISK,
 *              with the result in stream->put.status. The value is part of `data`, unless it has
 *              no bytes, and moves with it.
 *   HOT        memcached is to be asked for `stream->item`. Then as for DISK, with VC_WAITED_HOT
 *              and the result in `stream->hot`; its copy is valid during that call.
 *   VALUE      As NEXT, but when `out` is sent there follow `stream->value_length` bytes of the
 *              value of `stream->found`, which was verified, from `value_offset` on. The caller
 *              owns the read.
 *   FORWARD    The application answers. `stream->forward` has the head that it gets; the first
 *              `used` bytes are done, and the body follows them as it says. The caller sends the
 *              answer, and then calls `answered`.
 *   CALL       The request may take long: nothing of it was done. Another thread executes it with
 *              `call` of the protocol; then the caller sends the reply, and goes on as after NEXT.
 *   FLUSH      There is no room in `out`: send it, then call again with an empty one.
 *
 * `refuse` writes the reply to a request that the connection cannot wait for; the connection is
 * closed when it is sent.
 *
 * Counters, events and lines of the log belong to the protocol; they are since the start, are
 * changed with `vc_count`, and any thread may read them. Bytes, descriptors, time limits and
 * memory belong to the connection.
 *
 * Threads. An executor and its streams belong to one loop; its functions are called by the thread
 * of that loop, which does not have the lock of the interpreter. Between CALL and the end of
 * `call`, the stream belongs to the thread for calls. */
#ifndef VC_PROTOCOL_H
#define VC_PROTOCOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "copies.h"
#include "core.h"

typedef enum {
    VC_STEP_NEXT,
    VC_STEP_MORE,
    VC_STEP_MEMORY,
    VC_STEP_DISK,
    VC_STEP_TOGETHER,
    VC_STEP_HOT,
    VC_STEP_VALUE,
    VC_STEP_FORWARD,
    VC_STEP_CALL,
    VC_STEP_FLUSH
} vc_step;

/* What is awaited of a client, and so which time limit holds. */
typedef enum {
    VC_AT_IDLE, /* a request: none of its bytes is there, at most empty lines or half of one */
    VC_AT_HEAD, /* the rest of a head */
    VC_AT_BODY, /* the rest of a body */
} vc_at;

typedef enum {
    VC_WAITED_NOT,
    VC_WAITED_MEMORY,
    VC_WAITED_DISK,
    VC_WAITED_PUT,
    VC_WAITED_HOT
} vc_waited;

/* Why a connection refuses a request. */
typedef enum {
    VC_REFUSED_HEAD,        /* its head arrives too slowly */
    VC_REFUSED_BODY,        /* its body arrives too slowly */
    VC_REFUSED_MEMORY,      /* it waited too long for memory */
    VC_REFUSED_DISK,        /* it waited too long for the disk */
    VC_REFUSED_APPLICATION, /* the application does not answer */
    VC_REFUSED_CONNECTION,  /* there are too many connections; nothing was received */
    VC_REFUSED_END,         /* the process ends; nothing was received that is not answered */
} vc_refusal;

/* What memcached has for an item. */
typedef enum {
    VC_COPY_FOUND,   /* `copy` of the record */
    VC_COPY_ABSENT,  /* nothing, or it did not answer in time */
    VC_COPY_UNASKED, /* this loop has no connection to it: the application may have one */
} vc_copy_state;

typedef struct {
    const char *head;   /* whole, in the one form that bjoern's parser cannot misread */
    size_t head_length; /* valid until the next call of the executor */
    bool is_head;       /* the answer has no body, whatever it says */
    bool keeps_alive;   /* the client's connection, after the answer */
    bool is_reserved;   /* for a path of the operator */
    uint64_t body_length;
    size_t gap; /* bytes behind the body that are dropped: it was decoded */
} vc_forward;

/* One connection, as a protocol sees it; the beginning of a struct of the protocol's own, which is
 * zero at first. */
typedef struct {
    /* Set by the connection. */
    const char *remote; /* the client's address */
    int fd;             /* of its socket, for descriptors that are to be sent */
    vc_waited waited;   /* what for, since the call before */
    vc_status status;   /* of DISK; VC_DEFERRED: it waited for too long */
    vc_copy_state hot;  /* of HOT */
    const uint8_t *copy;
    size_t copy_length;
    int64_t waited_ns; /* how long */
    /* Set by lookup.c; only `memory` lives longer than a request. */
    uint8_t *memory; /* for what has to stay where it is while the connection waits */
    bool is_read;    /* the record is read by a thread */
    bool is_put;     /* `put` is made by a thread */
    /* Results; each is valid after the steps that name it. */
    size_t needed;
    vc_at at;
    bool closes;
    bool verifies;
    uint64_t reserve;
    vc_lookup found;
    const uint8_t *key; /* valid until the caller calls again; not part of `data` */
    size_t key_length;
    vc_put put;
    uint8_t item[VC_ITEM_BYTES];
    uint64_t value_offset, value_length;
    vc_forward forward;
} vc_stream;

enum { VC_OUT_PARTS = 256 };

/* Replies: parts of one buffer, in order. The memory is the caller's. */
typedef struct {
    char *at;
    size_t used, room; /* bytes of the buffer, with gaps between parts */
    struct iovec parts[VC_OUT_PARTS];
    unsigned count;
} vc_out;

/* Whether there is room for a reply of so many bytes in one or two parts. */
static inline bool vc_out_has_room(const vc_out *out, size_t bytes) {
    return out->room - out->used >= bytes && out->count + 2 <= VC_OUT_PARTS;
}

/* Add bytes of the buffer that begin at or after `used`; what is before them, from `used` on, is a
 * gap. Parts without a gap between them are one. */
static inline void vc_out_add(vc_out *out, const char *at, size_t length) {
    struct iovec *last = out->count ? &out->parts[out->count - 1] : NULL;
    if (last && (const char *)last->iov_base + last->iov_len == at) last->iov_len += length;
    else if (length) out->parts[out->count++] = (struct iovec){(char *)at, length};
    out->used = (size_t)(at + length - out->at);
}

/* A reply of a call; from malloc. */
typedef struct {
    char *at;
    size_t length;
} vc_reply;

typedef struct {
    size_t stream_size; /* of its struct that begins with vc_stream */
    size_t first_bytes; /* that are received before it is called, at most */
    bool tells_end;     /* idle clients are told that the process ends (VC_REFUSED_END) */
    vc_step (*execute)(void *executor, vc_stream *stream, char *data, size_t length, size_t *used,
                       vc_out *out);
    /* After CALL, by the thread for calls: execute the request at the beginning of the data. Returns
     * false if the connection is to be closed at once. NULL: there is no CALL. */
    bool (*call)(void *caller, vc_stream *stream, const char *data, size_t length, size_t *used,
                 vc_reply *reply);
    /* After FORWARD: the application's answer, which has this head, was sent with so many bytes of
     * its body, perhaps not all. NULL: there is no FORWARD. */
    void (*answered)(void *executor, vc_stream *stream, const char *head, uint64_t bytes);
    void (*refuse)(void *executor, vc_stream *stream, vc_refusal why, vc_out *out);
    /* The connection ends: free what the stream has. NULL: nothing. */
    void (*end)(void *executor, vc_stream *stream);
} vc_protocol;

#endif
