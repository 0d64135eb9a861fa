"""The files that an inventory stands for, and the folder they are in."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from support.program import Ended, ended
from volcache.cli.cluster import apply_change
from volcache.cli.command import FileError
from volcache.errors import FolderError
from volcache.fleet.folder import Plan, plan
from volcache.fleet.inventory import load_inventory
from volcache.fleet.render import BEFORE, HEADER, INSTANCES, PROMETHEUS

TWO = '[machines]\na = "127.0.0.1"\nb = { address = "10.0.0.2", disks = 2 }\n'
DISKS = (
    '[machines]\na = { address = "fd00::1", disks = ["/srv/x"], processes = 2,'
    " settings = { log_file = '/a \"b\" $c\\' } }\n"
)
SYSTEMD = "machines/{}/etc/systemd/system"
LISTEN = f"{SYSTEMD}/volcache@.socket.d/listen.conf"


def ring_files(machine: str) -> list[str]:
    """Return the lists of a machine, and the file that tells its units of them."""
    names = ("instances.conf", "instances-before.conf")
    lists = [f"machines/{machine}/etc/volcache/{name}" for name in names]
    return [*lists, f"{SYSTEMD.format(machine)}/volcache@.service.d/ring.conf"]


THIRD = 'c = "127.0.0.3"\n'


class Rendered:
    """A folder, and the inventory it is rendered from."""

    def __init__(self, tmp_path: Path) -> None:
        """Render nothing yet."""
        self.folder = tmp_path / "rendered"
        self._inventory = tmp_path / "inventory.toml"

    def plan(self, text: str) -> Plan:
        """Return what rendering an inventory would do."""
        self._inventory.write_text(text)
        return plan(self.folder, load_inventory(self._inventory))

    def write(self, text: str) -> dict[str, str]:
        """Render an inventory; return what was done, by path."""
        found = self.plan(text)
        for change in found.changes:
            apply_change(self.folder, change)
        return {change.path: change.verb for change in found.changes}

    def text(self, path: str) -> str:
        """Return the text of a file."""
        return (self.folder / path).read_text()

    def files(self) -> dict[str, str]:
        """Return the text of every file."""
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(p.relative_to(self.folder)): p.read_text() for p in paths}


@pytest.fixture
def rendered(tmp_path: Path) -> Rendered:
    """Return a folder that does not exist yet."""
    return Rendered(tmp_path)


def servers(text: str) -> list[str]:
    """Return the lines of nginx's list without comments."""
    return re.findall(r"^[^#\n].*$", text, re.MULTILINE)


def test_render_writes_the_files_that_a_machine_needs(rendered: Rendered) -> None:
    """Nothing but the script, if it is as the units expect it."""
    rendered.write(TWO)
    scripts = {"machines/a/apply.sh", "machines/b/apply.sh"}
    listen = LISTEN.format("b")
    lists = {INSTANCES, BEFORE, PROMETHEUS}
    rings = {path for name in "ab" for path in ring_files(name)}
    assert set(rendered.files()) == lists | scripts | rings | {listen}
    for path, text in rendered.files().items():
        assert path == PROMETHEUS or HEADER in text
    for name, address in (("a", "127.0.0.1"), ("b", "10.0.0.2")):
        assert rendered.text(ring_files(name)[2]).endswith(
            "\n[Service]\nEnvironment=VOLCACHE_RING=/etc/volcache/instances.conf,"
            "/etc/volcache/instances-before.conf\n"
            f"Environment=VOLCACHE_RING_SELF={address}:%i\n"
        )
    end = "\n[Socket]\nListenStream=\nListenStream=10.0.0.2:%i\n"
    assert rendered.text(listen).endswith(end)


def test_render_gives_instances_the_lists_of_nginx(rendered: Rendered) -> None:
    """That before only while a fleet grows; none if others take over."""

    def lists() -> list[list[str]]:
        return [servers(rendered.text(path)) for path in ring_files("a")[:2]]

    rendered.write(TWO)
    before = servers(rendered.text(INSTANCES))
    assert lists() == [before, before]
    rendered.write(TWO + THIRD)
    now = servers(rendered.text(INSTANCES))
    assert lists() == [now, now]
    rendered.write(TWO + THIRD + "[nginx]\ngrowing = true\n")
    assert lists() == [now, before]
    rendered.write(TWO + THIRD + "[nginx]\nfailover = true\n")
    assert not any("ring" in path for path in rendered.files())


