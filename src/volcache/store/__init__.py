"""
The store: volumes, index files and the in-memory index.

No network, no configuration, no global state; importing it has no effect.
"""

from volcache.store.format import Record
from volcache.store.rings import SyncMode
from volcache.store.store import PeriodicSync, Store

__all__ = ["PeriodicSync", "Record", "Store", "SyncMode"]
