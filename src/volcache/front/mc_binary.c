#include "mc_parts.h"

enum {
    REQUEST = 0x80,
    RESPONSE = 0x81,
    HEADER_BYTES = 24,
    NOT_FOUND = 1,
    EXISTS = 2,
    QUIET = 1,              /* answered only if there is something to say */
    WITH_KEY = 2,           /* returns the key */
};

/* The opcodes that are executed here; all others have no form. */
typedef struct {
    bool is_plain;
    vc_mc_name name;
    vc_mc_action action;
    uint8_t extras;
    bool has_key;
    uint8_t kind;
} form;

static const form FORMS[] = {
    [0x00] = {true, VC_MC_GET, VC_MC_READ, 0, true, 0},
    [0x01] = {true, VC_MC_SET, VC_MC_WRITE, 8, true, 0},
    [0x02] = {true, VC_MC_ADD, VC_MC_WRITE, 8, true, 0},
    [0x03] = {true, VC_MC_REPLACE, VC_MC_WRITE, 8, true, 0},
    [0x04] = {true, VC_MC_DELETE, VC_MC_REMOVE, 0, true, 0},
    [0x09] = {true, VC_MC_GET, VC_MC_READ, 0, true, QUIET},
    [0x0A] = {true, VC_MC_NOOP, VC_MC_NOTHING, 0, false, 0},
    [0x0C] = {true, VC_MC_GET, VC_MC_READ, 0, true, WITH_KEY},
    [0x0D] = {true, VC_MC_GET, VC_MC_READ, 0, true, QUIET | WITH_KEY},
    [0x11] = {true, VC_MC_SET, VC_MC_WRITE, 8, true, QUIET},
    [0x12] = {true, VC_MC_ADD, VC_MC_WRITE, 8, true, QUIET},
    [0x13] = {true, VC_MC_REPLACE, VC_MC_WRITE, 8, true, QUIET},
    [0x14] = {true, VC_MC_DELETE, VC_MC_REMOVE, 0, true, QUIET},
};

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

vc_mc_step vc_mc_parse_binary(const vc_mc_config *config, vc_mc_stream *stream, const char *data,
                              size_t length, vc_mc_command *command) {
    if ((uint8_t)data[0] != REQUEST) return VC_MC_PASS;
    stream->needed = HEADER_BYTES;
    if (length < HEADER_BYTES) return VC_MC_MORE;
    uint8_t opcode = (uint8_t)data[1], extras = (uint8_t)data[4];
    uint64_t key = number_at(data + 2, 2), body = number_at(data + 8, 4);
    if (opcode >= sizeof(FORMS) / sizeof(*FORMS) || !FORMS[opcode].is_plain) return VC_MC_PASS;
    const form *is = &FORMS[opcode];
    if (extras != is->extras || (key != 0) != is->has_key || key > VC_MC_KEY_BYTES)
        return VC_MC_PASS;
    uint64_t value = body - extras - key; /* Very large if the body is smaller than its parts. */
    if (value > (is->action == VC_MC_WRITE ? config->value_size : 0)) return VC_MC_PASS;
    stream->needed = HEADER_BYTES + body;
    if (length < stream->needed) return VC_MC_MORE;
    const char *at = data + HEADER_BYTES;
    *command = (vc_mc_command){
        .name = is->name,
        .action = is->action,
        .used = stream->needed,
        .key = {at + extras, key},
        .value = {at + extras + key, value},
        .flags = extras ? (uint32_t)number_at(at, 4) : 0,
        .exptime = extras ? (int64_t)number_at(at + 4, 4) : 0,
        .wants_value = true,
        .mode = is->name,
        .cas = number_at(data + 16, 8),
        .form = VC_MC_BINARY,
        .opcode = opcode,
    };
    memcpy(command->opaque, data + 12, 4);
    /* As in memcached: whatever the request is. */
    if (command->cas && is->action == VC_MC_WRITE) {
        command->name = VC_MC_CAS;
        command->mode = VC_MC_SET;
    }
    return VC_MC_NEXT;
}

/* Write a response whose parts before the value are given; the value is there already, or is
 * moved from where it is. */
static void respond(const vc_mc_command *command, vc_mc_out *out, unsigned status, uint64_t cas,
                    vc_text key, const uint32_t *flags, vc_text body) {
    unsigned extras = flags ? 4 : 0;
    char *start = out->at + out->used, *to = start + HEADER_BYTES + extras + key.length;
    memmove(to, body.at, body.length);
    out->used += HEADER_BYTES + extras + key.length + body.length;
    to = start;
    *to++ = (char)RESPONSE;
    *to++ = (char)command->opcode;
    to = put_number(to, key.length, 2);
    *to++ = (char)extras;
    *to++ = 0;
    to = put_number(to, status, 2);
    to = put_number(to, extras + key.length + body.length, 4);
    to = vc_mc_copy(to, command->opaque, 4);
    to = put_number(to, cas, 8);
    if (flags) to = put_number(to, *flags, 4);
    memcpy(to, key.at, key.length);
}

static void fail(const vc_mc_command *command, vc_mc_out *out, unsigned status) {
    static const char MISSING[] = "Not found", THERE[] = "Data exists for key.";
    vc_text none = {"", 0};
    vc_text text = status == NOT_FOUND ? (vc_text){MISSING, sizeof(MISSING) - 1}
                                       : (vc_text){THERE, sizeof(THERE) - 1};
    respond(command, out, status, 0, none, NULL, text);
}

void vc_mc_reply_binary(const vc_mc_command *command, const vc_mc_outcome *outcome,
                        vc_mc_out *out) {
    uint8_t kind = FORMS[command->opcode].kind;
    const vc_record *record = &outcome->record;
    vc_text none = {"", 0}, key = kind & WITH_KEY ? command->key : none;
    switch (outcome->result) {
    case VC_MC_HIT:
        respond(command, out, 0, record->stored_us, key, &record->flags,
                (vc_text){(const char *)outcome->value, record->length});
        return;
    case VC_MC_MISS:
        if (kind & QUIET) return;
        if (kind & WITH_KEY) respond(command, out, NOT_FOUND, 0, key, NULL, none);
        else fail(command, out, NOT_FOUND);
        return;
    case VC_MC_NOT_FOUND:
        fail(command, out, NOT_FOUND);
        return;
    case VC_MC_EXISTS:
        fail(command, out, EXISTS);
        return;
    case VC_MC_NOT_STORED:
        fail(command, out, command->mode == VC_MC_ADD ? EXISTS : NOT_FOUND);
        return;
    default:
        if (kind & QUIET) return;
        respond(command, out, 0, outcome->has_record ? record->stored_us : 0, none, NULL, none);
    }
}
