"""The C interface of the front; see the headers."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from volcache.store._core.core cimport (
    c_bool, vc_clock, vc_core, vc_core_functions, vc_lookup, vc_put, vc_record,
)


cdef extern from "answer.h" nogil:
    enum: VC_DATE_BYTES
    int64_t VC_SECOND_MAX
    ctypedef struct vc_types: pass
    vc_types *vc_types_new(size_t count)
    void vc_types_free(vc_types *types)
    bint vc_types_add(vc_types *types, const char *suffix, const char *type)
    char *vc_put_date(char *to, int64_t second)


cdef extern from "request.h" nogil:
    enum: VC_PUT
    ctypedef enum vc_query_use: pass


cdef extern from "log.h" nogil:
    ctypedef struct vc_log: pass
    vc_log *vc_log_new(bint is_json, size_t bytes_max)
    void vc_log_free(vc_log *log)
    const char *vc_log_take(vc_log *log, size_t *length, uint64_t *dropped)


cdef extern from "ring.h" nogil:
    ctypedef struct vc_parts:
        const uint32_t *bounds
        size_t count
    bint vc_parts_have(const vc_parts *parts, const void *path, size_t length)


cdef extern from "copies.h" nogil:
    enum: VC_EPOCH_BYTES
    enum: VC_ITEM_BYTES
    ctypedef enum vc_copy_use:
        VC_NO_COPY
        VC_COPY
        VC_COPY_FIRST
    ctypedef struct vc_copies: pass
    ctypedef struct vc_copies_config:
        uint32_t reads
        int64_t duration_ms
        uint32_t keys, first, counted
    ctypedef struct vc_copies_entry:
        uint64_t hash, version
    ctypedef struct vc_copies_state:
        uint8_t *epoch
        uint32_t keys, first, counted
        uint64_t invalidations
    vc_copies *vc_copies_new(const vc_copies_config *config)
    void vc_copies_free(vc_copies *copies)
    vc_copy_use vc_copies_find(vc_copies *copies, const uint8_t *key, size_t length,
                               uint8_t *item)
    bint vc_copies_invalidate(vc_copies *copies, const uint8_t *key, size_t length)
    bint vc_copies_count_read(vc_copies *copies, const uint8_t *key, size_t length,
                              int64_t now_ms)
    void vc_copies_ask_first(vc_copies *copies, const uint8_t *key, size_t length,
                             bint is_first)
    bint vc_copies_promote(vc_copies *copies, const uint8_t *key, size_t length, uint8_t *item)
    void vc_copies_name(vc_copies *copies, const uint8_t *key, size_t length, uint8_t *item)
    void vc_copies_begin_epoch(vc_copies *copies, const uint8_t *epoch)
    bint vc_copies_add(vc_copies *copies, vc_copies_entry entry)
    void vc_copies_get_state(vc_copies *copies, vc_copies_state *state,
                             vc_copies_entry *entries, size_t room)


cdef extern from "tokens.h" nogil:
    enum: VC_TOKENS
    ctypedef struct vc_text:
        const char *at
        size_t length
    ctypedef struct vc_tokens:
        vc_text *right
        unsigned count


cdef extern from "readers.h" nogil:
    ctypedef struct vc_readers: pass
    enum: VC_READERS_MAX
    vc_readers *vc_readers_new(vc_core *core, const vc_core_functions *functions,
                               unsigned threads)
    void vc_readers_free(vc_readers *readers)


cdef extern from "common.h" nogil:
    ctypedef struct vc_durations:
        uint64_t *counts
        uint64_t total_ns


cdef extern from "hot_client.h" nogil:
    enum: VC_HOT_HEAD_BYTES
    ctypedef enum vc_hot_result:
        VC_HOT_MORE
        VC_HOT_FOUND
        VC_HOT_ABSENT
        VC_HOT_STORED
        VC_HOT_NOT_STORED
        VC_HOT_REFUSED
        VC_HOT_TIMEOUT
        VC_HOT_CLOSED
        VC_HOT_PROTOCOL
        VC_HOT_OTHER
    ctypedef struct vc_hot_reply:
        vc_hot_result result
        size_t length
        const uint8_t *value
        size_t value_length
    size_t vc_hot_write_get(char *to, const uint8_t *name)
    size_t vc_hot_write_set(char *to, const uint8_t *name, uint64_t expires_s,
                            size_t record_length)
    vc_hot_reply vc_hot_parse(const uint8_t *data, size_t length, const uint8_t *name,
                              size_t value_max)
    ctypedef struct vc_hot: pass
    vc_hot *vc_hot_new(const char **addresses, unsigned count, int64_t timeout_ns,
                       size_t record_max)
    void vc_hot_free(vc_hot *hot)
    unsigned vc_hot_server_of(const vc_hot *hot, const uint8_t *name)
    void vc_hot_give(vc_hot *hot, unsigned number, int fd)
    vc_hot_result vc_hot_take_failure(vc_hot *hot, unsigned number)
    bint vc_hot_has_loop(vc_hot *hot)
    bint vc_hot_send(vc_hot *hot, const uint8_t *name, uint64_t expires_s,
                     const uint8_t *record, size_t length)
    ctypedef struct vc_hot_counts:
        uint64_t gets, hits, stale, promotions, refused_gets, refused_sets
        vc_durations calls
    void vc_hot_add_counts(const vc_hot *hot, vc_hot_counts *counts)


cdef extern from "<stdatomic.h>" nogil:
    ctypedef bint atomic_bool


cdef extern from "protocol.h" nogil:
    ctypedef struct vc_protocol: pass
    ctypedef enum vc_step: pass
    ctypedef struct vc_stream:
        const char *remote
        bint closes
        size_t needed, key_length
        vc_lookup found
        const uint8_t *key
    ctypedef struct iovec "struct iovec":
        void *iov_base
        size_t iov_len
    ctypedef struct vc_out:
        char *at
        size_t used, room
        iovec *parts
        unsigned count


cdef extern from "http.h" nogil:
    enum: VC_HTTP_MORE_BYTES
    ctypedef enum vc_http_answer: VC_GET_HIT, VC_PUT_STORED, VC_HTTP_ANSWERS
    struct vc_http_name:
        const char *method
        const char *status
        const char *source
    const vc_http_name *vc_http_names
    ctypedef struct vc_origin:
        const char *origin
        const char *headers
    ctypedef struct vc_http_settings:
        bint answers
        vc_parts ring, writable
        vc_tokens may_read, may_write
        int64_t default_ttl, max_ttl, slow_ns
        const char *headers
        const vc_origin *origins
        unsigned origin_count
    ctypedef struct vc_http_config:
        vc_core *core
        const vc_core_functions *functions
        vc_clock *clock
        vc_copies *copies
        bint memory_first
        vc_log *log
        const vc_types *types
        atomic_bool *is_ready
        const atomic_bool *is_draining
        size_t key_size
        vc_query_use query
        uint64_t value_size, sample_mask
        int64_t long_ns
        const char *allow
        void (*on_events)(void *context) noexcept
        void (*on_hot)(void *context, const uint8_t *key, size_t length,
                       const vc_record *record) noexcept
        void (*on_due)(void *context) noexcept
        void *context
    ctypedef struct vc_http_event:
        uint32_t length, path_length
        vc_http_answer answer
        int status, method
        bint is_sampled
        int64_t started_ns, took_ns, disk_ns, hot_ns
        const char *path
    ctypedef struct vc_http_counts:
        vc_durations *answers
        vc_durations reads, writes
        uint64_t bytes_in, bytes_out, absent, evicted
    ctypedef struct vc_http: pass
    const vc_protocol vc_http_protocol
    vc_http *vc_http_new(const vc_http_config *config)
    void vc_http_free(vc_http *http)
    void vc_http_change(vc_http *http, const vc_http_settings *settings)
    void vc_http_add_counts(const vc_http *http, vc_http_counts *counts)
    const uint8_t *vc_http_take_events(vc_http *http, size_t *length)


cdef extern from "events.h" nogil:
    ctypedef struct vc_events: pass
    const uint8_t *vc_events_take(vc_events *events, size_t *length)


cdef extern from "news.h" nogil:
    ctypedef struct vc_hot_event:
        uint32_t length, key_length
        uint64_t expires_ms
        const char *key
    ctypedef struct vc_news: pass
    ctypedef struct vc_reporter:
        vc_news *news
        vc_events hot
    void vc_news_start(vc_news *news)
    void vc_news_wait(vc_news *news, int64_t timeout_ns)
    void vc_news_end(vc_news *news)
    bint vc_news_take_due(vc_news *news)
    bint vc_news_take_full(vc_news *news)
    void vc_report_full(void *reporter) noexcept
    void vc_report_hot(void *reporter, const uint8_t *key, size_t length,
                       const vc_record *record) noexcept
    void vc_report_due(void *reporter) noexcept


cdef extern from "server.h" nogil:
    enum: VC_LOOPS_MAX
    enum: VC_HTTP, VC_MEMCACHED, VC_ADMIN
    ctypedef struct vc_served:
        const vc_protocol *calls
        void **executors
        void *caller
        int64_t head_ns, idle_ns
        unsigned connections
    ctypedef struct vc_listening:
        int fd
        unsigned protocol
    ctypedef struct vc_server_config:
        unsigned loops, listener_count
        vc_served *protocols
        vc_listening *listeners
        uint64_t memory
        int64_t transfer_ns
        vc_core *core
        const vc_core_functions *functions
        vc_readers *readers
        vc_hot **hots
        const char *application
        void (*on_change)(void *context, unsigned loop) noexcept
        void *context
    ctypedef struct vc_protocol_figures:
        uint64_t accepted, open, most, idle, bytes_in, bytes_out
        uint64_t turned_away, closed_room, closed_idle, closed_head, closed_transfer
        uint64_t closed_for_memory, cut
    ctypedef struct vc_server_figures:
        vc_protocol_figures *protocols
        uint64_t failed_accepts, forwarded, cold
        uint64_t waiting_for_disk, waiting_for_memory, held, reserved, accept_error
    ctypedef struct vc_listed:
        int number
        bint is_idle
        int64_t used_ns
        const char *address
    ctypedef enum vc_call_end: VC_CALL_SERVED, VC_CALL_TIMEOUT, VC_CALLS_ENDED
    ctypedef struct vc_server: pass
    vc_server *vc_server_new(const vc_server_config *config)
    void vc_server_free(vc_server *server)
    bint vc_server_start(vc_server *server)
    void vc_server_begin_change(vc_server *server)
    void vc_server_end_change(vc_server *server)
    void vc_server_set_ring(vc_server *server, bint is_in_ring)
    void vc_server_drain(vc_server *server, int64_t drain_ns)
    vc_call_end vc_server_serve_call(vc_server *server, int64_t timeout_ns)
    size_t vc_server_list(vc_server *server, unsigned protocol, vc_listed *to, size_t room)
    void vc_server_get_figures(vc_server *server, vc_server_figures *figures)
    int64_t vc_server_stalled_ns(vc_server *server)


cdef extern from "marks.h" nogil:
    ctypedef struct vc_marks: pass
    vc_marks *vc_marks_new(size_t count)
    void vc_marks_free(vc_marks *marks)
    void vc_marks_put(vc_marks *marks, uint64_t version, uint32_t number)
    bint vc_marks_get(const vc_marks *marks, uint64_t version, uint32_t *number)


cdef extern from "memcache.h" nogil:
    enum: VC_MC_NAMES
    enum: VC_MC_RESULTS
    enum: VC_MC_TOKEN_BYTES
    enum: VC_MC_TOKENS_MAX
    enum: VC_MC_OUT_BYTES_MIN
    ctypedef enum vc_mc_result:
        VC_MC_HIT
        VC_MC_MISS
        VC_MC_STORED
        VC_MC_NOT_FOUND
        VC_MC_DELETED
        VC_MC_OK
        VC_MC_AUTHENTICATED
        VC_MC_DENIED
        VC_MC_UNAUTHORIZED
        VC_MC_FORBIDDEN
        VC_MC_TOO_LARGE
        VC_MC_FAILED
    const char **vc_mc_names
    const char **vc_mc_results
    ctypedef struct vc_mc_clocks:
        int64_t (*store_us)(void *context) noexcept
        int64_t (*machine_us)(void *context) noexcept
        void *context
    ctypedef struct vc_mc_rights:
        bint may_read, may_write, wants_credentials
    ctypedef struct vc_mc_token:
        uint8_t *token
        vc_mc_rights rights
    ctypedef struct vc_mc_access:
        vc_mc_rights rights
        unsigned count
        vc_mc_token *tokens
    ctypedef enum vc_mc_question:
        VC_MC_ASK_GET
        VC_MC_ASK_STAT
        VC_MC_ASK_PUT
        VC_MC_ASK_TOUCH
        VC_MC_ASK_DELETE
        VC_MC_ASK_FLUSH
        VC_MC_ASK_STATS
        VC_MC_ASK_CONFIG
        VC_MC_ASK_TOKEN
    ctypedef struct vc_mc_asked:
        vc_mc_question question
        const char *remote
        vc_text key, value, text
        const vc_put *put
        int64_t exptime
        vc_record record
        bint is_copy, is_broken
        vc_mc_rights rights
        uint8_t *token
    ctypedef struct vc_mc_config:
        vc_core *core
        const vc_core_functions *functions
        const vc_mc_clocks *clocks
        vc_marks *reads
        vc_marks *won
        vc_copies *copies
        size_t key_size
        uint64_t value_size
        int64_t default_ttl, max_ttl, slow_ns, long_ns, sample_mask
        vc_log *log
        void (*on_events)(void *context) noexcept
        void (*on_hot)(void *context, const uint8_t *key, size_t length,
                       const vc_record *record) noexcept
        void (*on_due)(void *context) noexcept
        void *context
        vc_mc_result (*ask)(void *ask_context, vc_mc_asked *asked) noexcept
        void *ask_context
    ctypedef struct vc_mc_stream:
        vc_stream base
    ctypedef struct vc_mc_counts:
        vc_durations commands[VC_MC_NAMES][VC_MC_RESULTS]
        vc_durations reads, writes
        uint64_t absent, evicted, expired
    ctypedef struct vc_mc_event:
        uint32_t length, key_length
        int name, result
        bint is_sampled, wants_read, has_token
        int64_t started_ns, took_ns, read_ns, write_ns
        const char *remote
        const char *key
    ctypedef struct vc_mc: pass
    vc_mc *vc_mc_new(const vc_mc_config *config)
    void vc_mc_free(vc_mc *mc)
    vc_step vc_mc_execute(vc_mc *mc, vc_mc_stream *stream, const char *data, size_t length,
                          size_t *used, vc_out *out)
    void vc_mc_allow(vc_mc_stream *stream, const vc_mc_access *access)
    uint64_t vc_mc_executed(const vc_mc *mc)
    void vc_mc_add_counts(const vc_mc *mc, vc_mc_counts *counts)
    const uint8_t *vc_mc_take_events(vc_mc *mc, size_t *length)


cdef extern from "mc_protocol.h" nogil:
    ctypedef struct vc_mc_executor:
        vc_mc *mc
    const vc_protocol vc_mc_protocol
    void vc_mc_executor_change(
        vc_mc_executor *executor, const vc_mc_access *access, int64_t slow_ns
    )


cdef extern from "local.h" nogil:
    enum: VC_LOCAL_GUESTS
    ctypedef struct vc_reply:
        char *at
        size_t length
    ctypedef struct vc_local:
        int shared_fd
        vc_core *core
        const vc_core_functions *functions
        vc_clock *clock
        c_bool (*answer)(void *context, uint64_t guest, const char *data, size_t length,
                       vc_reply *reply) noexcept
        void (*gone)(void *context, uint64_t guest) noexcept
        void *context
    const vc_protocol vc_local_protocol
