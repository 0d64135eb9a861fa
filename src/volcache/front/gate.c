#define _GNU_SOURCE
#include "gate.h"

#include <arpa/inet.h>
#include <errno.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "events.h"
#include "reading.h"

enum {
    /* Received first: a head and a small body. The rest of a larger body is received where it is
     * used: by the gate in `bytes` of its connection, or in bjoern's own buffer. */
    FIRST_BYTES = 4096,
    /* Larger bodies are passed to bjoern as they arrive. */
    COLLECTED_BYTES = 1 << 20,
    INPUT_BYTES = 16384,
    /* bjoern's buffer: what is passed at once. */
    PASSED_BYTES = 65536,
    /* Records that are larger are left to Python, which reads header and value apart. */
    RECORD_BYTES = 5 << 18,
    /* Of a path and of a head in an event. */
    EVENT_TEXT_BYTES = 4096,
    ANSWER_BYTES = 1024 + VC_MORE_BYTES,
    /* After the time for a transfer, a body or an answer must have been this fast since. */
    SLOWEST_BYTES_PER_SECOND = 500,
    /* Of the connections whose last request was cold, so many are handled before the loop looks
     * at the others again. */
    COLD_AT_ONCE = 4,
};
static const int64_t SECOND_NS = 1000000000;
/* How long to wait for the write lock, which the loop would otherwise wait for. */
static const int64_t LOCK_NS = 1000000;
static const int64_t LINGER_NS = INT64_C(2000000000);
/* With a ring, a read that has waited so long for a thread is refused: nginx must be able to tell
 * a slow disk from an instance that hangs. */
static const int64_t READ_WAIT_NS = INT64_C(1000000000);
/* Of freed memory: as much as `malloc.py` lets the process keep. */
static const size_t KEPT_BYTES = 64 << 20;

