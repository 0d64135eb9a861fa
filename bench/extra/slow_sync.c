/* With LD_PRELOAD: fdatasync takes 200 ms more while the file that SLOW_SYNC names exists. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int fdatasync(int fd) {
    static int (*real)(int);
    const char *path = getenv("SLOW_SYNC");
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    if (path && !access(path, F_OK)) nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    return real(fd);
}
