"""nginx's stream module adds TLS to the protocol of memcached."""

from __future__ import annotations

import ssl
from contextlib import closing
from pathlib import Path

import pytest
from pymemcache.client.base import Client  # noqa: TID251 - Under test.
from pymemcache.exceptions import MemcacheError  # noqa: TID251

from support.memcache import MemcacheServer
from support.memcache_clients import SECONDS
from support.nginx import PlainNginx
from support.recipes import nginx_module, run, snippet

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]


def test_clients_with_tls_reach_the_instance(tmp_path: Path) -> None:
    """Others do not."""
    module = nginx_module("ngx_stream_module.so")
    folder = tmp_path / "nginx"
    front = PlainNginx(folder)
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", f"{folder}/server.key", "-out", f"{folder}/server.crt"]
    run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *files, *subject],
        folder,
    )
    with MemcacheServer(tmp_path / "data") as instance:
        text = snippet("TLS for memcached", "nginx")
        for old, new in (
            ("127.0.0.1:11443", f"127.0.0.1:{front.port}"),
            ("127.0.0.1:11211", instance.memcache_address),
            ("/etc/nginx/volcache", str(folder)),
        ):
            assert old in text
            text = text.replace(old, new)
        front.configure("", before=f"load_module {module};\n{text}")
        with front:
            context = ssl.create_default_context(cafile=str(folder / "server.crt"))
            place = ("127.0.0.1", front.port)
            with closing(Client(place, tls_context=context, timeout=SECONDS)) as client:
                assert client.set("key", b"value" * 99_999, noreply=False)
                assert client.get("key") == b"value" * 99_999
            plain = Client(place, timeout=SECONDS)
            with closing(plain), pytest.raises((MemcacheError, OSError)):
                plain.get("key")
