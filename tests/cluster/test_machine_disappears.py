"""A machine disappears: packets to its instances are lost, and nothing is reset."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from support.cluster import ringed
from support.extent import EXTENT
from support.far_machine import FarMachine, FarServer, NoNamespacesError
from support.process import SHARED, ServerProcess
from support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

# Ten of 40 instances are on the machine, in a sample three of twelve.
NEAR, FAR = (30, 10) if EXTENT == 0 else (9, 3)
PATHS: Final = [f"/far/{n}" for n in range(10 * (NEAR + FAR))]


@pytest.fixture
def machine() -> Iterator[FarMachine]:
    """Yield a machine, or skip the test if this process may not make one."""
    try:
        with FarMachine() as found:
            yield found
    except NoNamespacesError as error:
        pytest.skip(str(error))


def test_healthy_keys_are_served_while_a_machine_is_gone(
    machine: FarMachine, tmp_path: Path
) -> None:
    """Those of its instances are misses, and served again when it is back."""
    own: list[ServerProcess] = [
        FarServer(machine, 1234 + n, tmp_path / f"far{n}", SHARED) for n in range(FAR)
    ]
    own += [ServerProcess(tmp_path / f"{n}", settings=SHARED) for n in range(NEAR)]
    with (
        ringed(tmp_path / "cluster", own, times=("3s", "10s")) as cluster,
        ThreadPoolExecutor(64) as pool,
    ):

        def ask(method: str, body: bytes = b"") -> dict[str, int]:
            """Send a request for each key; return the statuses."""
            answers = pool.map(lambda p: cluster.ask(method, p, body), PATHS)
            return {p: a.status for p, a in zip(PATHS, answers, strict=True)}

        assert set(ask("PUT", b"value").values()) == {200}
        by_owner = cluster.by_owner(PATHS)
        lost = {p for s in own[:FAR] for p in by_owner[f"{s.ip}:{s.port}"]}
        assert len(PATHS) / 8 < len(lost) < len(PATHS) / 2
        machine.disappear()
        for _ in range(4):
            statuses = ask("GET")
            assert {statuses[path] for path in PATHS if path not in lost} == {200}
            assert {statuses[path] for path in lost} == {404}
        statuses = ask("PUT", b"value")
        assert {statuses[path] for path in PATHS if path not in lost} == {200}
        assert {statuses[path] for path in lost} == {503}
        machine.appear()
        wait_until(lambda: set(ask("GET").values()) == {200}, "the machine")
