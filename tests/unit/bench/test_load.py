"""The load: which requests are sent, which answers are right, and what is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from bench.load import Load, LoadError, Run, start_load
from bench.servers import Contender, Dataset, Server
from support.scripted_server import ScriptedServer, answering, value
from support.tables import rows

DATASET = Dataset(count=50, value_bytes=1024)
LOAD = Load(kind="sample", dataset=DATASET, connections=1, sample=10)


@contextmanager
def asked(answer: Callable[[bytes], bytes]) -> Iterator[Callable[[Load, int], Run]]:
    """Yield a function that loads a server, given a load and a seed."""
    with ScriptedServer(answering(answer)) as server:
        contender = Contender(server=Server(lambda _: ()), ports={"http": server.port})
        yield lambda load, seed: start_load(load, contender, seed).result()


def keys_of(load: Load, seed: int = 0) -> list[str]:
    """Return the keys that a load asks for."""
    requests: list[bytes] = []

    def answer(request: bytes) -> bytes:
        requests.append(request)
        return value(DATASET.value)

    with asked(answer) as run:
        assert run(load, seed).requests == len(requests)
    return [request.split()[1][1:].decode() for request in requests]


def test_a_sample_has_each_key_once_and_depends_on_the_seed() -> None:
    """A cold key is read once only; a sequential load has the first keys in order."""
    keys = keys_of(LOAD, 1)
    assert len(keys) == len(set(keys)) == 10
    assert keys == keys_of(LOAD, 1) != keys_of(LOAD, 2)
    assert set(keys) < set(DATASET.keys)
    assert keys_of(replace(LOAD, kind="sequential")) == [f"k{n}" for n in range(10)]


@rows(
    (b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", "answer: HTTP/1.1 500 No"),
    (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "answer: .*404"),
    (value(b"short"), "another size: 5"),
    (value(DATASET.value) * 2, "more than one answer"),
)
def test_a_wrong_answer_ends_the_run(answer: bytes, error: str) -> None:
    """The error shows the answer; it must not count as a fast one."""
    with asked(lambda _: answer) as run, pytest.raises(LoadError, match=error):
        run(LOAD, 0)


def test_a_latency_at_a_fixed_rate_begins_when_the_request_is_due() -> None:
    """The first answer is late, and all others wait for it."""
    late = iter([0.4])

    def answer(_: bytes) -> bytes:
        time.sleep(next(late, 0))
        return value(DATASET.value)

    with asked(answer) as run:
        found = run(replace(LOAD, sample=20, rate=100), 0)
    assert found.requests == 20
    assert found.p50 >= 200  # That of the last one, due after 0.19 s.
    assert found.seconds >= 0.4
