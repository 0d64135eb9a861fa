"""
The gate: C code between the clients and bjoern.

It checks requests before bjoern's parser sees them, passes them one at a time, ends slow
and idle connections, and answers plain requests without Python. `front/gate.h`
describes it; setup.py builds bjoern with what it needs.
"""

from __future__ import annotations

import logging
import os
import resource
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.front import Gate
from volcache.http.app import ALLOW
from volcache.http.content_types import TYPES
from volcache.http.cors import header_lines
from volcache.server.bjoern import gate_link

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.access import Access
    from volcache.front import Readers
    from volcache.http.app import App
    from volcache.http.cors import CorsHeaders

_logger: Final = logging.getLogger("volcache.server")

# Descriptors that connections leave to files that are opened while serving.
_RESERVED_DESCRIPTORS: Final = 64
_CONNECTIONS_MIN: Final = 8
# More than a machine has memory for; the limit may be "unlimited".
_CONNECTIONS_MAX: Final = 1 << 20


class Timeouts(NamedTuple):
    """Seconds after which a connection is closed; 0 = never."""

    head: float  # from the first byte of a request's head to its end
    idle: float  # without a request
    transfer: float  # without progress of a body or of an answer


def change_gate(gate: Gate, *, puts: bool, access: Access, cors: CorsHeaders) -> None:
    """
    Let an open gate answer by other settings, from the next request on.

    Also takes over `slow_ns` and `ring` of its application. Only in the thread that answers
    requests.

    Args:
        gate: Answers nothing before the first call.
        puts: Whether it may answer plain PUTs: none is synced at once, or expires.
        access: Who may read and write.
        cors: Headers for browsers.
    """
    gate.change(
        puts=puts,
        may_read=access.forms("read"),
        may_write=access.forms("write"),
        headers=header_lines(cors.common),
        origins={
            origin: header_lines(headers) for origin, headers in cors.by_origin.items()
        },
    )


class _Log:
    """The `GateLog`: writes events."""

    def full(self, open_: int, closed_idle: int, turned_away: int) -> None:
        """Log that there were too many connections."""
        _logger.warning(
            "connections.full open=%d closed_idle=%d turned_away=%d",
            open_,
            closed_idle,
            turned_away,
        )

    def failed(self, error: BaseException) -> None:
        """Log a bug."""
        _logger.error("gate.failed error=%r", str(error), exc_info=error)


def raise_descriptor_limit() -> None:
    """Let the process open as many files and connections as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # Some kernels refuse an unlimited number.
        _logger.warning(
            "descriptors.limited limit=%d allowed=%d error=%r", soft, hard, str(error)
        )


def connections_max() -> int:
    """Return how many connections leave enough descriptors for files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _CONNECTIONS_MAX
    used = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - Only counted.
    free = soft - used - _RESERVED_DESCRIPTORS
    return min(max(free, _CONNECTIONS_MIN), _CONNECTIONS_MAX)


def open_gate(
    app: App,
    *,
    timeouts: Timeouts,
    readers: Readers,
    connections: int,
    body_memory: int,
    log_answer: Callable[..., None] | None = None,
) -> Gate:
    """
    Install the gate in bjoern; see `change_gate`.

    Args:
        app: Defines every answer; its counters are those of the gate, too.
        timeouts: Of connections.
        readers: Read records which are not in memory.
        connections: The most that are open; see `connections_max`.
        body_memory: Bytes for the bodies of all requests; at least the largest body.
        log_answer: Called for each answer of the gate: `AccessLog.add_native`.

    Returns:
        The gate, to be closed before the store.

    Raises:
        ImportError: bjoern was built for another version of the gate.
    """
    return Gate(
        app,
        TYPES,
        link=gate_link(),
        allow=ALLOW[1],
        log=_Log(),
        log_answer=log_answer,
        readers=readers,
        connections=connections,
        body_memory=body_memory,
        timeouts=timeouts,
    )
