"""A cluster for all tests that do not stop or reconfigure it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.cluster import running_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.cluster import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run three instances behind nginx."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
