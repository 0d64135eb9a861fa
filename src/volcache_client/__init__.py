"""Clients of volcache: `Client` for threads, `AsyncClient` for asyncio."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from volcache_client.errors import (
    AccessDeniedError,
    AnswerError,
    CacheError,
    ClientUsageError,
    ConflictError,
    DiscoveryError,
    ForeignValueError,
    InvalidArgumentError,
    InvalidKeyError,
    NodeConnectionError,
    NodeDownError,
    NodeError,
    NodeTimeoutError,
    NotStoredError,
    PoolTimeoutError,
    RefusedRequestError,
    RefusedValueError,
    SerializationError,
    StorageError,
    UnavailableError,
    UnexpectedAnswerError,
    ValueTooLargeError,
)
from volcache_client.messages import Item, Stat
from volcache_client.nodes import NodeEvent

if TYPE_CHECKING:
    from volcache_client.aio import AsyncClient
    from volcache_client.client import Client

__all__ = [
    "AccessDeniedError", "AnswerError", "AsyncClient", "CacheError", "Client",
    "ClientUsageError", "ConflictError", "DiscoveryError", "ForeignValueError",
    "InvalidArgumentError", "InvalidKeyError", "Item", "NodeConnectionError",
    "NodeDownError", "NodeError",
    "NodeEvent", "NodeTimeoutError", "NotStoredError", "PoolTimeoutError",
    "RefusedRequestError", "RefusedValueError", "SerializationError", "Stat",
    "StorageError", "UnavailableError", "UnexpectedAnswerError", "ValueTooLargeError",
]  # fmt: skip

# Without a handler of the application, nothing is printed.
logging.getLogger(__name__).addHandler(logging.NullHandler())


def __getattr__(name: str) -> object:
    """Import a client, and its library, when it is first used."""
    if name == "Client":
        from volcache_client.client import Client  # noqa: PLC0415

        return Client
    if name == "AsyncClient":
        from volcache_client.aio import AsyncClient  # noqa: PLC0415

        return AsyncClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
