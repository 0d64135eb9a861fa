#include "mc_parts.h"

enum {
    LINE_BYTES_MAX = 2048, /* without its line feed; a get may be longer */
    SPACES_MAX = 100,      /* before a long get; between its keys they are not searched for
                                 * another key */
    DIGITS_MAX = 64,       /* of the time of a long get */
    CREDENTIALS_BYTES_MAX = 2048,
    MEMLIMIT_MIN = 8,
    MEMLIMIT_MAX = 1000000000,
};

#define BAD_EXPTIME "CLIENT_ERROR invalid exptime argument"

static vc_step mc_text_answer(vc_mc_command *command, const char *text) {
    command->action = VC_MC_ANSWERING;
    command->form = VC_MC_TEXT;
    command->answer = text;
    return VC_STEP_NEXT;
}

static vc_step answer_error(vc_mc_command *command, const char *text) {
    command->is_error = true;
    return mc_text_answer(command, text);
}

/* Bytes that are used, although no command is whole. */
static vc_step mc_text_use(vc_mc_stream *stream, vc_mc_command *command, size_t length) {
    command->used = length;
    stream->base.needed = 1;
    return VC_STEP_MORE;
}

static vc_step want(vc_mc_stream *stream, vc_mc_command *command, size_t needed) {
    command->used = 0;
    stream->base.needed = needed;
    return VC_STEP_MORE;
}

/* --- Values ------------------------------------------------------------------------------- */

/* Add the value, which follows the line of a command. `error`: it is skipped, and this answered. */
static vc_step mc_text_add_value(vc_mc_stream *stream, const char *data, size_t length,
                                 uint64_t bytes, const char *error, const char *bad_chunk,
                                 vc_mc_command *command) {
    size_t line_end = command->used;
    if (error || command->is_too_large) {
        command->skipped = bytes + 2;
        return error ? answer_error(command, error) : VC_STEP_NEXT;
    }
    if (length < line_end + bytes + 2) return want(stream, command, line_end + bytes + 2);
    command->value = (vc_text){data + line_end, bytes};
    command->used = line_end + bytes + 2;
    if (memcmp(data + line_end + bytes, "\r\n", 2)) return answer_error(command, bad_chunk);
    return VC_STEP_NEXT;
}

/* Read "user password"; the user may be any. */
static vc_step read_credentials(vc_mc_command *command) {
    const char *at = command->value.at, *end = at + command->value.length;
    while (at < end && *at == ' ') at++;
    vc_mc_next_word(&at, end);
    vc_text token = vc_mc_next_word(&at, end);
    if (!token.length) return answer_error(command, "CLIENT_ERROR bad authentication token format");
    command->action = VC_MC_LOGIN;
    command->value = token;
    return VC_STEP_NEXT;
}

/* Read a set whose value is "user password". */
static vc_step parse_credentials(vc_mc_stream *stream, const char *data, size_t length,
                                 const vc_text *words, unsigned count, vc_mc_command *command) {
    uint64_t bytes;
    command->name = VC_MC_AUTH;
    if (count < 5 || !vc_mc_read_unsigned(words[4], INT64_MAX, &bytes))
        return answer_error(command, "CLIENT_ERROR unauthenticated");
    bool is_long = bytes > CREDENTIALS_BYTES_MAX;
    vc_step step = mc_text_add_value(stream, data, length, bytes,
                                     is_long ? "CLIENT_ERROR bad authentication token format"
                                             : NULL,
                                     "CLIENT_ERROR bad command line termination", command);
    return step == VC_STEP_NEXT && !command->is_error ? read_credentials(command) : step;
}

/* --- Lines -------------------------------------------------------------------------------- */

/* What reads the words of a command after its name; returns an error, NULL: none. */
typedef const char *reader(const vc_text *words, vc_mc_command *command);

static const char *read_key(vc_text word, vc_mc_command *command) {
    if (word.length > VC_MC_KEY_BYTES) return VC_MC_BAD_FORMAT;
    command->key = word;
    return NULL;
}

