"""Compression of metrics and statistics, and what `Accept-Encoding` asks for."""

from __future__ import annotations

import gzip
import json

from support.instances import operator_of, watch
from volcache.http.compression import BYTES_MIN, accepts_gzip
from volcache.store import Store

WANTED = (
    *("gzip", "GZIP", "x-gzip", "*", "gzip, deflate, br, zstd", "gzip;q=1.000"),
    *("deflate;q=1 , gzip ; q=0.001", "*;q=0, gzip"),
)
REFUSED = (
    *("", "identity", "br", "gzip;q=0", "gzip;q=0.000", "gzip;Q=0, *", "*;q=0"),
    *("*, gzip;q=0", "gzip;q=", "gzip;q=2", "gzip;q=-1", "gzip;q=nan", "gzip;q=0.0000"),
    *("gzip;level=9", "gzip;q=1;q=0", "gzippy, gzi", ",;,=,;q=1," * 1000),
    "\x80\xff;q=\u0661",
)


def test_gzip_is_sent_only_to_those_who_accept_it() -> None:
    """By RFC 9110; with a malformed weight, the coding is not accepted."""
    assert [text for text in (*WANTED, *REFUSED) if accepts_gzip(text)] == [*WANTED]


def test_metrics_and_statistics_are_compressed_on_request(store: Store) -> None:
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
