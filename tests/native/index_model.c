/* The index against a model that is an array of keys.
 *
 *   gcc -std=gnu11 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all \
 *       -I src/volcache/store/_core tests/native/index_model.c \
 *       src/volcache/store/_core/{siphash,record,crc32c}.c -o index_model
 *   ./index_model SECONDS SEED
 *
 * With -DVC_FUZZER it is a libFuzzer target instead. index.c is included, not linked: the
 * test reads the buckets, and lets mmap, mremap and malloc fail. With -DVC_MAY_DISPLACE,
 * entries may be displaced always (for experiments with MOVES_MAX). */
#define _GNU_SOURCE
#include "check.h"

#include <stdbool.h>
#include <sys/mman.h>

static bool is_refusing(void);
static size_t mapped_bytes;

static void *test_mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t offset) {
    if (is_refusing()) return MAP_FAILED;
    void *base = mmap(at, bytes, prot, flags, fd, offset);
    if (base != MAP_FAILED) mapped_bytes += bytes;
    return base;
}

static void *test_mremap(void *at, size_t old, size_t bytes, int flags) {
    if (is_refusing()) return MAP_FAILED;
    void *base = mremap(at, old, bytes, flags);
    if (base != MAP_FAILED) mapped_bytes += bytes - old;
    return base;
}

static int test_munmap(void *at, size_t bytes) {
    mapped_bytes -= bytes;
    return munmap(at, bytes);
}

static void *test_malloc(size_t bytes) { return is_refusing() ? NULL : malloc(bytes); }

static void *test_calloc(size_t count, size_t bytes) {
    return is_refusing() ? NULL : calloc(count, bytes);
}

#define mmap test_mmap
#define mremap test_mremap
#define munmap test_munmap
#define malloc test_malloc
#define calloc test_calloc
#include "index.c"
#undef mmap
#undef mremap
#undef munmap
#undef malloc
#undef calloc
#include "shared.c"

enum { KEYS_MAX = 6000, CHANGES_MAX = 6000 };

/* ---- Random numbers: from the bytes of the fuzzer, or made of a seed ---- */

static const uint8_t *input, *input_end;

static uint32_t byte(void) { return input < input_end ? *input++ : 0; }

static uint32_t number(void) {
    uint32_t low = byte();
    return low | byte() << 8;
}

static uint64_t random_state;

static uint64_t random_number(void) { return next_random(&random_state); }

/* ---- The model ---- */

typedef struct {
    uint64_t fingerprint;
    bool is_present, is_tombstone;
    uint32_t slot;
    uint64_t offset, size, word;
    unsigned hits;
} model_key;

static vc_index *ix;
static vc_shared *shared; /* NULL: the index has mappings of its own */
static vc_guest *guest;   /* maps it */
static vc_sharing sharing;
static model_key keys[KEYS_MAX];
static uint32_t key_count;
static uint32_t volumes, live_slots[65536], live_count;
static vc_live *slot_live;
static bool *slot_is_live;
static unsigned *slot_ring;
static uint64_t *slot_from; /* hits count when the clock has passed their offset by this */
static uint64_t clocks[VC_RINGS];
static uint64_t offset_max;

static bool has_refusals; /* this run has times without memory */
static bool refuses_now;
static int refuses_later = -1; /* after that many calls */
static uint64_t displaced;     /* that the model knows of */
static uint64_t operations;

static bool is_refusing(void) {
    return refuses_now || (refuses_later >= 0 && refuses_later-- == 0);
}

static uint64_t size_max(uint64_t size) { return class_max(size_class(size)); }

static void forget(model_key *key) {
    if (key->is_present && !key->is_tombstone) {
        slot_live[key->slot].records--;
        slot_live[key->slot].bytes -= vc_size_middle(key->size);
    }
    key->is_present = false;
}

static void remember(model_key *key, uint32_t slot, uint64_t offset, uint64_t size,
                     bool is_tombstone) {
    forget(key);
    *key = (model_key){key->fingerprint, true, is_tombstone, slot, offset, size, 0, 0};
    if (!is_tombstone) {
        slot_live[slot].records++;
        slot_live[slot].bytes += vc_size_middle(size);
    }
}

