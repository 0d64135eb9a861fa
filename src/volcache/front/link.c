/* Linked into bjoern; see link.h. */
#include "link.h"

#include <errno.h>
#include <ev.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double TICK_SECONDS = 0.1;

typedef void callback(struct ev_loop *loop, ev_io *watcher, int events);

/* One of bjoern's connections. */
typedef struct {
    ev_io *reader;          /* bjoern's; it is started again for each request */
    callback *on_read;      /* bjoern's own callback of it */
    ev_io writer;           /* ours; of a descriptor that is not a client's, for any event */
    bool is_open, is_paused;
} port;

static struct {
    const vc_hooks *hooks;
    pthread_mutex_t waking; /* `loop` is set while it is held */
    struct ev_loop *loop;
    port **ports;           /* by descriptor */
    int count;
    int reserve;            /* closed to accept a connection when no descriptor is free */
    ev_async wakeup;
    ev_timer timer, alarm;
    ev_prepare before_waiting;
} self = {.waking = PTHREAD_MUTEX_INITIALIZER, .reserve = -1};

int __real_accept(int fd, struct sockaddr *address, socklen_t *length);
ssize_t __real_read(int fd, void *buffer, size_t length);
ssize_t __real_write(int fd, const void *buffer, size_t length);
int __real_close(int fd);
void __real_ev_io_start(struct ev_loop *loop, ev_io *watcher);
int __real_ev_run(struct ev_loop *loop, int flags);

static port *port_of(int fd) {
    if (!self.hooks || fd < 0 || fd >= self.count || !self.ports[fd]) return NULL;
    return self.ports[fd]->is_open ? self.ports[fd] : NULL;
}

/* --- Watchers ------------------------------------------------------------------------- */

static void on_readable(struct ev_loop *loop, ev_io *watcher, int events) {
    port *at = port_of(watcher->fd);
    if (self.hooks->readable(self.hooks->context, watcher->fd))
        at->on_read(loop, watcher, events);
}

static void on_writable(struct ev_loop *loop, ev_io *watcher, int events) {
    (void)loop, (void)events;
    self.hooks->writable(self.hooks->context, watcher->fd);
}

static void on_wakeup(struct ev_loop *loop, ev_async *watcher, int events) {
    (void)loop, (void)watcher, (void)events;
    self.hooks->woken(self.hooks->context);
}

static void on_tick(struct ev_loop *loop, ev_timer *watcher, int events) {
    (void)loop, (void)watcher, (void)events;
    self.hooks->tick(self.hooks->context);
}

static void on_ready(struct ev_loop *loop, ev_io *watcher, int events) {
    (void)loop;
    self.hooks->ready(self.hooks->context, watcher->fd,
                      (events & (EV_READ | EV_ERROR) ? VC_LINK_READ : 0) |
                          (events & EV_WRITE ? VC_LINK_WRITE : 0));
}

static void on_alarm(struct ev_loop *loop, ev_timer *watcher, int events) {
    (void)events, (void)watcher;
    ev_ref(loop); /* It has ended. */
    self.hooks->alarm(self.hooks->context);
}

static void on_prepare(struct ev_loop *loop, ev_prepare *watcher, int events) {
    (void)loop, (void)watcher, (void)events;
    self.hooks->settle(self.hooks->context);
}

void __wrap_ev_io_start(struct ev_loop *loop, ev_io *watcher) {
    port *at = loop == self.loop && (watcher->events & EV_READ) ? port_of(watcher->fd) : NULL;
    if (!at) {
        __real_ev_io_start(loop, watcher);
        return;
    }
    at->reader = watcher;
    at->on_read = ev_cb(watcher);
    ev_set_cb(watcher, on_readable);
    __real_ev_io_start(loop, watcher);
    if (self.hooks->awaits(self.hooks->context, watcher->fd))
        ev_feed_event(loop, watcher, EV_READ);
}

/* The loop ends with bjoern's last watcher, whether these are active or not. */
static void stop_alarm(void) {
    if (!ev_is_active(&self.alarm)) return;
    ev_ref(self.loop);
    ev_timer_stop(self.loop, &self.alarm);
}

