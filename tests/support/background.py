"""Threads that run while a test does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def in_background(*functions: Callable[[threading.Event], None]) -> Iterator[None]:
    """
    Run each function in a thread of its own until the context ends.

    A function must return soon after the event that it is passed is set.
    """
    is_ended = threading.Event()
    threads = [
        threading.Thread(target=function, args=[is_ended], daemon=True)
        for function in functions
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_ended.set()
        for thread in threads:
            thread.join()
