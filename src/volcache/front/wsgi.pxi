# The path of a request that needs nothing special: from the WSGI environ to the response in
# one call. Whatever it does not answer goes to the application, which decides everything.

from cpython.unicode cimport PyUnicode_DecodeLatin1
from libc.string cimport strlen

from volcache.histogram import LONG_NS
from volcache.monitoring.requests import SAMPLE_MASK


cdef extern from "Python.h":
    int PyUnicode_KIND(object text)
    int PyUnicode_1BYTE_KIND
    void *PyUnicode_1BYTE_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)


cdef enum:
    TYPE_BYTES_MAX = 255  # of a Content-Type that is stored
    ENCODING_BYTES_MAX = 64

cdef int64_t LONG = LONG_NS
cdef int64_t SAMPLED = SAMPLE_MASK


def http_date(int64_t second):
    cdef char text[VC_DATE_BYTES]
    if not 0 <= second <= VC_SECOND_MAX:
        raise ValueError("no date")
    return text[: vc_put_date(text, second) - text].decode("ascii")


cdef class Parts:
    """Bounds for C; without a ring there are none."""

    cdef bytes data
    cdef vc_parts parts

    def __init__(self, bounds=()):
        self.data = bytes(bounds)
        self.parts.bounds = <const uint32_t *>data_of(self.data)
        self.parts.count = len(bounds)

    def have(self, bytes path not None):
        return vc_parts_have(&self.parts, data_of(path), PyBytes_GET_SIZE(path))


cdef class Timed:
    """Counts durations in C, until `flush` adds them to a `Histogram`."""

    cdef object histogram
    cdef vc_durations durations

    def __cinit__(self, histogram):
        self.histogram = histogram

    cdef inline int observe(self, int64_t started_ns, int64_t ns) except -1:
        vc_observe(&self.durations, ns)
        if ns > LONG:
            self.histogram.long.append((started_ns, ns))
        return 0

    cdef flush(self):
        if self.durations.total_ns:
            add_durations(self.histogram, &self.durations)
            memset(&self.durations, 0, sizeof(self.durations))


cdef inline bint has_conditions(dict environ):
    return (
        "HTTP_IF_NONE_MATCH" in environ
        or "HTTP_IF_MODIFIED_SINCE" in environ
        or "HTTP_IF_MATCH" in environ
        or "HTTP_IF_UNMODIFIED_SINCE" in environ
    )


cdef bint is_plain(object text, Py_ssize_t length_max):
    """Return whether a header of a PUT can be stored as it is; the test fails for some."""
    cdef Py_UCS4 character
    if type(text) is not str or PyUnicode_GET_LENGTH(text) > length_max:
        return False
    for character in <str>text:
        if not 0x20 <= character < 0x7F:
            return False
    return True


