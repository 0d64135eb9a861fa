"""prometheus.py: the numbers of clients as Prometheus reads them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest, parser

from support.fetched import fetched_program
from volcache_client import Client
from volcache_client.errors import InvalidArgumentError, NodeTimeoutError
from volcache_client.metrics import BUCKETS, Counters, NodeNumbers, Stats
from volcache_client.prometheus import Collector

NUMBERS: NodeNumbers = {
    "up": 1, "requests": 4, "failures": 1, "connections": 2, "in_use": 1,
}  # fmt: skip
NODES: dict[str, NodeNumbers] = {
    "10.0.0.1:1234": NUMBERS,
    "unix:/run/a.sock": dict.fromkeys(NUMBERS, 0),  # type: ignore[dict-item]
}


class Counted:
    """A client that has done something."""

    def __init__(self) -> None:
        self.counters = Counters()
        self.counters.operation_ended("get", "hit", 0.0007)
        self.counters.operation_ended("get", "miss", 0.3)
        self.counters.operation_ended("get", "hit", 60.0)
        self.counters.operation_ended("put", "dropped", 0.1)
        self.counters.error(NodeTimeoutError("10.0.0.1:1234", "no answer"))
        self.counters.making("made")
        for _ in range(2):
            self.counters.making("waits")

    def stats(self) -> Stats:
        """Return the numbers."""
        return self.counters.read(NODES)


def registry_of(collector: Collector) -> CollectorRegistry:
    """Return a registry with this collector."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(collector)
    return registry


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Return the values by name and labels, as the parser of the library reads them."""
    text = generate_latest(registry).decode()
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))
            assert (sample.name, labels) not in found
            found[sample.name, labels] = sample.value
    return found


def test_collect_has_all_numbers() -> None:
    """With the labels client, operation, outcome, error and node."""
    found = samples(registry_of(Collector(Counted(), name="x")))
    node = "client=x,node=10.0.0.1:1234"
    down = "client=x,node=unix:/run/a.sock"
    expected = {
        ("operations_total", "client=x,operation=get,outcome=hit"): 2,
        ("operations_total", "client=x,operation=get,outcome=miss"): 1,
        ("operations_total", "client=x,operation=put,outcome=dropped"): 1,
        ("operation_seconds_count", "client=x,operation=get"): 3,
        ("operation_seconds_sum", "client=x,operation=get"): 0.0007 + 0.3 + 60,
        ("operation_seconds_bucket", "client=x,le=0.0005,operation=get"): 0,
        ("operation_seconds_bucket", "client=x,le=0.001,operation=get"): 1,
        ("operation_seconds_bucket", "client=x,le=0.25,operation=get"): 1,
        ("operation_seconds_bucket", "client=x,le=0.5,operation=get"): 2,
        ("operation_seconds_bucket", "client=x,le=5.0,operation=get"): 2,
        ("operation_seconds_bucket", "client=x,le=+Inf,operation=get"): 3,
        ("errors_total", "client=x,error=NodeTimeoutError"): 1,
        ("made_total", "client=x"): 1,
        ("waits_total", "client=x"): 2,
        ("node_up", node): 1,
        ("node_requests_total", node): 4,
        ("node_failures_total", node): 1,
        ("node_connections", node): 2,
        ("node_in_use", node): 1,
        ("node_up", down): 0,
        ("node_requests_total", down): 0,
        ("node_failures_total", down): 0,
        ("node_in_use", down): 0,
        ("node_connections", down): 0,
    }
    for (name, labels), value in expected.items():
        assert found[f"volcache_client_{name}", labels] == value, (name, labels)
    limits = {key for key in found if key[0].endswith("_bucket")}
    assert len(limits) == 2 * (len(BUCKETS) + 1)
    assert len(found) == len(expected) + len(limits) - 6 + 2  # Sum and count of put.


def test_collect_and_describe_have_the_documented_names() -> None:
    """The table in the module, a registry and a scrape name the same metrics."""
    from volcache_client import prometheus  # noqa: PLC0415 - Its docstring.

    table = [
        line.split()[0]
        for line in str(prometheus.__doc__).splitlines()
        if line.startswith("    volcache_client_")
    ]
    collector = Collector(Counted())
    for families in (collector.describe(), collector.collect()):
        names = [f.name + "_total" * (f.type == "counter") for f in families]
        assert names == table


def test_add_with_a_wrong_name_is_an_error() -> None:
    """Not empty; another client of that name is refused."""
    wrong: list[Any] = ["", None, 1]
    for name in wrong:
        with pytest.raises(InvalidArgumentError, match="allowed is text, not empty"):
            Collector(Counted(), name=name)
    collector = Collector(Counted(), name="a")
    with pytest.raises(
        InvalidArgumentError, match="name='a' is that of another client"
    ):
        collector.add(Counted(), name="a")


def test_collect_of_several_clients_has_a_label_for_each() -> None:
    """In one registry, of which the text has each metric once; promtool accepts it."""
    with Client(["127.0.0.1:1", "127.0.0.1:2"]) as client:
        collector = Collector(client)
        collector.add(Counted(), name="b")
        registry = registry_of(collector)
        text = generate_latest(registry)
        found = samples(registry)
    assert text.count(b"# TYPE volcache_client_node_up gauge\n") == 1
    assert found["volcache_client_node_up", "client=default,node=127.0.0.1:2"] == 1
    for name, made in (("default", 0), ("b", 1)):
        assert found["volcache_client_made_total", f"client={name}"] == made
    done = subprocess.run(
        [fetched_program("promtool"), "check", "metrics"],
        input=text,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")


def test_import_without_the_library_names_it() -> None:
    """With the command that installs it."""
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "try:\n    import volcache_client.prometheus\n"
        "except ImportError as error:\n    print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "needs prometheus-client: pip install 'volcache[server]'" in done.stdout
