# The table of copies for Python; see copies.h.

from secrets import token_bytes


cdef class Copies:
    cdef vc_copies *copies

    def __cinit__(
        self, *, uint32_t reads, double seconds, uint32_t keys=262_144, uint32_t first=65_536,
        uint32_t counted=65_536,
    ):
        cdef vc_copies_config config
        config.reads = reads
        config.duration_ms = round(seconds * 1000)
        config.keys, config.first, config.counted = keys, first, counted
        self.copies = vc_copies_new(&config)
        if self.copies is NULL:
            raise MemoryError("no memory for the keys of the hot tier")
        vc_copies_begin_epoch(self.copies, data_of(token_bytes(VC_EPOCH_BYTES)))

    def __dealloc__(self):
        vc_copies_free(self.copies)

    def may_hold(self, bytes key not None):
        return vc_copies_find(self.copies, data_of(key), len(key), NULL) != VC_NO_COPY

    def is_first(self, bytes key not None):
        return vc_copies_find(self.copies, data_of(key), len(key), NULL) == VC_COPY_FIRST

    def ask_first(self, bytes key not None, *, bint is_first):
        vc_copies_ask_first(self.copies, data_of(key), len(key), is_first)

    def name(self, bytes key not None):
        cdef uint8_t item[VC_ITEM_BYTES]
        vc_copies_name(self.copies, data_of(key), len(key), item)
        return <bytes>item[:VC_ITEM_BYTES]

    def promote(self, bytes key not None):
        cdef uint8_t item[VC_ITEM_BYTES]
        while not vc_copies_promote(self.copies, data_of(key), len(key), item):
            self.begin_epoch()
        return <bytes>item[:VC_ITEM_BYTES]

    def invalidate(self, bytes key not None):
        return vc_copies_invalidate(self.copies, data_of(key), len(key))

    def count_read(self, bytes key not None, now_ms=None):
        cdef int64_t at_ms = monotonic_ns() // 1_000_000 if now_ms is None else now_ms
        return vc_copies_count_read(self.copies, data_of(key), len(key), at_ms)

    def begin_epoch(self, bytes epoch=None):
        cdef bytes begun = token_bytes(VC_EPOCH_BYTES) if epoch is None else epoch
        if len(begun) != VC_EPOCH_BYTES:
            raise ValueError("an epoch has 16 bytes")
        vc_copies_begin_epoch(self.copies, data_of(begun))

    def add(self, uint64_t hashed, uint64_t version):
        return vc_copies_add(self.copies, vc_copies_entry(hashed, version))

    def entries(self):
        cdef vc_copies_state state
        cdef bytearray room
        cdef vc_copies_entry *entries
        cdef uint32_t i
        vc_copies_get_state(self.copies, &state, NULL, 0)
        room = bytearray(state.keys * sizeof(vc_copies_entry))
        entries = <vc_copies_entry *>PyByteArray_AS_STRING(room)
        vc_copies_get_state(self.copies, &state, entries, state.keys)
        epoch = <bytes>state.epoch[:VC_EPOCH_BYTES]
        count = min(state.keys, len(room) // sizeof(vc_copies_entry))
        return epoch, [(entries[i].hash, entries[i].version) for i in range(count)]

    cdef vc_copies_state state(self):
        cdef vc_copies_state state
        vc_copies_get_state(self.copies, &state, NULL, 0)
        return state

    @property
    def first(self):
        return self.state().first

    @property
    def invalidations(self):
        return self.state().invalidations
