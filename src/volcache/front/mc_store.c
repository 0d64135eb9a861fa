#include "mc_parts.h"

#include <stdlib.h>

enum {
    /* Longer ones are seconds since the epoch. */
    RELATIVE_SECONDS_MAX = 60 * 60 * 24 * 30,
    DIGITS_MAX = 20,
};
/* A longer time to live is shortened to this, which is 544 years. */
static const int64_t TTL_SECONDS_MAX = INT64_C(1) << 34;
static const int64_t SECOND_NS = 1000000000;

/* Inside of this file: the command is refused, and the outcome has the result. */
#define REFUSED ((vc_step) - 1)
/* Go on only after NEXT. */
#define TRY(call)                                \
    do {                                         \
        vc_step tried = (call);                  \
        if (tried != VC_STEP_NEXT) return tried; \
    } while (0)

static const vc_mc_config *config_of(const vc_mc_run *run) { return &run->mc->config; }
static const uint8_t *key_of(const vc_mc_run *run) { return (const uint8_t *)run->command->key.at; }

/* End with a result that tells of no record. */
static vc_step end(vc_mc_run *run, vc_mc_result result) {
    run->outcome.result = result;
    run->outcome.has_record = false;
    return VC_STEP_NEXT;
}

static vc_step mc_store_refuse(vc_mc_run *run, vc_mc_result result, const char *text) {
    end(run, result);
    run->outcome.text = vc_text_of(text);
    return REFUSED;
}

/* --- Times -------------------------------------------------------------------------------- */

/* Return how many milliseconds from now on a time is; at most twice the longest. */
static int64_t ms_until(const vc_mc_run *run, int64_t exptime) {
    if (exptime < 0) return -1;
    const vc_clocks *clocks = run->mc->by.clocks;
    int64_t past_ms = exptime > RELATIVE_SECONDS_MAX ? clocks->machine_us(clocks->context) / 1000
                                                     : 0;
    return (exptime < 2 * TTL_SECONDS_MAX ? exptime : 2 * TTL_SECONDS_MAX) * 1000 - past_ms;
}

/* Set when a record expires. Returns false for the past. */
static bool get_expiry(const vc_mc_run *run, int64_t exptime, uint64_t *expires_ms) {
    const vc_mc_config *config = config_of(run);
    int64_t most_ms = (config->max_ttl ? config->max_ttl : TTL_SECONDS_MAX) * 1000;
    *expires_ms = 0;
    int64_t ttl = config->default_ttl ? config->default_ttl : config->max_ttl;
    if (!exptime && !ttl) return true;
    int64_t ttl_ms = exptime ? ms_until(run, exptime) : ttl * 1000;
    if (ttl_ms <= 0) return false;
    *expires_ms = (uint64_t)(vc_now_ms(&run->mc->by) + (ttl_ms < most_ms ? ttl_ms : most_ms));
    return true;
}

/* Return how long a record still lives that expires at a time; -1: it does not expire. */
static int64_t ttl_of(const vc_mc_run *run, uint64_t expires_ms) {
    if (!expires_ms) return -1;
    int64_t left = (int64_t)expires_ms - vc_now_ms(&run->mc->by);
    return left > 0 ? left : 0;
}

/* --- Asking Python ------------------------------------------------------------------------ */

/* Let Python answer, if this thread may wait for it. */
static vc_step ask(vc_mc_run *run, vc_mc_asked *asked) {
    const vc_mc_config *config = config_of(run);
    if (!config->ask) return VC_STEP_CALL;
    asked->remote = run->stream->base.remote;
    asked->key = run->command->key;
    run->outcome.result = config->ask(config->ask_context, asked);
    run->outcome.text = asked->text;
    if (asked->is_broken) run->stream->base.closes = true;
    vc_mc_result result = run->outcome.result;
    return result == VC_MC_FAILED || result == VC_MC_TOO_LARGE ? REFUSED : VC_STEP_NEXT;
}

/* Have room for a reply and `more` bytes. */
static vc_step mc_store_reserve(vc_mc_run *run, size_t more) {
    vc_out *out = run->out;
    size_t room = VC_MC_REPLY_BYTES + more;
    if (out->room - out->used >= room) return VC_STEP_NEXT;
    if (out->used) return VC_STEP_FLUSH;
    if (!config_of(run)->ask) return VC_STEP_CALL;
    char *at = realloc(out->at, room);
    if (!at) return mc_store_refuse(run, VC_MC_FAILED, "out of memory");
    out->at = at;
    out->room = room;
    return VC_STEP_NEXT;
}

