"""The connections of clients, and what is held for all of them together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import socket

    from volcache.memcache.decoder import Decoder
    from volcache.memcache.service import ClientSession

# A client that sends less in each second of an incomplete command is disconnected.
_BYTES_PER_SECOND_MIN: Final = 500


@dataclass(slots=True, eq=False)
class Peer:
    """One connection."""

    socket: socket.socket
    fd: int
    session: ClientSession
    decoder: Decoder | None = None  # The first byte decides.
    unsent: memoryview[int] | None = None
    is_ready: bool = False  # It has commands to execute, and waits for its turn.
    is_closing: bool = False  # It is closed when all is sent.
    # While something is held: how many bytes, since when, how much was received or sent
    # since then, and when the last of it was.
    held: int = 0
    since: float = 0.0
    received: int = 0
    progress: float = 0.0


class HeldBytes:
    """Counts the bytes that are held: commands not executed and replies not sent."""

    def __init__(self) -> None:
        """Hold nothing."""
        self.total = 0
        # The one without progress for the longest time first.
        self._peers: dict[int, Peer] = {}

    def update(self, peer: Peer, now: float) -> bool:
        """Count what is held for a connection that has just made progress; if anything."""
        count = peer.decoder.buffered if peer.decoder else 0
        if peer.unsent is not None:
            # All of it is kept as long as a part is left.
            count += len(peer.unsent.obj)  # type: ignore[arg-type]
        if peer.is_ready or not peer.held:
            peer.since, peer.received = now, 0
        if peer.held:
            self.forget(peer)
        if not count:
            return False
        self.total += count
        peer.held, peer.progress = count, now
        self._peers[peer.fd] = peer
        return True

    def forget(self, peer: Peer) -> None:
        """Count nothing for a connection."""
        if self._peers.pop(peer.fd, None) is not None:
            self.total -= peer.held
            peer.held = 0

    def oldest(self) -> Peer:
        """Return the connection without progress for the longest time."""
        return next(iter(self._peers.values()))

    def slow(self, now: float, limit: float) -> list[Peer]:
        """Return those that have made too little progress for too long."""

        def is_slow(peer: Peer) -> bool:
            elapsed = now - peer.since
            sends_little = peer.received < elapsed * _BYTES_PER_SECOND_MIN
            return now - peer.progress > limit or (elapsed > limit and sends_little)

        return [
            peer for peer in self._peers.values() if not peer.is_ready and is_slow(peer)
        ]
