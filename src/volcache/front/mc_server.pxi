# The loops of the memcached protocol, see server.h and mc_protocol.h: calls, counters and events.


# What a loop, or the thread for calls, tells: the last one has the events of calls.
cdef struct mc_teller:
    void *owner
    vc_mc_executor executor


cdef struct mc_shared:
    mc_teller tellers[17]
    vc_mc_access access
    int64_t slow_ns
    uint64_t figures            # a sum of those that are logged
    vc_server *server


cdef void mc_tell(void *teller) noexcept nogil:
    if vc_mc_has_events((<mc_teller *>teller).executor.mc):
        mc_tell_python(teller)


cdef void mc_tell_python(void *teller) noexcept with gil:
    cdef size_t length
    cdef const uint8_t *events = vc_mc_take_events((<mc_teller *>teller).executor.mc, &length)
    owner = <MemcacheLoops>(<mc_teller *>teller).owner
    try:
        owner.facts.take_events(events, length)
        owner.log.figures(owner.figures())
    except BaseException as error:
        owner.log.failed(error)


cdef void on_mc_change(void *context, unsigned loop) noexcept nogil:
    cdef mc_shared *state = <mc_shared *>context
    vc_mc_executor_change(&state.tellers[loop].executor, &state.access, state.slow_ns)
    mc_tell_python(&state.tellers[loop])


cdef void on_mc_tick(void *context, unsigned loop) noexcept nogil:
    cdef mc_shared *state = <mc_shared *>context
    cdef vc_server_figures figures
    cdef uint64_t logged
    mc_tell(&state.tellers[loop])
    if loop:
        return
    vc_server_get_figures(state.server, &figures)
    logged = (figures.protocols[0].turned_away + figures.protocols[0].closed_for_memory
              + figures.failed_accepts)
    if logged != state.figures:
        state.figures = logged
        mc_tell_python(&state.tellers[loop])


cdef class MemcacheLoops:
    cdef mc_shared *state
    cdef CommandFacts facts
    cdef Readers readers
    cdef object log
    cdef unsigned loops
    cdef readonly bint has_ended
    cdef bint is_started

    def __cinit__(self):
        self.state = <mc_shared *>calloc(1, sizeof(mc_shared))
        if self.state is NULL:
            raise MemoryError("no memory for the memcached protocol")

    def __init__(
        self, CommandFacts facts not None, log, *, Readers readers not None, int listening,
        unsigned threads, unsigned connections, uint64_t held_bytes, double transfer_seconds,
        double idle_seconds,
    ):
        cdef vc_server_config config
        memset(&config, 0, sizeof(config))
        self.facts, self.log, self.readers, self.loops = facts, log, readers, threads
        self.make_executors()
        for i in range(<int>threads):
            config.protocols[0].executors[i] = &self.state.tellers[i].executor
        config.protocols[0].caller = self.state.tellers[VC_LOOPS_MAX].executor.mc
        config.protocols[0].calls = &vc_mc_protocol
        config.protocols[0].connections = connections
        config.protocols[0].idle_ns = <int64_t>(idle_seconds * 1e9)
        config.transfer_ns = <int64_t>(transfer_seconds * 1e9)
        config.listeners[0].fd = listening
        config.listener_count = 1
        config.loops, config.memory = threads, held_bytes
        config.core, config.functions = facts.config.core, functions
        config.readers = readers.readers
        config.on_change, config.on_tick, config.context = on_mc_change, on_mc_tick, self.state
        self.state.server = vc_server_new(&config)
        if self.state.server is NULL:
            raise MemoryError("no memory or descriptors for the memcached protocol")

    def __dealloc__(self):
        # A thread that asks for figures may be late: so nothing is freed before.
        if self.state is NULL:
            return
        with nogil:  # The threads need the lock at their end.
            vc_server_free(self.state.server)
        for i in range(<int>VC_LOOPS_MAX + 1):
            vc_mc_free(self.state.tellers[i].executor.mc)
        free(self.state)

    cdef make_executors(self):
        """Create those of the loops, and the one of the thread for calls, which may ask."""
        cdef vc_mc_config config = self.facts.config
        cdef mc_teller *teller
        for i in (*range(self.loops), <int>VC_LOOPS_MAX):
            teller = &self.state.tellers[i]
            teller.owner = <void *>self
            config.on_events, config.context = mc_tell, teller
            config.ask = self.facts.config.ask if i == <int>VC_LOOPS_MAX else NULL
            teller.executor.mc = vc_mc_new(&config)
            if teller.executor.mc is NULL:
                raise MemoryError("no memory for the memcached protocol")

    def start(self):
        self.is_started = vc_server_start(self.state.server)
        if not self.is_started:
            raise MemoryError("no threads for the memcached protocol")

    def serve_call(self, double timeout):
        cdef vc_call_end found
        cdef int64_t timeout_ns = <int64_t>(timeout * 1e9)
        vc_mc_executor_change(
            &self.state.tellers[VC_LOOPS_MAX].executor, &self.state.access, self.state.slow_ns
        )
        with nogil:
            found = vc_server_serve_call(self.state.server, timeout_ns)
        self.has_ended = found == VC_CALLS_ENDED

    def change(self, *, slow_ns):
        self.state.access = access_of(self.facts.service)
        self.state.slow_ns = min(slow_ns, 2**62)
        self.apply()

    cdef apply(self):
        """Let all loops use the settings, and tell what they have."""
        if self.is_started:
            with nogil:
                vc_server_change(self.state.server)
            return
        for i in range(<int>self.loops):
            on_mc_change(self.state, i)

    def drain(self, double seconds):
        cdef int64_t drain_ns = <int64_t>(seconds * 1e9)
        with nogil:
            vc_server_begin_drain(self.state.server, drain_ns)

    def stalled_seconds(self):
        return vc_server_stalled_ns(self.state.server) / 1e9

    def figures(self):
        cdef vc_server_figures figures
        vc_server_get_figures(self.state.server, &figures)
        found = <dict>figures.protocols[0]
        return found | {
            "held": figures.held,
            "cold": figures.cold,
            "failed_accepts": figures.failed_accepts,
            "accept_error": figures.accept_error,
        }

    def connections(self):
        cdef vc_server_figures figures
        vc_server_get_figures(self.state.server, &figures)
        cdef size_t count, room = figures.protocols[0].open
        cdef bytearray data = bytearray(room * sizeof(vc_listed))
        cdef vc_listed *found = <vc_listed *>PyByteArray_AS_STRING(data)
        with nogil:
            count = vc_server_list(self.state.server, found, room)
        now_ns = monotonic_ns()
        return [
            (
                found[i].number, (<const char *>found[i].address).decode("ascii"),
                found[i].is_idle, (now_ns - found[i].used_ns) / 1e9,
            )
            for i in range(count)
        ]

    def flush(self):
        cdef vc_mc_counts counts
        self.apply()
        if self.has_ended:  # The loops tell nothing then.
            for i in range(<int>self.loops):
                mc_tell_python(&self.state.tellers[i])
        memset(&counts, 0, sizeof(counts))
        for i in (*range(self.loops), <int>VC_LOOPS_MAX):
            vc_mc_add_counts(self.state.tellers[i].executor.mc, &counts)
        self.facts.add_counts(&counts)
