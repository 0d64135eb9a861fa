"""The machine of a real server process: its clock can be set, its reads can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

# What `Machine.fail_reads_of` takes for the files of the whole machine.
ALL_FILES: Final = "/"

# Takes the place of functions of the C library. The clock is ahead by the seconds in a
# file; reads fail of files whose path contains the text in another file.
_SOURCE: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
static ssize_t contents(const char *variable, char *to, size_t size) {
    const char *path = getenv(variable);
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0)
        return -1;
    ssize_t length = read(fd, to, size - 1);
    close(fd);
    if (length >= 0)
        to[length] = 0;
    return length;
}
static long shift(void) {
    char text[64];
    int saved = errno;
    long seconds = contents("CLOCK_SHIFT", text, sizeof text) > 0 ? atol(text) : 0;
    errno = saved;
    return seconds;
}
int clock_gettime(clockid_t id, struct timespec *to) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next)
        next = dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(id, to);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
        to->tv_sec += shift();
    return result;
}
int gettimeofday(struct timeval *restrict to, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    to->tv_sec = now.tv_sec;
    to->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to)
        *to = now.tv_sec;
    return now.tv_sec;
}
static int is_unreadable(int fd) {
    char part[256], link[64], path[4096];
    if (contents("READS_FAIL_OF", part, sizeof part) <= 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return strstr(path, part) != NULL;
}
static ssize_t read_or_fail(const char *name, int fd, void *to, size_t n, off64_t at) {
    if (is_unreadable(fd)) {
        errno = EIO;
        return -1;
    }
    ssize_t (*next)(int, void *, size_t, off64_t) = dlsym(RTLD_NEXT, name);
    return next(fd, to, n, at);
}
ssize_t pread(int fd, void *to, size_t n, off_t at) {
    return read_or_fail("pread", fd, to, n, at);
}
ssize_t pread64(int fd, void *to, size_t n, off64_t at) {
    return read_or_fail("pread64", fd, to, n, at);
}
static ssize_t readv_or_fail(const char *name, int fd, const struct iovec *parts, int count,
                             off64_t at) {
    if (is_unreadable(fd)) {
        errno = EIO;
        return -1;
    }
    ssize_t (*next)(int, const struct iovec *, int, off64_t) = dlsym(RTLD_NEXT, name);
    return next(fd, parts, count, at);
}
ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at) {
    return readv_or_fail("preadv", fd, parts, count, at);
}
ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t at) {
    return readv_or_fail("preadv64", fd, parts, count, at);
}
"""


class Machine:
    """A machine whose clock can be set and whose files can become unreadable."""

    def __init__(self, folder: Path) -> None:
        """Compile the library that the server preloads."""
        folder.mkdir(parents=True, exist_ok=True)
        self._clock = folder / "clock"
        self._unreadable = folder / "unreadable"
        self._library = folder / "machine.so"
        source = folder / "machine.c"
        source.write_text(_SOURCE)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-o", self._library, source, "-ldl"], check=True
        )
        self.set_clock(0)

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the server must be started with."""
        return {
            "LD_PRELOAD": str(self._library),
            "CLOCK_SHIFT": str(self._clock),
            "READS_FAIL_OF": str(self._unreadable),
        }

    def set_clock(self, seconds: int) -> None:
        """Let the clock be ahead of the real one by some seconds."""
        new = self._clock.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._clock)

    def fail_reads_of(self, part: str) -> None:
        """Make reads fail of the files whose path contains a text."""
        self._unreadable.write_text(part)

    def recover(self) -> None:
        """Make all reads work again."""
        self._unreadable.unlink()

    def python_time(self) -> float:
        """Return the time that a new Python process reads."""
        found = subprocess.run(
            [sys.executable, "-c", "import time; print(time.time_ns())"],
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=True,
        )
        return int(found.stdout) / 1e9
