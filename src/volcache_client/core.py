"""
What each operation does, for both clients.

An operation is a generator of steps; see `messages.py`. This module knows HTTP and the
service, but neither a library nor threads nor tasks.
"""

from __future__ import annotations

import logging
import secrets
import time
from hashlib import sha256
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Final,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
)
from urllib.parse import quote_from_bytes

from volcache_client.discovery import Nodes
from volcache_client.errors import (
    AccessDeniedError,
    CacheError,
    InvalidArgumentError,
    NodeConnectionError,
    NodeDownError,
    NodeError,
    PoolTimeoutError,
    error_of,
)
from volcache_client.headers import (
    checked_etag,
    checked_type,
    etag_of,
    has_end,
    max_age,
    size_of,
    stat_of,
)
from volcache_client.keys import encode_key, encode_prefix, path_of
from volcache_client.messages import (
    Answer,
    Call,
    Item,
    Open,
    Opened,
    Request,
    Send,
    Sleep,
    Stat,
)
from volcache_client.metrics import Counters
from volcache_client.nodes import HealthOptions, Node, NodeEvent
from volcache_client.serializers import OCTETS
from volcache_client.uploads import SourceFailed, Upload

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from volcache_client.messages import Operation
    from volcache_client.metrics import Metrics, Outcome
    from volcache_client.options import Options
    from volcache_client.serializers import Codec

    Source = (
        str | os.PathLike[str] | Sequence[str | tuple[str, int]] | Callable[[], Any]
    )

V = TypeVar("V")
T = TypeVar("T")
U = TypeVar("U")

_OK: Final = 200
_FORBIDDEN: Final = 403
_NOT_FOUND: Final = 404
_PRECONDITION_FAILED: Final = 412
# Any other answer to /-/ready is that of a server that works; nginx forbids the path.
_NOT_READY: Final = frozenset({500, 502, 503, 504})
LEASE_PREFIX: Final = "~lease/"
# How long those that wait for a value wait between two looks, seconds.
_LOOK_FIRST: Final = 0.01
_LOOK_LONGEST: Final = 0.25

# How many times the length of a lease a caller waits for others; then it makes the value
# itself: one lease for a process that died, one for the process that took over.
_LEASES_WAITED: Final = 2
_NO_PURGE: Final = (
    b"purge is not allowed here: nginx does not pass it on, and an instance needs its"
    b" admin_token; give the client the addresses of the instances and this token"
)

# Which errors of an operation are not raised; its result is then that of a miss.
Excuse = Literal["as the options say", "outages", "nothing"]

_log: Final = logging.getLogger("volcache_client")


class Streamed(NamedTuple):
    """
    A value that is being read.

    Attributes:
        node: For `Core.stream_failed`.
        stat: Of the value.
        body: See `Opened`.
    """

    node: Node
    stat: Stat
    body: Any


class Outage:
    """The result of an operation whose error is not raised."""


OUTAGE: Final = Outage()


