/*
 * Takes the place of functions of the C library. Reads fail of files whose path contains the text
 * in a file. Another file makes the disk slow: it has a number, the milliseconds of a read,
 * whether they pass before or after it, and a part of a path. Each page of such a file has to be
 * read once before it is in memory; with another number in the file, once more. With "unknown"
 * instead of before or after, it cannot be found out what is in memory. While a third file says
 * "hold", syncs of volumes wait; if it says "fail", they fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
static ssize_t contents(const char *variable, char *to, size_t size) {
    const char *path = getenv(variable);
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return -1;
    ssize_t length = read(fd, to, size - 1);
    close(fd);
    if (length >= 0) to[length] = 0;
    return length;
}
static int is_part_of_path(const char *part, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, part) != NULL;
}
static int is_unreadable(int fd) {
    char part[256];
    return contents("READS_FAIL_OF", part, sizeof part) > 0 && is_part_of_path(part, fd);
}
enum { PAGE = 4096, PAGES = 1 << 16 };
static struct {
    unsigned long number;
    long page;
    int fd;
} memory[PAGES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int is_in_memory(unsigned long number, int fd, long page, int reads) {
    unsigned long at = ((unsigned long)page * 31 + (unsigned long)fd * 7919) % PAGES;
    int found = memory[at].number == number && memory[at].page == page && memory[at].fd == fd;
    if (reads && !found) {
        memory[at].number = number;
        memory[at].page = page;
        memory[at].fd = fd;
    }
    return found;
}
/* Return how many bytes are in memory, from the first one on. */
static size_t in_memory(int fd, size_t n, off64_t at, int reads, int *ms, int *is_late) {
    char text[512], order[16], part[400];
    unsigned long number;
    int saved = errno;
    size_t found = n;
    if (contents("SLOW_DISK", text, sizeof text) > 0 &&
        sscanf(text, "%lu %d %15s %399s", &number, ms, order, part) == 4 &&
        is_part_of_path(part, fd)) {
        *is_late = !strcmp(order, "after") ? 1 : !strcmp(order, "unknown") ? -1 : 0;
        if (*is_late < 0) found = 0;
        pthread_mutex_lock(&mutex);
        for (long page = at / PAGE; page * (off64_t)PAGE < at + (off64_t)n; page++)
            if (!is_in_memory(number, fd, page, reads) && found == n)
                found = page * (off64_t)PAGE > at ? page * (off64_t)PAGE - at : 0;
        pthread_mutex_unlock(&mutex);
    }
    errno = saved;
    return found;
}
/* Add a byte to a file. */
static void count(const char *variable) {
    const char *path = getenv(variable);
    int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0) return;
    (void)!write(fd, "", 1);
    close(fd);
}
static const struct timespec step = {0, 5000000};
/* Wait for that time, or until the disk is given another speed. */
static void wait_for_disk(int ms) {
    char before[512] = "", now[512] = "";
    int saved = errno;
    contents("SLOW_DISK", before, sizeof before);
    count("COUNT_OF_READS");
    for (; ms > 0; ms -= 5) {
        nanosleep(&step, NULL);
        if (contents("SLOW_DISK", now, sizeof now) > 0 && strcmp(before, now)) break;
    }
    errno = saved;
}
static size_t total(const struct iovec *parts, int count) {
    size_t sum = 0;
    for (int i = 0; i < count; i++) sum += parts[i].iov_len;
    return sum;
}
/* With RWF_NOWAIT, there is one part. */
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    int ms, is_late;
    size_t n = total(parts, count);
    struct iovec part = parts[0];
    if (is_unreadable(fd)) {
        errno = EIO;
        return -1;
    }
    int waits = !(flags & RWF_NOWAIT);
    size_t ready = in_memory(fd, n, at, waits, &ms, &is_late);
    int is_slow = waits && ready < n;
    if (!waits && !ready && n) {
        errno = is_late < 0 ? EOPNOTSUPP : EAGAIN;
        return -1;
    }
    if (!waits) {
        part.iov_len = ready;
        parts = &part;
    }
    if (is_slow && is_late <= 0) wait_for_disk(ms);
    ssize_t (*next)(int, const struct iovec *, int, off64_t, int);
    next = dlsym(RTLD_NEXT, "preadv64v2");
    ssize_t got = next(fd, parts, count, at, flags);
    if (is_slow && is_late > 0) wait_for_disk(ms);
    return got;
}
ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t at) {
    return preadv64v2(fd, parts, count, at, 0);
}
ssize_t pread64(int fd, void *to, size_t n, off64_t at) {
    struct iovec part = {to, n};
    return preadv64v2(fd, &part, 1, at, 0);
}
int fdatasync(int fd) {
    char what[8];
    int is_volume = is_part_of_path("/data/", fd);
    if (is_volume) count("COUNT_OF_SYNCS");
    while (is_volume && contents("SYNCS", what, sizeof what) > 0 && !strcmp(what, "hold"))
        nanosleep(&step, NULL);
    if (is_volume && contents("SYNCS", what, sizeof what) > 0 && !strcmp(what, "fail")) {
        errno = EIO;
        return -1;
    }
    int (*next)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return next(fd);
}
/* Here, off_t and off64_t are one type. */
ssize_t preadv2(int, const struct iovec *, int, off_t, int) __attribute__((alias("preadv64v2")));
ssize_t preadv(int, const struct iovec *, int, off_t) __attribute__((alias("preadv64")));
ssize_t pread(int, void *, size_t, off_t) __attribute__((alias("pread64")));
