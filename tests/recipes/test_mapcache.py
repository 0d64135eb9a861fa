"""MapCache, whose tiles are stored by the configuration of the document."""

from __future__ import annotations

import os
import struct
import subprocess
import zlib
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests

from support.origin import Origin
from support.recipes import WAYS, a_cache, need, run, snippet

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

CGI = Path("/usr/lib/cgi-bin/mapcache")
TILES = [(z, x, y) for z in range(3) for x in range(2**z) for y in range(2**z)]


def picture(size: int) -> bytes:
    """Return a grey PNG."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        end = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + end

    head = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + bytes(size)) * size)
    parts = chunk(b"IHDR", head), chunk(b"IDAT", rows), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


class Pictures(dict[str, tuple[int, dict[str, str], bytes]]):
    """What a source of maps answers: a picture of the size that the path has."""

    def __missing__(self, path: str) -> tuple[int, dict[str, str], bytes]:
        size = int(path.partition("WIDTH=")[2].partition("&")[0])
        return 200, {"Content-Type": "image/png"}, picture(size)


def tile_of(configuration: Path, tile: str) -> bytes:
    """Return what MapCache answers to a browser."""
    environment = {
        **os.environ,
        "MAPCACHE_CONFIG_FILE": str(configuration),
        "REQUEST_METHOD": "GET",
        "PATH_INFO": f"/tms/1.0.0/map@GoogleMapsCompatible/{tile}.png",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
    }
    done = subprocess.run(
        [CGI], env=environment, capture_output=True, check=True, timeout=30
    )
    head, _, body = done.stdout.partition(b"\r\n\r\n")
    assert b"Content-Type: image/png" in head, done
    return body


@pytest.mark.parametrize("way", WAYS)
def test_tiles_are_drawn_once(tmp_path: Path, way: str) -> None:
    """By the seeder; then they are served without the source, with a lifetime."""
    need("mapcache_seed", str(CGI))
    configuration = tmp_path / "mapcache.xml"
    seed = ["mapcache_seed", "-c", str(configuration), "-t", "map", "-z", "0,2"]
    origin = Origin()
    with ExitStack() as stack:
        stack.callback(origin.stop)
        cache = stack.enter_context(a_cache(tmp_path, way))
        origin.answers = Pictures()
        text = cache.placed(snippet("MapCache", "xml")).replace("TOKEN", "secret")
        text = text.replace("127.0.0.1:8080", f"127.0.0.1:{origin.server.server_port}")
        configuration.write_text(text.replace("/run/mapcache", str(tmp_path)))
        run(seed, tmp_path)
        drawn = sum(origin.asked.values())
        assert 0 < drawn < len(TILES)
        assert "0 tiles needed" in run(seed, tmp_path)
        headers = {"Authorization": "Bearer secret"}
        for z, x, y in TILES:
            path = f"mapcache/map/GoogleMapsCompatible/{z}/{x}/{y}.png"
            found = requests.get(f"{cache.url}/{path}", headers=headers, timeout=5)
            assert found.headers["Content-Type"] == "image/png"
            assert found.headers["Cache-Control"].startswith("max-age=604")
            assert tile_of(configuration, f"{z}/{x}/{y}") == found.content
        assert sum(origin.asked.values()) == drawn
        tile_of(configuration, "3/1/1")
        assert sum(origin.asked.values()) == drawn + 1
