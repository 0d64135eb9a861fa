"""nginx/volcache/origin.conf before an origin and two instances."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import requests

from support.cluster import list_of
from support.nginx import SOURCE, Nginx
from support.ports import pick_port
from support.process import SHARED, ServerProcess
from support.recipes import njs_module

LIMIT: Final = 1 << 20  # SHARED has it as max_value_size.


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
