"""sccache, with the commands of the document."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from support.ports import listens, pick_port
from support.program import Program
from support.recipes import INSTANCE, VALUE_BYTES_MAX, WAYS, a_cache, run, snippet

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]

# That of .venv first: the package of Debian 12 is built without WebDAV.
PROGRAM = shutil.which(
    "sccache", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
)
SOURCES = 3


class Sccache(Program):
    """One sccache server in the foreground, and its client."""

    def __init__(self, folder: Path, host: str) -> None:
        """Take the settings of the document."""
        super().__init__()
        assert PROGRAM
        self._folder = folder
        self._port = pick_port()
        text = snippet("sccache", "sh").replace(INSTANCE, host)
        exports = [line[7:] for line in text.splitlines() if line.startswith("export ")]
        settings = dict(line.replace("'", "").split("=", 1) for line in exports)
        self._settings = {
            **settings,
            "SCCACHE_WEBDAV_TOKEN": "secret",
            "SCCACHE_SERVER_PORT": str(self._port),
            "SCCACHE_CONF": str(folder / "none"),
            "SCCACHE_DIR": str(folder / "local"),
        }

    def command(self) -> list[str]:
        """Return the command that starts the server."""
        return [str(PROGRAM)]

    def environment(self) -> dict[str, str]:
        """Return the variables of the server."""
        foreground = {"SCCACHE_START_SERVER": "1", "SCCACHE_NO_DAEMON": "1"}
        return {**super().environment(), **self._settings, **foreground}

    def answers(self) -> bool:
        """Whether it accepts connections."""
        return listens(self._port)

    def ask(self, *arguments: str) -> str:
        """Run the client."""
        return run([str(PROGRAM), *arguments], self._folder, self._settings)

    def compile(self) -> dict[str, int]:
        """Compile everything; return the counters."""
        for path in sorted(self._folder.glob("*.c")):
            self.ask("gcc", "-O1", "-c", path.name, "-o", path.with_suffix(".o").name)
        lines = [
            line.rsplit(maxsplit=1) for line in self.ask("--show-stats").splitlines()
        ]
        return {
            words[0].strip(): int(words[1])
            for words in lines
            if len(words) == 2 and words[1].isdigit()
        }


@pytest.mark.parametrize("way", WAYS)
def test_a_new_server_finds_everything(tmp_path: Path, way: str) -> None:
    """The counters show no error."""
    if PROGRAM is None:
        pytest.skip("sccache is not installed")
    for number in range(SOURCES):
        text = f"int f{number}(void) {{ return {number}; }}\n"
        (tmp_path / f"file{number}.c").write_text(text)
    with a_cache(tmp_path, way) as cache:
        with Sccache(tmp_path, cache.host) as first:
            counters = first.compile()
            assert counters["Cache misses"] == SOURCES
            assert counters["Cache write errors"] == 0
        with Sccache(tmp_path, cache.host) as second:
            counters = second.compile()
            assert counters["Cache hits"] == SOURCES
            assert counters["Cache misses"] == 0
            assert counters["Cache errors"] == 0


def test_an_object_above_the_limit_is_compiled_and_not_stored(tmp_path: Path) -> None:
    """It is counted as a write error."""
    if PROGRAM is None:
        pytest.skip("sccache is not installed")
    random = os.urandom(VALUE_BYTES_MAX + 4096).hex()
    (tmp_path / "large.c").write_text(f'const char text[] = "{random}";\n')
    with (
        a_cache(tmp_path, "through nginx") as cache,
        Sccache(tmp_path, cache.host) as program,
    ):
        assert program.compile()["Cache write errors"] == 1
        assert (tmp_path / "large.o").exists()
