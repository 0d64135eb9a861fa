"""`volcache cluster`: output and exit codes."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from support.command_line import Run, Screens
from support.fake_fleet import fake_fleet, free_address
from support.scripted_server import ScriptedServer, answering, value
from support.stats_server import StatsServer

ONE = '[machines]\na = "127.0.0.1"\n'


@pytest.fixture
def fleet() -> Iterator[list[StatsServer]]:
    """Two instances that were just started."""
    with fake_fleet(2) as running:
        yield running


@pytest.fixture
def names(fleet: list[StatsServer]) -> list[str]:
    """Return the arguments that name them."""
    return [one.name for one in fleet]


def test_status_of_healthy_instances_lists_them_with_totals(
    fleet: list[StatsServer], names: list[str], run: Run
) -> None:
    """Exit code 0: all are healthy. There are no colours in a pipe; `top` is the same."""
    for verb in ("status", "top"):
        code, out, err = run("cluster", verb, *names)
        lines = out.splitlines()
        assert lines[0].split()[0] == "INSTANCE"
        assert {line.split()[0] for line in lines[1:3]} == {one.name for one in fleet}
        assert lines[4] == "2 instances: 2 ok"
        assert (code, "\x1b" in out, err) == (0, False, "")


def test_status_of_an_unhealthy_instance_lists_the_worst_first(
    fleet: list[StatsServer], names: list[str], run: Run
) -> None:
    """Exit code 1: one is not healthy. With --problems, the others have no line."""
    down = free_address()
    fleet[1].stats["ready"] = False
    code, out, _ = run("cluster", "status", "--problems", *names, down)
    lines = out.splitlines()
    assert lines[1].startswith(down)
    assert lines[1].endswith("down: Connection refused")
    assert "not ready: " in lines[2]
    assert (code, lines[3]) == (1, "")
    assert lines[4] == "3 instances: 1 down, 1 not ready, 1 ok"
    code, out, _ = run("cluster", "status", "--json", *names, down)
    found = json.loads(out)
    assert (code, found["states"]) == (1, {"down": 1, "not ready": 1, "ok": 1})
    assert found["instances"][0]["problem"] == "Connection refused"


def test_status_without_a_target_asks_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """Then the list where nginx has it on Debian."""
    address = free_address()
    (tmp_path / "list").write_text(f"server {address};\n")
    path = str(tmp_path / "list")
    other = free_address()
    monkeypatch.setenv("VOLCACHE_TARGET", f"{path} {other}")
    code, out, _ = run("cluster", "status")
    assert (code, f"{address} " in out, f"{other} " in out) == (1, True, True)
    assert f"{address} " not in run("cluster", "status", other).out
    monkeypatch.delenv("VOLCACHE_TARGET")
    code, _, err = run("cluster", "status")
    assert (code, "/etc/nginx/volcache/instances.conf: there is no" in err) == (2, True)


def test_top_on_a_terminal_fits_it_until_ctrl_c(
    names: list[str], monkeypatch: pytest.MonkeyPatch, screens: Screens
) -> None:
    """The report fits the terminal, and says how many lines are left out."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")
    steps = [lambda: monkeypatch.setenv("LINES", "6")]
    shown = screens("cluster", "top", *names, steps=steps)
    whole, short = (text.split("\x1b[K\n") for text in shown)
    assert {line.split()[0] for line in whole[-2:]} == {*names}
    assert short[0] == "2 instances: 2 ok"
    assert short[-1].endswith(" more lines")
    assert len(short) <= 6
    assert max(map(len, whole + short)) <= 60
    assert not any("\x1b[3" in text for text in shown)


def test_flush_with_failures_goes_on_and_lists_them(
    fleet: list[StatsServer], run: Run, tmp_path: Path
) -> None:
    """Also if some fail: those are listed last, and the exit code is 1."""
    (tmp_path / "token").write_text("secret\n")
    down = free_address()
    first, second = fleet
    first.reply = (409, "the list is full")
    options = ["--yes", "--token-file", tmp_path / "token"]
    code, out, _ = run("cluster", "flush", first.name, down, second.name, *options)
    assert first.told == second.told == ["/-/flush Bearer secret"]
    assert out.splitlines() == [
        f"{second.name}: done",
        f"failed: {first.name}: 409 the list is full",
        f"failed: {down}: Connection refused",
        "flushed everything on 1 of 3 instances; run it again for the others",
    ]
    assert code == 1


