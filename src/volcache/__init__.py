"""
volcache: very many small files on plain disks, served over HTTP or used from Python.

`open` opens a directory as a cache in this process; see docs/PYTHON.md. Importing this
package loads nothing else: what the names below stand for is loaded when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from volcache.embedded.cache import EmbeddedCache
    from volcache.embedded.opening import open_cache as open  # noqa: A004 - As in dbm.
    from volcache.version import __version__ as __version__
    from volcache_client.errors import CacheError
    from volcache_client.messages import Item, Stat

__all__ = ["CacheError", "EmbeddedCache", "Item", "Stat", "open"]

_PLACES: Final = {
    "CacheError": ("volcache_client.errors", "CacheError"),
    "EmbeddedCache": ("volcache.embedded.cache", "EmbeddedCache"),
    "Item": ("volcache_client.messages", "Item"),
    "Stat": ("volcache_client.messages", "Stat"),
    "__version__": ("volcache.version", "__version__"),
    "open": ("volcache.embedded.opening", "open_cache"),
}


if not TYPE_CHECKING:  # For a type checker, there are no other names than those above.

    def __getattr__(name: str) -> object:
        """Load what a name stands for, once."""
        if name not in _PLACES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute = _PLACES[name]
        found: object = getattr(import_module(module), attribute)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    """Return all names, loaded or not."""
    return sorted({*globals(), *_PLACES})
