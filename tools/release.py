"""
Builds the source package and the wheels of a release, installs each and tests it.

    tools/release.py                    all wheels, of the last commit
    tools/release.py --release          only of a tree that is ready for a release
    tools/release.py --only 'cp313-*'   some of the wheels; repeatable
    tools/release.py --python PATH      with the headers of this Python; repeatable

Builds from the last commit, in a folder of its own. Packages that have passed all tests
replace ./dist. Needs git, a Debian machine with x86-64 processors, and the package index
that pip uses, but no root.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import wheels
from wheels import TARGETS, Target, output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
BUILT: Final = ROOT / "build" / "dist"
SMOKE: Final = ROOT / "tools" / "smoke_test.py"
# Unit tests that call the core, and what they import.
CORE_TESTS: Final = tuple(
    f"tests/unit/store/test_{name}.py"
    for name in ("native", "c_gaps", "format", "index_format", "volume", "volume_check")
)
CORE_NEEDS: Final = ("hypothesis", "pymemcache", "pytest", "pytest-timeout", "requests")

_INSTALL: Final = ("install", "--quiet", "--disable-pip-version-check")


class Version(NamedTuple):
    """What each file says."""

    place: str
    version: str | None


class Timer:
    """The seconds that the steps took."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Print a step, and measure it."""
        print(f"== {name}", flush=True)
        began = time.monotonic()
        yield
        self.rows.append((name, time.monotonic() - began))

    def at_once(self, steps: Mapping[str, Callable[[], str]]) -> None:
        """Do steps at the same time, and print what each returns."""

        def do(name: str) -> None:
            began = time.monotonic()
            shown = steps[name]()
            print(f"== {name}\n{shown}", flush=True)
            self.rows.append((name, time.monotonic() - began))

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for _ in pool.map(do, steps):
                pass

    def report(self) -> None:
        """Print all steps."""
        print("== seconds")
        for name, seconds in self.rows:
            print(f"  {seconds:6.1f}  {name}")


def main() -> None:
    """Do all steps; the first that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--python", action="append", default=[])
    arguments = parser.parse_args()
    only = arguments.only or ["*"]
    targets = [t for t in TARGETS if any(fnmatch(t.name, pattern) for pattern in only)]
    if not targets:
        sys.exit(f"--only matches none of {', '.join(t.name for t in TARGETS)}")
    timer = Timer()
    with timer.step("versions"):
        version = check_versions(is_release=arguments.release)
    with tempfile.TemporaryDirectory(prefix="volcache-release") as name:
        untested = release(Path(name), targets, tuple(arguments.python), timer)
    shutil.rmtree(DIST, ignore_errors=True)
    BUILT.rename(DIST)
    timer.report()
    for target in untested:
        print(f"not tested, there is no interpreter: {target.name}")
    print(f"volcache {version}: passed")


def release(
    folder: Path, targets: list[Target], given: tuple[str, ...], timer: Timer
) -> list[Target]:
    """Build and test; return the targets whose wheels were not tested."""
    epoch = int(output("git", "log", "-1", "--format=%ct"))
    with timer.step("tools, headers and interpreters"):
        include = {t.python: wheels.headers(t.python, given) for t in targets}
        found = {t: wheels.interpreter(t, given) for t in targets}
    with timer.step("source package"):
        shutil.rmtree(BUILT, ignore_errors=True)
        BUILT.mkdir(parents=True)
        package = build_source(folder, BUILT, epoch)
        client = wheels.build_client(folder / "tree", BUILT, epoch)
        _say_size(client)
        source = wheels.unpack(package, folder / "source")
    with timer.step("wheels"):
        built = build_wheels(source, include, targets, epoch)
    with timer.step(f"source package and {targets[0].name} again: the same bytes"):
        again = folder / "again"
        again.mkdir()
        require_equal(package, build_source(again, again, epoch))
        require_equal(client, wheels.build_client(again / "tree", again, epoch))
        second = wheels.unpack(again / package.name, again / "source")
        headers = include[targets[0].python]
        cache = again / "cache"
        wheel = wheels.build(second, targets[0], headers, epoch, again, cache)
        require_equal(built[targets[0]], wheel)
    timer.at_once(
        {
            f"{target.name}: installed": partial(
                test_wheel, folder / target.name, built[target], python
            )
            for target, python in found.items()
            if python
        }
        | {
            "source package: installed": partial(
                test_source, folder / "compiled", package
            )
        }
        | {
            f"{client.name} with {python}": partial(
                test_client, folder / f"client-{target.tag}", client, python
            )
            for target, python in found.items()
            if python and target.machine == "x86_64"
        }
    )
    emulated = [t for t in targets if t.machine == "aarch64" and found[t]][:1]
    for target in emulated:
        with timer.step(f"{target.name}: unit tests of the core"):
            print(test_core(folder / target.name / "bin/python", folder / "tree"))
    return [target for target in targets if not found[target]]


# --- Before the build ------------------------------------------------------------------


def check_versions(*, is_release: bool) -> str:
    """Return the version; a release needs it in all files, and a tree without changes."""
    found = versions(ROOT)
    for place, version in found:
        print(f"  {version or 'none':<10} {place}")
    wrong = [f for f in found if f.version != found[0].version]
    changes = output("git", "status", "--porcelain", cwd=ROOT)
    if changes:
        print(f"  changes that are not committed, and not in the packages:\n{changes}")
    if (wrong or changes) and is_release:
        sys.exit("not ready for a release; see docs/RELEASING.md")
    return str(found[0].version)


def versions(root: Path) -> list[Version]:
    """Return the version in each place that has one; the first is the package's."""
    places = {
        "src/volcache/version.py": r'^__version__.* = "(.+)"$',
        "docs/CHANGELOG.md": r"^## (\d[\w.+-]*)",  # The newest.
        "docs/openapi.yaml": r"^  version: (.+)$",
        "src/pyproject.toml": r'(?m)^version = "(.+)"$',
        "pyproject.toml": r'"volcache-client==(.+?)"',
        "docs/volcache.1": r'^\.TH .*"volcache (\S+)"',
    }
    return [
        Version(place, found[1] if found else None)
        for place, pattern in places.items()
        for found in [re.search(pattern, (root / place).read_text(), re.MULTILINE)]
    ]


