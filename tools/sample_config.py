"""Write `conf/volcache.toml` from the table of settings."""

from __future__ import annotations

from pathlib import Path

from volcache.config import sample

if __name__ == "__main__":
    path = Path(__file__).parents[1] / "conf" / "volcache.toml"
    path.write_text(sample(), encoding="utf-8")
