"""The page `/-/` of a real instance, in a browser."""

from __future__ import annotations

from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import requests
from playwright.sync_api import Browser

from support.browser import Tab
from support.process import ServerProcess

pytestmark = [pytest.mark.integration, pytest.mark.slow]

KEY = "x/<script>alert(1)</script><img/src=x/onerror=alert(1)>"
MARKUP = quote(KEY)


def test_page_follows_an_instance_over_load_and_restart(
    browser: Browser, tmp_path: Path
) -> None:
    """Numbers change, a key with markup stays text, a restart is reported; no errors."""
    settings = {"volume_size": 8 << 20, "volume_num": 4}
    with ServerProcess(tmp_path, settings=settings) as server:
        tab = Tab(browser)
        tab.page.goto(f"{server.url}/-/")
        tab.wait_for("hit-sub", "no reads yet")
        assert tab.text("verdict").startswith("OK.")
        with requests.Session() as session:
            session.put(f"{server.url}/{MARKUP}", data=b"value", timeout=5)
        with closing(HTTPConnection(urlsplit(server.url).netloc, timeout=5)) as client:
            for _ in range(2000):
                client.request("GET", f"/{MARKUP}")
                client.getresponse().read()
        tab.wait_for("hit-big", "100.0 %")
        tab.wait_for("keys", KEY)
        assert tab.page.locator("#keys script, #keys img").count() == 0
        assert tab.complaints == []
        server.kill()
        tab.wait_for("link", "Not reachable")
        server.restart()
        tab.wait_for("link", "Live")
        assert "the instance was restarted" in tab.text("verdict")
