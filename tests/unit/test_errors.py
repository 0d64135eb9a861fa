"""errors.py: every error has an exit code."""

from __future__ import annotations

import pytest

from volcache.cli.main import EXIT_CODES
from volcache.errors import VolcacheError


def walk(kind: type[VolcacheError]) -> list[type[VolcacheError]]:
    """Return all subclasses of a class, direct or not."""
    below = kind.__subclasses__()
    return below + [deeper for child in below for deeper in walk(child)]


@pytest.mark.parametrize("kind", walk(VolcacheError), ids=lambda kind: kind.__name__)
def test_every_error_has_an_exit_code(kind: type[VolcacheError]) -> None:
    """The table of the command line covers every class of the tree."""
    found = {EXIT_CODES[base] for base in kind.__mro__ if base in EXIT_CODES}
    assert found
    assert found <= {1, 2}
    # A class directly below the root needs a row.
    assert VolcacheError not in EXIT_CODES
