"""volcache: very many small files on plain disks, served over HTTP."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
