"""keys.py: which path names which key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volcache.errors import ClientError
from volcache.keys import parse_key, with_query

PIECES = st.sampled_from(["/", ".", "..", "-", "a", "\xff", " ", "\x85", "/-/"])
PATHS = st.one_of(st.text(), st.lists(PIECES).map(lambda pieces: "/" + "".join(pieces)))


@pytest.mark.property
@given(PATHS, st.one_of(st.text(), st.lists(PIECES).map("".join)), st.integers(1, 20))
def test_key_is_canonical_or_a_client_error(
    path: str, query: str, size_max: int
) -> None:
    """For any path and query: a ClientError, or a key that parses to itself."""
    try:
        key = parse_key(with_query(path, query, "key"), size_max)
    except ClientError:
        return
    assert 0 < len(key) <= size_max
    assert not key.startswith(b"-/")
    assert parse_key("/" + key.decode("latin-1"), size_max) == key
