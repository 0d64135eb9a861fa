"""nginx accepts our configuration, as it is and with all options enabled."""

from __future__ import annotations

import json
import re
import shlex
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import requests

import nginx_tokens
from support.cluster import Cluster
from support.nginx import SOURCE, Nginx, with_mode, with_purges
from support.ports import pick_port
from support.prometheus import status_text
from support.stub_instance import StubInstance
from support.wire import exchange, read_reply, request_bytes

pytestmark = pytest.mark.integration

INSTANCES = ["127.0.0.1:1234", "127.0.0.1:1235"]


def enabled(name: str) -> str:
    """Return a file with its commented-out directives enabled."""
    text = (SOURCE / name).read_text()
    before, directive, rest = text.partition("# proxy_set_header")
    assert directive
    return before + re.sub(r"^# ", "", directive + rest, flags=re.MULTILINE)


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


@pytest.mark.skipif(find_spec("gixy") is None, reason="gixy is not installed")
def test_gixy_with_any_options_finds_nothing(tmp_path: Path) -> None:
    """In each failure mode, as shipped, and with TLS, tokens and passwords."""
    options = {
        "volcache/listen.conf": "include volcache/tls.conf;\n",
        "volcache/tokens.conf": nginx_tokens.render("reader", "writer"),
        "volcache/writers.conf": enabled("volcache/writers.conf"),
        "volcache/status.conf": status_text(8089),
    }
    shipped = {name: (SOURCE / name).read_text() for name in options}
    hidden = {"volcache/show-instance.conf": "default 0;\n"}
    folders = []
    for mode in ("pinned", "failover", "growing"):
        main = with_mode(mode)
        purging = {"volcache.conf": with_purges(main["volcache.conf"])}
        for number, some in enumerate((main | shipped, purging | options)):
            folder = tmp_path / f"{mode}{number}"
            folders.append(Nginx(folder, INSTANCES, files=some | hidden).folder)
    program = "import sys; from gixy.cli.main import main; sys.exit(main())"
    # volcache/tls.conf says why.
    skips = ["--skips", "hsts_header", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-c", program, *skips, *(f / "cluster.conf" for f in folders)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert json.loads(done.stdout) == [], done.stdout
    assert done.returncode == 0, done.stderr


def test_instance_is_shown_only_to_those_it_is_meant_for(tmp_path: Path) -> None:
    """As shipped to no client, and then to the listed addresses; the log has it."""
    dead = [f"127.0.0.1:{pick_port()}"]
    shipped = (SOURCE / "volcache/show-instance.conf").read_text()
    for number, line in enumerate(("", "127.0.0.2/32 1;")):
        files = {"volcache/show-instance.conf": f"{shipped}{line}\n"}
        with Nginx(tmp_path / f"nginx{number}", dead, files=files) as nginx:
            for source in ("127.0.0.1", "127.0.0.2"):
                for method in ("GET", "PUT"):
                    with socket.create_connection(
                        ("127.0.0.1", nginx.port), 10, (source, 0)
                    ) as connection:
                        connection.sendall(request_bytes(method, "/key", b""))
                        reply = read_reply(connection)
                    is_shown = bool(line) and source == "127.0.0.2"
                    assert ("X-Instance" in reply.headers) == is_shown
            assert dead[0] in nginx.logged("/key")


def test_texts_have_the_limits_of_the_directives() -> None:
    """The size of a value, the requests in flight, and the lengths of headers."""
    text = (SOURCE / "volcache.conf").read_text()

    def value(name: str) -> str:
        (found,) = re.findall(rf"^ {{4}}{name} +(.+);$", text, re.MULTILINE)
        return str(found)

    assert value(r"set \$volcache_value_max") == f'"{value("client_max_body_size")}"'
    assert value(r"set \$volcache_requests_max") == (
        f'"{value("limit_conn +volcache_requests")} in all and'
        f' {value("limit_conn +volcache_clients")} of one client address"'
    )
    assert value(r"large_client_header_buffers") == "4 8k"
    assert "a line may have 8 KiB, all together 32 KiB" in text


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


def test_writes_require_a_password_unless_from_an_allowed_network(
    mode: dict[str, str], stub: StubInstance, nginx_with: Callable[..., Nginx]
) -> None:
    """Requests that are no writes need none; the instance does not get passwords."""
    text = enabled("volcache/writers.conf")
    name, users = "volcache/writers.conf", {"volcache/writers": "me:{PLAIN}secret\n"}
    nginx = nginx_with(mode | users | {name: text.replace("allow 127.0.0.1;", "")})
    headers = "Origin: http://page.example\nAccess-Control-Request-Method: PUT"
    for method in ("OPTIONS", "GET", "HEAD", "PROPFIND"):
        reply = exchange(nginx.port, method, "/200", headers=headers)
        assert reply.status == 200
    for method in ("PUT", "DELETE", "MKCOL"):
        refused = exchange(nginx.port, method, "/200", b"", headers)
        assert refused.status == 401
        assert refused.headers["WWW-Authenticate"].startswith("Basic ")
        assert refused.body == (
            b"writing needs a user and a password; send Authorization: Basic"
            b" <user:password in base64>\n"
        )
    url = f"{nginx.url}/200"
    for password, status in (("guess", 401), ("secret", 200)):
        answer = requests.put(url, data=b"x", auth=("me", password), timeout=10)
        assert answer.status_code == status
    assert "Authorization" not in stub.received[-1].headers
    allowing = nginx_with(mode | users | {name: text})
    assert exchange(allowing.port, "PUT", "/200", b"").status == 200


@contextmanager
def encrypted(folder: Path, files: Mapping[str, str]) -> Iterator[tuple[Nginx, int]]:
    """Run nginx with tls.conf, without an instance; also yield its port for TLS."""
    port = pick_port()
    tls = (SOURCE / "volcache/tls.conf").read_text()
    tls = tls.replace("listen 443", f"listen 127.0.0.1:{port}")
    nginx = Nginx(folder, ["127.0.0.1:1"], files={**files, "volcache/tls.conf": tls})
    plain = (nginx.folder / "volcache/listen.conf").read_text()
    nginx.write("volcache/listen.conf", f"include volcache/tls.conf;\n{plain}")
    make_certificate(nginx.folder / "volcache")
    with nginx:
        yield nginx, port


def test_connection_with_tls_conf_offers_http2(tmp_path: Path) -> None:
    """With tls.conf, nginx answers over TLS 1.2 or 1.3."""
    with encrypted(tmp_path / "nginx", {}) as (nginx, port):
        certificate = nginx.folder / "volcache" / "server.crt"
        context = ssl.create_default_context(cafile=str(certificate))
        context.set_alpn_protocols(["h2", "http/1.1"])
        with context.wrap_socket(
            socket.create_connection(("127.0.0.1", port), 10),
            server_hostname="127.0.0.1",
        ) as connection:
            assert connection.selected_alpn_protocol() == "h2"
            assert connection.version() in {"TLSv1.2", "TLSv1.3"}
        reply = exchange(port, "GET", "/key")
        assert reply.status == 400
        assert reply.body == b"this port needs TLS; use https://\n"


def test_errors_over_http2_are_one_line(mode: dict[str, str], tmp_path: Path) -> None:
    """As over HTTP/1.1."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate((64 << 20) + 1)
    large = ["--data-binary", f"@{tmp_path}/large"]
    cases = [
        ("PUT", "/a", large, 413, "at most 64m is allowed"),
        ("GET", "/a", large, 413, "at most 64m is allowed"),
        ("POST", "/a", [], 405, "the method is not allowed"),
        ("GET", "/-/../a", [], 403, "/-/ is not reachable"),
        ("GET", "/-/healthy", [], 403, "/-/ is not reachable"),
        ("GET", "/", ["--request-target", "*"], 400, "RFC 9112"),
        ("GET", "/a", [], 404, "does not answer: a miss"),
        ("DELETE", "/a", [], 503, "does not answer"),
    ]
    command = ["curl", "--silent", "--insecure", "--http2", "--path-as-is"]
    command += ["--write-out", "%{http_version} %{http_code}", "--request"]
    with encrypted(tmp_path / "nginx", mode) as (_, port):
        for method, path, options, status, text in cases:
            url = f"https://127.0.0.1:{port}{path}"
            done = subprocess.run(
                [*command, method, *options, url],
                capture_output=True,
                text=True,
                check=True,
                timeout=30,
            )
            line, shown = done.stdout.splitlines()
            assert shown == f"2 {status}", (method, path)
            assert text in line, (method, path)


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
