"""
The engine: volumes, index files and the index in memory.

No network, no configuration, no globals; nothing happens at import.
"""

from volcache.store.format import Record
from volcache.store.log import SyncMode
from volcache.store.store import PeriodicSync, Store

__all__ = ["PeriodicSync", "Record", "Store", "SyncMode"]
