"""
What the tests of docs/RECIPES.md share.

Configuration files and commands are taken from the document, with its addresses replaced
by those of the servers that the test started: what is documented is what was run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from support.nginx import Nginx, PlainNginx
from support.ports import listens, pick_port
from support.process import ServerProcess
from support.program import Program

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "RECIPES.md"
# The instance and the nginx of a recipe, as they are written in the document.
INSTANCE: Final = "127.0.0.1:1234"
FRONT: Final = "127.0.0.1:8081"
# Smaller than in the document, so that a value that is too large is quickly made.
VALUE_BYTES_MAX: Final = 2 << 20
WAYS: Final = ("alone", "through nginx", "with a token")

_SETTINGS: Final = {
    "volume_size": 16 << 20,
    "volume_num": 4,
    "max_value_size": VALUE_BYTES_MAX,
}


def snippet(recipe: str, language: str, number: int = 0) -> str:
    """
    Return a code block of the document.

    Args:
        recipe: The beginning of the heading of its section.
        language: The word behind its opening fence.
        number: How many blocks in this language to skip in the section.

    """
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)[1:]
    section = next(text for text in sections if text.startswith(recipe))
    blocks = re.findall(
        rf"^```{language}\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL
    )
    return str(blocks[number])


def need(*programs: str) -> None:
    """Skip the test if a program is missing."""
    for program in programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")


def run(
    command: Sequence[str | Path],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    is_checked: bool = True,
) -> str:
    """Run a program; return its output and error output; fail if it fails."""
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=240,
        check=False,
    )
    if is_checked:
        assert result.returncode == 0, result.stdout
    # Colours are a matter of the terminal.
    return re.sub(r"\x1b\[[0-9;]*m", "", result.stdout)


def shell(text: str, folder: Path) -> str:
    """Run commands of a recipe, also ours; fail if one of them fails."""
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return run(["bash", "-euo", "pipefail", "-c", text], folder, path)


def nginx_module(name: str) -> Path:
    """Return a module of nginx; skip the test if it is not installed."""
    for folder in ("/usr/lib/nginx", "/usr/lib64/nginx", "/etc/nginx"):
        path = Path(folder, "modules", name)
        if path.exists():
            return path
    pytest.skip(f"nginx's module {name} is not installed")


def njs_module() -> Path:
    """Return njs."""
    return nginx_module("ngx_http_js_module.so")


class Daemon(Program):
    """A program of a recipe that listens at a port of its own."""

    def __init__(self) -> None:
        """Choose the port."""
        super().__init__()
        self.port = pick_port()
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"

    def answers(self) -> bool:
        """Whether it accepts connections."""
        return listens(self.port)


class Front(PlainNginx):
    """An nginx with the `server` blocks of a recipe."""

    def __init__(self, folder: Path, servers: str, *, before: str = "") -> None:
        """Write the configuration into a folder; `before` is for its first lines."""
        super().__init__(folder)
        log = f"access_log {folder}/access.log;\n"
        self.configure(log + servers.replace(FRONT, self.host), before=before)

    @property
    def host(self) -> str:
        """Its address and port."""
        return f"127.0.0.1:{self.port}"


@dataclass(frozen=True)
class RunningCache:
    """A volcache that a recipe is run against."""

    host: str
    server: ServerProcess

    @property
    def url(self) -> str:
        """The address without a slash at the end."""
        return f"http://{self.host}"

    def placed(self, text: str) -> str:
        """Return a text of the document with the address of this cache."""
        return text.replace(INSTANCE, self.host)


def nginx_before(folder: Path, port: int, value_bytes_max: int) -> Nginx:
    """Return our nginx, with the limit of a recipe."""
    nginx = Nginx(folder, [f"127.0.0.1:{port}"])
    changed = 0
    for path in folder.rglob("*.conf"):
        limit = f"client_max_body_size {value_bytes_max};"
        text, count = re.subn(
            r"^( *)client_max_body_size +[1-9]\w*;",
            rf"\g<1>{limit}",
            path.read_text(),
            flags=re.MULTILINE,
        )
        path.write_text(text)
        changed += count
    assert changed, "nginx has no client_max_body_size"
    return nginx


@contextmanager
def a_cache(
    folder: Path, way: str = "alone", more: Mapping[str, object] | None = None
) -> Iterator[RunningCache]:
    """Run an instance with `more` settings; one of `WAYS` is how a client reaches it."""
    settings: dict[str, object] = {**_SETTINGS, **(more or {})}
    if way == "with a token":
        settings |= {"read_token": "secret", "write_token": "secret"}
    with ExitStack() as stack:
        server = ServerProcess(folder / "data", settings=settings)
        stack.enter_context(server)
        host = f"127.0.0.1:{server.port}"
        if way == "through nginx":
            nginx = nginx_before(folder / "nginx", server.port, VALUE_BYTES_MAX)
            host = f"127.0.0.1:{stack.enter_context(nginx).port}"
        yield RunningCache(host, server)
