# The loops that serve clients, see server.h: what they share with Python, and what they have
# counted and recorded.

from http import HTTPStatus
from threading import Lock

from libc.stdlib cimport calloc, free

from volcache.keys import QUERIES

# In the order of `vc_method`.
METHODS = ("OTHER", "GET", "HEAD", "PUT", "DELETE", "OTHER")


cdef class ContentTypes:
    cdef vc_types *table

    def __cinit__(self, types):
        self.table = vc_types_new(len(types))
        if self.table is NULL:
            raise MemoryError("no memory for content types")
        for suffix, content_type in sorted(types.items()):
            if not vc_types_add(self.table, suffix, content_type.encode("ascii")):
                raise ValueError(f"too long: {suffix!r} {content_type!r}")

    def __dealloc__(self):
        vc_types_free(self.table)


cdef add_durations(object histogram, const vc_durations *durations):
    cdef list counts = histogram.counts
    cdef int i
    for i in range(64):
        if durations.counts[i]:
            counts[i] += durations.counts[i]
    histogram.total_ns += durations.total_ns


cdef add_new_durations(object histogram, const vc_durations *now, vc_durations *seen):
    """Add what was counted since the last call."""
    cdef vc_durations new
    cdef int i
    if now.total_ns == seen.total_ns:
        return False
    for i in range(64):
        new.counts[i] = now.counts[i] - seen.counts[i]
    new.total_ns = now.total_ns - seen.total_ns
    seen[0] = now[0]
    add_durations(histogram, &new)
    return True


# What the loops use without the interpreter.
cdef struct shared:
    vc_news news
    # Of the loops, then those of the operator's address, which forward everything.
    vc_reporter reporters[32]
    vc_http *https[32]
    vc_http_settings settings
    atomic_bool is_ready, is_draining


cdef void on_change(void *context, unsigned loop) noexcept nogil:
    cdef shared *state = <shared *>context
    vc_http_change(state.https[loop], &state.settings)


cdef void on_tick(void *context, unsigned loop) noexcept nogil:
    cdef shared *state = <shared *>context
    if vc_http_has_events(state.https[loop]):
        vc_news_tell(&state.news)


