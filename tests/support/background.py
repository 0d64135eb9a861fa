"""Threads that work beside a test until it has seen enough."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def in_background(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """
    Do each work in a thread of its own until the context ends.

    A work returns soon after the event it is given is set; that is waited for.
    """
    is_ended = threading.Event()
    threads = [
        threading.Thread(target=work, args=[is_ended], daemon=True) for work in works
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_ended.set()
        for thread in threads:
            thread.join()
