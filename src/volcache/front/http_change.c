#include "http_parts.h"

enum { TYPE_BYTES = 255, ENCODING_BYTES = 64 }; /* that are stored, at most */

/* --- What may be executed here ---------------------------------------------------------------- */

static bool change_is_mine(const vc_http_job *job) {
    const vc_http_settings *settings = &job->http->settings;
    return vc_http_has_good_key(job) &&
           vc_http_is_mine(job, &settings->writable, &settings->may_write);
}

/* Whether a field is stored as it is, by a test that fails for some. */
static bool change_is_storable(vc_text text, size_t length_max) {
    if (text.length > length_max) return false;
    for (size_t i = 0; i < text.length; i++)
        if ((uint8_t)text.at[i] < 0x20 || (uint8_t)text.at[i] >= 0x7F) return false;
    return true;
}

bool vc_http_may_put(const vc_http_job *job) {
    const vc_request *request = job->request;
    return request->method == VC_PUT && (request->has_length || request->is_chunked) &&
           !vc_request_has(request, VC_FIELD_CONTENT_RANGE) &&
           !vc_request_has(request, VC_FIELD_FLAGS) &&
           !vc_request_repeats(request,
                               1u << VC_FIELD_CONTENT_TYPE | 1u << VC_FIELD_CONTENT_ENCODING) &&
           change_is_storable(request->values[VC_FIELD_CONTENT_TYPE], TYPE_BYTES) &&
           change_is_storable(request->values[VC_FIELD_CONTENT_ENCODING], ENCODING_BYTES) &&
           change_is_mine(job);
}

bool vc_http_may_delete(const vc_http_job *job) {
    const vc_request *request = job->request;
    return request->method == VC_DELETE && !request->is_chunked && !request->content_length &&
           change_is_mine(job);
}

/* --- Conditions -------------------------------------------------------------------------------- */

/* Find the record of the key, with the write lock. NEXT: `*is_there` says whether there is one. */
static vc_step change_find(vc_http_job *job, vc_record *record, bool *is_there) {
    const vc_executor *by = &job->http->by;
    vc_lookup at;
    *is_there = vc_find_record(&job->wanted, false, 0, &at);
    if (!*is_there) {
        bool may_know = atomic_load(job->http->config.is_ready) &&
                        vc_find_copy(&job->wanted, NULL) == VC_NO_COPY;
        uint64_t *misses = may_know ? vc_find_absent(&job->wanted, true) : NULL;
        if (!misses) return vc_http_forward(job);
        vc_count(misses, 1);
        return VC_STEP_NEXT;
    }
    vc_status status = vc_http_read_head(job, &at, record);
    if (status == VC_COLD) return vc_http_wait_for_disk(job, &at, false);
    by->functions->end_read(by->core);
    return status == VC_OK && vc_http_is_plain(job, record) ? VC_STEP_NEXT : vc_http_forward(job);
}

/* Evaluate the conditions of a change, with the write lock. NEXT: `*is_over` says whether the
 * request was answered. */
static vc_step change_decide(vc_http_job *job, bool *is_over) {
    bool is_there;
    vc_record record;
    vc_step step = change_find(job, &record, &is_there);
    *is_over = true;
    if (step != VC_STEP_NEXT) return step;
    if (!is_there && job->request->method == VC_DELETE) return vc_http_send_miss(job);
    vc_verdict verdict = vc_may_change(job->request, is_there ? &record : NULL);
    if (verdict == VC_UNDECIDED) return vc_http_forward(job);
    if (verdict != VC_TRUE) return vc_http_send_failed(job, verdict, is_there ? &record : NULL);
    *is_over = false;
    return VC_STEP_NEXT;
}

/* --- Changes ------------------------------------------------------------------------------------ */

static vc_step change_send_stored(vc_http_job *job, const vc_put *put) {
    char *to = vc_put_text(vc_http_room(job), "HTTP/1.1 200 OK\r\n");
    vc_count(&job->http->counts.bytes_in, put->record.length);
    to = vc_put_stored_headers(to, &put->record);
    return vc_http_send_headers(job, VC_ANSWER_DONE, to, &put->record, put->took_ns);
}

/* Whether the write lock is held for the whole of a change. With a hot tier all changes hold it:
 * who has the lock never sees one without the invalidation of the copies. */
static bool change_needs_lock(const vc_http_job *job) {
    return job->http->by.copies || vc_has_condition(job->request);
}

/* Evaluate the conditions, and make a put or a deletion; `existed` is NULL for a put. NEXT:
 * `*is_over`, or the status says what became of it. */
