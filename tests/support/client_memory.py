"""Values as the service stores them, for clients that a test runs without one."""

from __future__ import annotations

import threading
from collections.abc import Mapping


class Memory:
    """
    Stores values with conditions and times to live.

    Attributes:
        now: Seconds; they pass only if a test lets them.
        stored: Body, ETag, end, and further directives of each path.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.now = 0.0
        self.stored: dict[str, tuple[bytes, str, float, str]] = {}
        self._count = 0
        self._lock = threading.Lock()

    def __call__(self, request: bytes) -> bytes:
        """Answer a request as it is sent."""
        head, _, body = request.partition(b"\r\n\r\n")
        line, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = line.split(" ")
        sent = dict(one.split(": ", 1) for one in lines)
        with self._lock:
            status, headers, found = self.answer(method, path, sent, body)
        headers["Content-Length"] = str(len(found))
        fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        answer = f"HTTP/1.1 {status} x\r\n{fields}\r\n".encode()
        return answer if method == "HEAD" else answer + found

    def answer(
        self, method: str, path: str, sent: Mapping[str, str], body: bytes
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of the answer to a request."""
        found, etag, until, more = self.stored.get(path, (b"", "", -1.0, ""))
        is_stored = until > self.now
        matches = sent.get("If-Match", etag) in {etag, is_stored and "*"}
        if method == "PUT":
            if not matches or ("If-None-Match" in sent and is_stored):
                return 412, {}, b""
            self._count += 1
            etag = f'"{self._count}"'
            lifetime = sent.get("Cache-Control", "max-age=1000")
            age, _, more = lifetime.partition("=")[2].partition(", ")
            self.stored[path] = body, etag, self.now + int(age), more
            return 200, {"ETag": etag}, b""
        if not is_stored:
            return 404, {}, b""
        if method == "DELETE":
            if matches:
                del self.stored[path]
            return 200 if matches else 412, {}, b""
        left = f"max-age={int(until - self.now)}, {more}"
        return 200, {"ETag": etag, "Cache-Control": left}, found
