#define _GNU_SOURCE
#include "hot_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "crc32c.h"
#include "text.h"

static const char PREFIX[] = "volcache:";
static const int64_t HURRY_NS = 1000000000;
enum { PREFIX_BYTES = sizeof(PREFIX) - 1, RECEIVED_BYTES = 16384, KEPT_BYTES = 1 << 18 };

/* A get that was sent, or will be with the next round. */
typedef struct call {
    STAILQ_ENTRY(call) next;
    void *owner; /* NULL: cancelled */
    int64_t started_ns;
    uint8_t name[VC_ITEM_BYTES];
} call;

typedef STAILQ_HEAD(calls, call) calls;

/* Bytes from `at` on; those before were used. */
typedef struct {
    uint8_t *bytes;
    size_t at, used, room;
} buffer;

typedef struct {
    vc_watch watch; /* of its connection; its descriptor is -1 without one */
    struct vc_hot *hot;
    uint32_t hash; /* of its address, for `vc_hot_server_of` */
    const char *address;
    bool is_waiting; /* for room in the socket */
    calls calls;
    call *unsent; /* the first whose bytes are all in `out` */
    unsigned count;
    buffer out, in;
    _Atomic int given;   /* a new connection; -1: none */
    _Atomic int failure; /* a vc_hot_result */
} server;

struct vc_hot {
    vc_loop *loop; /* NULL: there is none */
    vc_hot_on_get *on_get;
    void *context;
    int64_t timeout_ns;
    size_t record_max;
    vc_hot_counts counts;
    unsigned server_count;
    server servers[];
};

/* --- Commands and replies ---------------------------------------------------------------- */

static char *put_key(char *to, const uint8_t name[VC_ITEM_BYTES]) {
    memcpy(to, PREFIX, PREFIX_BYTES);
    to += PREFIX_BYTES;
    for (int i = 0; i < VC_ITEM_BYTES; i++) to = vc_put_hex(to, name[i], 2);
    return to;
}

size_t vc_hot_write_get(char *to, const uint8_t name[VC_ITEM_BYTES]) {
    memcpy(to, "get ", 4);
    memcpy(put_key(to + 4, name), "\r\n", 2);
    return VC_HOT_KEY_BYTES + 6;
}

size_t vc_hot_write_set(char *to, const uint8_t name[VC_ITEM_BYTES], uint64_t expires_s,
                        size_t record_length) {
    memcpy(to, "set ", 4);
    char *end = put_key(to + 4, name);
    return VC_HOT_KEY_BYTES + 4 +
           (size_t)sprintf(end, " 0 %llu %zu\r\n", (unsigned long long)expires_s,
                           VC_ITEM_BYTES + record_length);
}

static bool begins(const uint8_t *data, size_t length, const char *text) {
    return length >= strlen(text) && !memcmp(data, text, strlen(text));
}

/* Read a number at `*at`, and what ends it. */
static bool hot_client_read_number(const char **at, const char *end, char ends, uint64_t *number) {
    bool is_large;
    return vc_read_digits(at, end, number, &is_large) && *at < end && *(*at)++ == ends;
}

/* Parse "VALUE <key> <flags> <bytes>\r\n<item>\r\nEND\r\n", whose line has `line` bytes. */
static vc_hot_reply parse_value(const uint8_t *data, size_t length, size_t line,
                                const uint8_t *name, size_t value_max) {
    static const char END[] = "\r\nEND\r\n";
    char key[VC_HOT_KEY_BYTES];
    const char *at = (const char *)data + 6 + VC_HOT_KEY_BYTES + 1;
    const char *end = (const char *)data + line;
    uint64_t flags, bytes;
    put_key(key, name);
    if (end <= at || memcmp(data + 6, key, VC_HOT_KEY_BYTES) || at[-1] != ' ' ||
        !hot_client_read_number(&at, end, ' ', &flags) ||
        !hot_client_read_number(&at, end, '\r', &bytes) || at + 1 != end || bytes > value_max)
        return (vc_hot_reply){VC_HOT_PROTOCOL, 0, NULL, 0};
    size_t whole = line + bytes + sizeof(END) - 1;
    size_t have = length < line + bytes ? 0 : length - line - bytes;
    if (have > sizeof(END) - 1) have = sizeof(END) - 1;
    if (memcmp(data + line + bytes, END, have)) return (vc_hot_reply){VC_HOT_PROTOCOL, 0, NULL, 0};
    if (length < whole) return (vc_hot_reply){VC_HOT_MORE, whole - 1, NULL, 0};
    return (vc_hot_reply){VC_HOT_FOUND, whole, data + line, bytes};
}

