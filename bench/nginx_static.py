"""The configuration of an nginx that serves a folder, one file for each key."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Final

from processes import IP
from support.nginx import start_command

if TYPE_CHECKING:
    from pathlib import Path

# One worker, as volcache is one process; connections live as long as wrk wants, as with
# bjoern. PUT by the DAV module: to a temporary file that is then renamed.
CONFIGURATION: Final = """
daemon off;
worker_processes 1;
worker_rlimit_nofile {open_files};
pid {folder}/nginx.pid;
error_log stderr error;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    keepalive_requests 100000000;
    default_type application/octet-stream;
    client_max_body_size 2m;
    client_body_buffer_size 128k;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {extra}
    server {{
        listen {ip}:{port} backlog=1024;
        root {root};
        location / {{ dav_methods PUT; }}
    }}
}}
"""
NOT_CACHED: Final = 2000  # Descriptors that are left for connections and the like.
OPEN_FILE_CACHE: Final = (
    "open_file_cache max={count} inactive=60s; open_file_cache_valid 60s;"
)


def command(folder: Path, root: Path, port: int, *, cached: bool) -> list[str]:
    """
    Write the configuration, and return what starts nginx with it.

    Args:
        folder: For nginx's own files; made.
        root: Where the files are.
        port: Where it listens.
        cached: Whether `open_file_cache` is on.

    """
    folder.mkdir()
    open_files = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    text = CONFIGURATION.format(
        folder=folder,
        extra=(OPEN_FILE_CACHE.format(count=open_files - NOT_CACHED) if cached else ""),
        open_files=open_files,
        ip=IP,
        port=port,
        root=root,
    )
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    return start_command(folder, "nginx.conf")
