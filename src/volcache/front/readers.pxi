# The threads that read records which are not in memory, see readers.h.


cdef class Readers:
    cdef vc_readers *readers
    cdef Index index

    def __init__(self, index, *, unsigned threads):
        self.index = index
        self.readers = vc_readers_new(self.index.core, functions, threads)
        if self.readers is NULL:
            raise MemoryError("no memory or no threads for the reads")

    def close(self):
        with nogil:
            vc_readers_free(self.readers)
        self.readers = NULL
