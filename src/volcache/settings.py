"""
The settings: `Config` is the record of their values, settings.toml the table of them.

`SETTINGS` is that table for code that works on all settings: reading them (`config.py`),
the help of `volcache serve`, `conf/volcache.toml` and the reference page.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from volcache.kinds import SECRET, Kind, make_kind

if TYPE_CHECKING:
    from volcache.keys import Query
    from volcache.store import SyncMode
    from volcache.store.eviction import Eviction


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table; settings.toml describes the columns."""

    name: str
    section: str
    kind: Kind[Any]
    default: Any
    default_toml: str  # The default as a TOML file has it.
    has_auto: bool
    text: str
    cost: str
    reloads: bool

    @property
    def is_secret(self) -> bool:
        """Whether the value must not be shown."""
        return self.kind is SECRET


def _setting(section: str, name: str, row: dict[str, Any]) -> Setting:
    default, kind = row["default"], make_kind(row)
    # JSON is TOML for strings, integers, booleans and lists of strings.
    is_float = isinstance(default, float)
    return Setting(
        name=name,
        section=section,
        kind=kind,
        default=kind.from_toml(default),
        default_toml=f"{default:g}" if is_float else json.dumps(default),
        has_auto=row.get("auto", False),
        text=row["text"],
        cost=row["cost"],
        reloads=row.get("reloads", False),
    )


_TABLE: Final = tomllib.loads((files(__package__) / "settings.toml").read_text("utf-8"))
SETTINGS: Final = tuple(
    _setting(section, name, row)
    for section, rows in _TABLE.items()
    for name, row in rows.items()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One checked value for each setting."""

    mount_point: str
    volume_size: int
    volume_num: int
    eviction: Eviction
    reinsert_reads: float
    ip: str
    port: int
    admin_listen: str
    memcache_listen: str
    memcache_flush: bool
    memcache_idle_timeout: float
    threads: int
    idle_timeout: float
    head_timeout: float
    transfer_timeout: float
    read_threads: int
    log_level: str
    log_file: str
    log_format: str
    log_access: str
    log_slow: float
    sync_mode: SyncMode
    sync_interval: float
    scrub_rate: int
    max_value_size: int
    max_key_size: int
    query: Query
    ring: tuple[str, ...]
    ring_self: str
    body_memory: int
    memc_on: bool
    memc_ip: str
    memc_port: int
    memc_servers: tuple[str, ...]
    memc_timeout: float
    memc_first: bool
    memc_max_value_size: int
    cache_after_miss_count: int
    cache_after_miss_count_duration: float
    read_token: str = field(repr=False)
    write_token: str = field(repr=False)
    cors_origins: tuple[str, ...]
    admin_token: str = field(repr=False)
    admin_hosts: tuple[str, ...]
    metrics_volumes: bool
    default_ttl: int
    max_ttl: int


# A setting that `Config` does not have is an error here, and one that the table does not.
DEFAULTS: Final = Config(**{setting.name: setting.default for setting in SETTINGS})


def value_of(config: Config, setting: Setting) -> object:
    """Return the value of a setting as it is written: a number, or the word "auto"."""
    value: object = getattr(config, setting.name)
    return "auto" if setting.has_auto and not value else value


def visible_settings(config: Config) -> dict[str, object]:
    """Return all settings by name, for JSON; of a secret, whether it is set."""
    found: dict[str, object] = {}
    for setting in SETTINGS:
        value = value_of(config, setting)
        if setting.is_secret:
            value = bool(value)
        found[setting.name] = list(value) if isinstance(value, tuple) else value
    return found
