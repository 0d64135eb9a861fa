# cython: language_level=3
"""An extension of its own: the codecs that the others are built on need it."""

from libc.stdint cimport uint32_t
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE


cdef extern from "crc32c.h" nogil:
    uint32_t vc_crc32c(uint32_t crc, const void *data, size_t length)


def crc32c(bytes data not None, uint32_t crc=0):
    cdef const char *at = PyBytes_AS_STRING(data)
    cdef size_t length = PyBytes_GET_SIZE(data)
    with nogil:
        crc = vc_crc32c(crc, at, length)
    return crc
