"""`volcache gate`: what it runs, and what it says when it cannot."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

from volcache.cli import gate
from volcache.cli import main as cli
from volcache.server import gate_build

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Call(NamedTuple):
    """A program that was started."""

    words: Sequence[str]
    flags: str


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Start no program; return those that were to be started. All succeed."""
    found: list[Call] = []

    def run(
        words: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        **_: object,
    ) -> subprocess.CompletedProcess[bytes]:
        found.append(Call(words, (env or {}).get("LDFLAGS", "")))
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("LDFLAGS", "-Lgiven")
    monkeypatch.delenv("CC", raising=False)
    return found


def test_link_is_compiled_and_pip_builds_bjoern_with_it(
    calls: list[Call], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without pip's cache, in the place of what is installed; then the gate is sought."""
    assert cli.main(["gate", "--bjoern", "3.2.2"]) == 0
    compile_, install, check = calls
    assert compile_.words[0] == "gcc"
    assert str(gate_build.LINK) in compile_.words
    assert install.words[:4] == [sys.executable, "-m", "pip", "install"]
    assert {"--no-cache-dir", "--force-reinstall", "--no-deps"} < set(install.words)
    assert "--no-build-isolation" not in install.words
    assert install.words[-1] == "bjoern==3.2.2"
    given, *wraps, link, pthread = install.flags.split()
    assert (given, pthread) == ("-Lgiven", "-lpthread")
    assert wraps == [f"-Wl,--wrap={call}" for call in gate_build.WRAPPED]
    assert link == compile_.words[-1]
    assert check.words[:2] == [sys.executable, "-c"]
    assert "restart the instances" in capsys.readouterr().out


def test_installed_version_and_given_compiler_are_used(
    calls: list[Call], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default; and what is installed builds it, if asked for."""
    monkeypatch.setattr(gate, "installed_bjoern", lambda: "3.2.9")
    monkeypatch.setenv("CC", "ccache mygcc")
    assert cli.main(["gate", "--no-build-isolation"]) == 0
    assert calls[0].words[:2] == ["ccache", "mygcc"]
    assert calls[1].words[-2:] == ["--no-build-isolation", "bjoern==3.2.9"]


def test_bjoern_has_to_be_installed(
    calls: list[Call],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The error names the extra."""
    monkeypatch.setattr(gate, "installed_bjoern", lambda: None)
    assert cli.main(["gate"]) == 1
    assert "pip install 'volcache[server]'" in capsys.readouterr().err
    assert calls == []


@pytest.mark.parametrize(
    ("compiler", "reason"),
    [
        ("false", "false failed with exit code 1; the gate needs"),
        ("/missing/gcc", "/missing/gcc: No such file or directory; the gate needs"),
    ],
)
def test_missing_compiler_is_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    compiler: str,
    reason: str,
) -> None:
    """It says what to install; bjoern is as before."""
    monkeypatch.setenv("CC", compiler)
    assert cli.main(["gate"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"volcache: {reason}")
    assert err.count("\n") == 1
    assert gate_build.has_gate()


def test_build_without_a_gate_is_an_error(
    calls: list[Call],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Pip succeeded, but has found a wheel for example."""
    monkeypatch.setattr(gate_build, "has_gate", lambda: False)
    assert cli.main(["gate", "--bjoern", "3.2.2"]) == 1
    assert len(calls) == 2
    assert "without the gate: pip found a wheel" in capsys.readouterr().err


def test_check_reports_the_gate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of this environment, which tools/setup.sh has made; and of others."""
    assert cli.main(["gate", "--check"]) == 0
    assert capsys.readouterr().out.endswith(" has the gate\n")
    monkeypatch.setattr(gate, "has_gate", lambda: False)
    assert cli.main(["gate", "--check"]) == 1
    assert capsys.readouterr().out.endswith(" has no gate\n")
    monkeypatch.setattr(gate, "installed_bjoern", lambda: None)
    assert cli.main(["gate", "--check"]) == 1
    assert capsys.readouterr().out == "bjoern is not installed\n"