static void check_found(model_key *key, bool is_found, const vc_entry *found) {
    CHECK(is_found == key->is_present);
    if (!is_found) return;
    CHECK(found->slot == key->slot && found->offset == key->offset);
    CHECK(found->size == size_max(key->size));
    CHECK(found->hits == key->hits && found->is_tombstone == key->is_tombstone);
    key->word = found->word;
}

static void check_key(model_key *key) {
    vc_entry found;
    bool is_found = vc_index_find(ix, key->fingerprint, &found);
    vc_lookup at;
    check_found(key, is_found, &found);
    if (!guest || !vc_index_is_shared(ix)) return;
    bool is_read = guest_find(guest, key->fingerprint, &at) == VC_GUEST_FOUND;
    CHECK(is_read == (is_found && !found.is_tombstone));
    CHECK(!is_read || (at.offset == found.offset && at.size == found.size));
    CHECK(!is_read || at.volume == (uint16_t)found.slot);
}

/* If entries were displaced, find out which, and forget them. A batch may have set some of
 * them again later. */
static void reconcile(bool is_batch) {
    uint64_t lost = vc_index_get_stats(ix).displaced - displaced, missing = 0;
    displaced += lost;
#ifndef VC_MAY_DISPLACE
    CHECK(lost == 0 || has_refusals);
#endif
    if (lost == 0) return;
    for (uint32_t i = 0; i < key_count; i++) {
        vc_entry found;
        if (keys[i].is_present && !vc_index_find(ix, keys[i].fingerprint, &found)) {
            forget(&keys[i]);
            missing++;
        }
    }
    CHECK(is_batch ? missing <= lost : missing == lost);
}

/* ---- Checks of everything ---- */

static void check_segment(uint32_t number, slot_count *counts) {
    segment *seg = &ix->segments[number];
    uint32_t used = 0;
    static uint32_t overflow[KEYS_MAX];
    CHECK(seg->buckets <= KEYS_MAX);
    memset(overflow, 0, seg->buckets * sizeof *overflow);
    for (uint32_t i = 0; i < seg->buckets; i++) {
        bucket *b = seg->base + i;
        CHECK((b->flags >> 15 & 511) == 0);
        for (int k = 0; k < VC_BUCKET_ENTRIES; k++) {
            loose_entry e = index_read_entry(b, k);
            if (e.word == 0) {
                CHECK(e.hits == 0 && !e.is_tombstone);
                continue;
            }
            uint64_t tag = vc_full_tag(e.word, e.tag);
            bucket *first = first_bucket(seg, tag);
            CHECK(first >= seg->base && first < seg->base + seg->buckets);
            bucket *second = second_bucket(seg, tag, first);
            CHECK(b == first || b == second);
            CHECK(second != first || seg->buckets == 1);
            if (b != first) overflow[first - seg->base]++;
            int at;
            CHECK(find_entry(seg, tag, &at) == b && at == k);
            uint32_t slot = word_slot(ix, e.word);
            counts[slot].entries++;
            if (!e.is_tombstone) {
                counts[slot].live.records++;
                counts[slot].live.bytes += vc_size_middle(class_max(word_class(e.word)));
            }
            used++;
        }
    }
    CHECK(used == seg->used);
    for (uint32_t i = 0; i < seg->buckets; i++) {
        uint32_t flag = seg->base[i].flags >> 24;
        CHECK(flag == 255 || flag == overflow[i]);
    }
}

static void check_layout(void) {
    size_t bytes = 0;
    for (uint32_t i = 0; i < SEGMENTS; i++) {
        group *g = &ix->groups[i / VC_GROUP_SEGMENTS];
        bool is_first = i % VC_GROUP_SEGMENTS == 0;
        segment *seg = &ix->segments[i];
        CHECK(seg->buckets > 0);
        CHECK(seg->base == (is_first ? g->base : seg[-1].base + seg[-1].buckets));
        CHECK((size_t)(seg->base + seg->buckets - g->base) * sizeof(bucket) <= g->bytes);
        if (is_first) bytes += g->bytes;
    }
    CHECK(ix->shared || (bytes == ix->bytes && bytes == mapped_bytes));
}

