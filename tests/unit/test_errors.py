"""Every error leads to an exit code."""

from __future__ import annotations

import pytest

from volcache.cli.main import EXIT_CODES
from volcache.errors import VolcacheError


def walk(kind: type[VolcacheError]) -> list[type[VolcacheError]]:
    """List all classes below one."""
    below = kind.__subclasses__()
    return below + [deeper for child in below for deeper in walk(child)]


@pytest.mark.parametrize("kind", walk(VolcacheError), ids=lambda kind: kind.__name__)
def test_every_error_has_an_exit_code(kind: type[VolcacheError]) -> None:
    """A class added to the tree is covered by the command line's table."""
    assert [EXIT_CODES[base] for base in kind.__mro__ if base in EXIT_CODES]


def test_root_has_no_exit_code() -> None:
    """A class placed right below the root is noticed by the test above."""
    assert VolcacheError not in EXIT_CODES


def test_no_error_is_taken_for_success() -> None:
    """Exit code 0 is never an error's."""
    assert set(EXIT_CODES.values()) == {1, 2}
