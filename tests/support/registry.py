"""A server of packages, from a folder, that records what it was asked for."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Self


class Registry:
    """All registries in one: serves a folder, and records the paths asked for."""

    def __init__(self, folder: Path) -> None:
        """Make the folder."""
        self.folder = folder
        folder.mkdir()
        paths = self.paths = list[str]()

        class Handler(SimpleHTTPRequestHandler):
            def log_request(self, *_: object) -> None:
                if self.command == "GET":
                    paths.append(self.path)

            def log_message(self, *_: object) -> None:
                pass

        handler = partial(Handler, directory=str(folder))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = Thread(target=self._server.serve_forever, args=(0.01,))

    def write(self, name: str, data: bytes) -> bytes:
        """Write a file and return it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return data

    def packages_asked(self) -> list[str]:
        """Return the packages asked for since the last call."""
        found = [p for p in self.paths if p.endswith((".whl", ".deb", ".tgz", ".bin"))]
        self.paths.clear()
        return found

    def __enter__(self) -> Self:
        """Serve."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
