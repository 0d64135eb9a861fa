"""Values that both clients make once: single flights, renewals."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from typing import Any, Final

import pytest

from support.client_memory import Memory
from support.client_users import PATIENT, TaskClient
from support.scripted_server import answering
from support.waiting import wait_until
from volcache_client.threads import Renewals


def in_thread(client: Any, make: Callable[[], Any]) -> Callable[[], Any]:
    """Return what makes a value; a loop must not wait for the threads that it serves."""
    is_of_tasks = isinstance(client, TaskClient)
    return partial(asyncio.to_thread, make) if is_of_tasks else make


# The name of the lease of "key", and what is made once.
LEASE: Final = sha256(b"key").hexdigest()


@pytest.mark.parametrize("error", [None, KeyError("made")], ids=["value", "error"])
def test_get_or_set_by_many_makes_a_missing_value_once(
    error: Exception | None, served: Any
) -> None:
    """Each has a value of its own, or the error; then the next call makes it."""
    calls: list[int] = []

    def make() -> list[int]:
        calls.append(1)
        wait_until(lambda: client.stats()["waits"] == 15, "all others")
        if error is not None:
            raise error
        return [1]

    def ask(_: int) -> Any:
        try:
            return client.get_or_set("key", made, 60)
        except KeyError as raised:
            return raised

    with (
        served(answering(Memory()), serializer="json") as (server, client),
        ThreadPoolExecutor(16) as threads,
    ):
        made = in_thread(client, make)
        found = list(threads.map(ask, range(16)))
        numbers = client.stats()
        assert len(calls) == 1
        assert client.get_or_set("key", lambda: [2]) == ([2] if error else [1])
    if error is None:
        assert found == [[1]] * 16
        assert len({id(one) for one in found}) == 16
        assert (numbers["made"], numbers["nodes"][server.name]["failures"]) == (1, 0)
    else:
        assert [str(one) for one in found] == [str(error)] * 16


@pytest.mark.parametrize("error", [None, KeyError("made")], ids=["value", "error"])
def test_get_or_set_of_a_stale_value_returns_it_while_one_caller_renews_it(
    error: Exception | None, served: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits; after an error, which is logged, it is stale and not made at once."""
    calls: list[int] = []
    may_end = threading.Event()

    def make() -> list[int]:
        calls.append(1)
        may_end.wait(PATIENT)
        if error is not None:
            raise error
        return [2]

    with served(answering(Memory()), serializer="json") as (_, client):
        ask = partial(client.get_or_set, "key", in_thread(client, make), 60, stale=100)
        client.set("key", [1], ttl=101)
        assert ask() == [1]  # It is fresh.
        client.set("key", [1], ttl=99)
        assert [ask() for _ in range(5)] == [[1]] * 5
        may_end.set()
        if error is None:
            wait_until(lambda: client.get("key") == [2], "the new value")
            assert (client.stat("key").ttl, ask()) == (160, [2])
        else:
            wait_until(lambda: "was not renewed" in caplog.text, "the error")
            assert ask() == [1]
        wait_until(lambda: not client.exists("~lease/" + LEASE), "the lease")
        assert len(calls) == 1
        assert client.stats()["made"] == (0 if error else 1)


def test_close_does_not_wait_for_a_renewal(
    served: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not wait for `make`, and nothing is logged."""
    may_end, has_begun = threading.Event(), threading.Event()

    def make() -> bytes:
        has_begun.set()
        may_end.wait(PATIENT)
        return b"new"

    with served(answering(Memory())) as (_, client):
        made = in_thread(client, make)
        client.set("key", b"old", ttl=9)
        assert client.get_or_set("key", made, stale=10) == b"old"
        assert has_begun.wait(PATIENT)
        client.close()
        assert client.closed
        may_end.set()
    assert "renewed" not in caplog.text


def test_renewals_begin_up_to_a_bound() -> None:
    """In all, for a key, and after a failure."""
    now = [0.0]
    renewals = Renewals(lambda: now[0], 10)
    assert [renewals.begin(b"%d" % one) for one in range(9)] == [True] * 8 + [False]
    assert not renewals.begin(b"1")
    renewals.ended(b"1", None)
    renewals.ended(b"2", KeyError("made"))
    assert [renewals.begin(key) for key in (b"1", b"2", b"8")] == [True, False, True]
    renewals.ended(b"1", None)
    now[0] = 11.0
    assert renewals.begin(b"2")
