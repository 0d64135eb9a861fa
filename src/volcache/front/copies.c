#define _GNU_SOURCE
#include "copies.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "siphash.h"

enum { NONE = UINT32_MAX };

/* A key with a version, or one whose reads are counted. */
typedef struct {
    uint64_t hash;
    uint32_t chain; /* the next one of its bucket, or of those that are free */
    /* Of a key with a version. */
    uint32_t older, newer; /* in the list */
    bool is_listed;
    uint64_t version; /* as in `vc_copies_entry` */
    /* Of a key whose reads are counted. */
    bool is_recent; /* it was read since `hand` was here */
    uint32_t time_count, time_room, oldest;
    int64_t *times; /* of the last reads; from `oldest` on, in a circle when full */
} node;

/* Nodes by hash. Some of them are in a list, in the order in which they were put there. */
typedef struct {
    node *nodes;
    uint32_t *buckets;
    uint32_t mask, room, used, free, count;
    uint32_t oldest, newest, listed;
    uint32_t hand; /* where to look for a node that may be dropped */
} table;

struct vc_copies {
    vc_copies_config config;
    pthread_mutex_t mutex;
    uint32_t key_count; /* `keys.used`; read without the mutex */
    uint64_t invalidations;
    uint8_t epoch[VC_EPOCH_BYTES];
    table keys; /* those asked first are listed */
    table counters;
};

/* --- Tables ----------------------------------------------------------------------------- */

static bool open_table(table *t, uint32_t room) {
    uint32_t buckets = 1;
    while (buckets < room) buckets *= 2;
    *t = (table){.mask = buckets - 1, .room = room};
    t->nodes = calloc(room, sizeof(node));
    t->buckets = calloc(buckets, sizeof(uint32_t));
    return t->nodes && t->buckets;
}

static void copies_clear(table *t) {
    memset(t->buckets, 0xff, ((size_t)t->mask + 1) * sizeof(uint32_t));
    t->used = t->count = t->listed = t->hand = 0;
    t->free = t->oldest = t->newest = NONE;
}

static void close_table(table *t) {
    for (uint32_t i = 0; t->nodes && i < t->room; i++) free(t->nodes[i].times);
    free(t->nodes);
    free(t->buckets);
}

static uint32_t copies_look_up(const table *t, uint64_t hash) {
    uint32_t at = t->buckets[hash & t->mask];
    while (at != NONE && t->nodes[at].hash != hash) at = t->nodes[at].chain;
    return at;
}

/* Add a hash that is not in the table; NONE: there is no room. */
static uint32_t copies_add(table *t, uint64_t hash) {
    uint32_t at = t->free, *bucket = &t->buckets[hash & t->mask];
    if (at != NONE) t->free = t->nodes[at].chain;
    else if (t->used < t->room) at = t->used++;
    else return NONE;
    node *n = &t->nodes[at];
    int64_t *times = n->times;
    *n = (node){.hash = hash, .chain = *bucket, .times = times, .time_room = n->time_room};
    *bucket = at;
    t->count++;
    return at;
}

static void unlist(table *t, uint32_t at) {
    node *n = &t->nodes[at];
    if (!n->is_listed) return;
    *(n->older == NONE ? &t->oldest : &t->nodes[n->older].newer) = n->newer;
    *(n->newer == NONE ? &t->newest : &t->nodes[n->newer].older) = n->older;
    n->is_listed = false;
    t->listed--;
}

static void list_newest(table *t, uint32_t at) {
    node *n = &t->nodes[at];
    n->older = t->newest;
    n->newer = NONE;
    *(t->newest == NONE ? &t->oldest : &t->nodes[t->newest].newer) = at;
    t->newest = at;
    n->is_listed = true;
    t->listed++;
}

static void delete_node(table *t, uint32_t at) {
    uint32_t *link = &t->buckets[t->nodes[at].hash & t->mask];
    while (*link != at) link = &t->nodes[*link].chain;
    *link = t->nodes[at].chain;
    t->nodes[at].chain = t->free;
    t->free = at;
    t->count--;
}

/* Drop a node of a full table that is not recent: so one that is read again and again stays,
 * without being moved in a list with each read. */
static void drop_one(table *t) {
    while (t->nodes[t->hand].is_recent) {
        t->nodes[t->hand].is_recent = false;
        t->hand = (t->hand + 1) % t->room;
    }
    delete_node(t, t->hand);
    t->hand = (t->hand + 1) % t->room;
}

