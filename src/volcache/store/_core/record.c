#include "record.h"

#include <string.h>

#include "crc32c.h"

/* The numbers behind the identity: field, offset and bytes, as in docs/FORMAT.md. */
#define EACH_NUMBER(DO)        \
    DO(key_length, 12, 2)      \
    DO(type_length, 14, 1)     \
    DO(encoding_length, 15, 1) \
    DO(length, 16, 4)          \
    DO(checksum, 20, 4)        \
    DO(flags, 24, 4)           \
    DO(unsynced, 28, 4)        \
    DO(offset, AT_OFFSET, 8)   \
    DO(stored_us, 40, 8)       \
    DO(expires_ms, 48, 8)      \
    DO(volume, 56, 2)          \
    DO(kind, 58, 1)            \
    DO(cache_length, 59, 1)
#define TAKE(field, at, bytes) \
    record->field = (__typeof__(record->field))record_get(data + (at), bytes);
#define WRITE(field, at, bytes) record_set(out + (at), bytes, record->field);

enum {
    AT_SALT = 4,
    AT_OFFSET = 32,
    CHECKSUM_BYTES = 4,
    /* Of longer parts before a value no bit is corrected: to try each would take too long. */
    CORRECTED_BYTES_MAX = 4096,
};

static const uint8_t MAGIC[4] = {'V', 'L', 'R', VC_VERSION};

static uint64_t record_get(const uint8_t *data, int bytes) {
    uint64_t number = 0;
    for (int i = 0; i < bytes; i++) number |= (uint64_t)data[i] << (8 * i);
    return number;
}

static void record_set(uint8_t *data, int bytes, uint64_t number) {
    for (int i = 0; i < bytes; i++) data[i] = (uint8_t)(number >> (8 * i));
}

/* Answers have the text fields as headers: a line end would begin another header. */
static bool has_control_byte(const uint8_t *text, uint32_t length) {
    for (uint32_t i = 0; i < length; i++)
        if (text[i] < 0x20 || text[i] == 0x7f) return true;
    return false;
}

static bool is_in_bounds(const vc_record *record) {
    return record->key_length && record->length <= (record->kind ? 0 : VC_VALUE_BYTES_MAX) &&
           record->kind <= 1 && record->stored_us < VC_TIME_END && record->expires_ms < VC_TIME_END;
}

void vc_record_identity(uint8_t out[VC_IDENTITY_BYTES], uint64_t salt) {
    memcpy(out, MAGIC, sizeof MAGIC);
    record_set(out + AT_SALT, 8, salt);
}

/* Take the numbers from the fixed part of a record. */
static void take_numbers(const uint8_t *data, vc_record *record) {
    EACH_NUMBER(TAKE)
    record->prefix = VC_OVERHEAD_BYTES + (uint32_t)vc_record_types(record) + record->key_length;
    record->size = (uint64_t)record->prefix + record->length;
}

uint32_t vc_record_prefix(const uint8_t *data, size_t length) {
    vc_record record;
    if (length < VC_FIXED_BYTES) return VC_FIXED_BYTES;
    take_numbers(data, &record);
    return record.prefix;
}

/* Decode a record whose numbers and texts may be out of their bounds. */
static vc_status decode(const uint8_t *data, size_t length, uint64_t salt, uint16_t volume,
                        uint64_t offset, vc_record *record) {
    if (length <= VC_OVERHEAD_BYTES || memcmp(data, MAGIC, sizeof MAGIC) ||
        record_get(data + AT_SALT, 8) != salt)
        return VC_DAMAGED;
    take_numbers(data, record);
    if (record->prefix > length) return VC_SHORT;
    uint32_t checked = record->prefix - CHECKSUM_BYTES;
    if (vc_crc32c(0, data, checked) != record_get(data + checked, CHECKSUM_BYTES))
        return VC_DAMAGED;
    record->type = data + VC_FIXED_BYTES;
    record->key = record->type + vc_record_types(record);
    bool is_there = record->offset == offset && record->volume == volume;
    return is_there && record->key_length ? VC_OK : VC_DAMAGED;
}

vc_status vc_record_decode(const uint8_t *data, size_t length, uint64_t salt, uint16_t volume,
                           uint64_t offset, vc_record *record) {
    vc_status status = decode(data, length, salt, volume, offset, record);
    if (status == VC_OK && (!is_in_bounds(record) ||
                            has_control_byte(record->type, (uint32_t)vc_record_types(record))))
        return VC_DAMAGED;
    return status;
}

static int different_bits(const uint8_t *data, const uint8_t *other, size_t length) {
    int count = 0;
    for (size_t i = 0; i < length; i++) count += __builtin_popcount(data[i] ^ other[i]);
    return count;
}

bool vc_record_correct(uint8_t *data, size_t length, uint64_t salt, uint16_t volume,
                       uint64_t offset, vc_record *record) {
    uint8_t identity[VC_IDENTITY_BYTES], place[8];
    if (length <= VC_OVERHEAD_BYTES) return false;
    if (decode(data, length, salt, volume, offset, record) == VC_OK) return true;
    vc_record_identity(identity, salt);
    record_set(place, 8, offset);
    if (different_bits(data, identity, sizeof identity) +
            different_bits(data + AT_OFFSET, place, sizeof place) >
        1)
        return false; /* Not a record of this place. */
    if (length > CORRECTED_BYTES_MAX) length = CORRECTED_BYTES_MAX;
    size_t prefix = vc_record_prefix(data, length);
    for (size_t bit = 0; bit < 8 * (prefix < length ? prefix : length); bit++) {
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (vc_record_decode(data, length, salt, volume, offset, record) == VC_OK) return true;
        data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    return false;
}

size_t vc_record_encode(uint8_t *out, uint64_t salt, const vc_record *record, const uint8_t *type,
                        const uint8_t *encoding, const uint8_t *cache, const uint8_t *key) {
    vc_record_identity(out, salt);
    EACH_NUMBER(WRITE)
    uint8_t *p = out + VC_FIXED_BYTES;
    if (record->type_length) memcpy(p, type, record->type_length);
    p += record->type_length;
    if (record->encoding_length) memcpy(p, encoding, record->encoding_length);
    p += record->encoding_length;
    if (record->cache_length) memcpy(p, cache, record->cache_length);
    p += record->cache_length;
    memcpy(p, key, record->key_length);
    p += record->key_length;
    record_set(p, CHECKSUM_BYTES, vc_crc32c(0, out, (size_t)(p - out)));
    return (size_t)(p - out) + CHECKSUM_BYTES;
}
