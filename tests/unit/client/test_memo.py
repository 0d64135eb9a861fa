"""The keys of memoized calls."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import pytest

from support.tables import each_row
from volcache_client import AsyncClient, Client, InvalidArgumentError
from volcache_client.memo import CallKeys


def area(width: int, height: Any = 1, *more: Any, unit: Any = "m") -> None:
    """Take arguments of each kind."""


KEYS = CallKeys(area, None, None)


def test_key_of_other_arguments_is_another() -> None:
    """By value and by type; the order of sets and of names does not matter."""
    values: list[Any] = [
        None, True, 1, 1.5, "1", b"1", "", "a", "a,b", [], [1], [[1]], {}, {"a": 1},
        {"b": 1}, {1: 1}, float(2**70), 2**70, "\ud800", {"a": {"b": []}}, (1,), ((),),
        (), ((1, 1),), (1, 1), {1}, frozenset({1}), float("inf"), "Any", "a'", 'a"',
    ]  # fmt: skip
    keys = {KEYS.of(2, value) for value in values}
    keys |= {KEYS.of(2, 1, value) for value in values}
    keys |= {KEYS.of(2, unit=value) for value in values}
    assert len(keys) == 3 * len(values)
    assert KEYS.of({3, 1, 2}, {"x": 1, "y": 2}) == KEYS.of({2, 3, 1}, {"y": 2, "x": 1})


@each_row(
    ("value", "what"),
    [(object(), "a object"), ([{"a": {Any}}], "a _"), (bytearray(b"a"), "a bytearray")],
)
def test_key_of_an_object_is_an_error_that_names_the_argument(
    value: object, what: str
) -> None:
    """Two of them may have one text."""
    with pytest.raises(InvalidArgumentError, match=f"argument height has {what}"):
        KEYS.of(2, value)


def test_key_of_an_endless_argument_is_an_error() -> None:
    """It contains itself."""
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InvalidArgumentError, match="too many levels"):
        KEYS.of(2, value)


def test_key_of_wrong_arguments_is_the_error_of_the_call() -> None:
    """As without the cache."""
    with pytest.raises(TypeError, match="width"):
        KEYS.of()


def test_memoize_of_a_name_that_may_be_another_needs_a_prefix() -> None:
    """Their values would be mixed up."""

    def local() -> None:
        pass

    for function in (local, lambda: None):
        with pytest.raises(InvalidArgumentError, match="prefix"):
            CallKeys(function, None, None)
    assert str(CallKeys(local, None, "v2").of()).startswith("memo/v2/")
    main = FunctionType(area.__code__, {}, "area")
    main.__module__ = "__main__"
    with pytest.raises(InvalidArgumentError, match="__main__"):
        CallKeys(main, None, None)


class Shop:
    """Has methods."""

    def __init__(self, name: str) -> None:
        self.name = name

    def price(self, item: str) -> bytes:
        """Return a price."""
        return f"{self.name} {item}".encode()


def test_memoize_of_a_method_needs_a_key() -> None:
    """The key is made of the instance and the arguments."""
    with Client("127.0.0.1:1", on_error="miss", failures=1) as client:

        class CachedShop(Shop):
            """The same, with a cache."""

            price = client.memoize(key=lambda shop, item: f"{shop.name}/{item}")(
                Shop.price
            )
            bare = client.memoize()(Shop.price)

        shop: Any = CachedShop("corner")
        assert shop.price("tea") == b"corner tea"
        assert shop.price.key("tea") == "corner/tea"
        assert shop.price.forget("tea") is False
        with pytest.raises(
            InvalidArgumentError, match="argument self has a CachedShop"
        ):
            shop.bare("tea")


def test_memoize_of_a_function_for_the_other_client_is_refused() -> None:
    """The result of a coroutine can be awaited once; a function would block the loop."""

    async def fetch() -> bytes:
        return b""

    nodes = "127.0.0.1:1"
    with Client(nodes) as client, pytest.raises(InvalidArgumentError, match="AsyncCl"):
        client.memoize(prefix="f")(fetch)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="not a coroutine"):
        AsyncClient(nodes).memoize(prefix="f")(bytes)  # type: ignore[arg-type]


def test_memoize_without_parentheses_is_refused() -> None:
    """The function would be the time to live, and its first call would fail."""
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(InvalidArgumentError, match="with parentheses"),
    ):
        client.memoize(area)  # type: ignore[arg-type]
