/* The gate with its reader threads, between clients on real sockets and a bjoern made here.
 *
 *     gate_threads SECONDS SEED
 *
 * One thread runs the loop, as bjoern's does: it drives the gate, answers what is passed to
 * bjoern, appends records, and uses the volumes in a circle, so that it reclaims the oldest one
 * while its records may be read. Some threads are clients: they send several requests at a time
 * on several connections, and half of these are closed in the middle. Many reads find nothing
 * in memory and are left to the reader threads of the gate.
 *
 * Each value says which version of which key it is. What a client gets is the latest version or
 * a newer one; a miss, or an answer by bjoern, only if the key was deleted or its volume
 * reclaimed. Answers come in the order of the requests. Any failed check aborts. */
#define _GNU_SOURCE
#include "gate.h"
#include "versions.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>

enum {
    CLIENTS = 6,                /* threads */
    PARKED = 3,                 /* connections that each of them keeps at a time */
    CONNECTIONS = 16,           /* that the gate accepts: not all of them */
    PORTS = 1024,
    READERS = 4,
    VALUE_BYTES_MAX = 20000,
    ANSWER_BYTES_MAX = VALUE_BYTES_MAX + 3000,
    REQUESTS = 6,               /* sent at a time, at most */
    PATIENCE_MS = 200000,
};

static vc_clock store_clock;
static vc_gate *gate;
static vc_readers *readers;
static const vc_hooks *hooks;
static int wakeup, arrivals[2];
static atomic_int clients_left;
static uint64_t loop_random, stored, deletions, passed_on, cold;

static uint32_t value_length(uint32_t key, uint32_t version) {
    uint64_t n = nature(key, version);
    return 8 + (uint32_t)(n >> 8) % (n >> 60 ? 600 : VALUE_BYTES_MAX - 8);
}

/* It begins with key and version. */
static void make_value(uint8_t *out, uint32_t key, uint32_t version) {
    make_bytes(out, value_length(key, version), key, version);
    memcpy(out, &key, 4);
    memcpy(out + 4, &version, 4);
}

static vc_calls system_calls(void) {
    vc_calls calls = vc_os_calls;
    calls.pread = slow_pread;
    calls.pread_cached = hidden_pread_cached;
    calls.pwritev = hidden_pwritev;
    return calls;
}

/* --- Appending, by the thread of the loop ------------------------------------------- */

static void write_version(uint32_t key) {
    static uint8_t value[VALUE_BYTES_MAX + 8];
    char name[20];
    uint32_t version = VERSION_OF(atomic_load(&finished[key])) + 1;
    bool is_put = !is_deletion(key, version);
    vc_put put = {
        .type = (const uint8_t *)"text/plain",
        .key = (const uint8_t *)name,
        .value = value,
        .record.key_length = (uint16_t)snprintf(name, sizeof name, "key/%u", key),
        .record.stored_us = (uint64_t)vc_clock_next(&store_clock),
        .record.kind = !is_put,
    };
    vc_record *record = &put.record;
    /* The threads look at the clock for some of them. */
    if (version % 2) record->expires_ms = record->stored_us / 1000 + 3600 * 1000;
    if (is_put) {
        record->length = value_length(key, version);
        record->type_length = version % 3 ? 10 : 0;
        make_value(value, key, version);
    }
    atomic_store(&begun[key], version);
    vc_status status;
    do {
        /* A plain one would need an index file, if it is a deletion. */
        put.ring = VC_MAIN;
        status = vc_core_put(core, &put);
        if (status == VC_DEFERRED) start_volume();
    } while (status == VC_DEFERRED);
    CHECK(status == VC_OK);
    atomic_store(&finished[key], NOTE(version, w.turn));
    stored += is_put;
    deletions += !is_put;
}

/* --- The loop: what link.c and bjoern do -------------------------------------------- */

typedef struct {
    bool is_open, is_reading, is_paused, is_fed, watches_writes, closes;
    char message[600], answer[1500];
    size_t message_length, answer_length, answer_at;
} port;

static port *ports[PORTS];
static unsigned open_ports;

static void install(const vc_hooks *installed) { hooks = installed; }

static void pause_reading(int fd) {
    CHECK(ports[fd]->is_open && ports[fd]->is_reading);
    ports[fd]->is_paused = true;
    ports[fd]->is_fed = false;
}

static void resume_reading(int fd) {
    CHECK(ports[fd]->is_open && ports[fd]->is_reading);
    ports[fd]->is_paused = false;
    ports[fd]->is_fed = true;
}

static void watch_writes(int fd, bool is_on) {
    CHECK(ports[fd]->is_open && ports[fd]->is_reading);
    ports[fd]->watches_writes = is_on;
}

