/* Its twin is tests/support/index_files.py: for any bytes
 * both end the valid part at the same block, and find the same entries. */
#include "lines.h"

#include "crc32c.h"
#include "siphash.h"

#include <string.h>

enum {
    VOLUME_HEADER_BYTES = 64,
    KEY_BYTES_MAX = 65535,
    OFFSET_DIGITS = 13,
    SIZE_DIGITS = 10,
    CHECKSUM_DIGITS = 8,
    SALT_DIGITS = 16,
    KEPT = 512, /* entries of a block; the writer writes no more in one */
};

typedef struct {
    const uint8_t *key; /* as it is written */
    size_t length;
    uint64_t offset;
    uint64_t size;
} entry_line;

typedef struct {
    entry_line kept[KEPT];      /* the first entries of a block: they are parsed once */
    uint8_t key[KEY_BYTES_MAX]; /* a decoded key */
} workspace;

/* What a whole block says, and whether it may count. */
typedef struct {
    const uint8_t *digits; /* of the checksum, which covers all before */
    const uint8_t *end;
    const uint8_t *rest; /* the entries after the kept ones begin here */
    bool is_malformed;   /* a line is not an entry */
    bool is_foreign;     /* it names a segment that is not the next one */
    uint64_t entries;
    uint64_t furthest; /* the last end of a record */
    vc_lines after;    /* the state of the reader behind the block, if that counts */
    workspace *space;
} whole_block;

/* --- Writing -------------------------------------------------------------------------- */

static size_t write_number(char *out, uint64_t number) {
    char digits[20];
    size_t count = 0;
    do digits[count++] = (char)('0' + number % 10);
    while (number /= 10);
    for (size_t i = 0; i < count; i++) out[i] = digits[count - 1 - i];
    return count;
}

/* Whether 8 bytes of a key are written as they are. Each term has the high bit of a byte set
 * if that byte is to be encoded; a borrow or carry can only set more bits. */
static bool are_plain(const uint8_t *key) {
    const uint64_t ones = UINT64_C(0x0101010101010101), highs = ones << 7;
    uint64_t bytes, percent, hash;
    memcpy(&bytes, key, sizeof bytes);
    percent = bytes ^ (ones * '%');
    hash = bytes ^ (ones * '#');
    return (((bytes - ones * 0x21) | (bytes + ones) | bytes | (percent - ones) | (hash - ones)) &
            highs) == 0;
}

size_t vc_line_encode(char *out, const uint8_t *key, size_t length, uint64_t offset,
                      uint64_t size) {
    static const char hex[] = "0123456789ABCDEF";
    char *at = out;
    size_t i = 0;
    for (; i + 8 <= length && are_plain(key + i); i += 8) {
        memcpy(at, key + i, 8);
        at += 8;
    }
    for (; i < length; i++) {
        uint8_t byte = key[i];
        if (byte > ' ' && byte < 127 && byte != '%' && byte != '#') {
            *at++ = (char)byte;
        } else {
            *at++ = '%';
            *at++ = hex[byte >> 4];
            *at++ = hex[byte & 15];
        }
    }
    *at++ = ' ';
    at += write_number(at, offset);
    *at++ = ' ';
    at += write_number(at, size);
    *at++ = '\n';
    return (size_t)(at - out);
}

/* The digits of a checksum, and the newline after them. */
static char *write_checksum(char *out, uint32_t checksum) {
    for (int shift = 28; shift >= 0; shift -= 4)
        *out++ = "0123456789abcdef"[checksum >> shift & 15];
    *out++ = '\n';
    return out;
}

/* The checksum of a block goes on where that of the last one ends: behind its newline. */
static uint32_t checksum_behind(uint32_t checksum) {
    char text[CHECKSUM_DIGITS + 1];
    write_checksum(text, checksum);
    return vc_crc32c(checksum, text, sizeof text);
}

size_t vc_checkpoint_encode(char *out, const char *lines, size_t length, uint64_t end,
                            bool is_sealed, uint32_t *checksum) {
    char *at = stpcpy(out, "# checkpoint ");
    at += write_number(at, end);
    at = stpcpy(at, is_sealed ? " sealed " : " open ");
    uint32_t crc = vc_crc32c(checksum_behind(*checksum), lines, length);
    *checksum = vc_crc32c(crc, out, (size_t)(at - out));
    return (size_t)(write_checksum(at, *checksum) - out);
}

/* --- The parts of a line -------------------------------------------------------------- */

/* Each of these three reads at *at, moves it on, and returns whether that was there. */
static bool read_text(const uint8_t **at, const uint8_t *end, const char *text) {
    size_t length = strlen(text);
    if ((size_t)(end - *at) < length || memcmp(*at, text, length) != 0) return false;
    *at += length;
    return true;
}