static void check_everything(void) {
    vc_index_stats stats = vc_index_get_stats(ix);
    slot_count *counts = calloc(ix->slots, sizeof *counts);
    check_layout();
    for (uint32_t i = 0; i < SEGMENTS; i++) check_segment(i, counts);
    uint64_t entries = 0, stale = 0, records = 0, present = 0;
    uint32_t live = 0, stale_slots = 0;
    for (uint32_t slot = 0; slot < ix->slots; slot++) {
        const slot_count *count = &counts[slot];
        vc_live reported = vc_index_live(ix, slot);
        CHECK(ix->slot_counts[slot].entries == count->entries);
        CHECK(reported.records == slot_live[slot].records);
        CHECK(reported.bytes == slot_live[slot].bytes);
        entries += count->entries;
        if (slot_is_live[slot]) {
            CHECK(ix->slot_state[slot] == SLOT_LIVE);
            CHECK(reported.records == count->live.records);
            CHECK(reported.bytes == count->live.bytes);
            records += count->live.records;
            live++;
        } else {
            CHECK(ix->slot_state[slot] == (count->entries ? SLOT_STALE : SLOT_FREE));
            CHECK(reported.records == 0 && reported.bytes == 0);
            stale += count->entries;
            stale_slots += count->entries > 0;
        }
    }
    CHECK(ix->entries == entries && ix->stale == stale && stats.records == records);
    CHECK(stats.displaced == displaced);
    CHECK(ix->live_slots == live && live == live_count && ix->stale_slots == stale_slots);
    for (uint32_t i = 0; i < key_count; i++) {
        check_key(&keys[i]);
        present += keys[i].is_present;
    }
    CHECK(present == entries - stale);
    bool has_deferred = stale > 0 && (stale * 8 > entries || stale_slots * 2 > ix->slots - live);
    CHECK(has_to_sweep(ix) || !has_deferred);
    free(counts);
}

static void sweep_all(uint32_t budget) {
    uint64_t buckets = 0, rounds = 0;
    for (uint32_t i = 0; i < SEGMENTS; i++) buckets += ix->segments[i].buckets + SEGMENTS / GROUPS;
    bool is_whole_pass = has_to_sweep(ix) && !ix->is_sweeping;
    while (has_to_sweep(ix)) {
        vc_index_sweep(ix, budget);
        CHECK(rounds++ <= 2 * buckets / budget + 2);
    }
    CHECK(!is_whole_pass || ix->stale == 0);
    check_everything();
}

/* ---- Operations ---- */

static uint64_t random_offset(void) {
    uint64_t choice = random_number() % 8;
    if (choice == 0) return 1;
    if (choice == 1) return offset_max;
    return 1 + random_number() % offset_max;
}

static uint64_t random_size(void) { return 1 + (random_number() >> 33 >> random_number() % 31); }

static uint32_t random_slot(void) { return live_slots[random_number() % live_count]; }

static void set_key(model_key *key, bool is_tombstone) {
    uint32_t slot = random_slot();
    uint64_t offset = random_offset(), size = random_size();
    bool is_kept = vc_index_set(ix, key->fingerprint, slot, offset, size, is_tombstone);
    remember(key, slot, offset, size, is_tombstone);
    CHECK(is_kept == (vc_index_get_stats(ix).displaced == displaced));
    reconcile(false);
    check_key(key);
}

