/* See index.h for what an index is, and for the layout of a bucket.
 *
 * A fingerprint occurs at most once, live or stale. `count_entry` and `discount_entry` keep
 * all counters of the index and of slots; `put` and `take` keep those of segments and
 * buckets. So entries can be moved without being counted. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "index.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "index_parts.h"
#include "shared.h"
#include "siphash.h"

enum {
    SEGMENTS = 1 << VC_SEGMENT_BITS,
    GROUPS = SEGMENTS / VC_GROUP_SEGMENTS,
    FULL_PERCENT = 92,   /* a segment grows at this load */
    MOVES_MAX = 64,      /* random moves to make room for one entry */
    BATCH_MIN = 1024,    /* fewer changes are not worth sorting */
    BATCH_MAX = 1 << 18, /* changes that are sorted at a time */
    PREFETCH_AHEAD = 12, /* changes */
};

/* Parts of a word and of the flags. */
#define HITS_MASK(k) (3u << (2 * (k)))
#define OVERFLOW_MAX (255u << 24)

typedef vc_bucket bucket;

typedef struct {
    bucket *base;
    uint32_t buckets;
    uint32_t used; /* entries */
} segment;

typedef struct {
    bucket *base;
    size_t bytes; /* mapped: whole pages */
} group;

enum { SLOT_FREE, SLOT_LIVE, SLOT_STALE };

typedef struct {
    uint64_t entries;
    vc_live live;
    uint64_t born; /* the clock of the ring when the volume was started */
    uint64_t from; /* hits count when the clock has passed their offset by this */
    unsigned ring;
} slot_count;

/* An entry that is in no bucket. */
typedef struct {
    uint64_t word;
    uint32_t tag;
    uint32_t hits;
    bool is_tombstone;
} loose_entry;

struct vc_index {
    segment segments[SEGMENTS];
    group groups[GROUPS];
    uint8_t hash_key[16];
    size_t page_bytes;
    vc_shared *shared; /* has the groups; NULL: each is a mapping of its own */

    unsigned offset_bits;
    uint32_t volumes, slots;
    uint32_t live_slots, stale_slots;
    uint32_t next_slot; /* the search for a free slot starts here */
    uint8_t *slot_state;
    slot_count *slot_counts;

    uint64_t entries, records, stale, displaced, bytes;

    uint64_t clock[VC_RINGS];

    bool is_sweeping; /* a pass has begun; the hand is at: */
    uint32_t hand_segment, hand_bucket;
};

/* ---- Words ---- */

/* A size class is a floating-point number: (8 + fraction) << (exponent - 1), or the
 * fraction itself if the exponent is 0. Sizes up to 16 are exact. To the classes of long records,
 * LONG_MORE is added: the length of a value is often a power of two, and its record is a little
 * longer. It would be in the next class, and a get would read an eighth more. */
enum { LONG = 8192, LONG_MORE = 256 };

static uint64_t class_max(unsigned class) {
    unsigned exponent = class >> 3;
    uint64_t fraction = class & 7;
    if (exponent == 0) return fraction;
    uint64_t max = (8 + fraction) << (exponent - 1);
    return max < LONG ? max : max + LONG_MORE;
}

static unsigned size_class(uint64_t size) {
    if (size <= 8) return (unsigned)size;
    if (size > class_max(255)) return 255;
    if (size > LONG) size = size > LONG + LONG_MORE ? size - LONG_MORE : LONG;
    /* The class after the one that `size - 1` is in, rounded down. */
    unsigned shift = 60 - (unsigned)__builtin_clzll(size - 1);
    return ((shift + 1) << 3 | (unsigned)((size - 1) >> shift & 7)) + 1;
}

uint64_t vc_size_max(uint64_t word) { return class_max(word >> 48 & 255); }

static uint64_t class_middle(unsigned class) {
    return class == 0 ? 0 : (class_max(class - 1) + 1 + class_max(class)) / 2;
}

uint64_t vc_size_middle(uint64_t size) { return class_middle(size_class(size)); }

