"""Where both clients connect to, and how many connections they have."""

from __future__ import annotations

import io
import socket
import ssl
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from support.client_users import PATIENT, numbers_of
from support.scripted_server import Peer, ScriptedServer, value
from support.waiting import wait_until
from volcache_client import (
    NodeConnectionError,
    NodeDownError,
    NodeEvent,
    PoolTimeoutError,
)
from volcache_client.ring import HashRing

VALUE = value(b"v")


@pytest.mark.parametrize("family", [socket.AF_UNIX, socket.AF_INET6])
def test_node_of_another_family_is_reached_with_its_name_as_host(
    family: int, tmp_path: Path, connect: Any
) -> None:
    """`localhost` of a unix socket; IPv6 in brackets. Its connections are counted."""
    if family == socket.AF_UNIX:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "disk1.sock"))
        listener.listen()
        name, host = f"unix:{tmp_path}/disk1.sock", "localhost"
    else:
        try:
            listener = socket.create_server(("::1", 0), family=family)
        except OSError:
            pytest.skip("no IPv6 here")
        host = f"[::1]:{listener.getsockname()[1]}"
        name = f"http://{host}"
    with ScriptedServer(VALUE, listener=listener) as server, connect(name) as client:
        assert client.get("key") == b"v"
        assert numbers_of(client)["connections"] == 1
    assert f"\r\nHost: {host}\r\n".encode() in server.requests[0]


def test_unix_socket_whose_queue_is_full_is_waited_for(
    tmp_path: Path, connect: Any
) -> None:
    """The system refuses such a connection at once."""
    path = str(tmp_path / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(0)
    waiting = []
    with suppress(BlockingIOError):
        while True:
            waiting.append(socket.socket(socket.AF_UNIX))
            waiting[-1].setblocking(False)  # noqa: FBT003
            waiting[-1].connect(path)
    with connect(f"unix:{path}") as client, ThreadPoolExecutor(1) as threads:
        found = threads.submit(client.get, "key")
        wait_until(lambda: numbers_of(client)["in_use"], "the request")
        with ScriptedServer(VALUE, listener=listener):
            assert found.result(PATIENT) == b"v"
            for one in waiting:
                one.close()


def test_tls_is_checked_against_the_certificates_of_the_context(
    tmp_path: Path, connect: Any
) -> None:
    """The default are those of the system, which do not have ours."""
    made = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
        " -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
        " -keyout key.pem -out cert.pem"
    )
    subprocess.run(made.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    big = bytes(3 << 20)
    with ScriptedServer(
        value(big), wrap=lambda one: context.wrap_socket(one, server_side=True)
    ) as server:
        name = f"https://localhost:{server.port}"
        ours = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        with connect(name, ssl_context=ours) as client:
            assert [client.get("key") for _ in range(2)] == [big] * 2
            assert numbers_of(client)["connections"] == 1
            with client.stream("key") as reader:
                assert b"".join(reader) == big
            client.set("key", big)
            client.set_file("key", io.BytesIO(big))
            assert server.connections == 1
        for wrong, trusted in ((name, None), (f"https://{server.name}", ours)):
            with (
                connect(wrong, ssl_context=trusted) as client,
                pytest.raises(NodeConnectionError, match="the certificate is not"),
            ):
                client.get("key")


def test_get_by_many_threads_shares_connections_up_to_the_limit(served: Any) -> None:
    """Those that the server closes are not counted."""
    with (
        served(VALUE, connections_max=3) as (server, client),
        ThreadPoolExecutor(16) as threads,
    ):
        assert list(threads.map(client.get, ["key"] * 200)) == [b"v"] * 200
        numbers = numbers_of(client)
        assert 1 <= server.connections == numbers["connections"] <= 3
        assert numbers["requests"] == 200


@pytest.mark.slow
def test_get_without_a_free_connection_ends_at_the_timeout(served: Any) -> None:
    """The node was not asked, so that is no failure of the node."""
    with served(VALUE, connections_max=1, timeout=1.5) as (_, client):
        with client.stream("key"), pytest.raises(PoolTimeoutError):
            client.get("key")
        assert client.get("key") == b"v"
        numbers = numbers_of(client)
        assert (numbers["failures"], numbers["in_use"]) == (0, 0)


def test_connections_of_a_node_that_was_removed_are_closed(connect: Any) -> None:
    """With the first request after that; one that is in use, when it is free."""
    nodes: list[str] = []
    long = bytes(3 << 20)
    with ScriptedServer(value(long)) as first, ScriptedServer(VALUE) as second:
        nodes.append(first.name)
        with connect(lambda: list(nodes), refresh_seconds=1e-6) as client:
            with client.stream("key") as reader:
                assert client.get("key") == long
                nodes[:] = [second.name]
                assert client.get("key") == b"v"
                assert list(client.stats()["nodes"]) == [second.name]
                wait_until(lambda: first.open == 1, "the end of the idle one")
                assert reader.read() == long
            wait_until(lambda: not first.open, "the end")


def is_asked(client: Any, key: str) -> bool:
    """Get a key, whose node may be down."""
    with suppress(NodeDownError):
        client.get(key)
    return True


def test_node_that_is_not_ready_gets_only_probes_until_it_is(connect: Any) -> None:
    """After some errors; of the probes each fails, and other nodes are asked."""
    events: list[NodeEvent] = []
    paths: list[str] = []
    is_ready = threading.Event()

    def serve(peer: Peer) -> None:
        while request := peer.request():
            paths.append(request.split()[1].decode())
            if paths[-1] != "/-/ready" and not is_ready.is_set():
                return  # Without an answer.
            status = (503, 200)[is_ready.is_set()] if paths[-1] == "/-/ready" else 404
            peer.send(b"HTTP/1.1 %d x\r\nContent-Length: 0\r\n\r\n" % status)

    options = {"backoff": (0.02, 0.1), "on_event": events.append}
    with (
        ScriptedServer(serve) as server,
        ScriptedServer(VALUE) as good,
        connect([server.name, good.name], probe_timeout=PATIENT, **options) as client,
    ):
        ring = HashRing([server.name, good.name])
        owners = {str(number): ring.node(str(number)) for number in range(99)}
        lost = [key for key, node in owners.items() if node == server.name]
        for key in lost[:3]:
            assert events == []
            with pytest.raises(NodeConnectionError):
                client.get(key)
        wait_until(
            lambda: is_asked(client, lost[3]) and paths.count("/-/ready") > 5, "probes"
        )
        assert set(paths) == {*(f"/{key}" for key in lost[:3]), "/-/ready"}
        kept = owners.keys() - set(lost)
        assert client.get_many(kept) == dict.fromkeys(kept, b"v")
        assert [bool(event.reason) for event in events] == [True]
        numbers = client.stats()["nodes"][server.name]
        assert numbers["failures"] == 3 + paths.count("/-/ready")
        is_ready.set()
        wait_until(lambda: is_asked(client, lost[3]) and len(events) > 1, "it is up")
        assert [event.kind for event in events] == ["down", "up"]
        assert paths[-2:] == ["/-/ready", f"/{lost[3]}"]