static void set_many(size_t count, unsigned deletions) {
    static vc_change changes[CHANGES_MAX], copy[CHANGES_MAX];
    static uint32_t which[CHANGES_MAX];
    for (size_t i = 0; i < count; i++) {
        which[i] = (uint32_t)(random_number() % key_count);
        bool is_deletion = random_number() % 8 < deletions;
        changes[i] = (vc_change){keys[which[i]].fingerprint, random_offset(), random_slot(),
                                 is_deletion ? VC_TOMBSTONE : (uint32_t)random_size()};
    }
    memcpy(copy, changes, sizeof copy);
    if (!vc_index_set_many(ix, changes, count)) {
        CHECK(has_refusals);
        return;
    }
    for (size_t i = 0; i < count; i++) {
        bool is_tombstone = copy[i].size == VC_TOMBSTONE;
        remember(&keys[which[i]], copy[i].slot, copy[i].offset, is_tombstone ? 1 : copy[i].size,
                 is_tombstone);
    }
    reconcile(true);
    for (size_t i = 0; i < count; i++) check_key(&keys[which[i]]);
}

static void set_age(uint32_t slot) {
    static const uint64_t skips[] = {0, 1, 1000, (uint64_t)1 << 40, VC_NEVER};
    unsigned ring = random_number() % VC_RINGS;
    uint64_t born = random_number() % (clocks[ring] + 1), skip = skips[random_number() % 5];
    if (skip == VC_NEVER) skip -= born;
    vc_index_set_age(ix, slot, ring, born, skip);
    CHECK(vc_index_ring(ix, slot) == ring);
    slot_ring[slot] = ring;
    slot_from[slot] = born + skip;
}

/* A clock never goes back. Often it is set to where hits of a key begin to count. */
static void advance(const model_key *key) {
    bool is_exact = key->is_present && random_number() % 2;
    uint32_t slot = is_exact ? key->slot : random_slot();
    unsigned ring = slot_ring[slot];
    uint64_t born = ix->slot_counts[slot].born;
    uint64_t end = (random_number() >> random_number() % 64) % (VC_NEVER - born);
    if (is_exact && slot_from[slot] < VC_NEVER - key->offset)
        end = slot_from[slot] - born + key->offset - random_number() % 2;
    vc_index_advance(ix, slot, end);
    if (born + end > clocks[ring]) clocks[ring] = born + end;
}

static void add_volume(void) {
    uint32_t slot = vc_index_add_volume(ix);
    CHECK((slot == VC_NO_SLOT) == (live_count == volumes));
    if (slot == VC_NO_SLOT) return;
    CHECK(slot < ix->slots && !slot_is_live[slot]);
    CHECK(vc_index_ring(ix, slot) == VC_MAIN);
    slot_is_live[slot] = true;
    if (shared)
        vc_shared_slots(shared)[slot] = (vc_shared_slot){.volume = (uint16_t)slot, .count = 1};
    slot_ring[slot] = VC_MAIN;
    slot_from[slot] = 0;
    if (random_number() % 2) set_age(slot);
    live_slots[live_count++] = slot;
    CHECK(ix->slot_counts[slot].entries == 0);
    if (slot % 4 == 0) check_everything(); /* that there is indeed no entry of it */
}

static void reclaim(uint32_t choice) {
    uint32_t slot = live_slots[choice % live_count];
    if (shared) vc_shared_slots(shared)[slot].count = 0;
    vc_live expected = slot_live[slot], lost = vc_index_reclaim(ix, slot);
    CHECK(lost.records == expected.records && lost.bytes == expected.bytes);
    for (uint32_t i = 0; i < key_count; i++)
        if (keys[i].is_present && keys[i].slot == slot) forget(&keys[i]);
    slot_is_live[slot] = false;
    live_slots[choice % live_count] = live_slots[live_count - 1];
    live_count--;
    lost = vc_index_reclaim(ix, slot);
    CHECK(lost.records == 0 && lost.bytes == 0);
}

static void hit_key(model_key *key) {
    vc_entry found;
    bool is_found = vc_index_hit(ix, key->fingerprint, &found);
    if (key->is_present && key->hits < 3) {
        uint64_t clock = clocks[slot_ring[key->slot]], from = slot_from[key->slot];
        if (clock >= from && clock - from >= key->offset) key->hits++;
    }
    check_found(key, is_found, &found);
}

static uint64_t other_word(const model_key *key, bool is_right) {
    return is_right ? key->word : key->word ^ (uint64_t)1 << byte() % 56;
}

