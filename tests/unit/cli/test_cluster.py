"""`volcache cluster`: output and exit codes."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
from typing import TYPE_CHECKING

import pytest

from support.background import in_background
from support.fake_fleet import FakeInstance, fake_fleet, free_address, targets_of
from support.waiting import wait_until
from volcache.cli import main as cli
from volcache.cli.cluster_report import watch
from volcache.fleet.summary import poll

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from volcache.fleet.summary import Row

ONE = '[machines]\na = "127.0.0.1"\n'


@pytest.fixture
def fleet() -> Iterator[list[FakeInstance]]:
    """Two instances that were just started."""
    with fake_fleet(2) as running:
        yield running


def named(fleet: list[FakeInstance], *more: str) -> list[str]:
    """Return the arguments that name instances."""
    return ["--instances", *(one.name for one in fleet), *more]


def run(*argv: str) -> int:
    """Run a command of the cluster."""
    return cli.main(["cluster", *argv])


def test_status_lists_all_instances_and_totals(
    fleet: list[FakeInstance], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0: all are healthy. There are no colours in a pipe."""
    assert run("status", *named(fleet)) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split()[0] == "INSTANCE"
    assert {line.split()[0] for line in lines[1:3]} == {one.name for one in fleet}
    assert lines[4] == "2 instances: 2 ok"
    assert ("\x1b" in out, err) == (False, "")


