"""
`GET /-/keys?prefix=P&after=CURSOR&limit=N`: the keys of the instance, a page at a time.

Keys are found by reading the volumes, the oldest first: see `store/key_scan.py`. A page
ends with a cursor, after `limit` keys or a few milliseconds: other requests wait so long.
So a page may have no keys although more follow.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import quote_from_bytes

from volcache.errors import BadQueryError
from volcache.http.purge import decode_prefix, parameters
from volcache.text import parse_number

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.store import Store

KEYS_PATH: Final = "/-/keys"
KEYS_MAX: Final = 1000
_PAGE_NS: Final = 5_000_000
_ALLOWED: Final = (
    f"allowed are prefix=..., after=... and limit=1 to {KEYS_MAX}, each once"
)


def list_keys(
    store: Store, query: str, timer: Callable[[], int] = time.perf_counter_ns
) -> bytes:
    """
    Return a page: a line of JSON for each key, and one for where the next page begins.

    Args:
        store: Is read.
        query: Of the request.
        timer: Nanoseconds, monotonic.

    Raises:
        BadQueryError: A parameter is unknown, repeated or wrong.
    """
    given = parameters(query, ("prefix", "after", "limit"), _ALLOWED)
    prefix = decode_prefix(given.get("prefix", ""))
    limit = _limit(given.get("limit", str(KEYS_MAX)))
    try:
        scan = store.key_scan(given.get("after", ""))
    except ValueError:
        raise BadQueryError(
            "bad value of the parameter after; allowed is the one in the last line of a"
            " page of this instance"
        ) from None
    end_ns = timer() + _PAGE_NS
    found = scan.read(prefix, limit, lambda: timer() >= end_ns)
    while scan.cursor and len(found) < limit and timer() < end_ns:
        found += scan.read(prefix, limit - len(found), lambda: timer() >= end_ns)
    rows: list[dict[str, str | None]] = [{"key": quote_from_bytes(k)} for k in found]
    rows.append({"after": scan.cursor or None})
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def _limit(text: str) -> int:
    limit = parse_number(text, KEYS_MAX)
    if not limit:
        raise BadQueryError(f"bad limit {text[:50]!r}; {_ALLOWED}")
    return limit
