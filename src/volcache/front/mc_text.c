#include "mc_parts.h"

enum {
    LINE_BYTES_MAX = 2048,      /* without its line feed; of all but gets */
    GET_LINE_BYTES_MAX = 65536, /* longer gets are passed */
    DIGITS_MAX = 18,
    META_WORDS_MAX = 19,
    OPAQUE_BYTES_MAX = 32,
};

/* --- Words ------------------------------------------------------------------------------ */

static bool is_word(vc_text word, const char *text) {
    return word.length == strlen(text) && !memcmp(word.at, text, word.length);
}

/* Read a number as it is usually written; others are left to Python. */
static bool read_number(vc_text word, uint64_t largest, uint64_t *number) {
    if (!word.length || word.length > DIGITS_MAX) return false;
    *number = 0;
    for (size_t i = 0; i < word.length; i++) {
        if (word.at[i] < '0' || word.at[i] > '9') return false;
        *number = *number * 10 + (uint64_t)(word.at[i] - '0');
    }
    return *number <= largest;
}

static bool read_signed(vc_text word, int64_t *number) {
    bool is_negative = word.length && *word.at == '-';
    uint64_t size;
    word = (vc_text){word.at + is_negative, word.length - is_negative};
    if (!read_number(word, UINT64_MAX, &size)) return false;
    *number = is_negative ? -(int64_t)size : (int64_t)size;
    return true;
}

/* Return the word that begins at `at`, and let `at` be where the next one begins, or `end`. */
static vc_text next_word(const char **at, const char *end) {
    const char *stop = memchr(*at, ' ', (size_t)(end - *at));
    vc_text word = {*at, (size_t)((stop ? stop : end) - *at)};
    for (*at += word.length; *at < end && **at == ' ';) ++*at;
    return word;
}

/* Return how many words a line has, at most VC_MC_WORDS. */
static unsigned split(const char *at, const char *end, vc_text *words) {
    unsigned count = 0;
    while (at < end && count < VC_MC_WORDS) words[count++] = next_word(&at, end);
    return count;
}

static bool read_cas(vc_text word, vc_mc_command *command) {
    if (!read_number(word, UINT64_MAX, &command->cas)) return false;
    if (!command->cas) command->cas = VC_MC_NO_VERSION;
    return true;
}

/* --- Values ----------------------------------------------------------------------------- */

/* Add the value, which follows the line of a command. */
static vc_mc_step add_value(const vc_mc_config *config, vc_mc_stream *stream, const char *data,
                            size_t length, vc_text size, vc_mc_command *command) {
    size_t line_end = command->used;
    uint64_t bytes;
    if (!read_number(size, config->value_size, &bytes)) return VC_MC_PASS;
    stream->needed = line_end + bytes + 2;
    if (length < stream->needed) return VC_MC_MORE;
    command->value = (vc_text){data + line_end, bytes};
    command->used = stream->needed;
    return memcmp(data + line_end + bytes, "\r\n", 2) ? VC_MC_PASS : VC_MC_NEXT;
}

/* --- Text ------------------------------------------------------------------------------- */

/* The commands that are executed here, except gets of text. */
typedef struct {
    vc_mc_name name;
    vc_mc_action action;
    unsigned words;         /* without "noreply", or without flags */
    /* Of a meta command, NULL of others: the flags that are executed here, and those of them that
     * the reply repeats. */
    const char *flags, *repeated;
} form;

static const form FORMS[] = {
    {VC_MC_SET, VC_MC_WRITE, 5, NULL, NULL},
    {VC_MC_MG, VC_MC_READ, 2, "ktscfhlvuqbOT", "Oktscfhl"},
    {VC_MC_MS, VC_MC_WRITE, 3, "kscqbOTCFM", "Okcs"},
    {VC_MC_ADD, VC_MC_WRITE, 5, NULL, NULL},
    {VC_MC_REPLACE, VC_MC_WRITE, 5, NULL, NULL},
    {VC_MC_CAS, VC_MC_WRITE, 6, NULL, NULL},
    {VC_MC_TOUCH, VC_MC_TOUCHING, 3, NULL, NULL},
    {VC_MC_DELETE, VC_MC_REMOVE, 2, NULL, NULL},
    {VC_MC_MD, VC_MC_REMOVE, 2, "kqbOC", "Ok"},
    {VC_MC_MN, VC_MC_NOTHING, 1, "", ""},
};

static const form *find_form(vc_text word) {
    const form *is = FORMS, *end = FORMS + sizeof(FORMS) / sizeof(*FORMS);
    while (is < end && !is_word(word, vc_mc_names[is->name])) is++;
    return is < end ? is : NULL;
}

