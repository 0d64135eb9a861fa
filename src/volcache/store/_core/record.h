/* Records as docs/FORMAT.md specifies them: encode, decode and check. Pure functions over
 * bytes. */
#ifndef VC_RECORD_H
#define VC_RECORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VC_VERSION = 2,
    VC_VOLUME_HEADER_BYTES = 64,
    VC_IDENTITY_BYTES = 12,
    VC_FIXED_BYTES = 60,
    VC_OVERHEAD_BYTES = 64, /* of a record without key and value */
    VC_TYPES_BYTES_MAX = 765,
    VC_KEY_BYTES_MAX = 65535,
    VC_VALUE_BYTES_MAX = 1 << 30,
    VC_PREFIX_BYTES_MAX = VC_OVERHEAD_BYTES + VC_TYPES_BYTES_MAX + VC_KEY_BYTES_MAX,
};

/* Times of records are below it, in microseconds or milliseconds. */
#define VC_TIME_END (UINT64_C(1) << 57)
/* The clock does not continue from such a time: what is stored then must be in bounds. */
#define VC_CLOCK_END (UINT64_C(1) << 56)

typedef enum {
    VC_OK = 0,
    VC_OTHER_KEY, /* an intact record of another key: a collision */
    VC_SHORT,     /* the record is longer than the bytes given; `size` says how long */
    VC_DAMAGED,   /* a check failed */
    VC_IO_ERROR,  /* the disk refused; errno says why */
    VC_NO_ROOM,   /* the record does not fit */
    VC_NO_MEMORY,
    VC_COLD,       /* not in memory, and the disk was not to be read */
    VC_SYNC_ERROR, /* the record was written, but the sync failed; errno says why */
    VC_DEFERRED,   /* something has to be done before; see `vc_core_put` */
    VC_GROUPED,    /* it is to be synced; see `vc_core_group_commit` */
    VC_PURGED,     /* it was stored before a purge of a prefix of its key */
    VC_OUTDATED,   /* purges were dropped since the lookup */
} vc_status;

typedef struct {
    uint64_t offset, stored_us, expires_ms;
    uint32_t length, checksum, flags;
    uint32_t unsynced; /* bytes before it that may not have been on the disk */
    uint16_t volume, key_length;
    uint8_t type_length, encoding_length, cache_length, kind;
    uint32_t prefix;     /* length of everything before the value */
    uint64_t size;       /* of the whole record */
    const uint8_t *type; /* in the bytes decoded: type, encoding, cache, key */
    const uint8_t *key;
} vc_record;

/* Bytes of content type, content encoding and cache directives. */
static inline int vc_record_types(const vc_record *record) {
    return record->type_length + record->encoding_length + record->cache_length;
}

/* Check everything before the value of a record, `length` bytes are at `data`: its checksum, its
 * place, the bounds of its numbers, and that its text fields have no control bytes.
 * Returns VC_OK, VC_SHORT (the prefix is longer than `length`) or VC_DAMAGED. */
vc_status vc_record_decode(const uint8_t *data, size_t length, uint64_t salt, uint16_t volume,
                           uint64_t offset, vc_record *record);

/* The first bytes of all records with a salt. */
void vc_record_identity(uint8_t out[VC_IDENTITY_BYTES], uint64_t salt);
/* The length of everything before the value, from the first bytes; not checked. */
uint32_t vc_record_prefix(const uint8_t *data, size_t length);

/* Decode the damaged part of a record before its value: a bit is wrong, which is corrected, or a
 * number or text is out of its bounds. A record without an entry in the index file has its key
 * only here: with the key, the damaged record still supersedes an older one. Returns false if
 * more than one bit is wrong, or if it is longer than 4,096 bytes. */
bool vc_record_correct(uint8_t *data, size_t length, uint64_t salt, uint16_t volume,
                       uint64_t offset, vc_record *record);

/* Write the part of a record before its value, whose fields are in `record` except `prefix`,
 * `size` and the two pointers; returns its length. `out` has room for it. */
size_t vc_record_encode(uint8_t *out, uint64_t salt, const vc_record *record, const uint8_t *type,
                        const uint8_t *encoding, const uint8_t *cache, const uint8_t *key);

#endif
