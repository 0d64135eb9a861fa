"""
What a client has in common for all its operations: nodes, exchanges, errors and counters.

This module knows HTTP and the service, but neither a library nor threads nor tasks.
"""

from __future__ import annotations

import logging
import time
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from volcache_client.discovery import Nodes
from volcache_client.errors import (
    CacheError,
    NodeDownError,
    NodeError,
    PoolTimeoutError,
    error_of,
)
from volcache_client.headers import checked_type, etag_of, max_age
from volcache_client.keys import encode_key, path_of
from volcache_client.messages import Answer, Request
from volcache_client.metrics import Counters
from volcache_client.nodes import HealthOptions, Node, NodeEvent
from volcache_client.uploads import Upload

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from volcache_client.exchanges import HttpTransport
    from volcache_client.keys import Key, Ttl
    from volcache_client.messages import Operation
    from volcache_client.metrics import NodeNumbers, Outcome, Stats
    from volcache_client.options import Options
    from volcache_client.serializers import Codec

    Send = Callable[[Node, Request, float], Operation[Any]]
    Source = (
        str | os.PathLike[str] | Sequence[str | tuple[str, int]] | Callable[[], Any]
    )

V = TypeVar("V")
T = TypeVar("T")

OK: Final = 200
NOT_FOUND: Final = 404
IF_ABSENT: Final = {"If-None-Match": "*"}
_PRECONDITION_FAILED: Final = 412
# Any other answer to /-/ready is that of a server that works; nginx forbids the path.
_NOT_READY: Final = frozenset({500, 502, 503, 504})

# Seconds before each look for a claim whose request was broken off: the node may store it
# after the first look, which is on another connection.
_LOOK_PAUSES: Final = (0.0, 0.05, 0.2)

# Which errors of an operation are not raised; its result is then that of a miss.
Excuse = Literal["as the options say", "outages", "nothing"]

_log: Final = logging.getLogger("volcache_client")


