"""
Files of Debian's packages: fetched without root, and installed nowhere.

apt works on lists and a cache of its own, for a suite and an architecture that need not be
those of this machine. Mirror and keys are those of the machine's own sources.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
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
        root = self._folder / "root"
        if not root.is_dir():
            part = self._folder / "part"
            self._apt("clean")
            self._apt(
                *("install", "--yes", "--download-only", "--no-install-recommends"),
                *names,
            )
            for name in _MERGED:
                (part / "usr" / name).mkdir(parents=True, exist_ok=True)
                (part / name).symlink_to(f"usr/{name}")
            self._extract(self._folder / "archives", part)
            part.rename(root)
        return root

    def alone(self, name: str) -> Path:
        """Return a folder with the files of one package."""
        root = self._folder / name
        if not root.is_dir():
            download = self._folder / f"{name}.download"
            download.mkdir(parents=True, exist_ok=True)
            self._apt("download", name, cwd=download)
            self._extract(download, self._folder / "part")
            (self._folder / "part").rename(root)
        return root

    def source(self, name: str) -> Path:
        """Return the source package of a program, as its authors published it."""
        download = self._folder / f"{name}.source"
        download.mkdir(parents=True, exist_ok=True)
        if not [*download.iterdir()]:
            self._apt("source", "--download-only", "--tar-only", name, cwd=download)
        [package] = download.glob("*.orig.tar.*")
        return package

    def _extract(self, packages: Path, root: Path) -> None:
        for package in sorted(packages.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)

    def _apt(self, *words: str, cwd: Path | None = None) -> None:
        options = [word for option in self._options() for word in ("-o", option)]
        if not (self._folder / "sources.list").exists():
            self._prepare()
            self._apt("update")
        command = ["apt-get", "-q", *options, *words]
        done = subprocess.run(
            command, cwd=cwd, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"{' '.join(words)}, of {self._folder.name}:\n{done.stderr}")

    def _options(self) -> Iterator[str]:
        folder = self._folder
        yield f"APT::Architecture={self._architecture}"
        yield f"APT::Architectures={self._architecture}"
        yield "APT::Sandbox::User="  # Another user cannot write into our folder.
        yield "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false"
        yield "Acquire::Languages=none"
        yield "Debug::NoLocking=1"
        yield f"Dir::State={folder / 'state'}"
        yield f"Dir::State::status={folder / 'status'}"
        yield f"Dir::Cache={folder}"
        yield f"Dir::Etc::sourcelist={folder / 'sources.list'}"
        yield "Dir::Etc::sourceparts=-"

    def _prepare(self) -> None:
        (self._folder / "archives/partial").mkdir(parents=True, exist_ok=True)
        (self._folder / "state/lists/partial").mkdir(parents=True, exist_ok=True)
        (self._folder / "status").touch()
        where = f"[signed-by={_KEYS}] {mirror()} {self._suite} main\n"
        text = f"deb {where}deb-src {where}"
        (self._folder / "sources.list").write_text(text, encoding="utf-8")


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
