"""`python src/ [CONFIG]`: the same as `volcache serve [CONFIG]`."""

from __future__ import annotations

import sys

from volcache.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
