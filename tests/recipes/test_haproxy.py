"""HAProxy in front of two instances, with the configuration of the document."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import requests

from support.fetched import fetched_program
from support.process import ServerProcess
from support.recipes import FRONT, INSTANCE, Daemon, snippet
from support.wire import exchange

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]

KEYS = [f"key {number}" for number in range(60)]


class HAProxy(Daemon):
    """One haproxy."""

    def __init__(self, folder: Path, servers: list[ServerProcess]) -> None:
        """Write its configuration."""
        super().__init__()
        self._program = fetched_program("haproxy")
        text = snippet("HAProxy", "haproxy").replace(FRONT, self.host)
        text = text.replace(INSTANCE, f"127.0.0.1:{servers[0].port}")
        # A smaller limit than in the document.
        text = text.replace(" gt 67108864", f" gt {1 << 20}")
        text = text.replace("127.0.0.1:1235", f"127.0.0.1:{servers[1].port}")
        self._file = folder / "haproxy.cfg"
        self._file.write_text(text)

    def command(self) -> list[str | Path]:
        """Return the command that starts it in the foreground."""
        return [self._program, "-db", "-f", self._file]


@contextmanager
def haproxy(folder: Path) -> Iterator[tuple[HAProxy, list[ServerProcess]]]:
    """Run two instances behind HAProxy."""
    with ExitStack() as stack:
        settings = {"volume_size": 8 << 20, "volume_num": 2}
        servers = [ServerProcess(folder / name, settings=settings) for name in "ab"]
        for server in servers:
            stack.enter_context(server)
        yield stack.enter_context(HAProxy(folder, servers)), servers


def test_each_key_is_on_one_instance(tmp_path: Path) -> None:
    """In any spelling, and while the other instance is down."""
    with haproxy(tmp_path) as (front, servers):
        for key in KEYS:
            assert requests.put(f"{front.url}/{key}", data=key, timeout=5).ok
        holders = {
            key: [s for s in servers if requests.get(f"{s.url}/{key}", timeout=5).ok]
            for key in KEYS
        }
        assert all(len(found) == 1 for found in holders.values())
        counts = [sum(found == [s] for found in holders.values()) for s in servers]
        assert min(counts) >= 5
        for spelling in ("key%207", "%6bey%207?query", "k%65y%20%37"):
            found = exchange(front.port, "GET", f"/{spelling}")
            assert (found.status, found.body) == (200, b"key 7")

        servers[0].kill()
        for server, status in zip(servers, (503, 200), strict=True):
            for key in [key for key in KEYS if holders[key] == [server]][:3]:
                answer = requests.get(f"{front.url}/{key}", timeout=5)
                assert answer.status_code == status
        servers[0].restart()
        assert all(requests.get(f"{front.url}/{k}", timeout=5).ok for k in KEYS)


def test_haproxy_refuses_what_no_instance_should_get(tmp_path: Path) -> None:
    """The operator's paths, other spellings of a key, and values above the limit."""
    with haproxy(tmp_path) as (front, _):
        for path in ("/-/stats", "/%2d/stats", "/%2D%2fstats"):
            assert exchange(front.port, "GET", path).status == 403
        for path in ("/a/../-/stats", "/a/%2e%2e/-/stats", "/a/.", "/%2e./x"):
            assert exchange(front.port, "GET", path).status == 400
        assert exchange(front.port, "GET", "/pkg/-/x").status == 404
        # Answered and closed before the body has arrived: the answer may be lost.
        with suppress(requests.ConnectionError):
            large = b"x" * ((1 << 20) + 1)
            refused = requests.put(f"{front.url}/large", data=large, timeout=5)
            assert refused.status_code == 413
        assert exchange(front.port, "GET", "/large").status == 404
        whole = b"x" * (1 << 20)
        assert exchange(front.port, "PUT", "/large", whole).status == 200
        assert exchange(front.port, "GET", "/large").body == whole
