"""CORS in a browser; tests/behaviour has the headers."""

from __future__ import annotations

from typing import Any, Final

import pytest
from playwright.sync_api import Browser

from support.browser import Tab
from support.process import MIB, Servers
from support.scripted_server import ScriptedServer, answering, value
from support.wire import exchange

pytestmark = [pytest.mark.sampled(8), pytest.mark.integration]


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