vc_hot_reply vc_hot_parse(const uint8_t *data, size_t length, const uint8_t *name,
                          size_t value_max) {
    size_t searched = length < VC_HOT_LINE_BYTES ? length : VC_HOT_LINE_BYTES;
    const uint8_t *end = memchr(data, '\n', searched);
    vc_hot_reply reply = {VC_HOT_PROTOCOL, 0, NULL, 0};
    if (!end) {
        if (length < VC_HOT_LINE_BYTES) reply.result = VC_HOT_MORE;
        reply.length = length;
        return reply;
    }
    reply.length = (size_t)(end - data) + 1;
    if (reply.length < 2 || end[-1] != '\r') return reply;
    if (begins(data, reply.length, "SERVER_ERROR ")) reply.result = VC_HOT_REFUSED;
    else if (name && begins(data, reply.length, "END\r\n")) reply.result = VC_HOT_ABSENT;
    else if (name && begins(data, reply.length, "VALUE "))
        return parse_value(data, length, reply.length, name, value_max);
    else if (!name && begins(data, reply.length, "STORED\r\n")) reply.result = VC_HOT_STORED;
    else if (!name && begins(data, reply.length, "NOT_STORED\r\n"))
        reply.result = VC_HOT_NOT_STORED;
    return reply;
}

/* --- Buffers -------------------------------------------------------------------------------- */

/* Have room for so many bytes after those that are there. */
static bool hot_client_reserve(buffer *b, size_t length) {
    if (b->used + length <= b->room) return true;
    if (b->at) {
        memmove(b->bytes, b->bytes + b->at, b->used - b->at);
        b->used -= b->at;
        b->at = 0;
        if (b->used + length <= b->room) return true;
    }
    size_t room = 2 * b->room > b->used + length ? 2 * b->room : b->used + length;
    uint8_t *bytes = realloc(b->bytes, room);
    if (!bytes) return false;
    b->bytes = bytes;
    b->room = room;
    return true;
}

static void hot_client_clear(buffer *b) {
    b->at = b->used = 0;
    if (b->room <= KEPT_BYTES) return;
    free(b->bytes);
    *b = (buffer){0};
}

static void hot_client_use(buffer *b, size_t length) {
    b->at += length;
    if (b->at == b->used) hot_client_clear(b);
}

/* --- Connections of the loop -------------------------------------------------------------------- */

static vc_hot_result failure_of(ssize_t got) {
    if (!got || errno == ECONNRESET || errno == EPIPE) return VC_HOT_CLOSED;
    return VC_HOT_OTHER;
}

static call *take_first(server *s) {
    call *first = STAILQ_FIRST(&s->calls);
    if (s->unsent == first) s->unsent = STAILQ_NEXT(first, next);
    STAILQ_REMOVE_HEAD(&s->calls, next);
    s->count--;
    return first;
}

/* Tell the owner of a get; `item` is NULL if there is none. */
static void tell(vc_hot *hot, call *done, const uint8_t *item, size_t length) {
    vc_observe(&hot->counts.calls, vc_monotonic_ns() - done->started_ns);
    if (done->owner)
        hot->on_get(hot->context, done->owner, item ? item + VC_ITEM_BYTES : NULL,
                    item ? length - VC_ITEM_BYTES : 0);
    free(done);
}

static void disconnect(vc_hot *hot, server *s) {
    if (s->watch.fd < 0) return;
    vc_loop_unwatch(hot->loop, &s->watch);
    close(s->watch.fd);
    s->watch.fd = -1;
    s->is_waiting = false;
    hot_client_clear(&s->in);
    hot_client_clear(&s->out);
}

/* All commands of a server fail. */
static void hot_client_fail(vc_hot *hot, server *s, vc_hot_result why) {
    disconnect(hot, s);
    if (why != VC_HOT_MORE) s->failure = (int)why;
    /* Meanwhile none is added: there is no connection. */
    while (s->count) tell(hot, take_first(s), NULL, 0);
}

/* Use a connection that was given. */
static void connect_given(vc_hot *hot, server *s) {
    int fd = s->given < 0 ? -1 : atomic_exchange(&s->given, -1);
    if (fd < 0) return;
    if (s->watch.fd >= 0) hot_client_fail(hot, s, VC_HOT_MORE);
    s->watch.fd = fd;
    if (vc_loop_watch(hot->loop, &s->watch, EPOLLIN)) return;
    close(fd);
    s->watch.fd = -1;
    s->failure = VC_HOT_OTHER;
}

bool vc_hot_get(vc_hot *hot, const uint8_t name[VC_ITEM_BYTES], void *owner) {
    server *s = &hot->servers[vc_hot_server_of(hot, name)];
    if (s->watch.fd < 0 || s->count >= VC_HOT_CALLS ||
        !hot_client_reserve(&s->out, VC_HOT_HEAD_BYTES))
        return false;
    call *added = malloc(sizeof(call));
    if (!added) return false;
    *added = (call){.owner = owner, .started_ns = vc_monotonic_ns()};
    memcpy(added->name, name, VC_ITEM_BYTES);
    STAILQ_INSERT_TAIL(&s->calls, added, next);
    s->count++;
    if (!s->unsent) s->unsent = added;
    s->out.used += vc_hot_write_get((char *)s->out.bytes + s->out.used, name);
    vc_count(&hot->counts.gets, 1);
    return true;
}

