/* Reads any bytes as an index file, as they are and with right checksums.
 *
 *     lines_fuzz FILE...             read files
 *     lines_fuzz -r SECONDS SEED     change valid files at random
 *
 * With -DVC_FUZZER it is a target of libFuzzer. Any failed check aborts. */
#include "crc32c.h"
#include "lines.h"
#include "fuzz.h"

#include <inttypes.h>

#define OFFSET_END 10000000000000u /* 13 digits */

typedef struct {
    uint8_t *key;
    size_t length;
    uint64_t offset;
    uint64_t size;
} entry;

typedef struct {
    entry *at;
    size_t count;
    size_t room;
    size_t limit; /* stop after this many */
} entry_list;

static const vc_segment SEGMENTS[] = {{200, 0xaaaaaaaaaaaaaaaa}, {900, 1}, {5000, 2}};
static uint64_t files_read, entries_read, damaged, of_copy;

static bool take(void *context, const uint8_t *key, size_t length, uint64_t offset, uint64_t size) {
    entry_list *list = context;
    if (list->count == list->limit) return false;
    if (list->count == list->room) {
        list->room = 2 * list->room + 16;
        list->at = realloc(list->at, list->room * sizeof *list->at);
        CHECK(list->at);
    }
    CHECK(length > 0 && length <= 65535);
    CHECK(offset < OFFSET_END && size <= VC_RECORD_BYTES_MAX && (size == 0 || offset >= 64));
    list->at[list->count++] = (entry){copied(key, length), length, offset, size};
    return true;
}

static void clear(entry_list *list) {
    for (size_t i = 0; i < list->count; i++) free(list->at[i].key);
    free(list->at);
    *list = (entry_list){.limit = SIZE_MAX};
}

static vc_lines reader(bool has_segments) {
    vc_lines lines = {.volume_end = 64};
    if (has_segments) {
        lines.segments = SEGMENTS;
        lines.segment_count = sizeof SEGMENTS / sizeof *SEGMENTS;
    }
    return lines;
}

static vc_lines read_whole(const uint8_t *data, size_t length, bool has_segments,
                           entry_list *list) {
    vc_lines lines = reader(has_segments);
    uint8_t *copy = copied(data, length);
    size_t used = vc_lines_read(&lines, copy, length, take, list);
    free(copy);
    CHECK(used <= length && used == lines.file_end);
    return lines;
}

/* As a caller does it: a piece is made longer if no block of it was used. */
static vc_lines read_pieces(const uint8_t *data, size_t length, bool has_segments, uint64_t *state,
                            entry_list *list) {
    vc_lines lines = reader(has_segments);
    size_t at = 0, piece = 0;
    while (at + piece < length) {
        piece += 1 + next_random(state) % (next_random(state) % 4 ? 150 : 3000);
        piece = piece < length - at ? piece : length - at;
        uint8_t *copy = copied(data + at, piece);
        size_t used = vc_lines_read(&lines, copy, piece, take, list);
        free(copy);
        CHECK(used <= piece);
        at += used;
        piece -= used;
        CHECK(at == lines.file_end);
    }
    return lines;
}

static void check_same(const vc_lines *a, const vc_lines *b) {
    CHECK(a->file_end == b->file_end && a->volume_end == b->volume_end);
    CHECK(a->entries == b->entries && a->last_offset == b->last_offset);
    CHECK(a->checksum == b->checksum && a->has_checksum == b->has_checksum);
    CHECK(a->is_sealed == b->is_sealed && a->is_damaged == b->is_damaged);
    CHECK(a->is_of_clone == b->is_of_clone && a->named == b->named);
}

