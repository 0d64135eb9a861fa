"""A stand-in for the wiring: a start of a server that serves nothing."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from volcache.config import Config


class Wiring(types.ModuleType):
    """Stands in for the wiring: keeps what it was given, raises what it is told."""

    def __init__(self) -> None:
        """Serve nothing."""
        super().__init__("volcache.wiring")
        self.configs: list[Config] = []
        self.error: BaseException | None = None

    def run(self, config: Config) -> None:
        """Take the place of `wiring.run`."""
        self.configs.append(config)
        if self.error:
            raise self.error
