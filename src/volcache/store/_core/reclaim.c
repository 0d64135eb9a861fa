/* The records found are a heap, ordered by their place in the volume: no step has to sort all of
 * them. */
#include "reclaim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core_parts.h"
#include "crc32c.h"

enum { BUFFER_MIN = 1 << 16 };

typedef struct {
    uint64_t fingerprint, word, offset;
} member;

struct vc_reclaim {
    vc_core *core;
    uint32_t slot;
    uint32_t segment; /* the next one to be searched */
    member *heap;     /* the first one has the lowest offset */
    size_t count, room;
    uint8_t *buffer; /* a record that is copied */
    size_t buffer_bytes;
    const vc_thresholds *thresholds; /* of this call */
    vc_disposition *disposition;     /* likewise */
};

vc_reclaim *vc_reclaim_new(vc_core *core, uint32_t slot) {
    vc_reclaim *reclaim = calloc(1, sizeof *reclaim);
    if (!reclaim) return NULL;
    reclaim->core = core;
    reclaim->slot = slot;
    /* Nothing is appended to the volume, so there will not be more. */
    reclaim->room = vc_core_live(core, slot).records;
    reclaim->heap = malloc((reclaim->room + 1) * sizeof *reclaim->heap);
    if (reclaim->heap) return reclaim;
    free(reclaim);
    return NULL;
}

void vc_reclaim_free(vc_reclaim *reclaim) {
    if (!reclaim) return;
    free(reclaim->heap);
    free(reclaim->buffer);
    free(reclaim);
}

static bool has_enough_hits(const vc_thresholds *thresholds, const vc_entry *entry) {
    double size = (double)vc_size_middle(entry->size);
    int i = 0;
    while (i < VC_SIZE_STEPS - 1 && size >= thresholds->limit[i]) i++;
    return (int)entry->hits >= thresholds->need[i];
}

