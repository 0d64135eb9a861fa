#include "memcache.h"

#include <stdio.h>
#include <stdlib.h>

#include "mc_parts.h"

enum { KEYS_FETCHED = 16 };

const char *const vc_mc_names[VC_MC_NAMES] = {
    "get",
    "gets",
    "gat",
    "gats",
    "set",
    "add",
    "replace",
    "append",
    "prepend",
    "cas",
    "incr",
    "decr",
    "touch",
    "delete",
    "mg",
    "ms",
    "md",
    "ma",
    "me",
    "mn",
    "noop",
    "version",
    "verbosity",
    "quit",
    "shutdown",
    "flush_all",
    "stats",
    "auth",
    "cache_memlimit",
    "config",
    "unknown",
};
const char *const vc_mc_results[VC_MC_RESULTS] = {
    "hit",          "miss",      "stored",  "not_stored", "exists",        "not_found",
    "non_numeric",  "deleted",   "touched", "ok",         "authenticated", "denied",
    "unauthorized", "forbidden", "bad_key", "too_large",  "failed",        "error",
};

/* In the log: what HTTP answers in the same case. */
static const int STATUSES[VC_MC_RESULTS] = {
    [VC_MC_HIT] = 200,          [VC_MC_MISS] = 404,      [VC_MC_STORED] = 201,
    [VC_MC_NOT_STORED] = 412,   [VC_MC_EXISTS] = 412,    [VC_MC_NOT_FOUND] = 404,
    [VC_MC_NON_NUMERIC] = 400,  [VC_MC_DELETED] = 204,   [VC_MC_TOUCHED] = 204,
    [VC_MC_OK] = 200,           [VC_MC_DENIED] = 401,    [VC_MC_AUTHENTICATED] = 200,
    [VC_MC_UNAUTHORIZED] = 401, [VC_MC_FORBIDDEN] = 403, [VC_MC_BAD_KEY] = 400,
    [VC_MC_TOO_LARGE] = 413,    [VC_MC_FAILED] = 503,    [VC_MC_ERROR] = 400,
};

/* --- Events ----------------------------------------------------------------------------- */

static void add_event(const vc_mc_run *run, int64_t took_ns, bool is_sampled) {
    vc_text key = run->command->key;
    vc_mc_action action = run->command->action;
    bool reads = action == VC_MC_READ || action == VC_MC_REPORT;
    vc_mc_event event = {
        .name = run->command->name,
        .result = run->outcome.result,
        .is_sampled = is_sampled,
        .wants_read = reads && !run->stream->rights.may_read,
        .has_token = run->stream->has_token,
        .started_ns = run->started_ns,
        .took_ns = took_ns,
        .read_ns = run->read_ns,
        .write_ns = run->write_ns,
    };
    snprintf(event.remote, sizeof(event.remote), "%s", run->stream->base.remote);
    vc_report_event(run->mc->by.reporter, &event.sizes, sizeof(event), key.at, key.length);
}

/* Values, users and passwords are never logged. */
static void log_command(const vc_mc_run *run, int64_t took_ns, size_t bytes) {
    static const char *const SOURCES[] = {"DISK", "MEMC", "MISS"};
    const vc_mc_outcome *outcome = &run->outcome;
    bool is_hit = outcome->result == VC_MC_HIT, is_miss = outcome->result == VC_MC_MISS;
    vc_log_line line = {
        .remote = run->stream->base.remote,
        .command = vc_mc_names[run->command->name],
        .result = vc_mc_results[outcome->result],
        .key = run->command->key,
        .status = STATUSES[outcome->result],
        .bytes = bytes,
        .took_ns = took_ns,
        .record = outcome->has_record ? &outcome->record : NULL,
    };
    if (is_hit || is_miss) line.cache = (vc_text){SOURCES[is_miss ? 2 : outcome->is_copy], 4};
    vc_log_add(run->mc->by.log, &line);
}

