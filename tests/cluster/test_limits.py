"""The limits of nginx: one client cannot keep others from being served."""

from __future__ import annotations

import re
import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from support.nginx import SOURCE, Nginx
from support.process import raise_descriptor_limit
from support.stub_instance import StubInstance
from support.waiting import wait_until
from support.wire import ANSWER_SECONDS, Reply, connect, read_reply, request_bytes

pytestmark = pytest.mark.integration

ATTACKER = "127.0.0.2"
VISITOR = "127.0.0.3"
UPLOADS = 4_200
REQUESTS_MAX = 4_096
OF_ONE_CLIENT = 512


def limited(requests: int, of_one_client: int) -> str:
    """Return the main file with other limits."""
    text = (SOURCE / "volcache.conf").read_text()
    for zone, old, new in (
        ("requests", REQUESTS_MAX, requests),
        ("clients", OF_ONE_CLIENT, of_one_client),
    ):
        form = rf"(limit_conn +volcache_{zone} +){old};"
        text, count = re.subn(form, rf"\g<1>{new};", text)
        assert count == 1
    return text


@contextmanager
def slow_uploads(port: int, count: int, source: str) -> Iterator[list[socket.socket]]:
    """Send heads and parts of bodies, each on a connection of its own."""
    with ExitStack() as stack:
        opened = []
        for number in range(count):
            one = stack.enter_context(connect(port, source=source))
            # Different names, since clients choose them.
            one.sendall(
                b"PUT /slow/%d HTTP/1.1\r\nHost: h%d\r\nContent-Length: 100000\r\n\r\n-"
                % (number, number % 7)
            )
            opened.append(one)
        yield opened


def answered(
    sockets: Iterable[socket.socket], count: int
) -> dict[socket.socket, bytes]:
    """Wait until this many are answered; return the status of each."""
    found: dict[socket.socket, bytes] = {}
    deadline = time.monotonic() + ANSWER_SECONDS
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ, one)
        while len(found) < count and time.monotonic() < deadline:
            for key, _ in selector.select(1):
                found[key.data] = key.data.recv(4096)[9:12]
                selector.unregister(key.data)
    return found


def ask(
    port: int, source: str, method: str = "GET", body: bytes | None = None
) -> Reply:
    """Send a request from an address; the answer is 200 if nginx forwards it."""
    with connect(port, source=source) as connection:
        connection.sendall(request_bytes(method, "/200", body))
        return read_reply(connection, method)


def is_served(port: int, source: str) -> bool:
    """Whether reads and writes from an address are answered by the instance."""
    answers = [ask(port, source), ask(port, source, "PUT", b"value")]
    return {reply.status for reply in answers} == {200}


def test_thousands_of_slow_uploads_of_one_client_leave_others_served(
    tmp_path: Path, stub: StubInstance
) -> None:
    """
    4,200 uploads from one address, with the limits as shipped: all but 512 are refused.

    The other uploads go on, and when they end the client is served again.
    """
    if raise_descriptor_limit(4 * UPLOADS) < 2 * UPLOADS:
        pytest.skip(f"needs {2 * UPLOADS} open files")
    with Nginx(tmp_path / "nginx", [stub.name]) as nginx:
        with slow_uploads(nginx.port, UPLOADS, ATTACKER) as uploads:
            refused = answered(uploads, UPLOADS - OF_ONE_CLIENT)
            assert Counter(refused.values()) == {b"503": UPLOADS - OF_ONE_CLIENT}
            for _ in range(20):
                assert is_served(nginx.port, VISITOR)
            for method in ("GET", "PUT"):
                reply = ask(nginx.port, ATTACKER, method, b"")
                assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
                assert reply.headers["Content-Type"] == "text/plain"
                assert reply.body == (
                    b"too many requests are in flight; at most 4096 in all and 512 of"
                    b" one client address are allowed; send it again\n"
                )
            for one in set(uploads) - refused.keys():
                one.sendall(b"x")
            assert is_served(nginx.port, VISITOR)
        wait_until(
            lambda: is_served(nginx.port, ATTACKER), "the uploads to be forgotten"
        )