def test_flush_without_a_confirmation_changes_nothing(
    fleet: list[StatsServer],
    names: list[str],
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The word yes, on a terminal; without one, --yes."""
    monkeypatch.setenv("VOLCACHE_ADMIN_TOKEN", "secret")
    for text, is_terminal, code, said in (
        ("yes\n", False, 2, "give --yes; there is no terminal to ask on"),
        ("y\n", True, 2, "nothing was changed; only yes is a confirmation"),
        ("", True, 2, "nothing was changed"),
        ("yes\n", True, 0, "flush everything on 2 instances? Type yes: "),
    ):
        assert [one.told for one in fleet] == [[], []]
        stdin = io.StringIO(text)
        monkeypatch.setattr(stdin, "isatty", lambda found=is_terminal: found)
        monkeypatch.setattr(sys, "stdin", stdin)
        found = run("cluster", "flush", *names)
        assert (found.code, said in found.err) == (code, True)
    assert all(one.told for one in fleet)


def test_check_config_of_different_settings_names_them(
    fleet: list[StatsServer], names: list[str], run: Run
) -> None:
    """Exit code 1 if anything does."""
    same = "2 instances: 0 findings\n"
    assert run("cluster", "check-config", *names) == (0, same, "")
    fleet[1].stats["settings"]["eviction"] = "fifo"
    code, out, _ = run("cluster", "check-config", *names)
    begin = 'settings  eviction differs: "frequency" on 1 of 2, but "fifo'
    assert out.startswith(begin)
    assert out.endswith("\n2 instances: 1 finding\n")
    found = run("cluster", "check-config", "--json", *names)
    assert (code, found.code) == (1, 1)
    assert json.loads(found.out)["findings"][0]["instances"] == [fleet[1].name]


def test_render_diff_of_many_machines_shows_equal_changes_once(
    tmp_path: Path, run: Run
) -> None:
    """The lists of 40 machines are two diffs, not 80; the machines are named."""
    lines = [f'm{n} = "10.0.0.{n}"' for n in range(40)]
    inventory = tmp_path / "inventory.toml"
    inventory.write_text("[machines]\n" + "\n".join(lines))
    words = ["cluster", "render", tmp_path / "rendered", "--inventory", inventory]
    assert run(*words).code == 0
    inventory.write_text(inventory.read_text() + '\nm40 = "10.0.0.40"\n')
    code, out, _ = run(*words, "--diff")
    added = "+server 10.0.0.40:1234 "
    assert (code, out.count(added)) == (1, 1)
    assert "\n# and the same on m1, m10, m11, m12, m13 and 36 more\n" in out
    assert len(out.splitlines()) < 200


def test_render_prints_what_changed_and_what_is_next(tmp_path: Path, run: Run) -> None:
    """With --diff nothing is written, and the exit code is 1 if anything would be."""
    inventory, folder = tmp_path / "inventory.toml", tmp_path / "rendered"
    words = ["cluster", "render", folder, "--inventory", inventory]
    inventory.write_text(ONE)
    code, out, _ = run(*words, "--diff")
    assert (code, "+server 127.0.0.1:1234 weight=10" in out) == (1, True)
    assert not folder.exists()
    assert run(*words).lines[-2:] == [
        "7 files: 7 added",
        "next: run apply.sh as root on a",
    ]
    assert run(*words, "--diff").code == 0
    assert run(*words) == (0, "7 files: 7 unchanged\n", "")
    inventory.write_text(ONE.replace("a =", "b ="))
    changes = run(*words, "--diff").out
    assert "--- /dev/null\n+++ b/machines/b/apply.sh\n" in changes
    assert "--- a/machines/a/apply.sh\n+++ /dev/null\n" in changes
    assert "--- a/prometheus/volcache.json\n+++ b/prometheus/vol" in changes
    assert run(*words).lines[-3:] == [
        "7 files: 4 added, 2 changed, 4 removed, 1 unchanged",
        "next: run apply.sh as root on b",
        "next: stop the instances on a",
    ]


SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$LOG"
if [ "$2" = "volcache@$BAD.service" ]; then echo "Job failed." >&2; exit 3; fi
"""


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a systemctl on the PATH, which fails for the port BAD; return its log."""
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(SYSTEMCTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def test_restart_waits_for_each_instance_and_ends_at_a_failure(
    systemctl: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other; the first that fails is the last, with the reason."""
    asked: list[str] = []
    hanging: list[str] = []

    def ready(name: str, request: bytes) -> bytes:
        assert request.startswith(b"GET /-/ready ")
        asked.append(name)
        is_ready = name not in hanging and asked.count(name) % 3 == 0
        answer = b"HTTP/1.1 503 x\r\nContent-Length: 5\r\n\r\nsoon\n"
        return value(b"ready\n") if is_ready else answer

    with (
        ScriptedServer(answering(partial(ready, "a"))) as a,
        ScriptedServer(answering(partial(ready, "b"))) as b,
        ScriptedServer(answering(partial(ready, "c"))) as c,
    ):
        names = [a.name, b.name, c.name]
        ports = [name.partition(":")[2] for name in names]
        code, out, _ = run("cluster", "restart", *names, "192.0.2.1:1")
        assert [line.split(" after ")[0] for line in out.splitlines()] == [
            *(f"{name}: ready" for name in names),
            "restarted 3 instances",
        ]
        assert (code, asked) == (0, [*"aaabbbccc"])
        units = [f"restart volcache@{port}.service" for port in ports]
        assert systemctl.read_text().splitlines() == units
        monkeypatch.setenv("BAD", ports[1])
        code, out, _ = run("cluster", "restart", *names)
        assert (code, out.splitlines()[1:]) == (
            1,
            [
                f"failed: {names[1]}: systemctl {units[1]}: exit code 3: Job failed.",
                "restarted 1 of 3; 1 instance left as before",
            ],
        )
        assert systemctl.read_text().splitlines() == [*units, *units[:2]]
        hanging.append("c")
        found = run("cluster", "restart", names[2], "--timeout", "0.5")
        assert (found.code, "not ready within 0.5 s: soon; see" in found.out) == (
            1,
            True,
        )


def test_restart_by_another_command_passes_the_port(tmp_path: Path, run: Run) -> None:
    """Which is given the port; also on the other machines."""
    with ScriptedServer(answering(lambda _: value(b"ready\n"))) as server:
        port = server.name.partition(":")[2]
        command = f"cp /dev/null '{tmp_path}/a {{port}}'"
        found = run("cluster", "restart", server.name, "--command", command)
        assert (found.code, found.err) == (0, "")
        assert (tmp_path / f"a {port}").exists()
        found = run("cluster", "restart", server.name, "--command", "false {port}")
        assert f"failed: {server.name}: false {port}: exit code 1" in found.out
        found = run("cluster", "restart", server.name, "--command", "/none")
        assert f"failed: {server.name}: /none: No such file" in found.out
    words = "--print", "--command", "docker restart c{port}", "192.0.2.1:1"
    other = "ssh 192.0.2.1 sudo volcache cluster restart --command"
    shown = run("cluster", "restart", *words).lines
    assert shown == [f"{other} 'docker restart c{{port}}' 192.0.2.1:1"]


def test_drain_and_back_change_all_lists_and_restore_them(
    tmp_path: Path, run: Run
) -> None:
    """The inventory keeps its comments; the list before the last change stays."""
    inventory, folder = tmp_path / "inventory.toml", tmp_path / "rendered"
    text = '# ours\n[machines]\na = "127.0.0.1"\nb = "127.0.0.2"  # new\n'
    words = folder, "--inventory", inventory
    for nginx in ("", "\n[nginx]\ngrowing = true\n"):
        inventory.write_text(text + nginx)
        assert run("cluster", "render", *words).code == 0
        before = {p: p.read_text() for p in folder.rglob("*") if p.is_file()}
        for name in ("b:1234", "127.0.0.2:1234"):
            assert run("cluster", "drain", name, *words).code == 0
            assert 'drained = ["b:1234"]\n' in inventory.read_text()
            assert inventory.read_text().startswith(text)
            lists = [*folder.rglob("instances.conf")]
            assert len(lists) == 3
            for path in lists:
                (line,) = (x for x in path.read_text().split("\n") if "0.0.2:" in x)
                assert line.endswith(" down;")
                assert "127.0.0.1:1234 weight=10 max_fails=1" in path.read_text()
            kept = "nginx/volcache/instances-before.conf"
            assert (folder / kept).read_text() == before[folder / kept]
            (row, drained) = json.loads(
                (folder / "prometheus/volcache.json").read_text()
            )
            assert "nginx" not in row["labels"]
            assert drained["labels"]["nginx"] == "down"
        assert " out" in run("cluster", "status", inventory).out
        assert run("cluster", "drain", "--back", "b:1234", *words).code == 0
        assert {p: p.read_text() for p in before} == before
    found = run("cluster", "drain", "c:1", *words)
    assert (found.code, "has no instance c:1; give MACHINE:PORT" in found.err) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            '[nginx]\ndrained = [\n  "a:1234",\n]  # slow',
            '["a:1234", "b:1234"]  # slow',
        ),
        ("[nginx]\n  drained=[ ]\nfailover = true\n", '["b:1234"]\nfailover = true\n'),
        ("[nginx]", '["b:1234"]'),
        ('[nginx]\ndrained = [\n  "a:1234", # slow\n]\n', 6),
        ("[nginx]\n'drained' = []\n", 6),
        ("# drained\nnginx.growing = true\n", 6),
        ("# nginx\nnginx.drained = []\n", 6),
        ("[ nginx ]\n", 5),
    ],
)
def test_drain_of_a_list_it_cannot_change_names_the_line(
    tmp_path: Path, run: Run, before: str, after: str | int
) -> None:
    """A comment in the list would be lost: nothing is changed."""
    inventory = tmp_path / "inventory.toml"
    text = 'machines.a = "127.0.0.1"\nmachines.b = "127.0.0.2"\n\n\n'
    inventory.write_text(text + before)
    words = tmp_path / "rendered", "--inventory", inventory
    found = run("cluster", "drain", "b:1234", *words)
    if isinstance(after, str):
        assert found.code == 0
        assert inventory.read_text() == f"{text}[nginx]\ndrained = {after}"
    else:
        assert found.code == 2
        assert f"{inventory}: line {after}: cannot be changed by a command" in found.err
        assert inventory.read_text() == text + before
        assert [*tmp_path.iterdir()] == [inventory]


