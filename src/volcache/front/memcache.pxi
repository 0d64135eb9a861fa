# Commands of the memcached protocol, see memcache.h: what they ask Python, and what they have
# counted and recorded.

cdef vc_mc_result on_ask(void *context, vc_mc_asked *asked) noexcept with gil:
    facts = <CommandFacts>context
    try:
        return facts.answer(asked)
    except BaseException as error:
        reason = facts.service.refused(error)
        if reason is None:
            return VC_MC_TOO_LARGE
        asked.is_broken = not reason
        if asked.is_broken:
            facts.log.failed(error)
        facts.tell(asked, reason or b"internal error")
        return VC_MC_FAILED


cdef vc_mc_rights rights_of(rights):
    may_read, may_write, wants_credentials = rights
    return vc_mc_rights(may_read, may_write, wants_credentials)


cdef vc_mc_access access_of(service):
    """Return who may do what, as the service says."""
    cdef vc_mc_access access
    rights, tokens = service.access_table()
    access.rights = rights_of(rights)
    access.count = min(len(tokens), VC_MC_TOKENS_MAX)
    for i in range(access.count):
        digest, rights = tokens[i]
        memcpy(access.tokens[i].token, data_of(digest), VC_MC_TOKEN_BYTES)
        access.tokens[i].rights = rights_of(rights)
    return access


