/* The gate between clients and a bjoern that are both made here, in memory.
 *
 *     gate_fuzz FILE...             read files
 *     gate_fuzz -r SECONDS SEED     random streams
 *
 * A stream is what some clients send at a time: several requests each, without waiting for the
 * answers, cut into pieces anywhere. The order of all that happens is random. Checked are:
 *
 *   - Each client gets, in their order, one answer to each of its requests, and it is the
 *     answer to that request, until one is refused or asks for the end of the connection. After
 *     a refusal there is nothing.
 *   - bjoern gets one whole head at a time, in the one form, and not a byte after the body that
 *     the head announces.
 *   - Whatever fails, connections end, and all memory is given back.
 *   - A connection is ended for its time or for room only if it has to be.
 *
 * gate.c and readers.c are included, not linked: the test has its own clock, lets malloc fail,
 * and looks at the lists of connections. The core is a real one, whose volume is in memory. The reader
 * thread of the gate runs only while the test waits for it: a stream depends on nothing but its
 * seed.
 *
 * A file begins with a letter. After R: what one client sends; it is sent several times, cut in
 * different ways, and the answers must not depend on that. After any other: bytes that are used
 * in place of random numbers. With -DVC_FUZZER it is a target of libFuzzer. Any failed check
 * aborts. */
#define _GNU_SOURCE
static void show(void);
#define SHOW_MORE show
#include "fuzz.h"

#include <errno.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <malloc.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/vfs.h>

static int test_clock_gettime(clockid_t clock, struct timespec *now);
static int test_fstatfs(int fd, struct statfs *about);
static void *test_malloc(size_t bytes);
static void *test_calloc(size_t count, size_t bytes);
static void *test_realloc(void *memory, size_t bytes);
static void test_free(void *memory);

#define clock_gettime test_clock_gettime
#define fstatfs test_fstatfs
#define malloc test_malloc
#define calloc test_calloc
#define realloc test_realloc
#define free test_free
#include "gate.c"
#include "readers.c"
#undef clock_gettime
#undef fstatfs
#undef malloc
#undef calloc
#undef realloc
#undef free

static uint64_t streams;

enum {
    CLIENTS = 6,
    CONNECTIONS = 5,            /* that the gate accepts */
    WANTED_MAX = 10,            /* requests of a client */
    ITEMS = 24,
    VOLUME_BYTES = 4 << 20,
    LARGE_BYTES = 1500000,      /* of a value that the gate leaves to bjoern */
    KEY_SIZE = 100,
    VALUE_SIZE = 120000,
    BODY_MEMORY = VALUE_SIZE + 50000,
    POOL_BYTES = 1 << 18,
    SMALL_BYTES = 100,          /* are sent completely or not at all */
    STEPS_MAX = 3000000,
    STREAMS_PER_GATE = 100000,
    INDEX = 78,                 /* the descriptor of an index file */
};

/* --- Random numbers, or the bytes of a file ----------------------------------------- */

static uint64_t random_state;
static const uint8_t *input, *input_end;

static uint32_t random_number(void) {
    uint64_t x = random_state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 32) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(x >> 32);
}

/* Return a number from 0 to below `end`. */
static uint32_t pick(uint32_t end) {
    if (input < input_end) {
        uint32_t number = *input++;
        for (uint32_t room = end >> 8; room && input < input_end; room >>= 8)
            number = number << 8 | *input++;
        return number % end;
    }
    return (uint32_t)((uint64_t)random_number() * end >> 32);
}

static bool one_of(uint32_t count) { return pick(count) == 0; }

/* --- Memory and clock --------------------------------------------------------------- */

static atomic_long live_blocks;
static int refused_call;        /* the allocation that fails; 0: none */
static _Thread_local bool is_main, may_fail;
static _Atomic int64_t mono_ns = 1;
static int64_t step_ns;         /* what each look at the clock takes */

static bool is_refused(void) {
    return (is_main || may_fail) && refused_call > 0 && --refused_call == 0;
}

static void *test_malloc(size_t bytes) {
    if (is_refused()) return NULL;
    atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return malloc(bytes);
}

static void *test_calloc(size_t count_of, size_t bytes) {
    if (is_refused()) return NULL;
    atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return calloc(count_of, bytes);
}

static void *test_realloc(void *memory, size_t bytes) {
    if (is_refused()) return NULL;
    if (!memory) atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return realloc(memory, bytes);
}

static void test_free(void *memory) {
    if (memory) atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    free(memory);
}

static int64_t now_ns(void) { return atomic_load_explicit(&mono_ns, memory_order_relaxed); }

static void pass_time(int64_t ns) {
    atomic_store_explicit(&mono_ns, now_ns() + ns, memory_order_relaxed);
}

static int test_clock_gettime(clockid_t id, struct timespec *now) {
    if (is_main && step_ns) pass_time(step_ns);
    int64_t at = now_ns();
    *now = (struct timespec){at / SECOND_NS + (id == CLOCK_REALTIME ? 1700000000 : 0),
                             at % SECOND_NS};
    return 0;
}

/* --- Numbers in text --------------------------------------------------------------- */

static void append_number(growing *to, uint64_t number) {
    to->length = (size_t)(vc_put_number(reserve(to, 20), number) - to->at);
}

static void append_hex(growing *to, uint64_t number, bool is_upper) {
    char digits[16];
    int at = 16;
    do {
        digits[--at] = (is_upper ? "0123456789ABCDEF" : "0123456789abcdef")[number & 15];
        number >>= 4;
    } while (number);
    add_bytes(to, digits + at, (size_t)(16 - at));
}

/* --- What the clients and bjoern are ------------------------------------------------ */

/* Who answers a request, and how. */
typedef enum {
    VALUE,      /* the gate, with a value */
    ABSENT,     /* the gate: there is none */
    STORED,     /* the gate has stored the body */
    DELETED,    /* the gate has deleted the key, if it was there */
    UNCHANGED,  /* the gate: the client has the value already */
    PASSED,     /* bjoern */
    REFUSAL,    /* the gate: it is not passed, and nothing after it is */
    ANYTHING,   /* this is not known, nor what follows */
} kind;

typedef struct {
    kind kind;
    bool may_pass;          /* bjoern may answer instead */
    bool is_head, closes, may_continue;
    int status;             /* of a refusal */
    const char *body;       /* that is stored; NULL: none is */
    size_t body_length;
    size_t begin, end;      /* in the bytes that the client sends */
    const struct item *item;
    size_t text, text_length;   /* what bjoern says, in `texts` of the client */
    uint64_t hash;          /* of the body */
} wanted;

/* A request as bjoern's parser sees it. */
typedef struct {
    bool is_running, is_head, closes, is_chunked;
    uint64_t left, hash;
    growing text;           /* names it */
    growing answer;
    size_t answer_at;
} message;

typedef struct {
    int fd;
    bool is_begun, is_turned_away, is_open;
    /* What the client sends. */
    growing sent;
    size_t arrived, received;
    uint32_t piece, read_piece;     /* sizes of pieces, at most; 0: everything */
    bool stays, is_ended, is_reset, resets;
    size_t resets_at;
    int64_t head_ns;        /* when the first byte of the last request was received */
    unsigned begun;         /* requests of which a byte was received */
    /* What it gets. */
    growing got;
    size_t room;
    bool is_limited, is_stuck, is_shut, is_cut;
    int64_t answered_ns;
    /* What link.c knows. */
    bool is_reading, is_paused, is_fed, watches_writes;
    message message;
    /* What is expected. */
    bool may_end;           /* early: each answer may be missing, with all that follow it */
    bool is_timed_out;
    wanted wanted[WANTED_MAX];
    unsigned wanted_count;
    growing texts;
} client;

static client clients[CLIENTS];
static unsigned client_count;
static const client *checked;   /* whose answers are being checked */
static growing first_got;       /* what one client got when it sent the same before */
static vc_gate *gate;
static vc_readers *readers;
static const vc_hooks *hooks;
static bool is_ticking;
/* What this stream is like. */
static bool has_time, is_slow, has_failures, is_raw, is_cold, is_damaging, is_unsupported,
    is_busy;
static uint64_t requests_sent, bytes_sent, by_gate, by_bjoern, by_refusal, timed_out, for_room,
    cold_reads, without_room, puts_by_gate, synced_puts;

static client *client_of(int fd) {
    for (unsigned i = 0; i < client_count; i++)
        if (clients[i].fd == fd) return &clients[i];
    CHECK(!"a descriptor of the test");
    return NULL;
}

static void show_bytes(const char *mark, const growing *from) {
    fprintf(stderr, "\n%s ", mark);
    for (size_t i = 0; i < from->length && i < 1500; i++) {
        uint8_t byte = (uint8_t)from->at[i];
        if (byte >= ' ' && byte < 0x7F) fputc(byte, stderr);
        else if (byte == '\n') fprintf(stderr, "\\n\n");
        else fprintf(stderr, byte == '\r' ? "\\r" : "\\x%02x", byte);
    }
}

/* Print what the clients of this stream have sent and got. */
static void show(void) {
    fprintf(stderr,
            "stream %" PRIu64 ": cold %d damaging %d unsupported %d time %d failures %d"
            " raw %d\n",
            streams, is_cold, is_damaging, is_unsupported, has_time, has_failures, is_raw);
    for (unsigned i = 0; i < client_count; i++) {
        const client *c = &clients[i];
        fprintf(stderr,
                "\n--- client %u%s: %zu of %zu arrived, %zu received; open %d ended %d reset %d"
                " shut %d reading %d paused %d fed %d state %d\n",
                i, c == checked ? " (checked)" : "", c->arrived, c->sent.length, c->received,
                c->is_open, c->is_ended, c->is_reset, c->is_shut, c->is_reading, c->is_paused,
                c->is_fed, c->is_open ? (int)gate->connections[c->fd]->state : -1);
        for (unsigned j = 0; j < c->wanted_count; j++)
            fprintf(stderr, "wanted: %d, status %d, bytes %zu to %zu\n", (int)c->wanted[j].kind,
                    c->wanted[j].status, c->wanted[j].begin, c->wanted[j].end);
        show_bytes("sent", &c->sent);
        show_bytes("got", &c->got);
    }
    if (is_raw) show_bytes("got before", &first_got);
    fputc('\n', stderr);
}

/* --- The core ----------------------------------------------------------------------- */

