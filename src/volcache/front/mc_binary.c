#include "mc_parts.h"

enum {
    REQUEST = 0x80,
    RESPONSE = 0x81,
    HEADER_BYTES = 24,
    QUIT = 0x07,
    QUIT_QUIETLY = 0x17,
    VERSION = 0x0B,
    VERBOSITY = 0x1B,
    SASL_AUTH = 0x21,
    /* memcached accepts no longer name of a mechanism; a user and a token are shorter. */
    MECHANISM_BYTES_MAX = 32,
    CREDENTIALS_BYTES_MAX = 4096,
};
/* An arithmetic request with this time does not store the initial number. */
static const uint64_t NO_INITIAL = 0xFFFFFFFF;

typedef enum {
    OK = 0,
    NOT_FOUND = 1,
    EXISTS = 2,
    TOO_LARGE = 3,
    INVALID = 4,
    NOT_STORED = 5,
    NON_NUMERIC = 6,
    AUTH_FAILURE = 0x20,
    AUTH_CONTINUE = 0x21,
    UNKNOWN = 0x81,
    OUT_OF_MEMORY = 0x82,
} status;

/* What a request of an opcode consists of. `kind`: see below; 0: the opcode is unknown. */
typedef struct {
    vc_mc_name name;
    vc_mc_action action;
    uint8_t extras; /* bytes */
    uint8_t kind;
} form;

enum {
    BARE = 1, /* nothing of the following */
    KEY = 2,
    MAY_HAVE_KEY = 4,
    VALUE = 8,
    MAY_LACK_EXTRAS = 16,
    QUIET = 32,    /* a success is not answered, of a read: a miss */
    WITH_KEY = 64, /* the key is returned */
};

static const form FORMS[] = {
    [0x00] = {VC_MC_GET, VC_MC_READ, 0, KEY},
    [0x01] = {VC_MC_SET, VC_MC_WRITE, 8, KEY | VALUE},
    [0x02] = {VC_MC_ADD, VC_MC_WRITE, 8, KEY | VALUE},
    [0x03] = {VC_MC_REPLACE, VC_MC_WRITE, 8, KEY | VALUE},
    [0x04] = {VC_MC_DELETE, VC_MC_REMOVE, 0, KEY},
    [0x05] = {VC_MC_INCR, VC_MC_COUNT, 20, KEY},
    [0x06] = {VC_MC_DECR, VC_MC_COUNT, 20, KEY},
    [QUIT] = {VC_MC_QUIT, VC_MC_ANSWERING, 0, BARE},
    [0x08] = {VC_MC_FLUSH_ALL, VC_MC_FLUSHING, 4, MAY_LACK_EXTRAS},
    [0x09] = {VC_MC_GET, VC_MC_READ, 0, KEY | QUIET},
    [0x0A] = {VC_MC_NOOP, VC_MC_ANSWERING, 0, BARE},
    [VERSION] = {VC_MC_VERSION, VC_MC_ANSWERING, 0, BARE},
    [0x0C] = {VC_MC_GET, VC_MC_READ, 0, KEY | WITH_KEY},
    [0x0D] = {VC_MC_GET, VC_MC_READ, 0, KEY | QUIET | WITH_KEY},
    [0x0E] = {VC_MC_APPEND, VC_MC_WRITE, 0, KEY | VALUE},
    [0x0F] = {VC_MC_PREPEND, VC_MC_WRITE, 0, KEY | VALUE},
    [0x10] = {VC_MC_STATS, VC_MC_REPORT, 0, MAY_HAVE_KEY},
    [0x11] = {VC_MC_SET, VC_MC_WRITE, 8, KEY | VALUE | QUIET},
    [0x12] = {VC_MC_ADD, VC_MC_WRITE, 8, KEY | VALUE | QUIET},
    [0x13] = {VC_MC_REPLACE, VC_MC_WRITE, 8, KEY | VALUE | QUIET},
    [0x14] = {VC_MC_DELETE, VC_MC_REMOVE, 0, KEY | QUIET},
    [0x15] = {VC_MC_INCR, VC_MC_COUNT, 20, KEY | QUIET},
    [0x16] = {VC_MC_DECR, VC_MC_COUNT, 20, KEY | QUIET},
    [QUIT_QUIETLY] = {VC_MC_QUIT, VC_MC_ANSWERING, 0, QUIET},
    [0x18] = {VC_MC_FLUSH_ALL, VC_MC_FLUSHING, 4, MAY_LACK_EXTRAS | QUIET},
    [0x19] = {VC_MC_APPEND, VC_MC_WRITE, 0, KEY | VALUE | QUIET},
    [0x1A] = {VC_MC_PREPEND, VC_MC_WRITE, 0, KEY | VALUE | QUIET},
    [VERBOSITY] = {VC_MC_VERBOSITY, VC_MC_ANSWERING, 4, MAY_LACK_EXTRAS},
    [0x1C] = {VC_MC_TOUCH, VC_MC_TOUCHING, 4, KEY},
    [0x1D] = {VC_MC_GAT, VC_MC_READ, 4, KEY},
    [0x1E] = {VC_MC_GAT, VC_MC_READ, 4, KEY | QUIET},
    [0x20] = {VC_MC_AUTH, VC_MC_LOGIN, 0, BARE},
    [SASL_AUTH] = {VC_MC_AUTH, VC_MC_LOGIN, 0, KEY | VALUE},
    [0x22] = {VC_MC_AUTH, VC_MC_LOGIN, 0, KEY | VALUE},
    [0x23] = {VC_MC_GAT, VC_MC_READ, 4, KEY | WITH_KEY},
    [0x24] = {VC_MC_GAT, VC_MC_READ, 4, KEY | QUIET | WITH_KEY},
};
static const form NO_FORM = {.name = VC_MC_UNKNOWN};

