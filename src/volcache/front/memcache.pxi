# Commands of the memcached protocol that are executed in C, see memcache.h: what they share with
# Python, and what they have counted and recorded.

from libc.stdlib cimport free, malloc


cdef class Marks:
    cdef vc_marks *marks

    def __cinit__(self, size_t count):
        self.marks = vc_marks_new(count)
        if self.marks is NULL:
            raise MemoryError("no memory for marks")

    def __dealloc__(self):
        vc_marks_free(self.marks)

    def put(self, uint64_t version, uint32_t number):
        vc_marks_put(self.marks, version, number)

    def get(self, uint64_t version):
        cdef uint32_t number
        return number if vc_marks_get(self.marks, version, &number) else None

    def move(self, uint64_t old, uint64_t new):
        cdef uint32_t number
        if vc_marks_get(self.marks, old, &number):
            vc_marks_put(self.marks, new, number)


cdef int64_t native_store_us(void *context) noexcept nogil:
    return vc_clock_now(<vc_clock *>context)


cdef int64_t native_machine_us(void *context) noexcept nogil:
    return vc_machine_us()


cdef int64_t python_store_us(void *context) noexcept with gil:
    return (<CommandFacts>context).clock.now_us()


cdef int64_t python_machine_us(void *context) noexcept with gil:
    return (<CommandFacts>context).machine_ns() // 1000


cdef void on_command_due(void *context) noexcept with gil:
    try:
        (<CommandFacts>context).catch_up()
    except BaseException as error:
        (<CommandFacts>context).log.failed(error)


cdef class CommandFacts:
    """What the commands use, and the counters and logs in Python that learn of them."""

    cdef object store, clock, machine_ns, stats, store_stats, log, sample, reads, won, promote
    cdef Copies copies
    cdef vc_mc_clocks clocks
    cdef vc_mc_config config
    cdef vc_mc_counts seen

    def __init__(self, executor, stats, log, sample):
        store = executor.cache.store
        cdef Index index = store.index
        cdef Marks reads = executor.reads, won = executor.won
        limits = executor.limits
        self.clock, self.machine_ns = store.clock, executor.clock
        self.stats, self.store_stats = stats, store.stats
        self.log, self.sample = log, sample
        self.reads, self.won = reads, won
        self.clocks = vc_mc_clocks(python_store_us, python_machine_us, <void *>self)
        if type(store.clock) is Clock:
            self.clocks.store_us, self.clocks.machine_us = native_store_us, native_machine_us
            self.clocks.context = &(<Clock>store.clock).clock
        self.config.core = index.core
        self.config.functions = functions
        self.config.clocks = &self.clocks
        self.config.reads = reads.marks
        self.config.won = won.marks
        self.copies, self.promote = executor.cache.hot_keys, executor.cache.promote
        if self.copies is not None:
            self.config.copies = self.copies.copies
        self.store = store
        self.config.on_due, self.config.due_context = on_command_due, <void *>self
        self.config.key_size = limits.key_size
        self.config.value_size = limits.value_size
        self.config.default_ttl = limits.default_ttl
        self.config.max_ttl = limits.max_ttl
        self.config.slow_ns = min(log.threshold_ns, 2**62)
        self.config.long_ns = LONG_NS
        self.config.sample_mask = SAMPLED

    cdef catch_up(self):
        with self.store.lock:
            self.store.catch_up()

    cdef add_counts(self, const vc_mc_counts *counts):
        """Count what was counted since the last call; any thread with Python's lock."""
        cdef int name, result
        cdef const vc_durations *new
        cdef vc_durations *seen
        for name in range(VC_MC_NAMES):
            for result in range(VC_MC_RESULTS):
                new = &counts.commands[name][result]
                seen = &self.seen.commands[name][result]
                if new.total_ns != seen.total_ns:
                    add_new_durations(self.answers(name, result), new, seen)
        if counts.reads.total_ns != self.seen.reads.total_ns:
            add_new_durations(self.store_stats.reads, &counts.reads, &self.seen.reads)
            self.store_stats.read_errors_in_row = 0
        add_new_durations(self.store_stats.writes, &counts.writes, &self.seen.writes)
        self.store_stats.absent_reads += counts.absent - self.seen.absent
        self.store_stats.evicted_reads += counts.evicted - self.seen.evicted
        self.seen.absent, self.seen.evicted = counts.absent, counts.evicted

    cdef answers(self, int name, int result):
        return self.stats.answers[
            vc_mc_names[name].decode("ascii"), vc_mc_results[result].decode("ascii")
        ]

    cdef take_events(self, const uint8_t *events, size_t length):
        cdef size_t at = 0
        cdef const vc_mc_event *event
        while at < length:
            event = <const vc_mc_event *>(events + at)
            at += event.length
            self.take_event(event)

    cdef take_event(self, const vc_mc_event *event):
        cdef bytes key = event.key[: event.key_length]
        if event.is_sampled:
            self.sample(key)
        if event.is_hot:
            self.promote(key, event.expires_ms)
        for histogram, ns in (
            (self.answers(event.name, event.result), event.took_ns),
            (self.store_stats.reads, event.read_ns),
            (self.store_stats.writes, event.write_ns),
        ):
            if ns > LONG:
                histogram.long.append((event.started_ns, ns))
        if event.took_ns > self.log.threshold_ns:
            self.log.add(
                event.remote.decode("ascii"),
                vc_mc_names[event.name].decode("ascii"),
                key or None,
                vc_mc_results[event.result].decode("ascii"),
                started_ns=event.started_ns,
                took_ns=event.took_ns,
                size=event.bytes,
                position=(event.volume, event.offset, event.size) if event.has_record else None,
            )


