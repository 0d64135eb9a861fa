"""The conformance tests of libmemcached against a real process."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from support.memcache import MemcacheServer

pytestmark = pytest.mark.integration

# Tests that cannot pass by design, and why. There are none.
EXCEPTIONS: dict[str, str] = {}
# As of libmemcached 1.1.4: 27 of the text protocol and 27 of the binary protocol.
TESTS = 54


@pytest.mark.slow
def test_memccapable_passes(tmp_path: Path) -> None:
    """All of its tests, in both protocols; they include flush_all."""
    settings = {"volume_size": "8MiB", "volume_num": 16, "memcache_flush": True}
    with MemcacheServer(tmp_path / "data", settings=settings) as server:
        ended = subprocess.run(
            ["memccapable", "-h", "127.0.0.1", "-p", str(server.memcache_port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # Some of the results are there.
            text=True,
            timeout=60,
            check=False,
        )
    output = ended.stdout
    found = dict(
        re.findall(r"^((?:ascii|binary) .*?) +\[(\w+)\]$", output, re.MULTILINE)
    )
    failed = {name for name, result in found.items() if result != "pass"}
    assert failed == set(EXCEPTIONS), output
    assert len(found) == TESTS, output
    assert (ended.returncode == 0) == (not EXCEPTIONS)
