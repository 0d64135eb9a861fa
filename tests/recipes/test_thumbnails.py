"""An application that fills the cache, with the function of the document."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
import requests

from support.recipes import VALUE_BYTES_MAX, WAYS, RunningCache, a_cache, snippet

pytestmark = [pytest.mark.nightly, pytest.mark.integration]

NAMES = ("cat.png", "dir/ä b%.png", "cat.png?w=100", "cat.png?w=800")
RECIPE_QUERY = tomllib.loads(snippet("Thumbnails", "toml"))["query"]


class Application:
    """A program of the document; counts what it had to make."""

    def __init__(self, cache: RunningCache, token: str = "") -> None:
        """Load it, and do what the document says about tokens."""
        code: dict[str, Any] = {}
        text = cache.placed(snippet("Thumbnails", "python"))
        if token:
            text = text.replace("on_error=", f'token="{token}", on_error=')
        exec(compile(text, "RECIPES.md", "exec"), code)  # noqa: S102 - Ours.
        self.made: list[str] = []
        self._thumbnail = code["thumbnail"]
        self._client = code["cache"]

    def get(self, name: str, size: int = 1000) -> bytes:
        """Return a thumbnail."""

        def make(name: str) -> bytes:
            self.made.append(name)
            return name.encode() * (size // len(name.encode()) + 1)

        return bytes(self._thumbnail(name, make))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


@pytest.mark.parametrize("way", WAYS)
def test_thumbnails_are_made_once(tmp_path: Path, way: str) -> None:
    """And kept for a day."""
    with a_cache(tmp_path, way, {"query": RECIPE_QUERY}) as cache:
        application = Application(cache, "secret")
        first = [application.get(name) for name in NAMES]
        assert application.made == list(NAMES)
        assert [application.get(name) for name in NAMES] == first
        assert application.made == list(NAMES)
        token = {"Authorization": "Bearer secret"}
        url = f"{cache.server.url}/thumbs/cat.png"
        direct = requests.get(url, headers=token, timeout=5)
        assert direct.headers["Content-Type"] == "application/octet-stream"
        sized = requests.get(f"{url}?w=100", headers=token, timeout=5)
        assert sized.content == first[2]
        assert direct.headers["Cache-Control"] in {"max-age=86400", "max-age=86399"}
        application.close()


@pytest.mark.parametrize("way", WAYS[:2])
def test_a_thumbnail_above_the_limit_is_made_every_time(
    tmp_path: Path, way: str
) -> None:
    """The application works."""
    with a_cache(tmp_path, way) as cache:
        application = Application(cache)
        large = [application.get("large", VALUE_BYTES_MAX + 1) for _ in range(2)]
        assert large[0] == large[1]
        assert application.made == ["large", "large"]
        application.close()