/* A record, and the targets that name it. */
typedef struct item {
    char key[40], targets[3][80];
    uint32_t length;
    const char *value;
    bool is_plain;              /* the gate may answer with it */
    bool has_header;            /* and to a HEAD */
    char tag[VC_TAG_BYTES + 1], date[VC_DATE_BYTES + 1];
} item;

static item items[ITEMS];
static char pool[POOL_BYTES];   /* values and bodies are parts of it */
static const char zeros[LARGE_BYTES];
static uint8_t *volume;
static vc_core *core;
static vc_clock store_clock;
static vc_types *types;
static sem_t released, stopped, may_put, has_put;
static _Thread_local bool is_putting;
static bool is_synced;          /* each value; the thread that stores them waits for the test */
static vc_core_functions functions;
static bool is_thread_blocked, was_woken, is_settling;
static bool has_failed;         /* a read, and Python has not said yet that the disk is good */

/* A reader thread waits here until the test lets it read. */
static ssize_t test_pread(void *context, int fd, void *buffer, size_t length, off_t offset) {
    (void)context;
    CHECK(fd == 77 && offset > 0);
    if (!is_main) {
        is_thread_blocked = true;
        sem_post(&stopped);
        sem_wait(&released);
        may_fail = true;
    }
    if (is_damaging && is_main && one_of(4)) {
        if (length > 1) has_failed = true;
        errno = EIO;
        return -1;
    }
    size_t left = VOLUME_BYTES - (size_t)offset;
    if (length > left) length = left;
    memcpy(buffer, volume + offset, length);
    return (ssize_t)length;
}

static ssize_t test_pread_cached(void *context, int fd, void *buffer, size_t length,
                                 off_t offset) {
    CHECK(is_main);
    if (is_unsupported) {
        errno = EOPNOTSUPP;
        return -1;
    }
    if (is_cold && one_of(2)) {
        /* The first pages. A record whose fixed part is cut is taken for a damaged one. */
        if (one_of(2) && length > VC_OVERHEAD_BYTES) {
            length -= pick((uint32_t)length - VC_OVERHEAD_BYTES);
        } else {
            errno = EAGAIN;
            return -1;
        }
    }
    ssize_t got = test_pread(context, fd, buffer, length, offset);
    if (is_damaging && got > 0 && one_of(4)) ((uint8_t *)buffer)[pick((uint32_t)got)] ^= 16;
    return got;
}

static ssize_t test_pwritev(void *context, int fd, const struct iovec *parts, int parts_count,
                            off_t offset) {
    ssize_t total = 0;
    (void)context;
    CHECK(fd == 77 || fd == INDEX);
    if (is_damaging && one_of(4)) {
        errno = EIO;
        return -1;
    }
    /* As the kernel may, write only a part now and then. */
    uint64_t dice = mixed((uint64_t)offset);
    size_t room = dice % 4 ? SIZE_MAX : 1 + (dice >> 8) % 300;
    for (int i = 0; i < parts_count && room; i++) {
        size_t some = parts[i].iov_len < room ? parts[i].iov_len : room;
        if (fd != INDEX) memcpy(volume + offset + total, parts[i].iov_base, some);
        total += (ssize_t)some;
        room -= some;
    }
    return total;
}

static int test_sync(void *context, int fd) {
    (void)context;
    CHECK(fd == 77 && !is_main);
    errno = EIO;
    return is_damaging && one_of(8) ? -1 : 0;
}

static size_t test_put_together(vc_core *of, vc_put *const *puts, size_t count) {
    is_putting = true;
    sem_wait(&may_put);
    return vc_core_put_together(of, puts, count);
}

static int test_fstatfs(int fd, struct statfs *about) {
    CHECK(fd == 77);
    about->f_type = one_of(2) ? TMPFS_MAGIC : EXT4_SUPER_MAGIC;
    return 0;
}

static void add_item(unsigned number) {
    item *to = &items[number];
    const char *type = number % 3 ? "" : "text/x-test; a=b";
    const char *encoding = number % 5 ? "" : "gzip";
    const char *directives = number % 3 ? "" : "public, immutable";
    bool is_odd = number % 4 == 0, has_query = number % 4 == 2;
    int64_t now_ms = vc_clock_now(&store_clock) / 1000;
    to->is_plain = true;
    to->length = number * number * 3 % 400;
    to->value = pool + 100 * number;
    if (number % 8 == 7) to->length = 1000 * number;
    if (number == 20) to->length = 70000;
    snprintf(to->key, sizeof to->key, is_odd ? "k%u \xc3\xbc?#" : "key/%u.txt", number);
    snprintf(to->targets[0], 80, is_odd ? "/k%u%%20%%c3%%BC%%3f%%23" : "/key/%u.txt", number);
    snprintf(to->targets[1], 80,
             is_odd ? "/%%6b%u%%20%%C3%%bc%%3F%%23" : "/%%6Bey%%2F%u.txt", number);
    snprintf(to->targets[2], 80,
             is_odd ? "/k%u%%20%%c3%%bc%%3f%%23?" : "/key/%u%%2Etxt?a=b", number);
    if (has_query) strcat(to->key, "?a=b");
    for (unsigned i = 0; has_query && i < 2; i++) strcat(to->targets[i], "%3fa=b");
    vc_put put = {
        .record.key_length = (uint16_t)strlen(to->key),
        .record.type_length = (uint8_t)strlen(type),
        .record.encoding_length = (uint8_t)strlen(encoding),
        .record.cache_length = (uint8_t)strlen(directives),
        .record.length = to->length,
        .record.stored_us = (uint64_t)vc_clock_next(&store_clock),
        .type = (const uint8_t *)type,
        .encoding = (const uint8_t *)encoding,
        .cache = (const uint8_t *)directives,
        .key = (const uint8_t *)to->key,
        .ring = VC_RING_UNKNOWN,
    };
    vc_record *record = &put.record;
    if (number % 4 == 1) record->expires_ms = (uint64_t)now_ms + 1000000000000;
    if (number == 5 || number == 21) record->expires_ms = (uint64_t)now_ms - 10;
    if (number == 22) record->length = to->length = LARGE_BYTES, to->value = zeros;
    if (number == 22 || number == 23 || number == 5 || number == 21) to->is_plain = false;
    to->has_header = number != 5 && number != 21;
    put.value = (const uint8_t *)to->value;
    CHECK(vc_core_put(core, &put) == VC_OK);
    *vc_put_tag(to->tag, record) = 0;
    *vc_put_date(to->date, (int64_t)(record->stored_us / 1000000) + 1) = 0;
    if (number == 23) volume[record->offset + record->prefix] ^= 1;
}

static vc_writer writer;
static uint64_t items_end;

static int64_t next_us(void *context) {
    (void)context;
    return vc_clock_next(&store_clock);
}

static void on_due(void *context) {
    (void)context;
    /* With syncs, an earlier one may have told. */
    CHECK(is_synced || vc_core_is_due(core));
    if (!is_busy || one_of(2)) vc_core_take_due(core);
}

/* Forget what was put after the items. */
static void reset_volume(void) {
    vc_putting how = {.next_us = next_us, .due_bytes = 300, .syncs = is_synced};
    static const char *const KEYS[] = {"put/1", "put/2.txt", "put/\xc3\xbc",
                                       "put/\xc3\xbc?x"};
    for (unsigned i = 0; i < COUNT(KEYS); i++) {
        uint64_t seq, key = vc_core_fingerprint(core, (const uint8_t *)KEYS[i], strlen(KEYS[i]));
        vc_entry entry;
        if (vc_core_find(core, key, &entry, &seq))
            vc_core_bury(core, key, entry.slot, entry.offset);
    }
    vc_core_set_putting(core, &how);
    vc_core_take_due(core);
    vc_writer_clear(&writer);
    writer.end = items_end;
    writer.written_end = 0;
    writer.index_end = 0;
}

static void make_core(void) {
    static const uint8_t hash_key[16] = "gate";
    static const char *const LINES[] = {
        "GET /key/1.txt HTTP/1.1\r\nHost: a\r\n\r\n", "0\r\n\r\n", "5\r\nabcde\r\n",
        "PUT /body HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "\r\n", "\r\n\r\n",
    };
    static vc_calls calls = {
        .pread = test_pread, .pread_cached = test_pread_cached, .pwritev = test_pwritev,
        .fdatasync = test_sync};
    functions = vc_functions;
    functions.put_together = test_put_together;
    uint64_t before = random_state;
    random_state = 5;
    for (size_t i = 0; i < POOL_BYTES; i++) pool[i] = (char)random_number();
    for (size_t i = 0; i + 100 < POOL_BYTES; i += 1 + random_number() % 150) {
        const char *line = LINES[random_number() % COUNT(LINES)];
        memcpy(pool + i, line, strlen(line));
        i += strlen(line);
    }
    random_state = before;
    volume = calloc(1, VOLUME_BYTES);
    core = vc_core_new(&calls, hash_key, 1 << 24, 2, 0);
    types = vc_types_new(2);
    CHECK(volume && core && types && vc_types_add(types, ".txt", "text/plain"));
    vc_segment whole = {0, 123456789};
    uint32_t slot = vc_core_add_volume(core, 1);
    CHECK(slot != VC_NO_SLOT && vc_core_bind(core, slot, 77, 9, &whole, 1));
    writer = (vc_writer){
        .calls = &calls,
        .fd = 77,
        .volume = 9,
        .slot = slot,
        .pending_max = SIZE_MAX,
        .index_fd = INDEX,
        .is_indexed = true,
        .salt = whole.salt,
        .end = VC_VOLUME_HEADER_BYTES,
        .capacity = VOLUME_BYTES,
    };
    vc_putting how = {.next_us = next_us, .due_bytes = UINT64_MAX};
    vc_core_set_putting(core, &how);
    vc_core_set_writer(core, &writer);
    for (unsigned i = 0; i < ITEMS; i++) add_item(i);
    items_end = writer.end;
    vc_core_take_due(core);
}

/* --- What the client's socket does -------------------------------------------------- */

