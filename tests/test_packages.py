"""The packages have what they need, install without what they do not, and say so."""

from __future__ import annotations

import os
import sys
import tomllib
import zipfile
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import release
import volcache
from support.checkout import copied, tracked
from support.program import ended

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
# Of a service, which has its own file of pins, and of all.
SERVICE = list(
    map(Requirement, PROJECT["dependencies"] + EXTRAS["server"] + EXTRAS["tools"])
)
NEEDED = list(map(Requirement, sum(EXTRAS.values(), PROJECT["dependencies"])))
# Of this tree, with the same version.
CLIENT = "volcache-client"
REQUIREMENTS = ("requirements.txt", "tests/requirements.txt")
# Where most dependencies are needed.
LOWEST = {"extra": "", "python_version": "3.11", "python_full_version": "3.11.0"}
# In the place of the server's packages, as if they were not installed.
WITHOUT = """
import sys
for name in ("prometheus_client", "pymemcache", "shtab", "tqdm"):
    sys.modules[name] = None
"""


def pins(name: str) -> dict[str, Requirement]:
    """Return what pip installs of a file of requirements, by name."""
    lines = (ROOT / name).read_text().splitlines()
    found = [Requirement(line) for line in lines if line and line[0] not in "#-"]
    return {
        canonicalize_name(pin.name): pin
        for pin in found
        if pin.marker is None or pin.marker.evaluate()
    }


# --- Requirements ----------------------------------------------------------------------


def test_pins_are_within_the_ranges_of_the_package() -> None:
    """What the tests run with is what pip may install; no package is pinned twice."""
    service, tests = map(pins, REQUIREMENTS)
    assert service.keys() & tests.keys() == set()
    for needed in NEEDED:
        if needed.name == CLIENT:
            assert str(needed.specifier) == f"=={volcache.__version__}"
            continue
        [pin] = (service | tests)[canonicalize_name(needed.name)].specifier
        assert pin.operator == "=="
        assert pin.version in needed.specifier, needed
        operators = {specifier.operator for specifier in needed.specifier}
        assert ">=" in operators <= {">=", "<"}  # Each range has a lower end.


def test_requirements_have_all_dependencies_of_the_service() -> None:
    """And nothing else; so pip has nothing to choose."""
    service = pins("requirements.txt")
    reached: set[str] = set()
    open_ = [canonicalize_name(needed.name) for needed in SERVICE]
    while open_:
        name = open_.pop()
        if name in reached:
            continue
        reached.add(name)
        for line in metadata.requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate(LOWEST):
                open_.append(canonicalize_name(needed.name))
    assert reached - {CLIENT} == service.keys()


def test_every_place_has_the_same_version() -> None:
    """The changelog has it when it is released."""
    found = release.versions(ROOT)
    assert found.pop("docs/CHANGELOG.md") in {None, volcache.__version__}
    assert set(found.values()) == {volcache.__version__}


# --- Without the packages of the server ------------------------------------------------


def python(program: str, *words: str, path: Path = ROOT / "src") -> str:
    """Run a program; return what it printed, on both outputs."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("VOLCACHE")}
    environ |= {"PYTHONPATH": str(path)}
    done = ended([sys.executable, "-c", program, *words], environ)
    return f"{done.stdout}{done.stderr}exit code {done.returncode}"


def run_without(*words: str) -> str:
    """Run `volcache` where no package of the server is installed."""
    program = f"{WITHOUT}from volcache.cli.main import main; sys.exit(main())"
    return python(program, *words)


def test_only_the_server_needs_its_packages() -> None:
    """All else is imported without: the store, and other commands."""
    program = f"""{WITHOUT}
import pkgutil, volcache
def imports(name):
    try:
        __import__(name)
    except ModuleNotFoundError:
        return False
    return True
for module in pkgutil.walk_packages(volcache.__path__, "volcache."):
    if "__main__" not in module.name and not imports(module.name):
        print(module.name)
"""
    assert python(program).splitlines() == [
        "volcache.http.admin",
        "volcache.monitoring.prometheus",
        "volcache.wiring",
        "exit code 0",
    ]


def test_serve_without_its_packages_names_the_extra(tmp_path: Path) -> None:
    """One line, as for a wrong setting; nothing is opened."""
    options = ["--set", f"mount_point={tmp_path / 'new'}", "--set"]
    assert run_without("serve", *options, "port=1") == (
        "volcache: not installed: prometheus-client, which a server needs; run:"
        " pip install 'volcache[server]'\nexit code 2"
    )
    assert list(tmp_path.iterdir()) == []


def test_commands_without_the_packages_of_the_server_work(tmp_path: Path) -> None:
    """On the files of a store, and of an instance that does not answer."""
    store = tmp_path / "store"
    program = f"""{WITHOUT}
from volcache.store import Store
store = Store.open(sys.argv[1], volume_size=1 << 21, volume_num=4)
store.put(b"key", b"value")
print(store.get(b"key").value)
store.close()
"""
    assert python(program, str(store)) == "b'value'\nexit code 0"
    for words, expected in (
        (["check", str(store)], "damaged: 0"),
        (["dump", str(store)], "key"),
        (["config", "check"], ""),
        (["files", "--list"], "nginx/volcache.conf"),
    ):
        shown = run_without(*words)
        assert expected in shown
        assert shown.endswith("exit code 0")
    shown = run_without("completion", "bash")
    assert shown == (
        "volcache: not installed: shtab, which makes the script; run: pip install"
        " 'volcache[tools]'\nexit code 2"
    )
    for words in (["stats"], ["cluster", "status"], ["get", "key"]):
        shown = run_without(*words, "127.0.0.1:1")
        assert "Connection refused" in shown or "127.0.0.1:1" in shown
        assert shown.endswith("exit code 1")
    # As a module, `python -m volcache`.
    program = "import runpy; runpy.run_module('volcache', run_name='__main__')"
    shown = python(program, "--version")
    assert shown == f"volcache {volcache.__version__}\nexit code 0"


# --- Source package and wheel ----------------------------------------------------------


@pytest.mark.slow
def test_client_wheel_has_all_modules_and_needs_nothing(
    tmp_path: Path,
) -> None:
    """It has all modules of the clients."""
    pip = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation")
    tree = copied(tmp_path / "tree")
    done = ended([*pip, "--wheel-dir", tmp_path, tree / "src"])
    assert done.returncode == 0, done.stderr
    wheel = tmp_path / f"volcache_client-{volcache.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as file:
        names = {name for name in file.namelist() if ".dist-info/" not in name}
        [described] = [name for name in file.namelist() if name.endswith("/METADATA")]
        found = message_from_bytes(file.read(described))
    modules = {
        path.removeprefix("src/")
        for path in tracked()
        if path.startswith("src/volcache_client/")
    }
    assert names == {
        name for name in modules if name.endswith((".py", ".pyi", ".typed"))
    }
    assert found.get_all("Requires-Dist") is None
    assert found["Requires-Python"] == PROJECT["requires-python"]
