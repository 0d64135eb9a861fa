"""
The client for threads: the methods of `AsyncClient`, whose coroutines here never wait.

Its types are in `client.pyi`, which `tools/make_client.py` makes of `methods.py`.
"""

from functools import wraps
from inspect import isasyncgenfunction, iscoroutinefunction, unwrap

from volcache_client.base import BaseReader
from volcache_client.exchanges import run
from volcache_client.methods import AsyncMethods, AsyncReader
from volcache_client.thread_client import ThreadClient


class _Managed:
    """A context manager of tasks, as one of threads."""

    def __init__(self, manager):
        self._manager = manager

    def __enter__(self):
        return run(self._manager.__aenter__())

    def __exit__(self, *raised):
        return run(self._manager.__aexit__(*raised))


def _performed(method):
    """Return a method that performs the coroutine of another one at once."""
    if not isasyncgenfunction(unwrap(method)) and not iscoroutinefunction(method):
        return method
    perform = run if iscoroutinefunction(method) else _Managed

    @wraps(method)
    def performed(*args, **kwargs):
        return perform(method(*args, **kwargs))

    performed.__qualname__ = method.__qualname__.replace("AsyncMethods", "Client")
    return performed


class Reader(BaseReader):
    """A value that is read in parts, by one thread at a time; see `Client.stream`."""

    read = _performed(AsyncReader.read)

    def __iter__(self):
        """Yield all parts that are left."""
        while part := self.read(1 << 16):
            yield part


class Client(ThreadClient):
    __doc__ = AsyncMethods.__doc__.replace(
        "tasks of one event loop", "threads"
    ).replace("async with", "with")
    _make_reader = Reader


for _name, _method in vars(AsyncMethods).items():
    if callable(_method) and not _name.startswith("_"):
        setattr(Client, _name, _performed(_method))
