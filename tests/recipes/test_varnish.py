"""Varnish in front of an instance, with the VCL of the document."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from support.fetched import fetched_program
from support.recipes import VALUE_BYTES_MAX, Daemon, RunningCache, a_cache, snippet
from support.wire import exchange

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]


class Varnish(Daemon):
    """One varnishd."""

    def __init__(self, folder: Path, cache: RunningCache) -> None:
        """Write the VCL."""
        super().__init__()
        self._program = fetched_program("varnishd")
        self._folder = str(folder / "varnish")
        text = snippet("Varnish", "vcl")
        port = cache.host.split(":")[1]
        self._vcl = folder / "volcache.vcl"
        self._vcl.write_text(text.replace('"1234"', f'"{port}"'))

    def command(self) -> list[str]:
        """Return the command that starts it."""
        # Without a jail: as root it would become a user who cannot enter our folders.
        options = ["-F", "-j", "none", "-T", "none", "-s", "malloc,32m"]
        places = ["-n", self._folder, "-a", self.host, "-f", str(self._vcl)]
        return [self._program, *options, *places]

    def answers(self) -> bool:
        """Whether it passes a request on."""
        try:
            return requests.options(self.url, timeout=1).status_code in {200, 401}
        except requests.RequestException:
            return False


@contextmanager
def varnish(folder: Path, way: str = "alone") -> Iterator[tuple[Varnish, RunningCache]]:
    """Run an instance behind Varnish."""
    with a_cache(folder, way) as cache, Varnish(folder, cache) as front:
        yield front, cache


def comes_from_varnish(answer: requests.Response) -> bool:
    """Whether two requests are named: this one, and the one that fetched the copy."""
    return len(answer.headers["X-Varnish"].split()) == 2


def test_varnish_keeps_what_was_read_and_drops_what_was_written(tmp_path: Path) -> None:
    """With conditions and ranges, which Varnish answers itself."""
    with varnish(tmp_path) as (front, _):
        url = f"{front.url}/a/key"
        assert requests.get(url, timeout=5).status_code == 404
        headers = {"Cache-Control": "max-age=1000", "Content-Type": "image/png"}
        assert requests.put(url, data=b"old", headers=headers, timeout=5).ok
        # The miss was not kept.
        assert requests.get(url, timeout=5).content == b"old"
        kept = requests.get(f"{url}?query", timeout=5)
        assert comes_from_varnish(kept)
        assert kept.content == b"old"
        assert kept.headers["Content-Type"] == "image/png"
        part = requests.get(url, headers={"Range": "bytes=1-"}, timeout=5)
        assert (part.status_code, part.content) == (206, b"ld")
        tag = {"If-None-Match": kept.headers["ETag"]}
        assert requests.get(url, headers=tag, timeout=5).status_code == 304

        assert requests.put(url, data=b"new", timeout=5).ok
        changed = requests.get(url, timeout=5)
        assert changed.content == b"new"
        assert not comes_from_varnish(changed)
        assert comes_from_varnish(requests.get(url, timeout=5))
        assert requests.delete(url, timeout=5).status_code == 200
        assert requests.get(url, timeout=5).status_code == 404


def test_varnish_passes_refusals_on_and_hides_the_operators_paths(
    tmp_path: Path,
) -> None:
    """And answers from its memory while the instance is down."""
    with varnish(tmp_path) as (front, cache):
        url = f"{front.url}/a/key"
        large = b"x" * (VALUE_BYTES_MAX + 1)
        assert requests.put(url, data=large, timeout=5).status_code == 413
        for path in ("/-/stats", "/a/../-/stats", "/%2d/stats", "/a/%2e./-/stats"):
            assert exchange(front.port, "GET", path).status == 403
        assert exchange(front.port, "POST", "/-/flush").status == 403
        assert exchange(front.port, "GET", "/pkg/-/x").status == 404

        assert requests.put(url, data=b"kept", timeout=5).ok
        assert requests.get(url, timeout=5).content == b"kept"
        cache.server.kill()
        assert requests.get(url, timeout=5).content == b"kept"


def test_varnish_keeps_nothing_that_needs_a_token(tmp_path: Path) -> None:
    """So that it never answers a client that has none."""
    with varnish(tmp_path, "with a token") as (front, _):
        url = f"{front.url}/a/key"
        token = {"Authorization": "Bearer secret"}
        assert requests.put(url, data=b"x", headers=token, timeout=5).ok
        for _ in range(2):
            assert requests.get(url, headers=token, timeout=5).content == b"x"
            assert requests.get(url, timeout=5).status_code == 401