static const struct {
    int status;
    const char *phrase;
} STATUSES[] = {
    {400, "Bad Request"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {413, "Request Entity Too Large"},
    {417, "Expectation Failed"},
    {431, "Request Header Fields Too Large"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {505, "HTTP Version Not Supported"},
    {0, ""},
};

typedef enum {
    IDLE, WAITING, HEAD, QUEUED, ASKING, BODY, BUSY, COLD, SENDING, LINGER, STATES
} phase;

typedef enum { JOB_SENT, JOB_REST, JOB_PASS, JOB_FAILED } outcome;

typedef struct connection connection;

/* What a thread does for a connection. A read is awaited unless the thread sends the answer: then
 * the loop need not know before the client's next request. */
typedef struct {
    vc_job job;
    vc_put put;                 /* of a value among the bytes of the connection */
    connection *connection;
    int fd;
    bool answers;               /* otherwise only into memory */
    bool keeps_alive;
    vc_date date;
    const char *headers;        /* of the connection */
    /* The result. */
    outcome outcome;
    int64_t ended_ns;
    char *rest;                 /* what the socket had no room for */
    size_t rest_length;
    size_t path_length;
    char path[];                /* of the request: a slash and the key */
} cold_read;

struct connection {
    connection *next, *previous;    /* in the list of its state, by `since_ns` */
    int fd;
    phase state;
    vc_method method;
    bool keeps_alive;       /* after this request */
    bool is_ending;         /* bjoern is to close it */
    bool is_warm;           /* its head is passed, whatever it asks for */
    bool is_paused;         /* it is not watched for bytes */
    bool was_cold;          /* a thread has read for its last request */
    bool is_chunked;
    const char *headers;    /* more of them for the answer to its request; NULL: none */
    int64_t since_ns;       /* what its time is counted from */
    int64_t started_ns;     /* of its request */
    int64_t asked_ns;       /* when memcached was asked for it; 0: it was not */
    int64_t hot_ns;         /* how long that took */
    char *bytes;            /* that have arrived and are not used */
    size_t used, room, scanned;
    size_t head_length;     /* of the first request in `bytes`, while a thread reads for it */
    uint64_t body_left, body_taken;
    size_t collected;       /* bytes of a head and its body that have to arrive; 0: none */
    uint64_t reserved;      /* for its request; while it waits for that: how much it needs */
    bool is_admitted;       /* `reserved` is counted in `body_bytes` */
    vc_chunks chunks;
    char *rest;
    size_t rest_at, rest_length;
    cold_read *read;
    char address[INET6_ADDRSTRLEN];
};

typedef struct {
    connection *first, *last;
    unsigned count;
} list;

struct vc_gate {
    vc_gate_config config;
    vc_hooks hooks;
    connection **connections;   /* by descriptor */
    int connections_room;
    list lists[STATES];
    int64_t limits_ns[STATES];
    vc_reading reading;
    bool is_ready;
    vc_date date;
    vc_gate_counts counts;
    vc_gate_stats stats;
    vc_job_owner owner;         /* of the jobs for the reader threads */
    uint64_t body_bytes;        /* reserved for bodies and large answers */
    uint64_t body_bytes_most;   /* since freed memory was given back */
    uint64_t told_full;         /* times that there were too many connections */
    int64_t told_full_ns;
    int64_t pulse_ns, next_pulse_ns;    /* 0: none */
    bool is_pulse_asked, is_draining;   /* changed atomically */
    int64_t progress_ns;        /* a thread has completed a read, or the first one was queued */
    vc_request request;
    vc_events events;
    int passed_fd;              /* whose bytes are in `passed` */
    size_t passed_used;
    char input[INPUT_BYTES];
    char passed[PASSED_BYTES];
    char path[VC_HEAD_BYTES];
    uint8_t record[RECORD_BYTES];
};

/* --- Sockets -------------------------------------------------------------------------- */

static ssize_t socket_receive(int fd, void *buffer, size_t length) {
    return recv(fd, buffer, length, MSG_DONTWAIT);
}

static ssize_t socket_send(int fd, const struct iovec *parts, int count) {
    struct msghdr message = {.msg_iov = (struct iovec *)parts, .msg_iovlen = (size_t)count};
    return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void socket_shut(int fd, int how) { (void)!shutdown(fd, how); }

const vc_gate_io vc_gate_sockets = {socket_receive, socket_send, socket_shut};

static bool on_readable(void *context, int fd);

/* --- Connections by state --------------------------------------------------------------- */

static void take_out(vc_gate *gate, connection *c) {
    list *from = &gate->lists[c->state];
    if (c->previous) c->previous->next = c->next;
    else from->first = c->next;
    if (c->next) c->next->previous = c->previous;
    else from->last = c->previous;
    from->count--;
}

static void put_in(vc_gate *gate, connection *c, phase state, int64_t now_ns) {
    list *to = &gate->lists[state];
    c->state = state;
    c->since_ns = now_ns;
    c->next = NULL;
    c->previous = to->last;
    if (to->last) to->last->next = c;
    else to->first = c;
    to->last = c;
    to->count++;
}

/* Set the state, and count its time from now on. */
static void enter(vc_gate *gate, connection *c, phase state, int64_t now_ns) {
    take_out(gate, c);
    put_in(gate, c, state, now_ns);
}

static void pause_reading(vc_gate *gate, connection *c) {
    gate->config.link->pause(c->fd);
    c->is_paused = true;
}

static void resume_reading(vc_gate *gate, connection *c) {
    gate->config.link->resume(c->fd);
    c->is_paused = false;
}

static connection *find(vc_gate *gate, int fd) { return gate->connections[fd]; }

/* Have room for so many bytes that are not used yet. Returns false without memory. */
static bool reserve_bytes(connection *c, size_t room) {
    if (room <= c->room) return true;
    if (room < 1024) room = 1024;
    char *bytes = realloc(c->bytes, room);
    if (!bytes) return false;
    c->bytes = bytes;
    c->room = room;
    return true;
}

/* Keep bytes that are not used yet. Returns false without memory. */
static bool keep(connection *c, const char *data, size_t length) {
    if (!length) return true;
    if (!reserve_bytes(c, c->used + length)) return false;
    memcpy(c->bytes + c->used, data, length);
    c->used += length;
    return true;
}

/* Drop the first bytes; an idle connection keeps no memory for them. */
static void drop(connection *c, size_t length) {
    c->used -= length;
    c->scanned = 0;
    if (c->used) {
        memmove(c->bytes, c->bytes + length, c->used);
    } else {
        free(c->bytes);
        c->bytes = NULL;
        c->room = 0;
    }
}

static void end(connection *c) { c->is_ending = true; }

/* --- Dates ------------------------------------------------------------------------------ */

static void update_date(vc_gate *gate, int64_t now_ns) {
    if (now_ns < gate->date.ends_ns) return;
    int64_t now_us = vc_machine_us(), second = now_us / 1000000;
    /* Lets the store's clock see this date, so that it never stores a value before it. */
    if (gate->config.clock) vc_clock_now(gate->config.clock);
    if (second < 0) second = 0;
    if (second > VC_SECOND_MAX) second = VC_SECOND_MAX;
    gate->date.second = second;
    gate->date.ends_ns = now_ns + SECOND_NS - now_us % 1000000 * 1000;
    vc_put_date(gate->date.text, second);
}

static char *put(char *to, const char *text) {
    size_t length = strlen(text);
    memcpy(to, text, length);
    return to + length;
}

/* Write what follows the other headers of an answer; `more` may be NULL. */
static char *put_end(char *to, const vc_date *date, const char *more, bool keeps_alive) {
    to = put(to, "\r\nDate: ");
    memcpy(to, date->text, VC_DATE_BYTES);
    to += VC_DATE_BYTES;
    if (more) to = put(to, more);
    return put(to, keeps_alive ? "\r\nConnection: Keep-Alive\r\n\r\n"
                               : "\r\nConnection: close\r\n\r\n");
}

/* --- Receiving ---------------------------------------------------------------------------- */

/* Returns true if the connection ended. */
static bool discard(vc_gate *gate, connection *c) {
    for (int i = 0; i < 16; i++) {
        ssize_t got = gate->config.io->receive(c->fd, gate->input, INPUT_BYTES);
        if (got == 0 || (got < 0 && !vc_is_later(errno))) return true;
        if (got < 0) return false;
    }
    return false;
}

/* --- Events and counters ------------------------------------------------------------------- */

static void add_event(vc_gate *gate, const connection *c, const vc_event *event,
                      const char *path, const char *head) {
    size_t path_length = event->path_length < EVENT_TEXT_BYTES ? event->path_length
                                                               : EVENT_TEXT_BYTES;
    size_t head_length = event->head_length < EVENT_TEXT_BYTES ? event->head_length
                                                               : EVENT_TEXT_BYTES;
    size_t length = sizeof(vc_event) + path_length + head_length;
    vc_event *to = vc_events_add(&gate->events, &length, gate->config.on_events,
                                 gate->config.context);
    if (!to) return;
    *to = *event;
    to->length = (uint32_t)length;
    to->path_length = (uint32_t)path_length;
    to->head_length = (uint32_t)head_length;
    memcpy(to->address, c->address, sizeof(to->address));
    memcpy(to->text, path, path_length);
    memcpy(to->text + path_length, head, head_length);
}

/* Of a record that is a copy in memcached: the disk was not read. */
enum { NOT_READ = -1 };

/* Count a read of a key that is not promoted. */
static void count_disk_read(vc_gate *gate, const vc_record *record, int64_t now_ns, vc_text path) {
    const vc_gate_config *config = &gate->config;
    const uint8_t *key = (const uint8_t *)path.at + 1;
    if (config->copies &&
        vc_copies_count_read(config->copies, key, path.length - 1, now_ns / 1000000))
        config->on_hot(config->context, key, path.length - 1, record);
}

/* Count an answer, and add its event if Python has to know more. `record` is NULL without one;
 * `disk_ns`: how long it was read or written, or NOT_READ; `bytes` of a value are sent. */
static void count(vc_gate *gate, const connection *c, vc_answer answer, const vc_record *record,
                  int64_t disk_ns, int64_t ended_ns, uint64_t bytes, vc_text path,
                  vc_text head) {
    const vc_gate_config *config = &gate->config;
    int64_t took_ns = ended_ns - c->started_ns;
    bool is_read = record && answer != VC_PUT_STORED;
    vc_observe(&gate->counts.answers[answer], took_ns);
    if (is_read && disk_ns != NOT_READ) vc_observe(&gate->counts.reads, disk_ns);
    if (is_read) gate->counts.bytes_out += bytes;
    bool is_sampled = is_read && !(took_ns & config->sample_mask);
    if (!is_sampled && !config->logs_all && took_ns <= config->slow_ns &&
        took_ns <= config->long_ns && disk_ns <= config->long_ns)
        return;
    vc_event event = {
        .path_length = (uint32_t)path.length,
        .head_length = config->logs_all ? (uint32_t)head.length : 0,
        .answer = answer,
        .is_sampled = is_sampled,
        .started_ns = c->started_ns,
        .took_ns = took_ns,
        .disk_ns = disk_ns == NOT_READ ? 0 : disk_ns,
        .hot_ns = c->hot_ns,
        .ended_us = vc_machine_us(),
        .bytes = bytes,
    };
    if (record) {
        event.offset = record->offset;
        event.size = record->size;
        event.volume = record->volume;
    }
    add_event(gate, c, &event, path.at, head.at);
}

/* --- Refusing ------------------------------------------------------------------------------ */

/* Answer a request that is not passed to bjoern, and take no other on this connection. */
static void refuse(vc_gate *gate, connection *c, int status, const char *reason) {
    char answer[ANSWER_BYTES], *to = answer, text[VC_TEXT_BYTES + 100];
    int64_t started_ns = vc_monotonic_ns();
    int length = snprintf(text, sizeof(text), "%s%s\n", reason,
                          status == 405 ? gate->config.allow : "");
    unsigned row = 0;
    while (STATUSES[row].status && STATUSES[row].status != status) row++;
    update_date(gate, started_ns);
    to += sprintf(to, "HTTP/1.1 %d %s\r\n", status, STATUSES[row].phrase);
    if (status == 405) to += sprintf(to, "Allow: %s\r\n", gate->config.allow);
    if (status == 503) to = put(to, "Retry-After: 1\r\n");
    to += sprintf(to, "Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d", length);
    to = put_end(to, &gate->date, c->headers, false);
    struct iovec parts[2] = {{answer, (size_t)(to - answer)}, {text, (size_t)length}};
    gate->config.io->send(c->fd, parts, c->method == VC_HEAD ? 1 : 2);
    gate->config.io->shut(c->fd, SHUT_WR);
    if (c->used) drop(c, c->used);
    enter(gate, c, LINGER, started_ns);
    vc_event event = {
        .answer = VC_ANSWERS,
        .status = status,
        .method = (int)c->method,
        .started_ns = started_ns,
        .took_ns = vc_monotonic_ns() - started_ns,
        .ended_us = vc_machine_us(),
    };
    add_event(gate, c, &event, "", "");
}

/* --- Sending ------------------------------------------------------------------------------- */

/* Send head and value; what does not fit is copied to `rest`. Returns false if the connection
 * failed. */
static bool send_parts(const vc_gate_io *io, int fd, struct iovec parts[2], char **rest,
                       size_t *rest_length) {
    size_t total = parts[0].iov_len + parts[1].iov_len;
    ssize_t sent = io->send(fd, parts, parts[1].iov_len ? 2 : 1);
    *rest = NULL;
    *rest_length = 0;
    if (sent < 0 && !vc_is_later(errno)) return false;
    size_t done = sent < 0 ? 0 : (size_t)sent;
    if (done == total) return true;
    *rest = malloc(total - done);
    if (!*rest) return false;
    char *to = *rest;
    for (int i = 0; i < 2; i++) {
        size_t skipped = done < parts[i].iov_len ? done : parts[i].iov_len;
        memcpy(to, (char *)parts[i].iov_base + skipped, parts[i].iov_len - skipped);
        to += parts[i].iov_len - skipped;
        done -= skipped;
    }
    *rest_length = total - (size_t)(sent < 0 ? 0 : sent);
    return true;
}

/* Whether a transfer of so many bytes since some time is slower than it may be. */
static bool is_too_slow(const vc_gate *gate, int64_t since_ns, int64_t now_ns, uint64_t bytes) {
    int64_t limit_ns = gate->config.transfer_ns, took_ns = now_ns - since_ns;
    if (!limit_ns || took_ns <= limit_ns) return false;
    return (uint64_t)((took_ns - limit_ns) / SECOND_NS) * SLOWEST_BYTES_PER_SECOND > bytes;
}

static void send_rest(vc_gate *gate, connection *c, char *rest, size_t length) {
    c->rest = rest;
    c->rest_at = 0;
    c->rest_length = length;
    enter(gate, c, SENDING, vc_monotonic_ns());
    gate->config.link->watch_writes(c->fd, true);
}

static void on_writable(void *context, int fd) {
    vc_gate *gate = context;
    connection *c = find(gate, fd);
    struct iovec part = {c->rest + c->rest_at, c->rest_length - c->rest_at};
    ssize_t sent = gate->config.io->send(fd, &part, 1);
    if (sent < 0 && vc_is_later(errno)) return;
    if (sent >= 0) c->rest_at += (size_t)sent;
    int64_t now_ns = vc_monotonic_ns();
    bool is_slow = is_too_slow(gate, c->started_ns, now_ns, c->rest_at);
    if (sent >= 0 && c->rest_at < c->rest_length && !is_slow) {
        enter(gate, c, SENDING, now_ns);
        return;
    }
    if (c->rest_at < c->rest_length) end(c);
    if (is_slow) gate->stats.closed_transfer++;
    gate->config.link->watch_writes(fd, false);
    free(c->rest);
    c->rest = NULL;
    if (!c->keeps_alive) end(c);
    enter(gate, c, IDLE, now_ns);
    resume_reading(gate, c);
}

/* --- Answering ------------------------------------------------------------------------------ */

/* Write the headers of a record and send it with its value; `bytes` are those of the record. */
static bool send_value(const vc_gate_config *config, int fd, const char *source,
                       const vc_record *record,
                       const uint8_t *bytes, const vc_date *date, const char *more,
                       bool keeps_alive, char **rest, size_t *rest_length) {
    char headers[VC_HEADERS_BYTES + VC_MORE_BYTES], *to = put(headers, "HTTP/1.1 200 OK\r\n");
    int64_t remaining_ms = 0;
    if (record->expires_ms)
        remaining_ms = (int64_t)record->expires_ms - vc_clock_now(config->clock) / 1000;
    to = vc_put_headers_from(to, source, record, record->length, record->type, record->key, config->types,
                             date->second, remaining_ms);
    to = put_end(to, date, more, keeps_alive);
    struct iovec parts[2] = {
        {headers, (size_t)(to - headers)},
        {(uint8_t *)bytes + record->prefix, record->length},
    };
    return send_parts(config->io, fd, parts, rest, rest_length);
}

/* Whether a record that was read may be sent; if not, Python decides. */
static bool is_plain(const vc_gate_config *config, const vc_record *record) {
    if (record->stored_us / 1000000 >= VC_SECOND_MAX) return false;
    return !record->expires_ms ||
           (int64_t)record->expires_ms > vc_clock_now(config->clock) / 1000;
}

/* What becomes of a request. */
typedef enum {
    PASS,       /* bjoern answers it */
    COLLECT,    /* it is handled when all its bytes are those of the connection */
    ANSWERED,   /* it was answered */
    STARTED,    /* the connection waits: for a thread, or for room in the socket */
    ENDED,      /* the connection is to be closed */
    REFUSED,    /* it was answered, and no other is taken */
} fate;

/* What becomes of a request whose answer was sent but for `rest`. */
static fate end_answer(vc_gate *gate, connection *c, bool is_good, char *rest, size_t length) {
    if (rest) {
        send_rest(gate, c, rest, length);
        return STARTED;
    }
    if (is_good && c->keeps_alive) return ANSWERED;
    end(c);
    return ENDED;
}

/* --- Copies in memcached -------------------------------------------------------------------- */

/* How memcached may be used for the key of a path; `name` is that of its item. */
static vc_copy_use find_copy(const vc_gate *gate, vc_text path, uint8_t name[VC_ITEM_BYTES]) {
    if (!gate->config.copies) return VC_NO_COPY;
    return vc_copies_find(gate->config.copies, (const uint8_t *)path.at + 1, path.length - 1, name);
}

/* What memcached has for a request.
 *   VC_HOT_FOUND    `copy`, `length`, until bjoern or the gate has answered;
 *   VC_HOT_ABSENT   nothing, or it cannot be asked;
 *   VC_HOT_MORE     it is asked, and the connection waits: the request is handled again then. The
 *                   caller keeps the head;
 *   VC_HOT_REFUSED  Python has to ask. */
static vc_hot_result ask(vc_gate *gate, connection *c, const uint8_t name[VC_ITEM_BYTES],
                         const uint8_t **copy, size_t *length) {
    vc_hot *hot = gate->config.hot;
    if (!hot) return VC_HOT_REFUSED;
    vc_hot_result result = vc_hot_asked(hot, name, copy, length);
    if (result != VC_HOT_MORE) return result;
    if (!vc_hot_get(hot, name, c)) return VC_HOT_ABSENT;
    c->asked_ns = c->started_ns;
    enter(gate, c, ASKING, c->started_ns);
    return VC_HOT_MORE;
}

/* Whether memcached was asked for an item, and the request is handled again. */
static bool was_asked(const vc_gate *gate, const uint8_t name[VC_ITEM_BYTES]) {
    const uint8_t *copy;
    size_t length;
    return gate->config.hot && vc_hot_asked(gate->config.hot, name, &copy, &length) != VC_HOT_MORE;
}

/* Handle a request again that memcached was asked for. */
static void on_copy(void *context, void *owner) {
    vc_gate *gate = context;
    connection *c = owner;
    enter(gate, c, IDLE, vc_monotonic_ns());
    if (c->is_paused) resume_reading(gate, c);
    if (on_readable(gate, c->fd)) gate->config.link->deliver(c->fd);
}

/* Send a copy, if it is the record that the index names. All else is decided in Python. */
static fate answer_copy(vc_gate *gate, connection *c, vc_text path, vc_text head,
                        const uint8_t *copy, size_t length) {
    const uint8_t *key = (const uint8_t *)path.at + 1;
    const vc_core_functions *functions = gate->config.functions;
    vc_core *core = gate->config.core;
    vc_lookup at;
    vc_record record;
    char *rest;
    size_t rest_length;
    if (!functions->lookup(core, key, path.length - 1, UINT64_MAX, &at)) return PASS;
    vc_status status = functions->check(core, key, path.length - 1, &at, copy, length, &record);
    functions->end_read(core);
    if (status != VC_OK || !is_plain(&gate->config, &record)) return PASS;
    bool is_good = send_value(&gate->config, c->fd, "MEMC", &record, copy, &gate->date, c->headers,
                              c->keeps_alive, &rest, &rest_length);
    count(gate, c, VC_GET_COPY, &record, NOT_READ, vc_monotonic_ns(), record.length, path, head);
    return end_answer(gate, c, is_good, rest, rest_length);
}

/* Read the disk first, from now on. */
static void forget_copy(vc_gate *gate, vc_text path) {
    vc_copies_ask_first(gate->config.copies, (const uint8_t *)path.at + 1, path.length - 1, false);
}

/* Answer a request for a key that memcached is asked for first. Returns whether that is decided;
 * otherwise the disk is read, and memcached is not asked first any more. */
static bool try_copy(vc_gate *gate, connection *c, vc_text path, vc_text head,
                     const uint8_t name[VC_ITEM_BYTES], fate *decision) {
    const uint8_t *copy;
    size_t length;
    switch (ask(gate, c, name, &copy, &length)) {
    case VC_HOT_MORE:
        *decision = STARTED;
        return true;
    case VC_HOT_FOUND:
        *decision = answer_copy(gate, c, path, head, copy, length);
        return true;
    case VC_HOT_ABSENT:
        forget_copy(gate, path);
        return false;
    default:
        *decision = PASS;
        return true;
    }
}

/* Whether memcached may have what is not on the disk. If so, `decision` says what to do. */
static bool may_have_copy(vc_gate *gate, connection *c, vc_text path, fate *decision) {
    uint8_t name[VC_ITEM_BYTES];
    const uint8_t *copy;
    size_t length;
    if (find_copy(gate, path, name) == VC_NO_COPY) return false;
    vc_hot_result result = ask(gate, c, name, &copy, &length);
    *decision = result == VC_HOT_MORE ? STARTED : PASS;
    return result != VC_HOT_ABSENT;
}

/* --- Misses and hits ------------------------------------------------------------------------ */

/* Send an answer from memory, and count it; `length` bytes of a text follow its headers. */
static fate send_answer(vc_gate *gate, connection *c, vc_answer answer, struct iovec parts[2],
                        const vc_record *record, int64_t disk_ns, vc_text path, vc_text head) {
    char *rest;
    size_t rest_length;
    bool is_good = send_parts(gate->config.io, c->fd, parts, &rest, &rest_length);
    c->is_warm = false;
    count(gate, c, answer, record, disk_ns, vc_monotonic_ns(), parts[1].iov_len, path, head);
    return end_answer(gate, c, is_good, rest, rest_length);
}

/* Send headers without a body, which begin at `headers` and are written up to `to`. */
static fate send_headers(vc_gate *gate, connection *c, vc_answer answer, char *headers, char *to,
                         const vc_record *record, int64_t disk_ns, vc_text path, vc_text head) {
    to = put_end(to, &gate->date, c->headers, c->keeps_alive);
    struct iovec parts[2] = {{headers, (size_t)(to - headers)}, {to, 0}};
    return send_answer(gate, c, answer, parts, record, disk_ns, path, head);
}

static fate send_miss(vc_gate *gate, connection *c, vc_answer answer, vc_text path,
                      vc_text head) {
    static const char TEXT[] = "no value is stored under this key\n";
    char headers[ANSWER_BYTES], *to = headers;
    to = put(to, "HTTP/1.1 404 Not Found\r\nX-Cache: MISS\r\n"
                 "Content-Type: text/plain; charset=utf-8\r\nContent-Length: ");
    to = put_end(vc_put_number(to, sizeof(TEXT) - 1), &gate->date, c->headers,
                 c->keeps_alive);
    struct iovec parts[2] = {{headers, (size_t)(to - headers)},
                             {(char *)TEXT, answer == VC_HEAD_MISS ? 0 : sizeof(TEXT) - 1}};
    return send_answer(gate, c, answer, parts, NULL, NOT_READ, path, head);
}

static fate answer_miss(vc_gate *gate, connection *c, vc_text path, vc_text head) {
    bool is_stale;
    fate decision;
    if (!gate->is_ready || path.length - 1 > gate->config.key_size ||
        !vc_path_is_ordinary(path.at, path.length))
        return PASS;
    if (may_have_copy(gate, c, path, &decision)) return decision;
    if (!gate->config.functions->is_absent(gate->config.core, (const uint8_t *)path.at + 1,
                                           path.length - 1, true, &is_stale))
        return PASS;
    if (is_stale) gate->counts.evicted++;
    else gate->counts.absent++;
    return send_miss(gate, c, c->method == VC_HEAD ? VC_HEAD_MISS : VC_GET_MISS, path, head);
}

/* Let the connection wait for a thread, until `finish_read`. NULL without memory. */
static cold_read *start_waiting(vc_gate *gate, connection *c, vc_text path) {
    cold_read *started = malloc(sizeof(cold_read) + path.length);
    if (!started) return NULL;
    *started = (cold_read){
        .job.owner = &gate->owner,
        .job.key = (const uint8_t *)started->path + 1,
        .job.key_length = path.length - 1,
        .job.added_ns = c->started_ns + c->hot_ns,
        .connection = c,
        .fd = c->fd,
        .keeps_alive = c->keeps_alive,
        .date = gate->date,
        .headers = c->headers,
        .path_length = path.length,
    };
    memcpy(started->path, path.at, path.length);
    c->read = started;
    if (!gate->lists[COLD].count) gate->progress_ns = c->started_ns;
    enter(gate, c, COLD, c->started_ns);
    return started;
}

/* Let a thread read a record; without `answers`, only so that it is in memory. The caller keeps
 * the head, as the request is passed to bjoern if the record cannot be sent. Takes over the read
 * of `at`, unless it returns PASS. */
static fate start_job(vc_gate *gate, connection *c, vc_text path, const vc_lookup *at,
                      bool answers) {
    cold_read *started = start_waiting(gate, c, path);
    if (!started) return PASS;
    started->job.at = *at;
    started->job.is_awaited = !answers || !c->keeps_alive;
    started->answers = answers;
    gate->stats.cold++;
    vc_readers_add(gate->config.readers, &started->job);
    c->was_cold = true;
    return STARTED;
}

static fate answer_get(vc_gate *gate, connection *c, vc_text path, vc_text head) {
    vc_core *core = gate->config.core;
    const vc_core_functions *functions = gate->config.functions;
    vc_lookup at;
    vc_record record;
    char *rest;
    size_t rest_length;
    const uint8_t *key = (const uint8_t *)path.at + 1;
    uint8_t name[VC_ITEM_BYTES];
    fate decision;
    bool is_promoted = find_copy(gate, path, name) == VC_COPY_FIRST;
    bool asks_later = is_promoted && gate->config.memory_first && !was_asked(gate, name);
    if (is_promoted && !asks_later && try_copy(gate, c, path, head, name, &decision))
        return decision;
    if (!functions->lookup(core, key, path.length - 1, RECORD_BYTES, &at))
        return answer_miss(gate, c, path, head);
    if (at.size > RECORD_BYTES) {
        functions->end_read(core);
        return PASS;
    }
    vc_status status = vc_read_now(core, functions, &gate->reading, key, path.length - 1, &at,
                                   gate->record, &record);
    int64_t read_ns = vc_monotonic_ns() - c->started_ns - c->hot_ns;
    if (status == VC_COLD && asks_later && try_copy(gate, c, path, head, name, &decision)) {
        functions->end_read(core);
        return decision;
    }
    if (status == VC_COLD) {
        decision = start_job(gate, c, path, &at, true);
        if (decision == PASS) functions->end_read(core);
        return decision;
    }
    functions->end_read(core);
    /* Until Python has found out whether the disk can be read. */
    if (status == VC_IO_ERROR) gate->is_ready = false;
    if (status != VC_OK || !is_plain(&gate->config, &record)) return PASS;
    bool is_good = send_value(&gate->config, c->fd, "DISK", &record, gate->record, &gate->date,
                              c->headers, c->keeps_alive, &rest, &rest_length);
    int64_t ended_ns = vc_monotonic_ns();
    count(gate, c, VC_GET_HIT, &record, read_ns, ended_ns, record.length, path, head);
    if (!asks_later) count_disk_read(gate, &record, ended_ns, path);
    return end_answer(gate, c, is_good, rest, rest_length);
}

/* Answer a HEAD, or a GET with a condition, from the header of the record. Reads no value, and
 * is no hit for the eviction policy, as `App._head`. */
static fate answer_head(vc_gate *gate, connection *c, const vc_request *request, vc_text path,
                        vc_text head) {
    const vc_gate_config *config = &gate->config;
    const vc_core_functions *functions = config->functions;
    const uint8_t *key = (const uint8_t *)path.at + 1;
    char headers[VC_HEADERS_BYTES + VC_MORE_BYTES], *to = headers;
    bool is_head = request->method == VC_HEAD;
    int64_t remaining_ms = 0;
    vc_lookup at;
    vc_record record;
    if (!functions->peek(config->core, key, path.length - 1, &at))
        return answer_miss(gate, c, path, head);
    vc_status status = vc_read_head_now(config->core, functions, &gate->reading, key,
                                        path.length - 1, &at, gate->record, &record);
    int64_t read_ns = vc_monotonic_ns() - c->started_ns;
    functions->end_read(config->core);
    if (status == VC_IO_ERROR) gate->is_ready = false;
    if (status != VC_OK || !is_plain(config, &record)) return PASS;
    vc_verdict verdict = vc_is_unmodified(request, &record, gate->date.second);
    if (verdict != VC_TRUE && verdict != VC_UNMODIFIED) return PASS;
    if (verdict == VC_TRUE && !is_head) {
        if (c->is_warm) return PASS;
        vc_observe(&gate->counts.reads, read_ns);
        return answer_get(gate, c, path, head);
    }
    if (record.expires_ms)
        remaining_ms = (int64_t)record.expires_ms - vc_clock_now(config->clock) / 1000;
    if (verdict == VC_TRUE) {
        to = vc_put_value_headers(put(to, "HTTP/1.1 200 OK\r\n"), &record, record.type, record.key,
                                  config->types, gate->date.second, remaining_ms);
        return send_headers(gate, c, VC_HEAD_HIT, headers, to, &record, read_ns, path, head);
    }
    to = vc_put_unmodified_headers(put(to, "HTTP/1.1 304 Not Modified\r\n"), &record,
                                   record.type, gate->date.second, remaining_ms);
    return send_headers(gate, c, is_head ? VC_HEAD_UNMODIFIED : VC_GET_UNMODIFIED, headers, to,
                        &record, read_ns, path, head);
}

/* Let a thread read what bjoern's application is about to read, if it is not in memory, and ask
 * memcached for what the application would ask for. */
static fate warm_up(vc_gate *gate, connection *c, const vc_request *request, vc_text path) {
    vc_lookup at;
    bool reads = request->method == VC_GET || request->method == VC_HEAD ||
                 request->method == VC_DELETE || request->method == VC_PROPFIND ||
                 vc_is_special(request) || vc_has_condition(request);
    vc_core *core = gate->config.core;
    const vc_core_functions *functions = gate->config.functions;
    uint8_t name[VC_ITEM_BYTES];
    fate decision;
    if (!reads || c->is_warm || path.length < 2) return PASS;
    if (request->method == VC_GET && !gate->config.memory_first &&
        find_copy(gate, path, name) == VC_COPY_FIRST) {
        if (may_have_copy(gate, c, path, &decision)) return decision;
        forget_copy(gate, path);
    }
    if (!functions->peek(core, (const uint8_t *)path.at + 1, path.length - 1, &at))
        return may_have_copy(gate, c, path, &decision) ? decision : PASS;
    bool is_cold = at.size <= RECORD_BYTES &&
                   gate->reading != VC_AT_ONCE &&
                   (gate->reading == VC_BY_THREADS ||
                    !functions->is_cached(core, &at, 0) ||
                    (request->method == VC_GET &&
                     !functions->is_cached(core, &at, at.size - at.size / 8 - 1)));
    decision = is_cold ? start_job(gate, c, path, &at, false) : PASS;
    if (decision == PASS) functions->end_read(core);
    return decision;
}

/* Its body is no longer in memory. */
static void release(vc_gate *gate, connection *c) {
    if (c->is_admitted) gate->body_bytes -= c->reserved;
    c->is_admitted = false;
    c->reserved = 0;
}

/* Store a value, or delete a key if the caller wants to know whether it `existed`, and invalidate
 * the copies: together, as `Cache` does. */
static vc_status change(const vc_gate_config *config, vc_put *record, bool *existed) {
    const vc_core_functions *functions = config->functions;
    uint64_t now_ms = (uint64_t)vc_clock_now(config->clock) / 1000;
    if (config->copies && !functions->try_acquire(config->core, LOCK_NS)) return VC_DEFERRED;
    vc_status status = existed ? functions->delete(config->core, record, now_ms, existed)
                               : functions->put(config->core, record);
    if (!config->copies) return status;
    if (status == VC_OK)
        vc_copies_invalidate(config->copies, record->key, record->record.key_length);
    functions->release(config->core);
    return status;
}

/* Answer a PUT whose value is stored. */
static fate send_stored(vc_gate *gate, connection *c, vc_put *stored, vc_text path,
                        vc_text head) {
    char headers[ANSWER_BYTES], *to = put(headers, "HTTP/1.1 200 OK\r\n");
    release(gate, c);
    vc_observe(&gate->counts.writes, stored->took_ns);
    gate->counts.bytes_in += stored->record.length;
    to = vc_put_stored_headers(to, &stored->record);
    fate decision = send_headers(gate, c, VC_PUT_STORED, headers, to, &stored->record,
                                 stored->took_ns, path, head);
    /* After the answer: it may wait for a sync. */
    if (stored->is_due) gate->config.on_due(gate->config.context);
    return decision;
}

/* Let the thread store a value that is to be synced: the bytes of the connection, which stay where
 * they are. The copies of its key could not be invalidated together with that. */
static fate start_put(vc_gate *gate, connection *c, const vc_put *stored, vc_text path,
                      vc_text head) {
    if (c->is_warm || gate->config.copies) return PASS;
    if (head.at != c->bytes) return COLLECT;
    cold_read *started = start_waiting(gate, c, path);
    if (!started) return PASS;
    started->put = *stored;
    started->put.key = started->job.key;
    started->job.put = &started->put;
    vc_readers_put(gate->config.readers, &started->job);
    return STARTED;
}

/* Answer a plain PUT. What is not stored is passed to bjoern, with all its bytes. */
static fate answer_put(vc_gate *gate, connection *c, vc_put *stored, vc_text path,
                       vc_text head) {
    vc_status status = change(&gate->config, stored, NULL);
    if (status == VC_TOGETHER) return start_put(gate, c, stored, path, head);
    return status == VC_OK ? send_stored(gate, c, stored, path, head) : PASS;
}

/* What memcached may have is deleted in Python, which has to know whether it had it. */
static fate answer_delete(vc_gate *gate, connection *c, vc_text path, vc_text head) {
    char headers[ANSWER_BYTES], *to = put(headers, "HTTP/1.1 200 OK\r\nContent-Length: 0");
    bool existed;
    vc_put deleted = {
        .record.key_length = (uint16_t)(path.length - 1),
        .key = (const uint8_t *)path.at + 1,
        .ring = VC_RING_UNKNOWN,
    };
    if (find_copy(gate, path, NULL) != VC_NO_COPY ||
        change(&gate->config, &deleted, &existed) != VC_OK)
        return PASS;
    if (deleted.started_ns) vc_observe(&gate->counts.writes, deleted.took_ns);
    if (deleted.is_due) gate->config.on_due(gate->config.context);
    if (!existed) return send_miss(gate, c, VC_DELETE_MISS, path, head);
    return send_headers(gate, c, VC_DELETE_DONE, headers, to, NULL, deleted.took_ns, path, head);
}

/* Whether the gate may answer a GET or HEAD; maybe only without a condition. */
static bool may_read(const vc_gate_config *config, const vc_request *request, vc_text path) {
    return config->answers && (request->method == VC_GET || request->method == VC_HEAD) &&
           !vc_is_special(request) && !request->is_chunked && !request->content_length &&
           path.length > 1 && !(path.length > 2 && path.at[1] == '-' && path.at[2] == '/') &&
           vc_parts_have(&config->ring, path.at, path.length) &&
           vc_tokens_allow(&config->may_read, vc_only(request, VC_FIELD_AUTHORIZATION));
}

/* Whether the gate may change the key of a path. */
static bool may_write(const vc_gate_config *config, const vc_request *request, vc_text path) {
    return config->puts && vc_parts_have(&config->writable, path.at, path.length) &&
           vc_tokens_allow(&config->may_write, vc_only(request, VC_FIELD_AUTHORIZATION));
}

/* `data` are the bytes after the head; `used`: how many of them were part of the body, if it was
 * answered. */
static fate decide(vc_gate *gate, connection *c, const vc_request *request, const char *data,
                   size_t length, size_t *used) {
    const vc_gate_config *config = &gate->config;
    vc_put stored;
    fate decision = PASS;
    if (!config->core) return PASS;
    vc_text path = {gate->path, vc_request_key(request, config->query, gate->path,
                                               sizeof(gate->path))};
    if (!path.length) return PASS;
    vc_text head = {request->method_text.at, request->length};
    if (may_read(config, request, path)) {
        if (request->method == VC_HEAD || vc_has_condition(request))
            decision = answer_head(gate, c, request, path, head);
        else if (!c->is_warm)
            return answer_get(gate, c, path, head);
    } else if (request->content_length <= COLLECTED_BYTES &&
               vc_plain_put(request, path, config->key_size, &stored) &&
               may_write(config, request, path)) {
        if (length < request->content_length) return COLLECT;
        *used = request->content_length;
        stored.value = (const uint8_t *)data;
        return answer_put(gate, c, &stored, path, head);
    } else if (vc_plain_delete(request, path, config->key_size) &&
               may_write(config, request, path)) {
        decision = answer_delete(gate, c, path, head);
    }
    return decision == PASS ? warm_up(gate, c, request, path) : decision;
}

/* --- The reader threads ---------------------------------------------------------------------- */

/* Send a record that was read, if it is to be sent. Returns whether the loop has to know. */
static bool use_record(vc_job *job, const uint8_t *bytes) {
    cold_read *read = (cold_read *)job;
    const vc_gate_config *config = &((vc_gate *)job->owner->context)->config;
    read->outcome = JOB_PASS;
    if (!read->answers || job->status != VC_OK || !is_plain(config, &job->record)) return true;
    bool is_good = send_value(config, read->fd, "DISK", &job->record, bytes, &read->date,
                              read->headers, read->keeps_alive, &read->rest, &read->rest_length);
    read->outcome = !is_good ? JOB_FAILED : read->rest ? JOB_REST : JOB_SENT;
    read->ended_ns = vc_monotonic_ns();
    return read->outcome != JOB_SENT;
}

static void wake_loop(void *context) { ((vc_gate *)context)->config.link->wake(); }

/* Let bjoern have the request that the connection has waited with. */
static void pass_waiting(vc_gate *gate, connection *c) {
    c->is_warm = true;
    enter(gate, c, HEAD, vc_monotonic_ns());
    resume_reading(gate, c);
}

static void finish_put(vc_gate *gate, cold_read *done) {
    connection *c = done->connection;
    vc_put *stored = &done->put;
    vc_text path = {done->path, done->path_length}, head = {c->bytes, c->head_length};
    c->read = NULL;
    if (stored->status != VC_OK) {
        pass_waiting(gate, c);
        return;
    }
    update_date(gate, vc_monotonic_ns());
    fate decision = send_stored(gate, c, stored, path, head);
    drop(c, c->head_length + stored->record.length);
    if (decision == STARTED) return;
    enter(gate, c, IDLE, vc_monotonic_ns());
    if (c->is_paused || c->is_ending || c->used) resume_reading(gate, c);
}

static void finish_read(vc_gate *gate, cold_read *read) {
    connection *c = read->connection;
    const vc_job *job = &read->job;
    vc_text path = {read->path, read->path_length}, head = {c->bytes, c->head_length};
    if (c->is_ending) head.length = 0; /* There was no memory for it. */
    c->read = NULL;
    if (job->is_given_up && !c->is_ending) {
        refuse(gate, c, 503, "the disk is too slow: the read has waited for a second; try again");
        if (c->is_paused) resume_reading(gate, c);
        return;
    }
    if (read->outcome == JOB_PASS && !c->is_ending) {
        pass_waiting(gate, c);
        return;
    }
    if (read->outcome == JOB_SENT || read->outcome == JOB_REST) {
        count(gate, c, VC_GET_HIT, &job->record, job->read_ns, read->ended_ns,
              job->record.length, path, head);
        count_disk_read(gate, &job->record, read->ended_ns, path);
    }
    if (!c->is_ending) drop(c, c->head_length);
    if (read->outcome == JOB_REST) {
        send_rest(gate, c, read->rest, read->rest_length);
        return;
    }
    if (read->outcome == JOB_FAILED || !read->keeps_alive) end(c);
    enter(gate, c, IDLE, vc_monotonic_ns());
    if (c->is_paused || c->is_ending || c->used) resume_reading(gate, c);
}

/* Finish what the threads have done. `awaited`: the read of a connection that the loop waits
 * for, from now on; NULL: none. */
static void take_done(vc_gate *gate, cold_read *awaited) {
    vc_job *job = vc_job_owner_take(&gate->owner, awaited ? &awaited->job : NULL);
    if (job) gate->progress_ns = vc_monotonic_ns();
    while (job) {
        vc_job *next = job->next;
        (job->put ? finish_put : finish_read)(gate, (cold_read *)job);
        free(job);
        job = next;
    }
}

static void on_woken(void *context) { take_done(context, NULL); }

/* --- Passing to bjoern ------------------------------------------------------------------------ */

/* Take bytes of a chunked body. Returns the bytes written to `to`, -1 if it was refused. */
static ssize_t take_chunks(vc_gate *gate, connection *c, const char *data, size_t length,
                           size_t *used, char *to) {
    const char *reason = NULL;
    char text[VC_TEXT_BYTES];
    size_t written = 0;
    vc_chunks_state state =
        vc_chunks_take(&c->chunks, data, length, used, to, &written, &reason);
    if (state == VC_CHUNKS_REFUSED) {
        refuse(gate, c, 400, reason);
        return -1;
    }
    if (c->chunks.total > gate->config.value_size) {
        snprintf(text, sizeof(text), "value is at least %llu bytes long; allowed are 0 to %llu",
                 (unsigned long long)c->chunks.total,
                 (unsigned long long)gate->config.value_size);
        refuse(gate, c, 413, text);
        return -1;
    }
    if (state == VC_CHUNKS_END) c->is_chunked = false;
    return (ssize_t)written;
}

/* The whole body was passed: bjoern answers now. */
static bool is_body_complete(const connection *c) { return !c->is_chunked && !c->body_left; }

/* Write the request for bjoern to `passed`, with as much of the body as there is. `data` are the
 * bytes after the head. Returns true if bjoern is to read. */
static bool pass(vc_gate *gate, connection *c, const vc_request *request, const char *data,
                 size_t length, size_t *used) {
    size_t head = vc_request_write(request, gate->passed);
    if (!head || (request->is_chunked && head + VC_CHUNKS_ROOM(length) > PASSED_BYTES)) {
        refuse(gate, c, 431, "the head of the request is too long");
        return false;
    }
    c->is_warm = false;
    c->is_chunked = request->is_chunked;
    c->body_left = request->has_length ? request->content_length : 0;
    c->body_taken = 0;
    c->chunks = (vc_chunks){0};
    *used = 0;
    if (c->is_chunked) {
        ssize_t written = take_chunks(gate, c, data, length, used, gate->passed + head);
        if (written < 0) return false;
        head += (size_t)written;
    } else if (c->body_left) {
        *used = length < c->body_left ? length : (size_t)c->body_left;
        if (*used > PASSED_BYTES - head) *used = PASSED_BYTES - head;
        memcpy(gate->passed + head, data, *used);
        head += *used;
        c->body_left -= *used;
    }
    gate->passed_fd = c->fd;
    gate->passed_used = head;
    gate->stats.passed++;
    enter(gate, c, is_body_complete(c) ? BUSY : BODY, c->started_ns);
    return true;
}

/* --- Memory for bodies --------------------------------------------------------------------- */

static bool has_room(const vc_gate *gate, uint64_t bytes) {
    return gate->body_bytes + bytes <= gate->config.body_memory;
}

static void admit(vc_gate *gate, connection *c, uint64_t bytes) {
    c->is_admitted = true;
    c->reserved = bytes;
    gate->body_bytes += bytes;
    if (gate->body_bytes > gate->body_bytes_most) gate->body_bytes_most = gate->body_bytes;
}

/* The bytes that a request needs while bjoern answers it: those of its body, or of the record that
 * is the answer, if it is too large for the gate. */
static uint64_t room_for(vc_gate *gate, const vc_request *request) {
    const vc_gate_config *config = &gate->config;
    vc_lookup at;
    if (request->is_chunked) return config->value_size;
    if (request->content_length) return request->content_length;
    if (request->method != VC_GET || !config->core) return 0;
    size_t length = vc_request_key(request, config->query, gate->path, sizeof(gate->path));
    if (length < 2 ||
        !config->functions->peek(config->core, (const uint8_t *)gate->path + 1, length - 1, &at))
        return 0;
    config->functions->end_read(config->core);
    if (at.size <= RECORD_BYTES) return 0;
    return at.size < config->body_memory ? at.size : config->body_memory;
}

/* Whether there is room for a request that is passed; otherwise the connection waits for it. */
static bool reserve_room(vc_gate *gate, connection *c, const vc_request *request) {
    uint64_t bytes = c->is_admitted ? 0 : room_for(gate, request);
    if (!bytes) return true;
    if (!gate->lists[QUEUED].count && has_room(gate, bytes)) {
        admit(gate, c, bytes);
        return true;
    }
    c->reserved = bytes;
    pause_reading(gate, c);
    enter(gate, c, QUEUED, c->started_ns);
    return false;
}

/* Give back freed memory after many bodies: malloc does so only at the end of the heap. */
static void trim(vc_gate *gate) {
    if (gate->body_bytes_most <= KEPT_BYTES || gate->body_bytes > gate->body_bytes_most / 2) return;
    gate->body_bytes_most = gate->body_bytes;
    malloc_trim(KEPT_BYTES);
}

static void refuse_slow(vc_gate *gate, connection *c) {
    gate->stats.closed_transfer++;
    refuse(gate, c, 408, "the body of the request arrives too slowly; try again");
}

/* Take some of a body that was collected, and that the gate has not stored after all. */
static ssize_t take_collected(connection *c, char *buffer, size_t length) {
    if (length > c->used) length = c->used;
    memcpy(buffer, c->bytes, length);
    drop(c, length);
    return (ssize_t)length;
}

/* Let bjoern read the rest of it, which the socket does not announce. */
static void announce_collected(vc_gate *gate, connection *c) {
    if (c->state == BODY && !c->is_chunked && c->used) resume_reading(gate, c);
}

/* Receive more of a body, straight into bjoern's buffer. */
static ssize_t take_body(vc_gate *gate, connection *c, char *buffer, size_t length) {
    ssize_t got;
    if (!c->is_chunked) {
        if (length > c->body_left) length = (size_t)c->body_left;
        got = c->used ? take_collected(c, buffer, length)
                      : gate->config.io->receive(c->fd, buffer, length);
        if (got <= 0) return got;
        c->body_left -= (size_t)got;
        c->body_taken += (size_t)got;
    } else {
        size_t used;
        got = gate->config.io->receive(c->fd, gate->input, INPUT_BYTES);
        if (got <= 0) return got;
        ssize_t written = take_chunks(gate, c, gate->input, (size_t)got, &used, buffer);
        errno = EAGAIN;
        if (written < 0) return -1;
        if (!keep(c, gate->input + used, (size_t)got - used)) return 0;
        c->body_taken += (size_t)got;
        got = written;
    }
    int64_t now_ns = vc_monotonic_ns();
    if (!is_body_complete(c) && is_too_slow(gate, c->started_ns, now_ns, c->body_taken)) {
        refuse_slow(gate, c);
        errno = EAGAIN;
        return -1;
    }
    enter(gate, c, is_body_complete(c) ? BUSY : BODY, now_ns);
    announce_collected(gate, c);
    errno = EAGAIN;
    return got ? got : -1;
}

static ssize_t on_take(void *context, int fd, void *buffer, size_t length) {
    vc_gate *gate = context;
    connection *c = find(gate, fd);
    if (c->is_ending) return 0;
    if (c->state == LINGER) {
        errno = EAGAIN;
        return -1;
    }
    size_t given = 0;
    if (gate->passed_used && gate->passed_fd == fd) {
        given = gate->passed_used;
        gate->passed_used = 0;
        if (given > length) return 0; /* bjoern's buffer is PASSED_BYTES long. */
        memcpy(buffer, gate->passed, given);
        if (c->state != BODY || c->is_chunked) return (ssize_t)given;
        if (given == length) {
            announce_collected(gate, c);
            return (ssize_t)given;
        }
    }
    if (c->state != BODY) {
        errno = EAGAIN;
        return -1;
    }
    ssize_t got = take_body(gate, c, (char *)buffer + given, length - given);
    if (!given) return got;
    /* The end of the connection is met again. */
    return (ssize_t)given + (got > 0 ? got : 0);
}

/* --- Requests ---------------------------------------------------------------------------------- */

static void ask_for_body(vc_gate *gate, const connection *c) {
    static char CONTINUE[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct iovec part = {CONTINUE, sizeof(CONTINUE) - 1};
    gate->config.io->send(c->fd, &part, 1);
}

/* Return the headers that tell a browser which pages may see the answer. */
static const char *headers_for(vc_gate *gate, const vc_request *request) {
    const vc_gate_config *config = &gate->config;
    const vc_text *origin = NULL;
    if (request->path.length > sizeof(gate->path)) return NULL;
    size_t length = vc_path_decode(request->path, gate->path);
    if (length >= 3 && !memcmp(gate->path, "/-/", 3)) return NULL;
    for (unsigned i = 0; i < request->field_count; i++) {
        const vc_field *field = &request->fields[i];
        if (field->name.length != 6 || strncasecmp(field->name.at, "origin", 6)) continue;
        if (origin) return config->headers;
        origin = &field->value;
    }
    for (unsigned i = 0; origin && i < config->origin_count; i++)
        if (origin->length == strlen(config->origins[i].origin) &&
            !memcmp(origin->at, config->origins[i].origin, origin->length))
            return config->origins[i].headers;
    return config->headers;
}

/* Whether a request may be passed or answered; otherwise it was refused. */
static bool is_allowed(vc_gate *gate, connection *c, const vc_request *request) {
    char text[VC_TEXT_BYTES];
    vc_text query = request->query;
    if (gate->config.query == VC_QUERY_KEY && query.length && query.at[0] == '?') {
        /* bjoern's parser drops it: Python would derive another key. */
        refuse(gate, c, 400, "bad key: the query begins with a second ?; write it as %3F");
        return false;
    }
    if (request->content_length <= gate->config.value_size) return true;
    snprintf(text, sizeof(text), "value is %llu bytes long; allowed are 0 to %llu",
             (unsigned long long)request->content_length,
             (unsigned long long)gate->config.value_size);
    refuse(gate, c, 413, text);
    return false;
}

/* Keep what is left of some bytes: from `at` on. Returns true if bjoern is to read: to close,
 * without memory. */
static bool keep_rest(connection *c, const char *data, size_t length, size_t at,
                      size_t scanned) {
    if (data == c->bytes) {
        if (at) drop(c, at);
    } else if (!keep(c, data + at, length - at)) {
        end(c);
    }
    c->scanned = scanned;
    return c->is_ending;
}

/* Wait for the rest of a body, or keep all of it; `length` bytes of it or more have arrived. */
static void start_collecting(vc_gate *gate, connection *c, const vc_request *request,
                             size_t length) {
    if (request->awaits_continue && length < request->content_length) ask_for_body(gate, c);
    c->collected = request->length + request->content_length;
    c->body_taken = length;
    c->is_warm = false;
    enter(gate, c, BODY, c->started_ns);
}

/* Handle one request whose head is complete; `data` are the bytes after it. `used`: how many of
 * them were part of its body, if it is passed or answered. */
static fate handle_one(vc_gate *gate, connection *c, const vc_request *request,
                       const char *data, size_t length, size_t *used) {
    int64_t now_ns = vc_monotonic_ns();
    c->started_ns = c->asked_ns ? c->asked_ns : now_ns;
    c->hot_ns = now_ns - c->started_ns;
    c->asked_ns = 0;
    c->keeps_alive = request->keeps_alive;
    update_date(gate, now_ns);
    *used = 0;
    fate decision = decide(gate, c, request, data, length, used);
    if (decision != PASS && decision != COLLECT) return decision;
    if (!reserve_room(gate, c, request)) return STARTED;
    if (decision == COLLECT) {
        start_collecting(gate, c, request, length);
        return COLLECT;
    }
    if (!pass(gate, c, request, data, length, used)) return REFUSED;
    bool has_body = request->is_chunked ? is_body_complete(c) : length >= request->content_length;
    if (request->awaits_continue && !has_body) ask_for_body(gate, c);
    return PASS;
}

static bool collect(vc_gate *gate, connection *c);

/* Handle the requests at the start of some bytes, one after the other; keep what is left. `data`
 * are those of the connection, or `gate->input`. Returns true if bjoern is to read. */
static bool handle(vc_gate *gate, connection *c, const char *data, size_t length) {
    vc_request *request = &gate->request;
    size_t at = 0, scanned = c->scanned, used = 0;
    bool has_answered = false;
    for (;;) {
        while (length - at >= 2 && data[at] == '\r' && data[at + 1] == '\n') at += 2, scanned = 0;
        size_t left = length - at;
        if (!left) {
            /* Empty lines do not make an idle connection younger. */
            if (has_answered) enter(gate, c, IDLE, c->started_ns);
            else if (c->state != IDLE) enter(gate, c, IDLE, vc_monotonic_ns());
            return keep_rest(c, data, length, at, 0);
        }
        /* Maybe the first half of an empty line before a head. */
        vc_head head = left == 1 && data[at] == '\r'
                           ? VC_HEAD_INCOMPLETE
                           : vc_request_parse(data + at, left, &scanned, request);
        if (head == VC_HEAD_INCOMPLETE) {
            c->method = VC_OTHER_METHOD;
            c->headers = NULL;
            /* The time of a head after another one begins with its own first byte. */
            if (c->state != HEAD || has_answered) enter(gate, c, HEAD, vc_monotonic_ns());
            return keep_rest(c, data, length, at, scanned);
        }
        c->method = request->method;
        /* A client that uses a connection until it ends would lose a request with it. */
        if (__atomic_load_n(&gate->is_draining, __ATOMIC_RELAXED)) request->keeps_alive = false;
        if (gate->config.headers || c->headers)
            c->headers = head == VC_HEAD_COMPLETE ? headers_for(gate, request) : NULL;
        if (head == VC_HEAD_REFUSED) {
            refuse(gate, c, request->status, request->reason);
            return false;
        }
        if (!is_allowed(gate, c, request)) return false;
        size_t after = at + request->length;
        switch (handle_one(gate, c, request, data + after, length - after, &used)) {
        case ANSWERED:
            has_answered = true;
            at = after + used;
            scanned = 0;
            continue;
        case COLLECT:
            keep_rest(c, data, length, at, 0);
            return c->is_ending || collect(gate, c);
        case PASS:
            keep_rest(c, data, length, after + used, 0);
            return true;
        case STARTED: /* The head is kept while a thread reads: it may still be passed. */
            c->head_length = after - at;
            keep_rest(c, data, length, c->state == SENDING ? after + used : at, 0);
            if (c->state == COLD && after < length) take_done(gate, c->read);
            return false;
        case REFUSED:
            return false;
        case ENDED:
            return true;
        }
    }
}

/* Receive more of a body that is collected; handle its request when it is complete. */
static bool collect(vc_gate *gate, connection *c) {
    if (c->used >= c->collected) {
        c->collected = 0;
        return handle(gate, c, c->bytes, c->used);
    }
    if (!reserve_bytes(c, c->collected)) {
        end(c);
        return true;
    }
    ssize_t got = gate->config.io->receive(c->fd, c->bytes + c->used, c->collected - c->used);
    if (got < 0 && vc_is_later(errno)) return false;
    if (got <= 0) {
        end(c);
        return true;
    }
    c->used += (size_t)got;
    c->body_taken += (size_t)got;
    if (c->used == c->collected) return collect(gate, c);
    int64_t now_ns = vc_monotonic_ns();
    if (is_too_slow(gate, c->started_ns, now_ns, c->body_taken)) refuse_slow(gate, c);
    else enter(gate, c, BODY, now_ns);
    return false;
}

/* Receive the bytes of a head. */
static bool receive_head(vc_gate *gate, connection *c) {
    ssize_t got = gate->config.io->receive(c->fd, gate->input, FIRST_BYTES);
    if (got < 0 && vc_is_later(errno)) return false;
    if (got <= 0) {
        end(c);
        return true;
    }
    if (!c->used) return handle(gate, c, gate->input, (size_t)got);
    if (!keep(c, gate->input, (size_t)got)) {
        end(c);
        return true;
    }
    return handle(gate, c, c->bytes, c->used);
}

static bool on_readable(void *context, int fd) {
    vc_gate *gate = context;
    connection *c = find(gate, fd);
    if (c->state == COLD) take_done(gate, c->read);
    if (c->state == COLD || c->state == QUEUED || c->state == ASKING || c->state == SENDING) {
        pause_reading(gate, c);
        return false;
    }
    if (c->is_ending) return true;
    switch (c->state) {
    case IDLE:
        if (!c->was_cold || c->used) break;
        enter(gate, c, WAITING, vc_monotonic_ns());
        return false;
    case WAITING:
        return false;
    case LINGER:
        if (!discard(gate, c)) return false;
        end(c);
        return true;
    case BODY:
        return !c->collected || collect(gate, c);
    case BUSY: /* bjoern does not read now. */
        return false;
    default:
        break;
    }
    if (c->used && (c->state == IDLE || c->is_warm)) return handle(gate, c, c->bytes, c->used);
    return receive_head(gate, c);
}

/* Go on with the requests for which there is room, in their order. */
static void admit_waiting(vc_gate *gate) {
    connection *c;
    while ((c = gate->lists[QUEUED].first) && has_room(gate, c->reserved)) {
        admit(gate, c, c->reserved);
        c->is_warm = true;
        enter(gate, c, HEAD, vc_monotonic_ns());
        resume_reading(gate, c);
        if (on_readable(gate, c->fd)) gate->config.link->deliver(c->fd);
    }
}

/* All of this round was handled: let the threads begin. */
static void on_settle(void *context) {
    vc_gate *gate = context;
    connection *c;
    admit_waiting(gate);
    for (int i = 0; i < COLD_AT_ONCE && (c = gate->lists[WAITING].first); i++) {
        c->was_cold = false;
        enter(gate, c, IDLE, vc_monotonic_ns());
        if (on_readable(gate, c->fd)) gate->config.link->deliver(c->fd);
    }
    if (gate->lists[COLD].count) vc_readers_wake(gate->config.readers);
    if (gate->config.hot) vc_hot_settle(gate->config.hot);
}

static void on_ready(void *context, int fd, int events) {
    const vc_gate *gate = context;
    vc_hot_ready(gate->config.hot, fd, events);
}

static void on_alarm(void *context) {
    const vc_gate *gate = context;
    vc_hot_alarm(gate->config.hot);
}

/* --- Connections -------------------------------------------------------------------------------- */

static bool close_idle(vc_gate *gate) {
    connection *oldest = gate->lists[IDLE].first;
    if (!oldest) return false;
    gate->stats.closed_for_room++;
    end(oldest);
    gate->config.link->deliver(oldest->fd);
    return true;
}

static bool on_full(void *context) {
    vc_gate *gate = context;
    if (close_idle(gate)) return true;
    gate->stats.turned_away++;
    return false;
}

static bool grow(vc_gate *gate, int fd) {
    if (fd < gate->connections_room) return true;
    int room = fd + 64 + fd / 2;
    connection **grown = realloc(gate->connections, (size_t)room * sizeof(connection *));
    if (!grown) return false;
    memset(grown + gate->connections_room, 0,
           (size_t)(room - gate->connections_room) * sizeof(connection *));
    gate->connections = grown;
    gate->connections_room = room;
    return true;
}

static void set_address(connection *c, const struct sockaddr *address) {
    const void *part = address->sa_family == AF_INET6
                           ? (const void *)&((const struct sockaddr_in6 *)address)->sin6_addr
                           : (const void *)&((const struct sockaddr_in *)address)->sin_addr;
    if (address->sa_family != AF_INET && address->sa_family != AF_INET6) return;
    (void)!inet_ntop(address->sa_family, part, c->address, sizeof(c->address));
}

static bool on_accepted(void *context, int fd, const struct sockaddr *address) {
    vc_gate *gate = context;
    connection *c = NULL;
    if ((gate->stats.open < gate->config.connections || close_idle(gate)) && grow(gate, fd))
        c = calloc(1, sizeof(connection));
    if (!c) {
        gate->stats.turned_away++;
        return false;
    }
    c->fd = fd;
    c->started_ns = vc_monotonic_ns();
    set_address(c, address);
    put_in(gate, c, IDLE, c->started_ns);
    gate->connections[fd] = c;
    gate->stats.accepted++;
    if (++gate->stats.open > gate->stats.most) gate->stats.most = gate->stats.open;
    return true;
}

static bool on_awaits(void *context, int fd) {
    vc_gate *gate = context;
    connection *c = find(gate, fd);
    if (c->state == BUSY) {
        release(gate, c);
        enter(gate, c, IDLE, vc_monotonic_ns());
    }
    return c->used > 0;
}

static void on_written(void *context, int fd) {
    vc_gate *gate = context;
    connection *c = find(gate, fd);
    if (c->state == BUSY) enter(gate, c, BUSY, vc_monotonic_ns());
}

static void on_closing(void *context, int fd) {
    vc_gate *gate = context;
    connection *c = find(gate, fd);
    /* A socket that is closed with unread bytes is reset, and what it has not sent is lost. */
    (void)discard(gate, c);
    if (c->state == ASKING) vc_hot_cancel(gate->config.hot, c);
    take_out(gate, c);
    release(gate, c);
    if (gate->passed_fd == fd) gate->passed_used = 0;
    gate->connections[fd] = NULL;
    gate->stats.open--;
    free(c->bytes);
    free(c->rest);
    free(c);
}

static void time_out(vc_gate *gate, connection *c, int64_t now_ns) {
    switch (c->state) {
    case HEAD:
        gate->stats.closed_head++;
        refuse(gate, c, 408, "the head of the request arrives too slowly; try again");
        return;
    case QUEUED:
        refuse(gate, c, 503, "no memory is free for the request; try again later");
        resume_reading(gate, c);
        return;
    case BODY:
        refuse_slow(gate, c);
        return;
    case BUSY: /* bjoern notices when it writes. */
        gate->stats.closed_transfer++;
        gate->config.io->shut(c->fd, SHUT_RDWR);
        enter(gate, c, BUSY, now_ns);
        return;
    case IDLE:
        gate->stats.closed_idle++;
        break;
    case SENDING:
        gate->stats.closed_transfer++;
        gate->config.link->watch_writes(c->fd, false);
        break;
    default:
        break;
    }
    end(c);
    gate->config.link->deliver(c->fd);
}

/* Whether there were too many connections since Python was told so, at most every 10 s. */
static bool is_fullness_untold(vc_gate *gate, int64_t now_ns) {
    uint64_t times = gate->stats.closed_for_room + gate->stats.turned_away;
    if (times == gate->told_full || now_ns - gate->told_full_ns < 10 * SECOND_NS) return false;
    gate->told_full = times;
    gate->told_full_ns = now_ns;
    return true;
}

static bool is_pulse_due(vc_gate *gate, int64_t now_ns) {
    bool is_asked = __atomic_exchange_n(&gate->is_pulse_asked, false, __ATOMIC_ACQ_REL);
    if (!gate->config.on_pulse) return false;
    if (!gate->pulse_ns || now_ns < gate->next_pulse_ns) return is_asked;
    gate->next_pulse_ns = now_ns + gate->pulse_ns;
    return true;
}

static void on_tick(void *context) {
    vc_gate *gate = context;
    int64_t now_ns = vc_monotonic_ns();
    if (gate->config.ring.count)
        vc_readers_give_up(gate->config.readers, &gate->owner, now_ns - READ_WAIT_NS);
    take_done(gate, NULL);
    if (gate->config.hot && __atomic_load_n(&gate->is_draining, __ATOMIC_RELAXED))
        vc_hot_hurry(gate->config.hot);
    trim(gate);
    for (int i = 0; i < STATES; i++) {
        connection *c;
        /* Those that remain in the list are at its end. */
        while (gate->limits_ns[i] && (c = gate->lists[i].first) &&
               c->since_ns + gate->limits_ns[i] <= now_ns)
            time_out(gate, c, now_ns);
    }
    if (gate->events.used || !gate->is_ready || is_fullness_untold(gate, now_ns))
        gate->config.on_events(gate->config.context);
    if (is_pulse_due(gate, now_ns)) gate->config.on_pulse(gate->config.context);
}

/* --- The gate -------------------------------------------------------------------------------------- */

vc_gate *vc_gate_new(const vc_gate_config *config) {
    vc_gate *gate = calloc(1, sizeof(vc_gate));
    if (!gate) return NULL;
    gate->config = *config;
    gate->hooks = (vc_hooks){
        .context = gate,
        .accepted = on_accepted,
        .make_room = on_full,
        .readable = on_readable,
        .take = on_take,
        .awaits = on_awaits,
        .written = on_written,
        .writable = on_writable,
        .closing = on_closing,
        .settle = on_settle,
        .woken = on_woken,
        .tick = on_tick,
        .ready = on_ready,
        .alarm = on_alarm,
    };
    gate->limits_ns[IDLE] = config->idle_ns;
    gate->limits_ns[HEAD] = gate->limits_ns[QUEUED] = config->head_ns;
    gate->limits_ns[BODY] = gate->limits_ns[BUSY] = gate->limits_ns[SENDING] =
        config->transfer_ns;
    gate->limits_ns[LINGER] = LINGER_NS;
    gate->passed_fd = -1;
    gate->owner = (vc_job_owner){.use = use_record, .wake = wake_loop, .context = gate};
    vc_job_owner_start(&gate->owner);
    if (config->hot) vc_hot_install(config->hot, config->link, on_copy, gate);
    return gate;
}

void vc_gate_free(vc_gate *gate) {
    if (!gate) return;
    if (gate->config.hot) vc_hot_install(gate->config.hot, NULL, NULL, NULL);
    vc_readers_end(gate->config.readers, &gate->owner);
    free(gate->connections);
    free(gate);
}

const vc_hooks *vc_gate_hooks(vc_gate *gate) { return &gate->hooks; }

void vc_gate_poll(vc_gate *gate) { take_done(gate, NULL); }

void vc_gate_take_counts(vc_gate *gate, vc_gate_counts *counts) {
    *counts = gate->counts;
    memset(&gate->counts, 0, sizeof(gate->counts));
}

void vc_gate_get_stats(vc_gate *gate, vc_gate_stats *stats) {
    *stats = gate->stats;
    stats->idle = gate->lists[IDLE].count;
    stats->waiting_bodies = gate->lists[QUEUED].count;
    stats->body_bytes = gate->body_bytes;
    stats->waiting = vc_readers_waiting(gate->config.readers);
}

const uint8_t *vc_gate_take_events(vc_gate *gate, size_t *length) {
    return vc_events_take(&gate->events, length);
}

void vc_gate_set_ready(vc_gate *gate, bool is_ready) { gate->is_ready = is_ready; }

void vc_gate_change(vc_gate *gate, const vc_gate_config *to) {
    gate->config.answers = to->answers;
    gate->config.puts = to->puts;
    gate->config.ring = to->ring;
    gate->config.writable = to->writable;
    gate->config.may_read = to->may_read;
    gate->config.may_write = to->may_write;
    gate->config.headers = to->headers;
    gate->config.origins = to->origins;
    gate->config.origin_count = to->origin_count;
    gate->config.slow_ns = to->slow_ns;
}

void vc_gate_set_pulse(vc_gate *gate, int64_t interval_ns) {
    gate->pulse_ns = interval_ns;
    gate->next_pulse_ns = 0;
}

void vc_gate_ask_pulse(vc_gate *gate) {
    __atomic_store_n(&gate->is_pulse_asked, true, __ATOMIC_RELEASE);
}

void vc_gate_drain(vc_gate *gate) {
    __atomic_store_n(&gate->is_draining, true, __ATOMIC_RELAXED);
}

int64_t vc_gate_stalled_ns(vc_gate *gate) {
    take_done(gate, NULL);
    return gate->lists[COLD].count ? vc_monotonic_ns() - gate->progress_ns : 0;
}