static const char *read_put(const vc_text *words, vc_mc_command *command) {
    uint64_t flags;
    const char *error = read_key(words[1], command);
    if (error) return error;
    if (!vc_mc_read_unsigned(words[2], UINT32_MAX, &flags)) return VC_MC_BAD_FORMAT;
    if (!vc_mc_read_signed(words[3], &command->exptime)) return VC_MC_BAD_FORMAT;
    command->flags = (uint32_t)flags;
    command->mode = command->name;
    if (command->name != VC_MC_CAS) return NULL;
    command->mode = VC_MC_SET;
    if (!vc_mc_read_unsigned(words[5], UINT64_MAX, &command->cas)) return VC_MC_BAD_FORMAT;
    if (!command->cas) command->cas = VC_MC_NO_VERSION;
    return NULL;
}

static const char *mc_text_read_count(const vc_text *words, vc_mc_command *command) {
    const char *error = read_key(words[1], command);
    command->is_decrement = command->name == VC_MC_DECR;
    if (error) return error;
    if (vc_mc_read_unsigned(words[2], UINT64_MAX, &command->delta)) return NULL;
    return "CLIENT_ERROR invalid numeric delta argument";
}

static const char *read_touch(const vc_text *words, vc_mc_command *command) {
    const char *error = read_key(words[1], command);
    if (error) return error;
    return vc_mc_read_signed(words[2], &command->exptime) ? NULL : BAD_EXPTIME;
}

static const char *read_delete(const vc_text *words, vc_mc_command *command) {
    size_t more = words[2].length + words[3].length;
    if (more > 1 || (more == 1 && *(words[2].length ? words[2] : words[3]).at != '0'))
        return VC_MC_BAD_FORMAT ".  Usage: delete <key> [noreply]";
    return read_key(words[1], command);
}

static const char *read_flush(const vc_text *words, vc_mc_command *command) {
    if (!words[1].length) return NULL;
    return vc_mc_read_signed(words[1], &command->exptime) ? NULL : BAD_EXPTIME;
}

static const char *read_verbosity(const vc_text *words, vc_mc_command *command) {
    uint64_t level;
    (void)command;
    return vc_mc_read_unsigned(words[1], UINT64_MAX, &level) ? NULL : VC_MC_BAD_FORMAT;
}

/* There is no limit of memory to be changed: values are on the disk. */
static const char *read_memlimit(const vc_text *words, vc_mc_command *command) {
    uint64_t limit;
    (void)command;
    if (!vc_mc_read_unsigned(words[1], UINT32_MAX, &limit)) return "ERROR";
    if (limit < MEMLIMIT_MIN) return "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m";
    if (limit > MEMLIMIT_MAX) return "MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes";
    return NULL;
}

static const char *read_stats(const vc_text *words, vc_mc_command *command) {
    command->value = words[1];
    return NULL;
}

static const char *read_config(const vc_text *words, vc_mc_command *command) {
    command->value = words[2];
    return vc_text_is(words[1], "get") ? NULL : "ERROR";
}

enum { ANY_WORDS = VC_MC_WORDS, NEVER = VC_MC_WORDS + 1 };

/* The commands of one line, perhaps with a value, except gets and meta commands. */
typedef struct {
    vc_mc_name name;
    vc_mc_action action;
    uint8_t least, most; /* words without "noreply" */
    uint8_t quiet;       /* from so many words on, the last one may be "noreply" */
    reader *read;        /* NULL: there is nothing to read */
    const char *answer;  /* of ANSWERING */
} form;

