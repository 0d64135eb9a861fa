"""Map tiles, filled by the commands of the document and read by another origin's page."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import requests

from support.recipes import WAYS, a_cache, shell, snippet

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

TILES = ("0/0/0.pbf", "12/2200/1343.pbf", "12/2200/1344.pbf")


@pytest.mark.parametrize("way", WAYS[:2])
def test_every_tile_of_the_folder_is_served(tmp_path: Path, way: str) -> None:
    """With its type and its time to live."""
    for name in TILES:
        path = tmp_path / "tiles" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(f"tile {name}".encode())
    query = tomllib.loads(snippet("Map tiles", "toml"))["query"]
    with a_cache(tmp_path, way, {"query": query}) as cache:
        shell(cache.placed(snippet("Map tiles", "sh")), tmp_path)
        for name in TILES:
            found = requests.get(f"{cache.url}/tiles/{name}", timeout=5)
            assert found.content == f"tile {name}".encode()
            assert found.headers["Content-Type"] == "application/x-protobuf"
            lifetime = found.headers["Cache-Control"]
            assert lifetime in {"max-age=604800", "max-age=604799"}
            assert found.headers["ETag"]
            dark = requests.get(f"{cache.url}/tiles/{name}?style=dark", timeout=5)
            assert dark.status_code == 404
