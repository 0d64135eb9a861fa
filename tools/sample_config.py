"""Write `conf/volcache.toml` from the table of settings."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Final

from volcache.config import ENVIRONMENT_PREFIX, INSTANCE_VARIABLE
from volcache.settings import SETTINGS

FILE: Final = Path(__file__).parents[1] / "conf" / "volcache.toml"
_COLUMNS: Final = 88


def render() -> str:
    """Return the file: every setting at its default, with an explanation."""
    intro = (
        "volcache: every setting at its default. A line that is left out has the same"
        f" effect. Environment variables {ENVIRONMENT_PREFIX}<SETTING>, such as"
        f" {ENVIRONMENT_PREFIX}PORT=8000, override this file. A wrong name or value stops"
        " the start with one line that states the reason. Relative paths are relative to"
        " the working directory. In text other than a token, %i stands for the name of the"
        f" instance (serve --instance NAME, or {INSTANCE_VARIABLE}) and %% for a percent"
        ' sign; a number may be text that contains it, as in port = "%i". Settings marked'
        " with (R) change at a reload, the others at a restart."
    )
    parts = [_comment(intro)]
    section = ""
    for setting in SETTINGS:
        if setting.section != section:
            section = setting.section
            parts.append(f"# --- {section} ".ljust(_COLUMNS - 3, "-"))
        reloads = " (R)" if setting.reloads else ""
        lines = (
            setting.text + reloads,
            f"Allowed: {setting.kind.allowed}.",
            f"Cost: {setting.cost}",
        )
        explained = "\n".join(map(_comment, lines))
        parts.append(f"{explained}\n{setting.name} = {setting.default_toml}")
    return "\n\n".join(parts) + "\n"


def _comment(text: str) -> str:
    return textwrap.fill(
        text,
        _COLUMNS,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


if __name__ == "__main__":
    FILE.write_text(render(), encoding="utf-8")
