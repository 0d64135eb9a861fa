"""Reloads of a running process: by SIGHUP and by POST /-/reload."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from support.load import Load
from support.process import SOURCE, ServerProcess
from support.waiting import wait_until
from support.wire import Talk, exchange

pytestmark = pytest.mark.integration

MIB: Final = 1 << 20
ADMIN: Final = "Authorization: Bearer operator"
READER: Final = "Authorization: Bearer reader"


class Reloadable(ServerProcess):
    """A server with a settings file, which is replaced as a whole."""

    def __init__(self, folder: Path) -> None:
        """Write a file with a token of the operator."""
        settings = {"volume_size": 8 * MIB, "volume_num": 2}
        self.file = folder / "volcache.toml"
        super().__init__(
            folder / "store", settings=settings, program=(SOURCE, self.file)
        )
        self.set("")

    def set(self, lines: str) -> None:
        """Replace the settings, but the operator's token."""
        new = self.file.with_suffix(".new")
        new.write_text(f'admin_token = "operator"\n{lines}\n')
        new.replace(self.file)

    def reload(self) -> str:
        """Reload by POST, and return the line."""
        reply = exchange(self.port, "POST", "/-/reload", b"", ADMIN)
        return f"{reply.status} {reply.body.decode().rstrip()}"

    def count(self, event: str) -> int:
        """Return how often an event was logged."""
        return len(re.findall(rf" {event} ", self.stderr))

    def hang_up(self, event: str = "config.reloaded") -> None:
        """Reload by SIGHUP, and wait for the event."""
        before = self.count(event)
        self.send_signal(signal.SIGHUP)
        wait_until(lambda: self.count(event) > before, event)


@pytest.fixture(scope="module")
def _shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reloadable]:
    with Reloadable(tmp_path_factory.mktemp("reload")) as running:
        yield running


@pytest.fixture
def server(_shared: Reloadable) -> Iterator[Reloadable]:
    """Yield a server with one value, and nothing but the token of the operator."""
    assert exchange(_shared.port, "PUT", "/a", b"1").status == 200
    yield _shared
    _shared.set("")
    assert _shared.reload().startswith("200 ")


def test_tokens_take_effect_on_open_connections(server: Reloadable) -> None:
    """The old one is refused at once; so is a GET that C has answered before."""
    with Talk(server.port) as wire:
        assert wire.exchange("GET", "/a").status == 200
        changed = 'read_token = "reader"\nwrite_token = "writer"\n'
        server.set(f"{changed}idle_timeout = 7.0")
        server.hang_up()
        line = (
            "config.reloaded changed='read_token, write_token' restart='idle_timeout'"
        )
        assert line in server.stderr
        stats = exchange(server.port, "GET", "/-/stats").body
        assert b'"read_token": true' in stats
        assert b'"idle_timeout": 120.0' in stats
        assert wire.exchange("GET", "/a").status == 401
        assert wire.exchange("GET", "/a", None, READER).status == 200
        assert wire.exchange("PUT", "/a", b"2", READER).status == 401
        server.set('read_token = "other"')
        assert server.reload() == "200 changed: read_token, write_token"
        assert wire.exchange("GET", "/a", None, READER).status == 401
        assert wire.exchange("PUT", "/a", b"2").status == 200
        server.set("")
        server.reload()
        assert wire.exchange("GET", "/a").body == b"2"


def test_reload_needs_the_token_of_the_operator(server: Reloadable) -> None:
    """As the other actions do; the one that was used for the reload is wrong afterwards."""
    assert exchange(server.port, "POST", "/-/reload", b"").status == 401
    assert exchange(server.port, "GET", "/-/reload").status == 405
    server.file.write_text('admin_token = "new"\nadmin_hosts = ["cache-1"]\n')
    assert server.reload() == "200 changed: admin_token, admin_hosts"
    assert server.reload().startswith("401 ")
    assert exchange(server.port, "POST", "/-/flush", b"", ADMIN).status == 401
    assert exchange(server.port, "GET", "http://cache-1/-/stats").status == 200
    server.file.write_text("# none\n")
    server.hang_up()
    assert exchange(server.port, "POST", "/-/reload", b"", ADMIN).status == 403
    server.set("")
    server.hang_up()


