"""
The engine: volumes, index files and the index in memory.

No network, no configuration, no globals; nothing happens at import.
"""

from volcache.store.cycle import SyncMode
from volcache.store.engine import Store
from volcache.store.format import Record
from volcache.store.syncer import PeriodicSync

__all__ = ["PeriodicSync", "Record", "Store", "SyncMode"]
