#include "http_parts.h"

/* --- Copies in memcached -------------------------------------------------------------------- */

/* What memcached has for a key. VC_COPY_FOUND: the copy is in the stream. */
typedef enum { ASKED_FOUND, ASKED_ABSENT, ASKED_LATER, ASKED_BY_APPLICATION } read_asked;

static read_asked read_ask(vc_http_job *job, const uint8_t item[VC_ITEM_BYTES]) {
    vc_http_stream *s = job->stream;
    if (!s->is_asked || memcmp(s->asked, item, VC_ITEM_BYTES)) {
        memcpy(s->base.item, item, VC_ITEM_BYTES);
        memcpy(s->asked, item, VC_ITEM_BYTES);
        s->is_asked = true;
        return ASKED_LATER;
    }
    if (s->base.waited != VC_WAITED_HOT) return ASKED_ABSENT; /* It was so when it was asked. */
    if (s->base.hot == VC_COPY_FOUND) return ASKED_FOUND;
    return s->base.hot == VC_COPY_ABSENT ? ASKED_ABSENT : ASKED_BY_APPLICATION;
}

/* Read the disk first, from now on. */
static void read_forget_copy(const vc_http_job *job) {
    const vc_wanted *wanted = &job->wanted;
    vc_copies_ask_first(wanted->by->copies, wanted->key, wanted->key_length, false);
}

/* --- Values --------------------------------------------------------------------------------- */

static int64_t read_remaining_ms(const vc_http_job *job, const vc_record *record) {
    if (!record->expires_ms) return 0;
    return (int64_t)record->expires_ms - vc_now_ms(&job->http->by);
}

/* Write the headers of a value, or of a part of it; returns their end. */
static char *read_put_headers(vc_http_job *job, char *to, const vc_record *record,
                              const char *source, const vc_range *part) {
    const vc_http *http = job->http;
    int64_t second = http->date.second, remaining_ms = read_remaining_ms(job, record);
    to = vc_put_text(to, part ? "HTTP/1.1 206 Partial Content\r\n" : "HTTP/1.1 200 OK\r\n");
    to = vc_put_headers_from(to, source, record, part ? part->length : record->length,
                             &http->config.types, second, remaining_ms);
    if (part) {
        to = vc_put_number(vc_put_text(to, "\r\nContent-Range: bytes "), part->first);
        to = vc_put_number(vc_put_text(to, "-"), part->first + part->length - 1);
        to = vc_put_number(vc_put_text(to, "/"), record->length);
    }
    return vc_http_put_end(job, to);
}

/* Answer with a value that is in memory, maybe in the room for the reply. */
static vc_step read_send_value(vc_http_job *job, const vc_record *record, const uint8_t *value,
                               bool is_copy, int64_t disk_ns) {
    vc_out *out = job->out;
    char *start = vc_http_room(job);
    vc_range part;
    vc_extent extent = vc_requested_range(job->request, record, job->http->date.second, &part);
    if (extent == VC_RANGE_UNDECIDED) return vc_http_forward(job);
    bool is_part = extent == VC_PART;
    char *end = read_put_headers(job, start, record, is_copy ? "MEMC" : "DISK",
                                 is_part ? &part : NULL);
    bool is_here = (const char *)value >= out->at && (const char *)value < out->at + out->room;
    value += part.first;
    if (is_here && part.length > VC_HTTP_VALUE_MOVED_BYTES) {
        vc_out_add(out, start, (size_t)(end - start));
        vc_out_add(out, (const char *)value, part.length);
    } else {
        memmove(end, value, part.length);
        vc_out_add(out, start, (size_t)(end - start) + part.length);
    }
    static const vc_http_answer ANSWERS[2][2] = {{VC_ANSWER_HIT, VC_ANSWER_PART},
                                                 {VC_ANSWER_COPY, VC_ANSWER_COPY_PART}};
    return vc_http_answered(job, ANSWERS[is_copy][is_part], record, disk_ns, part.length);
}

/* --- Large values ---------------------------------------------------------------------------- */

/* Where the table has a record, if it was verified. */
static vc_http_place *read_verified(vc_http *http, const vc_lookup *at) {
    uint64_t mixed = (at->salt ^ at->offset) * UINT64_C(0x9e3779b97f4a7c15);
    return &http->verified[mixed >> 58];
}

static bool read_is_verified(vc_http *http, const vc_lookup *at) {
    const vc_http_place *place = read_verified(http, at);
    return place->salt == at->salt && place->offset == at->offset;
}

