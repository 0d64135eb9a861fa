"""signals.py: blocked signals. Stopping is tested in tests/integration/test_stopping.py."""

from __future__ import annotations

import sys

from support.program import ended

# A process of its own: a signal to the test process may reach another of its threads.
SCRIPT = """
import os, signal
from volcache.server.signals import block_hangups, stop_signals_blocked

# A signal that arrives while the process stops has no effect; blocks can be nested.
with stop_signals_blocked():
    with stop_signals_blocked():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.sigpending() >= {signal.SIGTERM}
assert not signal.sigpending()
# A blocked hangup neither ends the process nor is it lost.
block_hangups()
os.kill(os.getpid(), signal.SIGHUP)
assert signal.sigpending() == {signal.SIGHUP}
print("alive")
"""


def test_blocked_stop_signals_are_discarded_and_hangups_stay_pending() -> None:
    """The first at the end of the outer block."""
    done = ended([sys.executable, "-c", SCRIPT])
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr
