/* Reads any bytes as the records of a volume, as they are and with right checksums.
 *
 *     record_fuzz FILE...             read volumes
 *     record_fuzz -r SECONDS SEED     change valid volumes at random
 *
 * A file is a volume: salt and id are taken from its header, which is not checked. With
 * -DVC_FUZZER it is a target of libFuzzer. Any failed check aborts. */
#define _GNU_SOURCE
#include "core.h"
#include "crc32c.h"
#include "fuzz.h"
#include "scan.h"

#include <errno.h>
#include <inttypes.h>

enum {
    RECORDS_MAX = 64,
    AT_SALT = 4, /* of the header of a volume */
    AT_VOLUME = 28,
    AT_RECORD_SALT = 4, /* of a record */
    AT_KEY_LENGTH = 12,
    AT_TYPE_LENGTH = 14,
    AT_ENCODING_LENGTH = 15,
    AT_LENGTH = 16,
    AT_CHECKSUM = 20,
    AT_OFFSET = 32,
    AT_STORED = 40,
    AT_EXPIRES = 48,
    AT_RECORD_VOLUME = 56,
    AT_KIND = 58,
    AT_CACHE_LENGTH = 59,
};

/* A volume, and what becomes of the next read of it. */
typedef struct {
    const uint8_t *data;
    size_t length;
    size_t cut; /* a read ends after this many bytes */
    int error;
} disk;

static uint64_t volumes_read, decoded, replayed, scanned, read_ok, read_refused;

static uint64_t get(const uint8_t *data, int bytes) {
    uint64_t number = 0;
    for (int i = bytes; i-- > 0;) number = number << 8 | data[i];
    return number;
}

static void set(uint8_t *data, int bytes, uint64_t number) {
    for (int i = 0; i < bytes; i++, number >>= 8) data[i] = (uint8_t)number;
}

/* Bytes of content type, content encoding and cache directives. */
static size_t types_of(const uint8_t *record) {
    return (size_t)record[AT_TYPE_LENGTH] + record[AT_ENCODING_LENGTH] + record[AT_CACHE_LENGTH];
}

/* --- System calls -------------------------------------------------------------------- */

static ssize_t fake_pread(void *context, int fd, void *buffer, size_t length, off_t offset,
                          bool is_cached) {
    disk *from = context;
    (void)is_cached;
    CHECK(fd == 7 && offset >= 0);
    if (from->error) {
        errno = from->error;
        return -1;
    }
    size_t left = (uint64_t)offset < from->length ? from->length - (size_t)offset : 0;
    left = left < from->cut ? left : from->cut;
    length = length < left ? length : left;
    if (length) memcpy(buffer, from->data + offset, length);
    return (ssize_t)length;
}

/* --- One record ---------------------------------------------------------------------- */

/* What docs/FORMAT.md says of the record at `at`, without the code under test. */
typedef struct {
    bool has_prefix; /* all before the value is right */
    bool is_intact;  /* and the value */
    uint64_t prefix, size;
} verdict;

static bool is_text(const uint8_t *at, size_t length) {
    bool is_all = true;
    for (size_t i = 0; i < length; i++) is_all &= at[i] >= ' ' && at[i] != 127;
    return is_all;
}

