"""`python -m volcache`: the command `volcache`."""

from __future__ import annotations

import sys

from volcache.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
