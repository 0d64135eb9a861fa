"""
What each operation does, for both clients.

An operation is a coroutine; see `HttpTransport`.
"""

from __future__ import annotations

import math
import random
import re
from contextlib import closing
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import (
    TYPE_CHECKING,
    Any,
    BinaryIO,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    cast,
)
from urllib.parse import quote_from_bytes

from volcache_client.core import IF_ABSENT, OK, Core, found_in, was_removed
from volcache_client.errors import (
    AccessDeniedError,
    CacheError,
    ConflictError,
    ForeignValueError,
    InvalidArgumentError,
    error_of,
)
from volcache_client.headers import checked_etag, etag_of, size_of, stat_of
from volcache_client.keys import (
    check_counts,
    checked_ttl,
    counted,
    encode_prefix,
    path_of,
)
from volcache_client.many import Many
from volcache_client.messages import Item, Request
from volcache_client.serializers import OCTETS
from volcache_client.uploads import SourceFailed, Upload

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from volcache_client.exchanges import HttpBody
    from volcache_client.keys import Key, Ttl
    from volcache_client.messages import Answer, Operation, Stat
    from volcache_client.nodes import Node

    # The new body and headers for an answer; None: nothing is stored.
    Change = Callable[[Answer | None], tuple[bytes, dict[str, str]] | None]

M = TypeVar("M", bound="Callable[..., Any]")
K = TypeVar("K", bound="str | bytes")
V = TypeVar("V")

LOCK_PREFIX: Final = "~lock/"
_LOCK_PAUSE_LONGEST: Final = 0.25
_CONDITIONS: Final = {"add": IF_ABSENT, "replace": {"If-Match": "*"}}
_FORBIDDEN: Final = 403
# How often a value is read and stored again before others are left to win.
_TRIES_MAX: Final = 16
_PAUSE_FIRST: Final = 0.001
_PAUSE_LONGEST: Final = 0.032
# A directive of Cache-Control, milliseconds since the epoch. The service returns it.
_UNTIL: Final = re.compile(r"\bcounter-until=([0-9]{1,15})")
_NEEDED: Final = (
    "purge and clear need the addresses of all instances and the option admin_token, since"
    " nginx does not pass them on"
)


class Lock(NamedTuple):
    """A lock that is held; `token` is above those of all that held it before."""

    stored: bytes
    etag: str
    token: int


def _pauses(longest: float) -> Iterator[float]:
    """Yield seconds at random, up to a time that doubles."""
    pause = _PAUSE_FIRST
    while True:
        yield random.uniform(0, pause)  # noqa: S311 - Not a secret.
        pause = min(2 * pause, longest)


def _counted(name: str, kind: Literal["read", "write"]) -> Callable[[M], M]:
    """Return a decorator: an outage that is not raised makes the result None."""
    is_write = kind == "write"

    def decorate(method: M) -> M:
        def counted(self: Core[Any], *args: Any, **kwargs: Any) -> Operation[Any]:  # noqa: ANN401
            return self.counted(name, method(self, *args, **kwargs), is_write=is_write)

        return cast("M", counted)

    return decorate


