"""
The files for nginx, systemd, Prometheus and Grafana that come with volcache.

In an installed package they are in its folder `files`, where setup.py copies them. In a
checkout, and in an editable installation, they are read where they are. setup.py runs this
module by its path, before anything is installed: it imports nothing of the package.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

# Files, and folders with all that is in them, from the root of the project.
PATHS: Final = (
    "SECURITY.md",
    "conf/grafana",
    "conf/prometheus",
    "conf/systemd",
    "conf/volcache.toml",
    "docs/CLUSTER.md",
    "docs/HTTP.md",
    "docs/INSTALL.md",
    "docs/MEMCACHE.md",
    "docs/NGINX.md",
    "docs/RECIPES.md",
    "docs/REFERENCE.md",
    "docs/RELIABILITY.md",
    "docs/RUNBOOK.md",
    "docs/TOOLS.md",
    "docs/TUNING.md",
    "docs/openapi.yaml",
    "docs/volcache.1",
    "nginx",
    "tools/gocacheprog.py",
    "tools/nginx_tokens.py",
)
_PACKAGE: Final = Path(__file__).resolve().parent
INSTALLED: Final = _PACKAGE / "files"
_CHECKOUT: Final = _PACKAGE.parents[1]


def shipped_files(root: Path) -> Iterator[str]:
    """
    Yield the paths of all shipped files, in their order.

    Args:
        root: Has `PATHS`. Hidden files and what Python has compiled are left out.
    """
    for path in PATHS:
        place = root / path
        found = sorted(place.rglob("*")) if place.is_dir() else [place]
        for file in found:
            parts = file.relative_to(root).parts
            if file.is_file() and not any(
                part.startswith(".") or part == "__pycache__" for part in parts
            ):
                yield "/".join(parts)


def shipped_root() -> Path | None:
    """Return the folder that has `PATHS`; None if this installation has none."""
    for root in (INSTALLED, _CHECKOUT):
        if all((root / path).exists() for path in PATHS):
            return root
    return None