/* Answer with a value that is sent from the disk, after a thread has verified it. */
static vc_step read_send_from_disk(vc_http_job *job, const vc_lookup *at) {
    vc_http *http = job->http;
    vc_http_stream *s = job->stream;
    vc_record record;
    vc_range part;
    /* Not only its head was read, for a condition. */
    bool was_verified = s->base.is_read && s->base.verifies;
    if (was_verified && s->base.waited == VC_WAITED_DISK && s->base.status == VC_OK)
        *read_verified(http, at) = (vc_http_place){at->salt, at->offset};
    if (!read_is_verified(http, at)) {
        if (!was_verified) return vc_http_wait_for_disk(job, at, true);
        http->by.functions->end_read(http->by.core);
        return vc_http_forward(job);
    }
    vc_status status = vc_http_read_head(job, at, &record);
    if (status == VC_COLD) return vc_http_wait_for_disk(job, at, true);
    vc_extent extent = VC_RANGE_UNDECIDED;
    if (status == VC_OK && vc_http_is_plain(job, &record))
        extent = vc_requested_range(job->request, &record, http->date.second, &part);
    if (extent == VC_RANGE_UNDECIDED) {
        http->by.functions->end_read(http->by.core);
        return vc_http_forward(job);
    }
    if (!vc_hand_over(&job->wanted, at)) return vc_http_forward(job);
    bool is_part = extent == VC_PART;
    char *start = vc_http_room(job);
    char *end = read_put_headers(job, start, &record, "DISK", is_part ? &part : NULL);
    vc_out_add(job->out, start, (size_t)(end - start));
    vc_count_read(&job->wanted, &record);
    s->base.value_offset = record.prefix + part.first;
    s->base.value_length = part.length;
    (void)vc_http_answered(job, is_part ? VC_ANSWER_PART : VC_ANSWER_HIT, &record, VC_HTTP_NOT_READ,
                           part.length);
    return VC_STEP_VALUE;
}

/* --- GET ------------------------------------------------------------------------------------- */

static vc_step read_miss(vc_http_job *job) {
    uint8_t item[VC_ITEM_BYTES];
    if (!atomic_load_explicit(job->http->config.is_ready, memory_order_relaxed) ||
        !vc_http_has_good_key(job))
        return vc_http_forward(job);
    if (vc_find_copy(&job->wanted, item) != VC_NO_COPY) {
        read_asked asked = read_ask(job, item);
        if (asked == ASKED_LATER) return VC_STEP_HOT;
        if (asked != ASKED_ABSENT) return vc_http_forward(job);
    }
    uint64_t *misses = vc_find_absent(&job->wanted, true);
    if (!misses) return vc_http_forward(job);
    vc_count(misses, 1);
    return vc_http_send_miss(job);
}

/* Answer with the copy that memcached has, if it is the record that the index names. */
static vc_step read_send_copy(vc_http_job *job) {
    const vc_executor *by = &job->http->by;
    const vc_wanted *wanted = &job->wanted;
    const vc_stream *stream = &job->stream->base;
    vc_lookup at;
    vc_record record;
    if (stream->copy_length + VC_HTTP_HEADERS_BYTES > job->out->room - job->out->used ||
        !by->functions->lookup(by->core, wanted->key, wanted->key_length, UINT64_MAX, &at))
        return vc_http_forward(job);
    vc_status status = by->functions->check(by->core, wanted->key, wanted->key_length, &at,
                                            stream->copy, stream->copy_length, &record);
    by->functions->end_read(by->core);
    if (status != VC_OK || !vc_http_is_plain(job, &record)) return vc_http_forward(job);
    return read_send_value(job, &record, stream->copy + record.prefix, true, VC_HTTP_NOT_READ);
}

/* Answer a GET from memcached. Returns whether that is decided; otherwise the disk is read, and
 * memcached is not asked first any longer. */
static bool read_try_copy(vc_http_job *job, const uint8_t item[VC_ITEM_BYTES], vc_step *step) {
    switch (read_ask(job, item)) {
    case ASKED_FOUND: *step = read_send_copy(job); return true;
    case ASKED_LATER: *step = VC_STEP_HOT; return true;
    case ASKED_ABSENT: read_forget_copy(job); return false;
    default: *step = vc_http_forward(job); return true;
    }
}