/* --- Reading ------------------------------------------------------------------------------ */

/* Ask for a record that cannot be read here: the disk has refused, another thread has moved it
 * meanwhile, or only the hot tier may have it, whose replies this thread may have to wait for. */
static vc_step ask_record(vc_mc_run *run, bool counts, size_t extra) {
    vc_mc_asked asked = {.question = counts ? VC_MC_ASK_GET : VC_MC_ASK_STAT};
    TRY(ask(run, &asked));
    if (run->outcome.result != VC_MC_HIT) return VC_STEP_NEXT;
    TRY(mc_store_reserve(run, asked.text.length + extra));
    run->outcome.record = asked.record;
    run->outcome.record.key = key_of(run);
    run->outcome.is_copy = asked.is_copy;
    run->outcome.has_record = true;
    run->outcome.value = (uint8_t *)run->out->at + run->out->used;
    if (asked.text.length) memcpy(run->outcome.value, asked.text.at, asked.text.length);
    return VC_STEP_NEXT;
}

/* `counts`: the lookup has not remembered that the key was asked for. */
static vc_step find_absent(vc_mc_run *run, bool is_read, bool counts, size_t extra) {
    run->absent = vc_find_absent(&run->wanted, counts);
    return run->absent ? VC_STEP_NEXT : ask_record(run, is_read, extra);
}

/* Read the record that was found into the room of the reply. */
static vc_step read_record(vc_mc_run *run, const vc_lookup *at, bool is_read, size_t extra) {
    vc_executor *by = &run->mc->by;
    vc_record *record = &run->outcome.record;
    uint8_t *bytes = (uint8_t *)run->out->at + run->out->used;
    vc_status status = vc_read_record(&run->wanted, at, false, config_of(run)->ask, bytes, record);
    if (status == VC_COLD) {
        run->stream->started_ns = run->started_ns;
        return vc_hand_over(&run->wanted, at) ? VC_STEP_DISK : VC_STEP_CALL;
    }
    by->functions->end_read(by->core);
    if (status != VC_OK) return ask_record(run, is_read, extra);
    vc_recent_prefetch(config_of(run)->reads, record->stored_us);
    run->read_ns = vc_monotonic_ns() - run->started_ns;
    run->outcome.has_record = !record->expires_ms || (int64_t)record->expires_ms > vc_now_ms(by);
    /* A copy of it has expired, too. */
    if (!run->outcome.has_record) run->absent = &by->counts.expired;
    run->outcome.value = bytes + record->prefix;
    return VC_STEP_NEXT;
}

/* Find the record of the key, with room for `extra` bytes after its value. If it `counts`, this is
 * a read of it. */
static vc_step mc_store_find(vc_mc_run *run, bool counts, size_t extra) {
    const vc_executor *by = &run->mc->by;
    size_t taken = VC_MC_REPLY_BYTES + extra, room = run->out->room - run->out->used;
    room = config_of(run)->ask ? SIZE_MAX : room > taken ? room - taken : 0;
    vc_lookup at;
    run->outcome.has_record = false;
    bool is_there = vc_find_record(&run->wanted, counts, room, &at);
    if (!is_there && vc_find_copy(&run->wanted, NULL) != VC_NO_COPY)
        return ask_record(run, counts, extra);
    if (!is_there) return find_absent(run, counts, !counts, extra);
    vc_step step = mc_store_reserve(run, at.size + extra);
    if (step == VC_STEP_NEXT) return read_record(run, &at, counts, extra);
    by->functions->end_read(by->core);
    return step;
}

/* --- Writing ------------------------------------------------------------------------------ */

/* Whether what is read decides on what is written. With a hot tier, all changes hold the lock. */
static bool needs_lock(const vc_mc_run *run) {
    const vc_mc_command *command = run->command;
    bool has_copies = run->mc->by.copies;
    switch (command->action) {
    case VC_MC_READ: return command->has_exptime || command->creates || command->has_recache;
    case VC_MC_WRITE: return has_copies || command->mode != VC_MC_SET || command->cas;
    case VC_MC_REMOVE:
        /* Who may wait asks Python, which does not wait for memcached with the lock. */
        return command->cas || (has_copies && !config_of(run)->ask);
    default: return command->action == VC_MC_TOUCHING || command->action == VC_MC_COUNT;
    }
}

