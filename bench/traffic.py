"""
Kinds of load, played by wrk on HTTP servers and by our own client on the others.

Every kind is the same for all contenders: the same keys, in the same proportions, over
as many connections, each with one request under way.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import client
from load import run_wrk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from contenders import Contender, Keys
    from latency import Run

DRAWN = 50_000  # Requests to memcached are made before, and then repeated.


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """
    One kind of load.

    Attributes:
        kind: `get` and `put` of keys drawn at random, `mix` of both, `miss` for keys
            nobody stored, `sample` for GETs of some keys, each once, in random order,
            `all` for GETs of all keys, each once, in the order they were stored.
        exponent: Of Zipf's law by which keys are drawn; 0 draws all alike.
        first: Only so many keys are asked for; 0 means all.
        puts_percent: Of the requests of a mix.

    """

    kind: Literal["get", "put", "mix", "miss", "sample", "all"]
    exponent: float = 0.0
    first: int = 0
    puts_percent: int = 5

    @property
    def has_end(self) -> bool:
        """Whether it ends with the last key and not with the time."""
        return self.kind in {"sample", "all"}

    @property
    def puts_share(self) -> float:
        """How many of its requests are PUTs."""
        return {"put": 1.0, "mix": self.puts_percent / 100}.get(self.kind, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dose:
    """How much of it: in one run, over so many connections."""

    seconds: float
    connections: int
    sample: int
    number: int = 0  # Of the round; each draws another sample.


def play(traffic: Traffic, contender: Contender, keys: Keys, dose: Dose) -> Run:
    """
    Put the load on a contender once.

    Raises:
        LoadError: An answer is not the one that is wanted.
    """
    if traffic.has_end:
        names = listed(traffic, keys, dose)
        requests: Iterable[bytes] = [client.http_get(name) for name in names]
        return run_client(contender, requests, client.is_whole_http, dose)
    if contender.is_memcached:
        requests, is_whole = memcached_requests(traffic, keys)
        return run_client(contender, itertools.cycle(requests), is_whole, dose)
    script, arguments = wrk_script(traffic, keys)
    return run_wrk(
        contender.server.url,
        connections=dose.connections,
        seconds=dose.seconds,
        script=script,
        arguments=arguments,
        misses=traffic.kind == "miss",
    )


def listed(traffic: Traffic, keys: Keys, dose: Dose) -> list[str]:
    """Return the keys of a load that has an end, in order."""
    numbers = range(keys.count)
    if traffic.kind == "all":
        return [f"k{number}" for number in numbers]
    draw = random.Random(dose.number)  # noqa: S311 - load, no secrets
    return [
        f"k{number}" for number in draw.sample(numbers, min(dose.sample, keys.count))
    ]


def run_client(
    contender: Contender,
    requests: Iterable[bytes],
    is_whole: Callable[[bytes], bool],
    dose: Dose,
) -> Run:
    """Let our own client play."""
    loop = client.ClosedLoop([contender.server.port], dose.connections)
    try:
        return loop.run(requests, is_whole, dose.seconds)
    finally:
        loop.close()


def memcached_requests(
    traffic: Traffic, keys: Keys
) -> tuple[list[bytes], Callable[[bytes], bool]]:
    """Draw requests for memcached, and say what their answers are."""
    draw = random.Random(1)  # noqa: S311 - load, no secrets
    count = traffic.first or keys.count
    weights = [rank**-traffic.exponent for rank in range(1, count + 1)]
    numbers = draw.choices(range(count), weights, k=DRAWN)
    if traffic.kind == "put":
        # A few thousand, since each holds a value.
        value = keys.value
        some = numbers[: max(1000, (64 << 20) // keys.value_bytes)]
        made = [client.memcached_set(f"k{number}", value) for number in some]
        return made, client.is_whole_stored
    if traffic.kind == "miss":
        return (
            [client.memcached_get(f"none{number}") for number in numbers],
            client.is_whole_miss,
        )
    return [client.memcached_get(f"k{n}") for n in numbers], client.is_whole_hit


def wrk_script(traffic: Traffic, keys: Keys) -> tuple[str, list[str]]:
    """Return the script that makes wrk play, and its arguments."""
    count, size = str(traffic.first or keys.count), str(keys.value_bytes)
    if traffic.kind == "put":
        return "wrk_put.lua", [size, count]
    if traffic.kind == "mix":
        return "wrk_mix.lua", [size, count, str(traffic.puts_percent)]
    prefix = "none" if traffic.kind == "miss" else "k"
    return "wrk_get.lua", [count, prefix, f"{traffic.exponent:g}"]