# --- Building --------------------------------------------------------------------------


def build_source(folder: Path, out: Path, epoch: int) -> Path:
    """Build the source package of the last commit; return it."""
    tree = folder / "tree"
    tree.mkdir()
    archive = folder / "tree.tar"
    output("git", "archive", "--output", str(archive), "HEAD")
    output("tar", "--extract", f"--file={archive}", f"--directory={tree}")
    package = wheels.build_source(tree, out, epoch)
    _say_size(package)
    return package


def build_wheels(
    source: Path, include: dict[str, Path], targets: list[Target], epoch: int
) -> dict[Target, Path]:
    """Build the wheels into `BUILT`; return them."""

    def build(target: Target) -> Path:
        headers = include[target.python]
        _say_size(wheels.build_bjoern(target, headers, BUILT))
        return wheels.build(source, target, headers, epoch, BUILT)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = dict(zip(targets, pool.map(build, targets), strict=True))
    for wheel in built.values():
        _say_size(wheel)
    return built


def require_equal(first: Path, second: Path) -> None:
    """End the program unless two packages have the same bytes."""
    if first.read_bytes() != second.read_bytes():
        sys.exit(f"two builds of {first.name} differ: the second one is {second}")


# --- Tests -----------------------------------------------------------------------------


def test_wheel(folder: Path, wheel: Path, python: Path) -> str:
    """Install a wheel into an empty environment without a compiler, and test it."""
    empty = environment(folder, python)
    shown = ""
    if "x86_64" in wheel.name:  # In an emulator it takes a minute.
        install(empty, f"{wheel}[tools]")
        shown = smoke(empty, "tools") + "\n"
    install(empty, f"{wheel}[server,tools]")
    return shown + smoke(empty, "server")


def test_client(folder: Path, wheel: Path, python: Path) -> str:
    """Install the clients alone, without an index: they depend on nothing."""
    empty = environment(folder, python)
    install(empty, "--no-index", str(wheel))
    return smoke(empty, "client")


def test_source(folder: Path, package: Path) -> str:
    """Without a compiler, one line says what is missing; with it, a server starts."""
    empty = environment(folder, Path(sys.executable))
    words = (
        *_pip(empty),
        *_INSTALL,
        "--no-cache-dir",
        f"--find-links={package.parent}",
    )
    words = (*words, f"{package}[server,tools]")
    done = subprocess.run(
        words,
        env=without_programs(empty),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    lines = [line.strip() for line in done.stdout.splitlines() if "apt-get" in line]
    if len(lines) != 1:
        sys.exit(f"not one line about what is missing:\n{done.stdout}")
    output(*words)
    return f"  {lines[0]}\n{smoke(empty, 'server')}"


def test_core(python: Path, tree: Path) -> str:
    """Run unit tests of the core, as it is installed, in an emulator."""
    pins = tree / "tests/requirements.txt"
    install(python, f"--constraint={pins}", *CORE_NEEDS)
    words = ("-q", "-p", "no:cacheprovider", "--override-ini=pythonpath=tests .")
    return output(str(python), "-m", "pytest", *words, *CORE_TESTS, cwd=tree)


def environment(folder: Path, python: Path) -> Path:
    """Create an environment with nothing in it, not even pip; return its Python."""
    output(str(python), "-m", "venv", "--without-pip", str(folder))
    return folder / "bin" / "python"


def install(python: Path, *packages: str) -> None:
    """Install packages as on a machine that cannot build any; ours are in folders."""
    folders = {Path(one).parent for one in packages if ".whl" in one} | {BUILT}
    links = [f"--find-links={folder}" for folder in sorted(folders)]
    output(*_pip(python), *_INSTALL, "--only-binary=:all:", *links, *packages)


def _pip(python: Path) -> tuple[str, ...]:
    return (str(wheels.tools()), "-m", "pip", "--python", str(python))


def installed(python: Path) -> set[str]:
    """Return the names of all packages of an environment."""
    shown = output(
        *_pip(python), "list", "--disable-pip-version-check", "--format=json"
    )
    return {package["name"] for package in json.loads(shown)}


def without_programs(python: Path) -> dict[str, str]:
    """Return an environment in which no compiler is found, nor any other program."""
    return wheels.clean() | {"PATH": str(python.parent)}


def smoke(python: Path, installed: str) -> str:
    """Run tools/smoke_test.py; return what it printed."""
    return output(
        *(str(python), str(SMOKE), installed),
        cwd=python.parent,
        environ=without_programs(python),
    )


def _say_size(path: Path) -> None:
    print(f"  {path.stat().st_size / 1024:7.0f} KiB  {path.name}")


if __name__ == "__main__":
    main()
