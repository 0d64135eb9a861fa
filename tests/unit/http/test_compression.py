"""Compression of metrics and statistics, and what `Accept-Encoding` asks for."""

from __future__ import annotations

import gzip
import json

from support.instances import operator_of, watch
from volcache.http.compression import BYTES_MIN
from volcache.store import Store


def test_metrics_and_statistics_for_gzip_are_compressed(store: Store) -> None:
    """With the headers that go with it, also to a HEAD; short answers are not."""
    client = operator_of(watch(store))
    both = {"/-/metrics": "Accept, Accept-Encoding", "/-/stats": "Accept-Encoding"}
    for path, vary in both.items():
        plain = client.ask("GET", path)
        packed = client.ask("GET", path, HTTP_ACCEPT_ENCODING="gzip")
        assert plain.headers["Vary"] == packed.headers["Vary"] == vary
        assert "Content-Encoding" not in plain.headers
        assert packed.headers["Content-Encoding"] == "gzip"
        assert BYTES_MIN < 2 * len(packed.body) < len(plain.body)
        body = gzip.decompress(packed.body).decode()
        assert body.startswith("# HELP") or json.loads(body)["store"]
        head = client.ask("HEAD", path, HTTP_ACCEPT_ENCODING="gzip")
        assert (head.body, head.headers["Content-Encoding"]) == (b"", "gzip")
    answer = client.ask("GET", "/-/healthy", HTTP_ACCEPT_ENCODING="gzip")
    assert (answer.body, "Content-Encoding" in answer.headers) == (b"ok\n", False)