static bool read_offset(const uint8_t **at, const uint8_t *end, uint64_t *offset) {
    const uint8_t *start = *at;
    *offset = 0;
    for (; *at < end && **at >= '0' && **at <= '9' && *at - start < OFFSET_DIGITS; ++*at)
        *offset = *offset * 10 + (uint64_t)(**at - '0');
    return *at > start;
}

static inline int hex_value(uint8_t digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    digit |= 32;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

static bool read_hex(const uint8_t **at, const uint8_t *end, int digits, uint64_t *number) {
    *number = 0;
    for (; digits > 0 && *at < end; digits--, ++*at) {
        if (hex_value(**at) < 0 || (**at >= 'A' && **at <= 'F')) return false;
        *number = *number << 4 | (uint64_t)hex_value(**at);
    }
    return digits == 0;
}

/* Read the digits at the end of 8 bytes; returns how many there are. A loop over them would
 * end after a number of steps that the processor cannot predict. */
static inline unsigned read_digits(const uint8_t *at, uint64_t *number) {
    uint64_t word = vc_load_8(at) ^
                    0x3030303030303030; /* a digit is its value now; the last one is on top */
    uint64_t others = ((word & 0x7f7f7f7f7f7f7f7f) + 0x7676767676767676) | word;
    others &= 0x8080808080808080; /* the top bit of each byte above 9 */
    unsigned count = others ? (unsigned)__builtin_clzll(others) / 8 : 8;
    if (count == 0) return 0;
    word = word >> (64 - 8 * count) << (64 - 8 * count);
    word = (word * 10 + (word >> 8)) & 0x00ff00ff00ff00ff;
    word = (word * 100 + (word >> 16)) & 0x0000ffff0000ffff;
    *number = (word * 10000 + (word >> 32)) & 0xffffffff;
    return count;
}

/* Read a space and a number that end at *end, and move it before them. */
static inline bool read_back(const uint8_t *line, const uint8_t **end, int digits,
                             uint64_t *number) {
    const uint8_t *at = *end;
    uint64_t sum = 0, factor = 1, part;
    unsigned count = 8;
    for (; count == 8 && at - line >= 8; at -= count, factor *= 100000000) {
        count = read_digits(at - 8, &part);
        sum += count ? factor * part : 0;
    }
    if (count == 8)
        for (; at > line && at[-1] >= '0' && at[-1] <= '9'; at--, factor *= 10)
            sum += factor * (uint64_t)(at[-1] - '0');
    if (at == *end || *end - at > digits || at == line || at[-1] != ' ') return false;
    *number = sum;
    *end = at - 1;
    return true;
}

/* Read an entry; the key may contain spaces, which the caller checks. */
static inline bool lines_read_entry(const uint8_t *line, const uint8_t *end, entry_line *entry) {
    if (!read_back(line, &end, SIZE_DIGITS, &entry->size) ||
        !read_back(line, &end, OFFSET_DIGITS, &entry->offset))
        return false;
    entry->key = line;
    entry->length = (size_t)(end - line);
    return entry->length > 0;
}

/* Decode a key; returns its length, or more than KEY_BYTES_MAX if it is longer. A % without
 * two hexadecimal digits stays, as in urllib. */
static size_t decode_key(uint8_t out[KEY_BYTES_MAX], const uint8_t *text, size_t length) {
    const uint8_t *end = text + length;
    size_t count = 0;
    while (text < end) {
        const uint8_t *percent = memchr(text, '%', (size_t)(end - text));
        size_t plain = (size_t)((percent ? percent : end) - text);
        if (plain > KEY_BYTES_MAX - count) return KEY_BYTES_MAX + 1;
        memcpy(out + count, text, plain);
        count += plain;
        /* One is often followed by the next: a letter outside ASCII has several bytes. */
        for (text += plain; text < end && *text == '%'; text++) {
            int high = end - text > 2 ? hex_value(text[1]) : -1;
            int low = end - text > 2 ? hex_value(text[2]) : -1;
            bool is_encoded = high >= 0 && low >= 0;
            if (count == KEY_BYTES_MAX) return KEY_BYTES_MAX + 1;
            out[count++] = is_encoded ? (uint8_t)(high << 4 | low) : '%';
            text += is_encoded ? 2 : 0;
        }
    }
    return count;
}

/* --- Blocks --------------------------------------------------------------------------- */

static bool read_checkpoint(const uint8_t *at, const uint8_t *end, whole_block *block) {
    vc_lines *after = &block->after;
    uint64_t checksum;
    if (!read_text(&at, end, "# checkpoint ") || !read_offset(&at, end, &after->volume_end))
        return false;
    after->is_sealed = read_text(&at, end, " sealed ");
    if (!after->is_sealed && !read_text(&at, end, " open ")) return false;
    block->digits = at;
    if (!read_hex(&at, end, CHECKSUM_DIGITS, &checksum) || at != end) return false;
    after->checksum = (uint32_t)checksum;
    block->end = end + 1;
    return true;
}

/* Segments are named in their order, each once. Other comments say nothing. */
static void check_comment(const uint8_t *at, const uint8_t *end, whole_block *block) {
    vc_lines *after = &block->after;
    vc_segment found;
    if (!read_text(&at, end, "# from ") || !read_offset(&at, end, &found.start) ||
        !read_text(&at, end, " salt ") || !read_hex(&at, end, SALT_DIGITS, &found.salt) ||
        at != end || !after->segments)
        return;
    if (after->named < after->segment_count && after->segments[after->named].start == found.start &&
        after->segments[after->named].salt == found.salt)
        after->named++;
    else block->is_foreign = true;
}

static inline void check_entry(const uint8_t *line, const uint8_t *end, whole_block *block) {
    entry_line entry;
    if (!lines_read_entry(line, end, &entry) || memchr(entry.key, ' ', entry.length) ||
        (entry.length > KEY_BYTES_MAX &&
         decode_key(block->space->key, entry.key, entry.length) > KEY_BYTES_MAX) ||
        entry.size > VC_RECORD_BYTES_MAX || (entry.size && entry.offset < VOLUME_HEADER_BYTES)) {
        block->is_malformed = true;
        return;
    }
    if (block->entries < KEPT) {
        block->space->kept[block->entries] = entry;
        block->rest = end + 1;
    }
    block->entries++;
    if (!entry.size) return;
    block->after.last_offset = entry.offset;
    if (block->furthest < entry.offset + entry.size) block->furthest = entry.offset + entry.size;
}

/* Read the lines of a block; returns whether its checkpoint is there. A line without one is
 * torn or comes again: nothing is said about it. */
static bool find_block(const vc_lines *lines, const uint8_t *at, const uint8_t *end,
                       whole_block *block) {
    *block = (whole_block){.after = *lines, .space = block->space};
    while (at < end) {
        const uint8_t *newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) return false;
        if (*at != '#') check_entry(at, newline, block);
        else if (read_checkpoint(at, newline, block)) return true;
        else check_comment(at, newline, block);
        at = newline + 1;
    }
    return false;
}

