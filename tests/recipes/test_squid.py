"""Squid in front of an instance, with the configuration of the document."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import requests

from support.fetched import fetched_program
from support.recipes import FRONT, Daemon, RunningCache, a_cache, snippet
from support.wire import exchange

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]

EXPIRES: Final = {"Expires": "Fri, 01 Jan 2100 00:00:00 GMT"}
THREE_DAYS: Final = 259_200
# It keeps neither logs nor a process id, and ends at once.
QUIET: Final = """
pid_filename none
cache_log /dev/null
access_log none
shutdown_lifetime 1 second
"""


class Squid(Daemon):
    """One squid."""

    def __init__(self, folder: Path, cache: RunningCache) -> None:
        """Write its configuration."""
        super().__init__()
        self._program = fetched_program("squid")
        text = snippet("Squid", "squid").replace(FRONT, self.host)
        text = text.replace(" 1234 ", f" {cache.host.split(':')[1]} ")
        self._file = folder / "squid.conf"
        self._file.write_text(text + QUIET)

    def command(self) -> list[str | Path]:
        """Return the command that starts it in the foreground."""
        return [self._program, "-N", "-f", self._file]


@contextmanager
def squid(folder: Path) -> Iterator[tuple[str, RunningCache]]:
    """Run an instance behind Squid; return the address of Squid."""
    with a_cache(folder, "alone") as cache, Squid(folder, cache) as front:
        yield front.url, cache


def lifetime_of(cache: RunningCache, key: str) -> str:
    """Return what the instance says of the lifetime of a file."""
    answer = requests.get(f"http://{cache.host}/{key}", timeout=5)
    return answer.headers["Cache-Control"]


def test_a_put_through_squid_has_the_lifetime_that_was_given(tmp_path: Path) -> None:
    """None, or that of Expires."""
    with squid(tmp_path) as (url, cache):
        assert requests.put(f"{url}/a", data=b"x", timeout=5).ok
        assert lifetime_of(cache, "a") == "no-cache"
        assert requests.put(f"{url}/b", data=b"x", headers=EXPIRES, timeout=5).ok
        assert int(lifetime_of(cache, "b").removeprefix("max-age=")) > 10 * THREE_DAYS


def test_squid_keeps_what_was_read_and_drops_what_was_written(tmp_path: Path) -> None:
    """With a lifetime; and hides the paths of the operator."""
    with squid(tmp_path) as (url, cache):
        assert requests.put(f"{url}/a", data=b"old", headers=EXPIRES, timeout=5).ok
        assert requests.get(f"{url}/a", timeout=5).content == b"old"
        kept = requests.get(f"{url}/a", timeout=5)
        assert kept.content == b"old"
        assert ", HIT from " in kept.headers["X-Cache"]
        assert requests.put(f"{url}/a", data=b"new", timeout=5).ok
        assert requests.get(f"{url}/a", timeout=5).content == b"new"
        port = int(url.rpartition(":")[2])
        for path in ("/-/stats", "/a/../-/stats", "/%2d/stats", "/a/%2e./-/stats"):
            assert exchange(port, "GET", path).status == 403
        assert requests.get(f"http://{cache.host}/-/stats", timeout=5).ok