class Core(Generic[V]):
    """Operations of a client; used by all threads."""

    def __init__(
        self,
        source: Source,
        codec: Codec[V],
        options: Options,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Read the list of nodes; nothing is sent.

        Args:
            source: See `Nodes`.
            codec: Of values.
            options: Checked ones.
            clock: Seconds, monotonic.

        Raises:
            InvalidArgumentError: An address is wrong.
            DiscoveryError: The list is in a file that cannot be read.
        """
        self.options: Final = options
        self.codec: Final = codec
        self.counters: Final = Counters()
        self._clock: Final = clock
        self._prefix: Final = options.prefix.encode()
        self._headers: Final[dict[str, str]] = {"Accept-Encoding": "identity"}
        if options.token:
            self._headers["Authorization"] = f"Bearer {options.token}"
        self.nodes: Final = Nodes(
            source,
            health=HealthOptions(options.failures, *options.backoff),
            refresh_seconds=options.refresh_seconds,
            clock=clock,
            on_event=self._tell,
        )

    # --- Reading ------------------------------------------------------------------

    def get(self, key: str | bytes) -> Operation[V | None]:
        """Return the value of a key; None for a miss."""
        return self._read("get", self._value(key))

    def get_item(self, key: str | bytes) -> Operation[Item[V] | None]:
        """Return the value of a key and its head; None for a miss."""
        return self._read("get", self._item(key))

    def stat(self, key: str | bytes) -> Operation[Stat | None]:
        """Return what is known of a value; None for a miss."""
        return self._read("stat", self._stat(key))

    def _value(self, key: str | bytes) -> Operation[V | None]:
        answer = yield from self._look(key, "GET")
        return None if answer is None else self.codec.loads(answer.body)

    def _item(self, key: str | bytes) -> Operation[Item[V] | None]:
        answer = yield from self._look(key, "GET")
        if answer is None:
            return None
        return Item(self.codec.loads(answer.body), stat_of(answer, len(answer.body)))

    def _stat(self, key: str | bytes) -> Operation[Stat | None]:
        answer = yield from self._look(key, "HEAD")
        if answer is None:
            return None
        return stat_of(
            answer, size_of(self.nodes.of(self.stored_key(key)).name, answer)
        )

    def stream(self, key: str | bytes) -> Operation[Streamed | None]:
        """
        Ask for a value without reading it; None for a miss.

        Who takes the steps reads and closes `body`, and calls `stream_failed` if that
        fails.
        """
        return self._read("stream", self._stream(key))

    def _stream(self, key: str | bytes) -> Operation[Streamed | None]:
        stored = self.stored_key(key)
        yield from self.nodes.refresh()
        node = self.nodes.of(stored)
        yield from self.admit(node)
        request = Request("GET", path_of(stored), self._headers)
        answer = yield from self._attempt(Open(node, request, self.options.timeout))
        if isinstance(answer, Opened):
            return Streamed(
                node, stat_of(answer, size_of(node.name, answer)), answer.body
            )
        if answer.status == _NOT_FOUND:
            return None
        raise error_of(node.name, answer.status, answer.body)

    def stream_failed(self, node: Node, error: NodeError) -> None:
        """Count an error that ended a stream; the caller raises it, whatever `on_error`."""
        self.counters.error(error)
        self.node_failed(node, _reason_of(error))

    def _look(self, key: str | bytes, method: str) -> Operation[Answer | None]:
        stored = self.stored_key(key)
        yield from self.nodes.refresh()
        node = self.nodes.of(stored)
        request = Request(method, path_of(stored), self._headers)
        answer = yield from self._exchange(node, request)
        if answer.status == _OK:
            if method == "HEAD":
                size_of(node.name, answer)
            return answer
        if answer.status == _NOT_FOUND:
            return None
        raise error_of(node.name, answer.status, answer.body)

    # --- Writing ------------------------------------------------------------------

    def put(
        self,
        key: str | bytes,
        value: V,
        ttl: float | None = None,
        content_type: str | None = None,
    ) -> Operation[str | None]:
        """Store a value; return its ETag, None if it was dropped."""
        return self._write("put", self._put(key, value, ttl, content_type, {}))

    def add(
        self,
        key: str | bytes,
        value: V,
        ttl: float | None = None,
        content_type: str | None = None,
    ) -> Operation[str | None]:
        """Store a value if there is none; return its ETag, None if there is one."""
        condition = {"If-None-Match": "*"}
        return self._write("add", self._put(key, value, ttl, content_type, condition))

    def replace(
        self,
        key: str | bytes,
        value: V,
        etag: str,
        ttl: float | None = None,
        content_type: str | None = None,
    ) -> Operation[str | None]:
        """Store a value if that with the ETag is stored; return its ETag, else None."""
        condition = {"If-Match": checked_etag(etag)}
        return self._write(
            "replace", self._put(key, value, ttl, content_type, condition)
        )

    def delete(
        self, key: str | bytes, etag: str | None = None
    ) -> Operation[bool | None]:
        """Remove a value; return whether it, and that with the ETag, was stored."""
        return self._write("delete", self._delete(key, etag))

    def _put(
        self,
        key: str | bytes,
        value: V,
        ttl: float | None,
        content_type: str | None,
        condition: Mapping[str, str],
    ) -> Operation[str | None]:
        body = self.codec.dumps(value)
        etag = yield from self._store(
            self.stored_key(key), body, self.put_headers(ttl, content_type, condition)
        )
        return etag

    def put_file(
        self,
        key: str | bytes,
        source: str | os.PathLike[str] | BinaryIO,
        ttl: float | None = None,
        content_type: str | None = None,
    ) -> Operation[str | None]:
        """
        Store the bytes of a file, without a serializer; return its ETag, None if dropped.

        Raises:
            InvalidArgumentError: It is not a binary file, or became shorter meanwhile.
            OSError: It cannot be read.
        """
        return self._write("put_file", self._put_file(key, source, ttl, content_type))

    def _put_file(
        self,
        key: str | bytes,
        source: str | os.PathLike[str] | BinaryIO,
        ttl: float | None,
        content_type: str | None,
    ) -> Operation[str | None]:
        stored = self.stored_key(key)
        headers = self.put_headers(ttl, content_type or OCTETS, {})
        with Upload(source) as upload:
            try:
                etag = yield from self._store(stored, upload, headers)
            except SourceFailed as failed:
                raise failed.error from None
        return etag

    def _store(
        self, stored: bytes, body: bytes | Upload, headers: Mapping[str, str]
    ) -> Operation[str | None]:
        yield from self.nodes.refresh()
        node = self.nodes.of(stored)
        is_repeatable = "If-None-Match" not in headers and "If-Match" not in headers
        if isinstance(body, Upload):
            is_repeatable = is_repeatable and body.is_repeatable
        request = Request("PUT", path_of(stored), headers, body, is_repeatable)
        answer = yield from self._exchange(node, request)
        return etag_of(node.name, answer)

    def _delete(self, key: str | bytes, etag: str | None) -> Operation[bool]:
        condition = {} if etag is None else {"If-Match": checked_etag(etag)}
        done = yield from self._remove(self.stored_key(key), condition)
        return done

    def _remove(self, stored: bytes, condition: Mapping[str, str]) -> Operation[bool]:
        yield from self.nodes.refresh()
        node = self.nodes.of(stored)
        headers = {**self._headers, **condition}
        request = Request("DELETE", path_of(stored), headers, None, not condition)
        answer = yield from self._exchange(node, request)
        if answer.status == _OK:
            return True
        if answer.status in {_NOT_FOUND, _PRECONDITION_FAILED}:
            return False
        raise error_of(node.name, answer.status, answer.body)

    def purge(self, prefix: str | bytes) -> Operation[None]:
        """
        Make everything stored so far under a prefix a miss, on all nodes.

        Each node is asked, whatever another one answers; it may be repeated.

        Raises:
            InvalidArgumentError: The prefix is empty, or there is no `admin_token`.
            CacheError: The first error of a node, with any `on_error`: what is not purged
                would be read.
        """
        return self.counted(
            "purge", self._purge(prefix), is_write=True, excuse="nothing"
        )

    def _purge(self, prefix: str | bytes) -> Operation[None]:
        stored = encode_prefix(prefix, self._prefix)
        if not self.options.admin_token:
            raise InvalidArgumentError("purge needs the option admin_token")
        yield from self.nodes.refresh()
        failed: CacheError | None = None
        for node in self.nodes.all():
            try:
                yield from self._purge_node(node, stored)
            except CacheError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    def _purge_node(self, node: Node, stored: bytes) -> Operation[None]:
        token = {"Authorization": f"Bearer {self.options.admin_token}"}
        path = f"/-/purge?prefix={quote_from_bytes(stored, safe='')}"
        request = Request("POST", path, {**self._headers, **token}, b"")
        answer = yield from self._exchange(node, request)
        if answer.status == _FORBIDDEN:
            raise AccessDeniedError(node.name, answer.status, _NO_PURGE)
        if answer.status != _OK:
            raise error_of(node.name, answer.status, answer.body)

    # --- Making what is missing ---------------------------------------------------

    def get_or_set(
        self, key: str | bytes, make: Callable[[], Any], ttl: float | None = None
    ) -> Operation[V]:
        """
        Return the value of a key; make and store it if there is none.

        Of all processes one makes it, while it holds the lease: a key that was stored with
        `If-None-Match: *` and expires by itself. The others look until the value is there,
        and take the lease when it was given back or has expired. Who has waited for two
        leases makes the value without one. A client does this once at a time for a key.

        A cache that is down neither prevents nor delays that the value is made, with
        `on_error="miss"`. A value that was made is returned also if it cannot be stored,
        with any `on_error`. What `make` raises is raised.
        """
        found = yield from self.look(key, ttl)
        if isinstance(found, Item):
            value: V = found.value
            return value
        value = yield from self.make(key, make, ttl, found)
        return value

    def look(
        self, key: str | bytes, ttl: float | None
    ) -> Operation[Item[V] | Outage | None]:
        """
        Take the first part of `get_or_set`: return what is stored, a None too.

        Raises:
            InvalidArgumentError: The time is wrong, which `make` should not find too late.
        """
        self.put_headers(ttl, None, {})
        return self._found(key)

    def make(
        self,
        key: str | bytes,
        make: Callable[[], Any],
        ttl: float | None,
        found: Outage | None,
    ) -> Operation[V]:
        """Take the second part of `get_or_set`, after `look` has found nothing."""
        lease = None
        if found is None:
            had = yield from self._lease(key)
            if isinstance(had, Item):
                value: V = had.value
                return value
            lease = had
        try:
            made: V = yield Call(make)
            self.counters.made()
            yield from self.counted(
                "put",
                self._put(key, made, ttl, None, {}),
                is_write=True,
                excuse="outages",
            )
        except GeneratorExit:  # Nothing can be sent; the lease expires.
            raise
        except BaseException:
            yield from self._release(key, lease)
            raise
        yield from self._release(key, lease)
        return made

    def copied(self, value: V) -> V:
        """Return a value for another caller, which may change it."""
        if isinstance(value, bytes):
            return value
        return self.codec.loads(self.codec.dumps(value))

    def _found(self, key: str | bytes) -> Operation[Item[V] | Outage | None]:
        """Return what is stored; a stored None is an item too."""
        return self.counted("get", self._item(key), is_write=False, instead=OUTAGE)

    def _lease(self, key: str | bytes) -> Operation[str | Item[V] | None]:
        """Return the ETag of the lease, or what is stored; None: make it without one."""
        pause = _LOOK_FIRST
        last_look = self._clock() + _LEASES_WAITED * self.options.lease_seconds
        has_waited = False
        while True:
            lease = yield from self._acquire_lease(key)
            if isinstance(lease, Outage):
                return None
            found = yield from self._look_again(key, lease)
            if isinstance(found, Item):
                return found
            if lease is not None:
                return lease
            if isinstance(found, Outage) or self._clock() >= last_look:
                return None
            if not has_waited:
                has_waited = True
                self.counters.waited()
            yield Sleep(pause)
            pause = min(2 * pause, _LOOK_LONGEST)

    def _look_again(
        self, key: str | bytes, lease: str | None
    ) -> Operation[Item[V] | Outage | None]:
        """
        Return what is stored; the lease is given back if it is there, or this fails.

        The one before may have stored it between our look and our lease.
        """
        found: Item[V] | Outage | None
        try:
            found = yield from self._found(key)
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._release(key, lease)
            raise
        if isinstance(found, Item):
            yield from self._release(key, lease)
        return found

    def _acquire_lease(self, key: str | bytes) -> Operation[str | Outage | None]:
        """Return the ETag of the lease; None if another has it."""
        condition = {"If-None-Match": "*"}
        headers = self.put_headers(self.options.lease_seconds, None, condition)
        body = secrets.token_bytes(16)
        try:
            etag = yield from self._store(self._lease_key(key), body, headers)
        except CacheError as error:
            # No write of the caller: a node that is down is a miss, as for its reads.
            self._excuse(error, is_write=False)
            return OUTAGE
        except GeneratorExit:
            raise
        except BaseException:  # Cancelled: it may have been stored.
            yield from self._remove_lease(key, body)
            raise
        return etag

    def _remove_lease(self, key: str | bytes, body: bytes) -> Operation[None]:
        """Give back the lease with this body, if it is there; its ETag is not known."""
        stored = self._lease_key(key)
        try:
            node = self.nodes.of(stored)
            request = Request("GET", path_of(stored), self._headers)
            answer = yield from self._exchange(node, request)
            if answer.status == _OK and answer.body == body:
                condition = {"If-Match": answer.headers.get("ETag", "")}
                yield from self._remove(stored, condition)
        except CacheError as error:
            self.counters.error(error)

    def _release(self, key: str | bytes, lease: str | None) -> Operation[None]:
        """Give the lease back; if that fails, it expires by itself."""
        if not lease:
            return
        try:
            yield from self._remove(self._lease_key(key), {"If-Match": lease})
        except CacheError as error:
            self.counters.error(error)

    def _lease_key(self, key: str | bytes) -> bytes:
        """A digest, since the key may be as long as a key can be."""
        digest = sha256(self.stored_key(key)).hexdigest()
        return self._prefix + f"{LEASE_PREFIX}{digest}".encode()

    # --- One exchange -------------------------------------------------------------

    def _exchange(self, node: Node, request: Request) -> Operation[Answer]:
        """
        Send a request to a node that is up.

        Raises:
            NodeDownError: It is down; nothing was sent.
            NodeError: It does not answer; that is counted.
        """
        yield from self.admit(node)
        answer: Answer = yield from self._attempt(
            Send(node, request, self.options.timeout)
        )
        return answer

    def admit(self, node: Node) -> Operation[None]:
        """
        Return if a node is up; probe it if its back-off is over.

        Raises:
            NodeDownError: It is down.
        """
        permission = node.ask()
        if permission == "yes":
            return
        if permission == "probe":
            request = Request("GET", "/-/ready", self._headers)
            try:
                answer = yield from self._attempt(
                    Send(node, request, self.options.probe_timeout)
                )
            except NodeError:
                pass
            else:
                if answer.status not in _NOT_READY:
                    return
            finally:
                node.probe_ended()
        raise NodeDownError(node.name, f"down: {node.reason}")

    def _attempt(self, step: Send | Open) -> Operation[Any]:
        """Send a request and count what becomes of it, for the health of the node."""
        node = step.node
        is_probe = step.request.path == "/-/ready"
        is_failure = False
        self.counters.request_began(node.name)
        try:
            answer: Answer | Opened = yield step
            if step.request.method == "GET" and not has_end(answer):
                raise NodeConnectionError(node.name, "an answer of unknown length")
            is_failure = is_probe and answer.status in _NOT_READY
            if is_failure:
                self.node_failed(node, f"not ready: {answer.status}")
            else:
                self.node_answered(node)
        except PoolTimeoutError:  # The node was not asked.
            raise
        except NodeError as error:
            is_failure = True
            self.node_failed(node, _reason_of(error))
            raise
        finally:
            self.counters.request_ended(node.name, is_failure=is_failure)
        return answer

    def node_answered(self, node: Node) -> None:
        """Note that a node answered."""
        node.succeeded()

    def node_failed(self, node: Node, reason: str) -> None:
        """Note that a node did not answer."""
        node.failed(reason)

    def _tell(self, event: NodeEvent) -> None:
        _log.warning("node %s: %s %s", event.kind, event.node, event.reason)
        if self.options.on_event is None:
            return
        try:
            self.options.on_event(event)
        except Exception:  # noqa: BLE001 - Code of the application.
            _log.exception("on_event failed")

    # --- Errors and counters ------------------------------------------------------

    def _read(self, name: str, steps: Operation[T | None]) -> Operation[T | None]:
        """Count a read; return None for an error that is not raised."""
        return self.counted(name, steps, is_write=False)

    def _write(self, name: str, steps: Operation[T | None]) -> Operation[T | None]:
        """Count a write; return None for an error that is not raised."""
        return self.counted(name, steps, is_write=True)

    def counted(
        self,
        name: str,
        steps: Operation[T | None],
        *,
        is_write: bool,
        excuse: Excuse = "as the options say",
        instead: U | None = None,
    ) -> Operation[T | U | None]:
        """
        Take the steps and count how they end.

        Returns:
            Their result; `instead` for an outage that is not raised.

        Raises:
            CacheError: Any other, counted.
        """
        started = self._clock()
        outcome: Outcome = "error"
        try:
            result = yield from steps
            outcome = _outcome_of(name, result, is_write=is_write)
        except CacheError as error:
            self._excuse(error, excuse, is_write=is_write)
            outcome = "dropped" if is_write else "miss"
            return instead
        else:
            return result
        finally:
            self.counters.operation_ended(name, outcome, self._clock() - started)

    def _excuse(
        self,
        error: CacheError,
        excuse: Excuse = "as the options say",
        *,
        is_write: bool,
    ) -> None:
        """Count an error; raise it unless it is excused."""
        self.counters.error(error)
        if excuse != "as the options say":
            is_excused = error.is_outage and excuse == "outages"
        elif isinstance(error, NodeDownError):
            is_excused = not is_write or self.options.drops_writes
        else:
            is_excused = error.is_outage and self.options.on_error == "miss"
        if not is_excused:
            raise error

    # --- Processes ----------------------------------------------------------------

    def after_fork(self) -> None:
        """Replace all locks, in a child process: other threads may have held them."""
        self.counters.after_fork()
        self.nodes.after_fork()

    # --- Parts of requests --------------------------------------------------------

    def stored_key(self, key: str | bytes) -> bytes:
        """
        Return the key with the prefix of the options.

        Raises:
            InvalidKeyError: The service has no such key.
        """
        return encode_key(key, self._prefix)

    def put_headers(
        self,
        ttl: float | None,
        content_type: str | None,
        condition: Mapping[str, str],
    ) -> dict[str, str]:
        """
        Return the headers of a PUT.

        Raises:
            InvalidArgumentError: The time is not above 0, or the type is not a header.
        """
        headers = {**self._headers, **condition}
        headers["Content-Type"] = checked_type(content_type or self.codec.content_type)
        ttl = self.options.default_ttl if ttl is None else ttl
        if ttl is not None:
            headers["Cache-Control"] = f"max-age={max_age(ttl)}"
        return headers

    def metrics(self, connections: Mapping[Node, int]) -> Metrics:
        """Return the numbers of the client; connections are those of each node."""
        return self.counters.read(
            {
                node.name: (node.is_up, connections.get(node, 0))
                for node in self.nodes.all()
            }
        )


def _outcome_of(name: str, result: object, *, is_write: bool) -> Outcome:
    if not is_write:
        return "miss" if result is None else "hit"
    is_refused = name != "purge" and (result is None or result is False)
    return "refused" if is_refused else "done"


def _reason_of(error: NodeError) -> str:
    return str(error).removeprefix(f"{error.node}: ")
