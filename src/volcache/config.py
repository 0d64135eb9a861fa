"""
Read the settings from a TOML file and from the environment, and check them.

The result is a `Config` (`settings.py`). Only `wiring.py` and `cli/` use it; all other
modules receive plain values.
"""

from __future__ import annotations

import difflib
import json
import textwrap
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from volcache.errors import ConfigError
from volcache.settings import SETTINGS, Config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from volcache.settings import Setting

ENVIRONMENT_PREFIX: Final = "VOLCACHE_"
# Read when the store is imported: 1 means without the extension.
PURE_VARIABLE: Final = "VOLCACHE_PURE"
RECORD_OVERHEAD_MAX: Final = 4096  # Bytes; header, content type and encoding fit well.
SHOWN_MAX: Final = 80  # Characters of a wrong value that an error repeats.
SAMPLE_COLUMNS: Final = 88
_HIDDEN: Final = "(not shown)"


@dataclass(frozen=True, slots=True)
class _Value:
    """A checked value and where it comes from."""

    setting: Setting
    value: object
    source: str


def load_config(
    path: Path | None,
    environ: Mapping[str, str],
    existing: Mapping[str, int] | None = None,
) -> Config:
    """
    Read the settings: defaults, then the file, then the environment.

    Args:
        path: A TOML file, or None for none.
        environ: Variables; those that begin with `VOLCACHE_` are settings.
        existing: Values of an existing mount point, by name; they replace the defaults.

    Raises:
        ConfigError: One line that names the source, the setting, its value and what is
            allowed; or why the file cannot be read.
    """
    sources = dict.fromkeys((setting.name for setting in SETTINGS), "default")
    sources |= dict.fromkeys(existing or {}, "of the existing volumes")
    values: dict[str, Any] = dict(existing or {})
    found = list(_from_file(path)) if path is not None else []
    found += _from_environment(environ)
    for item in found:
        values[item.setting.name] = item.value
        sources[item.setting.name] = item.source
    config = Config(**values)
    _check_volume_holds_largest_record(config, sources)
    return config


def _from_file(path: Path) -> Iterator[_Value]:
    """Yield the settings of a file."""
    source = str(path)
    by_name = {setting.name: setting for setting in SETTINGS}
    for name, raw in _read_file(path).items():
        setting = by_name.get(name)
        if setting is None:
            raise _unknown_name(source, "setting", name, raw, by_name)
        try:
            value = setting.kind.from_toml(raw)
        except (TypeError, ValueError) as error:
            raise _not_allowed(source, setting, raw) from error
        yield _Value(setting, value, source)


def _from_environment(environ: Mapping[str, str]) -> Iterator[_Value]:
    """Yield the settings of the environment; other variables are ignored."""
    by_variable = {ENVIRONMENT_PREFIX + s.name.upper(): s for s in SETTINGS}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable == PURE_VARIABLE:
            continue
        setting = by_variable.get(variable)
        if setting is None:
            raise _unknown_name("environment", "variable", variable, text, by_variable)
        source = f"environment variable {variable}"
        try:
            value = setting.kind.from_text(text)
        except (TypeError, ValueError) as error:
            raise _not_allowed(source, setting, text) from error
        yield _Value(setting, value, source)


def _read_file(path: Path) -> dict[str, object]:
    """Parse the file; every failure becomes one line."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        message = f"{path}: not UTF-8 text: invalid byte at offset {error.start}"
        raise ConfigError(message) from error
    except (ValueError, RecursionError) as error:
        # ValueError itself: a number with more digits than Python converts.
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def _check_volume_holds_largest_record(
    config: Config, sources: Mapping[str, str]
) -> None:
    """Reject limits that accept a file which no volume can hold."""
    needed = config.max_value_size + config.max_key_size + RECORD_OVERHEAD_MAX
    if config.volume_size >= needed:
        return

    def described(name: str) -> str:
        return f"{name} = {getattr(config, name)} ({sources[name]})"

    message = (
        f"{described('volume_size')} is too small for the largest record; "
        f"allowed is at least {needed}: {described('max_value_size')} + "
        f"{described('max_key_size')} + {RECORD_OVERHEAD_MAX}"
    )
    raise ConfigError(message)


def _not_allowed(source: str, setting: Setting, raw: object) -> ConfigError:
    """Build the error for a value that is not allowed."""
    shown = _HIDDEN if setting.is_secret else _shown(raw)
    return ConfigError(
        f"{source}: {setting.name} = {shown} is not allowed;"
        f" allowed is {setting.allowed}"
    )


def _unknown_name(
    source: str, kind: str, name: str, raw: object, known: Iterable[str]
) -> ConfigError:
    """Build the error for an unknown name, with the closest known one."""
    folded = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    if isinstance(raw, dict):
        hint = "settings are not in a [table]: write each on a line of its own"
    elif near:
        hint = f"the closest known is {folded[near[0]]}"
    else:
        hint = f"known are {', '.join(folded.values())}"
    shown_name = name if name.isidentifier() else _shown(name)
    # It may be that of a token whose name is misspelt.
    is_secret = "token" in f"{name} {near} {raw}".lower()
    shown = _HIDDEN if is_secret else _shown(raw)
    return ConfigError(f"{source}: unknown {kind} {shown_name} = {shown}; {hint}")


def _shown(raw: object) -> str:
    """Write a value as TOML does, on one line and cut off after `SHOWN_MAX`."""
    if isinstance(raw, bool):
        return str(raw).lower()
    is_json = isinstance(raw, str | list)
    text = json.dumps(raw, default=str) if is_json else " ".join(str(raw).split())
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def sample() -> str:
    """Return `conf/volcache.toml`: every setting at its default, with an explanation."""
    intro = (
        "volcache: every setting at its default. A line that is left out has the same"
        f" effect. Environment variables {ENVIRONMENT_PREFIX}<SETTING>, such as"
        f" {ENVIRONMENT_PREFIX}PORT=8000, override this file. A wrong name or value stops"
        " the start with one line that states the reason. Relative paths are relative to"
        " the working directory."
    )
    parts = [_comment(intro)]
    section = ""
    for setting in SETTINGS:
        if setting.section != section:
            section = setting.section
            parts.append(f"# --- {section} ".ljust(SAMPLE_COLUMNS - 3, "-"))
        lines = (
            setting.text,
            f"Allowed: {setting.allowed}.",
            f"Cost: {setting.cost}",
        )
        explained = "\n".join(map(_comment, lines))
        parts.append(f"{explained}\n{setting.name} = {setting.default_toml}")
    return "\n\n".join(parts) + "\n"


def _comment(text: str) -> str:
    return textwrap.fill(
        text,
        SAMPLE_COLUMNS,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
