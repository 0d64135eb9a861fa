"""Numbers in the sentences that people read."""

from __future__ import annotations


def counted(count: int, noun: str, form: str = "d") -> str:
    """
    Return how many there are of something: "1 file", "2 files".

    Args:
        count: How many.
        noun: What, for one of them; its plural is made by an `s`.
        form: Of the number, as `format` takes it.
    """
    return f"{count:{form}} {noun}{'' if count == 1 else 's'}"