static void count_command(const vc_mc_run *run, size_t bytes) {
    vc_executor *by = &run->mc->by;
    vc_mc_counts *counts = &run->mc->counts;
    int64_t took_ns = (run->mc->ended_ns = vc_monotonic_ns()) - run->started_ns;
    vc_mc_result result = run->outcome.result;
    vc_observe(&counts->commands[run->command->name][result], took_ns);
    if (run->read_ns) vc_observe(&by->counts.reads, run->read_ns);
    if (run->absent) vc_count(run->absent, 1);
    vc_count(&counts->executed, 1);
    if (by->log) log_command(run, took_ns, bytes);
    bool is_sampled = result == VC_MC_HIT &&
                      vc_is_sample(run->started_ns + took_ns, by->sample_mask);
    if (is_sampled || result == VC_MC_UNAUTHORIZED || vc_took_long(by, took_ns))
        add_event(run, took_ns, is_sampled);
}

/* --- Commands --------------------------------------------------------------------------- */

static bool is_allowed(const vc_mc_rights *rights, const vc_mc_command *command) {
    switch (command->action) {
    case VC_MC_READ:
        return rights->may_read &&
               (rights->may_write || !(command->has_exptime || command->creates));
    case VC_MC_REPORT: return rights->may_read;
    case VC_MC_ANSWERING:
    case VC_MC_LISTING:
    case VC_MC_LOGIN: return true;
    default: return rights->may_write;
    }
}

/* Remember what the input of the next command depends on. */
static void end_command(vc_mc_stream *stream, const vc_mc_command *command, vc_mc_result result) {
    stream->scanned = 0;
    stream->skipped = command->skipped;
    stream->skips_line = command->skips_line;
    stream->base.closes = stream->base.closes || command->closes;
    if (command->name == VC_MC_AUTH) stream->is_sasl_step = command->is_sasl_step;
    if (!stream->is_series) return;
    /* No key after an error is read, and no end is answered. */
    bool is_key = command->action == VC_MC_READ;
    bool goes_on = is_key && !command->is_last && (result == VC_MC_HIT || result == VC_MC_MISS);
    if (is_key && !goes_on && !command->is_last) stream->skips_line = true;
    stream->is_series = goes_on;
    stream->has_keys = true;
}

/* Skip what is part of no command; returns how much. */
static size_t skip(vc_mc_stream *stream, const char *data, size_t length) {
    size_t count = stream->skipped < length ? (size_t)stream->skipped : length;
    stream->skipped -= count;
    if (!stream->skips_line || count == length) return count;
    const char *found = memchr(data + count, '\n', length - count);
    stream->skips_line = !found;
    return found ? (size_t)(found - data) + 1 : length;
}

/* Let the parser find a command; what it uses before is added to `*used`. */
static vc_step find_command(const vc_mc *mc, vc_mc_stream *stream, const char *data, size_t length,
                            size_t *used, vc_mc_command *command) {
    vc_step step = VC_STEP_MORE;
    do {
        stream->base.needed = 1;
        *used += skip(stream, data + *used, length - *used);
        if (*used == length) break;
        step = (stream->is_binary ? vc_mc_parse_binary : vc_mc_parse_text)(
            mc->by.value_size, stream, data + *used, length - *used, command);
        if (step == VC_STEP_MORE) *used += command->used;
    } while (step == VC_STEP_MORE && length - *used >= stream->base.needed);
    return step;
}

static void reply(const vc_mc_run *run) {
    vc_mc_form form = run->command->form;
    if (form == VC_MC_BINARY) vc_mc_reply_binary(run->command, &run->outcome, run->out);
    else if (form == VC_MC_META) vc_mc_reply_meta(run->command, &run->outcome, run->out);
    else vc_mc_reply_text(run->command, &run->outcome, run->out);
}

/* Reply to a command that is executed, and do what follows. */
static void memcache_finish(const vc_mc_run *run) {
    const vc_out *out = run->out;
    size_t before = out->used;
    unsigned parts = out->count;
    reply(run);
    /* A gap before the reply makes it a part of its own. */
    size_t bytes = out->count > parts ? out->parts[parts].iov_len : out->used - before;
    if (!run->command->is_uncounted) count_command(run, bytes);
    end_command(run->stream, run->command, run->outcome.result);
}

static vc_step execute(vc_mc_run *run) {
    vc_mc_stream *stream = run->stream;
    vc_step step = VC_STEP_NEXT;
    if (!is_allowed(&stream->rights, run->command)) run->outcome.result = VC_MC_UNAUTHORIZED;
    else step = vc_mc_run_command(run);
    if (step == VC_STEP_NEXT || step == VC_STEP_CALL) vc_stream_reset(&stream->base);
    if (step != VC_STEP_NEXT) return step;
    memcache_finish(run);
    return VC_STEP_NEXT;
}