def test_render_lists_all_instances_for_nginx_and_prometheus(
    rendered: Rendered,
) -> None:
    """By address and port, with their machine and disk."""
    rendered.write(TWO)
    assert servers(rendered.text(INSTANCES)) == [
        "server 127.0.0.1:1234 weight=10 max_fails=1 fail_timeout=5s max_conns=256;",
        "server 10.0.0.2:1234 weight=10 max_fails=1 fail_timeout=5s max_conns=256;",
        "server 10.0.0.2:1235 weight=10 max_fails=1 fail_timeout=5s max_conns=256;",
    ]
    assert json.loads(rendered.text(PROMETHEUS))[2] == {
        "targets": ["10.0.0.2:1235"],
        "labels": {"machine": "b", "disk": "2", "instance": "10.0.0.2:1235"},
    }


def test_render_of_other_disks_writes_files_of_the_instance(rendered: Rendered) -> None:
    """Its mount point for systemd, and its settings, quoted."""
    rendered.write(DISKS)
    assert rendered.text("machines/a/etc/volcache/1235.env") == (
        f"{HEADER}# What differs from /etc/volcache/volcache.toml for the instance at port"
        ' 1235.\nVOLCACHE_LOG_FILE="/a \\"b\\" \\$c\\\\"\n'
        'VOLCACHE_MOUNT_POINT="/srv/x/1235"\n'
    )
    drop_in = rendered.text(f"{SYSTEMD.format('a')}/volcache@1235.service.d/disk.conf")
    assert "\nRequiresMountsFor=/srv/x/1235\n" in drop_in
    assert "\nReadWritePaths=\nReadWritePaths=/srv/x/1235\n" in drop_in
    listen = rendered.text(LISTEN.format("a"))
    assert "\nListenStream=[fd00::1]:%i\n" in listen


def test_render_again_changes_only_what_differs(rendered: Rendered) -> None:
    """A file that is right is not even replaced by the same text."""
    rendered.write(TWO)
    before = (rendered.folder / INSTANCES).stat().st_ino
    assert rendered.write(TWO) == {}
    assert (rendered.folder / INSTANCES).stat().st_ino == before
    assert rendered.write(TWO + THIRD) == {
        "machines/c/apply.sh": "added",
        LISTEN.format("c"): "added",
        **dict.fromkeys(ring_files("c"), "added"),
        **dict.fromkeys((*ring_files("a")[:2], *ring_files("b")[:2]), "changed"),
        **dict.fromkeys((BEFORE, INSTANCES, PROMETHEUS), "changed"),
    }


def test_render_without_a_machine_removes_its_files(rendered: Rendered) -> None:
    """With their folders; a file that was not rendered stays, with its folder."""
    rendered.write(TWO)
    notes = rendered.folder / "machines/b/etc/notes"
    notes.write_text("mine")
    only_a = '[machines]\na = "127.0.0.1"\n'
    assert rendered.write(only_a)["machines/b/apply.sh"] == "removed"
    left = [path for path in rendered.files() if path.startswith("machines/b")]
    assert left == ["machines/b/etc/notes"]
    notes.unlink()
    rendered.write(TWO)
    rendered.write(only_a)
    assert not (rendered.folder / "machines/b").exists()


def test_render_keeps_the_list_before_the_last_change(rendered: Rendered) -> None:
    """It stays when something else changes; at first it is the list itself."""
    rendered.write(TWO)
    assert servers(rendered.text(BEFORE)) == ["include volcache/instances.conf;"]
    first = servers(rendered.text(INSTANCES))
    for more in ("", "", "[defaults.settings]\nvolume_num = 9\n"):
        rendered.write(TWO + THIRD + more)
        assert servers(rendered.text(BEFORE)) == first
    second = servers(rendered.text(INSTANCES))
    rendered.write(TWO)
    assert servers(rendered.text(BEFORE)) == second


def test_render_over_a_file_of_someone_else_is_refused(rendered: Rendered) -> None:
    """Unless it is what would be written."""
    (rendered.folder / "prometheus").mkdir(parents=True)
    (rendered.folder / PROMETHEUS).write_text("[]")
    with pytest.raises(FolderError, match=r"volcache.json: exists, and was not writ"):
        rendered.write(TWO)
    assert list(rendered.files()) == [PROMETHEUS]


def test_render_over_a_changed_file_replaces_it(rendered: Rendered) -> None:
    """If it still says so; a lost one is written again."""
    rendered.write(TWO)
    before = rendered.files()
    with (rendered.folder / INSTANCES).open("ab") as file:
        file.write(b"\xff\r\n")
    (rendered.folder / PROMETHEUS).unlink()
    assert rendered.write(TWO)[INSTANCES] == "changed"
    assert {**rendered.files(), BEFORE: ""} == {**before, BEFORE: ""}