static void wake(void) {
    uint64_t one = 1;
    CHECK(write(wakeup, &one, sizeof one) == sizeof one);
}

static void close_port(int fd) {
    hooks->closing(hooks->context, fd);
    ports[fd]->is_open = false;
    open_ports--;
    close(fd);
}

static void start_reading(int fd) {
    port *at = ports[fd];
    at->message_length = 0;
    at->is_reading = true;
    if (hooks->awaits(hooks->context, fd)) at->is_fed = true;
}

/* If the message is complete, begin to answer it: with its first line and its body. */
static void answer_message(port *at) {
    const char *stop = memmem(at->message, at->message_length, "\r\n\r\n", 4);
    CHECK(stop);
    const char *end = memchr(at->message, '\r', at->message_length);
    size_t head = (size_t)(stop - at->message);
    const char *length = memmem(at->message, head, "Content-Length: ", 16);
    size_t body = length ? strtoul(length + 16, NULL, 10) : 0;
    size_t whole = head + 4 + body, line = (size_t)(end - at->message);
    CHECK(at->message_length <= whole);
    if (at->message_length < whole) return;
    bool is_head = !memcmp(at->message, "HEAD ", 5);
    at->closes = memmem(at->message, head, "Connection: close", 17);
    at->answer_length = (size_t)snprintf(
        at->answer, sizeof at->answer,
        "HTTP/1.1 200 OK\r\nX-Request: %.*s\r\nContent-Length: %zu\r\n\r\n%.*s", (int)line,
        at->message, body, is_head ? 0 : (int)body, stop + 4);
    at->answer_at = 0;
    at->is_reading = at->is_fed = false;
    passed_on++;
}

static void read_port(int fd) {
    static char buffer[65536];
    port *at = ports[fd];
    CHECK(at->is_open && at->is_reading);
    ssize_t got = hooks->take(hooks->context, fd, buffer, sizeof buffer);
    if (got == 0 || (got < 0 && errno != EAGAIN)) {
        close_port(fd);
        return;
    }
    if (got < 0) return;
    CHECK(at->message_length + (size_t)got <= sizeof at->message);
    memcpy(at->message + at->message_length, buffer, (size_t)got);
    at->message_length += (size_t)got;
    answer_message(at);
}

static void deliver(int fd) { read_port(fd); }

static const vc_link test_link = {VC_LINK_VERSION, install, pause_reading, resume_reading,
                                  watch_writes,    deliver, wake, NULL, NULL};

static void write_port(int fd) {
    port *at = ports[fd];
    ssize_t sent = send(fd, at->answer + at->answer_at, at->answer_length - at->answer_at,
                        MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
        if (errno != EAGAIN) close_port(fd);
        return;
    }
    hooks->written(hooks->context, fd);
    at->answer_at += (size_t)sent;
    if (at->answer_at < at->answer_length) return;
    if (at->closes) close_port(fd);
    else start_reading(fd);
}

static void accept_port(int fd) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    int bytes = next_random(&loop_random) % 2 ? 1 : 1 << 20;
    CHECK(fd < PORTS && fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    if (!ports[fd]) ports[fd] = malloc(sizeof *ports[fd]);
    CHECK(ports[fd]);
    memset(ports[fd], 0, offsetof(port, message));
    if (!hooks->accepted(hooks->context, fd, (struct sockaddr *)&address)) {
        close(fd);
        return;
    }
    ports[fd]->is_open = true;
    open_ports++;
    start_reading(fd);
}

static void read_arrivals(void) {
    int fds[16];
    ssize_t got = read(arrivals[0], fds, sizeof fds);
    CHECK(got > 0 || errno == EAGAIN);
    for (ssize_t i = 0; i < got / (ssize_t)sizeof *fds; i++) accept_port(fds[i]);
}

static void handle_events(int fd, short events) {
    port *at = ports[fd];
    if (events & POLLNVAL) abort();
    bool has_room = events & (POLLOUT | POLLERR | POLLHUP);
    if (at->is_open && at->watches_writes && has_room) hooks->writable(hooks->context, fd);
    if (at->is_open && !at->is_reading && has_room) write_port(fd);
    if (at->is_open && at->is_reading && !at->is_paused &&
        (at->is_fed || events & (POLLIN | POLLERR | POLLHUP))) {
        at->is_fed = false;
        if (hooks->readable(hooks->context, fd)) read_port(fd);
    }
}

