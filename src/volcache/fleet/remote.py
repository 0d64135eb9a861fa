"""
Requests to running instances: to the paths under `/-/`, and for values.

The only HTTP client of the package. What answers may be down, hang, or not be volcache:
each is an `InstanceError` of one line, after a limited time.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from io import BufferedReader, RawIOBase
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

from volcache.errors import ConfigError, InstanceError
from volcache.kinds import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from socket import socket

    from _typeshed import WriteableBuffer

TIMEOUT_SECONDS: Final = 5.0
# An action is answered when it is on the disk of the instance.
ACTION_TIMEOUT_SECONDS: Final = 60.0
# A list of 65,535 volumes has 11 MB; without it, there are 6 KB.
ANSWER_BYTES_MAX: Final = 16 << 20
STATS_BYTES_MAX: Final = 128 << 10
# Of all bodies that are being read at the same time.
BODIES_BYTES_MAX: Final = 64 << 20
AT_ONCE_MAX: Final = 64  # Instances that are asked at the same time.
_LINE_CHARACTERS_MAX: Final = 400
_PIECE_BYTES: Final = 1 << 16
_KINDS: Final = {"http": HTTPConnection, "https": HTTPSConnection}

Stats = dict[str, Any]
T = TypeVar("T")


class InstanceAnswer(NamedTuple):
    """What an instance answers to a request."""

    status: int
    body: bytes

    @property
    def line(self) -> str:
        """The first line of the body, without control characters, cut off if long."""
        text = self.body[: 4 * _LINE_CHARACTERS_MAX].decode(errors="replace")
        line = text.strip().partition("\n")[0][:_LINE_CHARACTERS_MAX]
        return "".join(c if c.isprintable() else " " for c in line)


def url_of(target: str) -> str:
    """
    Return the address of an instance as a URL without a slash at its end.

    Args:
        target: `HOST:PORT`, a URL, or the URL of a path under `/-/` of it, as copied from
            a browser.

    Raises:
        ConfigError: It is none of these.
    """
    try:
        where = urlsplit(target if "://" in target else f"http://{target}")
        host, port = where.hostname, where.port
    except ValueError:  # An unfinished IPv6 address, or an invalid port.
        where, host, port = urlsplit(""), None, None
    is_complete = "://" in target or port is not None
    if where.scheme not in _KINDS or not host or where.username or not is_complete:
        raise ConfigError(
            f"{target}: not the address of an instance; allowed are HOST:PORT, such as"
            " 127.0.0.1:1234, and a URL, such as http://127.0.0.1:1234"
        )
    front, _, _ = f"{where.path}/".partition("/-/")
    return f"{where.scheme}://{where.netloc}{front.rstrip('/')}"


def ask(  # noqa: PLR0913 - By keyword.
    url: str,
    path: str,
    *,
    method: str = "GET",
    token: str = "",
    headers: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT_SECONDS,
    size_max: int = ANSWER_BYTES_MAX,
) -> InstanceAnswer:
    """
    Return the answer of an instance to one request, whatever its status.

    Args:
        url: Of the instance, from `url_of`.
        path: With its query, such as `/-/stats`.
        method: A POST is sent with an empty body.
        token: The `admin_token`; empty = without one.
        headers: Further headers.
        timeout: For the connection and the whole answer together, seconds.
        size_max: Of the body, bytes.

    Raises:
        InstanceError: There is no answer in time, or not one of HTTP, or it is too long.
    """
    body = b"" if method == "POST" else None
    with Exchange(
        url,
        path,
        method=method,
        token=token,
        headers=headers,
        body=body,
        timeout=timeout,
        is_whole=True,
    ) as exchange:
        return InstanceAnswer(exchange.status, exchange.read(size_max))


class _Sum:
    """A number that threads change."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._value = 0

    def add(self, number: int) -> int:
        with self._lock:
            self._value += number
            return self._value


_bodies: Final = _Sum()


