#include "memcache.h"

#include <stdio.h>
#include <stdlib.h>

#include "events.h"
#include "mc_parts.h"
#include "reading.h"

enum {
    /* Longer ones are seconds since the epoch. */
    RELATIVE_SECONDS_MAX = 60 * 60 * 24 * 30,
};
/* A longer time to live is shortened to this, which is 544 years. */
static const int64_t TTL_SECONDS_MAX = INT64_C(1) << 34;
/* Another thread that has the write lock for longer has more to do than to append a record. */
static const int64_t LOCK_WAIT_NS = 1000000;

const char *const vc_mc_names[VC_MC_NAMES] = {
    "get", "gets", "gat", "gats", "set", "add", "replace", "cas", "touch", "delete", "mg", "ms",
    "md", "mn", "noop",
};
const char *const vc_mc_results[VC_MC_RESULTS] = {
    "hit", "miss", "stored", "not_stored", "exists", "not_found", "deleted", "touched", "ok",
};

struct vc_mc {
    vc_mc_config config;
    vc_mc_counts counts;
    vc_reading reading;
    vc_events events;
    vc_mc_command command;
};

/* --- Times ------------------------------------------------------------------------------ */

static int64_t now_ms(const vc_mc *mc) {
    const vc_mc_clocks *clocks = mc->config.clocks;
    return clocks->store_us(clocks->context) / 1000;
}

/* Set when a record expires, as `_expiry` of executor.py. Returns false for the past. */
static bool get_expiry(const vc_mc *mc, int64_t exptime, uint64_t *expires_ms) {
    const vc_mc_config *config = &mc->config;
    int64_t ttl = exptime, most = config->max_ttl ? config->max_ttl : TTL_SECONDS_MAX;
    *expires_ms = 0;
    if (!exptime) ttl = config->default_ttl ? config->default_ttl : config->max_ttl;
    if (!ttl) return true;
    if (ttl < 0) return false;
    int64_t past_ms = exptime > RELATIVE_SECONDS_MAX
                          ? config->clocks->machine_us(config->clocks->context) / 1000
                          : 0;
    int64_t ttl_ms = (ttl < 2 * TTL_SECONDS_MAX ? ttl : 2 * TTL_SECONDS_MAX) * 1000 - past_ms;
    if (ttl_ms <= 0) return false;
    *expires_ms = (uint64_t)(now_ms(mc) + (ttl_ms < most * 1000 ? ttl_ms : most * 1000));
    return true;
}

/* Return how long a record still lives that expires at a time; -1: it does not expire. */
static int64_t ttl_of(const vc_mc *mc, uint64_t expires_ms) {
    if (!expires_ms) return -1;
    int64_t left = (int64_t)expires_ms - now_ms(mc);
    return left > 0 ? left : 0;
}

/* --- Reading ---------------------------------------------------------------------------- */

/* What a step does for a command. */
typedef struct {
    vc_mc *mc;
    vc_mc_stream *stream;
    const vc_mc_command *command;
    vc_mc_out *out;
    vc_mc_outcome outcome;
    int64_t started_ns, read_ns, write_ns;
    bool is_hot;                /* the key is to be promoted */
    bool is_due;                /* see `on_due` */
    uint64_t *absent;           /* the counter of misses to count it in; NULL: it was a hit */
} execution;

static const uint8_t *key_of(const execution *job) { return (const uint8_t *)job->command->key.at; }

/* `counts`: the lookup has not remembered that the key was asked for. */
static vc_mc_step find_absent(execution *job, bool counts) {
    const vc_mc_config *config = &job->mc->config;
    bool is_stale;
    if (!config->functions->is_absent(config->core, key_of(job), job->command->key.length, counts,
                                      &is_stale))
        return VC_MC_PASS;
    job->absent = is_stale ? &job->mc->counts.evicted : &job->mc->counts.absent;
    return VC_MC_NEXT;
}

