/* The loops of the memcached protocol with their reader threads, between clients on real sockets
 * and the thread for calls.
 *
 *     mc_threads SECONDS SEED
 *
 * Some threads are clients: they send several commands at a time, cut into pieces, and half of
 * their connections are broken off. Each has keys of its own, so that it knows what it must get:
 * the value that it has set last, or a miss, as the volume is started anew when it is full. Many
 * records are not in memory. With an odd seed, values are synced before they are answered, and
 * some syncs fail. What may take long is executed by another thread, and what that asks Python is
 * answered by beginning a volume. All may hold so little that connections are closed.
 * Each command is an event; at the end all are counted. Any failed check aborts. */
#define _GNU_SOURCE
#include "memcache.h"
#include "server.h"
#include "hidden_calls.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum {
    CLIENTS = 4, /* threads */
    LOOPS = 3,
    READERS = 2,
    KEYS = 8,      /* of each client */
    COMMANDS = 12, /* sent at a time, at most */
    VALUE_BYTES_MAX = 3000,
    VOLUME_BYTES = 4 << 20,
    HELD_BYTES = 16000, /* and half as many again */
    COMMAND_BYTES_MAX = VALUE_BYTES_MAX + 100,
    REPLY_BYTES_MAX = KEYS * COMMAND_BYTES_MAX,
};

#define REPORTERS (LOOPS + 1)
#include "reports.h"

/* What is counted of commands and of connections. */
enum { ALL, HITS, MISSES, BROKEN, ENDED, COUNTS };

typedef struct {
    pthread_t thread;
    unsigned number;
    uint64_t random;
    double end;
    unsigned versions[KEYS]; /* that were sent, of each key; 0: none */
    char *replies;
    size_t length; /* of replies that have arrived */
    uint64_t counts[COUNTS];
} client;

static vc_core *core;
static vc_writer writer;
static vc_clock store_clock;
static vc_calls calls;
static vc_server *server;
static vc_mc *executors[LOOPS], *caller;
static vc_mc_access all_rights = {.rights = {true, true, false}};
static int64_t slow_ns = -1;
static int volume, port;
static uint64_t asked_puts, reports, turns;
static const char REPORT[] = "STAT a 1\r\nSTAT b 2\r\n";

/* --- The store ---------------------------------------------------------------------- */

static int test_sync(void *context, int fd) {
    static _Atomic unsigned syncs;
    (void)context, (void)fd;
    errno = EIO;
    return syncs++ % 50 == 49 ? -1 : 0;
}

static int64_t next_us(void *context) { return vc_clock_next(context); }
static int64_t now_us(void *context) { return vc_clock_now(context); }
static const vc_clocks clocks = {now_us, now_us, &store_clock};

/* Begin with an empty volume. */
static void start_volume(void) {
    vc_core_acquire(core);
    vc_core_take_deferred(core);
    if (turns) vc_core_reclaim(core, writer.slot);
    vc_segment whole = {0, ++turns};
    uint32_t slot = vc_core_add_volume(core, turns);
    CHECK(slot != VC_NO_SLOT && vc_core_bind(core, slot, volume, 9, &whole, 1));
    vc_writer_free(&writer);
    writer = (vc_writer){
        .calls = &calls,
        .fd = volume,
        .volume = 9,
        .slot = slot,
        .pending_max = SIZE_MAX,
        .salt = whole.salt,
        .end = VC_VOLUME_HEADER_BYTES,
        .capacity = VOLUME_BYTES,
    };
    vc_core_set_writer(core, &writer);
    vc_core_release(core);
}

static void open_store(bool syncs) {
    static const uint8_t hash_key[16] = "mc_threads";
    vc_putting how = {.next_us = next_us, .context = &store_clock, .deferred_bytes = UINT64_MAX};
    how.syncs = syncs;
    calls = vc_os_calls;
    calls.fdatasync = test_sync;
    calls.pread = slow_pread;
    calls.pwritev = hidden_pwritev;
    volume = memfd_create("volume", MFD_CLOEXEC);
    CHECK(volume >= 0 && !ftruncate(volume, VOLUME_BYTES));
    core = vc_core_new(&calls, hash_key, 1 << 24, 2, 0);
    CHECK(core);
    vc_core_set_putting(core, &how);
    start_volume();
}