static vc_step change_make(vc_http_job *job, vc_put *put, bool *existed, bool *is_over,
                           vc_status *status) {
    vc_executor *by = &job->http->by;
    bool is_locked = change_needs_lock(job);
    vc_step step = VC_STEP_NEXT;
    *is_over = false;
    *status = VC_DEFERRED;
    if (is_locked && !vc_acquire_soon(by)) return VC_STEP_NEXT;
    if (vc_has_condition(job->request)) step = change_decide(job, is_over);
    if (step == VC_STEP_NEXT && !*is_over)
        *status = existed ? vc_delete_record(&job->wanted, put, existed)
                          : vc_put_record(&job->wanted, put);
    if (is_locked) by->functions->release(by->core);
    return step;
}

/* Set what a PUT stores, without its value. Returns false if the application has to. */
static bool change_set_put(vc_http_job *job, vc_lifetime *lifetime, vc_put *put) {
    const vc_http *http = job->http;
    const vc_text *values = job->request->values;
    vc_text type = values[VC_FIELD_CONTENT_TYPE], encoding = values[VC_FIELD_CONTENT_ENCODING];
    const vc_clocks *clocks = http->by.clocks;
    int64_t machine_us = clocks->machine_us(clocks->context);
    if (!vc_read_lifetime(job->request, machine_us / 1000, http->settings.default_ttl,
                          http->settings.max_ttl, lifetime))
        return false;
    uint64_t expires_ms = lifetime->expires_ms;
    if (expires_ms) expires_ms += (uint64_t)(clocks->store_us(clocks->context) - machine_us) / 1000;
    *put = (vc_put){
        .record.key_length = (uint16_t)job->wanted.key_length,
        .record.type_length = (uint8_t)type.length,
        .record.encoding_length = (uint8_t)encoding.length,
        .record.cache_length = lifetime->directives_length,
        .record.expires_ms = expires_ms,
        .type = (const uint8_t *)type.at,
        .encoding = (const uint8_t *)encoding.at,
        .cache = (const uint8_t *)lifetime->directives,
        .key = job->wanted.key,
        .ring = VC_RING_UNKNOWN,
    };
    return true;
}

/* Let a thread make a put. */
static vc_step change_store_later(vc_http_job *job, const vc_put *put) {
    return vc_put_later(&job->wanted, put) ? VC_STEP_TOGETHER : vc_http_forward(job);
}

vc_step vc_http_store(vc_http_job *job, const uint8_t *value, uint64_t length) {
    vc_lifetime lifetime;
    vc_put put;
    bool is_over;
    vc_status status;
    if (job->stream->base.is_put)
        return vc_put_record(&job->wanted, &put) == VC_OK ? change_send_stored(job, &put)
                                                          : vc_http_forward(job);
    if (!change_set_put(job, &lifetime, &put)) return vc_http_forward(job);
    put.value = value;
    put.record.length = (uint32_t)length;
    if (length > VC_HTTP_COLLECTED_BYTES)
        return change_needs_lock(job) ? vc_http_forward(job) : change_store_later(job, &put);
    vc_step step = change_make(job, &put, NULL, &is_over, &status);
    if (step != VC_STEP_NEXT || is_over) return step;
    if (status == VC_GROUPED && !change_needs_lock(job)) return change_store_later(job, &put);
    return status == VC_OK ? change_send_stored(job, &put) : vc_http_forward(job);
}

/* The deletion was not made: perhaps because the head of the record is not in memory. */
static vc_step change_delete_later(vc_http_job *job) {
    vc_lookup at;
    if (!job->stream->base.is_read && vc_find_record(&job->wanted, false, 0, &at))
        return vc_http_wait_for_disk(job, &at, false);
    return vc_http_forward(job);
}

vc_step vc_http_delete(vc_http_job *job) {
    vc_put put;
    bool existed, is_over;
    vc_status status;
    /* What memcached may have is deleted by the application, which has to know whether it had it. */
    if (vc_find_copy(&job->wanted, NULL) != VC_NO_COPY) return vc_http_forward(job);
    vc_step step = change_make(job, &put, &existed, &is_over, &status);
    if (step != VC_STEP_NEXT || is_over) return step;
    if (status != VC_OK) return change_delete_later(job);
    if (!existed) return vc_http_send_miss(job);
    char *to = vc_put_text(vc_http_room(job), "HTTP/1.1 200 OK\r\nContent-Length: 0");
    return vc_http_send_headers(job, VC_ANSWER_DONE, to, NULL, put.took_ns);
}
