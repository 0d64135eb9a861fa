"""The command line: wrong arguments, exit codes, help and completion of all commands."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

import volcache
from support.command_line import Run
from support.process import SOURCE, run_to_its_end
from support.program import ended
from support.stores import open_store
from support.tables import rows
from support.wiring import Wiring
from volcache.cli import main as cli
from volcache.cli.completion import SHELLS, script
from volcache.errors import ConfigError, ListenError, MountPointError

ROOT = Path(__file__).parents[3]
PID = os.getpid()
SECONDS = "is not allowed; allowed is a number of seconds "
ADDRESS = "not the address of an instance; allowed are HOST:PORT"
ENVIRON = "/proc/self/environ"  # Has zero bytes.
# Wrong arguments, and what the line says.
REFUSED = {
    "serve a b": 'unexpected argument: b; see "volcache serve --help"',
    "sevre": "argument COMMAND: invalid choice: 'sevre' (choose from 'serve', ",
    "--jsn check a": "unexpected argument: --jsn; see ",
    "check a --jso": "unexpected argument: --jso; see ",
    "get k --time": "unexpected argument: --time; see ",
    "get -x5 k": "unexpected argument: -x5; ",
    "get k -o": "argument -o/--output: expected one argument; ",
    "get 'a\nb'": "bad key: it holds the control byte 0x0A",
    "get a%0Ab --encoded": "bad key: it holds the control byte 0x0A",
    "get ''": "bad key: ",
    "get -- -/stats": 'bad key: the prefix "-/" is reserved',
    "get k h:1 -t h:1": "the arguments: h:1 is also in the arguments",
    "ls a": "no token: set VOLCACHE_ADMIN_TOKEN",
    "ls a --token-file /none": "/none: cannot be read",
    "get /a": "bad key /a: it begins with a slash; the key of this path is a",
    "get --encoded %2Fa": "bad key %2Fa: it begins with a slash; the key",
    f"put //a/ {__file__}": "bad key //a/: it begins with a slash; the key",
    "rm /-/a": "bad key /-/a: it begins with a slash; the key",
    "get k nowhere": f"nowhere: {ADDRESS}",
    "get k http://h:1/p": "'http://h:1/p' is not the address of a node",
    f"load {__file__} http://h:1/p": "'http://h:1/p' is not the address of a node",
    "get k --timeout 0": f"argument --timeout: '0' {SECONDS}above 0",
    "get k --token-file /none": "/none",
    "rm ../x": "bad key: ",
    "rm a b": f"b: {ADDRESS}",
    "rm a:1": "a:1: looks like an address, and is in the place of KEY; give the",
    "ls http://a": "http://a: looks like an address, and is in the place of PREFIX",
    "put k a:1": "a:1: looks like an address, and is in the place of FILE; give",
    "get k --json": 'unexpected argument: --json; see "volcache get --help"',
    "put k --max-age=-1": "argument --max-age: ",
    "put k --content-type 'a\r\nb'": "Content-Type: ",
    "stats 127.0.0.1": f"127.0.0.1: {ADDRESS}",
    "stats --interval 1 --once": "--once and --interval exclude",
    "files": "give either DIR, where to write the files, or --list\n",
    "files --list x": "give either DIR, where to write the files, or --list\n",
    f"purge b h:1 ftp://x --token-file {__file__}": f"ftp://x: {ADDRESS}",
    "purge b h:1": "no token: set VOLCACHE_ADMIN_TOKEN",
    f"purge b h:1 --token-file {ENVIRON}": f"{ENVIRON}: the token has control",
    "cluster status missing": "missing: not the address of an instance",
    "cluster status --timeout nan": "argument --timeout: 'nan' ",
    "cluster top --interval x": f"argument --interval: 'x' {SECONDS}above 0",
    "cluster flush h:1 --yes": "no token: set VOLCACHE_ADMIN_TOKEN",
    "get": 'the following arguments are required: KEY; see "volcache get',
    "cluster render x": "the following arguments are required: -i/--inventory",
    "cluster render x -i no.toml": "no.toml: cannot be read: No such",
}
GOLDEN = ROOT / "tests" / "golden" / "v2"
# What cannot be used, of the files that the test makes, and what the line says.
UNUSABLE = {
    "check folder": "mount point 'folder' ",
    "repair folder": "mount point 'folder' ",
    "check file": "mount point 'file' ",
    "check missing": "mount point 'missing' ",
    **dict.fromkeys(
        ("check used", "dump used", "export used", "repair used"),
        f"mount point 'used' is in use by another process (process id {PID})",
    ),
    f"export {GOLDEN}/healthy other": "other: cannot be written: Is a directory",
    "load missing h:1": "missing: cannot be read: No such file or directory",
    "put k missing h:1": "missing: cannot be read: No such file or directory",
    "put k folder h:1": "folder: cannot be read: Is a directory",
    "stats 127.0.0.1:1": "http://127.0.0.1:1: Connection refused",
    "cluster render file/x -i fleet.toml": "file/x",
    "files --force file": "file",
    "files --force other": "other/nginx/volcache.conf: cannot be read: Is a di",
}
# Calls the function that bash would call for a tab behind the last word.
COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
function=$(complete -p volcache | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
"$function"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def test_wrong_arguments_print_one_line_and_exit_2(run: Run) -> None:
    """Exit code 2, and what is allowed or where to find help."""
    for words, message in REFUSED.items():
        code, out, err = run(*shlex.split(words))
        assert (code, out, err.count("\n")) == (2, "", 1), words
        assert err.startswith(f"volcache: {message}"), words


def test_unusable_files_print_one_line_and_exit_1(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1; nothing is created, and a running store is not disturbed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "other/nginx/volcache.conf").mkdir(parents=True)
    (tmp_path / "file").touch()
    (tmp_path / "fleet.toml").write_text('[machines]\na = "127.0.0.1"\n')
    store = open_store(tmp_path / "used")
    before = sorted(tmp_path.rglob("*"))
    for words, message in UNUSABLE.items():
        code, out, err = run(*words.split())
        assert (code, out, err.count("\n")) == (1, "", 1), words
        assert err.startswith(f"volcache: {message}"), words
    assert sorted(tmp_path.rglob("*")) == before
    store.put(b"key", b"value")
    store.close()


def test_serve_with_an_error_prints_one_line(wiring: Wiring, run: Run) -> None:
    """An error of the package has no traceback."""
    for error, code in (
        (ConfigError("a setting"), 2),
        (MountPointError("the disk"), 1),
        (ListenError("the address"), 1),
    ):
        wiring.error = error
        assert run("serve") == (code, "", f"volcache: {error}\n")
    wiring.error = KeyboardInterrupt()  # Before the server has installed its handler.
    assert run("serve") == (130, "", "")
    wiring.error = RuntimeError("a defect, which must be visible")
    with pytest.raises(RuntimeError):
        run("serve")


def test_serve_merges_file_environment_and_options(
    wiring: Wiring, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options override the file; without a file, there are defaults and environment."""
    path = tmp_path / "conf.toml"
    path.write_text('port = 8000\nmount_point = "/srv/%i"\n')
    assert run("serve", path, "--instance", "a") == (0, "", "")
    assert run("serve", "--instance", "b", path, "--set", "port=2").code == 0
    monkeypatch.setenv("VOLCACHE_PORT", "9000")
    assert run("serve").code == 0
    found = [(config.port, config.mount_point) for config in wiring.configs]
    assert found[:2] == [(8000, "/srv/a"), (2, "/srv/b")]
    assert found[2][0] == 9000
    monkeypatch.setenv("VOLCACHE_PORT", "x")
    code, _, err = run("serve")
    assert (code, len(wiring.configs)) == (2, 3)
    assert err.startswith("volcache: environment variable VOLC")


