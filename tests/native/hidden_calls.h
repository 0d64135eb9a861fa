/* Reads and writes that are hidden from ThreadSanitizer: it takes a read of a file for something
 * that waits for a write before it, and would not see that nothing else orders the two. */
#ifndef VC_HIDDEN_CALLS_H
#define VC_HIDDEN_CALLS_H

#include "check.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static inline ssize_t hidden_pread(void *context, int fd, void *buffer, size_t length,
                                   off_t offset) {
    (void)context;
#ifdef __SANITIZE_THREAD__
    return syscall(SYS_pread64, fd, buffer, length, offset);
#else
    return pread(fd, buffer, length, offset);
#endif
}

/* Half of what is read is not in memory. */
static inline ssize_t hidden_pread_cached(void *context, int fd, void *buffer, size_t length,
                                          off_t offset) {
    static _Thread_local uint64_t state;
    if (next_random(&state) % 2) return hidden_pread(context, fd, buffer, length, offset);
    errno = EAGAIN;
    return -1;
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
