"""discovery.py: the list of nodes, read once or again and again."""

from __future__ import annotations

import asyncio
import types
from typing import TYPE_CHECKING, Any

import pytest

from support.nginx import SOURCE
from support.tables import each_row
from volcache_client import AsyncClient, Client
from volcache_client.discovery import Nodes, read_file
from volcache_client.errors import DiscoveryError, InvalidArgumentError
from volcache_client.exchanges import run
from volcache_client.nodes import HealthOptions, NodeEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from volcache_client.messages import Operation

SECONDS = 10.0


class Setup:
    """Nodes with a clock that a test advances, and the events that they send."""

    def __init__(self, source: Any) -> None:
        self.now = 1000.0
        self.events: list[NodeEvent] = []
        self.hook: Callable[[], object] = int
        self.nodes = Nodes(
            source,
            health=HealthOptions(1, 100.0, 100.0),
            refresh_seconds=SECONDS,
            clock=lambda: self.now,
            on_event=self._note,
        )

    def _note(self, event: NodeEvent) -> None:
        self.events.append(event)
        self.hook()

    def refresh(self, *, after: float = SECONDS) -> dict[str, int]:
        """Let an operation begin, later; return the nodes and weights it uses."""
        self.now += after
        run(self.nodes.refresh(called))
        return self.listed()

    def listed(self) -> dict[str, int]:
        """Return names and weights."""
        return {address.name: weight for address, weight in self.nodes._listed}

    def told(self) -> list[tuple[str, str]]:
        """Return kind and node of the events so far, and forget them."""
        told: list[tuple[str, str]] = [
            (event.kind, event.node) for event in self.events
        ]
        self.events.clear()
        return told


@types.coroutine
def taken(function: Callable[[], Any]) -> Generator[Any, Any, Any]:
    """Suspend the operation until the test sends what the function returns."""
    return (yield function)


