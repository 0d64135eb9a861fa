"""The operator's page: its policy fits it, and an installed package has it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from base64 import b64encode
from hashlib import sha256
from pathlib import Path

import pytest

from volcache.http.admin import send_page

ROOT = Path(__file__).parents[3]


def answer(*, is_head: bool = False) -> tuple[str, dict[str, str], bytes]:
    """Ask for the page: status, headers, body."""
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], *_: object) -> None:
        started.append((status, headers))

    body = b"".join(send_page(start_response, is_head=is_head))  # type: ignore[arg-type]
    ((status, headers),) = started
    return status, dict(headers), body


def test_head_has_the_headers_without_the_body() -> None:
    """A HEAD tells the length of what a GET gives."""
    status, headers, body = answer()
    assert answer(is_head=True) == (status, headers, b"")
    assert (status, headers["Content-Length"]) == ("200 OK", str(len(body)))
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("tag", ["script", "style"])
def test_policy_allows_what_stands_in_the_page_and_no_more(tag: str) -> None:
    """The only script and the only style are named by their digests."""
    _, headers, body = answer()
    (text,) = re.findall(f"<{tag}>(.*?)</{tag}>".encode(), body, re.DOTALL)
    digest = b64encode(sha256(text).digest()).decode()
    policy = headers["Content-Security-Policy"].split("; ")
    assert f"{tag}-src 'sha256-{digest}'" in policy
    assert {
        "default-src 'none'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    } <= set(policy)
    assert "unsafe" not in headers["Content-Security-Policy"]


def test_page_needs_nothing_from_outside_and_no_inline_style() -> None:
    """No address, no style attribute, no handler attribute, no HTML made of text."""
    _, _, body = answer()
    text = body.decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|\sstyle=|\son\w+=\"|@import|innerHTML", text)


@pytest.mark.slow
def test_wheel_holds_the_page(tmp_path: Path) -> None:
    """An installed package serves it, not only a checkout."""
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns("*.egg-info", "__pycache__")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignore)
    for name in ("pyproject.toml", "requirements.txt", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, "-w", tmp_path, source],
        check=True,
        timeout=60,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert "volcache/http/page.html" in zipfile.ZipFile(wheel).namelist()
