/* Between bjoern and the gate.
 *
 * bjoern is built from its own, unmodified source, with link.c added and some of its calls
 * redirected to it by the linker: `accept`, `read`, `write`, `close`, `ev_io_start`, `ev_run`,
 * `fprintf`.
 * link.c knows bjoern's watchers and nothing of HTTP. The gate decides, through `vc_hooks`;
 * it knows neither bjoern nor libev. Until hooks are installed, bjoern runs as without
 * link.c, but prints nothing.
 *
 * All functions are called by the thread that runs bjoern's loop, without Python's lock, except
 * `wake`. */
#ifndef VC_LINK_H
#define VC_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

#define VC_LINK_VERSION 2

enum { VC_LINK_READ = 1, VC_LINK_WRITE = 2 };

/* What the gate does. */
typedef struct {
    void *context;
    /* A connection was accepted. False: there are too many; it is answered 503. */
    bool (*accepted)(void *context, int fd, const struct sockaddr *address);
    /* No descriptor is free. Returns whether a connection was closed. */
    bool (*make_room)(void *context);
    /* Bytes have arrived, or the end. True: bjoern is to read now. */
    bool (*readable)(void *context, int fd);
    /* bjoern reads; as read(2). */
    ssize_t (*take)(void *context, int fd, void *buffer, size_t length);
    /* bjoern waits for the next bytes, or for the next request. True: there are some. */
    bool (*awaits)(void *context, int fd);
    /* bjoern has written some bytes of a response, but not all. */
    void (*written)(void *context, int fd);
    /* The socket has room: only after `watch_writes`. */
    void (*writable)(void *context, int fd);
    /* bjoern closes a connection. */
    void (*closing)(void *context, int fd);
    /* All that has arrived was handled, or `readable` was called for it; the loop waits next. */
    void (*settle)(void *context);
    /* After `wake`. */
    void (*woken)(void *context);
    /* Ten times in a second. */
    void (*tick)(void *context);
    /* A descriptor that `watch` was called for is ready. */
    void (*ready)(void *context, int fd, int events);
    /* After the time of `set_alarm`. */
    void (*alarm)(void *context);
} vc_hooks;

/* What link.c does. Its symbol is `volcache_link`. */
typedef struct {
    uint32_t version;
    /* Begin to redirect the calls; NULL: end it. Not while the loop runs. */
    void (*install)(const vc_hooks *hooks);
    /* Do not call `readable` for a connection until `resume`. */
    void (*pause)(int fd);
    /* Call `readable` soon, and whenever bytes arrive. */
    void (*resume)(int fd);
    void (*watch_writes)(int fd, bool is_on);
    /* Let bjoern read now, while it waits for bytes. */
    void (*deliver)(int fd);
    /* Let the loop call `woken`; from any thread. */
    void (*wake)(void);
    /* Call `ready` whenever a descriptor that is not a client's is ready for some events; none: no
     * longer, which is to be called before it is closed. Returns false without memory. */
    bool (*watch)(int fd, int events);
    /* Call `alarm` once after so many nanoseconds, in place of the time before. */
    void (*set_alarm)(int64_t after_ns);
} vc_link;

#endif
