"""Counters of the memcached protocol: commands, bytes, durations, connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from volcache.histogram import Answers, Histogram

if TYPE_CHECKING:
    from collections.abc import Callable

# The commands that are counted by name, by what they do; all others are "other".
KINDS: Final = {
    "get": ("get", "gets", "mg"),
    "touch": ("touch", "gat", "gats"),
    "set": ("set", "add", "replace", "append", "prepend", "cas", "ms"),
    "incr": ("incr", "decr", "ma"),
    "delete": ("delete", "md"),
    "other": (
        *("flush_all", "version", "verbosity", "stats", "quit", "me", "mn", "auth"),
        "other",
    ),
}
KIND_OF: Final = {name: kind for kind, names in KINDS.items() for name in names}
# The result of a command that cannot be understood; the others are those of `Status`.
ERROR: Final = "error"


@dataclass(slots=True)
class CommandStats:
    """
    Counts since the start; any thread may read them, after `flush`.

    A command is counted by `answers[name, result].observe(started_ns, ns)`: the result is
    the value of its `Status`, or `ERROR`.
    """

    bytes_in: int = 0  # received
    bytes_out: int = 0  # sent
    connections: int = 0  # open now
    connections_total: int = 0  # accepted
    connections_refused: int = 0  # closed at once, because there are too many
    connections_idle: int = 0  # closed after they were idle
    answers: Answers = field(default_factory=partial(Answers, KIND_OF, "other"))
    # Adds what was counted without Python since the last call.
    flush: Callable[[], None] = lambda: None

    def commands(self) -> dict[tuple[str, str], int]:
        """Return the number of commands by name and result."""
        found = sorted(self.answers.copy().items())
        return {(name, result): times.count for (name, result), times in found}

    @property
    def total(self) -> int:
        """The number of commands."""
        return self.answers.number(lambda _: True)

    @property
    def hits(self) -> int:
        """The number of keys read that had a value."""
        return self.answers.number(lambda answer: answer[1] == "hit")

    @property
    def stored(self) -> int:
        """The number of values stored."""
        return self.answers.number(lambda answer: answer[1] == "stored")

    @property
    def misses(self) -> int:
        """The number of keys read that had no value."""
        return self.answers.number(lambda answer: answer[1] == "miss")

    def latencies(self) -> dict[str, Histogram]:
        """Return the durations of commands by kind."""
        return self.answers.merged(KIND_OF)
