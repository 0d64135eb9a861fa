/* The loops with the executor of HTTP and the reader threads, between clients on real sockets and an
 * application made here.
 *
 *     server_threads SECONDS SEED
 *
 * One thread appends records, and uses the volumes in a circle, so that it reclaims the oldest one
 * while its records may be read. Another answers what is forwarded, as bjoern does. Some threads are
 * clients: they send several requests at a time on several connections, and half of these are
 * closed in the middle. Many reads find nothing in memory and are left to the reader threads.
 *
 * Each value says which version of which key it is. What a client gets is the latest version or
 * a newer one; a miss, or an answer of the application, only if the key was deleted or its volume
 * reclaimed. Answers come in the order of the requests. Any failed check aborts. */
#define _GNU_SOURCE
#include "http.h"
#include "server.h"
#include "versions.h"

#include <inttypes.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

enum {
    CLIENTS = 6,      /* threads */
    PARKED = 3,       /* connections that each of them keeps at a time */
    CONNECTIONS = 16, /* that are accepted: not all of them */
    LOOPS = 2,
    UPSTREAMS = 2 * (512 + 16), /* connections to the application, at most: see forward.c */
    READERS = 4,
    VALUE_BYTES_MAX = 20000,
    ANSWER_BYTES_MAX = VALUE_BYTES_MAX + 3000,
    REQUESTS = 6, /* sent at a time, at most */
    PATIENCE_MS = 200000,
};

#define REPORTERS LOOPS
#include "reports.h"

static vc_clock store_clock;
static vc_http *https[LOOPS];
static vc_server *server;
static vc_readers *readers;
static int listening, application;
static atomic_bool is_ready = true, is_draining;
static atomic_int clients_left;
static atomic_ulong passed_on;
static uint64_t writer_random, stored, deletions;

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
    calls.pwritev = hidden_pwritev;
    return calls;
}

/* --- Appending ---------------------------------------------------------------------- */

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

static void *run_writer(void *argument) {
    (void)argument;
    while (atomic_load(&clients_left)) {
        uint64_t dice = next_random(&writer_random);
        for (uint64_t left = dice % 4; left; left--)
            write_version((uint32_t)(next_random(&writer_random) % (dice >> 9 & 1 ? 20 : KEYS)));
        usleep(200);
    }
    return NULL;
}

/* --- The application -------------------------------------------------------------------- */

typedef struct {
    int fd;
    char message[1000];
    size_t length;
} upstream;

/* Answer the message, if it is whole: with its first line and its body. */
static void answer_message(upstream *at) {
    static const char REMOTE[] = "X-Volcache-Remote: 127.0.0.1\r\n";
    char answer[1500];
    const char *stop = memmem(at->message, at->length, "\r\n\r\n", 4);
    if (!stop) return;
    const char *end = memchr(at->message, '\r', at->length);
    CHECK(!memcmp(end + 2, REMOTE, sizeof REMOTE - 1));
    size_t head = (size_t)(stop - at->message);
    const char *length = memmem(at->message, head, "Content-Length: ", 16);
    size_t body = length ? strtoul(length + 16, NULL, 10) : 0;
    size_t whole = head + 4 + body, line = (size_t)(end - at->message);
    CHECK(at->length <= whole);
    if (at->length < whole) return;
    bool is_head = !memcmp(at->message, "HEAD ", 5);
    int written = snprintf(answer, sizeof answer,
                           "HTTP/1.1 200 OK\r\nX-Request: %.*s\r\nContent-Length: %zu\r\n"
                           "Connection: Keep-Alive\r\n\r\n%.*s",
                           (int)line, at->message, body, is_head ? 0 : (int)body, stop + 4);
    CHECK(send(at->fd, answer, (size_t)written, MSG_NOSIGNAL) == written);
    at->length = 0;
    atomic_fetch_add(&passed_on, 1);
}

/* Returns false at the end of the connection. */
static bool read_upstream(upstream *at) {
    ssize_t got = recv(at->fd, at->message + at->length, sizeof at->message - at->length, 0);
    if (got <= 0) return false;
    at->length += (size_t)got;
    answer_message(at);
    return true;
}

