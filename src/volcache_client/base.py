"""What both clients have in common besides their methods."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from volcache_client.errors import InvalidArgumentError
from volcache_client.operations import Operations
from volcache_client.options import OptionArguments, make_options
from volcache_client.serializers import make_codec
from volcache_client.threads import Renewals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Unpack

    from volcache_client.core import Core, Source
    from volcache_client.messages import Driver, Stat
    from volcache_client.metrics import Metrics
    from volcache_client.operations import Streamed
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


def results_by_key(
    keys: list[K], results: Sequence[T | BaseException | None]
) -> dict[K, T]:
    """
    Return the results that are not None.

    Raises:
        Exception: The first of the errors, with a note of how many others there are.
    """
    errors = [result for result in results if isinstance(result, BaseException)]
    if len(errors) > 1:
        errors[0].add_note(f"and {len(errors) - 1} more of {len(keys)} keys")
    if errors:
        raise errors[0]
    found = zip(keys, cast("Sequence[T | None]", results), strict=True)
    return {key: result for key, result in found if result is not None}