static inline uint32_t word_slot(const vc_index *index, uint64_t word) {
    return (uint32_t)((word & VC_POSITION_MASK) >> index->offset_bits);
}

static inline unsigned word_class(uint64_t word) { return word >> 48 & 255; }

static inline bool is_live(const vc_index *index, uint64_t word) {
    return index->slot_state[word_slot(index, word)] == SLOT_LIVE;
}

/* ---- Counting ---- */

static void count_entry(vc_index *index, uint64_t word, bool is_tombstone) {
    slot_count *count = &index->slot_counts[word_slot(index, word)];
    index->entries++;
    count->entries++;
    if (!is_tombstone) {
        index->records++;
        count->live.records++;
        count->live.bytes += class_middle(word_class(word));
    }
}

static void discount_entry(vc_index *index, uint64_t word, bool is_tombstone) {
    uint32_t slot = word_slot(index, word);
    slot_count *count = &index->slot_counts[slot];
    index->entries--;
    count->entries--;
    if (index->slot_state[slot] == SLOT_STALE) {
        index->stale--;
        if (count->entries == 0) {
            index->slot_state[slot] = SLOT_FREE;
            index->stale_slots--;
        }
    } else if (!is_tombstone) {
        index->records--;
        count->live.records--;
        count->live.bytes -= class_middle(word_class(word));
    }
}

/* ---- Buckets ---- */

static inline uint32_t segment_number(uint64_t fingerprint) {
    return fingerprint >> VC_TAG_BITS & (SEGMENTS - 1);
}

static inline segment *segment_of(vc_index *index, uint64_t fingerprint) {
    return &index->segments[segment_number(fingerprint)];
}

static inline uint64_t index_tag_of(uint64_t fingerprint) {
    return fingerprint & (((uint64_t)1 << VC_TAG_BITS) - 1);
}

static inline bucket *first_bucket(const segment *seg, uint64_t tag) {
    return seg->base + vc_first_bucket(tag, seg->buckets);
}

static inline bucket *second_bucket(const segment *seg, uint64_t tag, const bucket *first) {
    return seg->base + vc_second_bucket(tag, seg->buckets, (uint32_t)(first - seg->base));
}

/* Find an entry, live or stale: returns its bucket and sets its number in it, or NULL. */
static inline bucket *find_entry(const segment *seg, uint64_t tag, int *k) {
    bucket *b = first_bucket(seg, tag);
    *k = vc_bucket_match(b, tag);
    if (*k >= 0) return b;
    if (b->flags < VC_OVERFLOW_ONE) return NULL;
    b = second_bucket(seg, tag, b);
    *k = vc_bucket_match(b, tag);
    return *k >= 0 ? b : NULL;
}

static void index_put(segment *seg, bucket *b, int k, loose_entry e) {
    bucket *first = first_bucket(seg, vc_full_tag(e.word, e.tag));
    if (first != b && first->flags < OVERFLOW_MAX) first->flags += VC_OVERFLOW_ONE;
    b->tag[k] = e.tag;
    b->word[k] = e.word;
    b->flags |= e.hits << (2 * k) | (e.is_tombstone ? VC_TOMBSTONE_MASK(k) : 0);
    seg->used++;
}

static loose_entry index_read_entry(const bucket *b, int k) {
    return (loose_entry){
        .word = b->word[k],
        .tag = b->tag[k],
        .hits = b->flags >> (2 * k) & 3,
        .is_tombstone = (b->flags & VC_TOMBSTONE_MASK(k)) != 0,
    };
}

static loose_entry index_take(segment *seg, bucket *b, int k) {
    loose_entry e = index_read_entry(b, k);
    bucket *first = first_bucket(seg, vc_full_tag(e.word, e.tag));
    /* A count of 255 may stand for more, so it is never lowered. */
    if (first != b && first->flags < OVERFLOW_MAX) first->flags -= VC_OVERFLOW_ONE;
    b->tag[k] = 0;
    b->word[k] = 0;
    b->flags &= ~(HITS_MASK(k) | VC_TOMBSTONE_MASK(k));
    seg->used--;
    return e;
}

