/* An event loop: descriptors, and what other threads hand to it. Knows no protocol.
 *
 * One round: wait; call `ready` of each descriptor that has events; take what other threads have
 * handed over; call `turn` of the owner, which does a bounded amount of work.
 *
 * Threads. The loop belongs to the thread that calls `vc_loop_run`. Other threads may call
 * `vc_loop_wake`, `vc_loop_end` and `vc_loop_stalled_ns`. */
#ifndef VC_LOOP_H
#define VC_LOOP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/types.h>

/* A descriptor. Its owner keeps it in memory until the end of the round in which it was closed. */
typedef struct vc_watch {
    int fd;
    void (*ready)(struct vc_watch *watch, uint32_t events);
    bool is_readable; /* bytes may have arrived, or the end */
    bool has_ended;   /* the other side, perhaps after bytes */
} vc_watch;

typedef struct {
    /* Events were handled. Returns for how long the loop may wait until the next round. */
    int64_t (*turn)(void *context);
    /* Another thread has called `vc_loop_wake`. */
    void (*woken)(void *context);
    void *context;
} vc_loop_owner;

typedef struct {
    vc_loop_owner owner;
    int epoll;
    vc_watch wakeup;
    int64_t now_ns; /* when the round began */
    int64_t wait_ns;
    _Atomic int64_t turn_ns; /* when it began; 0: the loop waits */
    _Atomic bool is_woken, has_ended;
} vc_loop;

/* Returns false without descriptors. */
bool vc_loop_open(vc_loop *loop, const vc_loop_owner *owner);
void vc_loop_close(vc_loop *loop);
/* Go on until `vc_loop_end`. */
void vc_loop_run(vc_loop *loop);
void vc_loop_end(vc_loop *loop);
void vc_loop_wake(vc_loop *loop);
/* For how long the present round has taken; 0: the loop waits. */
int64_t vc_loop_stalled_ns(vc_loop *loop);

/* Call `watch->ready` when one of some events of epoll(7) occurs. Returns false without memory. */
bool vc_loop_watch(vc_loop *loop, vc_watch *watch, uint32_t events);
bool vc_loop_change(vc_loop *loop, vc_watch *watch, uint32_t events);
/* Receive from a socket that is watched with EPOLLET: bytes, 0 if none are there, -1 at the end. */
ssize_t vc_loop_receive(vc_watch *watch, char *to, size_t room);
/* Before the descriptor is closed, if others have it, too. */
void vc_loop_unwatch(vc_loop *loop, vc_watch *watch);

#endif
