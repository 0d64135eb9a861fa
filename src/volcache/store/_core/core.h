/* The store without Python: reading a record, appending one, loading index files.
 *
 * Threads. A `vc_core` has two locks, acquired in this order:
 *   the write lock   Protects the volumes and the ends of the logs: who is to append, rotate,
 *                    reclaim or purge holds it, also while it waits for the disk. A thread
 *                    that has it may acquire it again. A thread with the lock of the Python
 *                    interpreter only tries to acquire it, and waits without the interpreter:
 *                    so its owner may wait for the interpreter. A thread that serves clients
 *                    tries to acquire it for about a millisecond, as `vc_core_put` does. If it
 *                    cannot, because a volume is started or reclaimed, it leaves the request
 *                    to Python. While it has the lock, it waits neither for the interpreter nor
 *                    for a client. The thread that calls `vc_core_group_commit` waits.
 *   the mutex        Inside of this module: protects the index, the table of volumes, the
 *                    purges and the figures of the policy. It is held for a lookup or a change,
 *                    never during a system call, so readers wait for no writer.
 * Without any lock, any number of threads may call those under "Reading", and `vc_core_find`,
 * `vc_core_hit`, `vc_core_count_reads`, `vc_core_is_purged`, `vc_core_live`, `vc_core_stats` and
 * `vc_core_get_policy_stats`. All others need the write lock; until other threads use the core, as when it is loaded, nothing does.
 * A volume that is reclaimed while a record in it is read may be overwritten meanwhile: the
 * record then fails its checks, which the reader takes for a miss. The descriptors belong to the
 * caller. They are closed only when the store is closed: after `vc_core_close`, which waits
 * for the last read. */
#ifndef VC_CORE_H
#define VC_CORE_H

#include <sys/types.h>
#include <sys/uio.h>

#include "index.h"
#include "lines.h"
#include "purges.h"
#include "record.h"

/* The system calls of the core, so that tests can fail any of them. They return -1 with errno
 * on an error, like the calls that they are named after. */
typedef struct {
    /* `is_cached`: only what is in memory. EAGAIN if the first byte is not, and fewer bytes if a
     * later one is not; EOPNOTSUPP: the file system cannot tell. */
    ssize_t (*pread)(void *context, int fd, void *buffer, size_t length, off_t offset,
                     bool is_cached);
    ssize_t (*pwritev)(void *context, int fd, const struct iovec *parts, int count, off_t offset);
    int (*fdatasync)(void *context, int fd);
    void *context;
} vc_calls;

/* Those of the operating system. */
extern const vc_calls vc_os_calls;

typedef struct vc_core vc_core;

/* See `vc_index_new` for the arguments; NULL without memory. */
vc_core *vc_core_new(const vc_calls *calls, const uint8_t hash_key[16], uint64_t volume_bytes,
                     uint32_t volumes, uint64_t expected);
/* Wait for the last read; from now on every lookup finds nothing. */
void vc_core_close(vc_core *core);
void vc_core_free(vc_core *core);

/* --- The write lock ---------------------------------------------------------------- */

void vc_core_acquire(vc_core *core);
/* How long a thread that serves clients waits. Most owners append one record: longer than any of
 * them takes. */
static const int64_t VC_LOCK_WAIT_NS = 1000000;
/* Wait for at most this many nanoseconds; returns false if another thread has it still. */
bool vc_core_try_acquire(vc_core *core, int64_t wait_ns);
/* Returns false if this thread does not have it. */
bool vc_core_release(vc_core *core);
bool vc_core_is_mine(vc_core *core);
/* Let this thread have the lock, which another one has that waits for it, or, with `to`, let that
 * one have it again. Returns who had it. */
uintptr_t vc_core_lend(vc_core *core, uintptr_t to);

/* --- Volumes ----------------------------------------------------------------------- */

/* Return the slot of a volume that is new to the index; VC_NO_SLOT: there are too many. */
uint32_t vc_core_add_volume(vc_core *core, uint64_t seq);
/* Say where the records of a slot are: `segments` in order, the first one from offset 0.
 * Until then, no lookup finds them. Returns false without memory. */
