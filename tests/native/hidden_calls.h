/* Reads and writes that are hidden from ThreadSanitizer: it takes a read of a file for something
 * that waits for a write before it, and would not see that nothing else orders the two. */
#ifndef VC_HIDDEN_CALLS_H
#define VC_HIDDEN_CALLS_H

#include "check.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static inline ssize_t hidden_pread(int fd, void *buffer, size_t length, off_t offset) {
#ifdef __SANITIZE_THREAD__
    return syscall(SYS_pread64, fd, buffer, length, offset);
#else
    return pread(fd, buffer, length, offset);
#endif
}

/* A read is not atomic: some are slow, so that the record changes meanwhile. Half of what is read is
 * not in memory. */
static inline ssize_t slow_pread(void *context, int fd, void *buffer, size_t length, off_t offset,
                                 bool is_cached) {
    static _Thread_local uint64_t state;
    static _Thread_local unsigned calls;
    size_t first = length;
    (void)context;
    if (is_cached && next_random(&state) % 2) {
        errno = EAGAIN;
        return -1;
    }
    if (calls++ % 4 == 0) first = length < 300 ? length / 2 : 300;
    ssize_t got = hidden_pread(fd, buffer, first, offset);
    if (got < 0 || (size_t)got < first || first == length) return got;
    for (int left = 60; left > 0; left--) sched_yield();
    got = hidden_pread(fd, (char *)buffer + first, length - first, offset + (off_t)first);
    return got < 0 ? got : got + (ssize_t)first;
}

static inline ssize_t hidden_pwritev(void *context, int fd, const struct iovec *parts, int count,
                                     off_t offset) {
    (void)context;
#ifdef __SANITIZE_THREAD__
    return syscall(SYS_pwritev, fd, parts, (long)count, offset, 0l);
#else
    return pwritev(fd, parts, count, offset);
#endif
}

#endif