def test_status_shows_the_worst_first(
    fleet: list[FakeInstance], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1: one is not healthy. With --problems, the others have no line."""
    down = free_address()
    fleet[1].stats["ready"] = False
    assert run("status", "--problems", *named(fleet, down)) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(down)
    assert lines[1].endswith("down: Connection refused")
    assert "not ready: " in lines[2]
    assert lines[3:5] == ["", "3 instances: 1 down, 1 not ready, 1 ok"]


def test_status_for_programs_is_one_object(
    fleet: list[FakeInstance], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same exit code."""
    assert run("status", "--json", *named(fleet, free_address())) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["states"] == {"down": 1, "ok": 2}
    assert found["instances"][0]["problem"] == "Connection refused"


@pytest.mark.parametrize(
    ("argv", "error"),
    [
        (["status", "-i", "missing"], "missing: not the address of an instance"),
        (["status", "--timeout", "0"], "a number of seconds above 0, up to 3600"),
        (["status", "--timeout", "nan"], "a number of seconds above 0, up to 3600"),
        (["top", "--interval", "x"], "a number of seconds above 0, up to 3600"),
        (["flush", "-i", "h:1", "--yes"], "no token: set VOLCACHE_ADMIN_TOKEN"),
        (["render", "x"], "required: -i/--inventory"),
        (["render", "x", "--inventory", "missing.toml"], "cannot be read: No such"),
    ],
)
def test_a_wrong_argument_is_one_line(
    argv: list[str],
    error: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit code 2."""
    monkeypatch.delenv("VOLCACHE_ADMIN_TOKEN", raising=False)
    assert run(*argv) == 2
    err = capsys.readouterr().err
    assert error in err
    assert err.count("\n") == 1


def test_without_a_list_that_of_nginx_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nginx has it on Debian."""
    address = free_address()
    (tmp_path / "list").write_text(f"server {address};\n")
    path = str(tmp_path / "list")
    monkeypatch.setattr("volcache.cli.cluster.INSTANCES_DEFAULT", path)
    assert run("status") == 1
    assert f"{address} " in capsys.readouterr().out


def test_top_prints_one_report_to_a_pipe(
    fleet: list[FakeInstance], capsys: pytest.CaptureFixture[str]
) -> None:
    """As `status`."""
    assert run("top", *named(fleet)) == 0
    assert "2 instances: 2 ok" in capsys.readouterr().out


def test_top_ends_with_q(
    fleet: list[FakeInstance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The terminal is as before; other keys do nothing."""
    keyboard, terminal = pty.openpty()
    shown = io.StringIO()
    monkeypatch.setattr(shown, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    with os.fdopen(terminal) as stdin, os.fdopen(keyboard, "wb", 0) as keys:
        monkeypatch.setattr(sys, "stdin", stdin)
        monkeypatch.setattr(sys, "stdout", shown)
        # As if it were the terminal of this process.
        monkeypatch.setattr(os, "tcgetpgrp", lambda _: os.getpgrp())
        import termios  # noqa: PLC0415 - Only here.

        before = termios.tcgetattr(stdin)

        def press(is_over: threading.Event) -> None:
            wait_until(lambda: shown.getvalue().count("\x1b[H") > 1, "two reports")
            while not is_over.wait(0.01):
                keys.write(b"xq")

        with in_background(press):
            assert run("top", "--interval", "0.05", *named(fleet)) == 0
        assert termios.tcgetattr(stdin) == before
    assert "2 instances: 2 ok\x1b[K\n" in shown.getvalue()
    assert "\x1b[3" not in shown.getvalue()


def test_a_report_that_is_watched_fits_the_terminal(
    fleet: list[FakeInstance], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how many instances are left out; rates are those since the one before."""
    monkeypatch.setenv("LINES", "8")
    monkeypatch.setenv("COLUMNS", "60")
    targets = [*targets_of(fleet), *targets_of(fleet), *targets_of(fleet)]
    seen: list[Sequence[Row]] = []
    written: list[str] = []

    def ask(before: Sequence[Row]) -> Sequence[Row]:
        seen.append(before)
        return poll(targets)

    watch(ask, written.append, lambda: len(written) > 1)
    assert [len(rows) for rows in seen] == [0, 6]
    lines = written[1].removeprefix("\x1b[H").split("\x1b[K\n")
    assert lines[-1] == "\x1b[J"
    assert lines[-2] == "and 4 more instances"
    assert len(lines) <= 8
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize(
    ("argv", "path"),
    [
        (["flush"], "/-/flush"),
        (["purge", "a b/"], "/-/purge?prefix=a%20b/"),
        (["purge", "a", "--dry-run"], "/-/purge?prefix=a&dry-run"),
    ],
)
def test_an_action_is_done_on_all_instances(
    fleet: list[FakeInstance],
    argv: list[str],
    path: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Also if some fail: those are listed last, and the exit code is 1."""
    (tmp_path / "token").write_text("secret\n")
    down = free_address()
    first, second = fleet
    first.reply = (409, "the list is full")
    sources = ["--instances", first.name, down, second.name]
    token = ["--token-file", str(tmp_path / "token")]
    assert run(*argv, "--yes", *sources, *token) == 1
    assert first.told == second.told == [f"{path} Bearer secret"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        f"{second.name}: done",
        f"failed: {first.name}: 409 the list is full",
        f"failed: {down}: Connection refused",
    ]
    assert lines[3].endswith(" 1 of 3 instances; run it again for the others")


def test_an_action_needs_a_confirmation(
    fleet: list[FakeInstance],
    capsys: pytest.CaptureFixture[str],
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
        assert run("flush", *named(fleet)) == code
        assert said in capsys.readouterr().err
    assert all(one.told for one in fleet)


def test_a_dry_flush_tells_the_keys(
    fleet: list[FakeInstance],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And changes nothing."""
    monkeypatch.setenv("VOLCACHE_ADMIN_TOKEN", "secret")
    fleet[0].stats["store"]["keys"] = 1234
    assert run("flush", "--dry-run", *named(fleet)) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{fleet[0].name}: would flush 1,234 keys",
        f"{fleet[1].name}: would flush 0 keys",
        "would flush 2 of 2 instances",
    ]
    assert run("flush", "--dry-run", *named(fleet, free_address())) == 1
    assert [one.told for one in fleet] == [[], []]


def test_check_config_tells_what_differs(
    fleet: list[FakeInstance], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1 if anything does."""
    assert run("check-config", *named(fleet)) == 0
    assert capsys.readouterr().out == "2 instances: 0 findings\n"
    fleet[1].stats["settings"]["eviction"] = "fifo"
    assert run("check-config", *named(fleet)) == 1
    out = capsys.readouterr().out
    assert out.startswith(
        'settings  eviction differs: "frequency" on 1 of 2, but "fifo'
    )
    assert out.endswith("\n2 instances: 1 finding\n")
    assert run("check-config", "--json", *named(fleet)) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["findings"][0]["instances"] == [fleet[1].name]


def test_render_tells_what_it_did_and_what_is_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --diff nothing is written, and the exit code is 1 if anything would be."""
    inventory, folder = tmp_path / "inventory.toml", tmp_path / "rendered"
    arguments = ["render", str(folder), "--inventory", str(inventory)]
    inventory.write_text(ONE)
    assert run(*arguments, "--diff") == 1
    assert "+server 127.0.0.1:1234 weight=10" in capsys.readouterr().out
    assert not folder.exists()
    assert run(*arguments) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "machines/a: 1 added",
        "4 files: 4 added",
        "next: run apply.sh as root on a",
    ]
    assert run(*arguments, "--diff") == 0
    assert run(*arguments) == 0
    assert capsys.readouterr().out == "4 files: 4 unchanged\n"
    inventory.write_text(ONE.replace("a =", "b ="))
    assert run(*arguments) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "4 files: 1 added, 2 changed, 1 removed, 1 unchanged",
        "next: run apply.sh as root on b",
        "next: stop the instances on a",
    ]


def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1."""
    inventory = tmp_path / "inventory.toml"
    inventory.write_text(ONE)
    folder = inventory / "x"
    assert run("render", str(folder), "--inventory", str(inventory)) == 1
    assert "Not a directory" in capsys.readouterr().err


def test_only_machines_of_the_inventory_are_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2."""
    inventory = tmp_path / "inventory.toml"
    inventory.write_text(ONE)
    arguments = [str(tmp_path), "--inventory", str(inventory), "--machine", "z"]
    assert run("run", *arguments) == 2
    assert "no machine 'z'; there are a\n" in capsys.readouterr().err