def test_reload_with_other_origins_changes_the_headers_for_browsers(
    server: Reloadable,
) -> None:
    """Also in answers of C, on connections that are open."""
    name = "Access-Control-Allow-Origin"
    origin = "Origin: https://a.example"
    with Talk(server.port) as wire:
        for origins, expected in (
            ("[]", None),
            ('["https://a.example"]', "https://a.example"),
            ('"*"', "*"),
            ('["https://b.example"]', None),
            ("[]", None),
        ):
            server.set(f"cors_origins = {origins}")
            server.reload()
            for method, path in (("GET", "/a"), ("GET", "/none"), ("PUT", "/b")):
                body = b"1" if method == "PUT" else None
                found = wire.exchange(method, path, body, origin).headers
                assert found.get(name) == expected
            vary = wire.exchange("GET", "/a").headers.get("Vary")
            assert vary == ("Origin" if "example" in origins else None)


def test_reload_with_another_limit_of_slow_requests_changes_it(
    server: Reloadable,
) -> None:
    """For reads, misses and writes."""
    server.set("log_slow = 0.000001")
    server.hang_up()
    exchange(server.port, "GET", "/a")
    exchange(server.port, "GET", "/absent")
    exchange(server.port, "PUT", "/a", b"1")
    wait_until(lambda: server.count("request.slow") >= 3, "all requests in the log")
    assert "request.slow method=GET key=absent status=404 " in server.stderr
    server.set("log_slow = 0")
    server.hang_up()
    before = server.count("request.slow")
    exchange(server.port, "GET", "/a")
    exchange(server.port, "GET", "/-/stats")  # Takes over what C has counted.
    assert server.count("request.slow") == before


def test_reload_with_wrong_settings_changes_nothing(server: Reloadable) -> None:
    """The reason is logged, and the answer has it; the process keeps serving."""
    server.set('read_token = "reader"')
    server.reload()
    good = server.file.read_bytes()
    file = server.file
    for break_file, reason in (
        # What else is wrong is in the tests of the settings.
        (lambda: file.write_text('read_token = " x"'), "(not shown) is not"),
        (lambda: file.write_bytes(b""), "empty"),
        (file.unlink, "No such file"),
        (lambda: os.mkfifo(file), "not a regular file"),
    ):
        break_file()
        server.hang_up("config.rejected")
        reply = server.reload()
        assert reply.startswith("409 nothing has changed: ")
        assert reason in reply
        assert reason in server.stderr
        assert exchange(server.port, "GET", "/a").status == 401
        assert exchange(server.port, "GET", "/a", None, READER).body == b"1"
    file.unlink()
    file.write_bytes(good)
    assert server.reload() == "200 nothing has changed"


def test_many_reloads_lose_no_request(tmp_path: Path) -> None:
    """While the headers change as well; a stop comes through."""
    with Reloadable(tmp_path) as server:
        with Load(server.port, clients=2) as load:
            load.wait_for(50)
            for number in range(1000):
                if number % 50 == 0:
                    server.set('cors_origins = "*"' if number % 100 else "")
                server.send_signal(signal.SIGHUP)
            load.wait_for(50)
            # What was read last is in effect.
            assert server.reload()[4:] in {
                "nothing has changed",
                "changed: cors_origins",
            }
            load.wait_for(50)
        assert all(answer.status and answer.is_right for answer in load.answers)
        server.send_signal(signal.SIGTERM)
        while server.is_running:
            server.send_signal(signal.SIGHUP)
        assert server.exit_code == 0


def test_hangup_during_the_start_does_not_end_it(tmp_path: Path) -> None:
    """It is taken when the instance serves."""
    server = Reloadable(tmp_path)
    server.launch()
    try:
        status = Path(f"/proc/{server.pid}/status")
        wait_until(
            lambda: re.search(r"SigIgn:\s+\w*[13579bdf]\n", status.read_text()),
            "SIGHUP to be ignored",
        )
        while not server.answers():
            server.send_signal(signal.SIGHUP)
            assert server.is_running
        wait_until(lambda: server.count("config.reloaded"), "the reload")
    finally:
        server.__exit__()


def test_files_are_only_for_their_owner(tmp_path: Path) -> None:
    """Logs for the group as well; the umask only narrows it; what exists stays."""
    (tmp_path / "store").mkdir(mode=0o755)
    logs = {name: str(tmp_path / name) for name in ("log_file", "log_access")}
    server = ServerProcess(
        tmp_path / "store", settings=logs | {"volume_size": 8 * MIB, "volume_num": 2}
    )
    before = os.umask(0)
    try:
        with server:
            exchange(server.port, "PUT", "/a", b"1")
    finally:
        os.umask(before)
    modes = dict.fromkeys(logs, 0o640) | {"store": 0o755}
    for path in tmp_path.rglob("*"):
        expected = modes.get(path.name, 0o700 if path.is_dir() else 0o600)
        assert path.stat().st_mode & 0o7777 == expected, path
