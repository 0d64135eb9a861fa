"""
Hostile text takes linear time in every parser of requests, answers, keys and numbers.

The size of a text is raised in steps to 30 KiB, nearly the longest head that is accepted.
The CPU time may grow four times as fast as the size; quadratic time grows a hundred times
as fast. What is too slow is measured again, so the load of the machine decides nothing.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from support.extent import sample
from support.fake_cache import FakeCache
from support.wsgi_client import Client
from volcache.access import Access
from volcache.errors import ClientError
from volcache.http.auth import TokenCheck
from volcache.http.cors import Cors, CorsHeaders
from volcache.keys import parse_key
from volcache.tokens import Refusals
from volcache_client import headers, http1
from volcache_client.adapters._keys import safe_key
from volcache_client.errors import CacheError
from volcache_client.keys import encode_key as client_key
from volcache_client.keys import encode_prefix
from volcache_client.messages import Request
from volcache_client.nodes import parse_address

Parser = Callable[[str], object]

pytestmark = pytest.mark.property

TOKEN: Final = "t"  # noqa: S105 - Of this test.
BASE_BYTES: Final = 256
SIZES: Final = (1024, 4096, 15 * 1024, 30 * 1024)
GROWTH_MAX: Final = 4
NOISE_SECONDS: Final = 20e-6
RUNS_MAX: Final = 5

HEADERS: Final = (
    *("IF_MATCH", "IF_NONE_MATCH", "IF_MODIFIED_SINCE", "IF_UNMODIFIED_SINCE", "RANGE"),
    *("IF_RANGE", "CACHE_CONTROL", "EXPIRES", "CONTENT_ENCODING", "TRANSFER_ENCODING"),
    *("DEPTH", "AUTHORIZATION", "ORIGIN", "HOST", "ACCEPT_ENCODING", "USER_AGENT"),
    *("REFERER", "X_FORWARDED_FOR"),
)
REQUESTS: Final = (
    *(("GET", "/key"), ("PUT", "/key"), ("PROPFIND", "/key/"), ("POST", "/-/purge")),
    ("GET", "/-/stats"),
)


def http_parsers() -> dict[str, Parser]:
    """Return what sends a text in each part of each request, with all wrappers."""
    client = Client(FakeCache(), token=TOKEN, hosts=["a"])
    client.put("/key", b"value", HTTP_CACHE_CONTROL="public")
    refusals = Refusals({"read": 0, "write": 0, "admin": 0})
    access = Access(read="r", write="w")
    checked = TokenCheck(client.app, client.app.send, refusals, access)
    wrapped = Cors(checked, CorsHeaders(["http://a"]))

    def send(method: str, path: str, name: str, text: str) -> None:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "CONTENT_LENGTH": "1",
            "HTTP_AUTHORIZATION": f"Bearer {TOKEN}",
            name: text,
        }
        for application in (client.app, wrapped):
            environ["wsgi.input"] = io.BytesIO(b"v")
            cast("Any", application)(environ, lambda *_: None)

    parts = [f"HTTP_{name}" for name in HEADERS]
    parts += ["CONTENT_TYPE", "CONTENT_LENGTH", "QUERY_STRING", "PATH_INFO"]
    return {
        f"{method} {path} {part}": partial(send, method, path, part)
        for (method, path), part in product(REQUESTS, parts)
    }


def receive(method: str, form: bytes, text: str) -> None:
    """Let the client read an answer with the text in it, and what its headers say."""
    node: Any = SimpleNamespace(name="node")
    exchange = http1.HttpExchange(http1.Host("h:1"), [Request(method, "/key", {})])
    exchange.receive(form % text.encode("latin-1"))
    if not exchange.is_complete:
        exchange.receive(b"")
    answer = exchange.answer()
    headers.stat_of(answer, 0)
    headers.size_of(node, answer)
    headers.etag_of(node, answer)


def other_parsers() -> dict[str, Parser]:
    """Return those of keys, and of the client."""
    found: dict[str, Parser] = {}
    answers = (
        *(b"HTTP/1.1 200 OK\r\n%s\r\n\r\n", b"%s\r\n\r\n", b"HTTP/1.1 %s\r\n\r\n"),
        *(
            b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n%s: %%s\r\n\r\n" % name
            for name in (b"ETag", b"Cache-Control", b"Connection", b"Content-Type")
        ),
        b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nCache-Control: max-age=%s\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n\r\n",
        b"HTTP/1.1 500 x\r\n\r\n%s",
    )
    for method, form in product(("GET", "HEAD"), answers):
        found[f"answer to {method} {form!r}"] = partial(receive, method, form)
    return found | {
        "key of a path": lambda text: parse_key(f"/{text}", 1 << 20),
        "prefix of a client": encode_prefix,
        "key of the client": lambda text: client_key(text.encode("latin-1")),
        "key of an adapter": safe_key,
        "address of a node": parse_address,
        "entity tag": headers.checked_etag,
        "content type": headers.checked_type,
    }


# What a text begins with, what is repeated in it, what is between two halves, and its end.
BEGINNINGS: Final = (
    *("", "bytes=", "max-age=", 'a="', "[", "prefix=", "-", "Basic ", "0."),
)
REPEATED: Final = (
    *(" ", "\t", "9", "0", "a", '"', "\\", ",", ";", "=", "/", "%", "&", ":", "-", "."),
    *("%2", "%41", "/..", "/./", "/a/..", " , ", '\\"', 'a="', 'a="\\', "W/", '""'),
    *('"a",', "0-", "-0,", "1-2,", "a;q=0,", "max-age", "max-age ", ",max-age ="),
    *("a=a", "a b ", "&prefix=", "a=&", "[]", "é", "\x7f", "\n", "\r\n", "a:b\r\n"),
    *("1\r\nx\r\n", "Mon,"),
)
MIDDLES: Final = ("", "-")
ENDS: Final = ("", "x")
SHAPES: Final = {
    f"{begin!r} {repeated!r} {middle!r} {end!r}": (begin, repeated, middle, end)
    for begin, repeated, middle, end in product(BEGINNINGS, REPEATED, MIDDLES, ENDS)
}
# One in so many, and always two: a Range that took hours, and a long number.
SAMPLED: Final = 60
KNOWN: Final = "'bytes=' ' ' '-' 'x'"
DIGITS: Final = "'' '9' '' ''"
TODAY: Final = {KNOWN, DIGITS, *sample(list(SHAPES), SAMPLED)}


def text_of(shape: tuple[str, str, str, str], size: int) -> str:
    """Return a text of about a size."""
    begin, repeated, middle, end = shape
    half = repeated * (size // 2 // len(repeated))
    return f"{begin}{half}{middle}{half}{end}"


def cpu_seconds(parse: Parser, text: str) -> float:
    """Return how long it takes, by the clock of this thread; what is refused is refused."""
    started = time.thread_time()
    with suppress(ClientError, CacheError, http1.BadAnswerError):
        parse(text)
    return time.thread_time() - started


def excess(parse: Parser, shape: tuple[str, str, str, str]) -> str:
    """Return at which size the time is above linear growth; empty if at none."""
    base = max(cpu_seconds(parse, text_of(shape, BASE_BYTES)), NOISE_SECONDS)
    for size in SIZES:
        allowed = GROWTH_MAX * base * size / BASE_BYTES
        text = text_of(shape, size)
        runs = (cpu_seconds(parse, text) for _ in range(RUNS_MAX))
        if not any(seconds <= allowed for seconds in runs):
            return f"{size} bytes take more than {allowed:.6f} s"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("parsers", [http_parsers, other_parsers])
def test_parse_of_hostile_text_takes_linear_time(
    parsers: Callable[[], dict[str, Parser]],
) -> None:
    """For each parser and each shape of text; and nothing but a refusal is raised."""
    found = {
        f"{name}: {shape}": why
        for name, parse in parsers().items()
        for shape in TODAY
        if (why := excess(parse, SHAPES[shape]))
    }
    assert found == {}
