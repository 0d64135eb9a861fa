/* Connections between random clients and a protocol of lines made here, with a clock made here.
 *
 *     connections_fuzz -r SECONDS SEED    random streams
 *     connections_fuzz FILE...            each file is one stream
 *
 * The bytes of a stream say what clients send, read and close, and when time passes. A request is a
 * line: its first letter says what the protocol asks for. Whatever happens:
 *   - a state follows one that it may follow (asserted in connection.c);
 *   - without a complete request, a connection ends within the times for a head and for idleness;
 *   - the speed of a body is measured since the request before was complete;
 *   - in a ring, no request waits for the application, which never answers, longer than a second;
 *   - after a request nothing is reserved, and what is held is what the connections hold;
 *   - replies come in the order of the requests, and each once.
 * Any failed check aborts. */
#define _GNU_SOURCE
#include "connection.h"
#include "forward.h"
#include "fuzz.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum {
    PEERS = 4,
    STREAM_MAX = 2048,
    REPLY_MAX = 200000,
    BACKLOG = 4, /* of the application: then it cannot be connected to */
    MEMORY = 60000,
    SMALL_BODY = 1000, /* for which nothing is reserved */
};
#define SECONDS(n) (INT64_C(1000000000) * (n))
static const int64_t HEAD_NS = SECONDS(10), IDLE_NS = SECONDS(30), TRANSFER_NS = SECONDS(20);

/* What the bytes of a stream decide. */
static const uint8_t *input;
static size_t input_left;
static vc_server *server;
static vc_home *home;
static vc_readers *readers;
static struct sockaddr_un application = {.sun_family = AF_UNIX};
static int application_fd = -1;

typedef struct {
    int fd;                    /* the client's end; -1: none */
    vc_connection *connection; /* NULL: it has ended */
    int64_t since_ns;          /* when it was accepted, or the last request was complete */
    size_t expected, got;      /* bytes of replies */
} peer;

static peer peers[PEERS];

static unsigned take(unsigned limit) {
    if (!input_left) return 0;
    input_left--;
    return *input++ % limit;
}

/* --- The protocol ------------------------------------------------------------------------ */

typedef struct {
    vc_stream base;
    peer *peer;
    bool has_memory;
} line_stream;

static char reply_byte(size_t at) { return (char)('a' + at % 26); }

/* Write a reply, whose bytes continue those before. */
static vc_step reply(line_stream *s, size_t length, vc_out *out) {
    char *to = out->at + out->used;
    if (!vc_out_has_room(out, length)) return VC_STEP_FLUSH;
    for (size_t i = 0; i < length; i++) to[i] = reply_byte(s->peer->expected + i);
    vc_out_add(out, to, length);
    s->peer->expected += length;
    s->peer->since_ns = home->loop.now_ns;
    s->has_memory = false;
    return VC_STEP_NEXT;
}

static peer *peer_of(const vc_stream *stream) {
    for (int i = 0; i < PEERS; i++)
        if (peers[i].connection && peers[i].connection->stream == stream) return &peers[i];
    abort();
}

/* A line with F is for the application. One with B has a body, whose length its second letter says. */
static vc_step execute(void *executor, vc_stream *stream, char *data, size_t length, size_t *used,
                       vc_out *out) {
    line_stream *s = (line_stream *)stream;
    size_t empty = 0;
    (void)executor;
    s->peer = peer_of(stream);
    while (empty < length && (data[empty] == '\r' || data[empty] == '\n')) empty++;
    *used = empty;
    data += empty;
    length -= empty;
    stream->needed = length + 1;
    stream->at = length ? VC_AT_HEAD : VC_AT_IDLE;
    const char *end = length ? memchr(data, '\n', length) : NULL;
    if (!end) return VC_STEP_MORE;
    size_t head = (size_t)(end + 1 - data);
    if (*data == 'F') {
        static const char HEAD[] = "F\r\n\r\n";
        stream->forward = (vc_forward){
            .head = HEAD, .head_length = sizeof(HEAD) - 1, .keeps_alive = true};
        *used = empty + head;
        return VC_STEP_FORWARD;
    }
    size_t body = *data == 'B' ? 1000 * (size_t)(uint8_t)data[1] : 0;
    if (body > SMALL_BODY && !s->has_memory && stream->waited != VC_WAITED_MEMORY) {
        *used = 0;
        stream->reserve = body;
        return VC_STEP_MEMORY;
    }
    s->has_memory = true;
    s->peer->since_ns = home->loop.now_ns; /* The head is complete. */
    stream->at = VC_AT_BODY;
    stream->needed = head + body;
    if (length < head + body) return VC_STEP_MORE;
    vc_step step = reply(s, *data == 'L' ? 60000 : 5, out);
    if (step == VC_STEP_NEXT) *used = empty + head + body;
    else *used = 0;
    stream->closes = *data == 'C';
    return step;
}

