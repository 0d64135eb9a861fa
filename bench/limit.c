/*
 * What a server of values has to do at least: one epoll loop, one pread for each value that
 * is read, one pwrite for each that is stored. No index, no checksum, no conditions.
 *
 *   limit PORT FOLDER KEYS SIZE
 *
 * HTTP, and memcached's text and meta protocol, on one port. The digits at the end of a key
 * are the number of its value in a file; "none" and digits is not stored. Values that are
 * stored go to a second file in turns, which is written before the first request. Answers
 * are as long as volcache's.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { EVENTS_MAX = 256, HEAD_MAX = 1024, BUFFER_MAX = 1 << 18 };
#define STORED_BYTES ((off_t)256 << 20)
#define COMMON_HEAD                                               \
    "X-Position: 0,64,84\r\nETag: \"6542a2e4b8f80-785f1034\"\r\n" \
    "Date: Sat, 21 Nov 2026 09:00:12 GMT\r\nConnection: Keep-Alive\r\n\r\n"
#define VALUE_HEAD                                                            \
    "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nX-Cache: DISK\r\n"             \
    "Content-Type: application/octet-stream\r\nAccept-Ranges: bytes\r\n"      \
    "X-Content-Type-Options: nosniff\r\nContent-Security-Policy: sandbox\r\n" \
    "Cache-Control: no-cache\r\nLast-Modified: Sat, 21 Nov 2026 09:00:08 GMT\r\n" COMMON_HEAD
#define STORED_HEAD "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" COMMON_HEAD
#define MISS_HEAD                                                         \
    "HTTP/1.1 404 Not Found\r\nContent-Length: 10\r\nX-Cache: MISS\r\n"   \
    "Content-Type: text/plain\r\nDate: Sat, 21 Nov 2026 09:00:12 GMT\r\n" \
    "Connection: Keep-Alive\r\n\r\nnot found\n"

typedef struct {
    int fd, is_full;     /* is_full: it waits until the client reads */
    size_t have;         /* bytes of requests in `in` */
    size_t length, sent; /* of the answers in `out` */
    char *in, *out;
} Connection;

static size_t keys, size, room;
static int data, stored;
static off_t stored_at;
static char value_head[HEAD_MAX];

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void add(Connection *c, const char *text, size_t length) {
    memcpy(c->out + c->length, text, length);
    c->length += length;
}

static void add_value(Connection *c, const char *key_end) {
    const char *digits = key_end;
    while (digits[-1] >= '0' && digits[-1] <= '9') digits--;
    off_t at = (off_t)(strtoul(digits, NULL, 10) % keys * size);
    if (pread(data, c->out + c->length, size, at) != (ssize_t)size) fail("pread");
    c->length += size;
}

static void store(const char *value, size_t length) {
    if (stored_at + (off_t)length > STORED_BYTES) stored_at = 0;
    if (pwrite(stored, value, length, stored_at) != (ssize_t)length) fail("pwrite");
    stored_at += (off_t)length;
}

/* Each of these answers a request and returns its length, or 0 if it is not complete. */

static size_t answer_http(Connection *c, const char *request, size_t length) {
    const char *end = memmem(request, length, "\r\n\r\n", 4);
    if (!end) return 0;
    size_t head = (size_t)(end - request) + 4;
    if (*request == 'G') {
        if (!strncmp(request, "GET /none", 9)) {
            add(c, MISS_HEAD, sizeof MISS_HEAD - 1);
        } else {
            add(c, value_head, strlen(value_head));
            add_value(c, strchr(request + 4, ' '));
        }
        return head;
    }
    const char *digits = memmem(request, head, "Content-Length: ", 16);
    size_t body = digits ? strtoul(digits + 16, NULL, 10) : 0;
    if (length < head + body) return 0;
    store(request + head, body);
    add(c, STORED_HEAD, sizeof STORED_HEAD - 1);
    return head + body;
}