/* The record has no room in `out`. */
static vc_step read_large(vc_http_job *job, const vc_lookup *at) {
    const vc_executor *by = &job->http->by;
    vc_lookup counted;
    if (at->size <= VC_HTTP_RECORD_BYTES) {
        by->functions->end_read(by->core);
        return VC_STEP_FLUSH;
    }
    if (!job->stream->base.is_read && vc_find_record(&job->wanted, true, UINT64_MAX, &counted))
        by->functions->end_read(by->core);
    return read_send_from_disk(job, at);
}

/* A record, or the head of one, was read, or not. Returns whether it may be used here. */
static bool read_end(const vc_http_job *job, vc_status status, const vc_record *record) {
    const vc_executor *by = &job->http->by;
    by->functions->end_read(by->core);
    /* Until it is known whether the disk can be read. */
    if (status == VC_IO_ERROR) atomic_store(job->http->config.is_ready, false);
    return status == VC_OK && vc_http_is_plain(job, record);
}

vc_step vc_http_get(vc_http_job *job) {
    const vc_executor *by = &job->http->by;
    vc_http_stream *s = job->stream;
    size_t room = job->out->room - job->out->used - VC_HTTP_HEADERS_BYTES;
    uint8_t *bytes = (uint8_t *)vc_http_room(job) + VC_HTTP_HEADERS_BYTES;
    uint8_t item[VC_ITEM_BYTES];
    vc_lookup at;
    vc_record record;
    vc_step step;
    bool is_promoted = vc_find_copy(&job->wanted, item) == VC_COPY_FIRST;
    bool asks_later = is_promoted && job->http->config.memory_first && !s->is_asked;
    if (is_promoted && !asks_later && read_try_copy(job, item, &step)) return step;
    if (!vc_find_record(&job->wanted, true, room, &at)) return read_miss(job);
    if (at.size > room) return read_large(job, &at);
    int64_t begun_ns = vc_monotonic_ns();
    vc_status status = vc_read_record(&job->wanted, &at, false, false, bytes, &record);
    if (status == VC_COLD && asks_later && read_try_copy(job, item, &step)) {
        by->functions->end_read(by->core);
        return step;
    }
    if (status == VC_COLD) return vc_http_wait_for_disk(job, &at, false);
    if (!read_end(job, status, &record)) return vc_http_forward(job);
    int64_t read_ns = s->base.is_read ? s->base.waited_ns : vc_monotonic_ns() - begun_ns;
    step = read_send_value(job, &record, bytes + record.prefix, false, read_ns);
    if (step == VC_STEP_NEXT && !asks_later) vc_count_read(&job->wanted, &record);
    return step;
}

/* --- HEAD, and GET with a condition ---------------------------------------------------------- */

vc_step vc_http_head(vc_http_job *job) {
    vc_http *http = job->http;
    char *to = vc_http_room(job);
    vc_lookup at;
    vc_record record;
    if (!vc_find_record(&job->wanted, false, 0, &at)) return read_miss(job);
    int64_t begun_ns = vc_monotonic_ns();
    vc_status status = vc_http_read_head(job, &at, &record);
    if (status == VC_COLD) return vc_http_wait_for_disk(job, &at, false);
    int64_t read_ns = vc_monotonic_ns() - begun_ns;
    if (!read_end(job, status, &record)) return vc_http_forward(job);
    vc_verdict verdict = vc_is_unmodified(job->request, &record, http->date.second);
    if (verdict == VC_UNDECIDED) return vc_http_forward(job);
    if (verdict == VC_TRUE && job->request->method == VC_GET) {
        vc_observe(&http->by.counts.reads, read_ns);
        return vc_http_get(job);
    }
    int64_t remaining_ms = read_remaining_ms(job, &record);
    if (verdict == VC_TRUE) {
        to = vc_put_headers_from(vc_put_text(to, "HTTP/1.1 200 OK\r\n"), "DISK", &record,
                                 record.length, &http->config.types, http->date.second,
                                 remaining_ms);
        return vc_http_send_headers(job, VC_ANSWER_HIT, to, &record, read_ns);
    }
    if (verdict != VC_UNMODIFIED) return vc_http_send_failed(job, verdict, &record);
    to = vc_put_unmodified_headers(vc_put_text(to, "HTTP/1.1 304 Not Modified\r\n"), &record,
                                   http->date.second, remaining_ms);
    return vc_http_send_headers(job, VC_ANSWER_UNMODIFIED, to, &record, read_ns);
}
