"""
A key that begins with a slash is a path: it is refused with the key of that path.

Over HTTP it is a key, that of a path with two slashes. Whoever gives it to the library or
to the command line would not find the value at the path that was given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest

import volcache
from volcache.cli.main import main
from volcache_client import AsyncClient, Client
from volcache_client.errors import InvalidArgumentError, InvalidKeyError

Call = Callable[[Any, Any], Any]

NOWHERE: Final = ["127.0.0.1:1"]  # Nothing is sent.
KEYS: Final[list[str | bytes]] = [
    *(b"/abs", "/abs", "//abs", "/abs/", "/-/abs", "/gr\xfcn/abs", "/"),
]
# What the clients and the embedded cache have in common, and what each has by itself.
COMMON: Final[list[Call]] = [
    lambda cache, key: cache.get(key),
    lambda cache, key: cache.delete(key),
    lambda cache, key: cache.get_or_set(key, lambda: b"made"),
    lambda cache, key: cache.get_many([key]),
]
CLIENT: Final[list[Call]] = [
    *COMMON,
    lambda client, key: client.set(key, b"value"),
    lambda client, key: client.add(key, b"value"),
]
EMBEDDED: Final[list[Call]] = [
    *COMMON,
    lambda cache, key: cache.set(key, b"value"),
    lambda cache, key: cache.__setitem__(key, b"value"),
    lambda cache, key: cache.__getitem__(key),
    lambda cache, key: cache.__contains__(key),
    lambda cache, key: cache.touch(key, 5),
]


def check_refused(found: Any, calls: list[Call], error: type[Exception]) -> None:
    """Check that each call refuses each key."""
    for call, key in product(calls, KEYS):
        with pytest.raises(error) as raised:
            call(found, key)
        data = key if isinstance(key, bytes) else key.encode()
        named = f"the key of this path is {data.lstrip(b'/')!r};"
        assert f"it begins with a slash; {named}" in str(raised.value)


def test_clients_refuse_it() -> None:
    """Whatever is asked."""
    with Client(NOWHERE) as client:
        check_refused(client, CLIENT, InvalidKeyError)
    with asyncio.Runner() as runner:
        for call in CLIENT:
            waited = partial(lambda call, *to: runner.run(call(*to)), call)
            check_refused(AsyncClient(NOWHERE), [waited], InvalidKeyError)


def test_prefix_of_a_client_is_a_part_of_the_key() -> None:
    """Only what the service stores under counts."""
    with pytest.raises(InvalidArgumentError, match="begins with a slash"):
        Client(NOWHERE, prefix="/app")


def test_embedded_cache_refuses_it(tmp_path: Path) -> None:
    """Whatever is asked; nothing is stored."""
    with volcache.open(tmp_path / "cache", capacity="4MiB") as cache:
        check_refused(cache, EMBEDDED, InvalidKeyError)
        assert list(cache) == []


def test_command_line_refuses_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With exit code 2, before anything is sent; also percent-encoded."""
    file = tmp_path / "file"
    file.write_bytes(b"value")
    for key in ("/abs", "//abs", "/abs/", "/-/abs"):
        for words in (["get", key], ["put", key, str(file)], ["rm", "good", key]):
            assert main([*words, "-t", NOWHERE[0]]) == 2
            error = capsys.readouterr().err
            assert f"the key of this path is {key.lstrip('/')}" in error
    assert main(["get", "--encoded", "%2Fabs", "-t", NOWHERE[0]]) == 2