/* --- Several at once -------------------------------------------------------------------- */

/* Let the processor fetch what the lookups of the next keys of a get read. */
static void fetch_keys(vc_mc *mc, const char *data, size_t length) {
    struct iovec keys[KEYS_FETCHED];
    size_t count = 0, most = KEYS_FETCHED * (VC_MC_KEY_BYTES + 1);
    if (length > most) length = most;
    const char *line_end = memchr(data, '\n', length);
    const char *end = line_end ? line_end - (line_end[-1] == '\r') : data + length;
    while (count < KEYS_FETCHED && data < end) {
        vc_text key = vc_mc_next_word(&data, end);
        keys[count++] = (struct iovec){(void *)key.at, key.length};
    }
    mc->by.functions->prefetch(mc->by.core, keys, count);
    mc->fetched = count - 1;
}

/* Find a set of the text protocol that is whole. */
static bool find_set(const vc_mc *mc, vc_mc_stream *stream, const char *data, size_t length,
                     vc_mc_command *command) {
    static const char SET[] = "set ";
    if (length < sizeof(SET) || memcmp(data, SET, sizeof(SET) - 1)) return false;
    stream->scanned = 0;
    return vc_mc_parse_text(mc->by.value_size, stream, data, length, command) == VC_STEP_NEXT;
}

/* Execute plain sets that have arrived together with one write: that of `first`, which is followed
 * by `data`. Returns false if it is not one of them: nothing was done. */
static bool execute_sets(const vc_mc_run *first, const char *data, size_t length, size_t *used) {
    vc_mc *mc = first->mc;
    vc_mc_run run = *first;
    vc_put puts[VC_PUTS_AT_ONCE], *pointers[VC_PUTS_AT_ONCE];
    size_t count = 0, at = 0, scanned = run.stream->scanned, needed = run.stream->base.needed;
    size_t most = (run.out->room - run.out->used) / VC_MC_REPLY_BYTES;
    if (most > VC_PUTS_AT_ONCE) most = VC_PUTS_AT_ONCE;
    while (count < most && vc_mc_prepare_set(&run, &puts[count])) {
        if (count) at += run.command->used;
        pointers[count] = &puts[count];
        run.command = &mc->sets[count++];
        if (!find_set(mc, run.stream, data + at, length - at, &mc->sets[count - 1])) break;
    }
    run.stream->scanned = scanned;
    run.stream->base.needed = needed;
    if (count < 2) return false;
    size_t made = vc_put_records(&mc->by, pointers, count);
    for (size_t i = 0; i < made; i++) {
        run.command = i ? &mc->sets[i - 1] : first->command;
        run.outcome = (vc_mc_outcome){.result = VC_MC_STORED, .has_record = true};
        run.outcome.record = puts[i].record;
        run.write_ns = puts[i].took_ns;
        memcache_finish(&run);
        *used += run.command->used;
    }
    return made;
}

/* Whether commands that follow may be executed with this one. */
static bool may_gather(const vc_mc_run *run) {
    const vc_mc_stream *stream = run->stream;
    return run->command->action == VC_MC_WRITE && run->command->form == VC_MC_TEXT &&
           !run->mc->config.ask && !stream->base.is_put && stream->rights.may_write;
}

/* --- The input -------------------------------------------------------------------------- */

/* Wait for the rest of a command, of which `left` bytes are there. Memory grows with what has
 * arrived, not with what a client announces. */
static vc_step await(vc_mc_stream *stream, size_t left) {
    size_t most = 2 * left + 1024;
    if (stream->base.needed > most) stream->base.needed = most;
    /* A command has begun that is not over, although all its bytes so far are used. */
    bool is_inside = stream->skipped || stream->skips_line || stream->is_series;
    stream->base.at = left || is_inside ? VC_AT_BODY : VC_AT_IDLE;
    return VC_STEP_MORE;
}

/* Let the client do what it may by the present settings. */
static void memcache_allow(vc_mc_stream *stream, const vc_mc *mc) {
    const vc_mc_access *access = &mc->access;
    stream->generation = mc->generation;
    stream->rights = access->rights;
    if (!stream->has_token) return;
    stream->rights.wants_credentials = false;
    for (unsigned i = 0; i < access->count; i++)
        if (!memcmp(access->tokens[i].token, stream->token, VC_MC_TOKEN_BYTES))
            stream->rights = access->tokens[i].rights;
}