static bool read_change(const form *is, const vc_text *words, unsigned count,
                        vc_mc_command *command) {
    uint64_t flags;
    command->is_quiet = is_word(words[count - 1], "noreply");
    if (count != is->words + command->is_quiet) return false;
    if (is->action == VC_MC_REMOVE) return true;
    if (!read_signed(words[is->action == VC_MC_WRITE ? 3 : 2], &command->exptime)) return false;
    if (is->action == VC_MC_TOUCHING) return true;
    if (!read_number(words[2], UINT32_MAX, &flags)) return false;
    command->flags = (uint32_t)flags;
    return is->name != VC_MC_CAS || read_cas(words[5], command);
}

/* --- Gets of text ------------------------------------------------------------------------- */

/* Make a command of the key at `at`, which may be followed by others. */
static void make_get(vc_mc_name name, int64_t exptime, const char *at, const char *end,
                     const char *line_end, vc_mc_command *command) {
    const char *next = at;
    vc_text key = next_word(&next, end);
    *command = (vc_mc_command){
        .name = name,
        .action = VC_MC_READ,
        .key = key,
        .exptime = exptime,
        .has_exptime = name >= VC_MC_GAT,
        .wants_value = true,
        .has_cas = name == VC_MC_GETS || name == VC_MC_GATS,
        .is_last = next == end,
    };
    command->used = (size_t)((next == end ? line_end : next) - at);
}

/* A get of some keys is a command for each; the first one also has what is before its key. */
static vc_mc_step parse_get(const char *data, size_t line_end, const char *end, vc_mc_name name,
                            vc_mc_command *command) {
    const char *at = data;
    int64_t exptime = 0;
    (void)next_word(&at, end);
    if (name >= VC_MC_GAT && !read_signed(next_word(&at, end), &exptime)) return VC_MC_PASS;
    if (at == end) return VC_MC_PASS;
    const char *first = at;
    /* A key that is too long lets no key be read. */
    while (at < end)
        if (next_word(&at, end).length > VC_MC_KEY_BYTES) return VC_MC_PASS;
    make_get(name, exptime, first, end, data + line_end, command);
    command->used += (size_t)(first - data);
    return VC_MC_NEXT;
}

/* --- Meta ------------------------------------------------------------------------------- */

