"""What operations do, with a node that a test plays."""

from __future__ import annotations

import types
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, cast

import pytest

from support.client_memory import Memory
from volcache_client import (
    AccessDeniedError,
    CacheError,
    ConflictError,
    NodeConnectionError,
    NodeDownError,
    NodeTimeoutError,
    SerializationError,
    UnavailableError,
)
from volcache_client.making import LEASE_PREFIX, Making
from volcache_client.messages import Answer, Request
from volcache_client.operations import LOCK_PREFIX, Operations
from volcache_client.options import make_options
from volcache_client.serializers import Json, make_codec

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from volcache_client.messages import Operation
    from volcache_client.options import OptionArguments

T = TypeVar("T")
NODE: Final = "h:1"
OUTAGES: Final = [
    *(NodeConnectionError(NODE, "broken"), NodeTimeoutError(NODE, "late"), 503, 507),
    302,
]


class Sleep(NamedTuple):
    """A step that waits."""

    seconds: float


class Call(NamedTuple):
    """A step that calls a function."""

    function: Callable[[], Any]


@types.coroutine
def _taken(step: object) -> Generator[object, Any, Any]:
    """Let who runs the operation take a step."""
    return (yield step)


class FakeNode(Memory):
    """A store that answers as an instance does; time passes in the pauses."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        # An error or a status for requests of a method, in place of the answer.
        self.failures: dict[str, Exception | int] = {}
        self.on_sleep: Callable[[], object] = lambda: None

    async def send(self, _node: Any, request: Request, _timeout: float) -> Any:
        """Perform a step, as all methods of a driver."""
        return await _taken(request)

    open = send_many = cast("Any", send)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await _taken(Sleep(seconds))

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function."""
        return await _taken(Call(function))

    async def finish(self, steps: Operation[None], _error: BaseException) -> None:
        """Perform the last steps."""
        await steps

    def keep(self, _nodes: object) -> None:
        """Close nothing."""

    def connections(self) -> dict[Any, tuple[int, int]]:
        """There are none."""
        return {}

    def take(self, step: object) -> object:
        """Return the result of a step."""
        if isinstance(step, Sleep):
            self.now += step.seconds
            self.on_sleep()
            return None
        if isinstance(step, Call):
            return step.function()
        assert isinstance(step, Request)
        request = step
        self.requests.append(request)
        failure = self.failures.get(request.method)
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            return Answer(failure, {"Content-Length": "2"}, b"no")
        status, headers, body = self.answer(
            request.method, request.path, request.headers, cast("bytes", request.body)
        )
        return Answer(status, {"Content-Length": str(len(body)), **headers}, body)

    def run(self, operation: Operation[T]) -> T:
        """Take all steps of an operation."""
        try:
            step = operation.send(None)
            while True:
                try:
                    result = self.take(step)
                except BaseException as error:  # noqa: BLE001 - As a driver does.
                    step = operation.throw(error)
                else:
                    step = operation.send(result)
        except StopIteration as stop:
            return cast("T", stop.value)

    @property
    def methods(self) -> list[str]:
        """What was asked, leases in lower case."""
        return [
            one.method.lower() if LEASE_PREFIX in one.path else one.method
            for one in self.requests
        ]


@pytest.fixture
def node() -> FakeNode:
    """Return an empty one."""
    return FakeNode()


class Core(Operations[Any]):
    """The operations, and what clients do for `get_or_set`."""

    def put(self, key: Any, value: Any, ttl: Any = None, kind: Any = None) -> Any:
        """Store a value."""
        return self.set("set", key, value, ttl, kind)

    async def get_or_set(
        self, key: str, make: Callable[[], Any], ttl: float | None = None
    ) -> Any:
        """Look for a value, and make it if it is missing."""
        making = Making(self, key, make, ttl, 0.0)
        found = await making.find()
        return await making.make() if found is None else found.value


def core_of(node: FakeNode, serializer: Any = None, **options: Any) -> Core:
    """Return a core at the time of the node."""
    made = make_options(cast("OptionArguments", options))
    clock = partial(getattr, node, "now")
    return Core(cast("Any", node), NODE, make_codec(serializer), made, clock, clock)


