"""
The extensions, the shipped files and the long description of the package.

Everything else is declared in pyproject.toml.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

if TYPE_CHECKING:
    from collections.abc import Iterable

CORE: Final = Path("src/volcache/store/_core")
FRONT: Final = Path("src/volcache/front")
# VOLCACHE_CFLAGS is for sanitizers: see tools/native_tests.sh.
ADDED: Final = shlex.split(os.environ.get("VOLCACHE_CFLAGS", ""))
SYSTEM_INCLUDES: Final = ("/usr/include", "/usr/local/include")


def files_of(folder: Path) -> set[Path]:
    """Return the files of an extension."""
    return {folder / "_native.pyx", *folder.glob("*.c")}


def extension(name: str, files: Iterable[Path], *folders: Path) -> Extension:
    """Return an extension of files in C, which may include the headers of folders."""
    return Extension(
        name,
        sources=sorted(map(str, files)),
        depends=sorted(str(path) for folder in folders for path in folder.glob("*.h")),
        include_dirs=list(map(str, folders)),
        libraries=["pthread"],
        extra_compile_args=[
            *("-O3", "-g1", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"),
            *ADDED,
        ],
        extra_link_args=ADDED,
    )


def require_compiler() -> None:
    """End the program if something is missing, before the compiler says it worse."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))
    python = [sysconfig.get_config_var("INCLUDEPY")]
    headers = {
        "libc6-dev": ("stdio.h", SYSTEM_INCLUDES),
        "python3-dev": ("Python.h", python),
    }
    missing = [] if shutil.which(compiler[0]) else ["gcc"]
    for package, (header, folders) in headers.items():
        if not any(Path(folder, header).exists() for folder in folders):
            missing.append(package)
    if missing:
        sys.exit(
            "volcache: a compiler or headers are missing; on Debian run as root:"
            f" apt-get install {' '.join(missing)}"
        )


class BuildWithFiles(build_py):  # type: ignore[misc] # setuptools has no types.
    """Copies the shipped files into the package; an editable one reads them here."""

    def run(self) -> None:
        """Copy them to where `volcache.shipped` looks for them first."""
        require_compiler()
        super().run()
        if self.editable_mode:
            return
        shipped = runpy.run_path("src/volcache/shipped.py")
        target = Path(self.build_lib) / "volcache" / "files"
        # An earlier build may have had others.
        shutil.rmtree(target, ignore_errors=True)
        for path in shipped["shipped_files"](Path()):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target / path)


def long_description() -> str:
    """Return README.md as a page index shows it, which has no other file of the tree."""
    with Path("pyproject.toml").open("rb") as file:
        urls = tomllib.load(file)["project"].get("urls", {})
    readme = runpy.run_path("tools/long_description.py")
    text = Path("README.md").read_text(encoding="utf-8")
    return str(readme["render"](text, urls.get("Documentation")))


runpy.run_path("tools/make_pxd.py", run_name="__main__")
extensions = [
    extension("volcache.store._core._native", files_of(CORE), CORE),
    extension(
        "volcache.checksum._crc32c",
        [Path("src/volcache/checksum/_crc32c.pyx"), CORE / "crc32c.c"],
        CORE,
    ),
    # It calls the core by a table, and has the hashes of keys itself.
    extension(
        "volcache.front._native",
        [*files_of(FRONT), CORE / "crc32c.c", CORE / "siphash.c"],
        CORE,
        FRONT,
    ),
]
# The generated C files are kept out of the sources.
built = cythonize(extensions, build_dir="build/cython", quiet=True)
setup(
    ext_modules=built,
    cmdclass={"build_py": BuildWithFiles},
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