/* Read the record that was looked up into the room of the reply. */
static vc_mc_step read_record(execution *job, const vc_lookup *at) {
    const vc_mc_config *config = &job->mc->config;
    const vc_core_functions *functions = config->functions;
    vc_record *record = &job->outcome.record;
    vc_mc_stream *stream = job->stream;
    vc_text key = job->command->key;
    uint8_t *bytes = (uint8_t *)job->out->at + job->out->used;
    vc_status status =
        stream->is_warm ? functions->read(config->core, key_of(job), key.length, at, bytes,
                                          at->size, NULL, 0, record)
                        : vc_read_now(config->core, functions, &job->mc->reading, key_of(job),
                                      key.length, at, bytes, record);
    if (status == VC_COLD) {
        stream->at = *at;
        stream->key_length = key.length;
        memcpy(stream->key, key.at, key.length);
        stream->is_warm = true;
        stream->started_ns = job->started_ns;
        return VC_MC_COLD;
    }
    functions->end_read(config->core);
    bool is_expired = status == VC_OK && record->expires_ms &&
                      (int64_t)record->expires_ms <= now_ms(job->mc);
    if (status != VC_OK || is_expired) return VC_MC_PASS;
    job->read_ns = vc_monotonic_ns() - job->started_ns;
    job->outcome.has_record = true;
    job->outcome.value = bytes + record->prefix;
    return VC_MC_NEXT;
}

/* How the hot tier may be used for the key. */
static vc_copy_use find_copy(const execution *job) {
    vc_copies *copies = job->mc->config.copies;
    if (!copies) return VC_NO_COPY;
    return vc_copies_find(copies, key_of(job), job->command->key.length, NULL);
}

/* Find the record of the key; if it `counts`, this is a read of it. */
static vc_mc_step find(execution *job, bool counts) {
    const vc_mc_config *config = &job->mc->config;
    vc_text key = job->command->key;
    size_t room = job->out->room - job->out->used - VC_MC_REPLY_BYTES;
    vc_lookup at;
    const vc_core_functions *functions = config->functions;
    const uint8_t *bytes = key_of(job);
    bool is_there = counts && !job->stream->is_warm
                        ? functions->lookup(config->core, bytes, key.length, room, &at)
                        : functions->peek(config->core, bytes, key.length, &at);
    /* What only the hot tier may have is left to Python, which may wait for it. */
    if (!is_there && find_copy(job) != VC_NO_COPY) return VC_MC_PASS;
    if (!is_there) return find_absent(job, !counts);
    if (at.size <= room) return read_record(job, &at);
    config->functions->end_read(config->core);
    return job->out->used ? VC_MC_FLUSH : VC_MC_PASS;
}

/* --- Writing ---------------------------------------------------------------------------- */

/* Whether a key is one over HTTP, as `is_key` of executor.py says, by a test that some fail. */
static bool is_ordinary(vc_text key, size_t size_max) {
    if (key.length > size_max) return false;
    for (size_t i = 0; i < key.length; i++) {
        char c = key.at[i];
        bool is_first = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                        (c >= '0' && c <= ':') || c == '_';
        bool is_next = c == '-' || c == '=' || c == '/' || (c == '.' && i && key.at[i - 1] != '/');
        if (!is_first && !(i && is_next)) return false;
    }
    return true;
}

/* Invalidate the copies of a key after a change, before the lock is released; see `needs_lock`. */
static void drop_copies(const execution *job) {
    vc_copies *copies = job->mc->config.copies;
    if (copies) vc_copies_invalidate(copies, key_of(job), job->command->key.length);
}

/* Let the caller make a put, before the command is executed again. */
static vc_mc_step put_later(const execution *job, const vc_put *put) {
    vc_mc_stream *stream = job->stream;
    memcpy(stream->key, put->key, put->record.key_length);
    stream->put = *put;
    stream->put.key = stream->key;
    stream->is_put = true;
    stream->started_ns = job->started_ns;
    return VC_MC_TOGETHER;
}

static bool needs_lock(const vc_mc_config *config, const vc_mc_command *command);

/* Append a record. Whatever prevents it is left to Python. */
static vc_mc_step append(execution *job, vc_put *put) {
    const vc_mc_config *config = &job->mc->config;
    put->ring = VC_RING_UNKNOWN;
    if (job->stream->is_put) *put = job->stream->put;
    else put->status = config->functions->put(config->core, put);
    if (put->status == VC_TOGETHER && !needs_lock(config, job->command))
        return put_later(job, put);
    if (put->status != VC_OK) return VC_MC_PASS;
    drop_copies(job);
    job->write_ns = put->took_ns;
    job->is_due = put->is_due;
    job->outcome.record = put->record;
    job->outcome.has_record = true;
    return VC_MC_NEXT;
}

static vc_mc_step store(execution *job) {
    const vc_mc_command *command = job->command;
    vc_put put = {
        .record = {
            .key_length = (uint16_t)command->key.length,
            .length = (uint32_t)command->value.length,
            .flags = command->flags,
        },
        .key = key_of(job),
        .value = (const uint8_t *)command->value.at,
    };
    job->outcome.result = VC_MC_STORED;
    if (!get_expiry(job->mc, command->exptime, &put.record.expires_ms)) return VC_MC_PASS;
    return append(job, &put);
}

