"""Waiting for a condition, never for a time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

DEADLINE_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.005


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return when the condition holds; fail after a deadline, naming what did not."""
    assert comes_true(condition), f"waited in vain for {what}"


def comes_true(
    condition: Callable[[], object], seconds: float = DEADLINE_SECONDS
) -> bool:
    """Return when the condition holds, or after a deadline; whether it does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
