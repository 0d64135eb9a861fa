#include "mc_parts.h"

enum { DIGITS = 24 }; /* of a number, at most */

void vc_mc_add_reply(vc_out *out, const char *head, size_t length, vc_text value, const char *end) {
    char *to = out->at + out->used, *room_end = out->at + out->room;
    uintptr_t at = (uintptr_t)value.at;
    if (at >= (uintptr_t)to + length && at < (uintptr_t)room_end) to += at - (uintptr_t)to - length;
    else if (value.length) memmove(to + length, value.at, value.length);
    memcpy(to, head, length);
    vc_out_add(out, to, (size_t)(vc_put_text(to + length + value.length, end) - to));
}

/* Add a line of two parts. */
static void mc_replies_add_line(vc_out *out, const char *kind, vc_text text) {
    if (text.length > VC_MC_TEXT_BYTES_MAX) text.length = VC_MC_TEXT_BYTES_MAX;
    vc_mc_add_reply(out, kind, strlen(kind), text, "\r\n");
}

static vc_text number_text(char digits[DIGITS], uint64_t number) {
    return (vc_text){digits, (size_t)(vc_put_number(digits, number) - digits)};
}

static vc_text value_of(const vc_mc_outcome *outcome) {
    return (vc_text){(const char *)outcome->value, outcome->record.length};
}

/* --- Text --------------------------------------------------------------------------------- */

/* Add the line of a result that has no other form. */
static void add_result(const vc_mc_outcome *outcome, vc_mc_result result, vc_out *out) {
    static const char *const LINES[VC_MC_RESULTS] = {
        [VC_MC_STORED] = "STORED",
        [VC_MC_NOT_STORED] = "NOT_STORED",
        [VC_MC_EXISTS] = "EXISTS",
        [VC_MC_NOT_FOUND] = "NOT_FOUND",
        [VC_MC_DELETED] = "DELETED",
        [VC_MC_TOUCHED] = "TOUCHED",
        [VC_MC_AUTHENTICATED] = "STORED",
        [VC_MC_OK] = "OK",
        [VC_MC_TOO_LARGE] = "SERVER_ERROR object too large for cache",
        [VC_MC_UNAUTHORIZED] = "CLIENT_ERROR unauthenticated",
        [VC_MC_DENIED] = "CLIENT_ERROR authentication failure",
        [VC_MC_NON_NUMERIC] = "CLIENT_ERROR cannot increment or decrement non-numeric value",
        [VC_MC_FAILED] = "SERVER_ERROR ",
        [VC_MC_FORBIDDEN] = "CLIENT_ERROR ",
        [VC_MC_BAD_KEY] = "CLIENT_ERROR ",
    };
    bool has_text = result == VC_MC_FAILED || result == VC_MC_FORBIDDEN || result == VC_MC_BAD_KEY;
    mc_replies_add_line(out, LINES[result], has_text ? outcome->text : VC_MC_NONE);
}

static void mc_replies_add_value(const vc_mc_command *command, const vc_mc_outcome *outcome,
                                 vc_out *out) {
    char head[VC_MC_REPLY_BYTES], *to = vc_put_text(head, "VALUE ");
    to = vc_put_bytes(to, command->key.at, command->key.length);
    *to++ = ' ';
    to = vc_put_number(to, outcome->record.flags);
    *to++ = ' ';
    to = vc_put_number(to, outcome->record.length);
    if (command->has_cas) *to++ = ' ', to = vc_put_number(to, outcome->record.stored_us);
    to = vc_put_text(to, "\r\n");
    vc_mc_add_reply(out, head, (size_t)(to - head), value_of(outcome),
                    command->is_last ? "\r\nEND\r\n" : "\r\n");
}

/* Add lines of statistics, or the list of instances. */
static void add_report(const vc_mc_command *command, vc_text text, vc_out *out) {
    char head[VC_MC_REPLY_BYTES], *to = head;
    bool is_list = command->action == VC_MC_LISTING;
    const char *end = is_list ? "\r\nEND\r\n" : "END\r\n";
    if (vc_text_is(command->value, "reset") && !is_list) end = "RESET\r\n";
    if (is_list) {
        to = vc_put_text(to, "CONFIG cluster 0 ");
        to = vc_put_text(vc_put_number(to, text.length), "\r\n");
    }
    vc_mc_add_reply(out, head, (size_t)(to - head), text, end);
}

void vc_mc_reply_text(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_out *out) {
    vc_mc_result result = vc_mc_shown(command, outcome->result);
    bool reports = command->action == VC_MC_REPORT || command->action == VC_MC_LISTING;
    char digits[DIGITS];
    if (command->is_silent) return;
    if (command->action == VC_MC_ANSWERING) {
        if (command->answer) mc_replies_add_line(out, command->answer, VC_MC_NONE);
    } else if (result == VC_MC_HIT) {
        mc_replies_add_value(command, outcome, out);
    } else if (result == VC_MC_MISS) {
        if (command->is_last) mc_replies_add_line(out, "END", VC_MC_NONE);
    } else if (result == VC_MC_STORED && command->action == VC_MC_COUNT) {
        mc_replies_add_line(out, "", number_text(digits, outcome->number));
    } else if (reports && result == VC_MC_OK) {
        add_report(command, outcome->text, out);
    } else if (reports && result == VC_MC_NOT_FOUND) {
        mc_replies_add_line(out, "ERROR", VC_MC_NONE);
    } else {
        add_result(outcome, result, out);
    }
}

