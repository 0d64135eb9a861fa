/* The client of memcached, and its parser, against any bytes in any pieces.
 *
 *     hot_fuzz -r SECONDS SEED    random streams
 *     hot_fuzz FILE...            each file is one stream
 *
 * The client talks over pairs of sockets with servers made here, which answer as memcached does,
 * wrongly, late, in pieces or never; the bytes say what happens. Whatever they do:
 *   - each get is told of once, in time, or cancelled;
 *   - what is found is an item with this name, as it was sent or as the server has invented it;
 *   - the parser returns the same for a reply, whatever follows, and wants more of each part of it;
 *   - nothing is sent that is no command.
 * Any failed check aborts. */
#define _GNU_SOURCE
#include "hot_client.h"
#include "fuzz.h"

#include <errno.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"

enum {
    SERVERS = 2,
    NAMES = 6,
    OWNERS = 32,
    RECORD_MAX = 2000,
    STREAM_MAX = 2048,
    TIMEOUT_NS = 50000,
};

/* What the bytes of a stream decide. */
typedef struct {
    const uint8_t *data;
    size_t length, at;
} input;

typedef struct {
    int peer;               /* our end; -1: none */
    uint8_t bytes[1 << 16]; /* commands that were received and not answered */
    size_t used;
} peer;

static input *in;
static vc_hot *hot;
static peer peers[SERVERS];
static int waiting[OWNERS];
static vc_loop loop;
static bool may_nest;
static bool has_lied; /* a server has sent what is no reply of memcached */

static unsigned take(unsigned limit) {
    uint8_t byte = in->at < in->length ? in->data[in->at++] : 0;
    return byte % limit;
}

static bool is_over(void) { return in->at >= in->length; }

static void name_at(unsigned number, uint8_t name[VC_ITEM_BYTES]) {
    memset(name, (int)(17 * number + 1), VC_ITEM_BYTES);
}

/* --- The loop ----------------------------------------------------------------------------- */

static int64_t end_round(void *context) {
    vc_loop_end(context);
    return 0;
}

static void do_nothing(void *context) { (void)context; }

/* Handle the events that are there. */
static void run_round(void) {
    loop.has_ended = false;
    vc_loop_run(&loop);
}

static void ask(void) {
    uint8_t name[VC_ITEM_BYTES];
    unsigned owner = take(OWNERS);
    name_at(take(NAMES), name);
    if (waiting[owner]) return;
    if (vc_hot_get(hot, name, &waiting[owner])) waiting[owner] = 1 + (int)(name[0] - 1) / 17;
}

static void on_get(void *context, void *owner, const uint8_t *record, size_t length) {
    uint8_t name[VC_ITEM_BYTES];
    int *number = owner;
    CHECK(context == &may_nest && *number > 0);
    name_at((unsigned)*number - 1, name);
    *number = 0;
    if (record) {
        CHECK(length <= RECORD_MAX && !memcmp(record - VC_ITEM_BYTES, name, VC_ITEM_BYTES));
        for (size_t i = 0; i < length && !has_lied; i++) CHECK(record[i] == 'r');
    }
    if (may_nest && take(3) == 0) ask();
}

/* --- The parser --------------------------------------------------------------------------- */

static void check_parser(const uint8_t *data, size_t length, const uint8_t *name) {
    vc_hot_reply whole = vc_hot_parse(data, length, name, RECORD_MAX);
    CHECK(whole.result == VC_HOT_MORE || whole.length <= length);
    if (whole.result == VC_HOT_FOUND) {
        CHECK(whole.value > data && whole.value_length <= RECORD_MAX);
        CHECK(whole.value + whole.value_length + 7 == data + whole.length);
        CHECK(!memcmp(whole.value + whole.value_length, "\r\nEND\r\n", 7));
    }
    for (size_t part = 0; part < length && part < 700; part++) {
        vc_hot_reply cut = vc_hot_parse(data, part, name, RECORD_MAX);
        if (cut.result == VC_HOT_MORE) continue;
        CHECK(cut.result == whole.result);
        CHECK(cut.result == VC_HOT_PROTOCOL || (cut.length == whole.length && cut.length <= part));
    }
}

/* --- Servers ------------------------------------------------------------------------------ */

static void end_peer(unsigned number) {
    if (peers[number].peer >= 0) close(peers[number].peer);
    peers[number].peer = -1;
    peers[number].used = 0;
}

static void connect_peer(unsigned number) {
    int pair[2];
    end_peer(number);
    CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
    peers[number].peer = pair[0];
    vc_hot_give(hot, number, pair[1]);
}

static void reply_with(peer *p, const void *bytes, size_t length) {
    if (p->peer >= 0) (void)!send(p->peer, bytes, length, MSG_NOSIGNAL);
}