/* Wait for events and handle them. */
static void run_once(void) {
    static struct pollfd waits[PORTS + 2];
    nfds_t count = 2;
    int timeout = 5;
    hooks->settle(hooks->context);
    waits[0] = (struct pollfd){wakeup, POLLIN, 0};
    waits[1] = (struct pollfd){arrivals[0], POLLIN, 0};
    for (int fd = 0; fd < PORTS; fd++) {
        const port *at = ports[fd];
        if (!at || !at->is_open) continue;
        short events = 0;
        if (at->is_reading && !at->is_paused) events |= POLLIN;
        if (!at->is_reading || at->watches_writes) events |= POLLOUT;
        if (at->is_fed) timeout = 0;
        if (events) waits[count++] = (struct pollfd){fd, events, 0};
    }
    CHECK(poll(waits, count, timeout) >= 0 || errno == EINTR);
    if (waits[0].revents) {
        uint64_t number;
        CHECK(read(wakeup, &number, sizeof number) == sizeof number);
        hooks->woken(hooks->context);
    }
    for (nfds_t i = 2; i < count; i++) handle_events(waits[i].fd, waits[i].revents);
    if (waits[1].revents) read_arrivals();
}

static void on_events(void *context) {
    size_t length;
    vc_gate_counts counts;
    (void)context;
    vc_gate_take_events(gate, &length);
    vc_gate_take_counts(gate, &counts);
    vc_gate_set_ready(gate, true);
}

static void *run_loop(void *argument) {
    struct timespec now, last = {0};
    (void)argument;
    while (atomic_load(&clients_left) || open_ports) {
        run_once();
        uint64_t dice = next_random(&loop_random);
        for (uint64_t left = dice % 4; left; left--)
            write_version((uint32_t)(next_random(&loop_random) % (dice >> 9 & 1 ? 20 : KEYS)));
        if ((dice >> 10) % 64 == 0) hooks->make_room(hooks->context);
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (now.tv_sec == last.tv_sec && now.tv_nsec - last.tv_nsec < 10000000) continue;
        hooks->tick(hooks->context);
        last = now;
    }
    return NULL;
}

/* --- The clients -------------------------------------------------------------------- */

typedef enum { GET_VALUE, GET_NOTHING, GET_SPECIAL, HEAD_VALUE, PUT_BODY } kind;

typedef struct {
    kind kind;
    uint32_t key;
    uint64_t before;            /* what was finished when it was sent */
    char line[40];              /* as bjoern sees it */
} request;

/* What is counted of requests and of connections. */
enum { ALL, VALUES, MISSES, BY_BJOERN, BROKEN, ENDED, COUNTS };

typedef struct {
    pthread_t thread;
    uint64_t random;
    double end;
    int parked[PARKED];
    char text[2000], *got;
    size_t got_length;
    uint64_t counts[COUNTS];
} client;

