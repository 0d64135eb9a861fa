"""What both clients have in common besides their methods."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, TypeVar

from volcache_client.operations import Operations
from volcache_client.options import OptionArguments, make_options
from volcache_client.serializers import make_codec
from volcache_client.threads import Renewals

if TYPE_CHECKING:
    from typing import Unpack

    from volcache_client.core import Core, Source
    from volcache_client.messages import Driver, Stat
    from volcache_client.metrics import Metrics
    from volcache_client.operations import Streamed
    from volcache_client.options import Options

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
        """See `AsyncClient`."""
        checked = make_options(options)
        codec = make_codec(serializer, checked.signing_key)
        self._is_closed = False
        self._core: Final[Operations[V]] = Operations(
            self._make_driver(checked), nodes, codec, checked
        )
        self._renewals = Renewals(self._core.clock, checked.lease_seconds)

    def _make_driver(self, options: Options) -> Driver:
        """Make what performs steps."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """Whether the client was closed."""
        return self._is_closed

    def stats(self) -> Metrics:
        """Return the numbers since the client was made; a forked child goes on counting."""
        return self._core.metrics()

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

    def __init__(self, core: Core[Any], streamed: Streamed) -> None:
        """Use `stream` of a client."""
        self.stat: Final[Stat] = streamed.stat
        self._body: Final = streamed.body
        self._failed: Final = partial(core.stream_failed, streamed.node)
