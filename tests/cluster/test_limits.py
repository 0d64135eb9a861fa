"""The limits of nginx: one client cannot keep others from being served."""

from __future__ import annotations

import re
import resource
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from support.nginx import SOURCE, Nginx
from support.slow_uploads import SlowUploads, answered, raise_descriptor_limit, statuses
from support.stub_instance import StubInstance
from support.waiting import wait_until
from support.wire import Reply, Wire, read_reply, request_bytes

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


def ask(
    port: int, source: str, method: str = "GET", body: bytes | None = None
) -> Reply:
    """Send a request from an address; the answer is 200 if nginx forwards it."""
    with socket.create_connection(("127.0.0.1", port), 10, (source, 0)) as connection:
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
    raise_descriptor_limit(4 * UPLOADS)
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2 * UPLOADS:
        pytest.skip(f"needs {2 * UPLOADS} open files")
    nginx = Nginx(tmp_path / "nginx", [stub.name])
    with nginx:
        with SlowUploads(nginx.port, UPLOADS, source=ATTACKER) as uploads:
            refused = answered(uploads.sockets, UPLOADS - OF_ONE_CLIENT)
            assert statuses(refused.values()) == {b"503": UPLOADS - OF_ONE_CLIENT}
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
            uploads.send_more(set(uploads.sockets) - refused.keys())
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
            SlowUploads(nginx.port, 6, source=ATTACKER) as first,
            SlowUploads(nginx.port, 6, source=VISITOR) as second,
        ):
            refused = answered(first.sockets + second.sockets, 4).values()
            assert statuses(refused) == {b"503": 4}
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
        SlowUploads(nginx.port, 5, source=ATTACKER) as uploads,
        SlowUploads(nginx.port, 3, source=VISITOR) as others,
    ):
        refused = answered(uploads.sockets + others.sockets, 1)
        assert statuses(refused.values()) == {b"503": 1}
        assert refused.keys() < set(others.sockets)
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

    def connect(source: str) -> socket.socket:
        return socket.create_connection(("127.0.0.1", nginx.port), 10, (source, 0))

    with nginx, connect("127.0.0.4") as first, connect("127.0.0.4") as second:
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
        with connect(VISITOR) as visitor:
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
        wires = [stack.enter_context(Wire(nginx.port)) for _ in range(100)]
        for number, wire in enumerate(wires):
            wire.socket.sendall(b"GET /slow HT" if number % 2 else put)
        url = f"{nginx.url}/200"
        assert requests.put(url, data=b"x", timeout=10).status_code == 200
        for wire in wires:
            assert b" 200 " not in wire.ask(b"")
    assert time.monotonic() - began < 30
    assert [received.line for received in stub.received] == ["PUT /200 HTTP/1.1"]