static void *run_application(void *argument) {
    static upstream upstreams[UPSTREAMS + 1];
    static struct pollfd waits[UPSTREAMS + 1];
    nfds_t count = 1;
    (void)argument;
    waits[0] = (struct pollfd){application, POLLIN, 0};
    for (;;) {
        CHECK(poll(waits, count, -1) > 0);
        for (nfds_t i = count - 1; i > 0; i--) {
            if (!waits[i].revents || read_upstream(&upstreams[i])) continue;
            close(waits[i].fd);
            upstreams[i] = upstreams[--count];
            waits[i] = waits[count];
        }
        if (!waits[0].revents) continue;
        int fd = accept4(application, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) return NULL; /* It was shut down. */
        CHECK(count <= UPSTREAMS);
        upstreams[count] = (upstream){.fd = fd};
        waits[count++] = (struct pollfd){fd, POLLIN, 0};
    }
}

/* --- The clients -------------------------------------------------------------------- */

typedef enum { GET_VALUE, GET_NOTHING, GET_SPECIAL, HEAD_VALUE, PUT_BODY } kind;

typedef struct {
    kind kind;
    uint32_t key;
    uint64_t before; /* what was finished when it was sent */
    char line[40];   /* as the application sees it */
} request;

/* What is counted of requests and of connections. */
enum { ALL, VALUES, MISSES, FORWARDED, BROKEN, ENDED, COUNTS };

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
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), bytes = 1;
    if (next_random(&c->random) % 2) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    CHECK(!getsockname(listening, (struct sockaddr *)&address, &length));
    CHECK(!connect(fd, (struct sockaddr *)&address, length));
    return fd;
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
        const char *rest = to->kind == GET_SPECIAL ? "Range: bytes=0-0,2-2\r\n\r\n"
                           : to->kind == PUT_BODY  ? "Content-Length: 6\r\n\r\nabcdef"
                                                   : "\r\n";
        length += (size_t)snprintf(c->text + length, sizeof c->text - length, "%sHost: a\r\n%s",
                                   to->line, rest);
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
        c->counts[FORWARDED]++;
    } else if (!memcmp(c->got + 9, "200 ", 4)) {
        CHECK(sent->kind == GET_VALUE || sent->kind == HEAD_VALUE);
        if (sent->kind == GET_VALUE) check_value(sent, at, length);
        c->counts[VALUES]++;
    } else if (!memcmp(c->got + 9, "503 ", 4)) {
        c->got_length = 0;
        return false; /* There are too many connections. */
    } else {
        CHECK(!memcmp(c->got + 9, "404 ", 4));
        bool is_read = sent->kind != PUT_BODY;
        CHECK(sent->kind == GET_NOTHING || (is_read && !must_be_found(sent->key, sent->before)));
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

static vc_log *access_log;

static int64_t now_us(void *context) { return vc_clock_now(context); }
static const vc_clocks clocks = {now_us, now_us, &store_clock};

static void on_change(void *context, unsigned loop) {
    (void)context;
    vc_http_settings settings = {.answers = true};
    /* What changes a key is forwarded. */
    settings.may_write = (vc_tokens){.right[0] = {"token", 5}, .count = 1};
    vc_http_change(https[loop], &settings, INT64_MAX);
}

static void make_executors(vc_served *served) {
    start_reports();
    access_log = vc_log_new(false, 1 << 20);
    CHECK(access_log);
    for (unsigned i = 0; i < LOOPS; i++) {
        vc_executor by = {
            .core = core,
            .functions = &vc_functions,
            .clocks = &clocks,
            .reporter = &reporters[i],
            .log = access_log,
            .key_size = 100,
            .value_size = 1000,
            .long_ns = INT64_MAX,
            .sample_mask = 0xFF,
        };
        vc_http_config config = {
            .is_ready = &is_ready, .is_draining = &is_draining, .allow = "GET"};
        served->executors[i] = https[i] = vc_http_new(&by, &config);
        CHECK(https[i]);
        on_change(NULL, i);
    }
}

/* Listen, for clients and as the application; the socket of that has no name in a folder. */
static void open_sockets(struct sockaddr_un *path) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    char folder[] = "/tmp/application.XXXXXX";
    int bytes = 1;
    *path = (struct sockaddr_un){.sun_family = AF_UNIX};
    CHECK(mkdtemp(folder));
    snprintf(path->sun_path, sizeof path->sun_path, "%s/socket", folder);
    listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(!setsockopt(listening, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes));
    CHECK(!bind(listening, (struct sockaddr *)&address, sizeof address) && !listen(listening, 100));
    application = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(!bind(application, (struct sockaddr *)path, sizeof *path) && !listen(application, 100));
}