/* Append a record. What the core cannot do alone, such as beginning a volume, is done by Python. */
static vc_step mc_store_append(vc_mc_run *run, vc_put *put) {
    vc_mc_asked asked = {.put = put};
    asked.question = put->record.stored_us ? VC_MC_ASK_TOUCH : VC_MC_ASK_PUT;
    put->ring = VC_RING_UNKNOWN;
    vc_status status = vc_put_record(&run->wanted, put);
    if (status == VC_GROUPED && !needs_lock(run) && !config_of(run)->ask) {
        run->stream->started_ns = run->started_ns;
        return vc_put_later(&run->wanted, put) ? VC_STEP_TOGETHER : VC_STEP_CALL;
    }
    if (status == VC_OK) {
        run->write_ns = put->took_ns;
        run->outcome.record = put->record;
    } else {
        TRY(ask(run, &asked));
        run->outcome.record = asked.record;
    }
    run->outcome.has_record = true;
    return VC_STEP_NEXT;
}

/* Delete the key. A copy in the hot tier decides whether there was a value. */
static vc_step erase(vc_mc_run *run, bool *existed) {
    vc_put put;
    bool asks = vc_find_copy(&run->wanted, NULL) != VC_NO_COPY ||
                (run->mc->by.copies && config_of(run)->ask);
    if (asks || vc_delete_record(&run->wanted, &put, existed) != VC_OK) {
        vc_mc_asked asked = {.question = VC_MC_ASK_DELETE};
        vc_step step = ask(run, &asked);
        *existed = run->outcome.result == VC_MC_DELETED;
        return step;
    }
    if (put.started_ns) run->write_ns = put.took_ns;
    return VC_STEP_NEXT;
}

/* Return the put of a value of its own, with `flags` of the command. */
static vc_put put_of(const vc_mc_run *run, vc_text value) {
    return (vc_put){
        .record =
            {
                .key_length = (uint16_t)run->command->key.length,
                .length = (uint32_t)value.length,
                .flags = run->command->flags,
            },
        .key = key_of(run),
        .value = (const uint8_t *)value.at,
    };
}

bool vc_mc_prepare_set(vc_mc_run *run, vc_put *put) {
    const vc_mc_command *command = run->command;
    if (command->action != VC_MC_WRITE || needs_lock(run) || command->is_too_large ||
        vc_mc_refuse_key(command->key, run->mc->by.key_size, run->mc->reason))
        return false;
    *put = put_of(run, command->value);
    return get_expiry(run, command->exptime, &put->record.expires_ms);
}

/* Store a value; one that has expired deletes what there is, and then there is no record. */
static vc_step store(vc_mc_run *run, vc_text value, int64_t exptime) {
    bool existed;
    vc_put put = put_of(run, value);
    if (get_expiry(run, exptime, &put.record.expires_ms)) {
        TRY(mc_store_append(run, &put));
    } else {
        TRY(erase(run, &existed));
        run->outcome.has_record = false;
        run->outcome.record = (vc_record){.expires_ms = 1};
    }
    run->outcome.result = VC_MC_STORED;
    return VC_STEP_NEXT;
}

/* Write the record that was found again, with what `changed` has of value and expiry. */
static vc_step rewrite(vc_mc_run *run, const vc_record *changed, const uint8_t *value) {
    const vc_record *record = &run->outcome.record;
    vc_put put = {
        .record = *changed,
        .type = record->type,
        .encoding = record->type + record->type_length,
        .cache = record->type + record->type_length + record->encoding_length,
        .key = key_of(run),
        .value = value,
    };
    return mc_store_append(run, &put);
}

/* Set when the record that was found expires. It stays the same version. */
static vc_step touch_found(vc_mc_run *run) {
    vc_record changed = run->outcome.record;
    bool existed;
    if (!get_expiry(run, run->command->exptime, &changed.expires_ms)) {
        vc_step step = erase(run, &existed);
        run->outcome.record.expires_ms = 1;
        return step;
    }
    /* As in memcached, whose times have whole seconds. */
    if (changed.expires_ms / 1000 == run->outcome.record.expires_ms / 1000) return VC_STEP_NEXT;
    return rewrite(run, &changed, run->outcome.value);
}

