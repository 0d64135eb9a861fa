#include "mc_parts.h"

enum {
    WORDS_MAX = 19,        /* of a line, with the command */
    OPAQUE_BYTES_MAX = 32, /* with its letter */
    LETTERS = 127,
};

#define BAD_TOKEN "CLIENT_ERROR bad token in command line format"

/* Where each flag is among those of a line, by its letter; 0: it was not given. */
typedef struct {
    uint8_t places[LETTERS];
    char mode; /* what follows "M" */
} flags;

static bool has(const flags *given, char letter) { return given->places[(uint8_t)letter]; }

/* Whether two flags were given, in this order. */
static bool is_before(const flags *given, char first, char second) {
    uint8_t place = given->places[(uint8_t)first];
    return place && place < given->places[(uint8_t)second];
}

/* Read what follows the letter of a flag. Returns an error; NULL: none. */
static const char *read_flag(vc_text word, vc_mc_command *command, flags *given) {
    vc_text rest = {word.at + 1, word.length - 1};
    uint64_t number;
    switch (*word.at) {
    case 'b':
        command->is_base64 = true;
        return vc_mc_decode_key(command) ? NULL : "CLIENT_ERROR error decoding key";
    case 'q': command->is_quiet = true; return NULL;
    case 'v': command->wants_value = true; return NULL;
    case 'u': command->is_peek = true; return NULL;
    case 'T':
        command->has_exptime = true;
        return vc_mc_read_signed(rest, &command->exptime) ? NULL : BAD_TOKEN;
    case 'N':
        command->creates = true;
        return vc_mc_read_signed(rest, &command->initial_exptime) ? NULL : BAD_TOKEN;
    case 'R':
        command->has_recache = true;
        return vc_mc_read_signed(rest, &command->recache) ? NULL : BAD_TOKEN;
    case 'C': return vc_mc_read_unsigned(rest, UINT64_MAX, &command->cas) ? NULL : BAD_TOKEN;
    case 'F':
        if (!vc_mc_read_unsigned(rest, UINT32_MAX, &number)) return VC_MC_BAD_FORMAT;
        command->flags = (uint32_t)number;
        return NULL;
    case 'M':
        given->mode = rest.length ? *rest.at : 0;
        return rest.length == 1 ? NULL : "CLIENT_ERROR incorrect length for M token";
    case 'J':
        return vc_mc_read_unsigned(rest, UINT64_MAX, &command->initial)
                   ? NULL
                   : "CLIENT_ERROR invalid numeric initial value";
    case 'D':
        return vc_mc_read_unsigned(rest, UINT64_MAX, &command->delta)
                   ? NULL
                   : "CLIENT_ERROR invalid numeric delta value";
    default: /* As in memcached, what follows the others is ignored. */ return NULL;
    }
}

/* Of several errors, memcached names the last, and that of the format only alone. */
static const char *read_letters(const vc_text *words, unsigned count, vc_mc_command *command,
                                flags *given) {
    const char *wrong = NULL;
    for (unsigned i = 0; i < count; i++) {
        uint8_t letter = (uint8_t)*words[i].at;
        if (letter >= LETTERS || given->places[letter]) return "CLIENT_ERROR duplicate flag";
        if (!letter || !strchr("kstcfhlvuqOPLbNTRCFMJD", letter))
            return "CLIENT_ERROR invalid flag";
        given->places[letter] = (uint8_t)(i + 1);
        const char *error = read_flag(words[i], command, given);
        if (error && (!wrong || strcmp(error, VC_MC_BAD_FORMAT))) wrong = error;
    }
    return wrong;
}

/* The meta commands. */
typedef struct {
    vc_mc_name name;
    vc_mc_action action;
    unsigned first;       /* word that is a flag */
    const char *repeated; /* the flags that the reply repeats */
    const char *too_many; /* the error if there are too many words */
    const char *invalid;  /* that of any flag but an opaque; NULL: each has its own */
} form;

#define TOO_LONG "CLIENT_ERROR options flags too long"
#define INVALID "CLIENT_ERROR invalid or duplicate flag"

static const form FORMS[] = {
    {VC_MC_MG, VC_MC_READ, 2, "Oktscfhl", "CLIENT_ERROR options flags are too long", NULL},
    {VC_MC_MS, VC_MC_WRITE, 3, "Okcs", TOO_LONG, NULL},
    {VC_MC_MD, VC_MC_REMOVE, 2, "Ok", TOO_LONG, INVALID},
    {VC_MC_MA, VC_MC_COUNT, 2, "Oktcv", TOO_LONG, INVALID},
};

