"""admin.py under the application: the operator's paths, under `/-/`."""

from __future__ import annotations

import pytest

from support.fake_cache import FakeCache
from support.wsgi_client import Client, assert_error
from volcache.errors import StoreIOError


def test_healthy_says_ok(client: Client) -> None:
    """200 and one line, without asking the cache."""
    client.cache.error = StoreIOError("broken")
    assert client.ask("GET", "/-/healthy")[::2] == ("200 OK", b"ok\n")
    assert client.ask("HEAD", "/-/healthy").headers["Content-Length"] == "3"


@pytest.mark.parametrize(("is_ready", "status"), [(True, 200), (False, 503)])
def test_ready_says_whether_requests_should_come(
    *, is_ready: bool, status: int
) -> None:
    """503 sends nginx elsewhere; what is asked for all the same is answered."""
    client = Client(FakeCache(), is_ready=is_ready)

    assert client.ask("GET", "/-/ready").status.startswith(str(status))
    assert client.ask("HEAD", "/-/ready").body == b""
    assert client.ask("GET", "/-/healthy").status == "200 OK"


def test_the_prefix_alone_is_the_page(client: Client) -> None:
    """HTML for GET, its headers for HEAD; it is no key."""
    page = client.ask("GET", "/-/")
    assert (page.status, page.headers["Content-Type"]) == (
        "200 OK",
        "text/html; charset=utf-8",
    )
    assert page.body.startswith(b"<!doctype html>")
    assert client.ask("HEAD", "/-/").body == b""
    assert "X-Cache" not in page.headers


@pytest.mark.parametrize("path", ["/-/x", "/-/healthy/", "/-//"])
def test_unknown_admin_path_is_not_found(client: Client, path: str) -> None:
    """404, and no miss: it is no key."""
    answer = client.ask("GET", path)
    assert_error(answer, 404, "/-/healthy")
    assert "X-Cache" not in answer.headers


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
@pytest.mark.parametrize("path", ["/-/", "/-/healthy", "/-/x"])
def test_nothing_under_the_prefix_changes_anything(
    client: Client, method: str, path: str
) -> None:
    """405 whatever the path."""
    client.put("/key", b"value")
    assert_error(client.ask(method, path, CONTENT_LENGTH="0"), 405, "GET, HEAD")
    assert list(client.cache.records) == [b"key"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_flush_is_a_post(client: Client, method: str) -> None:
    """A link that is followed, or a crawler, drops nothing."""
    client.put("/key", b"value")
    answer = client.ask(method, "/-/flush", HTTP_AUTHORIZATION="Bearer secret")
    assert answer.status.startswith("405 ")
    assert answer.headers["Allow"] == "POST, OPTIONS"
    assert list(client.cache.records) == [b"key"]


@pytest.mark.parametrize(
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
def test_flush_needs_the_token(token: str, given: str, status: int) -> None:
    """Without a token in the settings it is off; a wrong one drops nothing."""
    client = Client(FakeCache(), admin_token=token)
    client.put("/key", b"value")
    answer = client.ask("POST", "/-/flush", HTTP_AUTHORIZATION=given)
    assert_error(answer, status)
    assert list(client.cache.records) == ([] if status == 200 else [b"key"])


def test_options_under_the_prefix(client: Client) -> None:
    """What is allowed there."""
    assert client.ask("OPTIONS", "/-/x").headers["Allow"] == "GET, HEAD, OPTIONS"
