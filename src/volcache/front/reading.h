/* Reading a record without waiting for the disk, if that is possible; and the write lock. */
#ifndef VC_READING_H
#define VC_READING_H

#include <errno.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include "functions.h"

/* How records are read whose pages may not be in memory. Some file systems cannot tell whether
 * they are: then all are read at once from one in memory, and by threads from any other. */
typedef enum { VC_CACHED_FIRST, VC_AT_ONCE, VC_BY_THREADS } vc_reading;

static inline bool vc_is_in_ram(int fd) {
    struct statfs about;
    return !fstatfs(fd, &about) &&
           (about.f_type == TMPFS_MAGIC || about.f_type == RAMFS_MAGIC);
}

/* Read the record that was looked up into `at->size` bytes; VC_COLD: a thread has to. `how` is 0
 * at first. */
static inline vc_status vc_read_now(vc_core *core, const vc_core_functions *functions,
                                    vc_reading *how, const uint8_t *key, size_t length,
                                    const vc_lookup *at, uint8_t *bytes, vc_record *record) {
    if (*how == VC_CACHED_FIRST) {
        errno = 0;
        vc_status status = functions->read_cached(core, key, length, at, bytes, record);
        if (status != VC_IO_ERROR || (errno != EOPNOTSUPP && errno != ENOSYS)) return status;
        *how = vc_is_in_ram(at->fd) ? VC_AT_ONCE : VC_BY_THREADS;
    }
    if (*how == VC_BY_THREADS) return VC_COLD;
    return functions->read(core, key, length, at, bytes, at->size, NULL, 0, record);
}

/* The same for the header of a record only. If the value is small, it is checked, too. */
static inline vc_status vc_read_head_now(vc_core *core, const vc_core_functions *functions,
                                         vc_reading *how, const uint8_t *key, size_t length,
                                         const vc_lookup *at, uint8_t *bytes,
                                         vc_record *record) {
    vc_lookup head = *at;
    size_t most = VC_HEAD_BYTES_MAX(length);
    if (head.size > most) head.size = most;
    record->key = NULL;
    vc_status status = vc_read_now(core, functions, how, key, length, &head, bytes, record);
    /* Only the value is short, if the header was decoded. */
    return status == VC_SHORT && record->key ? VC_OK : status;
}

/* Acquire the write lock in a loop. Another thread that has it for long, as during a sync, holds up
 * one request only: `is_held` remembers that it has; false at first. */
static inline bool vc_acquire_soon(vc_core *core, const vc_core_functions *functions,
                                   bool *is_held) {
    *is_held = !functions->try_acquire(core, *is_held ? 0 : VC_LOCK_WAIT_NS);
    return !*is_held;
}

#endif