def test_status_with_admin_listen_asks_that_address(
    fleet: list[StatsServer], tmp_path: Path, run: Run
) -> None:
    """Also by Prometheus; the name and the address of the keys stay."""
    inventory = tmp_path / "inventory.toml"
    port = fleet[0].port
    inventory.write_text(
        f'[machines.a]\naddress = "127.0.0.1"\nport = 7\n'
        f'settings = {{ admin_listen = "0.0.0.0:{port}" }}\n'
    )
    assert run("cluster", "status", inventory).code == 0
    assert run("cluster", "render", tmp_path, "--inventory", inventory).code == 0
    (row,) = json.loads((tmp_path / "prometheus/volcache.json").read_text())
    assert row["targets"] == [f"127.0.0.1:{port}"]
    assert row["labels"]["instance"] == "127.0.0.1:7"
    found = json.loads(run("cluster", "status", "--json", inventory).out)
    (shown,) = found["instances"]
    assert (shown["name"], shown["url"]) == ("a:7", "http://127.0.0.1:7")


def test_restart_print_shows_commands_for_other_machines(
    systemctl: Path, run: Run
) -> None:
    """With --print, nothing is restarted."""
    names = ["192.0.2.1:1", "127.0.0.1:1", "192.0.2.1:2", "h.invalid:1"]
    assert run("cluster", "restart", "--print", *names).lines == [
        "ssh 192.0.2.1 sudo volcache cluster restart 192.0.2.1:1 192.0.2.1:2",
        "ssh h.invalid sudo volcache cluster restart h.invalid:1",
    ]
    found = run("cluster", "restart", names[0])
    assert (found.code, "no instance of the list is on this" in found.err) == (2, True)
    assert not systemctl.exists()
