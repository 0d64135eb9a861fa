"""What is written for users says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from support.instances import watch_tiered
from support.stores import open_store
from volcache.monitoring.metrics import families
from volcache.settings import SETTINGS

ROOT = Path(__file__).parents[1]
OPERATIONS = ROOT / "docs" / "OPERATIONS.md"
ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"
SOURCE = ROOT / "src" / "volcache"
ALERTS = ROOT / "conf" / "prometheus" / "alerts.yml"


def as_shown(default: object) -> str:
    """Give a default as the table of settings has it."""
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float):
        return f"{default:g}"
    return "empty" if default in {"", ()} else str(default)


def test_operations_has_every_setting_at_its_default() -> None:
    """In the order of the code; a row of the table may hold several."""
    section = OPERATIONS.read_text().split("\n## Settings\n")[1].split("\n## ")[0]
    shown: list[tuple[str, str]] = []
    for line in section.splitlines():
        if line.startswith("| `"):
            names, defaults, _ = line.strip("| ").split(" | ", 2)
            words = defaults.replace("`", "").split(", ")
            shown += zip(re.findall(r"`(\w+)`", names), words, strict=True)
    assert shown == [(s.name, as_shown(s.default)) for s in SETTINGS]


def test_operations_has_every_metric_in_the_words_of_the_code(tmp_path: Path) -> None:
    """Name, type, labels and meaning, in the order of a scrape, and no other."""
    store = open_store(tmp_path)
    expected = [
        [
            f"`{family.name}_total`"
            if family.kind == "counter"
            else f"`{family.name}`",
            family.kind,
            ", ".join(f"`{label}`" for label in family.labels),
            family.text,
        ]
        for family in families(watch_tiered(store).snapshot())
    ]
    store.close()
    section = OPERATIONS.read_text().split("\n## Metrics\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    assert len(expected) > 40
    assert rows == expected


def test_operations_has_a_line_for_every_alarm() -> None:
    """By name and severity, in their order, with meaning, what to look at and to do."""
    alarms = re.findall(
        r"- alert: (\w+)\n.*?severity: (\w+)", ALERTS.read_text(), re.DOTALL
    )
    section = OPERATIONS.read_text().split("\n## Alarms\n")[1].split("\n## ")[0]
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


def test_architecture_has_every_module_in_its_table() -> None:
    """By its path, or by its name behind one of the same folder; or by its folder."""
    table = ARCHITECTURE.read_text().split("\n| file |")[1].split("\n\n")[0]
    named: list[str] = []
    for line in table.splitlines():
        folder = ""
        for path in re.findall(r"`([\w/.]+)`", line.strip("| ").split(" | ")[0]):
            if "/" in path:
                folder = path.rpartition("/")[0] + "/"
            named.append(path if "/" in path else folder + path)
    modules = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if path.name != "__init__.py"
    ]
    folders = tuple(path for path in named if path.endswith("/"))
    assert all((SOURCE / folder).is_dir() for folder in folders)
    assert sorted(path for path in named if path not in folders) == sorted(
        module for module in modules if not module.startswith(folders)
    )
