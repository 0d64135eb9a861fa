"""What applies to every test."""

from __future__ import annotations

import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from support.extent import EXTENT, SEED, sample
from support.memcached import MemcachedProcess
from support.parts import given_part, part_of, seconds_by_test, seconds_of
from support.process import ServerProcess, Servers
from volcache.config import ENVIRONMENT_PREFIX

# Tests of clients and programs of others, all marked `nightly` or `recipes`.
OF_OTHERS: Final = [Path(__file__).parent / name for name in ("clients", "recipes")]
# Files whose tests share what takes long to start: one worker runs all of them.
TOGETHER: Final = (
    "tests/behaviour/test_http.py",
    "tests/behaviour/test_memcached.py",
    "tests/cluster/test_client_ring.py",
    "tests/cluster/test_origin.py",
    "tests/integration/test_load.py",
    "tests/integration/test_page.py",
    "tests/integration/test_reload.py",
    "tests/integration/test_synced_puts.py",
    "tests/integration/test_timeouts.py",
    "tests/integration/test_vocabulary.py",
)
# How long an example takes decides nothing: the machine may be loaded.
settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("untimed")


def pytest_report_header() -> list[str]:
    """Say what is left out, and how to run it."""
    number, parts = given_part()
    if not EXTENT:
        return [f"part {number} of {parts}, in full; SEED={SEED}"]
    return [
        f"a sample chosen by SEED={SEED}, the date if not given; make crash runs all"
    ]


def pytest_configure() -> None:
    """Refuse a part that there is not."""
    try:
        given_part()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from error


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import what `-m` leaves out as a whole: it takes a second."""
    is_left_out = "not nightly" in config.option.markexpr
    return (collection_path in OF_OTHERS and is_left_out) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Leave out what is no sample; with several workers, run the long tests first."""
    _leave_out(config, items, set(_left_out(items)))
    yield  # What `-m` and `-k` leave out belongs to no part.
    seconds, (number, parts) = seconds_by_test(), given_part()
    chosen = part_of([item.nodeid for item in items], seconds, number, parts)
    left_out = {item for at, item in enumerate(items) if at not in chosen}
    _leave_out(config, items, left_out)
    if hasattr(config, "workerinput"):  # In a worker of pytest-xdist.
        items.sort(
            key=lambda item: (-seconds_of(item.nodeid, seconds), _is_short(item))
        )


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each worker of pytest-xdist one test at a time, or all of a file."""

    def _split_scope(self, nodeid: str) -> str:
        """Return what is run by one worker."""
        path = nodeid.partition("::")[0]
        return path if path in TOGETHER else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Schedule the files above first, and then the long tests."""
    return Scheduling(config, log)


def _leave_out(
    config: pytest.Config, items: list[pytest.Item], left_out: set[pytest.Item]
) -> None:
    if left_out:
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]


def _left_out(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield what is no sample of the tables marked `sampled`; of each, one case stays."""
    tables: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and hasattr(item, "callspec"):
            tables[item.nodeid.partition("[")[0]].append(item)
    for cases in tables.values():
        marker = cases[0].get_closest_marker("sampled")
        assert marker is not None
        kept = sample([case.nodeid for case in cases], marker.args[0])
        yield from (case for case in cases if case.nodeid not in kept)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what the tests have counted, and how to repeat each test that failed."""
    counted: Counter[str] = Counter()
    for report in terminalreporter.getreports("passed"):
        counted.update({name: int(str(n)) for name, n in report.user_properties})
    for name, number in counted.items():
        terminalreporter.write_line(f"counted {name}: {number}")
    for report in terminalreporter.stats.get("failed", []):
        command = f"SEED={SEED} CRASH_EXTENT={EXTENT} .venv/bin/python -m pytest"
        terminalreporter.write_line(f"repeat: {command} '{report.nodeid}'")


def _is_short(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(name) for name in ("slow", "property"))


@pytest.fixture(name="tmp_path")
def _tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Return an empty folder; for a test marked `disk`, one that is not in memory."""
    if request.node.get_closest_marker("disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of whoever runs the tests, also for the servers they start."""
    for name in list(os.environ):
        if name.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Return the servers that tests use one after the other."""
    with Servers(tmp_path_factory.mktemp("servers")) as running:
        yield running


@pytest.fixture
def server_with(servers: Servers) -> Iterator[Callable[..., ServerProcess]]:
    """Return a function that lends an empty server with some settings to the test."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(servers.server(**settings))


@pytest.fixture(scope="session")
def _memcacheds() -> Iterator[list[MemcachedProcess]]:
    """Return at most one memcached, which runs."""
    idle: list[MemcachedProcess] = []
    yield idle
    while idle:
        idle.pop().__exit__()


@pytest.fixture
def memcached(_memcacheds: list[MemcachedProcess]) -> Iterator[MemcachedProcess]:
    """Return an empty memcached; other tests get another one if it gets a signal."""
    process = _memcacheds.pop() if _memcacheds else MemcachedProcess()
    if process.is_running:
        process.forget()
    else:
        process.__enter__()
    yield process
    if process.is_disturbed:
        process.__exit__()
    else:
        _memcacheds.append(process)