static void bury_key(model_key *key, bool is_right) {
    hit_key(key); /* sets `word` */
    bool is_buried = vc_index_bury(ix, key->fingerprint, other_word(key, is_right));
    CHECK(is_buried == (key->is_present && is_right));
    /* The size stays, but no hit does. */
    if (is_buried) remember(key, key->slot, key->offset, key->size, true);
    check_key(key);
}

static void move_key(model_key *key, bool is_right, unsigned hits) {
    hit_key(key); /* sets `word` */
    uint32_t slot = random_slot();
    uint64_t offset = random_offset();
    uint64_t word = other_word(key, is_right);
    bool is_moved = vc_index_move(ix, key->fingerprint, word, slot, offset, hits);
    CHECK(is_moved == (key->is_present && is_right));
    if (is_moved) {
        remember(key, slot, offset, key->size, false);
        key->hits = hits;
    }
    check_key(key);
}

/* ---- The records of a volume ---- */

typedef struct {
    uint32_t slot, count;
    uint64_t segment, bytes, fingerprints;
} visit;

static void take_visited(void *context, uint64_t fingerprint, const vc_entry *entry) {
    visit *v = context;
    vc_entry found;
    CHECK(segment_number(fingerprint) == v->segment && entry->slot == v->slot);
    CHECK(!entry->is_tombstone && vc_index_find(ix, fingerprint, &found));
    CHECK(found.word == entry->word && found.offset == entry->offset);
    CHECK(found.size == entry->size && found.hits == entry->hits);
    v->count++;
    v->bytes += vc_size_middle(entry->size);
    v->fingerprints ^= fingerprint * 0x9E3779B97F4A7C15;
}

static void visit_slot(void) {
    visit v = {.slot = random_slot()};
    for (v.segment = 0; v.segment < SEGMENTS; v.segment++)
        vc_index_visit(ix, (uint32_t)v.segment, v.slot, take_visited, &v);
    CHECK(v.count == slot_live[v.slot].records && v.bytes == slot_live[v.slot].bytes);
    uint64_t fingerprints = 0;
    for (uint32_t i = 0; i < key_count; i++)
        if (keys[i].is_present && !keys[i].is_tombstone && keys[i].slot == v.slot)
            fingerprints ^= keys[i].fingerprint * 0x9E3779B97F4A7C15;
    CHECK(fingerprints == v.fingerprints);
}

static void operate(void) {
    uint32_t operation = byte() % 24;
    model_key *key = &keys[number() % key_count];
    operations++;
    if (live_count == 0) add_volume();
    switch (operation) {
    case 0:
    case 1:
    case 2: set_key(key, false); break;
    case 3: set_key(key, true); break;
    case 4:
    case 5:
    case 6:
    case 7:
    case 8:
        for (uint32_t i = byte() % 6; i > 0; i--) hit_key(key);
        break;
    case 9: add_volume(); break;
    case 10: reclaim(byte()); break;
    case 11: vc_index_sweep(ix, number()); break;
    case 12: sweep_all(1 + number() * 16); break;
    case 13: set_many(1 + (number() % CHANGES_MAX >> byte() % 8), byte() % 5); break;
    case 14:
        if (has_refusals) refuses_later = (int)byte() % 4;
        break;
    case 15:
        if (has_refusals) refuses_now = byte() & 1;
        break;
    case 16: /* many keys one after the other, then some of them again */
        for (uint32_t i = 0, count = number() % key_count >> byte() % 8; i < count; i++)
            set_key(&keys[(i + (uint32_t)(key - keys)) % key_count], i % 16 == 0);
        break;
    case 17:
    case 18: bury_key(key, operation == 17); break;
    case 19:
    case 20: move_key(key, operation == 19, byte() % 4); break;
    case 21: visit_slot(); break;
    case 22:
        advance(key);
        hit_key(key);
        break;
    default: check_everything();
    }
}

/* ---- One run ---- */

static int compare_keys(const void *a, const void *b) {
    const model_key *x = a, *y = b;
    return x->fingerprint < y->fingerprint ? -1 : x->fingerprint > y->fingerprint;
}