static void remove_entry(vc_index *index, segment *seg, bucket *b, int k) {
    loose_entry e = index_take(seg, b, k);
    discount_entry(index, e.word, e.is_tombstone);
}

static void displace(vc_index *index, loose_entry e) {
    discount_entry(index, e.word, e.is_tombstone);
    index->displaced++;
}

static int find_room(const bucket *b) {
    for (int k = 0; k < VC_BUCKET_ENTRIES; k++)
        if (b->word[k] == 0) return k;
    return -1;
}

static int find_or_make_room(vc_index *index, segment *seg, bucket *b) {
    int room = find_room(b);
    for (int k = 0; room < 0 && k < VC_BUCKET_ENTRIES; k++) {
        if (!is_live(index, b->word[k])) {
            remove_entry(index, seg, b, k);
            room = k;
        }
    }
    return room;
}

/* Move an entry of a full bucket to its other bucket if there is room; returns the entry's
 * number, which is empty now, or -1. */
static int move_one(segment *seg, bucket *from) {
    for (int k = 0; k < VC_BUCKET_ENTRIES; k++) {
        uint64_t tag = vc_full_tag(from->word[k], from->tag[k]);
        bucket *first = first_bucket(seg, tag);
        bucket *to = first == from ? second_bucket(seg, tag, first) : first;
        int room = find_room(to);
        if (room >= 0) {
            index_put(seg, to, room, index_take(seg, from, k));
            return k;
        }
    }
    return -1;
}

/* Put an entry into one of its buckets; others may have to move. If that fails, one entry,
 * not always the one that came, is left over: it is in `*e`, and false is returned. */
static bool place(vc_index *index, segment *seg, loose_entry *e) {
    for (uint32_t moves = 0; moves < MOVES_MAX; moves++) {
        uint64_t tag = vc_full_tag(e->word, e->tag);
        bucket *first = first_bucket(seg, tag), *second = second_bucket(seg, tag, first);
        bucket *b = first;
        int k = find_or_make_room(index, seg, b);
        if (k < 0) k = find_or_make_room(index, seg, b = second);
        if (k < 0) k = move_one(seg, b = first);
        if (k < 0) k = move_one(seg, b = second);
        if (k >= 0) {
            index_put(seg, b, k, *e);
            return true;
        }
        b = moves & 1 ? second : first;
        k = (int)((e->tag ^ (uint32_t)e->word ^ moves) % VC_BUCKET_ENTRIES);
        loose_entry out = index_take(seg, b, k);
        index_put(seg, b, k, *e);
        *e = out;
    }
    return false;
}

static void sweep_buckets(vc_index *index, segment *seg, uint32_t begin, uint32_t end) {
    for (bucket *b = seg->base + begin; b < seg->base + end; b++)
        for (int k = 0; k < VC_BUCKET_ENTRIES; k++)
            if (b->word[k] != 0 && !is_live(index, b->word[k])) remove_entry(index, seg, b, k);
}

/* ---- Growing ---- */

static void *map_pages(size_t bytes) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return NULL;
    /* A huge page would be mostly empty. Kernels without huge pages refuse; no matter. */
    (void)madvise(base, bytes, MADV_NOHUGEPAGE);
    return base;
}

static size_t whole_pages(const vc_index *index, uint64_t buckets) {
    size_t bytes = buckets * sizeof(bucket);
    return (bytes + index->page_bytes - 1) / index->page_bytes * index->page_bytes;
}

/* Let the segments of a group begin where they have to by their sizes. */
static void set_bases(vc_index *index, uint32_t group_number) {
    bucket *base = index->groups[group_number].base;
    uint32_t first = group_number * VC_GROUP_SEGMENTS;
    for (uint32_t i = first; i < first + VC_GROUP_SEGMENTS; i++) {
        index->segments[i].base = base;
        base += index->segments[i].buckets;
        if (!index->shared) continue;
        index->shared->segments[i].first = (uint32_t)(index->segments[i].base -
                                                      index->groups[group_number].base);
        index->shared->segments[i].buckets = index->segments[i].buckets;
    }
}

