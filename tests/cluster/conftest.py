"""One cluster for all tests that leave it as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.cluster import running_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.cluster import Cluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give three instances behind nginx, shared by the tests."""
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running
