"""`make image` builds with the engine that runs, and otherwise says what to do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from support.program import Ended, ended
from volcache import __version__

ROOT = Path(__file__).parents[2]
# In place of docker: answers `info`, and prints the arguments of `build`.
RUNS = '#!/bin/sh\n[ "$1" = info ] || echo "$(basename "$0")" "$@"\n'
FAILS = "#!/bin/sh\necho 'Cannot connect to the daemon' >&2\nexit 1\n"
NOT_ROOT = "#!/bin/sh\necho 1000\n"
# The commit, and its time: in 1970.
GIT = "#!/bin/sh\necho 0123\n"
PODMAN = " --ignorefile conf/image/Dockerfile.dockerignore --format docker"
WHEEL = f"volcache-{__version__}-cp311-cp311-manylinux_2_17_x86_64.whl"


def run(
    folder: Path, engines: dict[str, str], *words: str, wheel: str = WHEEL
) -> Ended:
    """Run the script, as no root, with these programs in place of the engines."""
    for name in ("src/volcache/version.py", "tools/image.sh"):
        (folder / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "dist").mkdir()
    (folder / "dist" / wheel).touch()
    programs = folder / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "sed", "sh", "basename", "stat"):
        program = shutil.which(name)
        assert program is not None
        (programs / name).symlink_to(program)
    for name, text in ({"id": NOT_ROOT, "git": GIT} | engines).items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    script = folder / "tools" / "image.sh"
    return ended(["bash", script, *words], {"PATH": str(programs)})


@pytest.mark.parametrize(
    ("engines", "builder", "options"),
    [
        ({"docker": RUNS, "podman": RUNS}, "docker", ""),
        ({"docker": FAILS, "podman": RUNS}, "podman", PODMAN),
        ({"podman": RUNS}, "podman", PODMAN),
    ],
)
def test_engine_that_runs_builds_the_image(
    tmp_path: Path, engines: dict[str, str], builder: str, options: str
) -> None:
    """With the version as tag, version and revision as labels, and a health check."""
    done = run(tmp_path, engines, "--pull")
    arguments = f"--build-arg VERSION={__version__} --build-arg REVISION=0123"
    arguments += f" --tag volcache:{__version__}{options} --pull"
    assert done.stdout.splitlines() == [
        f"image: {builder} builds volcache:{__version__}",
        f"{builder} build --file conf/image/Dockerfile {arguments} .",
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


def test_without_a_wheel_it_says_how_to_make_one(tmp_path: Path) -> None:
    """That of another version is none."""
    done = run(tmp_path, {"docker": RUNS}, wheel=f"volcache-{__version__}1-py3.whl")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"image: dist/ has no wheel of volcache {__version__}; run: make wheels\n"
    )


def test_wheel_of_other_sources_is_refused(tmp_path: Path) -> None:
    """The label would name sources that it is not of."""
    done = run(tmp_path, {"docker": RUNS, "git": "#!/bin/sh\necho 99999999999\n"})
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"image: dist/{WHEEL} is older than the last change of the sources;"
        " run: make wheels\n"
    )