/* Make a segment larger; later segments of the group move up. Its own buckets are undefined
 * afterwards. Returns false, and has done nothing, without memory. */
static bool resize(vc_index *index, segment *seg, uint32_t buckets) {
    uint32_t number = (uint32_t)(seg - index->segments) / VC_GROUP_SEGMENTS;
    group *g = &index->groups[number];
    segment *last = &index->segments[number * VC_GROUP_SEGMENTS + VC_GROUP_SEGMENTS - 1];
    uint64_t total = (uint64_t)(last->base - g->base) + last->buckets;
    uint64_t before = (uint64_t)(seg->base - g->base) + seg->buckets;
    uint32_t added = buckets - seg->buckets;
    size_t bytes = whole_pages(index, total + added);
    if (bytes > g->bytes) {
        if (index->shared) return false; /* The window is full. */
        void *base = mremap(g->base, g->bytes, bytes, MREMAP_MAYMOVE);
        if (base == MAP_FAILED) return false;
        index->bytes += bytes - g->bytes;
        g->base = base;
        g->bytes = bytes;
    }
    bucket *end = g->base + before;
    if (total > before) memmove(end + added, end, (total - before) * sizeof(bucket));
    seg->buckets = buckets;
    set_bases(index, number);
    return true;
}

/* Fill a segment with the entries of its former buckets. Entries that find no place are
 * displaced if `may_displace`; otherwise, returns false at the first one. */
static bool refill(vc_index *index, segment *seg, const bucket *from, uint32_t count,
                   bool may_displace) {
    memset(seg->base, 0, seg->buckets * sizeof(bucket));
    seg->used = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (int k = 0; k < VC_BUCKET_ENTRIES; k++) {
            loose_entry e = index_read_entry(&from[i], k);
            if (e.word == 0 || place(index, seg, &e)) continue;
            if (!may_displace) return false;
            displace(index, e);
        }
    }
    return true;
}

static bool is_loaded(const segment *seg, unsigned percent) {
    uint64_t room = (uint64_t)seg->buckets * VC_BUCKET_ENTRIES;
    return (uint64_t)seg->used * 100 >= room * percent;
}

static uint32_t next_size(uint32_t buckets) { return buckets + (buckets >= 8 ? buckets / 8 : 1); }

/* Returns false, and has done nothing, without memory. No entry of the segment is stale. */
static bool grow(vc_index *index, segment *seg) {
    uint32_t count = seg->buckets;
    bucket *copy = malloc(count * sizeof(bucket));
    if (copy == NULL) return false;
    memcpy(copy, seg->base, count * sizeof(bucket));
    bool is_grown = resize(index, seg, next_size(count));
    if (is_grown) {
        /* It hardly ever happens that entries fit less well into more buckets. */
        while (!refill(index, seg, copy, count, false)) {
            if (resize(index, seg, next_size(seg->buckets))) continue;
            refill(index, seg, copy, count, true);
            break;
        }
    }
    free(copy);
    return is_grown;
}

/* Remove the stale entries of a segment. If they were few, grow it. */
static bool index_make_room(vc_index *index, segment *seg) {
    uint32_t used = seg->used;
    sweep_buckets(index, seg, 0, seg->buckets);
    return used - seg->used > used / 16 || grow(index, seg);
}

/* ---- The index ---- */

static unsigned bits_for(uint64_t count) {
    return count <= 1 ? 0 : 64 - (unsigned)__builtin_clzll(count - 1);
}

/* The first size of a segment: room for its share of the keys, 3 % and one standard
 * deviation more. Segments with more keys than that grow: few, in most cases within the
 * last page of their group. */
static uint64_t first_size(uint64_t expected) {
    uint64_t keys = expected / SEGMENTS, deviation = 0;
    while (deviation * deviation < keys) deviation++;
    keys += keys * 3 / 100 + deviation;
    return keys * 100 / (VC_BUCKET_ENTRIES * FULL_PERCENT) + 1;
}

