"""admin.py: the paths under `/-/` and the page."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

from support.fake_cache import FakeCache
from support.instances import operator_of, watch
from support.stores import FakeClock
from support.wsgi_client import Answer, Client, assert_error
from volcache.cache import Cache
from volcache.errors import StoreIOError
from volcache.store import Store

TOKEN = "secret"  # noqa: S105
ACTIONS = (("POST", "/-/flush"), ("POST", "/-/purge"))


def test_healthy_does_not_use_the_cache(client: Client) -> None:
    """200 and one line."""
    client.cache.error = StoreIOError("broken")
    assert client.ask("GET", "/-/healthy")[::2] == ("200 OK", b"ok\n")
    assert client.ask("HEAD", "/-/healthy").headers["Content-Length"] == "3"


def test_ready_is_503_while_the_disk_cannot_be_read() -> None:
    """Nginx selects another instance; requests that still arrive are answered."""
    for is_ready, status in ((True, "200"), (False, "503")):
        client = Client(FakeCache())
        client.cache.is_disk_readable = is_ready
        assert client.ask("GET", "/-/ready").status.startswith(status)
        assert client.ask("HEAD", "/-/ready").body == b""
        assert client.ask("GET", "/-/healthy").status == "200 OK"


def test_actions_and_the_list_of_keys_need_the_token(store: Store) -> None:
    """Without one in the settings they are off; a wrong one changes nothing."""
    wrong = ("", "Bearer wrong", "Bearer", "Basic secret")
    for token, given, status in (
        *(("", text, 403) for text in ("Bearer ", "")),
        *((TOKEN, text, 401) for text in wrong),
        *((TOKEN, text, 200) for text in ("Bearer secret", "bearer  secret")),
    ):
        client = Client(Cache(store), clock=FakeClock(), token=token)
        for method, path in (*ACTIONS, ("GET", "/-/keys"), ("HEAD", "/-/keys")):
            store.put(b"key", b"value")
            more = {"HTTP_AUTHORIZATION": given, "QUERY_STRING": "prefix=k"}
            answer = client.ask(method, path, b"", **more)
            assert answer.status.startswith(str(status)), (method, path, given)
            is_gone = status == 200 and method == "POST"
            assert (b"key" in store) is not is_gone, (path, given)


def test_wrong_tokens_of_an_address_are_limited() -> None:
    """429 without a comparison, for a while; other addresses may go on."""

    def flush(address: str, given: str = f"Bearer {TOKEN}") -> Answer:
        more = {"REMOTE_ADDR": address, "HTTP_AUTHORIZATION": given}
        return client.ask("POST", "/-/flush", b"", **more)

    for given in ("Bearer wrong", "Basic c2VjcmV0", "Bearer"):
        client = Client(FakeCache(), token=TOKEN)
        client.put("/key", b"value")
        for _ in range(20):  # A request without a token is no guess.
            assert_error(flush("10.0.0.1", ""), 401)
        for _ in range(10):
            answer = flush("10.0.0.1", given)
            assert_error(answer, 401)
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="volcache"'
        answer = flush("10.0.0.1")
        assert_error(answer, 429, "try again in 60 s")
        assert answer.headers["Retry-After"] == "60"
        assert list(client.cache.records) == [b"key"]
        assert_error(flush("10.0.0.2"), 200, "flushed")


def test_health_and_metrics_are_answered_under_every_name(store: Store) -> None:
    """Load balancers and Prometheus use names. Browsers take no answer for a script."""
    client = operator_of(watch(store))
    for path in ("/-/healthy", "/-/ready", "/-/metrics"):
        assert client.ask("GET", path, HTTP_HOST="cache-1:80").status == "200 OK"
    for name in ("", "healthy", "ready", "stats", "metrics", "flush", "x"):
        headers = client.ask("GET", f"/-/{name}").headers
        assert headers["X-Content-Type-Options"] == "nosniff"


# --- The page ----------------------------------------------------------------------


def test_get_of_the_prefix_alone_returns_the_page(client: Client) -> None:
    """HTML for GET, its headers for HEAD; it is not a key."""
    page, head = client.ask("GET", "/-/"), client.ask("HEAD", "/-/")
    assert head == page._replace(body=b"")
    status, headers, body = page
    assert (status, headers["Content-Length"]) == ("200 OK", str(len(body)))
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "X-Cache" not in headers
    assert body.startswith(b"<!doctype html>")


def test_policy_allows_only_the_content_of_the_page(client: Client) -> None:
    """The script and the style are listed by their digests."""
    _, headers, body = client.ask("GET", "/-/")
    policy = headers["Content-Security-Policy"]
    parts = set(policy.split("; "))
    for tag in ("script", "style"):
        (text,) = re.findall(f"<{tag}>(.*?)</{tag}>".encode(), body, re.DOTALL)
        digest = b64encode(sha256(text).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in parts
    for kind in ("default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"):
        assert kind in parts
    assert "require-trusted-types-for 'script'" in parts
    assert "unsafe" not in policy


def test_page_has_no_external_resource_and_no_inline_code(client: Client) -> None:
    """No URL, no style attribute, no handler attribute, no HTML built from text."""
    _, _, body = client.ask("GET", "/-/")
    text = body.decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|\sstyle=|\son\w+=\"|@import|innerHTML", text)
