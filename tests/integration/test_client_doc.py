"""The examples of docs/CLIENT.md, against a running instance."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY  # noqa: TID251 - As applications do.

from support.process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "CLIENT.md"


@pytest.fixture
def names(
    server_with: Callable[..., ServerProcess], tmp_path: Path
) -> Iterator[dict[str, Any]]:
    """Run all examples in their order; yield what they have defined."""
    blocks = re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert len(blocks) > 5
    (tmp_path / "today.log").write_bytes(b"line\n" * 50_000)
    collectors = set(REGISTRY._collector_to_names)
    server = server_with()
    found: dict[str, Any] = {
        "draw": lambda name: b"picture of " + name.encode(),
        "render": lambda name: {"title": name},
        "print": lambda *_: None,
    }
    for one in blocks:
        text = one.replace("127.0.0.1:1234", f"127.0.0.1:{server.port}")
        text = text.replace('"today.log"', repr(str(tmp_path / "today.log")))
        exec(compile(text, "CLIENT.md", "exec"), found)  # noqa: S102 - Ours.
    yield found
    for collector in set(REGISTRY._collector_to_names) - collectors:
        REGISTRY.unregister(collector)
    found["cache"].close()


def test_the_examples_work(names: dict[str, Any]) -> None:
    """Also the functions that they define."""
    assert names["thumbnail"]("cat") == b"picture of cat"
    assert names["cache"].get("thumbs/cat") == b"picture of cat"
    assert asyncio.run(names["page"]("home")) == {"title": "home"}
    assert names["cache"].get("pages/home") == b'{"title":"home"}'
    assert names["cache"].head("logs/today").size == 250_000
    assert names["area"](2) == b"2"
    clients = {
        sample.labels.get("client")
        for family in REGISTRY.collect()
        for sample in family.samples
    }
    assert "thumbnails" in clients
