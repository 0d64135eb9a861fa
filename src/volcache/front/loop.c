#define _GNU_SOURCE
#include "loop.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "common.h"

enum { LOOP_EVENTS = 64 };
static const int64_t LOOP_MS_NS = 1000000;

static void loop_on_wakeup(vc_watch *watch, uint32_t events) {
    (void)watch, (void)events; /* Edge-triggered: the number need not be read. */
}

bool vc_loop_open(vc_loop *loop, const vc_loop_owner *owner) {
    *loop = (vc_loop){.owner = *owner, .wakeup.ready = loop_on_wakeup};
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->wakeup.fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (loop->wakeup.fd >= 0 && vc_loop_watch(loop, &loop->wakeup, EPOLLIN | EPOLLET)) return true;
    vc_loop_close(loop);
    return false;
}

void vc_loop_close(vc_loop *loop) {
    if (loop->epoll >= 0) close(loop->epoll);
    if (loop->wakeup.fd >= 0) close(loop->wakeup.fd);
    loop->epoll = loop->wakeup.fd = -1;
}

void vc_loop_wake(vc_loop *loop) {
    if (!atomic_exchange(&loop->is_woken, true)) (void)!eventfd_write(loop->wakeup.fd, 1);
}

void vc_loop_end(vc_loop *loop) {
    loop->has_ended = true;
    vc_loop_wake(loop);
}

int64_t vc_loop_stalled_ns(vc_loop *loop) {
    int64_t turn_ns = loop->turn_ns;
    return turn_ns ? vc_monotonic_ns() - turn_ns : 0;
}

/* --- Descriptors ---------------------------------------------------------------------------- */

static bool loop_control(vc_loop *loop, int operation, vc_watch *watch, uint32_t events) {
    struct epoll_event event = {.events = events, .data.ptr = watch};
    return !epoll_ctl(loop->epoll, operation, watch->fd, &event);
}

bool vc_loop_watch(vc_loop *loop, vc_watch *watch, uint32_t events) {
    return loop_control(loop, EPOLL_CTL_ADD, watch, events);
}

bool vc_loop_change(vc_loop *loop, vc_watch *watch, uint32_t events) {
    return loop_control(loop, EPOLL_CTL_MOD, watch, events);
}

void vc_loop_unwatch(vc_loop *loop, vc_watch *watch) {
    (void)loop_control(loop, EPOLL_CTL_DEL, watch, 0);
}

ssize_t vc_loop_receive(vc_watch *watch, char *to, size_t room) {
    ssize_t got = recv(watch->fd, to, room, MSG_DONTWAIT);
    bool is_later = got < 0 && vc_is_later(errno);
    /* What arrives later is reported; after the end nothing is. */
    if (is_later || (got < (ssize_t)room && !watch->has_ended)) watch->is_readable = false;
    return got > 0 ? got : is_later ? 0 : -1;
}

/* --- Rounds --------------------------------------------------------------------------------- */

static int loop_timeout_ms(const vc_loop *loop) {
    return loop->wait_ns <= 0 ? 0 : (int)((loop->wait_ns + LOOP_MS_NS - 1) / LOOP_MS_NS);
}

static void loop_round(vc_loop *loop) {
    struct epoll_event events[LOOP_EVENTS];
    loop->turn_ns = 0;
    int count = epoll_wait(loop->epoll, events, LOOP_EVENTS, loop_timeout_ms(loop));
    loop->turn_ns = loop->now_ns = vc_monotonic_ns();
    for (int i = 0; i < count; i++) {
        vc_watch *watch = events[i].data.ptr;
        if (events[i].events & ~(uint32_t)EPOLLOUT) watch->is_readable = true;
        if (events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) watch->has_ended = true;
        if (watch->fd >= 0) watch->ready(watch, events[i].events);
    }
    if (atomic_exchange(&loop->is_woken, false)) loop->owner.woken(loop->owner.context);
    loop->wait_ns = loop->owner.turn(loop->owner.context);
}

void vc_loop_run(vc_loop *loop) {
    while (!loop->has_ended) loop_round(loop);
    loop->turn_ns = 0;
}