class Operations(Core[V]):
    """The operations of a client; those of `get_or_set` are in `making.py`."""

    # --- Reading ------------------------------------------------------------------

    @_counted("get", "read")
    async def get(self, key: Key) -> tuple[V] | None:
        """Return a tuple with the value, which may be None."""
        stored = self.stored_key(key)
        # As `ask`, which would be one more coroutine.
        if self.nodes.is_read_again:
            await self.refresh()
        node = self.nodes.of(stored)
        request = Request("GET", path_of(stored), self.headers)
        found = found_in(node, await self.exchange(node, request))
        return None if found is None else self._loaded(found.body)

    def get_many(self, keys: Iterable[K]) -> Many[K, tuple[V]]:
        """Return what asks for values; each result is a tuple, as that of `get`."""

        def ask(_: K, stored: bytes) -> Request:
            return Request("GET", path_of(stored), self.headers)

        def take(node: Node, answer: Answer) -> tuple[V] | None:
            found = found_in(node, answer)
            return None if found is None else self._loaded(found.body)

        return Many(self, "get", keys, ask, take)

    @_counted("get", "read")
    async def get_item(self, key: Key) -> Item[V] | None:
        """Return a value and what is known of it."""
        return await self.item(key)

    async def item(self, key: Key) -> Item[V] | None:
        """Return a value and what is known of it; this is not counted."""
        answer = await self.look(self.stored_key(key))
        found = None if answer is None else self._loaded(answer.body)
        if answer is None or found is None:
            return None
        return Item(found[0], stat_of(answer, len(answer.body)))

    def _loaded(self, stored: bytes) -> tuple[V] | None:
        """Return a tuple with a value; None for what another one has written."""
        try:
            return (self.codec.loads(stored),)
        except ForeignValueError as error:
            self.counters.error(error)
            return None

    @_counted("stat", "read")
    async def stat(self, key: Key) -> Stat | None:
        """Return what is known of a value."""
        node, answer = await self.ask(self.stored_key(key), "HEAD")
        if found_in(node, answer) is None:
            return None
        return stat_of(answer, size_of(node, answer))

    @_counted("stream", "read")
    async def stream(self, key: Key) -> tuple[Stat, HttpBody] | None:
        """Return what is known of a value, and what reads it, which must be closed."""
        stored = self.stored_key(key)
        node, (answer, body) = await self.ask(stored, send=self.driver.open)
        if found_in(node, answer) is None:
            return None
        body.on_error = partial(self.stream_failed, node)
        return stat_of(answer, size_of(node, answer)), body

    # --- Writing ------------------------------------------------------------------

    async def set(
        self,
        name: str,
        key: Key,
        value: V,
        ttl: Ttl = None,
        content_type: str | None = None,
        etag: str | None = None,
    ) -> str | None:
        """Store a value as the method with this name does; `etag` is that of `cas`."""
        steps = self.store_value(key, value, ttl, content_type, (name, etag))
        return await self.counted(name, steps, is_write=True)

    async def store_value(
        self,
        key: Key,
        value: V,
        ttl: Ttl,
        content_type: str | None = None,
        condition: tuple[str, str | None] = ("set", None),
    ) -> str | None:
        """Store a value; this is not counted."""
        name, etag = condition
        needed = _CONDITIONS.get(name, {})
        if name == "cas":
            needed = {"If-Match": checked_etag(etag)}
        body = self.codec.dumps(value)
        headers = self.put_headers(ttl, content_type, needed)
        return await self.store(self.stored_key(key), body, headers)

    def set_many(self, values: Mapping[K, V], ttl: Ttl) -> Many[K, str]:
        """Return what stores values; each result is an ETag."""
        given = dict(values)
        headers = self.put_headers(ttl, None, {})

        def ask(key: K, stored: bytes) -> Request:
            body = self.codec.dumps(given[key])
            return Request("PUT", path_of(stored), headers, body)

        return Many(self, "set", given, ask, etag_of)

    @_counted("set_file", "write")
    async def set_file(
        self,
        key: Key,
        source: str | os.PathLike[str] | BinaryIO,
        ttl: Ttl,
        content_type: str | None,
    ) -> str | None:
        """Store a file."""
        stored = self.stored_key(key)
        headers = self.put_headers(ttl, content_type or OCTETS, {})
        with closing(Upload(source)) as upload:
            try:
                etag = await self.store(stored, upload, headers)
            except SourceFailed as failed:
                raise failed.error from None
        return etag

    @_counted("delete", "write")
    async def delete(self, key: Key, etag: str | None = None) -> bool | None:
        """Remove a value; return whether it was stored."""
        if etag is not None:
            checked_etag(etag)
        return await self.remove(self.stored_key(key), etag)

    def delete_many(self, keys: Iterable[K]) -> Many[K, bool]:
        """Return what removes values; each result is whether it was stored."""

        def ask(_: K, stored: bytes) -> Request:
            return Request("DELETE", path_of(stored), self.headers)

        return Many(self, "delete", keys, ask, was_removed)

    @_counted("pop", "write")
    async def pop(self, key: Key) -> tuple[V] | None:
        """Remove a value; return a tuple with it. Of several callers one has it."""
        stored = self.stored_key(key)
        for _ in range(_TRIES_MAX):
            answer = await self.look(stored)
            found = None if answer is None else self._loaded(answer.body)
            if answer is None or found is None:
                return None
            if await self.remove(stored, answer.headers.get("ETag", "")):
                return found
        raise ConflictError(
            f"{key!r}: others have stored {_TRIES_MAX} values meanwhile; none was removed"
        )

    # --- Locks ---------------------------------------------------------------------

    async def acquire(self, key: Key, ttl: Ttl, wait: float) -> Lock:
        """
        Acquire a lock, with any `on_error`: what is not held is an error.

        Raises:
            ConflictError: Another one has it, until the end of `wait` seconds.
        """
        steps = self._acquire(key, ttl, wait)
        held = await self.counted("lock", steps, is_write=True, excuse="nothing")
        return cast("Lock", held)

    async def _acquire(self, key: Key, ttl: Ttl, wait: float) -> Lock:
        digest = sha256(self.stored_key(key)).hexdigest()
        stored = self.prefix + f"{LOCK_PREFIX}{digest}".encode()
        last, pauses = self.clock() + wait, _pauses(_LOCK_PAUSE_LONGEST)
        while (etag := await self.claim(stored, ttl)) is None:
            if self.clock() >= last:
                raise ConflictError(f"{key!r}: the lock is held by another one")
            await self.driver.sleep(next(pauses))
        # A count that was lost begins at the time, which is above all before it.
        first = int(self.now() * 1_000_000)
        count = self._incr(f"{LOCK_PREFIX}{digest}/token", 1, first, math.inf)
        token = await self.or_undo(count, partial(self.release, stored, etag))
        return Lock(stored, etag, token or 0)

    # --- Changing what is stored --------------------------------------------------

    @_counted("touch", "write")
    async def touch(self, key: Key, ttl: Ttl) -> bool | None:
        """Let a value expire at another time; return whether there is one."""
        return await self._touch(key, ttl) is not None

    @_counted("get", "read")
    async def get_and_touch(self, key: Key, ttl: Ttl) -> tuple[V] | None:
        """Return a tuple with the value, which now expires at another time."""
        stored = await self._touch(key, ttl)
        return None if stored is None else self._loaded(stored)

    async def _touch(self, key: Key, ttl: Ttl) -> bytes | None:
        self.put_headers(ttl, None, {})  # A wrong time is an error also for a miss.

        def touched(answer: Answer | None) -> tuple[bytes, dict[str, str]] | None:
            if answer is None:
                return None
            kind = answer.headers.get("Content-Type")
            headers = self.put_headers(ttl, kind, {})
            if encoding := answer.headers.get("Content-Encoding"):
                headers["Content-Encoding"] = encoding
            return answer.body, headers

        return await self._change(key, touched)

    @_counted("append", "write")
    async def append(self, key: Key, data: bytes) -> int | None:
        """Add bytes to the end of a value; return its size, None if there is none."""
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidArgumentError(
                f"append: a {type(data).__name__}; allowed are bytes"
            )

        def appended(answer: Answer | None) -> tuple[bytes, dict[str, str]] | None:
            if answer is None or (until := self._until(answer)) == 0:
                return None
            return answer.body + bytes(data), self._same_time(answer, until)

        stored = await self._change(key, appended)
        return None if stored is None else len(stored)

    @_counted("incr", "write")
    async def incr(
        self, key: Key, delta: int, initial: int | None, ttl: Ttl, *, sign: int = 1
    ) -> int | None:
        """Add to a number, or subtract with `sign` -1; return it, None if there is none."""
        check_counts(delta=delta, initial=0 if initial is None else initial)
        return await self._incr(key, sign * delta, initial, ttl)

    async def _incr(
        self, key: Key, change: int, initial: int | None, ttl: Ttl
    ) -> int | None:
        first = self.put_headers(ttl, "text/plain", {})
        seconds = self.options.default_ttl if ttl is None else ttl
        if seconds is not None:
            first |= self._lifetime(self.now() + checked_ttl(seconds))

        def changed(answer: Answer | None) -> tuple[bytes, dict[str, str]] | None:
            if answer is None or (until := self._until(answer)) == 0:
                return None if initial is None else (b"%d" % initial, first)
            return counted(answer.body, change), self._same_time(answer, until)

        stored = await self._change(key, changed)
        return None if stored is None else int(stored)

    async def _change(self, key: Key, change: Change) -> bytes | None:
        """
        Store what is made of a value, unless it changes meanwhile; then try again.

        Returns:
            What is stored; None if nothing is to be.

        Raises:
            ConflictError: It has changed each time.
        """
        stored = self.stored_key(key)
        for pause in islice(_pauses(_PAUSE_LONGEST), _TRIES_MAX):
            answer = await self.look(stored)
            new = change(answer)
            if new is None:
                return None
            body, headers = new
            condition = IF_ABSENT
            if answer is not None:
                condition = {"If-Match": answer.headers.get("ETag", "")}
            etag = await self.store(stored, body, {**headers, **condition})
            if etag is not None:
                return body
            await self.driver.sleep(pause)
        raise ConflictError(
            f"{key!r}: others have stored {_TRIES_MAX} values meanwhile; nothing was stored"
        )

    def _same_time(self, answer: Answer, until: float | None) -> dict[str, str]:
        """Return the headers of a value in the place of another one."""
        kind = answer.headers.get("Content-Type")
        return {**self.put_headers(None, kind, {}), **self._lifetime(until)}

    def _lifetime(self, until: float | None) -> dict[str, str]:
        """
        Return the header with which a counter expires at a time, seconds since the epoch.

        `max-age` has whole seconds: if only that were kept, a counter that is changed often
        would expire too early or never.
        """
        if until is None or until == math.inf:
            return {"Cache-Control": f"max-age={2**31}"}
        left = max(1, math.ceil(until - self.now()))
        return {"Cache-Control": f"max-age={left}, counter-until={int(until * 1000)}"}

    def _until(self, answer: Answer) -> float | None:
        """Return when a value expires, seconds since the epoch; None: never, 0: it has."""
        left = stat_of(answer, 0).ttl
        if left is None:
            return None
        now = self.now()
        named = _UNTIL.search(answer.headers.get("Cache-Control", ""))
        # Of another value: not longer than before.
        until = int(named[1]) / 1000 if named else now + max(left, 1)
        # The value has up to a second more than what is left, which is rounded down. If the
        # clocks of clients differ, that of the service decides.
        until = min(max(until, now + left - 1), now + left + 1)
        return until if until > now else 0.0

    # --- On all nodes -------------------------------------------------------------

    async def purge(self, prefix: Key | None) -> None:
        """
        Make everything stored so far a miss, on all nodes, with any `on_error`.

        Each node is asked, whatever another one answers; it may be repeated.

        Args:
            prefix: Of the keys; None: that of the client.
        """
        await self.counted(
            "purge", self._purge(prefix), is_write=True, excuse="nothing"
        )

    async def _purge(self, prefix: Key | None) -> None:
        stored = self.prefix
        if prefix is not None:
            stored = encode_prefix(prefix, stored)
        if not self.options.admin_token:
            raise InvalidArgumentError(f"{_NEEDED}; this client has no admin_token")
        await self.refresh()
        failed: CacheError | None = None
        for node in self.nodes.all():
            try:
                await self._purge_node(node, stored)
            except CacheError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def _purge_node(self, node: Node, stored: bytes) -> None:
        token = {"Authorization": f"Bearer {self.options.admin_token}"}
        path = f"/-/purge?prefix={quote_from_bytes(stored, safe='')}"
        request = Request(
            "POST", path if stored else "/-/flush", {**self.headers, **token}, b""
        )
        answer = await self.exchange(node, request)
        if answer.status == _FORBIDDEN:
            raise AccessDeniedError(node.name, answer.status, _NEEDED.encode())
        if answer.status != OK:
            raise error_of(node.name, answer.status, answer.body)