/* Write an entry as a file of one block: it is read as it was. */
static void check_encoding(const entry *expected) {
    size_t room = VC_LINE_BYTES_MAX(expected->length);
    char *text = allocated(room + 64);
    size_t line = vc_line_encode(text, expected->key, expected->length, expected->offset,
                                 expected->size);
    CHECK(line <= room);
    char *at = text + line;
    at += sprintf(at, "# checkpoint %013" PRIu64 " open ", VC_VOLUME_BYTES_MAX);
    at += sprintf(at, "%08x\n", vc_crc32c(0, text, (size_t)(at - text)));
    entry_list found = {.limit = SIZE_MAX};
    size_t length = (size_t)(at - text);
    vc_lines lines = read_whole((const uint8_t *)text, length, false, &found);
    CHECK(lines.file_end == length && found.count == 1);
    CHECK(found.at->length == expected->length && found.at->offset == expected->offset);
    CHECK(found.at->size == expected->size);
    CHECK(memcmp(found.at->key, expected->key, expected->length) == 0);
    clear(&found);
    free(text);
}

static void check_entries(const vc_lines *lines, const entry_list *list) {
    uint64_t last = 0;
    CHECK(lines->entries == list->count);
    for (size_t i = 0; i < list->count; i++) {
        const entry *one = &list->at[i];
        if (one->size) {
            last = one->offset;
            CHECK(one->offset + one->size <= lines->volume_end);
            CHECK(lines->volume_end <= VC_VOLUME_BYTES_MAX);
        }
        check_encoding(one);
    }
    CHECK(lines->last_offset == last);
}

static void check_file(const uint8_t *data, size_t length, uint64_t *state) {
    for (int has_segments = 0; has_segments < 2; has_segments++) {
        entry_list whole = {.limit = SIZE_MAX}, pieces = whole, some = whole;
        vc_lines lines = read_whole(data, length, has_segments, &whole);
        vc_lines other = read_pieces(data, length, has_segments, state, &pieces);
        check_same(&lines, &other);
        check_entries(&lines, &whole);
        CHECK(whole.count == pieces.count);
        for (size_t i = 0; i < whole.count; i++) {
            const entry *a = &whole.at[i], *b = &pieces.at[i];
            CHECK(a->length == b->length && a->offset == b->offset && a->size == b->size);
            CHECK(memcmp(a->key, b->key, a->length) == 0);
        }
        /* One that stops has used only whole blocks before. */
        if (whole.count) {
            some.limit = next_random(state) % whole.count;
            other = read_whole(data, length, has_segments, &some);
            CHECK(some.count == some.limit && other.entries <= some.count);
            CHECK(other.file_end < lines.file_end);
            CHECK(!other.is_damaged && !other.is_of_clone);
        }
        files_read++;
        entries_read += whole.count;
        damaged += lines.is_damaged;
        of_copy += lines.is_of_clone;
        clear(&whole);
        clear(&pieces);
        clear(&some);
    }
}