static bool map_groups(vc_index *index, uint64_t expected) {
    if (expected > (uint64_t)1 << 40) return false;
    uint32_t buckets = (uint32_t)first_size(expected);
    size_t bytes = whole_pages(index, (uint64_t)buckets * VC_GROUP_SEGMENTS);
    char *base;
    if (index->shared && bytes <= index->shared->window_bytes) {
        bytes = index->shared->window_bytes;
        base = vc_shared_group(index->shared, 0);
    } else { /* One mapping; a group that grows leaves it. */
        index->shared = NULL;
        base = map_pages(GROUPS * bytes);
        if (base == NULL) return false;
        index->bytes = GROUPS * bytes;
    }
    for (uint32_t i = 0; i < SEGMENTS; i++) index->segments[i].buckets = buckets;
    for (uint32_t i = 0; i < GROUPS; i++) {
        index->groups[i] = (group){(bucket *)(void *)(base + i * bytes), bytes};
        set_bases(index, i);
    }
    return true;
}

vc_index *vc_index_new(const uint8_t hash_key[16], uint64_t volume_bytes, uint32_t volumes,
                       uint64_t expected, vc_shared *shared) {
    unsigned offset_bits = bits_for(volume_bytes), slot_bits = bits_for(volumes) + 1;
    if (volumes < 1 || volumes > 65536 || offset_bits < 24 || offset_bits > 40 ||
        offset_bits + slot_bits > 48)
        return NULL;
    vc_index *index = calloc(1, sizeof *index);
    if (index == NULL) return NULL;
    memcpy(index->hash_key, hash_key, sizeof index->hash_key);
    index->page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    index->offset_bits = offset_bits;
    index->shared = shared;
    index->volumes = volumes;
    index->slots = (uint32_t)1 << slot_bits;
    index->slot_state = calloc(index->slots, sizeof *index->slot_state);
    index->slot_counts = calloc(index->slots, sizeof *index->slot_counts);
    if (index->slot_state == NULL || index->slot_counts == NULL || !map_groups(index, expected)) {
        vc_index_free(index);
        return NULL;
    }
    if (index->shared) {
        memcpy(index->shared->hash_key, hash_key, sizeof index->hash_key);
        index->shared->offset_bits = offset_bits;
    }
    return index;
}

bool vc_index_is_shared(const vc_index *index) { return index->shared; }

/* Before and after changes of a group. */
static void begin_change(const vc_index *index, uint32_t segment_at) {
    if (index->shared) vc_shared_begin(&index->shared->sequences[segment_at / VC_GROUP_SEGMENTS]);
}
static void end_change(const vc_index *index, uint32_t segment_at) {
    if (index->shared) vc_shared_end(&index->shared->sequences[segment_at / VC_GROUP_SEGMENTS]);
}

void vc_index_free(vc_index *index) {
    if (index == NULL) return;
    for (uint32_t i = 0; !index->shared && i < GROUPS; i++)
        if (index->groups[i].base != NULL) munmap(index->groups[i].base, index->groups[i].bytes);
    free(index->slot_state);
    free(index->slot_counts);
    free(index);
}

uint64_t vc_index_fingerprint(const vc_index *index, const uint8_t *key, size_t length) {
    return vc_siphash13(index->hash_key, key, length) >> (64 - VC_FINGERPRINT_BITS);
}

void vc_index_prefetch(const vc_index *index, uint64_t fingerprint) {
    const segment *seg = segment_of((vc_index *)index, fingerprint);
    __builtin_prefetch(first_bucket(seg, index_tag_of(fingerprint)));
}

/* Find the live entry of a fingerprint, as `find_entry` does. */
static inline bucket *find_live(const vc_index *index, uint64_t fingerprint, int *k) {
    const segment *seg = segment_of((vc_index *)index, fingerprint);
    bucket *b = find_entry(seg, index_tag_of(fingerprint), k);
    return b != NULL && is_live(index, b->word[*k]) ? b : NULL;
}

