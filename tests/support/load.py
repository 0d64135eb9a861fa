"""
Requests on several connections while something happens.

Every answer is kept, and every failure to get one. Reads are checked: a value that was
not stored is an error whatever its status says.
"""

from __future__ import annotations

import http.client
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Self

from support.background import in_background
from support.waiting import wait_until

if TYPE_CHECKING:
    import threading

SECONDS = 10.0


@dataclass(slots=True, kw_only=True)
class Answer:
    """One answer, or none."""

    method: str
    key: str
    status: int  # 0: the connection broke, or the time was up.
    ended: float
    seconds: float
    is_right: bool


@dataclass(slots=True)
class Load:
    """
    Clients that put and get keys of their own, until the context ends.

    Every client knows what it stored last, so it knows which value is right: that one,
    or none. A write without an answer or with an error leaves both the old and the new.
    """

    port: int
    clients: int = 4
    writes: int = 4  # One request of so many.
    repeats: bool = False  # As clients do when a kept connection was closed.
    answers: list[Answer] = field(default_factory=list)
    _running: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        """Start the clients."""
        works = [partial(self._run, number) for number in range(self.clients)]
        self._running.enter_context(in_background(*works))
        return self

    def __exit__(self, *_: object) -> None:
        """End them."""
        self._running.close()

    def wait_for(self, more: int) -> None:
        """Wait until so many more answers have come."""
        goal = len(self.answers) + more
        wait_until(lambda: len(self.answers) >= goal, "answers")

    def count(self, since: float = 0.0) -> Counter[tuple[str, int]]:
        """Count method and status of what has ended since."""
        return Counter((a.method, a.status) for a in self.answers if a.ended >= since)

    def _run(self, number: int, is_ended: threading.Event) -> None:
        allowed: dict[str, set[bytes]] = {}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        turn = 0
        while not is_ended.is_set():
            turn += 1
            key = f"/load/{number}/{turn * 7 % 59}"  # A prime: all are put and got.
            method = "PUT" if turn % self.writes == 0 else "GET"
            body = b"%d:%d" % (number, turn) if method == "PUT" else None
            began = time.monotonic()
            status, value = self._ask(connection, method, key, body)
            if not status and self.repeats:
                status, value = self._ask(connection, method, key, body)
            is_right = True
            if body is not None:
                before = set() if status == 200 else allowed.get(key, set())
                allowed[key] = before | {body}
            elif status == 200:
                is_right = value in allowed.get(key, set())
            ended = time.monotonic()
            self.answers.append(
                Answer(
                    method=method,
                    key=key,
                    status=status,
                    ended=ended,
                    seconds=ended - began,
                    is_right=is_right,
                )
            )
        connection.close()

    @staticmethod
    def _ask(
        connection: http.client.HTTPConnection,
        method: str,
        key: str,
        body: bytes | None,
    ) -> tuple[int, bytes]:
        """Send one request; status 0 when there is no whole answer."""
        try:
            connection.request(method, key, body=body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            connection.close()
            return 0, b""