static verdict judge(const uint8_t *at, size_t left, uint64_t salt, uint16_t volume,
                     uint64_t offset) {
    verdict found = {0};
    if (left <= VC_OVERHEAD_BYTES) return found;
    uint64_t key_length = get(at + AT_KEY_LENGTH, 2);
    found.prefix = VC_OVERHEAD_BYTES + key_length + types_of(at);
    found.size = found.prefix + get(at + AT_LENGTH, 4);
    uint64_t kind = at[AT_KIND], length = get(at + AT_LENGTH, 4);
    bool is_in_bounds = kind <= 1 && length <= (kind ? 0 : VC_VALUE_BYTES_MAX) &&
                        get(at + AT_STORED, 8) < VC_TIME_END &&
                        get(at + AT_EXPIRES, 8) < VC_TIME_END;
    found.has_prefix = is_in_bounds && !memcmp(at, "VLR\2", 4) &&
                       get(at + AT_RECORD_SALT, 8) == salt && found.prefix <= left && key_length &&
                       get(at + AT_OFFSET, 8) == offset &&
                       get(at + AT_RECORD_VOLUME, 2) == volume &&
                       get(at + found.prefix - 4, 4) == vc_crc32c(0, at, found.prefix - 4) &&
                       is_text(at + VC_FIXED_BYTES, types_of(at));
    found.is_intact = found.has_prefix && found.size <= left &&
                      get(at + AT_CHECKSUM, 4) ==
                          vc_crc32c(0, at + found.prefix, found.size - found.prefix);
    return found;
}

static void check_encoding(const uint8_t *at, uint64_t salt, const vc_record *record) {
    uint8_t *again = allocated(record->prefix);
    const uint8_t *encoding = record->type + record->type_length;
    CHECK(vc_record_encode(again, salt, record, record->type, encoding,
                           encoding + record->encoding_length, record->key) == record->prefix);
    CHECK(!memcmp(again, at, record->prefix));
    free(again);
}

/* Decode `left` bytes, which end where their memory ends. */
static void check_decode(const uint8_t *at, size_t left, uint64_t salt, uint16_t volume,
                         uint64_t offset) {
    vc_record record;
    vc_status status = vc_record_decode(at, left, salt, volume, offset, &record);
    verdict right = judge(at, left, salt, volume, offset);
    decoded += status == VC_OK;
    CHECK(status == VC_OK || status == VC_SHORT || status == VC_DAMAGED);
    CHECK((status == VC_OK) == right.has_prefix);
    if (status == VC_SHORT)
        CHECK(record.prefix > left && record.prefix == right.prefix &&
              record.prefix <= VC_PREFIX_BYTES_MAX && record.size == right.size);
    if (status != VC_OK) return;
    CHECK(record.prefix == right.prefix && record.size == right.size);
    CHECK(record.size == record.prefix + (uint64_t)record.length);
    CHECK(record.offset == offset && record.volume == volume && record.key_length);
    CHECK(record.type == at + VC_FIXED_BYTES);
    CHECK(record.key == record.type + types_of(at));
    CHECK(record.key + record.key_length + 4 == at + record.prefix);
    check_encoding(at, salt, &record);
}

static void check_pieces(const uint8_t *at, size_t left, uint64_t salt, uint16_t volume,
                         uint64_t offset, uint64_t *state) {
    for (int i = 0; i < 4; i++) {
        size_t length = i ? next_random(state) % (left + 1) : left;
        if (i == 2) /* about a header, or a bit less */
            length = length < 60 + length % 20 ? length : 60 + length % 20;
        uint8_t *copy = copied(at, length);
        check_decode(copy, length, salt, volume, offset);
        free(copy);
    }
}

/* --- Reading ------------------------------------------------------------------------- */

typedef struct {
    vc_core *core;
    disk *from;
    uint64_t salt, offset;
    uint16_t volume;
    const uint8_t *key;
    size_t key_length;
    verdict right;
} wanted;

static void check_value(const wanted *w, const vc_record *record, const uint8_t *value,
                        size_t got) {
    const uint8_t *at = w->from->data + w->offset;
    CHECK(w->right.is_intact && !at[AT_KIND]);
    CHECK(record->size == w->right.size && record->size <= got);
    CHECK(record->key_length == w->key_length && !memcmp(record->key, w->key, w->key_length));
    CHECK(!memcmp(record->type, at + VC_FIXED_BYTES, types_of(at)));
    CHECK(!memcmp(value, at + record->prefix, record->length));
}

