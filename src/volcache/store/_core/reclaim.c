/* The records found are in lists by their place in the volume, each for a short piece of it,
 * which is sorted when it is looked at: no step has to sort all of them. */
#include "reclaim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core_parts.h"
#include "crc32c.h"

enum {
    PER_PIECE = 32, /* records, on average */
    BUFFER_MIN = 1 << 16,
};
#define NOTHING UINT32_MAX

typedef struct {
    uint64_t fingerprint, word;
    uint64_t offset;
    uint32_t next; /* in the list of its piece */
} member;

struct vc_reclaim {
    vc_core *core;
    uint32_t slot;
    uint64_t piece_bytes;
    member *members;
    size_t count, room;
    uint32_t segment;     /* the next one to be searched */
    uint32_t *first;      /* of each piece */
    size_t pieces, piece; /* the next one to be sorted */
    member **sorted;      /* the piece that is looked at */
    size_t sorted_count, sorted_room, at;
    uint8_t *buffer; /* a record that is copied */
    size_t buffer_bytes;
};

vc_reclaim *vc_reclaim_new(vc_core *core, uint32_t slot, uint64_t length) {
    vc_reclaim *reclaim = calloc(1, sizeof *reclaim);
    if (!reclaim) return NULL;
    reclaim->core = core;
    reclaim->slot = slot;
    /* Nothing is appended to the volume, so there will not be more. */
    reclaim->room = vc_core_live(core, slot).records;
    reclaim->pieces = reclaim->room / PER_PIECE + 1;
    reclaim->piece_bytes = length / reclaim->pieces + 1;
    reclaim->members = malloc((reclaim->room + 1) * sizeof *reclaim->members);
    reclaim->first = malloc(reclaim->pieces * sizeof *reclaim->first);
    if (!reclaim->members || !reclaim->first || reclaim->room >= NOTHING) {
        vc_reclaim_free(reclaim);
        return NULL;
    }
    memset(reclaim->first, 0xFF, reclaim->pieces * sizeof *reclaim->first);
    return reclaim;
}

void vc_reclaim_free(vc_reclaim *reclaim) {
    if (!reclaim) return;
    free(reclaim->members);
    free(reclaim->first);
    free(reclaim->sorted);
    free(reclaim->buffer);
    free(reclaim);
}

static int need_of(const vc_thresholds *thresholds, uint64_t size) {
    int i = 0;
    while (i < VC_SIZE_STEPS - 1 && (double)size >= thresholds->limit[i]) i++;
    return thresholds->need[i];
}

static bool has_enough_hits(const vc_thresholds *thresholds, const vc_entry *entry) {
    return (int)entry->hits >= need_of(thresholds, vc_size_middle(entry->size));
}

typedef struct {
    vc_reclaim *reclaim;
    const vc_thresholds *thresholds;
    vc_disposition *disposition;
} search;

static void reclaim_take(void *context, uint64_t fingerprint, const vc_entry *entry) {
    const search *with = context;
    vc_reclaim *reclaim = with->reclaim;
    if (reclaim->count == reclaim->room || !has_enough_hits(with->thresholds, entry)) {
        with->disposition->unused++;
        if (with->thresholds->is_probation) vc_ghost_add(&reclaim->core->ghost, fingerprint);
        return;
    }
    size_t piece = (size_t)(entry->offset / reclaim->piece_bytes);
    if (piece >= reclaim->pieces) piece = reclaim->pieces - 1;
    reclaim->members[reclaim->count] = (member){
        .fingerprint = fingerprint,
        .word = entry->word,
        .offset = entry->offset,
        .next = reclaim->first[piece],
    };
    reclaim->first[piece] = (uint32_t)reclaim->count++;
}

