"""admin.py: the paths under `/-/` and the page."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256

from support.fake_cache import FakeCache
from support.wsgi_client import Answer, Client, assert_error
from volcache.errors import StoreIOError

TOKEN = "secret"  # noqa: S105
ACTIONS = (("POST", "/-/flush"), ("POST", "/-/purge"))


def test_operator_request_after_ten_wrong_tokens_of_its_address_is_429() -> None:
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


def test_health_with_a_disk_that_cannot_be_read_is_ok_and_readiness_is_503(
    client: Client,
) -> None:
    """Nginx selects another instance; requests that still arrive are answered."""
    client.cache.is_disk_readable, client.cache.error = False, StoreIOError("broken")
    assert_error(client.ask("GET", "/-/ready"), 503, "not ready: several reads")
    assert_error(client.ask("GET", "/-/healthy"), 200, "ok")


# --- The page ----------------------------------------------------------------------


def test_page_has_a_policy_that_allows_only_its_own_script_and_style(
    client: Client,
) -> None:
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


def test_page_uses_no_external_resource_and_no_inline_code(client: Client) -> None:
    """No URL, no style attribute, no handler attribute, no HTML built from text."""
    _, _, body = client.ask("GET", "/-/")
    text = body.decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|\sstyle=|\son\w+=\"|@import|innerHTML", text)
