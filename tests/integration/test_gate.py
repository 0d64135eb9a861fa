"""The gate on the wire: what it passes to bjoern, refuses, and answers itself."""

from __future__ import annotations

import json
import re
import socket
import struct
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from support.gate import NEEDS_GATE
from support.process import ServerPool, ServerProcess
from support.waiting import wait_until
from support.wire import ANSWER_SECONDS, Reply, Talk, exchange, request_bytes, send
from volcache.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.memcached import MemcachedProcess

pytestmark = [pytest.mark.sampled(4), pytest.mark.integration, NEEDS_GATE]

KIB: Final = 1 << 10
MIB: Final = 1 << 20
SETTINGS: Final = {
    "volume_size": 16 * MIB,
    "volume_num": 4,
    "max_value_size": MIB,
    "sync_mode": "none",
}
ALLOW: Final = "GET, HEAD, PUT, DELETE, OPTIONS, PROPFIND, MKCOL"
PADDING: Final = "X-Padding: " + "x" * 70 * KIB
PUT_HEAD: Final = b"PUT /kept HTTP/1.1\r\nHost: t\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Yield an instance, which still runs at the end."""
    folder = tmp_path_factory.mktemp("gate")
    with ServerProcess(folder / "data", settings=SETTINGS) as running:
        assert "gate.missing" not in running.stderr
        yield running
        assert running.is_running
        assert "Traceback" not in running.stderr


@pytest.fixture
def port(server: ServerProcess) -> int:
    """Return the port of an instance that has `/kept`."""
    assert exchange(server.port, "PUT", "/kept", b"kept").status == 200
    return server.port


@pytest.fixture
def kept(port: int) -> Iterator[int]:
    """Return the port of an instance that has `/kept`, and still has it at the end."""
    yield port
    assert exchange(port, "GET", "/kept").body == b"kept"


def descriptors(server: ServerProcess) -> int:
    """Return how many files the instance has open."""
    return len(list(Path(f"/proc/{server.pid}/fd").iterdir()))


def read_to_the_end(connection: socket.socket) -> bytes:
    """Read until the connection is closed in order; a reset is an error."""
    connection.settimeout(ANSWER_SECONDS)
    received = b""
    while piece := connection.recv(1 << 16):
        received += piece
    return received


def answer_to(port: int, data: bytes) -> bytes:
    """Send bytes on a new connection; return all that is received until its end."""
    with Talk(port) as client:
        client.send(data)
        client.socket.shutdown(socket.SHUT_WR)
        return read_to_the_end(client.socket)


# --- One request at a time -------------------------------------------------------------


def test_request_whose_first_byte_came_with_the_one_before_is_answered(
    kept: int,
) -> None:
    """It is kept for its request; bjoern alone loses it, and ends."""
    with Talk(kept) as client:
        client.send(request_bytes("GET", "/kept") + b"G")
        assert client.read().body == b"kept"
        client.send(request_bytes("GET", "/kept")[1:])
        assert client.read().body == b"kept"
        client.send(request_bytes("HEAD", "/kept") + b"GE")
        assert client.read("HEAD").status == 200
        client.send(request_bytes("GET", "/kept")[2:])
        assert client.read().body == b"kept"


@pytest.mark.parametrize("header", ["Expect: 100-continue", "Upgrade: h2c"])
def test_head_beyond_the_limit_is_refused_whatever_it_offers(
    kept: int, header: str
) -> None:
    """70 KB, which bjoern reads in two pieces; the next connection is served."""
    for method in ("GET", "PUT"):
        reply = exchange(kept, method, "/kept", headers=f"{header}\n{PADDING}")
        assert reply.status == 431
        assert exchange(kept, "GET", "/kept").body == b"kept"


def test_get_and_a_large_put_in_one_segment_are_answered(port: int) -> None:
    """The second one is longer than bjoern's buffer."""
    value = b"0123456789" * 7 * KIB
    with Talk(port) as client:
        client.send(
            request_bytes("GET", "/kept") + request_bytes("PUT", "/large", value)
        )
        assert client.read().body == b"kept"
        assert client.read("PUT").status == 200
        assert client.exchange("GET", "/large").body == value


@pytest.mark.parametrize("special", ["", "Authorization: x"])
def test_pipelined_gets_are_answered_in_order(port: int, special: str) -> None:
    """By the gate and by the application."""
    for number in range(10):
        exchange(port, "PUT", f"/pipelined/{number}", b"value %d" % number)
    paths = [f"/pipelined/{number % 11}" for number in range(500)]
    with Talk(port) as client:
        client.send(b"".join(request_bytes("GET", p, None, special) for p in paths))
        for number, _ in enumerate(paths):
            reply = client.read()
            found = (200, b"value %d" % (number % 11))
            assert (reply.status, reply.body) == found or reply.status == 404
            assert (reply.status == 404) == (number % 11 == 10)


def test_pipelined_puts_are_all_stored(port: int) -> None:
    """50 in one segment or several, with a length or in chunks."""
    requests = [
        request_bytes("PUT", f"/stored/{number}", b"%d" % number)
        if number % 2
        else request_bytes(
            "PUT", f"/stored/{number}", None, "Transfer-Encoding: chunked"
        )
        + b"%x\r\n%d\r\n0\r\n\r\n" % (len(str(number)), number)
        for number in range(50)
    ]
    with Talk(port) as client:
        client.send(b"".join(requests))
        assert {client.read("PUT").status for _ in requests} == {200}
        for number, _ in enumerate(requests):
            assert client.exchange("GET", f"/stored/{number}").body == b"%d" % number


