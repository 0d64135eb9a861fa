/* What programs share whose threads read keys while their volumes are written in a circle: the
 * files, and what each version of a key is. */
#ifndef VC_VERSIONS_H
#define VC_VERSIONS_H

#include "core.h"
#include "hidden_calls.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

enum { KEYS = 300, VOLUMES = 4, VOLUME_BYTES = 256 << 10 };

/* What is finished of a key: version, and the turn of the volume it is in, or one before it. */
#define NOTE(version, turn) ((uint64_t)(version) << 32 | (turn))
#define VERSION_OF(note) ((uint32_t)((note) >> 32))
#define TURN_OF(note) ((uint32_t)(note))

static _Atomic uint32_t begun[KEYS];    /* the version of which the writing has begun */
static _Atomic uint64_t finished[KEYS]; /* a NOTE; 0: never written */
static _Atomic uint32_t latest_turn;
static _Atomic uint32_t oldest_turn; /* earlier ones are reclaimed, or being so */
static int descriptors[VOLUMES];
static vc_core *core;

/* Of the volume that is written; used with the write lock, or by one thread. */
static struct {
    vc_writer writer;
    vc_calls calls;
    size_t pending_max;
    uint32_t turn, slots[VOLUMES];
} w;
static unsigned long rotations;

/* --- What a version of a key is; version 0 is that before the first ------------------- */

static inline uint64_t nature(uint32_t key, uint32_t version) {
    return mixed((uint64_t)key << 32 | version);
}

static inline bool is_deletion(uint32_t key, uint32_t version) {
    return version == 0 || nature(key, version) % 7 == 0;
}

/* Fill with bytes of which each 8 depend on key, version and place. */
static inline void make_bytes(uint8_t *out, uint32_t length, uint32_t key, uint32_t version) {
    uint64_t start = nature(key, version);
    for (uint32_t i = 0; i < length; i += 8) {
        uint64_t word = start + i;
        memcpy(out + i, &word, length - i < 8 ? length - i : 8);
    }
}

/* Whether what was finished `before` must have been found: it is still the last version, and
 * its volume was not reclaimed. */
static inline bool must_be_found(uint32_t key, uint64_t before) {
    return before && !is_deletion(key, VERSION_OF(before)) &&
           atomic_load(&begun[key]) == VERSION_OF(before) &&
           atomic_load(&oldest_turn) <= TURN_OF(before);
}

/* --- The volumes ---------------------------------------------------------------------- */

static inline void open_files(void) {
    char folder[] = "/tmp/volumes.XXXXXX", path[64];
    CHECK(mkdtemp(folder));
    for (int i = 0; i < VOLUMES; i++) {
        snprintf(path, sizeof path, "%s/%d", folder, i);
        descriptors[i] = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        CHECK(descriptors[i] >= 0 && ftruncate(descriptors[i], VOLUME_BYTES) == 0);
        CHECK(unlink(path) == 0);
    }
    CHECK(rmdir(folder) == 0);
}

/* The salt of a record says in which turn it was written. */
static inline uint64_t make_salt(uint32_t turn, unsigned segment) {
    return mixed(turn * 2 + segment) << 32 | turn;
}

/* Write the next volume, after the oldest one is reclaimed if all are used. */
static inline void start_volume(void) {
    uint32_t turn = ++w.turn, id = turn % VOLUMES;
    atomic_store(&latest_turn, turn);
    if (turn > VOLUMES) {
        atomic_store(&oldest_turn, turn - VOLUMES + 1);
        vc_core_reclaim(core, w.slots[id]);
        rotations++;
    }
    w.slots[id] = vc_core_add_volume(core, turn);
    CHECK(w.slots[id] != VC_NO_SLOT);
    vc_writer_free(&w.writer);
    w.writer = (vc_writer){
        .calls = &w.calls,
        .fd = descriptors[id],
        .volume = (uint16_t)id,
        .slot = w.slots[id],
        .salt = make_salt(turn, 0),
        .end = VC_VOLUME_HEADER_BYTES,
        .capacity = VOLUME_BYTES,
        .pending_max = w.pending_max,
    };
    vc_segment whole = {0, w.writer.salt};
    CHECK(vc_core_bind(core, w.slots[id], descriptors[id], (uint16_t)id, &whole, 1));
    CHECK(vc_core_set_writer(core, &w.writer) == VC_MAIN);
}

#endif
