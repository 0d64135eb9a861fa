"""
Building bjoern with the gate, into the environment of this Python.

bjoern's source package stays as it is: the linker redirects some of its calls to
`front/link.c`. pip's cache is not used: it would keep this build for other programs, and
offer one without the gate here. Needs pip, a C compiler, libev's and Python's headers.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volcache.errors import BuildError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LINK: Final = Path(__file__).parents[1] / "front" / "link.c"
# The calls of bjoern that link.c replaces.
WRAPPED: Final = (
    *("accept", "read", "write", "close", "ev_io_start", "ev_run"),
    *("fprintf", "__fprintf_chk"),
)
_COMPILE: Final = (
    *("-std=gnu11", "-O2", "-g1", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"),
    *("-I/usr/include/libev", "-I/usr/local/include"),
)
_PIP: Final = (
    *("install", "--quiet", "--disable-pip-version-check", "--no-input"),
    *("--no-cache-dir", "--no-deps", "--use-pep517", "--force-reinstall"),
)
_HAS_GATE: Final = """
import ctypes, _bjoern
ctypes.c_char.in_dll(ctypes.CDLL(_bjoern.__file__), "volcache_link")
"""


def installed_bjoern() -> str | None:
    """Return the version of bjoern in this environment; None if there is none."""
    try:
        return metadata.version("bjoern")
    except metadata.PackageNotFoundError:
        return None


def has_gate() -> bool:
    """Whether bjoern in this environment was built with the gate."""
    # A new process: this one may have loaded another build.
    words = [sys.executable, "-c", _HAS_GATE]
    done = subprocess.run(words, capture_output=True, check=False)  # noqa: S603
    return done.returncode == 0


def build(version: str, *, is_isolated: bool) -> None:
    """
    Install bjoern from source, with the gate; programs that run are not affected.

    Args:
        version: Of bjoern.
        is_isolated: Build with a setuptools that pip fetches for it, instead of the one
            in this environment.

    Raises:
        BuildError: A program is missing or failed; the compiler and pip have printed why.
            What was installed before is still there, unless pip has replaced it with
            a build that has no gate.
    """
    with tempfile.TemporaryDirectory(prefix="volcache") as folder:
        link = Path(folder) / "link.o"
        compiler = shlex.split(os.environ.get("CC") or "gcc")
        _run([*compiler, *_COMPILE, "-c", str(LINK), "-o", str(link)])
        isolation = [] if is_isolated else ["--no-build-isolation"]
        _run(
            [sys.executable, "-m", "pip", *_PIP, *isolation, f"bjoern=={version}"],
            {**os.environ, "LDFLAGS": _link_flags(link)},
        )
    if not has_gate():
        raise BuildError(
            f"bjoern {version} was installed, but without the gate: pip found a wheel of it"
            " (set PIP_NO_BINARY=bjoern), or the linker ignored --wrap in LDFLAGS"
        )


def _link_flags(link: Path) -> str:
    given = os.environ.get("LDFLAGS", "")
    wraps = " ".join(f"-Wl,--wrap={call}" for call in WRAPPED)
    return f"{given} {wraps} {shlex.quote(str(link))} -lpthread".strip()


def _run(words: Sequence[str], environ: Mapping[str, str] | None = None) -> None:
    needs = (
        "the gate needs pip, a C compiler, and the headers of libev and Python; on Debian:"
        " apt-get install gcc libc6-dev libev-dev python3-dev"
    )
    try:
        done = subprocess.run(words, env=environ, check=False)  # noqa: S603
    except OSError as error:
        raise BuildError(f"{words[0]}: {error.strerror}; {needs}") from error
    if done.returncode:
        what = "pip" if environ else words[0]
        raise BuildError(f"{what} failed with exit code {done.returncode}; {needs}")