void vc_reclaim_collect(vc_reclaim *reclaim, uint32_t segments, const vc_thresholds *thresholds,
                        vc_disposition *disposition) {
    vc_core *core = reclaim->core;
    *disposition = (vc_disposition){0};
    search with = {reclaim, thresholds, disposition};
    vc_core_lock(core);
    for (; segments && reclaim->segment < (uint32_t)1 << VC_SEGMENT_BITS; segments--)
        vc_index_visit(core->index, reclaim->segment++, reclaim->slot, reclaim_take, &with);
    vc_core_unlock(core);
}

static int by_offset(const void *a, const void *b) {
    uint64_t one = (*(member *const *)a)->offset, other = (*(member *const *)b)->offset;
    return (one > other) - (one < other);
}

/* Sort the next piece that has a record; returns false if there is none. */
static bool sort_piece(vc_reclaim *reclaim) {
    reclaim->at = reclaim->sorted_count = 0;
    while (!reclaim->sorted_count && reclaim->piece < reclaim->pieces) {
        uint32_t i = reclaim->first[reclaim->piece++];
        for (; i != NOTHING; i = reclaim->members[i].next) {
            if (reclaim->sorted_count == reclaim->sorted_room) {
                size_t room = 2 * reclaim->sorted_room + PER_PIECE;
                member **sorted = realloc(reclaim->sorted, room * sizeof *sorted);
                if (!sorted) break; /* The rest is dropped. */
                reclaim->sorted = sorted;
                reclaim->sorted_room = room;
            }
            reclaim->sorted[reclaim->sorted_count++] = &reclaim->members[i];
        }
    }
    if (reclaim->sorted_count)
        qsort(reclaim->sorted, reclaim->sorted_count, sizeof *reclaim->sorted, by_offset);
    return reclaim->sorted_count > 0;
}

/* Read the record and check all of it. */
static vc_status read_whole(vc_reclaim *reclaim, const member *one, uint64_t size,
                            vc_record *record) {
    vc_core *core = reclaim->core;
    if (size > reclaim->buffer_bytes) {
        size_t bytes = size > BUFFER_MIN ? size : BUFFER_MIN;
        uint8_t *buffer = realloc(reclaim->buffer, bytes);
        if (!buffer) return VC_NO_MEMORY;
        reclaim->buffer = buffer;
        reclaim->buffer_bytes = bytes;
    }
    vc_core_lock(core);
    vc_place at = core->places[reclaim->slot];
    vc_core_unlock(core);
    ssize_t got = vc_pread(&core->calls, at.fd, reclaim->buffer, size, one->offset, false);
    if (got < 0) return VC_IO_ERROR;
    uint64_t salt = vc_core_salt_at(&at, one->offset);
    vc_status status = vc_record_decode(reclaim->buffer, (size_t)got, salt, at.volume, one->offset,
                                        record);
    if (status != VC_OK || record->size > (size_t)got || record->kind ||
        vc_crc32c(0, reclaim->buffer + record->prefix, record->length) != record->checksum)
        return VC_DAMAGED;
    uint64_t found = vc_core_hash(core, record->key, record->key_length);
    return found == one->fingerprint ? VC_OK : VC_OTHER_KEY;
}

