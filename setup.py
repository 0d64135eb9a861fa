"""
The extension, the shipped files and the long description of the package.

Everything else is declared in pyproject.toml.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import tomllib
from pathlib import Path
from typing import Final

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_py import build_py

NAME: Final = "volcache.store._core._native"
CORE: Final = Path("src/volcache/store/_core")
GATE: Final = Path("src/volcache/server/_gate")
# What is linked into bjoern instead: see tools/setup.sh.
LINK: Final = GATE / "link.c"
# VOLCACHE_CFLAGS is for sanitizers: see tools/native_tests.sh.
ADDED: Final = shlex.split(os.environ.get("VOLCACHE_CFLAGS", ""))

extension = Extension(
    NAME,
    sources=[
        str(CORE / "_native.pyx"),
        *sorted(map(str, CORE.glob("*.c"))),
        *sorted(map(str, set(GATE.glob("*.c")) - {LINK})),
    ],
    depends=sorted(map(str, [*CORE.glob("*.h"), *GATE.glob("*.h")])),
    include_dirs=[str(CORE), str(GATE)],
    libraries=["pthread"],
    extra_compile_args=[
        *("-O3", "-g1", "-std=gnu11", "-fvisibility=hidden", "-Wall", "-Wextra"),
        *ADDED,
    ],
    extra_link_args=ADDED,
)


class BuildWithFiles(build_py):  # type: ignore[misc] # setuptools has no types.
    """Copies the shipped files into the package; an editable one reads them here."""

    def run(self) -> None:
        """Copy them to where `volcache.shipped` looks for them first."""
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


# The generated C file is kept out of the sources.
built = cythonize([extension], build_dir="build/cython", quiet=True)
setup(
    ext_modules=built,
    cmdclass={"build_py": BuildWithFiles},
    long_description=long_description(),
    long_description_content_type="text/markdown",
)