def test_render_after_an_interruption_completes(
    rendered: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far it has come."""
    plain = Path.replace
    left = 0

    def replace(path: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(28, "No space left on device")
        return plain(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    for left in range(15):  # noqa: B007 - Read by the function above.
        try:
            rendered.write(TWO)
        except FileError as error:
            assert "cannot be written: No space left on device" in str(error)  # noqa: PT017
    left = 99
    rendered.write(TWO)
    assert rendered.write(TWO) == {}
    assert len(rendered.files()) == 12


class Installed:
    """A machine on which the script is run: a folder, and stubs of programs."""

    def __init__(self, folder: Path, tmp_path: Path) -> None:
        """Make the stubs; every unit is active."""
        self.root = tmp_path / "root"
        self._folder = folder
        self._log = tmp_path / "systemctl.log"
        self._programs = tmp_path / "programs"
        self._programs.mkdir()
        stub = (
            f'#!/bin/sh\necho "$@" >> {self._log}\n'
            '[ "$1" = list-units ] && echo "volcache@999.service loaded active"\nexit 0\n'
        )
        self._program("systemctl", stub)
        # There is no user volcache here.
        self._program(
            "install",
            '#!/bin/sh\n[ "$1" = -d ] && exec mkdir -p "$8"\nexec /usr/bin/install "$@"\n',
        )

    def _program(self, name: str, text: str) -> None:
        (self._programs / name).write_text(text)
        (self._programs / name).chmod(0o755)

    def mount(self, disk: str) -> None:
        """Let a disk be mounted."""
        (self.root / disk[1:]).mkdir(parents=True, exist_ok=True)
        self._program("mountpoint", f'#!/bin/sh\n[ "$2" = "{self.root}{disk}" ]\n')

    def run(self, *arguments: str) -> Ended:
        """Run the script."""
        self._log.write_text("")
        path = f"{self._programs}:{os.environ['PATH']}"
        environ = {"PATH": path, "DESTDIR": str(self.root)}
        return ended([self._folder / "apply.sh", *arguments], environ)

    def commands(self) -> list[str]:
        """Return the arguments of each call of systemctl."""
        return self._log.read_text().splitlines()


def test_apply_makes_the_machine_as_it_is_rendered(
    rendered: Rendered, tmp_path: Path
) -> None:
    """
    After the disk is mounted; a second time it changes nothing.

    What is no longer rendered is removed, and what needs a restart is named; a file of the
    operator stays.
    """
    rendered.write(DISKS)
    machine = Installed(rendered.folder / "machines/a", tmp_path)
    done = machine.run()
    assert (done.returncode, done.stderr) == (
        1,
        (
            "/srv/x is not mounted: mount the disk there, and run this again; with"
            " --folders if it is a plain folder\n"
        ),
    )
    (machine.root / "srv/x").mkdir(parents=True)
    assert "is not mounted" in machine.run().stderr
    assert machine.run("--folder").returncode == 2
    assert machine.commands() == []
    machine.mount("/srv/x")
    done = machine.run()
    assert (done.returncode, done.stderr) == (0, "")
    for path in ("srv/x/1234", "srv/x/1235", "etc/volcache/1235.env"):
        assert (machine.root / path).exists()
    assert "daemon-reload" in machine.commands()
    assert (
        "enable --now volcache@1234.socket volcache@1234.service volcache@1235.socket"
        " volcache@1235.service"
    ) in machine.commands()
    assert "volcache@999.service is not in the inventory; to remove it:" in done.stdout
    assert "systemctl restart volcache@1235.socket volcache@1235.service" in done.stdout
    assert "restart" not in machine.run().stdout

    mine = machine.root / "etc/volcache/1234.env"
    mine.write_text("VOLCACHE_VOLUME_NUM=9\n")
    rendered.write('[machines]\na = { address = "fd00::1", disks = 2 }\n')
    for port in (1234, 1235):
        (machine.root / f"srv/volcache/{port}").mkdir(parents=True)
    done = machine.run("--folders")
    assert (done.returncode, done.stderr) == (0, "")
    assert mine.read_text() == "VOLCACHE_VOLUME_NUM=9\n"
    assert not (machine.root / "etc/volcache/1235.env").exists()
    assert not list((machine.root / "etc/systemd").rglob("disk.conf"))
    assert done.stdout.endswith(
        "settings have changed; restart one after the other:\n"
        "systemctl restart volcache@1234.service\n"
        "systemctl restart volcache@1235.service\n"
    )


def test_apply_of_a_changed_list_reloads_the_instances(
    rendered: Rendered, tmp_path: Path
) -> None:
    """And does not ask for a restart."""
    rendered.write(DISKS)
    machine = Installed(rendered.folder / "machines/a", tmp_path)
    machine.mount("/srv/x")
    machine.run()
    assert not any("reload " in command for command in machine.commands())
    rendered.write(DISKS + 'b = "127.0.0.1"\n')
    assert "restart" not in machine.run().stdout
    reloads = [command for command in machine.commands() if "reload " in command]
    assert reloads == [f"reload volcache@{port}.service" for port in (1234, 1235)]
