"""
Writers whose answers are compared with what they have written.

Each key has one writer. A read may be a miss at any time; else it returns the value that
was acknowledged last, or one that was sent since and whose fate is not known: never an
older one, and never that of another key. What was refused by an instance that does not have
the key was not stored anywhere.
"""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Self

from support.background import in_background
from support.waiting import wait_until

_TIMEOUT_SECONDS: Final = 30.0
_NOT_STORED: Final = b"belongs to another instance"


@dataclass(slots=True)
class History:
    """Writers that run until the context ends; `wrong` has what must not be."""

    port: int
    seed: int
    writers: int = 4
    keys: int = 40  # of each writer
    count: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: list[object] = field(default_factory=list)
    _running: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        """Start the writers."""
        works = [partial(self._run, number) for number in range(self.writers)]
        self._running.enter_context(in_background(*works))
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the writers."""
        self._running.close()

    def wait_for(self, more: int) -> None:
        """Wait for this many more answers."""
        goal = self.count.total() + more
        wait_until(lambda: self.count.total() >= goal, "answers")

    def _run(self, number: int, is_ended: threading.Event) -> None:
        chance = random.Random(f"{self.seed} {number}")  # noqa: S311 - Repeatable.
        allowed: dict[str, set[bytes]] = {}
        connection = http.client.HTTPConnection(
            "127.0.0.1", self.port, timeout=_TIMEOUT_SECONDS
        )
        turn = 0
        while not is_ended.is_set():
            turn += 1
            path = f"/history/{number}/{chance.randrange(self.keys)}"
            method = chance.choice(("GET", "GET", "PUT", "PUT", "DELETE"))
            body = f"{path} {turn}".encode() if method == "PUT" else None
            try:
                connection.request(method, path, body=body)
                answer = connection.getresponse()
                status, text = answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
                status, text = 0, b""
            self.count[method, status] += 1
            known = allowed.setdefault(path, set())
            if method == "GET" and status == 200 and text not in known:
                self.wrong.append((path, text, sorted(known)))
            elif method == "GET" or _NOT_STORED in text:
                continue
            elif status in {200, 404}:
                allowed[path] = {body} if body else set()
            elif body:
                known.add(body)
        connection.close()
