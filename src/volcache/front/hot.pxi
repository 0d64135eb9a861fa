# The client of memcached for Python; see hot_client.h.

from os import dup

# In the order of `vc_hot_result`.
HOT_RESULTS = (
    "", "found", "absent", "stored", "not_stored", "refused", "timeout", "closed", "protocol",
    "other",
)


cdef class HotClient:
    cdef vc_hot *hots[16]       # of the loops
    cdef readonly unsigned count
    cdef vc_hot_counts seen
    cdef list addresses
    cdef size_t record_max

    def __cinit__(self, addresses, *, double timeout, size_t record_max, unsigned loops=1):
        cdef bytearray array = bytearray(len(addresses) * sizeof(char *))
        cdef const char **texts = <const char **>PyByteArray_AS_STRING(array)
        self.addresses = [address.encode() for address in addresses]
        for i, address in enumerate(self.addresses):
            texts[i] = address
        self.record_max = record_max
        for i in range(<int>loops):
            self.hots[i] = vc_hot_new(texts, len(addresses), <int64_t>(timeout * 1e9), record_max)
            if self.hots[i] is NULL:
                raise MemoryError("no memory for the hot tier")
            self.count += 1

    def __dealloc__(self):
        for i in range(<int>self.count):
            vc_hot_free(self.hots[i])

    def server_of(self, bytes name not None):
        return vc_hot_server_of(self.hots[0], name_of(name))

    def get_command(self, bytes name not None):
        cdef char head[VC_HOT_HEAD_BYTES]
        return head[: vc_hot_write_get(head, name_of(name))]

    def set_command(self, bytes name not None, bytes item not None, uint64_t expires_s):
        cdef char head[VC_HOT_HEAD_BYTES]
        cdef size_t length = vc_hot_write_set(
            head, name_of(name), expires_s, len(item) - VC_ITEM_BYTES
        )
        return b"%b%b\r\n" % (head[:length], item)

    def parse(self, bytes received not None, bytes name):
        cdef const uint8_t *item = NULL
        if name is not None:
            item = name_of(name)
        cdef vc_hot_reply reply = vc_hot_parse(
            data_of(received), len(received), item, self.record_max + VC_ITEM_BYTES
        )
        if reply.result != VC_HOT_MORE and reply.length != <size_t>len(received):
            return "protocol", None  # Nothing else was asked for.
        if reply.result == VC_HOT_FOUND:
            return "found", (<const char *>reply.value)[: reply.value_length]
        return HOT_RESULTS[reply.result], None

    def give(self, unsigned server, fds):
        for i, fd in enumerate(fds):
            vc_hot_give(self.hots[<int>i], server, dup(fd))

    def failure(self, unsigned server):
        cdef vc_hot_result found, first = VC_HOT_MORE
        for i in range(<int>self.count):
            found = vc_hot_take_failure(self.hots[i], server)
            if first == VC_HOT_MORE:
                first = found
        return HOT_RESULTS[first]

    cdef take_counts(self, stats):
        cdef vc_hot_counts counts
        cdef vc_hot_counts *seen = &self.seen
        memset(&counts, 0, sizeof(counts))
        for i in range(<int>self.count):
            vc_hot_add_counts(self.hots[i], &counts)
        stats.gets += counts.gets - seen.gets
        stats.hits += counts.hits - seen.hits
        stats.stale += counts.stale - seen.stale
        if counts.refused != seen.refused:
            stats.failures["refused"] += counts.refused - seen.refused
        add_new_durations(stats.calls, &counts.calls, &seen.calls)
        seen[0] = counts


cdef const uint8_t *name_of(bytes name) except NULL:
    if len(name) != VC_ITEM_BYTES:
        raise ValueError("no name of an item")
    return data_of(name)