/* --- Hashes ----------------------------------------------------------------------------- */

static uint64_t hash_of(const vc_copies *copies, const uint8_t *key, size_t length) {
    return vc_siphash13(copies->epoch, key, length);
}

static void put_u64(uint8_t *to, uint64_t number) {
    for (int i = 0; i < 8; i++) to[i] = (uint8_t)(number >> 8 * i);
}

/* The name of the item of a key at a version, which is not doubled here. */
static void name_of(const vc_copies *copies, const uint8_t *key, size_t length, uint64_t version,
                    uint8_t item[VC_ITEM_BYTES]) {
    uint8_t text[VC_ITEM_BYTES + 8];
    vc_siphash24_128(copies->epoch, key, length, text);
    put_u64(text + VC_ITEM_BYTES, version);
    vc_siphash24_128(copies->epoch, text, sizeof(text), item);
}

/* --- Answering requests ----------------------------------------------------------------- */

/* Whether no key has a version, so that nothing need be looked up. */
static bool is_empty(vc_copies *copies) {
    return !__atomic_load_n(&copies->key_count, __ATOMIC_ACQUIRE);
}

static void set_key_count(vc_copies *copies) {
    __atomic_store_n(&copies->key_count, copies->keys.used, __ATOMIC_RELEASE);
}

vc_copy_use vc_copies_find(vc_copies *copies, const uint8_t *key, size_t length,
                           uint8_t item[VC_ITEM_BYTES]) {
    vc_copy_use use = VC_NO_COPY;
    if (is_empty(copies)) return use;
    pthread_mutex_lock(&copies->mutex);
    uint32_t at = copies_look_up(&copies->keys, hash_of(copies, key, length));
    if (at != NONE && copies->keys.nodes[at].version & 1) {
        const node *n = &copies->keys.nodes[at];
        use = n->is_listed ? VC_COPY_FIRST : VC_COPY;
        if (item) name_of(copies, key, length, n->version >> 1, item);
    }
    pthread_mutex_unlock(&copies->mutex);
    return use;
}

bool vc_copies_invalidate(vc_copies *copies, const uint8_t *key, size_t length) {
    if (is_empty(copies)) return false;
    pthread_mutex_lock(&copies->mutex);
    uint32_t at = copies_look_up(&copies->keys, hash_of(copies, key, length));
    bool was_promoted = at != NONE && copies->keys.nodes[at].version & 1;
    if (was_promoted) {
        copies->keys.nodes[at].version++;
        copies->invalidations++;
        unlist(&copies->keys, at);
    }
    pthread_mutex_unlock(&copies->mutex);
    return was_promoted;
}

/* Add the time of a read in place of the oldest one that does not count any more. */
static void add_time(node *n, uint32_t count_max, int64_t now_ms) {
    if (n->time_count == count_max) {
        n->times[n->oldest] = now_ms;
        n->oldest = (n->oldest + 1) % count_max;
        return;
    }
    if (n->time_count == n->time_room) {
        uint32_t room = n->time_room ? 2 * n->time_room : 2;
        int64_t *times = realloc(n->times, room * sizeof(int64_t));
        if (!times) return; /* This read is not counted. */
        n->times = times;
        n->time_room = room;
    }
    n->times[n->time_count++] = now_ms;
}

static bool copies_count_read(vc_copies *copies, uint64_t hash, int64_t now_ms) {
    table *t = &copies->counters;
    uint32_t earlier = copies->config.reads - 1, at = copies_look_up(t, hash);
    if (!earlier) return true;
    if (at == NONE) {
        if (t->count == t->room) drop_one(t);
        at = copies_add(t, hash);
    } else {
        t->nodes[at].is_recent = true;
    }
    node *n = &t->nodes[at];
    if (n->time_count == earlier && now_ms - n->times[n->oldest] <= copies->config.duration_ms) {
        delete_node(t, at);
        return true;
    }
    add_time(n, earlier, now_ms);
    return false;
}

bool vc_copies_count_read(vc_copies *copies, const uint8_t *key, size_t length, int64_t now_ms) {
    pthread_mutex_lock(&copies->mutex);
    bool is_hot = copies_count_read(copies, hash_of(copies, key, length), now_ms);
    pthread_mutex_unlock(&copies->mutex);
    return is_hot;
}

