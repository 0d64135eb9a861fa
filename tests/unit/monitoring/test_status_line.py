"""status_line.py: one line for `systemctl status`."""

from __future__ import annotations

from support.instances import watch
from volcache.monitoring.commands import CommandStats
from volcache.monitoring.requests import RequestStats
from volcache.monitoring.status_line import StatusLine
from volcache.store import Store


def test_line_has_the_rates_since_the_one_before(store: Store) -> None:
    """Of GETs, and of those and HEADs that found something."""
    requests = RequestStats()
    now = [100.0]
    line = StatusLine(watch(store, requests), clock=lambda: now[0])
    store.put(b"key", b"value")
    now[0] += 10
    assert line.text() == "1 keys, 0 GET/s, no reads"
    for _ in range(15):
        requests.answers["GET", "200 OK", "DISK"].observe(0, 1)
    for _ in range(5):
        requests.answers["GET", "404 Not Found", "MISS"].observe(0, 1)
    now[0] += 10
    assert line.text() == "1 keys, 2 GET/s, 75.0 % hits"
    now[0] += 10
    assert line.text() == "1 keys, 0 GET/s, no reads"


def test_line_begins_with_the_problem(store: Store) -> None:
    """If the instance is not ready."""
    line = StatusLine(watch(store, is_draining=lambda: True))
    assert line.text() == (
        "not ready: the process is stopping and accepts no new connections; 0 keys,"
        " 0 GET/s, no reads"
    )


def test_line_has_the_commands_of_the_memcached_protocol(store: Store) -> None:
    """And the ratio is that of both protocols."""
    requests, commands = RequestStats(), CommandStats()
    now = [100.0]
    monitor = watch(store, requests, commands=commands)
    line = StatusLine(monitor, clock=lambda: now[0])
    requests.answers["GET", "404 Not Found", "MISS"].observe(0, 1)
    for _ in range(3):
        commands.answers["get", "hit"].observe(0, 1)
    for _ in range(17):
        commands.answers["set", "stored"].observe(0, 1)
    now[0] += 10
    assert line.text() == "0 keys, 0 GET/s, 2 memcache/s, 75.0 % hits"
    now[0] += 10
    assert line.text() == "0 keys, 0 GET/s, 0 memcache/s, no reads"
