"""`volcache files`: the files of nginx, systemd, Prometheus and Grafana."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.command_line import Run
from support.contents import files_of
from volcache import shipped
from volcache.cli import files

ROOT = Path(__file__).parents[3]
CHANGED = Path("nginx", "volcache", "instances.conf")


def test_files_into_a_new_folder_writes_those_of_the_project(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    Under the same names, in a folder that is created; each is listed.

    Only programs can be executed; the umask is respected. --list writes nothing.
    """
    folder = tmp_path / "new" / "folder"
    before = os.umask(0o027)
    try:
        code, out, _ = run("files", folder)
    finally:
        os.umask(before)
    written = files_of(folder)
    assert all((ROOT / path).read_bytes() == data for path, data in written.items())
    for place in ("nginx", "conf/systemd", "conf/prometheus", "conf/grafana"):
        expected = {p for p in files_of(ROOT / place) if "__pycache__" not in p}
        names = {p.removeprefix(f"{place}/") for p in written if p.startswith(place)}
        assert names == expected != set()
    *lines, summary = out.splitlines()
    assert lines == [str(folder / path) for path in shipped.shipped_files(ROOT)]
    assert (code, summary) == (0, f"{len(written)} files written, 0 unchanged")
    modes = {path: (folder / path).stat().st_mode for path in written}
    programs = [path for path, mode in modes.items() if mode & 0o111]
    assert programs == ["tools/gocacheprog.py", "tools/nginx_tokens.py"]
    assert modes["nginx/volcache.conf"] & 0o777 == 0o640
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert run("files", "--list").lines == list(shipped.shipped_files(ROOT))
    assert files_of(tmp_path / "empty") == {}


def test_files_over_changed_ones_replaces_them_with_force_only(
    tmp_path: Path, run: Run
) -> None:
    """Without it, nothing is written, also no file that is missing; five are named."""
    run("files", tmp_path)
    whole = files_of(tmp_path)
    for path in whole:
        (tmp_path / path).write_text("mine")
    code, _, err = run("files", tmp_path)
    assert code == 1
    assert f"replace {len(whole)} files with other contents" in err
    assert f" and {len(whole) - 5} more; write into" in err
    assert sum(name in err for name in whole) == 5
    run("files", "--force", tmp_path)
    (tmp_path / CHANGED).write_text("mine")
    (tmp_path / "conf/systemd" / "volcache.logrotate").unlink()
    before = files_of(tmp_path)
    assert run("files", tmp_path) == (
        1,
        "",
        (
            f"volcache: {tmp_path}: nothing was written, as this would replace 1 file"
            f" with other contents: {CHANGED}; write into another folder and compare, or"
            " replace with --force\n"
        ),
    )
    assert files_of(tmp_path) == before
    code, out, _ = run("files", "--force", tmp_path)
    *paths, summary = out.splitlines()
    assert files_of(tmp_path) == whole
    names = ("conf/systemd/volcache.logrotate", str(CHANGED))
    assert sorted(paths) == [f"{tmp_path}/{name}" for name in names]
    assert (code, summary) == (0, f"2 files written, {len(whole) - 2} unchanged")


def test_files_prefers_those_of_the_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    """To what may be beside the folder of the package; without both, it is an error."""
    monkeypatch.setattr(shipped, "INSTALLED", tmp_path)
    assert shipped.shipped_root() == ROOT
    for path in shipped.PATHS:
        (tmp_path / path).mkdir(parents=True)
    assert shipped.shipped_root() == tmp_path
    # Hidden files and those that pip compiles are left out.
    for path in ("nginx/.old", "nginx/a.conf", "nginx/__pycache__/a.pyc"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert list(shipped.shipped_files(tmp_path)) == ["nginx/a.conf"]
    monkeypatch.setattr(files, "shipped_root", lambda: None)
    code, _, err = run("files", tmp_path)
    assert code == 1
    assert "not in this installation" in err
