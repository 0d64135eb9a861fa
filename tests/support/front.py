"""
nginx in front of a server, with the least it needs to pass requests on as they are.

A `Front` holds one nginx, its port and its folder. What the product's own configuration
does beyond that, limits and spreading, is no matter of this one.
"""

from __future__ import annotations

import os
import subprocess
import time
from typing import TYPE_CHECKING, Final, Self

from support.ports import pick_port
from support.wire import exchange

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

START_SECONDS: Final = 20.0
CONFIG: Final = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    scgi_temp_path {folder}/scgi;
    uwsgi_temp_path {folder}/uwsgi;
    merge_slashes off;
    client_max_body_size {body_bytes_max};
    upstream instance {{ server 127.0.0.1:{port}; keepalive 8; }}
    server {{
        listen 127.0.0.1:{own_port};
        location / {{
            proxy_pass http://instance;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_ignore_client_abort on;
        }}
    }}
}}
"""


class Front:
    """One nginx, from the beginning of the context to its end."""

    def __init__(self, folder: Path, port: int, *, body_bytes_max: int) -> None:
        """Prepare one in front of a port; `folder` is its own."""
        self.port = pick_port()
        self._folder = folder
        config = CONFIG.format(
            folder=folder, port=port, own_port=self.port, body_bytes_max=body_bytes_max
        )
        (folder / "nginx.conf").write_text(config)

    def __enter__(self) -> Self:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(
            ["nginx", "-p", self._folder, "-c", self._folder / "nginx.conf"],
            env=os.environ | {"PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                exchange(self.port, "GET", "/-/healthy")
            except OSError:
                if time.monotonic() > end or self._process.poll() is not None:
                    self.__exit__(None, None, None)
                    raise
                time.sleep(0.01)
            else:
                return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self._process.terminate()
        try:
            self._process.wait(START_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