static void reply_to_get(peer *p, const char *key, size_t key_length) {
    char text[2 * RECORD_MAX];
    size_t length = take(4) ? take(200) : 10 * (size_t)take(256), at;
    int kind = (int)take(10);
    uint8_t name[VC_ITEM_BYTES];
    if (kind == 0) return reply_with(p, "END\r\n", 5);
    if (kind == 1) return reply_with(p, "SERVER_ERROR none\r\n", 19);
    at = (size_t)sprintf(text, "VALUE %.*s 0 %zu\r\n", (int)key_length, key,
                         kind == 2 ? length : length + VC_ITEM_BYTES);
    for (int i = 0; i < VC_ITEM_BYTES; i++) {
        unsigned byte = 0;
        sscanf(key + 9 + 2 * i, "%2x", &byte);
        name[i] = (uint8_t)byte;
    }
    if (kind != 2) {
        memcpy(text + at, name, VC_ITEM_BYTES);
        at += VC_ITEM_BYTES;
    }
    memset(text + at, kind == 2 ? 'q' : 'r', length); /* Without a name it is not used. */
    at += length;
    memcpy(text + at, "\r\nEND\r\n", 7);
    at += 7;
    if (kind == 3 || kind == 4) has_lied = true; /* Checksums are for others. */
    size_t place = take((unsigned)at > 80 ? 80 : (unsigned)at);
    if (kind == 3) text[take(2) ? place : at - 1 - place % 8] ^= (char)take(256);
    if (kind == 4) at = take((unsigned)at > 255 ? 255 : (unsigned)at);
    check_parser((const uint8_t *)text, at, name);
    /* In two pieces. */
    size_t first = kind == 5 ? at / 2 : at;
    reply_with(p, text, first);
    if (first < at) {
        if (take(2)) run_round();
        reply_with(p, text + first, at - first);
    }
}

/* Answer the first command, if it is whole. Returns false if it is not. */
static bool answer(peer *p) {
    char *line = (char *)p->bytes, *end = memchr(line, '\n', p->used);
    if (!end) return false;
    size_t whole = (size_t)(end + 1 - line);
    char key[64];
    *end = 0;
    CHECK(end > line && end[-1] == '\r');
    CHECK(sscanf(line, "get %63s\r", key) == 1 && strlen(key) == VC_HOT_KEY_BYTES);
    CHECK(whole == VC_HOT_KEY_BYTES + 6);
    *end = '\n';
    reply_to_get(p, key, VC_HOT_KEY_BYTES);
    memmove(p->bytes, p->bytes + whole, p->used - whole);
    p->used -= whole;
    return true;
}

static void receive(unsigned number) {
    peer *p = &peers[number];
    if (p->peer < 0) return;
    ssize_t got = recv(p->peer, p->bytes + p->used, sizeof(p->bytes) - p->used, 0);
    if (got > 0) p->used += (size_t)got;
    if (!got) end_peer(number);
}

/* --- One stream ------------------------------------------------------------------------------ */

static void step_loop(void) {
    run_round();
    int64_t wait_ns = vc_hot_settle(hot);
    CHECK(wait_ns == INT64_MAX || wait_ns <= TIMEOUT_NS);
}

static void act(void) {
    unsigned number = take(SERVERS), choice = take(16);
    if (choice < 7) return ask();
    if (choice < 11) {
        receive(number);
        while (peers[number].used && take(8) && answer(&peers[number])) continue;
        return;
    }
    switch (choice) {
    case 11: connect_peer(number); return;
    case 12: (void)vc_hot_take_failure(hot, number); return;
    case 13:
        number = take(OWNERS);
        if (waiting[number]) vc_hot_cancel(hot, &waiting[number]);
        waiting[number] = 0;
        return;
    case 14:
        if (take(4) == 0) end_peer(number);
        else if (take(4) == 0) has_lied = true;
        if (has_lied) reply_with(&peers[number], in->data + in->at, in->length - in->at);
        return;
    default: step_loop();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    static const char *const ADDRESSES[SERVERS] = {"a:1", "b:2"};
    input stream = {data, length < STREAM_MAX ? length : STREAM_MAX, 0};
    in = &stream;
    check_parser(data, stream.length, NULL);
    check_parser(data, stream.length, (const uint8_t *)"a name that is long enough");
    memset(waiting, 0, sizeof(waiting));
    may_nest = true;
    has_lied = false;
    hot = vc_hot_new(ADDRESSES, SERVERS, TIMEOUT_NS, RECORD_MAX);
    CHECK(hot);
    for (unsigned i = 0; i < SERVERS; i++) peers[i] = (peer){.peer = -1};
    vc_loop_owner owner = {end_round, do_nothing, &loop};
    CHECK(vc_loop_open(&loop, &owner));
    vc_hot_install(hot, &loop, on_get, &may_nest);
    for (unsigned i = 0; i < SERVERS; i++) connect_peer(i);
    vc_hot_settle(hot);
    while (!is_over()) act();
    /* All that wait are told in the time-out. */
    may_nest = false;
    vc_hot_settle(hot);
    struct timespec time = {0, 2 * TIMEOUT_NS};
    nanosleep(&time, NULL);
    CHECK(vc_hot_settle(hot) == INT64_MAX);
    for (unsigned i = 0; i < OWNERS; i++) CHECK(!waiting[i]);
    vc_hot_install(hot, NULL, NULL, NULL);
    vc_loop_close(&loop);
    vc_hot_free(hot);
    for (unsigned i = 0; i < SERVERS; i++) end_peer(i);
    return 0;
}

#ifndef VC_FUZZER
static void run_random(double seconds, uint64_t seed) {
    static const char *const WORDS[] = {"VALUE ", "END\r\n", "STORED\r\n", "\r\n", " 0 "};
    growing data = {0};
    uint64_t streams = 0;
    for (double end = seconds_now() + seconds; seconds_now() < end; streams++) {
        data.length = 0;
        for (uint64_t dice = 1; dice % 997 && data.length < STREAM_MAX - 16;) {
            dice = next_random(&seed);
            if (dice % 211) add_bytes(&data, &dice, 1);
            else add_text(&data, WORDS[(dice >> 32) % COUNT(WORDS)]);
        }
        LLVMFuzzerTestOneInput((const uint8_t *)data.at, data.length);
    }
    printf("hot_fuzz: %llu streams\n", (unsigned long long)streams);
    free(data.at);
}
#endif