static ssize_t test_receive(int fd, void *buffer, size_t length) {
    client *c = client_of(fd);
    CHECK(is_main && c->is_open && length);
    size_t some = c->arrived - c->received;
    if (c->is_reset) {
        errno = ECONNRESET;
        return -1;
    }
    if (c->is_cut) return 0;
    if (!some && c->is_ended) return 0;
    if (!some) {
        errno = EAGAIN;
        return -1;
    }
    if (some > length) some = length;
    if (c->read_piece && some > c->read_piece) some = 1 + pick(c->read_piece);
    memcpy(buffer, c->sent.at + c->received, some);
    c->received += some;
    while (c->begun < c->wanted_count && c->wanted[c->begun].begin < c->received) {
        c->head_ns = now_ns();
        c->begun++;
    }
    return (ssize_t)some;
}

/* Whether the last request of a client has arrived only in part, and when it began. */
static void check_time_out(client *c, const char *answer) {
    bool is_head = memmem(answer, 400, "the head of the request", 23);
    CHECK(has_time && c->begun && (is_ticking || !is_head));
    const wanted *last = &c->wanted[c->begun - 1];
    c->is_timed_out = true;
    timed_out++;
    if (last->kind == ANYTHING || !is_head) return;
    CHECK(last->begin < c->received && now_ns() - c->head_ns >= gate->limits_ns[HEAD]);
}

static ssize_t test_send(int fd, const struct iovec *parts, int parts_count) {
    client *c = client_of(fd);
    size_t total = 0, sent = 0;
    CHECK(c->is_open && !c->is_shut && parts_count >= 1 && parts_count <= 2);
    for (int i = 0; i < parts_count; i++) {
        CHECK(parts[i].iov_len);
        total += parts[i].iov_len;
    }
    if (c->is_reset || c->is_cut) {
        errno = one_of(2) ? EPIPE : ECONNRESET;
        return -1;
    }
    if (parts[0].iov_len > 12 && !memcmp(parts[0].iov_base, "HTTP/1.1 503", 12)) {
        CHECK(has_time && is_ticking);
        CHECK(now_ns() - gate->connections[fd]->since_ns >= gate->limits_ns[QUEUED]);
        c->is_timed_out = true;
        without_room++;
    }
    if (parts[0].iov_len > 12 && !memcmp(parts[0].iov_base, "HTTP/1.1 408", 12)) {
        char whole[1000] = {0};
        CHECK(total < sizeof whole);
        memcpy(whole, parts[0].iov_base, parts[0].iov_len);
        if (parts_count == 2)
            memcpy(whole + parts[0].iov_len, parts[1].iov_base, parts[1].iov_len);
        check_time_out(c, whole);
    }
    if (parts_count == 2) CHECK(!has_failed || memcmp(parts[0].iov_base, "HTTP/1.1 404", 12));
    if (c->is_limited && (!c->room || (total < SMALL_BYTES && c->room < total))) {
        errno = EAGAIN;
        return -1;
    }
    if (c->is_limited && total > c->room) total = c->room;
    for (int i = 0; i < parts_count && sent < total; i++) {
        size_t some = parts[i].iov_len < total - sent ? parts[i].iov_len : total - sent;
        add_bytes(&c->got, parts[i].iov_base, some);
        sent += some;
    }
    if (c->is_limited) c->room -= sent;
    c->answered_ns = now_ns();
    return (ssize_t)sent;
}

static void test_shut(int fd, int how) {
    client *c = client_of(fd);
    CHECK(is_main && c->is_open);
    if (how == SHUT_WR) c->is_shut = true;
    else c->is_cut = c->may_end = true;
}

static const vc_gate_io test_io = {test_receive, test_send, test_shut};

/* Return the empty line at the end of a head; NULL if it is not there. */
static const char *end_of_head(const char *at, const char *end) {
    while (at < end && (at = memchr(at, '\n', (size_t)(end - at)))) {
        if (end - at >= 3 && at[1] == '\r' && at[2] == '\n') return at + 1;
        at++;
    }
    return NULL;
}

/* --- bjoern ------------------------------------------------------------------------- */

enum { IS_TOKEN = 1, IS_TARGET = 2, IS_TEXT = 4 };
static uint8_t classes[256];

static void make_classes(void) {
    for (int i = 0; i < 256; i++) {
        int letter = i | 0x20;
        bool is_word = (i >= '0' && i <= '9') || (letter >= 'a' && letter <= 'z' && i < 0x7F);
        if (is_word || (i && strchr("!#$%&'*+-.^_`|~", i))) classes[i] |= IS_TOKEN;
        if (i > ' ' && i < 0x7F && i != '#') classes[i] |= IS_TARGET;
        if ((i >= ' ' && i != 0x7F) || i == '\t') classes[i] |= IS_TEXT;
    }
}

static void close_by_bjoern(client *c) {
    CHECK(c->is_open);
    hooks->closing(hooks->context, c->fd);
    c->is_open = c->is_reading = c->is_paused = c->is_fed = c->watches_writes = false;
    c->message.is_running = false;
}

static bool has_word(const char *at, const char *end, const char *word) {
    size_t length = strlen(word);
    return (size_t)(end - at) == length && !memcmp(at, word, length);
}

static bool is_named(const char *at, size_t length, const char *name) {
    return length == strlen(name) && !strncasecmp(at, name, length);
}

/* Check the first line. Returns what follows it. */
static const char *read_line(client *c, message *m, const char *at, bool *is_old) {
    static const char *const ALLOWED[] = {
        "GET",  "PUT",   "HEAD",  "DELETE", "PROPFIND", "OPTIONS", "POST",     "MKCOL",
        "PATCH", "TRACE", "COPY", "MOVE",   "LOCK",     "UNLOCK",  "PROPPATCH"};
    const char *start = at;
    bool is_known = false;
    while (*at >= 'A' && *at <= 'Z') at++;
    for (unsigned i = 0; i < COUNT(ALLOWED); i++) is_known |= has_word(start, at, ALLOWED[i]);
    CHECK(is_known && *at == ' ');
    m->is_head = has_word(start, at, "HEAD");
    const char *target = ++at;
    bool is_path = true;
    for (; classes[(uint8_t)*at] & IS_TARGET; at++) {
        if (*at == '?') is_path = false;
        if (*at == '%' && is_path)
            CHECK(strchr("0123456789abcdefABCDEF", at[1]) && at[1] &&
                  strchr("0123456789abcdefABCDEF", at[2]) && at[2]);
    }
    CHECK(*target == '/' || (has_word(target, at, "*") && has_word(start, target, "OPTIONS ")));
    m->text.length = 0;
    add_bytes(&m->text, start, (size_t)(at - start));
    CHECK(!memcmp(at, " HTTP/1.", 8) && (at[8] == '0' || at[8] == '1') && at[9] == '\r' &&
          at[10] == '\n');
    *is_old = at[8] == '0';
    (void)c;
    return at + 11;
}

static bool is_blank(char byte) { return byte == ' ' || byte == '\t'; }

/* Check a whole head as strictly as RFC 9112 allows. */
static void read_head(client *c, message *m, const char *at, const char *end) {
    struct {
        const char *at;
        size_t length;
    } names[VC_FIELDS + 3];
    unsigned names_count = 0;
    bool is_old, has_host = false, has_length = false, has_close = false, has_alive = false;
    m->is_chunked = false;
    m->left = 0;
    m->hash = 0xcbf29ce484222325u;
    at = read_line(c, m, at, &is_old);
    while (at < end) {
        const char *name = at;
        while (classes[(uint8_t)*at] & IS_TOKEN) at++;
        size_t length = (size_t)(at - name);
        CHECK(length && at[0] == ':' && at[1] == ' ');
        const char *value = at += 2;
        while (classes[(uint8_t)*at] & IS_TEXT) at++;
        CHECK(at[0] == '\r' && at[1] == '\n' && at < end);
        CHECK(at == value || (!is_blank(*value) && !is_blank(at[-1])));
        for (unsigned i = 0; i < names_count; i++)
            CHECK(names[i].length != length || strncasecmp(names[i].at, name, length));
        CHECK(names_count < COUNT(names));
        names[names_count].at = name;
        names[names_count++].length = length;
        switch (*name | 0x20) {
        case 'h':
            has_host |= is_named(name, length, "host");
            CHECK(!is_named(name, length, "http2-settings"));
            break;
        case 'c':
            if (is_named(name, length, "content-length")) {
                has_length = true;
                CHECK(at > value && at - value <= 18 && (*value != '0' || at - value == 1));
                for (const char *p = value; p < at; p++) {
                    CHECK(*p >= '0' && *p <= '9');
                    m->left = m->left * 10 + (uint64_t)(*p - '0');
                }
            } else if (is_named(name, length, "connection")) {
                has_close = has_word(value, at, "close");
                has_alive = has_word(value, at, "keep-alive");
                CHECK(has_close || (has_alive && is_old));
            }
            break;
        case 't':
            CHECK(!is_named(name, length, "te") && !is_named(name, length, "trailer"));
            if (is_named(name, length, "transfer-encoding")) {
                CHECK(has_word(value, at, "chunked") && !is_old);
                m->is_chunked = true;
            }
            break;
        default:
            CHECK(!is_named(name, length, "expect") && !is_named(name, length, "upgrade") &&
                  !is_named(name, length, "keep-alive") &&
                  !is_named(name, length, "proxy-connection"));
        }
        at += 2;
    }
    CHECK((has_host || is_old) && !(has_length && m->is_chunked) && m->left <= VALUE_SIZE);
    m->closes = is_old ? !has_alive : has_close;
}

static void add_to_hash(uint64_t *hash, const char *data, size_t length) {
    uint64_t sum = *hash;
    for (size_t i = 0; i < length; i++) sum = (sum ^ (uint8_t)data[i]) * 0x100000001b3u;
    *hash = sum;
}

/* Read whole chunks in the one form; returns whether the body is complete. */
static bool read_chunks(message *m, const char *at, const char *end) {
    while (at < end) {
        uint64_t size = 0;
        const char *start = at;
        for (; at < end; at++) {
            if (*at >= '0' && *at <= '9') size = size << 4 | (uint64_t)(*at - '0');
            else if (*at >= 'a' && *at <= 'f') size = size << 4 | (uint64_t)(*at - 'a' + 10);
            else break;
        }
        CHECK(at > start && at - start < 9 && (*start != '0' || at == start + 1));
        CHECK((size_t)(end - at) >= size + 4 && at[0] == '\r' && at[1] == '\n');
        at += 2;
        add_to_hash(&m->hash, at, size);
        at += size;
        CHECK(at[0] == '\r' && at[1] == '\n');
        at += 2;
        if (!size) {
            CHECK(at == end);
            return true;
        }
    }
    return false;
}

