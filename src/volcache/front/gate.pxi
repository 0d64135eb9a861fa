# The gate in front of bjoern, see gate.h: its parts from Python, and what it has
# counted and recorded.

from collections import deque
from http import HTTPStatus

from libc.stdint cimport uintptr_t

from volcache.keys import QUERIES

# In the order of `vc_answer`.
ANSWERS = (
    ("GET", "200 OK", "DISK"),
    ("GET", "200 OK", "MEMC"),
    ("GET", "404 Not Found", "MISS"),
    ("PUT", "200 OK", ""),
    ("HEAD", "200 OK", "DISK"),
    ("HEAD", "404 Not Found", "MISS"),
    ("GET", "304 Not Modified", "DISK"),
    ("HEAD", "304 Not Modified", "DISK"),
    ("DELETE", "200 OK", ""),
    ("DELETE", "404 Not Found", "MISS"),
)
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


cdef void on_events(void *context) noexcept with gil:
    try:
        (<Gate>context).take()
    except BaseException as error:
        (<Gate>context).log.failed(error)


cdef void on_pulse(void *context) noexcept with gil:
    try:
        (<Gate>context).run()
    except BaseException as error:
        (<Gate>context).log.failed(error)


cdef void on_hot(
    void *context, const uint8_t *key, size_t length, const vc_record *record
) noexcept with gil:
    try:
        (<Gate>context).promote((<const char *>key)[:length], record.expires_ms)
    except BaseException as error:
        (<Gate>context).log.failed(error)


cdef void on_due(void *context) noexcept with gil:
    try:
        (<Gate>context).catch_up()
    except BaseException as error:
        (<Gate>context).log.failed(error)


cdef add_durations(object histogram, vc_durations *durations):
    cdef list counts = histogram.counts
    cdef int i
    for i in range(64):
        if durations.counts[i]:
            counts[i] += durations.counts[i]
    histogram.total_ns += durations.total_ns