class Exchange:
    """
    One request and its answer, whose body is read in pieces; a context manager.

    Attributes:
        status: Of the answer.
    """

    def __init__(  # noqa: PLR0913 - One argument for each part of a request.
        self,
        url: str,
        path: str,
        *,
        method: str = "GET",
        token: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes | Iterable[bytes] | None = None,
        timeout: float = TIMEOUT_SECONDS,
        is_whole: bool = False,
    ) -> None:
        """
        Send the request and wait for the head of the answer.

        Args:
            url: Of the instance, from `url_of`.
            path: Percent-encoded, with its query.
            method: Of HTTP.
            token: The token that the instance needs; empty = without one.
            headers: Further headers.
            body: Bytes, or pieces of it: without a Content-Length they are sent chunked.
                What the pieces raise is raised, unless it is an `OSError`.
            timeout: Of the connection and of each wait, seconds.
            is_whole: The timeout is for all of this together.

        Raises:
            InstanceError: There is no answer in time, or not one of HTTP.
        """
        self._url, self._timeout = url, timeout
        deadline = time.monotonic() + timeout if is_whole else None
        where = urlsplit(url)
        kind = _KINDS[where.scheme]
        self._connection = kind(where.hostname or "", where.port, timeout=timeout)
        sent: dict[str, str | bytes] = dict(headers or {})
        if token:
            sent["Authorization"] = f"Bearer {token}".encode()
        is_chunked = not isinstance(body, bytes) and "Content-Length" not in sent
        try:
            with self._translated():
                # Refused before all of it was sent: the answer may be there.
                with suppress(BrokenPipeError, ConnectionResetError):
                    if is_chunked and body is not None:
                        sent["Transfer-Encoding"] = "chunked"
                    self._connection.request(
                        method,
                        f"{where.path}{path}",
                        body=body,
                        headers=sent,
                        encode_chunked=is_chunked,
                    )
                timed = _Timed(self._connection.sock, timeout, deadline)
                self._response = _response(timed, self._connection.sock, method)
        except BaseException:
            self.close()
            raise
        self.status = self._response.status

    def pieces(self) -> Iterator[bytes]:
        """
        Yield the body as it arrives.

        Raises:
            InstanceError: It is not complete, or nothing arrives in time.
        """
        while True:
            with self._translated():
                piece = self._response.read1(_PIECE_BYTES)
                if not piece and self._response.length:
                    raise IncompleteRead(b"")
            if not piece:
                return
            yield piece

    def read(self, size_max: int = ANSWER_BYTES_MAX) -> bytes:
        """
        Return a body that may never end.

        Raises:
            InstanceError: As `pieces`, or it is too long, or all bodies together are.
        """
        found = bytearray()
        try:
            for piece in self.pieces():
                found += piece
                if _bodies.add(len(piece)) > BODIES_BYTES_MAX:
                    what, limit = "all answers together are", BODIES_BYTES_MAX
                elif len(found) > size_max:
                    what, limit = "the answer is", size_max
                else:
                    continue
                reason = f"{what} longer than {format_size(limit)}"
                raise InstanceError(self._url, reason)
            return bytes(found)
        finally:
            _bodies.add(-len(found))

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the connection."""
        self.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn what the connection raises into an error of the package."""
        try:
            yield
        except TimeoutError as error:
            reason = f"no answer within {self._timeout:g} s"
            raise InstanceError(self._url, reason) from error
        except OSError as error:
            raise InstanceError(self._url, error.strerror or str(error)) from error
        except IncompleteRead as error:
            reason = "the connection was closed in the middle of the answer"
            raise InstanceError(self._url, reason) from error
        except (HTTPException, ValueError) as error:
            reason = "the response is not from volcache"
            raise InstanceError(self._url, reason) from error


def _response(timed: _Timed, sock: socket, method: str) -> HTTPResponse:
    """Read the head of an answer."""
    response = HTTPResponse(sock, method=method)
    response.fp.close()
    response.fp = BufferedReader(timed)
    response.begin()
    return response


class _Timed(RawIOBase):
    """
    Reads from a socket, up to a deadline if there is one.

    A time-out of the socket would begin again with each byte.
    """

    def __init__(self, sock: socket, timeout: float, deadline: float | None) -> None:
        self._sock = sock
        self._timeout = timeout
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        left = self._timeout
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(left)
        return self._sock.recv_into(buffer)