/* Write what names a request: to the answer, or as what is expected. */
static void append_name(growing *to, const char *text, size_t length, uint64_t hash) {
    add_bytes(to, text, length);
    add_bytes(to, " ", 1);
    append_hex(to, hash, false);
}

static size_t filler_length(uint64_t hash) { return hash % 64 ? 0 : (hash >> 8) % 20000; }

static void answer_by_bjoern(client *c) {
    message *m = &c->message;
    growing *to = &m->answer;
    size_t filler = filler_length(m->hash), name = m->text.length + 1;
    for (uint64_t rest = m->hash; rest || name == m->text.length + 1; rest >>= 4) name++;
    to->length = m->answer_at = 0;
    add_text(to, "HTTP/1.1 200 OK\r\nX-Request: ");
    append_name(to, m->text.at, m->text.length, m->hash);
    add_text(to, "\r\nContent-Length: ");
    append_number(to, name + filler);
    add_text(to, m->closes ? "\r\nConnection: close\r\n\r\n" : "\r\n\r\n");
    if (!m->is_head) {
        append_name(to, m->text.at, m->text.length, m->hash);
        add_bytes(to, pool, filler);
    }
    c->is_reading = c->is_fed = false;
    by_bjoern++;
}

/* As ev_io_on_read of bjoern. */
static void read_by_bjoern(client *c) {
    static char *buffer;
    message *m = &c->message;
    if (!buffer && !(buffer = malloc(65536))) abort();
    CHECK(c->is_open && c->is_reading);
    errno = 0;
    ssize_t got = hooks->take(hooks->context, c->fd, buffer, 65536);
    if (!got || (got < 0 && errno != EAGAIN)) {
        close_by_bjoern(c);
        return;
    }
    if (got < 0) return;
    CHECK(got <= 65536);
    const char *at = buffer, *end = buffer + got;
    if (!m->is_running) {
        const char *stop = end_of_head(at, end);
        CHECK(stop && stop < at + VC_PASSED_BYTES);
        m->is_running = true;
        read_head(c, m, at, stop);
        at = stop + 2;
    }
    bool is_complete;
    if (m->is_chunked) {
        is_complete = read_chunks(m, at, end);
    } else {
        CHECK((uint64_t)(end - at) <= m->left);
        add_to_hash(&m->hash, at, (size_t)(end - at));
        m->left -= (uint64_t)(end - at);
        is_complete = !m->left;
    }
    if (is_complete) answer_by_bjoern(c);
}

static void start_reading(client *c) {
    c->is_reading = true;
    if (hooks->awaits(hooks->context, c->fd)) c->is_fed = true;
}

/* As ev_io_on_write of bjoern: some bytes are sent. */
static void write_by_bjoern(client *c) {
    message *m = &c->message;
    size_t left = m->answer.length - m->answer_at;
    CHECK(c->is_open && m->is_running && !c->is_shut && left);
    if (c->is_reset || c->is_cut) {
        close_by_bjoern(c);
        return;
    }
    if (one_of(4)) left = 1 + pick((uint32_t)left);
    if (c->is_limited && left > c->room) left = c->room;
    if (!left) return;
    add_bytes(&c->got, m->answer.at + m->answer_at, left);
    m->answer_at += left;
    c->answered_ns = now_ns();
    if (c->is_limited) c->room -= left;
    hooks->written(hooks->context, c->fd);
    if (m->answer_at < m->answer.length) return;
    if (m->closes) {
        close_by_bjoern(c);
        return;
    }
    m->is_running = false;
    start_reading(c);
}

/* --- What link.c does --------------------------------------------------------------- */

static void install(const vc_hooks *installed) { hooks = installed; }

static void pause_client(int fd) {
    client *c = client_of(fd);
    CHECK(is_main && c->is_open && c->is_reading);
    c->is_paused = true;
    c->is_fed = false;
}

static void resume_client(int fd) {
    client *c = client_of(fd);
    CHECK(is_main && c->is_open && c->is_reading);
    c->is_paused = false;
    c->is_fed = true;
}

static void watch_writes(int fd, bool is_on) {
    client *c = client_of(fd);
    CHECK(is_main && c->is_open && c->is_reading);
    c->watches_writes = is_on;
}

static void deliver(int fd) {
    client *c = client_of(fd);
    CHECK(is_main && c->is_open && c->is_reading);
    connection *at = gate->connections[fd];
    if (is_settling) {
        read_by_bjoern(c);
        return;
    }
    if (!is_ticking) for_room++;
    CHECK(is_ticking ? has_time : at->state == IDLE);
    if (is_ticking && at->state == IDLE)
        CHECK(now_ns() - c->answered_ns >= gate->limits_ns[IDLE]);
    c->may_end = true;
    read_by_bjoern(c);
    CHECK(!c->is_open);
}

static void wake(void) {
    CHECK(!is_main);
    may_fail = false;
    sem_post(is_putting ? &has_put : &stopped);
}

static const vc_link test_link = {VC_LINK_VERSION, install,      pause_client, resume_client,
                                  watch_writes,    deliver,      wake, NULL, NULL};

static void settle(void) {
    is_settling = true;
    hooks->settle(hooks->context);
    is_settling = false;
}

/* Whether the reader thread has finished another job; `wakes`: it wakes the loop for that. */
static bool is_done(unsigned before, bool *wakes) {
    vc_job_owner *owner = &gate->owner;
    pthread_mutex_lock(&owner->mutex);
    bool found = owner->done.length > before;
    if (found) *wakes = owner->done.last->is_awaited;
    pthread_mutex_unlock(&owner->mutex);
    return found;
}

/* Let the thread that stores values store those that wait, or some of them. */
static void run_puts(void) {
    sem_post(&may_put);
    sem_wait(&has_put);
    pthread_mutex_lock(&readers->mutex); /* Until it has finished all of them. */
    pthread_mutex_unlock(&readers->mutex);
    while (!sem_trywait(&has_put)) continue;
    was_woken = true;
}

/* Let the reader thread do one job. */
static void run_thread(void) {
    if (readers->puts.length) {
        run_puts();
        return;
    }
    unsigned before = gate->owner.done.length;
    bool wakes = true;
    settle();
    sem_wait(&stopped);
    if (is_thread_blocked) {
        is_thread_blocked = false;
        sem_post(&released);
        while (!is_done(before, &wakes)) sched_yield();
        if (wakes) sem_wait(&stopped);
    }
    cold_reads++;
    was_woken |= wakes;
}

static bool has_job(void) { return gate->lists[COLD].count > gate->owner.done.length; }

/* --- Events ------------------------------------------------------------------------- */

static void on_events(void *context) {
    size_t length, at = 0;
    vc_gate_counts counts;
    const uint8_t *events = vc_gate_take_events(gate, &length);
    (void)context;
    while (at < length) {
        const vc_event *event = (const vc_event *)(const void *)(events + at);
        CHECK(event->length >= sizeof *event + event->path_length + event->head_length);
        CHECK(event->took_ns >= 0);
        if (event->answer == VC_ANSWERS) {
            CHECK(event->status >= 400 && !event->path_length && !event->head_length);
            at += event->length;
            continue;
        }
        CHECK(event->path_length && event->text[0] == '/');
        static const char *const METHODS[VC_ANSWERS] = {"GET",  "GET", "GET",  "PUT",    "HEAD",
                                                        "HEAD", "GET", "HEAD", "DELETE", "DELETE"};
        const char *method = METHODS[event->answer];
        CHECK(!event->head_length ||
              !memcmp(event->text + event->path_length, method, strlen(method)));
        CHECK(!strcmp(event->address, "10.1.2.3") && at + event->length <= length);
        at += event->length;
    }
    vc_gate_take_counts(gate, &counts);
    bool is_good = !is_damaging || one_of(2);
    if (is_good) has_failed = false;
    vc_gate_set_ready(gate, is_good);
}

static void accept_client(client *c) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(0x0A010203);
    c->is_begun = true;
    c->is_open = true;
    c->answered_ns = now_ns();
    if (!hooks->accepted(hooks->context, c->fd, (struct sockaddr *)&address)) {
        CHECK(gate->stats.open == CONNECTIONS || has_failures);
        c->is_open = false;
        c->is_turned_away = true;
        return;
    }
    start_reading(c);
}

/* Let some more bytes of a client arrive. */
static void arrive(client *c) {
    size_t left = c->sent.length - c->arrived;
    if (c->resets && c->arrived >= c->resets_at) {
        c->is_reset = c->may_end = true;
        c->arrived = c->received = c->sent.length;
        c->stays = false;
        c->is_ended = true;
        return;
    }
    if (!left) {
        c->is_ended = true;
        return;
    }
    if (c->piece && left > c->piece) left = 1 + pick(c->piece);
    if (c->resets && left > c->resets_at - c->arrived) left = c->resets_at - c->arrived;
    c->arrived += left;
    if (is_slow) pass_time((int64_t)pick(1000) * 1000000);
}

static void read_client(client *c) {
    c->is_fed = false;
    phase before = gate->connections[c->fd]->state;
    uint64_t begun = gate->stats.cold + readers->puts.length;
    bool is_for_bjoern = hooks->readable(hooks->context, c->fd);
    /* Or the loop would call it again and again. */
    phase after = gate->connections[c->fd]->state;
    CHECK(before != after || gate->stats.cold + readers->puts.length > begun ||
          (after != COLD && after != SENDING) || c->is_paused);
    if (is_for_bjoern) read_by_bjoern(c);
}

/* When the last bytes of a body arrived, it was not slower than allowed. */
static void check_speed(const connection *at) {
    const client *c = client_of(at->fd);
    int64_t took_ns = at->since_ns - at->started_ns - gate->limits_ns[BODY];
    if (!c->begun || c->wanted[c->begun - 1].kind == ANYTHING) return;
    size_t taken = c->received - c->wanted[c->begun - 1].begin;
    CHECK(took_ns <= 0 || took_ns / SECOND_NS * SLOWEST_BYTES_PER_SECOND <= (int64_t)taken);
}

