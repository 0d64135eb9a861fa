"""Wait for a condition, not for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

DEADLINE_SECONDS: Final = 30.0


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Return when the condition holds; fail after 30 seconds, naming it."""
    assert comes_true(condition), f"timed out waiting for {what}"


def comes_true(
    condition: Callable[[], object], seconds: float = DEADLINE_SECONDS
) -> bool:
    """Wait until the condition holds or the time is up; return whether it holds."""
    started = time.monotonic()
    while not condition():
        passed = time.monotonic() - started
        if passed > seconds:
            return False
        # A condition may cost a request: what takes long is asked less often.
        time.sleep(min(0.005 + passed / 20, 0.05))
    return True
