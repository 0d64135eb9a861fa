/*
 * Load on a server, from one thread: HTTP, memcached's text and meta protocol, Redis.
 *
 *   load port=N [name=value]...
 *
 *   protocol     http, text, meta or redis (http)
 *   prefix       of the keys, which end with their number (k)
 *   first, keys  the number of the first key, and how many there are (0, 1)
 *   order        random, shuffled (each once) or rising (random)
 *   seed         of the order and of the choice between GET and PUT (1)
 *   puts         so many requests of 100 store a value (0)
 *   size         of the values (1024)
 *   missing      1: no key is stored, 2: some are not (0)
 *   connections  how many (20)
 *   depth        requests under way on each; the next ones follow when all are answered (1)
 *   rate         requests a second, answered or not; 0: each connection waits for answers (0)
 *   requests     ends after so many; 0: after the time (0)
 *   seconds      how long (1)
 *
 * Prints one line of JSON: the answers, the time, percentiles of the latency and its maximum,
 * in microseconds; "hot" counts answers from memcached (X-Cache). With a rate, a latency
 * begins when the request is due. Without one, requests that a pause kept from being sent
 * count as wrk counts them: a latency of n intervals adds n - 2 that decrease by one.
 * Exit code 1, and the reason, if an answer is wrong.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS_MAX = 256, HEAD_MAX = 4096, TIMES_MAX = 1 << 23, WAIT_SECONDS = 10 };
enum { RECEIVED_MAX = 1 << 18, REQUEST_MAX = 256 };

typedef struct {
    int fd;
    char *request;
    size_t length, sent;
    size_t pending;      /* answers that are missing */
    size_t skipped;      /* bytes of the present answer that have yet to arrive */
    char head[HEAD_MAX]; /* of an answer whose head is not complete */
    size_t head_length;
    double due;
} Connection;

static const char *protocol = "http", *prefix = "k", *order = "random";
static size_t port, first, keys = 1, seed = 1, puts_percent, size = 1024, missing;
static size_t connections = 20, depth = 1, requests;
static double rate, seconds = 1;

static const struct {
    const char *name;
    const char **text;
    size_t *number;
    double *real;
} options[] = {
    {"protocol", &protocol, NULL, NULL},
    {"prefix", &prefix, NULL, NULL},
    {"order", &order, NULL, NULL},
    {"port", NULL, &port, NULL},
    {"first", NULL, &first, NULL},
    {"keys", NULL, &keys, NULL},
    {"seed", NULL, &seed, NULL},
    {"puts", NULL, &puts_percent, NULL},
    {"size", NULL, &size, NULL},
    {"missing", NULL, &missing, NULL},
    {"connections", NULL, &connections, NULL},
    {"depth", NULL, &depth, NULL},
    {"requests", NULL, &requests, NULL},
    {"rate", NULL, NULL, &rate},
    {"seconds", NULL, NULL, &seconds},
};

