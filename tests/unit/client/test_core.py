"""What operations do, with a node that a test plays."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

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
from volcache_client.exchanges import run
from volcache_client.making import LEASE_PREFIX, Making
from volcache_client.messages import Answer, Request
from volcache_client.operations import Operations
from volcache_client.options import make_options
from volcache_client.serializers import Json, make_codec

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache_client.messages import Operation
    from volcache_client.options import OptionArguments

NODE: Final = "h:1"
OUTAGES: Final = [
    *(NodeConnectionError(NODE, "broken"), NodeTimeoutError(NODE, "late"), 503, 507),
    302,
]


class FakeNode(Memory):
    """
    A store that answers as an instance does, and a driver; time passes in the pauses.

    Attributes:
        requests: All of them.
        failures: An error or a status for requests of a method, in place of the answer.
        breaks: What is raised after a step was taken, by its number from 0.
        on_sleep: Called in each pause.
        on_request: Called before each answer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.failures: dict[str, Exception | int] = {}
        self.breaks: dict[int, BaseException] = {}
        self.on_sleep: Callable[[], object] = int
        self.on_request: Callable[[Request], object] = str
        self._steps = 0

    async def send(self, _node: Any, request: Request, _timeout: float) -> Answer:
        """Answer a request."""
        self.requests.append(request)
        self.on_request(request)
        failure = self.failures.get(request.method)
        if isinstance(failure, Exception):
            raise failure
        if failure is not None:
            return Answer(failure, {"Content-Length": "2"}, b"no")
        status, headers, body = self.answer(
            request.method, request.path, request.headers, cast("bytes", request.body)
        )
        self._step_ended()
        return Answer(status, {"Content-Length": str(len(body)), **headers}, body)

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.on_sleep()
        self._step_ended()

    async def call(self, function: Callable[[], Any]) -> Any:
        """Call a function."""
        made = function()
        self._step_ended()
        return made

    async def finish(self, steps: Operation[None], _error: BaseException) -> None:
        """Perform the last steps."""
        await steps

    def connections(self) -> dict[Any, tuple[int, int]]:
        """There are none."""
        return {}

    def _step_ended(self) -> None:
        self._steps += 1
        if error := self.breaks.get(self._steps - 1):
            raise error

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
def test_operation_in_an_outage_is_an_error_or_a_miss(
    node: FakeNode, name: str, failure: Exception | int
) -> None:
    """As `on_error` says; it is counted in both cases."""
    node.failures = dict.fromkeys(METHODS, failure)
    core = core_of(node)
    with pytest.raises(CacheError) as caught:
        run(operations(core)[name]())
    assert caught.value.is_outage
    silent = core_of(node, on_error="miss")
    assert run(operations(silent)[name]()) is None
    errors = [sum(one.stats()["errors"].values()) for one in (core, silent)]
    assert errors == [1, 1]


@pytest.mark.parametrize("name", operations(core_of(FakeNode())))
@pytest.mark.parametrize("status", [400, 401, 403])
def test_operation_that_is_refused_is_an_error_with_any_option(
    node: FakeNode, name: str, status: int
) -> None:
    """It would never be seen."""
    node.failures = dict.fromkeys(METHODS, status)
    core = core_of(node, on_error="miss")
    with pytest.raises(CacheError, match=str(status)):
        run(operations(core)[name]())


@pytest.mark.parametrize("on_error", ["raise", "miss"])
@pytest.mark.parametrize("when_down", [None, "raise", "drop"])
def test_operation_on_a_node_that_is_down_raises_as_the_options_say(
    node: FakeNode, on_error: str, when_down: str | None
) -> None:
    """An outage is seen by exceptions alone, or not at all; nothing is sent."""
    node.failures = dict.fromkeys(METHODS, NodeConnectionError(NODE, "broken"))
    core = core_of(node, failures=1, on_error=on_error, writes_when_down=when_down)
    with suppress(NodeConnectionError):
        run(core.get("k"))
    sent = len(node.requests)

    def is_raised(steps: Operation[Any]) -> bool:
        try:
            assert run(steps) is None
        except NodeDownError:
            return True
        return False

    assert is_raised(core.get("k")) == (on_error == "raise")
    assert is_raised(core.put("k", b"v")) == (
        when_down == "raise" or (when_down is None and on_error == "raise")
    )
    assert len(node.requests) == sent


