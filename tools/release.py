"""
Builds the packages of a release, installs them and tests each installation.

    tools/release.py                    all of docs/RELEASING.md that a program can do
    tools/release.py --draft            also of a tree that is not ready for a release
    tools/release.py --python PATH      with this Python; repeatable (default: all found)

Builds from the last commit, in a folder of its own. Packages are left in ./dist. Needs git,
a C compiler, the headers of libev and Python, and the package index that pip uses.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"
SMOKE: Final = ROOT / "tools" / "smoke_test.py"
_CANDIDATES: Final = ("python3.11", "python3.12", "python3.13", "python3.14")
_BUILD: Final = "import sys, setuptools.build_meta as b; b.build_sdist(sys.argv[1])"
# What must not build anything: as on a machine without a C compiler.
_NOT_OURS: Final = ("VOLCACHE_", "PYTHON")


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

    def report(self) -> None:
        """Print all steps."""
        print("== seconds")
        for name, seconds in self.rows:
            print(f"  {seconds:6.1f}  {name}")


def main() -> None:
    """Do all steps; the first that fails ends it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draft", action="store_true")
    parser.add_argument("--python", action="append", default=[])
    arguments = parser.parse_args()
    pythons = arguments.python or found_pythons()
    timer = Timer()
    with timer.step("versions"):
        version = check_versions(is_draft=arguments.draft)
    with tempfile.TemporaryDirectory(prefix="volcache-release") as name:
        folder = Path(name)
        with timer.step("source package"):
            source = build_source(folder, pythons[0])
        for python in pythons:
            test_python(folder, source, python, timer)
    timer.report()
    print(f"volcache {version}: passed with {', '.join(pythons)}")


def found_pythons() -> list[str]:
    """Return one interpreter for each supported version that is installed."""
    found = [
        path for name in _CANDIDATES if (path := shutil.which(name)) and _runs(path)
    ]
    return found or sys.exit("no Python from 3.11 on was found; give --python PATH")


def _runs(python: str) -> bool:
    """Whether it can make environments: others may be wrappers or have no `venv`."""
    done = subprocess.run(
        [python, "-c", "import ensurepip, venv"], capture_output=True, check=False
    )
    return done.returncode == 0


# --- Before the build ------------------------------------------------------------------


def check_versions(*, is_draft: bool) -> str:
    """Return the version, which all files must have, of a tree without changes."""
    found = versions(ROOT)
    for place, version in found:
        print(f"  {version or 'none':<10} {place}")
    wrong = [f for f in found if f.version != found[0].version]
    changes = _output("git", "status", "--porcelain")
    if changes:
        print(f"  the tree has changes:\n{changes}")
    if (wrong or changes) and not is_draft:
        sys.exit("not ready for a release; see docs/RELEASING.md, or give --draft")
    return str(found[0].version)


def versions(root: Path) -> list[Version]:
    """Return the version in each place that has one; the first is the package's."""
    places = {
        "src/volcache/version.py": r'^__version__.* = "(.+)"$',
        "docs/CHANGELOG.md": r"^## (\d[\w.+-]*)",  # The newest.
        "docs/openapi.yaml": r"^  version: (.+)$",
        "docs/volcache.1": r'^\.TH .*"volcache (\S+)"',
    }
    return [
        Version(place, found[1] if found else None)
        for place, pattern in places.items()
        for found in [re.search(pattern, (root / place).read_text(), re.MULTILINE)]
    ]


# --- Building --------------------------------------------------------------------------


def build_source(folder: Path, python: str) -> Path:
    """Build the source package of the last commit; return it, in `DIST`."""
    tree = folder / "tree"
    tree.mkdir()
    archive = folder / "tree.tar"
    _run("git", "archive", "--output", str(archive), "HEAD")
    _run("tar", "--extract", f"--file={archive}", f"--directory={tree}")
    builder = _environment(folder / "builder", python)
    with (tree / "pyproject.toml").open("rb") as config:
        backend = tomllib.load(config)["build-system"]["requires"]
    _pip(builder, *backend)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    _output(str(builder), "-c", _BUILD, str(DIST), cwd=tree)  # It prints every name.
    [source] = DIST.iterdir()
    _say_size(source)
    return source


def test_python(folder: Path, source: Path, python: str, timer: Timer) -> None:
    """Build wheels with one interpreter, install them in two ways and test each."""
    name = _output(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    tree = folder / "tree"
    wheels = {}
    with timer.step(f"{name}: wheels of the tree and of the source package"):
        for origin, what in (("tree", tree), ("sdist", source)):
            out = folder / f"{name}-{origin}"
            builder = _environment(folder / f"{name}-build-{origin}", python)
            _run(
                *(str(builder), "-m", "pip", "wheel", "--quiet", "--no-deps"),
                *("--no-cache-dir", "--wheel-dir", str(out), str(what)),
            )
            [wheels[origin]] = out.glob("*.whl")
            shutil.rmtree(tree / "build", ignore_errors=True)
        require_equal(wheels["tree"], wheels["sdist"])
        wheel = Path(shutil.copy(wheels["sdist"], DIST))
        _say_size(wheel)
    with timer.step(f"{name}: library, from the wheel"):
        library = _environment(folder / f"{name}-library", python)
        _pip(library, str(wheel))
        _smoke(library)
    with timer.step(f"{name}: server, from the wheel"):
        server = _environment(folder / f"{name}-server", python)
        _pip(server, "--no-cache-dir", f"{wheel}[server]")
        _smoke(server, "--server")


def require_equal(first: Path, second: Path) -> None:
    """End the program unless two wheels have the same files with the same bytes."""
    have = [contents(wheel) for wheel in (first, second)]
    differing = sorted(
        name
        for name in have[0].keys() | have[1].keys()
        if have[0].get(name) != have[1].get(name)
    )
    if differing:
        sys.exit(
            f"the wheels of the tree and of the source package differ: {differing}"
        )


def contents(wheel: Path) -> dict[str, str]:
    """Return the names in a wheel with a checksum; of what is compiled, without it."""
    with zipfile.ZipFile(wheel) as file:
        return {
            name: ""
            if name.endswith(
                (".so", "/RECORD")
            )  # Has paths of the build; has checksums.
            else hashlib.sha256(file.read(name)).hexdigest()
            for name in file.namelist()
        }


# --- Programs --------------------------------------------------------------------------


def _environment(folder: Path, python: str) -> Path:
    """Create an empty environment; return its Python."""
    _run(python, "-m", "venv", str(folder))
    return folder / "bin" / "python"


def _pip(python: Path, *words: str) -> None:
    _run(str(python), "-m", "pip", "install", "--quiet", *words)


def _smoke(python: Path, *options: str) -> None:
    _run(str(python), str(SMOKE), *options, cwd=python.parent)


def _run(*words: str, cwd: Path = ROOT) -> None:
    done = subprocess.run(words, cwd=cwd, env=_clean(), check=False)
    if done.returncode:
        sys.exit(f"release: exit code {done.returncode}: {' '.join(words)}")


def _output(*words: str, cwd: Path | None = None) -> str:
    done = subprocess.run(
        words,
        cwd=cwd or ROOT,
        env=_clean(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout.rstrip()


def _clean() -> dict[str, str]:
    """Return the environment without what makes Python or volcache find a checkout."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_NOT_OURS)}


def _say_size(path: Path) -> None:
    print(f"  {path.stat().st_size / 1024:7.0f} KiB  {path.name}")


if __name__ == "__main__":
    main()