/* The lists of the gate are in order, and have every connection. */
static void check_lists(void) {
    unsigned total = 0;
    uint64_t reserved = 0;
    for (int i = 0; i < STATES; i++) {
        unsigned found = 0;
        int64_t last = 0;
        for (const connection *at = gate->lists[i].first; at; at = at->next, found++) {
            CHECK((int)at->state == i && at->since_ns >= last);
            last = at->since_ns;
            if (at->is_admitted) reserved += at->reserved;
            CHECK((i != QUEUED && i != IDLE) || !at->is_admitted);
            if (i == BODY) check_speed(at);
        }
        CHECK(found == gate->lists[i].count);
        total += found;
    }
    CHECK(total == gate->stats.open);
    CHECK(reserved == gate->body_bytes && reserved <= BODY_MEMORY);
}

static void tick(void) {
    check_lists();
    is_ticking = true;
    hooks->tick(hooks->context);
    is_ticking = false;
    check_lists();
}

/* What may happen to a client next. */
enum { ACCEPT = 1, ARRIVE = 2, READ = 4, BJOERN_WRITE = 8, WRITE = 16, ROOM = 32, KINDS = 6 };

static unsigned possible(const client *c) {
    unsigned found = 0;
    if (!c->is_begun) return ACCEPT;
    if (c->arrived < c->sent.length || !(c->is_ended || c->stays)) found |= ARRIVE;
    if (!c->is_open) return found;
    if (!c->is_reading) {
        if (!c->is_limited || c->room || c->is_reset || c->is_cut) found |= BJOERN_WRITE;
    } else if (!c->is_paused &&
               (c->is_fed || c->received < c->arrived || c->is_ended || c->is_cut)) {
        found |= READ;
    }
    if (c->watches_writes && (c->room || !c->is_limited || c->is_reset)) found |= WRITE;
    if (c->is_limited && !c->is_stuck && c->room < SMALL_BYTES &&
        (c->watches_writes || !c->is_reading)) found |= ROOM;
    return found;
}

static void happen(client *c, unsigned what) {
    switch (what) {
    case ACCEPT:
        accept_client(c);
        break;
    case ARRIVE:
        arrive(c);
        break;
    case READ:
        read_client(c);
        break;
    case BJOERN_WRITE:
        write_by_bjoern(c);
        break;
    case WRITE:
        hooks->writable(hooks->context, c->fd);
        break;
    default:
        c->room += 1 + pick(one_of(2) ? 50 : 5000);
    }
}

/* Something seldom: the clock, a spurious event, no free descriptor. */
static void happen_seldom(void) {
    static const int64_t TIMES_MS[] = {100, 100, 1000, 2100, 5000, 11000, 31000, 61000};
    client *c = &clients[pick(client_count)];
    switch (pick(4)) {
    case 0:
        if (has_time) pass_time(TIMES_MS[pick(COUNT(TIMES_MS))] * 1000000);
        tick();
        break;
    case 1:
        if (c->is_open && c->is_reading && !c->is_paused) read_client(c);
        break;
    case 2:
        if (c->is_open && c->watches_writes) hooks->writable(hooks->context, c->fd);
        break;
    default:
        if (!is_raw && one_of(8)) {
            unsigned open = gate->stats.open;
            bool has_room = hooks->make_room(hooks->context);
            CHECK(gate->stats.open == open - has_room);
        }
    }
}

static bool has_room_for_next(void) {
    const connection *first = gate->lists[QUEUED].first;
    return first && has_room(gate, first->reserved);
}

/* Let things happen until nothing more can. */
static void run_events(void) {
    for (unsigned steps = 0;; steps++) {
        unsigned what = 0, first = pick(client_count), at = 0;
        CHECK(steps < STEPS_MAX);
        if (was_woken && one_of(3)) {
            was_woken = false;
            hooks->woken(hooks->context);
        }
        if (one_of(2)) settle();
        if (has_job() && one_of(4)) run_thread();
        if (one_of(has_time ? 12 : 64)) happen_seldom();
        for (unsigned i = 0; i < client_count && !what; i++) {
            at = first + i < client_count ? first + i : first + i - client_count;
            what = possible(&clients[at]);
        }
        if (!what) {
            if (gate->lists[WAITING].count || has_room_for_next()) settle();
            else if (gate->owner.done.length && !was_woken) tick();
            else if (!has_job() && !was_woken) return;
            continue;
        }
        unsigned rotated = pick(KINDS);
        while (!(what >> rotated & 1)) rotated = rotated + 1 < KINDS ? rotated + 1 : 0;
        happen(&clients[at], 1u << rotated);
    }
}

/* --- What is sent ------------------------------------------------------------------- */

static const char *const HARMLESS[] = {
    "Accept: */*\r\n", "User-Agent: test/1.0 (a; b)\r\n", "A: 1\r\n", "a: 2\r\n", "A:\r\n",
    "Accept-Encoding:gzip, deflate\t\r\n", "X-Long: abcdefghijklmnopqrstuvwxyz0123456789\r\n",
    "Cookie: a=b; c=d\r\n", "Keep-Alive: 5\r\n", "Upgrade: h2c\r\n", "TE: trailers\r\n",
    "Proxy-Connection: keep-alive\r\n", "Authorization: x\r\n", "Content-Type: a/b\r\n", "Connection: te, upgrade\r\n", "X-B: \xc3\xbc\r\n",
};
static const char *const DECIDED_BY_PYTHON[] = {
    "Range: bytes=0-1\r\n", "if-match: *\r\n", "Service-Worker: script\r\n",
    "If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
};
/* Conditions that no record fulfils, and those that the gate does not evaluate. */
static const char *const FALSE_CONDITIONS[] = {"If-None-Match: \"a\"\r\n",
                                               "if-none-match:W/\"\"\r\n"};
static const char *const ODD_CONDITIONS[] = {
    "If-None-Match: *\r\n", "If-None-Match: \"a\", \"b\"\r\n", "If-None-Match:\r\n",
    "If-None-Match: \"a\"\r\nIf-None-Match: \"b\"\r\n", "If-Modified-Since: x\r\n",
    "If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
};
static const char *const OTHER_METHODS[] = {"HEAD",  "PUT",     "PUT",   "PUT",      "POST",
                                            "DELETE", "OPTIONS", "MKCOL", "PROPFIND", "PATCH"};
/* Paths that name no record: those that the gate answers, and those that it does not. */
static const char *const MISSES[] = {"/none", "/none/1.txt?a", "//none", "/%41%20b", "/-a/b",
                                     "/a%2fb", "/key/1.tx", "/%2d"};
/* Where bodies are stored, and one where they are not. */
static const char *const PUT_TARGETS[] = {"/put/1", "/put/2.txt", "/put%2f%c3%bc?x", "/../put"};
static const char *const NOT_ORDINARY[] = {"/",      "/-/stats", "/a/../b",  "/%2e",
                                           "/a%00b", "/a%7Fb",   "/%2d%2fx", "/?a"};

typedef struct {
    int status;
    const char *text;
} refusal;

#define PUT_LINE "PUT /a HTTP/1.1\r\nHost: a\r\n"
#define CHUNKED PUT_LINE "Transfer-Encoding: chunked\r\n\r\n"