static void describe(const vc_index *index, const bucket *b, int k, vc_entry *found) {
    loose_entry e = index_read_entry(b, k);
    *found = (vc_entry){
        .word = e.word,
        .offset = e.word & (((uint64_t)1 << index->offset_bits) - 1),
        .size = class_max(word_class(e.word)),
        .slot = word_slot(index, e.word),
        .hits = e.hits,
        .is_tombstone = e.is_tombstone,
    };
}

bool vc_index_find(const vc_index *index, uint64_t fingerprint, vc_entry *found) {
    int k;
    bucket *b = find_live(index, fingerprint, &k);
    if (b != NULL) describe(index, b, k, found);
    return b != NULL;
}

bool vc_index_is_stale(const vc_index *index, uint64_t fingerprint) {
    int k;
    const segment *seg = segment_of((vc_index *)index, fingerprint);
    const bucket *b = find_entry(seg, index_tag_of(fingerprint), &k);
    return b != NULL && !is_live(index, b->word[k]) && !(b->flags & VC_TOMBSTONE_MASK(k));
}

static bool is_old_enough(const vc_index *index, uint64_t word) {
    const slot_count *slot = &index->slot_counts[word_slot(index, word)];
    uint64_t offset = word & (((uint64_t)1 << index->offset_bits) - 1);
    return slot->from <= index->clock[slot->ring] &&
           offset <= index->clock[slot->ring] - slot->from;
}

bool vc_index_hit(vc_index *index, uint64_t fingerprint, vc_entry *found) {
    int k;
    bucket *b = find_live(index, fingerprint, &k);
    if (b == NULL) return false;
    bool is_raised = (b->flags & HITS_MASK(k)) != HITS_MASK(k) && is_old_enough(index, b->word[k]);
    if (is_raised) b->flags += 1u << (2 * k);
    describe(index, b, k, found);
    found->is_raised = is_raised;
    return true;
}

static bool index_set(vc_index *index, uint64_t fingerprint, uint32_t slot, uint64_t offset,
                      uint64_t size, bool is_tombstone) {
    assert(slot < index->slots && index->slot_state[slot] == SLOT_LIVE);
    assert(offset > 0 && offset >> index->offset_bits == 0 && size > 0);
    segment *seg = segment_of(index, fingerprint);
    uint64_t tag = index_tag_of(fingerprint);
    loose_entry e = {
        .word = (uint64_t)slot << index->offset_bits | offset | (uint64_t)size_class(size) << 48 |
                tag >> 32 << 56,
        .tag = (uint32_t)tag,
        .is_tombstone = is_tombstone,
    };
    int k;
    bucket *b = find_entry(seg, tag, &k);
    if (b != NULL) {
        remove_entry(index, seg, b, k);
        index_put(seg, b, k, e);
        count_entry(index, e.word, is_tombstone);
        return true;
    }
    uint64_t displaced = index->displaced;
    if (is_loaded(seg, FULL_PERCENT)) index_make_room(index, seg);
    count_entry(index, e.word, is_tombstone);
    while (!place(index, seg, &e)) {
        /* So early, it is an attack: growing would not help. */
        if (!is_loaded(seg, 50) || !index_make_room(index, seg)) {
            displace(index, e);
            break;
        }
    }
    return index->displaced == displaced;
}

bool vc_index_set(vc_index *index, uint64_t fingerprint, uint32_t slot, uint64_t offset,
                  uint64_t size, bool is_tombstone) {
    uint32_t segment_at = segment_number(fingerprint);
    begin_change(index, segment_at);
    bool is_kept = index_set(index, fingerprint, slot, offset, size, is_tombstone);
    end_change(index, segment_at);
    return is_kept;
}

/* Find the live entry of a fingerprint if it is the one with this `word`. */
static bucket *find_same(const vc_index *index, uint64_t fingerprint, uint64_t word, int *k) {
    bucket *b = find_live(index, fingerprint, k);
    return b != NULL && b->word[*k] == word ? b : NULL;
}

