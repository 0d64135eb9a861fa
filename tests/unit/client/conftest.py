"""Tests of both clients, and of the client that are coroutines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.client_users import PATIENCE, TaskClient
from support.scripted_server import Peer, ScriptedServer
from volcache_client import Client


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    names = inspect.signature(pyfuncitem.function).parameters
    values = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(pyfuncitem.function(**values))
    return True


@pytest.fixture(params=[Client, TaskClient], ids=["threads", "tasks"])
def connect(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function that makes a client with patience, of each kind."""
    return lambda nodes, **options: request.param(nodes, **{**PATIENCE, **options})


@pytest.fixture
def served(connect: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs a `ScriptedServer`, and a client of it with options."""

    @contextmanager
    def run(
        serve: Callable[[Peer], None] | bytes, **options: Any
    ) -> Iterator[tuple[ScriptedServer, Any]]:
        with ScriptedServer(serve) as server, connect(server.name, **options) as client:
            yield server, client

    return run
