"""
A reload: settings that change while an instance serves.

The settings are read again from where they were read at the start. If any of them is
wrong, nothing changes. Otherwise those change that can; the others are named, and change at
the next start.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import ConfigError
from volcache.logs import more_verbose, set_level
from volcache.ring import load_ring
from volcache.settings import SETTINGS, Config

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.ring import OwnKeys

_logger: Final = logging.getLogger("volcache")


class Settings(NamedTuple):
    """The settings, and what is in the lists that `ring` names."""

    config: Config
    ring: OwnKeys | None


def _with_ring(config: Config) -> Settings:
    return Settings(config, load_ring(config.ring, config.ring_self))


class Reloader:
    """The settings in effect, and how they change."""

    def __init__(self, config: Config, read: Callable[[], Config]) -> None:
        """
        Begin; `start` comes before all else.

        Args:
            config: What takes effect first.
            read: Reads the settings again; raises `ConfigError`.

        Raises:
            ConfigError: A list of `ring` is wrong.
        """
        self._settings = _with_ring(config)
        self._read = read
        self._change: Callable[[Settings], None] = lambda _: None
        self._numbers = itertools.count(1)
        self._applied = 0

    def start(self, change: Callable[[Settings], None]) -> None:
        """Let settings take effect by this function: now those of the start."""
        self._change = change
        change(self._settings)

    def read(self) -> tuple[int, Settings]:
        """
        Read the settings again, for `apply`; from any thread.

        Raises:
            ConfigError: One is wrong, or the file cannot be read; it is logged.
        """
        number = next(self._numbers)
        try:
            return number, _with_ring(self._read())
        except ConfigError as error:
            _logger.error("config.rejected error=%r", str(error))
            raise

    def apply(self, number: int, found: Settings) -> str:
        """
        Let settings take effect; in the thread that answers requests.

        Settings that were read before those in effect are ignored.

        Returns:
            One line that names those that changed, and those that need a restart.
        """
        if number < self._applied:
            return "reloaded by a later request"
        self._applied = number
        before = self._settings.config
        names = [
            setting
            for setting in SETTINGS
            if getattr(found.config, setting.name) != getattr(before, setting.name)
        ]
        changed = {s.name: getattr(found.config, s.name) for s in names if s.reloads}
        if found.ring != self._settings.ring:
            changed["ring"] = found.config.ring  # Also if only the lists have changed.
        restart = ", ".join(s.name for s in names if not s.reloads)
        after = dataclasses.replace(before, **changed)
        if changed:
            settings = Settings(after, found.ring)
            self._change(settings)
            # Not before: if that raised, the next reload does it again.
            self._settings = settings
        set_level(more_verbose(before.log_level, after.log_level))
        _logger.info(
            "config.reloaded changed=%r restart=%r", ", ".join(changed), restart
        )
        set_level(after.log_level)
        changes = f"changed: {', '.join(changed)}" if changed else "nothing has changed"
        return f"{changes}; a restart is needed for: {restart}" if restart else changes

    def reload(self) -> str:
        """
        Do both; in the thread that answers requests.

        Raises:
            ConfigError: As from `read`; nothing has changed.
        """
        return self.apply(*self.read())