/* The header of a request. */
typedef struct {
    uint8_t opcode;
    const form *form;
    uint64_t extras, key, body, value;
    bool is_whole; /* the body has room for extras and key */
} header;

/* Numbers have their highest byte first. */
static uint64_t number_at(const char *at, unsigned bytes) {
    uint64_t number = 0;
    for (unsigned i = 0; i < bytes; i++) number = number << 8 | (uint8_t)at[i];
    return number;
}

static char *put_number(char *to, uint64_t number, unsigned bytes) {
    for (unsigned i = bytes; i--; number >>= 8) to[i] = (char)(uint8_t)number;
    return to + bytes;
}

static vc_step mc_binary_answer(vc_mc_command *command, status code, const char *text) {
    command->action = VC_MC_ANSWERING;
    command->status = code;
    command->answer = text;
    command->is_error = code && code != AUTH_CONTINUE;
    return VC_STEP_NEXT;
}

/* --- Requests ----------------------------------------------------------------------------- */

/* What comes is no request, and cannot be answered. */
static vc_step close_silently(size_t length, vc_mc_command *command) {
    vc_mc_clear(command, VC_MC_UNKNOWN, length);
    command->action = VC_MC_ANSWERING;
    command->form = VC_MC_BINARY;
    command->is_error = command->closes = true;
    return VC_STEP_NEXT;
}

/* Answer a request that is not as it should be. */
static vc_step mc_binary_refuse(const header *is, size_t length, vc_mc_command *command) {
    bool is_unknown = is->form == &NO_FORM;
    if (is_unknown && is->is_whole && is->key <= VC_MC_KEY_BYTES) {
        command->used = HEADER_BYTES;
        command->skipped = is->body;
        return mc_binary_answer(command, UNKNOWN, "Unknown command");
    }
    command->used = length;
    command->closes = true;
    return is->is_whole ? mc_binary_answer(command, INVALID, "Invalid arguments")
                        : mc_binary_answer(command, UNKNOWN, "Unknown command");
}

/* Whether the message is "who acts NUL who that is NUL the proof"; the user may be any. */
static bool find_token(vc_mc_command *command) {
    vc_text from = command->value;
    const char *first = memchr(from.at, 0, from.length), *end = from.at + from.length;
    const char *second = first ? memchr(first + 1, 0, (size_t)(end - first - 1)) : NULL;
    if (!second || memchr(second + 1, 0, (size_t)(end - second - 1))) return false;
    command->value = (vc_text){second + 1, (size_t)(end - second - 1)};
    return true;
}

