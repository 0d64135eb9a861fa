"""
A load of requests on several connections while something happens to the server.

Every response is recorded, and every failure to get one. Values read are compared with
those written.
"""

from __future__ import annotations

import http.client
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from support.background import in_background
from support.waiting import wait_until

SECONDS = 10.0
_NOT_STORED = b"belongs to another instance"


@dataclass(slots=True)
class Answer:
    """One response, or the failure to get one."""

    method: str
    key: str
    status: int  # 0: the connection broke, or the request timed out.
    is_right: bool


@dataclass(slots=True)
class Load:
    """
    Clients that put and get keys of their own until the context ends.

    A client accepts only a miss or the value that it stored last. After a write that failed
    or got no response, both the old and the new value are right; after one that an instance
    refused because the key is not its own, only the old one.
    """

    port: int
    clients: int = 4
    deletes: bool = False  # One request in five is a DELETE.
    repeats: bool = False  # Once, as clients do when a kept connection was closed.
    answers: list[Answer] = field(default_factory=list)
    _running: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        """Start the clients."""
        works = [partial(self._run, number) for number in range(self.clients)]
        self._running.enter_context(in_background(*works))
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the clients."""
        self._running.close()

    def wait_for(self, more: int) -> None:
        """Wait for this many more responses."""
        goal = len(self.answers) + more
        wait_until(lambda: len(self.answers) >= goal, "answers")

    def count(self) -> Counter[tuple[str, int]]:
        """Count the responses by method and status."""
        return Counter((answer.method, answer.status) for answer in self.answers)

    def assert_none_failed(self) -> None:
        """Check that all reads were right, and that no request was refused."""
        assert self.count()["GET", 200]
        assert all(answer.is_right for answer in self.answers)
        assert {status for method, status in self.count() if method == "PUT"} == {200}
        assert {status for _, status in self.count()} <= {200, 404}

    def _run(self, number: int, is_ended: threading.Event) -> None:
        allowed: dict[str, set[bytes]] = {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        turn = 0
        while not is_ended.is_set():
            turn += 1
            key = f"/load/{number}/{turn * 7 % 59}"  # A prime: all are put and got.
            method = "PUT" if turn % 4 == 0 else "GET"
            if self.deletes and turn % 5 == 0:
                method = "DELETE"
            body = b"%d:%d" % (number, turn) if method == "PUT" else None
            status, value = self._ask(connection, method, key, body)
            if not status and self.repeats:
                status, value = self._ask(connection, method, key, body)
            known = allowed.setdefault(key, set())
            is_right = method != "GET" or status != 200 or value in known
            if method != "GET" and _NOT_STORED not in value:
                if status in {200, 404}:
                    known.clear()
                known |= {body} if body else set()
            self.answers.append(Answer(method, key, status, is_right))
        connection.close()

    @staticmethod
    def _ask(
        connection: http.client.HTTPConnection,
        method: str,
        key: str,
        body: bytes | None,
    ) -> tuple[int, bytes]:
        """Send one request; status 0 if there is no complete response."""
        try:
            connection.request(method, key, body=body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return 0, b""
