#include "record.h"

#include <string.h>

#include "crc32c.h"

/* The fields by their offset, as in docs/FORMAT.md. */
enum {
    AT_VERSION = 3,
    AT_SALT = 4,
    AT_KEY_LENGTH = 12,
    AT_TYPE_LENGTH = 14,
    AT_ENCODING_LENGTH = 15,
    AT_LENGTH = 16,
    AT_CHECKSUM = 20,
    AT_FLAGS = 24,
    AT_UNSYNCED = 28,
    AT_OFFSET = 32,
    AT_STORED = 40,
    AT_EXPIRES = 48,
    AT_VOLUME = 56,
    AT_KIND = 58,
    AT_CACHE_LENGTH = 59,
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

/* Take the lengths from the fixed part of a record. */
static void take_lengths(const uint8_t *data, vc_record *record) {
    record->key_length = (uint16_t)record_get(data + AT_KEY_LENGTH, 2);
    record->type_length = data[AT_TYPE_LENGTH];
    record->encoding_length = data[AT_ENCODING_LENGTH];
    record->cache_length = data[AT_CACHE_LENGTH];
    record->length = (uint32_t)record_get(data + AT_LENGTH, 4);
    record->prefix = VC_OVERHEAD_BYTES + (uint32_t)vc_record_types(record) + record->key_length;
    record->size = (uint64_t)record->prefix + record->length;
}

uint32_t vc_record_prefix(const uint8_t *data, size_t length) {
    vc_record record;
    if (length < VC_FIXED_BYTES) return VC_FIXED_BYTES;
    take_lengths(data, &record);
    return record.prefix;
}

/* Decode a record whose numbers and texts may be out of their bounds. */
static vc_status decode(const uint8_t *data, size_t length, uint64_t salt, uint16_t volume,
                        uint64_t offset, vc_record *record) {
    if (length <= VC_OVERHEAD_BYTES || memcmp(data, MAGIC, sizeof MAGIC) ||
        record_get(data + AT_SALT, 8) != salt)
        return VC_DAMAGED;
    take_lengths(data, record);
    if (record->prefix > length) return VC_SHORT;
    uint32_t checked = record->prefix - CHECKSUM_BYTES;
    if (vc_crc32c(0, data, checked) != record_get(data + checked, CHECKSUM_BYTES))
        return VC_DAMAGED;
    record->checksum = (uint32_t)record_get(data + AT_CHECKSUM, 4);
    record->flags = (uint32_t)record_get(data + AT_FLAGS, 4);
    record->unsynced = (uint32_t)record_get(data + AT_UNSYNCED, 4);
    record->offset = record_get(data + AT_OFFSET, 8);
    record->stored_us = record_get(data + AT_STORED, 8);
    record->expires_ms = record_get(data + AT_EXPIRES, 8);
    record->volume = (uint16_t)record_get(data + AT_VOLUME, 2);
    record->kind = data[AT_KIND];
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
    record_set(out + AT_KEY_LENGTH, 2, record->key_length);
    out[AT_TYPE_LENGTH] = record->type_length;
    out[AT_ENCODING_LENGTH] = record->encoding_length;
    record_set(out + AT_LENGTH, 4, record->length);
    record_set(out + AT_CHECKSUM, 4, record->checksum);
    record_set(out + AT_FLAGS, 4, record->flags);
    record_set(out + AT_UNSYNCED, 4, record->unsynced);
    record_set(out + AT_OFFSET, 8, record->offset);
    record_set(out + AT_STORED, 8, record->stored_us);
    record_set(out + AT_EXPIRES, 8, record->expires_ms);
    record_set(out + AT_VOLUME, 2, record->volume);
    out[AT_KIND] = record->kind;
    out[AT_CACHE_LENGTH] = record->cache_length;
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
