"""The metrics, as Prometheus' own tool judges them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
import requests

from support.instances import operator_of, watch_tiered
from support.process import ServerProcess
from support.stores import fill_volume, open_store

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.integration

ROOT: Final = Path(__file__).parents[2]
CACHED: Final = ROOT / ".cache" / "promtool"


@pytest.fixture(scope="module")
def promtool() -> Callable[..., str]:
    """Return a call of promtool that must succeed, and gives what it says."""
    found = shutil.which("promtool") or (CACHED if CACHED.exists() else None)
    if found is None:
        pytest.skip("there is no promtool; tools/setup.sh says why")

    def call(*arguments: str | Path, text: str = "") -> str:
        done = subprocess.run(
            [found, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        return said

    return call


def test_promtool_finds_no_fault_with_the_metrics(
    promtool: Callable[..., str], tmp_path: Path
) -> None:
    """Neither in the format, nor in names, units and help texts."""
    store = open_store(tmp_path)
    fill_volume(store)
    status = watch_tiered(store)
    status.requests.note("GET", 200, 1000)
    text = operator_of(status).ask("GET", "/-/metrics").body.decode()
    store.close()
    assert "volcache_hot_server_up" in text
    assert promtool("check", "metrics", text=text) == ""


def test_a_serving_process_gives_metrics(
    promtool: Callable[..., str], tmp_path: Path
) -> None:
    """Over the wire, about what was put there; the last line is whole."""
    settings = {"volume_size": 2 << 20, "volume_num": 3, "sync_mode": "none"}
    with ServerProcess(tmp_path, settings=settings) as server:
        requests.put(f"{server.url}/key", data=b"value", timeout=5)
        answer = requests.get(f"{server.url}/-/metrics", timeout=5)
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "\nvolcache_keys 1.0\n" in answer.text
    assert f"\nvolcache_live_bytes {64 + len('key') + len('value')}.0\n" in answer.text
    assert promtool("check", "metrics", text=answer.text) == ""