bool vc_core_bind(vc_core *core, uint32_t slot, int fd, uint16_t volume, const vc_segment *segments,
                  size_t count);
vc_live vc_core_reclaim(vc_core *core, uint32_t slot);
vc_live vc_core_live(vc_core *core, uint32_t slot);

/* Say that `born` bytes had been appended to its ring when the volume was started, and that
 * its records are read up to `end`. */
void vc_core_set_age(vc_core *core, uint32_t slot, unsigned ring, uint64_t born, uint64_t end);

/* --- Eviction ---------------------------------------------------------------------- */

/* The numbers of the policy; see store/eviction.py. */
typedef struct {
    double hit_rate, write_rate; /* tokens for each byte that is read, or put */
    double tokens_max;
    uint64_t skip[VC_RINGS]; /* bytes: reads of newer records are no hits */
} vc_policy;

enum { VC_RING_UNKNOWN = VC_RINGS, MISSED_KEYS = 65536 };

typedef struct {
    double tokens;
    uint64_t ghost_hits; /* keys that were put after they were dropped from probation */
    uint64_t older_hits; /* reads of records stored before the time given */
} vc_policy_stats;

/* Count hits and misses from now on. Returns false without memory. */
bool vc_core_set_policy(vc_core *core, const vc_policy *policy);
/* Into which ring a value of this key has to be put. VC_RING_UNKNOWN: the index has lost an
 * entry since `vc_core_accept_displaced`, perhaps this one. Nothing is changed. */
unsigned vc_core_ring_for(vc_core *core, const uint8_t *key, size_t length);
void vc_core_accept_displaced(vc_core *core);
/* Count a hit of a key that was read from elsewhere; return whether it had fewer than 3. See
 * `vc_core_set_older` for `stored_us`. */
bool vc_core_hit(vc_core *core, const uint8_t *key, size_t length, uint64_t stored_us);
/* Count reads: fingerprints, with VC_MISS those of keys that were not there, which are remembered. */
#define VC_MISS (UINT64_C(1) << 63)
void vc_core_count_reads(vc_core *core, const uint64_t *reads, size_t count);
/* The descriptor of what guests map, see shared.h, as long as this thread is there; -1: nothing is
 * shared. Always by the same thread. */
int vc_core_share(vc_core *core);
/* Count hits of records that were stored before `us`, unless they had 3: once they are copied
 * they have fewer, so the hits of a record that is read all the time are counted about once
 * per turn of the ring. As often a single ring would have missed it. */
void vc_core_set_older(vc_core *core, uint64_t us);
/* Have room in the ghost for about `keys` keys. */
void vc_core_size_ghost(vc_core *core, uint64_t keys);
void vc_core_get_policy_stats(vc_core *core, vc_policy_stats *policy_stats);

/* --- Purges ------------------------------------------------------------------------ */

/* The functions of purges.h, with the mutex where others may read the table. All but
 * `vc_core_is_purged` are for the owner of the write lock. */
bool vc_core_reserve_purge(vc_core *core, const uint8_t *prefix, size_t length);
void vc_core_add_purge(vc_core *core, uint64_t us, uint64_t seq);
void vc_core_drop_purges(vc_core *core, uint64_t seq);
/* Remove all that a newer one covers; the mutex is held for some at a time. */
void vc_core_sweep_purges(vc_core *core);
/* For questions; NULL: there never was a purge. */
const vc_purges *vc_core_purges(const vc_core *core);
/* Whether a record is purged. Without a purge that is newer than the record, one comparison. */
bool vc_core_is_purged(vc_core *core, const uint8_t *key, size_t length, uint64_t stored_us);

/* --- The index --------------------------------------------------------------------- */

