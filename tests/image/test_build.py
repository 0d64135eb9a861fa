"""The image is built from the wheel in dist/, and works, without an engine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from volcache import __version__

ROOT = Path(__file__).parents[2]


def may_build() -> bool:
    """Whether there are a wheel, and what makes a base."""
    wheels = list((ROOT / "dist").glob(f"volcache-{__version__}-*.whl"))
    return bool(wheels and shutil.which("mmdebstrap") and not os.geteuid())


@pytest.mark.nightly
@pytest.mark.skipif(not may_build(), reason="needs root, mmdebstrap and make wheels")
def test_image_works() -> None:
    """The tool says so; pip trusts what this machine does."""
    command = [sys.executable, str(ROOT / "tools" / "image_check.py")]
    command += ["--build-arg", f"VERSION={__version__}"]
    if certificates := os.environ.get("SSL_CERT_FILE"):
        command += ["--secret", f"id=ca,src={certificates}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.endswith("image_check: the image works\n")
