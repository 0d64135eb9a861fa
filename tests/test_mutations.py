"""The pieces `make mutations` takes out are still there to be taken out."""

from __future__ import annotations

import pytest

from mutations import MUTATIONS, ROOT, Mutation


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.what)
def test_each_piece_is_found_exactly_once(mutation: Mutation) -> None:
    """A change of the code that moves one takes the list along."""
    text = (ROOT / "src" / "volcache" / "store" / mutation.file).read_text()
    assert text.count(mutation.old) == 1