uint64_t vc_core_fingerprint(const vc_core *core, const uint8_t *key, size_t length);
/* `vc_index_find` and the others, with the mutex; `seq`: of the volume. */
bool vc_core_find(vc_core *core, uint64_t fingerprint, vc_entry *found, uint64_t *seq);
/* Returns false, too, if the index has no room for such an offset or size. */
bool vc_core_set(vc_core *core, uint64_t fingerprint, uint32_t slot, uint64_t offset, uint64_t size,
                 bool is_tombstone);
/* Let a key have no value from now on, although its record stays where it is; `slot` and
 * `offset`: only if it is there. */
bool vc_core_bury(vc_core *core, uint64_t fingerprint, uint32_t slot, uint64_t offset);
void vc_core_stats(vc_core *core, vc_index_stats *stats);

/* --- Reading ----------------------------------------------------------------------- */

/* Where the record of a key is. */
typedef struct {
    uint64_t fingerprint, offset, salt;
    uint64_t size; /* at least that of the record */
    int fd;
    uint16_t volume;
    bool is_raised; /* a hit was counted */
    unsigned purge_drops;
} vc_lookup;

/* Look up a key and count a hit, if `found->size` is at most `size_max`: otherwise the caller
 * leaves it to others to read the record. VC_UNCOUNTED: count neither a hit nor a miss. If true,
 * the caller reads it or not, and then calls `vc_core_end_read`. */
enum { VC_UNCOUNTED = 0 };
bool vc_core_lookup(vc_core *core, const uint8_t *key, size_t length, uint64_t size_max,
                    vc_lookup *found);
/* Let the processor fetch what lookups of these keys will read, so that they do not wait for the
 * memory one after the other. */
void vc_core_prefetch(vc_core *core, const struct iovec *keys, size_t count);
/* Whether there is no value of a key; if it `counts`, this is remembered. `is_stale`: there was
 * one lately. */
bool vc_core_is_absent(vc_core *core, const uint8_t *key, size_t length, bool counts,
                       bool *is_stale);

/* The most that can be before the value of a key. */
#define VC_HEAD_BYTES_MAX(key_length) (VC_OVERHEAD_BYTES + VC_TYPES_BYTES_MAX + (key_length))

/* Read at->size bytes of the record that was looked up, and check it. `is_cached`: without waiting
 * for the disk; VC_COLD if not all of it is in memory. VC_DAMAGED, VC_OTHER_KEY,
 * VC_PURGED, VC_IO_ERROR: nothing can be used. VC_SHORT: the value is longer; all before it is right
 * if record->key was set. VC_OUTDATED: a purge that covers the record may have been dropped with its
 * volume since the lookup. */
vc_status vc_core_read(vc_core *core, const uint8_t *key, size_t key_length, const vc_lookup *at,
                       bool is_cached, uint8_t *record_bytes, vc_record *record);
/* Read the value of a record of which all before it was read, and check that. */
vc_status vc_core_read_value(vc_core *core, const vc_lookup *at, const vc_record *record,
                             uint8_t *value);
/* As `vc_core_read` for `length` bytes of a copy of the record that was looked up. */
vc_status vc_core_check(vc_core *core, const uint8_t *key, size_t key_length, const vc_lookup *at,
                        const uint8_t *copy, size_t length, vc_record *record);
void vc_core_end_read(vc_core *core);

/* --- Appending --------------------------------------------------------------------- */

/* The end of a volume that is written, the entries for its index file, and the end of that. Used
 * with the write lock, except that any thread may read the ends: what is before is written. */
typedef struct {
    const vc_calls *calls;
    int fd;
    uint16_t volume;
    uint32_t slot; /* of the volume in the index */
    uint64_t salt;
    _Atomic uint64_t end;        /* offset of the next record */
    _Atomic uint64_t synced_end; /* records before it are on the disk */
    uint64_t capacity;           /* records may be written up to here */
    uint64_t length;             /* the highest capacity it may get */
    uint64_t written_end;        /* behind the last record are zeros up to here */
    char *lines;                 /* entries that are not in the index file */
    size_t lines_used, lines_room, pending;
    size_t pending_max;         /* entries; then they are written to the index file */
    int index_fd;               /* of the index file */
    _Atomic uint64_t index_end; /* offset of its next block */
    uint32_t index_checksum;    /* of its last block */
    bool is_indexed;            /* nothing but entries belongs into the next block */
    int index_error;            /* why the core could not write the last block; 0: it could */
} vc_writer;