def test_purge_and_lock_in_an_outage_are_errors_with_any_option(node: FakeNode) -> None:
    """What is not purged would be read, and what is not held is never taken for held."""
    core = core_of(node, on_error="miss", admin_token="a")  # noqa: S106
    node.failures = dict.fromkeys(METHODS, 503)
    for operation in (core.purge("p"), core.acquire("k", 5, 0)):
        with pytest.raises(UnavailableError):
            run(operation)
    node.failures["POST"] = 403  # Of nginx.
    with pytest.raises(AccessDeniedError, match="addresses of all instances"):
        run(core.purge("p"))


# --- Changing a value -------------------------------------------------------------------


def test_incr_of_a_counter_keeps_its_expiry(node: FakeNode) -> None:
    """However often it is changed: the service has whole seconds only."""
    for pause in (0.001, 0.3, 0.7, 1.9):
        core, began = core_of(node), node.now
        run(core.incr("k", 1, 1, 5))
        count = 1
        while (found := run(core.incr("k", 1, 1, 5))) != 1:
            count += 1
            assert found == count
            node.now += pause
        assert 5 - pause <= node.now - began <= 6 + pause
        node.stored.clear()


def test_change_of_a_value_that_always_changes_is_a_conflict(node: FakeNode) -> None:
    """After some pauses."""
    core = core_of(node)
    run(core.put("k", b"1"))

    def change(request: Request) -> None:
        if request.method == "PUT":
            other = f"of another {len(node.requests)}"
            node.stored = dict.fromkeys(node.stored, (b"1", other, 9e9, ""))

    node.on_request = change
    for operation in (core.incr("k", 1, None, None), core.touch("k", 9)):
        node.requests.clear()
        with pytest.raises(ConflictError, match="16"):
            run(operation)
        assert node.methods == 16 * ["GET", "PUT"]
    assert node.now > 0


# --- get_or_set -------------------------------------------------------------------------


def test_get_or_set_of_a_hit_is_one_request(node: FakeNode) -> None:
    """Without a lease."""
    core = core_of(node)
    run(core.put("k", b"v"))
    node.requests.clear()
    assert run(core.get_or_set("k", make_nothing)) == b"v"
    assert node.methods == ["GET"]


def test_get_or_set_of_a_miss_makes_the_value_with_a_lease(node: FakeNode) -> None:
    """And looked for again once the lease is there."""
    core = core_of(node)
    assert run(core.get_or_set("k", lambda: b"v", 60)) == b"v"
    assert node.methods == ["GET", "put", "GET", "PUT", "delete"]
    assert node.requests[1].headers["Cache-Control"] == "max-age=10"
    assert node.requests[3].headers["Cache-Control"] == "max-age=60"
    assert core.stats()["made"] == 1
    assert len(node.stored) == 1


@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt()])
def test_get_or_set_whose_make_fails_raises_it_and_gives_the_lease_back(
    node: FakeNode, error: BaseException
) -> None:
    """The next one makes it at once."""
    core = core_of(node)

    def fail() -> bytes:
        raise error

    with pytest.raises(type(error)):
        run(core.get_or_set("k", fail))
    assert not node.stored
    assert run(core.get_or_set("k", lambda: b"v")) == b"v"
    assert node.now == 0


def test_get_or_set_that_is_abandoned_sends_nothing_more(node: FakeNode) -> None:
    """Its lease expires."""
    node.breaks = {3: GeneratorExit()}
    with pytest.raises(GeneratorExit):
        run(core_of(node).get_or_set("k", lambda: b"v"))
    assert node.methods == ["GET", "put", "GET"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), NodeTimeoutError(NODE, "late")])
@pytest.mark.parametrize(
    ("name", "at"),
    [*(("get_or_set", at) for at in range(5)), *(("lock", at) for at in range(3))],
)
def test_claim_of_an_operation_that_is_broken_off_at_any_step_is_given_back(
    node: FakeNode, name: str, at: int, error: BaseException
) -> None:
    """A lease or a lock. Without an answer, it is unknown whether it was stored."""
    core = core_of(node)
    node.breaks = {at: error}
    with suppress(type(error)):
        if name == "lock":
            run(core.acquire("k", 60, 0))
        else:
            run(core.get_or_set("k", lambda: b"v"))
    is_lost = isinstance(error, CacheError) and node.methods[-1] in {"put", "PUT"}
    claims = [path for path in node.stored if "~" in path and "/token" not in path]
    assert is_lost or not claims