cdef class Server:
    cdef shared *state
    cdef vc_server *server
    cdef unsigned loops, executors
    cdef Index index
    cdef Clock clock
    cdef ContentTypes types
    cdef Readers readers
    cdef Copies copies
    cdef HotClient hot
    cdef object taking, app, requests, store_stats, log, log_answer, hot_stats, promote
    cdef object answers, reads, writes
    cdef bytes allow, application
    # What the loops may use still, after a change.
    cdef list kept
    cdef vc_http_counts seen
    cdef vc_protocol_figures logged
    cdef int64_t logged_ns
    cdef bint answers_itself, is_started
    cdef unsigned limit

    def __cinit__(self):
        self.state = <shared *>calloc(1, sizeof(shared))
        if self.state is NULL:
            raise MemoryError("no memory for the loops")
        vc_news_start(&self.state.news)

    def __init__(
        self, app, types, *, unsigned loops, int listener, int admin_listener, application,
        allow, log, log_answer, Readers readers, unsigned connections,
        unsigned admin_connections, uint64_t memory, timeouts,
    ):
        cdef vc_server_config config
        memset(&config, 0, sizeof(config))
        store = app.cache.store
        self.app, self.log, self.log_answer = app, log, log_answer
        self.types = ContentTypes(types)
        self.allow = allow.encode("ascii")
        self.requests, self.store_stats = app.stats, store.stats
        self.answers = app.stats.answers
        self.reads, self.writes = self.store_stats.reads, self.store_stats.writes
        for i in range(<int>VC_PUT_STORED + 1):  # They are shown from the beginning.
            self.answers[answer_of(i)]
        # Without a store, or with another clock, the loops answer nothing themselves.
        self.answers_itself = type(store.clock) is Clock
        self.clock = store.clock if self.answers_itself else Clock()
        self.index, self.readers = readers.index, readers
        self.copies, self.promote = app.cache.hot_keys, app.cache.promote
        self.hot = app.cache.hot_client
        self.kept, self.taking = [], Lock()
        self.loops, self.limit, self.executors = loops, connections, 2 * loops
        self.make_executors(app)
        config.loops = loops
        head, idle, transfer = timeouts
        served = (
            (VC_HTTP, listener, connections, 0), (VC_ADMIN, admin_listener, admin_connections, loops)
        )
        for protocol, fd, most, first in served:
            self.serve(&config, protocol, fd, first)
            config.protocols[<int>protocol].connections = most
            config.protocols[<int>protocol].head_ns = <int64_t>(head * 1e9)
            config.protocols[<int>protocol].idle_ns = <int64_t>(idle * 1e9)
        config.transfer_ns = <int64_t>(transfer * 1e9)
        config.memory = memory
        config.core, config.functions = self.index.core, functions
        config.readers = readers.readers
        if self.hot is not None:
            self.hot_stats = app.cache.hot_state().stats
            config.hots[0] = self.hot.hot
        self.application = application.encode()
        config.application = self.application
        config.on_change, config.on_tick, config.context = on_change, on_tick, self.state
        self.server = vc_server_new(&config)
        if self.server is NULL:
            raise MemoryError("no memory or descriptors for the loops")

    cdef serve(self, vc_server_config *config, int protocol, int fd, int first):
        for i in range(<int>config.loops):
            config.protocols[protocol].executors[i] = self.state.https[first + i]
        config.protocols[protocol].calls = &vc_http_protocol
        if fd >= 0:
            config.listeners[config.listener_count].fd = fd
            config.listeners[config.listener_count].protocol = protocol
            config.listener_count += 1

    def __dealloc__(self):
        if self.state is NULL:
            return
        if self.server is not NULL:
            with nogil:
                vc_server_free(self.server)
        for i in range(<int>self.executors):
            vc_http_free(self.state.https[i])
        free(self.state)

    cdef make_executors(self, app):
        cdef vc_http_config config
        memset(&config, 0, sizeof(config))
        config.core, config.functions = self.index.core, functions
        config.clock = &self.clock.clock
        if self.copies is not None:
            config.copies = self.copies.copies
            config.memory_first = app.cache.memory_first
        config.types = self.types.table
        config.is_ready = &self.state.is_ready
        config.is_draining = &self.state.is_draining
        config.logs_all = self.log_answer is not None
        config.key_size, config.value_size = app.limits.key_size, app.limits.value_size
        config.query = <vc_query_use><int>QUERIES.index(app.limits.query)
        config.long_ns, config.sample_mask = LONG_NS, SAMPLED
        config.allow = self.allow
        config.on_events, config.on_hot = vc_report_full, vc_report_hot
        config.on_due = vc_report_due
        for i in range(<int>self.executors):
            self.state.reporters[i].news = &self.state.news
            config.context = &self.state.reporters[i]
            self.state.https[i] = vc_http_new(&config)
            if self.state.https[i] is NULL:
                raise MemoryError("no memory for the loops")

    def start(self):
        self.set_ready()
        self.is_started = vc_server_start(self.server)
        if not self.is_started:
            raise MemoryError("no threads for the loops")

    # --- Settings ---

    cdef const char *keep(self, text) except NULL:
        cdef bytes data = text.encode("ascii")
        self.kept.append(data)
        return data

    cdef set_tokens(self, vc_tokens *tokens, right):
        cdef bytes token
        if len(right) > VC_TOKENS:
            raise ValueError("too many tokens")
        for token in right:
            self.kept.append(token)
            tokens.right[tokens.count].at = token
            tokens.right[tokens.count].length = PyBytes_GET_SIZE(token)
            tokens.count += 1

    def change(self, *, int64_t default_ttl, int64_t max_ttl, may_read, may_write, headers, origins):
        cdef vc_http_settings settings
        cdef vc_origin *array
        cdef bytearray origins_now = bytearray(len(origins) * sizeof(vc_origin))
        cdef Parts readable, writable
        memset(&settings, 0, sizeof(settings))
        if max(map(len, [headers, *origins.values()])) >= VC_HTTP_MORE_BYTES:
            raise ValueError("the headers are too long")
        settings.origins = array = <vc_origin *>PyByteArray_AS_STRING(origins_now)
        settings.origin_count = len(origins)
        for i, (origin, more) in enumerate(origins.items()):
            array[i].origin = self.keep(origin)
            array[i].headers = self.keep(more)
        settings.headers = self.keep(headers) if headers else NULL
        ring = self.app.ring
        readable = Parts(ring.reads if ring is not None else ())
        writable = Parts(ring.writes if ring is not None else ())
        settings.ring, settings.writable = readable.parts, writable.parts
        self.kept += [origins_now, readable, writable]
        self.set_tokens(&settings.may_read, may_read)
        self.set_tokens(&settings.may_write, may_write)
        settings.answers = self.answers_itself
        settings.default_ttl, settings.max_ttl = default_ttl, max_ttl
        settings.slow_ns = min(self.app.slow_ns, 2**62)
        self.state.settings = settings
        vc_server_set_ring(self.server, ring is not None)
        if not self.is_started:
            for i in range(<int>self.loops):
                on_change(self.state, i)
            return
        with nogil:
            vc_server_change(self.server)

    # --- What the loops tell ---

    def wait(self, double seconds):
        cdef int64_t timeout_ns = <int64_t>(seconds * 1e9)
        with nogil:
            vc_news_wait(&self.state.news, timeout_ns)

    def set_ready(self):
        # As an int: clang compares no _Atomic(bool) with a cast of one.
        self.state.is_ready = <bint>self.store_stats.is_disk_good

    def flush(self):
        with self.taking:
            self.take_counts()
            for i in range(<int>self.executors):
                self.take_events(i)
            vc_news_end(&self.state.news)
            self.log_limit()
            self.set_ready()

    def work(self):
        self.flush()
        for i in range(<int>self.loops):
            self.take_hot(i)
        if vc_news_take_due(&self.state.news):
            self.catch_up()

    cdef catch_up(self):
        store = self.app.cache.store
        with store.lock:
            store.catch_up()

    cdef take_counts(self):
        cdef vc_http_counts counts
        cdef vc_http_counts *seen = &self.seen
        cdef int i
        memset(&counts, 0, sizeof(counts))
        for i in range(<int>self.executors):
            vc_http_add_counts(self.state.https[i], &counts)
        self.requests.bytes_in += counts.bytes_in - seen.bytes_in
        self.requests.bytes_out += counts.bytes_out - seen.bytes_out
        self.store_stats.absent_reads += counts.absent - seen.absent
        self.store_stats.evicted_reads += counts.evicted - seen.evicted
        for i in range(<int>VC_HTTP_ANSWERS):
            if counts.answers[i].total_ns != seen.answers[i].total_ns:
                add_new_durations(self.answers[answer_of(i)], &counts.answers[i], &seen.answers[i])
                if i == <int>VC_GET_HIT:
                    self.store_stats.read_errors_in_row = 0
        add_new_durations(self.reads, &counts.reads, &seen.reads)
        add_new_durations(self.writes, &counts.writes, &seen.writes)
        self.seen = counts
        if self.hot is not None:
            self.hot.take_counts(self.hot_stats)

    cdef take_events(self, int loop):
        cdef size_t length, at = 0
        cdef const uint8_t *events = vc_http_take_events(self.state.https[loop], &length)
        cdef const vc_http_event *event
        while at < length:
            event = <const vc_http_event *>(events + at)
            at += event.length
            self.take_event(event)

    cdef take_hot(self, int loop):
        cdef size_t length, at = 0
        cdef const uint8_t *events = vc_events_take(&self.state.reporters[loop].hot, &length)
        cdef const vc_hot_event *event
        while at < length:
            event = <const vc_hot_event *>(events + at)
            at += event.length
            self.promote(event.key[: event.key_length], event.expires_ms)

    cdef take_event(self, const vc_http_event *event):
        cdef const char *text = event.text
        if event.answer == VC_HTTP_ANSWERS:
            status = f"{event.status} {HTTPStatus(event.status).phrase}"
            answer = METHODS[event.method], status, ""
            self.answers[answer].observe(event.started_ns, event.took_ns)
            return
        answer = answer_of(event.answer)
        method, status, source = answer
        path = text[: event.path_length].decode("latin-1")
        if event.took_ns > LONG:
            self.answers[answer].long.append((event.started_ns, event.took_ns))
        if event.disk_ns > LONG:
            disk = self.writes if method in ("PUT", "DELETE") else self.reads
            disk.long.append((event.started_ns, event.disk_ns))
        if event.hot_ns > LONG:
            self.hot_stats.calls.long.append((event.started_ns, event.hot_ns))
        if event.is_sampled:
            self.app.sample(path)
        if event.took_ns > self.app.slow_ns:
            self.app.log_slow(
                method, path, status, event.started_ns, event.took_ns,
                (event.disk_ns, event.hot_ns),
            )
        if self.log_answer is not None:
            position = (event.volume, event.offset, event.size) if event.size else None
            head = text[event.path_length : event.path_length + event.head_length]
            self.log_answer(
                event.address.decode("ascii"), head, status, position, event.bytes,
                event.took_ns, event.ended_us, source,
            )

    cdef log_limit(self):
        """Log at most once in ten seconds that there are too many connections."""
        cdef vc_server_figures figures
        cdef vc_protocol_figures *http = &figures.protocols[0]
        cdef int64_t now_ns = monotonic_ns()
        vc_server_get_figures(self.server, &figures)
        closed = http.closed_for_room - self.logged.closed_for_room
        turned_away = http.turned_away - self.logged.turned_away
        if not closed and not turned_away or now_ns - self.logged_ns < 10_000_000_000:
            return
        self.logged, self.logged_ns = http[0], now_ns
        self.log.full(http.open, closed, turned_away)

    # --- Figures, and the end ---

    def stats(self):
        cdef vc_server_figures figures
        vc_server_get_figures(self.server, &figures)
        found = <dict>figures.protocols[0]
        return found | {
            "limit": self.limit,
            "waiting_bodies": figures.waiting_for_memory,
            "waiting_reads": figures.waiting_for_disk,
            "body_bytes": figures.reserved,
            "cold_reads": figures.cold,
            "closed_room": figures.protocols[0].closed_for_room,
        }

    def stalled_seconds(self):
        return vc_server_stalled_ns(self.server) / 1e9

    def drain(self, double seconds):
        cdef int64_t drain_ns = <int64_t>(seconds * 1e9)
        self.state.is_draining = True
        if self.is_started:
            with nogil:
                vc_server_drain(self.server, drain_ns)
        self.is_started = False
        self.flush()
        return self.cut()

    cdef cut(self):
        cdef vc_server_figures figures
        vc_server_get_figures(self.server, &figures)
        return figures.protocols[<int>VC_HTTP].cut + figures.protocols[<int>VC_ADMIN].cut


cdef answer_of(int number):
    cdef vc_http_name *name = <vc_http_name *>&vc_http_names[number]
    return (
        name.method.decode("ascii"), name.status.decode("ascii"), name.source.decode("ascii")
    )