/* Copy a record; VC_RECLAIM_MORE: it was copied, or need not be. */
static vc_reclaim_result copy(vc_reclaim *reclaim, const member *one, const vc_entry *entry,
                              const vc_thresholds *thresholds, vc_writer *writer,
                              vc_disposition *disposition) {
    vc_core *core = reclaim->core;
    vc_record record;
    vc_status status = read_whole(reclaim, one, entry->size, &record);
    if (status == VC_IO_ERROR) {
        disposition->unreadable++;
        return VC_RECLAIM_UNREADABLE;
    }
    if (status == VC_NO_MEMORY) {
        disposition->left++;
        return VC_RECLAIM_MORE;
    }
    if (status != VC_OK) {
        disposition->damaged++;
        vc_core_lock(core);
        vc_index_bury(core->index, one->fingerprint, one->word);
        vc_core_unlock(core);
        return VC_RECLAIM_DAMAGED;
    }
    if (record.expires_ms && record.expires_ms <= thresholds->now_ms) {
        disposition->expired++;
        return VC_RECLAIM_MORE;
    }
    /* In a newer volume it would outlive the purge. */
    if (vc_core_is_purged(core, record.key, record.key_length, record.stored_us)) {
        disposition->purged++;
        return VC_RECLAIM_MORE;
    }
    const uint8_t *encoding = record.type + record.type_length;
    vc_put put = {
        .record = record,
        .type = record.type,
        .encoding = encoding,
        .cache = encoding + record.encoding_length,
        .key = record.key,
        .value = reclaim->buffer + record.prefix,
    };
    if (core->is_blocked) return VC_RECLAIM_FULL;
    status = vc_writer_append(writer, &put, false);
    const vc_record *written = &put.record;
    if (status == VC_NO_ROOM && writer->capacity &&
        VC_VOLUME_HEADER_BYTES + record.size > writer->length) {
        disposition->left++; /* Volumes were larger before. */
        return VC_RECLAIM_MORE;
    }
    if (status == VC_NO_ROOM) return VC_RECLAIM_FULL;
    if (status != VC_OK) return VC_RECLAIM_REFUSED;
    unsigned hits = entry->hits > thresholds->hits_taken ? entry->hits - thresholds->hits_taken : 0;
    vc_core_lock(core);
    vc_index_move(core->index, one->fingerprint, one->word, writer->slot, written->offset, hits);
    vc_index_advance(core->index, writer->slot, written->offset + written->size);
    core->tokens -= (double)written->size;
    vc_core_unlock(core);
    disposition->copied++;
    disposition->copied_bytes += written->size;
    return VC_RECLAIM_MORE;
}

typedef enum { DROP, COPY, DEAD } decision;

static decision reclaim_decide(vc_reclaim *reclaim, const member *one,
                               const vc_thresholds *thresholds, bool may_copy, vc_entry *entry,
                               vc_disposition *disposition) {
    vc_core *core = reclaim->core;
    decision decided = DEAD;
    vc_core_lock(core);
    if (vc_index_find(core->index, one->fingerprint, entry) && !entry->is_tombstone &&
        vc_index_is_same(entry->word, one->word)) {
        decided = DROP;
        if (!has_enough_hits(thresholds, entry)) disposition->unused++;
        else if (!may_copy) disposition->left++;
        else if (core->tokens < (double)entry->size) disposition->unpaid++;
        else decided = COPY;
        if (decided == DROP && thresholds->is_probation)
            vc_ghost_add(&core->ghost, one->fingerprint);
    }
    vc_core_unlock(core);
    return decided;
}

vc_reclaim_result vc_reclaim_step(vc_reclaim *reclaim, uint64_t end, uint64_t copy_bytes,
                                  const vc_thresholds *thresholds, vc_writer *writer,
                                  vc_disposition *disposition, uint64_t *offset) {
    *disposition = (vc_disposition){0};
    *offset = end;
    while (disposition->copied_bytes < copy_bytes) {
        if (reclaim->at == reclaim->sorted_count && !sort_piece(reclaim)) return VC_RECLAIM_DONE;
        const member *one = reclaim->sorted[reclaim->at];
        if (one->offset >= end) return VC_RECLAIM_MORE;
        *offset = one->offset;
        vc_entry entry;
        vc_reclaim_result step = VC_RECLAIM_MORE;
        if (reclaim_decide(reclaim, one, thresholds, writer != NULL, &entry, disposition) == COPY)
            step = copy(reclaim, one, &entry, thresholds, writer, disposition);
        if (step == VC_RECLAIM_FULL) return step;
        reclaim->at++;
        if (step != VC_RECLAIM_MORE) return step;
    }
    return VC_RECLAIM_MORE;
}