def test_pipelined_requests_of_all_kinds_are_answered_in_order(port: int) -> None:
    """Each sees what the ones before it have changed."""
    dialog: list[tuple[str, bytes | None, int, bytes]] = [
        ("GET", None, 404, b"no value is stored under this key\n"),
        ("PUT", b"first", 200, b""),
        ("GET", None, 200, b"first"),
        ("HEAD", None, 200, b""),
        ("PUT", b"x" * 20 * KIB, 200, b""),
        ("GET", None, 200, b"x" * 20 * KIB),
        ("DELETE", None, 200, b""),
        ("HEAD", None, 404, b""),
        ("GET", None, 404, b"no value is stored under this key\n"),
        ("DELETE", b"", 404, b"no value is stored under this key\n"),
        ("OPTIONS", None, 200, b""),
        ("PUT", b"", 200, b""),
        ("GET", b"", 200, b""),
        ("DELETE", b"ignored", 200, b""),
    ]
    with Talk(port) as client:
        client.send(
            b"".join(request_bytes(m, "/mixed", body) for m, body, _, _ in dialog) * 3
        )
        for method, _, status, body in dialog * 3:
            reply = client.read(method)
            assert (method, reply.status, reply.body) == (method, status, body)


def test_nothing_after_a_refused_request_is_answered(kept: int) -> None:
    """Whatever follows might be its body."""
    bad = b"GET /kept HTTP/1.1\r\nHost: t\r\nBad Name: x\r\n\r\n"
    put = request_bytes("PUT", "/kept", b"other")
    received = answer_to(kept, request_bytes("GET", "/kept") + bad + put * 2)
    statuses = re.findall(rb"HTTP/1\.1 (\d+)", received)
    assert statuses == [b"200", b"400"]


@pytest.mark.parametrize("offer", ["h2c", "websocket"])
def test_put_after_an_offer_to_upgrade_is_stored(port: int, offer: str) -> None:
    """The offer is not accepted, and is no reason to refuse a body."""
    headers = f"Connection: Upgrade, HTTP2-Settings\nUpgrade: {offer}"
    with Talk(port) as client:
        assert client.exchange("GET", "/kept", None, headers).body == b"kept"
        for value in (b"one", b"two"):
            assert client.exchange("PUT", "/offer", value).status == 200
            assert client.exchange("PUT", "/offer2", value, headers).status == 200
            assert client.exchange("GET", "/offer").body == value
            assert client.exchange("GET", "/offer2", None, headers).body == value


def test_request_may_be_cut_anywhere(port: int) -> None:
    """In its path, within %XX, in a header, in its body: the answer is the same."""
    name = "".join(f"%{32 + n % 90:02X}" for n in range(1023))
    data = request_bytes("PUT", f"/{name}", b"value", "Content-Type: text/css")
    places = [*range(1, 40), *range(len(data) - 90, len(data)), *range(40, 3000, 61)]
    with Talk(port) as client:
        for at in places:
            client.send(data[:at])
            # Lets the first piece arrive alone.
            assert exchange(port, "HEAD", "/kept").status == 200
            client.send(data[at:])
            assert client.read("PUT").status == 200, at
        reply = client.exchange("GET", f"/{name}")
    assert (reply.status, reply.body) == (200, b"value")
    assert reply.headers["Content-Type"] == "text/css"


# --- What is accepted ------------------------------------------------------------------


@pytest.mark.parametrize(
    "head",
    [
        b"Transfer-Encoding: Chunked\r\n\r\n5\r\nvalue\r\n0\r\n\r\n",
        b"transfer-encoding:CHUNKED\t\r\n\r\n005 \r\nvalue\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n4;a=b\r\nvalu\r\n1;c\r\ne\r\n0\r\nT:\r\n\r\n",
        b"Content-Length: 5 \r\n\r\nvalue",
        b"Content-Length:\t005\r\n\r\nvalue",
        b"content-length:5\r\nConnection: x\r\n\r\nvalue",
        b"Expect: 100-Continue\r\nContent-Length: 5\r\n\r\nvalue",
        b"EXPECT:100-CONTINUE\r\nTransfer-Encoding:chunked\r\n\r\n5\r\nvalue\r\n0\r\n\r\n",
        b"Content-Length: 5\r\nTE: trailers\r\nTrailer: T\r\nKeep-Alive: 5\r\n\r\nvalue",
        b"Content-Length: 5\r\nX-Empty:\r\nX-Latin: \xe4\r\n\r\nvalue",
    ],
)
def test_unusual_upload_is_stored(port: int, head: bytes) -> None:
    """As some clients send it; the connection stays open."""
    with Talk(port) as client:
        for path in (b"/unusual", b"http://host:80/unusual"):
            exchange(port, "DELETE", "/unusual")
            client.send(b"PUT %b HTTP/1.1\r\nHost: t\r\n" % path + head)
            reply = client.read("PUT")
            while reply.status == 100:
                reply = client.read("PUT")
            assert reply.status == 200
            assert client.exchange("GET", "/unusual").body == b"value"


def test_continue_is_sent_when_it_is_asked_for(port: int) -> None:
    """Once, before the body; not by HTTP/1.0, and not if the body is there."""
    head = b"Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
    with Talk(port) as client:
        for _ in range(2):
            client.send(b"PUT /asked HTTP/1.1\r\nHost: t\r\n" + head)
            assert client.read("PUT").status == 100
            client.send(b"value")
            assert client.read("PUT").status == 200
        client.send(b"PUT /asked HTTP/1.1\r\nHost: t\r\n" + head + b"value")
        assert client.read("PUT").status == 200
        client.send(b"PUT /asked HTTP/1.0\r\n" + head)
        client.send(b"value")
        assert client.read("PUT").status == 200
        assert client.has_ended()


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/%C3%A4%20%2B+", "/ä +".encode() + b"+"),
        ("/a%2Fb%2e%2E", b"/a/b.."),
        ('/"<>\\^`{|}', b'/"<>\\^`{|}'),
        ("/!$&'()*,;=:@-._~", b"/!$&'()*,;=:@-._~"),
        ("/%ff%FE", b"/\xff\xfe"),
    ],
)
def test_key_of_any_bytes_is_found_by_any_of_its_forms(
    port: int, path: str, known: bytes
) -> None:
    """Percent-encoded wholly or not at all; the query does not count."""
    encoded = "".join(f"%{byte:02x}" for byte in known[1:])
    assert exchange(port, "PUT", path, known).status == 200
    for form in (path, f"/{encoded}", f"/{encoded.upper()}", f"{path}?q=%zz&/../?"):
        reply = exchange(port, "GET", form)
        assert (reply.status, reply.body) == (200, known)


