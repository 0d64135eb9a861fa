"""nginx accepts our configuration, as it is and with all options enabled."""

from __future__ import annotations

import re
import shlex
import socket
import ssl
import subprocess
from typing import TYPE_CHECKING

import pytest
import requests

from support.cluster import running_cluster
from support.nginx import SOURCE, Nginx
from support.ports import pick_port

if TYPE_CHECKING:
    from pathlib import Path

    from support.cluster import Cluster

pytestmark = pytest.mark.integration

FILES = sorted(path.relative_to(SOURCE) for path in SOURCE.rglob("*.conf"))
INSTANCES = ["127.0.0.1:1234", "127.0.0.1:1235"]


def enabled(name: str) -> str:
    """Return a file with its commented-out directives enabled."""
    text = (SOURCE / name).read_text()
    before, directive, rest = text.partition("# satisfy any;")
    assert directive
    return before + re.sub(r"^# ", "", directive + rest, flags=re.MULTILINE)


def with_mode(name: str) -> dict[str, str]:
    """Return the main file with another failure mode."""
    text = (SOURCE / "volcache.conf").read_text()
    assert "include volcache/pinned.conf;" in text
    return {"volcache.conf": text.replace("volcache/pinned", f"volcache/{name}")}


def make_certificate(folder: Path) -> None:
    """Make a key and a self-signed certificate."""
    subprocess.run(
        shlex.split(
            "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
            " -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
            " -keyout server.key -out server.crt"
        ),
        cwd=folder,
        check=True,
        capture_output=True,
    )


def test_every_file_begins_with_a_comment() -> None:
    """It states what the file is for."""
    assert len(FILES) >= 10
    for name in FILES:
        assert (SOURCE / name).read_text().startswith("# "), name


@pytest.mark.parametrize("mode", ["pinned", "failover", "growing"])
def test_configuration_is_valid(mode: str, tmp_path: Path) -> None:
    """`nginx -t` reports nothing in any failure mode."""
    nginx = Nginx(tmp_path / "nginx", INSTANCES, files=with_mode(mode))
    done = nginx.test()
    assert done.returncode == 0, done.stderr
    assert "[" not in done.stderr, done.stderr


def test_configuration_is_valid_as_it_is_installed(tmp_path: Path) -> None:
    """With the files where the comments put them, under a minimal main file."""
    nginx = Nginx(tmp_path / "nginx", INSTANCES)
    for name in ("volcache/instances.conf", "volcache/listen.conf"):
        nginx.write(name, (SOURCE / name).read_text())
    log = (SOURCE / "volcache/log.conf").read_text()
    nginx.write("volcache/log.conf", log.replace("/var/log/nginx/", f"{tmp_path}/"))
    nginx.write(
        "cluster.conf", "pid nginx.pid;\nevents {}\nhttp { include volcache.conf; }\n"
    )
    done = nginx.test()
    assert done.returncode == 0, done.stderr


def test_writes_require_a_password(tmp_path: Path) -> None:
    """Reads do not; writes need it if they come from another network."""
    text = enabled("volcache/writers.conf").replace("allow 127.0.0.1;", "")
    writers = {"volcache/writers.conf": text, "volcache/writers": "me:{PLAIN}secret\n"}
    with running_cluster(tmp_path, files=writers) as cluster:
        url = f"{cluster.url}/key"
        for method in ("PUT", "DELETE", "MKCOL"):
            assert requests.request(method, url, timeout=10).status_code == 401
        wrong = requests.put(url, data=b"x", auth=("me", "guess"), timeout=10)
        assert wrong.status_code == 401
        right = requests.put(url, data=b"x", auth=("me", "secret"), timeout=10)
        assert right.status_code == 200
        assert requests.get(url, timeout=10).content == b"x"


def test_writes_from_an_allowed_network_require_no_password(tmp_path: Path) -> None:
    """Also in failover mode."""
    writers = {
        "volcache/writers.conf": enabled("volcache/writers.conf"),
        "volcache/writers": "",
    } | with_mode("failover")
    with running_cluster(tmp_path, files=writers) as cluster:
        url = f"{cluster.url}/key"
        assert requests.put(url, data=b"x", timeout=10).status_code == 200
        assert requests.get(url, timeout=10).content == b"x"


def test_tls_offers_http2(tmp_path: Path) -> None:
    """With tls.conf, nginx answers over TLS 1.2 or 1.3."""
    port = pick_port()
    tls = (SOURCE / "volcache/tls.conf").read_text()
    files = {"volcache/tls.conf": tls.replace("listen 443", f"listen 127.0.0.1:{port}")}
    nginx = Nginx(tmp_path / "nginx", INSTANCES, files=files)
    plain = (nginx.folder / "volcache/listen.conf").read_text()
    nginx.write("volcache/listen.conf", f"include volcache/tls.conf;\n{plain}")
    make_certificate(nginx.folder / "volcache")
    context = ssl.create_default_context(
        cafile=str(nginx.folder / "volcache" / "server.crt")
    )
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        nginx,
        context.wrap_socket(
            socket.create_connection(("127.0.0.1", port), 10),
            server_hostname="127.0.0.1",
        ) as connection,
    ):
        assert connection.selected_alpn_protocol() == "h2"
        assert connection.version() in {"TLSv1.2", "TLSv1.3"}


def test_log_line_has_the_outcome_of_a_request(cluster: Cluster) -> None:
    """Cache status, instance and times; a client cannot forge a line."""
    requests.put(f"{cluster.url}/logged", data=b"12345", timeout=10)
    got = requests.get(f"{cluster.url}/logged?x=%22%0A", timeout=10)
    line = cluster.nginx.logged('GET "/logged')
    assert re.fullmatch(
        r'\S+T\S+ 127\.0\.0\.1 GET "/logged\?x=%22%0A" 200 bytes=5 cache=DISK'
        rf' instance="{got.headers["X-Instance"]}" answers="200" connect="[\d.]+"'
        r' upstream="[\d.]+" total=[\d.]+',
        line,
    )