static void set_loop(struct ev_loop *loop) {
    pthread_mutex_lock(&self.waking);
    self.loop = loop;
    pthread_mutex_unlock(&self.waking);
}

int __wrap_ev_run(struct ev_loop *loop, int flags) {
    if (!self.hooks) return __real_ev_run(loop, flags);
    self.reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ev_async_init(&self.wakeup, on_wakeup);
    ev_async_start(loop, &self.wakeup);
    ev_unref(loop); /* The loop ends with bjoern's last watcher. */
    ev_timer_init(&self.timer, on_tick, TICK_SECONDS, TICK_SECONDS);
    ev_timer_start(loop, &self.timer);
    ev_unref(loop);
    ev_init(&self.alarm, on_alarm);
    ev_prepare_init(&self.before_waiting, on_prepare);
    ev_prepare_start(loop, &self.before_waiting);
    ev_unref(loop);
    set_loop(loop);
    int result = __real_ev_run(loop, flags);
    stop_alarm();
    set_loop(NULL); /* bjoern destroys it next. */
    ev_ref(loop);
    ev_prepare_stop(loop, &self.before_waiting);
    ev_ref(loop);
    ev_timer_stop(loop, &self.timer);
    ev_ref(loop);
    ev_async_stop(loop, &self.wakeup);
    if (self.reserve >= 0) __real_close(self.reserve);
    self.reserve = -1;
    return result;
}

/* --- What the gate asks for ------------------------------------------------------------ */

static void install(const vc_hooks *hooks) { self.hooks = hooks; }

static void pause_reading(int fd) {
    port *at = port_of(fd);
    if (at->is_paused) return;
    ev_io_stop(self.loop, at->reader);
    ev_ref(self.loop); /* As if it were active. */
    at->is_paused = true;
}

static void resume_reading(int fd) {
    port *at = port_of(fd);
    if (at->is_paused) {
        ev_unref(self.loop);
        __real_ev_io_start(self.loop, at->reader);
        at->is_paused = false;
    }
    ev_feed_event(self.loop, at->reader, EV_READ);
}

static void watch_writes(int fd, bool is_on) {
    port *at = port_of(fd);
    if (!is_on) {
        ev_io_stop(self.loop, &at->writer);
    } else if (!ev_is_active(&at->writer)) {
        ev_io_init(&at->writer, on_writable, fd, EV_WRITE);
        __real_ev_io_start(self.loop, &at->writer);
    }
}

static void deliver(int fd) {
    port *at = port_of(fd);
    at->on_read(self.loop, at->reader, EV_READ);
}

static port *reserve_port(int fd);

static bool watch(int fd, int events) {
    port *at = self.loop ? reserve_port(fd) : NULL;
    if (!at) return false;
    if (ev_is_active(&at->writer)) {
        ev_ref(self.loop);
        ev_io_stop(self.loop, &at->writer);
    }
    if (!events) return true;
    ev_io_init(&at->writer, on_ready, fd,
               (events & VC_LINK_READ ? EV_READ : 0) | (events & VC_LINK_WRITE ? EV_WRITE : 0));
    __real_ev_io_start(self.loop, &at->writer);
    ev_unref(self.loop);
    return true;
}

static void set_alarm(int64_t after_ns) {
    stop_alarm();
    ev_timer_set(&self.alarm, (double)after_ns / 1e9, 0.);
    /* The time of the loop may be that of its last wait. */
    ev_now_update(self.loop);
    ev_timer_start(self.loop, &self.alarm);
    ev_unref(self.loop);
}

static void wake(void) {
    pthread_mutex_lock(&self.waking);
    if (self.loop) ev_async_send(self.loop, &self.wakeup);
    pthread_mutex_unlock(&self.waking);
}

__attribute__((visibility("default")))
const vc_link volcache_link = {
    VC_LINK_VERSION, install, pause_reading, resume_reading, watch_writes, deliver, wake,
    watch, set_alarm,
};