static const refusal REFUSALS[] = {
    {400, "GET / HTTP/1.1\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\n\n"},
    {400, "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\nA : b\r\n\r\n"},
    {400, "GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n c\r\n\r\n"},
    {400, PUT_LINE "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"},
    {400, PUT_LINE "Content-Length: 5, 5\r\n\r\nabcde"},
    {400, PUT_LINE "Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde"},
    {400, "\x16\x03\x01\x02"},
    {405, "CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n"},
    {405, "get / HTTP/1.1\r\nHost: a\r\n\r\n"},
    {413, PUT_LINE "Content-Length: 120001\r\n\r\nabc"},
    {413, "HEAD /a HTTP/1.1\r\nHost: a\r\nContent-Length: 999999999999999999\r\n\r\nabc"},
    {417, PUT_LINE "Expect: x\r\nContent-Length: 1\r\n\r\na"},
    {501, PUT_LINE "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
    {505, "GET / HTTP/2.0\r\nHost: a\r\n\r\n"},
    /* The head is passed, but then it ends. */
    {400, CHUNKED "5\r\nabcdef\r\n0\r\n\r\n"},
    {400, CHUNKED "x\r\n"},
    {400, CHUNKED "2\r\nab\r\n0\n\r\n"},
    {413, CHUNKED "1\r\na\r\n1d4c0\r\nabc"},
    {431, NULL},    /* a long head */
    {431, NULL},    /* many fields */
};
static const refusal SECOND_MARK = {400, "HEAD /a??b HTTP/1.1\r\nHost: a\r\n\r\n"};

static wanted *want(client *c) {
    CHECK(c->wanted_count < WANTED_MAX);
    wanted *w = &c->wanted[c->wanted_count++];
    *w = (wanted){.begin = c->sent.length};
    return w;
}

/* Write the body of a request, and the line that announces it before `at_end`. */
static void add_body(client *c, wanted *w, bool is_chunked) {
    growing *to = &c->sent;
    size_t length = pick(one_of(4) ? 60 : 10);
    if (one_of(64)) length = pick(one_of(16) ? VALUE_SIZE : 3000);
    if (is_slow && one_of(2)) length = pick(40000);
    if (is_busy && one_of(4)) length = pick(VALUE_SIZE);
    const char *body = pool + pick(POOL_BYTES - VALUE_SIZE);
    if (one_of(8)) {
        add_text(to, "Expect: 100-continue\r\n");
        w->may_continue = true;
    }
    if (is_chunked || (length && w->kind != STORED)) w->kind = PASSED;
    if (!is_chunked) {
        w->body = body;
        w->body_length = length;
        add_text(to, one_of(4) ? "content-length:00" : "Content-Length: ");
        append_number(to, length);
        add_text(to, one_of(4) ? "  \r\n\r\n" : "\r\n\r\n");
        add_bytes(to, body, length);
        add_to_hash(&w->hash, body, length);
        return;
    }
    add_text(to, one_of(2) ? "Transfer-Encoding: chunked\r\n\r\n"
                              : "transfer-encoding:\tCHUNKED\r\n\r\n");
    add_to_hash(&w->hash, body, length);
    while (length) {
        size_t some = one_of(3) ? length : 1 + pick((uint32_t)length);
        if (one_of(4)) add_text(to, "000");
        append_hex(to, some, one_of(2));
        add_text(to, one_of(4) ? ";a=\"b\"\r\n" : "\r\n");
        add_bytes(to, body, some);
        add_text(to, "\r\n");
        body += some;
        length -= some;
    }
    add_text(to, one_of(4) ? "0000;x\r\n" : "0\r\n");
    if (one_of(4)) add_text(to, "Trailer: a\r\nContent-Length: 3\r\n");
    add_text(to, "\r\n");
}

/* Returns false if the gate leaves a PUT with these fields to bjoern. */
static bool add_fields(client *c) {
    unsigned types_added = 0;
    for (uint32_t left = one_of(2) ? 0 : pick(4); left; left--) {
        const char *line = HARMLESS[pick(COUNT(HARMLESS))];
        types_added += !strncmp(line, "Content-Type", 12);
        add_text(&c->sent, line);
    }
    return types_added < 2;
}

static bool has_query(const char *target) {
    const char *mark = strchr(target, '?');
    return mark && mark[1];
}

static bool has_query_key(const item *of) { return strstr(of->key, "?a=b"); }

/* Choose what a GET asks for. Returns the target. */
static const char *choose_target(wanted *w) {
    if (one_of(8)) {
        w->kind = PASSED;
        return NOT_ORDINARY[pick(COUNT(NOT_ORDINARY))];
    }
    if (one_of(4)) {
        w->kind = ABSENT;
        return MISSES[pick(COUNT(MISSES))];
    }
    w->item = &items[pick(one_of(8) ? ITEMS : 7)];     /* The first ones are short. */
    w->kind = w->item->is_plain ? VALUE : PASSED;
    const char *target = w->item->targets[one_of(2) ? 0 : pick(3)];
    /* The query is part of the key, or is not. */
    if (has_query(target) && (gate->config.query == VC_QUERY_KEY) != has_query_key(w->item)) {
        w->item = NULL;
        w->kind = ABSENT;
    }
    return target;
}

/* With a ring, the keys of this instance: those with a hash in the lower half. */
static const uint32_t HALF[] = {0, UINT32_C(1) << 31};

static bool is_foreign(const char *target) {
    char path[VC_HEAD_BYTES];
    size_t length = vc_path_decode((vc_text){target, strcspn(target, "?")}, path);
    if (gate->config.query == VC_QUERY_KEY && has_query(target)) {
        const char *query = strchr(target, '?');
        memcpy(path + length, query, strlen(query));
        length += strlen(query);
    }
    uint32_t crc = ~0u;
    if (!gate->config.ring.count) return false;
    for (size_t i = 0; i < length; i++) {
        crc ^= (uint8_t)path[i];
        for (int bit = 0; bit < 8; bit++) crc = crc & 1 ? crc >> 1 ^ 0xedb88320u : crc >> 1;
    }
    return ~crc >> 31;
}

/* Write a condition of a GET or HEAD, which decides who answers it. */
static void add_condition(client *c, wanted *w) {
    const item *to = w->item;
    char text[100];
    uint32_t dice = pick(4);
    if (dice < 2 && to) {
        if (dice) snprintf(text, sizeof text, "If-Modified-Since: %s\r\n", to->date);
        else
            snprintf(text, sizeof text, "If-None-Match: %s\"%s\"\r\n", one_of(2) ? "W/" : "",
                     to->tag);
        add_text(&c->sent, text);
        if (w->kind == VALUE) w->kind = UNCHANGED;
        /* Before the end of the second in which it was stored, Python compares the date. */
        if (dice) w->may_pass = true;
    } else if (dice == 2) {
        add_text(&c->sent, FALSE_CONDITIONS[pick(COUNT(FALSE_CONDITIONS))]);
        if (to && !w->is_head && !to->is_plain) w->kind = PASSED;
    } else {
        add_text(&c->sent, ODD_CONDITIONS[pick(COUNT(ODD_CONDITIONS))]);
        if (w->kind != ABSENT) w->kind = PASSED;
    }
}

/* Who answers a request without a condition and without a body. */
static kind kind_of(const wanted *w, const char *method, const char *target) {
    bool is_change = gate->config.puts && !strncmp(target, "/put", 4);
    if (!strcmp(method, "PUT") && is_change) return STORED;
    if (!strcmp(method, "DELETE") && is_change) return DELETED;
    if (!strcmp(method, "HEAD") && w->item) return w->item->has_header ? VALUE : PASSED;
    return !strcmp(method, "GET") || !strcmp(method, "HEAD") ? w->kind : PASSED;
}

/* Returns false if the client expects nothing after it. */
static bool add_valid(client *c) {
    wanted *w = want(c);
    growing *to = &c->sent;
    const char *method = one_of(3) ? OTHER_METHODS[pick(COUNT(OTHER_METHODS))] : "GET";
    if (is_busy && one_of(2)) method = "PUT";
    const char *target = choose_target(w);
    bool is_get = !strcmp(method, "GET"), is_old = one_of(12);
    bool has_body = is_get ? one_of(32) : !one_of(4);
    bool is_special = one_of(8), has_condition = one_of(8);
    bool is_change = !strcmp(method, "PUT") || !strcmp(method, "DELETE");
    if (is_change && gate->config.puts) {
        target = PUT_TARGETS[pick(COUNT(PUT_TARGETS))];
        /* A deletion may read, and Python need not be told when that fails. */
        if (is_damaging && !strcmp(method, "DELETE")) target = PUT_TARGETS[3];
        w->item = NULL;
    }
    w->kind = kind_of(w, method, target);
    if (is_synced && (w->kind == STORED || w->kind == DELETED)) w->may_pass = true;
    if (w->kind == STORED && !has_body) w->kind = PASSED;
    /* With a condition, the header decides. */
    if (has_condition && w->item && is_get) w->kind = w->item->has_header ? VALUE : PASSED;
    if (is_special || is_foreign(target)) w->kind = PASSED;
    if (gate->config.query == VC_QUERY_REFUSE && has_query(target)) w->kind = PASSED;
    w->hash = 0xcbf29ce484222325u;
    w->is_head = !strcmp(method, "HEAD");
    if (one_of(16)) add_text(to, one_of(2) ? "\r\n" : "\r\n\r\n\r\n");
    size_t line = to->length;
    add_text(to, method);
    add_text(to, " ");
    w->text = c->texts.length;
    add_bytes(&c->texts, to->at + line, to->length - line);
    if (one_of(16)) add_text(to, one_of(2) ? "http://b:80" : "HTTP://a");
    bool is_star = target[0] == '/' && !target[1] && !strcmp(method, "OPTIONS") &&
                   to->at[to->length - 1] == ' ' && one_of(2);
    if (is_star) target = "*";
    add_text(to, target);
    add_text(&c->texts, target);
    add_text(to, is_old ? " HTTP/1.0\r\n" : " HTTP/1.1\r\n");
    if (!add_fields(c) && w->kind == STORED) w->kind = PASSED;
    add_text(to, one_of(8) ? "hOsT:\tb.example:81\r\n" : "Host: a\r\n");
    if (is_special) add_text(to, DECIDED_BY_PYTHON[pick(COUNT(DECIDED_BY_PYTHON))]);
    if (has_condition && (is_get || w->is_head)) {
        add_condition(c, w);
    } else if (has_condition) {
        add_text(to, FALSE_CONDITIONS[0]);
        w->kind = PASSED;
    }
    w->closes = is_old;
    if (is_old && one_of(2)) {
        add_text(to, "Connection: Keep-Alive\r\n");
        w->closes = false;
    } else if (one_of(16)) {
        add_text(to, one_of(2) ? "Connection: close\r\n" : "connection: x , CLOSE\r\n");
        w->closes = true;
    }
    if (has_body) add_body(c, w, !is_old && one_of(2));
    else add_text(to, "\r\n");
    add_bytes(&c->texts, " ", 1);
    append_hex(&c->texts, w->hash, false);
    w->text_length = c->texts.length - w->text;
    bool has_header = w->is_head || has_condition || w->kind == DELETED;
    w->may_pass |= has_failures || (is_busy && (w->kind == STORED || w->kind == DELETED)) ||
                   (has_header && (is_cold || is_unsupported));
    w->end = to->length;
    return !w->closes;
}

static void add_refused(client *c) {
    wanted *w = want(c);
    const refusal *from = &REFUSALS[pick(COUNT(REFUSALS))];
    if (gate->config.query == VC_QUERY_KEY && one_of(4)) from = &SECOND_MARK;
    w->kind = REFUSAL;
    w->status = from->status;
    if (from->text) {
        w->is_head = from->text[0] == 'H';
        /* Some have a NUL or end with one that is not sent. */
        add_text(&c->sent, from->text);
    } else if (from == &REFUSALS[COUNT(REFUSALS) - 1]) {
        add_text(&c->sent, "GET / HTTP/1.1\r\nHost: a\r\n");
        for (int i = 0; i < VC_FIELDS; i++) add_text(&c->sent, "A: b\r\n");
        add_text(&c->sent, "\r\n");
    } else if (one_of(8)) {
        add_text(&c->sent, "GET / HTTP/1.1\r\nHost: a\r\nA: ");
        memset(reserve(&c->sent, VC_HEAD_BYTES), 'x', VC_HEAD_BYTES);
        c->sent.length += VC_HEAD_BYTES;
    } else {
        add_text(&c->sent, "GET / HTTP/0.9\r\n\r\n");
        w->status = 505;
    }
    w->end = c->sent.length;
}

/* Change some bytes of what was written from `start` on; what is answered is not known. */
static void change_bytes(client *c, size_t start) {
    static const char *const WORDS[] = {
        "\r\n", "\n", "\r", " ", ":", ",", "\r\n\r\n", "0", "0\r\n\r\n", "5", "Host: a\r\n",
        "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n", "GET / HTTP/1.1\r\n", "\xff",
        "Connection: close\r\n", "Expect: 100-continue\r\n", "%", "?", "#", "\t",
        "HTTP/1.0\r\n"};
    growing *to = &c->sent;
    for (uint32_t left = 1 + pick(3); left; left--) {
        const char *word = WORDS[pick(COUNT(WORDS))];
        size_t length = strlen(word), at = start + pick((uint32_t)(to->length - start + 1));
        size_t removed = pick(3) ? 0 : pick(8);
        if (one_of(3) && at < to->length) {
            to->at[at] ^= (char)(1 << pick(8));
            continue;
        }
        replace_bytes(to, at, removed, word, length);
    }
}

/* Write the requests of a client. */
static void add_requests(client *c) {
    uint32_t left = 1 + pick(one_of(8) ? 7 : 3);
    bool is_going = true;
    while (left-- && is_going) is_going = add_valid(c);
    if (is_going && one_of(8)) {
        add_refused(c);
        is_going = false;
    } else if (is_going && one_of(16)) {
        /* The beginning of a request. */
        wanted *w = want(c);
        w->kind = ANYTHING;
        add_text(&c->sent, PUT_LINE "Content-Length: 50\r\n\r\nabcdefghij");
        c->sent.length -= pick(50);
        w->end = c->sent.length;
    } else if (is_going && one_of(16)) {
        size_t start = c->sent.length;
        add_valid(c);
        wanted *w = &c->wanted[c->wanted_count - 1];
        w->kind = ANYTHING;
        change_bytes(c, start);
        w->end = c->sent.length;
    }
    if (!is_going && one_of(4))
        add_bytes(&c->sent, pool + pick(POOL_BYTES / 2), pick(one_of(16) ? 3000 : 100));
    /* Many bytes in small pieces take long. */
    uint32_t smallest = (uint32_t)(c->sent.length / 400);
    if (c->piece && c->piece < smallest) c->piece = smallest;
    if (c->read_piece && c->read_piece < smallest) c->read_piece = smallest;
    requests_sent += c->wanted_count;
    bytes_sent += c->sent.length;
}

/* Set how a client behaves. */
static void start_client(client *c, int fd) {
    growing kept[] = {c->sent, c->got, c->texts, c->message.text, c->message.answer};
    for (unsigned i = 0; i < COUNT(kept); i++) {
        kept[i].length = 0;
        reserve(&kept[i], 1000);
    }
    memset(c, 0, offsetof(client, wanted));
    c->sent = kept[0];
    c->got = kept[1];
    c->texts = kept[2];
    c->message.text = kept[3];
    c->message.answer = kept[4];
    c->wanted_count = 0;
    c->fd = fd;
    c->may_end = has_time || refused_call;
    if (is_slow) c->piece = 300;
    else if (one_of(2)) c->piece = one_of(16) ? 2 : one_of(2) ? 50 : 500;
    if (one_of(16)) c->read_piece = one_of(4) ? 2 : 300;
    c->is_limited = one_of(8);
    c->is_stuck = has_time && one_of(4);
    c->stays = one_of(2);
}

/* --- What is answered --------------------------------------------------------------- */

static const char GO_ON[] = "HTTP/1.1 100 Continue\r\n\r\n";

/* Find the number after a name of a header. */
static size_t number_after(const char *at, const char *end, const char *name) {
    size_t length = strlen(name);
    const char *found = at + 17;        /* After "HTTP/1.1 200 OK". */
    if (memcmp(found, name, length)) found = memmem(at, (size_t)(end - at), name, length);
    CHECK(found);
    size_t number = 0;
    for (found += length; *found >= '0' && *found <= '9'; found++)
        number = number * 10 + (size_t)(*found - '0');
    return number;
}

/* Check that the record which an answer names has the body of the request. */
static void check_stored(const wanted *w, const char *start, const char *stop) {
    size_t number = number_after(start, stop, "X-Position: "), offset = 0;
    const char *at = memmem(start, (size_t)(stop - start), "X-Position: 9,", 14);
    CHECK(number == 9 && at);
    for (at += 14; *at >= '0' && *at <= '9'; at++) offset = offset * 10 + (size_t)(*at - '0');
    vc_record record;
    CHECK(offset >= items_end && offset < writer.end);
    CHECK(vc_record_decode(volume + offset, VOLUME_BYTES - offset, writer.salt, 9, offset,
                           &record) == VC_OK);
    CHECK(record.length == w->body_length && record.key_length > 4);
    CHECK(!memcmp(record.key, "put/", 4));
    CHECK(!memcmp(volume + offset + record.prefix, w->body, w->body_length));
}

/* Check one answer at `*at`; returns false if it is not there. */
static bool check_answer(client *c, const wanted *w, size_t *at) {
    const char *start = c->got.at + *at, *end = c->got.at + c->got.length;
    const char *stop = end_of_head(start, end);
    if (!stop) return false;
    const char *body = stop + 2;
    CHECK(!memcmp(start, "HTTP/1.1 ", 9));
    int status = (start[9] - '0') * 100 + (start[10] - '0') * 10 + start[11] - '0';
    size_t length = number_after(start, stop, "Content-Length: ");
    bool is_by_bjoern = stop - start > 30 && !memcmp(start + 17, "X-Request: ", 11);
    bool has_close = !memcmp(stop - 19, "Connection: close\r\n", 19);
    size_t body_length = w->is_head || status == 304 ? 0 : length;
    if ((size_t)(end - body) < body_length) return false;
    *at = (size_t)(body - c->got.at) + body_length;
    if (is_by_bjoern) {
        const char *text = c->texts.at + w->text;
        CHECK(status == 200 && (w->kind == PASSED || w->may_pass) && w->kind != REFUSAL);
        CHECK(!memcmp(start + 28, text, w->text_length) && start[28 + w->text_length] == '\r');
        CHECK(length == w->text_length + filler_length(w->hash) && has_close == w->closes);
        if (!w->is_head) {
            CHECK(!memcmp(body, text, w->text_length));
            CHECK(!memcmp(body + w->text_length, pool, length - w->text_length));
        }
        return true;
    }
    by_gate += w->kind != REFUSAL;
    by_refusal += w->kind == REFUSAL;
    switch (w->kind) {
    case VALUE:
        CHECK(status == 200 && length == w->item->length && has_close == w->closes);
        CHECK(w->is_head || !memcmp(body, w->item->value, length));
        CHECK(!memcmp(start + 17, "Content-Length: ", 16));
        break;
    case ABSENT:
        CHECK(status == 404 && has_close == w->closes);
        CHECK(length == 34);
        CHECK(w->is_head || !memcmp(body, "no value is stored under this key\n", length));
        break;
    case DELETED:
        CHECK((status == 200 && !length) || (status == 404 && length == 34));
        CHECK(has_close == w->closes);
        break;
    case UNCHANGED:
        CHECK(status == 304 && length == w->item->length && has_close == w->closes);
        CHECK(!memmem(start, (size_t)(stop - start), "\nContent-Type", 13));
        break;
    case STORED:
        CHECK(status == 200 && !length && has_close == w->closes);
        check_stored(w, start, stop);
        puts_by_gate++;
        synced_puts += is_synced;
        break;
    case REFUSAL:
        /* What follows a head that is too long may have a bare LF. */
        CHECK((status == w->status || (w->status == 431 && status == 400)) && has_close);
        CHECK(length > 10);
        CHECK(w->is_head || body[length - 1] == '\n');
        CHECK(*at == c->got.length);
        break;
    default:
        CHECK(!"the gate answers this request");
    }
    return true;
}

/* The answer to a request that arrived too slowly is the last one. */
static bool is_time_out(const client *c, size_t at) {
    const char *status = c->got.at + at + 9;
    return c->is_timed_out && c->got.length - at > 12 &&
           (!memcmp(status, "408", 3) || !memcmp(status, "503", 3));
}

static void skip_continue(const client *c, const wanted *w, size_t *at) {
    size_t left = c->got.length - *at;
    if (!w->may_continue || left < 12 || memcmp(c->got.at + *at, GO_ON, 12)) return;
    CHECK(left >= sizeof GO_ON - 1 && !memcmp(c->got.at + *at, GO_ON, sizeof GO_ON - 1));
    *at += sizeof GO_ON - 1;
}

static void check_answers(client *c) {
    size_t at = 0;
    checked = c;
    if (c->is_turned_away) {
        CHECK(!c->got.length);
        return;
    }
    for (unsigned i = 0; i < c->wanted_count; i++) {
        const wanted *w = &c->wanted[i];
        if (w->kind == ANYTHING) return;
        skip_continue(c, w, &at);
        if (is_time_out(c, at)) {
            CHECK(c->is_shut);
            return;
        }
        if (!check_answer(c, w, &at)) {
            /* What the socket has no room for of a refusal is not sent. */
            CHECK(c->may_end || (w->kind == REFUSAL && c->is_limited && c->is_shut));
            return;
        }
        if (w->closes || w->kind == REFUSAL) break;
    }
    CHECK(at == c->got.length || is_time_out(c, at));
    checked = NULL;
}

/* --- Streams ------------------------------------------------------------------------ */

static uint64_t pulses;

static void on_pulse(void *context) {
    (void)context;
    pulses++;
}

/* A pulse that was asked for comes with the next tick, and only once. */
static void check_pulse(void) {
    uint64_t before = pulses;
    vc_gate_set_pulse(gate, 0);
    vc_gate_ask_pulse(gate);
    tick();
    tick();
    CHECK(pulses == before + 1);
    vc_gate_set_pulse(gate, SECOND_NS);
    tick();
    CHECK(pulses == before + 2);
    vc_gate_config same = gate->config;
    vc_gate_change(gate, &same);
}

static void start_gate(void) {
    refused_call = 1;
    CHECK(!vc_readers_new(core, &functions, 1));
    CHECK(!vc_readers_new(core, &functions, 0) && live_blocks == 0);
    readers = vc_readers_new(core, &functions, 1);
    CHECK(readers);
    vc_gate_config config = {
        .link = &test_link,
        .io = &test_io,
        .core = core,
        .functions = &functions,
        .clock = &store_clock,
        .types = types,
        .answers = true,
        .puts = true,
        .key_size = KEY_SIZE,
        .value_size = VALUE_SIZE,
        .body_memory = BODY_MEMORY,
        .readers = readers,
        .connections = CONNECTIONS,
        .head_ns = 10 * SECOND_NS,
        .idle_ns = 60 * SECOND_NS,
        .transfer_ns = 30 * SECOND_NS,
        .slow_ns = INT64_MAX,
        .long_ns = INT64_MAX,
        .sample_mask = 0xFF,
        .allow = "GET, HEAD, PUT",
        .on_events = on_events,
        .on_pulse = on_pulse,
        .on_due = on_due,
    };
    /* Without memory there is none. */
    refused_call = 1;
    CHECK(!vc_gate_new(&config) && live_blocks == 1);
    refused_call = 0;
    gate = vc_gate_new(&config);
    CHECK(gate);
    install(vc_gate_hooks(gate));
}

/* Give each connection its time, so that it is closed. */
static void run_out(void) {
    for (int i = 0; i < 40; i++) {
        pass_time(5 * SECOND_NS);
        tick();
        run_events();
    }
    for (unsigned i = 0; i < client_count; i++) CHECK(!clients[i].is_open);
}

static uint64_t cold_at_start;

static void start_stream(void) {
    client_count = 0;
    has_failed = false;
    is_cold = is_damaging = is_unsupported = has_time = is_slow = has_failures = is_raw = false;
    is_busy = false;
    is_synced = false;
    reset_volume();
    refused_call = 0;
    cold_at_start = cold_reads;
    step_ns = 300;
    gate->reading = VC_CACHED_FIRST;
    gate->config.logs_all = false;
    gate->config.query = VC_QUERY_IGNORE;
    gate->config.ring = gate->config.writable = (vc_parts){NULL, 0};
    vc_gate_set_ready(gate, true);
}

static long blocks_at_start;

/* Without what the gate keeps for all connections. */
static long blocks(void) { return live_blocks - (gate->connections != NULL); }

static void end_stream(void) {
    run_events();
    for (const connection *at = gate->lists[QUEUED].first; at; at = at->next) {
        /* A body that never ends, a refused one, or an answer that is not read keeps its room. */
        CHECK(gate->lists[BODY].count || gate->lists[LINGER].count || gate->lists[BUSY].count);
        if (!has_time) client_of(at->fd)->may_end = true;
    }
    if (has_time) run_out();
    /* Those that wait for answers have them now. */
    bool has_closed = true;
    for (unsigned i = 0; i < client_count; i++) {
        client *c = &clients[i];
        if (c->stays && !has_time) check_answers(c);
        has_closed &= !c->stays;
        c->stays = false;
    }
    if (!has_closed) run_events();
    for (unsigned i = 0; i < client_count; i++) {
        CHECK(!clients[i].is_open);
        check_answers(&clients[i]);
    }
    on_events(NULL);
    CHECK(!gate->stats.open && !vc_readers_waiting(readers) && !gate->owner.done.length);
    CHECK(!vc_gate_stalled_ns(gate));
    if (one_of(64)) check_pulse();
    /* The thread keeps its buffer, or has no memory for a larger one. */
    CHECK(blocks() == blocks_at_start || cold_reads > cold_at_start);
    refused_call = 0;
    streams++;
}

static void run_stream(void) {
    start_stream();
    if (one_of(6)) {
        is_synced = true;
        reset_volume();
    }
    blocks_at_start = blocks();
    switch (pick(50)) {
    case 0:
        is_cold = true;
        break;
    case 1:
        is_damaging = has_failures = true;
        is_cold = one_of(4);
        break;
    case 2:
        has_failures = true;
        is_cold = one_of(8);
        refused_call = 1 + (int)pick(one_of(2) ? 20 : 5);
        break;
    case 3:
    case 4:
        has_time = true;
        is_slow = one_of(4);
        break;
    case 5:
        is_unsupported = one_of(4);
        break;
    case 6:
        gate->config.logs_all = true;
        break;
    case 7: /* bjoern has the same answers for the keys of other instances. */
        gate->config.ring = gate->config.writable = (vc_parts){HALF, 2};
        break;
    case 8: /* Something is due that is not done at once, and bodies are large. */
    case 9:
        is_busy = true;
        break;
    case 10:
        gate->config.query = VC_QUERY_REFUSE;
        break;
    case 11:
    case 12:
        gate->config.query = VC_QUERY_KEY;
        if (one_of(2)) gate->config.ring = gate->config.writable = (vc_parts){HALF, 2};
        break;
    default:
        break;
    }
    uint32_t dice = pick(16), clients_wanted = 1 + (dice < 7) + (dice < 3);
    if (!dice) clients_wanted = 1 + pick(CLIENTS);
    int fd = one_of(64) ? (int)pick(1000) : 3;
    for (; client_count < clients_wanted; client_count++) {
        client *c = &clients[client_count];
        start_client(c, fd + (int)client_count);
        add_requests(c);
        if (one_of(16)) {
            c->resets = true;
            c->resets_at = pick((uint32_t)c->sent.length + 1);
        }
    }
    end_stream();
}

/* Remove what says that a client may go on: it depends on when the body arrives. */
static void remove_continues(growing *from) {
    char *found;
    while ((found = memmem(from->at, from->length, GO_ON, sizeof GO_ON - 1))) {
        char *after = found + sizeof GO_ON - 1;
        memmove(found, after, (size_t)(from->at + from->length - after));
        from->length -= sizeof GO_ON - 1;
    }
}

/* Remove where records are stored, and when. */
static void remove_positions(growing *from) {
    char *at = from->at, *end;
    while ((at = memmem(at, (size_t)(from->at + from->length - at), "X-Position: ", 12)) &&
           (end = memmem(at, (size_t)(from->at + from->length - at), "\r\n\r\n", 4))) {
        memmove(at, end, (size_t)(from->at + from->length - end));
        from->length -= (size_t)(end - at);
    }
}

/* The length of the answers without a refusal at the end. */
static size_t before_refusal(const growing *from, int *status) {
    const char *last = NULL;
    *status = 0;
    for (const char *at = from->at, *end = at + from->length;
         (at = memmem(at, (size_t)(end - at), "HTTP/1.1 ", 9)); at += 9)
        if (end - at > 9 && at[9] >= '2' && at[9] <= '5') last = at;
    if (!last || last + 17 > from->at + from->length || last[9] < '4' ||
        !memcmp(last + 9, "404", 3))
        return from->length;
    *status = atoi(last + 9);
    return (size_t)(last - from->at);
}

/* Whether some bytes may ask for a header: who answers depends on what is in memory. */
static bool asks_for_header(const char *data, size_t length) {
    static const char *const WORDS[] = {"HEAD ", "DELETE ", "if-"};
    for (size_t i = 0; i < length; i++)
        for (unsigned j = 0; j < COUNT(WORDS); j++)
            if (length - i >= strlen(WORDS[j]) &&
                !strncasecmp(data + i, WORDS[j], strlen(WORDS[j])))
                return true;
    return false;
}

/* Let one client send some bytes several times. */
static void run_raw(const char *data, size_t length) {
    growing *first = &first_got;
    client *c = &clients[0];
    for (int i = 0; i < 3; i++) {
        start_stream();
        blocks_at_start = blocks();
        step_ns = 0;
        is_raw = true;
        is_cold = i == 2 && one_of(8) && !asks_for_header(data, length);
        client_count = 1;
        start_client(c, 3);
        if (!i) c->piece = c->read_piece = 0;
        c->is_limited = false;
        add_bytes(&c->sent, data, length);
        want(c)->kind = ANYTHING;
        end_stream();
        remove_continues(&c->got);
        remove_positions(&c->got);
        if (!i) {
            first->length = 0;
            reserve(first, 1);
            add_bytes(first, c->got.at, c->got.length);
            continue;
        }
        int status, expected_status;
        size_t some = before_refusal(&c->got, &status);
        size_t expected = before_refusal(first, &expected_status);
        CHECK(some == expected && (!some || !memcmp(first->at, c->got.at, some)));
        CHECK(!status == !expected_status);
    }
    bytes_sent += 3 * length;
}

static void prepare(void) {
    if (core) return;
    is_main = true;
    sem_init(&released, 0, 0);
    sem_init(&stopped, 0, 0);
    sem_init(&may_put, 0, 0);
    sem_init(&has_put, 0, 0);
    make_classes();
    make_core();
    start_gate();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    prepare();
    random_state = 1;
    for (size_t i = 0; i < length; i++) random_state = random_state * 31 + data[i];
    if (length && data[0] == 'R') {
        run_raw((const char *)data + 1, length - 1);
        return 0;
    }
    input = length ? data + 1 : data;
    input_end = data + length;
    run_stream();
    input = input_end = NULL;
    return 0;
}

#ifndef VC_FUZZER
static void end_gate(void) {
    vc_gate_stats stats;
    vc_gate_get_stats(gate, &stats);
    CHECK(!stats.open && !stats.idle && !stats.waiting && stats.most <= CONNECTIONS);
    vc_gate_free(gate);
    vc_readers_free(readers);
    CHECK(live_blocks == 0);
}

/* What one client may send, changed at random. */
static void run_random_raw(void) {
    static growing data;
    client *c = &clients[0];
    start_stream();
    client_count = 1;
    start_client(c, 3);
    add_requests(c);
    if (c->sent.length && one_of(2)) change_bytes(c, pick((uint32_t)c->sent.length));
    data.length = 0;
    add_bytes(&data, c->sent.at, c->sent.length);
    run_raw(data.at, data.length);
}

static void free_all(void) {
    end_gate();
    free(first_got.at);
    for (unsigned i = 0; i < CLIENTS; i++) {
        free(clients[i].sent.at);
        free(clients[i].got.at);
        free(clients[i].texts.at);
        free(clients[i].message.text.at);
        free(clients[i].message.answer.at);
    }
    vc_core_close(core);
    vc_core_free(core);
    vc_types_free(types);
    vc_writer_free(&writer);
    free(volume);
}

static void run_random(double seconds, uint64_t seed) {
    double start = seconds_now(), took = 0;
    uint64_t count_of = 0;
    prepare();
    while (took < seconds) {
        random_state = seed * 1000000007 + count_of++ * 0x632be59bd9b4e019;
        if (one_of(32)) run_random_raw();
        else run_stream();
        if (count_of % STREAMS_PER_GATE == 0) {
            end_gate();
            start_gate();
        }
        if (count_of % 256 == 0) took = seconds_now() - start;
    }
    took = seconds_now() - start;
    free_all();
    printf("%" PRIu64 " streams, %.0f in a second; %" PRIu64 " requests, %" PRIu64 " bytes\n",
           streams, (double)streams / took, requests_sent, bytes_sent);
    printf("%" PRIu64 " bodies stored, %" PRIu64 " of them synced\n", puts_by_gate, synced_puts);
    printf("answers: %" PRIu64 " by the gate, %" PRIu64 " by bjoern, %" PRIu64
           " refused; %" PRIu64 " cold reads; %" PRIu64 " timed out, %" PRIu64 " for room\n",
           by_gate, by_bjoern, by_refusal, cold_reads, timed_out, for_room);
}
#endif
