"""A fake wiring module, with which a start serves nothing."""

from __future__ import annotations

import types
from collections.abc import Callable

from volcache.settings import Config


class Wiring(types.ModuleType):
    """Stands in for `volcache.wiring`: records configs, raises `error` if it is set."""

    def __init__(self) -> None:
        """Serve nothing."""
        super().__init__("volcache.wiring")
        self.configs: list[Config] = []
        self.error: BaseException | None = None

    def run(self, config: Config, read_again: Callable[[], Config]) -> None:
        """Stand in for `wiring.run`."""
        assert read_again() == config
        self.configs.append(config)
        if self.error:
            raise self.error
