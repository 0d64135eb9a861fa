# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False
"""
The native front for Python; see `_native.pyi` for the contracts.

It gets the index of a store from the extension of the store.
"""

from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Resize
from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid

from volcache.front.front cimport *
from volcache.store._core.core cimport *
from volcache.store._core._native cimport Clock, Index, data_of, etag_of, is_plain

from volcache.store._core._native import functions as capsule

if not PyCapsule_IsValid(capsule, VC_FUNCTIONS_NAME):
    raise ImportError("the front was built for another version of the core")

cdef const vc_core_functions *functions = <const vc_core_functions *>PyCapsule_GetPointer(
    capsule, VC_FUNCTIONS_NAME
)

include "copies.pxi"
include "common.pxi"
include "hot.pxi"
include "readers.pxi"
include "memcache.pxi"
include "server.pxi"
include "local.pxi"
