"""
A key that begins with a slash is a path: it is refused with the key of that path.

Over HTTP it is a key, that of a path with two slashes. Whoever gives it to the library or
to the command line would not find the value at the path that was given.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest

import volcache
from volcache.cli.main import main
from volcache.errors import BadKeyError
from volcache.keys import parse_key
from volcache_client import AsyncClient, Client
from volcache_client.errors import InvalidArgumentError, InvalidKeyError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NOWHERE: Final = ["127.0.0.1:1"]  # Nothing is sent.
KEYS: Final = pytest.mark.parametrize(
    "key", ["/abs", b"/abs", "//abs", "/abs/", "/-/abs", "/gr\xfcn/abs", "/"]
)
# What the clients and the embedded cache have in common, and what each has by itself.
COMMON: Final[list[Callable[[Any, Any], Any]]] = [
    lambda cache, key: cache.get(key),
    lambda cache, key: cache.delete(key),
    lambda cache, key: cache.get_or_set(key, lambda: b"made"),
    lambda cache, key: cache.get_many([key]),
]
CLIENT: Final[list[Callable[[Any, Any], Any]]] = [
    *COMMON,
    lambda client, key: client.put(key, b"value"),
    lambda client, key: client.add(key, b"value"),
]
EMBEDDED: Final[list[Callable[[Any, Any], Any]]] = [
    *COMMON,
    lambda cache, key: cache.set(key, b"value"),
    lambda cache, key: cache.__setitem__(key, b"value"),
    lambda cache, key: cache.__getitem__(key),
    lambda cache, key: cache.__contains__(key),
    lambda cache, key: cache.touch(key, 5),
]


def named(key: str | bytes) -> str:
    """Return how an error ends its reason: with the key of the path."""
    data = key if isinstance(key, bytes) else key.encode()
    return f"it begins with a slash; the key of this path is {data.lstrip(b'/')!r};"


@KEYS
def test_client_refuses_it(key: str | bytes) -> None:
    """Whatever is asked."""
    with Client(NOWHERE) as client:
        for call in CLIENT:
            with pytest.raises(InvalidKeyError) as raised:
                call(client, key)
            assert named(key) in str(raised.value)


@KEYS
def test_async_client_refuses_it(key: str | bytes) -> None:
    """Whatever is asked."""

    async def ask() -> None:
        async with AsyncClient(NOWHERE) as client:
            for call in CLIENT:
                with pytest.raises(InvalidKeyError) as raised:
                    await call(client, key)
                assert named(key) in str(raised.value)

    asyncio.run(ask())


def test_prefix_of_a_client_is_a_part_of_the_key() -> None:
    """Only what the service stores under counts."""
    with pytest.raises(InvalidArgumentError, match="begins with a slash"):
        Client(NOWHERE, prefix="/app")


@KEYS
def test_embedded_cache_refuses_it(tmp_path: Path, key: str | bytes) -> None:
    """Whatever is asked; nothing is stored."""
    with volcache.open(tmp_path / "cache", capacity="4MiB") as cache:
        for call in EMBEDDED:
            with pytest.raises(BadKeyError) as raised:
                call(cache, key)
            assert named(key) in str(raised.value)
        assert list(cache) == []


@pytest.mark.parametrize("key", ["/abs", "//abs", "/abs/", "/-/abs"])
def test_command_line_refuses_it(
    key: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With exit code 2, before anything is sent; also percent-encoded."""
    file = tmp_path / "file"
    file.write_bytes(b"value")
    for words in (["get", key], ["put", key, str(file)], ["rm", "good", key]):
        assert main([*words, "-t", NOWHERE[0]]) == 2
        error = capsys.readouterr().err
        assert f"the key of this path is {key.lstrip('/')}" in error
    assert main(["get", "--encoded", "%2Fabs", "-t", NOWHERE[0]]) == 2


def test_http_has_such_keys() -> None:
    """As before."""
    assert parse_key("//abs", 1024) == b"/abs"
