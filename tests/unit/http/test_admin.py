"""admin.py: the paths under `/-/` and the page."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.fake_cache import FakeCache
from support.instances import operator_of, watch
from support.tables import each_row
from support.wsgi_client import Answer, Client, assert_error
from volcache.errors import StoreIOError

if TYPE_CHECKING:
    from volcache.store import Store

ROOT = Path(__file__).parents[3]
TOKEN = "secret"  # noqa: S105


def test_healthy_does_not_use_the_cache(client: Client) -> None:
    """200 and one line."""
    client.cache.error = StoreIOError("broken")
    assert client.ask("GET", "/-/healthy")[::2] == ("200 OK", b"ok\n")
    assert client.ask("HEAD", "/-/healthy").headers["Content-Length"] == "3"


@each_row(("is_ready", "status"), [(True, 200), (False, 503)])
def test_ready_is_503_while_the_disk_cannot_be_read(
    *, is_ready: bool, status: int
) -> None:
    """Nginx selects another instance; requests that still arrive are answered."""
    client = Client(FakeCache(), is_ready=is_ready)

    assert client.ask("GET", "/-/ready").status.startswith(str(status))
    assert client.ask("HEAD", "/-/ready").body == b""
    assert client.ask("GET", "/-/healthy").status == "200 OK"


def test_prefix_alone_is_the_page(client: Client) -> None:
    """HTML for GET, its headers for HEAD; it is not a key."""
    page = client.ask("GET", "/-/")
    assert (page.status, page.headers["Content-Type"]) == (
        "200 OK",
        "text/html; charset=utf-8",
    )
    assert page.body.startswith(b"<!doctype html>")
    assert client.ask("HEAD", "/-/").body == b""
    assert "X-Cache" not in page.headers


@pytest.mark.parametrize("path", ["/-/x", "/-/healthy/", "/-//"])
def test_unknown_path_is_404_without_x_cache(client: Client, path: str) -> None:
    """It is not a miss, because it is not a key."""
    answer = client.ask("GET", path)
    assert_error(answer, 404, "/-/healthy")
    assert "X-Cache" not in answer.headers


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
@pytest.mark.parametrize("path", ["/-/", "/-/healthy", "/-/x"])
def test_writes_under_the_prefix_are_not_allowed(
    client: Client, method: str, path: str
) -> None:
    """405 for any path."""
    client.put("/key", b"value")
    assert_error(client.ask(method, path, CONTENT_LENGTH="0"), 405, "GET, HEAD")
    assert list(client.cache.records) == [b"key"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_flush_requires_post(client: Client, method: str) -> None:
    """A followed link or a crawler flushes nothing."""
    client.put("/key", b"value")
    answer = client.ask(method, "/-/flush", HTTP_AUTHORIZATION="Bearer secret")
    assert answer.status.startswith("405 ")
    assert answer.headers["Allow"] == "POST, OPTIONS"
    assert list(client.cache.records) == [b"key"]


@each_row(
    ("token", "given", "status"),
    [
        ("", "Bearer ", 403),
        ("", "", 403),
        ("secret", "", 401),
        ("secret", "Bearer wrong", 401),
        ("secret", "Bearer", 401),
        ("secret", "Basic secret", 401),
        ("secret", "Bearer secret", 200),
        ("secret", "bearer  secret", 200),
    ],
)
def test_flush_requires_the_token(token: str, given: str, status: int) -> None:
    """Without a token in the settings it is off; a wrong token flushes nothing."""
    client = Client(FakeCache(), admin_token=token)
    client.put("/key", b"value")
    answer = client.ask("POST", "/-/flush", HTTP_AUTHORIZATION=given)
    assert_error(answer, status)
    assert list(client.cache.records) == ([] if status == 200 else [b"key"])


@each_row("given", ["Bearer wrong", "Basic c2VjcmV0", "Bearer"])
def test_wrong_tokens_of_an_address_are_limited(given: str) -> None:
    """429 without a comparison, for a while; other addresses may go on."""
    client = Client(FakeCache(), admin_token=TOKEN)
    client.put("/key", b"value")
    for _ in range(10):
        answer = client.ask(
            "POST", "/-/flush", HTTP_AUTHORIZATION=given, REMOTE_ADDR="10.0.0.1"
        )
        assert_error(answer, 401)
        assert answer.headers["WWW-Authenticate"] == 'Bearer realm="volcache"'

    def flush(address: str) -> Answer:
        return client.ask(
            "POST",
            "/-/flush",
            HTTP_AUTHORIZATION=f"Bearer {TOKEN}",
            REMOTE_ADDR=address,
        )

    answer = flush("10.0.0.1")
    assert_error(answer, 429, "try again in 60 s")
    assert answer.headers["Retry-After"] == "60"
    assert list(client.cache.records) == [b"key"]
    assert_error(flush("10.0.0.2"), 200, "flushed")


def test_request_without_a_token_is_no_guess() -> None:
    """A browser, or a script that lacks its variable."""
    client = Client(FakeCache(), admin_token=TOKEN)
    for _ in range(20):
        assert_error(client.ask("POST", "/-/flush"), 401)


@each_row(
    "host",
    [
        *("127.0.0.1", "127.0.0.1:1234", "[::1]", "[::1]:1234", "[fe80::1%eth0]:80"),
        *("localhost", "LocalHost:1234", "localhost.", "cache-1", "CACHE-1:80"),
        *("cache-1.example.org.:1234", ""),
    ],
)
def test_page_and_stats_are_answered_under_known_names(host: str) -> None:
    """Addresses, localhost, those in the settings, and none (HTTP/1.0)."""
    client = Client(
        FakeCache(), admin_token=TOKEN, admin_hosts=("cache-1", "Cache-1.example.org.")
    )
    assert client.ask("GET", "/-/", HTTP_HOST=host).status == "200 OK"
    token = f"Bearer {TOKEN}"
    answer = client.ask("POST", "/-/flush", HTTP_HOST=host, HTTP_AUTHORIZATION=token)
    assert answer.status == "200 OK"


@pytest.mark.parametrize(
    "host",
    [
        *(
            "evil.example",
            "evil.example:1234",
            "127.0.0.1.evil.example",
            "localhost.evil",
        ),
        *(
            "cache-1.evil",
            "127.0.0.1:80:80",
            "127.1",
            "2130706433",
            "::1",
            "[evil]",
            ":1",
        ),
        *("127.0.0.1, evil", "evil\n127.0.0.1", "cache-1@evil", "localhost..", "\xff"),
    ],
)
@pytest.mark.parametrize("path", ["/-/", "/-/stats", "/-/flush", "/-/nothing"])
def test_other_names_are_refused(host: str, path: str) -> None:
    """A page of another site whose name points here reads and changes nothing."""
    client = Client(FakeCache(), admin_token=TOKEN, admin_hosts=("cache-1",))
    client.put("/key", b"value")
    token = f"Bearer {TOKEN}"
    for method in ("GET", "POST", "OPTIONS"):
        answer = client.ask(method, path, HTTP_HOST=host, HTTP_AUTHORIZATION=token)
        assert_error(answer, 421, "admin_hosts")
    assert list(client.cache.records) == [b"key"]


@pytest.mark.parametrize("path", ["/-/healthy", "/-/ready", "/-/metrics"])
def test_health_and_metrics_are_answered_under_every_name(
    store: Store, path: str
) -> None:
    """Load balancers and Prometheus use names."""
    client = operator_of(watch(store))
    assert client.ask("GET", path, HTTP_HOST="cache-1:80").status == "200 OK"


@pytest.mark.parametrize(
    "path",
    ["/-/", "/-/healthy", "/-/ready", "/-/stats", "/-/metrics", "/-/flush", "/-/x"],
)
def test_no_answer_is_sniffed(store: Store, path: str) -> None:
    """Browsers take none of them for a script or a page."""
    answer = operator_of(watch(store)).ask("GET", path)
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_options_lists_the_allowed_methods(client: Client) -> None:
    """Reads only."""
    assert client.ask("OPTIONS", "/-/x").headers["Allow"] == "GET, HEAD, OPTIONS"


# --- The page ----------------------------------------------------------------------


def test_head_of_the_page_has_no_body(client: Client) -> None:
    """The headers are those of a GET."""
    page, head = client.ask("GET", "/-/"), client.ask("HEAD", "/-/")
    assert head == page._replace(body=b"")
    status, headers, body = page
    assert (status, headers["Content-Length"]) == ("200 OK", str(len(body)))
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"


@pytest.mark.parametrize("tag", ["script", "style"])
def test_policy_allows_only_the_content_of_the_page(client: Client, tag: str) -> None:
    """The script and the style are listed by their digests."""
    _, headers, body = client.ask("GET", "/-/")
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


def test_page_has_no_external_resource_and_no_inline_code(client: Client) -> None:
    """No URL, no style attribute, no handler attribute, no HTML built from text."""
    _, _, body = client.ask("GET", "/-/")
    text = body.decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|\sstyle=|\son\w+=\"|@import|innerHTML", text)
