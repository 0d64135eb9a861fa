"""
Client libraries of the memcached protocol, byte by byte.

Every test runs with memcached as well, so that what it expects is what an application of
memcached expects.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from support.memcache_clients import DRIVERS, Driver
from support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

_numbers = itertools.count()
MIB = 1 << 20
# memcached counts the key and a header as well.
LARGE = MIB - 1024
VALUES = {
    "empty": b"",
    "one byte": b"\0",
    "every byte": bytes(range(256)) * 4,
    "the end of a command": b"\r\nEND\r\n",
    "another value": b"VALUE key 0 3\r\nabc\r\nEND\r\n",
    "a binary header": b"\x81" + bytes(23),
    "above one packet": os.urandom(70_000),
    "as large as allowed": os.urandom(LARGE),
}


@pytest.fixture
def driver(kind: type[Driver], port: int) -> Iterator[Driver]:
    """Connect each client to each server."""
    with closing(kind(port)) as client:
        yield client


@pytest.fixture
def key() -> str:
    """Return a key that no other test uses."""
    return f"{os.getpid()}/{next(_numbers)}"


def test_set_then_get_of_any_bytes_returns_them(driver: Driver, key: str) -> None:
    """One by one, and all at once."""
    keys = {f"{key}/{name.replace(' ', '_')}": name for name in VALUES}
    for one, name in keys.items():
        driver.set(one, VALUES[name])
        assert driver.get(one) == VALUES[name]
    found = driver.get_many([*keys, f"{key}/none"])
    assert found == {one: VALUES[name] for one, name in keys.items()}


def test_set_and_delete_replace_and_remove_a_value(driver: Driver, key: str) -> None:
    """And a missing one is a miss."""
    assert driver.get(key) is None
    driver.set(key, b"first, longer")
    driver.set(key, b"second")
    assert driver.get(key) == b"second"
    assert driver.delete(key)
    assert driver.get(key) is None
    assert driver.get_many([key]) == {}


def test_set_of_a_key_of_250_bytes_stores_it(driver: Driver, key: str) -> None:
    """Of any that are printed."""
    printed = "".join(map(chr, range(33, 127)))
    for long in ((key + printed * 3)[:250], "x" * (250 - len(key)) + key):
        driver.set(long, b"found")
        assert driver.get(long) == b"found"
        assert driver.get_many([long, long[:249]]) == {long: b"found"}
        driver.delete(long)


def test_add_and_replace_depend_on_what_is_stored(driver: Driver, key: str) -> None:
    """Whether there is a value."""
    assert not driver.replace(key, b"none yet")
    assert driver.get(key) is None
    assert driver.add(key, b"added")
    assert not driver.add(key, b"again")
    assert driver.get(key) == b"added"
    assert driver.replace(key, b"replaced")
    assert driver.get(key) == b"replaced"


def test_cas_stores_only_over_the_version_that_was_read(
    driver: Driver, key: str
) -> None:
    """Of two that read the same version, one stores."""
    driver.set(key, b"1")
    value, unique = driver.gets(key)
    assert value == b"1"
    assert driver.cas(key, b"2", unique)
    assert not driver.cas(key, b"3", unique)
    value, newer = driver.gets(key)
    assert value == b"2"
    assert newer != unique
    assert driver.delete(key)
    assert not driver.cas(key, b"4", newer)
    assert driver.get(key) is None


def test_incr_and_decr_count_within_64_bits(driver: Driver, key: str) -> None:
    """Not below 0, and around at 64 bits."""
    driver.set(key, b"41")
    assert driver.incr(key, 1) == 42
    assert driver.get(key) == b"42"
    assert driver.decr(key, 2) == 40
    assert driver.decr(key, 100) == 0
    driver.set(key, b"%d" % (2**64 - 1))
    assert driver.incr(key, 2) == 1


def test_append_and_prepend_add_to_the_value(driver: Driver, key: str) -> None:
    """If there is one."""
    if "append" in driver.lacks:
        pytest.skip(f"{driver.name} has neither")
    assert not driver.append(key, b"x")
    driver.set(key, b"-")
    assert driver.append(key, b"\r\n>")
    assert driver.prepend(key, b"<\0")
    assert driver.get(key) == b"<\0-\r\n>"


def test_set_of_a_value_too_large_leaves_the_connection_usable(
    driver: Driver, key: str
) -> None:
    """The value before it is gone, as the client wanted to replace it."""
    driver.set(key, b"before")
    with pytest.raises(driver.errors):
        driver.set(key, bytes(MIB + 1))
    driver.set(f"{key}/next", b"stored")
    assert driver.get(f"{key}/next") == b"stored"
    assert driver.get(key) is None


def test_values_with_a_time_to_live_expire(port: int, key: str) -> None:
    """After a second, at a time, or at once; a touched one stays."""
    with ExitStack() as stack:
        drivers = [stack.enter_context(closing(kind(port))) for kind in DRIVERS]
        for number, driver in enumerate(drivers):
            one = f"{key}/{number}"
            driver.set(f"{one}/second", b"x", 1)
            driver.set(f"{one}/time", b"x", int(time.time()) + 1)
            driver.set(f"{one}/later", b"x", 2_000_000_000)
            driver.set(f"{one}/touched", b"x", 1)
            if "touch" in driver.lacks:
                driver.set(f"{one}/touched", b"x", 100)
            else:
                assert driver.touch(f"{one}/touched", 100)
                assert not driver.touch(f"{one}/none", 100)
            driver.set(f"{one}/past", b"x", int(time.time()) - 100)
            assert driver.get(f"{one}/past") is None
        for number, driver in enumerate(drivers):
            one = f"{key}/{number}"
            for name in ("second", "time"):
                wait_until(
                    lambda: driver.get(f"{one}/{name}") is None,  # noqa: B023 - At once.
                    f"{driver.name}: the end of {name}",
                )
            assert driver.get(f"{one}/later") == b"x"
            assert driver.get(f"{one}/touched") == b"x"


def test_get_by_another_client_returns_its_value(port: int, key: str) -> None:
    """What one stores each other reads."""
    with ExitStack() as stack:
        drivers = [stack.enter_context(closing(kind(port))) for kind in DRIVERS]
        for number, writer in enumerate(drivers):
            writer.set(f"{key}/{number}", b"from %s" % writer.name.encode())
        for number, reader in itertools.product(range(len(drivers)), drivers):
            expected = b"from %s" % drivers[number].name.encode()
            assert reader.get(f"{key}/{number}") == expected, reader.name