/* --- In place of Python ---------------------------------------------------------------------- */

static void on_change(void *context, unsigned loop) {
    (void)context;
    if (loop == VC_LOOPS_MAX) return;
    vc_mc_change(executors[loop], &all_rights, slow_ns);
}

/* Answer statistics; and a put for which there is no room, or that the disk has refused. */
static vc_mc_result answer(void *context, vc_mc_asked *asked) {
    (void)context;
    if (asked->question == VC_MC_ASK_STATS) {
        asked->text = (vc_text){REPORT, sizeof REPORT - 1};
        reports++;
        return VC_MC_OK;
    }
    if (asked->question == VC_MC_ASK_GET) return VC_MC_MISS; /* The volume has begun meanwhile. */
    CHECK(asked->question == VC_MC_ASK_PUT);
    start_volume(); /* Now the value is a miss, and no older one is found. */
    asked_puts++;
    return VC_MC_STORED;
}

static void *serve_calls(void *context) {
    while (vc_server_serve_call(server, 1000000)) continue;
    return context;
}

/* --- Clients ----------------------------------------------------------------------------------- */

static size_t value_length(unsigned key, unsigned version) {
    return (key * 7919 + version * 104729) % VALUE_BYTES_MAX;
}

static char value_byte(unsigned key, unsigned version) {
    return (char)('a' + (key + version) % 26);
}

static int connect_client(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0 && !connect(fd, (struct sockaddr *)&to, sizeof to));
    CHECK(!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
    return fd;
}

