#include "purges.h"

#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = sizeof(uint64_t) };

/* The first bytes of a prefix are compared as one number. */
typedef struct {
    uint64_t us, head, mask;
    size_t length;
    const uint8_t *rest;    /* of the prefix, after the first HEAD_BYTES */
} entry;

struct vc_purges {
    uint64_t newest_us;
    size_t count;
    entry entries[];        /* then the rests of the prefixes */
};

/* Return the first bytes of a key as a number; zeros follow a shorter one. */
static uint64_t head_of(const uint8_t *key, size_t length) {
    uint64_t head = 0;
    memcpy(&head, key, length < HEAD_BYTES ? length : HEAD_BYTES);
    return head;
}

vc_purges *vc_purges_new(const vc_purge *purges, size_t count) {
    size_t bytes = sizeof(vc_purges) + count * sizeof(entry);
    for (size_t i = 0; i < count; i++) bytes += purges[i].length;
    vc_purges *list = malloc(bytes);
    if (!list) return NULL;
    list->newest_us = 0;
    list->count = count;
    uint8_t *rest = (uint8_t *)(list->entries + count);
    for (size_t i = 0; i < count; i++) {
        const vc_purge *purge = &purges[i];
        uint8_t ones[HEAD_BYTES];
        memset(ones, 0xFF, sizeof(ones));
        size_t left = purge->length > HEAD_BYTES ? purge->length - HEAD_BYTES : 0;
        if (left) memcpy(rest, purge->prefix + HEAD_BYTES, left);
        list->entries[i] = (entry){
            .us = purge->us,
            .head = head_of(purge->prefix, purge->length),
            .mask = head_of(ones, purge->length),
            .length = purge->length,
            .rest = rest,
        };
        rest += left;
        if (purge->us > list->newest_us) list->newest_us = purge->us;
    }
    return list;
}

void vc_purges_free(vc_purges *purges) { free(purges); }

uint64_t vc_purges_newest(const vc_purges *purges) { return purges->newest_us; }

bool vc_purges_cover(const vc_purges *purges, const uint8_t *key, size_t length,
                     uint64_t stored_us) {
    uint64_t head = head_of(key, length);
    for (size_t i = 0; i < purges->count; i++) {
        const entry *one = &purges->entries[i];
        if ((head ^ one->head) & one->mask) continue;
        if (stored_us > one->us || length < one->length) continue;
        if (one->length <= HEAD_BYTES ||
            !memcmp(key + HEAD_BYTES, one->rest, one->length - HEAD_BYTES))
            return true;
    }
    return false;
}
