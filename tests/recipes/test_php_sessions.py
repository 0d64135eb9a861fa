"""PHP's sessions in an instance, with the lines for php.ini of the document."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import requests

from support.memcache import MemcacheServer
from support.memcache_clients import Pymemcache
from support.recipes import Daemon, need, snippet
from support.waiting import wait_until

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]

MEMCACHED = "127.0.0.1:11211"
APPLICATION = r"""<?php
$begun = session_start();
$do = $_GET["do"];
if ($do == "login") {
    $_SESSION["user"] = $_GET["user"];
    $_SESSION["bytes"] = str_repeat(implode(array_map("chr", range(0, 255))), 40);
    $_SESSION["count"] = 0;
} elseif ($do == "count") {
    $count = $_SESSION["count"];
    usleep(20000);
    $_SESSION["count"] = $count + 1;
} elseif ($do == "fill") {
    $_SESSION["more"] = random_bytes(1 << 20);
} elseif ($do == "hang") {
    touch($_GET["file"]);
    sleep(60);
} elseif ($do == "logout") {
    session_destroy();
}
header("Content-Type: application/json");
echo json_encode([
    "begun" => $begun,
    "user" => $_SESSION["user"] ?? null,
    "count" => $_SESSION["count"] ?? null,
    "bytes" => sha1($_SESSION["bytes"] ?? ""),
]);
"""


class PHP(Daemon):
    """PHP's own web server, with the document's configuration."""

    is_asked_to_end = False

    def __init__(
        self,
        folder: Path,
        instance: MemcacheServer,
        more: Mapping[str, str] | None = None,
        **changes: str,
    ) -> None:
        """Write the application and php.ini, with more lines and some values changed."""
        super().__init__()
        self._folder = folder
        text = snippet("PHP sessions", "ini")
        text = text.replace(MEMCACHED, instance.memcache_address)
        for name, value in changes.items():
            text, count = re.subn(rf"(?<=\.{name} = ).*", value, text)
            assert count == 1, name
        for name, value in (more or {}).items():
            text += f'{name} = "{value}"\n'
        (folder / "php.ini").write_text(text)
        (folder / "application.php").write_text(APPLICATION)

    def command(self) -> Sequence[str | Path]:
        """Return the command that starts it."""
        script = self._folder / "application.php"
        return ["php", "-c", self._folder / "php.ini", "-S", self.host, script]

    def environment(self) -> dict[str, str]:
        """Let it answer several requests at a time."""
        return {**super().environment(), "PHP_CLI_SERVER_WORKERS": "4"}

    def kill(self) -> None:
        """Kill it and its workers."""
        workers: list[int] = []
        if self.is_running:
            children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
            workers = [int(pid) for pid in children.read_text().split()]
        super().kill()
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.answers(), "the end of PHP's workers")


class Browser:
    """A user with a cookie."""

    def __init__(self, php: PHP) -> None:
        """Have no cookie yet."""
        self._php = php
        self._session = requests.Session()
        self.warnings = ""

    def ask(self, what: str, **more: str) -> dict[str, object]:
        """Send a request; return what the application knows of the session."""
        answer = self._session.get(
            self._php.url, params={"do": what, **more}, timeout=30
        )
        assert answer.headers["Content-Type"] == "application/json", answer.text
        found: dict[str, object]
        found, end = json.JSONDecoder().raw_decode(answer.text)
        self.warnings = answer.text[end:]
        assert found["begun"] is True
        return found

    @property
    def cookie(self) -> str:
        """The id of the session."""
        return str(self._session.cookies["PHPSESSID"])

    def close(self) -> None:
        """Close the connection."""
        self._session.close()


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[MemcacheServer]:
    """Run an instance."""
    need("php")
    with MemcacheServer(tmp_path / "data") as server:
        yield server


@pytest.mark.parametrize("binary", ["On", "Off"])
def test_a_login_survives_a_restart_of_everything(
    tmp_path: Path, instance: MemcacheServer, binary: str
) -> None:
    """Both are killed; a logout ends the session on the disk, too."""
    with PHP(tmp_path, instance, sess_binary_protocol=binary) as php:
        ann, ben = Browser(php), Browser(php)
        known = ann.ask("login", user="ann")
        ben.ask("login", user="ben")
        assert ann.ask("count")["count"] == 1
        instance.kill()
        php.kill()
        instance.restart()
        php.restart()
        assert ann.ask("look") == known | {"user": "ann", "count": 1}
        assert ben.ask("look")["user"] == "ben"
        ben.ask("logout")
        instance.kill()
        instance.restart()
        assert ben.ask("look")["user"] is None
        # PHP connects again by itself.
        assert ann.ask("count")["count"] == 2
        stored = requests.get(f"{instance.url}/sessions/{ann.cookie}", timeout=5)
        assert b'user|s:3:"ann"' in stored.content
        assert re.fullmatch(
            r"max-age=863\d\d|max-age=86400", stored.headers["Cache-Control"]
        )
        for browser in (ann, ben):
            browser.close()


def test_requests_of_one_session_come_one_after_the_other(
    tmp_path: Path, instance: MemcacheServer
) -> None:
    """None of their changes is lost."""
    with PHP(tmp_path, instance) as php:
        user = Browser(php)
        user.ask("login", user="ann")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: user.ask("count"), range(8)))
        assert user.ask("look")["count"] == 8
        user.close()


def test_the_lock_of_a_killed_request_expires(
    tmp_path: Path, instance: MemcacheServer
) -> None:
    """Although the instance keeps it over a restart; until then others wait."""
    with PHP(tmp_path, instance) as php, ThreadPoolExecutor(1) as pool:
        user = Browser(php)
        user.ask("login", user="ann")
        key = f"sessions/lock.{user.cookie}"
        lock = f"{instance.url}/{key}"
        assert requests.get(lock, timeout=5).status_code == 404
        entered = tmp_path / "entered"
        hanging = pool.submit(user.ask, "hang", file=str(entered))
        wait_until(entered.exists, "the request that hangs")
        instance.kill()
        instance.restart()
        lifetime = requests.get(lock, timeout=5).headers["Cache-Control"]
        assert 0 < int(lifetime.removeprefix("max-age=")) <= 30
        php.kill()
        assert isinstance(hanging.exception(30), requests.ConnectionError)
        php.restart()
        waiting = pool.submit(user.ask, "look")
        driver = Pymemcache(instance.memcache_port)
        assert driver.touch(key, 1)  # Instead of half a minute.
        assert waiting.result(60)["user"] == "ann"
        assert driver.get(key) is None
        driver.close()
        user.close()


def sasl(token: str) -> dict[str, str]:
    """Return the lines for php.ini that send a token."""
    names = ("username", "password")
    return {f"memcached.sess_sasl_{name}": token for name in names}


def test_a_token_is_sent_as_a_password(tmp_path: Path) -> None:
    """With the binary protocol; with another one there is no session."""
    need("php")
    settings = {"read_token": "of reading", "write_token": "of writing"}
    binary = {"sess_binary_protocol": "On"}
    with MemcacheServer(tmp_path / "data", settings) as instance:
        with PHP(tmp_path, instance, sasl("of writing"), **binary) as php:
            user = Browser(php)
            user.ask("login", user="ann")
            instance.kill()
            instance.restart()
            assert user.ask("look")["user"] == "ann"
            user.close()
        with PHP(tmp_path, instance, sasl("another"), **binary) as php:
            answer = requests.get(f"{php.url}/?do=look", timeout=60)
            assert "Failed to create session" in answer.text


def test_a_session_above_the_limit_is_lost(
    tmp_path: Path, instance: MemcacheServer
) -> None:
    """Not an older one is read instead."""
    with PHP(tmp_path, instance) as php:
        user = Browser(php)
        user.ask("login", user="ann")
        user.ask("fill")
        assert "Failed to write session data" in user.warnings
        assert user.ask("look")["user"] is None
        user.close()
