"""A headless browser whose tabs collect errors and warnings."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from playwright.sync_api import Browser, Page, sync_playwright

PROGRAM = "chromium-headless-shell"
Scheme = Literal["light", "dark"]
_ODD = ("NaN", "undefined", "null", "Infinity", "[object")


@contextmanager
def a_browser() -> Iterator[Browser]:
    """Start Debian's chromium, and stop it at the end."""
    program = shutil.which(PROGRAM)
    assert program, f"{PROGRAM} is missing; tools/setup.sh test installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program)
        yield browser
        browser.close()


class Tab:
    """One tab; `complaints` has every error and warning of its page."""

    def __init__(
        self,
        browser: Browser,
        *,
        width: int = 1280,
        scheme: Scheme = "light",
    ) -> None:
        """Open an empty tab."""
        self.complaints: list[str] = []
        self.page: Page = browser.new_page(
            viewport={"width": width, "height": 800}, color_scheme=scheme
        )
        self.page.set_default_timeout(60_000)
        self.page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text)
                if message.type in {"error", "warning"}
                else None
            ),
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def text(self, identity: str) -> str:
        """Return the text of an element."""
        return self.page.inner_text(f"#{identity}")

    def wait_for(self, identity: str, words: str, *, is_hasty: bool = True) -> None:
        """
        Return when an element contains some words.

        If `is_hasty`, the page polls at once, as it does when its tab becomes visible;
        otherwise at its next interval.
        """
        if is_hasty:
            self.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        self.page.wait_for_function(
            "([id, words]) => document.getElementById(id).textContent.includes(words)",
            arg=[identity, words],
        )

    def odd_words(self) -> list[str]:
        """Return what a page shows where a number is missing."""
        shown = self.page.content().partition("<script>")[0]
        return [word for word in _ODD if word in shown]

    def is_scrolled_sideways(self) -> bool:
        """Whether something is wider than the window."""
        root = "document.documentElement"
        return bool(self.page.evaluate(f"{root}.scrollWidth > {root}.clientWidth"))
