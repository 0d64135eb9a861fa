# The loops that serve clients, see server.h: what they share with Python, and what they have
# counted and recorded.

from http import HTTPStatus
from threading import Lock

from libc.stdlib cimport calloc, free

from volcache.keys import QUERIES

# In the order of `vc_method`.
METHODS = ("OTHER", "GET", "HEAD", "PUT", "DELETE", "OTHER")
# In the order of VC_HTTP, VC_ADMIN, VC_MEMCACHED.
PROTOCOLS = ("http", "admin", "memcache")
cdef int64_t FLUSH_NS = 100_000_000


cdef bytes rows_of(types):
    """Return content types by suffix as `vc_types` has them."""
    rows = []
    for suffix, content_type in sorted(types.items()):
        if len(suffix) >= VC_SUFFIX_BYTES or len(content_type) >= VC_TYPE_BYTES:
            raise ValueError(f"too long: {suffix!r} {content_type!r}")
        rows += (
            suffix.ljust(VC_SUFFIX_BYTES, b"\0"),
            content_type.encode("ascii").ljust(VC_TYPE_BYTES, b"\0"),
        )
    return b"".join(rows)


# What the loops use without the interpreter. Executors are in the order of protocols, with room
# for 16 loops each; the last one belongs to the thread for calls. Each has a reporter.
cdef struct shared:
    vc_news news
    vc_reporter reporters[49]
    vc_http *https[32]
    vc_mc *commands[17]
    atomic_bool is_ready, is_draining
    # Changed between `vc_server_begin_change` and `vc_server_end_change`.
    vc_http_settings settings
    vc_mc_access access
    int64_t slow_ns, commands_slow_ns


cdef void on_change(void *context, unsigned loop) noexcept nogil:
    cdef shared *state = <shared *>context
    if state.https[loop] is not NULL:
        vc_http_change(state.https[loop], &state.settings, state.slow_ns)
    if state.commands[loop] is not NULL:
        vc_mc_change(state.commands[loop], &state.access, state.commands_slow_ns)