static const form FORMS[] = {
    {VC_MC_SET, VC_MC_WRITE, 5, 5, 1, read_put, NULL},
    {VC_MC_INCR, VC_MC_COUNT, 3, 3, 1, mc_text_read_count, NULL},
    {VC_MC_DECR, VC_MC_COUNT, 3, 3, 1, mc_text_read_count, NULL},
    {VC_MC_ADD, VC_MC_WRITE, 5, 5, 1, read_put, NULL},
    {VC_MC_REPLACE, VC_MC_WRITE, 5, 5, 1, read_put, NULL},
    {VC_MC_APPEND, VC_MC_WRITE, 5, 5, 1, read_put, NULL},
    {VC_MC_PREPEND, VC_MC_WRITE, 5, 5, 1, read_put, NULL},
    {VC_MC_CAS, VC_MC_WRITE, 6, 6, 1, read_put, NULL},
    {VC_MC_TOUCH, VC_MC_TOUCHING, 3, 3, 1, read_touch, NULL},
    {VC_MC_DELETE, VC_MC_REMOVE, 2, 3, 3, read_delete, NULL},
    {VC_MC_FLUSH_ALL, VC_MC_FLUSHING, 1, 2, 1, read_flush, NULL},
    {VC_MC_VERBOSITY, VC_MC_ANSWERING, 2, 2, 1, read_verbosity, "OK"},
    {VC_MC_MEMLIMIT, VC_MC_ANSWERING, 2, 2, 1, read_memlimit, "OK"},
    {VC_MC_STATS, VC_MC_REPORT, 1, ANY_WORDS, NEVER, read_stats, NULL},
    {VC_MC_CONFIG, VC_MC_LISTING, 3, 3, NEVER, read_config, NULL},
    {VC_MC_VERSION, VC_MC_ANSWERING, 1, ANY_WORDS, NEVER, NULL, "VERSION 1.6.18"},
    {VC_MC_QUIT, VC_MC_ANSWERING, 1, ANY_WORDS, NEVER, NULL, NULL},
    {VC_MC_SHUTDOWN, VC_MC_ANSWERING, 1, ANY_WORDS, NEVER, NULL, "ERROR: shutdown not enabled"},
};

static const form *find_form(vc_text word) {
    const form *is = FORMS, *end = FORMS + sizeof(FORMS) / sizeof(*FORMS);
    while (is < end && !vc_text_is(word, vc_mc_names[is->name])) is++;
    return is < end ? is : NULL;
}

/* Answer a line that is no command. */
static vc_step parse_other(const vc_text *words, unsigned count, vc_mc_command *command) {
    vc_text first = words[0], last = words[(count < VC_MC_WORDS ? count : VC_MC_WORDS - 1) - 1];
    bool is_http = last.length >= 5 && !memcmp(last.at, "HTTP/", 5);
    bool is_meta = first.length == 2 && *first.at == 'm';
    command->name = VC_MC_UNKNOWN;
    /* A browser, or a request made in its name. As in memcached, which does not look at the rest
     * of the line if the word begins like one of its commands. */
    command->closes = is_http && first.length > 1 && !is_meta && !memchr("acdgist", *first.at, 7);
    return answer_error(command, command->closes ? NULL : "ERROR");
}

static vc_step parse_meta(uint64_t value_size, vc_mc_stream *stream, const char *data,
                          size_t length, const vc_text *words, unsigned count,
                          vc_mc_command *command) {
    const vc_text *size = NULL;
    uint64_t bytes;
    const char *error = vc_mc_parse_meta(words, count, command, &size);
    if (!size) return error ? answer_error(command, error) : VC_STEP_NEXT;
    if (!vc_mc_read_unsigned(*size, INT64_MAX, &bytes))
        return answer_error(command, VC_MC_BAD_FORMAT);
    command->is_too_large = bytes > value_size;
    return mc_text_add_value(stream, data, length, bytes, error, VC_MC_BAD_CHUNK, command);
}

/* Make the command of a line of 24 words at most. `command->used` is its end. */
static vc_step parse_words(uint64_t value_size, vc_mc_stream *stream, const char *data,
                           size_t length, vc_text *words, unsigned count, vc_mc_command *command) {
    uint64_t bytes;
    if (words[0].length == 2 && *words[0].at == 'm' && memchr("gsdaen", words[0].at[1], 6))
        return parse_meta(value_size, stream, data, length, words, count, command);
    const form *is = find_form(words[0]);
    if (!is) return parse_other(words, count, command);
    command->name = is->name;
    command->action = is->action;
    if (is->name == VC_MC_SET && stream->rights.wants_credentials)
        return parse_credentials(stream, data, length, words, count, command);
    bool has_noreply = is->quiet != NEVER;
    if (count < is->least || count > (unsigned)is->most + has_noreply)
        return answer_error(command, "ERROR");
    command->is_silent = count >= is->quiet && vc_text_is(words[count - 1], "noreply");
    if (command->is_silent) words[count - 1].length = 0;
    command->answer = is->answer;
    command->closes = is->name == VC_MC_QUIT;
    command->is_error = is->name == VC_MC_SHUTDOWN;
    bool has_value = is->action == VC_MC_WRITE;
    if (has_value && !vc_mc_read_unsigned(words[4], INT64_MAX, &bytes))
        return answer_error(command, VC_MC_BAD_FORMAT);
    const char *error = is->read ? is->read(words, command) : NULL;
    if (!has_value) return error ? answer_error(command, error) : VC_STEP_NEXT;
    command->is_too_large = bytes > value_size;
    return mc_text_add_value(stream, data, length, bytes, error, VC_MC_BAD_CHUNK, command);
}