cdef class NativeApp:
    cdef object app, promote, clock, remaining_ms
    cdef object value_headers, requests, sample, store_stats, lock, catch_up
    cdef Copies copies  # None without a hot tier
    cdef public object gate  # in front of this application
    cdef public object front  # called instead; may call `answer`
    cdef Index index
    cdef ContentTypes types
    cdef Parts readable, writable
    cdef Timed gets, puts, reads, writes
    cdef int64_t second_ends_ns, second, slow_ns
    cdef uint64_t bytes_in, bytes_out
    cdef Py_ssize_t key_size, value_size
    cdef bint is_merged, has_ttl
    cdef bint has_errors  # maybe: reads may have failed since the last one that did not
    cdef bytes date

    def __init__(self, app, types, *, bint is_merged):
        store = app.cache.store
        self.app = app
        self.types = ContentTypes(types)
        self.index = store.index
        self.lock = store.lock
        self.catch_up = store.catch_up
        self.store_stats = store.stats
        self.clock = store.clock
        self.reads = Timed(store.stats.reads)
        self.writes = Timed(store.stats.writes)
        self.value_headers = app.value_headers
        self.requests = app.stats
        self.sample = app.sample
        self.gets = Timed(app.stats.answers["GET", "200 OK", "DISK"])
        self.puts = Timed(app.stats.answers["PUT", "200 OK", ""])
        self.refresh()
        self.key_size = app.limits.key_size
        self.value_size = app.limits.value_size
        self.has_ttl = bool(app.limits.default_ttl or app.limits.max_ttl)
        self.remaining_ms = app.cache.remaining_ms
        self.copies = app.cache.hot_keys
        self.promote = app.cache.promote
        self.is_merged = is_merged

    def __call__(self, dict environ not None, start_response):
        if self.front is not None:
            return self.front(environ, start_response)
        return self.answer(environ, start_response)

    def refresh(self):
        self.slow_ns = min(self.app.slow_ns, 2**62)
        ring = self.app.ring
        self.readable = Parts(ring.reads if ring is not None else ())
        self.writable = Parts(ring.writes if ring is not None else ())

    cpdef object answer(self, dict environ, start_response):
        cdef int64_t started_ns = monotonic_ns()
        cdef list body = None
        if started_ns >= self.second_ends_ns:
            self.second_ends_ns = started_ns + self.value_headers.update()
            self.second = self.value_headers.second
            self.date = b"\r\nDate: " + self.value_headers.date[1].encode("ascii")
        path = environ.get("PATH_INFO")
        if type(path) is str and PyUnicode_KIND(path) == PyUnicode_1BYTE_KIND:
            method = environ.get("REQUEST_METHOD")
            if method == "GET":
                body = self.get(environ, start_response, path, started_ns)
            elif method == "PUT":
                body = self.put(environ, start_response, path, started_ns)
        if body is not None:
            return body
        # The application may be asked for the counters.
        self.flush()
        if self.gate is None:
            return self.app(environ, start_response)
        self.gate.flush()
        body = self.app(environ, start_response)
        self.gate.set_ready()
        return body

    def flush(self):
        """Add what was counted since the last time to the counters in Python."""
        self.gets.flush()
        self.puts.flush()
        self.reads.flush()
        self.writes.flush()
        self.requests.bytes_in += self.bytes_in
        self.requests.bytes_out += self.bytes_out
        self.bytes_in = self.bytes_out = 0
        self.has_errors = True

    cdef list get(self, dict environ, start_response, str path, int64_t started_ns):
        cdef const uint8_t *text = <const uint8_t *>PyUnicode_1BYTE_DATA(path)
        cdef Py_ssize_t length = PyUnicode_GET_LENGTH(path)
        cdef Reading reading
        cdef vc_record *record = &reading.record
        cdef bytes value
        cdef int64_t stored, ns
        if (
            length < 2
            or text[0] != c"/"
            or (text[1] == c"-" and text[2] == c"/")
            or not vc_parts_have(&self.readable.parts, text, length)
            or "HTTP_RANGE" in environ
            or "HTTP_SERVICE_WORKER" in environ
            or has_conditions(environ)
        ):
            return None
        if self.copies is not None and vc_copies_find(
            self.copies.copies, text + 1, length - 1, NULL
        ) == VC_COPY_FIRST:
            return None
        value = read_record(self.index, text + 1, length - 1, &reading)
        if value is None:
            return None
        stored = record.stored_us // 1000000
        if stored >= VC_SECOND_MAX:
            return None
        if record.expires_ms and record.expires_ms <= <uint64_t>self.clock.now_ms():
            return None
        self.reads.observe(started_ns, monotonic_ns() - started_ns)
        if self.has_errors:
            self.store_stats.read_errors_in_row = 0
            self.has_errors = False
        headers = self.get_headers(&reading, text + 1)
        if self.copies is not None and vc_copies_count_read(
            self.copies.copies, text + 1, length - 1, started_ns // 1_000_000
        ):
            self.promote((<const char *>text)[1:length], record.expires_ms)
        start_response("200 OK", headers)
        self.bytes_out += record.length
        ns = monotonic_ns() - started_ns
        self.gets.observe(started_ns, ns)
        if not ns & SAMPLED:
            self.sample(path)
        if ns > self.slow_ns:
            self.app.log_slow("GET", path, "200 OK", started_ns, ns)
        return [value]

    cdef list get_headers(self, Reading *reading, const uint8_t *key):
        """Return what `ValueHeaders.make` and `App` return for a record."""
        cdef char text[VC_HEADERS_BYTES]
        cdef vc_record *record = &reading.record
        cdef int64_t remaining_ms = 0
        if record.expires_ms:
            remaining_ms = self.remaining_ms(record.expires_ms)
        cdef char *at = vc_put_value_headers(
            text, record, reading.types, key, self.types.table, self.second, remaining_ms
        )
        return self.end_headers(text, at)

    cdef list end_headers(self, char *text, char *at):
        """Add Date; return the headers as WSGI has them, or all in one."""
        cdef char *value = text + strlen("Content-Length: ")
        memcpy(at, data_of(self.date), PyBytes_GET_SIZE(self.date))
        at += PyBytes_GET_SIZE(self.date)
        if self.is_merged:
            return [("Content-Length", PyUnicode_DecodeLatin1(value, at - value, NULL))]
        lines = PyUnicode_DecodeLatin1(text, at - text, NULL).split("\r\n")
        return [tuple(line.split(": ", 1)) for line in lines]

    cdef list put(self, dict environ, start_response, str path, int64_t started_ns):
        cdef const uint8_t *text = <const uint8_t *>PyUnicode_1BYTE_DATA(path)
        cdef Py_ssize_t length = PyUnicode_GET_LENGTH(path), size
        cdef char headers[VC_HEADERS_BYTES]
        cdef vc_put put
        cdef vc_record *record = &put.record
        cdef bytes value
        cdef int64_t ns
        if (
            self.has_ttl
            or length > self.key_size + 1
            or not vc_path_is_ordinary(<const char *>text, length)
            or not vc_parts_have(&self.writable.parts, text, length)
            or has_conditions(environ)
            or "HTTP_CONTENT_RANGE" in environ
            or "HTTP_CACHE_CONTROL" in environ
            or "HTTP_EXPIRES" in environ
            or "HTTP_TRANSFER_ENCODING" in environ
        ):
            return None
        content_type = environ.get("CONTENT_TYPE", "")
        encoding = environ.get("HTTP_CONTENT_ENCODING", "")
        if not (
            is_plain(content_type, TYPE_BYTES_MAX) and is_plain(encoding, ENCODING_BYTES_MAX)
        ):
            return None
        try:
            value = <bytes?>environ["wsgi.input"].getvalue()
        except BaseException:
            return None  # The application meets it, too, and answers.
        size = PyBytes_GET_SIZE(value)
        # A Content-Length with leading zeros is left to the application, too.
        if size > self.value_size or environ.get("CONTENT_LENGTH") != f"{size}":
            return None
        record.key_length = length - 1
        record.type_length = PyUnicode_GET_LENGTH(content_type)
        record.encoding_length = PyUnicode_GET_LENGTH(encoding)
        record.cache_length = 0
        record.length = size
        record.flags = 0
        record.expires_ms = 0
        record.kind = 0
        record.stored_us = 0
        put.type = <const uint8_t *>PyUnicode_1BYTE_DATA(content_type)
        put.encoding = <const uint8_t *>PyUnicode_1BYTE_DATA(encoding)
        put.cache = NULL
        put.key = text + 1
        put.value = data_of(value)
        if not self.store(&put):
            return None
        self.bytes_in += record.length
        end = vc_put_stored_headers(headers, record)
        start_response("200 OK", self.end_headers(headers, end))
        ns = monotonic_ns() - started_ns
        self.puts.observe(started_ns, ns)
        if ns > self.slow_ns:
            self.app.log_slow("PUT", path, "200 OK", started_ns, ns)
        return [b""]

    cdef bint store(self, vc_put *put) except -1:
        """Do what `Cache.put` does; False: nothing was stored, for whatever reason."""
        cdef vc_status status
        put.ring = VC_RING_UNKNOWN
        with self.lock:
            with nogil:
                status = functions.put(self.index.core, put)
            if status == VC_OK:
                self.writes.observe(put.started_ns, put.took_ns)
                # After the change and before the lock is released, see `Cache`.
                if self.copies is not None:
                    vc_copies_invalidate(self.copies.copies, put.key, put.record.key_length)
            if functions.is_due(self.index.core):
                self.catch_up()
        return status == VC_OK
