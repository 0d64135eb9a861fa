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


def test_the_file_that_is_shipped_can_be_read() -> None:
    """With its comments."""
    found = read_targets([str(SHIPPED)])
    assert [(t.name, t.weight) for t in found] == [
        (f"127.0.0.1:{port}", 10) for port in (1234, 1235, 1236)
    ]


def test_a_line_is_an_instance(tmp_path: Path) -> None:
    """In nginx's list, or an address."""
    for text, target in {
        "server h:1;": Target("h:1", "http://h:1"),
        "server h;": Target("h", "http://h:80"),
        "server [::1]:1 weight=7;": Target("[::1]:1", "http://[::1]:1", 7),
        "server h:1 down;": Target("h:1", "http://h:1", is_down=True),
        "server h:1 backup;": Target("h:1", "http://h:1"),
        "server\n  h:1\n  max_fails=0 # why\n;": Target("h:1", "http://h:1"),
        "server h:1 max_fails=1 fail_timeout=10s;": Target("h:1", "http://h:1"),
        "h:1 # one": Target("h:1", "http://h:1"),
        "https://h/disk/1/-/": Target("h/disk/1", "https://h/disk/1"),
    }.items():
        assert read(tmp_path, text) == [target], text
    # A byte order mark, other ends of lines, or no end of the last line.
    for content in (
        b"\xef\xbb\xbfserver a:1;\r\nserver b:2;\r\n",
        b"\xef\xbb\xbfa:1\r\n\r\n# comment\r\nb:2",
        b"server a:1;server b:2;",
    ):
        assert [target.name for target in read(tmp_path, content)] == ["a:1", "b:2"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("server a:1;\nserver unix:/run/a;", r"line 2: .*is a unix socket.*allowed"),
        ("server a:1 weight=0;", r"line 1: \"weight=0\" is not a weight; allowed"),
        ("server a:1 weigth=1;", r'line 1: "weigth=1" is not a parameter .*allowed'),
        ("server a:1\nserver b:2;", r'line 1: "server" is not a .*; before it is mis'),
        ("server a:1;\nserver b:2", r"line 2: the ; at the end is missing"),
        ("server a:1;\nhash $uri;", r'line 2: "hash \$uri" is not a server; allowed'),
        ("server http://a:1;", r'line 1: "http://a:1" is not the address'),
        ("server;", r'line 1: "server" is not a server'),
        ("a:1\nb", r'line 2: "b" is not the address of an instance; allowed'),
        ("a:1 b:1", r'line 1: "a:1 b:1" is not the address'),
        ("a:1\n\x1b[31m", r'line 2: "\?\[31m" is not'),
        ("a:1\nb:1\nA:1", r"line 3: A:1 is also in .*list, line 1; name each"),
        ("", "no instances; at least one is needed"),
        ("# a:1", "no instances"),
        (b"a:1\n\xff", "not UTF-8 text: invalid byte at offset 4"),
    ],
)
def test_what_is_no_instance_is_named(
    tmp_path: Path, text: str | bytes, error: str
) -> None:
    """With the file, the line, and what is allowed, on one line."""
    with pytest.raises(ConfigError, match=error) as raised:
        read(tmp_path, text)
    assert str(raised.value).isprintable()


def test_addresses_and_files_can_be_mixed(tmp_path: Path) -> None:
    """In the order in which they are given."""
    (tmp_path / "list").write_text("a:1\n")
    (tmp_path / "fleet.toml").write_text('[machines]\nm = "b"\n[defaults]\nport = 2\n')
    (tmp_path / "fleet.toml").write_text('[machines]\nm = "10.0.0.1"\n')
    sources = ["http://c:3/-/", str(tmp_path / "list"), str(tmp_path / "fleet.toml")]
    assert read_targets(sources) == [
        Target("c:3", "http://c:3"),
        Target("a:1", "http://a:1"),
        Target("m:1234", "http://10.0.0.1:1234", 10, "m"),
    ]
    with pytest.raises(ConfigError, match=r"the arguments: a:1 is also in .*line 1"):
        read_targets([str(tmp_path / "list"), "a:1"])


def test_a_source_that_is_neither_is_named(tmp_path: Path) -> None:
    """A path without a file is as that of nginx's list on a machine without nginx."""
    neither = "or the path of a file that exists"
    for source, error in {
        **dict.fromkeys(["missing.conf", "x" * 5000, "a\0b"], neither),
        "/no/list": "/no/list: there is no such file; give one",
        str(tmp_path): "cannot be read: Is a directory",
    }.items():
        with pytest.raises(ConfigError, match=error):
            read_targets([source])