def test_limit_of_all_requests_counts_all_clients(
    tmp_path: Path, stub: StubInstance
) -> None:
    """Two clients together reach it, with any names, in each failure mode."""
    for mode in ("pinned", "failover", "growing"):
        text = limited(8, 6).replace("volcache/pinned", f"volcache/{mode}")
        files = {"volcache.conf": text}
        with (
            Nginx(tmp_path / mode, [stub.name], files=files) as nginx,
            slow_uploads(nginx.port, 6, ATTACKER) as first,
            slow_uploads(nginx.port, 6, VISITOR) as second,
        ):
            refused = answered(first + second, 4).values()
            assert list(refused) == [b"503"] * 4
            assert ask(nginx.port, "127.0.0.4").status == 503


def test_client_without_a_limit_is_limited_with_all_others_only(
    tmp_path: Path, stub: StubInstance
) -> None:
    """As unlimited.conf says, by network."""
    shipped = (SOURCE / "volcache/unlimited.conf").read_text()
    files = {
        "volcache.conf": limited(20, 2),
        "volcache/unlimited.conf": f"{shipped}\n127.0.0.2/32 0;\n",
    }
    with (
        Nginx(tmp_path / "nginx", [stub.name], files=files) as nginx,
        slow_uploads(nginx.port, 5, ATTACKER) as uploads,
        slow_uploads(nginx.port, 3, VISITOR) as others,
    ):
        refused = answered(uploads + others, 1)
        assert list(refused.values()) == [b"503"]
        assert refused.keys() < set(others)
        assert is_served(nginx.port, ATTACKER)


def test_client_behind_a_load_balancer_is_limited_by_its_own_address(
    tmp_path: Path, stub: StubInstance
) -> None:
    """With the lines of listen.conf, from a trusted address only; IPv6 by its /64."""
    shipped = (SOURCE / "volcache/listen.conf").read_text()
    lines = re.findall(r"^#     ((?:set_)?real_ip.*;)$", shipped, re.MULTILINE)
    assert len(lines) == 2
    trusting = "\n".join(lines).replace("10.0.0.5", "127.0.0.4")
    nginx = Nginx(
        tmp_path / "nginx", [stub.name], files={"volcache.conf": limited(99, 1)}
    )
    listen = (nginx.folder / "volcache/listen.conf").read_text()
    nginx.write("volcache/listen.conf", f"{listen}{trusting}\n")

    def status(connection: socket.socket, forwarded: str) -> int:
        head = f"X-Forwarded-For: {forwarded}"
        connection.sendall(request_bytes("GET", "/200", headers=head))
        return read_reply(connection).status

    def upload(connection: socket.socket, forwarded: str) -> None:
        """Begin one; return when it counts."""
        headers = (
            f"X-Forwarded-For: {forwarded}\nContent-Length: 9\nExpect: 100-continue"
        )
        connection.sendall(request_bytes("PUT", "/200", headers=headers))
        assert connection.recv(4096).startswith(b"HTTP/1.1 100 ")

    with (
        nginx,
        connect(nginx.port, source="127.0.0.4") as first,
        connect(nginx.port, source="127.0.0.4") as second,
    ):
        for forwarded, same, other in (
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"),
        ):
            upload(first, forwarded)
            assert status(second, same) == 503
            assert status(second, other) == 200
            first.sendall(b"123456789")
            assert read_reply(first).status == 200
        # The header of anyone else has no effect.
        upload(first, "192.0.2.1")
        assert status(second, "192.0.2.1") == 503
        with connect(nginx.port, source=VISITOR) as visitor:
            assert status(visitor, "192.0.2.1") == 200


def test_slow_clients_are_disconnected_by_nginx(
    stub: StubInstance, nginx_with: Callable[..., Nginx]
) -> None:
    """Its time-outs end slow headers and bodies; no instance receives them."""
    text = (SOURCE / "volcache.conf").read_text()
    for name in ("client_header_timeout", "client_body_timeout"):
        padded = f"{name} 10s" if f"{name} 10s" in text else f"{name}   10s"
        assert padded in text
        text = text.replace(padded, f"{name} 1s")
    nginx = nginx_with({"volcache.conf": text})
    put = request_bytes("PUT", "/slow", headers="Content-Length: 1000") + b"begin"
    began = time.monotonic()
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(nginx.port)) for _ in range(100)]
        for number, one in enumerate(slow):
            one.sendall(b"GET /slow HT" if number % 2 else put)
        assert ask(nginx.port, VISITOR, "PUT", b"x").status == 200
        for one in slow:
            with suppress(ConnectionResetError):
                assert b" 200 " not in one.recv(4096)
    assert time.monotonic() - began < 30
    assert [received.line for received in stub.received] == ["PUT /200 HTTP/1.1"]
