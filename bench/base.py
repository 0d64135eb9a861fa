"""The tree of another revision, beside this one, for as long as it is measured."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from machine import ROOT

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path


def base_tree(stack: ExitStack, folder: Path, revision: str) -> Path:
    """
    Check a revision out into a folder.

    Args:
        stack: Removes it again.
        folder: Does not exist yet.
        revision: A commit, a tag or a branch.

    Raises:
        SystemExit: There is no such revision; says what git said.

    """
    git = ("git", "-C", str(ROOT), "worktree")
    done = subprocess.run(
        [*git, "add", "--quiet", "--detach", str(folder), revision],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"git cannot check out {revision}: {done.stderr.strip()}")
    stack.callback(
        subprocess.run, [*git, "remove", "--force", str(folder)], check=False
    )
    return folder