static const char BASE64[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/* Decode what an encoder writes; anything else is left to Python. */
static bool decode_key(vc_mc_command *command) {
    vc_text from = command->key;
    uint8_t *to = command->decoded;
    if (from.length % 4) return false;
    for (size_t i = 0; i < from.length; i += 4) {
        uint32_t bits = 0;
        unsigned padding = 0;
        for (size_t j = i; j < i + 4; j++) {
            const char *digit = memchr(BASE64, from.at[j], 64);
            bits <<= 6;
            if (from.at[j] == '=' && j >= from.length - 2) padding++;
            else if (!digit || padding) return false;
            else bits |= (uint32_t)(digit - BASE64);
        }
        if (padding && bits & ((1u << 8 * padding) - 1)) return false;
        *to++ = (uint8_t)(bits >> 16);
        if (padding < 2) *to++ = (uint8_t)(bits >> 8);
        if (padding < 1) *to++ = (uint8_t)bits;
    }
    command->is_base64 = true;
    command->key = (vc_text){(const char *)command->decoded, (size_t)(to - command->decoded)};
    return true;
}

static char *put_base64(char *to, vc_text from) {
    for (size_t i = 0; i < from.length; i += 3) {
        uint32_t bits = 0;
        for (size_t j = i; j < i + 3; j++)
            bits = bits << 8 | (j < from.length ? (uint8_t)from.at[j] : 0);
        for (unsigned j = 0; j < 4; j++)
            *to++ = i + j > from.length ? '=' : BASE64[bits >> (18 - 6 * j) & 63];
    }
    return to;
}

/* Read a flag that a number or another text follows. */
static bool read_flag(vc_mc_command *command, vc_text word) {
    vc_text rest = {word.at + 1, word.length - 1};
    uint64_t flags;
    switch (*word.at) {
    case 'O':
        return word.length <= OPAQUE_BYTES_MAX;
    case 'T':
        command->has_exptime = true;
        return read_signed(rest, &command->exptime);
    case 'F':
        if (!read_number(rest, UINT32_MAX, &flags)) return false;
        command->flags = (uint32_t)flags;
        return true;
    case 'C':
        return read_cas(rest, command);
    case 'M':
        command->mode = is_word(rest, "E")   ? VC_MC_ADD
                        : is_word(rest, "R") ? VC_MC_REPLACE
                                             : VC_MC_SET;
        return is_word(rest, "S") || command->mode != VC_MC_SET;
    default: /* memcached ignores what follows the others. */
        return !rest.length;
    }
}

static bool read_flags(const form *is, const vc_text *words, unsigned count,
                       vc_mc_command *command) {
    const char *all = "ktscfhlvuqbOTCFM";
    unsigned seen = 0;
    if (count < is->words || count > META_WORDS_MAX) return false;
    for (unsigned i = is->words; i < count; i++) {
        char letter = *words[i].at;
        const char *known = letter ? strchr(all, letter) : NULL;
        unsigned bit = known ? 1u << (known - all) : 0;
        if (!known || !strchr(is->flags, letter) || seen & bit || !read_flag(command, words[i]))
            return false;
        seen |= bit;
        if (strchr(is->repeated, letter)) command->words[command->word_count++] = words[i];
        if (letter == 'v') command->wants_value = true;
        if (letter == 'u') command->is_peek = true;
        if (letter == 'q') command->is_quiet = true;
        if (letter == 't') command->wants_earlier_ttl = !command->has_exptime;
        if (letter == 'b' && !decode_key(command)) return false;
    }
    if (command->mode == VC_MC_ADD) command->cas = 0; /* As in memcached. */
    return true;
}

static bool read_words(const form *is, const vc_text *words, unsigned count,
                       vc_mc_command *command) {
    if (is->action == VC_MC_NOTHING) return true;
    if (count < 2 || words[1].length > VC_MC_KEY_BYTES) return false;
    command->key = words[1];
    return (is->flags ? read_flags : read_change)(is, words, count, command);
}

/* --- Lines ------------------------------------------------------------------------------ */

/* Whether a line may be a get, and which one: a longer one has other limits. */
static bool is_get(const char *data, size_t length, vc_mc_name *name) {
    for (*name = VC_MC_GET; *name <= VC_MC_GATS; ++*name) {
        const char *word = vc_mc_names[*name];
        size_t size = strlen(word);
        if (length > size && data[size] == ' ' && !memcmp(data, word, size)) return true;
    }
    return false;
}

/* Go on with a get, of which the keys before were answered. */
static void go_on(const vc_mc_stream *stream, const char *data, vc_mc_command *command) {
    const char *line_end = data + stream->line_left;
    const char *end = line_end - 1 - (line_end[-2] == '\r');
    make_get(stream->series, stream->exptime, data, end, line_end, command);
}

vc_mc_step vc_mc_parse_text(const vc_mc_config *config, vc_mc_stream *stream, const char *data,
                            size_t length, vc_mc_command *command) {
    if (stream->line_left) {
        go_on(stream, data, command);
        return VC_MC_NEXT;
    }
    vc_text words[VC_MC_WORDS];
    vc_mc_name name;
    const char *found = memchr(data + stream->scanned, '\n', length - stream->scanned);
    size_t size = found ? (size_t)(found - data) : length;
    bool reads = is_get(data, length, &name);
    if (size > (reads ? GET_LINE_BYTES_MAX : LINE_BYTES_MAX)) return VC_MC_PASS;
    if (!found) {
        stream->scanned = length;
        stream->needed = length + 1;
        return VC_MC_MORE;
    }
    const char *end = size > 1 && found[-1] == '\r' ? found - 1 : found;
    if (reads) return parse_get(data, size + 1, end, name, command);
    unsigned count = split(data, end, words);
    if (!count || count == VC_MC_WORDS) return VC_MC_PASS;
    const form *is = find_form(*words);
    if (!is) return VC_MC_PASS;
    *command = (vc_mc_command){
        .name = is->name,
        .action = is->action,
        .mode = is->flags || is->name == VC_MC_CAS ? VC_MC_SET : is->name,
        .form = is->flags ? VC_MC_META : VC_MC_TEXT,
        .used = size + 1,
    };
    if (!read_words(is, words, count, command)) return VC_MC_PASS;
    if (is->action != VC_MC_WRITE) return VC_MC_NEXT;
    return add_value(config, stream, data, length, words[is->flags ? 2 : 4], command);
}

/* --- Replies ---------------------------------------------------------------------------- */

static char *put_text(char *to, const char *text) { return vc_mc_copy(to, text, strlen(text)); }

/* Add a reply: its head, which is followed by the value, if there is one. The value may be in the
 * room of the reply. */
static void add_reply(vc_mc_out *out, const char *head, size_t length, const vc_mc_outcome *value,
                      const char *end) {
    char *to = out->at + out->used, *at = to + length;
    if (value) {
        memmove(at, value->value, value->record.length);
        at += value->record.length;
    }
    memcpy(to, head, length);
    at = put_text(at, end);
    out->used = (size_t)(at - out->at);
}

void vc_mc_reply_text(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_mc_out *out) {
    static const char *const LINES[VC_MC_RESULTS] = {
        [VC_MC_STORED] = "STORED\r\n",       [VC_MC_NOT_STORED] = "NOT_STORED\r\n",
        [VC_MC_EXISTS] = "EXISTS\r\n",       [VC_MC_NOT_FOUND] = "NOT_FOUND\r\n",
        [VC_MC_DELETED] = "DELETED\r\n",     [VC_MC_TOUCHED] = "TOUCHED\r\n",
    };
    char head[VC_MC_REPLY_BYTES], *to = head;
    const vc_record *record = &outcome->record;
    if (command->is_quiet) return;
    if (outcome->result == VC_MC_HIT) {
        to = put_text(to, "VALUE ");
        to = vc_mc_copy(to, command->key.at, command->key.length);
        *to++ = ' ';
        to = vc_put_number(to, record->flags);
        *to++ = ' ';
        to = vc_put_number(to, record->length);
        if (command->has_cas) *to++ = ' ', to = vc_put_number(to, record->stored_us);
        to = put_text(to, "\r\n");
        add_reply(out, head, (size_t)(to - head), outcome,
                  command->is_last ? "\r\nEND\r\n" : "\r\n");
    } else if (outcome->result == VC_MC_MISS) {
        add_reply(out, "", 0, NULL, command->is_last ? "END\r\n" : "");
    } else {
        add_reply(out, "", 0, NULL, LINES[outcome->result]);
    }
}

/* Return the number after a letter. */
static int64_t number_of(char letter, const vc_mc_command *command, const vc_mc_outcome *outcome) {
    const vc_record *record = &outcome->record;
    switch (letter) {
    case 't':
        return outcome->ttl_ms < 0 ? -1 : (outcome->ttl_ms + 999) / 1000;
    case 'c':
        return outcome->has_record ? (int64_t)record->stored_us : 0;
    case 'f':
        return record->flags;
    case 'h':
        return outcome->idle >= 0;
    case 'l':
        return outcome->idle > 0 ? outcome->idle : 0;
    default: /* 's' */
        return outcome->has_record ? record->length : (int64_t)command->value.length;
    }
}

/* Write the flags that a reply repeats, each with a space before it; without `is_full`, only
 * opaque and key. */
static char *put_flags(char *to, const vc_mc_command *command, const vc_mc_outcome *outcome,
                       bool is_full) {
    for (unsigned i = 0; i < command->word_count; i++) {
        vc_text word = command->words[i];
        char letter = *word.at;
        if (!is_full && letter != 'O' && letter != 'k') continue;
        *to++ = ' ';
        if (letter == 'O') {
            to = vc_mc_copy(to, word.at, word.length);
            continue;
        }
        *to++ = letter;
        if (letter == 'k' && command->is_base64) {
            to = put_text(put_base64(to, command->key), " b");
        } else if (letter == 'k') {
            to = vc_mc_copy(to, command->key.at, command->key.length);
        } else {
            int64_t number = number_of(letter, command, outcome);
            if (number < 0) *to++ = '-';
            to = vc_put_number(to, (uint64_t)(number < 0 ? -number : number));
        }
    }
    return to;
}

void vc_mc_reply_meta(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_mc_out *out) {
    static const char *const CODES[VC_MC_RESULTS] = {
        [VC_MC_HIT] = "HD",        [VC_MC_MISS] = "EN",      [VC_MC_STORED] = "HD",
        [VC_MC_NOT_STORED] = "NS", [VC_MC_EXISTS] = "EX",    [VC_MC_NOT_FOUND] = "NF",
        [VC_MC_DELETED] = "HD",    [VC_MC_OK] = "MN",
    };
    char head[VC_MC_REPLY_BYTES], *to = head;
    vc_mc_result result = outcome->result;
    bool is_hit = result == VC_MC_HIT, has_value = is_hit && command->wants_value;
    bool is_success = result == VC_MC_MISS || result == VC_MC_STORED || result == VC_MC_DELETED;
    if (command->is_quiet && is_success) return;
    if (has_value) to = vc_put_number(put_text(to, "VA "), outcome->record.length);
    else to = put_text(to, CODES[result]);
    to = put_flags(to, command, outcome, is_hit || command->action == VC_MC_WRITE);
    if (is_hit && outcome->has_won) to = put_text(to, " Z");
    to = put_text(to, "\r\n");
    add_reply(out, head, (size_t)(to - head), has_value ? outcome : NULL, has_value ? "\r\n" : "");
}
