"""Settings on the command line of make reach the server; those of the machine do not."""

from __future__ import annotations

from pathlib import Path

from support.make import make


def test_settings_of_make_run_are_passed(tmp_path: Path) -> None:
    """As they are; a hosting platform may set PORT in the environment."""
    for words, *settings in (
        ([],),
        (["PORT=1235"], "VOLCACHE_PORT=1235"),
        (["port=1", "IP=::1"], "VOLCACHE_IP=::1", "VOLCACHE_PORT=1"),
        (["POORT=1"], "VOLCACHE_POORT=1"),  # The server refuses it.
        (["VOLCACHE_PORT=5"], "VOLCACHE_PORT=5"),
        (["ADMIN_TOKEN=it's \"a $b"], "VOLCACHE_ADMIN_TOKEN=it's \"a $b"),
        (["CONFIG=my.toml", "PORT=1"], "VOLCACHE_PORT=1"),  # Names the file.
    ):
        done = make(tmp_path, "run", *words, PORT="99", IP="x")
        path = "my.toml" if "CONFIG=my.toml" in words else "conf/volcache.toml"
        assert done.stdout.splitlines() == [*settings, f"src/ {path}"]
        assert (done.returncode, done.stderr) == (0, "")


def test_make_cluster_takes_the_port_of_nginx_only(tmp_path: Path) -> None:
    """The rest is in files."""
    for words, error in (
        (["PORT=1", "IP=x"], "make cluster: unknown IP; allowed is PORT"),
        (["PORT=x"], "make cluster: PORT = x is not allowed; allowed is a number"),
    ):
        done = make(tmp_path, "cluster", *words)
        assert done.returncode == 2
        assert error in done.stderr