/* Read with buffers of exactly the length that is allowed, some values apart. */
static vc_status read_once(const wanted *w, const vc_lookup *at, uint64_t *state) {
    const uint8_t *start = w->from->data + w->offset;
    size_t available = w->from->length - w->offset;
    available = available < w->from->cut ? available : w->from->cut;
    vc_lookup part = *at;
    if (next_random(state) % 2) part.size = VC_HEAD_BYTES_MAX(w->key_length);
    if (part.size > at->size) part.size = at->size;
    uint8_t *head = allocated(part.size), *value = NULL;
    vc_record record = {0};
    vc_status status = vc_core_read(w->core, w->key, w->key_length, &part, false, head, &record);
    size_t got = part.size < available ? part.size : available;
    if (status == VC_SHORT && record.key && record.length <= 1 << 20) {
        CHECK(w->right.has_prefix && got < record.size && !start[AT_KIND]);
        value = allocated(record.length);
        got = record.prefix + (record.length < w->from->cut ? record.length : w->from->cut);
        if (got > w->from->length - w->offset) got = w->from->length - w->offset;
        status = vc_core_read_value(w->core, at, &record, value);
    }
    if (status == VC_OK) check_value(w, &record, value ? value : head + record.prefix, got);
    CHECK((status == VC_IO_ERROR) == (w->from->error != 0));
    if (w->right.is_intact && !start[AT_KIND] && !w->from->error && got >= w->right.size) {
        bool is_key = get(start + AT_KEY_LENGTH, 2) == w->key_length &&
                      !memcmp(start + VC_FIXED_BYTES + types_of(start), w->key, w->key_length);
        CHECK(status == (is_key ? VC_OK : VC_OTHER_KEY));
    }
    free(head);
    free(value);
    return status;
}

/* Read the record at an offset, whatever it is, by its key and by another one. */
static void check_read(vc_core *core, disk *from, uint64_t salt, uint16_t volume, uint64_t offset,
                       uint64_t *state) {
    static const uint8_t other[VC_KEY_BYTES_MAX] = "other";
    const uint8_t *at = from->data + offset;
    wanted w = {.core = core, .from = from, .salt = salt, .offset = offset, .volume = volume};
    w.right = judge(at, from->length - offset, salt, volume, offset);
    for (int i = 0; i < 6; i++) {
        w.key = other;
        w.key_length = 1 + next_random(state) % (i % 2 ? 8 : VC_KEY_BYTES_MAX - 1);
        if (w.right.has_prefix && i < 4) {
            w.key = at + VC_FIXED_BYTES + types_of(at);
            w.key_length = get(at + AT_KEY_LENGTH, 2);
        }
        uint64_t size = w.right.size ? w.right.size : 100;
        size = size < 1 << 20 ? size : 1 << 20;
        size += i % 3 ? 0 : next_random(state) % (size / 8 + 1);
        size = i == 5 ? 1 + next_random(state) % size : size;
        from->cut = i == 1 || i == 2 ? next_random(state) % (size + 2) : SIZE_MAX;
        from->error = next_random(state) % 8 ? 0 : EIO;
        vc_lookup lookup = {
            .offset = offset,
            .salt = salt,
            .size = size,
            .fd = 7,
            .volume = volume,
        };
        vc_status status = read_once(&w, &lookup, state);
        read_ok += status == VC_OK;
        read_refused += status != VC_OK;
    }
    from->cut = SIZE_MAX;
    from->error = 0;
}

/* --- A volume ------------------------------------------------------------------------ */

/* Begin a scan as a start does, with reads of any length. */
static vc_scan *new_scan(disk *from, vc_calls *calls, const vc_segment *whole, uint16_t volume,
                         uint64_t offset, uint64_t *state) {
    static vc_scan scan;
    size_t cut = next_random(state) % 2 ? 1 + next_random(state) % 300 : SIZE_MAX;
    *from = (disk){.data = from->data, .length = from->length, .cut = cut};
    *calls = (vc_calls){.pread = fake_pread, .context = from};
    uint64_t start = next_random(state) % 2 ? 0 : offset;
    scan = (vc_scan){
        .ahead = vc_read_ahead_new(calls, 7, start, from->length, VC_READ_AHEAD_PIECE_BYTES),
        .segments = whole,
        .segment_count = 1,
        .volume = volume,
        .at = offset,
        .length = from->length,
        .window = UINT64_MAX,
        .has_values = true,
    };
    CHECK(scan.ahead);
    return &scan;
}