cdef class Server:
    cdef shared *state
    cdef vc_server *server
    cdef unsigned loops
    cdef Index index
    cdef bytes types
    cdef Readers readers
    cdef Copies copies
    cdef HotClient hot
    cdef CommandFacts commands
    cdef AccessLog access_log
    cdef object taking, app, answers, store_stats, log, hot_stats, promote
    cdef dict served
    cdef bytes allow, application
    # What the loops may use still, after a change.
    cdef list kept
    cdef Clocks clocks
    cdef vc_http_counts seen
    cdef vc_store_counts seen_of_store
    cdef uint64_t logged, executed
    cdef int64_t flush_ns           # when the next one is due
    cdef bint is_started

    def __cinit__(self):
        self.state = <shared *>calloc(1, sizeof(shared))
        if self.state is NULL:
            raise MemoryError("no memory for the loops")
        vc_news_start(&self.state.news)

    def __init__(
        self, app, types, *, unsigned loops, served, application, allow, log,
        AccessLog access_log, Readers readers, uint64_t memory, double transfer, CommandFacts commands,
    ):
        cdef vc_server_config config
        memset(&config, 0, sizeof(config))
        store = app.cache.store
        self.app, self.log, self.access_log = app, log, access_log
        self.types = rows_of(types)
        self.allow = allow.encode("ascii")
        self.answers, self.store_stats = app.stats.answers, store.stats
        for method, answer in (  # They are shown from the beginning.
            (VC_GET, VC_ANSWER_HIT), (VC_GET, VC_ANSWER_COPY), (VC_GET, VC_ANSWER_MISS),
            (VC_PUT, VC_ANSWER_DONE),
        ):
            self.answers[answer_of(method, answer)]
        self.clocks = Clocks(store.clock)
        self.index, self.readers, self.commands = readers.index, readers, commands
        self.copies, self.promote = app.cache.hot_keys, app.cache.promote
        self.hot = app.cache.hot_client
        self.kept, self.taking = [], Lock()
        self.loops, self.served = loops, served
        for i in range(<int>VC_LOOPS_MAX * 3 + 1):
            self.state.reporters[i].news = &self.state.news
        self.make_executors(app)
        if commands is not None:
            self.make_command_executors()
        for name, (fd, connections, head, idle) in served.items():
            self.serve(&config, PROTOCOLS.index(name), fd, connections, head, idle)
        config.loops, config.memory = loops, memory
        config.transfer_ns = <int64_t>(transfer * 1e9)
        config.core, config.functions = self.index.core, functions
        config.readers = readers.readers
        if self.hot is not None:
            self.hot_stats = app.cache.hot_state().stats
            for i in range(<int>min(loops, self.hot.count)):
                config.hots[i] = self.hot.hots[i]
        self.application = application.encode()
        if application:
            config.application = self.application
        config.on_change, config.context = on_change, self.state
        self.server = vc_server_new(&config)
        if self.server is NULL:
            raise MemoryError("no memory or descriptors for the loops")

    cdef serve(
        self, vc_server_config *config, int protocol, int fd, unsigned connections, double head,
        double idle,
    ):
        cdef vc_served *served = &config.protocols[protocol]
        cdef vc_listening *listener = &config.listeners[config.listener_count]
        for i in range(<int>self.loops):
            if protocol == VC_MEMCACHED:
                served.executors[i] = self.state.commands[i]
            else:
                served.executors[i] = self.state.https[protocol * VC_LOOPS_MAX + i]
        served.calls = &vc_mc_protocol if protocol == VC_MEMCACHED else &vc_http_protocol
        served.caller = self.state.commands[<int>VC_LOOPS_MAX]
        served.connections = connections
        served.head_ns, served.idle_ns = <int64_t>(head * 1e9), <int64_t>(idle * 1e9)
        listener.fd, listener.protocol = fd, protocol
        config.listener_count += 1

    def __dealloc__(self):
        # A thread that asks for figures may be late: so nothing is freed before.
        if self.state is NULL:
            return
        if self.server is not NULL:
            with nogil:  # The threads may need the lock at their end.
                vc_server_free(self.server)
        for i in range(<int>VC_LOOPS_MAX * 2):
            vc_http_free(self.state.https[i])
        for i in range(<int>VC_LOOPS_MAX + 1):
            vc_mc_free(self.state.commands[i])
        free(self.state)

    cdef make_executors(self, app):
        cdef vc_http_config config
        cdef vc_executor by = executor_of(
            self.index, self.clocks, self.copies, self.access_log, app.limits
        )
        memset(&config, 0, sizeof(config))
        config.memory_first = app.cache.memory_first
        config.types.rows = <const vc_type *>data_of(self.types)
        config.types.count = len(self.types) // sizeof(vc_type)
        config.is_ready = &self.state.is_ready
        config.is_draining = &self.state.is_draining
        config.query = <vc_query_use><int>QUERIES.index(app.limits.query)
        config.allow = self.allow
        for name in ("http", "admin"):
            for loop in range(self.loops if name in self.served else 0):
                i = PROTOCOLS.index(name) * <int>VC_LOOPS_MAX + loop
                by.reporter = &self.state.reporters[i]
                self.state.https[i] = vc_http_new(&by, &config)
                if self.state.https[i] is NULL:
                    raise MemoryError("no memory for the loops")

    cdef make_command_executors(self):
        """Create those of the loops, and the one of the thread for calls, which may ask."""
        cdef vc_mc_config config = self.commands.config
        cdef vc_executor by = self.commands.by
        for i in (*range(self.loops), <int>VC_LOOPS_MAX):
            by.reporter = &self.state.reporters[<int>VC_MEMCACHED * VC_LOOPS_MAX + i]
            config.ask = self.commands.config.ask if i == <int>VC_LOOPS_MAX else NULL
            self.state.commands[<int>i] = vc_mc_new(&by, &config)
            if self.state.commands[<int>i] is NULL:
                raise MemoryError("no memory for the memcached protocol")

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

    def change(self, *, may_read, may_write, headers, origins):
        cdef vc_http_settings settings
        cdef vc_mc_access access
        cdef int64_t slow_ns = min(self.app.slow_ns, 2**62), commands_slow_ns = 0
        cdef vc_origin *array
        cdef bytearray origins_now = bytearray(len(origins) * sizeof(vc_origin))
        cdef Parts readable, writable
        memset(&settings, 0, sizeof(settings))
        memset(&access, 0, sizeof(access))
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
        settings.answers = True  # The executors of the admin address answer nothing.
        *_, settings.default_ttl, settings.max_ttl = self.app.limits
        if self.commands is not None:
            access = access_of(self.commands.service)
            commands_slow_ns = min(self.commands.log.threshold_ns, 2**62)
        vc_server_set_ring(self.server, ring is not None)
        with nogil:
            vc_server_begin_change(self.server)
            self.state.settings, self.state.access = settings, access
            self.state.slow_ns, self.state.commands_slow_ns = slow_ns, commands_slow_ns
            vc_server_end_change(self.server)

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
            for i in range(<int>VC_LOOPS_MAX * 2):
                if self.state.https[i] is not NULL:
                    self.take_events(i)
            if self.commands is not None:
                self.take_commands()
            vc_news_end(&self.state.news)
            self.log_limits()
            self.set_ready()

    def work(self):
        # What is due after changes may come often; counters can wait.
        if vc_news_take_due(&self.state.news):
            self.app.cache.store.run_deferred()
        for i in range(<int>VC_LOOPS_MAX * 3 + 1):
            take_hot(&self.state.reporters[i], self.promote)
        if vc_news_take_full(&self.state.news) or monotonic_ns() >= self.flush_ns:
            self.flush_ns = monotonic_ns() + FLUSH_NS
            self.flush()

    cdef take_counts(self):
        cdef vc_http_counts counts
        cdef vc_http_counts *seen = &self.seen
        cdef vc_store_counts of_store
        cdef int i, method
        memset(&counts, 0, sizeof(counts))
        memset(&of_store, 0, sizeof(of_store))
        for i in range(<int>VC_LOOPS_MAX * 2):
            if self.state.https[i] is not NULL:
                vc_http_add_counts(self.state.https[i], &counts, &of_store)
        self.app.stats.bytes_in += counts.bytes_in - seen.bytes_in
        self.app.stats.bytes_out += counts.bytes_out - seen.bytes_out
        for method in range(<int>VC_HTTP_METHODS):
            for i in range(<int>VC_HTTP_ANSWERS):
                if counts.answers[method][i].total_ns != seen.answers[method][i].total_ns:
                    add_new_durations(
                        self.answers[answer_of(method, i)], &counts.answers[method][i],
                        &seen.answers[method][i],
                    )
        add_store_counts(self.store_stats, &of_store, &self.seen_of_store)
        self.seen = counts
        if self.hot is not None:
            self.hot.take_counts(self.hot_stats)

    cdef take_commands(self):
        cdef vc_mc_counts counts
        cdef vc_store_counts of_store
        cdef vc_server_figures figures
        cdef uint64_t executed = 0
        cdef vc_mc *mc
        cdef int i
        vc_server_get_figures(self.server, &figures)
        self.commands.take_figures(&figures.protocols[<int>VC_MEMCACHED])
        for i in range(<int>VC_LOOPS_MAX + 1):
            mc = self.state.commands[i]
            if mc is NULL:
                continue
            executed += vc_mc_executed(mc)
            self.commands.take_events(
                &self.state.reporters[<int>VC_MEMCACHED * VC_LOOPS_MAX + i]
            )
        if executed == self.executed:
            return
        self.executed = executed
        memset(&counts, 0, sizeof(counts))
        memset(&of_store, 0, sizeof(of_store))
        for i in range(<int>VC_LOOPS_MAX + 1):
            if self.state.commands[i] is not NULL:
                vc_mc_add_counts(self.state.commands[i], &counts, &of_store)
        self.commands.add_counts(&counts, &of_store)

    cdef take_events(self, int number):
        cdef size_t length, at = 0
        cdef const uint8_t *events = vc_events_take(&self.state.reporters[number].events, &length)
        cdef const vc_http_event *event
        while at < length:
            event = <const vc_http_event *>(events + at)
            at += event.sizes.length
            self.take_event(event)

    cdef take_event(self, const vc_http_event *event):
        if event.answer == VC_HTTP_ANSWERS:
            status = f"{event.status} {HTTPStatus(event.status).phrase}"
            answer = METHODS[event.method], status, ""
            self.answers[answer].observe(event.started_ns, event.took_ns)
            return
        answer = answer_of(event.method, event.answer)
        method, status, _ = answer
        path = (<const char *>(event + 1))[: event.sizes.key_length].decode("latin-1")
        if event.took_ns > LONG:
            self.answers[answer].long.append((event.started_ns, event.took_ns))
        if event.disk_ns > LONG:
            is_write = method in ("PUT", "DELETE")
            disk = self.store_stats.writes if is_write else self.store_stats.reads
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

    cdef log_limits(self):
        """Let the log have what has become of connections, until all of it is written."""
        cdef vc_server_figures figures
        cdef vc_protocol_figures *of
        cdef uint64_t happened
        cdef int i
        vc_server_get_figures(self.server, &figures)
        happened = figures.failed_accepts
        for i in range(3):
            of = &figures.protocols[i]
            happened += of.closed_room + of.turned_away + of.closed_for_memory
        if happened != self.logged and self.log.figures(
            {name: self.figures(name) for name in self.served}
        ):
            self.logged = happened

    # --- Calls ---

    def serve_call(self, double timeout):
        return not serve_call(self.server, timeout)

    # --- Figures, and the end ---

    def figures(self, name):
        cdef vc_server_figures figures
        vc_server_get_figures(self.server, &figures)
        found = <dict>figures.protocols[<int>PROTOCOLS.index(name)]
        return found | {
            "limit": self.served[name][1],
            "waiting_bodies": figures.waiting_for_memory,
            "waiting_reads": figures.waiting_for_disk,
            "body_bytes": figures.reserved,
            "held": figures.held,
            "cold_reads": figures.cold,
            "failed_accepts": figures.failed_accepts,
            "accept_error": figures.accept_error,
        }

    def connections(self, name):
        cdef unsigned protocol = PROTOCOLS.index(name)
        cdef vc_server_figures figures
        vc_server_get_figures(self.server, &figures)
        cdef size_t count, room = figures.protocols[protocol].open
        cdef bytearray data = bytearray(room * sizeof(vc_listed))
        cdef vc_listed *found = <vc_listed *>PyByteArray_AS_STRING(data)
        with nogil:
            count = vc_server_list(self.server, protocol, found, room)
        now_ns = monotonic_ns()
        return [
            (
                found[i].number, (<const char *>found[i].address).decode("ascii"),
                found[i].is_idle, (now_ns - found[i].used_ns) / 1e9,
            )
            for i in range(count)
        ]

    def stalled_seconds(self):
        return vc_server_stalled_ns(self.server) / 1e9

    def drain(self, double seconds):
        cdef int64_t drain_ns = <int64_t>(seconds * 1e9)
        cdef vc_server_figures figures
        self.state.is_draining = True
        if self.is_started:
            with nogil:
                vc_server_drain(self.server, drain_ns)
        self.is_started = False
        self.flush()
        vc_server_get_figures(self.server, &figures)
        return sum(figures.protocols[i].cut for i in range(3))


cdef bint serve_call(vc_server *server, double timeout):
    cdef int64_t timeout_ns = <int64_t>(timeout * 1e9)
    with nogil:
        return vc_server_serve_call(server, timeout_ns)


cdef answer_of(int method, int number):
    cdef vc_http_name *name = <vc_http_name *>&vc_http_names[number]
    return METHODS[method], name.status.decode("ascii"), name.source.decode("ascii")