/* --- Gets --------------------------------------------------------------------------------- */

/* Which get a word names; VC_MC_NAMES: none. */
static vc_mc_name get_of(vc_text word) {
    if (vc_text_is(word, "bget")) return VC_MC_GET;
    for (vc_mc_name name = VC_MC_GET; name <= VC_MC_GATS; name++)
        if (vc_text_is(word, vc_mc_names[name])) return name;
    return VC_MC_NAMES;
}

/* Let the words that follow be the keys of a get, before them its time. */
static vc_step begin_series(vc_mc_stream *stream, vc_mc_name name, size_t used,
                            vc_mc_command *command) {
    stream->is_series = true;
    stream->series = name;
    stream->awaits_time = name == VC_MC_GAT || name == VC_MC_GATS;
    stream->has_keys = false;
    stream->exptime = 0;
    stream->scanned = 0;
    return mc_text_use(stream, command, used);
}

/* Begin a get whose line is whole, with the words at `at`: if a key is too long, none is read. */
static vc_step parse_get(vc_mc_stream *stream, vc_mc_name name, const char *data, const char *at,
                         const char *end, vc_mc_command *command) {
    int64_t exptime;
    bool has_time = name == VC_MC_GAT || name == VC_MC_GATS;
    size_t used = (size_t)(at - data);
    command->name = name;
    if (at == end) return answer_error(command, "ERROR");
    if (has_time && !vc_mc_read_signed(vc_mc_next_word(&at, end), &exptime))
        return answer_error(command, BAD_EXPTIME);
    while (at < end)
        if (vc_mc_next_word(&at, end).length > VC_MC_KEY_BYTES)
            return answer_error(command, VC_MC_BAD_FORMAT);
    return begin_series(stream, name, used, command);
}

/* End a get early, or without keys; what is left of its line is not read. */
static vc_step end_series(vc_mc_stream *stream, const char *data, size_t used, const char *error,
                          vc_mc_command *command) {
    vc_mc_clear(command, stream->series, used);
    command->skips_line = !used || data[used - 1] != '\n';
    if (error) return answer_error(command, error);
    command->is_uncounted = stream->has_keys;
    return mc_text_answer(command, "END");
}

/* Find the end of the word that begins at `data`: NEXT if it is there, with where the line ends if
 * it does there, otherwise 0. */
static vc_step mc_text_find_end(vc_mc_stream *stream, const char *data, size_t length, size_t most,
                                size_t *end, size_t *line_end, vc_mc_command *command) {
    size_t at = 0;
    *line_end = 0;
    while (at < length && at <= most + 1 && data[at] != ' ' && data[at] != '\n') at++;
    *end = at;
    if (at > most + 1) return VC_STEP_NEXT;
    if (at == length) return want(stream, command, length + 1);
    if (data[at] != '\n') return VC_STEP_NEXT;
    *line_end = at + 1;
    *end -= at && data[at - 1] == '\r';
    return VC_STEP_NEXT;
}

/* Find out whether another key follows the spaces at `*at`, and let it be where that begins, or
 * behind the line. */