/* What is found follows without a break, and an intact record is one. */
static void check_events(const uint8_t *data, size_t length, uint64_t salt, uint16_t volume,
                         uint64_t offset, uint64_t *state) {
    disk from = {.data = data, .length = length};
    vc_calls calls;
    vc_segment whole = {0, salt};
    vc_event event;
    vc_scan *scan = new_scan(&from, &calls, &whole, volume, offset, state);
    if (next_random(state) % 2) scan->step = 1 + next_random(state) % length;
    if (next_random(state) % 2) scan->window = next_random(state) % length;
    scan->has_lost = next_random(state) % 2;
    scan->has_values = next_random(state) % 4;
    bool is_over = false;
    while (vc_scan_next(scan, &event), event.kind != VC_SCAN_END) {
        CHECK(!is_over && event.start == offset && scan->at > offset && scan->at <= length);
        CHECK(event.kind != VC_SCAN_NO_MEMORY && event.kind != VC_SCAN_UNREADABLE);
        verdict right = judge(data + offset, length - offset, salt, volume, offset);
        if (event.kind == VC_SCAN_RUN || event.kind == VC_SCAN_RECORD)
            CHECK(right.is_intact || !scan->has_values);
        if (event.kind == VC_SCAN_RECORD || event.kind == VC_SCAN_DAMAGED)
            CHECK(event.record.key_length && event.end == offset + event.record.size);
        is_over = event.kind == VC_SCAN_TORN;
        offset = scan->at;
        scanned++;
    }
    vc_read_ahead_free(scan->ahead);
}

/* Replay the records that follow each other; returns where they end. */
static uint64_t check_replay(vc_core *core, uint32_t slot, const uint8_t *data, size_t length,
                             uint64_t salt, uint16_t volume, uint64_t offset, uint64_t limit,
                             uint64_t *state) {
    vc_writer writer = {0}, expected = {0};
    vc_event run;
    disk from = {.data = data, .length = length};
    vc_calls calls;
    vc_segment whole = {0, salt};
    vc_scan *scan = new_scan(&from, &calls, &whole, volume, offset, state);
    scan->core = core;
    scan->slot = slot;
    scan->writer = &writer;
    scan->step = limit - offset;
    vc_scan_next(scan, &run);
    if (run.kind != VC_SCAN_RUN) run = (vc_event){.end = offset};
    vc_read_ahead_free(scan->ahead);
    uint64_t end = offset, records = 0, latest = 0;
    while (end < limit) {
        const uint8_t *at = data + end;
        verdict right = judge(at, length - end, salt, volume, end);
        if (!right.is_intact || at[AT_KIND] > 1) break;
        bool is_value = !at[AT_KIND];
        size_t key_length = get(at + AT_KEY_LENGTH, 2);
        CHECK(vc_writer_add_entry(&expected, at + right.prefix - 4 - key_length, key_length,
                                  is_value ? end : 0, is_value ? right.size : 0));
        uint64_t stored_us = get(at + AT_STORED, 8);
        if (stored_us > latest && stored_us < VC_CLOCK_END) latest = stored_us;
        end += right.size;
        records++;
    }
    CHECK(run.end == end && run.end <= length && run.records == records);
    CHECK(run.latest_us == latest);
    CHECK(writer.pending == records && writer.lines_used == expected.lines_used);
    CHECK(!records || !memcmp(writer.lines, expected.lines, expected.lines_used));
    replayed += records;
    vc_writer_free(&writer);
    vc_writer_free(&expected);
    return run.end;
}

