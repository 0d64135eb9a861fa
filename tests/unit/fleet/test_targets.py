"""The instances that files and addresses name."""

from __future__ import annotations

from pathlib import Path

import pytest

from volcache.errors import ConfigError
from volcache.fleet.targets import Target, read_targets

SHIPPED = Path(__file__).parents[3] / "nginx/volcache/instances.conf"


def read(tmp_path: Path, content: str | bytes) -> list[Target]:
    """Return the targets of a file."""
    path = tmp_path / "list"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_targets([str(path)])


def test_read_targets_of_the_shipped_list() -> None:
    """With its comments."""
    found = read_targets([str(SHIPPED)])
    assert [(t.name, t.weight) for t in found] == [
        (f"127.0.0.1:{port}", 10) for port in (1234, 1235, 1236)
    ]


def test_read_targets_of_a_line_is_one_instance(tmp_path: Path) -> None:
    """In nginx's list, or an address."""
    for text, target in {
        "server h:1;": Target("h:1", "http://h:1"),
        "server h;": Target("h", "http://h"),
        "server [::1]:1 weight=7;": Target("[::1]:1", "http://[::1]:1", 7),
        "server h:1 down;": Target("h:1", "http://h:1", is_down=True),
        "server h:1 max_fails=1 fail_timeout=10s;": Target("h:1", "http://h:1"),
        "h:1 weight=7 # one\n": Target("h:1", "http://h:1", 7),
        "https://h:1\n": Target("h:1", "https://h:1"),
    }.items():
        assert read(tmp_path, text) == [target], text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("server a:1;\nserver unix:/run/a;", "unix:/run/a: there is no such file"),
        ("server a:1;\nserver b:2", ":2: not complete: the ; at its end is missing"),
        ("a:1\nA:1\n", r"list: A:1 is also in .*list; name each instance once"),
        ("a:1\n\x1b[31m\n", r":2: .*is not the address of a node; allowed are"),
        ("# a:1", "no nodes in it; one is needed"),
        (b"a:1\n\xff", "not UTF-8: "),
    ],
)
def test_read_targets_of_a_wrong_line_names_it(
    tmp_path: Path, text: str | bytes, error: str
) -> None:
    """With the file, the line, and what is allowed, on one line."""
    with pytest.raises(ConfigError, match=error) as raised:
        read(tmp_path, text)
    assert str(raised.value).isprintable()


def test_read_targets_of_addresses_and_files_keeps_their_order(tmp_path: Path) -> None:
    """In the order in which they are given."""
    (tmp_path / "list").write_text("a:1\n")
    (tmp_path / "fleet.toml").write_text('[machines]\nm = "10.0.0.1"\n')
    url = "http://10.0.0.1:1234"
    sources = ["http://c:3/-/", str(tmp_path / "list"), str(tmp_path / "fleet.toml")]
    assert read_targets(sources) == [
        Target("c:3", "http://c:3"),
        Target("a:1", "http://a:1"),
        Target("m:1234", url, 10, "m", operator=url),
    ]
    with pytest.raises(ConfigError, match=r"the arguments: a:1 is also in .*list;"):
        read_targets([str(tmp_path / "list"), "a:1"])


def test_read_targets_of_a_missing_file_names_it(tmp_path: Path) -> None:
    """A path without a file is as that of nginx's list on a machine without nginx."""
    neither = "or the path of a file that exists"
    for source, error in {
        **dict.fromkeys(["missing.conf", "x" * 5000, "a\0b"], neither),
        "/no/list": "/no/list: there is no such file; give one",
        str(tmp_path): "Is a directory",
    }.items():
        with pytest.raises(ConfigError, match=error):
            read_targets([source])