def make_nothing() -> bytes:
    """Fail: the value is there."""
    raise AssertionError("made")


# --- What is raised ---------------------------------------------------------------------


def operations(core: Core) -> dict[str, Callable[[], Operation[Any]]]:
    """Return each operation that `on_error` is for, by its name."""
    return {
        "get": lambda: core.get("k"),
        "get_item": lambda: core.get_item("k"),
        "stat": lambda: core.stat("k"),
        "set": lambda: core.put("k", b"v"),
        "add": lambda: core.set("add", "k", b"v"),
        "replace": lambda: core.set("replace", "k", b"v"),
        "touch": lambda: core.touch("k", 9),
        "incr": lambda: core.incr("k", 1, 1, None),
        "delete": lambda: core.delete("k"),
    }


METHODS: Final = ("GET", "HEAD", "PUT", "DELETE", "POST")


@pytest.mark.parametrize("name", operations(core_of(FakeNode())))
@pytest.mark.parametrize("failure", OUTAGES, ids=str)
def test_an_outage_is_raised_or_a_miss(
    node: FakeNode, name: str, failure: Exception | int
) -> None:
    """As `on_error` says; it is counted in both cases."""
    node.failures = dict.fromkeys(METHODS, failure)
    core = core_of(node)
    with pytest.raises(CacheError) as caught:
        node.run(operations(core)[name]())
    assert caught.value.is_outage
    silent = core_of(node, on_error="miss")
    assert node.run(operations(silent)[name]()) is None
    errors = [sum(one.stats()["errors"].values()) for one in (core, silent)]
    assert errors == [1, 1]


@pytest.mark.parametrize("name", operations(core_of(FakeNode())))
@pytest.mark.parametrize("status", [400, 401, 403])
def test_a_mistake_of_the_caller_is_always_raised(
    node: FakeNode, name: str, status: int
) -> None:
    """It would never be seen."""
    node.failures = dict.fromkeys(METHODS, status)
    core = core_of(node, on_error="miss")
    with pytest.raises(CacheError, match=str(status)):
        node.run(operations(core)[name]())


@pytest.mark.parametrize("on_error", ["raise", "miss"])
@pytest.mark.parametrize("when_down", [None, "raise", "drop"])
def test_operation_on_a_node_that_is_down_raises_as_the_options_say(
    node: FakeNode, on_error: str, when_down: str | None
) -> None:
    """An outage is seen by exceptions alone, or not at all; nothing is sent."""
    node.failures = dict.fromkeys(METHODS, NodeConnectionError(NODE, "broken"))
    core = core_of(node, failures=1, on_error=on_error, writes_when_down=when_down)
    with suppress(NodeConnectionError):
        node.run(core.get("k"))
    sent = len(node.requests)

    def is_raised(steps: Operation[Any]) -> bool:
        try:
            assert node.run(steps) is None
        except NodeDownError:
            return True
        return False

    assert is_raised(core.get("k")) == (on_error == "raise")
    assert is_raised(core.put("k", b"v")) == (
        when_down == "raise" or (when_down is None and on_error == "raise")
    )
    assert len(node.requests) == sent


def test_purge_is_never_silent(node: FakeNode) -> None:
    """What is not purged would be read; nginx answers 403."""
    core = core_of(node, on_error="miss", admin_token="a")  # noqa: S106
    node.failures["POST"] = 503
    with pytest.raises(UnavailableError):
        node.run(core.purge("p"))
    node.failures["POST"] = 403
    with pytest.raises(AccessDeniedError, match="addresses of all instances"):
        node.run(core.purge("p"))


# --- Changing a value -------------------------------------------------------------------


def test_a_counter_expires_when_it_was_to(node: FakeNode) -> None:
    """However often it is changed: the service has whole seconds only."""
    for pause in (0.001, 0.3, 0.7, 1.9):
        core, began = core_of(node), node.now
        node.run(core.incr("k", 1, 1, 5))
        count = 1
        while (found := node.run(core.incr("k", 1, 1, 5))) != 1:
            count += 1
            assert found == count
            node.now += pause
        assert 5 - pause <= node.now - began <= 6 + pause
        node.stored.clear()


