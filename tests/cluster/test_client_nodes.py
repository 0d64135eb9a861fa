"""Both clients and an instance that is not ready."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

import pytest

from support.client_users import TaskClient
from support.scripted_server import Peer, ScriptedServer, answering, value
from support.waiting import wait_until
from volcache_client import Client, NodeConnectionError, NodeDownError, NodeEvent
from volcache_client.ring import HashRing

pytestmark = pytest.mark.integration

SHORT: Final = (0.02, 0.1)
GENEROUS: Final = 30.0  # A timeout that only a node which hangs exceeds.


def get_and_look(client: Any, key: str, condition: Callable[[], bool]) -> bool:
    """Get a key, whose node may be down; return whether a condition holds then."""
    with suppress(NodeDownError):
        client.get(key)
    return condition()


@pytest.mark.parametrize("kind", [Client, TaskClient])
def test_instance_that_is_not_ready_stays_down(kind: Any) -> None:
    """
    After some errors it gets nothing but probes, of which each fails; others are served.

    Real instances that are killed and started are in tests/integration/test_client.py.
    """
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

    limits = dict.fromkeys(("timeout", "connect_timeout", "probe_timeout"), GENEROUS)
    with (
        ScriptedServer(serve) as server,
        ScriptedServer(answering(lambda _: value(b"v"))) as good,
        kind(
            [server.name, good.name], backoff=SHORT, on_event=events.append, **limits
        ) as client,
    ):
        ring = HashRing([server.name, good.name])
        owners = {str(number): ring.node(str(number)) for number in range(99)}
        lost = [key for key, node in owners.items() if node == server.name]
        for key in lost[:3]:
            assert events == []
            with pytest.raises(NodeConnectionError):
                client.get(key)
        ask = partial(get_and_look, client, lost[3])
        wait_until(partial(ask, lambda: paths.count("/-/ready") > 5), "probes")
        assert set(paths) == {*(f"/{key}" for key in lost[:3]), "/-/ready"}
        kept = owners.keys() - set(lost)
        assert client.get_many(kept) == dict.fromkeys(kept, b"v")
        assert [bool(event.reason) for event in events] == [True]
        numbers = client.stats()["nodes"][server.name]
        assert numbers["failures"] == 3 + paths.count("/-/ready")
        is_ready.set()
        wait_until(partial(ask, lambda: len(events) > 1), "it is up")
        assert [event.kind for event in events] == ["down", "up"]
        assert paths[-2:] == ["/-/ready", f"/{lost[3]}"]
