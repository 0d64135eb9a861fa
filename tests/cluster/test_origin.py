"""nginx/volcache/origin.conf: misses are filled from an origin, and stored once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import requests

from support.nginx import SOURCE, Nginx
from support.ports import pick_port
from support.process import SHARED, ServerProcess
from support.recipes import njs_module
from support.ringed import list_of
from support.waiting import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]

LIMIT = 1 << 20  # SHARED has it as max_value_size.


class Origin:
    """A server that answers what a test says, after a time, and counts its requests."""

    def __init__(self) -> None:
        """Answer nothing yet."""
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: Counter[str] = Counter()
        self.heads: list[Any] = []
        self.held = threading.Event()
        self.held.set()
        origin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self.do_GET()

            def do_GET(self) -> None:
                origin.asked[f"{self.command} {self.path}"] += 1
                origin.heads.append(self.headers)
                origin.held.wait(30)
                status, headers, body = origin.answers[self.path]
                self.send_response(status)
                for name, text in headers.items():
                    self.send_header(name, text)
                if "Transfer-Encoding" not in headers:
                    self.send_header("Content-Length", str(len(body)))
                else:
                    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", pick_port()), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,)).start()

    def stop(self) -> None:
        """Refuse connections."""
        self.server.shutdown()
        self.server.server_close()


class Filled:
    """An origin, two instances, and nginx."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """Start all."""
        self.origin = Origin()
        stack.callback(self.origin.stop)
        settings = {**SHARED, "query": "key"}
        self.instances = [
            stack.enter_context(ServerProcess(folder / str(n), settings=settings))
            for n in range(2)
        ]
        self.port = pick_port()
        text = (SOURCE / "volcache/origin.conf").read_text()
        for old, new in (
            ("127.0.0.1:8000", f"127.0.0.1:{self.origin.server.server_port}"),
            ("127.0.0.1:8081", f"127.0.0.1:{self.port}"),
            ("127.0.0.1:8088", f"127.0.0.1:{pick_port()}"),
            ("67108864", str(LIMIT)),
            ("output_buffer_size 64m", "output_buffer_size 1m"),
        ):
            assert old in text
            text = text.replace(old, new)
        main = (SOURCE / "volcache.conf").read_text()
        line = "# include volcache/origin.conf;"
        assert f"\n{line}" in main
        query = (SOURCE / "volcache/query.conf").read_text()
        self.nginx = Nginx(
            folder / "nginx",
            [],
            files={
                "cluster.conf": f"load_module {njs_module()};\n"
                + (SOURCE / "cluster.conf").read_text(),
                "volcache.conf": main.replace(line, line[2:]),
                "volcache/origin.conf": text,
                "volcache/query.conf": query.replace(
                    "default $uri;", "default $uri$is_args$args;"
                ),
                "volcache/instances.conf": list_of(
                    f"127.0.0.1:{one.port}" for one in self.instances
                ),
            },
        )
        stack.enter_context(self.nginx)

    def get(self, path: str, **headers: str) -> requests.Response:
        """Ask nginx for a file."""
        url = f"http://127.0.0.1:{self.port}{path}"
        return requests.get(url, headers=headers, timeout=30)

    def stored(self, path: str) -> list[requests.Response]:
        """Return the copies that the instances have."""
        found = [requests.get(f"{one.url}{path}", timeout=30) for one in self.instances]
        return [one for one in found if one.ok]


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    """Start an origin, instances and nginx."""
    with ExitStack() as stack:
        yield Filled(tmp_path, stack)


def test_clients_that_miss_one_file_are_one_request_to_the_origin(
    filled: Filled,
) -> None:
    """It is stored once, on the instance of its key, with type, encoding and lifetime."""
    headers = {
        "Content-Type": "text/x",
        "Content-Encoding": "x-own",
        "Cache-Control": "public, max-age=5000",
    }
    filled.origin.answers["/a%20b?w=1"] = 200, headers, b"value"
    filled.origin.answers["/a%20b?w=2"] = 200, {}, b"other"
    filled.origin.held.clear()
    with ThreadPoolExecutor(30) as pool:
        asked = [pool.submit(filled.get, "/a%20b?w=1") for _ in range(30)]
        wait_until(
            lambda: filled.origin.asked["HEAD /a%20b?w=1"], "the origin to be asked"
        )
        time.sleep(1)  # The time that the origin takes; the others wait for it.
        filled.origin.held.set()
        found = [one.result() for one in asked]
    assert {(one.status_code, one.content) for one in found} == {(200, b"value")}
    assert {one.headers["Content-Type"] for one in found} == {"text/x"}
    assert filled.origin.asked == {"HEAD /a%20b?w=1": 1, "GET /a%20b?w=1": 1}
    (copy,) = filled.stored("/a%20b?w=1")
    assert copy.content == b"value"
    assert copy.headers["Content-Type"] == "text/x"
    assert copy.headers["Content-Encoding"] == "x-own"
    assert 4900 < int(copy.headers["Cache-Control"].removeprefix("max-age=")) <= 5000
    # Through our usual server it is the same key; another query is another one.
    assert requests.get(f"{filled.nginx.url}/a%20b?w=1", timeout=30).content == b"value"
    assert filled.get("/a%20b?w=2").content == b"other"
    (copy,) = filled.stored("/a%20b?w=2")
    assert 3500 < int(copy.headers["Cache-Control"].removeprefix("max-age=")) <= 3600


@pytest.mark.parametrize(
    ("status", "headers", "length"),
    [
        (404, {}, 5),
        (500, {"Cache-Control": "max-age=60"}, 5),
        (200, {"Cache-Control": "no-store"}, 5),
        (200, {"Cache-Control": "private, max-age=60"}, 5),
        (200, {"Cache-Control": "max-age=0"}, 5),
        (200, {"Set-Cookie": "a=b", "Cache-Control": "max-age=60"}, 5),
        (200, {"Vary": "Accept-Language", "Cache-Control": "max-age=60"}, 5),
        (200, {"Transfer-Encoding": "chunked", "Cache-Control": "max-age=60"}, 5),
        (200, {"Cache-Control": "max-age=60"}, LIMIT + 1),
    ],
    ids=str,
)
def test_other_answers_are_passed_and_not_stored(
    filled: Filled, status: int, headers: dict[str, str], length: int
) -> None:
    """Also those above the limit; the origin is asked each time."""
    filled.origin.answers["/x"] = status, headers, b"v" * length
    for _ in range(2):
        found = filled.get("/x", Cookie="a=b", Authorization="Bearer x")
        assert (found.status_code, found.content) == (status, b"v" * length)
    assert filled.stored("/x") == []
    heads = filled.origin.heads
    assert not any(one["Cookie"] or one["Authorization"] for one in heads)


def test_old_answers_are_sent_while_the_origin_is_dead(filled: Filled) -> None:
    """And what volcache has, without asking it."""
    filled.origin.answers["/old"] = 200, {"Cache-Control": "max-age=1"}, b"one"
    filled.origin.answers["/kept"] = 200, {"Cache-Control": "max-age=900"}, b"two"
    assert filled.get("/old").content == b"one"
    assert filled.get("/kept").content == b"two"
    filled.origin.stop()
    wait_until(lambda: filled.stored("/old") == [], "its end")
    wait_until(
        lambda: filled.get("/old").headers["X-Cache-Nginx"] in {"STALE", "UPDATING"},
        "an old answer",
    )
    for path, value in (("/old", b"one"), ("/kept", b"two")):
        found = filled.get(path)
        assert (found.status_code, found.content) == (200, value)
    assert filled.get("/none").status_code == 502
    # The first cache is small: volcache has what it has forgotten.
    filled.nginx.kill()
    for file in (filled.nginx.folder / "volcache-origin").rglob("*"):
        if file.is_file():
            file.unlink()
    filled.nginx.restart()
    found = filled.get("/kept")
    assert (found.content, found.headers["X-Cache"]) == (b"two", "DISK")


def test_instances_that_are_down_are_misses(filled: Filled) -> None:
    """The answers come from the origin."""
    filled.origin.answers["/a"] = 200, {}, b"value"
    for one in filled.instances:
        one.kill()
    found = filled.get("/a")
    assert (found.status_code, found.content) == (200, b"value")