/* Store a value if the record there is allows it; with the write lock. */
static vc_mc_step store_if_allowed(execution *job) {
    const vc_mc_command *command = job->command;
    vc_mc_outcome *outcome = &job->outcome;
    vc_mc_step step = find(job, false);
    if (step != VC_MC_NEXT) return step;
    if (!outcome->has_record && command->cas)
        outcome->result = VC_MC_NOT_FOUND;
    else if (!outcome->has_record && command->mode == VC_MC_REPLACE)
        outcome->result = VC_MC_NOT_STORED;
    else if (outcome->has_record && command->mode == VC_MC_ADD)
        outcome->result = VC_MC_NOT_STORED;
    else if (outcome->has_record && command->cas && command->cas != outcome->record.stored_us)
        outcome->result = VC_MC_EXISTS;
    else
        return store(job);
    outcome->has_record = false; /* It is not told of. */
    return VC_MC_NEXT;
}

static vc_mc_step write(execution *job) {
    const vc_mc_command *command = job->command;
    if (!is_ordinary(command->key, job->mc->config.key_size)) return VC_MC_PASS;
    if (command->mode == VC_MC_SET && !command->cas) return store(job);
    return store_if_allowed(job);
}

/* Set when the record that was found expires; with the write lock. It stays the same version. */
static vc_mc_step touch_found(execution *job) {
    const vc_record *record = &job->outcome.record;
    vc_put put = {
        .record = *record,
        .type = record->type,
        .encoding = record->type + record->type_length,
        .cache = record->type + record->type_length + record->encoding_length,
        .key = record->key,
        .value = job->outcome.value,
    };
    if (!get_expiry(job->mc, job->command->exptime, &put.record.expires_ms)) return VC_MC_PASS;
    return put.record.expires_ms == record->expires_ms ? VC_MC_NEXT : append(job, &put);
}

static void mark_read(const execution *job, int64_t second) {
    vc_marks_put(job->mc->config.reads, job->outcome.record.stored_us, (uint32_t)second);
}

static vc_mc_step get(execution *job) {
    const vc_mc_command *command = job->command;
    vc_mc_outcome *outcome = &job->outcome;
    vc_mc_step step = find(job, command->wants_value || command->has_exptime);
    if (step != VC_MC_NEXT) return step;
    outcome->result = outcome->has_record ? VC_MC_HIT : VC_MC_MISS;
    if (!outcome->has_record) return VC_MC_NEXT;
    uint64_t expires_ms = outcome->record.expires_ms;
    if (command->has_exptime && (step = touch_found(job)) != VC_MC_NEXT) return step;
    int64_t second = now_ms(job->mc) / 1000;
    if (command->form == VC_MC_META) {
        uint32_t read = 0;
        uint64_t version = outcome->record.stored_us;
        bool was_read = vc_marks_get(job->mc->config.reads, version, &read);
        if (!command->wants_earlier_ttl) expires_ms = outcome->record.expires_ms;
        outcome->ttl_ms = ttl_of(job->mc, expires_ms);
        outcome->idle = !was_read ? -1 : second > read ? second - read : 0;
        outcome->has_won = vc_marks_get(job->mc->config.won, version, &read);
    }
    if (!command->is_peek) mark_read(job, second);
    /* Who holds the lock promotes nothing. */
    vc_copies *copies = job->mc->config.copies;
    if (copies && command->wants_value && !command->has_exptime)
        job->is_hot = find_copy(job) != VC_COPY_FIRST &&
                      vc_copies_count_read(copies, key_of(job), command->key.length,
                                           job->started_ns / 1000000);
    return VC_MC_NEXT;
}

static vc_mc_step touch(execution *job) {
    vc_mc_step step = find(job, true);
    job->outcome.result = VC_MC_NOT_FOUND;
    if (step != VC_MC_NEXT || !job->outcome.has_record) return step;
    job->outcome.result = VC_MC_TOUCHED;
    if ((step = touch_found(job)) == VC_MC_NEXT) mark_read(job, now_ms(job->mc) / 1000);
    return step;
}

static vc_mc_step erase(execution *job) {
    const vc_mc_config *config = &job->mc->config;
    vc_put put = {
        .record.key_length = (uint16_t)job->command->key.length,
        .key = key_of(job),
        .ring = VC_RING_UNKNOWN,
    };
    bool existed;
    uint64_t now = (uint64_t)now_ms(job->mc);
    if (find_copy(job) != VC_NO_COPY ||
        config->functions->delete(config->core, &put, now, &existed) != VC_OK)
        return VC_MC_PASS;
    drop_copies(job);
    if (put.started_ns) job->write_ns = put.took_ns;
    job->is_due = put.started_ns && put.is_due;
    job->outcome.result = existed ? VC_MC_DELETED : VC_MC_NOT_FOUND;
    job->outcome.has_record = false; /* It is not told of. */
    return VC_MC_NEXT;
}

