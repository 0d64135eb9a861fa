"""
What a real nginx makes of a list of servers and a key, by `hash $uri consistent`.

No server need exist: nginx names the one that it chose, and that it could not connect to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from support.nginx import PlainNginx
from support.wire import Wire
from volcache_client.keys import path_of

_AT_ONCE: Final = 250
_CHOSEN: Final = re.compile(rb"^X-Chosen: ([^\r\n]*)\r\n", re.MULTILINE)
_END: Final = b"\r\n\r\n"
_HTTP: Final = """
    access_log off;
    merge_slashes off;
    keepalive_requests 1000000;
    large_client_header_buffers 4 8k;
    server_names_hash_bucket_size 128;
    proxy_next_upstream off;
    add_header X-Chosen "$upstream_addr" always;
"""
_RING: Final = """
    upstream {name} {{ hash $uri consistent; {servers} }}
    server {{
        listen 127.0.0.1:{port};
        server_name {name};
        location / {{ proxy_pass http://{name}; }}
    }}
"""

Node = tuple[str, int]


class RingNginx(PlainNginx):
    """One nginx with some rings, by name; each is a list of names and weights."""

    def __init__(self, folder: Path, rings: Mapping[str, Sequence[Node]]) -> None:
        """Write the configuration into a folder; nothing is started yet."""
        super().__init__(folder)
        parts = [_HTTP]
        for name, nodes in rings.items():
            servers = " ".join(
                f"server {node} weight={weight} max_fails=0;" for node, weight in nodes
            )
            parts.append(_RING.format(name=name, servers=servers, port=self.port))
        self.configure("".join(parts), level="emerg")

    def chosen(self, ring: str, keys: Sequence[bytes]) -> list[str]:
        """Return the address that each key's request was for; an IP, not a host name."""
        with Wire(self.port) as wire:
            return [
                address
                for start in range(0, len(keys), _AT_ONCE)
                for address in _ask(wire, ring, keys[start : start + _AT_ONCE])
            ]


def _ask(wire: Wire, ring: str, keys: Sequence[bytes]) -> Iterator[str]:
    requests = [
        f"HEAD {path_of(key)} HTTP/1.1\r\nHost: {ring}\r\n\r\n".encode() for key in keys
    ]
    wire.socket.sendall(b"".join(requests))
    received = b""
    while received.count(_END) < len(keys):
        piece = wire.socket.recv(1 << 18)
        assert piece, received
        received += piece
    chosen = _CHOSEN.findall(received)
    # A refused key has a status of its own, and would not name a server.
    assert len(chosen) == len(keys), received[:2000]
    for address in chosen:
        yield address.decode()