/* Refuse a key under which nothing can be stored. */
static vc_step check_key(vc_mc_run *run) {
    const char *reason = vc_mc_refuse_key(run->command->key, run->mc->by.key_size, run->mc->reason);
    return reason ? mc_store_refuse(run, VC_MC_BAD_KEY, reason) : VC_STEP_NEXT;
}

/* --- Gets --------------------------------------------------------------------------------- */

/* Tell of the record, and note that it was read. `before_ms`: when it expired before. */
static void note_read(vc_mc_run *run, uint64_t before_ms) {
    vc_mc_outcome *outcome = &run->outcome;
    vc_recent *reads = config_of(run)->reads;
    uint64_t version = outcome->record.stored_us;
    uint32_t read = 0;
    if (!run->mc->second) run->mc->second = vc_now_ms(&run->mc->by) / 1000;
    int64_t second = run->mc->second;
    if (run->command->form == VC_MC_META) {
        bool was_read = vc_recent_get(reads, version, &read);
        outcome->idle = !was_read ? -1 : second > read ? second - read : 0;
        bool is_before = run->command->wants_earlier_ttl;
        outcome->ttl_ms = ttl_of(run, is_before ? before_ms : outcome->record.expires_ms);
    }
    if (!run->command->is_peek && version) vc_recent_put(reads, version, (uint32_t)second);
}

/* Store an empty value, which the client has won the right to replace. */
static vc_step vivify(vc_mc_run *run) {
    TRY(check_key(run));
    TRY(store(run, VC_MC_NONE, run->command->initial_exptime));
    if (run->outcome.has_record)
        vc_recent_put(config_of(run)->won, run->outcome.record.stored_us, 0);
    run->outcome.result = VC_MC_HIT;
    run->outcome.token = 'W';
    run->outcome.value = (uint8_t *)run->out->at + run->out->used;
    /* Before the command there was none, of which "t" says that it does not expire. */
    note_read(run, 0);
    return VC_STEP_NEXT;
}

/* Find out who has the right to replace the record, and perhaps win it. */
static void mc_store_decide(vc_mc_run *run, uint64_t before_ms) {
    const vc_mc_command *command = run->command;
    vc_recent *won = config_of(run)->won;
    uint64_t version = run->outcome.record.stored_us;
    uint32_t number;
    if (vc_recent_get(won, version, &number)) {
        run->outcome.token = 'Z';
    } else if (command->has_recache) {
        uint64_t expires_ms = command->is_recache_late ? run->outcome.record.expires_ms : before_ms;
        int64_t ttl_ms = ttl_of(run, expires_ms);
        if (ttl_ms < 0 || (ttl_ms + 999) / 1000 * 1000 >= ms_until(run, command->recache)) return;
        vc_recent_put(won, version, 0);
        run->outcome.token = 'W';
    }
}

static vc_step mc_store_get(vc_mc_run *run) {
    const vc_mc_command *command = run->command;
    TRY(mc_store_find(run, command->wants_value || command->has_exptime, 0));
    if (!run->outcome.has_record && command->creates) return vivify(run);
    if (!run->outcome.has_record) return end(run, VC_MC_MISS);
    uint64_t before_ms = run->outcome.record.expires_ms;
    if (command->has_exptime) TRY(touch_found(run));
    run->outcome.result = VC_MC_HIT;
    run->outcome.has_record = true;
    if (command->form == VC_MC_META) mc_store_decide(run, before_ms);
    note_read(run, before_ms);
    /* Who holds the lock promotes nothing. */
    if (run->mc->by.copies && command->wants_value && !needs_lock(run) && !run->outcome.is_copy &&
        vc_find_copy(&run->wanted, NULL) != VC_COPY_FIRST)
        vc_count_read(&run->wanted, &run->outcome.record);
    return VC_STEP_NEXT;
}

/* --- Puts --------------------------------------------------------------------------------- */