class Core(Generic[V]):
    """Exchanges of a client with its nodes; used by all threads."""

    def __init__(
        self,
        driver: HttpTransport[Any],
        source: Source,
        codec: Codec[V],
        options: Options,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,  # noqa: TID251 - The clock.
    ) -> None:
        """
        Read the list of nodes; nothing is sent.

        Args:
            driver: Performs the steps.
            source: See `Nodes`.
            codec: Of values.
            options: Checked ones.
            clock: Seconds, monotonic.
            now: Seconds since the epoch.

        Raises:
            InvalidArgumentError: An address is wrong.
            DiscoveryError: The list is in a file that cannot be read.
        """
        self.driver: Final = driver
        self.options: Final = options
        self.codec: Final = codec
        self.counters: Final = Counters()
        self.clock: Final = clock
        self.now: Final = now
        self.prefix: Final = options.prefix.encode()
        self.headers: Final[dict[str, str]] = {"Accept-Encoding": "identity"}
        if options.token:
            self.headers["Authorization"] = f"Bearer {options.token}"
        self.nodes: Final = Nodes(
            source,
            health=HealthOptions(options.failures, *options.backoff),
            refresh_seconds=options.refresh_seconds,
            clock=clock,
            on_event=self._tell,
        )

    # --- Values by their stored key -----------------------------------------------

    async def ask(
        self,
        stored: bytes,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        body: bytes | Upload | None = None,
        *,
        is_repeatable: bool = True,
        send: Send | None = None,
    ) -> tuple[Node, Any]:
        """Return the node of a key, by a list that is not too old, and its answer."""
        if self.nodes.is_read_again:
            await self.refresh()
        node = self.nodes.of(stored)
        sent = self.headers if headers is None else headers
        request = Request(method, path_of(stored), sent, body, is_repeatable)
        return node, await self.exchange(node, request, send)

    async def look(self, stored: bytes) -> Answer | None:
        """Return the answer with a value; None for a miss."""
        return found_in(*await self.ask(stored))

    async def store(
        self, stored: bytes, body: bytes | Upload, headers: Mapping[str, str]
    ) -> str | None:
        """Store a value; return its ETag, None if the condition does not hold."""
        is_repeatable = "If-None-Match" not in headers and "If-Match" not in headers
        if isinstance(body, Upload):
            is_repeatable = is_repeatable and body.is_repeatable
        asked = self.ask(stored, "PUT", headers, body, is_repeatable=is_repeatable)
        return etag_of(*await asked)

    async def remove(self, stored: bytes, etag: str | None) -> bool:
        """Remove a value; return whether it, and that with the ETag, was stored."""
        headers = self.headers if etag is None else {**self.headers, "If-Match": etag}
        asked = self.ask(stored, "DELETE", headers, is_repeatable=etag is None)
        return was_removed(*await asked)

    # --- What has one owner --------------------------------------------------------

    async def claim(self, stored: bytes, ttl: Ttl) -> str | None:
        """Store a value of one owner; return its ETag, None if it has another owner."""
        headers = self.put_headers(ttl, None, IF_ABSENT)
        body = token_bytes(16)
        try:
            return await self.store(stored, body, headers)
        except (CacheError, GeneratorExit):
            raise
        except BaseException as error:  # Cancelled: it may have been stored.
            await self.driver.finish(self._disclaim(stored, body), error)
            raise

    async def _disclaim(self, stored: bytes, body: bytes) -> None:
        """Remove the value with this body, if it is there; its ETag is not known."""
        try:
            for pause in _LOOK_PAUSES:
                await self.driver.sleep(pause)
                answer = await self.look(stored)
                if answer is not None:
                    if answer.body == body:
                        await self.release(stored, answer.headers.get("ETag"))
                    return
        except CacheError as error:
            self.counters.error(error)

    async def or_undo(
        self, steps: Operation[T], undo: Callable[[], Operation[None]]
    ) -> T:
        """Return the result of the steps; if they fail, take others before it is raised."""
        try:
            return await steps
        except GeneratorExit:  # Nothing can be sent; what was claimed expires.
            raise
        except BaseException as error:
            await self.driver.finish(undo(), error)
            raise

    async def release(self, stored: bytes, etag: str | None) -> None:
        """Give a lock back, if it is held; if that fails, it expires by itself."""
        if not etag:
            return
        try:
            await self.remove(stored, etag)
        except CacheError as error:
            self.counters.error(error)

    # --- The list of nodes ---------------------------------------------------------

    async def refresh(self) -> None:
        """Read the list of nodes again if its time has come."""
        if await self.nodes.refresh(self.driver.call):
            self.driver.keep(self.nodes.all())

    # --- One exchange -------------------------------------------------------------

    async def exchange(
        self,
        node: Node,
        request: Request,
        send: Send | None = None,
    ) -> Any:  # noqa: ANN401 - What `send` returns; by default an `Answer`.
        """
        Send a request to a node that is up.

        Raises:
            NodeDownError: It is down; nothing was sent.
            NodeError: It does not answer; that is counted.
        """
        if not node.is_up:
            await self._admit(node)
        try:
            answer = await (send or self.driver.send)(
                node, request, self.options.timeout
            )
        except NodeError as error:
            self._failed(node, error)
            raise
        node.succeeded()
        return answer

    async def _admit(self, node: Node) -> None:
        """
        Return if a node is up; probe it if its back-off is over.

        Raises:
            NodeDownError: It is down.
        """
        permission = node.ask()
        if permission == "yes":
            return
        if permission == "probe":
            request = Request("GET", "/-/ready", self.headers)
            try:
                answer = await self.driver.send(
                    node, request, self.options.probe_timeout
                )
            except NodeError as error:
                self._failed(node, error)
            else:
                if answer.status not in _NOT_READY:
                    node.succeeded()
                    return
                node.failed(f"not ready: {answer.status}")
            finally:
                node.probe_ended()
        raise NodeDownError(node.name, f"down: {node.reason}")

    def _failed(self, node: Node, error: NodeError, count: int = 1) -> None:
        """Count an error for the health of the node."""
        if not isinstance(error, PoolTimeoutError):  # The node was not asked.
            node.failed(str(error).removeprefix(f"{error.node}: "), count)

    async def exchange_many(
        self, node: Node, requests: Sequence[Request]
    ) -> list[Answer | CacheError]:
        """
        Send requests in a row; return the answer or the error of each.

        A connection that fails costs the requests on it, and is one failure of the node.
        """
        results: list[Any] = [None] * len(requests)
        left = list(range(len(requests)))
        while left:
            try:
                if not node.is_up:
                    await self._admit(node)
                listed = [requests[at] for at in left]
                took = await self.driver.send_many(node, listed, self.options.timeout)
            except NodeError as error:
                took = [error] * len(left)
            self._count(node, took)
            for at, result in zip(left, took, strict=False):
                results[at] = result
            left = [at for at in left if results[at] is None]
        return results

    def _count(self, node: Node, results: Sequence[Answer | CacheError | None]) -> None:
        """Count what became of requests; a connection that failed is one failure."""
        others = [one for one in results if not isinstance(one, Answer)]
        if answers := len(results) - len(others):
            node.succeeded(answers)
        failed = [one for one in others if isinstance(one, NodeError)]
        for error in {id(one): one for one in failed}.values():
            if not isinstance(error, NodeDownError):
                self._failed(node, error, sum(one is error for one in failed))

    def stream_failed(self, node: Node, error: NodeError) -> None:
        """Count an error that ended a stream; it is raised, whatever `on_error`."""
        self.counters.error(error)
        self._failed(node, error, 0)

    def _tell(self, event: NodeEvent) -> None:
        _log.warning("node %s: %s %s", event.kind, event.node, event.reason)
        if self.options.on_event is None:
            return
        try:
            self.options.on_event(event)
        except Exception:  # noqa: BLE001 - Code of the application.
            _log.exception("on_event failed")

    # --- Errors and counters ------------------------------------------------------

    async def counted(
        self,
        name: str,
        steps: Operation[T | None],
        *,
        is_write: bool,
        excuse: Excuse = "as the options say",
    ) -> T | None:
        """
        Take the steps and count how they end.

        Returns:
            Their result; None for an outage that is not raised.

        Raises:
            CacheError: Any other, counted.
        """
        started = self.clock()
        outcome: Outcome = "error"
        try:
            result = await steps
            outcome = outcome_of(name, result, is_write=is_write)
        except CacheError as error:
            if not self.is_excused(error, excuse, is_write=is_write):
                raise
            outcome = "dropped" if is_write else "miss"
            return None
        else:
            return result
        finally:
            self.counters.operation_ended(name, outcome, self.clock() - started)

    def is_excused(
        self,
        error: CacheError,
        excuse: Excuse = "as the options say",
        *,
        is_write: bool,
    ) -> bool:
        """Count an error; return whether it is not raised."""
        self.counters.error(error)
        if excuse != "as the options say":
            return error.is_outage and excuse == "outages"
        if isinstance(error, NodeDownError) and is_write:
            return self.options.drops_writes
        return error.is_outage and self.options.on_error == "miss"

    def stats(self) -> Stats:
        """Return the numbers of the client."""
        connections = self.driver.connections()
        nodes: dict[str, NodeNumbers] = {}
        for node in self.nodes.all():
            opened, in_use = connections.get(node, (0, 0))
            nodes[node.name] = {
                "up": int(node.is_up),
                "requests": node.requests,
                "failures": node.unanswered,
                "connections": opened,
                "in_use": in_use,
            }
        return self.counters.read(nodes)

    # --- Processes ----------------------------------------------------------------

    def after_fork(self) -> None:
        """Replace all locks, in a child process: other threads may have held them."""
        self.counters.after_fork()
        self.nodes.after_fork()

    # --- Parts of requests --------------------------------------------------------

    def stored_key(self, key: Key) -> bytes:
        """
        Return the key with the prefix of the options.

        Raises:
            InvalidKeyError: The service has no such key.
        """
        return encode_key(key, self.prefix)

    def copied(self, value: V) -> V:
        """Return a value for another caller, which may change it."""
        if isinstance(value, bytes):
            return value
        return self.codec.loads(self.codec.dumps(value))

    def put_headers(
        self, ttl: Ttl, content_type: str | None, condition: Mapping[str, str]
    ) -> dict[str, str]:
        """
        Return the headers of a PUT.

        Raises:
            InvalidArgumentError: The time is not above 0, or the type is not a header.
        """
        headers = {**self.headers, **condition}
        headers["Content-Type"] = checked_type(content_type or self.codec.content_type)
        ttl = self.options.default_ttl if ttl is None else ttl
        if ttl is not None:
            headers["Cache-Control"] = f"max-age={max_age(ttl)}"
        return headers


def found_in(node: Node, answer: Answer) -> Answer | None:
    """Return an answer with a value; None for a miss; raise an error for any other."""
    if answer.status == OK:
        return answer
    if answer.status == NOT_FOUND:
        return None
    raise error_of(node.name, answer.status, answer.body)


def was_removed(node: Node, answer: Answer) -> bool:
    """Return whether a value was removed; raise an error for any other answer."""
    if answer.status in {OK, NOT_FOUND, _PRECONDITION_FAILED}:
        return answer.status == OK
    raise error_of(node.name, answer.status, answer.body)


def outcome_of(name: str, result: object, *, is_write: bool) -> Outcome:
    """Return how an operation that raised nothing has ended."""
    if not is_write:
        return "miss" if result is None else "hit"
    is_refused = name != "purge" and (result is None or result is False)
    return "refused" if is_refused else "done"
