"""The documents agree with the code."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import yaml  # type: ignore[import-untyped]

import reference
from support.pages import PAGES, blocks
from support.program import ended
from support.tables import rows

ROOT = Path(__file__).parents[1]
RUNBOOK = ROOT / "docs" / "RUNBOOK.md"
ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"
ARCHITECTURE_CLIENT = ROOT / "docs" / "ARCHITECTURE-CLIENT.md"
SOURCE = ROOT / "src" / "volcache"
CLIENT = ROOT / "src" / "volcache_client"
ALERTS = ROOT / "conf" / "prometheus" / "alerts.yml"
PARSERS: Final[dict[str, Callable[[str], object]]] = {
    "json": json.loads,
    "python": lambda text: compile(text, "block", "exec"),
    "toml": tomllib.loads,
    "yaml": yaml.safe_load,
}


@rows(*PAGES)
def test_blocks_of_code_have_no_wrong_syntax(page: Path) -> None:
    """Also those that are not run; commands are parsed as bash does."""
    for block in blocks(page):
        if block.language in PARSERS:
            PARSERS[block.language](block.text)
        if block.language in {"console", "sh"}:
            commands = [command for command, _ in block.commands()]
            assert commands or block.language == "sh", block.text
            done = ended(["bash", "-n", "-c", "".join(commands) or block.text])
            assert done.returncode == 0, done.stderr


def test_reference_page_is_current() -> None:
    """`make reference` writes what is committed."""
    assert reference.PAGE.read_text() == reference.render()


def test_runbook_has_a_row_for_every_alarm() -> None:
    """By name and severity, in order, with meaning, what to look at and what to do."""
    alarms = re.findall(
        r"- alert: (\w+)\n.*?severity: (\w+)", ALERTS.read_text(), re.DOTALL
    )
    section = re.split(r"\n#+ Alarms\n", RUNBOOK.read_text())[1].split("\n#")[0]
    rows = [
        re.split(r" (?<!\\)\| ", line.strip("| "))
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    assert len(alarms) > 10
    assert [row[0] for row in rows] == [f"`{name}`, {much}" for name, much in alarms]
    for row in rows:
        assert len(row) == 4
        assert all(len(cell) > 10 for cell in row)


@rows(
    (ARCHITECTURE, "file", SOURCE),
    (ARCHITECTURE_CLIENT, "file of the client", CLIENT),
)
def test_architecture_has_every_module_in_its_table(
    page: Path, heading: str, source: Path
) -> None:
    """By its path, by its name after one of the same folder, or by its folder."""
    table = page.read_text().split(f"\n| {heading} |")[1].split("\n\n")[0]
    named: list[str] = []
    for line in table.splitlines():
        folder = ""
        for path in re.findall(r"`([\w/.]+)`", line.strip("| ").split(" | ")[0]):
            if "/" in path:
                folder = path.rpartition("/")[0] + "/"
            named.append(path if "/" in path else folder + path)
    modules = [
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if path.name != "__init__.py"
    ]
    folders = tuple(path for path in named if path.endswith("/"))
    assert all((source / folder).is_dir() for folder in folders)
    assert sorted(path for path in named if path not in folders) == sorted(
        module for module in modules if not module.startswith(folders)
    )
