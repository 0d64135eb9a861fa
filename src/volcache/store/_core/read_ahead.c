/* The pieces are in a ring of buffers. The last one that was taken stays as it is until the next
 * one is taken: then the bytes that are still needed are moved in front of the next one. */
#include "read_ahead.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core_parts.h"

enum {
    PIECES = 8,
    /* All of them fit an L2 cache. */
    BUFFER_BYTES = VC_READ_AHEAD_BYTES_MAX + VC_READ_AHEAD_PIECE_BYTES,
    SECTOR_BYTES = 4096,
    UNREADABLE_MAX = 4096,
};

struct vc_read_ahead {
    const vc_calls *calls;
    int fd;
    uint64_t end;
    size_t piece;
    const uint8_t *at; /* what the caller looks at */
    uint64_t start;    /* its offset */
    size_t length;
    vc_mutex mutex;
    pthread_cond_t is_read, is_taken;
    pthread_t thread;
    bool has_thread;
    bool is_reading VC_GUARDED_BY(mutex); /* the thread, without the mutex */
    bool is_ending VC_GUARDED_BY(mutex);
    bool is_failed VC_GUARDED_BY(mutex);                          /* nothing was read at `next` */
    uint64_t next VC_GUARDED_BY(mutex);                           /* offset of the next piece */
    size_t read VC_GUARDED_BY(mutex), taken VC_GUARDED_BY(mutex); /* pieces */
    size_t lengths[PIECES] VC_GUARDED_BY(mutex);
    size_t unreadable_count VC_GUARDED_BY(mutex);
    /* Where sectors begin, in order. */
    uint64_t unreadable[UNREADABLE_MAX] VC_GUARDED_BY(mutex);
    uint8_t buffers[PIECES][BUFFER_BYTES];
};

static bool is_all_read(const vc_read_ahead *ahead) VC_REQUIRES(ahead->mutex) {
    return ahead->is_failed || ahead->next >= ahead->end;
}

/* Add a sector, unless it was read before. */
static void add_unreadable(vc_read_ahead *ahead, uint64_t sector) VC_REQUIRES(ahead->mutex) {
    size_t i = ahead->unreadable_count;
    uint64_t *all = ahead->unreadable;
    while (i && all[i - 1] > sector) i--;
    if (ahead->unreadable_count == UNREADABLE_MAX || (i && all[i - 1] == sector)) return;
    memmove(all + i + 1, all + i, (ahead->unreadable_count++ - i) * sizeof *all);
    all[i] = sector;
}

static ssize_t read_at(const vc_read_ahead *ahead, uint8_t *to, size_t length, uint64_t offset) {
    return vc_pread(ahead->calls, ahead->fd, to, length, offset, false);
}

/* Read each sector by itself, after all together could not be. */
static ssize_t read_sectors(vc_read_ahead *ahead, uint8_t *to, size_t length, uint64_t offset) {
    for (size_t at = 0, part; at < length; at += part) {
        part = SECTOR_BYTES - (offset + at) % SECTOR_BYTES;
        if (part > length - at) part = length - at;
        ssize_t got = read_at(ahead, to + at, part, offset + at);
        if (got < 0 && errno == ECANCELED) return -1;
        if (got < 0) {
            pthread_mutex_lock(&ahead->mutex);
            add_unreadable(ahead, offset + at - (offset + at) % SECTOR_BYTES);
            pthread_mutex_unlock(&ahead->mutex);
        }
        size_t read = got < 0 ? 0 : (size_t)got;
        memset(to + at + read, 0, part - read);
    }
    return (ssize_t)length;
}

/* Read the next piece; the caller has the mutex, which is free meanwhile. */
static void read_piece(vc_read_ahead *ahead) VC_REQUIRES(ahead->mutex) {
    size_t slot = ahead->read % PIECES;
    uint64_t left = ahead->end - ahead->next, from = ahead->next;
    uint8_t *to = ahead->buffers[slot] + VC_READ_AHEAD_BYTES_MAX;
    size_t length = left < ahead->piece ? (size_t)left : ahead->piece;
    ahead->is_reading = true;
    pthread_mutex_unlock(&ahead->mutex);
    ssize_t got = read_at(ahead, to, length, from);
    if (got < 0 && errno != ECANCELED) got = read_sectors(ahead, to, length, from);
    pthread_mutex_lock(&ahead->mutex);
    ahead->is_reading = false;
    ahead->is_failed = got <= 0;
    if (got <= 0) return;
    ahead->lengths[slot] = (size_t)got;
    ahead->next += (uint64_t)got;
    ahead->read++;
}

static void *read_pieces(void *argument) {
    vc_read_ahead *ahead = argument;
    pthread_mutex_lock(&ahead->mutex);
    while (!ahead->is_ending) {
        /* One more is with the caller. */
        if (is_all_read(ahead) || ahead->read - ahead->taken == PIECES - 1) {
            pthread_cond_wait(&ahead->is_taken, &ahead->mutex);
        } else {
            read_piece(ahead);
            pthread_cond_signal(&ahead->is_read);
        }
    }
    pthread_mutex_unlock(&ahead->mutex);
    return NULL;
}

