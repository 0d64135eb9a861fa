"""The HTTP server of the dashboard: paths, names, wrong requests and slow clients."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

import pytest
import requests

from support.ports import pick_port
from support.stats_server import StatsServer, empty_stats
from support.tables import each_row
from support.waiting import wait_until
from volcache.errors import ConfigError, ListenError
from volcache.fleet.dashboard import (
    CONNECTIONS_MAX,
    Dashboard,
    DashboardServer,
    parse_listen,
    run,
)
from volcache.fleet.poller import Poller

if TYPE_CHECKING:
    from collections.abc import Iterator

HOST = "127.0.0.1:8090"
NAME = "127.0.0.1:1"


@pytest.fixture
def dashboard() -> Dashboard:
    """Return a dashboard of one instance that was not asked yet."""
    return Dashboard(Poller([NAME]), hosts=["Ops.example"])


def ask(
    dashboard: Dashboard, path: str, *, method: str = "GET", host: str = HOST
) -> str:
    """Return status and first line of an answer."""
    reply = dashboard.respond(method, path, host)
    return f"{reply.status} {reply.body.decode().partition(chr(10))[0]}"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8090", 200),
        ("[::1]:8090", 200),
        ("localhost", 200),
        ("ops.example:8090", 200),
        ("", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("ops.example:8090:1", 421),
    ],
)
def test_names_of_other_sites_are_refused(
    dashboard: Dashboard, host: str, status: int
) -> None:
    """A site could let its name point here; only /healthy says nothing."""
    for path in (
        "/",
        "/api/cluster",
        f"/instances/{NAME}/",
        f"/instances/{NAME}/stats",
    ):
        found = dashboard.respond("GET", path, host).status
        assert found == status or (status == 200 and found == 502)
    assert ask(dashboard, "/healthy", host=host) == "200 ok"


def test_page_allows_its_own_script_only(dashboard: Dashboard) -> None:
    """By its digest; data is not a page at all."""
    policy = dict(dashboard.respond("GET", "/", HOST).headers)[
        "Content-Security-Policy"
    ]
    assert "default-src 'none'" in policy
    assert "'sha256-" in policy
    assert "unsafe" not in policy
    for path in ("/api/cluster", "/nothing"):
        headers = dict(dashboard.respond("GET", path, HOST).headers)
        assert headers["Content-Security-Policy"] == "default-src 'none'; sandbox"
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("POST", "/", "405 method POST is not allowed; allowed are GET, HEAD"),
        ("GET", "/nothing", "404 no such path; the paths are /, /api/cluster, "),
        ("GET", "/api/cluster?since=x", '400 since="x" is not a time; allowed are '),
        ("GET", "/api/cluster?since=nan", '400 since="nan" is not a time; '),
        ("GET", "/instances/", '404 no instance is called "";'),
        ("GET", "/instances/a%0d%0ab/", '404 no instance is called "a\\x0D\\x0Ab";'),
        ("GET", "/instances/127.0.0.1:1/x", "404 no such path; those of an instance "),
        ("GET", "/instances/127.0.0.1:1", "301 127.0.0.1%3A1/"),
        ("GET", "/instances/127.0.0.1%3A1/", "200 <!doctype html>"),
    ],
)
def test_wrong_requests_are_one_line(
    dashboard: Dashboard, method: str, path: str, answer: str
) -> None:
    """Which says what is allowed."""
    assert ask(dashboard, path, method=method).startswith(answer)


@contextmanager
def served(*sources: str, request_seconds: float = 20.0) -> Iterator[str]:
    """Serve the dashboard of these instances; yield its URL."""
    poller = Poller(sources, interval=0.2, timeout=1.0)
    server = DashboardServer(
        Dashboard(poller), "127.0.0.1", 0, request_seconds=request_seconds
    )
    is_over = threading.Event()
    thread = threading.Thread(target=run, args=[poller, server, is_over.wait])
    thread.start()
    try:
        yield server.url
    finally:
        is_over.set()
        thread.join()


def test_no_thread_serves_after_the_end() -> None:
    """A loop on a closed socket would take a processor until the process ends."""
    before = set(threading.enumerate())
    with served(f"127.0.0.1:{pick_port()}") as url:
        assert requests.get(f"{url}healthy", timeout=5).text == "ok\n"
        assert "serve" in {one.name for one in set(threading.enumerate()) - before}
    assert "serve" not in {one.name for one in set(threading.enumerate()) - before}


@pytest.mark.slow
def test_figures_of_an_instance_are_asked_for_once_for_all() -> None:
    """With or without its volumes; an error is a 502 with the reason."""
    with (
        StatsServer(empty_stats()) as one,
        served(one.url, f"127.0.0.1:{pick_port()}") as url,
    ):
        rows = requests.get(f"{url}api/cluster", timeout=5).json()["instances"]
        names = {row["url"]: row["name"] for row in rows}
        path = f"{url}instances/{names[one.url]}/stats"
        before = one.asked.count("/-/stats")
        found = requests.get(path, timeout=5)
        for _ in range(20):
            found = requests.get(path, timeout=5)
            assert found.json()["store"]["mount_point"] == "data"
        assert 1 <= one.asked.count("/-/stats") - before < 20
        assert found.json()["store"]["volumes"]
        short = requests.get(path, params={"volumes": "0"}, timeout=5)
        assert short.json()["store"]["volumes"] == []
        assert short.headers["Content-Type"] == "application/json; charset=utf-8"
        (other,) = [name for name in names.values() if name != names[one.url]]
        for what in ("stats", "metrics"):
            found = requests.get(f"{url}instances/{other}/{what}", timeout=5)
            assert (found.status_code, found.text) == (502, "Connection refused\n")
        one.answer = (200, b"<script>")
        wait_until(
            lambda: requests.get(path, timeout=5).status_code == 502, "the wrong answer"
        )
        text = requests.get(path, timeout=5).text
        assert text == "the response is not from volcache\n"


@pytest.mark.slow
def test_clients_that_do_nothing_do_not_keep_others_out() -> None:
    """More idle connections than are served at a time; the number of threads is limited."""
    with ExitStack() as stack:
        url = stack.enter_context(served(NAME))
        threads = threading.active_count()
        address = ("127.0.0.1", int(url.rpartition(":")[2].strip("/")))
        for number in range(2 * CONNECTIONS_MAX):
            client = stack.enter_context(closing(socket.create_connection(address)))
            if number % 2:
                client.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert requests.get(f"{url}healthy", timeout=30).text == "ok\n"
        assert threading.active_count() <= threads + CONNECTIONS_MAX + 1


@pytest.mark.slow
def test_client_that_sends_bytes_slowly_is_closed() -> None:
    """Its time-out does not begin again with each byte."""
    with ExitStack() as stack:
        url = stack.enter_context(served(NAME, request_seconds=0.5))
        address = ("127.0.0.1", int(url.rpartition(":")[2].strip("/")))
        client = stack.enter_context(closing(socket.create_connection(address)))
        client.settimeout(0.05)

        def is_closed() -> bool:
            try:
                client.sendall(b"G")
                return client.recv(100) == b""
            except TimeoutError:
                return False
            except OSError:
                return True

        wait_until(is_closed, "the end of the connection")


@pytest.mark.slow
@each_row(
    "request_",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET\r\n\r\n",
        b"\0\xff\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"BREW / HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_request_is_answered_with_text(request_: bytes) -> None:
    """Not with a page that repeats it."""
    with served(NAME) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2].strip("/")))
        with closing(socket.create_connection(address, timeout=20)) as client:
            client.sendall(request_)
            answer = client.recv(1 << 16)
        assert b"<html" not in answer.lower()
        assert requests.get(f"{url}healthy", timeout=5).text == "ok\n"


@each_row(
    ("text", "address"),
    [
        ("127.0.0.1:8090", ("127.0.0.1", 8090)),
        ("[::1]:0", ("::1", 0)),
        ("cache-1:80", ("cache-1", 80)),
    ],
)
def test_address_to_listen_on_is_parsed(text: str, address: tuple[str, int]) -> None:
    """An IPv6 address is in brackets."""
    assert parse_listen(text) == address


@each_row(
    "text",
    ["8090", ":8090", "::1:80", "h:65536", "h:-1", "h:\N{SUPERSCRIPT TWO}", "[h]:1"],
)
def test_wrong_address_to_listen_on_is_refused(text: str) -> None:
    """With what is allowed."""
    with pytest.raises(ConfigError, match="allowed"):
        parse_listen(text)


def test_port_in_use_is_one_line(dashboard: Dashboard) -> None:
    """With the remedy."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ListenError) as caught:
            DashboardServer(dashboard, "127.0.0.1", port)
    assert str(caught.value) == (
        f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another"
        " address with --listen ADDRESS:PORT"
    )


def test_overview_is_json_for_any_browser(dashboard: Dashboard) -> None:
    """Also before the first poll."""
    found = json.loads(dashboard.respond("GET", "/api/cluster", HOST).body)
    assert found["totals"]["unknown"] == 1
    assert found["instances"][0] | {"points": []} == found["instances"][0]