static const char *read_flags(const form *is, const vc_text *words, unsigned count,
                              vc_mc_command *command, flags *given) {
    if (words[1].length > VC_MC_KEY_BYTES) return VC_MC_BAD_FORMAT;
    command->key = words[1];
    if (count > WORDS_MAX) return is->too_many;
    const char *error = read_letters(words + is->first, count - is->first, command, given);
    if (error) return is->invalid ? is->invalid : error;
    for (unsigned i = is->first; i < count; i++) {
        char letter = *words[i].at;
        if (letter == 'O' && words[i].length > OPAQUE_BYTES_MAX)
            return "CLIENT_ERROR opaque token too long";
        if (strchr(is->repeated, letter)) command->words[command->word_count++] = words[i];
    }
    command->wants_earlier_ttl = is_before(given, 't', 'T') || is_before(given, 't', 'N');
    return NULL;
}

/* Let a command have no cas unique that any version has, if it was given as 0. */
static void use_cas(const flags *given, vc_mc_command *command) {
    if (has(given, 'C') && !command->cas) command->cas = VC_MC_NO_VERSION;
}

static const char *use_get(const flags *given, vc_mc_command *command) {
    /* The later one counts. */
    if (is_before(given, 'N', 'T')) command->initial_exptime = command->exptime;
    command->is_recache_late = is_before(given, 'T', 'R');
    if (has(given, 'C')) command->known_cas = command->cas;
    return NULL;
}

static const char *use_put(const flags *given, vc_mc_command *command) {
    static const vc_mc_name MODES[] = {
        ['S'] = VC_MC_SET,    ['E'] = VC_MC_ADD,     ['R'] = VC_MC_REPLACE,
        ['A'] = VC_MC_APPEND, ['P'] = VC_MC_PREPEND,
    };
    char mode = has(given, 'M') ? given->mode : 'S';
    if (!mode || !strchr("SERAP", mode)) return "CLIENT_ERROR invalid mode for ms M token";
    command->mode = MODES[(uint8_t)mode];
    bool is_edit = command->mode == VC_MC_APPEND || command->mode == VC_MC_PREPEND;
    command->creates = command->creates && is_edit;
    if (!is_edit) use_cas(given, command);
    if (command->mode == VC_MC_ADD) command->cas = 0; /* As in memcached. */
    return NULL;
}

static const char *use_delete(const flags *given, vc_mc_command *command) {
    use_cas(given, command);
    return NULL;
}

static const char *use_count(const flags *given, vc_mc_command *command) {
    char mode = has(given, 'M') ? given->mode : 'I';
    if (!mode || !strchr("I+D-", mode)) return "CLIENT_ERROR invalid mode for ma M token";
    command->is_decrement = mode == 'D' || mode == '-';
    if (!has(given, 'D')) command->delta = 1;
    /* The later one counts. */
    if (command->has_exptime && !is_before(given, 'T', 'N'))
        command->initial_exptime = command->exptime;
    return NULL;
}

static const char *parse_debug(const vc_text *words, unsigned count, vc_mc_command *command) {
    command->name = VC_MC_ME;
    command->action = VC_MC_READ;
    command->is_debug = command->is_peek = true;
    if (count < 2 || words[1].length > VC_MC_KEY_BYTES) return VC_MC_BAD_FORMAT;
    command->key = words[1];
    command->is_base64 = count > 2 && vc_text_is(words[2], "b");
    return command->is_base64 && !vc_mc_decode_key(command) ? VC_MC_BAD_FORMAT : NULL;
}

const char *vc_mc_parse_meta(const vc_text *words, unsigned count, vc_mc_command *command,
                             const vc_text **size) {
    static const char *(*const USES[])(const flags *, vc_mc_command *) = {
        use_get,
        use_put,
        use_delete,
        use_count,
    };
    flags given = {0};
    unsigned i = 0;
    command->form = VC_MC_META;
    if (words[0].at[1] == 'e') return parse_debug(words, count, command);
    if (words[0].at[1] == 'n') {
        command->name = VC_MC_MN;
        command->action = VC_MC_ANSWERING;
        command->answer = "MN";
        command->form = VC_MC_TEXT;
        return NULL;
    }
    while (*vc_mc_names[FORMS[i].name] != 'm' || vc_mc_names[FORMS[i].name][1] != words[0].at[1])
        i++;
    const form *is = &FORMS[i];
    command->name = is->name;
    command->action = is->action;
    if (count < 2) return "ERROR";
    if (count < is->first) return VC_MC_BAD_FORMAT;
    if (is->action == VC_MC_WRITE) *size = &words[2];
    const char *error = read_flags(is, words, count, command, &given);
    return error ? error : USES[i](&given, command);
}