# --- What is refused -------------------------------------------------------------------


class Refused(NamedTuple):
    """Bytes that are no request, the status, and a word of the reason."""

    data: bytes
    status: int
    word: bytes


def of_put(head: bytes, status: int, word: bytes) -> Refused:
    """Return a PUT with a bad head or body."""
    return Refused(PUT_HEAD + head, status, word)


def of_target(target: bytes, word: bytes) -> Refused:
    """Return a GET with a bad target."""
    return Refused(b"GET %b HTTP/1.1\r\nHost: t\r\n\r\n" % target, 400, word)


REFUSED: Final = {
    "huge chunk": of_put(
        b"Transfer-Encoding: chunked\r\n\r\n10000000000000005\r\nvalue\r\n0\r\n\r\n",
        400,
        b"chunk is too large",
    ),
    "chunk of the wrong length": of_put(
        b"Transfer-Encoding: chunked\r\n\r\n3\r\nvalue\r\n0\r\n\r\n", 400, b"chunked"
    ),
    "chunk with a bad size": of_put(
        b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nvalue\r\n0\r\n\r\n", 400, b"chunked"
    ),
    "chunk with two sizes": of_put(
        b"Transfer-Encoding: chunked\r\n\r\n5 5\r\nvalue\r\n0\r\n\r\n", 400, b"chunked"
    ),
    "negative chunk": of_put(
        b"Transfer-Encoding: chunked\r\n\r\n-5\r\nvalue\r\n0\r\n\r\n", 400, b"chunked"
    ),
    "chunk without CR": of_put(
        b"Transfer-Encoding: chunked\r\n\r\n5\nvalue\n0\n\n", 400, b"chunked"
    ),
    "trailer without a name": of_put(
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nvalue\r\n0\r\ntext\r\n\r\n",
        400,
        b"chunked",
    ),
    "no Host": Refused(b"GET /kept HTTP/1.1\r\n\r\n", 400, b"no Host"),
    "two Hosts": of_put(b"Host: u\r\nContent-Length: 1\r\n\r\nx", 400, b"two Host"),
    "bad Host": Refused(b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, b"Host"),
    "both framings": of_put(
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        b"both",
    ),
    "both framings, turned": of_put(
        b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        400,
        b"both",
    ),
    "gzip": of_put(b"Transfer-Encoding: gzip\r\n\r\nx", 501, b"chunked"),
    "gzip, chunked": of_put(
        b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501, b"chunked"
    ),
    "chunked twice": of_put(
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        501,
        b"once",
    ),
    "chunked in HTTP/1.0": Refused(
        b"PUT /kept HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        b"HTTP/1.0",
    ),
    "two lengths": of_put(
        b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400, b"two Content-Length"
    ),
    "list of lengths": of_put(b"Content-Length: 1, 1\r\n\r\nx", 400, b"not a number"),
    "negative length": of_put(b"Content-Length: -1\r\n\r\nx", 400, b"not a number"),
    "signed length": of_put(b"Content-Length: +1\r\n\r\nx", 400, b"not a number"),
    "no length": of_put(b"Content-Length:\r\n\r\nx", 400, b"not a number"),
    "enormous length": of_put(
        b"Content-Length: 18446744073709551617\r\n\r\nx", 400, b"not a number"
    ),
    "unknown expectation": of_put(
        b"Expect: 200-ok\r\nContent-Length: 1\r\n\r\nx", 417, b"100-continue"
    ),
    "LF without CR": Refused(b"GET /kept HTTP/1.1\nHost: t\n\n", 400, b"CR LF"),
    "one LF without CR": Refused(
        b"GET /kept HTTP/1.1\r\nHost: t\nX: y\r\n\r\n", 400, b"CR LF"
    ),
    "empty line without CR": Refused(
        b"GET /kept HTTP/1.1\r\nHost: t\r\n\n", 400, b"CR LF"
    ),
    "CR within a line": of_put(
        b"X: a\rb\r\nContent-Length: 1\r\n\r\nx", 400, b"control"
    ),
    "folded line": of_put(b"X: a\r\n b\r\nContent-Length: 1\r\n\r\nx", 400, b"NAME"),
    "folded line first": Refused(
        b"GET /kept HTTP/1.1\r\n Host: t\r\n\r\n", 400, b"NAME: VALUE"
    ),
    "space before a colon": of_put(b"Content-Length : 1\r\n\r\nx", 400, b"NAME: VALUE"),
    "no colon": of_put(b"Content-Length\r\n\r\nx", 400, b"NAME: VALUE"),
    "no name": of_put(b": 1\r\n\r\n", 400, b"NAME: VALUE"),
    "space in a name": of_put(b"A B: 1\r\n\r\n", 400, b"NAME: VALUE"),
    "NUL in a header": of_put(b"X: a\0b\r\n\r\n", 400, b"control byte"),
    "DEL in a header": of_put(b"X: a\x7fb\r\n\r\n", 400, b"control byte"),
    "HTTP/2.0": Refused(b"GET /kept HTTP/2.0\r\nHost: t\r\n\r\n", 505, b"HTTP/1.1"),
    "HTTP/1.2": Refused(b"GET /kept HTTP/1.2\r\nHost: t\r\n\r\n", 505, b"HTTP/1.1"),
    "HTTP/11": Refused(b"GET /kept HTTP/11\r\nHost: t\r\n\r\n", 400, b"version"),
    "no version": Refused(b"GET /kept\r\n\r\n", 400, b"version"),
    "preface of HTTP/2": Refused(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, b"HTTP/1.1"),
    "TLS": Refused(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03", 400, b"TLS"),
    "text": Refused(b"hello\r\n\r\n", 400, b"METHOD PATH"),
    "two spaces": Refused(b"GET  /kept HTTP/1.1\r\nHost: t\r\n\r\n", 400, b"space"),
    "unknown method": Refused(
        b"REPORT /kept HTTP/1.1\r\nHost: t\r\n\r\n", 405, ALLOW.encode()
    ),
    "method in lower case": Refused(
        b"get /kept HTTP/1.1\r\nHost: t\r\n\r\n", 405, b"method get"
    ),
    "CONNECT": Refused(b"CONNECT t:80 HTTP/1.1\r\nHost: t\r\n\r\n", 405, b"CONNECT"),
    "bad digits": of_target(b"/kept%zz", b"%25"),
    "one digit": of_target(b"/kept%2", b"%25"),
    "percent alone": of_target(b"/%", b"%25"),
    "UTF-8": of_target("/ä".encode(), b"hexadecimal"),
    "space": of_target(b"/a b", b"space"),
    "fragment": of_target(b"/kept#a", b"#"),
    "tab": of_target(b"/a\tb", b"space"),
    "no slash": of_target(b"kept", b"slash"),
    "empty": of_target(b"", b"slash"),
    "other scheme": of_target(b"https://t/kept", b"slash"),
    "no host": of_target(b"http:///kept", b"host"),
    "user": of_target(b"http://user@t/kept", b"host"),
    "asterisk": of_target(b"*", b"OPTIONS"),
    "long head": of_put(b"X: " + b"x" * 33_000 + b"\r\n\r\n", 431, b"32768 bytes"),
    "head without an end": of_put(b"X: " + b"x" * 33_000, 431, b"32768 bytes"),
    "long target": Refused(b"GET /" + b"x" * 33_000, 431, b"32768 bytes"),
    "101 fields": of_put(b"a: b\r\n" * 100 + b"\r\n", 431, b"100"),
    "large body": of_put(b"Content-Length: 1048577\r\n\r\n", 413, b"0 to 1048576"),
    "large expected body": of_put(
        b"Expect: 100-continue\r\nContent-Length: 1048577\r\n\r\n",
        413,
        b"1048577 bytes",
    ),
    "large chunk": of_put(
        b"Transfer-Encoding: chunked\r\n\r\n100001\r\nx", 413, b"0 to 1048576"
    ),
    "large chunks": of_put(
        b"Transfer-Encoding: chunked\r\n\r\n"
        + b"80000\r\n%b\r\n" % (b"x" * 512 * KIB) * 2
        + b"1\r\nx\r\n0\r\n\r\n",
        413,
        b"0 to 1048576",
    ),
}


def assert_refused(received: bytes, case: Refused) -> None:
    """Check that an answer is one line of text, and the only one."""
    head, _, body = received.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert lines[0].startswith(f"HTTP/1.1 {case.status} ")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert headers["Content-Length"] == str(len(body))
    assert headers["Connection"] == "close"
    assert headers["Date"].endswith(" GMT")
    assert headers.get("Allow") == (ALLOW if case.status == 405 else None)
    assert body.endswith(b"\n")
    assert body.count(b"\n") == 1
    assert case.word in body


@pytest.mark.parametrize("name", REFUSED)
def test_bad_request_is_refused_in_one_line(kept: int, name: str) -> None:
    """The reason and what is allowed; then the connection is closed, in order."""
    assert_refused(answer_to(kept, REFUSED[name].data), REFUSED[name])


@pytest.mark.parametrize("name", ["two lengths", "gzip", "large body", "huge chunk"])
def test_refusal_reaches_a_client_that_is_still_sending(kept: int, name: str) -> None:
    """Its body is read and dropped, so that the connection is not reset."""
    case = REFUSED[name]
    with socket.create_connection(("127.0.0.1", kept), ANSWER_SECONDS) as client:
        client.sendall(case.data)
        client.sendall(b"x" * 8 * MIB)
        client.shutdown(socket.SHUT_WR)
        assert_refused(read_to_the_end(client), case)


def test_refused_head_request_gets_no_body(kept: int) -> None:
    """As any answer to a HEAD."""
    data = b"HEAD /kept HTTP/1.1\r\nHost: t\r\nContent-Length: x\r\n\r\n"
    received = answer_to(kept, data)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.endswith(b"Connection: close\r\n\r\n")


def test_body_at_the_limit_is_stored(port: int) -> None:
    """With a length and in chunks."""
    value = b"0123456789abcdef" * (MIB // 16)
    assert exchange(port, "PUT", "/limit", value).status == 200
    assert exchange(port, "GET", "/limit").body == value
    chunks = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (MIB, value)
    data = PUT_HEAD.replace(b"kept", b"limit2") + chunks
    assert send(port, data, "PUT").status == 200
    assert exchange(port, "GET", "/limit2").body == value


def test_head_at_the_limits_is_accepted(kept: int) -> None:
    """32 KiB, and 100 fields."""
    start = b"GET /kept HTTP/1.1\r\nHost: t\r\nX: "
    data = start + b"x" * (32 * KIB - len(start) - 4) + b"\r\n\r\n"
    assert send(kept, data).body == b"kept"
    data = b"GET /kept HTTP/1.1\r\nHost: t\r\n" + b"a: b\r\n" * 99 + b"\r\n"
    assert send(kept, data).body == b"kept"
    assert send(kept, data.replace(b"a: b", b"If-Match: *", 1)).body == b"kept"


# --- The gate's answers are those of the application -----------------------------------

# With either of them, the application answers: natively, and in Python.
OTHER_WAYS: Final = ("Authorization: x", 'If-None-Match: "other"')


class Seen(NamedTuple):
    """An answer as it was sent; `headers` in any order."""

    status: bytes
    headers: frozenset[bytes]
    body: bytes
    first: bytes  # header
    connection: bytes


def see(port: int, start: str, headers: str) -> Seen:
    """Send one request and see the answer."""
    lines = "".join(f"{line}\r\n" for line in headers.splitlines())
    received = answer_to(port, f"{start}\r\nHost: t\r\n{lines}\r\n".encode("latin-1"))
    head, _, body = received.partition(b"\r\n\r\n")
    status, *rest = head.split(b"\r\n")
    assert len(set(rest)) == len(rest)
    connection = b"".join(line for line in rest if line.startswith(b"Connection"))
    return Seen(status, frozenset(rest), body, rest[0], connection)


def see_both(port: int, start: str, headers: str, other: str) -> tuple[Seen, Seen]:
    """Return the answers of the gate and of the application, within one second."""
    found: list[Seen] = []

    def are_of_one_second() -> bool:
        before = see(port, start, headers)
        by_app = see(port, start, f"{headers}\n{other}".strip())
        after = see(port, start, headers)
        found[:] = before, by_app
        return before == after

    wait_until(are_of_one_second, "three answers within a second")
    return found[0], found[1]


VALUES: Final = {
    "plain": ("", b"value"),
    "page.html": ("", b"<p>"),
    "style.CSS": ("", b"a{}"),
    "archive.tar.gz": ("", b"\x1f\x8b"),
    "no.suffix.unknown": ("", b"?"),
    "dir.d/name": ("", b"in a folder"),
    ".hidden": ("", b"dot"),
    "typed": ("Content-Type: text/x-thing; charset=latin-1", b"typed"),
    "typed-latin": ("Content-Type: \xe4\xf6", b"typed"),
    "typed-long": (f"Content-Type: {'t' * 255}\nContent-Encoding: {'e' * 64}", b"long"),
    "encoded.js": ("Content-Encoding: br", b"\x0b"),
    "both": ("Content-Type: a/b\nContent-Encoding: gzip", b"both"),
    "expiring": ("Cache-Control: max-age=5000", b"soon gone"),
    "empty": ("", b""),
    "empty.txt": ("Content-Encoding: x\nCache-Control: max-age=9999", b""),
    "large": ("", b"0123456789abcdef" * (MIB // 16)),
    "%C3%A4%20%ff": ("", b"encoded"),
    "a//b/": ("", b"slashes"),
}


@pytest.fixture(scope="module")
def stored(server: ServerProcess) -> int:
    """Store `VALUES`; return the port when they have a Last-Modified."""
    for name, (headers, value) in VALUES.items():
        reply = exchange(server.port, "PUT", f"/{name}", value, headers)
        assert reply.status == 200, name
    last = f"/{name}"
    wait_until(
        lambda: "Last-Modified" in exchange(server.port, "HEAD", last).headers,
        "the end of the second",
    )
    return server.port


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("other", OTHER_WAYS)
def test_hit_is_that_of_the_application(stored: int, name: str, other: str) -> None:
    """Status line, headers and body, for any type, encoding, length and key."""
    by_gate, by_app = see_both(stored, f"GET /{name} HTTP/1.1", "", other)
    assert by_gate.status == b"HTTP/1.1 200 OK"
    assert by_gate[:3] == by_app[:3]
    assert by_gate.body == VALUES[name][1]
    assert any(line.startswith(b"Last-Modified: ") for line in by_gate.headers)
    # The answers of Python begin with another header: the gate's is none of them.
    assert by_gate.first.startswith(b"Content-Length: ")
    if other == OTHER_WAYS[1]:
        assert by_app.first.startswith(b"X-Position: ")


def test_flags_are_those_of_the_application(tmp_path: Path) -> None:
    """Of a value that another protocol has stored."""
    store = Store.open(str(tmp_path), volume_size=16 * MIB, volume_num=4)
    store.put(b"flagged", b"value", flags=4_000_000_000)
    store.close()
    with ServerProcess(tmp_path, settings=SETTINGS) as server:
        for other in OTHER_WAYS:
            by_gate, by_app = see_both(server.port, "GET /flagged HTTP/1.1", "", other)
            assert by_gate[:3] == by_app[:3]
            assert b"X-Flags: 4000000000" in by_gate.headers
            assert by_gate.first.startswith(b"Content-Length: ")


@pytest.mark.parametrize("other", OTHER_WAYS)
def test_hit_in_the_second_of_its_put_is_that_of_the_application(
    stored: int, other: str
) -> None:
    """Without Last-Modified, which would be in the future."""

    def is_within_the_second() -> bool:
        exchange(stored, "PUT", "/new", b"new")
        by_gate = see(stored, "GET /new HTTP/1.1", "")
        by_app = see(stored, "GET /new HTTP/1.1", other)
        if any(line.startswith(b"Last-Modified") for line in by_app.headers):
            return False
        assert by_gate[:3] == by_app[:3]
        return True

    wait_until(is_within_the_second, "a PUT and two GETs within a second")


@pytest.mark.parametrize(
    ("start", "headers"),
    [
        ("GET /plain?a=b&c HTTP/1.1", ""),
        ("GET /plain? HTTP/1.1", ""),
        ("GET /%70lain HTTP/1.1", ""),
        ("GET http://host:1/plain HTTP/1.1", ""),
        ("GET HTTP://host/plain?x HTTP/1.1", ""),
        ("GET /plain HTTP/1.0", ""),
        ("GET /plain HTTP/1.0", "Connection: keep-alive"),
        ("GET /plain HTTP/1.0", "Connection: Keep-Alive, close"),
        ("GET /plain HTTP/1.1", "Connection: close"),
        ("GET /plain HTTP/1.1", "Connection: x , CLOSE"),
        ("GET /plain HTTP/1.1", "Connection: keep-alive"),
        ("GET /plain HTTP/1.1", "Content-Length: 0"),
        ("GET /plain HTTP/1.1", "Cache-Control: no-cache\nAccept-Encoding: gzip"),
        ("GET /empty HTTP/1.0", "Connection: keep-alive"),
        ("GET /absent HTTP/1.1", ""),
        ("GET /absent HTTP/1.1", "Connection: close"),
        ("GET /absent HTTP/1.0", ""),
        ("GET /absent?plain HTTP/1.1", ""),
        ("GET /%00 HTTP/1.1", ""),
        ("GET /plain%0A HTTP/1.1", ""),
        ("GET / HTTP/1.1", ""),
        ("GET http://host HTTP/1.1", ""),
        ("GET // HTTP/1.1", ""),
        ("GET /plain/ HTTP/1.1", ""),
        ("GET /x/../plain HTTP/1.1", ""),
        ("GET /./plain HTTP/1.1", ""),
        ("GET /%2E%2e/plain HTTP/1.1", ""),
        ("GET /dir.d/../plain HTTP/1.1", ""),
        ("GET /.. HTTP/1.1", ""),
        ("GET /absent/.git HTTP/1.1", ""),
        ("GET /-/healthy HTTP/1.1", ""),
        ("GET /-/ready HTTP/1.1", ""),
        ("GET /-/absent HTTP/1.1", ""),
        ("GET /%2D%2Fhealthy HTTP/1.1", ""),
        ("GET /-/flush HTTP/1.1", ""),
        ("GET /- HTTP/1.1", ""),
        ("GET /-x HTTP/1.1", ""),
        (f"GET /{'k' * 1024} HTTP/1.1", ""),
        (f"GET /{'k' * 1025} HTTP/1.1", ""),
        (f"GET /{'%6b' * 1024} HTTP/1.1", ""),
    ],
)
@pytest.mark.parametrize("other", OTHER_WAYS)
def test_answer_to_any_get_is_that_of_the_application(
    stored: int, start: str, headers: str, other: str
) -> None:
    """Versions, connections, targets, misses, bad keys and reserved paths."""
    by_gate, by_app = see_both(stored, start, headers, other)
    assert by_gate._replace(first=b"") == by_app._replace(first=b"")


def test_connection_stays_open_exactly_if_the_answer_says_so(stored: int) -> None:
    """For the answers of the gate."""
    for start, header, stays in (
        ("GET /plain HTTP/1.1", "", True),
        ("GET /absent HTTP/1.1", "", True),
        ("GET /plain HTTP/1.1", "Connection: close\r\n", False),
        ("GET /absent HTTP/1.1", "Connection: close\r\n", False),
        ("GET /plain HTTP/1.0", "", False),
        ("GET /plain HTTP/1.0", "Connection: keep-alive\r\n", True),
        ("GET /large HTTP/1.1", "", True),
        ("GET /large HTTP/1.0", "", False),
    ):
        with Talk(stored) as client:
            client.send(f"{start}\r\nHost: t\r\n{header}\r\n".encode())
            reply = client.read()
            assert reply.headers["Connection"] == ("Keep-Alive" if stays else "close")
            if stays:
                assert client.exchange("GET", "/plain").body == b"value"
            else:
                assert client.has_ended()


def test_get_sees_every_change_before_it(port: int) -> None:
    """On the same connection and on others."""
    with Talk(port) as writer, Talk(port) as reader:
        for number in range(200):
            value = b"%d" % number
            assert writer.exchange("PUT", "/changing", value).status == 200
            assert reader.exchange("GET", "/changing").body == value
            assert writer.exchange("GET", "/changing").body == value
            if number % 3 == 0:
                assert writer.exchange("DELETE", "/changing").status == 200
                assert reader.exchange("GET", "/changing").status == 404
                assert writer.exchange("GET", "/changing").status == 404


def test_get_after_a_flush_is_a_miss(servers: ServerPool) -> None:
    """On a connection that was answered by the gate before."""
    settings = SETTINGS | {"admin_token": "secret"}
    with servers.server(settings) as server, Talk(server.port) as on:
        assert on.exchange("PUT", "/key", b"value").status == 200
        assert on.exchange("GET", "/key").body == b"value"
        flush = on.exchange("POST", "/-/flush", b"", "Authorization: Bearer secret")
        assert flush.status == 200
        assert on.exchange("GET", "/key").status == 404
        assert on.exchange("PUT", "/key", b"other").status == 200
        assert on.exchange("GET", "/key").body == b"other"


def test_gate_serves_ipv6(tmp_path: Path) -> None:
    """With the address of the client in the access log."""
    path = tmp_path / "access.log"
    settings = SETTINGS | {"ip": "::1", "log_access": str(path)}
    with (
        ServerProcess(tmp_path / "data", settings=settings) as server,
        socket.create_connection(("::1", server.port), ANSWER_SECONDS) as client,
    ):
        client.sendall(request_bytes("PUT", "/key", b"value"))
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
        client.sendall(request_bytes("GET", "/key") * 2)
        client.shutdown(socket.SHUT_WR)
        assert read_to_the_end(client).count(b"\r\n\r\nvalue") == 2
        lines = logged(path, 3)
    assert [line.startswith("::1 - - [") for line in lines[1:]] == [True] * 2


def test_value_expires_for_the_gate(port: int) -> None:
    """Its max-age counts down, then it is a miss."""
    exchange(port, "PUT", "/short", b"v", "Cache-Control: max-age=1")
    replies: list[Reply] = []

    def is_gone() -> bool:
        replies.append(exchange(port, "GET", "/short"))
        return replies[-1].status != 200

    wait_until(is_gone, "the end of its second")
    *before, after = replies
    assert {r.headers["Cache-Control"] for r in before} <= {"max-age=0", "max-age=1"}
    assert (after.status, after.headers["X-Cache"]) == (404, "MISS")


# --- What is counted and logged --------------------------------------------------------


def stats_of(port: int) -> dict[str, Any]:
    """Return the statistics of an instance."""
    found: dict[str, Any] = json.loads(exchange(port, "GET", "/-/stats").body)
    return found


def test_answers_are_counted(tmp_path: Path) -> None:
    """Requests, hits, misses, durations and bytes, in both forms of the numbers."""
    with ServerProcess(tmp_path, settings=SETTINGS) as server, Talk(server.port) as on:
        on.exchange("PUT", "/counted", b"x" * 1000)
        before = stats_of(server.port)
        on.send(request_bytes("GET", "/counted") * 300)
        assert {on.read().status for _ in range(300)} == {200}
        on.send(request_bytes("GET", "/absent") * 200)
        assert {on.read().status for _ in range(200)} == {404}
        after = stats_of(server.port)
        metrics = exchange(server.port, "GET", "/-/metrics").body.decode()
        top = exchange(server.port, "GET", "/-/stats").body
    requests = after["requests"]
    first = before["requests"]
    by = {(row["method"], row["status"]): row["count"] for row in requests["by"]}
    assert by["GET", 404] == requests["missed"] == 200
    assert requests["hits"]["DISK"] - first["hits"]["DISK"] == 300
    assert requests["misses"]["absent"] - first["misses"]["absent"] == 200
    assert requests["bytes_out"] - first["bytes_out"] == 300_000
    assert requests["total"] - first["total"] == 501  # With the first statistics.
    read = after["latency"]["disk_read"]
    assert sum(read["counts"]) == 300
    assert read["sum_seconds"] > 0
    assert re.search(r'^\w*hits_total\{\w+="DISK"\} 300(\.0)?$', metrics, re.MULTILINE)
    assert b"counted" in top  # One in 64 is sampled: missing once in 100 runs at most.


def test_refusals_are_counted(tmp_path: Path) -> None:
    """By method and status, as the answers of the application."""
    with ServerProcess(tmp_path, settings=SETTINGS) as server:
        before = stats_of(server.port)["requests"]["total"]
        for _ in range(3):
            answer_to(server.port, REFUSED["no Host"].data)
        answer_to(server.port, REFUSED["HTTP/2.0"].data)
        answer_to(server.port, REFUSED["unknown method"].data)
        answer_to(server.port, REFUSED["large body"].data)
        answer_to(server.port, REFUSED["TLS"].data)
        requests = stats_of(server.port)["requests"]
    counted = {(row["method"], row["status"]): row["count"] for row in requests["by"]}
    assert counted["GET", 400] == 3
    assert counted["GET", 505] == 1
    assert counted["OTHER", 405] == 1
    assert counted["PUT", 413] == 1
    assert counted["OTHER", 400] == 1
    assert requests["total"] == before + 8  # With the first statistics.


AGENT: Final = 'User-Agent: a "b"\\c\nReferer: http://r/\nX-Forwarded-For: 1.2.3.4, 5'


def logged(path: Path, count: int) -> list[str]:
    """Return the lines of an access log when there are enough."""

    def lines() -> list[str]:
        return [line for line in path.read_text().splitlines() if "/-/" not in line]

    wait_until(lambda: len(lines()) >= count, f"{count} lines")
    found = lines()
    assert len(found) == count
    return found


@pytest.mark.parametrize("form", ["text", "json"])
def test_access_log_has_the_same_line_from_the_gate(tmp_path: Path, form: str) -> None:
    """As for a request that the application answers, but for the time."""
    path = tmp_path / "access.log"
    settings = SETTINGS | {"log_access": str(path), "log_format": form}
    targets = ("/a%20b.css?q=%20%FF", "http://host/a%20b.css", "/absent?", "/%C3%A4")
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        exchange(server.port, "PUT", "/a%20b.css", b"value")
        for way in ("", OTHER_WAYS[1]):
            logged(path, 1 + len(targets) * bool(way))
            for number, target in enumerate(targets):
                headers = f"{AGENT}\n{way}".strip() if number else way
                exchange(server.port, "GET", target, None, headers)
        _, *lines = logged(path, 1 + 2 * len(targets))
    by_gate, by_app = lines[: len(targets)], lines[len(targets) :]
    assert [_timeless(line) for line in by_gate] == [_timeless(line) for line in by_app]
    first, second, third, fourth = by_gate
    assert "/a%20b.css?q=%20%FF" in first
    assert "DISK" in first
    assert "1.2.3.4, 5" in second
    assert "MISS" in third
    assert "/%C3%A4" in fourth
    seconds = [
        float(match[1])
        for line in lines
        if (match := re.search(r'seconds"?[=:] ?([0-9.e-]+)', line))
    ]
    assert len(seconds) == len(lines)
    assert all(0 < number < 5 for number in seconds)


def _timeless(line: str) -> str:
    """Remove what differs from one request to the next."""
    line = re.sub(r'seconds"?[=:] ?[0-9.e-]+', "", line)
    return re.sub(r'"time": "[^"]*"|\[[^\]]*\]', "", line)


def test_access_log_has_a_line_for_each_of_many_answers(tmp_path: Path) -> None:
    """More than are kept before they are written; none is lost at the end."""
    path = tmp_path / "access.log"
    settings = SETTINGS | {"log_access": str(path)}
    with ServerProcess(tmp_path / "data", settings=settings) as server:
        exchange(server.port, "PUT", "/key", b"value")
        with Talk(server.port) as client:
            for _ in range(10):
                client.send(request_bytes("GET", "/key", None, AGENT) * 300)
                assert {client.read().status for _ in range(300)} == {200}
        assert server.terminate() == 0
    lines = path.read_text().splitlines()
    assert sum('"GET /key HTTP/1.1" 200 5 ' in line for line in lines) == 3000


def test_slow_log_has_the_answers_of_the_gate(tmp_path: Path) -> None:
    """With the time for the disk; hits and misses."""
    settings = SETTINGS | {"log_slow": 0.0000001}
    with ServerProcess(tmp_path, settings=settings) as server:
        exchange(server.port, "PUT", "/slow%20key", b"value")
        exchange(server.port, "GET", "/slow%20key")
        exchange(server.port, "GET", "/absent")
        pattern = re.compile(
            r"request\.slow method=GET key=(\S+) status=(\d+) seconds=0\.\d+"
            r" memcached=0\.000000 disk=(0\.\d+) rest=0\.\d+ left_out=0"
        )
        wait_until(lambda: "key=absent" in server.stderr, "a line for each")
        found = pattern.findall(server.stderr)
    lines = {key: (status, float(disk)) for key, status, disk in found}
    assert lines["slow%20key"][0] == "200"
    assert lines["slow%20key"][1] > 0
    assert lines["absent"] == ("404", 0)


def test_hot_tier_is_asked_before_the_gate_answers(
    servers: ServerPool, memcached: MemcachedProcess
) -> None:
    """Reads are counted, and the third one moves a file to memcached."""
    hot = {"memc_on": True, "memc_port": memcached.port}
    with servers.server(SETTINGS | hot) as server:
        exchange(server.port, "PUT", "/hot", b"value")
        seen: list[str | None] = []

        def is_promoted() -> bool:
            reply = exchange(server.port, "GET", "/hot")
            assert reply.body == b"value"
            seen.append(reply.headers["X-Cache"])
            return seen[-1] == "MEMC"

        wait_until(is_promoted, "a read from memcached")
        assert exchange(server.port, "GET", "/cold").status == 404
        exchange(server.port, "PUT", "/hot", b"other")
        assert exchange(server.port, "GET", "/hot").body == b"other"
    assert seen.count("DISK") >= 3


# --- Clients that disconnect, or wait --------------------------------------------------


def reset(connection: socket.socket) -> None:
    """Close a connection with a reset."""
    linger = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    connection.close()


@pytest.mark.parametrize(
    ("method", "body", "headers"),
    [
        ("GET", None, ""),
        ("GET", None, "Authorization: x"),
        ("HEAD", None, ""),
        ("PUT", b"value", ""),
    ],
)
def test_client_that_has_finished_sending_gets_its_answer(
    stored: int, method: str, body: bytes | None, headers: str
) -> None:
    """The connection is closed after the answer."""
    path = "/large" if method == "GET" else "/half"
    received = answer_to(stored, request_bytes(method, path, body, headers))
    head, _, value = received.partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 404 Not Found\r\n"))
    assert value == (VALUES["large"][1] if method == "GET" else b"")


def test_clients_that_reset_leave_nothing_behind(
    stored: int, server: ServerProcess
) -> None:
    """In the middle of a head, of a body, of an answer, and between requests."""
    at_first = descriptors(server)
    halves = [
        b"",
        b"GET /pla",
        PUT_HEAD + b"Content-Length: 9\r\n\r\nhalf",
        PUT_HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\nhalf",
        request_bytes("GET", "/large"),
        request_bytes("GET", "/large") * 20,
        request_bytes("GET", "/large", None, "Authorization: x"),
        request_bytes("GET", "/plain") * 50,
        REFUSED["two lengths"].data,
    ]
    exchange(stored, "PUT", "/kept", b"kept")
    for half in halves * 10:
        for waits in (False, True):
            client = socket.create_connection(("127.0.0.1", stored), ANSWER_SECONDS)
            client.sendall(half)
            if waits and half[:3] == b"GET" and half[-4:] == b"\r\n\r\n":
                client.recv(100)
            reset(client)
    wait_until(
        lambda: descriptors(server) <= at_first + 1, "all connections to be closed"
    )
    assert exchange(stored, "GET", "/kept").body == b"kept"
    assert exchange(stored, "GET", "/large").body == VALUES["large"][1]


@pytest.mark.parametrize("headers", ["", "Authorization: x"])
def test_last_answer_is_complete_whatever_was_sent_after_its_request(
    stored: int, headers: str
) -> None:
    """A socket that is closed with unread bytes loses what it has not sent."""
    request = request_bytes(
        "GET", "/large", None, f"{headers}\nConnection: close".strip()
    )
    for _ in range(20):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * KIB)
            client.settimeout(ANSWER_SECONDS)
            client.connect(("127.0.0.1", stored))
            client.sendall(request + b"x" * 100 * KIB)
            received = read_to_the_end(client)
        assert received.partition(b"\r\n\r\n")[2] == VALUES["large"][1]


@pytest.mark.parametrize("headers", ["", "Authorization: x"])
def test_client_that_reads_slowly_gets_all_while_others_are_served(
    stored: int, headers: str
) -> None:
    """1 MiB in small pieces, each after an answer to another client; pipelined twice."""
    expected = VALUES["large"][1]
    with socket.socket() as slow, Talk(stored) as other:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect(("127.0.0.1", stored))
        slow.settimeout(ANSWER_SECONDS)
        request = request_bytes("GET", "/large", None, headers)
        last = request_bytes("GET", "/plain", None, "Connection: close")
        slow.sendall(request * 2 + last)
        received = b""
        while piece := slow.recv(16 * KIB):
            received += piece
            assert other.exchange("GET", "/plain").body == b"value"
    answers = received.split(b"HTTP/1.1 200 OK\r\n")[1:]
    bodies = [answer.partition(b"\r\n\r\n")[2] for answer in answers]
    assert bodies == [expected, expected, b"value"]


def test_many_clients_at_once_get_their_own_answers(stored: int) -> None:
    """20 threads with GETs, PUTs and pipelined GETs of their own keys."""
    problems: list[str] = []

    def run(number: int) -> None:
        try:
            with Talk(stored) as client:
                for turn in range(30):
                    value = b"%d %d" % (number, turn) * (1 + 500 * (turn % 7))
                    assert client.exchange("PUT", f"/own/{number}", value).status == 200
                    client.send(request_bytes("GET", f"/own/{number}") * 3)
                    for _ in range(3):
                        assert client.read().body == value
        except (AssertionError, OSError) as error:
            problems.append(repr(error))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
