"""What clients take for the version of memcached."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from support.memcache_service import served
from volcache import __version__

if TYPE_CHECKING:
    from pathlib import Path

FOLLOWED = b"1.6.18"
_HEADER = struct.Struct(">BBHB3xI12x")


def test_version_is_that_of_memcached(tmp_path: Path) -> None:
    """And no other number is in an answer that a client could take for it."""
    with served(tmp_path) as running, running.client() as client:
        assert client.ask(b"version\r\n") == b"VERSION " + FOLLOWED
        found = client.stats()
        assert found["version"] == FOLLOWED.decode()
        assert found["volcache_version"] == __version__
        with running.client() as binary:
            binary.send(_HEADER.pack(0x80, 0x0B, 0, 0, 0))
            assert _HEADER.unpack(binary.read(24))[-1] == len(FOLLOWED)
            assert binary.read(len(FOLLOWED)) == FOLLOWED
