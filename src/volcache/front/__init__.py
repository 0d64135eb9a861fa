"""
The native front of the service: C that answers plain requests before Python does.

An extension of its own, with the loops that serve clients and the protocols; its
contracts are in `_native.pyi`. It gets the index of a store from the extension of the
store, which knows nothing of the service.
"""

from __future__ import annotations

from volcache.errors import CoreMissingError

try:
    from volcache.front import _native
except ImportError as error:
    raise CoreMissingError(str(error)) from error

AccessLog = _native.AccessLog
CommandFacts = _native.CommandFacts
Copies = _native.Copies
HotClient = _native.HotClient
LocalClient = _native.LocalClient
LocalLoop = _native.LocalLoop
Parts = _native.Parts
Readers = _native.Readers
Server = _native.Server
