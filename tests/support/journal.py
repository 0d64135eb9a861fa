"""A journal in memory."""

from __future__ import annotations


class MemoryJournal:
    """Stands in for HOT.txt; `is_broken` makes every write fail."""

    def __init__(self, data: bytes = b"") -> None:
        """Begin with some content."""
        self.data = data
        self.is_broken = False

    def read(self) -> bytes:
        """Return all of it."""
        return self.data

    def replace(self, data: bytes) -> None:
        """Replace the content."""
        self._fail()
        self.data = data

    def append(self, data: bytes) -> None:
        """Add bytes."""
        self._fail()
        self.data += data

    def close(self) -> None:
        """Do nothing."""

    def _fail(self) -> None:
        if self.is_broken:
            message = "broken"
            raise OSError(message)