static void remove_socket(struct sockaddr_un *path) {
    CHECK(!unlink(path->sun_path));
    *strrchr(path->sun_path, '/') = 0;
    CHECK(!rmdir(path->sun_path));
}

static void start_server(const char *path) {
    static const uint8_t hash_key[16] = "server_threads";
    w.calls = system_calls();
    w.pending_max = SIZE_MAX;
    core = vc_core_new(&w.calls, hash_key, 1 << 24, VOLUMES, 0);
    vc_putting how = {.deferred_bytes = UINT64_MAX};
    CHECK(core);
    vc_core_set_putting(core, &how);
    start_volume();
    readers = vc_readers_new(core, &vc_functions, READERS);
    CHECK(readers);
    vc_server_config config = {
        .loops = LOOPS,
        .protocols[0] = {.calls = &vc_http_protocol,
                         .head_ns = INT64_C(600000000000),
                         .idle_ns = 100000000,
                         .connections = CONNECTIONS},
        .listeners[0] = {.fd = listening},
        .listener_count = 1,
        .memory = 1 << 20,
        .transfer_ns = INT64_C(600000000000),
        .core = core,
        .functions = &vc_functions,
        .readers = readers,
        .application = path,
        .on_change = on_change,
    };
    make_executors(&config.protocols[0]);
    server = vc_server_new(&config);
    CHECK(server && vc_server_start(server));
}

static uint64_t end_server(void) {
    vc_server_figures figures;
    is_draining = true;
    vc_server_drain(server, INT64_C(10000000000));
    end_reports();
    vc_server_get_figures(server, &figures);
    const vc_protocol_figures *http = &figures.protocols[0];
    CHECK(!http->open && !figures.held && !figures.reserved && !figures.waiting_for_disk);
    printf("%" PRIu64 " connections; %" PRIu64 " closed for room, %" PRIu64 " idle; %" PRIu64
           " turned away\n",
           http->accepted, http->closed_room, http->closed_idle, http->turned_away);
    vc_server_free(server);
    for (unsigned i = 0; i < LOOPS; i++) vc_http_free(https[i]);
    vc_readers_free(readers);
    vc_core_close(core);
    vc_core_free(core);
    vc_writer_free(&w.writer);
    for (int i = 0; i < VOLUMES; i++) close(descriptors[i]);
    close(listening);
    return figures.cold;
}

int main(int count, char **arguments) {
    static client clients[CLIENTS];
    double seconds = count > 1 ? atof(arguments[1]) : 5;
    uint64_t random = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    uint64_t total[COUNTS] = {0};
    struct sockaddr_un path;
    pthread_t writer, bjoern;
    writer_random = next_random(&random);
    open_files();
    open_sockets(&path);
    start_server(path.sun_path);
    clients_left = CLIENTS;
    CHECK(!pthread_create(&writer, NULL, run_writer, NULL));
    CHECK(!pthread_create(&bjoern, NULL, run_application, NULL));
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
    CHECK(!pthread_join(writer, NULL));
    uint64_t cold = end_server();
    CHECK(!shutdown(application, SHUT_RDWR) && !pthread_join(bjoern, NULL));
    close(application);
    remove_socket(&path);
    CHECK(total[VALUES] && total[MISSES] && total[FORWARDED] && cold);
    printf("%" PRIu64 " requests: %" PRIu64 " values, %" PRIu64 " misses, %" PRIu64
           " by the application; %" PRIu64 " broken off, %" PRIu64 " ended by the server\n",
           total[ALL], total[VALUES], total[MISSES], total[FORWARDED], total[BROKEN], total[ENDED]);
    printf("%" PRIu64 " cold reads, %lu forwarded; %" PRIu64 " puts, %" PRIu64
           " deletions, %lu rotations\n",
           cold, (unsigned long)passed_on, stored, deletions, rotations);
    return 0;
}