def test_server_with_an_unusable_log_prints_one_line(tmp_path: Path) -> None:
    """`python src/` is `volcache serve`, in any directory and without packages."""
    for name, path, reason in (
        ("log_file", tmp_path / "missing" / "log", "No such file or directory"),
        ("log_access", tmp_path, "Is a directory"),
    ):
        done = run_to_its_end(tmp_path, {name: path, "port": 0})
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == (
            f'volcache: {name} = "{path}" cannot be opened: {reason}; use a file that'
            " this user may write to, in an existing directory\n"
        )
    assert list(tmp_path.iterdir()) == []
    command = [sys.executable, "-S", str(SOURCE), "missing.toml"]
    done = ended(command, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "volcache: missing.toml: cannot be read: No such file or directory\n"
    )


def test_version_prints_name_and_version(run: Run) -> None:
    """Name and version."""
    for words in (["--version"], ["-V"], ["serve", "--version"], ["check", "-V"]):
        assert run(*words) == (0, f"volcache {volcache.__version__}\n", "")


def test_help_lists_all_commands_and_examples(run: Run) -> None:
    """Also without arguments; a command of commands shows it if none is given."""
    shown = [run(*words) for words in ([], ["--help"], ["help"])]
    assert "example: volcache serve conf/volcache.toml" in shown[0].out
    assert shown == [(0, shown[0].out, "")] * 3
    for name in cli.MODULES:
        assert re.search(rf"^    {name}\s", shown[0].out, re.MULTILINE)
        code, out, _ = run(name, "--help")
        assert (code, "example" in out or "commands:" in out) == (0, True)
        assert re.search(f"[ :] volcache {name} ", out)
        if name != "serve":  # Its table of settings is wider.
            assert max(map(len, out.splitlines())) <= 92
    for words in (["get"], ["cluster"], ["config"], ["cluster", "flush"]):
        asked = [["help", *words], [*words, "--help"]]
        asked += [words] if words in (["cluster"], ["config"]) else []
        ((code, out, err),) = {run(*argv) for argv in asked}
        assert (code, err) == (0, "")
        assert out.startswith(f"usage: volcache {' '.join(words)} ")


