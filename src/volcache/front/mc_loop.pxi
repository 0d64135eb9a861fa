# The loops of the memcached protocol, see mc_loop.h: calls, counters and events.


cdef extern from "mc_loop.h" nogil:
    ctypedef struct vc_mc_settings:
        vc_mc_access access
        int64_t slow_ns, end_ns
    ctypedef struct vc_mc_server_config:
        vc_mc_config commands
        vc_readers *readers
        int listening
        unsigned loops, connections
        uint64_t held_bytes
        int64_t transfer_ns, idle_ns
        void (*on_news)(void *context, const uint8_t *events, size_t length) noexcept
        void *context
        void (*in_thread)(void (*run)(void *argument) noexcept nogil, void *argument) noexcept
    ctypedef struct vc_mc_figures:
        uint64_t bytes_in, bytes_out, accepted, refused, open, cut, held, closed_for_memory
        uint64_t closed_idle, failed_accepts, accept_error, cold
    ctypedef enum vc_mc_wait: VC_MC_SERVED, VC_MC_TIMEOUT, VC_MC_ENDED
    ctypedef struct vc_mc_connection:
        int number
        bint is_idle
        int64_t used_ns
        const char *address
    ctypedef struct vc_mc_server: pass
    vc_mc_server *vc_mc_server_new(const vc_mc_server_config *config)
    void vc_mc_server_free(vc_mc_server *server)
    bint vc_mc_start(vc_mc_server *server)
    vc_mc_wait vc_mc_serve_call(vc_mc_server *server, int64_t timeout_ns)
    void vc_mc_change_settings(vc_mc_server *server, const vc_mc_settings *settings)
    void vc_mc_get_figures(vc_mc_server *server, vc_mc_figures *figures)
    size_t vc_mc_list(vc_mc_server *server, vc_mc_connection *to, size_t room)
    void vc_mc_sum_counts(vc_mc_server *server, vc_mc_counts *counts)
    int64_t vc_mc_stalled_ns(vc_mc_server *server)


cdef void on_news(void *context, const uint8_t *events, size_t length) noexcept with gil:
    try:
        (<MemcacheLoops>context).facts.take_events(events, length)
        (<MemcacheLoops>context).log.figures((<MemcacheLoops>context).figures())
    except BaseException as error:
        (<MemcacheLoops>context).log.failed(error)


cdef void in_thread(void (*run)(void *argument) noexcept nogil, void *argument) noexcept with gil:
    # Python has a state for each thread that is inside of a call. Here that is all the time: to
    # make one for each of the callbacks takes 20 us.
    with nogil:
        run(argument)


cdef class MemcacheLoops:
    cdef vc_mc_server *server
    cdef CommandFacts facts
    cdef Readers readers
    cdef object log
    cdef vc_mc_settings settings
    cdef readonly bint has_ended

    def __init__(
        self, CommandFacts facts not None, log, *, Readers readers not None, int listening,
        unsigned threads, unsigned connections, uint64_t held_bytes, double transfer_seconds,
        double idle_seconds,
    ):
        cdef vc_mc_server_config config
        memset(&config, 0, sizeof(config))
        self.facts = facts
        self.log = log
        self.readers = readers
        config.readers = readers.readers
        config.commands = facts.config
        config.listening = listening
        config.loops = threads
        config.connections = connections
        config.held_bytes = held_bytes
        config.transfer_ns = <int64_t>(transfer_seconds * 1e9)
        config.idle_ns = <int64_t>(idle_seconds * 1e9)
        config.on_news = on_news
        config.in_thread = in_thread
        config.context = <void *>self
        self.server = vc_mc_server_new(&config)
        if self.server is NULL:
            raise MemoryError("no memory or descriptors for the memcached protocol")

    def __dealloc__(self):
        # A thread that asks for figures may be late: so nothing is freed before.
        with nogil:  # The threads need the lock at their end.
            vc_mc_server_free(self.server)

    def start(self):
        if not vc_mc_start(self.server):
            raise MemoryError("no threads for the memcached protocol")

    def serve_call(self, double timeout):
        cdef vc_mc_wait found
        cdef int64_t timeout_ns = <int64_t>(timeout * 1e9)
        with nogil:
            found = vc_mc_serve_call(self.server, timeout_ns)
        self.has_ended = found == VC_MC_ENDED

    def change(self, *, slow_ns):
        self.settings.access = access_of(self.facts.service)
        self.settings.slow_ns = min(slow_ns, 2**62)
        self.apply()

    def drain(self, double seconds):
        cdef int64_t end_ns = monotonic_ns() + <int64_t>(seconds * 1e9)
        if not self.settings.end_ns or end_ns < self.settings.end_ns:
            self.settings.end_ns = end_ns
        self.apply()

    cdef apply(self):
        cdef vc_mc_settings settings = self.settings
        with nogil:
            vc_mc_change_settings(self.server, &settings)

    def stalled_seconds(self):
        return vc_mc_stalled_ns(self.server) / 1e9

    def figures(self):
        cdef vc_mc_figures figures
        vc_mc_get_figures(self.server, &figures)
        return <dict>figures

    def connections(self):
        cdef size_t count = vc_mc_list(self.server, NULL, 0), room = count
        cdef vc_mc_connection *found
        cdef bytearray data = bytearray(count * sizeof(vc_mc_connection))
        found = <vc_mc_connection *>PyByteArray_AS_STRING(data)
        count = min(room, vc_mc_list(self.server, found, room))
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
        with nogil:
            vc_mc_change_settings(self.server, NULL)
        memset(&counts, 0, sizeof(counts))
        vc_mc_sum_counts(self.server, &counts)
        self.facts.add_counts(&counts)
