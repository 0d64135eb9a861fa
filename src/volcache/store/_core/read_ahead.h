/* Reads a file from one place on, in pieces. A thread of its own is some pieces ahead of the
 * caller: it waits for the disk, and copies, while the caller looks at what was read before. */
#ifndef VC_READ_AHEAD_H
#define VC_READ_AHEAD_H

#include "core.h"
#include "sync.h"

enum {
    /* How many bytes next to each other a caller can ask for: those before a value. */
    VC_READ_AHEAD_BYTES_MAX = VC_PREFIX_BYTES_MAX,
    /* How much is read at a time, at most. */
    VC_READ_AHEAD_PIECE_BYTES = 256 << 10,
};

typedef struct vc_read_ahead vc_read_ahead;

/* Begin to read at `start`, which may be behind the end, `piece` bytes at a time; from `end` on
 * nothing is read. NULL without memory. There is no thread for the calls of a test, which come in
 * order, nor for a short file, nor for smaller pieces than VC_READ_AHEAD_PIECE_BYTES.
 *
 * A part of the disk that cannot be read reads as zeros; see `vc_read_ahead_is_unreadable`. But after
 * an error ECANCELED there are no more bytes. */
vc_read_ahead *vc_read_ahead_new(const vc_calls *calls, int fd, uint64_t start, uint64_t end,
                                 size_t piece);
void vc_read_ahead_free(vc_read_ahead *ahead);

/* Return the bytes of the file from `offset` on, and in *have how many there are: at least
 * `needed`, which is at most VC_READ_AHEAD_BYTES_MAX, unless the file ends before.
 * They stay until the next call. Cheap if `offset` is among the bytes of the last call, or next
 * to them. */
const uint8_t *vc_read_ahead_get(vc_read_ahead *ahead, uint64_t offset, size_t needed,
                                 size_t *have);

/* Whether some of these bytes cannot be read, of those that were to be read so far. If 4,096
 * sectors cannot be, all bytes count. */
bool vc_read_ahead_is_unreadable(vc_read_ahead *ahead, uint64_t start, uint64_t end);
/* How many sectors before `end` cannot be read, and in *first where the first one begins. */
size_t vc_read_ahead_unreadable(vc_read_ahead *ahead, uint64_t end, uint64_t *first);

#endif
