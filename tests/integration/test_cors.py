"""CORS: the headers on the wire, and what they allow pages in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser

from support.browser import Tab
from support.process import MIB, ServerProcess, Servers
from support.scripted_server import ScriptedServer, answering, value
from support.wire import Talk, exchange, request_bytes

pytestmark = [pytest.mark.sampled(8), pytest.mark.integration]

MAPS: Final = "https://maps.example.org"
OTHER: Final = "http://[::1]:8000"
PREFLIGHT: Final = "Access-Control-Request-Method: PUT"
ALLOW_ORIGIN: Final = "Access-Control-Allow-Origin"
EXPOSE: Final = "Access-Control-Expose-Headers"


def cors_of(headers: Message) -> dict[str, str]:
    """Return the headers that CORS adds; none of them is there twice."""
    found = {
        name: value
        for name, value in headers.items()
        if name.startswith("Access-Control-") or name == "Vary"
    }
    assert all(len(headers.get_all(name, [])) == 1 for name in found)
    return found


def with_key(server: ServerProcess) -> int:
    """Store `/key`; return the port."""
    assert exchange(server.port, "PUT", "/key", b"0123456789").status == 200
    return server.port


@pytest.fixture(params=[{}, {"read_token": "secret", "log_access": "access.log"}])
def listed(
    request: pytest.FixtureRequest, servers: Servers, tmp_path: Path
) -> Iterator[int]:
    """Return the port of an instance with two origins: alone, or with more to do."""
    more = dict(request.param)
    if more:
        more["log_access"] = tmp_path / more["log_access"]
    with servers.server(cors_origins=f"{MAPS}, {OTHER}", **more) as server:
        yield with_key(server)


REQUESTS: Final = (
    *(("GET", "/key", None, ""), ("GET", "/none", None, "")),
    *(("HEAD", "/key", None, ""), ("GET", "/key", None, "Range: bytes=1-2")),
    ("GET", "/key", None, "Range: bytes=99-"),
    ("GET", "/key", None, "If-None-Match: *"),
    *(("GET", "/key", None, "Service-Worker: script"), ("GET", "/%01", None, "")),
    *(("PUT", "/other", b"value", ""), ("PUT", "/key", b"value", "If-None-Match: *")),
    *(("PUT", "/large", b"x" * (MIB + 1), ""), ("DELETE", "/none", None, "")),
    *(("POST", "/key", b"", ""), ("OPTIONS", "/key", None, "")),
    ("PROPFIND", "/key", None, ""),
)


def cors_of_all(port: int, origin: str) -> Iterator[dict[str, str]]:
    """Send all kinds of requests; yield the headers that CORS adds."""
    for method, path, body, header in REQUESTS:
        headers = f"{origin}\n{header}".strip()
        yield cors_of(exchange(port, method, path, body, headers).headers)


def test_answer_to_a_listed_origin_names_it(listed: int) -> None:
    """If it is in the list; errors, misses and what C answers are no exception."""
    for origin in (MAPS, OTHER):
        for found in cors_of_all(listed, f"Origin: {origin}"):
            exposed = found.pop(EXPOSE).split(", ")
            assert {"X-Cache", "X-Position", "ETag", "Content-Range"} <= {*exposed}
            assert found == {ALLOW_ORIGIN: origin, "Vary": "Origin"}
    for header in ("", "Origin: https://evil.example", "Origin: null"):
        for found in cors_of_all(listed, header):
            assert found == {"Vary": "Origin"}


def test_answer_to_an_unlisted_origin_names_none(listed: int) -> None:
    """They are equal as text or not at all."""
    for origin in (
        *(f"{MAPS}.evil.example", MAPS[:-1], MAPS.upper(), f"{MAPS}:443", f"{MAPS}/"),
        *(MAPS.replace("https", "http"), "*", "", f"{MAPS}, {OTHER}"),
        f"{MAPS}\nOrigin: {OTHER}",
    ):
        for path in ("/key", "/none"):
            reply = exchange(listed, "GET", path, None, f"Origin: {origin}")
            assert cors_of(reply.headers) == {"Vary": "Origin"}, origin


def test_preflight_allows_all_that_a_client_may_send(listed: int) -> None:
    """Without a token; a page that is not in the list is told nothing."""
    local = "Access-Control-Request-Private-Network: true"
    asked = f"{PREFLIGHT}\nAccess-Control-Request-Headers: range,authorization"
    for more in ("", f"\n{local}"):
        header = f"Origin: {MAPS}\n{asked}{more}"
        reply = exchange(listed, "OPTIONS", "/key", None, header)
        found = cors_of(reply.headers)
        assert (reply.status, found[ALLOW_ORIGIN]) == (200, MAPS)
        for name, words in (
            ("Methods", {"GET", "PUT", "DELETE"}),
            ("Headers", {"Authorization", "Range", "If-None-Match", "Content-Type"}),
        ):
            assert words <= {*found[f"Access-Control-Allow-{name}"].split(", ")}
        assert int(found["Access-Control-Max-Age"]) > 0
        private = found.get("Access-Control-Allow-Private-Network")
        assert private == ("true" if more else None)
        assert "Access-Control-Allow-Credentials" not in found
    evil = exchange(listed, "OPTIONS", "/key", None, f"Origin: http://evil\n{asked}")
    assert (evil.status, cors_of(evil.headers)) == (200, {"Vary": "Origin"})


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


@pytest.mark.parametrize("origins", [MAPS, "*", ""])
def test_paths_of_the_operator_have_no_such_headers(
    servers: Servers, origins: str
) -> None:
    """Not even in a preflight, or when C refuses."""
    with servers.server(cors_origins=origins) as server:
        for method, path, body in (
            *(("GET", "/-/", None), ("GET", "/-/metrics", None)),
            *(("GET", "/-/nothing", None), ("OPTIONS", "/-/flush", None)),
            *(("POST", "/-/flush", b""), ("PUT", "/-/key", b"value")),
            ("PUT", "/%2d/key", b"x" * (MIB + 1)),
        ):
            header = f"Origin: {MAPS}\n{PREFLIGHT}"
            reply = exchange(server.port, method, path, body, header)
            assert reply.status != 500
            assert {*cors_of(reply.headers)} <= {"Vary"}
            assert "Origin" not in reply.headers.get("Vary", "")


@pytest.mark.parametrize(
    ("origins", "names"), [("*", {ALLOW_ORIGIN, EXPOSE}), ("", set())]
)
def test_star_and_none_are_the_same_for_all_requests(
    servers: Servers, origins: str, names: set[str]
) -> None:
    """So that caches between can give one answer to all pages."""
    with servers.server(cors_origins=origins) as server:
        with_key(server)
        for origin in ("", f"Origin: {MAPS}", "Origin: null"):
            for found in cors_of_all(server.port, origin):
                assert found.keys() == names
                assert found.get(ALLOW_ORIGIN, "*") == "*"


# --- In a browser --------------------------------------------------------------------


def a_site() -> ScriptedServer:
    """Return a server of an empty page."""
    return ScriptedServer(
        answering(lambda _: value(b"", b"Content-Type: text/html\r\n"))
    )


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
    ("PUT", "/large", "x" * (MIB + 1), {}),
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
    browser: Browser, servers: Servers, token: str
) -> None:
    """With Range, and with the headers and the statuses that it needs."""
    with a_site() as one, a_site() as another:
        site, stranger = (f"http://{server.name}" for server in (one, another))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        with servers.server(
            cors_origins=site, read_token=token, write_token=token
        ) as server:
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