static void swap_keys(model_key *a, model_key *b) {
    model_key swapped = *a;
    *a = *b;
    *b = swapped;
}

static uint64_t random_fingerprint(uint32_t kind, uint32_t i) {
    static const uint32_t segments[] = {0, 1, 2, 14, 15, 16, 17, 8175, 8176, 8190, 8191};
    static const uint32_t lows[] = {0, 1, 0x80000000, 0xFFFFFFFF};
    uint64_t r = random_number(), tag = r & (((uint64_t)1 << VC_TAG_BITS) - 1);
    uint64_t few = segments[(r >> 40) % 11];
    switch (kind) {
    case 0: return r >> 15;
    case 1: /* one large segment */ return (uint64_t)16 << VC_TAG_BITS | tag;
    case 2: /* few segments */ return few << VC_TAG_BITS | tag;
    case 3: /* equal lower halves of tags */
        if (r >> 60 < 8) return few << VC_TAG_BITS | (r & 15) << 32 | lows[r >> 4 & 3];
        return few << VC_TAG_BITS | tag;
    default: /* up to 500 keys with one first bucket: its count of 255 overflows */
        if (i < 500) return (uint64_t)3 << VC_TAG_BITS | i;
        return (uint64_t)3 << VC_TAG_BITS | tag;
    }
}

static void make_keys(uint32_t kind) {
    key_count = 1 + number() % KEYS_MAX;
    if (kind == 4) key_count = KEYS_MAX;
    memset(keys, 0, sizeof keys);
    for (uint32_t i = 0; i < key_count; i++) keys[i].fingerprint = random_fingerprint(kind, i);
    if (kind == 4) { /* the large segment first: at half its load nothing grows */
        for (uint32_t i = 0; i < 500; i++) swap_keys(&keys[i], &keys[key_count - 1 - i]);
        return;
    }
    qsort(keys, key_count, sizeof *keys, compare_keys);
    uint32_t distinct = 0;
    for (uint32_t i = 0; i < key_count; i++)
        if (i == 0 || keys[i].fingerprint != keys[distinct - 1].fingerprint)
            keys[distinct++] = keys[i];
    key_count = distinct;
    /* In order of fingerprints, keys set one after the other would share a first bucket. */
    for (uint32_t i = key_count; i-- > 1;) swap_keys(&keys[i], &keys[random_number() % (i + 1)]);
}

