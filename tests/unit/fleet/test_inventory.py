"""The inventory: what it stands for, and what is refused."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from support.tables import rows
from volcache.errors import ConfigError
from volcache.fleet.inventory import Inventory, load_inventory

ONE = '[machines]\nm = "10.0.0.1"\n'


def load(tmp_path: Path, content: str | bytes) -> Inventory:
    """Return the inventory of a file."""
    path = tmp_path / "inventory.toml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return load_inventory(path)


@rows(
    ('"10.0.0.1"', [("10.0.0.1:1234", "1", "/srv/volcache/1234")]),
    ('"fd00::1"', [("[fd00::1]:1234", "1", "/srv/volcache/1234")]),
    (
        '{disks = ["/srv/a", "/srv/b/"], processes = 2, port = 5}',
        [
            ("m:5", "/srv/a", "/srv/a/5"),
            ("m:6", "/srv/a", "/srv/a/6"),
            ("m:7", "/srv/b", "/srv/b/7"),
            ("m:8", "/srv/b", "/srv/b/8"),
        ],
    ),
    (  # A disk that is removed does not move the keys of the others.
        '{address = "10.0.0.1", disks = [1, 2, 4]}',
        [
            ("10.0.0.1:1234", "1", "/srv/volcache/1234"),
            ("10.0.0.1:1235", "2", "/srv/volcache/1235"),
            ("10.0.0.1:1237", "4", "/srv/volcache/1237"),
        ],
    ),
)
def test_machine_of_one_line_has_its_instances(
    machine: str, expected: list[tuple[str, ...]]
) -> None:
    """Each instance has an address, a disk and a folder; weight and settings are usual."""
    listen = '[defaults]\nlisten = "0.0.0.0"\n' if "processes" in machine else ""
    with TemporaryDirectory() as folder:
        found = load(Path(folder), f"{listen}[machines]\nm = {machine}\n").instances
    assert [(one.address, one.disk, one.mount_point) for one in found] == expected
    assert {(one.weight, len(one.settings)) for one in found} == {(10, 0)}
    assert found[0].name == f"m:{found[0].port}"


def test_inventory_of_34_machines_has_408_addresses(tmp_path: Path) -> None:
    """Each has an address and a port of its own."""
    lines = [f'cache-{n} = "10.0.0.{n}"' for n in range(1, 35)]
    text = "[defaults]\ndisks = 12\n[machines]\n" + "\n".join(lines)
    # As another editor writes it.
    found = load(tmp_path, b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    assert len(found.machines) == 34
    assert len({instance.address for instance in found.instances}) == 408
    last = found.of(found.machines[-1])
    assert [instance.port for instance in last] == list(range(1234, 1246))


def test_machine_and_disk_replace_the_defaults(tmp_path: Path) -> None:
    """Settings are merged."""
    found = load(
        tmp_path,
        """
        [defaults]
        port = 2000
        weight = 5
        settings = { volume_num = 100, sync_mode = "none" }
        [machines]
        a = { address = "10.0.0.1", weight = 7, settings = { volume_num = 200 } }
        [machines.b]
        address = "10.0.0.2"
        disks = [
            "x",
            { name = "y", weight = 9, port = 3000, mount_point = "/mnt/{machine}/{disk}" },
        ]
        [machines.c]
        address = "10.0.0.3"
        settings.memc_on = true
        settings.volume_size = "1GiB"
        settings.admin_hosts = ["b", "c"]
        """,
    ).instances
    assert [(i.name, i.weight, i.mount_point) for i in found] == [
        ("a:2000", 7, "/srv/volcache/2000"),
        ("b:2000", 5, "/srv/volcache/2000"),
        ("b:3000", 9, "/mnt/b/y"),
        ("c:2000", 5, "/srv/volcache/2000"),
    ]
    assert [i.settings for i in found] == [
        {"volume_num": "200", "sync_mode": "none"},
        {"volume_num": "100", "sync_mode": "none"},
        {"volume_num": "100", "sync_mode": "none"},
        {
            "volume_num": "100",
            "sync_mode": "none",
            "memc_on": "true",
            "volume_size": "1GiB",
            "admin_hosts": "b,c",
        },
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", r"machines: no machine; at least one"),
        ("machines = 3", r"machines = 3 is not allowed; allowed is a table"),
        ("x = 1\n" + ONE, r'unknown key "x"; known are defaults, machines, nginx'),
        ("[defaults]\nprot = 1\n" + ONE, r'defaults: unknown key "prot"; .* port'),
        ("[defaults]\nport = 0\n" + ONE, r"defaults.port = 0 is .* from 1 to 65535"),
        ('[defaults]\nport = "1"\n' + ONE, r'defaults.port = "1" is not allowed'),
        ("[defaults]\nweight = true\n" + ONE, r"defaults.weight = true is not allowed"),
        (
            "[defaults]\ndisks = 0\n" + ONE,
            r"defaults.disks = 0 is .*; allowed is a num",
        ),
        ("[defaults]\ndisks = []\n" + ONE, r"defaults.disks = \[\] is not allowed"),
        ('[defaults]\ndisks = ["a", "a"]\n' + ONE, r"disks\[2\]: disk a is .* twice"),
        ('[defaults]\ndisks = ["ä"]\n' + ONE, r'disks\[1\] = "ä" is not allowed'),
        ("[defaults]\ndisks = [{}]\n" + ONE, r"disks\[1\] = None is not allowed"),
        (
            "[defaults]\ndisks = 9\nport = 65530\n" + ONE,
            r"would be 65536; at most 65535",
        ),
        ('[defaults]\nmount_point = "/x"\ndisks = 2\n' + ONE, r"both have /x; each"),
        ('[defaults]\nmount_point = "x"\n' + ONE, r'would be "x"; allowed is a path'),
        ('[defaults]\nmount_point = "/../{port}"\n' + ONE, r"without \.\."),
        ('[defaults]\nmount_point = "/a b/{port}"\n' + ONE, r"would be .*; allowed"),
        ('[defaults]\nmount_point = "/{x}"\n' + ONE, r"\{machine\}, \{disk\} and"),
        ('[defaults]\nmount_point = "/{port:>9}"\n' + ONE, r"is not allowed"),
        ('[defaults]\nmount_point = "/{"\n' + ONE, r"is not allowed"),
        ("[defaults.settings]\nvolum_num = 1\n" + ONE, r"closest known is volume_num"),
        ("[defaults.settings]\nvolume_num = 1\n" + ONE, r"volume_num = 1 is .* from 2"),
        ("[defaults.settings]\nport = 1\n" + ONE, r"port: not allowed; use port of"),
        ("[defaults.settings]\nip = 1\n" + ONE, r"ip: not allowed; use listen of"),
        ("[nginx]\nfailover = 1\n" + ONE, r"nginx.failover = 1 is .* true or false"),
        ('[machines]\n"m ä" = "h"', r'machines."m ä": not the name of a machine'),
        ('[machines]\n".." = "h"', r"not the name of a machine"),
        ('[machines]\nm.x = "10.0.0.1"', r'unknown key "x"; .* a dot needs quotes'),
        ("[machines]\nm = 1", r"machines.m = 1 is not allowed; allowed is a table"),
        ('[machines]\nm = "a b"', r'machines.m.address = "a b" is not allowed'),
        ('[machines]\nm = "cache"', r"is a host name; then listen is needed"),
        ('[machines]\nm = {listen = "x"}', r'machines.m.listen = "x" is not allowed'),
        *(
            (f'[machines]\nm = {{listen = "{text}"}}', "machines.m.listen = .* is not")
            for text in ("fe80::1%", "fe80::1%a b", "::1%%i", "::1%$x", "1.2.3.4%eth0")
        ),
        (
            ONE + 'n = "10.0.0.1"',
            r"machines.n, disk 1 and machines.m, disk 1 both have",
        ),
        (ONE + 'm = "10.0.0.2"', r"not valid TOML: Cannot overwrite a value"),
        ("[machines", r"not valid TOML"),
        (b"\xff", r"not UTF-8 text"),
        ("x = " + "[" * 9999, r"not valid TOML"),
        ("x = " + "9" * 5000, r"not valid TOML"),
    ],
)
def test_load_of_a_wrong_inventory_names_key_and_what_is_allowed(
    tmp_path: Path, text: str | bytes, error: str
) -> None:
    """With the file, the key, its value and what is allowed, on one line."""
    with pytest.raises(ConfigError, match=error) as raised:
        load(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/inventory.toml: ")
    assert str(raised.value).isprintable()


def test_load_of_an_inventory_with_a_token_does_not_show_it(tmp_path: Path) -> None:
    """The files that are rendered from an inventory are no place for it."""
    with pytest.raises(ConfigError, match=r"read_token: a token is not") as raised:
        load(tmp_path, "[defaults.settings]\nread_token = 'secret'\n" + ONE)
    assert "secret" not in str(raised.value)