void vc_writer_free(vc_writer *writer);
/* Keep no entries. */
void vc_writer_clear(vc_writer *writer);
/* Add an entry for the index file; size 0: a deletion. Returns false without memory. */
bool vc_writer_add_entry(vc_writer *writer, const uint8_t *key, size_t length, uint64_t offset,
                         uint64_t size);
/* Write lines to the index file as a block, which says that the volume is indexed up to `end`.
 * Returns false if the disk refused; errno says why, and the next block overwrites this one. */
bool vc_writer_append_block(vc_writer *writer, const char *lines, size_t length, uint64_t end,
                            bool is_sealed);
/* A record to be appended. Before the call are set: key_length, type_length, encoding_length,
 * cache_length, length, expires_ms, flags and kind of `record`; stored_us, or 0 for the next
 * time of the clock; the pointers; and `ring`. The other fields are results. */
typedef struct {
    vc_record record;
    const uint8_t *type, *encoding, *cache, *key, *value;
    unsigned ring;
    int64_t started_ns, took_ns; /* when, and for how long, it was written */
    bool has_deferred;           /* since it was put, something is; see `vc_core_has_deferred` */
    vc_status status;            /* of `vc_core_group_commit` */
} vc_put;

/* Write a record at `end` and add its entry. With `sync`, return only when it is on the disk.
 *
 * The page that the record ends in is written completely, with zeros: to write part of a page that
 * is not in memory, the kernel would first read it from the disk. Without `sync`, so is the chunk
 * of 256 KiB that it is in: the kernel then keeps it in one piece, and copies faster.
 *
 * VC_OK; VC_NO_ROOM, VC_NO_MEMORY: nothing was written; VC_IO_ERROR, VC_SYNC_ERROR: errno says
 * why, `end` has not moved, and the next record overwrites this one. */
vc_status vc_writer_append(vc_writer *writer, vc_put *put, bool sync);

enum { VC_GROUP_PUTS_MAX = 256, VC_PUTS_AT_ONCE = 16 }; /* at most */

/* How records are put. */
typedef struct {
    int64_t (*next_us)(void *context); /* later than all times before */
    void *context;
    uint64_t deferred_bytes; /* after these, a step of a reclaim is due */
    bool syncs;              /* each record */
} vc_putting;

/* What is due before the next plain put, by whoever rotates. Each bit is for a ring. */
typedef struct {
    uint64_t bytes;     /* that were put since the last step of a reclaim; 0: none is due */
    unsigned unwritten; /* its entries are to be written to the index file */
    unsigned refused;   /* the disk has refused a record, which a start may find */
    unsigned unsynced;  /* of these: a sync has failed, and the volume must be retired */
    int sync_error;     /* why */
} vc_deferred;

void vc_core_set_putting(vc_core *core, const vc_putting *how);
/* Let no plain put or deletion and no copy be made from now on, or let them be made again: a
 * start may find a record that the disk has refused. */
void vc_core_block_writes(vc_core *core, bool is_blocked);
/* Let `writer` have the records of the ring that its volume is in, until another one is set;
 * returns the ring. To put nothing more into the volume, set its `capacity` to 0. */
unsigned vc_core_set_writer(vc_core *core, vc_writer *writer);
/* Put a value, or a tombstone: append it, let the index have it, and count that. The entry of a
 * tombstone is written to the index file at once; if that fails, it is due.
 *
 * In a plain put, the ring is VC_RING_UNKNOWN: the core chooses it. Any thread may make one,
 * without the write lock and without the interpreter. VC_DEFERRED: nothing was done, because the
 * write lock was not free for a millisecond, because the ring is not known or has no room, or
 * because something is due. Then whoever rotates has to make room, and to put it with the ring
 * given. VC_GROUPED: nothing was done, because each record is synced, which takes long.
 *
 * The other results are those of `vc_writer_append`. After VC_IO_ERROR or VC_SYNC_ERROR nothing
 * may be acknowledged before that is settled, not even a deletion that finds nothing. */
