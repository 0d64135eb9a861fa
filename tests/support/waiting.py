"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_SECONDS = 20.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return when the condition holds; fail after a deadline, naming what did not."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.005)
