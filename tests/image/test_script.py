"""`make image` builds with the engine that runs, and otherwise says what to do."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from volcache import __version__

SCRIPT = Path(__file__).parents[2] / "tools" / "image.sh"
# In place of docker: answers `info`, and prints the arguments of `build`.
RUNS = '#!/bin/sh\n[ "$1" = info ] || echo "$(basename "$0")" "$@"\n'
FAILS = "#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 1\n"
NOT_ROOT = "#!/bin/sh\necho 1000\n"


def run(
    folder: Path, engines: dict[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    """Run the script, as no root, with these programs in place of the engines."""
    for name in ("bash", "dirname", "sed", "sh", "basename"):
        program = shutil.which(name)
        assert program is not None
        (folder / name).symlink_to(program)
    for name, text in ({"id": NOT_ROOT} | engines).items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return subprocess.run(
        ["bash", SCRIPT, *words],
        env={"PATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("engines", "builder", "options"),
    [
        ({"docker": RUNS, "podman": RUNS}, "docker", ""),
        ({"docker": FAILS, "podman": RUNS}, "podman", " --format docker"),
        ({"podman": RUNS}, "podman", " --format docker"),
    ],
)
def test_engine_that_runs_builds_the_image(
    tmp_path: Path, engines: dict[str, str], builder: str, options: str
) -> None:
    """With the version as tag and label, and a health check."""
    done = run(tmp_path, engines, "--pull")
    build = f"build --build-arg VERSION={__version__} --tag volcache:{__version__}"
    assert done.stdout.splitlines() == [
        f"image: {builder} builds volcache:{__version__}",
        f"{builder} {build}{options} --pull .",
    ]
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("engines", [{}, {"docker": FAILS}])
def test_without_an_engine_it_says_what_to_do(
    tmp_path: Path, engines: dict[str, str]
) -> None:
    """If it cannot execute the steps itself."""
    done = run(tmp_path, engines)
    assert done.returncode == 1
    assert "start docker, or run as root: apt-get install mmdebstrap" in done.stderr