vc_status vc_core_put(vc_core *core, vc_put *put);
/* Make plain puts of values, in their order, with one write for all of them. Returns how many of
 * the first ones were made; 0: none, and `vc_core_put` tells why. Fewer than `count`: the next one
 * is of another ring, or has no room. If the disk refuses one of them, none is made, and no start
 * finds more of them than the first. `has_deferred` is set in the last one only. */
size_t vc_core_put_many(vc_core *core, vc_put *const *puts, size_t count);
/* Make plain puts of values, with one sync for all of them if each record is to be synced; wait for
 * the write lock and the disk.
 * Whoever waits for the lock meanwhile gets it before the next call does.
 *
 * Returns how many of the first ones were made or not, as `status` says: fewer than `count` if
 * two have the same key, as these are made one after the other. None is visible before all are on
 * the disk. `took_ns` includes the sync. `has_deferred` is set in the last one only; what is due defers
 * none, except a record that was refused. VC_OK, VC_DEFERRED, VC_NO_MEMORY, VC_IO_ERROR and
 * VC_SYNC_ERROR: as above; the others may be VC_OK nevertheless. */
size_t vc_core_group_commit(vc_core *core, vc_put *const *puts, size_t count);
/* Delete a key: put a tombstone, if there is a value. In `put`, only `key`, `record.key_length`
 * and `ring` are set. `existed`: whether there was a value that had not expired at `now_ms`.
 *
 * A plain deletion is one without a ring, as a plain put. VC_DEFERRED: as above, or the header
 * of the record is not in memory, or is damaged. With a ring, it is read from the disk; a
 * record that cannot be read is deleted. If a tombstone was written, put->started_ns is set. */
vc_status vc_core_delete(vc_core *core, vc_put *put, uint64_t now_ms, bool *existed);

/* What the record of a key must be for a change. A record that has expired or is purged is none. */
typedef enum {
    VC_IF_ANY,
    VC_IF_ABSENT,
    VC_IF_PRESENT,
    VC_IF_SAME,  /* stored at `stored_us`, with this `expires_ms` unless that is UINT64_MAX */
    VC_IF_OLDER, /* it was stored, or deleted, at `stored_us` or before; or never */
} vc_if;
typedef struct {
    vc_if kind;
    uint64_t stored_us, expires_ms;
} vc_condition;

/* Find out whether one holds at `now_ms`, from the disk only if the caller `waits`. VC_DEFERRED:
 * that is not known. */
vc_status vc_core_holds(vc_core *core, const uint8_t *key, size_t length,
                        const vc_condition *condition, uint64_t now_ms, bool waits, bool *holds);
/* A plain put, or with record.kind a plain deletion, if a condition holds at `now_ms`; decision and
 * change are one step. `is_done`: whether it held, and, for a deletion, there was a value.
 * Otherwise as `vc_core_put` and `vc_core_delete`; VC_DEFERRED: also if that is not known. */
vc_status vc_core_change(vc_core *core, vc_put *put, const vc_condition *condition, uint64_t now_ms,
                         bool waits, bool *is_done);
bool vc_core_has_deferred(vc_core *core);
/* Return what is due, which is not due from now on. */
vc_deferred vc_core_take_deferred(vc_core *core);

/* --- Loading ----------------------------------------------------------------------- */

/* Load an index file into the index from offset `lines->file_end` on, block by block.
 * Entries are applied many at a time, by a thread of its own while more are read; any other
 * call for the index applies the rest first.
 * Returns VC_OK, VC_IO_ERROR or VC_NO_MEMORY. */
vc_status vc_core_load(vc_core *core, uint32_t slot, int fd, vc_lines *lines);
/* Free the memory that only loading needs. */
void vc_core_end_load(vc_core *core);

#endif
