"""
Files of Debian's packages: fetched without root, and installed nowhere.

apt works on lists and a cache of its own, for a suite and an architecture that need not be
those of this machine. Mirror and keys are those of the machine's own sources.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_KEYS: Final = "/usr/share/keyrings/debian-archive-keyring.gpg"
# Newer packages have no files in the folders that these links replace.
_MERGED: Final = ("bin", "sbin", "lib", "lib64")


class Packages:
    """The packages of one suite and architecture."""

    def __init__(self, folder: Path, suite: str, architecture: str) -> None:
        """Have no list yet: the first call of a method downloads it."""
        self._folder = folder / f"{suite}-{architecture}"
        self._suite = suite
        self._architecture = architecture

    def extracted(self, *names: str) -> Path:
        """Return a folder with the files of packages, and of all that they depend on."""

        def extract(root: Path) -> None:
            self._apt("clean")
            self._apt(
                *("install", "--yes", "--download-only", "--no-install-recommends"),
                *names,
            )
            for name in _MERGED:
                (root / "usr" / name).mkdir(parents=True, exist_ok=True)
                (root / name).symlink_to(f"usr/{name}")
            _extract(self._folder / "archives", root)

        self._update()
        return made_once(self._folder / "root", extract)

    def alone(self, name: str) -> Path:
        """Return a folder with the files of one package."""

        def extract(root: Path) -> None:
            self._apt("download", name, cwd=root)
            _extract(root, root)

        self._update()
        return made_once(self._folder / name, extract)

    def source(self, name: str) -> Path:
        """Return the source package of a program, as its authors published it."""

        def download(folder: Path) -> None:
            self._apt("source", "--download-only", "--tar-only", name, cwd=folder)

        self._update()
        folder = made_once(self._folder / f"source-{name}", download)
        [package] = folder.glob("*.orig.tar.*")
        return package

    def _update(self) -> None:
        """Download the lists, the first time."""

        def update(folder: Path) -> None:
            self._prepare(folder)
            self._apt("update", lists=folder)

        made_once(self._folder / "apt", update)

    def _apt(
        self, *words: str, cwd: Path | None = None, lists: Path | None = None
    ) -> None:
        given = self._options(lists or self._folder / "apt")
        options = [word for option in given for word in ("-o", option)]
        command = ["apt-get", "-q", *options, *words]
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{' '.join(words)}, of {self._folder.name}:\n{done.stderr}")

    def _options(self, lists: Path) -> Iterator[str]:
        yield f"APT::Architecture={self._architecture}"
        yield f"APT::Architectures={self._architecture}"
        yield "APT::Update::Error-Mode=any"  # Else a list that was not fetched is none.
        yield "APT::Sandbox::User="  # Another user cannot write into our folder.
        yield "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false"
        yield "Acquire::Languages=none"
        yield "Debug::NoLocking=1"
        yield f"Dir::State={lists}"
        yield f"Dir::State::status={lists / 'status'}"
        yield f"Dir::Cache={self._folder}"
        yield f"Dir::Etc::sourcelist={lists / 'sources.list'}"
        yield "Dir::Etc::sourceparts=-"

    def _prepare(self, lists: Path) -> None:
        (self._folder / "archives/partial").mkdir(parents=True, exist_ok=True)
        (lists / "lists/partial").mkdir(parents=True)
        (lists / "status").touch()
        where = f"[signed-by={_KEYS}] {mirror()} {self._suite} main\n"
        text = f"deb {where}deb-src {where}"
        (lists / "sources.list").write_text(text, encoding="utf-8")


def _extract(packages: Path, root: Path) -> None:
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """
    Return a folder, which is made the first time.

    Args:
        folder: It has its name when it is complete, so one that was interrupted is made
            again.
        make: Fills an empty folder. One call at a time beside `folder`, of all threads and
            processes: apt cannot be called twice for one state.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir()
            make(part)
            part.rename(folder)
    return folder


def mirror() -> str:
    """Return the address of Debian that this machine uses."""
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        sys.exit("this needs apt and the sources of a Debian machine")
    for address in done.stdout.split():
        if address.rstrip("/").endswith("/debian"):
            return address
    sys.exit("the apt sources of this machine have no address that ends in /debian")
