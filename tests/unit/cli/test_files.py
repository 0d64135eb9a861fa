"""`volcache files`: the files of nginx, systemd, Prometheus and Grafana."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.unheard import run_unheard

from volcache import shipped
from volcache.cli import files
from volcache.cli import main as cli

ROOT = Path(__file__).parents[3]


def tree(folder: Path) -> dict[str, bytes]:
    """Return all files below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_files_are_those_of_the_project(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under the same names, in a folder that is created; each is listed."""
    folder = tmp_path / "new" / "folder"
    assert cli.main(["files", str(folder)]) == 0
    written = tree(folder)
    assert all((ROOT / path).read_bytes() == data for path, data in written.items())
    for place in ("nginx", "systemd", "conf/prometheus", "conf/grafana"):
        expected = {p for p in tree(ROOT / place) if "__pycache__" not in p}
        assert {
            p.removeprefix(f"{place}/") for p in written if p.startswith(place)
        } == (expected)
        assert expected
    *lines, summary = capsys.readouterr().out.splitlines()
    assert lines == [str(folder / path) for path in shipped.shipped_files(ROOT)]
    assert summary == f"{len(written)} files written, 0 unchanged"


def test_all_files_are_written_when_the_reader_of_the_output_goes_away(
    tmp_path: Path,
) -> None:
    """As with `| head -1`."""
    folder = tmp_path / "folder"
    assert run_unheard(tmp_path, "files", str(folder), unbuffered=True) == (0, "")
    assert sorted(tree(folder)) == sorted(shipped.shipped_files(ROOT))


def test_program_can_be_executed(tmp_path: Path) -> None:
    """The other files cannot; the umask is respected."""
    before = os.umask(0o027)
    try:
        assert cli.main(["files", str(tmp_path)]) == 0
    finally:
        os.umask(before)
    modes = {path: (tmp_path / path).stat().st_mode for path in tree(tmp_path)}
    programs = [path for path, mode in modes.items() if mode & 0o111]
    assert programs == ["tools/nginx_tokens.py"]
    assert modes["nginx/volcache.conf"] & 0o777 == 0o640


def test_list_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints the names."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["files", "--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed == list(shipped.shipped_files(ROOT))
    assert tree(tmp_path) == {}


@pytest.mark.parametrize("words", [[], [""], ["--list", "folder"]])
def test_either_a_folder_or_the_list_is_needed(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2."""
    assert cli.main(["files", *words]) == 2
    assert capsys.readouterr().err == (
        "volcache: give either DIR, where to write the files, or --list\n"
    )


def test_changed_file_is_not_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then nothing is written, also no file that is missing."""
    cli.main(["files", str(tmp_path)])
    (tmp_path / "nginx" / "volcache" / "instances.conf").write_text("mine")
    (tmp_path / "systemd" / "volcache.logrotate").unlink()
    before = tree(tmp_path)
    capsys.readouterr()
    assert cli.main(["files", str(tmp_path)]) == 1
    assert tree(tmp_path) == before
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"volcache: {tmp_path}: nothing was written, as this would replace 1 file with"
        " other contents: nginx/volcache/instances.conf; write into another folder and"
        " compare, or replace with --force\n"
    )


def test_force_replaces_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And lists only that."""
    cli.main(["files", str(tmp_path)])
    before = tree(tmp_path)
    changed = tmp_path / "nginx" / "volcache.conf"
    changed.write_text("mine")
    capsys.readouterr()
    assert cli.main(["files", "--force", str(tmp_path)]) == 0
    assert tree(tmp_path) == before
    assert capsys.readouterr().out.splitlines() == [
        str(changed),
        f"1 file written, {len(before) - 1} unchanged",
    ]


def test_long_list_of_changed_files_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five are named."""
    cli.main(["files", str(tmp_path)])
    for path in tree(tmp_path):
        (tmp_path / path).write_text("mine")
    count = len(tree(tmp_path))
    assert cli.main(["files", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert f"replace {count} files with other contents" in error
    assert f"docs/MEMCACHE.md and {count - 5} more; " not in error.split(": ")[0]
    assert f" and {count - 5} more; write into" in error


@pytest.mark.parametrize("place", ["", "nginx", "nginx/volcache.conf"])
def test_place_that_cannot_be_written_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    """A file where a folder has to be, or a folder where a file has to be."""
    folder = tmp_path / "folder"
    if place.endswith(".conf"):
        (folder / place).mkdir(parents=True)
    else:
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_text("a file")
    assert cli.main(["files", "--force", str(folder)]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"volcache: {folder}")
    assert err.count("\n") == 1
    assert "cannot be " in err
    assert "file written" not in out


def test_installation_without_the_files_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Someone has copied the modules only."""
    monkeypatch.setattr(files, "shipped_root", lambda: None)
    assert cli.main(["files", str(tmp_path)]) == 1
    assert "not in this installation" in capsys.readouterr().err


def test_files_of_the_installation_are_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To what may be beside the folder of the package."""
    monkeypatch.setattr(shipped, "INSTALLED", tmp_path)
    assert shipped.shipped_root() == ROOT
    for path in shipped.PATHS:
        (tmp_path / path).mkdir(parents=True)
    assert shipped.shipped_root() == tmp_path


def test_hidden_and_compiled_files_are_left_out(tmp_path: Path) -> None:
    """Pip compiles the modules that it finds in a package."""
    for path in ("nginx/.old", "nginx/a.conf", "nginx/__pycache__/a.pyc"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    assert list(shipped.shipped_files(tmp_path)) == ["nginx/a.conf"]