void vc_hot_cancel(vc_hot *hot, const void *owner) {
    call *one;
    for (unsigned i = 0; i < hot->server_count; i++)
        STAILQ_FOREACH(one, &hot->servers[i].calls, next)
    if (one->owner == owner) one->owner = NULL;
}

/* Count a reply, and tell who waits for it. */
static void take_reply(vc_hot *hot, server *s, const vc_hot_reply *reply) {
    vc_hot_counts *counts = &hot->counts;
    call *done = take_first(s);
    const uint8_t *item = NULL;
    if (reply->result == VC_HOT_FOUND) {
        bool is_good = reply->value_length >= VC_ITEM_BYTES &&
                       !memcmp(reply->value, done->name, VC_ITEM_BYTES);
        if (is_good) item = reply->value;
        vc_count(&counts->hits, 1);
        if (!is_good) vc_count(&counts->stale, 1);
    }
    if (reply->result == VC_HOT_REFUSED) vc_count(&counts->refused, 1);
    tell(hot, done, item, reply->value_length);
}

/* Take the replies that have arrived. Returns why the connection cannot be used; VC_HOT_MORE: it
 * can. */
static vc_hot_result take_replies(vc_hot *hot, server *s, size_t *needed) {
    size_t value_max = hot->record_max + VC_ITEM_BYTES;
    *needed = 0;
    while (s->in.at < s->in.used) {
        const call *first = STAILQ_FIRST(&s->calls);
        if (!first) return VC_HOT_PROTOCOL; /* Nothing was asked for. */
        vc_hot_reply reply = vc_hot_parse(s->in.bytes + s->in.at, s->in.used - s->in.at,
                                          first->name, value_max);
        if (reply.result == VC_HOT_PROTOCOL) return reply.result;
        if (reply.result == VC_HOT_MORE) {
            *needed = reply.length + 1 - (s->in.used - s->in.at);
            return VC_HOT_MORE;
        }
        take_reply(hot, s, &reply);
        hot_client_use(&s->in, reply.length);
    }
    return VC_HOT_MORE;
}

/* Receive what has arrived. */
static void receive(vc_hot *hot, server *s) {
    size_t needed = 0;
    for (int rounds = 0; rounds < 16; rounds++) {
        if (!hot_client_reserve(&s->in, needed > RECEIVED_BYTES ? needed : RECEIVED_BYTES))
            return hot_client_fail(hot, s, VC_HOT_OTHER);
        size_t room = s->in.room - s->in.used;
        ssize_t got = recv(s->watch.fd, s->in.bytes + s->in.used, room, MSG_DONTWAIT);
        if (got < 0 && vc_is_later(errno)) return;
        if (got <= 0) return hot_client_fail(hot, s, failure_of(got));
        s->in.used += (size_t)got;
        vc_hot_result result = take_replies(hot, s, &needed);
        if (result != VC_HOT_MORE) return hot_client_fail(hot, s, result);
        if ((size_t)got < room) return;
    }
}

static void flush(vc_hot *hot, server *s) {
    int64_t now_ns = vc_monotonic_ns();
    /* The time in which this loop did something else does not count. */
    for (call *one = s->unsent; one; one = STAILQ_NEXT(one, next)) one->started_ns = now_ns;
    s->unsent = NULL;
    size_t length = s->out.used - s->out.at;
    ssize_t sent = send(s->watch.fd, s->out.bytes + s->out.at, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && !vc_is_later(errno)) return hot_client_fail(hot, s, failure_of(sent));
    if (sent > 0) hot_client_use(&s->out, (size_t)sent);
    bool must_wait = s->out.at < s->out.used;
    if (must_wait == s->is_waiting) return;
    s->is_waiting = must_wait;
    if (!vc_loop_change(hot->loop, &s->watch, must_wait ? EPOLLIN | EPOLLOUT : EPOLLIN))
        hot_client_fail(hot, s, VC_HOT_OTHER);
}

/* --- What the loop calls --------------------------------------------------------------------------- */

/* How long the oldest command of a server may still take; 0: no longer. */
static int64_t left_ns(const vc_hot *hot, const server *s, int64_t now_ns) {
    const call *first = STAILQ_FIRST(&s->calls);
    if (!first || (first == s->unsent && !s->is_waiting)) return hot->timeout_ns;
    int64_t left = first->started_ns + hot->timeout_ns - now_ns;
    return left > 0 ? left : 0;
}

