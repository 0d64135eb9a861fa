"""`POST /-/purge`: which requests are accepted, and what is answered."""

from __future__ import annotations

from typing import Final

from support.stores import FakeClock
from support.wsgi_client import Client
from volcache.cache import Cache
from volcache.http.purge import parse_query
from volcache.store import Store

TOKEN: Final = "open-sesame"  # noqa: S105 - Of no server.


def test_purge_prefix_is_decoded_as_a_path() -> None:
    """Percent-encoded, with or without the first slash; beside it, `dry-run`."""
    for text, prefix in {
        "tiles/12/": b"tiles/12/",
        "/tiles/12/": b"tiles/12/",
        "//a": b"/a",
        "gr%C3%BCn%20%2B%25": b"gr\xc3\xbcn +%",
        "a%3D%26=b": b"a=&=b",
        "-": b"-",
        "x" * 20: b"x" * 20,
    }.items():
        query = f"prefix={text}"
        assert parse_query(query, 20) == (prefix, False)
        assert parse_query(f"dry-run&{query}", 20) == (prefix, True)
        assert parse_query(f"{query}&dry-run=", 20) == (prefix, True)


def test_a_purge_says_what_it_has_done(fifo_store: Store) -> None:
    """And how long its entry stays; a dry run says it in the conditional."""
    store = fifo_store
    for key in (b"a/1", b"a/2", b"b"):
        store.put(key, b"value")
    client = Client(Cache(store), clock=FakeClock(), token=TOKEN)
    token = {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}
    for query, verb, left, entries in (
        ("prefix=a/&dry-run", "would purge", [True, True, True], 0),
        ("prefix=a/", "purged", [False, False, True], 1),
    ):
        more = token | {"QUERY_STRING": query}
        status, _, body = client.ask("POST", "/-/purge", b"", **more)
        text = body.decode()
        assert status == "200 OK"
        assert text.startswith(f"{verb} a/: all values stored so far under this prefix")
        assert "until all present volumes (1) are reclaimed" in text
        assert text.endswith(f"{entries} of 65536 entries are in use\n")
        assert [key in store for key in (b"a/1", b"a/2", b"b")] == left
        assert store.stats.purges == entries