static void make_index(void) {
    static const uint8_t hash_key[16] = "0123456789abcdef";
    static const uint32_t choices[] = {1, 2, 3, 7, 40, 300, 5, 4, 1, 2, 3, 8, 20, 33, 17, 65536};
    static const uint64_t sizes[] = {(uint64_t)1 << 24, 20000000, (uint64_t)1 << 31, 1000000000};
    volumes = choices[byte() % 16];
    uint64_t volume_bytes = sizes[byte() % 4];
    offset_max = ((uint64_t)1 << bits_for(volume_bytes)) - 1;
    uint32_t kind_of_size = byte();
    uint64_t expected = kind_of_size < 200 ? 0 : (uint64_t)kind_of_size * 1024;
    sharing = (vc_sharing){0};
    if (byte() % 2) sharing = vc_shared_new(volume_bytes, volumes, 2 << bits_for(volumes));
    shared = sharing.at;
    guest = shared ? vc_guest_new(sharing.fd, -1) : NULL;
    ix = vc_index_new(hash_key, volume_bytes, volumes, expected, shared);
    if (ix == NULL) {
        CHECK(has_refusals);
        CHECK(mapped_bytes == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    input = data;
    input_end = data + size;
    random_state = (uint64_t)number() << 16 | number();
    displaced = 0;
    live_count = 0;
    mapped_bytes = 0;
    has_refusals = byte() % 4 == 0;
    refuses_now = false;
    refuses_later = has_refusals && byte() < 32 ? (int)byte() * 3 : -1;
    make_index();
    if (ix == NULL) {
        vc_guest_free(guest);
        vc_shared_free(&sharing);
        return 0;
    }
    slot_live = calloc(ix->slots, sizeof *slot_live);
    slot_is_live = calloc(ix->slots, sizeof *slot_is_live);
    slot_ring = calloc(ix->slots, sizeof *slot_ring);
    slot_from = calloc(ix->slots, sizeof *slot_from);
    memset(clocks, 0, sizeof clocks);
    refuses_later = -1;
    uint32_t kind = byte() % 5;
    make_keys(kind);
    if (kind == 4) {
        add_volume();
        for (uint32_t i = 0; i < key_count; i++) set_key(&keys[i], false);
        CHECK(ix->segments[3].base->flags >= OVERFLOW_MAX || has_refusals);
    }
    while (input < input_end) operate();
    check_everything();
    refuses_now = false;
    sweep_all(1000);
    while (live_count > 0) reclaim(0);
    sweep_all(1 << 20);
    CHECK(ix->entries == ix->stale && vc_index_get_stats(ix).records == 0);
    vc_index_free(ix);
    vc_guest_free(guest);
    vc_shared_free(&sharing);
    CHECK(mapped_bytes == 0);
    free(slot_live);
    free(slot_is_live);
    free(slot_ring);
    free(slot_from);
    return 0;
}

#ifndef VC_FUZZER
static void check_sizes(void) {
    CHECK(size_max(0) == 0 && vc_size_middle(0) == 0);
    for (uint64_t size = 1; size <= (uint64_t)1 << 31; size += 1 + size / 1000) {
        uint64_t max = size_max(size), middle = vc_size_middle(size);
        CHECK(max >= size && max <= size + size / 8 && size_max(max) == max);
        CHECK(middle <= max && vc_size_middle(max) == middle && size_max(middle) == max);
        CHECK(size_max(max + 1) > max);
    }
    CHECK(size_max((uint64_t)1 << 31) == ((uint64_t)1 << 31) + LONG_MORE);
    CHECK(size_max(UINT64_MAX) == size_max((uint64_t)1 << 34));
}

static void check_arguments(void) {
    static const uint8_t hash_key[16] = {1};
    CHECK(vc_index_new(hash_key, 1 << 20, 1, 0, NULL) == NULL);
    CHECK(vc_index_new(hash_key, (uint64_t)1 << 41, 1, 0, NULL) == NULL);
    CHECK(vc_index_new(hash_key, 1 << 24, 0, 0, NULL) == NULL);
    CHECK(vc_index_new(hash_key, 1 << 24, 65537, 0, NULL) == NULL);
    CHECK(vc_index_new(hash_key, (uint64_t)1 << 32, 65536, 0, NULL) == NULL);
    CHECK(vc_index_new(hash_key, 1 << 24, 1, UINT64_MAX, NULL) == NULL);
    vc_index_free(NULL);
    ix = vc_index_new(hash_key, (uint64_t)1 << 31, 65536, 0, NULL);
    CHECK(ix != NULL && ix->bytes <= 4 << 20 && !has_to_sweep(ix));
    uint64_t hash = vc_siphash13(hash_key, hash_key, 16);
    CHECK(vc_index_fingerprint(ix, hash_key, 16) == hash >> 15);
    CHECK(vc_index_set_many(ix, NULL, 0));
    vc_index_free(ix);
}

int main(int count, char **arguments) {
    static uint8_t data[4096];
    double seconds = count > 1 ? atof(arguments[1]) : 10;
    uint64_t seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1, runs = 0;
    double end = seconds_now() + seconds;
    check_sizes();
    check_arguments();
    do {
        random_state = seed * 1000003 + runs++;
        size_t size = 16 + (random_number() % sizeof data >> random_number() % 6);
        if (size > sizeof data) size = sizeof data;
        for (size_t i = 0; i < size; i++) data[i] = (uint8_t)(random_number() >> 7);
        LLVMFuzzerTestOneInput(data, size);
    } while (seconds_now() < end);
    printf("%llu runs, %llu operations\n", (unsigned long long)runs,
           (unsigned long long)operations);
    return 0;
}
#endif