cdef class Gate:
    cdef vc_gate *gate
    cdef const vc_link *link
    cdef Index index
    cdef Clock clock
    cdef ContentTypes types
    cdef Readers readers
    cdef Parts readable, writable
    cdef list tokens
    cdef bytes allow
    # Headers so far: answers with earlier ones may be on their way.
    cdef dict kept
    cdef bytearray origins
    cdef object calls, pulse
    cdef object app, requests, store_stats, log, log_answer
    cdef object answers, reads, writes
    cdef Copies copies
    cdef HotClient hot
    cdef object hot_stats
    cdef object promote
    cdef vc_gate_stats logged
    cdef int64_t logged_ns
    cdef unsigned limit

    def __init__(
        self, app, types, *, uintptr_t link, allow, log, log_answer, Readers readers,
        unsigned connections, uint64_t body_memory, timeouts,
    ):
        cdef vc_gate_config config
        memset(&config, 0, sizeof(config))
        self.link = <const vc_link *>link
        if self.link.version != VC_LINK_VERSION:
            raise ImportError(f"bjoern was built for gate version {self.link.version}")
        self.app = app
        self.types = ContentTypes(types)
        store = app.cache.store
        self.allow = allow.encode("ascii")
        self.requests = app.stats
        self.log = log
        self.log_answer = log_answer
        self.store_stats = app.cache.store.stats
        self.answers = app.stats.answers
        for answer in ANSWERS[:4]:  # They are shown from the beginning.
            self.answers[answer]
        self.reads = self.store_stats.reads
        self.writes = self.store_stats.writes
        if type(store.clock) is Clock:
            self.index, self.clock = store.index, store.clock
            config.core = self.index.core
            config.functions = functions
            config.clock = &self.clock.clock
        self.copies, self.promote = app.cache.hot_keys, app.cache.promote
        if self.copies is not None:
            config.copies = self.copies.copies
        self.hot = app.cache.hot_client
        if self.hot is not None:
            config.hot = self.hot.hot
            config.memory_first = app.cache.memory_first
            self.hot_stats = app.cache.hot_state().stats
        config.link = self.link
        config.io = &vc_gate_sockets
        config.types = self.types.table
        config.logs_all = log_answer is not None
        config.key_size = app.limits.key_size
        config.query = <vc_query_use><int>QUERIES.index(app.limits.query)
        config.value_size = app.limits.value_size
        config.body_memory = body_memory
        self.readers = readers
        config.readers = readers.readers
        config.connections = self.limit = connections
        config.head_ns, config.idle_ns, config.transfer_ns = [
            int(seconds * 1e9) for seconds in timeouts
        ]
        config.long_ns = LONG_NS
        config.sample_mask = SAMPLED
        config.allow = self.allow
        self.kept = {}
        self.calls = deque()
        config.on_events = on_events
        config.on_pulse = on_pulse
        config.on_hot = on_hot
        config.on_due = on_due
        config.context = <void *>self
        self.gate = vc_gate_new(&config)
        if self.gate is NULL:
            raise MemoryError("no memory for the gate")
        self.link.install(vc_gate_hooks(self.gate))

    cdef const char *keep(self, text) except NULL:
        cdef bytes data = text.encode("ascii")
        cdef bytes kept = self.kept.setdefault(data, data)
        return kept

    cdef set_tokens(self, vc_tokens *tokens, right):
        cdef bytes token
        if len(right) > VC_TOKENS:
            raise ValueError("too many tokens")
        for token in right:
            tokens.right[tokens.count].at = token
            tokens.right[tokens.count].length = PyBytes_GET_SIZE(token)
            tokens.count += 1

    def change(self, *, bint puts, may_read, may_write, headers, origins):
        cdef vc_gate_config config
        cdef vc_origin *array
        cdef bytearray origins_now = bytearray(len(origins) * sizeof(vc_origin))
        memset(&config, 0, sizeof(config))
        if max(map(len, [headers, *origins.values()])) >= VC_MORE_BYTES:
            raise ValueError("the headers are too long")
        config.origins = array = <vc_origin *>PyByteArray_AS_STRING(origins_now)
        config.origin_count = len(origins)
        for i, (origin, more) in enumerate(origins.items()):
            array[i].origin = self.keep(origin)
            array[i].headers = self.keep(more)
        config.headers = self.keep(headers) if headers else NULL
        # Those before are freed: the gate is changed before this returns to the loop.
        self.origins = origins_now
        ring = self.app.ring
        self.readable = Parts(ring.reads if ring is not None else ())
        self.writable = Parts(ring.writes if ring is not None else ())
        config.ring, config.writable = self.readable.parts, self.writable.parts
        self.set_tokens(&config.may_read, may_read)
        self.set_tokens(&config.may_write, may_write)
        self.tokens = [*may_read, *may_write]
        config.answers, config.puts = True, puts
        config.slow_ns = min(self.app.slow_ns, 2**62)
        vc_gate_change(self.gate, &config)

    def set_pulse(self, double seconds, pulse):
        self.pulse = pulse
        vc_gate_set_pulse(self.gate, <int64_t>(seconds * 1e9))

    def call_soon(self, function):
        self.calls.append(function)
        if self.gate is not NULL:
            vc_gate_ask_pulse(self.gate)

    cdef run(self):
        """Call what the loop was asked to call, then the pulse."""
        while self.calls:
            self.calls.popleft()()
        if self.pulse is not None:
            self.pulse()

    cdef catch_up(self):
        store = self.app.cache.store
        with store.lock:
            store.catch_up()

    def drain(self):
        if self.gate is not NULL:
            vc_gate_drain(self.gate)

    def stalled_seconds(self):
        return vc_gate_stalled_ns(self.gate) / 1e9

    def close(self):
        if self.gate is NULL:
            return
        self.flush()
        self.link.install(NULL)
        with nogil:
            vc_gate_free(self.gate)
        self.gate = NULL

    def stats(self):
        cdef vc_gate_stats stats
        vc_gate_get_stats(self.gate, &stats)
        found = <dict>stats
        found["limit"] = self.limit
        return found

    def set_ready(self):
        vc_gate_set_ready(self.gate, self.store_stats.is_disk_good)

    def flush(self):
        if self.gate is NULL:
            return
        vc_gate_poll(self.gate)
        self.take()

    cdef take(self):
        cdef vc_gate_counts counts
        vc_gate_take_counts(self.gate, &counts)
        cdef int i
        self.requests.bytes_in += counts.bytes_in
        self.requests.bytes_out += counts.bytes_out
        if self.hot is not None:
            self.hot.take_counts(self.hot_stats)
        for i in range(<int>VC_ANSWERS):
            if counts.answers[i].total_ns:
                add_durations(self.answers[ANSWERS[i]], &counts.answers[i])
        if counts.answers[<int>VC_GET_HIT].total_ns:
            self.store_stats.read_errors_in_row = 0
        self.store_stats.absent_reads += counts.absent
        self.store_stats.evicted_reads += counts.evicted
        if counts.reads.total_ns:
            add_durations(self.reads, &counts.reads)
        if counts.writes.total_ns:
            add_durations(self.writes, &counts.writes)
        self.take_events()
        self.log_limit()
        self.set_ready()

    cdef take_events(self):
        cdef size_t length, at = 0
        cdef const uint8_t *events = vc_gate_take_events(self.gate, &length)
        cdef const vc_event *event
        while at < length:
            event = <const vc_event *>(events + at)
            at += event.length
            self.take_event(event)

    cdef take_event(self, const vc_event *event):
        cdef const char *text = event.text
        if event.answer == VC_ANSWERS:
            status = f"{event.status} {HTTPStatus(event.status).phrase}"
            answer = METHODS[event.method], status, ""
            self.answers[answer].observe(event.started_ns, event.took_ns)
            return
        answer = ANSWERS[event.answer]
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
        cdef vc_gate_stats stats
        cdef int64_t now_ns = monotonic_ns()
        vc_gate_get_stats(self.gate, &stats)
        closed = stats.closed_room - self.logged.closed_room
        turned_away = stats.turned_away - self.logged.turned_away
        if not closed and not turned_away or now_ns - self.logged_ns < 10_000_000_000:
            return
        self.logged, self.logged_ns = stats, now_ns
        self.log.full(stats.open, closed, turned_away)