static vc_mc_step delete(execution *job) {
    vc_mc_outcome *outcome = &job->outcome;
    if (!job->command->cas) return erase(job);
    vc_mc_step step = find(job, false);
    if (step != VC_MC_NEXT) return step;
    if (outcome->has_record && outcome->record.stored_us == job->command->cas) return erase(job);
    outcome->result = outcome->has_record ? VC_MC_EXISTS : VC_MC_NOT_FOUND;
    outcome->has_record = false;
    return VC_MC_NEXT;
}

static vc_mc_step nothing(execution *job) {
    job->outcome.result = VC_MC_OK;
    return VC_MC_NEXT;
}

/* --- Events ----------------------------------------------------------------------------- */

static void add_event(const execution *job, int64_t took_ns, bool is_sampled, size_t bytes) {
    vc_mc *mc = job->mc;
    vc_text key = job->command->key;
    size_t length = sizeof(vc_mc_event) + key.length;
    vc_mc_event *event =
        vc_events_add(&mc->events, &length, mc->config.on_events, mc->config.context);
    if (!event) return;
    const vc_record *record = &job->outcome.record;
    *event = (vc_mc_event){
        .length = (uint32_t)length,
        .key_length = (uint32_t)key.length,
        .name = job->command->name,
        .result = job->outcome.result,
        .is_sampled = is_sampled,
        .is_hot = job->is_hot,
        .has_record = job->outcome.has_record,
        .started_ns = job->started_ns,
        .took_ns = took_ns,
        .read_ns = job->read_ns,
        .write_ns = job->write_ns,
        .offset = record->offset,
        .size = record->size,
        .expires_ms = record->expires_ms,
        .bytes = bytes,
        .volume = record->volume,
    };
    snprintf(event->remote, sizeof(event->remote), "%s", job->stream->remote);
    if (key.length) memcpy(event->key, key.at, key.length);
}

static void count_command(const execution *job, size_t bytes) {
    const vc_mc_config *config = &job->mc->config;
    vc_mc_counts *counts = &job->mc->counts;
    int64_t took_ns = vc_monotonic_ns() - job->started_ns;
    vc_mc_result result = job->outcome.result;
    vc_observe(&counts->commands[job->command->name][result], took_ns);
    if (job->read_ns) vc_observe(&counts->reads, job->read_ns);
    if (job->write_ns) vc_observe(&counts->writes, job->write_ns);
    if (job->absent) vc_count(job->absent, 1);
    /* The times of commands that are alike have the same last bits: all are mixed. */
    uint64_t mixed = (uint64_t)(job->started_ns + took_ns) * UINT64_C(0x9e3779b97f4a7c15);
    bool is_sampled = result == VC_MC_HIT && !(mixed >> 32 & (uint64_t)config->sample_mask);
    if (is_sampled || job->is_hot || took_ns > config->slow_ns || took_ns > config->long_ns)
        add_event(job, took_ns, is_sampled, bytes);
}

/* --- Commands --------------------------------------------------------------------------- */

static bool is_allowed(const vc_mc_rights *rights, const vc_mc_command *command) {
    if (command->action == VC_MC_READ)
        return rights->may_read && (rights->may_write || !command->has_exptime);
    return rights->may_write || command->action == VC_MC_NOTHING;
}

/* Remember that more keys of a get follow, or that none do. */
static void end_command(vc_mc_stream *stream, const vc_mc_command *command, const char *data,
                        size_t length) {
    size_t line = stream->line_left;
    stream->scanned = stream->line_left = 0;
    if (command->form != VC_MC_TEXT || command->action != VC_MC_READ || command->is_last) return;
    if (!line) line = (size_t)((const char *)memchr(data, '\n', length) - data) + 1;
    stream->line_left = line - command->used;
    stream->series = command->name;
    stream->exptime = command->exptime;
}

/* Whether what is read decides on what is written. With a hot tier, all changes hold the lock: who
 * has it never sees one without the invalidation of the copies. That comes after the change: a
 * thread that promotes the key meanwhile sees the one or the other. */