/* Answer a step of SASL: the list of mechanisms, the first or the second message. */
static vc_step parse_login(vc_mc_stream *stream, vc_mc_command *command) {
    vc_text mechanism = command->key;
    bool is_first = command->opcode == SASL_AUTH;
    bool is_plain = vc_text_is_name(mechanism, "PLAIN");
    bool is_right = is_first ? is_plain : stream->is_sasl_step;
    command->key.length = 0;
    stream->has_sasl = stream->has_sasl || stream->rights.wants_credentials;
    if (!stream->has_sasl) return mc_binary_answer(command, UNKNOWN, "Unknown command");
    if (!mechanism.length) return mc_binary_answer(command, OK, "PLAIN");
    if (mechanism.length > MECHANISM_BYTES_MAX)
        return mc_binary_answer(command, INVALID, "Invalid arguments");
    if (command->is_too_large || command->value.length > CREDENTIALS_BYTES_MAX)
        return mc_binary_answer(command, OUT_OF_MEMORY, "Out of memory");
    command->is_sasl_step = is_first && is_plain && !command->value.length;
    if (command->is_sasl_step) return mc_binary_answer(command, AUTH_CONTINUE, "");
    if (is_right && find_token(command)) return VC_STEP_NEXT;
    return mc_binary_answer(command, AUTH_FAILURE, "Auth failure.");
}

/* Read the numbers in the extras. */
static void read_extras(const header *is, const char *at, vc_mc_command *command) {
    if (is->form->action == VC_MC_COUNT) {
        command->delta = number_at(at, 8);
        command->initial = number_at(at + 8, 8);
        command->initial_exptime = (int64_t)number_at(at + 16, 4);
        command->creates = number_at(at + 16, 4) != NO_INITIAL;
        command->is_decrement = is->form->name == VC_MC_DECR;
    } else if (is->extras == 8) {
        command->flags = (uint32_t)number_at(at, 4);
        command->exptime = (int64_t)number_at(at + 4, 4);
    } else if (is->extras == 4) {
        command->exptime = (int64_t)number_at(at, 4);
        command->has_exptime = is->form->action == VC_MC_READ;
    }
}

/* Let a command be what its form is. */
static vc_step mc_binary_finish(const header *is, vc_mc_stream *stream, vc_mc_command *command) {
    bool is_edit = is->form->name == VC_MC_APPEND || is->form->name == VC_MC_PREPEND;
    switch (is->form->action) {
    case VC_MC_WRITE:
        /* As in memcached: whatever the request is. */
        if (!command->cas || is_edit || command->is_too_large) return VC_STEP_NEXT;
        command->name = VC_MC_CAS;
        command->mode = VC_MC_SET;
        return VC_STEP_NEXT;
    case VC_MC_LOGIN: return parse_login(stream, command);
    case VC_MC_REPORT:
        command->value = command->key;
        command->key.length = 0;
        return VC_STEP_NEXT;
    case VC_MC_ANSWERING:
        command->closes = is->form->name == VC_MC_QUIT;
        if (is->form->kind & QUIET) return VC_STEP_NEXT;
        return mc_binary_answer(command, OK, is->opcode == VERSION ? "1.6.18" : "");
    default: return VC_STEP_NEXT;
    }
}

/* Find out whether a header is as its opcode needs it. */
static bool mc_binary_read_header(const char *data, header *is) {
    is->opcode = (uint8_t)data[1];
    is->key = number_at(data + 2, 2);
    is->extras = (uint8_t)data[4];
    is->body = number_at(data + 8, 4);
    is->is_whole = is->key + is->extras <= is->body;
    is->value = is->is_whole ? is->body - is->key - is->extras : 0;
    bool is_known = is->opcode < sizeof(FORMS) / sizeof(*FORMS) && FORMS[is->opcode].kind;
    is->form = is_known ? &FORMS[is->opcode] : &NO_FORM;
    unsigned kind = is->form->kind;
    bool is_key_right = kind & MAY_HAVE_KEY || !is->key == !(kind & KEY);
    bool lacks_extras = kind & MAY_LACK_EXTRAS && !is->extras;
    return is_known && is->is_whole && is_key_right && is->key <= VC_MC_KEY_BYTES &&
           (is->extras == is->form->extras || lacks_extras) && (!is->value || kind & VALUE);
}

