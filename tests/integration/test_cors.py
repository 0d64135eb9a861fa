"""CORS: the headers on the wire, and what they allow pages in a browser."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

import pytest

from support.browser import Tab, a_browser
from support.gate import NEEDS_GATE
from support.process import ServerProcess, Servers
from support.wire import Talk, exchange, request_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from email.message import Message
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.sampled(8), pytest.mark.integration]

SMALL: Final = {
    "volume_size": 8 << 20,
    "volume_num": 2,
    "sync_mode": "none",
    "max_value_size": 1 << 20,
}
MAPS: Final = "https://maps.example.org"
OTHER: Final = "http://[::1]:8000"
PREFLIGHT: Final = "Access-Control-Request-Method: PUT"
ALLOW_ORIGIN: Final = "Access-Control-Allow-Origin"


def cors_of(headers: Message) -> dict[str, str]:
    """Return the headers that CORS adds; none of them is there twice."""
    found = {
        name: value
        for name, value in headers.items()
        if name.startswith("Access-Control-") or name == "Vary"
    }
    assert all(len(headers.get_all(name, [])) == 1 for name in found)
    return found


@pytest.fixture(scope="module", params=["plain", "logged", "token"])
def listed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[int]:
    """Start an instance with two origins: alone, with an access log, with a token."""
    folder = tmp_path_factory.mktemp("listed")
    settings: dict[str, object] = {**SMALL, "cors_origins": f"{MAPS}, {OTHER}"}
    if request.param == "logged":
        settings["log_access"] = folder / "access.log"
    if request.param == "token":
        settings["read_token"] = "secret"  # noqa: S105
    with ServerProcess(folder / "data", settings=settings) as server:
        assert exchange(server.port, "PUT", "/key", b"0123456789").status == 200
        yield server.port


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start an instance that is open to pages of all origins."""
    settings = {**SMALL, "cors_origins": "*"}
    with ServerProcess(tmp_path_factory.mktemp("any"), settings=settings) as server:
        assert exchange(server.port, "PUT", "/key", b"0123456789").status == 200
        yield server.port


# Requests and the status without a token; those with 0 depend on the settings.
REQUESTS: Final = (
    ("GET", "/key", None, ""),
    ("GET", "/none", None, ""),
    ("HEAD", "/key", None, ""),
    ("HEAD", "/none", None, ""),
    ("GET", "/key", None, "Range: bytes=1-2"),
    ("GET", "/key", None, "Range: bytes=99-"),
    ("GET", "/key", None, "If-None-Match: *"),
    ("GET", "/key", None, 'If-Match: "0-0"'),
    ("GET", "/key", None, "Service-Worker: script"),
    ("GET", "/%01", None, ""),
    ("GET", "/", None, ""),
    ("PUT", "/other", b"value", ""),
    ("PUT", "/key", b"value", "If-None-Match: *"),
    ("PUT", "/large", b"x" * ((1 << 20) + 1), ""),
    ("PUT", "/other", b"value", "Content-Range: bytes 0-1/2"),
    ("DELETE", "/none", None, ""),
    ("POST", "/key", b"", ""),
    ("OPTIONS", "/key", None, ""),
    ("PROPFIND", "/key", None, ""),
)


@pytest.mark.parametrize(
    ("method", "path", "body", "header"),
    REQUESTS,
    ids=[f"{method} {path} {header}" for method, path, _, header in REQUESTS],
)
def test_every_answer_names_the_origin(
    listed: int, method: str, path: str, body: bytes | None, header: str
) -> None:
    """If it is in the list; errors, misses and what the gate answers are no exception."""
    for origin in (MAPS, OTHER):
        reply = exchange(listed, method, path, body, f"Origin: {origin}\n{header}")
        found = cors_of(reply.headers)
        assert found.keys() == {ALLOW_ORIGIN, "Access-Control-Expose-Headers", "Vary"}
        assert (found[ALLOW_ORIGIN], found["Vary"]) == (origin, "Origin")
        exposed = found["Access-Control-Expose-Headers"].split(", ")
        assert {"X-Cache", "X-Position", "ETag", "Content-Range"} <= {*exposed}
    for origin in ("", "Origin: https://evil.example\n", "Origin: null\n"):
        reply = exchange(listed, method, path, body, f"{origin}{header}")
        assert cors_of(reply.headers) == {"Vary": "Origin"}


