#define _GNU_SOURCE
#include "http_parts.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    EVENT_PATH_BYTES = 4096, /* in an event */
    HTTP_CLIENT_GONE = 499,  /* in the log, as of nginx */
    FAILURE_BYTES = 128,     /* of the text of a condition that failed */
};
static const int64_t SECOND_NS = 1000000000;

const vc_http_name vc_http_names[VC_HTTP_ANSWERS] = {
    [VC_ANSWER_HIT] = {"200 OK", "DISK"},
    [VC_ANSWER_COPY] = {"200 OK", "MEMC"},
    [VC_ANSWER_MISS] = {"404 Not Found", "MISS"},
    [VC_ANSWER_DONE] = {"200 OK", ""},
    [VC_ANSWER_PART] = {"206 Partial Content", "DISK"},
    [VC_ANSWER_COPY_PART] = {"206 Partial Content", "MEMC"},
    [VC_ANSWER_UNMODIFIED] = {"304 Not Modified", "DISK"},
    [VC_ANSWER_FAILED] = {"412 Precondition Failed", ""},
};

static const struct {
    int status;
    const char *phrase;
} STATUSES[] = {
    {400, "Bad Request"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {413, "Request Entity Too Large"},
    {417, "Expectation Failed"},
    {431, "Request Header Fields Too Large"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {505, "HTTP Version Not Supported"},
    {0, ""},
};

/* --- Streams -------------------------------------------------------------------------------- */

static vc_http_stream *http_stream(vc_stream *stream) { return (vc_http_stream *)stream; }

/* Forget a request that is over. */
static void http_reset(vc_http_stream *s) {
    size_t first = offsetof(vc_http_stream, headers);
    s->base.waited = VC_WAITED_NOT;
    vc_stream_reset(&s->base);
    memset((char *)s + first, 0, sizeof(*s) - first);
}

/* --- Dates and headers ---------------------------------------------------------------------- */

static void http_update_date(vc_http *http, int64_t now_ns) {
    const vc_clocks *clocks = http->by.clocks;
    if (now_ns < http->date.ends_ns) return;
    int64_t now_us = clocks->machine_us(clocks->context), second = now_us / 1000000;
    /* Lets the store's clock see this date, so that it never stores a value before it. */
    (void)vc_now_ms(&http->by);
    if (second < 0) second = 0;
    if (second > VC_SECOND_MAX) second = VC_SECOND_MAX;
    http->date.second = second;
    http->date.ends_ns = now_ns + SECOND_NS - now_us % 1000000 * 1000;
    vc_put_date(http->date.text, second);
}

static char *http_put_end(char *to, const vc_date *date, const char *more, bool keeps_alive) {
    to = vc_put_bytes(vc_put_text(to, "\r\nDate: "), date->text, VC_DATE_BYTES);
    if (more) to = vc_put_text(to, more);
    return vc_put_text(to, keeps_alive ? "\r\nConnection: Keep-Alive\r\n\r\n"
                                       : "\r\nConnection: close\r\n\r\n");
}

char *vc_http_put_end(const vc_http_job *job, char *to) {
    return http_put_end(to, &job->http->date, job->stream->headers, job->keeps_alive);
}

/* Whether a path is one of the operator's. */
static bool http_is_reserved(vc_text path) {
    char decoded[9]; /* Three bytes may take nine. */
    if (path.length > sizeof(decoded)) path.length = sizeof(decoded);
    while (path.length && path.at[path.length - 1] == '%') path.length--;
    if (path.length > 1 && path.at[path.length - 2] == '%') path.length -= 2;
    return vc_path_decode(path, decoded) >= 3 && !memcmp(decoded, "/-/", 3);
}

/* Return the headers that tell a browser which pages may see the answer. */
static const char *http_headers_for(const vc_http *http, const vc_request *request) {
    const vc_http_settings *settings = &http->settings;
    vc_text origin = request->values[VC_FIELD_ORIGIN];
    if (!settings->headers && !settings->origin_count) return NULL;
    if (http_is_reserved(request->path)) return NULL;
    if (!origin.at || vc_request_repeats(request, 1u << VC_FIELD_ORIGIN)) return settings->headers;
    for (unsigned i = 0; i < settings->origin_count; i++)
        if (vc_text_is(origin, settings->origins[i].origin)) return settings->origins[i].headers;
    return settings->headers;
}

/* --- Events and counters -------------------------------------------------------------------- */

/* Log a request that is answered here. */
static void http_log(const vc_http_job *job, vc_http_answer answer, const vc_record *record,
                     int64_t took_ns, uint64_t bytes) {
    const vc_http_name *name = &vc_http_names[answer];
    vc_log_line line = {
        .remote = job->stream->base.remote,
        .request = job->request,
        .status = atoi(name->status),
        .bytes = bytes,
        .took_ns = took_ns,
        .record = record,
    };
    if (*name->source) line.cache = vc_text_of(name->source);
    vc_log_add(job->http->by.log, &line);
}

/* Keep the head of a request that is forwarded, for its line. */
static void http_log_later(const vc_http_job *job) {
    vc_http_stream *s = job->stream;
    size_t length = job->request->length;
    if (!job->http->by.log || !vc_stream_keep(&s->base, length)) return;
    memcpy(s->base.memory, job->data, length);
    s->logged_length = length;
    s->logged_ns = s->started_ns;
}

/* Return the value of a field of an answer's head. */
static vc_text http_find(const char *head, const char *name) {
    const char *at = vc_find_after(head, name);
    return (vc_text){at, at ? strcspn(at, "\r") : 0};
}

/* Log a request that was forwarded; `head` is that of the application's answer, NULL: it has not
 * answered. */
static void http_log_forwarded(vc_http *http, vc_http_stream *s, int status, const char *head,
                               uint64_t bytes) {
    size_t length = s->logged_length, scanned = 0;
    s->logged_length = 0;
    if (!length || vc_request_parse((char *)s->base.memory, length, &scanned, &http->request) !=
                       VC_HEAD_COMPLETE)
        return;
    vc_log_line line = {
        .remote = s->base.remote,
        .request = &http->request,
        .status = status,
        .bytes = bytes,
        .took_ns = vc_monotonic_ns() - s->logged_ns,
    };
    if (head) {
        line.status = atoi(head + sizeof("HTTP/1.1"));
        line.cache = http_find(head, "\r\nX-Cache: ");
        line.position = http_find(head, "\r\nX-Position: ");
    }
    vc_log_add(http->by.log, &line);
}

vc_step vc_http_answered(vc_http_job *job, vc_http_answer answer, const vc_record *record,
                         int64_t disk_ns, uint64_t bytes) {
    vc_http *http = job->http;
    vc_executor *by = &http->by;
    vc_http_stream *s = job->stream;
    int64_t took_ns = vc_monotonic_ns() - s->started_ns;
    bool is_read = record && answer != VC_ANSWER_DONE;
    vc_observe(&http->counts.answers[s->method][answer], took_ns);
    if (is_read && disk_ns != VC_HTTP_NOT_READ) vc_observe(&by->counts.reads, disk_ns);
    if (is_read) vc_count(&http->counts.bytes_out, bytes);
    if (by->log) http_log(job, answer, record, took_ns, bytes);
    s->base.closes = !job->keeps_alive;
    bool is_sampled = is_read && vc_is_sample(s->started_ns + took_ns, by->sample_mask);
    if (!is_sampled && !vc_took_long(by, took_ns)) return VC_STEP_NEXT;
    vc_http_event event = {
        .method = s->method,
        .answer = answer,
        .is_sampled = is_sampled,
        .started_ns = s->started_ns,
        .took_ns = took_ns,
        .disk_ns = disk_ns == VC_HTTP_NOT_READ ? 0 : disk_ns,
        .hot_ns = s->hot_ns,
    };
    vc_report_event(by->reporter, &event.sizes, sizeof(event), job->path.at,
                    job->path.length < EVENT_PATH_BYTES ? job->path.length : EVENT_PATH_BYTES);
    return VC_STEP_NEXT;
}

/* --- Answers --------------------------------------------------------------------------------- */

/* Answer with a line of text, after headers that were written up to `to`. */
static vc_step http_send_text(vc_http_job *job, vc_http_answer answer, char *to, const char *text,
                              size_t length) {
    char *start = vc_http_room(job);
    to = vc_put_text(to, "Content-Type: text/plain; charset=utf-8\r\nContent-Length: ");
    to = vc_http_put_end(job, vc_put_number(to, length));
    if (job->request->method == VC_HEAD) length = 0;
    memcpy(to, text, length);
    vc_out_add(job->out, start, (size_t)(to + length - start));
    return vc_http_answered(job, answer, NULL, VC_HTTP_NOT_READ, length);
}

vc_step vc_http_send_headers(vc_http_job *job, vc_http_answer answer, char *to,
                             const vc_record *record, int64_t disk_ns) {
    char *start = vc_http_room(job);
    to = vc_http_put_end(job, to);
    vc_out_add(job->out, start, (size_t)(to - start));
    return vc_http_answered(job, answer, record, disk_ns, 0);
}

vc_step vc_http_send_miss(vc_http_job *job) {
    static const char TEXT[] = "no value is stored under this key\n";
    char *to = vc_put_text(vc_http_room(job), "HTTP/1.1 404 Not Found\r\nX-Cache: MISS\r\n");
    return http_send_text(job, VC_ANSWER_MISS, to, TEXT, sizeof(TEXT) - 1);
}

vc_step vc_http_send_failed(vc_http_job *job, vc_verdict verdict, const vc_record *record) {
    char text[FAILURE_BYTES], tag[VC_TAG_BYTES + 1];
    if (record) *vc_put_tag(tag, record) = 0;
    const char *condition = verdict == VC_FALSE_NONE_MATCH ? "If-None-Match" : "If-Match";
    int length = verdict == VC_FALSE_UNMODIFIED_SINCE
                     ? snprintf(text, sizeof(text),
                                "If-Unmodified-Since is false: the stored file is newer\n")
                 : record ? snprintf(text, sizeof(text),
                                     "%s is false: the stored file has the entity tag \"%s\"\n",
                                     condition, tag)
                          : snprintf(text, sizeof(text),
                                     "%s is false: no file is stored under this key\n", condition);
    char *to = vc_put_text(vc_http_room(job), "HTTP/1.1 412 Precondition Failed\r\n");
    return http_send_text(job, VC_ANSWER_FAILED, to, text, (size_t)length);
}

/* Write the reply to a request that is not executed; the connection ends with it. */
static void http_refuse(vc_http *http, vc_http_stream *s, int status, const char *reason,
                        vc_out *out) {
    char text[VC_TEXT_BYTES + 100], *start = out->at + out->used, *to = start;
    int64_t started_ns = vc_monotonic_ns();
    int length = snprintf(text, sizeof(text), "%s%s\n", reason,
                          status == 405 ? http->config.allow : "");
    unsigned row = 0;
    while (STATUSES[row].status && STATUSES[row].status != status) row++;
    http_update_date(http, started_ns);
    to += sprintf(to, "HTTP/1.1 %d %s\r\n", status, STATUSES[row].phrase);
    if (status == 405) to += sprintf(to, "Allow: %s\r\n", http->config.allow);
    if (status == 503) to = vc_put_text(to, "Retry-After: 1\r\n");
    to += sprintf(to, "Content-Type: text/plain; charset=utf-8\r\nContent-Length: %d", length);
    to = http_put_end(to, &http->date, s->headers, false);
    if (s->method != VC_HEAD) to = vc_put_text(to, text);
    vc_out_add(out, start, (size_t)(to - start));
    s->base.closes = true;
    vc_http_event event = {
        .answer = VC_HTTP_ANSWERS,
        .status = status,
        .method = s->method,
        .started_ns = started_ns,
        .took_ns = vc_monotonic_ns() - started_ns,
    };
    vc_report_event(http->by.reporter, &event.sizes, sizeof(event), NULL, 0);
    http_log_forwarded(http, s, status, NULL, s->method == VC_HEAD ? 0 : (uint64_t)length);
}

static void http_refuse_waiting(void *executor, vc_stream *stream, vc_refusal why, vc_out *out) {
    static const struct {
        int status;
        const char *reason;
    } REASONS[] = {
        [VC_REFUSED_HEAD] = {408, "the head of the request arrives too slowly; try again"},
        [VC_REFUSED_BODY] = {408, "the body of the request arrives too slowly; try again"},
        [VC_REFUSED_MEMORY] = {503, "no memory is free for the request; try again later"},
        [VC_REFUSED_DISK] = {503, "the disk is too slow: the read has waited for a second; try"
                                  " again"},
        [VC_REFUSED_APPLICATION] = {503, "the application does not answer; it may do later"
                                         " what was asked for; try again"},
        [VC_REFUSED_CONNECTION] = {503, "too many connections; try again later"},
    };
    http_refuse(executor, http_stream(stream), REASONS[why].status, REASONS[why].reason, out);
}

/* Refuse a request; what follows it is dropped. */
static vc_step http_stop(vc_http_job *job, int status, const char *reason) {
    http_refuse(job->http, job->stream, status, reason, job->out);
    job->body = job->length - job->request->length;
    return VC_STEP_NEXT;
}

static vc_step http_refuse_size(vc_http_job *job, const char *how, uint64_t size) {
    char text[VC_TEXT_BYTES];
    snprintf(text, sizeof(text), "value is %s%llu bytes long; allowed are 0 to %llu", how,
             (unsigned long long)size, (unsigned long long)job->http->by.value_size);
    return http_stop(job, 413, text);
}

/* --- Waiting ---------------------------------------------------------------------------------- */

/* Let a client that waits for it send its body; the bytes of it that are there. */
static void http_ask_for_body(vc_http_job *job, size_t arrived) {
    static const char CONTINUE[] = "HTTP/1.1 100 Continue\r\n\r\n";
    vc_http_stream *s = job->stream;
    const vc_request *request = job->request;
    bool is_whole = request->is_chunked ? arrived > 0 : arrived >= request->content_length;
    if (!request->awaits_continue || s->has_continued || is_whole) return;
    char *to = vc_http_room(job);
    vc_out_add(job->out, to, (size_t)(vc_put_text(to, CONTINUE) - to));
    s->has_continued = true;
}

vc_step vc_http_wait_for_disk(vc_http_job *job, const vc_lookup *at, bool verifies) {
    vc_stream *base = &job->stream->base;
    base->verifies = verifies;
    if (!vc_hand_over(&job->wanted, at)) return vc_http_forward(job);
    /* Of a value that is not sent from memory, only the head is of use. */
    if (!verifies && at->size > VC_HTTP_RECORD_BYTES)
        base->found.size = VC_HEAD_BYTES_MAX(base->key_length);
    return VC_STEP_DISK;
}

bool vc_http_is_plain(const vc_http_job *job, const vc_record *record) {
    if (record->stored_us / 1000000 >= VC_SECOND_MAX) return false;
    return !record->expires_ms || (int64_t)record->expires_ms > vc_now_ms(&job->http->by);
}

vc_status vc_http_read_head(vc_http_job *job, const vc_lookup *at, vc_record *record) {
    return vc_read_record(&job->wanted, at, true, false, job->http->prefix, record);
}

/* --- Bodies ------------------------------------------------------------------------------------ */

/* Receive more of a body; `needed` bytes have to be there, without those before the head. */
static vc_step http_await_body(vc_http_job *job, size_t needed, uint64_t reserve) {
    vc_http_stream *s = job->stream;
    if (!s->has_memory) {
        s->base.reserve = reserve;
        return VC_STEP_MEMORY;
    }
    http_ask_for_body(job, job->length - job->request->length);
    s->base.needed = needed;
    s->base.at = VC_AT_BODY;
    return VC_STEP_MORE;
}

/* Decode what has arrived of a chunked body, behind the head. NEXT: it is whole. */
static vc_step http_decode(vc_http_job *job) {
    vc_http_stream *s = job->stream;
    char *body = job->data + job->request->length;
    size_t arrived = job->length - job->request->length, used, written;
    const char *reason = NULL;
    vc_chunks_state state = vc_chunks_take(&s->chunks, body + s->taken, arrived - s->taken, &used,
                                           body + s->decoded, &written, &reason);
    if (state == VC_CHUNKS_REFUSED) return http_stop(job, 400, reason);
    s->taken += used;
    s->decoded += written;
    if (s->chunks.total > job->http->by.value_size)
        return http_refuse_size(job, "at least ", s->chunks.total);
    if (state == VC_CHUNKS_END) return VC_STEP_NEXT;
    return http_await_body(job, job->length + 1, job->http->by.value_size);
}

vc_step vc_http_forward(vc_http_job *job) {
    vc_http *http = job->http;
    vc_http_stream *s = job->stream;
    vc_request *request = job->request;
    bool was_chunked = request->is_chunked;
    if (was_chunked) {
        vc_step step = http_decode(job);
        if (step != VC_STEP_NEXT || s->base.closes) return step;
        request->is_chunked = false;
        request->has_length = true;
        request->content_length = s->decoded;
    } else if (request->content_length && !s->has_memory) {
        s->base.reserve = request->content_length; /* The application collects the body. */
        return VC_STEP_MEMORY;
    }
    vc_forward *forward = &s->base.forward;
    *forward = (vc_forward){
        .is_head = request->method == VC_HEAD,
        .keeps_alive = job->keeps_alive,
        .is_reserved = http_is_reserved(job->path),
        .body_length = request->content_length,
        .gap = was_chunked ? s->taken - s->decoded : 0,
        .head = http->head,
    };
    http_ask_for_body(job, was_chunked ? SIZE_MAX : job->length - request->length);
    request->keeps_alive = true; /* The connection to the application. */
    forward->head_length = vc_request_write(request, http->head);
    http_log_later(job);
    job->body = 0;
    s->base.closes = !job->keeps_alive;
    return VC_STEP_FORWARD;
}

static vc_step http_put(vc_http_job *job) {
    const vc_request *request = job->request;
    vc_http_stream *s = job->stream;
    const uint8_t *value = (const uint8_t *)job->data + request->length;
    size_t arrived = job->length - request->length;
    if (!request->is_chunked) {
        if (arrived < request->content_length)
            return http_await_body(job, request->length + request->content_length,
                                   request->content_length);
        job->body = request->content_length;
        return vc_http_store(job, value, request->content_length);
    }
    vc_step step = http_decode(job);
    if (step != VC_STEP_NEXT || s->base.closes) return step;
    job->body = s->taken;
    return vc_http_store(job, value, s->decoded);
}

/* --- Requests ---------------------------------------------------------------------------------- */

bool vc_http_is_mine(const vc_http_job *job, const vc_parts *parts, const vc_tokens *tokens) {
    const vc_request *request = job->request;
    return job->http->settings.answers && !vc_request_has(request, VC_FIELD_SERVICE_WORKER) &&
           !vc_request_repeats(request, 1u << VC_FIELD_AUTHORIZATION) &&
           vc_parts_have(parts, job->path.at, job->path.length) &&
           vc_tokens_allow(tokens, request->values[VC_FIELD_AUTHORIZATION]);
}

bool vc_http_has_good_key(const vc_http_job *job) {
    size_t length = job->wanted.key_length;
    return length && length <= job->http->by.key_size &&
           !vc_key_check((vc_text){(const char *)job->wanted.key, length});
}

/* Whether a GET or HEAD may be executed here. */
static bool http_may_read(const vc_http_job *job) {
    const vc_http_settings *settings = &job->http->settings;
    const vc_request *request = job->request;
    return (request->method == VC_GET || request->method == VC_HEAD) && !request->is_chunked &&
           !request->content_length && job->wanted.key_length && !http_is_reserved(job->path) &&
           vc_http_is_mine(job, &settings->ring, &settings->may_read);
}

/* Forward a request. A thread reads the record first that the application may ask for: meanwhile it
 * answers others. */
static vc_step http_forward_known(vc_http_job *job) {
    const vc_wanted *wanted = &job->wanted;
    vc_lookup at;
    if (wanted->stream->is_read || http_is_reserved(job->path) ||
        !vc_tokens_allow(&job->http->settings.may_read,
                         job->request->values[VC_FIELD_AUTHORIZATION]) ||
        !vc_find_record(wanted, false, VC_UNCOUNTED, &at))
        return vc_http_forward(job);
    return vc_http_wait_for_disk(job, &at, false);
}

/* Execute a request whose head is complete. */
static vc_step http_execute_request(vc_http_job *job) {
    const vc_http_stream *s = job->stream;
    const vc_request *request = job->request;
    if (request->content_length > job->http->by.value_size)
        return http_refuse_size(job, "", request->content_length);
    /* bjoern's parser drops it: the application would derive another key. */
    if (job->http->config.query == VC_QUERY_KEY && request->query.length &&
        request->query.at[0] == '?')
        return http_stop(job, 400, "bad key: the query begins with a second ?; write it as %3F");
    if (!job->path.length) return vc_http_forward(job);
    if (s->base.waited == VC_WAITED_DISK && s->base.status == VC_DEFERRED) {
        http_refuse_waiting(job->http, &job->stream->base, VC_REFUSED_DISK, job->out);
        job->body = job->length - request->length;
        return VC_STEP_NEXT;
    }
    if (http_may_read(job))
        return request->method == VC_HEAD || vc_has_condition(request) ? vc_http_head(job)
                                                                       : vc_http_get(job);
    if (vc_http_may_put(job)) return http_put(job);
    if (vc_http_may_delete(job)) return vc_http_delete(job);
    return http_forward_known(job);
}

/* Set what the request is, and execute it. */
static vc_step http_begin(vc_http *http, vc_http_stream *s, char *data, size_t length, size_t *used,
                          vc_out *out) {
    vc_request *request = &http->request;
    vc_http_job job = {
        .http = http, .stream = s, .request = request, .data = data, .length = length, .out = out};
    int64_t now_ns = vc_monotonic_ns();
    if (!s->started_ns) s->started_ns = now_ns;
    http_update_date(http, now_ns);
    if (s->base.waited == VC_WAITED_MEMORY) s->has_memory = true;
    if (s->base.waited == VC_WAITED_HOT) s->hot_ns += s->base.waited_ns;
    job.path = (vc_text){
        http->path, vc_request_key(request, http->config.query, http->path, sizeof(http->path))};
    job.wanted = (vc_wanted){&http->by, &s->base, (const uint8_t *)job.path.at + 1,
                             job.path.length ? job.path.length - 1 : 0};
    job.keeps_alive = request->keeps_alive &&
                      !atomic_load_explicit(http->config.is_draining, memory_order_relaxed);
    s->method = request->method;
    s->headers = http_headers_for(http, request);
    vc_step step = http_execute_request(&job);
    s->base.waited = VC_WAITED_NOT;
    if (step == VC_STEP_NEXT || step == VC_STEP_VALUE || step == VC_STEP_FORWARD) {
        *used = request->length + job.body;
        http_reset(s);
    }
    return step;
}

static vc_step http_await_head(vc_http_stream *s, size_t needed, vc_at at) {
    s->base.needed = needed;
    s->base.at = at;
    s->method = VC_OTHER_METHOD;
    s->headers = NULL;
    return VC_STEP_MORE;
}

static vc_step http_execute(void *executor, vc_stream *stream, char *data, size_t length,
                            size_t *used, vc_out *out) {
    vc_http *http = executor;
    vc_http_stream *s = http_stream(stream);
    size_t empty = 0, skipped;
    stream->closes = false;
    *used = 0;
    if (!vc_out_has_room(out, VC_HTTP_HEADERS_BYTES + VC_TEXT_BYTES)) return VC_STEP_FLUSH;
    while (length - empty >= 2 && data[empty] == '\r' && data[empty + 1] == '\n') empty += 2;
    skipped = empty;
    data += skipped;
    length -= skipped;
    if (skipped) s->scanned = 0;
    if (!length || (length == 1 && *data == '\r')) {
        *used = skipped;
        return http_await_head(s, length + 1, VC_AT_IDLE);
    }
    vc_head head = vc_request_parse(data, length, &s->scanned, &http->request);
    if (head == VC_HEAD_INCOMPLETE) {
        *used = skipped;
        return http_await_head(s, length + 1, VC_AT_HEAD);
    }
    if (head == VC_HEAD_REFUSED) {
        s->method = http->request.method;
        s->headers = NULL;
        http_refuse(http, s, http->request.status, http->request.reason, out);
        http_reset(s);
        *used = skipped + length;
        return VC_STEP_NEXT;
    }
    vc_step step = http_begin(http, s, data, length, used, out);
    if (*used || step == VC_STEP_MORE) *used += skipped;
    return step;
}

static void http_end(void *executor, vc_stream *stream) {
    http_log_forwarded(executor, http_stream(stream), HTTP_CLIENT_GONE, NULL, 0);
    vc_stream_end(executor, stream);
}

static void http_answered(void *executor, vc_stream *stream, const char *head, uint64_t bytes) {
    http_log_forwarded(executor, http_stream(stream), 0, head, bytes);
}

const vc_protocol vc_http_protocol = {
    .stream_size = sizeof(vc_http_stream),
    .first_bytes = VC_HTTP_FIRST_BYTES,
    .execute = http_execute,
    .answered = http_answered,
    .refuse = http_refuse_waiting,
    .end = http_end,
};

/* --- The executor -------------------------------------------------------------------------------- */

vc_http *vc_http_new(const vc_executor *by, const vc_http_config *config) {
    vc_http *http = calloc(1, sizeof(vc_http));
    if (!http) return NULL;
    http->by = *by;
    http->config = *config;
    return http;
}

void vc_http_free(vc_http *http) { free(http); }

void vc_http_change(vc_http *http, const vc_http_settings *settings, int64_t slow_ns) {
    http->settings = *settings;
    http->by.slow_ns = slow_ns;
}

void vc_http_add_counts(const vc_http *http, vc_http_counts *counts, vc_store_counts *of_store) {
    vc_add_counts(counts, &http->counts, sizeof(*counts));
    vc_add_counts(of_store, &http->by.counts, sizeof(*of_store));
}
