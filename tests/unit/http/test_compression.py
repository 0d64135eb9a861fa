"""Compression of metrics and statistics, and what `Accept-Encoding` asks for."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from support.instances import operator_of, watch
from support.tables import each_row
from volcache.http.compression import BYTES_MIN, accepts_gzip, compress

if TYPE_CHECKING:
    from volcache.store import Store


@each_row(
    ("accepted", "is_wanted"),
    [
        ("gzip", True),
        ("GZIP", True),
        ("x-gzip", True),
        ("*", True),
        ("gzip, deflate, br, zstd", True),
        ("deflate;q=1 , gzip ; q=0.001", True),
        ("gzip;q=1.000", True),
        ("*;q=0, gzip", True),
        ("", False),
        ("identity", False),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("gzip;Q=0, *", False),
        ("*;q=0", False),
        ("*, gzip;q=0", False),
        ("gzip;q=", False),
        ("gzip;q=2", False),
        ("gzip;q=-1", False),
        ("gzip;q=nan", False),
        ("gzip;q=0.0000", False),
        ("gzip;level=9", False),
        ("gzip;q=1;q=0", False),
        ("gzippy, gzi", False),
        (",;,=,;q=1," * 1000, False),
        ("\x80\xff;q=\u0661", False),
    ],
)
def test_gzip_is_sent_only_to_those_who_accept_it(
    accepted: str,
    is_wanted: bool,  # noqa: FBT001
) -> None:
    """By RFC 9110; with a malformed weight, the coding is not accepted."""
    assert accepts_gzip(accepted) == is_wanted


def test_what_is_compressed_is_read_back() -> None:
    """The same body is always the same bytes."""
    body = b"volcache_keys 1.0\n" * 1000
    assert gzip.decompress(compress(body)) == body
    assert compress(body) == compress(body)
    assert len(compress(body)) < len(body) / 10


@pytest.mark.parametrize(
    ("path", "vary"),
    [("/-/metrics", "Accept, Accept-Encoding"), ("/-/stats", "Accept-Encoding")],
)
def test_metrics_and_statistics_are_compressed_on_request(
    store: Store, path: str, vary: str
) -> None:
    """With the headers that go with it, also to a HEAD."""
    client = operator_of(watch(store))
    plain = client.ask("GET", path)
    packed = client.ask("GET", path, HTTP_ACCEPT_ENCODING="gzip")
    assert plain.headers["Vary"] == packed.headers["Vary"] == vary
    assert "Content-Encoding" not in plain.headers
    assert packed.headers["Content-Encoding"] == "gzip"
    assert int(packed.headers["Content-Length"]) == len(packed.body)
    assert BYTES_MIN < 2 * len(packed.body) < len(plain.body)
    body = gzip.decompress(packed.body).decode()
    assert body.startswith("# HELP") or json.loads(body)["store"]
    head = client.ask("HEAD", path, HTTP_ACCEPT_ENCODING="gzip")
    assert (head.body, head.headers["Content-Encoding"]) == (b"", "gzip")


def test_short_answers_are_not_compressed(store: Store) -> None:
    """They take one packet anyway."""
    client = operator_of(watch(store))
    answer = client.ask("GET", "/-/healthy", HTTP_ACCEPT_ENCODING="gzip")
    assert answer.body == b"ok\n"
    assert "Content-Encoding" not in answer.headers