/* Read from another place on. */
static void go_to(vc_read_ahead *ahead, uint64_t offset) {
    pthread_mutex_lock(&ahead->mutex);
    while (ahead->is_reading) pthread_cond_wait(&ahead->is_read, &ahead->mutex);
    ahead->next = ahead->start = offset;
    ahead->at = ahead->buffers[0];
    ahead->length = ahead->read = ahead->taken = 0;
    ahead->is_failed = false;
    pthread_cond_signal(&ahead->is_taken);
    pthread_mutex_unlock(&ahead->mutex);
}

vc_read_ahead *vc_read_ahead_new(const vc_calls *calls, int fd, uint64_t start, uint64_t end,
                                 size_t piece) {
    vc_read_ahead *ahead = malloc(sizeof *ahead);
    if (!ahead) return NULL;
    memset(ahead, 0, offsetof(vc_read_ahead, buffers));
    ahead->calls = calls;
    ahead->fd = fd;
    ahead->end = end;
    ahead->piece = piece;
    pthread_mutex_init(&ahead->mutex, NULL);
    pthread_cond_init(&ahead->is_read, NULL);
    pthread_cond_init(&ahead->is_taken, NULL);
    go_to(ahead, start);
    if (calls->pread == vc_os_calls.pread && piece == VC_READ_AHEAD_PIECE_BYTES &&
        start + piece < end)
        ahead->has_thread = !pthread_create(&ahead->thread, NULL, read_pieces, ahead);
    return ahead;
}

void vc_read_ahead_free(vc_read_ahead *ahead) {
    if (!ahead) return;
    pthread_mutex_lock(&ahead->mutex);
    ahead->is_ending = true;
    pthread_cond_signal(&ahead->is_taken);
    pthread_mutex_unlock(&ahead->mutex);
    if (ahead->has_thread) pthread_join(ahead->thread, NULL);
    pthread_cond_destroy(&ahead->is_read);
    pthread_cond_destroy(&ahead->is_taken);
    pthread_mutex_destroy(&ahead->mutex);
    free(ahead);
}

/* Have the next piece behind the bytes from `offset` on; returns false if there is none. */
static bool take_piece(vc_read_ahead *ahead, uint64_t offset) {
    pthread_mutex_lock(&ahead->mutex);
    while (ahead->read == ahead->taken && !is_all_read(ahead)) {
        if (ahead->has_thread) pthread_cond_wait(&ahead->is_read, &ahead->mutex);
        else read_piece(ahead);
    }
    bool is_there = ahead->read > ahead->taken;
    if (is_there) {
        size_t slot = ahead->taken % PIECES, passed = (size_t)(offset - ahead->start);
        size_t kept = ahead->length - passed;
        uint8_t *piece = ahead->buffers[slot] + VC_READ_AHEAD_BYTES_MAX;
        memcpy(piece - kept, ahead->at + passed, kept);
        ahead->at = piece - kept;
        ahead->start = offset;
        ahead->length = kept + ahead->lengths[slot];
        ahead->taken++;
        /* Not for each piece: to wake a thread costs about as much as to read one. */
        if (ahead->read - ahead->taken == PIECES / 2) pthread_cond_signal(&ahead->is_taken);
    }
    pthread_mutex_unlock(&ahead->mutex);
    return is_there;
}

const uint8_t *vc_read_ahead_get(vc_read_ahead *ahead, uint64_t offset, size_t needed,
                                 size_t *have) {
    if (offset < ahead->start || offset - ahead->start > ahead->length) go_to(ahead, offset);
    while (ahead->start + ahead->length - offset < needed && take_piece(ahead, offset)) continue;
    *have = (size_t)(ahead->start + ahead->length - offset);
    return ahead->at + (offset - ahead->start);
}

bool vc_read_ahead_is_unreadable(vc_read_ahead *ahead, uint64_t start, uint64_t end) {
    pthread_mutex_lock(&ahead->mutex);
    bool is_unreadable = ahead->unreadable_count == UNREADABLE_MAX;
    for (size_t i = 0; !is_unreadable && i < ahead->unreadable_count; i++) {
        uint64_t first = ahead->unreadable[i];
        is_unreadable = first < end && start < first + SECTOR_BYTES;
    }
    pthread_mutex_unlock(&ahead->mutex);
    return is_unreadable;
}

size_t vc_read_ahead_unreadable(vc_read_ahead *ahead, uint64_t end, uint64_t *first) {
    pthread_mutex_lock(&ahead->mutex);
    size_t count = ahead->unreadable_count;
    while (count && ahead->unreadable[count - 1] >= end) count--;
    *first = ahead->unreadable[0];
    pthread_mutex_unlock(&ahead->mutex);
    return count;
}