@pytest.mark.parametrize(
    "origin",
    [
        "https://maps.example.org.evil.example",
        "https://maps.example.or",
        "HTTPS://MAPS.EXAMPLE.ORG",
        "https://maps.example.org:443",
        "https://maps.example.org/",
        "http://maps.example.org",
        "*",
        "",
        f"{MAPS}, {OTHER}",
        f"{MAPS}\nOrigin: {OTHER}",
    ],
)
def test_other_origins_are_not_named(listed: int, origin: str) -> None:
    """They are equal as text or not at all."""
    for path in ("/key", "/none"):
        reply = exchange(listed, "GET", path, None, f"Origin: {origin}")
        assert cors_of(reply.headers) == {"Vary": "Origin"}


def test_same_answers_with_and_without_the_gate(listed: int) -> None:
    """A header that makes no difference but that Python answers."""
    plain = f"Origin: {MAPS}"
    replies = [
        exchange(listed, "GET", "/key", None, header)
        for header in (plain, f"{plain}\nIf-Range: x")
    ]
    lists = [
        sorted(
            f"{name}: {value}"
            for name, value in reply.headers.items()
            if name not in {"Date", "Last-Modified"}
        )
        for reply in replies
    ]
    assert lists[0] == lists[1]


def test_preflight_allows_all_that_a_client_may_send(listed: int) -> None:
    """Without a token; a page that is not in the list is told nothing."""
    asked = f"{PREFLIGHT}\nAccess-Control-Request-Headers: range,authorization"
    reply = exchange(listed, "OPTIONS", "/key", None, f"Origin: {MAPS}\n{asked}")
    found = cors_of(reply.headers)
    assert reply.status == 200
    assert found[ALLOW_ORIGIN] == MAPS
    assert {"GET", "PUT", "DELETE"} <= set(
        found["Access-Control-Allow-Methods"].split(", ")
    )
    headers = found["Access-Control-Allow-Headers"].split(", ")
    assert {"Authorization", "Range", "If-None-Match", "Content-Type"} <= {*headers}
    assert int(found["Access-Control-Max-Age"]) > 0
    assert "Access-Control-Allow-Private-Network" not in found
    assert "Access-Control-Allow-Credentials" not in found
    local = f"{asked}\nAccess-Control-Request-Private-Network: true"
    reply = exchange(listed, "OPTIONS", "/key", None, f"Origin: {MAPS}\n{local}")
    assert reply.headers["Access-Control-Allow-Private-Network"] == "true"
    evil = exchange(listed, "OPTIONS", "/key", None, f"Origin: http://evil\n{local}")
    assert evil.status == 200
    assert cors_of(evil.headers) == {"Vary": "Origin"}


@NEEDS_GATE
def test_requests_on_one_connection_have_their_own_headers(listed: int) -> None:
    """Also those sent without waiting, and after a refusal."""
    origins = [MAPS, "", OTHER, "http://evil", MAPS, ""]
    parts = [
        request_bytes("GET", "/key", None, f"Origin: {origin}" if origin else "")
        for origin in origins
    ]
    with Talk(listed) as talk:
        talk.send(b"".join(parts))
        found = [cors_of(talk.read().headers).get(ALLOW_ORIGIN) for _ in origins]
    assert found == [MAPS, None, OTHER, None, MAPS, None]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/-/", None),
        ("GET", "/-/stats", None),
        ("GET", "/-/metrics", None),
        ("GET", "/-/nothing", None),
        ("OPTIONS", "/-/flush", None),
        ("POST", "/-/flush", b""),
        ("PUT", "/-/key", b"value"),
        ("PUT", "/%2d/key", b"x" * ((1 << 20) + 1)),
    ],
)
def test_paths_of_the_operator_have_no_such_headers(
    listed: int, public: int, method: str, path: str, body: bytes | None
) -> None:
    """Not even in a preflight, or when the gate refuses."""
    for port in (listed, public):
        header = f"Origin: {MAPS}\n{PREFLIGHT}"
        reply = exchange(port, method, path, body, header)
        assert reply.status != 500
        assert {*cors_of(reply.headers)} <= {"Vary"}
        assert "Origin" not in reply.headers.get("Vary", "")


@pytest.mark.parametrize("origin", ["", f"Origin: {MAPS}", "Origin: null"])
def test_star_is_the_same_for_all_requests(public: int, origin: str) -> None:
    """So that caches between can give one answer to all pages."""
    for method, path, body, header in REQUESTS:
        reply = exchange(public, method, path, body, f"{origin}\n{header}".strip())
        found = cors_of(reply.headers)
        assert found.keys() == {ALLOW_ORIGIN, "Access-Control-Expose-Headers"}
        assert found[ALLOW_ORIGIN] == "*"


def test_without_origins_there_are_no_headers(servers: Servers) -> None:
    """Whatever a page sends."""
    with servers.server(SMALL) as server:
        assert exchange(server.port, "PUT", "/key", b"0123456789").status == 200
        for method, path, body, header in REQUESTS:
            sent = f"Origin: {MAPS}\n{PREFLIGHT}\n{header}".strip()
            assert not cors_of(exchange(server.port, method, path, body, sent).headers)


