"""Map tiles, filled by the commands of the document and read by another origin's page."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import requests

from support.process import ServerProcess
from support.recipes import WAYS, a_cache, shell, snippet

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

TILES = ("0/0/0.pbf", "12/2200/1343.pbf", "12/2200/1344.pbf")


def write_tiles(folder: Path) -> None:
    """Make a folder of tiles."""
    for name in TILES:
        path = folder / "tiles" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"tile {name}".encode())


@pytest.mark.parametrize("way", WAYS[:2])
def test_every_tile_of_the_folder_is_served(tmp_path: Path, way: str) -> None:
    """With its type and its time to live."""
    write_tiles(tmp_path)
    with a_cache(tmp_path, way) as cache:
        shell(cache.placed(snippet("Map tiles", "sh")), tmp_path)
        for name in TILES:
            found = requests.get(f"{cache.url}/tiles/{name}", timeout=5)
            assert found.content == f"tile {name}".encode()
            assert found.headers["Content-Type"] == "application/x-protobuf"
            assert found.headers["Cache-Control"] in {
                "max-age=604800",
                "max-age=604799",
            }
            assert found.headers["ETag"]


def test_the_page_may_read_tiles_and_others_may_not(tmp_path: Path) -> None:
    """By the headers of CORS."""
    origins = tomllib.loads(snippet("Map tiles", "toml"))["cors_origins"]
    settings = {
        "volume_size": 16 << 20,
        "volume_num": 2,
        "cors_origins": ",".join(origins),
    }
    with ServerProcess(tmp_path, settings=settings) as server:
        url = f"{server.url}/tiles/0/0/0.pbf"
        requests.put(url, data=b"tile", timeout=5)
        allowed = requests.get(url, headers={"Origin": origins[0]}, timeout=5)
        assert allowed.headers["Access-Control-Allow-Origin"] == origins[0]
        other = requests.get(
            url, headers={"Origin": "https://other.example"}, timeout=5
        )
        assert "Access-Control-Allow-Origin" not in other.headers
