# The loop that serves other processes with the same directory, see local.h.

from libc.stdlib cimport malloc
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
    cdef Copies copies
    cdef object answer, gone, failure
    cdef readonly bint has_ended
    cdef int process

    def __init__(
        self, Index index not None, Clock clock not None, *, int listening, uint64_t memory,
        answer, gone, Copies copies=None,
    ):
        cdef vc_server_config config
        memset(&config, 0, sizeof(config))
        self.process = getpid()
        self.index, self.clocks, self.answer, self.gone = index, Clocks(clock), answer, gone
        self.local.by.core, self.local.by.functions = index.core, functions
        self.local.by.clocks, self.local.context = &self.clocks.clocks, <void *>self
        if copies is not None:
            self.copies, self.local.by.copies = copies, copies.copies
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
        self.has_ended = not serve_call(self.server, timeout)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure

    def drain(self, double seconds):
        cdef int64_t drain_ns = <int64_t>(seconds * 1e9)
        with nogil:
            vc_server_drain(self.server, drain_ns)


# --- A guest ----------------------------------------------------------------------------


cdef enum:
    LOCAL_PARTS = 6  # of a request: its head, the key, three headers, the value
    LOCAL_BYTES = 4096  # of a reply that needs no memory of its own


cdef size_t local_length(char *data) noexcept:
    cdef const vc_local_reply *reply = <const vc_local_reply *>data
    cdef size_t types = reply.type_length + reply.encoding_length + reply.cache_length
    return sizeof(vc_local_reply) + types + reply.sent


cdef tuple fields_in(char *data):
    """Return the status of a reply, and the fields of the record in it."""
    cdef const vc_local_reply *reply = <const vc_local_reply *>data
    cdef const char *kind = <const char *>(reply + 1)
    cdef const char *encoding = kind + reply.type_length
    cdef const char *cache = encoding + reply.encoding_length
    cdef const char *value = cache + reply.cache_length
    return reply.status, (
        value[: reply.sent], kind[: reply.type_length], encoding[: reply.encoding_length],
        cache[: reply.cache_length], reply.stored_us, reply.expires_ms, reply.flags,
        reply.volume, reply.offset, reply.size, reply.length, reply.checksum, "DISK",
    )


cdef class LocalClient:
    cdef Clock clock
    cdef readonly list idle
    cdef dict held
    cdef object lost

    def __init__(self, Clock clock not None, dict held not None, lost):
        self.clock, self.idle, self.held, self.lost = clock, [], held, lost

    cdef bytearray ask(self, connection, vc_local_request *head, iovec *parts, int *passed):
        """Send a request, whose head says how long its parts are; return its reply."""
        cdef bytearray reply = bytearray(LOCAL_BYTES)
        cdef int64_t since_us = vc_clock_now(&self.clock.clock)
        cdef int error, fd = connection.fileno()
        cdef bint is_sent = False
        cdef size_t got, total
        parts[0] = iovec(head, sizeof(vc_local_request))
        parts[1].iov_len, parts[2].iov_len = head.key_length, head.type_length
        parts[3].iov_len, parts[4].iov_len = head.encoding_length, head.cache_length
        parts[5].iov_len = head.value_length
        try:
            while not is_sent:
                with nogil:
                    is_sent = vc_local_send(fd, parts, LOCAL_PARTS)
                    error = errno
                if not is_sent and error != EINTR:
                    raise self.lost(is_sent=False)
                PyErr_CheckSignals()
            got = self.receive(fd, reply, sizeof(vc_local_reply), LOCAL_BYTES, passed, since_us)
            total = local_length(reply)
            if got > total:  # And the owner says that it ends.
                connection.close()
            elif got < total:
                PyByteArray_Resize(reply, total)
                since_us, total = vc_clock_now(&self.clock.clock), total - got
                self.receive(fd, <char *>reply + got, total, total, passed, since_us)
        except BaseException:
            connection.close()
            raise
        return reply

    cdef size_t receive(
        self, int fd, char *to, size_t least, size_t room, int *passed, int64_t since_us
    ) except? 0:
        cdef size_t used = 0
        cdef ssize_t got
        cdef int error
        while used < least:
            with nogil:
                got = vc_local_receive(fd, to + used, room - used, passed)
                error = errno
            if got > 0:
                used += got
            elif not got or error != EINTR:
                raise self.lost(is_sent=True, since_us=since_us)
            PyErr_CheckSignals()
        return used

    def exchange(self, connection, uint8_t operation, change, condition):
        cdef vc_local_request head
        cdef iovec parts[LOCAL_PARTS]
        cdef int passed = -1
        cdef bytes key, value, kind, encoding, cache
        key, value, kind, encoding, cache, head.stored_us, head.expires_ms, head.flags = change
        head.condition, head.if_stored_us, head.if_expires_ms = condition
        head.operation, head.unused = operation, 0
        words = (key, kind, encoding, cache, value or b"")
        (
            head.key_length, head.type_length, head.encoding_length, head.cache_length,
            head.value_length,
        ) = map(len, words)
        for i, word in enumerate(words):
            parts[i + 1].iov_base = <void *>data_of(word)
        reply = self.ask(connection, &head, parts, &passed)
        return *fields_in(reply), passed

    def put_value(self, key, bytes value not None, bytes content_type not None):
        cdef vc_local_request head
        cdef iovec parts[LOCAL_PARTS]
        cdef const vc_local_reply *reply
        cdef const uint8_t *name
        cdef size_t length
        cdef int passed = -1
        # A thread that holds has a connection of its own.
        if self.held or PyBytes_GET_SIZE(value) > VC_VALUE_BYTES_MAX:
            return None
        if not self.idle or not is_plain(key, &name, &length):
            return None
        connection = self.idle.pop()
        memset(&head, 0, sizeof(head))
        memset(parts, 0, sizeof(parts))
        head.operation, head.key_length = VC_LOCAL_PUT, length
        head.type_length, head.value_length = len(content_type), PyBytes_GET_SIZE(value)
        parts[1].iov_base, parts[5].iov_base = <void *>name, <void *>data_of(value)
        parts[2].iov_base = <void *>data_of(content_type)
        found = self.ask(connection, &head, parts, &passed)
        reply = <const vc_local_reply *><char *>found
        if connection.fileno() >= 0:
            self.idle.append(connection)
        return etag_of(reply.stored_us, reply.checksum) if reply.status == VC_LOCAL_DONE else None
