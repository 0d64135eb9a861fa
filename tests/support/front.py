"""
nginx in front of a server, with the least it needs to pass requests on as they are.

What the product's own configuration does beyond that, limits and spreading, is no matter
of this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from support.nginx import NginxProcess

if TYPE_CHECKING:
    from pathlib import Path

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


class Front(NginxProcess):
    """One nginx in front of a port."""

    def __init__(self, folder: Path, port: int, *, body_bytes_max: int) -> None:
        """Write the configuration into a folder, which is made; nothing is started."""
        super().__init__(folder, "nginx.conf")
        folder.mkdir()
        config = CONFIG.format(
            folder=folder, port=port, own_port=self.port, body_bytes_max=body_bytes_max
        )
        (folder / "nginx.conf").write_text(config)
