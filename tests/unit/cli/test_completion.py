"""`volcache completion`: real bash completes commands, options and files."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from volcache.cli import main as cli
from volcache.cli.completion import SHELLS, script

if TYPE_CHECKING:
    from pathlib import Path

# Calls the function that bash would call for a tab behind the last word.
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
function=$(complete -p volcache | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
"$function"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the script, as a user installs it."""
    path = tmp_path_factory.mktemp("completion") / "volcache"
    path.write_text(script("bash"))
    return path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["s"], {"serve", "stats"}),
        (["im"], {"import"}),
        (["check", "--j"], {"--json"}),
        (["tail", "--s"], {"--status", "--slower"}),
        (["completion", ""], set(SHELLS)),
        (["export", "a"], {"a folder"}),
        (["tail", "a"], {"a folder", "a file"}),
        (["import", "a folder", "x", "--config", "a f"], {"a folder", "a file"}),
    ],
)
def test_bash_completes(
    tmp_path: Path, bash_script: Path, words: list[str], expected: set[str]
) -> None:
    """Commands, options and choices; folders for a mount point, files for a log."""
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a file").touch()
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "bash", bash_script, "volcache", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert set(done.stdout.splitlines()) == expected
    assert done.stderr == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_script_of_each_shell_has_all_commands(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Made from the parsers."""
    assert cli.main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert all(module.removesuffix("_") in out for module in cli.MODULES)
