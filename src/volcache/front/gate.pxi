# The gate in front of bjoern, see gate.h: its parts from Python, and what it has
# counted and recorded.

from collections import deque
from http import HTTPStatus

from libc.stdint cimport uintptr_t

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


cdef int add_durations(object histogram, vc_durations *durations) except -1:
    cdef list counts = histogram.counts
    cdef int i
    for i in range(64):
        if durations.counts[i]:
            counts[i] += durations.counts[i]
    histogram.total_ns += durations.total_ns
    return 0


cdef class Gate:
    cdef vc_gate *gate
    cdef const vc_link *link
    cdef Index index
    cdef Clock clock
    cdef ContentTypes types
    cdef Parts readable
    cdef bytes allow
    # Headers so far: answers with earlier ones may be on their way.
    cdef dict kept
    cdef vc_origin *origins
    cdef object calls, pulse
    cdef object app, requests, store_stats, log, log_answer
    cdef object hits, misses, reads
    cdef vc_gate_stats logged
    cdef int64_t logged_ns
    cdef unsigned limit

    def __init__(
        self,
        app,
        parts,
        ContentTypes types not None,
        *,
        uintptr_t link,
        allow,
        bint answers,
        headers,
        origins,
        log,
        log_answer,
        unsigned threads,
        unsigned connections,
        uint64_t body_memory,
        double head_timeout,
        double idle_timeout,
        double transfer_timeout,
    ):
        cdef vc_gate_config config
        memset(&config, 0, sizeof(config))
        self.link = <const vc_link *>link
        if self.link.version != VC_LINK_VERSION:
            raise ImportError(f"bjoern was built for gate version {self.link.version}")
        self.app = app
        self.types = types
        self.allow = allow.encode("ascii")
        self.requests = app.stats
        self.log = log
        self.log_answer = log_answer
        self.store_stats = app.cache.store.stats
        self.hits = app.stats.answers["GET", "200 OK", "DISK"]
        self.misses = app.stats.answers["GET", "404 Not Found", "MISS"]
        self.reads = self.store_stats.reads
        if type(parts.clock) is Clock:
            self.index, self.clock = parts.index, parts.clock
            config.core = self.index.core
            config.functions = functions
            config.clock = &self.clock.clock
        config.link = self.link
        config.io = &vc_gate_sockets
        config.types = types.table
        config.logs_all = log_answer is not None
        config.key_size = app.limits.key_size
        config.value_size = app.limits.value_size
        config.body_memory = body_memory
        config.threads = threads
        config.connections = self.limit = connections
        config.head_ns = <int64_t>(head_timeout * 1e9)
        config.idle_ns = <int64_t>(idle_timeout * 1e9)
        config.transfer_ns = <int64_t>(transfer_timeout * 1e9)
        config.long_ns = LONG_NS
        config.sample_mask = SAMPLED
        config.allow = self.allow
        self.kept = {}
        self.calls = deque()
        self.set_changeable(&config, answers, headers, origins)
        config.on_events = on_events
        config.on_pulse = on_pulse
        config.context = <void *>self
        self.gate = vc_gate_new(&config)
        if self.gate is NULL:
            raise MemoryError("no memory or no threads for the gate")
        self.link.install(vc_gate_hooks(self.gate))

    cdef const char *keep(self, text) except NULL:
        cdef bytes data = text.encode("ascii")
        cdef bytes kept = self.kept.setdefault(data, data)
        return kept

    cdef int set_changeable(
        self, vc_gate_config *config, bint answers, headers, origins
    ) except -1:
        """Set what a reload may change; the former origins are freed."""
        cdef vc_origin *array
        if max(map(len, [headers, *origins.values()])) >= VC_MORE_BYTES:
            raise ValueError("the headers are too long")
        array = <vc_origin *>calloc(len(origins) + 1, sizeof(vc_origin))
        if array is NULL:
            raise MemoryError("no memory for origins")
        try:
            for i, (origin, more) in enumerate(origins.items()):
                array[i].origin = self.keep(origin)
                array[i].headers = self.keep(more)
            config.headers = self.keep(headers) if headers else NULL
        except BaseException:
            free(array)
            raise
        free(self.origins)
        self.origins = config.origins = array
        # The one before is freed: the caller changes the gate before it returns to the loop.
        self.readable = Parts() if self.app.ring is None else Parts(self.app.ring.reads)
        config.ring = self.readable.parts
        config.origin_count = len(origins)
        config.answers = answers
        config.slow_ns = min(self.app.slow_ns, 2**62)
        return 0

    def change(self, *, bint answers, headers, origins):
        cdef vc_gate_config config
        memset(&config, 0, sizeof(config))
        self.set_changeable(&config, answers, headers, origins)
        vc_gate_change(self.gate, &config)

    def set_pulse(self, double seconds, pulse):
        self.pulse = pulse
        vc_gate_set_pulse(self.gate, <int64_t>(seconds * 1e9))

    def call_soon(self, function):
        self.calls.append(function)
        if self.gate is not NULL:
            vc_gate_ask_pulse(self.gate)

    cdef int run(self) except -1:
        """Call what the loop was asked to call, then the pulse."""
        while self.calls:
            self.calls.popleft()()
        if self.pulse is not None:
            self.pulse()
        return 0

    def drain(self):
        if self.gate is not NULL:
            vc_gate_drain(self.gate)

    def stalled_seconds(self):
        return vc_gate_stalled_ns(self.gate) / 1e9

    def __dealloc__(self):
        free(self.origins)

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
        return {
            "open": stats.open,
            "idle": stats.idle,
            "limit": self.limit,
            "accepted": stats.accepted,
            "closed_idle": stats.closed_idle,
            "closed_head": stats.closed_head,
            "closed_transfer": stats.closed_transfer,
            "closed_room": stats.closed_for_room,
            "turned_away": stats.turned_away,
            "cold_reads": stats.cold,
            "waiting_reads": stats.waiting,
            "body_bytes": stats.body_bytes,
            "waiting_bodies": stats.waiting_bodies,
        }

    def set_ready(self):
        vc_gate_set_ready(self.gate, self.store_stats.is_disk_good)

    def flush(self):
        if self.gate is NULL:
            return
        vc_gate_poll(self.gate)
        self.take()

    cdef int take(self) except -1:
        cdef vc_gate_counts counts
        vc_gate_take_counts(self.gate, &counts)
        if counts.hits.total_ns:
            add_durations(self.hits, &counts.hits)
            add_durations(self.reads, &counts.reads)
            self.requests.bytes_out += counts.bytes_out
            self.store_stats.read_errors_in_row = 0
        if counts.misses.total_ns:
            add_durations(self.misses, &counts.misses)
            self.store_stats.absent_reads += counts.absent
            self.store_stats.evicted_reads += counts.evicted
        self.take_events()
        self.log_limit()
        self.set_ready()
        return 0

    cdef int take_events(self) except -1:
        cdef size_t length, at = 0
        cdef const uint8_t *events = vc_gate_take_events(self.gate, &length)
        cdef const vc_event *event
        while at < length:
            event = <const vc_event *>(events + at)
            at += event.length
            self.take_event(event)
        return 0

    cdef int take_event(self, const vc_event *event) except -1:
        cdef const char *text = event.text
        cdef bint is_hit = event.status == 200
        path = text[: event.path_length].decode("latin-1")
        status = f"{event.status} {HTTPStatus(event.status).phrase}"
        if not is_hit and event.status != 404:
            answer = METHODS[event.method], status, ""
            self.requests.answers[answer].observe(event.started_ns, event.took_ns)
            return 0
        if event.took_ns > LONG:
            (self.hits if is_hit else self.misses).long.append(
                (event.started_ns, event.took_ns)
            )
        if event.read_ns > LONG:
            self.reads.long.append((event.started_ns, event.read_ns))
        if event.is_sampled:
            self.app.sample(path)
        if event.took_ns > self.app.slow_ns:
            self.app.log_slow(
                "GET", path, status, event.started_ns, event.took_ns, event.read_ns
            )
        if self.log_answer is not None:
            position = (event.volume, event.offset, event.size) if is_hit else None
            self.log_answer(
                event.address.decode("ascii"),
                text[event.path_length : event.path_length + event.head_length],
                status,
                position,
                event.bytes,
                event.took_ns,
                event.ended_us,
            )
        return 0

    cdef int log_limit(self) except -1:
        """Log at most once in ten seconds that there are too many connections."""
        cdef vc_gate_stats stats
        cdef int64_t now_ns = monotonic_ns()
        vc_gate_get_stats(self.gate, &stats)
        closed = stats.closed_for_room - self.logged.closed_for_room
        turned_away = stats.turned_away - self.logged.turned_away
        if not closed and not turned_away or now_ns - self.logged_ns < 10_000_000_000:
            return 0
        self.logged, self.logged_ns = stats, now_ns
        self.log.full(stats.open, closed, turned_away)
        return 0