static int connect_client(client *c) {
    int pair[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    if (next_random(&c->random) % 2) {
        int bytes = 1;
        setsockopt(pair[1], SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
    CHECK(write(arrivals[1], pair, sizeof *pair) == sizeof *pair);
    return pair[1];
}

/* Write some requests to `text`. Returns its length. */
static size_t make_requests(client *c, request *requests, unsigned count) {
    static const char *const PATHS[] = {"GET /key/", "GET /none/", "GET /key/", "HEAD /key/",
                                        "PUT /key/"};
    size_t length = 0;
    for (unsigned i = 0; i < count; i++) {
        uint64_t dice = next_random(&c->random);
        request *to = &requests[i];
        /* Most of them. */
        to->kind = dice % 4 ? GET_VALUE : (kind)(dice >> 8) % 5;
        to->key = (uint32_t)(dice >> 16) % (dice >> 12 & 1 ? 20 : KEYS);
        to->before = atomic_load(&finished[to->key]);
        snprintf(to->line, sizeof to->line, "%s%u HTTP/1.1\r\n", PATHS[to->kind], to->key);
        const char *rest = to->kind == GET_SPECIAL ? "Range: bytes=0-1\r\n\r\n"
                           : to->kind == PUT_BODY  ? "Content-Length: 6\r\n\r\nabcdef"
                                                   : "\r\n";
        length += (size_t)snprintf(c->text + length, sizeof c->text - length,
                                   "%sHost: a\r\n%s", to->line, rest);
        CHECK(length < sizeof c->text);
    }
    return length;
}

/* Receive more; returns false at the end of the connection. */
static bool receive_more(client *c, int fd) {
    struct pollfd wait = {fd, POLLIN, 0};
    CHECK(c->got_length < ANSWER_BYTES_MAX);
    /* Whoever waits so long waits for ever. */
    CHECK(poll(&wait, 1, PATIENCE_MS) == 1);
    ssize_t got = recv(fd, c->got + c->got_length, ANSWER_BYTES_MAX - c->got_length, 0);
    if (got <= 0) return false;
    c->got_length += (size_t)got;
    return true;
}

static void check_value(const request *sent, const char *body, size_t length) {
    static _Thread_local uint8_t expected[VALUE_BYTES_MAX + 8];
    uint32_t key, version;
    CHECK(length >= 8);
    memcpy(&key, body, 4);
    memcpy(&version, body + 4, 4);
    CHECK(key == sent->key && version >= VERSION_OF(sent->before));
    CHECK(version <= atomic_load(&begun[key]) && !is_deletion(key, version));
    CHECK(length == value_length(key, version));
    make_value(expected, key, version);
    CHECK(!memcmp(body, expected, length));
}

/* Receive and check one answer. Returns false if the connection ended before it. */
static bool check_answer(client *c, int fd, const request *sent) {
    const char *stop;
    while (!(stop = memmem(c->got, c->got_length, "\r\n\r\n", 4)))
        if (!receive_more(c, fd)) return false;
    const char *start = c->got, *end = stop + 2;
    const char *length_at = memmem(start, (size_t)(end - start), "Content-Length: ", 16);
    CHECK(!memcmp(start, "HTTP/1.1 ", 9) && length_at);
    size_t head = (size_t)(stop + 4 - start), length = strtoul(length_at + 16, NULL, 10);
    size_t body = sent->kind == HEAD_VALUE ? 0 : length;
    while (c->got_length < head + body)
        if (!receive_more(c, fd)) return false;
    const char *at = c->got + head;
    if (!memcmp(c->got + 17, "X-Request: ", 11)) {
        CHECK(!memcmp(c->got + 28, sent->line, strlen(sent->line)));
        CHECK(sent->kind != GET_NOTHING);
        CHECK(sent->kind == PUT_BODY ? length == 6 && !memcmp(at, "abcdef", 6) : !length);
        CHECK(sent->kind != GET_VALUE || !must_be_found(sent->key, sent->before));
        c->counts[BY_BJOERN]++;
    } else if (!memcmp(c->got + 9, "200 ", 4)) {
        CHECK(sent->kind == GET_VALUE || sent->kind == HEAD_VALUE);
        if (sent->kind == GET_VALUE) check_value(sent, at, length);
        c->counts[VALUES]++;
    } else {
        CHECK(!memcmp(c->got + 9, "404 ", 4));
        bool is_read = sent->kind == GET_VALUE || sent->kind == HEAD_VALUE;
        CHECK(sent->kind == GET_NOTHING ||
              (is_read && !must_be_found(sent->key, sent->before)));
        c->counts[MISSES]++;
    }
    c->got_length -= head + body;
    memmove(c->got, c->got + head + body, c->got_length);
    return true;
}

/* Send some requests and receive the answers. Returns false if the connection is to be
 * closed. */
static bool use_connection(client *c, int fd) {
    request requests[REQUESTS];
    unsigned count = 1 + (unsigned)(next_random(&c->random) % REQUESTS), answered = 0;
    size_t length = make_requests(c, requests, count), sent = 0;
    uint64_t dice = next_random(&c->random);
    bool breaks = dice & 1;
    size_t breaks_at = breaks ? (dice >> 8) % (length + 1) : length;
    while (sent < breaks_at) {
        size_t piece = breaks_at - sent;
        if (next_random(&c->random) % 2) piece = 1 + next_random(&c->random) % piece;
        ssize_t some = send(fd, c->text + sent, piece, MSG_NOSIGNAL);
        if (some < 0) {
            c->counts[ENDED]++;
            return false;
        }
        sent += (size_t)some;
    }
    c->counts[ALL] += count;
    c->got_length = 0;
    /* Half of those that break off have got some answers before. */
    unsigned expected = breaks ? (unsigned)(dice >> 40) % (count + 1) : count;
    if (breaks && dice & 2) expected = 0;
    if (breaks && sent < length) expected = 0;
    while (answered < expected) {
        if (!check_answer(c, fd, &requests[answered])) {
            /* It was idle for a moment, and there were too many. */
            CHECK(!c->got_length);
            c->counts[ENDED]++;
            return false;
        }
        answered++;
    }
    if (breaks) c->counts[BROKEN]++;
    else CHECK(!c->got_length);
    return !breaks;
}

static void *run_client(void *argument) {
    client *c = argument;
    c->got = malloc(ANSWER_BYTES_MAX);
    CHECK(c->got);
    while (seconds_now() < c->end) {
        int *fd = &c->parked[next_random(&c->random) % PARKED];
        if (*fd < 0) *fd = connect_client(c);
        if (use_connection(c, *fd) && next_random(&c->random) % 8) continue;
        close(*fd);
        *fd = -1;
    }
    for (int i = 0; i < PARKED; i++)
        if (c->parked[i] >= 0) close(c->parked[i]);
    free(c->got);
    atomic_fetch_sub(&clients_left, 1);
    return NULL;
}

/* --- All of it ---------------------------------------------------------------------- */

static void open_pipes(void) {
    wakeup = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    CHECK(wakeup >= 0 && pipe2(arrivals, O_CLOEXEC) == 0);
    CHECK(fcntl(arrivals[0], F_SETFL, O_NONBLOCK) == 0);
}

static void start_gate(void) {
    static const uint8_t hash_key[16] = "gate_threads";
    w.calls = system_calls();
    w.pending_max = SIZE_MAX;
    core = vc_core_new(&w.calls, hash_key, 1 << 24, VOLUMES, 0);
    vc_putting how = {.due_bytes = UINT64_MAX};
    vc_core_set_putting(core, &how);
    CHECK(core);
    start_volume();
    readers = vc_readers_new(core, &vc_functions, READERS);
    CHECK(readers);
    vc_gate_config config = {
        .link = &test_link,
        .io = &vc_gate_sockets,
        .core = core,
        .functions = &vc_functions,
        .clock = &store_clock,
        .answers = true,
        .logs_all = true,
        .key_size = 100,
        .value_size = 1000,
        .body_memory = 64000,
        .readers = readers,
        .connections = CONNECTIONS,
        .head_ns = INT64_C(600000000000),
        .idle_ns = 100000000,
        .transfer_ns = INT64_C(600000000000),
        .slow_ns = INT64_MAX,
        .long_ns = INT64_MAX,
        .sample_mask = 0xFF,
        .allow = "GET",
        .on_events = on_events,
    };
    gate = vc_gate_new(&config);
    CHECK(gate);
    install(vc_gate_hooks(gate));
    vc_gate_set_ready(gate, true);
}

static void end_gate(void) {
    vc_gate_stats stats;
    vc_gate_get_stats(gate, &stats);
    CHECK(!stats.open && !stats.waiting && stats.most <= CONNECTIONS);
    cold = stats.cold;
    printf("%" PRIu64 " connections; %" PRIu64 " closed for room, %" PRIu64 " idle; %" PRIu64
           " turned away\n",
           stats.accepted, stats.closed_for_room, stats.closed_idle, stats.turned_away);
    vc_gate_free(gate);
    vc_readers_free(readers);
    vc_core_close(core);
    vc_core_free(core);
    vc_writer_free(&w.writer);
    for (int i = 0; i < VOLUMES; i++) close(descriptors[i]);
    for (int i = 0; i < PORTS; i++) free(ports[i]);
    close(wakeup);
    close(arrivals[0]);
    close(arrivals[1]);
}

int main(int count, char **arguments) {
    static client clients[CLIENTS];
    double seconds = count > 1 ? atof(arguments[1]) : 5;
    uint64_t random = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    uint64_t total[COUNTS] = {0};
    pthread_t loop;
    loop_random = next_random(&random);
    open_files();
    open_pipes();
    start_gate();
    clients_left = CLIENTS;
    CHECK(!pthread_create(&loop, NULL, run_loop, NULL));
    for (int i = 0; i < CLIENTS; i++) {
        clients[i].random = next_random(&random);
        clients[i].end = seconds_now() + seconds;
        for (int j = 0; j < PARKED; j++) clients[i].parked[j] = -1;
        CHECK(!pthread_create(&clients[i].thread, NULL, run_client, &clients[i]));
    }
    for (int i = 0; i < CLIENTS; i++) {
        CHECK(!pthread_join(clients[i].thread, NULL));
        for (int j = 0; j < COUNTS; j++) total[j] += clients[i].counts[j];
    }
    CHECK(!pthread_join(loop, NULL));
    end_gate();
    CHECK(total[VALUES] && total[MISSES] && total[BY_BJOERN] && cold);
    printf("%" PRIu64 " requests: %" PRIu64 " values, %" PRIu64 " misses, %" PRIu64
           " by bjoern; %" PRIu64 " broken off, %" PRIu64 " ended by the gate\n",
           total[ALL], total[VALUES], total[MISSES], total[BY_BJOERN], total[BROKEN],
           total[ENDED]);
    printf("%" PRIu64 " cold reads, %" PRIu64 " passed on; %" PRIu64 " puts, %" PRIu64
           " deletions, %lu rotations\n",
           cold, passed_on, stored, deletions, rotations);
    return 0;
}
