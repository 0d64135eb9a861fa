#define _GNU_SOURCE
#include "shared.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "crc32c.h"
#include "guest.h"
#include "index_parts.h"
#include "siphash.h"

enum {
    SHARED_TRIES = 64,
    SHARED_VOLUMES = 65536,
    SHARED_RECORD_BYTES = 65, /* the shortest */
    SHARED_WINDOW_MIN = 1 << 18,
};
/* All windows together take a part of the 128 TiB that a process can map. */
static const uint64_t SHARED_WINDOW_MAX = UINT64_C(1) << 35;

/* --- The owner ---------------------------------------------------------------------------- */

/* Twice the buckets that the records of full volumes need: stale entries take room, too. */
static uint64_t shared_window(uint64_t volume_bytes, uint32_t volumes) {
    uint64_t records = volume_bytes / SHARED_RECORD_BYTES * volumes;
    uint64_t bytes = records / VC_SHARED_GROUPS / 2 * sizeof(vc_bucket) + SHARED_WINDOW_MIN;
    if (bytes > SHARED_WINDOW_MAX) bytes = SHARED_WINDOW_MAX;
    return bytes & ~(uint64_t)(SHARED_WINDOW_MIN - 1);
}

/* Returns NULL if the file cannot be shared. */
static vc_shared *shared_map(int fd, uint64_t bytes) {
    const int seals = F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    if (ftruncate(fd, (off_t)bytes)) return NULL;
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) return NULL;
    /* No guest can write. A forked child, which is one, must not. */
    if (!madvise(at, bytes, MADV_DONTFORK) && !fcntl(fd, F_ADD_SEALS, seals)) return at;
    munmap(at, bytes);
    return NULL;
}

vc_sharing vc_shared_new(uint64_t volume_bytes, uint32_t volumes, uint32_t slots) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t window = shared_window(volume_bytes, volumes);
    uint64_t groups_at = sizeof(vc_shared) + slots * sizeof(vc_shared_slot);
    groups_at = (groups_at + page - 1) / page * page;
    vc_sharing sharing = {.bytes = groups_at + window * VC_SHARED_GROUPS, .process = getpid()};
    /* memfd_create is not in the C library of the wheels. */
    sharing.fd = (int)syscall(SYS_memfd_create, "volcache index", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (sharing.fd < 0) return sharing;
    sharing.at = shared_map(sharing.fd, sharing.bytes);
    if (!sharing.at) {
        close(sharing.fd);
        return sharing;
    }
    sharing.at->bytes = sharing.bytes;
    sharing.at->slots_at = sizeof(vc_shared);
    sharing.at->groups_at = groups_at;
    sharing.at->window_bytes = window;
    sharing.at->slots = slots;
    return sharing;
}

void vc_shared_free(const vc_sharing *sharing) {
    if (!sharing->at) return;
    /* In a forked child, something else may be there. */
    if (sharing->process == getpid()) munmap(sharing->at, sharing->bytes);
    close(sharing->fd);
}

bool vc_shared_hold(vc_shared *shared) {
    if (shared->owner) return true;
    shared->holds.list.next = &shared->held;
    shared->held.next = &shared->holds.list;
    shared->holds.futex_offset = (char *)&shared->owner - (char *)&shared->held;
    if (syscall(SYS_set_robust_list, &shared->holds, sizeof(shared->holds))) return false;
    shared->owner = (unsigned)syscall(SYS_gettid);
    return true;
}

/* --- A guest ------------------------------------------------------------------------------- */

struct vc_guest {
    const vc_shared *shared;
    size_t bytes;
    int folder;
    int *files; /* by volume; 0: not open */
};

vc_guest *vc_guest_new(int fd, int folder) {
    struct stat about;
    vc_guest *guest = calloc(1, sizeof(vc_guest));
    if (!guest) return NULL;
    guest->folder = folder;
    guest->files = calloc(SHARED_VOLUMES, sizeof(int));
    guest->bytes = fstat(fd, &about) ? 0 : (size_t)about.st_size;
    void *at = guest->bytes > sizeof(vc_shared)
                   ? mmap(NULL, guest->bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0)
                   : MAP_FAILED;
    guest->shared = at == MAP_FAILED ? NULL : at;
    if (guest->files && guest->shared && guest->shared->bytes == guest->bytes) return guest;
    vc_guest_free(guest);
    return NULL;
}

void vc_guest_free(vc_guest *guest) {
    if (!guest) return;
    if (guest->shared) munmap((void *)guest->shared, guest->bytes);
    for (int i = 0; guest->files && i < SHARED_VOLUMES; i++)
        if (guest->files[i] > 0) close(guest->files[i]);
    free(guest->files);
    free(guest);
}

static unsigned guest_sequence(const atomic_uint *sequence) {
    return atomic_load_explicit((atomic_uint *)sequence, memory_order_acquire);
}

/* Copy words that may change meanwhile; the caller finds out whether they did. */
static void guest_copy(void *to, const void *from, size_t bytes) {
    typedef uint64_t __attribute__((may_alias)) word;
    for (size_t i = 0; i < bytes / sizeof(word); i++)
        ((word *)to)[i] = __atomic_load_n((const word *)from + i, __ATOMIC_RELAXED);
}

