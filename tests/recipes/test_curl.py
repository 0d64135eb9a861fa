"""The commands for curl."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.recipes import WAYS, a_cache, run, shell, snippet

pytestmark = [pytest.mark.nightly, pytest.mark.integration]


@pytest.mark.parametrize("way", WAYS[:2])
def test_each_command_does_what_its_comment_says(tmp_path: Path, way: str) -> None:
    """The last two a second time, when their conditions do not hold."""
    (tmp_path / "file").write_bytes(b"twelve bytes")
    with a_cache(tmp_path, way) as cache:
        found = shell(cache.placed(snippet("curl", "sh")), tmp_path)
        assert found == "tes"  # Only the command for a range writes to the terminal.
        assert (tmp_path / "copy").read_bytes() == b"twelve bytes"
        for command in snippet("curl", "sh").splitlines()[-2:]:
            # Stored by the first run, or changed by it.
            text = run(
                ["bash", "-c", cache.placed(command)], tmp_path, is_checked=False
            )
            assert not text
            status = command.replace("-sfT", "-sw '%{http_code}' -o /dev/null -T")
            assert shell(cache.placed(status), tmp_path) == "412"