cdef add_new_durations(object histogram, const vc_durations *now, vc_durations *seen):
    cdef vc_durations new
    cdef int i
    for i in range(64):
        new.counts[i] = now.counts[i] - seen.counts[i]
    new.total_ns = now.total_ns - seen.total_ns
    seen[0] = now[0]
    add_durations(histogram, &new)


cdef void on_command_events(void *context) noexcept with gil:
    try:
        (<Commands>context).take()
    except BaseException as error:
        (<Commands>context).failure = error


cdef class Commands:
    """Executes commands for one connection at a time, without sockets."""

    cdef CommandFacts facts
    cdef vc_mc *mc
    cdef vc_mc_stream stream
    cdef vc_mc_out out
    cdef bytes remote
    cdef object failure

    def __cinit__(self, CommandFacts facts not None, size_t room):
        cdef vc_mc_config config = facts.config
        self.facts = facts
        config.on_events, config.context = on_command_events, <void *>self
        self.mc = vc_mc_new(&config)
        self.out = vc_mc_out(<char *>malloc(room), 0, room)
        if self.mc is NULL or self.out.at is NULL:
            raise MemoryError

    def __dealloc__(self):
        vc_mc_free(self.mc)
        free(self.out.at)

    def connect(self, remote, *, bint may_read, bint may_write, bint wants_credentials):
        memset(&self.stream, 0, sizeof(self.stream))
        self.remote = remote.encode("ascii")
        self.stream.remote = self.remote
        self.allow(may_read=may_read, may_write=may_write, wants_credentials=wants_credentials)

    def allow(self, *, bint may_read, bint may_write, bint wants_credentials):
        self.stream.rights = vc_mc_rights(may_read, may_write, wants_credentials)

    def execute(self, bytes data not None):
        cdef size_t used
        cdef vc_mc_step step = vc_mc_execute(
            self.mc, &self.stream, <const char *>data, len(data), &used, &self.out
        )
        return step, used, self.stream.prefix[: self.stream.prefix_length]

    def needed(self):
        return self.stream.needed

    def replies(self):
        used, self.out.used = self.out.used, 0
        return self.out.at[:used]

    def read_cold(self):
        """Do what a reader thread does."""
        cdef uint8_t *buffer = <uint8_t *>malloc(self.stream.at.size)
        cdef vc_core *core = self.facts.config.core
        cdef vc_record record
        functions.read(
            core, self.stream.key, self.stream.key_length, &self.stream.at, buffer,
            self.stream.at.size, NULL, 0, &record,
        )
        functions.end_read(core)
        free(buffer)

    def take(self):
        """Let Python have what was counted and recorded."""
        cdef vc_mc_counts counts
        cdef size_t length
        cdef const uint8_t *events = vc_mc_take_events(self.mc, &length)
        memset(&counts, 0, sizeof(counts))
        vc_mc_add_counts(self.mc, &counts)
        self.facts.add_counts(&counts)
        self.facts.take_events(events, length)
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