async def called(function: Callable[[], Any]) -> Any:
    """Call a function, as the driver of threads."""
    return function()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A list of two nodes."""
    path = tmp_path / "instances.conf"
    path.write_text("server a:1 weight=10 max_fails=0;\nserver b:1;\n")
    return path


# --- Lists ------------------------------------------------------------------------------


def test_list_of_names_and_weights_is_used() -> None:
    """The keys are on the ring of these; an address alone is one node."""
    assert Setup("http://cache:8080").refresh() == {"cache:8080": 1}
    setup = Setup(["a:1", ("b:1", 3), ["c:1", 2]])
    assert setup.listed() == {"a:1": 1, "b:1": 3, "c:1": 2}
    assert {setup.nodes.of(b"%d" % n).name for n in range(100)} == {"a:1", "b:1", "c:1"}


@each_row(
    ("source", "reason"),
    [
        ([], "the list of nodes is empty"),
        (["a:1", "b"], "'b' is not the address of a node"),
        (["a:1", "http://a:1"], "a:1: the node is in the list twice"),
        ([("a:1", 0)], "a:1: weight 0; allowed are integers from 1 to 1000"),
        *(([("a:1", 1001)], "weight 1001"), ([("a:1", 1.0)], r"weight 1\.0")),
        *(([("a:1", True)], "weight True"), ([("a:1", "10")], "weight '10'")),
        *(([("a:1", 1, 1)], "is not a node"), ([("a:1",)], "is not a node")),
        *(([None], "None is not a node"), ([(7, 1)], "7 is not the name of a node")),
        (None, "a NoneType is not a list of nodes"),
        (7, "a int is not a list of nodes"),
        (b"a:1", "a bytes is not a list of nodes"),
        ({"a:1": 1}, "a dict is not a list of nodes"),
        ("", "'' is not the name of a node"),
    ],
)
def test_list_that_is_wrong_is_an_error(source: Any, reason: str) -> None:
    """When it is given, and when a function returns it first."""
    with pytest.raises(InvalidArgumentError, match=reason):
        Setup(source)
    if source != "":
        with pytest.raises(InvalidArgumentError, match=reason):
            Setup(lambda: source).refresh()


# --- Files ------------------------------------------------------------------------------


def test_read_file_of_nginx_returns_its_servers() -> None:
    """The file that the project installs."""
    assert read_file(SOURCE / "volcache" / "instances.conf") == [
        (f"127.0.0.1:{port}", 10) for port in (1234, 1235, 1236)
    ]


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("server a:1;", [("a:1", 1)]),
        ("  server\ta:1   weight=10\t max_fails=0 ;  \r\n", [("a:1", 10)]),
        ("server a:1; server b:2 weight=3;", [("a:1", 1), ("b:2", 3)]),
        ("# server x:1;\n\n;\nserver a:1; # weight=2\n", [("a:1", 1)]),
        (
            "server a:1 weight=2 fail_timeout=1s max_conns=9 slow_start=1s resolve;",
            [("a:1", 2)],
        ),
        ("server a:1 weight=2 weight=3;", [("a:1", 3)]),
        ("server a:1 down; server b:1;", [("a:1", 1), ("b:1", 1)]),
        ("server unix:/run/a#b;#c", [("unix:/run/a#b", 1)]),
        ("server [::1]:1;server [::1];", [("[::1]:1", 1), ("http://[::1]", 1)]),
        ("server cache;", [("http://cache", 1)]),
        ("server server:1;", [("server:1", 1)]),
        ("a:1\nb:2 weight=10\n", [("a:1", 1), ("b:2", 10)]),
        ("a:1 # first\r\nhttps://b:2;", [("a:1", 1), ("https://b:2", 1)]),
        ("a:1\n# end", [("a:1", 1)]),
    ],
)
def test_read_file_returns_the_nodes_of_each_line(
    text: str, nodes: list[tuple[str, int]], tmp_path: Path
) -> None:
    """With comments, spaces, tabs, and line ends of either kind."""
    path = tmp_path / "nodes"
    path.write_bytes(text.encode())
    assert read_file(path) == nodes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", ": no nodes in it"),
        ("# server a:1;\n", ": no nodes in it"),
        ("server a:1;\nserver b:1 weight=1", ":2: not complete: the ; at its end"),
        ("server a:1;\nserver b:1\n", ":2: not complete: the ; at its end"),
        ("server a:1;\nser", ":2: not complete: the newline at its end"),
        ("a:1\nb:1", ":2: not complete: the newline at its end"),
        ("server a:1;\nsever b:1;\n", ":2: 'sever' is not the address of a node"),
        ("server a:1;\nkeepalive 96;\n", ":2: 'keepalive' is not the address"),
        ("server a:1;\ncache;\n", ":2: 'cache' is not the address of a node"),
        ("server;\n", ":1: the name of a server is missing"),
        ("server a:1 weight=0;\n", ":1: a:1: weight 0; allowed are integers from 1"),
        ("server a:1 weight=1001;\n", ":1: a:1: weight 1001"),
        ("server a:1 weight=x;\n", ":1: 'weight=x' is not known here; allowed are"),
        ("server a:1 wieght=10;\n", ":1: 'wieght=10' is not known here"),
        ("server a:1 backup;\n", ":1: 'backup' is not known here"),
        ("server a:99999;\n", ":1: 'a:99999' is not the address of a node"),
        ("\n\nserver a:1/x;\n", ":3: 'a:1/x' is not the address of a node"),
        ("\xff\n", ": not UTF-8"),
        ("server a:1; server a:1;", "a:1: the node is in the list twice"),
    ],
)
def test_file_with_a_wrong_line_is_an_error_that_names_it(
    text: str, reason: str, tmp_path: Path
) -> None:
    """With the file, its number, and what is wrong; also when the client is made."""
    path = tmp_path / "nodes"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidArgumentError) as raised:
        Setup(path)
    assert reason in str(raised.value)


def test_file_that_is_missing_is_an_error_that_names_it(tmp_path: Path) -> None:
    """When the client is made; also a folder."""
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(DiscoveryError, match=f"the list of nodes: .*{path}"):
            Client(path)


# --- Reading again ----------------------------------------------------------------------


def test_refresh_of_a_changed_file_uses_it_when_its_time_has_come(file: Path) -> None:
    """Not before; the events name what changed."""
    setup = Setup(file)
    file.write_text("server a:1 weight=10;\nserver c:1 weight=2;\n")
    assert setup.refresh(after=0.99 * SECONDS) == {"a:1": 10, "b:1": 1}
    assert setup.told() == []
    assert setup.refresh(after=0.02 * SECONDS) == {"a:1": 10, "c:1": 2}
    assert setup.told() == [("added", "c:1"), ("removed", "b:1")]
    assert {setup.nodes.of(b"%d" % n).name for n in range(200)} == {"a:1", "c:1"}


def test_refresh_keeps_the_health_of_a_node_that_stays(file: Path) -> None:
    """It is the same object, also when its weight changes."""
    setup = Setup(file)
    before = {node.name: node for node in setup.nodes.all()}
    before["a:1"].failed("reason")
    file.write_text("server c:1;\nserver a:1 weight=5;\n")
    assert setup.refresh() == {"c:1": 1, "a:1": 5}
    after = {node.name: node for node in setup.nodes.all()}
    assert after["a:1"] is before["a:1"]
    assert not after["a:1"].is_up


def test_refresh_with_another_scheme_makes_another_node() -> None:
    """Its connections and failures are not those of the one before."""
    lists = [["http://a:1"], ["https://a:1"]]
    setup = Setup(lambda: lists.pop(0))
    setup.refresh()
    (before,) = setup.nodes.all()
    before.failed("no TLS")
    setup.refresh()
    (after,) = setup.nodes.all()
    assert (after.address.scheme, after.is_up) == ("https", True)


def test_refresh_of_a_wrong_file_keeps_the_previous_list(file: Path) -> None:
    """One event for one reason, and one when it is right again."""
    setup = Setup(file)
    right = file.read_text()
    for broken in ("", "server a:1;\nserver b:1 wei", "server a:1;\nnonsense;\n", None):
        file.unlink()
        if broken is not None:
            file.write_text(broken)
        for _ in range(3):
            assert setup.refresh() == {"a:1": 10, "b:1": 1}
        (event,) = setup.events
        assert (event.kind, event.node) == ("discovery failed", "")
        assert str(file) in event.reason
        setup.events.clear()
    file.write_text(f"{right}server c:1;\n")
    assert setup.refresh() == {"a:1": 10, "b:1": 1, "c:1": 1}
    assert setup.told() == [("discovery recovered", ""), ("added", "c:1")]


def test_refresh_by_a_function_that_fails_keeps_the_previous_list() -> None:
    """Whatever it raises or returns; it may be a generator."""
    wrong: list[tuple[Any, str]] = [
        (None, "a NoneType is not a list of nodes"),
        ("a:1", "a str is not a list of nodes"),
        ({"a:1": 10}, "a dict is not a list of nodes"),
        ([], "the list of nodes is empty"),
        (OSError("no route"), "OSError: no route"),
    ]
    results = [["a:1"], *(result for result, _ in wrong), iter(["a:1", "b:1"])]

    def listed() -> Any:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    setup = Setup(listed)
    assert setup.refresh() == {"a:1": 1}
    for _, reason in wrong:
        assert setup.refresh() == {"a:1": 1}
        assert setup.events[-1].reason.startswith(reason)
    assert setup.told() == [("discovery failed", "")] * len(wrong)
    assert setup.refresh(after=0.5 * SECONDS) == {"a:1": 1}
    assert setup.refresh(after=0.5 * SECONDS) == {"a:1": 1, "b:1": 1}


def test_refresh_that_fails_at_first_is_tried_by_the_next_operation() -> None:
    """At once: there is no list that could be used."""
    results: list[Any] = [["a:1"]]
    setup = Setup(lambda: 1 / 0 if len(calls) < 2 else results[0])
    calls: list[int] = []
    for _ in range(2):
        with pytest.raises(DiscoveryError, match="ZeroDivisionError: division by zero"):
            setup.refresh(after=0)
        with pytest.raises(DiscoveryError, match="was not read yet"):
            setup.nodes.of(b"key")
        calls.append(1)
    assert setup.refresh(after=0) == {"a:1": 1}
    assert setup.told() == []


# --- Several callers --------------------------------------------------------------------


def test_refresh_by_several_callers_reads_once() -> None:
    """They neither wait nor read."""
    setup = Setup(lambda: ["a:1"])
    setup.refresh()
    setup.now += SECONDS
    reader = setup.nodes.refresh(taken)
    reader.send(None)
    for _ in range(3):
        assert is_over(setup.nodes.refresh(taken))
    with pytest.raises(StopIteration):
        reader.send(["b:1"])
    assert setup.listed() == {"b:1": 1}
    assert is_over(setup.nodes.refresh(taken))


@each_row("end", ["close", "throw"])
def test_refresh_that_is_cancelled_lets_another_caller_read(end: str) -> None:
    """Its task was cancelled while the function ran."""
    setup = Setup(lambda: ["a:1"])
    setup.refresh()
    setup.now += SECONDS
    reader = setup.nodes.refresh(taken)
    reader.send(None)
    if end == "close":
        reader.close()
    else:
        with pytest.raises(asyncio.CancelledError):
            reader.throw(asyncio.CancelledError())
    assert setup.events == []
    assert setup.refresh() == {"a:1": 1}
    setup.now += SECONDS
    assert not is_over(setup.nodes.refresh(taken))


def is_over(operation: Operation[object]) -> bool:
    """Whether an operation ends without a step."""
    try:
        operation.send(None)
    except StopIteration:
        return True
    operation.close()
    return False


def test_refresh_of_the_first_list_is_done_by_each_caller() -> None:
    """There is none that they could use meanwhile; health of the first is kept."""
    setup = Setup(lambda: ["a:1"])
    readers = [setup.nodes.refresh(taken) for _ in range(2)]
    for reader in readers:
        reader.send(None)
    with pytest.raises(StopIteration):
        readers[0].send(["a:1"])
    (node,) = setup.nodes.all()
    node.failed("reason")
    with pytest.raises(StopIteration):
        readers[1].send(["a:1", "b:1"])
    assert [n.is_up for n in setup.nodes.all()] == [False, True]


def test_refresh_in_a_child_process_ignores_that_of_its_parent() -> None:
    """And takes no lock that another thread of the parent had."""
    setup = Setup(lambda: ["a:1"])
    setup.refresh()
    setup.now += SECONDS
    reader = setup.nodes.refresh(taken)
    reader.send(None)
    setup.nodes._lock.acquire()
    setup.nodes.after_fork()
    assert setup.refresh(after=0) == {"a:1": 1}


# --- Both clients -----------------------------------------------------------------------


def test_asynchronous_function_is_awaited_by_the_asynchronous_client() -> None:
    """The nodes are those that it returns."""

    async def listed() -> list[str]:
        await asyncio.sleep(0)
        return ["127.0.0.1:1", "127.0.0.1:2"]

    async def use() -> set[str]:
        async with AsyncClient(listed, on_error="miss") as client:
            assert await client.get("key") is None
            return {node.name for node in client._core.nodes.all()}

    assert asyncio.run(use()) == {"127.0.0.1:1", "127.0.0.1:2"}


def test_asynchronous_function_is_refused_by_the_client_of_threads() -> None:
    """It could not be awaited."""

    async def listed() -> list[str]:
        return ["127.0.0.1:1"]

    with (
        Client(listed) as client,
        pytest.raises(InvalidArgumentError, match="only AsyncClient takes one"),
    ):
        client.get("key")
