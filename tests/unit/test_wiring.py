"""What the start advises about the number of volumes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from volcache.config import RECORD_OVERHEAD_MAX
from volcache.kinds import GIB, MIB
from volcache.settings import DEFAULTS
from volcache.wiring import _warn_of_few_volumes


def advice(
    caplog: pytest.LogCaptureFixture, volumes: int, settings: Mapping[str, Any]
) -> tuple[int, int] | None:
    """Return the number and the size of volumes that are advised."""
    usage: Any = SimpleNamespace(disk=SimpleNamespace(volumes=volumes))
    _warn_of_few_volumes(replace(DEFAULTS, **settings), usage)
    for line in caplog.messages:
        found = re.search(r"advised=(\d+) volume_size=(\d+) ", line)
        assert found is not None
        return int(found[1]), int(found[2])
    return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("volumes", "settings", "expected"),
    [
        (64, {"volume_size": 160 * MIB}, None),
        (32, {"volume_size": 160 * MIB}, None),
        (4, {"volume_size": 160 * MIB, "eviction": "fifo"}, None),
        (10, {"volume_size": GIB}, (64, 160 * MIB)),
        # A volume of 640 KiB would not hold a file of 1 MiB.
        (10, {"volume_size": 4 * MIB}, (20, 2 * MIB)),
        (10, {"volume_size": 4 * MIB, "max_value_size": 4000}, (40, MIB)),
        # No other division of the capacity is better: it takes more of it.
        (10, {"volume_size": 2 * MIB}, (32, 2 * MIB)),
    ],
)
def test_few_volumes_are_advised_to_be_smaller_as_far_as_files_fit(
    caplog: pytest.LogCaptureFixture,
    volumes: int,
    settings: dict[str, Any],
    expected: tuple[int, int] | None,
) -> None:
    """The size advised is one that the settings allow."""
    found = advice(caplog, volumes, settings)

    assert found == expected
    if found is not None:
        config = replace(DEFAULTS, **settings)
        least = config.max_value_size + config.max_key_size + RECORD_OVERHEAD_MAX
        assert found[1] >= max(MIB, least)
