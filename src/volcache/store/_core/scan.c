#define _GNU_SOURCE
#include "scan.h"

#include <string.h>

#include "core_parts.h"
#include "crc32c.h"

#define NOWHERE UINT64_MAX

/* --- Parts of a record ------------------------------------------------------------- */

/* Up to scan->length; see `vc_read_ahead_get`. */
static const uint8_t *scan_read(vc_scan *scan, uint64_t offset, size_t needed, size_t *have) {
    const uint8_t *at = vc_read_ahead_get(scan->ahead, offset, needed, have);
    uint64_t left = offset < scan->length ? scan->length - offset : 0;
    if (*have > left) *have = (size_t)left;
    return at;
}

static uint64_t scan_salt_at(vc_scan *scan, uint64_t offset) {
    if (offset >= scan->segment_end || offset < scan->segment.start) {
        size_t i = scan->segment_count - 1;
        while (i && scan->segments[i].start > offset) i--;
        scan->segment = scan->segments[i];
        scan->segment_end = i + 1 < scan->segment_count ? scan->segments[i + 1].start : NOWHERE;
    }
    return scan->segment.salt;
}

/* Have an intact header at `offset`; its bytes stay until the next read, with *have bytes. */
static bool scan_decode(vc_scan *scan, uint64_t offset, vc_record *record, size_t *have) {
    uint64_t salt = scan_salt_at(scan, offset);
    const uint8_t *at = scan_read(scan, offset, VC_OVERHEAD_BYTES + 1, have);
    vc_status status = vc_record_decode(at, *have, salt, scan->volume, offset, record);
    if (status == VC_SHORT) {
        at = scan_read(scan, offset, record->prefix, have);
        status = vc_record_decode(at, *have, salt, scan->volume, offset, record);
    }
    return status == VC_OK && record->size <= scan->length - offset;
}

/* Keep the bytes before the value until the next event. */
static void scan_keep(vc_scan *scan, vc_record *record) {
    memcpy(scan->prefix, record->type - VC_FIXED_BYTES, record->prefix);
    record->type = scan->prefix + VC_FIXED_BYTES;
    record->key = record->type + vc_record_types(record);
}

/* Whether a value has its checksum. *found is the checksum of what was read. */
static bool scan_has_value(vc_scan *scan, const vc_record *record, uint32_t *found) {
    uint64_t offset = record->offset + record->prefix, end = record->offset + record->size;
    for (*found = 0; offset < end;) {
        size_t have;
        const uint8_t *at = scan_read(scan, offset, 1, &have);
        if (!have) return false;
        if (have > end - offset) have = (size_t)(end - offset);
        *found = vc_crc32c(*found, at, have);
        offset += have;
    }
    return *found == record->checksum;
}

/* --- Records that are passed together ----------------------------------------------- */

/* Pass the next line if it is that of a record, and the comments before it. */
static bool scan_pass_line(vc_scan *scan, const vc_record *record) {
    const uint8_t *line = scan->lines + scan->line_at, *end = scan->lines + scan->lines_length;
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
    vc_writer *expected = &scan->expected;
    expected->lines_used = 0;
    if (!vc_writer_add_record(expected, key, length, record) ||
        expected->lines_used > (size_t)(end - line) ||
        memcmp(line, expected->lines, expected->lines_used))
        return false;
    scan->line_at = (size_t)(line - scan->lines) + expected->lines_used;
    return true;
}

/* Whether a fingerprint has a value in ring probation. Changes that are not applied yet are of
 * the volume that is being replayed. */
static bool scan_is_in_probation(vc_core *core, uint64_t fingerprint) {
    vc_entry entry;
    pthread_mutex_lock(&core->mutex);
    bool is_there = vc_index_find(core->index, fingerprint, &entry) && !entry.is_tombstone &&
                    vc_index_ring(core->index, entry.slot) == VC_PROBATION;
    pthread_mutex_unlock(&core->mutex);
    return is_there;
}