/* Copy the bucket that has an entry, if there is one; returns the entry's number, or -1. */
static int guest_find_entry(const vc_guest *guest, uint64_t fingerprint, vc_bucket *copy) {
    const vc_shared *shared = guest->shared;
    uint32_t number = fingerprint >> VC_TAG_BITS & ((1 << VC_SEGMENT_BITS) - 1);
    uint64_t tag = fingerprint & ((UINT64_C(1) << VC_TAG_BITS) - 1);
    uint32_t span[2];
    guest_copy(span, &shared->segments[number], sizeof(span));
    uint64_t end = ((uint64_t)span[0] + span[1]) * sizeof(vc_bucket);
    if (!span[1] || end > shared->window_bytes) return -1;
    const vc_bucket *base = (const vc_bucket *)(const void *)vc_shared_group(
                                shared, number / VC_GROUP_SEGMENTS) +
                            span[0];
    uint32_t first = vc_first_bucket(tag, span[1]);
    guest_copy(copy, base + first, sizeof(*copy));
    int k = vc_bucket_match(copy, tag);
    if (k >= 0 || copy->flags < VC_OVERFLOW_ONE) return k;
    guest_copy(copy, base + vc_second_bucket(tag, span[1], first), sizeof(*copy));
    return vc_bucket_match(copy, tag);
}

/* Return the descriptor of a volume, which may have to be opened; below 0: it cannot be. */
static int guest_file(vc_guest *guest, uint16_t volume) {
    char name[8];
    if (!guest->files[volume]) {
        snprintf(name, sizeof(name), "%u", volume);
        guest->files[volume] = openat(guest->folder, name, O_RDONLY | O_CLOEXEC);
    }
    return guest->files[volume];
}

/* Find out where a record is; the caller finds out whether anything has changed meanwhile. */
static vc_guest_result guest_place(const vc_guest *guest, uint64_t fingerprint, vc_lookup *at) {
    const vc_shared *shared = guest->shared;
    vc_bucket b __attribute__((aligned(sizeof(vc_bucket))));
    vc_shared_slot slot;
    int k = guest_find_entry(guest, fingerprint, &b);
    if (k < 0 || b.flags & VC_TOMBSTONE_MASK(k)) return VC_GUEST_ABSENT;
    uint64_t position = b.word[k] & VC_POSITION_MASK;
    uint32_t number = (uint32_t)(position >> shared->offset_bits);
    if (number >= shared->slots) return VC_GUEST_ASK;
    guest_copy(&slot, &vc_shared_slots(shared)[number], sizeof(slot));
    at->offset = position & ((UINT64_C(1) << shared->offset_bits) - 1);
    at->size = vc_size_max(b.word[k]);
    if (!slot.count) return VC_GUEST_ABSENT;
    if (slot.count > VC_SHARED_SALTS) return VC_GUEST_ASK;
    at->salt = vc_salt_at(slot.segments, slot.count, at->offset);
    at->volume = slot.volume;
    return VC_GUEST_FOUND;
}

/* Find out where the record of a fingerprint is. */
static vc_guest_result guest_find(const vc_guest *guest, uint64_t fingerprint, vc_lookup *at) {
    const vc_shared *shared = guest->shared;
    at->fingerprint = fingerprint;
    const atomic_uint *sequence =
        &shared->sequences[(at->fingerprint >> VC_TAG_BITS) / VC_GROUP_SEGMENTS];
    for (int tries = 0; tries < SHARED_TRIES; tries++) {
        unsigned before = guest_sequence(sequence), slots = guest_sequence(&shared->slot_sequence);
        at->purge_drops = atomic_load((atomic_uint *)&shared->purge_drops);
        vc_guest_result found = guest_place(guest, fingerprint, at);
        atomic_thread_fence(memory_order_acquire);
        if (!((before | slots) & 1) && guest_sequence(sequence) == before &&
            guest_sequence(&shared->slot_sequence) == slots)
            return found;
    }
    return VC_GUEST_ASK;
}

vc_guest_result vc_guest_find(vc_guest *guest, const uint8_t *key, size_t length, vc_lookup *at) {
    uint64_t hash = vc_siphash13(guest->shared->hash_key, key, length);
    vc_guest_result found = guest_find(guest, hash >> (64 - VC_FINGERPRINT_BITS), at);
    if (found != VC_GUEST_FOUND) return found;
    at->fd = guest_file(guest, at->volume);
    return at->fd < 0 ? VC_GUEST_ASK : VC_GUEST_FOUND;
}

vc_guest_result vc_guest_read(const vc_guest *guest, const vc_lookup *at, const uint8_t *key,
                              size_t length, uint8_t *bytes, size_t room, bool is_head,
                              vc_record *record) {
    const vc_shared *shared = guest->shared;
    ssize_t got = pread(at->fd, bytes, room, (off_t)at->offset);
    if (got < 0 || vc_record_decode(bytes, (size_t)got, at->salt, at->volume, at->offset, record))
        return VC_GUEST_ASK;
    if (record->kind || record->key_length != length || memcmp(record->key, key, length))
        return VC_GUEST_ASK;
    if (record->stored_us <= atomic_load((atomic_ullong *)&shared->purged_us) ||
        at->purge_drops != atomic_load((atomic_uint *)&shared->purge_drops))
        return VC_GUEST_ASK;
    if (is_head) return VC_GUEST_FOUND;
    bool is_good = record->size <= (size_t)got &&
                   vc_crc32c(0, bytes + record->prefix, record->length) == record->checksum;
    return is_good ? VC_GUEST_FOUND : VC_GUEST_ASK;
}

bool vc_guest_is_current(const vc_guest *guest) {
    unsigned owner = atomic_load((atomic_uint *)&guest->shared->owner);
    return owner && !(owner & FUTEX_OWNER_DIED);
}