vc_step vc_mc_parse_binary(uint64_t value_size, vc_mc_stream *stream, const char *data,
                           size_t length, vc_mc_command *command) {
    header is;
    command->used = 0;
    if ((uint8_t)data[0] != REQUEST) return close_silently(length, command);
    stream->base.needed = HEADER_BYTES;
    if (length < HEADER_BYTES) return VC_STEP_MORE;
    bool is_right = mc_binary_read_header(data, &is);
    bool is_too_large = is.value > value_size;
    size_t end = HEADER_BYTES + is.extras + is.key + (is_too_large ? 0 : is.value);
    stream->base.needed = end;
    if (is_right && length < end) return VC_STEP_MORE;
    const char *at = data + HEADER_BYTES;
    vc_mc_clear(command, is.form->name, end);
    command->action = is.form->action;
    command->mode = is.form->name;
    command->cas = number_at(data + 16, 8);
    command->form = VC_MC_BINARY;
    command->wants_value = true;
    command->opcode = is.opcode;
    command->is_too_large = is_too_large;
    memcpy(command->opaque, data + 12, 4);
    if (!is_right) return mc_binary_refuse(&is, length, command);
    command->key = (vc_text){at + is.extras, is.key};
    command->value = (vc_text){at + is.extras + is.key, is_too_large ? 0 : is.value};
    command->skipped = is_too_large ? is.value : 0;
    read_extras(&is, at, command);
    return mc_binary_finish(&is, stream, command);
}

/* --- Responses ---------------------------------------------------------------------------- */

/* Add a response, with flags and key if they are given. */
static void respond(const vc_mc_command *command, vc_out *out, unsigned code, uint64_t cas,
                    vc_text key, const uint32_t *flags, vc_text body) {
    unsigned extras = flags ? 4 : 0;
    char head[VC_MC_REPLY_BYTES], *to = head;
    *to++ = (char)RESPONSE;
    *to++ = (char)command->opcode;
    to = put_number(to, key.length, 2);
    *to++ = (char)extras;
    *to++ = 0;
    to = put_number(to, code, 2);
    to = put_number(to, extras + key.length + body.length, 4);
    to = vc_put_bytes(to, command->opaque, 4);
    to = put_number(to, cas, 8);
    if (flags) to = put_number(to, *flags, 4);
    if (key.length) to = vc_put_bytes(to, key.at, key.length);
    vc_mc_add_reply(out, head, (size_t)(to - head), body, "");
}

static void respond_text(const vc_mc_command *command, vc_out *out, unsigned code,
                         const char *text) {
    respond(command, out, code, 0, VC_MC_NONE, NULL, vc_text_of(text));
}