static bool is_intact(const vc_lines *lines, const uint8_t *start, const whole_block *block) {
    size_t covered = (size_t)(block->digits - start);
    uint32_t before = lines->has_checksum ? checksum_behind(lines->checksum) : 0;
    uint32_t crc = vc_crc32c(before, start, covered);
    /* The first checkpoint may be lower than what `volume_end` is before it. */
    uint64_t volume_end = block->after.volume_end;
    return crc == block->after.checksum && !block->is_malformed &&
           (volume_end >= lines->volume_end || !lines->has_checksum) &&
           block->furthest <= volume_end && volume_end <= VC_VOLUME_BYTES_MAX;
}

/* All segments that begin before the end of the block must be named, and no others. */
static bool is_ours(const whole_block *block) {
    const vc_lines *after = &block->after;
    if (!after->segments) return true;
    return !block->is_foreign && (after->named == after->segment_count ||
                                  after->segments[after->named].start >= after->volume_end);
}

/* Give the entries of a checked block away; false if they are no longer wanted. */
static bool take_entries(const uint8_t *start, const whole_block *block, vc_lines_take take,
                         void *context) {
    const uint8_t *at = block->rest;
    bool is_encoded = memchr(start, '%', (size_t)(block->end - start));
    for (uint64_t i = 0; i < block->entries; i++) {
        entry_line entry = {0};
        while (i >= KEPT && !entry.length) { /* comments are skipped */
            const uint8_t *line = at, *end = memchr(at, '\n', (size_t)(block->end - at));
            if (*line != '#') lines_read_entry(line, end, &entry);
            at = end + 1;
        }
        if (i < KEPT) entry = block->space->kept[i];
        if (is_encoded && memchr(entry.key, '%', entry.length)) {
            entry.length = decode_key(block->space->key, entry.key, entry.length);
            entry.key = block->space->key;
        }
        if (!take(context, entry.key, entry.length, entry.offset, entry.size)) return false;
    }
    return true;
}

size_t vc_lines_read(vc_lines *lines, const uint8_t *data, size_t length, vc_lines_take take,
                     void *context) {
    size_t used = 0;
    workspace space;
    whole_block block = {.space = &space};
    while (!lines->is_damaged && !lines->is_of_clone && used < length &&
           find_block(lines, data + used, data + length, &block)) {
        lines->is_damaged = !is_intact(lines, data + used, &block);
        lines->is_of_clone = !lines->is_damaged && !is_ours(&block);
        if (lines->is_damaged || lines->is_of_clone ||
            !take_entries(data + used, &block, take, context))
            break;
        size_t bytes = (size_t)(block.end - (data + used));
        used += bytes;
        block.after.file_end += bytes;
        block.after.entries += block.entries;
        block.after.has_checksum = true;
        *lines = block.after;
    }
    return used;
}