/* Write the right checksum into each line that looks like a checkpoint. */
static void fix_checksums(uint8_t *data, size_t length) {
    static const char start[] = "# checkpoint ";
    const size_t start_length = sizeof start - 1;
    uint32_t crc = 0;
    size_t done = 0;
    for (size_t line = 0; line < length;) {
        const uint8_t *newline = memchr(data + line, '\n', length - line);
        if (!newline) return;
        size_t end = (size_t)(newline - data);
        if (end - line > start_length + 8 && !memcmp(data + line, start, start_length)) {
            char digits[9];
            crc = vc_crc32c(crc, data + done, end - 8 - done);
            done = end - 8;
            snprintf(digits, sizeof digits, "%08x", crc);
            memcpy(data + done, digits, 8);
        }
        line = end + 1;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t length) {
    uint64_t state = vc_crc32c(0, data, length);
    check_file(data, length, &state);
    uint8_t *fixed = copied(data, length);
    fix_checksums(fixed, length);
    check_file(fixed, length, &state);
    free(fixed);
    return 0;
}

#ifndef VC_FUZZER
static const char *const SAMPLES[] = {
    "# volcache index 2 volume 1 seq 5 ring main salt 1715609f7c746c69 store "
    "0123456789abcdef\n# checkpoint 64 open 00000000\nfill/2%20more 64 36\n"
    "a/hello.txt 100 98\n# from 200 salt aaaaaaaaaaaaaaaa\ngr%C3%BCn%20&%20100%25 200 76\n"
    "# a comment\n"
    "# checkpoint 276 open 00000000\n# from 900 salt 0000000000000001\n"
    "later%20gone 900 75\ndeleted 975 100\ndeleted 0 0\n# checkpoint 1075 open 00000000\n"
    "# checkpoint 1075 sealed 00000000\n",
    "# checkpoint 0 open 00000000\n# checkpoint 63 open 00000000\nk 77 0\n"
    "# checkpoint 64 open 00000000\n",
    "0123456789abcdef0123456789abcdef 64 1234567890\n%zz%4%%41 9999999999998 1\n"
    "\t\r\v\f 0000000000064 0000000001\n# from 200 salt aaaaaaaaaaaaaaaa\n"
    "# from 900 salt 0000000000000001\n# from 5000 salt 0000000000000002\n"
    "# checkpoint 9999999999999 sealed 00000000\n",
};

static const char *const WORDS[] = {
    " ",
    "\n",
    "\r",
    "\t",
    "#",
    "%",
    "%4",
    "%41",
    "%%",
    "0",
    "00",
    "64",
    "63",
    "9",
    "99999999",
    "-1",
    "+5",
    "1_0",
    "\n\n",
    " 64 70\n",
    "k 64 70\n",
    "k 0 0\n",
    "# ",
    "#\n",
    "#x 64 70\n",
    " 9999999999",
    " 9999999999999",
    " 10000000000",
    " 00000000000064",
    "\xff",
    "open",
    "sealed",
    "# checkpoint 64 open 00000000\n",
    "# checkpoint 1075 sealed 00000000\n",
    "# checkpoint 5000 open 00000000\n",
    "# from 200 salt aaaaaaaaaaaaaaaa\n",
    "# from 900 salt 0000000000000001\n",
    "# from 5000 salt 0000000000000002\n",
    "",
    "",
};
/* Add many entries, or a key about as long as the longest one, to the last block. */
static void enlarge(growing *file, uint64_t *state) {
    size_t line = file->length - 1;
    while (line > 0 && file->at[line - 1] != '\n') line--;
    if (next_random(state) % 2) {
        for (uint64_t left = next_random(state) % 1500; left; left--) {
            const char *text = left % 3 ? "a%20 64 0\n" : "b 70 1\n";
            text = left % 700 == 1 ? "# comment\n" : text;
            replace_bytes(file, line, 0, text, strlen(text));
        }
    } else {
        static uint8_t key[200000];
        bool is_encoded = next_random(state) % 2;
        size_t count = 65535 - 3 + next_random(state) % 6;
        for (size_t i = 0; i < sizeof key; i++) key[i] = (uint8_t)(is_encoded ? "%41"[i % 3] : 'k');
        replace_bytes(file, line, 0, " 64 0\n", 6);
        replace_bytes(file, line, 0, key, is_encoded ? 3 * count : count);
    }
}

static void run_random(double seconds, uint64_t seed) {
    growing file = {0};
    uint64_t runs = 0, state = seed;
    for (time_t start = time(NULL); difftime(time(NULL), start) < seconds; runs++) {
        const char *text = SAMPLES[next_random(&state) % COUNT(SAMPLES)];
        file.length = 0;
        add_text(&file, text);
        if (next_random(&state) % 200 == 0) enlarge(&file, &state);
        fix_checksums((uint8_t *)file.at, file.length);
        for (uint64_t left = next_random(&state) % 6; left; left--)
            mutate(&file, WORDS, COUNT(WORDS), &state);
        LLVMFuzzerTestOneInput((const uint8_t *)file.at, file.length);
    }
    printf("%" PRIu64 " runs, %" PRIu64 " files, %" PRIu64 " entries, %" PRIu64 " damaged, %" PRIu64
           " of a copy\n",
           runs, files_read, entries_read, damaged, of_copy);
    free(file.at);
}
#endif