@rows(
    (
        ["get", "k", "-o", "f", "h:1"],
        {"key": "k", "output": "f", "targets": ["h:1"]},
    ),
    (["get", "-of", "k", "-th:1"], {"output": "f", "target": ["h:1"]}),
    (["get", "k", "-o", ""], {"key": "k", "output": ""}),
    (["get", "--", "-k", "h:1"], {"key": "-k", "targets": ["h:1"]}),
    (["put", "k", "--max-age=7", "-", "h:1"], {"file": "-", "targets": ["h:1"]}),
    (["rm", "a", "-f", "b:1"], {"key": "a", "targets": ["b:1"], "force": True}),
    (["stats", "--json"], {"targets": [], "json": True}),
)
def test_options_at_any_place_are_parsed(
    argv: list[str], names: dict[str, object]
) -> None:
    """Also between arguments of which the last is optional."""
    found = vars(cli.build_parser(argv).parse_args(argv))
    assert {name: found[name] for name in names} == names


def imported_by(*argv: str) -> set[str]:
    """Return the modules that a command imports, in a process of its own."""
    program = f"""
import sys
from volcache.cli.main import main
main({list(argv)!r})
print(*sys.modules, file=sys.stderr)
"""
    done = ended([sys.executable, "-S", "-c", program], {"PYTHONPATH": str(SOURCE)})
    assert done.returncode == 0, done.stderr
    return {*done.stderr.splitlines()[-1].split()}


@pytest.mark.slow
@rows(["--version"], ["--help"], ["help"], [])
def test_help_and_version_import_no_command(argv: list[str]) -> None:
    """They are printed at once: few modules of the standard library, none of others."""
    found = imported_by(*argv)
    ours = {name for name in found if name.startswith("volcache")}
    names = ("", ".cli", ".cli.command", ".cli.main", ".errors", ".version")
    assert ours == {f"volcache{name}" for name in names}
    assert not found & {"asyncio", "http", "importlib.resources", "logging", "ssl"}
    assert len(found) < 150


@pytest.mark.slow
def test_command_imports_only_what_it_needs() -> None:
    """`get` no settings and no store; `serve` neither a tool nor the store, at first."""
    get = imported_by("get", "key", "127.0.0.1:1")
    assert {"volcache.cli.values", "volcache_client.client"} <= get
    assert not get & {"asyncio", "http.client", "logging.config", "prometheus_client"}
    assert not get & {"volcache.settings", "volcache.store", "volcache_client.aio"}
    serve = imported_by("serve", "--help")
    assert "volcache.settings" in serve
    assert not serve & {"volcache.cli.check", "volcache.store", "volcache.wiring"}


def test_completion_of_bash_offers_commands_options_and_paths(tmp_path: Path) -> None:
    """Commands, options and choices; folders for a mount point, files for a log."""
    path = tmp_path / "script"
    path.write_text(script("bash"))
    folder = tmp_path / "here"
    (folder / "a folder").mkdir(parents=True)
    (folder / "a file").touch()
    for words, expected in (
        *((["s"], {"serve", "stats"}), (["lo"], {"load"})),
        *((["check", "--j"], {"--json"}), (["stats", "--o"], {"--once"})),
        *((["completion", ""], set(SHELLS)), (["check", "a"], {"a folder"})),
        (["put", "k", "a"], {"a folder", "a file"}),
        (["load", "x", "--resume", "a f"], {"a folder", "a file"}),
    ):
        bash = ["bash", "--norc", "-c", COMPLETE, "bash", str(path), "volcache"]
        done = ended([*bash, *words], folder=folder)
        assert set(done.stdout.splitlines()) == expected
        assert (done.returncode, done.stderr) == (0, "")


def test_completion_of_each_shell_has_all_commands(run: Run) -> None:
    """Made from the parsers."""
    for shell in SHELLS:
        code, out, _ = run("completion", shell)
        assert code == 0
        assert all(name in out for name in cli.MODULES)
