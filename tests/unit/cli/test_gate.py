"""`volcache gate`: what it runs, and what it says when it cannot."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import pytest

from support.command_line import Run
from volcache.cli import gate
from volcache.server import gate_build


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Start no program; return those that were to be started. All succeed."""
    found: list[list[str]] = []

    def run(
        words: list[str], *, env: Mapping[str, str] | None = None, **_: object
    ) -> subprocess.CompletedProcess[bytes]:
        found.append([*words, *(["LDFLAGS", env["LDFLAGS"]] if env else [])])
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setenv("LDFLAGS", "-Lgiven")
    monkeypatch.delenv("CC", raising=False)
    return found


def test_link_is_compiled_and_pip_builds_bjoern_with_it(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """
    Without pip's cache, in the place of what is installed; then the gate is sought.

    A compiler and a version may be given, and what is installed builds it if asked for.
    """
    monkeypatch.setattr(gate, "installed_bjoern", lambda: "3.2.9")
    for compiler, options, version in (
        ("", ["--bjoern", "3.2.2"], "3.2.2"),
        ("ccache mygcc", ["--no-build-isolation"], "3.2.9"),
    ):
        calls.clear()
        monkeypatch.setenv("CC", compiler) if compiler else None
        code, out, _ = run("gate", *options)
        compile_, install, check = calls
        assert " ".join(compile_).startswith(compiler or "gcc")
        assert str(gate_build.LINK) in compile_
        assert install[:4] == [sys.executable, "-m", "pip", "install"]
        assert {"--no-cache-dir", "--force-reinstall", "--no-deps"} < set(install)
        assert ("--no-build-isolation" in install) == bool(compiler)
        assert install[-3:-1] == [f"bjoern=={version}", "LDFLAGS"]
        given, *wraps, link, pthread = install[-1].split()
        assert (given, pthread) == ("-Lgiven", "-lpthread")
        assert wraps == [f"-Wl,--wrap={call}" for call in gate_build.WRAPPED]
        assert link == compile_[-1]
        assert check[:2] == [sys.executable, "-c"]
        assert (code, "restart the instances" in out) == (0, True)


def test_what_prevents_a_build_is_one_line(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """It says what to install; bjoern is as before."""
    for compiler, reason in (
        ("false", "false failed with exit code 1; the gate needs"),
        ("/missing/gcc", "/missing/gcc: No such file or directory; the gate needs"),
    ):
        monkeypatch.setenv("CC", compiler)
        code, out, err = run("gate")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith(f"volcache: {reason}")
    monkeypatch.setattr(gate, "installed_bjoern", lambda: None)
    code, _, err = run("gate")
    assert (code, "pip install 'volcache[server]'" in err) == (1, True)


def test_check_reports_the_gate(
    calls: list[list[str]], monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """A build without it is an error: pip has found a wheel, for example."""
    for name, value, code, end in (
        ("has_gate", True, 0, " has the gate\n"),
        ("has_gate", False, 1, " has no gate\n"),
        ("installed_bjoern", None, 1, "bjoern is not installed\n"),
    ):
        if not value:
            monkeypatch.setattr(gate, name, lambda value=value: value)
        found = run("gate", "--check")
        assert (found.code, found.out.endswith(end)) == (code, True)
    calls.clear()
    monkeypatch.setattr(gate_build, "has_gate", lambda: False)
    code, _, err = run("gate", "--bjoern", "3.2.2")
    assert (code, len(calls)) == (1, 2)
    assert "without the gate: pip found a wheel" in err