def hold_lease(node: FakeNode, core: Core) -> None:
    """Take the lease of the key `k`, as a process that dies then."""
    run(Making(core, "k", make_nothing, None, 0.0)._acquire_lease())
    node.requests.clear()


def test_get_or_set_waits_for_the_value_of_another_process(node: FakeNode) -> None:
    """Until it is there."""
    core = core_of(node)
    hold_lease(node, core)
    node.on_sleep = lambda: node.now > 3 and run(core.put("k", b"theirs"))
    assert run(core.get_or_set("k", make_nothing)) == b"theirs"
    assert core.stats()["waits"] == 1


def test_get_or_set_takes_a_lease_that_has_expired(node: FakeNode) -> None:
    """The process that had it was killed."""
    core = core_of(node, lease_seconds=5)
    hold_lease(node, core)
    assert run(core.get_or_set("k", lambda: b"ours")) == b"ours"
    assert 5 <= node.now < 6


def test_get_or_set_after_two_leases_of_others_makes_the_value(node: FakeNode) -> None:
    """Of processes that each fail: the time a caller waits has a limit."""
    core = core_of(node, lease_seconds=5)
    hold_lease(node, core)

    def others_again() -> None:
        before = len(node.requests)
        run(Making(core, "k", make_nothing, None, 0.0)._acquire_lease())
        del node.requests[before:]

    node.on_sleep = others_again
    assert run(core.get_or_set("k", lambda: b"ours")) == b"ours"
    assert 10 <= node.now < 11


@pytest.mark.parametrize("failure", OUTAGES, ids=str)
def test_get_or_set_in_an_outage_makes_the_value_without_waiting(
    node: FakeNode, failure: Exception | int
) -> None:
    """With `on_error="miss"`; there is no lease to ask for."""
    node.failures = dict.fromkeys(METHODS, failure)
    core = core_of(node, on_error="miss")
    assert run(core.get_or_set("k", lambda: b"v")) == b"v"
    assert (node.methods, node.now) == (["GET", "PUT"], 0)


def test_get_or_set_of_a_node_that_is_down_makes_the_value_at_once(
    node: FakeNode,
) -> None:
    """With `on_error="miss"`; nothing is sent. Else it is an error."""
    for on_error in ("miss", "raise"):
        core = core_of(node, failures=1, on_error=on_error)
        node.failures = dict.fromkeys(METHODS, NodeConnectionError(NODE, "broken"))
        with suppress(NodeConnectionError):
            run(core.get("k"))
        node.requests.clear()
        if on_error == "miss":
            assert run(core.get_or_set("k", lambda: b"v")) == b"v"
        else:
            with pytest.raises(NodeDownError):
                run(core.get_or_set("k", lambda: b"v"))
        assert not node.requests


@pytest.mark.parametrize("on_error", ["raise", "miss"])
@pytest.mark.parametrize("failure", [*OUTAGES, 413], ids=str)
def test_get_or_set_that_cannot_store_returns_the_value(
    node: FakeNode, on_error: str, failure: Exception | int
) -> None:
    """It was expensive; the error is counted."""
    core = core_of(node, on_error=on_error)

    def make() -> bytes:
        node.failures["PUT"] = failure
        return b"v"

    assert run(core.get_or_set("k", make)) == b"v"
    stats = core.stats()
    assert sum(stats["errors"].values()) == 1
    assert stats["operations"]["set"] == {"dropped": 1}


def test_get_or_set_of_a_value_without_a_serializer_is_an_error(node: FakeNode) -> None:
    """It is a mistake in the program; the lease is given back."""
    core = core_of(node, Json(), on_error="miss")
    with pytest.raises(SerializationError):
        run(core.get_or_set("k", object))
    assert not node.stored


def test_get_or_set_that_waits_for_a_node_that_goes_down_makes_the_value(
    node: FakeNode,
) -> None:
    """Then the value is made without the cache."""
    core = core_of(node, failures=1, on_error="miss")
    hold_lease(node, core)
    error = NodeConnectionError(NODE, "broken")
    node.on_sleep = lambda: node.failures.update(dict.fromkeys(METHODS, error))
    assert run(core.get_or_set("k", lambda: b"v")) == b"v"
    assert node.now < 1
