"""A process that the native core sees as a server does."""

from __future__ import annotations

import os

from support.stores import ProcessFileSystem


class BareProcess(ProcessFileSystem):
    """
    A process whose reads and writes are the bare functions of `os`.

    The native core then makes these calls by itself, as in a server.
    """

    pread = staticmethod(os.pread)
    pwritev = staticmethod(os.pwritev)