/* Change the entry that has this `word`, if it is still there. */
static bool change_entry(vc_index *index, uint64_t fingerprint, uint64_t word, uint64_t position,
                         unsigned hits, bool is_tombstone) {
    int k;
    bucket *b = find_same(index, fingerprint, word, &k);
    if (b == NULL) return false;
    loose_entry before = index_read_entry(b, k);
    begin_change(index, segment_number(fingerprint));
    discount_entry(index, before.word, before.is_tombstone);
    b->word[k] = (before.word & ~VC_POSITION_MASK) | position;
    b->flags &= ~(HITS_MASK(k) | VC_TOMBSTONE_MASK(k));
    b->flags |= hits << (2 * k) | (is_tombstone ? VC_TOMBSTONE_MASK(k) : 0);
    end_change(index, segment_number(fingerprint));
    count_entry(index, b->word[k], is_tombstone);
    return true;
}

bool vc_index_bury(vc_index *index, uint64_t fingerprint, uint64_t word) {
    return change_entry(index, fingerprint, word, word & VC_POSITION_MASK, 0, true);
}

bool vc_index_move(vc_index *index, uint64_t fingerprint, uint64_t word, uint32_t slot,
                   uint64_t offset, unsigned hits) {
    assert(slot < index->slots && index->slot_state[slot] == SLOT_LIVE && hits <= 3);
    assert(offset > 0 && offset >> index->offset_bits == 0);
    uint64_t position = (uint64_t)slot << index->offset_bits | offset;
    return change_entry(index, fingerprint, word, position, hits, false);
}

/* ---- Many changes ---- */

static void index_apply(vc_index *index, const vc_change *changes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (count - i > PREFETCH_AHEAD)
            vc_index_prefetch(index, changes[i + PREFETCH_AHEAD].fingerprint);
        const vc_change *c = &changes[i];
        bool is_tombstone = c->size == VC_TOMBSTONE;
        vc_index_set(index, c->fingerprint, c->slot, c->offset, is_tombstone ? 1 : c->size,
                     is_tombstone);
    }
}

bool vc_index_set_many(vc_index *index, vc_change *changes, size_t count) {
    if (count < BATCH_MIN) {
        index_apply(index, changes, count);
        return true;
    }
    /* Mapped, so that nothing of it is kept by malloc. */
    size_t most = count < BATCH_MAX ? count : BATCH_MAX;
    size_t ends_bytes = SEGMENTS * sizeof(uint32_t);
    size_t bytes = most * sizeof *changes + ends_bytes;
    vc_change *sorted = map_pages(bytes);
    if (sorted == NULL) return false;
    uint32_t *ends = (uint32_t *)(sorted + most);
    for (size_t done = 0, n; done < count; done += n) {
        const vc_change *batch = changes + done;
        n = count - done < most ? count - done : most;
        memset(ends, 0, ends_bytes);
        for (size_t i = 0; i < n; i++) ends[segment_number(batch[i].fingerprint)]++;
        for (size_t i = 1; i < SEGMENTS; i++) ends[i] += ends[i - 1];
        /* From the last to the first, so that changes of one segment keep their order. */
        for (size_t i = n; i-- > 0;)
            sorted[--ends[segment_number(batch[i].fingerprint)]] = batch[i];
        index_apply(index, sorted, n);
    }
    munmap(sorted, bytes);
    return true;
}

/* ---- Slots ---- */

vc_live vc_index_reclaim(vc_index *index, uint32_t slot) {
    vc_live lost = vc_index_live(index, slot);
    if (slot >= index->slots || index->slot_state[slot] != SLOT_LIVE) return lost;
    slot_count *count = &index->slot_counts[slot];
    count->live = (vc_live){0, 0};
    index->records -= lost.records;
    index->stale += count->entries;
    index->live_slots--;
    index->stale_slots += count->entries > 0;
    index->slot_state[slot] = count->entries > 0 ? SLOT_STALE : SLOT_FREE;
    return lost;
}

