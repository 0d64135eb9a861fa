"""
The list of nodes: given once, or read again from a file or a function.

The file is nginx's list of instances, so that both read the same one:
`server 10.0.0.1:1234 weight=10 max_fails=0;`. Without nginx a line may also be
`10.0.0.1:1234 weight=10`. Comments begin with `#`. A line that is not complete is an error,
since a file may be read while it is written: `server ...` ends with `;`, and any other
with a newline. Replace the file by renaming another one, and it is never seen incomplete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from inspect import isawaitable, iscoroutine
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from volcache_client.errors import CacheError, DiscoveryError, InvalidArgumentError
from volcache_client.nodes import Address, Events, HealthOptions, Node, parse_address
from volcache_client.ring import HashRing, name_and_weight

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from volcache_client.nodes import NodeEvent

# As in nginx, `#` begins a comment only where a word begins.
_COMMENT: Final = re.compile(r"(?:^|(?<=[\s;]))#.*")
_WEIGHT: Final = re.compile(r"weight=([0-9]{1,9})")
# Parameters of nginx that do not change which node has a key: no other node may have those
# of one that is down.
_IGNORED: Final = (
    *("max_fails", "fail_timeout", "max_conns", "slow_start", "down", "resolve"),
)
_HOST_WITHOUT_PORT: Final = re.compile(r"[^:/\[\]]+|\[[^\]]*\]")


class ListedNode(NamedTuple):
    """A node as a file names it."""

    name: str
    weight: int
    is_down: bool  # nginx asks it nothing.


class _View(NamedTuple):
    """Nodes and their ring; replaced as a whole."""

    nodes: dict[str, Node]
    ring: HashRing | None  # None: the list was not read yet.


class Nodes:
    """
    The nodes of a client, with their health; used by all threads.

    Invariants:
        - A list from a file or a function is read by one caller at a time, except for the
          first one of a function: until it is there, each operation reads.
        - The nodes and the ring change together, and only to a list that was checked.
    """

    def __init__(
        self,
        source: str
        | os.PathLike[str]
        | Sequence[str | tuple[str, int]]
        | Callable[[], Any],
        *,
        health: HealthOptions,
        refresh_seconds: float,
        clock: Callable[[], float],
        on_event: Callable[[NodeEvent], object],
    ) -> None:
        """
        Read a list or a file; a function is called by the first operation.

        Args:
            source: One address; a list of names, each with its weight if that is not 1; the
                path of a file (`pathlib.Path`); or a function that returns such a list.
                The caller that calls the function waits for it, so it must end soon.
            health: Of each node.
            refresh_seconds: How long a list from a file or a function is used.
            clock: Seconds, monotonic.
            on_event: Called with each change, one at a time and in their order, by a thread
                that causes one; must not raise.

        Raises:
            InvalidArgumentError: An address is wrong, or there is none.
            DiscoveryError: The file cannot be read.
        """
        self._health: Final = health
        self._clock: Final = clock
        self._events: Final = Events(on_event)
        self._refresh_seconds: Final = refresh_seconds
        self._read: Callable[[], Any] | None = None
        self._lock = Lock()  # Guards the attributes below.
        self._view = _View({}, None)
        self._listed: list[tuple[Address, int]] = []
        self._is_reading = False
        self._failure = ""
        if isinstance(source, os.PathLike):
            path = os.fspath(source)
            self._read = lambda: read_file(path)
            self._replace(self._read())
        elif callable(source):
            self._read = source
        else:
            self._replace([source] if isinstance(source, str) else source)
        self._next_read = clock() + refresh_seconds

    @property
    def is_read_again(self) -> bool:
        """Whether the list may change."""
        return self._read is not None

    def all(self) -> tuple[Node, ...]:
        """Return all nodes, in the order of the list."""
        return tuple(self._view.nodes.values())

    def of(self, key: bytes) -> Node:
        """
        Return the node that has a key, whether or not it is up.

        Raises:
            DiscoveryError: The list was not read yet; `refresh` does.
        """
        nodes, ring = self._view
        if ring is None:
            raise DiscoveryError("the list of nodes was not read yet")
        if len(nodes) == 1:
            return nodes[ring.nodes[0]]
        return nodes[ring.node(key)]

    def after_fork(self) -> None:
        """Replace all locks, in a child process; who reads is not there."""
        self._lock = Lock()
        self._is_reading = False
        self._events.after_fork()
        for node in self.all():
            node.after_fork()

    async def refresh(
        self, call: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> bool:
        """
        Read the list again if its time has come; return whether it was tried.

        If it cannot be read, or is wrong, the previous one stays.

        Args:
            call: Calls a function, and awaits its result if it can be.

        Raises:
            DiscoveryError: It cannot be read, and there is no previous one.
            InvalidArgumentError: It is wrong, and there is no previous one.
        """
        if self._read is None:
            return False
        is_first = self._view.ring is None
        if not is_first and (self._clock() < self._next_read or not self._begin()):
            return False
        try:
            self._replace(await call(self._read))
        except Exception as error:  # noqa: BLE001 - Code of the application.
            self._failed(error, is_first=is_first)
        finally:
            self._next_read = self._clock() + self._refresh_seconds
            if not is_first:
                self._is_reading = False
        return True

    def _begin(self) -> bool:
        """Return whether this caller reads; the others use the previous list."""
        with self._lock:
            if self._is_reading or self._clock() < self._next_read:
                return False
            self._is_reading = True
            return True

    def _failed(self, error: Exception, *, is_first: bool) -> None:
        """Keep the previous list; raise the error if there is none."""
        if is_first and self._view.ring is None:
            if isinstance(error, CacheError):
                raise error
            raise DiscoveryError(f"the list of nodes: {_text_of(error)}") from error
        reason = _text_of(error)
        with self._lock:
            if reason == self._failure:
                return
            self._failure = reason
            self._events.put("discovery failed", reason=reason)
        self._events.deliver()

    def _replace(self, listed: Any) -> None:  # noqa: ANN401 - It is checked.
        """
        Use another list; a node that stays keeps its health.

        Raises:
            InvalidArgumentError: It is wrong; the previous one stays.
        """
        wanted = parse_list(listed)
        with self._lock:
            if self._failure:
                self._failure = ""
                self._events.put("discovery recovered")
            before = self._view.nodes
            if wanted != self._listed:
                self._view = self._view_of(wanted)
                self._listed = wanted
            self._compare(before, self._view.nodes)
        self._events.deliver()

    def _compare(self, before: dict[str, Node], after: dict[str, Node]) -> None:
        """Put the events of a changed list; of the first one there are none."""
        if not before:
            return
        for name in after.keys() - before.keys():
            self._events.put("added", name)
        for name in before.keys() - after.keys():
            self._events.put("removed", name)

    def _view_of(self, wanted: list[tuple[Address, int]]) -> _View:
        ring = HashRing((address.name, weight) for address, weight in wanted)
        nodes: dict[str, Node] = {}
        for address, _ in wanted:
            node = self._view.nodes.get(address.name)
            if node is None or node.address != address:
                node = Node(address, self._health, self._clock, self._events)
            nodes[address.name] = node
        return _View(nodes, ring)


def parse_list(listed: Any) -> list[tuple[Address, int]]:  # noqa: ANN401 - It is checked.
    """
    Return addresses and weights.

    Raises:
        InvalidArgumentError: It is not a list of nodes, is empty, or an address or weight
            in it is wrong, or an address is in it twice.
    """
    if isawaitable(listed):
        if iscoroutine(listed):
            listed.close()  # It would warn that it was never awaited.
        raise InvalidArgumentError(
            "the function of the list of nodes is asynchronous; only AsyncClient takes one"
        )
    if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Iterable):
        raise InvalidArgumentError(
            f"a {type(listed).__name__} is not a list of nodes; allowed is a list of names,"
            ' or of names with weights: [("host:port", 10), ...]'
        )
    wanted = []
    names = set()
    for name, weight in map(name_and_weight, listed):
        address = parse_address(name)
        if address.name in names:
            raise InvalidArgumentError(f"{address.name}: the node is in the list twice")
        names.add(address.name)
        wanted.append((address, weight))
    if not wanted:
        raise InvalidArgumentError("the list of nodes is empty; one is needed")
    return wanted


def read_file(path: str | os.PathLike[str]) -> list[tuple[str, int]]:
    """Return the addresses and weights in a file; see `read_servers`."""
    return [(server.name, server.weight) for server in read_servers(path)]


def read_servers(path: str | os.PathLike[str]) -> list[ListedNode]:
    """
    Return the nodes in a file.

    Raises:
        DiscoveryError: It cannot be read.
        InvalidArgumentError: A line is wrong, not complete, or not UTF-8; it is named.
    """
    try:
        with open(path, encoding="utf-8", newline="") as file:  # noqa: PTH123
            text = file.read()
    except OSError as error:
        raise DiscoveryError(f"the list of nodes: {error}") from error
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path}: not UTF-8: {error}") from None
    listed: list[ListedNode] = []
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        is_last = number == len(lines)
        try:
            listed += _read_line(_COMMENT.sub("", line), is_last=is_last)
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"{path}:{number}: {error}") from None
    if not listed:
        raise InvalidArgumentError(f"{path}: no nodes in it; one is needed")
    return listed


def _read_line(line: str, *, is_last: bool) -> list[ListedNode]:
    """Return the nodes in a line; the last has no newline."""
    *complete, rest = line.split(";")
    found = [_read_words(words) for part in complete if (words := part.split())]
    words = rest.split()
    if not words:
        return found
    if words[0] == "server":
        raise InvalidArgumentError("not complete: the ; at its end is missing")
    if is_last:
        raise InvalidArgumentError("not complete: the newline at its end is missing")
    return [*found, _read_words(words)]


def _read_words(words: list[str]) -> ListedNode:
    """Return the node of `server`, which may be missing, a name and its parameters."""
    name, *parameters = words
    if name == "server":
        if not parameters:
            raise InvalidArgumentError("the name of a server is missing")
        name, *parameters = parameters
        if _HOST_WITHOUT_PORT.fullmatch(name):
            name = f"http://{name}"  # nginx takes port 80, and hashes it without.
    parse_address(name)  # Here, so that the error names the line.
    name, weight = name_and_weight((name, _weight_in(parameters)))
    return ListedNode(name, weight, "down" in parameters)


def _weight_in(parameters: list[str]) -> int:
    weight = 1
    for parameter in parameters:
        is_weight = _WEIGHT.fullmatch(parameter)
        if is_weight:
            weight = int(is_weight[1])
        elif parameter.partition("=")[0] not in _IGNORED:
            raise InvalidArgumentError(
                f"{parameter!r} is not known here; allowed are weight=1 to weight=1000,"
                f" and ignored are {', '.join(_IGNORED)}"
            )
    return weight


def _text_of(error: Exception) -> str:
    """Return the text of an error, with its class if that says more."""
    if isinstance(error, CacheError):
        return str(error)
    return f"{type(error).__name__}: {error}"
