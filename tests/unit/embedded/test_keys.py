"""Keys of an embedded cache: a key is what the server can be asked for, byte for byte."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import example, given
from hypothesis import strategies as st

from volcache.errors import ClientError
from volcache.keys import parse_key
from volcache_client.errors import InvalidKeyError
from volcache_client.keys import KEY_BYTES_MAX, encode_key

PARTS = st.sampled_from(["a", "é", "/", ".", "..", "-", "-/", " ", "\n", "\x7f", "%2e"])
KEYS = st.one_of(
    st.lists(PARTS, max_size=8).map(lambda parts: "".join(parts).encode()),
    st.binary(max_size=20),
    st.integers(KEY_BYTES_MAX - 2, KEY_BYTES_MAX + 2).map(lambda size: b"k" * size),
)


@given(KEYS)
@example(b"")
@example(b"/")
@example(b"/.")
@example(b"a/..b")
def test_key_is_accepted_if_the_server_has_it_under_the_same_bytes(key: bytes) -> None:
    """And refused if the server refuses or resolves it, or it looks like a path."""
    of_server = of_python = None
    with suppress(ClientError):
        of_server = parse_key("/" + key.decode("latin-1"), KEY_BYTES_MAX)
    with suppress(InvalidKeyError):
        of_python = encode_key(key, size_max=KEY_BYTES_MAX)
    assert of_python == (key if of_server == key and key[:1] != b"/" else None)
