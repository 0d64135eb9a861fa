"""
Builds the source package and the wheels of a release, installs each and tests it.

    tools/release.py                    all wheels, of the last commit
    tools/release.py --release          only of a tree that is ready for a release
    tools/release.py --only 'cp313-*'   some of the wheels; repeatable

Builds from the last commit, in a folder of its own. Packages that have passed all tests
replace ./dist. Needs git, a Debian machine with x86-64 processors, and the package index
that pip uses, but no root.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Final

import wheels
from wheels import TARGETS, Target, output

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


def main() -> None:
    """Do all steps; the first that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--release", action="store_true")
    parser.add_argument("--only", action="append", default=[])
    arguments = parser.parse_args()
    only = arguments.only or ["*"]
    targets = [t for t in TARGETS if any(fnmatch(t.name, pattern) for pattern in only)]
    if not targets:
        sys.exit(f"--only matches none of {', '.join(t.name for t in TARGETS)}")
    say("versions")
    version = check_versions(is_release=arguments.release)
    with tempfile.TemporaryDirectory(prefix="volcache-release") as name:
        untested = release(Path(name), targets)
    shutil.rmtree(DIST, ignore_errors=True)
    BUILT.rename(DIST)
    for target in untested:
        print(f"not tested, there is no interpreter: {target.name}")
    print(f"volcache {version}: passed")


def say(step: str) -> None:
    """Print a step that begins."""
    print(f"== {step}", flush=True)


def release(folder: Path, targets: list[Target]) -> list[Target]:
    """Build and test; return the targets whose wheels were not tested."""
    epoch = int(output("git", "log", "-1", "--format=%ct"))
    say("tools, headers and interpreters")
    include = {t.python: wheels.headers(t.python) for t in targets}
    found = {t: python for t in targets if (python := wheels.interpreter(t))}
    say("source package")
    shutil.rmtree(BUILT, ignore_errors=True)
    BUILT.mkdir(parents=True)
    package = build_source(folder, BUILT, epoch)
    client = wheels.build_client(folder / "tree", BUILT, epoch)
    _say_size(client)
    source = wheels.unpack(package, folder / "source")
    say("wheels")
    built = build_wheels(source, include, targets, epoch)
    say(f"source package and {targets[0].name} again: the same bytes")
    again = folder / "again"
    again.mkdir()
    require_equal(package, build_source(again, again, epoch))
    require_equal(client, wheels.build_client(again / "tree", again, epoch))
    second = wheels.unpack(again / package.name, again / "source")
    headers, cache = include[targets[0].python], again / "cache"
    wheel = wheels.build(second, targets[0], headers, epoch, again, cache)
    require_equal(built[targets[0]], wheel)
    test_packages(folder, package, client, {t: (built[t], found[t]) for t in found})
    for target in [t for t in found if t.machine == "aarch64"][:1]:
        say(f"{target.name}: unit tests of the core")
        print(test_core(folder / target.name / "bin/python", folder / "tree"))
    return [target for target in targets if target not in found]


# --- Before the build ------------------------------------------------------------------


def check_versions(*, is_release: bool) -> str:
    """Return the version; a release needs it in all files, and a tree without changes."""
    found = versions(ROOT)
    for place, version in found.items():
        print(f"  {version or 'none':<10} {place}")
    changes = output("git", "status", "--porcelain", cwd=ROOT)
    if changes:
        print(f"  changes that are not committed, and not in the packages:\n{changes}")
    if (len({*found.values()}) > 1 or changes) and is_release:
        sys.exit("not ready for a release; see docs/RELEASING.md")
    return str(next(iter(found.values())))


def versions(root: Path) -> dict[str, str | None]:
    """Return the version in each place that has one; the first is the package's."""
    places = {
        "src/volcache/version.py": r'^__version__.* = "(.+)"$',
        "docs/CHANGELOG.md": r"^## (\d[\w.+-]*)",  # The newest.
        "docs/openapi.yaml": r"^  version: (.+)$",
        "src/pyproject.toml": r'(?m)^version = "(.+)"$',
        "pyproject.toml": r'"volcache-client==(.+?)"',
        "docs/volcache.1": r'^\.TH .*"volcache (\S+)"',
    }
    return {
        place: found[1] if found else None
        for place, pattern in places.items()
        for found in [re.search(pattern, (root / place).read_text(), re.MULTILINE)]
    }


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


def test_packages(
    folder: Path, package: Path, client: Path, wheels: dict[Target, tuple[Path, Path]]
) -> None:
    """Test packages at the same time, each wheel with its Python."""
    tests = [partial(test_source, folder / "compiled", package)]
    for target, (wheel, python) in wheels.items():
        tests.append(partial(test_wheel, folder / target.name, wheel, python))
        if target.machine == "x86_64":
            place = folder / f"client-{target.tag}"
            tests.append(partial(test_client, place, client, python))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for shown in pool.map(lambda test: test(), tests):
            print(shown, flush=True)


def test_wheel(folder: Path, wheel: Path, python: Path) -> str:
    """Install a wheel into an empty environment without a compiler, and test it."""
    empty = environment(folder, python)
    shown = f"== {wheel.name}: installed\n"
    if "x86_64" in wheel.name:  # In an emulator it takes a minute.
        install(empty, f"{wheel}[tools]")
        shown += smoke(empty, "tools") + "\n"
    install(empty, f"{wheel}[server,tools]")
    return shown + smoke(empty, "server")


def test_client(folder: Path, wheel: Path, python: Path) -> str:
    """Install the clients alone, without an index: they depend on nothing."""
    empty = environment(folder, python)
    install(empty, "--no-index", str(wheel))
    return f"== {wheel.name} with {python}\n{smoke(empty, 'client')}"


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
    shown = f"  {lines[0]}\n{smoke(empty, 'server')}"
    return f"== source package: installed\n{shown}"


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