def test_a_value_that_always_changes_is_left_to_others(node: FakeNode) -> None:
    """After some pauses."""
    core = core_of(node)
    node.run(core.put("k", b"1"))
    take = node.take

    def change(step: Any) -> object:
        if isinstance(step, Request) and step.method == "PUT":
            other = f"of another {len(node.requests)}"
            node.stored = dict.fromkeys(node.stored, (b"1", other, 9e9, ""))
        return take(step)

    node.take = change  # type: ignore[method-assign]
    for operation in (core.incr("k", 1, None, None), core.touch("k", 9)):
        node.requests.clear()
        with pytest.raises(ConflictError, match="16"):
            node.run(operation)
        assert node.methods == 16 * ["GET", "PUT"]
    assert node.now > 0


# --- get_or_set -------------------------------------------------------------------------


def test_a_hit_is_one_request(node: FakeNode) -> None:
    """Without a lease."""
    core = core_of(node)
    node.run(core.put("k", b"v"))
    node.requests.clear()
    assert node.run(core.get_or_set("k", make_nothing)) == b"v"
    assert node.methods == ["GET"]


def test_a_missing_value_is_made_with_a_lease(node: FakeNode) -> None:
    """And looked for again once the lease is there."""
    core = core_of(node)
    assert node.run(core.get_or_set("k", lambda: b"v", 60)) == b"v"
    assert node.methods == ["GET", "put", "GET", "PUT", "delete"]
    assert node.requests[1].headers["Cache-Control"] == "max-age=10"
    assert node.requests[3].headers["Cache-Control"] == "max-age=60"
    assert core.stats()["made"] == 1
    assert len(node.stored) == 1


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt()])
def test_what_make_raises_is_raised_and_the_lease_given_back(
    node: FakeNode, error: BaseException
) -> None:
    """The next one makes it at once."""
    core = core_of(node)

    def fail() -> bytes:
        raise error

    with pytest.raises(type(error)):
        node.run(core.get_or_set("k", fail))
    assert not node.stored
    assert node.run(core.get_or_set("k", lambda: b"v")) == b"v"
    assert node.now == 0


def test_an_abandoned_operation_sends_nothing_more(node: FakeNode) -> None:
    """Its lease expires."""
    operation = core_of(node).get_or_set("k", lambda: b"v")
    step = operation.send(None)
    while not isinstance(step, Call):
        step = operation.send(node.take(step))
    operation.close()
    assert node.methods == ["GET", "put", "GET"]


def finish(node: FakeNode, operation: Operation[Any], error: BaseException) -> None:
    """Let a step fail, and take those that follow."""
    step = operation.throw(error)
    while True:
        step = operation.send(node.take(step))


@pytest.mark.parametrize(
    ("name", "at"),
    [*(("get_or_set", at) for at in range(5)), *(("lock", at) for at in range(3))],
)
def test_claim_of_an_operation_that_is_interrupted_at_any_step_is_given_back(
    node: FakeNode, name: str, at: int
) -> None:
    """A lease or a lock, also if the interrupt comes while it is stored."""
    core = core_of(node)
    operation = (
        core.acquire("k", 60, 0)
        if name == "lock"
        else core.get_or_set("k", lambda: b"v")
    )
    step = operation.send(None)
    for _ in range(at):
        step = operation.send(node.take(step))
    node.take(step)  # It is done; the caller does not learn the result.
    with pytest.raises(KeyboardInterrupt):
        finish(node, operation, KeyboardInterrupt())
    claims = (f"/{LEASE_PREFIX}", f"/{LOCK_PREFIX}")
    left = [path for path in node.stored if path.startswith(claims)]
    assert not [path for path in left if not path.endswith("/token")]


def test_an_outage_after_the_lease_gives_it_back(node: FakeNode) -> None:
    """With `on_error="raise"`, where it is raised."""
    core = core_of(node)
    operation = core.get_or_set("k", lambda: b"v")
    step = operation.send(None)
    for _ in range(2):
        step = operation.send(node.take(step))
    with pytest.raises(NodeTimeoutError):
        finish(node, operation, NodeTimeoutError(NODE, "late"))
    assert not node.stored


