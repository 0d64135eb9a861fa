"""A disk that a real server process cannot read."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Takes the place of the functions of the C library: reads fail while a file exists.
_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>
static ssize_t read_or_fail(const char *name, int fd, void *to, size_t n, off64_t at) {
    const char *flag = getenv("READS_FAIL_WHILE");
    if (flag && access(flag, F_OK) == 0) {
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
"""


class BadDisk:
    """Makes the reads of a server fail, and work again."""

    def __init__(self, folder: Path) -> None:
        """Compile the library that the server preloads."""
        folder.mkdir(parents=True, exist_ok=True)
        self._flag = folder / "reads_fail"
        self._library = folder / "bad_disk.so"
        source = folder / "bad_disk.c"
        source.write_text(_SOURCE)
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-o", self._library, source, "-ldl"], check=True
        )

    @property
    def environment(self) -> dict[str, str]:
        """Variables that the server must be started with."""
        return {
            "LD_PRELOAD": str(self._library),
            "READS_FAIL_WHILE": str(self._flag),
        }

    def fail(self) -> None:
        """Make every read fail from now on."""
        self._flag.touch()

    def recover(self) -> None:
        """Make reads work again."""
        self._flag.unlink()
