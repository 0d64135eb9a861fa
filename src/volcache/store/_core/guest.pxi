# A guest of a store reads what its owner shares, see shared.h.


cdef class SharedReader:
    cdef vc_guest *guest
    cdef Clock clock
    cdef int fd, folder
    cdef readonly bint is_full

    def __cinit__(self):
        self.fd = self.folder = -1

    def __init__(self, Clock clock not None, int fd, folder):
        self.clock, self.fd = clock, fd
        self.folder = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.guest = vc_guest_new(fd, self.folder)
        if self.guest is NULL:
            raise MemoryError("no memory to map an index")

    def __dealloc__(self):
        vc_guest_free(self.guest)
        for fd in (self.fd, self.folder):
            if fd >= 0:
                os.close(fd)

    def read(self, bytes key not None, bint is_head, bint counts):
        cdef uint8_t buffer[SMALL_BYTES]
        cdef const uint8_t *name = data_of(key)
        cdef size_t room, length = PyBytes_GET_SIZE(key)
        cdef uint8_t *into = buffer
        cdef bytes large
        cdef vc_guest_lookup at
        cdef vc_record record
        cdef vc_guest_result found = vc_guest_find(self.guest, name, length, &at)
        if found == VC_GUEST_FOUND:
            room = min(at.size, VC_OVERHEAD_BYTES + 765 + length) if is_head else at.size
            if room > SMALL_BYTES:
                large = bytes_take(bytes_new(NULL, room))
                into = <uint8_t *>data_of(large)
            with nogil:
                found = vc_guest_read(
                    self.guest, &at, name, length, into, room, is_head, &record
                )
        if found == VC_GUEST_ASK:
            return False
        if not vc_guest_is_current(self.guest):
            return True
        if counts:
            at.fingerprint |= VC_GUEST_MISS if found == VC_GUEST_ABSENT else 0
            self.is_full = vc_guest_note(self.guest, at.fingerprint)
        if found == VC_GUEST_ABSENT:
            return None
        if record.expires_ms and record.expires_ms <= <uint64_t>self.clock.now_ms():
            return None
        if is_head:
            return fields_of(b"", &record)
        return fields_of((<char *>into)[record.prefix : record.size], &record)

    def value(self, key):
        cdef uint8_t buffer[SMALL_BYTES]
        cdef const uint8_t *name
        cdef size_t length
        cdef vc_guest_lookup at
        cdef vc_record record
        cdef vc_guest_result found
        if self.is_full or not is_plain(key, &name, &length):
            return False
        found = vc_guest_find(self.guest, name, length, &at)
        if found == VC_GUEST_FOUND:
            if at.size > SMALL_BYTES:
                return False
            with nogil:
                found = vc_guest_read(self.guest, &at, name, length, buffer, at.size, False, &record)
        if found == VC_GUEST_ASK or not vc_guest_is_current(self.guest):
            return False
        if found == VC_GUEST_ABSENT:
            self.is_full = vc_guest_note(self.guest, at.fingerprint | VC_GUEST_MISS)
            return None
        if record.expires_ms and record.expires_ms <= <uint64_t>self.clock.now_ms():
            return False
        self.is_full = vc_guest_note(self.guest, at.fingerprint)
        return (<char *>buffer)[record.prefix : record.size]

    def take(self):
        cdef const uint64_t *reads
        cdef size_t count = vc_guest_take(self.guest, &reads)
        self.is_full = False
        return (<const char *>reads)[: count * sizeof(uint64_t)]
