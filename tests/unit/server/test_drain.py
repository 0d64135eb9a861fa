"""Signals that are held do not strike; the stopper, which takes them, needs a process."""

from __future__ import annotations

import os
import signal

from volcache.server.drain import stop_signals_held


def test_held_signals_are_thrown_away_at_the_outer_end() -> None:
    """What came while ending does not strike afterwards; holds may be nested."""
    with stop_signals_held():
        with stop_signals_held():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.sigpending() >= {signal.SIGTERM}
    assert not signal.sigpending()