static size_t answer_line(Connection *c, const char *request, size_t length) {
    const char *end = memmem(request, length, "\r\n", 2);
    if (!end) return 0;
    size_t head = (size_t)(end - request) + 2;
    int is_meta = *request == 'm';
    const char *key = strchr(request, ' ') + 1, *key_end = key + strcspn(key, " \r");
    if (*request == 'g' || request[1] == 'g') {
        if (is_meta) c->length += (size_t)sprintf(c->out + c->length, "VA %zu\r\n", size);
        else
            c->length += (size_t)sprintf(c->out + c->length, "VALUE %.*s 0 %zu\r\n",
                                         (int)(key_end - key), key, size);
        add_value(c, key_end);
        add(c, "\r\nEND\r\n", is_meta ? 2 : 7);
        return head;
    }
    const char *digits = end;
    while (digits[-1] != ' ') digits--;
    size_t body = strtoul(digits, NULL, 10);
    if (length < head + body + 2) return 0;
    store(request + head, body);
    add(c, is_meta ? "HD\r\n" : "STORED\r\n", is_meta ? 4 : 8);
    return head + body + 2;
}

static void answer_all(Connection *c) {
    size_t taken = 0;
    while (taken < c->have && c->length + HEAD_MAX + size < room) {
        const char *request = c->in + taken;
        int is_http = *request == 'G' || *request == 'P';
        size_t length = (is_http ? answer_http : answer_line)(c, request, c->have - taken);
        if (!length) break;
        taken += length;
    }
    c->have -= taken;
    memmove(c->in, c->in + taken, c->have);
}

static void listen_for(int poll, Connection *c, unsigned events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    epoll_ctl(poll, EPOLL_CTL_MOD, c->fd, &event);
}

static void drop(Connection *c) {
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

static void serve(int poll, Connection *c) {
    if (!c->is_full) {
        ssize_t got = recv(c->fd, c->in + c->have, room - c->have, 0);
        if (got <= 0) {
            if (got == 0 || errno != EAGAIN) drop(c);
            return;
        }
        c->have += (size_t)got;
        c->in[c->have] = 0;
        answer_all(c);
    }
    while (c->sent < c->length) {
        ssize_t n = send(c->fd, c->out + c->sent, c->length - c->sent, MSG_NOSIGNAL);
        if (n < 0) break;
        c->sent += (size_t)n;
    }
    int is_full = c->sent < c->length;
    if (!is_full) c->sent = c->length = 0;
    if (is_full != c->is_full) listen_for(poll, c, is_full ? EPOLLOUT : EPOLLIN);
    c->is_full = is_full;
}

static void accept_all(int poll, int listener) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Connection *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->in = malloc(room + 1);
        c->out = malloc(room);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
    }
}

static int filled(const char *folder, const char *name, off_t bytes) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    char *value = malloc(size);
    memset(value, 'x', size);
    for (off_t at = 0; at < bytes; at += (off_t)size)
        if (pwrite(fd, value, size, at) != (ssize_t)size) fail(path);
    free(value);
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: limit PORT FOLDER KEYS SIZE\n");
        return 2;
    }
    keys = strtoul(argv[3], NULL, 10);
    size = strtoul(argv[4], NULL, 10);
    room = 2 * size + BUFFER_MAX;
    data = filled(argv[2], "data", (off_t)(keys * size));
    stored = filled(argv[2], "stored", STORED_BYTES);
    snprintf(value_head, sizeof value_head, VALUE_HEAD, size);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in at = {.sin_family = AF_INET};
    at.sin_port = htons((uint16_t)strtoul(argv[1], NULL, 10));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, EVENTS_MAX))
        fail("bind");
    int poll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        int n = epoll_wait(poll, events, EVENTS_MAX, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.ptr) serve(poll, events[i].data.ptr);
            else accept_all(poll, listener);
        }
    }
}