void vc_index_set_age(vc_index *index, uint32_t slot, unsigned ring, uint64_t born, uint64_t skip) {
    assert(slot < index->slots && ring < VC_RINGS);
    index->slot_counts[slot].ring = ring;
    index->slot_counts[slot].born = born;
    index->slot_counts[slot].from = born + skip;
}

void vc_index_advance(vc_index *index, uint32_t slot, uint64_t end) {
    const slot_count *count = &index->slot_counts[slot];
    uint64_t *clock = &index->clock[count->ring];
    if (count->born + end > *clock) *clock = count->born + end;
}

unsigned vc_index_ring(const vc_index *index, uint32_t slot) {
    return index->slot_counts[slot].ring;
}

void vc_index_visit(const vc_index *index, uint32_t segment_at, uint32_t slot,
                    void (*visit)(void *context, uint64_t fingerprint, const vc_entry *entry),
                    void *context) {
    const segment *seg = &index->segments[segment_at];
    uint64_t slot_mask = VC_POSITION_MASK & ~(((uint64_t)1 << index->offset_bits) - 1);
    uint64_t slot_bits = (uint64_t)slot << index->offset_bits;
    for (const bucket *b = seg->base; b < seg->base + seg->buckets; b++) {
        for (int k = 0; k < VC_BUCKET_ENTRIES; k++) {
            if ((b->word[k] & slot_mask) != slot_bits || b->word[k] == 0 ||
                (b->flags & VC_TOMBSTONE_MASK(k)))
                continue;
            vc_entry entry;
            describe(index, b, k, &entry);
            visit(context, (uint64_t)segment_at << VC_TAG_BITS | vc_full_tag(b->word[k], b->tag[k]),
                  &entry);
        }
    }
}

vc_live vc_index_live(const vc_index *index, uint32_t slot) {
    return slot < index->slots ? index->slot_counts[slot].live : (vc_live){0, 0};
}

/* Whether a pass is under way, or should begin: many entries are stale, or few slots are
 * free. */
static bool has_to_sweep(const vc_index *index) {
    if (index->stale == 0) return false;
    return index->is_sweeping || index->stale * 8 > index->entries ||
           index->stale_slots * 2 > index->slots - index->live_slots;
}

static void sweep_segment(vc_index *index, uint32_t segment_at, uint32_t begin, uint32_t end) {
    begin_change(index, segment_at);
    sweep_buckets(index, &index->segments[segment_at], begin, end);
    end_change(index, segment_at);
}

void vc_index_sweep(vc_index *index, uint32_t budget) {
    while (budget > 0 && has_to_sweep(index)) {
        index->is_sweeping = true;
        uint32_t left = index->segments[index->hand_segment].buckets - index->hand_bucket;
        uint32_t n = left < budget ? left : budget;
        sweep_segment(index, index->hand_segment, index->hand_bucket, index->hand_bucket + n);
        budget -= n;
        index->hand_bucket += n;
        if (n == left) {
            index->hand_bucket = 0;
            index->hand_segment = (index->hand_segment + 1) % SEGMENTS;
            index->is_sweeping = index->hand_segment != 0;
        }
    }
}

uint32_t vc_index_add_volume(vc_index *index) {
    if (index->live_slots == index->volumes) return VC_NO_SLOT;
    if (index->live_slots + index->stale_slots == index->slots)
        for (uint32_t i = 0; i < SEGMENTS; i++)
            sweep_segment(index, i, 0, index->segments[i].buckets);
    uint32_t slot = index->next_slot;
    while (index->slot_state[slot] != SLOT_FREE) slot = (slot + 1) & (index->slots - 1);
    index->next_slot = (slot + 1) & (index->slots - 1);
    index->slot_state[slot] = SLOT_LIVE;
    index->slot_counts[slot].ring = VC_MAIN;
    index->slot_counts[slot].born = index->slot_counts[slot].from = 0;
    index->live_slots++;
    return slot;
}

vc_index_stats vc_index_get_stats(const vc_index *index) {
    return (vc_index_stats){index->records, index->displaced};
}