/* The last record of each key has its position; a deletion has none. */
static void check_positions(vc_core *core, const uint8_t *data, uint64_t end) {
    uint64_t starts[RECORDS_MAX];
    int count = 0;
    for (uint64_t at = VC_VOLUME_HEADER_BYTES; at < end && count < RECORDS_MAX; count++) {
        starts[count] = at;
        at += VC_OVERHEAD_BYTES + get(data + at + AT_KEY_LENGTH, 2) + types_of(data + at) +
              get(data + at + AT_LENGTH, 4);
        if (at < end && count == RECORDS_MAX - 1)
            return; /* too many: a later one may be of the same key */
    }
    for (int i = 0; i < count; i++) {
        const uint8_t *one = data + starts[i];
        const uint8_t *key = one + VC_FIXED_BYTES + types_of(one);
        size_t length = get(one + AT_KEY_LENGTH, 2);
        uint64_t last = 0;
        bool is_deleted = false;
        for (int j = i; j < count; j++) {
            const uint8_t *two = data + starts[j];
            if (get(two + AT_KEY_LENGTH, 2) == length &&
                !memcmp(two + VC_FIXED_BYTES + types_of(two), key, length)) {
                last = starts[j];
                is_deleted = two[AT_KIND];
            }
        }
        vc_entry found;
        uint64_t seq;
        bool is_found = vc_core_find(core, vc_core_fingerprint(core, key, length), &found, &seq);
        CHECK(is_found && found.offset == last && found.is_tombstone == is_deleted);
    }
}

/* Lookup and read find what was replayed. */
static void check_lookup(vc_core *core, disk *from, uint64_t salt, uint16_t volume, uint64_t offset,
                         uint64_t *state) {
    const uint8_t *at = from->data + offset;
    wanted w = {.core = core, .from = from, .salt = salt, .offset = offset, .volume = volume};
    w.right = judge(at, from->length - offset, salt, volume, offset);
    if (!w.right.is_intact || at[AT_KIND]) return;
    w.key = at + VC_FIXED_BYTES + types_of(at);
    w.key_length = get(at + AT_KEY_LENGTH, 2);
    vc_lookup lookup;
    if (!vc_core_lookup(core, w.key, w.key_length, UINT64_MAX, &lookup)) return;
    CHECK(lookup.salt == salt && lookup.fd == 7 && lookup.volume == volume);
    if (lookup.offset == offset) {
        CHECK(lookup.size >= w.right.size);
        CHECK(lookup.size - w.right.size <= w.right.size / 8);
        vc_status status = read_once(&w, &lookup, state);
        CHECK(status == VC_OK || status == VC_SHORT);
    }
    vc_core_end_read(core);
}

static void check_volume(const uint8_t *data, size_t length, uint64_t *state) {
    static const uint8_t hash_key[16] = "fuzz";
    if (length < VC_VOLUME_HEADER_BYTES) return;
    volumes_read++;
    uint64_t salt = get(data + AT_SALT, 8);
    uint16_t volume = (uint16_t)get(data + AT_VOLUME, 2);
    static disk from;
    static vc_core *core; /* the same for all: to make one takes longer than a volume */
    vc_calls calls = {.pread = fake_pread, .context = &from};
    core = core ? core : vc_core_new(&calls, hash_key, 1 << 24, 64, 0);
    CHECK(core);
    from = (disk){.data = data, .length = length, .cut = SIZE_MAX};
    uint32_t slot = vc_core_add_volume(core, volumes_read);
    CHECK(slot != VC_NO_SLOT);
    vc_segment whole = {0, salt};
    CHECK(vc_core_bind(core, slot, 7, volume, &whole, 1));
    uint64_t at = VC_VOLUME_HEADER_BYTES;
    uint64_t end = check_replay(core, slot, data, length, salt, volume, at, length, state);
    check_positions(core, data, end);
    check_events(data, length, salt, volume, at, state);
    for (int left = RECORDS_MAX; left && at < length; left--) {
        check_pieces(data + at, length - at, salt, volume, at, state);
        check_read(core, &from, salt, volume, at, state);
        check_lookup(core, &from, salt, volume, at, state);
        verdict right = judge(data + at, length - at, salt, volume, at);
        if (next_random(state) % 4 == 0)
            check_replay(core, slot, data, length, salt, volume, at,
                         at + next_random(state) % (length - at + 9), state);
        if (!right.has_prefix || right.size > length - at) break;
        at += right.size;
    }
    vc_core_reclaim(core, slot);
}

