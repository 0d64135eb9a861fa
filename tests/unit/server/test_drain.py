"""drain.py: blocked signals. Draining is tested in tests/integration/test_stopping.py."""

from __future__ import annotations

import subprocess
import sys

# A process of its own: a signal to the test process may reach another of its threads.
NESTED = """
import os, signal
from volcache.server.drain import stop_signals_blocked

with stop_signals_blocked():
    with stop_signals_blocked():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.sigpending() >= {signal.SIGTERM}
assert not signal.sigpending()
print("alive")
"""
HANGUP = """
import os, signal
from volcache.server.drain import block_hangups

block_hangups()
os.kill(os.getpid(), signal.SIGHUP)
assert signal.sigpending() == {signal.SIGHUP}
print("alive")
"""


def run(script: str) -> str:
    """Run a script; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def test_blocked_stop_signals_are_discarded_at_the_outer_end() -> None:
    """A signal that arrives while the process stops has no effect; blocks can be nested."""
    assert run(NESTED) == "alive\n"


def test_blocked_hangup_stays_pending() -> None:
    """It neither ends the process nor is it lost."""
    assert run(HANGUP) == "alive\n"