def fetch_stats(url: str, *, timeout: float = TIMEOUT_SECONDS) -> Stats:
    """
    Return the JSON of `/-/stats` of an instance, decoded.

    Args and Raises: As `fetch_body`.
    """
    return decode_stats(url, fetch_body(url, volumes=True, timeout=timeout))


def fetch_body(
    url: str, *, volumes: bool = False, timeout: float = TIMEOUT_SECONDS
) -> bytes:
    """
    Return the body of `/-/stats` of an instance.

    Args:
        url: Of the instance, from `url_of`.
        volumes: With the list `store.volumes`. Without it the instance has less work: with
            1,000 volumes, a tenth.
        timeout: As for `ask`.

    Raises:
        InstanceError: There is no answer, or its status is not 200.
    """
    path = "/-/stats" if volumes else "/-/stats?volumes=0"
    size_max = ANSWER_BYTES_MAX if volumes else STATS_BYTES_MAX
    answer = ask(url, path, timeout=timeout, size_max=size_max)
    if answer.status != HTTPStatus.OK:
        reason = f"/-/stats is answered with {answer.status}"
        if answer.status == HTTPStatus.MISDIRECTED_REQUEST:
            reason += f": {answer.line}"
        raise InstanceError(url, reason)
    return answer.body


def decode_stats(url: str, body: bytes) -> Stats:
    """
    Return the JSON of `/-/stats`, decoded.

    Raises:
        InstanceError: It is not that of a volcache instance.
    """
    try:
        stats = json.loads(body)
        _ = stats["store"]["keys"], stats["requests"]["total"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InstanceError(url, "the response is not from volcache") from error
    return dict(stats)


def act(
    url: str, path: str, token: str, *, timeout: float = ACTION_TIMEOUT_SECONDS
) -> str:
    """
    Let an instance do something; return the line that it answers.

    Args:
        url: Of the instance, from `url_of`.
        path: Of the action, with its query, such as `/-/flush`.
        token: The `admin_token` of the instance.
        timeout: As for `ask`.

    Raises:
        InstanceError: It does not answer, or refuses.
    """
    answer = ask(
        url,
        path,
        method="POST",
        token=token,
        timeout=timeout,
        size_max=STATS_BYTES_MAX,
    )
    if answer.status != HTTPStatus.OK:
        raise InstanceError(url, f"{answer.status} {answer.line}")
    return answer.line


def each(
    urls: Sequence[str], call: Callable[[str], T], *, at_once: int = AT_ONCE_MAX
) -> Iterator[tuple[str, T | InstanceError]]:
    """
    Call a function for each instance, several at a time.

    Args:
        urls: Of the instances.
        call: Returns something of the instance at a URL, or raises `InstanceError`.
        at_once: How many calls run at the same time.

    Yields:
        Each URL with what was returned or raised, in the order of `urls`.
    """
    todo: SimpleQueue[tuple[str, Future[T | InstanceError]]] = SimpleQueue()
    found: list[tuple[str, Future[T | InstanceError]]] = [(u, Future()) for u in urls]
    for item in found:
        todo.put(item)
    # Daemons: Ctrl-C ends the program at once, although a call may take a minute.
    for _ in range(min(at_once, len(urls))):
        Thread(
            target=_call_until_empty, args=(todo, call), name="fleet", daemon=True
        ).start()
    try:
        for url, future in found:
            yield url, future.result()
    finally:
        while not todo.empty():
            with suppress(Empty):
                todo.get_nowait()


def _call_until_empty(
    todo: SimpleQueue[tuple[str, Future[T | InstanceError]]], call: Callable[[str], T]
) -> None:
    """Do what is in a queue until it is empty."""
    while True:
        try:
            url, future = todo.get_nowait()
        except Empty:
            return
        try:
            future.set_result(call(url))
        except InstanceError as error:
            future.set_result(error)
        except BaseException as error:  # noqa: BLE001 - It is raised by `each`.
            future.set_exception(error)
