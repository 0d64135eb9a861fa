"""
Values that are made when they are missing or stale, by one of all processes.

It makes a value while it holds the lease: a key that was stored with `If-None-Match: *` and
expires by itself. The others look until the value is there, and acquire the lease when it
was given back or has expired. Who has waited for two leases makes the value without one.

A value that may be stale is stored for that time longer. So it is stale when less than that
time is left of it.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from volcache_client.errors import CacheError
from volcache_client.keys import checked_ttl
from volcache_client.messages import Item

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache_client.keys import Key, Ttl
    from volcache_client.operations import Operations

V = TypeVar("V")

LEASE_PREFIX: Final = "~lease/"
# How long those that wait for a value wait between two looks, seconds.
_LOOK_FIRST: Final = 0.01
_LOOK_LONGEST: Final = 0.25
# How many times the length of a lease a caller waits for others; then it makes the value
# itself: one lease for a process that died, one for the process that took over.
_LEASES_WAITED: Final = 2


class Making(Generic[V]):
    """
    One call of `get_or_set`; its steps are taken by one thread or task.

    Attributes:
        stored: The key, with the prefix of the client.
    """

    def __init__(
        self,
        core: Operations[V],
        key: Key,
        make: Callable[[], Any],
        ttl: Ttl,
        stale: float,
    ) -> None:
        """
        Check the arguments; `make` should not find too late that one is wrong.

        Raises:
            InvalidArgumentError: One is wrong.
        """
        self.stored: Final = core.stored_key(key)
        self._is_out = False  # Whether the last request was an outage.
        self._core: Final = core
        self._key: Final = key
        self._make: Final = make
        self._stale: Final = 0.0 if stale == 0 else checked_ttl(stale, "stale")
        ttl = core.options.default_ttl if ttl is None else ttl
        self._ttl: Final = None if ttl is None else checked_ttl(ttl) + self._stale
        # A digest, since the key may be as long as a key can be.
        digest = sha256(self.stored).hexdigest()
        self._lease_key: Final = core.prefix + f"{LEASE_PREFIX}{digest}".encode()
        self._release: Final = partial(core.release, self._lease_key)

    async def find(self) -> Item[V] | None:
        """Return what is stored; a stored None is an item too."""
        steps = self._read()
        return await self._core.counted("get", steps, is_write=False)

    async def _read(self) -> Item[V] | None:
        self._is_out = False
        try:
            return await self._core.item(self._key)
        except CacheError:
            self._is_out = True
            raise

    def is_stale(self, item: Item[V]) -> bool:
        """Return whether a value should be renewed."""
        left = item.stat.ttl
        return bool(self._stale) and left is not None and left < self._stale

    async def make(self) -> V:
        """
        Return the value, made by this or another process, after `find` has found nothing.

        A cache that is down neither prevents nor delays that the value is made, with
        `on_error="miss"`. A value that was made is returned also if it cannot be stored,
        with any `on_error`. What `make` raises is raised.
        """
        lease = None
        if not self._is_out:
            had = await self._wait_for_lease()
            if isinstance(had, Item):
                value: V = had.value
                return value
            lease = had
        return await self._make_and_store(lease)

    async def renew(self) -> None:
        """Make a value that is stale and store it, unless another process does."""
        lease = await self._acquire_lease()
        if lease is not None and not await self._look_again(lease, is_renewal=True):
            await self._make_and_store(lease)

    async def _make_and_store(self, lease: str | None) -> V:
        made = await self._core.or_undo(self._stored(), partial(self._release, lease))
        await self._release(lease)
        return made

    async def _stored(self) -> V:
        """Make a value and store it."""
        core = self._core
        made: V = await core.driver.call(self._make)
        core.counters.making("made")
        steps = core.store_value(self._key, made, self._ttl)
        await core.counted("set", steps, is_write=True, excuse="outages")
        return made

    # --- The lease ----------------------------------------------------------------

    async def _wait_for_lease(self) -> str | Item[V] | None:
        """Return the ETag of the lease, or what is stored; None: make it without one."""
        core = self._core
        pause = _LOOK_FIRST
        last_look = core.clock() + _LEASES_WAITED * core.options.lease_seconds
        has_waited = False
        while True:
            lease = await self._acquire_lease()
            if self._is_out:
                return None
            found = await self._look_again(lease)
            if found is not None:
                return found
            if lease is not None:
                return lease
            if core.clock() >= last_look or self._is_out:
                return None
            if not has_waited:
                has_waited = True
                core.counters.making("waits")
            await core.driver.sleep(pause)
            pause = min(2 * pause, _LOOK_LONGEST)

    async def _look_again(
        self, lease: str | None, *, is_renewal: bool = False
    ) -> Item[V] | None:
        """
        Return what is stored; the lease is given back if it is there, or this fails.

        The one before may have stored it between our look and our lease. For a renewal,
        what is stale is not there.
        """
        release = partial(self._release, lease)
        found = await self._core.or_undo(self.find(), release)
        if found is None or (is_renewal and self.is_stale(found)):
            return None
        await self._release(lease)
        return found

    async def _acquire_lease(self) -> str | None:
        """Return the ETag of the lease; None if another has it, or after an outage."""
        core = self._core
        self._is_out = False
        try:
            return await core.claim(self._lease_key, core.options.lease_seconds)
        except CacheError as error:
            # No write of the caller: as for its reads.
            if not core.is_excused(error, is_write=False):
                raise
            self._is_out = True
            return None