static void end_late(vc_hot *hot, server *s) {
    int64_t now_ns = vc_monotonic_ns();
    /* Maybe it was this loop that was late. */
    if (!left_ns(hot, s, now_ns)) receive(hot, s);
    if (!left_ns(hot, s, now_ns)) hot_client_fail(hot, s, VC_HOT_TIMEOUT);
}

int64_t vc_hot_settle(vc_hot *hot) {
    int64_t now_ns, next_ns = INT64_MAX;
    for (unsigned i = 0; i < hot->server_count; i++) {
        connect_given(hot, &hot->servers[i]);
        if (hot->servers[i].count) end_late(hot, &hot->servers[i]);
    }
    /* When one fails, those who wait go on, and may ask others. */
    for (bool has_failed = true; has_failed;) {
        has_failed = false;
        for (unsigned i = 0; i < hot->server_count; i++) {
            server *s = &hot->servers[i];
            if (s->watch.fd < 0 || s->is_waiting || s->out.at == s->out.used) continue;
            flush(hot, s);
            if (s->watch.fd < 0) has_failed = true;
        }
    }
    now_ns = vc_monotonic_ns();
    for (const server *s = hot->servers; s < hot->servers + hot->server_count; s++)
        if (s->count && left_ns(hot, s, now_ns) < next_ns) next_ns = left_ns(hot, s, now_ns);
    return next_ns;
}

static void on_ready(vc_watch *watch, uint32_t events) {
    server *s = (server *)watch;
    if (events & EPOLLOUT) flush(s->hot, s);
    if (s->watch.fd >= 0 && events & ~(uint32_t)EPOLLOUT) receive(s->hot, s);
}

void vc_hot_hurry(vc_hot *hot) {
    if (hot->timeout_ns > HURRY_NS) hot->timeout_ns = HURRY_NS;
}

/* --- Servers ------------------------------------------------------------------------------------------ */

unsigned vc_hot_server_of(const vc_hot *hot, const uint8_t name[VC_ITEM_BYTES]) {
    char text[1 + VC_HOT_KEY_BYTES] = "-";
    unsigned best = 0;
    uint32_t best_score = 0;
    if (hot->server_count == 1) return 0;
    put_key(text + 1, name);
    /* The server with the highest hash of its address and the key: one that is added or removed
     * changes the place of its own keys only. */
    for (unsigned i = 0; i < hot->server_count; i++) {
        uint32_t score = vc_crc32c(hot->servers[i].hash, text, sizeof(text));
        bool is_better = score > best_score ||
                         (score == best_score &&
                          strcmp(hot->servers[i].address, hot->servers[best].address) > 0);
        if (i && !is_better) continue;
        best = i;
        best_score = score;
    }
    return best;
}

void vc_hot_give(vc_hot *hot, unsigned number, int fd) {
    int earlier = atomic_exchange(&hot->servers[number].given, fd);
    hot->servers[number].failure = VC_HOT_MORE;
    if (earlier >= 0) close(earlier);
}

vc_hot_result vc_hot_take_failure(vc_hot *hot, unsigned number) {
    return (vc_hot_result)atomic_exchange(&hot->servers[number].failure, VC_HOT_MORE);
}

void vc_hot_add_counts(const vc_hot *hot, vc_hot_counts *counts) {
    vc_add_counts(counts, &hot->counts, sizeof(*counts));
}

vc_hot *vc_hot_new(const char *const *addresses, unsigned count, int64_t timeout_ns,
                   size_t record_max) {
    vc_hot *hot = calloc(1, sizeof(vc_hot) + count * sizeof(server));
    if (!hot) return NULL;
    hot->timeout_ns = timeout_ns;
    hot->record_max = record_max;
    hot->server_count = count;
    for (unsigned i = 0; i < count; i++) {
        STAILQ_INIT(&hot->servers[i].calls);
        hot->servers[i].address = addresses[i];
        hot->servers[i].hash = vc_crc32c(0, addresses[i], strlen(addresses[i]));
        hot->servers[i].watch = (vc_watch){.fd = -1, .ready = on_ready};
        hot->servers[i].hot = hot;
        hot->servers[i].given = -1;
    }
    return hot;
}

void vc_hot_install(vc_hot *hot, vc_loop *loop, vc_hot_on_get *on_get, void *context) {
    for (unsigned i = 0; !loop && i < hot->server_count; i++) {
        server *s = &hot->servers[i];
        disconnect(hot, s);
        while (s->count) free(take_first(s));
    }
    hot->loop = loop;
    hot->on_get = on_get;
    hot->context = context;
}

void vc_hot_free(vc_hot *hot) {
    if (!hot) return;
    for (unsigned i = 0; i < hot->server_count; i++) {
        vc_hot_give(hot, i, -1);
        free(hot->servers[i].in.bytes);
        free(hot->servers[i].out.bytes);
    }
    free(hot);
}
