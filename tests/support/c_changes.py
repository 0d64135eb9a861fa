"""
Programs and the extensions, built with one changed C file.

The objects of the files that are not changed are compiled once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

FOLDERS: Final = ("volcache/store/_core", "volcache/front")
# Of each folder: the C file that Cython makes of its part of an extension.
GENERATED: Final = {name: f"{Path(name).name}_native.c" for name in FOLDERS}
# Assertions are left out of what is tested, as in the extensions.
COMPILE: Final = (
    *("gcc", "-std=gnu11", "-O1", "-w", "-fPIC", "-fvisibility=hidden"),
    *("-include", "stdbool.h"),  # A change may use `true`.
)


class Objects:
    """The compiled files of the core and of the front; of one tree, or with one changed."""

    def __init__(self, source: Path, folder: Path, paths: dict[str, Path]) -> None:
        self._source = source
        self._folder = folder
        self._paths = paths  # By the name of the C file.

    @classmethod
    def of(cls, source: Path, folder: Path) -> Objects:
        """Compile all files of a tree, and what Cython makes of the extensions."""
        objects = cls(source, folder, {})
        for name, generated in GENERATED.items():
            target = folder / generated
            pyx = source / name / "_native.pyx"
            _run([sys.executable, "-m", "cython", "-o", str(target), str(pyx)])
            objects._compile(target)
            for path in sorted((source / name).glob("*.c")):
                objects._compile(path)
        return objects

    def within(self, source: Path, folder: Path, *, changed: str = "") -> Objects:
        """Return those of a copy of the tree, after one of its files was changed."""
        objects = Objects(source, folder, dict(self._paths))
        if changed.endswith(".h"):  # Any file may include it.
            for name, path in self._paths.items():
                found = (source / part / name for part in FOLDERS)
                is_there = (one for one in found if one.exists())
                objects._compile(next(is_there, path.with_name(name)))
        elif changed:
            objects._compile(source / "volcache" / changed)
        return objects

    def program(self, test: Path) -> Path:
        """Compile and link a program of tests/native."""
        program = self._folder / test.stem
        archive = self._folder / "core.a"
        # A program may include one of the files: then its object is not taken.
        archive.unlink(missing_ok=True)
        _run(["ar", "rc", str(archive), *self._plain()])
        files = [str(test), str(archive), "-lpthread"]
        _run([*COMPILE, *self._includes(), *files, "-o", str(program)])
        return program

    def extensions(self) -> None:
        """Link the extensions, in the tree, in the place of those that are there."""
        suffix = sysconfig.get_config_var("EXT_SUFFIX")
        for name, generated in GENERATED.items():
            path = self._source / name / f"_native{suffix}"
            path.unlink(missing_ok=True)
            objects = [str(self._paths[generated]), *self._plain()]
            _run(["gcc", "-shared", *objects, "-lpthread", "-o", str(path)])

    def _plain(self) -> list[str]:
        """Return the objects that are not those of Cython."""
        generated = GENERATED.values()
        return [
            str(path) for name, path in self._paths.items() if name not in generated
        ]

    def _compile(self, path: Path) -> None:
        compiled = self._folder / f"{path.stem}.o"
        python = f"-I{sysconfig.get_path('include')}"
        options = ["-DNDEBUG", *self._includes(), python]
        _run([*COMPILE, *options, "-c", str(path), "-o", str(compiled)])
        self._paths[path.name] = compiled

    def _includes(self) -> list[str]:
        return [f"-I{self._source / name}" for name in FOLDERS]


def _run(command: list[str]) -> None:
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-2000:]}")
