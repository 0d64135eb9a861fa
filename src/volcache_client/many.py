"""One call for many keys: its requests in a row to each node, and what becomes of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from volcache_client.core import outcome_of
from volcache_client.errors import CacheError, InvalidArgumentError
from volcache_client.http1 import is_short

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from volcache_client.core import Core
    from volcache_client.messages import Answer, Operation, Request
    from volcache_client.metrics import Outcome
    from volcache_client.nodes import Node

K = TypeVar("K", bound="str | bytes")
T = TypeVar("T")

# How many requests are made, and in memory, before the first of them is sent.
_AT_ONCE: Final = 256


class Many(Generic[K, T]):
    """The keys of one call; its steps are taken by one thread or task for each node."""

    def __init__(
        self,
        core: Core[Any],
        name: str,
        keys: Iterable[K],
        ask: Callable[[K, bytes], Request],
        take: Callable[[Node, Answer], T | None],
    ) -> None:
        """
        Take keys without repetitions.

        Args:
            core: Of the client.
            name: Of the operation on each key.
            keys: As they are given.
            ask: Returns the request for a key, which is also given as it is stored.
            take: Returns the result for an answer.

        Raises:
            InvalidArgumentError: It is one key.
        """
        self._core: Final = core
        self._name: Final = name
        self._is_write: Final = name != "get"
        self._ask: Final = ask
        self._take: Final = take
        self._keys: Final = distinct(keys)
        self._results: Final[dict[K, T | CacheError | None]] = {}

    async def by_node(self) -> list[Operation[None]]:
        """Return the steps for each node, which may be taken at the same time."""
        core = self._core
        groups: defaultdict[Node, list[tuple[K, bytes]]] = defaultdict(list)
        failed: CacheError | None = None
        try:
            await core.refresh()
        except CacheError as error:
            failed = error
        ended: Counter[Outcome] = Counter()
        for key in self._keys:
            try:
                stored = core.stored_key(key)
                if failed is not None:
                    raise failed
                groups[core.nodes.of(stored)].append((key, stored))
            except CacheError as error:
                ended[self._failed(key, error)] += 1
        self._count(ended, 0.0)
        return [self._exchange(node, keys) for node, keys in groups.items()]

    def found(self) -> dict[K, T | CacheError]:
        """Return the results and errors that are there, in the order of the keys."""
        listed = ((key, self._results.get(key)) for key in self._keys)
        return {key: result for key, result in listed if result is not None}

    def results(self) -> dict[K, T]:
        """
        Return the results, in the order of the keys.

        Raises:
            CacheError: The first of the errors, with a note of how many others there are.
        """
        found = self.found()
        errors = [one for one in found.values() if isinstance(one, CacheError)]
        if len(errors) > 1:
            errors[0].add_note(f"and {len(errors) - 1} more of {len(self._keys)} keys")
        if errors:
            raise errors[0]
        return cast("dict[K, T]", found)

    async def _exchange(self, node: Node, keys: list[tuple[K, bytes]]) -> None:
        """Ask a node for its keys, some at a time."""
        for begin in range(0, len(keys), _AT_ONCE):
            await self._exchange_some(node, keys[begin : begin + _AT_ONCE])

    async def _exchange_some(self, node: Node, keys: list[tuple[K, bytes]]) -> None:
        core = self._core
        started = core.clock()
        ended: Counter[Outcome] = Counter()
        short: dict[K, Request] = {}
        for key, stored in keys:
            try:
                request = self._ask(key, stored)
                if request.body is None or is_short(request):
                    short[key] = request
                    continue
                answer = await core.exchange(node, request)
            except CacheError as error:
                ended[self._failed(key, error)] += 1
            else:
                ended[self._end(node, key, answer)] += 1
        results = await core.exchange_many(node, [*short.values()])
        ended.update(map(partial(self._end, node), short, results))
        self._count(ended, core.clock() - started)

    def _end(self, node: Node, key: K, result: Answer | CacheError) -> Outcome:
        """Keep the result of a key; return how it ended."""
        if isinstance(result, CacheError):
            return self._failed(key, result)
        try:
            taken = self._results[key] = self._take(node, result)
        except CacheError as error:
            return self._failed(key, error)
        return outcome_of(self._name, taken, is_write=self._is_write)

    def _failed(self, key: K, error: CacheError) -> Outcome:
        """Keep the error of a key, unless it is excused; return how it ended."""
        if self._core.is_excused(error, is_write=self._is_write):
            return "dropped" if self._is_write else "miss"
        self._results[key] = error
        return "error"

    def _count(self, ended: Counter[Outcome], seconds: float) -> None:
        """Count keys; each took as long as those with which it was sent."""
        for outcome, count in ended.items():
            self._core.counters.operation_ended(self._name, outcome, seconds, count)


def distinct(keys: Iterable[K]) -> list[K]:
    """
    Return keys without repetitions, in their order.

    Raises:
        InvalidArgumentError: It is one key.
    """
    if isinstance(keys, str | bytes):
        raise InvalidArgumentError(
            f"{keys!r} is one key; allowed is an iterable of keys, such as a list"
        )
    return list(dict.fromkeys(keys))