static char *value;
static uint32_t *shuffled;
static uint64_t state;
static size_t asked, answered, hot;
static uint32_t times[TIMES_MAX];
static size_t time_count;
static double began, ended;
static Connection *all, **idle;
static size_t idle_count;

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static uint64_t draw(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void fail(const char *what, const char *detail) {
    fprintf(stderr, "load: port %zu: %s: %.200s\n", port, what, detail);
    exit(1);
}

static void read_option(const char *argument) {
    const char *text = strchr(argument, '=');
    for (size_t i = 0; text && i < sizeof options / sizeof *options; i++) {
        if (strncmp(options[i].name, argument, (size_t)(text - argument)) ||
            options[i].name[text - argument])
            continue;
        if (options[i].text) *options[i].text = text + 1;
        else if (options[i].number) *options[i].number = strtoul(text + 1, NULL, 10);
        else *options[i].real = atof(text + 1);
        return;
    }
    fail("no such option", argument);
}

/* --- requests ---------------------------------------------------------------------- */

static size_t next_key(void) {
    if (*order == 'r' && order[1] == 'a') return first + draw() % keys;
    size_t at = asked % keys;
    return first + (shuffled ? shuffled[at] : at);
}

static char *write_get(char *to, const char *key) {
    switch (*protocol) {
    case 'h': return to + sprintf(to, "GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", key);
    case 't': return to + sprintf(to, "get %s\r\n", key);
    case 'm': return to + sprintf(to, "mg %s v\r\n", key);
    default: return to + sprintf(to, "*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(key), key);
    }
}

static char *write_put(char *to, const char *key) {
    switch (*protocol) {
    case 'h':
        to += sprintf(to, "PUT /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n", key);
        to += sprintf(to, "Content-Length: %zu\r\n\r\n", size);
        break;
    case 't': to += sprintf(to, "set %s 0 0 %zu\r\n", key, size); break;
    case 'm': to += sprintf(to, "ms %s %zu\r\n", key, size); break;
    default:
        to += sprintf(to, "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n", strlen(key), key);
        to += sprintf(to, "$%zu\r\n", size);
    }
    memcpy(to, value, size);
    to += size;
    return *protocol == 'h' ? to : (char *)mempcpy(to, "\r\n", 2);
}

static void push(Connection *c) {
    while (c->sent < c->length) {
        ssize_t n = send(c->fd, c->request + c->sent, c->length - c->sent, MSG_NOSIGNAL);
        if (n < 0) {
            if (errno == EAGAIN) return;
            fail("send", strerror(errno));
        }
        c->sent += (size_t)n;
    }
}

static void ask(Connection *c, double due) {
    char *end = c->request, key[REQUEST_MAX / 4];
    for (; c->pending < depth && !(requests && asked >= requests); c->pending++) {
        snprintf(key, sizeof key, "%s%zu", prefix, next_key());
        asked++;
        int is_put = puts_percent == 100 || (puts_percent && draw() % 100 < puts_percent);
        end = is_put ? write_put(end, key) : write_get(end, key);
    }
    c->length = (size_t)(end - c->request);
    c->sent = 0;
    c->due = due;
    push(c);
}

static int is_over(double now) { return requests ? asked >= requests : now >= ended; }

/* --- answers ----------------------------------------------------------------------- */

static size_t value_size(const char *digits) {
    size_t found = strtoul(digits, NULL, 10);
    if (found != size) fail("a value of another size", digits);
    return found;
}

/* Returns the length of an answer of HTTP, given its head. */
static size_t http_length(const char *head, size_t length) {
    int is_miss = head[9] == '4';
    if ((!is_miss && head[9] != '2') || (is_miss ? !missing : missing == 1)) fail("answer", head);
    const char *cache = memmem(head, length, "X-Cache: MEMC", 13);
    hot += cache != NULL;
    const char *digits = memmem(head, length, "ontent-Length: ", 15);
    if (!digits) return length;
    size_t body = strtoul(digits + 15, NULL, 10);
    return length + (is_miss || !body ? body : value_size(digits + 15));
}

/* Returns the length of an answer in lines, given its first line. */
static size_t line_length(const char *line, size_t length) {
    static const char *const misses[] = {"END\r\n", "EN\r\n", "$-1\r\n"};
    static const char *const stored[] = {"STORED\r\n", "HD\r\n", "+OK\r\n"};
    for (size_t i = 0; i < 3; i++)
        if (!memcmp(line, (missing ? misses : stored)[i], strlen((missing ? misses : stored)[i])))
            return length;
    if (!missing && !strncmp(line, "VALUE ", 6)) {
        const char *flags = strchr(line + 6, ' ');
        return length + value_size(strchr(flags + 1, ' ') + 1) + sizeof "\r\nEND\r\n" - 1;
    }
    if (!missing && !strncmp(line, "VA ", 3)) return length + value_size(line + 3) + 2;
    if (!missing && *line == '$' && line[1] != '-') return length + value_size(line + 1) + 2;
    fail("answer", line);
    return 0;
}

/* Returns the length of the answer at `data`; 0 if its head is not complete. */
static size_t answer_length(const char *data, size_t length) {
    const char *mark = *protocol == 'h' ? "\r\n\r\n" : "\r\n";
    const char *end = memmem(data, length, mark, strlen(mark));
    if (!end) return 0;
    size_t head = (size_t)(end - data) + strlen(mark);
    return *protocol == 'h' ? http_length(data, head) : line_length(data, head);
}

/* Counts what has arrived; returns whether all requests of the connection are answered. */
static int count(Connection *c, const char *data, size_t length) {
    while (length) {
        if (!c->skipped && !(c->skipped = answer_length(data, length))) {
            if (length >= HEAD_MAX) fail("a long head", data);
            memcpy(c->head, data, length);
            c->head_length = length;
            return 0;
        }
        size_t n = length < c->skipped ? length : c->skipped;
        data += n;
        length -= n;
        c->skipped -= n;
        if (!c->skipped) {
            if (!c->pending) fail("more than one answer", data);
            c->pending--;
        }
    }
    return !c->pending;
}

static void finish(Connection *c) {
    double now = now_us();
    answered += depth;
    if (time_count < TIMES_MAX) times[time_count++] = (uint32_t)(now - c->due);
    if (rate == 0 && !is_over(now)) ask(c, now);
    else idle[idle_count++] = c;
}

static void receive(Connection *c) {
    static char data[HEAD_MAX + RECEIVED_MAX + 1];
    size_t before = c->head_length;
    memcpy(data, c->head, before);
    ssize_t got = recv(c->fd, data + before, RECEIVED_MAX, 0);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) fail("closed", got ? strerror(errno) : "by the server");
    data[before + (size_t)got] = 0;
    c->head_length = 0;
    if (count(c, data, before + (size_t)got)) finish(c);
}

/* --- the run ----------------------------------------------------------------------- */

static void connect_all(int poll) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    all = calloc(connections, sizeof *all);
    idle = calloc(connections, sizeof(Connection *));
    for (size_t i = 0; i < connections; i++) {
        Connection *c = idle[idle_count++] = &all[i];
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c->fd, (struct sockaddr *)&to, sizeof to)) fail("connect", strerror(errno));
        int one = 1;
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->request = malloc(depth * (REQUEST_MAX + (puts_percent ? size : 0)));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &event);
    }
}