def hold_lease(node: FakeNode, core: Core) -> None:
    """Take the lease of the key `k`, as a process that dies then."""
    node.run(Making(core, "k", make_nothing, None, 0.0)._acquire_lease())
    node.requests.clear()


def test_the_value_of_another_process_is_waited_for(node: FakeNode) -> None:
    """Until it is there."""
    core = core_of(node)
    hold_lease(node, core)
    node.on_sleep = lambda: node.now > 3 and node.run(core.put("k", b"theirs"))
    assert node.run(core.get_or_set("k", make_nothing)) == b"theirs"
    assert core.stats()["waits"] == 1


def test_a_lease_that_has_expired_is_taken(node: FakeNode) -> None:
    """The process that had it was killed."""
    core = core_of(node, lease_seconds=5)
    hold_lease(node, core)
    assert node.run(core.get_or_set("k", lambda: b"ours")) == b"ours"
    assert 5 <= node.now < 6


def test_a_value_is_made_after_two_leases_of_others(node: FakeNode) -> None:
    """Of processes that each fail: the time a caller waits has a limit."""
    core = core_of(node, lease_seconds=5)
    hold_lease(node, core)

    def others_again() -> None:
        before = len(node.requests)
        node.run(Making(core, "k", make_nothing, None, 0.0)._acquire_lease())
        del node.requests[before:]

    node.on_sleep = others_again
    assert node.run(core.get_or_set("k", lambda: b"ours")) == b"ours"
    assert 10 <= node.now < 11


@pytest.mark.parametrize("failure", OUTAGES, ids=str)
def test_a_value_is_made_without_waiting_if_the_cache_is_out(
    node: FakeNode, failure: Exception | int
) -> None:
    """With `on_error="miss"`; there is no lease to ask for."""
    node.failures = dict.fromkeys(METHODS, failure)
    core = core_of(node, on_error="miss")
    assert node.run(core.get_or_set("k", lambda: b"v")) == b"v"
    assert (node.methods, node.now) == (["GET", "PUT"], 0)


def test_a_value_is_made_at_once_if_its_node_is_down(node: FakeNode) -> None:
    """With `on_error="miss"`; nothing is sent. Else it is an error."""
    for on_error in ("miss", "raise"):
        core = core_of(node, failures=1, on_error=on_error)
        node.failures = dict.fromkeys(METHODS, NodeConnectionError(NODE, "broken"))
        with suppress(NodeConnectionError):
            node.run(core.get("k"))
        node.requests.clear()
        if on_error == "miss":
            assert node.run(core.get_or_set("k", lambda: b"v")) == b"v"
        else:
            with pytest.raises(NodeDownError):
                node.run(core.get_or_set("k", lambda: b"v"))
        assert not node.requests


@pytest.mark.parametrize("on_error", ["raise", "miss"])
@pytest.mark.parametrize("failure", [*OUTAGES, 413], ids=str)
def test_a_value_that_was_made_is_returned_if_it_cannot_be_stored(
    node: FakeNode, on_error: str, failure: Exception | int
) -> None:
    """It was expensive; the error is counted."""
    core = core_of(node, on_error=on_error)

    def make() -> bytes:
        node.failures["PUT"] = failure
        return b"v"

    assert node.run(core.get_or_set("k", make)) == b"v"
    stats = core.stats()
    assert sum(stats["errors"].values()) == 1
    assert stats["operations"]["set"] == {"dropped": 1}


def test_a_value_that_cannot_be_serialized_is_an_error(node: FakeNode) -> None:
    """It is a mistake in the program; the lease is given back."""
    core = core_of(node, Json(), on_error="miss")
    with pytest.raises(SerializationError):
        node.run(core.get_or_set("k", object))
    assert not node.stored


def test_waiting_ends_when_the_node_goes_down(node: FakeNode) -> None:
    """Then the value is made without the cache."""
    core = core_of(node, failures=1, on_error="miss")
    hold_lease(node, core)
    error = NodeConnectionError(NODE, "broken")
    node.on_sleep = lambda: node.failures.update(dict.fromkeys(METHODS, error))
    assert node.run(core.get_or_set("k", lambda: b"v")) == b"v"
    assert node.now < 1
