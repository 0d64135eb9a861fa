"""A server of HTTP for asyncio that answers byte by byte what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple, Self

from volcache_client import AsyncClient

Script = Callable[["Heard", asyncio.StreamWriter], Awaitable[None]]


class Heard(NamedTuple):
    """
    A request.

    Attributes:
        connection: Number of the connection, from 1.
        line: The first line.
        headers: By name in lower case.
        body: All of it.
    """

    connection: int
    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def method(self) -> str:
        """Such as GET."""
        return self.line.split(" ")[0]

    @property
    def path(self) -> str:
        """As it was sent."""
        return self.line.split(" ")[1]


def reply(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    """Return a complete answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


async def ok(_heard: Heard, writer: asyncio.StreamWriter) -> None:
    """Answer 200."""
    writer.write(reply(b"value"))


def client_of(node: Any, **options: Any) -> AsyncClient[bytes]:
    """Return a client with limits that are longer than a loaded machine needs."""
    nodes = node.name if isinstance(node, RawServer) else node
    return AsyncClient(nodes, **{"timeout": 30.0, "connect_timeout": 30.0, **options})


class RawServer:
    """
    Listens from the beginning of the context to its end.

    Attributes:
        heard: All requests so far.
        open: How many connections are open.
        most: How many were open at the same time.
    """

    def __init__(self, script: Script) -> None:
        """
        Listen to nothing yet.

        Args:
            script: Answers a request; when it returns the connection stays open, unless it
                has closed it.
        """
        self.heard: list[Heard] = []
        self.open = self.most = self.connections = 0
        self.port = 0
        self._script = script
        self._server: asyncio.Server
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def name(self) -> str:
        """The name of the node."""
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.drop()
        await self._server.wait_closed()

    def drop(self) -> None:
        """Close all connections."""
        for writer in list(self._writers):
            writer.close()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        self.open += 1
        self.most = max(self.most, self.open)
        self._writers.add(writer)
        try:
            await self._talk(self.connections, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            self._writers.discard(writer)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _talk(
        self,
        connection: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        while not writer.is_closing():
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *lines = head.split("\r\n")
            pairs = (text.split(": ", 1) for text in lines if text)
            headers = {name.lower(): value for name, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            heard = Heard(connection, line, headers, body)
            self.heard.append(heard)
            await self._script(heard, writer)
            await writer.drain()


class Memory:
    """
    A script that stores values as the service does, conditions included.

    Attributes:
        values: By path, with their ETags.
    """

    def __init__(self) -> None:
        """Begin empty."""
        self.values: dict[str, tuple[bytes, str]] = {}
        self._stored = 0

    async def __call__(self, heard: Heard, writer: asyncio.StreamWriter) -> None:
        """Answer a request."""
        writer.write(getattr(self, f"_{heard.method.lower()}")(heard))

    def _get(self, heard: Heard) -> bytes:
        if heard.path == "/-/ready":
            return reply()
        if heard.path not in self.values:
            return reply(b"", "404 Not Found")
        value, etag = self.values[heard.path]
        return reply(value, "200 OK", f"ETag: {etag}")

    def _put(self, heard: Heard) -> bytes:
        if "if-none-match" in heard.headers and heard.path in self.values:
            return reply(b"", "412 Precondition Failed")
        self._stored += 1
        etag = f'"{self._stored}"'
        self.values[heard.path] = heard.body, etag
        return reply(b"", "200 OK", f"ETag: {etag}")

    def _delete(self, heard: Heard) -> bytes:
        _, etag = self.values.get(heard.path, (b"", ""))
        if not etag:
            return reply(b"", "404 Not Found")
        if heard.headers.get("if-match", etag) != etag:
            return reply(b"", "412 Precondition Failed")
        del self.values[heard.path]
        return reply()


async def until(condition: Callable[[], object], what: str) -> None:
    """Return when the condition holds; fail after 30 seconds, naming it."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 30
    while not condition():
        assert loop.time() < deadline, f"timed out waiting for {what}"
        await asyncio.sleep(0.002)