/* Sends what is due; returns the microseconds until the next request is. */
static double dispatch(void) {
    double now = now_us(), wait = WAIT_SECONDS * 1e6;
    while (idle_count && !is_over(now)) {
        double due = rate > 0 ? began + (double)asked * 1e6 / rate : now;
        if (due > now) return due - now;
        ask(idle[--idle_count], due);
    }
    return wait;
}

static void wait_for(int poll, double microseconds) {
    struct epoll_event events[EVENTS_MAX];
    struct timespec wait = {.tv_sec = (time_t)(microseconds / 1e6)};
    wait.tv_nsec = (long)((microseconds - (double)wait.tv_sec * 1e6) * 1e3);
    int n = epoll_pwait2(poll, events, EVENTS_MAX, &wait, NULL);
    if (n < 0) fail("epoll_pwait2", strerror(errno));
    if (!n && microseconds >= WAIT_SECONDS * 1e6) fail("no answer", "in time");
    for (int i = 0; i < n; i++) {
        Connection *c = events[i].data.ptr;
        push(c);
        receive(c);
    }
}

static int by_size(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* Adds the latencies of requests that a pause kept from being sent. */
static void correct(double interval) {
    size_t measured = time_count;
    for (size_t i = 0; i < measured && interval > 0; i++)
        for (double w = times[i] - interval; w > interval && time_count < TIMES_MAX; w -= interval)
            times[time_count++] = (uint32_t)w;
}

static uint32_t percentile(double percent) {
    size_t rank = (size_t)((double)time_count * percent / 100);
    return times[rank < time_count ? rank : time_count - 1];
}

static void report(double took) {
    if (!answered) fail("no request", "was sent");
    if (rate == 0) correct(took * (double)connections / (double)time_count);
    qsort(times, time_count, sizeof *times, by_size);
    printf("{\"requests\": %zu, \"micros\": %.0f, \"p50\": %u, \"p99\": %u, \"p999\": %u, "
           "\"max\": %u, \"hot\": %zu}\n",
           answered, took, percentile(50), percentile(99), percentile(99.9), times[time_count - 1],
           hot);
}

static void prepare(void) {
    state = seed * 0x9e3779b97f4a7c15 | 1;
    value = malloc(size + 1);
    for (size_t i = 0; i < size; i++) value[i] = (char)(draw() >> 32);
    if (*order != 's') return;
    shuffled = malloc(keys * sizeof *shuffled);
    for (size_t i = 0; i < keys; i++) {
        size_t other = draw() % (i + 1);
        shuffled[i] = shuffled[other];
        shuffled[other] = (uint32_t)i;
    }
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) read_option(argv[i]);
    prepare();
    int poll = epoll_create1(0);
    connect_all(poll);
    began = now_us();
    ended = began + seconds * 1e6;
    for (;;) {
        double wait = dispatch();
        if (idle_count == connections && is_over(now_us())) break;
        wait_for(poll, wait);
    }
    report(now_us() - began);
    return 0;
}