static void heap_push(vc_reclaim *reclaim, member one) {
    member *heap = reclaim->heap;
    size_t i = reclaim->count++;
    for (; i && heap[(i - 1) / 2].offset > one.offset; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = one;
}

/* Remove the first one. */
static void heap_pop(vc_reclaim *reclaim) {
    member *heap = reclaim->heap, last = heap[--reclaim->count];
    size_t i = 0, child;
    for (; (child = 2 * i + 1) < reclaim->count; i = child) {
        if (child + 1 < reclaim->count && heap[child + 1].offset < heap[child].offset) child++;
        if (last.offset <= heap[child].offset) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
}

static void reclaim_take(void *context, uint64_t fingerprint, const vc_entry *entry) {
    vc_reclaim *reclaim = context;
    if (reclaim->count == reclaim->room || !has_enough_hits(reclaim->thresholds, entry)) {
        reclaim->disposition->unused++;
        if (reclaim->thresholds->is_probation) vc_ghost_add(&reclaim->core->ghost, fingerprint);
        return;
    }
    heap_push(reclaim, (member){fingerprint, entry->word, entry->offset});
}

static void begin_call(vc_reclaim *reclaim, const vc_thresholds *thresholds,
                       vc_disposition *disposition) {
    *disposition = (vc_disposition){0};
    reclaim->thresholds = thresholds;
    reclaim->disposition = disposition;
}

void vc_reclaim_collect(vc_reclaim *reclaim, uint32_t segments, const vc_thresholds *thresholds,
                        vc_disposition *disposition) {
    vc_core *core = reclaim->core;
    begin_call(reclaim, thresholds, disposition);
    vc_core_lock(core);
    for (; segments && reclaim->segment < (uint32_t)1 << VC_SEGMENT_BITS; segments--)
        vc_index_visit(core->index, reclaim->segment++, reclaim->slot, reclaim_take, reclaim);
    vc_core_unlock(core);
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
    vc_place at = VC_LOCKED(core, core->places[reclaim->slot]);
    ssize_t got = vc_pread(&core->calls, at.fd, reclaim->buffer, size, one->offset, false);
    if (got < 0) return VC_IO_ERROR;
    uint64_t salt = vc_salt_at(at.segments, at.count, one->offset);
    vc_status status = vc_record_decode(reclaim->buffer, (size_t)got, salt, at.volume, one->offset,
                                        record);
    if (status != VC_OK || record->size > (size_t)got || record->kind ||
        vc_crc32c(0, reclaim->buffer + record->prefix, record->length) != record->checksum)
        return VC_DAMAGED;
    uint64_t found = vc_core_fingerprint(core, record->key, record->key_length);
    return found == one->fingerprint ? VC_OK : VC_OTHER_KEY;
}

static vc_reclaim_result passed(uint64_t *count, vc_reclaim_result result) {
    ++*count;
    return result;
}

/* Copy a record; VC_RECLAIM_MORE: it was copied, or need not be. */
static vc_reclaim_result copy(vc_reclaim *reclaim, const member *one, const vc_entry *entry,
                              vc_writer *writer) {
    vc_core *core = reclaim->core;
    vc_disposition *disposition = reclaim->disposition;
    unsigned hits_taken = reclaim->thresholds->hits_taken;
    vc_record record;
    vc_status status = read_whole(reclaim, one, entry->size, &record);
    if (status == VC_IO_ERROR) return passed(&disposition->unreadable, VC_RECLAIM_UNREADABLE);
    if (status == VC_NO_MEMORY) return passed(&disposition->left, VC_RECLAIM_MORE);
    if (status != VC_OK) {
        (void)VC_LOCKED(core, vc_index_bury(core->index, one->fingerprint, one->word));
        return passed(&disposition->damaged, VC_RECLAIM_DAMAGED);
    }
    if (record.expires_ms && record.expires_ms <= reclaim->thresholds->now_ms)
        return passed(&disposition->expired, VC_RECLAIM_MORE);
    /* In a newer volume it would outlive the purge. */
    if (vc_core_is_purged(core, record.key, record.key_length, record.stored_us))
        return passed(&disposition->purged, VC_RECLAIM_MORE);
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
        VC_VOLUME_HEADER_BYTES + record.size > writer->length)
        return passed(&disposition->left, VC_RECLAIM_MORE); /* Volumes were larger before. */
    if (status == VC_NO_ROOM) return VC_RECLAIM_FULL;
    if (status != VC_OK) return VC_RECLAIM_REFUSED;
    unsigned hits = entry->hits > hits_taken ? entry->hits - hits_taken : 0;
    vc_core_lock(core);
    vc_index_move(core->index, one->fingerprint, one->word, writer->slot, written->offset, hits);
    vc_index_advance(core->index, writer->slot, written->offset + written->size);
    core->tokens -= (double)written->size;
    vc_core_unlock(core);
    disposition->copied_bytes += written->size;
    return passed(&disposition->copied, VC_RECLAIM_MORE);
}

/* Whether a record has to be copied. */
static bool reclaim_decide(vc_reclaim *reclaim, const member *one, bool may_copy, vc_entry *entry) {
    vc_core *core = reclaim->core;
    vc_disposition *disposition = reclaim->disposition;
    bool is_copied = false;
    vc_core_lock(core);
    if (vc_index_find(core->index, one->fingerprint, entry) && !entry->is_tombstone &&
        entry->word == one->word) {
        if (!has_enough_hits(reclaim->thresholds, entry)) disposition->unused++;
        else if (!may_copy) disposition->left++;
        else if (core->tokens < (double)entry->size) disposition->unpaid++;
        else is_copied = true;
        if (!is_copied && reclaim->thresholds->is_probation)
            vc_ghost_add(&core->ghost, one->fingerprint);
    }
    vc_core_unlock(core);
    return is_copied;
}

vc_reclaim_result vc_reclaim_step(vc_reclaim *reclaim, uint64_t end, uint64_t copy_bytes,
                                  const vc_thresholds *thresholds, vc_writer *writer,
                                  vc_disposition *disposition, uint64_t *offset) {
    begin_call(reclaim, thresholds, disposition);
    *offset = end;
    while (disposition->copied_bytes < copy_bytes) {
        if (!reclaim->count) return VC_RECLAIM_DONE;
        const member *one = reclaim->heap;
        if (one->offset >= end) return VC_RECLAIM_MORE;
        *offset = one->offset;
        vc_entry entry;
        vc_reclaim_result step = VC_RECLAIM_MORE;
        if (reclaim_decide(reclaim, one, writer != NULL, &entry))
            step = copy(reclaim, one, &entry, writer);
        if (step == VC_RECLAIM_FULL) return step;
        heap_pop(reclaim);
        if (step != VC_RECLAIM_MORE) return step;
    }
    return VC_RECLAIM_MORE;
}