/* --- bjoern's calls --------------------------------------------------------------------- */

/* Return the port of a descriptor, used or not; NULL without memory. */
static port *reserve_port(int fd) {
    if (fd >= self.count) {
        int count = fd + 64 + fd / 2;
        port **ports = realloc(self.ports, (size_t)count * sizeof(port *));
        if (!ports) return NULL;
        memset(ports + self.count, 0, (size_t)(count - self.count) * sizeof(port *));
        self.ports = ports;
        self.count = count;
    }
    /* Once for each descriptor: libev keeps pointers to the watcher in it. */
    if (!self.ports[fd]) self.ports[fd] = calloc(1, sizeof(port));
    return self.ports[fd];
}

static bool open_port(int fd) {
    port *at = reserve_port(fd);
    if (at) *at = (port){.is_open = true};
    return at;
}

static void refuse(int fd) {
    static const char ANSWER[] =
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
        "Content-Type: text/plain; charset=utf-8\r\nContent-Length: 38\r\nConnection: close\r\n"
        "\r\ntoo many connections; try again later\n";
    (void)!send(fd, ANSWER, sizeof(ANSWER) - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    __real_close(fd);
}

static bool is_full(int error) { return error == EMFILE || error == ENFILE; }

/* Accept a connection and refuse it: one that is not accepted makes the loop spin. */
static void turn_away(int listener) {
    if (self.reserve < 0) return;
    __real_close(self.reserve);
    int fd = __real_accept(listener, NULL, NULL);
    if (fd >= 0) refuse(fd);
    self.reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

int __wrap_accept(int listener, struct sockaddr *address, socklen_t *length) {
    if (!self.hooks) return __real_accept(listener, address, length);
    struct sockaddr_storage whole = {0};
    socklen_t size = sizeof(whole);
    int fd = __real_accept(listener, (struct sockaddr *)&whole, &size);
    if (fd < 0 && is_full(errno) && self.hooks->make_room(self.hooks->context)) {
        size = sizeof(whole);
        fd = __real_accept(listener, (struct sockaddr *)&whole, &size);
    }
    if (fd < 0) {
        int error = errno;
        if (is_full(error)) turn_away(listener);
        errno = error;
        return -1;
    }
    if (!open_port(fd) ||
        !self.hooks->accepted(self.hooks->context, fd, (struct sockaddr *)&whole)) {
        if (fd < self.count && self.ports[fd]) self.ports[fd]->is_open = false;
        refuse(fd);
        errno = EAGAIN;
        return -1;
    }
    memcpy(address, &whole, *length < size ? *length : size);
    *length = size;
    return fd;
}

ssize_t __wrap_read(int fd, void *buffer, size_t length) {
    if (!port_of(fd)) return __real_read(fd, buffer, length);
    return self.hooks->take(self.hooks->context, fd, buffer, length);
}

ssize_t __wrap_write(int fd, const void *buffer, size_t length) {
    if (!port_of(fd)) return __real_write(fd, buffer, length);
    /* Without SIGPIPE, whatever its handler is. */
    ssize_t sent = send(fd, buffer, length, MSG_NOSIGNAL);
    int error = errno;
    if (sent > 0 && (size_t)sent < length) self.hooks->written(self.hooks->context, fd);
    errno = error;
    return sent;
}

int __wrap_close(int fd) {
    port *at = port_of(fd);
    if (at) {
        self.hooks->closing(self.hooks->context, fd);
        ev_io_stop(self.loop, &at->writer);
        if (at->is_paused) ev_unref(self.loop);
        at->is_open = at->is_paused = false;
    }
    return __real_close(fd);
}

/* All that bjoern prints is that a client has gone during an answer. That is no fault, and
 * stderr has the log. */
int __wrap_fprintf(FILE *file, const char *format, ...) {
    (void)file, (void)format;
    return 0;
}

/* What gcc makes of it with _FORTIFY_SOURCE. */
int __wrap___fprintf_chk(FILE *file, int flag, const char *format, ...) {
    (void)file, (void)flag, (void)format;
    return 0;
}