/* Append or prepend to the value there is. */
static vc_step edit(vc_mc_run *run) {
    const vc_mc_command *command = run->command;
    vc_mc_outcome *outcome = &run->outcome;
    vc_text added = command->value;
    TRY(mc_store_find(run, true, added.length));
    if (!outcome->has_record && command->creates)
        return store(run, added, command->initial_exptime);
    if (!outcome->has_record) return end(run, VC_MC_NOT_STORED);
    vc_record changed = outcome->record;
    if (command->cas && command->cas != changed.stored_us) return end(run, VC_MC_EXISTS);
    if (changed.length + added.length > run->mc->by.value_size) return end(run, VC_MC_TOO_LARGE);
    bool is_append = command->mode == VC_MC_APPEND;
    if (!is_append) memmove(outcome->value + added.length, outcome->value, changed.length);
    if (added.length)
        memcpy(outcome->value + (is_append ? changed.length : 0), added.at, added.length);
    changed.length += (uint32_t)added.length;
    changed.stored_us = 0;
    TRY(rewrite(run, &changed, outcome->value));
    outcome->result = VC_MC_STORED;
    return VC_STEP_NEXT;
}

static vc_step mc_store_put(vc_mc_run *run) {
    const vc_mc_command *command = run->command;
    bool existed;
    TRY(check_key(run));
    if (command->is_too_large) {
        /* As in memcached, so that no client gets the value that it wanted to replace. */
        if (command->mode == VC_MC_SET) TRY(erase(run, &existed));
        return end(run, VC_MC_TOO_LARGE);
    }
    if (command->mode == VC_MC_APPEND || command->mode == VC_MC_PREPEND) return edit(run);
    if (command->mode == VC_MC_SET && !command->cas)
        return store(run, command->value, command->exptime);
    TRY(mc_store_find(run, false, 0));
    bool is_there = run->outcome.has_record;
    if (!is_there && command->cas) return end(run, VC_MC_NOT_FOUND);
    if (!is_there && command->mode == VC_MC_REPLACE) return end(run, VC_MC_NOT_STORED);
    if (is_there && command->mode == VC_MC_ADD) return end(run, VC_MC_NOT_STORED);
    if (is_there && command->cas && command->cas != run->outcome.record.stored_us)
        return end(run, VC_MC_EXISTS);
    return store(run, command->value, command->exptime);
}

/* --- Numbers ------------------------------------------------------------------------------ */

/* Begin with a number. */
static vc_step start_counting(vc_mc_run *run) {
    char digits[DIGITS_MAX + 4];
    run->outcome.number = run->command->initial;
    size_t length = (size_t)(vc_put_number(digits, run->command->initial) - digits);
    vc_step step = store(run, (vc_text){digits, length}, run->command->initial_exptime);
    bool is_before = run->command->wants_earlier_ttl;
    run->outcome.ttl_ms = is_before ? -1 : ttl_of(run, run->outcome.record.expires_ms);
    return step;
}

/* Write a number in place of the value that was found. As in memcached, a value does not become
 * shorter. */
static vc_step store_number(vc_mc_run *run, uint64_t number) {
    vc_mc_outcome *outcome = &run->outcome;
    vc_record found = outcome->record, changed = found;
    char digits[DIGITS_MAX + 4];
    bool existed, is_late = run->command->has_exptime &&
                            !get_expiry(run, run->command->exptime, &changed.expires_ms);
    if (is_late) return erase(run, &existed);
    size_t length = (size_t)(vc_put_number(digits, number) - digits);
    bool is_longer = length > found.length;
    memcpy(outcome->value, digits, length);
    if (is_longer) changed.length = (uint32_t)length;
    else memset(outcome->value + length, ' ', found.length - length);
    changed.stored_us = 0;
    uint32_t mark;
    TRY(rewrite(run, &changed, outcome->value));
    if (is_longer) return VC_STEP_NEXT;
    /* As in memcached, which changes the number in place. */
    vc_recent *const marks[] = {config_of(run)->won, config_of(run)->reads};
    for (int i = 0; i < 2; i++)
        if (vc_recent_get(marks[i], found.stored_us, &mark))
            vc_recent_put(marks[i], outcome->record.stored_us, mark);
    return VC_STEP_NEXT;
}