/* Whether a volume is in ring main, while ring probation has volumes, too. */
static bool scan_is_compared(vc_core *core, uint32_t slot) {
    pthread_mutex_lock(&core->mutex);
    bool is_compared = core->has_probation && vc_index_ring(core->index, slot) == VC_MAIN;
    pthread_mutex_unlock(&core->mutex);
    return is_compared;
}

/* Whether the scan may set the position of a record. */
static bool scan_may_set(vc_core *core, const vc_change *change, uint64_t size, bool is_compared) {
    return vc_core_is_position(core, change->offset, size) &&
           !(is_compared && scan_is_in_probation(core, change->fingerprint));
}

/* Have an intact record, whose key stays until the next one. */
static bool scan_read_intact(vc_scan *scan, vc_record *record) {
    size_t have;
    uint32_t checksum;
    if (!scan_decode(scan, scan->at, record, &have)) return false;
    if (record->size > have) scan_keep(scan, record);
    return !scan->has_values || scan_has_value(scan, record, &checksum);
}

/* Returns false without memory. */
static bool scan_pass_run(vc_scan *scan, vc_event *run) {
    vc_core *core = scan->core;
    bool is_compared = core && scan_is_compared(core, scan->slot);
    uint64_t limit = scan->at + scan->step;
    vc_record record;
    while (scan->at < limit && scan_read_intact(scan, &record)) {
        vc_change change = {.offset = record.offset, .slot = scan->slot};
        change.size = record.kind ? VC_TOMBSTONE : (uint32_t)record.size;
        if (core) change.fingerprint = vc_core_fingerprint(core, record.key, record.key_length);
        if (core && !scan_may_set(core, &change, record.size, is_compared)) break;
        if (!scan->writer && scan->lines && !scan_pass_line(scan, &record)) break;
        if (scan->writer &&
            !vc_writer_add_record(scan->writer, record.key, record.key_length, &record))
            return false;
        if (core && !vc_core_add_change(core, &change)) return false;
        scan->at += record.size;
        run->records++;
        if (record.stored_us > run->latest_us && record.stored_us < VC_CLOCK_END)
            run->latest_us = record.stored_us;
    }
    return true;
}

/* --- What else there is ------------------------------------------------------------- */

/* The offset of the next record of a segment that begins before `limit`. */
static uint64_t scan_find_in_segment(vc_scan *scan, uint64_t offset, uint64_t limit) {
    uint8_t identity[VC_IDENTITY_BYTES];
    vc_record record;
    size_t have;
    vc_record_identity(identity, scan_salt_at(scan, offset));
    while (offset < limit) {
        const uint8_t *data = scan_read(scan, offset, sizeof identity, &have);
        if (have < sizeof identity) break;
        const uint8_t *found = memmem(data, have, identity, sizeof identity);
        if (!found) {
            offset += have - sizeof identity + 1;
            continue;
        }
        offset += (uint64_t)(found - data);
        if (offset < limit && scan_decode(scan, offset, &record, &have)) return offset;
        offset++;
    }
    return NOWHERE;
}

uint64_t vc_scan_find(vc_scan *scan, uint64_t offset) {
    uint64_t limit = scan->length;
    if (offset < limit && scan->window < limit - offset) limit = offset + scan->window;
    uint64_t found = NOWHERE;
    while (offset < limit && found == NOWHERE) {
        scan_salt_at(scan, offset);
        uint64_t end = scan->segment_end < limit ? scan->segment_end : limit;
        found = scan_find_in_segment(scan, offset, end);
        offset = end;
    }
    return found;
}

/* Up to where records say that the volume was synced before them, from `offset` on. They are read
 * once only: what they say grows from one to the next. */