/* Returns false if the connection has ended. */
static bool send_all(client *c, int fd, const char *data, size_t length) {
    while (length) {
        size_t piece = 1 + next_random(&c->random) % (length < 2000 ? length : 2000);
        ssize_t sent = send(fd, data, piece, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        data += sent;
        length -= (size_t)sent;
    }
    return true;
}

/* Have so many bytes of replies. Returns false if the connection has ended. */
static bool fill(client *c, int fd, size_t length) {
    CHECK(length <= REPLY_BYTES_MAX);
    while (c->length < length) {
        ssize_t got = recv(fd, c->replies + c->length, REPLY_BYTES_MAX - c->length, 0);
        if (got <= 0) return false;
        c->length += (size_t)got;
    }
    return true;
}

static void drop(client *c, size_t length) {
    c->length -= length;
    memmove(c->replies, c->replies + length, c->length);
}

/* Returns false if the connection has ended; fails if the next bytes are others. */
static bool expect(client *c, int fd, const char *text) {
    size_t length = strlen(text);
    if (!fill(c, fd, length)) return false;
    CHECK(!memcmp(c->replies, text, length));
    drop(c, length);
    return true;
}

static bool expect_value(client *c, int fd, unsigned key, unsigned version) {
    char head[60];
    size_t size = value_length(key, version);
    if (!fill(c, fd, 1)) return false;
    if (c->replies[0] == 'E') {
        c->counts[MISSES]++;
        return true;
    }
    CHECK(version);
    snprintf(head, sizeof head, "VALUE k%u/%u 0 %zu\r\n", c->number, key, size);
    if (!expect(c, fd, head) || !fill(c, fd, size)) return false;
    for (size_t i = 0; i < size; i++) CHECK(c->replies[i] == value_byte(key, version));
    drop(c, size);
    c->counts[HITS]++;
    return expect(c, fd, "\r\n");
}

typedef enum { SET, GET, REPORTS, KINDS } kind;

/* Send some commands, and check the replies. Returns false if the connection has ended. */
static bool use_connection(client *c, int fd, bool breaks) {
    struct {
        kind kind;
        unsigned key, version;
    } sent[COMMANDS];
    static _Thread_local char data[COMMANDS * COMMAND_BYTES_MAX];
    unsigned count = 1 + (unsigned)(next_random(&c->random) % COMMANDS);
    size_t length = 0;
    for (unsigned i = 0; i < count; i++) {
        uint64_t dice = next_random(&c->random);
        unsigned key = (unsigned)(dice >> 8) % KEYS;
        sent[i].kind = (kind)(dice % KINDS);
        sent[i].key = key;
        /* Whether a command was executed before its connection broke off is not known. */
        if (sent[i].kind == SET && !breaks) c->versions[key]++;
        else if (sent[i].kind == SET) sent[i].kind = GET;
        unsigned version = sent[i].version = c->versions[key];
        size_t size = value_length(key, version);
        char *to = data + length;
        if (sent[i].kind == SET) {
            length += (size_t)sprintf(to, "set k%u/%u 0 0 %zu\r\n", c->number, key, size);
            memset(data + length, value_byte(key, version), size);
            length += size;
            length += (size_t)sprintf(data + length, "\r\n");
        } else {
            length += sent[i].kind == GET ? (size_t)sprintf(to, "get k%u/%u\r\n", c->number, key)
                                          : (size_t)sprintf(to, "stats\r\n");
        }
    }
    c->length = 0;
    if (!send_all(c, fd, data, breaks ? length / 2 : length)) return false;
    c->counts[ALL] += count;
    if (breaks) return false;
    for (unsigned i = 0; i < count; i++) {
        unsigned key = sent[i].key;
        if (sent[i].kind == GET &&
            (!expect_value(c, fd, key, sent[i].version) || !expect(c, fd, "END\r\n")))
            return false;
        if (sent[i].kind == SET && !expect(c, fd, "STORED\r\n")) return false;
        if (sent[i].kind == REPORTS && (!expect(c, fd, REPORT) || !expect(c, fd, "END\r\n")))
            return false;
    }
    CHECK(!c->length);
    return true;
}

static void *run_client(void *argument) {
    client *c = argument;
    c->replies = malloc(REPLY_BYTES_MAX);
    CHECK(c->replies);
    while (seconds_now() < c->end) {
        int fd = connect_client();
        bool is_open = true;
        while (is_open && next_random(&c->random) % 8) {
            is_open = use_connection(c, fd, false);
            /* Some of the values may be stored, and some not. */
            if (!is_open) memset(c->versions, 0, sizeof c->versions);
            if (!is_open) c->number += CLIENTS;
            c->counts[ENDED] += !is_open;
        }
        if (is_open && next_random(&c->random) % 2) {
            (void)use_connection(c, fd, true);
            c->counts[BROKEN]++;
        }
        close(fd);
    }
    free(c->replies);
    return NULL;
}

/* --- All of it ------------------------------------------------------------------------------------ */

static int listen_anywhere(void) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t length = sizeof at;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK(!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
    CHECK(fd >= 0 && !bind(fd, (struct sockaddr *)&at, sizeof at) && !listen(fd, 100));
    CHECK(!getsockname(fd, (struct sockaddr *)&at, &length));
    port = ntohs(at.sin_port);
    return fd;
}

static uint64_t count_commands(void) {
    vc_mc_counts counts = {0};
    vc_store_counts of_store = {0};
    uint64_t sum = 0;
    for (int i = 0; i < LOOPS; i++) vc_mc_add_counts(executors[i], &counts, &of_store);
    vc_mc_add_counts(caller, &counts, &of_store);
    for (int name = 0; name < VC_MC_NAMES; name++)
        for (int result = 0; result < VC_MC_RESULTS; result++)
            for (int i = 0; i < 64; i++) sum += counts.commands[name][result].counts[i];
    return sum;
}

int main(int count, char **arguments) {
    static client clients[CLIENTS];
    double end = seconds_now() + (count > 1 ? atof(arguments[1]) : 5);
    uint64_t random = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    uint64_t total[COUNTS] = {0};
    vc_server_figures figures;
    pthread_t calls_thread;
    open_store(random % 2);
    start_reports();
    vc_executor by = {
        .core = core,
        .functions = &vc_functions,
        .clocks = &clocks,
        .key_size = 100,
        .value_size = VALUE_BYTES_MAX,
        .slow_ns = -1,
        .long_ns = INT64_MAX,
    };
    vc_mc_config commands = {.reads = vc_recent_new(64), .won = vc_recent_new(64)};
    vc_server_config config = {
        .core = core,
        .functions = &vc_functions,
        .readers = vc_readers_new(core, &vc_functions, READERS),
        .listeners = {{listen_anywhere(), 0}},
        .listener_count = 1,
        .loops = LOOPS,
        .memory = HELD_BYTES,
        .transfer_ns = INT64_C(600000000000),
        .on_change = on_change,
    };
    vc_served *served = &config.protocols[0];
    served->calls = &vc_mc_protocol;
    served->connections = CLIENTS * 100;
    served->idle_ns = 1000000;
    for (unsigned i = 0; i < LOOPS; i++) {
        by.reporter = &reporters[i];
        executors[i] = vc_mc_new(&by, &commands);
        CHECK(executors[i]);
        served->executors[i] = executors[i];
    }
    commands.ask = answer;
    by.reporter = &reporters[LOOPS];
    served->caller = caller = vc_mc_new(&by, &commands);
    server = vc_server_new(&config);
    CHECK(caller && server && vc_server_start(server));
    CHECK(!pthread_create(&calls_thread, NULL, serve_calls, NULL));
    for (unsigned i = 0; i < CLIENTS; i++) {
        clients[i].number = i;
        clients[i].random = next_random(&random);
        clients[i].end = end;
        CHECK(!pthread_create(&clients[i].thread, NULL, run_client, &clients[i]));
    }
    while (seconds_now() < end) {
        vc_server_begin_change(server);
        slow_ns = -1 - (int64_t)(next_random(&random) % 2);
        vc_server_end_change(server);
        vc_listed open[CLIENTS];
        CHECK(vc_server_stalled_ns(server) < INT64_C(200000000000));
        for (size_t i = 0, n = vc_server_list(server, 0, open, CLIENTS); i < n; i++)
            CHECK(!strncmp(open[i].address, "tcp:127.0.0.1:", 14));
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    for (int i = 0; i < CLIENTS; i++) {
        CHECK(!pthread_join(clients[i].thread, NULL));
        for (int j = 0; j < COUNTS; j++) total[j] += clients[i].counts[j];
    }
    vc_server_drain(server, INT64_C(100000000000));
    CHECK(!pthread_join(calls_thread, NULL));
    vc_server_get_figures(server, &figures);
    const vc_protocol_figures *of = &figures.protocols[0];
    CHECK(!of->open && !figures.held && !of->cut && !of->turned_away);
    end_reports();
    CHECK(count_commands() == events && total[ENDED] <= of->closed_for_memory + of->closed_idle);
    printf("%" PRIu64 " commands, %" PRIu64 " hits, %" PRIu64 " misses; %" PRIu64
           " reports, %" PRIu64 " puts by a call; %" PRIu64 " cold; %" PRIu64
           " broken off, %" PRIu64 " closed; %" PRIu64 " volumes\n",
           total[ALL], total[HITS], total[MISSES], reports, asked_puts, figures.cold, total[BROKEN],
           total[ENDED], turns);
    CHECK(total[HITS] && total[MISSES] && reports && asked_puts && figures.cold && total[BROKEN]);
    vc_server_free(server);
    vc_readers_free(config.readers);
    for (unsigned i = 0; i < LOOPS; i++) vc_mc_free(executors[i]);
    vc_mc_free(caller);
    vc_recent_free(commands.reads);
    vc_recent_free(commands.won);
    vc_core_close(core);
    vc_core_free(core);
    vc_writer_free(&writer);
    close(config.listeners[0].fd);
    close(volume);
    return 0;
}