static void answered(void *executor, vc_stream *stream, const char *head, uint64_t bytes) {
    (void)executor, (void)stream;
    CHECK(!strncmp(head, "HTTP/1.1 ", 9) && bytes < 1 << 20);
}

static void refuse(void *executor, vc_stream *stream, vc_refusal why, vc_out *out) {
    (void)executor, (void)stream, (void)why;
    vc_out_add(out, out->at, 0);
}

static void end(void *executor, vc_stream *stream) {
    (void)executor;
    peer_of(stream)->connection = NULL;
}

static const vc_protocol LINES = {
    .stream_size = sizeof(line_stream),
    .first_bytes = 300,
    .execute = execute,
    .answered = answered,
    .refuse = refuse,
    .end = end,
};

/* --- The loop ------------------------------------------------------------------------------ */

static void run_round(void) {
    for (int i = 0; i < PEERS; i++) {
        vc_connection *c = peers[i].connection;
        if (!c || c->state == VC_CLOSED) continue;
        c->watch.is_readable = true;
        c->watch.has_ended = peers[i].fd < 0;
        c->watch.ready(&c->watch, 0);
    }
    vc_connections_admit(home);
    vc_connections_serve(home);
    vc_connections_tick(home);
}

static void check(void) {
    uint64_t held = 0, reserved = 0;
    for (int i = 0; i < PEERS; i++) {
        const vc_connection *c = peers[i].connection;
        if (!c || c->state == VC_CLOSED) continue;
        held += c->held;
        reserved += c->reserved;
        if (c->state == VC_WAITING_FOR_APPLICATION && server->is_in_ring)
            CHECK(home->loop.now_ns - c->since_ns < SECONDS(1));
        if (c->state == VC_IDLE || c->state == VC_LINGERING) CHECK(!c->reserved);
        if (c->state == VC_COLLECTING) CHECK(c->began_ns >= peers[i].since_ns);
        bool is_waiting = c->state == VC_IDLE || c->state == VC_RECEIVING;
        if (is_waiting && !c->is_queued)
            CHECK(home->loop.now_ns - peers[i].since_ns <= HEAD_NS + IDLE_NS);
    }
    CHECK(held == server->held && reserved == server->reserved);
    CHECK(server->reserved <= MEMORY || server->reserved <= 255 * 1000);
}

static void settle(void) {
    run_round();
    check();
    vc_connections_free_closed(home);
}

/* A loop has a round in each second, whatever happens. */
static void let_pass(unsigned seconds) {
    for (unsigned i = 0; i < seconds; i++) {
        home->loop.now_ns += SECONDS(1);
        settle();
    }
}

/* --- The clients ----------------------------------------------------------------------------- */

static void open_peer(peer *p) {
    int pair[2], bytes = 1;
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
    setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
    CHECK(vc_connection_open(home, 0, pair[1], "test", 0));
    server->open[0]++;
    *p = (peer){.fd = pair[0], .since_ns = home->loop.now_ns};
    p->connection = TAILQ_LAST(&home->by_state[0][VC_IDLE], vc_connections);
}

static void send_some(peer *p) {
    static const char *const WORDS[] = {"a\n",   "\r",      "\n",   "L\n",     "C\n", "B\x01\n",
                                        "B\xff", "B\x7f\n", "word", "B\x04\n", "F\n"};
    static char body[70000];
    unsigned kind = take(COUNT(WORDS) + 3);
    if (kind == COUNT(WORDS)) (void)!send(p->fd, body, SMALL_BODY / 2, MSG_NOSIGNAL);
    else if (kind < COUNT(WORDS))
        (void)!send(p->fd, WORDS[kind], strlen(WORDS[kind]), MSG_NOSIGNAL);
    else (void)!send(p->fd, body, 1 + 300 * (size_t)take(230), MSG_NOSIGNAL);
}