/* Answer a result that is no success, as memcached does. */
static void mc_binary_fail(const vc_mc_command *command, const vc_mc_outcome *outcome,
                           vc_out *out) {
    static const struct {
        status status;
        const char *text;
    } ANSWERS[VC_MC_RESULTS] = {
        [VC_MC_MISS] = {NOT_FOUND, "Not found"},
        [VC_MC_NOT_FOUND] = {NOT_FOUND, "Not found"},
        [VC_MC_EXISTS] = {EXISTS, "Data exists for key."},
        [VC_MC_NOT_STORED] = {NOT_STORED, "Not stored."},
        [VC_MC_TOO_LARGE] = {TOO_LARGE, "Too large."},
        [VC_MC_BAD_KEY] = {INVALID, "Invalid arguments"},
        [VC_MC_NON_NUMERIC] = {NON_NUMERIC, "Non-numeric server-side value for incr or decr"},
        [VC_MC_UNAUTHORIZED] = {AUTH_FAILURE, "Auth failure."},
        [VC_MC_DENIED] = {AUTH_FAILURE, "Auth failure."},
        [VC_MC_FORBIDDEN] = {AUTH_FAILURE, "Auth failure."},
        [VC_MC_FAILED] = {OUT_OF_MEMORY, "Out of memory"},
    };
    vc_mc_result result = vc_mc_shown(command, outcome->result);
    vc_text text = outcome->text;
    if (result == VC_MC_NOT_STORED && command->mode == VC_MC_ADD) result = VC_MC_EXISTS;
    if (result == VC_MC_NOT_STORED && command->mode == VC_MC_REPLACE) result = VC_MC_NOT_FOUND;
    if (result != VC_MC_FAILED || !text.length) text = vc_text_of(ANSWERS[result].text);
    if (text.length > VC_MC_TEXT_BYTES_MAX) text.length = VC_MC_TEXT_BYTES_MAX;
    respond(command, out, ANSWERS[result].status, 0, VC_MC_NONE, NULL, text);
}

/* Answer lines "STAT name text" with a response for each, and an empty one after the last. */
static void mc_binary_report(const vc_mc_command *command, vc_text lines, vc_out *out) {
    const char *at = lines.at, *end = lines.at + lines.length;
    while (at < end) {
        const char *name = (const char *)memchr(at, ' ', (size_t)(end - at)) + 1;
        const char *text = (const char *)memchr(name, ' ', (size_t)(end - name)) + 1;
        const char *stop = memchr(text, '\r', (size_t)(end - text));
        respond(command, out, OK, 0, (vc_text){name, (size_t)(text - 1 - name)}, NULL,
                (vc_text){text, (size_t)(stop - text)});
        at = stop + 2;
    }
    respond(command, out, OK, 0, VC_MC_NONE, NULL, VC_MC_NONE);
}

/* Answer a success, except a hit. */
static void succeed(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_out *out) {
    char digits[8];
    uint64_t cas = outcome->has_record ? outcome->record.stored_us : 0;
    if (outcome->result == VC_MC_TOUCHED) {
        respond(command, out, OK, cas, VC_MC_NONE, &outcome->record.flags, VC_MC_NONE);
    } else if (command->action == VC_MC_REPORT) {
        mc_binary_report(command, outcome->text, out);
    } else if (command->action == VC_MC_COUNT) {
        put_number(digits, outcome->number, 8);
        respond(command, out, OK, cas, VC_MC_NONE, NULL, (vc_text){digits, 8});
    } else if (outcome->result == VC_MC_AUTHENTICATED) {
        respond_text(command, out, OK, "Authenticated");
    } else {
        respond(command, out, OK, cas, VC_MC_NONE, NULL, VC_MC_NONE);
    }
}

void vc_mc_reply_binary(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_out *out) {
    bool is_known = command->opcode < sizeof(FORMS) / sizeof(*FORMS);
    uint8_t kind = is_known ? FORMS[command->opcode].kind : 0;
    const vc_record *record = &outcome->record;
    vc_text key = kind & WITH_KEY ? command->key : VC_MC_NONE;
    if (command->action == VC_MC_ANSWERING) {
        if (command->answer) respond_text(command, out, command->status, command->answer);
        return;
    }
    switch (outcome->result) {
    case VC_MC_HIT:
        respond(command, out, OK, record->stored_us, key, &record->flags,
                (vc_text){(const char *)outcome->value, record->length});
        return;
    case VC_MC_MISS:
        if (kind & QUIET) return;
        if (kind & WITH_KEY) respond(command, out, NOT_FOUND, 0, key, NULL, VC_MC_NONE);
        else mc_binary_fail(command, outcome, out);
        return;
    case VC_MC_STORED:
    case VC_MC_DELETED:
    case VC_MC_TOUCHED:
    case VC_MC_OK:
    case VC_MC_AUTHENTICATED:
        if (!(kind & QUIET)) succeed(command, outcome, out);
        return;
    default: mc_binary_fail(command, outcome, out);
    }
}