/* --- Meta --------------------------------------------------------------------------------- */

/* Return the number after a letter. */
static int64_t number_of(char letter, const vc_mc_command *command, const vc_mc_outcome *outcome) {
    const vc_record *record = &outcome->record;
    switch (letter) {
    case 't': return outcome->ttl_ms < 0 ? -1 : (outcome->ttl_ms + 999) / 1000;
    case 'c': return outcome->has_record ? (int64_t)record->stored_us : 0;
    case 'f': return record->flags;
    case 'h': return outcome->idle >= 0;
    case 'l': return outcome->idle > 0 ? outcome->idle : 0;
    default: /* 's' */ return outcome->has_record ? record->length : (int64_t)command->value.length;
    }
}

/* Write the flags that a reply repeats, each with a space before it; without `is_full`, only
 * opaque and key. */
static char *put_flags(char *to, const vc_mc_command *command, const vc_mc_outcome *outcome,
                       bool is_full) {
    for (unsigned i = 0; i < command->word_count; i++) {
        vc_text word = command->words[i];
        char letter = *word.at;
        if ((!is_full && letter != 'O' && letter != 'k') || letter == 'v') continue;
        *to++ = ' ';
        if (letter == 'O') {
            to = vc_put_bytes(to, word.at, word.length);
            continue;
        }
        *to++ = letter;
        if (letter == 'k' && command->is_base64) {
            to = vc_put_text(vc_put_base64(to, command->key), " b");
        } else if (letter == 'k') {
            to = vc_put_bytes(to, command->key.at, command->key.length);
        } else {
            int64_t number = number_of(letter, command, outcome);
            if (number < 0) *to++ = '-';
            to = vc_put_number(to, (uint64_t)(number < 0 ? -number : number));
        }
    }
    return to;
}

static void add_debug(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_out *out) {
    char head[VC_MC_REPLY_BYTES], *to = vc_put_text(head, "ME ");
    int64_t ttl_ms = outcome->ttl_ms;
    to = command->is_base64 ? vc_put_base64(to, command->key)
                            : vc_put_bytes(to, command->key.at, command->key.length);
    to = vc_put_text(to, " exp=");
    if (ttl_ms) *to++ = '-';
    to = vc_put_number(to, ttl_ms < 0 ? 1 : ((uint64_t)ttl_ms + 999) / 1000);
    to = vc_put_number(vc_put_text(to, " cas="), outcome->record.stored_us);
    to = vc_put_number(vc_put_text(to, " size="), outcome->record.size);
    vc_mc_add_reply(out, head, (size_t)(to - head), VC_MC_NONE, "\r\n");
}

/* Answer a hit, or a number. */
static void add_success(const char *code, const vc_mc_command *command,
                        const vc_mc_outcome *outcome, bool is_full, vc_out *out) {
    char head[VC_MC_REPLY_BYTES], digits[DIGITS], *to = head;
    bool is_number = command->action == VC_MC_COUNT;
    bool has_value = command->wants_value &&
                     (is_number ? *code == 'H'
                                : outcome->result == VC_MC_HIT &&
                                      outcome->record.stored_us != command->known_cas);
    vc_text value = !has_value  ? VC_MC_NONE
                    : is_number ? number_text(digits, outcome->number)
                                : value_of(outcome);
    to = vc_put_text(to, has_value ? "VA " : code);
    if (has_value) to = vc_put_number(to, value.length);
    to = put_flags(to, command, outcome, is_full);
    if (outcome->token) *to++ = ' ', *to++ = outcome->token;
    to = vc_put_text(to, "\r\n");
    vc_mc_add_reply(out, head, (size_t)(to - head), value, has_value ? "\r\n" : "");
}

void vc_mc_reply_meta(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_out *out) {
    static const char *const CODES[VC_MC_RESULTS] = {
        [VC_MC_HIT] = "HD",        [VC_MC_MISS] = "EN",   [VC_MC_STORED] = "HD",
        [VC_MC_NOT_STORED] = "NS", [VC_MC_EXISTS] = "EX", [VC_MC_NOT_FOUND] = "NF",
        [VC_MC_DELETED] = "HD",
    };
    vc_mc_result result = vc_mc_shown(command, outcome->result);
    const char *code = CODES[result];
    bool is_hit = result == VC_MC_HIT;
    if (!code) {
        add_result(outcome, result, out);
    } else if (is_hit && command->is_debug) {
        add_debug(command, outcome, out);
    } else if (!command->is_quiet || is_hit || (*code != 'H' && *code != 'E') || code[1] == 'X') {
        bool is_full = is_hit || command->action == VC_MC_WRITE ||
                       (command->action == VC_MC_COUNT && *code == 'H');
        add_success(code, command, outcome, is_full, out);
    }
}
