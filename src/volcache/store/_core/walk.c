#include "walk.h"

#include <string.h>

#include "core_parts.h"
#include "crc32c.h"

/* The checksum of the bytes of the volume from `offset` on; false if they cannot be read. */
static bool checksum_of(vc_walk *walk, uint64_t offset, uint32_t length, uint32_t *checksum) {
    *checksum = 0;
    while (length) {
        size_t have;
        const uint8_t *at = vc_ahead_read(walk->ahead, offset, 1, &have);
        if (!have) return false;
        if (have > length) have = length;
        *checksum = vc_crc32c(*checksum, at, have);
        offset += have;
        length -= (uint32_t)have;
    }
    return true;
}

/* Read and check the record at `offset`; its key stays until the next call. */
static bool read_record(vc_walk *walk, uint64_t salt, uint64_t offset, vc_record *record) {
    size_t have;
    const uint8_t *at = vc_ahead_read(walk->ahead, offset, VC_OVERHEAD_BYTES + 1, &have);
    vc_status status = vc_record_decode(at, have, salt, walk->volume, offset, record);
    if (status == VC_SHORT) {
        at = vc_ahead_read(walk->ahead, offset, record->prefix, &have);
        status = vc_record_decode(at, have, salt, walk->volume, offset, record);
    }
    if (status != VC_OK || record->size > walk->length - offset) return false;
    if (record->size > have) {
        memcpy(walk->prefix, at, record->prefix);
        record->key = walk->prefix + (record->key - at);
    }
    uint32_t checksum;
    return checksum_of(walk, offset + record->prefix, record->length, &checksum) &&
           checksum == record->checksum;
}

/* Pass the next line if it is that of a record, and the comments before it. */
static bool pass_line(vc_walk *walk, const vc_record *record) {
    const uint8_t *line = walk->lines + walk->at, *end = walk->lines + walk->lines_length;
    while (line < end && *line == '#')
        line = (const uint8_t *)memchr(line, '\n', (size_t)(end - line)) + 1;
    const uint8_t *key = record->key;
    size_t length = record->key_length;
    /* Most keys are written as they are: then only the numbers are encoded. */
    bool is_plain = length < (size_t)(end - line) && !memcmp(line, key, length) &&
                    !memchr(key, '%', length) && !memchr(key, '\n', length);
    if (is_plain) {
        line += length;
        length = 0;
    }
    vc_writer *expected = &walk->expected;
    expected->lines_used = 0;
    if (!vc_writer_add_entry(expected, key, length, record->kind ? 0 : record->offset,
                             record->kind ? 0 : record->size) ||
        expected->lines_used > (size_t)(end - line) ||
        memcmp(line, expected->lines, expected->lines_used))
        return false;
    walk->at = (size_t)(line - walk->lines) + expected->lines_used;
    return true;
}

/* Whether a fingerprint has a value in ring probation. Changes that are not applied yet are of
 * the volume that is being replayed. */
static bool is_in_probation(vc_core *core, uint64_t fingerprint) {
    vc_entry entry;
    pthread_mutex_lock(&core->mutex);
    bool is_there = vc_index_find(core->index, fingerprint, &entry) && !entry.is_tombstone &&
                    vc_index_ring(core->index, entry.slot) == VC_PROBATION;
    pthread_mutex_unlock(&core->mutex);
    return is_there;
}

/* Whether the walk may set the position of a record. */
static bool may_set(vc_core *core, const vc_change *change, uint64_t size, bool is_compared) {
    return vc_core_is_position(core, change->offset, size) &&
           !(is_compared && is_in_probation(core, change->fingerprint));
}

bool vc_walk_run(vc_walk *walk, vc_core *core, uint32_t slot, uint64_t salt, uint64_t offset,
                 uint64_t limit, vc_run *run) {
    *run = (vc_run){.end = offset};
    bool is_compared =
        core && core->has_probation && vc_index_ring(core->index, slot) == VC_MAIN;
    vc_record record;
    if (limit > walk->length) limit = walk->length;
    while (run->end < limit && read_record(walk, salt, run->end, &record)) {
        bool is_value = !record.kind;
        vc_change change = {.offset = record.offset, .slot = slot};
        change.size = is_value ? (uint32_t)record.size : VC_TOMBSTONE;
        if (core)
            change.fingerprint =
                vc_index_fingerprint(core->index, record.key, record.key_length);
        if (core && !may_set(core, &change, record.size, is_compared)) return true;
        if (!walk->writer && walk->lines && !pass_line(walk, &record)) return true;
        if (walk->writer &&
            !vc_writer_add_entry(walk->writer, record.key, record.key_length,
                                 is_value ? record.offset : 0, is_value ? record.size : 0))
            return false;
        if (core && !vc_core_add_change(core, &change)) return false;
        run->end += record.size;
        run->records++;
        if (record.stored_us > run->latest_us && record.stored_us < VC_CLOCK_END)
            run->latest_us = record.stored_us;
    }
    return true;
}