cdef class CommandFacts:
    """What the commands use, and what Python answers and learns."""

    cdef readonly object service, stats, log
    cdef object store, store_stats, sample
    cdef object kept  # what the last answer points to
    cdef Copies copies
    cdef AccessLog access_log
    cdef Clocks clocks
    cdef vc_executor by
    cdef vc_mc_config config
    cdef vc_mc_counts seen
    cdef vc_store_counts seen_of_store

    def __cinit__(self, *_, **__):
        # When versions were read, in seconds since the epoch; and those that a client has won
        # the right to replace. Beyond these numbers, the oldest is forgotten.
        self.config.reads, self.config.won = vc_recent_new(16_384), vc_recent_new(65_536)
        if self.config.reads is NULL or self.config.won is NULL:
            raise MemoryError("no memory for the memcached protocol")

    def __dealloc__(self):
        vc_recent_free(self.config.reads)
        vc_recent_free(self.config.won)

    def __init__(self, service, stats, log, sample, AccessLog access_log=None):
        cache, limits = service.cache, service.limits
        self.service, self.store, self.log, self.sample = service, cache.store, log, sample
        self.clocks = Clocks(self.store.clock, service.clock)
        self.stats, self.store_stats = stats, self.store.stats
        self.copies, self.access_log = cache.hot_keys, access_log
        self.by = executor_of(self.store.index, self.clocks, self.copies, access_log, limits)
        self.by.slow_ns = min(log.threshold_ns, 2**62)
        self.config.ask, self.config.ask_context = on_ask, <void *>self
        self.config.default_ttl = limits.default_ttl
        self.config.max_ttl = limits.max_ttl

    cdef tell(self, vc_mc_asked *asked, bytes text):
        self.kept = text
        asked.text = vc_text(text, len(text))

    cdef vc_mc_result answer(self, vc_mc_asked *asked) except *:
        service, cache, question = self.service, self.service.cache, asked.question
        cdef bytes key = asked.key.at[: asked.key.length]
        cdef bytes value = asked.value.at[: asked.value.length]
        if question == VC_MC_ASK_GET or question == VC_MC_ASK_STAT:
            record = cache.get(key) if question == VC_MC_ASK_GET else cache.stat(key)
            return VC_MC_MISS if record is None else self.answer_record(asked, record, VC_MC_HIT)
        if question == VC_MC_ASK_PUT or question == VC_MC_ASK_TOUCH:
            return self.answer_record(asked, self.put(key, asked.put), VC_MC_STORED)
        if question == VC_MC_ASK_DELETE:
            return VC_MC_DELETED if cache.delete(key) else VC_MC_NOT_FOUND
        if question == VC_MC_ASK_FLUSH:
            reason = service.flush(asked.exptime)
            self.tell(asked, reason)
            return VC_MC_FORBIDDEN if reason else VC_MC_OK
        if question == VC_MC_ASK_TOKEN:
            found = service.authenticate(asked.remote.decode("ascii"), value)
            if found is None:
                return VC_MC_DENIED
            digest, rights = found
            memcpy(asked.token, data_of(digest), VC_MC_TOKEN_BYTES)
            asked.rights = rights_of(rights)
            return VC_MC_AUTHENTICATED
        text = service.report(value) if question == VC_MC_ASK_STATS else service.config(value)
        if text is None:
            return VC_MC_NOT_FOUND
        self.tell(asked, text)
        return VC_MC_OK

    cdef vc_mc_result answer_record(self, vc_mc_asked *asked, record, vc_mc_result result) except *:
        cdef vc_record *found = &asked.record
        cdef bytes types = b"".join(record[1:4])
        self.kept = record, types
        asked.is_copy = record.source != "DISK"
        asked.text = vc_text(record.value, len(record.value))
        found.type = data_of(types)
        found.type_length, found.encoding_length, found.cache_length = map(len, record[1:4])
        found.stored_us, found.expires_ms, found.flags = record[4:7]
        found.volume, found.offset, found.size, found.length = record[7:11]
        return result

    cdef put(self, bytes key, const vc_put *put):
        """Put a record, or put one again that has another expiry."""
        cdef const vc_record *given = &put.record
        cdef bytes value = (<const char *>put.value)[: given.length]
        types = (
            <bytes>(<const char *>put.type)[: given.type_length],
            <bytes>(<const char *>put.encoding)[: given.encoding_length],
            <bytes>(<const char *>put.cache)[: given.cache_length],
        )
        return self.service.put(
            key, value, types, given.stored_us, given.expires_ms, given.flags
        )

    cdef take_figures(self, const vc_protocol_figures *now):
        stats = self.stats
        stats.bytes_in, stats.bytes_out = now.bytes_in, now.bytes_out
        stats.connections, stats.connections_total = now.open, now.accepted
        stats.connections_refused = now.turned_away
        stats.connections_idle = now.closed_idle + now.closed_room

    cdef add_counts(self, const vc_mc_counts *counts, const vc_store_counts *of_store):
        """Count what was counted since the last call; any thread with Python's lock."""
        cdef int name, result
        cdef const vc_durations *new
        cdef vc_durations *seen
        for name in range(<int>VC_MC_NAMES):
            for result in range(<int>VC_MC_RESULTS):
                new = &counts.commands[name][result]
                seen = &self.seen.commands[name][result]
                if new.total_ns != seen.total_ns:
                    add_new_durations(self.answers(name, result), new, seen)
        add_store_counts(self.store_stats, of_store, &self.seen_of_store)

    cdef answers(self, int name, int result):
        return self.stats.answers[
            vc_mc_names[name].decode("ascii"), vc_mc_results[result].decode("ascii")
        ]

    cdef take_events(self, vc_reporter *reporter):
        cdef size_t length, at = 0
        cdef const uint8_t *events = vc_events_take(&reporter.events, &length)
        cdef const vc_mc_event *event
        while at < length:
            event = <const vc_mc_event *>(events + at)
            at += event.sizes.length
            self.take_event(event)

    cdef take_event(self, const vc_mc_event *event):
        cdef bytes key = (<const char *>(event + 1))[: event.sizes.key_length]
        cdef int name = event.name, result = event.result
        if event.is_sampled:
            self.sample(key)
        if event.result == VC_MC_UNAUTHORIZED:
            self.service.refuse(
                "read" if event.wants_read else "write",
                "wrong" if event.has_token else "missing",
                (<const char *>event.remote).decode("ascii"),
                vc_mc_names[name].decode("ascii"),
                key.decode("latin-1"),
            )
        for histogram, ns in (
            (self.answers(name, result), event.took_ns),
            (self.store_stats.reads, event.read_ns),
            (self.store_stats.writes, event.write_ns),
        ):
            if ns > LONG:
                histogram.long.append((event.started_ns, ns))
        if event.took_ns > self.log.threshold_ns:
            self.log.add(
                (<const char *>event.remote).decode("ascii"),
                vc_mc_names[name].decode("ascii"),
                key,
                vc_mc_results[result].decode("ascii"),
                event.started_ns,
                event.took_ns,
            )
