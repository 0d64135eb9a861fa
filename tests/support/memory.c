/*
 * Takes the place of functions of the C library: a share of the allocations fails that the
 * extensions of volcache ask for. Loaded by LD_PRELOAD.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *before, size_t size);

enum { CODES = 8 };
static struct {
    uintptr_t begin, end;
} codes[CODES];
static int found;
unsigned failing_share; /* Of 1,000. */
static uint64_t state;
static long failed;

static int add_code(struct dl_phdr_info *info, size_t size, void *context) {
    (void)size;
    (void)context;
    if (!strstr(info->dlpi_name, "/volcache/")) return 0;
    for (int i = 0; i < info->dlpi_phnum && found < CODES; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || !(part->p_flags & PF_X)) continue;
        codes[found].begin = info->dlpi_addr + part->p_vaddr;
        codes[found].end = codes[found].begin + part->p_memsz;
        found++;
    }
    return 0;
}

/* Let so many of 1,000 allocations fail from now on; which ones, the seed decides. */
void fail_allocations(unsigned of_1000, uint64_t seed) {
    found = 0;
    dl_iterate_phdr(add_code, NULL);
    state = seed * 2 + 1;
    failing_share = of_1000;
}

long failed_allocations(void) { return failed; }

static int fails(const void *caller) {
    if (!failing_share) return 0;
    int is_ours = 0;
    for (int i = 0; i < found; i++)
        is_ours |= codes[i].begin <= (uintptr_t)caller && (uintptr_t)caller < codes[i].end;
    if (!is_ours) return 0;
    state = state * 6364136223846793005u + 1442695040888963407u;
    if ((state >> 33) % 1000 >= failing_share) return 0;
    failed++;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t size) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, size);
}

void *realloc(void *before, size_t size) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(before, size);
}

void *mremap(void *before, size_t old, size_t size, int flags, ...) {
    if (fails(__builtin_return_address(0))) return MAP_FAILED;
    va_list more;
    va_start(more, flags);
    void *at = flags & MREMAP_FIXED ? va_arg(more, void *) : NULL;
    va_end(more);
    return (void *)syscall(SYS_mremap, before, old, size, flags, at);
}
