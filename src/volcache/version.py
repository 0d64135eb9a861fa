"""The version; modules import it from here, as the package itself stands above them."""

from __future__ import annotations

from typing import Final

__version__: Final = "0.1.0"
