# The loop that serves other processes with the same directory, see local.h.


from posix.unistd cimport getpid


cdef c_bool on_local_answer(
    void *context, uint64_t guest, const char *data, size_t length, vc_reply *reply
) noexcept with gil:
    cdef bytes found
    try:
        found = (<LocalLoop>context).answer(guest, data[:length])
        reply.at = <char *>malloc(len(found))
        if reply.at is NULL:
            return False
        memcpy(reply.at, data_of(found), len(found))
        reply.length = len(found)
    except BaseException as error:
        (<LocalLoop>context).failure = error
        return False
    return True


cdef void on_local_gone(void *context, uint64_t guest) noexcept with gil:
    (<LocalLoop>context).gone(guest)


cdef class LocalLoop:
    cdef vc_server *server
    cdef vc_local local
    cdef Index index
    cdef Clocks clocks
    cdef object answer, gone, failure
    cdef readonly bint has_ended
    cdef int process

    def __init__(
        self, Index index not None, Clock clock not None, *, int listening, uint64_t memory,
        answer, gone,
    ):
        cdef vc_server_config config
        memset(&config, 0, sizeof(config))
        self.process = getpid()
        self.index, self.clocks, self.answer, self.gone = index, Clocks(clock), answer, gone
        self.local.by.core, self.local.by.functions = index.core, functions
        self.local.by.clocks, self.local.context = &self.clocks.clocks, <void *>self
        self.local.shared_fd = index.shared_fd
        self.local.answer, self.local.gone = on_local_answer, on_local_gone
        config.loops, config.memory = 1, memory
        config.core, config.functions = index.core, functions
        config.protocols[0].calls = &vc_local_protocol
        config.protocols[0].executors[0] = config.protocols[0].caller = &self.local
        config.protocols[0].connections = VC_LOCAL_GUESTS
        config.listeners[0].fd = listening
        config.listener_count = 1
        self.server = vc_server_new(&config)
        if self.server is NULL or not vc_server_start(self.server):
            raise MemoryError("no memory, descriptors or threads to share a directory")

    def __dealloc__(self):
        # A forked child has no such thread, not even one that has ended, to wait for.
        if getpid() != self.process:
            return
        with nogil:
            vc_server_free(self.server)

    def serve_call(self, double timeout):
        cdef vc_call_end found
        cdef int64_t timeout_ns = <int64_t>(timeout * 1e9)
        with nogil:
            found = vc_server_serve_call(self.server, timeout_ns)
        self.has_ended = found == VC_CALLS_ENDED
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def drain(self, double seconds):
        cdef int64_t drain_ns = <int64_t>(seconds * 1e9)
        with nogil:
            vc_server_drain(self.server, drain_ns)
