"""The extension of the package; everything else is declared in pyproject.toml."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from Cython.Build import cythonize
from setuptools import Extension, setup

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
# The generated C file is kept out of the sources.
(built,) = cythonize([extension], build_dir="build/cython", quiet=True)
# Without a C compiler the package is installed all the same, and uses Python. Set here, as
# cythonize does not pass it on.
built.optional = True
setup(ext_modules=[built])