static vc_step memcache_execute(void *executor, vc_stream *base, char *data, size_t length,
                                size_t *used, vc_out *out) {
    vc_mc *mc = executor;
    vc_mc_stream *stream = (vc_mc_stream *)base;
    vc_mc_command *command = &mc->command;
    if (!mc->config.ask && stream->generation != mc->generation && !stream->base.is_put)
        memcache_allow(stream, mc);
    *used = 0;
    if (length && !stream->is_known) {
        stream->is_known = true;
        stream->is_binary = (uint8_t)*data == 0x80;
    }
    vc_step step = find_command(mc, stream, data, length, used, command);
    if (step != VC_STEP_NEXT) return await(stream, length - *used);
    if (!vc_out_has_room(out, VC_MC_REPLY_BYTES)) return VC_STEP_FLUSH;
    if (!out->used) mc->second = 0;
    if (stream->is_series && command->action == VC_MC_READ) {
        if (!stream->has_keys || !mc->fetched) fetch_keys(mc, data + *used, length - *used);
        else mc->fetched--;
    }
    vc_mc_run run = {.mc = mc, .stream = stream, .command = command, .out = out};
    run.wanted = (vc_wanted){&mc->by, base, (const uint8_t *)command->key.at, command->key.length};
    if (base->is_read || base->is_put) run.started_ns = stream->started_ns;
    /* Not if something else was done since the last command. */
    else run.started_ns = out->used ? mc->ended_ns : vc_monotonic_ns();
    size_t next = *used + command->used;
    if (next < length && may_gather(&run) && execute_sets(&run, data + next, length - next, used))
        return VC_STEP_NEXT;
    step = execute(&run);
    if (step == VC_STEP_NEXT) *used += command->used;
    return step;
}

static bool memcache_call(void *caller, vc_stream *stream, const char *data, size_t length,
                          size_t *used, vc_reply *reply) {
    vc_out out = {.at = malloc(VC_MC_OUT_BYTES_MIN), .room = VC_MC_OUT_BYTES_MIN};
    bool is_good = out.at && memcache_execute(caller, stream, (char *)data, length, used, &out) ==
                                 VC_STEP_NEXT;
    *reply = (vc_reply){out.at, out.count ? out.parts->iov_len : 0};
    if (reply->length) memmove(out.at, out.parts->iov_base, reply->length);
    return is_good;
}

/* As in memcached, no other client is told why its connection ends. */
static void memcache_refuse(void *executor, vc_stream *stream, vc_refusal why, vc_out *out) {
    static const char FULL[] = "ERROR Too many open connections\r\n";
    (void)executor, (void)stream;
    if (why == VC_REFUSED_CONNECTION) vc_mc_add_reply(out, FULL, sizeof(FULL) - 1, VC_MC_NONE, "");
}

const vc_protocol vc_mc_protocol = {
    .stream_size = sizeof(vc_mc_stream),
    .first_bytes = SIZE_MAX,
    .execute = memcache_execute,
    .call = memcache_call,
    .refuse = memcache_refuse,
    .end = vc_stream_end,
};

/* --- The loop's ------------------------------------------------------------------------- */

vc_mc *vc_mc_new(const vc_executor *by, const vc_mc_config *config) {
    vc_mc *mc = calloc(1, sizeof(vc_mc));
    if (!mc) return NULL;
    mc->by = *by;
    mc->config = *config;
    return mc;
}

void vc_mc_free(vc_mc *mc) { free(mc); }

void vc_mc_change(vc_mc *mc, const vc_mc_access *access, int64_t slow_ns) {
    mc->access = *access;
    mc->generation++;
    mc->by.slow_ns = slow_ns;
}

uint64_t vc_mc_executed(const vc_mc *mc) {
    return __atomic_load_n(&mc->counts.executed, __ATOMIC_RELAXED);
}

void vc_mc_add_counts(const vc_mc *mc, vc_mc_counts *counts, vc_store_counts *of_store) {
    vc_add_counts(counts, &mc->counts, sizeof(*counts));
    vc_add_counts(of_store, &mc->by.counts, sizeof(*of_store));
}
