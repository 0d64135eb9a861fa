/* The protocol between processes that have one directory open: the owner of the store executes what
 * the others, its guests, ask for. sharing/wire.py has the same numbers.
 *
 * A request is a `vc_local_request`, followed by the key, content type, content encoding, cache
 * directives and the value. A reply is a `vc_local_reply`, followed by the three headers and by
 * `sent` bytes of the value. Numbers are those of the machine, which both have in common.
 *
 * The loop executes plain requests. All others, and those that need the disk, a rotation or memory
 * for a large value, are calls, which Python answers. */
#ifndef VC_LOCAL_H
#define VC_LOCAL_H

#include "lookup.h"

typedef enum {
    VC_LOCAL_GET = 1,
    VC_LOCAL_PEEK,
    VC_LOCAL_STAT,
    VC_LOCAL_PUT,
    VC_LOCAL_DELETE,
    VC_LOCAL_READS,     /* the value is for `vc_core_count_reads` */
    VC_LOCAL_SHARE,     /* with the reply comes the descriptor of shared.h */
    VC_LOCAL_HOLD = 16, /* it and those above it are calls */
} vc_local_operation;

enum { VC_LOCAL_GUESTS = 4096 }; /* connections at a time, at most */

/* Python has more of them. GONE: the owner ends, and has not executed the request. */
typedef enum { VC_LOCAL_NONE, VC_LOCAL_DONE, VC_LOCAL_GONE = 4 } vc_local_status;

typedef struct {
    uint32_t value_length, flags;
    uint16_t key_length;
    uint8_t operation, condition; /* a `vc_if` */
    uint8_t type_length, encoding_length, cache_length, unused;
    uint64_t stored_us, expires_ms, if_stored_us, if_expires_ms;
} vc_local_request;

typedef struct {
    uint32_t sent, flags, length, checksum;
    uint16_t volume;
    uint8_t status, type_length, encoding_length, cache_length, unused[2];
    uint64_t stored_us, expires_ms, offset, size;
} vc_local_reply;

/* The executor of a loop, and of the thread for calls. */
typedef struct {
    vc_executor by; /* with `core`, `functions`, `clocks` and `copies` only */
    /* By the thread for calls. Returns false if the connection is to be closed. `guest` is the
     * number of the connection. */
    bool (*answer)(void *context, uint64_t guest, const char *data, size_t length, vc_reply *reply);
    /* A guest has gone that had sent VC_LOCAL_HOLD; by the thread of the loop. */
    void (*gone)(void *context, uint64_t guest);
    void *context;
    uint64_t guests; /* since the start */
} vc_local;

extern const vc_protocol vc_local_protocol;

/* Of a guest, whose socket blocks. Send all parts, which are changed. Returns false with errno: after
 * EINTR it may be called again. */
bool vc_local_send(int fd, struct iovec *parts, size_t count);
/* Receive once, perhaps a descriptor with it; otherwise `passed` stays. As recv(2). */
ssize_t vc_local_receive(int fd, void *to, size_t room, int *passed);

#endif
