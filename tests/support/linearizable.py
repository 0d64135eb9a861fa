"""
Whether what clients saw of one key could have happened one operation after the other.

Each operation takes effect once, between its beginning and its end, or never if nobody
knows its result. Values are unique, so a value stands for its version.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal, NamedTuple

Kind = Literal["get", "put", "add", "replace", "cas", "delete"]
State = bytes | None


class Operation(NamedTuple):
    """
    What a client asked for, and what it was told.

    Attributes:
        kind: What.
        began: When it was sent.
        ended: When the answer was there; infinite if there was none.
        value: What was to be stored; of a get, what was found.
        is_done: Whether the condition of a write held.
        expected: Of `cas`: the value that was to be replaced.
    """

    kind: Kind
    began: float
    ended: float = inf
    value: State = None
    is_done: bool = True
    expected: State = None

    @property
    def is_known(self) -> bool:
        """Whether there was an answer."""
        return self.ended < inf

    def may_write(self, state: State) -> bool:
        """Whether the condition of a write holds."""
        if self.kind in {"replace", "delete"}:
            return state is not None
        if self.kind == "cas":
            return state == self.expected
        return self.kind == "put" or (self.kind == "add" and state is None)

    def is_possible(self, state: State) -> bool:
        """Whether the answer is right for a state."""
        if not self.is_known:
            return self.kind != "get"
        if self.kind == "get":
            return state == self.value
        return self.may_write(state) == self.is_done

    def after(self, state: State) -> State:
        """Return the state that it leaves; `value` of a delete is None."""
        return self.value if self.may_write(state) else state


def find_order(history: Sequence[Operation]) -> bool:
    """Whether there is an order of the operations in which all answers are right."""
    operations = sorted(history, key=lambda one: one.began)
    start: tuple[int, State] = (0, None)
    seen = {start}
    found = [start]
    while found:
        done, state = found.pop()
        left = [n for n in range(len(operations)) if not done >> n & 1]
        if not any(operations[n].is_known for n in left):
            return True
        first_end = min(operations[n].ended for n in left)
        for number in left:
            one = operations[number]
            if one.began > first_end:
                break
            if not one.is_possible(state):
                continue
            following = done | 1 << number, one.after(state)
            if following not in seen:
                seen.add(following)
                found.append(following)
    return False