static void read_some(peer *p) {
    static char got[REPLY_MAX];
    ssize_t length = recv(p->fd, got, 1 + 700 * (size_t)take(256), 0);
    for (ssize_t i = 0; i < length; i++) CHECK(got[i] == reply_byte(p->got + (size_t)i));
    if (length > 0) p->got += (size_t)length;
    CHECK(p->got <= p->expected);
}

static void act(void) {
    peer *p = &peers[take(PEERS)];
    unsigned choice = take(16);
    if (choice < 6 && p->fd >= 0) send_some(p);
    else if (choice < 9 && p->fd >= 0) read_some(p);
    else if (choice == 9 && !p->connection) {
        if (p->fd >= 0) close(p->fd);
        open_peer(p);
    } else if (choice == 10 && p->fd >= 0 && !take(4)) {
        close(p->fd);
        p->fd = -1;
    } else if (choice == 11) let_pass(take(6));
    else settle();
}

static void open_application(void) {
    char folder[] = "/tmp/connections_fuzz.XXXXXX";
    CHECK(mkdtemp(folder));
    snprintf(application.sun_path, sizeof application.sun_path, "%s/socket", folder);
    application_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(!bind(application_fd, (struct sockaddr *)&application, sizeof application));
    CHECK(!listen(application_fd, BACKLOG));
    readers = vc_readers_new(NULL, NULL, 1);
    CHECK(readers);
}

static void close_application(void) {
    vc_readers_free(readers);
    close(application_fd);
    CHECK(!unlink(application.sun_path));
    *strrchr(application.sun_path, '/') = 0;
    CHECK(!rmdir(application.sun_path));
}

static void open_home(void) {
    vc_server_config config = {
        .loops = 1,
        .readers = readers,
        .protocols[0] = {.calls = &LINES,
                         .head_ns = HEAD_NS,
                         .idle_ns = IDLE_NS,
                         .connections = 100},
        .memory = MEMORY,
        .transfer_ns = TRANSFER_NS,
        .application = application.sun_path,
    };
    server = vc_server_new(&config);
    CHECK(server);
    vc_server_set_ring(server, take(2));
    home = server->homes;
    home->loop.now_ns = SECONDS(1000);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    if (application_fd < 0) {
        open_application();
        atexit(close_application);
    }
    input = data;
    input_left = length < STREAM_MAX ? length : STREAM_MAX;
    open_home();
    for (int i = 0; i < PEERS; i++) open_peer(&peers[i]);
    while (input_left) act();
    /* Half of a line, or empty lines, a byte in each second. */
    for (int i = 0; i < 60; i++) {
        for (int j = 0; j < PEERS; j++) {
            const char *drip = j % 2 ? "w" : i % 2 ? "\n" : "\r";
            if (peers[j].fd >= 0) (void)!send(peers[j].fd, drip, 1, MSG_NOSIGNAL);
        }
        let_pass(1);
    }
    /* Whatever they have sent: all end in time. */
    server->is_in_ring = true;
    let_pass(400);
    for (int i = 0; i < PEERS; i++) {
        CHECK(!peers[i].connection);
        if (peers[i].fd >= 0) close(peers[i].fd);
    }
    CHECK(!server->held && !server->reserved && !server->open[0]);
    for (int fd; (fd = accept(application_fd, NULL, NULL)) >= 0;) close(fd);
    vc_server_free(server);
    return 0;
}

#ifndef VC_FUZZER
static void run_random(double seconds, uint64_t seed) {
    uint8_t data[STREAM_MAX];
    uint64_t streams = 0;
    for (double last = seconds_now() + seconds; seconds_now() < last; streams++) {
        size_t length = next_random(&seed) % sizeof(data);
        for (size_t i = 0; i < length; i++) data[i] = (uint8_t)next_random(&seed);
        LLVMFuzzerTestOneInput(data, length);
    }
    printf("connections_fuzz: %llu streams\n", (unsigned long long)streams);
}
#endif