/* Make records of the bytes from the header on, as far as they go. */
static void fix_records(uint8_t *data, size_t length, uint64_t *state) {
    if (length < VC_VOLUME_HEADER_BYTES) return;
    uint64_t salt = get(data + AT_SALT, 8), volume = get(data + AT_VOLUME, 2);
    size_t at = VC_VOLUME_HEADER_BYTES;
    while (length - at > VC_OVERHEAD_BYTES) {
        uint8_t *one = data + at;
        size_t left = length - at;
        memcpy(one, "VLR\2", 4);
        set(one + AT_RECORD_SALT, 8, salt);
        set(one + AT_OFFSET, 8, at);
        set(one + AT_RECORD_VOLUME, 2, volume);
        if (next_random(state) % 4) {
            one[AT_KIND] &= 1;
            one[AT_CACHE_LENGTH] = 0;
        }
        size_t prefix = VC_OVERHEAD_BYTES + get(one + AT_KEY_LENGTH, 2) + types_of(one);
        if (prefix > left) {
            one[AT_TYPE_LENGTH] = one[AT_ENCODING_LENGTH] = one[AT_CACHE_LENGTH] = 0;
            set(one + AT_KEY_LENGTH, 2,
                1 + get(one + AT_KEY_LENGTH, 2) % (left - VC_OVERHEAD_BYTES));
            prefix = VC_OVERHEAD_BYTES + get(one + AT_KEY_LENGTH, 2);
        }
        bool may_have_controls = next_random(state) % 16 == 0;
        for (size_t i = 0; i < types_of(one) && !may_have_controls; i++)
            if (!is_text(one + VC_FIXED_BYTES + i, 1)) one[VC_FIXED_BYTES + i] = 'x';
        size_t value = get(one + AT_LENGTH, 4);
        if (value > left - prefix && next_random(state) % 8) {
            value %= left - prefix + 1;
            set(one + AT_LENGTH, 4, value);
        }
        bool is_whole = value <= left - prefix;
        /* Some are copies of records from elsewhere. */
        uint64_t other = next_random(state) % 100;
        if (other < 3) {
            static const int places[] = {AT_OFFSET, AT_RECORD_VOLUME, AT_RECORD_SALT};
            one[places[other]] ^= 1;
            is_whole = false;
        }
        if (value <= left - prefix) set(one + AT_CHECKSUM, 4, vc_crc32c(0, one + prefix, value));
        set(one + prefix - 4, 4, vc_crc32c(0, one, prefix - 4));
        if (!is_whole) return;
        at += prefix + value;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    uint64_t state = vc_crc32c(0, data, length);
    uint8_t *copy = copied(data, length);
    check_volume(copy, length, &state);
    fix_records(copy, length, &state);
    check_volume(copy, length, &state);
    free(copy);
    return 0;
}

#ifndef VC_FUZZER
#define BYTES_MAX 200000

typedef struct {
    uint8_t data[BYTES_MAX];
    size_t length;
} sample;

/* Append a valid record with random fields. */
static void add_record(sample *file, uint64_t *state) {
    static uint8_t bytes[VC_KEY_BYTES_MAX + 1024];
    uint64_t dice = next_random(state);
    for (size_t i = 0; i < 64; i++) bytes[i] = (uint8_t)(dice >> i % 57);
    vc_record record = {
        .offset = file->length,
        .stored_us = next_random(state) >> (dice % 9 ? 7 : 6),
        .expires_ms = next_random(state) >> (dice % 7 ? 7 : 6),
        .flags = (uint32_t)dice,
        .unsynced = (uint32_t)(dice >> 9),
        .volume = (uint16_t)get(file->data + AT_VOLUME, 2),
        .key_length = (uint16_t)(dice % 100 ? 1 + dice % 20 : 1 + dice % VC_KEY_BYTES_MAX),
        .kind = dice >> 20 & 7 ? 0 : 1,
        .type_length = (uint8_t)(dice >> 23 & 1 ? dice >> 24 : 0),
        .encoding_length = (uint8_t)(dice >> 32 & 1 ? dice >> 33 : 0),
        .cache_length = (uint8_t)(dice >> 41 & 3 ? 0 : dice >> 43),
    };
    record.length = (uint32_t)(record.kind ? 0 : (dice >> 40) % (dice >> 60 ? 300 : 30000));
    size_t types = (size_t)vc_record_types(&record);
    if (file->length + VC_OVERHEAD_BYTES + types + record.key_length + record.length > BYTES_MAX)
        return;
    bytes[0] = (uint8_t)(dice % 3); /* the key begins with it: some are equal */
    memset(bytes + 1, 'k', 7);
    memset(bytes + 70, dice >> 58 ? 'x' : '\n', 1000);
    record.checksum = vc_crc32c(0, bytes + 8, record.length);
    file->length += vc_record_encode(file->data + file->length, get(file->data + AT_SALT, 8),
                                     &record, bytes + 70, bytes + 400, bytes + 700, bytes);
    memcpy(file->data + file->length, bytes + 8, record.length);
    file->length += record.length;
}

static void damage(sample *file, uint64_t *state) {
    uint64_t dice = next_random(state);
    size_t at = (dice >> 8) % file->length, length = (dice >> 40) % 40;
    switch (dice % 6) {
    case 0: file->data[at] ^= (uint8_t)(1 << (dice >> 60) % 8); break;
    case 1: file->length = at + 1; break;
    case 2: /* other lengths in the first record */
        at = VC_VOLUME_HEADER_BYTES + AT_KEY_LENGTH + dice % 8;
        if (at < file->length) file->data[at] = (uint8_t)(dice >> 50);
        break;
    case 3: /* bytes are missing */
        length = length < file->length - at ? length : file->length - at;
        memmove(file->data + at, file->data + at + length, file->length - at - length);
        file->length -= length;
        break;
    case 4:
        for (size_t i = at; i < file->length && i < at + length; i++)
            file->data[i] = (uint8_t)next_random(state);
        break;
    default:
        if (at + length < file->length) memset(file->data + at, dice >> 63 ? 255 : 0, length);
    }
    file->length = file->length ? file->length : 1;
}

static void run_random(double seconds, uint64_t seed) {
    static sample file;
    uint64_t runs = 0, state = seed;
    for (time_t start = time(NULL); difftime(time(NULL), start) < seconds; runs++) {
        for (size_t i = 0; i < VC_VOLUME_HEADER_BYTES; i++)
            file.data[i] = (uint8_t)next_random(&state);
        file.length = VC_VOLUME_HEADER_BYTES;
        for (uint64_t left = 1 + next_random(&state) % 8; left; left--) add_record(&file, &state);
        for (uint64_t left = next_random(&state) % 5; left; left--) damage(&file, &state);
        LLVMFuzzerTestOneInput(file.data, file.length);
    }
    printf("%" PRIu64 " runs, %" PRIu64 " volumes, %" PRIu64 " headers decoded, %" PRIu64
           " records replayed, %" PRIu64 " scanned, %" PRIu64 " read, %" PRIu64 " refused\n",
           runs, volumes_read, decoded, replayed, scanned, read_ok, read_refused);
}
#endif
