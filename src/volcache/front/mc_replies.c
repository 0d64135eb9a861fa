#include "mc_parts.h"

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
    at = vc_mc_put_text(at, end);
    out->used = (size_t)(at - out->at);
}

/* Add a line of two parts. */
static void add_line(vc_mc_out *out, const char *kind, vc_text text) {
    char *to = vc_mc_put_text(out->at + out->used, kind);
    if (text.length > VC_MC_TEXT_BYTES_MAX) text.length = VC_MC_TEXT_BYTES_MAX;
    if (text.length) to = vc_mc_copy(to, text.at, text.length);
    out->used = (size_t)(vc_mc_put_text(to, "\r\n") - out->at);
}

/* --- Text --------------------------------------------------------------------------------- */

/* Add the line of a result that has no other form. */
static void add_result(const vc_mc_outcome *outcome, vc_mc_result result, vc_mc_out *out) {
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
    add_line(out, LINES[result], has_text ? outcome->text : (vc_text){"", 0});
}

static void add_value(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_mc_out *out) {
    char head[VC_MC_REPLY_BYTES], *to = vc_mc_put_text(head, "VALUE ");
    to = vc_mc_copy(to, command->key.at, command->key.length);
    *to++ = ' ';
    to = vc_put_number(to, outcome->record.flags);
    *to++ = ' ';
    to = vc_put_number(to, outcome->record.length);
    if (command->has_cas) *to++ = ' ', to = vc_put_number(to, outcome->record.stored_us);
    to = vc_mc_put_text(to, "\r\n");
    add_reply(out, head, (size_t)(to - head), outcome,
              command->is_last ? "\r\nEND\r\n" : "\r\n");
}

/* Add lines of statistics, or the list of instances. */
static void add_report(const vc_mc_command *command, const vc_mc_outcome *outcome,
                       vc_mc_out *out) {
    char head[VC_MC_REPLY_BYTES], *to = head;
    bool is_list = command->action == VC_MC_LISTING;
    if (vc_mc_is_word(command->value, "reset") && !is_list) {
        add_reply(out, "", 0, NULL, "RESET\r\n");
        return;
    }
    if (is_list) {
        to = vc_mc_put_text(to, "CONFIG cluster 0 ");
        to = vc_mc_put_text(vc_put_number(to, outcome->text.length), "\r\n");
    }
    vc_mc_outcome text = {.value = (uint8_t *)outcome->text.at};
    text.record.length = (uint32_t)outcome->text.length;
    add_reply(out, head, (size_t)(to - head), text.value ? &text : NULL,
              is_list ? "\r\nEND\r\n" : "END\r\n");
}

void vc_mc_reply_text(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_mc_out *out) {
    vc_mc_result result = vc_mc_shown(command, outcome->result);
    bool reports = command->action == VC_MC_REPORT || command->action == VC_MC_LISTING;
    if (command->is_silent) return;
    if (command->action == VC_MC_ANSWERING) {
        if (command->answer) add_line(out, command->answer, (vc_text){"", 0});
    } else if (result == VC_MC_HIT) {
        add_value(command, outcome, out);
    } else if (result == VC_MC_MISS) {
        add_reply(out, "", 0, NULL, command->is_last ? "END\r\n" : "");
    } else if (result == VC_MC_STORED && command->action == VC_MC_COUNT) {
        out->used = (size_t)(vc_put_number(out->at + out->used, outcome->number) - out->at);
        add_line(out, "", (vc_text){"", 0});
    } else if (reports && result == VC_MC_OK) {
        add_report(command, outcome, out);
    } else if (reports && result == VC_MC_NOT_FOUND) {
        add_reply(out, "", 0, NULL, "ERROR\r\n");
    } else {
        add_result(outcome, result, out);
    }
}

/* --- Meta --------------------------------------------------------------------------------- */

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
        if ((!is_full && letter != 'O' && letter != 'k') || letter == 'v') continue;
        *to++ = ' ';
        if (letter == 'O') {
            to = vc_mc_copy(to, word.at, word.length);
            continue;
        }
        *to++ = letter;
        if (letter == 'k' && command->is_base64) {
            to = vc_mc_put_text(vc_mc_put_base64(to, command->key), " b");
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

static void add_debug(const vc_mc_command *command, const vc_mc_outcome *outcome,
                      vc_mc_out *out) {
    char head[VC_MC_REPLY_BYTES], *to = vc_mc_put_text(head, "ME ");
    int64_t ttl_ms = outcome->ttl_ms;
    to = command->is_base64 ? vc_mc_put_base64(to, command->key)
                            : vc_mc_copy(to, command->key.at, command->key.length);
    to = vc_mc_put_text(to, " exp=");
    if (ttl_ms) *to++ = '-';
    to = vc_put_number(to, ttl_ms < 0 ? 1 : ((uint64_t)ttl_ms + 999) / 1000);
    to = vc_put_number(vc_mc_put_text(to, " cas="), outcome->record.stored_us);
    to = vc_put_number(vc_mc_put_text(to, " size="), outcome->record.size);
    add_reply(out, head, (size_t)(to - head), NULL, "\r\n");
}

/* Answer a hit, or a number. */
static void add_success(const char *code, const vc_mc_command *command,
                        const vc_mc_outcome *outcome, bool is_full, vc_mc_out *out) {
    char head[VC_MC_REPLY_BYTES], digits[24], *to = head;
    bool is_number = command->action == VC_MC_COUNT;
    vc_mc_outcome value = *outcome;
    if (is_number) {
        value.value = (uint8_t *)digits;
        value.record.length = (uint32_t)(vc_put_number(digits, outcome->number) - digits);
    }
    bool has_value = command->wants_value && (is_number ? code[0] == 'H'
                                                        : outcome->result == VC_MC_HIT &&
                                                              outcome->record.stored_us !=
                                                                  command->known_cas);
    if (has_value) to = vc_put_number(vc_mc_put_text(to, "VA "), value.record.length);
    else to = vc_mc_put_text(to, code);
    to = put_flags(to, command, outcome, is_full);
    if (outcome->token) *to++ = ' ', *to++ = outcome->token;
    to = vc_mc_put_text(to, "\r\n");
    add_reply(out, head, (size_t)(to - head), has_value ? &value : NULL, has_value ? "\r\n" : "");
}

void vc_mc_reply_meta(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_mc_out *out) {
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