static vc_step count(vc_mc_run *run) {
    const vc_mc_command *command = run->command;
    vc_mc_outcome *outcome = &run->outcome;
    uint64_t number;
    vc_step step = check_key(run);
    if (step != VC_STEP_NEXT) return command->creates ? step : end(run, VC_MC_NOT_FOUND);
    TRY(mc_store_find(run, true, DIGITS_MAX));
    if (!outcome->has_record && command->creates) return start_counting(run);
    if (!outcome->has_record) return end(run, VC_MC_NOT_FOUND);
    if (!outcome->record.length) return end(run, VC_MC_NON_NUMERIC);
    if (command->cas && command->cas != outcome->record.stored_us) return end(run, VC_MC_EXISTS);
    vc_text value = {(const char *)outcome->value, outcome->record.length};
    if (!vc_mc_read_unsigned(value, UINT64_MAX, &number)) return end(run, VC_MC_NON_NUMERIC);
    if (!command->is_decrement) number += command->delta;
    else number = number > command->delta ? number - command->delta : 0;
    uint64_t before_ms = outcome->record.expires_ms;
    TRY(store_number(run, number));
    outcome->result = VC_MC_STORED;
    outcome->has_record = true;
    outcome->number = number;
    outcome->ttl_ms = ttl_of(run,
                             command->wants_earlier_ttl ? before_ms : outcome->record.expires_ms);
    return VC_STEP_NEXT;
}

/* --- All others --------------------------------------------------------------------------- */

static vc_step touch(vc_mc_run *run) {
    TRY(mc_store_find(run, true, 0));
    if (!run->outcome.has_record) return end(run, VC_MC_NOT_FOUND);
    TRY(touch_found(run));
    run->outcome.result = VC_MC_TOUCHED;
    run->outcome.has_record = true;
    note_read(run, 0);
    return VC_STEP_NEXT;
}

static vc_step delete(vc_mc_run *run) {
    uint64_t cas = run->command->cas;
    bool existed = false;
    if (cas) TRY(mc_store_find(run, false, 0));
    if (cas && !run->outcome.has_record) return end(run, VC_MC_NOT_FOUND);
    if (cas && cas != run->outcome.record.stored_us) return end(run, VC_MC_EXISTS);
    TRY(erase(run, &existed));
    return end(run, existed || cas ? VC_MC_DELETED : VC_MC_NOT_FOUND);
}

static vc_step flush_all(vc_mc_run *run) {
    return ask(run, &(vc_mc_asked){.question = VC_MC_ASK_FLUSH, .exptime = run->command->exptime});
}

/* Answer statistics, or the list of instances. A response of the binary protocol has 16 bytes
 * more than a line, which has at least 8. */
static vc_step mc_store_report(vc_mc_run *run) {
    vc_mc_asked asked = {.value = run->command->value};
    asked.question = run->command->action == VC_MC_REPORT ? VC_MC_ASK_STATS : VC_MC_ASK_CONFIG;
    TRY(ask(run, &asked));
    return mc_store_reserve(run, 3 * asked.text.length);
}

static vc_step login(vc_mc_run *run) {
    vc_mc_asked asked = {.question = VC_MC_ASK_TOKEN, .value = run->command->value};
    TRY(ask(run, &asked));
    if (run->outcome.result != VC_MC_AUTHENTICATED) return VC_STEP_NEXT;
    run->stream->rights = asked.rights;
    run->stream->has_token = true;
    memcpy(run->stream->token, asked.token, sizeof asked.token);
    return VC_STEP_NEXT;
}

static vc_step mc_store_answer(vc_mc_run *run) {
    return end(run, run->command->is_error ? VC_MC_ERROR : VC_MC_OK);
}

vc_step vc_mc_run_command(vc_mc_run *run) {
    static vc_step (*const ACTIONS[])(vc_mc_run *) = {
        [VC_MC_READ] = mc_store_get,
        [VC_MC_WRITE] = mc_store_put,
        [VC_MC_COUNT] = count,
        [VC_MC_TOUCHING] = touch,
        [VC_MC_REMOVE] = delete,
        [VC_MC_ANSWERING] = mc_store_answer,
        [VC_MC_FLUSHING] = flush_all,
        [VC_MC_REPORT] = mc_store_report,
        [VC_MC_LISTING] = mc_store_report,
        [VC_MC_LOGIN] = login,
    };
    vc_executor *by = &run->mc->by;
    bool is_locked = needs_lock(run), may_wait = config_of(run)->ask;
    while (is_locked && may_wait && !by->functions->try_acquire(by->core, SECOND_NS)) {}
    if (is_locked && !may_wait && !vc_acquire_soon(by)) return VC_STEP_CALL;
    vc_step step = ACTIONS[run->command->action](run);
    if (is_locked) by->functions->release(by->core);
    return step == REFUSED ? VC_STEP_NEXT : step;
}