static bool needs_lock(const vc_mc_config *config, const vc_mc_command *command) {
    switch (command->action) {
    case VC_MC_READ:
        return command->has_exptime;
    case VC_MC_WRITE:
        return config->copies || command->mode != VC_MC_SET || command->cas;
    case VC_MC_REMOVE:
        return config->copies || command->cas;
    default:
        return command->action == VC_MC_TOUCHING;
    }
}

static vc_mc_step run(execution *job) {
    static vc_mc_step (*const ACTIONS[])(execution *) = {
        [VC_MC_READ] = get,      [VC_MC_WRITE] = write,    [VC_MC_TOUCHING] = touch,
        [VC_MC_REMOVE] = delete, [VC_MC_NOTHING] = nothing,
    };
    const vc_mc_config *config = &job->mc->config;
    bool is_locked = needs_lock(config, job->command);
    if (is_locked && !config->functions->try_acquire(config->core, LOCK_WAIT_NS))
        return VC_MC_PASS;
    vc_mc_step step = ACTIONS[job->command->action](job);
    if (is_locked) config->functions->release(config->core);
    return step;
}

static vc_mc_step execute(vc_mc *mc, vc_mc_stream *stream, const vc_mc_command *command,
                          vc_mc_out *out) {
    if (!is_allowed(&stream->rights, command)) return VC_MC_PASS;
    if (out->room - out->used < VC_MC_REPLY_BYTES) return VC_MC_FLUSH;
    execution job = {.mc = mc, .stream = stream, .command = command, .out = out};
    job.started_ns =
        stream->is_warm || stream->is_put ? stream->started_ns : vc_monotonic_ns();
    vc_mc_step step = run(&job);
    if (step != VC_MC_NEXT) return step;
    size_t before = out->used;
    if (command->form == VC_MC_BINARY) vc_mc_reply_binary(command, &job.outcome, out);
    else if (command->form == VC_MC_META) vc_mc_reply_meta(command, &job.outcome, out);
    else vc_mc_reply_text(command, &job.outcome, out);
    count_command(&job, out->used - before);
    if (job.is_due) mc->config.on_due(mc->config.due_context);
    return VC_MC_NEXT;
}

/* Let Python begin with the next command, or with the keys of a get that are left. */
static vc_mc_step pass_on(vc_mc_stream *stream) {
    static const char *const GAT = "%s %lld ";
    if (stream->line_left) {
        int length = snprintf(stream->prefix, sizeof(stream->prefix),
                              stream->series < VC_MC_GAT ? "%s " : GAT,
                              vc_mc_names[stream->series], (long long)stream->exptime);
        stream->prefix_length = (size_t)length;
    }
    stream->scanned = stream->line_left = 0;
    return VC_MC_PASS;
}

vc_mc_step vc_mc_execute(vc_mc *mc, vc_mc_stream *stream, const char *data, size_t length,
                         size_t *used, vc_mc_out *out) {
    vc_mc_command *command = &mc->command;
    *used = stream->prefix_length = 0;
    stream->needed = 1;
    if (!length) return VC_MC_MORE;
    if (!stream->is_known) stream->is_binary = (uint8_t)data[0] == 0x80;
    stream->is_known = true;
    vc_mc_step step = VC_MC_PASS;
    if (!stream->rights.wants_credentials)
        step = (stream->is_binary ? vc_mc_parse_binary : vc_mc_parse_text)(
            &mc->config, stream, data, length, command);
    if (step == VC_MC_NEXT) step = execute(mc, stream, command, out);
    if (step == VC_MC_NEXT || step == VC_MC_PASS) stream->is_warm = stream->is_put = false;
    if (step == VC_MC_PASS) return pass_on(stream);
    if (step != VC_MC_NEXT) return step;
    end_command(stream, command, data, length);
    *used = command->used;
    return VC_MC_NEXT;
}

/* --- The loop's ------------------------------------------------------------------------- */

vc_mc *vc_mc_new(const vc_mc_config *config) {
    vc_mc *mc = calloc(1, sizeof(vc_mc));
    if (mc) mc->config = *config;
    return mc;
}

void vc_mc_free(vc_mc *mc) { free(mc); }

void vc_mc_change(vc_mc *mc, const vc_mc_config *to) { mc->config.slow_ns = to->slow_ns; }

void vc_mc_add_counts(const vc_mc *mc, vc_mc_counts *counts) {
    const uint64_t *from = (const uint64_t *)&mc->counts;
    uint64_t *to = (uint64_t *)counts;
    for (size_t i = 0; i < sizeof(*counts) / sizeof(*from); i++)
        to[i] += __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

const uint8_t *vc_mc_take_events(vc_mc *mc, size_t *length) {
    return vc_events_take(&mc->events, length);
}