# --- In a browser --------------------------------------------------------------------


class _Page(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        """Send it."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def a_site() -> Iterator[str]:
    """Serve an empty page; yield its origin."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for all tests of this module."""
    with a_browser() as running:
        yield running


# Returns what a page sees of each answer: status, some headers, text; or an error.
SCRIPT: Final = """
async ([url, requests]) => {
  const seen = [];
  for (const [method, path, body, headers] of requests) {
    try {
      const answer = await fetch(url + path, {method, body, headers});
      const names = ["x-cache", "content-range", "etag", "x-position"];
      seen.push([answer.status, names.filter(n => answer.headers.get(n) !== null),
                 await answer.text()]);
    } catch (error) {
      seen.push([0, [], error.name]);
    }
  }
  return seen;
}
"""
STEPS: Final = [
    # With a condition, Chromium adds `Cache-Control: max-age=0`.
    ("PUT", "/tile", "0123456789", {"Content-Type": "image/x", "If-None-Match": "*"}),
    ("GET", "/tile", None, {}),
    ("GET", "/tile", None, {"Range": "bytes=2-4"}),
    ("GET", "/tile", None, {"Range": "bytes=99-"}),
    ("PUT", "/tile", "again", {"If-None-Match": "*"}),
    ("PUT", "/large", "x" * ((1 << 20) + 1), {}),
    ("DELETE", "/tile", None, {}),
    ("GET", "/tile", None, {}),
]


def seen_by_a_page(
    browser: Browser, site: str, url: str, headers: dict[str, str] | None = None
) -> list[Any]:
    """Let a page send requests; return what it sees."""
    tab = Tab(browser)
    tab.page.goto(site)
    steps = [
        [method, path, body, {**more, **(headers or {})}]
        for method, path, body, more in STEPS
    ]
    seen: list[Any] = tab.page.evaluate(SCRIPT, [url, steps])
    tab.page.close()
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("token", ["", "secret"])
def test_page_of_another_origin_reads_and_writes(
    browser: Browser, tmp_path: Path, token: str
) -> None:
    """With Range, and with the headers and the statuses that it needs."""
    with a_site() as site, a_site() as stranger:
        settings = {**SMALL, "cors_origins": site, "read_token": token}
        settings["write_token"] = token
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with ServerProcess(tmp_path, settings=settings) as server:
            seen = seen_by_a_page(browser, site, server.url, headers)
            assert [(status, text) for status, _, text in seen[:3]] == [
                (200, ""),
                (200, "0123456789"),
                (206, "234"),
            ]
            assert seen[1][1] == ["x-cache", "etag", "x-position"]
            assert seen[2][1] == ["x-cache", "content-range", "etag", "x-position"]
            assert [step[0] for step in seen[3:]] == [416, 412, 413, 200, 404]
            if token:
                refused = seen_by_a_page(browser, site, server.url)
                assert {step[0] for step in refused} == {401, 413}
            blocked = seen_by_a_page(browser, stranger, server.url, headers)
            assert blocked == [[0, [], "TypeError"]] * len(STEPS)
            assert exchange(server.port, "GET", "/tile").status != 200


@pytest.mark.slow
def test_page_of_another_origin_is_blocked_by_default(
    browser: Browser, servers: Servers
) -> None:
    """It sees no answer, and its PUT and DELETE are not sent."""
    with a_site() as site, servers.server(SMALL) as server:
        assert exchange(server.port, "PUT", "/tile", b"kept").status == 200
        blocked = seen_by_a_page(browser, site, server.url)
        assert blocked == [[0, [], "TypeError"]] * len(STEPS)
        assert exchange(server.port, "GET", "/tile").body == b"kept"


@pytest.mark.slow
def test_stored_script_does_not_become_a_service_worker(
    browser: Browser, servers: Servers
) -> None:
    """Neither from a stored page nor from one of the instance itself."""
    with servers.server(SMALL) as server:
        script = "Content-Type: text/javascript"
        assert exchange(server.port, "PUT", "/sw.js", b"1", script).status == 200
        page = "Content-Type: text/html"
        assert exchange(server.port, "PUT", "/page", b"<p>", page).status == 200
        register = """async () => {
          try { await navigator.serviceWorker.register('/sw.js'); }
          catch (error) { return error.message; }
        }"""
        tab = Tab(browser)
        for path, reason in (("/page", "sandboxed"), ("/-/healthy", "403")):
            tab.page.goto(server.url + path)
            assert reason in str(tab.page.evaluate(register))