static vc_step find_next(vc_mc_stream *stream, const char *data, size_t length, size_t *at,
                         bool *is_last, vc_mc_command *command) {
    size_t end = *at + SPACES_MAX;
    while (*at < length && *at < end && data[*at] == ' ') ++*at;
    *is_last = false;
    if (*at == end) return VC_STEP_NEXT; /* If none does, the end is answered later. */
    size_t line_feed = *at + (*at < length && data[*at] == '\r');
    if (line_feed >= length) return want(stream, command, length + 1);
    *is_last = data[line_feed] == '\n';
    if (*is_last) *at = line_feed + 1;
    return VC_STEP_NEXT;
}

static vc_step read_time(vc_mc_stream *stream, const char *data, size_t end, size_t line_end,
                         vc_mc_command *command) {
    stream->awaits_time = false;
    if (vc_mc_read_signed((vc_text){data, end}, &stream->exptime))
        return mc_text_use(stream, command, end);
    return end_series(stream, data, line_end ? line_end : end, BAD_EXPTIME, command);
}

/* Make a command of the next key of a get, as soon as it has arrived. */
static vc_step parse_key(vc_mc_stream *stream, const char *data, size_t length,
                         vc_mc_command *command) {
    size_t end, line_end, spaces = 0;
    bool is_last = true, has_time = stream->series == VC_MC_GAT || stream->series == VC_MC_GATS;
    while (spaces < length && data[spaces] == ' ') spaces++;
    if (spaces) return mc_text_use(stream, command, spaces);
    size_t most = stream->awaits_time ? DIGITS_MAX : VC_MC_KEY_BYTES;
    if (mc_text_find_end(stream, data, length, most, &end, &line_end, command) == VC_STEP_MORE)
        return VC_STEP_MORE;
    if (!end) {
        bool is_bad = !stream->has_keys && (!has_time || stream->awaits_time);
        return end_series(stream, data, line_end, is_bad ? "ERROR" : NULL, command);
    }
    if (stream->awaits_time) return read_time(stream, data, end, line_end, command);
    if (end > most)
        return end_series(stream, data, line_end ? line_end : end, VC_MC_BAD_FORMAT, command);
    size_t next = line_end ? line_end : end;
    if (!line_end && find_next(stream, data, length, &next, &is_last, command) == VC_STEP_MORE)
        return VC_STEP_MORE;
    vc_mc_clear(command, stream->series, next);
    command->action = VC_MC_READ;
    command->key = (vc_text){data, end};
    command->exptime = stream->exptime;
    command->has_exptime = has_time;
    command->wants_value = true;
    command->has_cas = stream->series == VC_MC_GETS || stream->series == VC_MC_GATS;
    command->is_last = is_last;
    return VC_STEP_NEXT;
}

/* --- The input ---------------------------------------------------------------------------- */

vc_step vc_mc_parse_text(uint64_t value_size, vc_mc_stream *stream, const char *data, size_t length,
                         vc_mc_command *command) {
    if (stream->is_series) return parse_key(stream, data, length, command);
    const char *found = memchr(data + stream->scanned, '\n', length - stream->scanned);
    size_t size = found ? (size_t)(found - data) : length;
    bool is_long = size > LINE_BYTES_MAX;
    if (!found && !is_long) {
        stream->scanned = length;
        return want(stream, command, length + 1);
    }
    const char *at = data, *end = data + size - (!is_long && size > 1 && found[-1] == '\r');
    while (at < end && *at == ' ') at++;
    bool is_wide = at - data > SPACES_MAX;
    vc_text words[VC_MC_WORDS] = {vc_mc_next_word(&at, end)};
    unsigned count = 1;
    vc_mc_clear(command, VC_MC_UNKNOWN, is_long ? length : size + 1);
    vc_mc_name get = get_of(words[0]);
    if (is_long && (is_wide || get == VC_MC_NAMES)) {
        /* It is unknown where the next command begins. */
        command->closes = true;
        return answer_error(command, "CLIENT_ERROR line too long");
    }
    if (is_long) return begin_series(stream, get, (size_t)(at - data), command);
    if (get != VC_MC_NAMES) return parse_get(stream, get, data, at, end, command);
    while (at < end && count < VC_MC_WORDS) words[count++] = vc_mc_next_word(&at, end);
    return parse_words(value_size, stream, data, length, words, count, command);
}
