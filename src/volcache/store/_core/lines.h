/* The text of index files, as docs/FORMAT.md specifies it: write entries, read whole blocks. */
#ifndef VC_LINES_H
#define VC_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The longest entry of a key of this length: every byte as %XX, two numbers, newline. */
#define VC_LINE_BYTES_MAX(key_length) (3 * (size_t)(key_length) + 43)

typedef struct {
    uint64_t start;
    uint64_t salt;
} vc_segment;

static inline uint64_t vc_salt_at(const vc_segment *segments, size_t count, uint64_t offset) {
    while (count > 1 && segments[count - 1].start > offset) count--;
    return segments[count - 1].salt;
}

/* Write `key SP offset SP size NL`; returns its length. The characters are those that
 * index_format.encode_key leaves. */
size_t vc_line_encode(char *out, const uint8_t *key, size_t length, uint64_t offset, uint64_t size);

/* The longest checkpoint. */
enum { VC_CHECKPOINT_BYTES_MAX = 64 };
/* Of an entry, and of what a checkpoint says. */
#define VC_RECORD_BYTES_MAX (UINT64_C(1) << 31)
#define VC_VOLUME_BYTES_MAX (UINT64_C(1) << 40)
/* Write the checkpoint that ends a block of lines; returns its length. `checksum` is that of the
 * block before, and of this one afterwards; `end` is that of its last record. */
size_t vc_checkpoint_encode(char *out, const char *lines, size_t length, uint64_t end,
                            bool is_sealed, uint32_t *checksum);

/* The state of a reader of an index file, from one piece of it to the next. */
typedef struct {
    /* Set by the caller: */
    const vc_segment *segments; /* of the volume, in order; NULL: any are right */
    size_t segment_count;
    /* Results; all 0 at first, except volume_end = 64. They are those of whole blocks. */
    uint64_t file_end;    /* the valid part ends here */
    uint64_t volume_end;  /* the volume is indexed up to here */
    uint64_t entries;     /* decoded so far */
    uint64_t last_offset; /* of the last entry that is not a deletion */
    uint32_t checksum;    /* of the last valid checkpoint */
    bool has_checksum;
    bool is_sealed;
    bool is_damaged;  /* a block failed a check; nothing after it is read */
    bool is_of_clone; /* a block does not fit the segments; likewise */
    size_t named;     /* the first this many segments are named (if given) */
} vc_lines;

/* Takes an entry of a block that is checked; size 0: a deletion. Returns false to stop. */
typedef bool (*vc_lines_take)(void *context, const uint8_t *key, size_t length, uint64_t offset,
                              uint64_t size);

/* Read the whole blocks in a piece of an index file that begins where the last call ended.
 * Each block is checked completely before the first `take` of its entries. Returns how many
 * bytes were used; the rest comes again with the next piece. */
size_t vc_lines_read(vc_lines *lines, const uint8_t *data, size_t length, vc_lines_take take,
                     void *context);

#endif