static uint64_t scan_synced_end(vc_scan *scan, uint64_t offset) {
    vc_record record;
    size_t have;
    if (scan->synced_end) return scan->synced_end;
    scan->synced_end = 1;
    while ((offset = vc_scan_find(scan, offset)) != NOWHERE &&
           scan_decode(scan, offset, &record, &have)) {
        if (offset > record.unsynced && scan->synced_end < offset - record.unsynced)
            scan->synced_end = offset - record.unsynced;
        offset += record.size;
    }
    return scan->synced_end;
}

/* A record whose key is known: intact, damaged, torn or lost. */
static void scan_judge(vc_scan *scan, bool is_corrected, vc_event *event) {
    const vc_record *record = &event->record;
    uint32_t checksum;
    event->end = event->start + record->size;
    event->kind = is_corrected ? VC_SCAN_DAMAGED : VC_SCAN_RECORD;
    if (!scan->has_values || scan_has_value(scan, record, &checksum) ||
        /* What a get finds later decides; until then the record supersedes older ones. */
        vc_read_ahead_is_unreadable(scan->ahead, event->start, event->end))
        return;
    event->kind = VC_SCAN_DAMAGED;
    if (vc_scan_find(scan, event->end) != NOWHERE) {
        if (scan->has_lost && event->end > scan_synced_end(scan, event->end))
            event->kind = VC_SCAN_GAP;
    } else if (is_corrected || !vc_crc32c_is_one_bit(checksum ^ record->checksum, record->length)) {
        event->kind = VC_SCAN_TORN;
    }
}

/* Bytes that are no record. */
static void scan_judge_gap(vc_scan *scan, vc_event *event) {
    uint8_t identity[VC_IDENTITY_BYTES];
    size_t have;
    vc_record_identity(identity, scan_salt_at(scan, event->start));
    const uint8_t *data = scan_read(scan, event->start, VC_OVERHEAD_BYTES, &have);
    bool is_begun = have >= sizeof identity && !memcmp(data, identity, sizeof identity);
    uint64_t header_end = event->start + (is_begun ? vc_record_prefix(data, have) : have);
    uint64_t following = vc_scan_find(scan, event->start + 1);
    event->end = following == NOWHERE ? scan->length : following;
    if (vc_read_ahead_is_unreadable(scan->ahead, event->start, event->start + sizeof identity) ||
        (is_begun && vc_read_ahead_is_unreadable(scan->ahead, event->start, header_end)))
        event->kind = VC_SCAN_UNREADABLE;
    else if (following != NOWHERE) event->kind = VC_SCAN_GAP;
    else if (is_begun) event->kind = VC_SCAN_TORN;
}

/* Look at one record, or at what is in its place. */
static void scan_look(vc_scan *scan, vc_event *event) {
    vc_record *record = &event->record;
    size_t have;
    if (scan_decode(scan, scan->at, record, &have)) {
        scan_keep(scan, record);
        scan_judge(scan, false, event);
        return;
    }
    const uint8_t *data = scan_read(scan, scan->at, VC_PREFIX_BYTES_MAX, &have);
    if (have > VC_PREFIX_BYTES_MAX) have = VC_PREFIX_BYTES_MAX;
    memcpy(scan->prefix, data, have);
    if (vc_record_correct(scan->prefix, have, scan_salt_at(scan, scan->at), scan->volume, scan->at,
                          record) &&
        record->size <= scan->length - scan->at)
        scan_judge(scan, true, event);
    else scan_judge_gap(scan, event);
}

void vc_scan_next(vc_scan *scan, vc_event *event) {
    *event = (vc_event){.start = scan->at, .end = scan->at};
    if (scan->at >= scan->length) return;
    if (scan->step) {
        bool has_memory = scan_pass_run(scan, event);
        event->end = scan->at;
        event->kind = has_memory ? VC_SCAN_RUN : VC_SCAN_NO_MEMORY;
        if (event->records || !has_memory) return;
        event->kind = VC_SCAN_END;
    }
    scan_look(scan, event);
    scan->at = event->kind == VC_SCAN_TORN ? scan->length : event->end;
}
