"""
Upload many files over several connections to a server that may be killed meanwhile.

Records which PUTs were acknowledged, in the order of the responses. Uses the server by
HTTP only; the caller kills and restarts it.

Invariants:
    - A file is in `acks` exactly if its PUT was answered with 200.
    - A PUT without a response is repeated until the deadline.
"""

from __future__ import annotations

import hashlib
import http.client
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import quote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

RETRY_SECONDS: Final = 0.02
ANSWER_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file on disk and the key it is stored under, not percent-encoded."""

    key: str
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """A PUT that was answered with 200; `record_bytes` is from its X-Position."""

    file: SourceFile
    value_bytes: int
    record_bytes: int
    digest: bytes


class RefusedError(AssertionError):
    """A PUT was answered with another status than 200."""


class Client:
    """One keep-alive connection, reopened after a failure."""

    def __init__(self, url: str) -> None:
        """Connect to nothing yet."""
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(
            parts.hostname or "", parts.port, timeout=ANSWER_SECONDS
        )

    def request(
        self, method: str, key: str, body: bytes | None = None
    ) -> tuple[int, str, bytes]:
        """
        Send one request and read its answer.

        Returns:
            Status, X-Position (empty if there is none) and body.

        Raises:
            OSError: No response; the next call connects again.
            http.client.HTTPException: Likewise.
        """
        try:
            self._connection.request(method, "/" + quote(key), body)
            answer = self._connection.getresponse()
            value = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        return answer.status, answer.headers.get("X-Position", ""), value

    def __enter__(self) -> Self:
        """Begin; the connection is opened by the first request."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self._connection.close()


def value_digest(value: bytes) -> bytes:
    """Return the SHA-256 of a value."""
    return hashlib.sha256(value).digest()


class Upload:
    """One pass over a list of files; `acks` fills while it runs."""

    def __init__(self, url: str, files: Sequence[SourceFile]) -> None:
        """Send nothing yet; files are sent in their order."""
        self._url = url
        self._files = iter(files)
        self._lock = threading.Lock()
        self._reached = threading.Event()
        self._reached_at = 0
        self._stopped = False
        self.acks: list[Ack] = []
        self.interrupted = 0
        self.interrupted_bytes = 0
        self.unreadable = 0
        self.seconds = 0.0

    def run(
        self, *, connections: int, event_at: int, event: Callable[[], None]
    ) -> None:
        """
        Store every file.

        Args:
            connections: How many send at the same time.
            event_at: After this many acknowledged files, `event` is called once.
            event: What happens to the server, such as kill and restart; failed PUTs are
                repeated meanwhile.

        Raises:
            RefusedError: A PUT was not answered with 200.
            OSError: A PUT got no response within the deadline.
        """
        self._reached_at = event_at
        begin = time.monotonic()
        with ThreadPoolExecutor(connections) as pool:
            workers = [pool.submit(self._work) for _ in range(connections)]
            for worker in workers:
                worker.add_done_callback(lambda _: self._reached.set())
            self._reached.wait()
            try:
                event()
            except BaseException:
                self._stopped = True
                raise
        self.seconds = time.monotonic() - begin
        for worker in workers:
            worker.result()

    def _work(self) -> None:
        with Client(self._url) as client:
            while not self._stopped:
                with self._lock:
                    file = next(self._files, None)
                if file is None:
                    return
                try:
                    value = file.path.read_bytes()
                except OSError:
                    self.unreadable += 1
                    continue
                try:
                    self._store(client, file, value)
                except BaseException:
                    self._stopped = True
                    raise

    def _store(self, client: Client, file: SourceFile, value: bytes) -> None:
        status, position, body = self._put_until_answered(client, file, value)
        if status != HTTPStatus.OK:
            message = f"PUT {file.key!r} was answered {status}: {body!r}"
            raise RefusedError(message)
        self._acknowledge(
            Ack(
                file=file,
                value_bytes=len(value),
                record_bytes=int(position.rpartition(",")[2]),
                digest=value_digest(value),
            )
        )

    def _put_until_answered(
        self, client: Client, file: SourceFile, value: bytes
    ) -> tuple[int, str, bytes]:
        end = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                return client.request("PUT", file.key, value)
            except (OSError, http.client.HTTPException):
                if self._stopped or time.monotonic() > end:
                    raise
                self._count_interrupted(len(value))
                time.sleep(RETRY_SECONDS)

    def _count_interrupted(self, value_bytes: int) -> None:
        with self._lock:
            self.interrupted += 1
            self.interrupted_bytes += value_bytes

    def _acknowledge(self, ack: Ack) -> None:
        with self._lock:
            self.acks.append(ack)
            if len(self.acks) == self._reached_at:
                self._reached.set()
