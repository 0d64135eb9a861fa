/*
 * Load on a server of memcached's text protocol, from one thread.
 *
 *   memcache_load PORT CONNECTIONS DEPTH SECONDS VERB SIZE KEYS
 *
 * VERB is get, set or fill (one set of each key, then the end). DEPTH requests are under way
 * on each connection at a time: the next ones are sent when all of them were answered.
 * Prints: requests, seconds, and the 50th and 99th percentile of the time from sending to
 * the last of the DEPTH answers, in microseconds. Exit code 1 if an answer is wrong.
 */
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

enum { TIMES_MAX = 1 << 22 };

typedef struct {
	int fd;
	size_t expected; /* bytes of the answers that are missing */
	size_t unsent, sent;
	uint64_t started;
	char *request;
} Connection;

static size_t size, depth, keys, next_key, reply_size;
static int is_get, is_fill;
static char *value;
static uint32_t times[TIMES_MAX];
static size_t time_count;

static uint64_t
now_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void
fail(const char *what)
{
	fprintf(stderr, "memcache_load: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void
push(Connection *c)
{
	while (c->sent < c->unsent) {
		ssize_t n = send(c->fd, c->request + c->sent, c->unsent - c->sent, MSG_NOSIGNAL);
		if (n < 0) {
			if (errno == EAGAIN)
				return;
			fail("send");
		}
		c->sent += (size_t)n;
	}
}

static void
ask(Connection *c)
{
	char *end = c->request;
	for (size_t i = 0; i < depth; i++) {
		size_t key = next_key++ % keys;
		if (is_get) {
			end += sprintf(end, "get key-%08zu\r\n", key);
		} else {
			end += sprintf(end, "set key-%08zu 0 0 %zu\r\n", key, size);
			memcpy(end, value, size);
			end += size;
			memcpy(end, "\r\n", 2);
			end += 2;
		}
	}
	c->unsent = (size_t)(end - c->request);
	c->sent = 0;
	c->expected = depth * reply_size;
	c->started = now_us();
	push(c);
}

static int
by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
	return x < y ? -1 : x > y;
}

int
main(int argc, char **argv)
{
	if (argc != 8) {
		fprintf(stderr, "usage: memcache_load PORT CONNECTIONS DEPTH SECONDS VERB SIZE KEYS\n");
		return 2;
	}
	int port = atoi(argv[1]), count = atoi(argv[2]);
	depth = strtoul(argv[3], NULL, 10);
	double seconds = atof(argv[4]);
	is_get = !strcmp(argv[5], "get");
	is_fill = !strcmp(argv[5], "fill");
	size = strtoul(argv[6], NULL, 10);
	keys = strtoul(argv[7], NULL, 10);
	value = malloc(size + 1);
	for (size_t i = 0; i < size; i++)
		value[i] = (char)('a' + i % 26);
	char head[64];
	reply_size = is_get
		? (size_t)sprintf(head, "VALUE key-00000000 0 %zu\r\n", size) + size + 2 + 5
		: sizeof "STORED\r\n" - 1;
	int poll = epoll_create1(0);
	Connection *all = calloc((size_t)count, sizeof *all);
	for (int i = 0; i < count; i++) {
		struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
		to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		all[i].fd = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(all[i].fd, (struct sockaddr *)&to, sizeof to))
			fail("connect");
		int one = 1;
		setsockopt(all[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
		fcntl(all[i].fd, F_SETFL, O_NONBLOCK);
		all[i].request = malloc(depth * (size + 64));
		struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = &all[i]};
		epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &event);
	}
	uint64_t started = now_us(), end = started + (uint64_t)(seconds * 1e6);
	size_t answered = 0;
	for (int i = 0; i < count; i++)
		ask(&all[i]);
	static char buffer[1 << 18];
	struct epoll_event events[256];
	int is_over = 0, busy = count;
	while (busy) {
		int n = epoll_wait(poll, events, 256, 10000);
		if (n <= 0) {
			errno = ETIMEDOUT;
			fail("no answer");
		}
		for (int i = 0; i < n; i++) {
			Connection *c = events[i].data.ptr;
			push(c);
			for (;;) {
				ssize_t got = recv(c->fd, buffer, sizeof buffer, 0);
				if (got < 0) {
					if (errno == EAGAIN)
						break;
					fail("recv");
				}
				if (!got) {
					errno = ECONNRESET;
					fail("closed");
				}
				if ((size_t)got > c->expected) {
					errno = EPROTO;
					fail("too long an answer");
				}
				if (c->expected == depth * reply_size && buffer[0] != (is_get ? 'V' : 'S')) {
					errno = EPROTO;
					fail("wrong answer");
				}
				c->expected -= (size_t)got;
				if (!c->expected) {
					uint64_t now = now_us();
					answered += depth;
					if (time_count < TIMES_MAX)
						times[time_count++] = (uint32_t)(now - c->started);
					is_over |= is_fill ? next_key >= keys : now >= end;
					if (is_over) {
						busy--;
						break;
					}
					ask(c);
				}
			}
		}
	}
	double took = (double)(now_us() - started) / 1e6;
	qsort(times, time_count, sizeof *times, by_size);
	printf("%zu %.3f %u %u\n", answered, took, times[time_count / 2], times[time_count * 99 / 100]);
	return 0;
}
