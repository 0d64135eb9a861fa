"""
The values of the settings, read from a TOML file and from the environment.

`Config` is what the rest of the program sees. Knows nothing of what the settings are
used for, and nothing but `wiring.py` and `commands/` may import it: the parts are
given plain values.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from volcache.errors import ConfigError
from volcache.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from volcache.setting import Setting

ENVIRONMENT_PREFIX: Final = "VOLCACHE_"
RECORD_OVERHEAD_MAX: Final = 4096  # Bytes; header, content type and encoding fit well.
DEFAULT_SOURCE: Final = "default"
PRESENT_SOURCE: Final = "as it is"
SHOWN_MAX: Final = 80  # Characters of a wrong value that an error repeats.


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One value per setting, checked; units and ranges as in `SETTINGS`."""

    mount_point: str
    volume_size: int
    volume_num: int
    ip: str
    port: int
    idle_timeout: float
    log_level: str
    log_file: str
    log_format: str
    log_access: str
    log_slow: float
    sync_mode: str
    sync_interval: float
    max_value_size: int
    max_key_size: int
    memc_on: bool
    memc_ip: str
    memc_port: int
    memc_servers: tuple[str, ...]
    memc_timeout: float
    memc_max_value_size: int
    cache_after_miss_count: int
    cache_after_miss_count_duration: float
    admin_token: str
    default_ttl: int
    max_ttl: int


def load_config(
    path: Path | None,
    environ: Mapping[str, str],
    present: Mapping[str, int] | None = None,
) -> Config:
    """
    Read the settings: defaults, then the file, then the environment.

    Args:
        path: A TOML file, or None for none.
        environ: Variables; those that begin with `VOLCACHE_` are settings.
        present: What goes before the defaults, since it is so already; by name.

    Raises:
        ConfigError: One line that names the source, the setting, its value and what is
            allowed; or why the file cannot be read.
    """
    values: dict[str, Any] = {setting.name: setting.default for setting in SETTINGS}
    sources = dict.fromkeys(values, DEFAULT_SOURCE)
    values |= present or {}
    sources |= dict.fromkeys(present or {}, PRESENT_SOURCE)
    by_name = {setting.name: setting for setting in SETTINGS}
    if path is not None:
        for name, raw in _read_file(path).items():
            setting = by_name.get(name)
            if setting is None:
                raise _unknown(str(path), "setting", name, raw, by_name)
            values[name] = _checked(str(path), setting, raw)
            sources[name] = str(path)
    by_variable = {ENVIRONMENT_PREFIX + s.name.upper(): s for s in SETTINGS}
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX):
            continue
        setting = by_variable.get(variable)
        if setting is None:
            raise _unknown("environment", "variable", variable, text, by_variable)
        source = f"environment variable {variable}"
        values[setting.name] = _checked(source, setting, text, as_text=True)
        sources[setting.name] = source
    config = Config(**values)
    _check_volume_holds_largest_record(config, sources)
    return config


def _read_file(path: Path) -> dict[str, object]:
    """Parse the file, turning every way to fail into one line."""
    try:
        return tomllib.loads(path.read_bytes().decode())
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror}"
        raise ConfigError(message) from error
    except UnicodeDecodeError as error:
        message = f"{path}: not UTF-8 text: byte {error.start} is not part of any"
        raise ConfigError(message) from error
    except (ValueError, RecursionError) as error:
        # ValueError itself: a number of more digits than Python converts.
        message = f"{path}: not valid TOML: {error}"
        raise ConfigError(message) from error


def _checked(
    source: str, setting: Setting, raw: object, *, as_text: bool = False
) -> object:
    """Give the setting's value for what was written, or raise what is allowed."""
    try:
        if as_text:
            return setting.from_text(str(raw))
        return setting.from_toml(raw)
    except (TypeError, ValueError) as error:
        message = (
            f"{source}: {setting.name} = {_shown(raw)} is not allowed; "
            f"allowed is {setting.allowed}"
        )
        raise ConfigError(message) from error


def _check_volume_holds_largest_record(
    config: Config, sources: Mapping[str, str]
) -> None:
    """Refuse limits under which a file that is taken could never be stored."""
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


def _unknown(
    source: str, kind: str, name: str, raw: object, known: Iterable[str]
) -> ConfigError:
    """Word the error for a name that is none, with the nearest one that is."""
    folded = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    if isinstance(raw, dict):
        hint = "a setting is a line of its own, in no [table]"
    elif near:
        hint = f"the closest known is {folded[near[0]]}"
    else:
        hint = f"known are {', '.join(folded.values())}"
    shown_name = name if name.isidentifier() else _shown(name)
    return ConfigError(f"{source}: unknown {kind} {shown_name} = {_shown(raw)}; {hint}")


def _shown(raw: object) -> str:
    """Write a value as TOML would, on one line and not too long."""
    if isinstance(raw, bool):
        return str(raw).lower()
    is_json = isinstance(raw, str | list)
    text = json.dumps(raw, default=str) if is_json else " ".join(str(raw).split())
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."