void vc_copies_ask_first(vc_copies *copies, const uint8_t *key, size_t length, bool is_first) {
    table *t = &copies->keys;
    pthread_mutex_lock(&copies->mutex);
    uint32_t at = copies_look_up(t, hash_of(copies, key, length));
    if (at != NONE && !is_first) unlist(t, at);
    if (at != NONE && is_first && t->nodes[at].version & 1 && !t->nodes[at].is_listed) {
        if (t->listed == copies->config.first) unlist(t, t->oldest);
        list_newest(t, at);
    }
    pthread_mutex_unlock(&copies->mutex);
}

/* --- Promotion and flush ------------------------------------------------------------------ */

bool vc_copies_promote(vc_copies *copies, const uint8_t *key, size_t length,
                       uint8_t item[VC_ITEM_BYTES]) {
    pthread_mutex_lock(&copies->mutex);
    uint64_t hash = hash_of(copies, key, length);
    uint32_t at = copies_look_up(&copies->keys, hash);
    if (at == NONE) at = copies_add(&copies->keys, hash);
    if (at != NONE) {
        node *n = &copies->keys.nodes[at];
        n->version |= 1;
        name_of(copies, key, length, n->version >> 1, item);
    }
    set_key_count(copies);
    pthread_mutex_unlock(&copies->mutex);
    return at != NONE;
}

void vc_copies_name(vc_copies *copies, const uint8_t *key, size_t length,
                    uint8_t item[VC_ITEM_BYTES]) {
    pthread_mutex_lock(&copies->mutex);
    uint32_t at = copies_look_up(&copies->keys, hash_of(copies, key, length));
    name_of(copies, key, length, at == NONE ? 0 : copies->keys.nodes[at].version >> 1, item);
    pthread_mutex_unlock(&copies->mutex);
}

void vc_copies_begin_epoch(vc_copies *copies, const uint8_t epoch[VC_EPOCH_BYTES]) {
    pthread_mutex_lock(&copies->mutex);
    memcpy(copies->epoch, epoch, VC_EPOCH_BYTES);
    copies_clear(&copies->keys);
    copies_clear(&copies->counters); /* Their hashes are those of another epoch. */
    set_key_count(copies);
    pthread_mutex_unlock(&copies->mutex);
}

/* --- Over a restart ------------------------------------------------------------------------ */

bool vc_copies_add(vc_copies *copies, vc_copies_entry entry) {
    pthread_mutex_lock(&copies->mutex);
    uint32_t at = copies_look_up(&copies->keys, entry.hash);
    if (at == NONE) at = copies_add(&copies->keys, entry.hash);
    if (at != NONE) copies->keys.nodes[at].version = entry.version;
    set_key_count(copies);
    pthread_mutex_unlock(&copies->mutex);
    return at != NONE;
}

void vc_copies_get_state(vc_copies *copies, vc_copies_state *state, vc_copies_entry *entries,
                         size_t room) {
    const table *keys = &copies->keys;
    pthread_mutex_lock(&copies->mutex);
    memcpy(state->epoch, copies->epoch, VC_EPOCH_BYTES);
    state->keys = keys->used;
    state->first = keys->listed;
    state->counted = copies->counters.count;
    state->invalidations = copies->invalidations;
    for (size_t i = 0; i < room && i < keys->used; i++)
        entries[i] = (vc_copies_entry){keys->nodes[i].hash, keys->nodes[i].version};
    pthread_mutex_unlock(&copies->mutex);
}

/* --- The table ------------------------------------------------------------------------------ */

vc_copies *vc_copies_new(const vc_copies_config *config) {
    vc_copies *copies = calloc(1, sizeof(vc_copies));
    if (!copies) return NULL;
    copies->config = *config;
    pthread_mutex_init(&copies->mutex, NULL);
    if (!open_table(&copies->keys, config->keys) ||
        !open_table(&copies->counters, config->counted)) {
        vc_copies_free(copies);
        return NULL;
    }
    copies_clear(&copies->keys);
    copies_clear(&copies->counters);
    return copies;
}

void vc_copies_free(vc_copies *copies) {
    if (!copies) return;
    close_table(&copies->keys);
    close_table(&copies->counters);
    free(copies);
}
