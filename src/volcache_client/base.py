"""What both clients have in common besides their methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from volcache_client.operations import Operations
from volcache_client.options import OptionArguments, make_options
from volcache_client.serializers import make_codec
from volcache_client.threads import Renewals

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from volcache_client.core import Source
    from volcache_client.exchanges import HttpBody, HttpTransport
    from volcache_client.keys import Key
    from volcache_client.making import Making
    from volcache_client.many import Many
    from volcache_client.messages import Operation, Stat
    from volcache_client.metrics import Stats
    from volcache_client.options import Options

K = TypeVar("K", bound="str | bytes")
T = TypeVar("T")
V = TypeVar("V")


class BaseClient(Generic[V]):
    """A client without its methods and without what performs their steps."""

    def __init__(
        self,
        nodes: Source,
        *,
        serializer: object = None,
        **options: Unpack[OptionArguments],
    ) -> None:
        """See `AsyncMethods`."""
        checked = make_options(options)
        codec = make_codec(serializer, checked.signing_key)
        self._is_closed = False
        self._core: Final[Operations[V]] = Operations(
            self._make_driver(checked), nodes, codec, checked
        )
        self._renewals = Renewals(self._core.clock, checked.lease_seconds)

    def _make_driver(self, options: Options) -> HttpTransport[Any]:
        """Make what performs steps."""
        raise NotImplementedError

    @property
    def _opened(self) -> Operations[V]:
        """
        The operations, which may be used here and now.

        Raises:
            ClientUsageError: The client is closed, or belongs to another event loop.
        """
        return self._core

    async def _many(self, many: Many[K, T]) -> dict[K, T]:
        """Perform the steps for all nodes at the same time; return the results."""
        raise NotImplementedError

    async def _make_once(self, stored: bytes, call: Callable[[], Operation[V]]) -> V:
        """Return the result of an operation, of this or of another thread or task."""
        raise NotImplementedError

    async def _in_turn(self, key: Key) -> tuple[V] | None:
        """Return what `Operations.get` does, perhaps together with other calls."""
        return await self._core.get(key)

    def _renew(self, making: Making[V]) -> None:
        """Renew a value in the background, unless that is done already."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._is_closed

    def stats(self) -> Stats:
        """Return the numbers since the client was made; a forked child goes on counting."""
        return self._core.stats()

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"{name} has connections; make one in each process, do not pickle"
        )

    def __repr__(self) -> str:
        nodes = self._core.nodes.all()
        where = "nodes not known yet"
        if nodes:
            address = nodes[0].address
            scheme = "" if address.socket_path else f"{address.scheme}://"
            count = "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
            where = f"{scheme}{address.name}, {count}"
        state = "closed" if self._is_closed else "open"
        return f"<{type(self).__name__} {where}, {state}>"


class BaseReader:
    """
    A value that is read in parts.

    Attributes:
        stat: What is known of the value.
    """

    def __init__(self, stat: Stat, body: HttpBody) -> None:
        """Use `stream` of a client."""
        self.stat: Final = stat
        self._body: Final = body
