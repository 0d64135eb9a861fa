"""webdav.py: PROPFIND and MKCOL."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import product

import pytest

from support.fake_cache import FakeCache
from support.wsgi_client import Answer, Client, assert_error

DAV = "{DAV:}"


@pytest.fixture
def client() -> Client:
    """Return a client of a cache with two values."""
    client = Client(FakeCache())
    client.put("/a&<b\xc3\xa9", b"value", CONTENT_TYPE="text/<x>&")
    client.put("/folder/", b"v")
    return client


def properties(answer: Answer) -> tuple[str, dict[str, str | None]]:
    """Parse a multistatus of one path into its href and its properties."""
    assert answer.status == "207 Multi-Status"
    assert answer.headers["Content-Type"] == "application/xml; charset=utf-8"
    [response] = ET.fromstring(answer.body)  # noqa: S314 - Our own.
    assert response.findtext(f"{DAV}propstat/{DAV}status") == "HTTP/1.1 200 OK"
    [found] = response.iterfind(f"{DAV}propstat/{DAV}prop")
    kind = found.find(f"{DAV}resourcetype")
    assert kind is not None
    named = {item.tag.removeprefix(DAV): item.text for item in found}
    named["resourcetype"] = "".join(item.tag for item in kind)
    return response.findtext(f"{DAV}href") or "", named


def test_propfind_describes_a_file(client: Client) -> None:
    """Well-formed XML for any key and any content type."""
    answer = client.ask("PROPFIND", "/a&<b\xc3\xa9", HTTP_DEPTH="0")
    href, found = properties(answer)
    assert href == "/a%26%3Cb%C3%A9"
    assert found == {
        "resourcetype": "",
        "getlastmodified": "Sat, 21 Nov 2026 09:00:00 GMT",
        "getcontentlength": "5",
        "getcontenttype": "text/<x>&",
        "getetag": client.ask("HEAD", "/a&<b\xc3\xa9").headers["ETag"],
    }


DIRECTORIES = ("/", "/any/", "/any/deep/", "/folder/")


def test_path_with_a_trailing_slash_is_a_directory(client: Client) -> None:
    """Directories need not be created."""
    for path in DIRECTORIES:
        href, found = properties(client.ask("PROPFIND", path, HTTP_DEPTH="0"))
        assert (href, found["resourcetype"]) == (path, "{DAV:}collection")
        assert found["getlastmodified"]


def test_a_directory_cannot_be_listed(client: Client) -> None:
    """An empty list would let a program that synchronises delete what it has."""
    depths = [{"HTTP_DEPTH": text} for text in ("1", "infinity", "1,noroot", "", "00")]
    for path, depth in product(DIRECTORIES, [{}, *depths]):
        answer = client.ask("PROPFIND", path, b"", **depth)
        assert_error(answer, 403, "cannot be listed")


def test_propfind_of_a_file_ignores_depth(client: Client) -> None:
    """Programs that copy a named file ask so. An absent one is stored then."""
    for depth in ({}, {"HTTP_DEPTH": "1"}):
        href, _ = properties(client.ask("PROPFIND", "/a&<b\xc3\xa9", b"", **depth))
        assert href == "/a%26%3Cb%C3%A9"
        assert_error(client.ask("PROPFIND", "/absent", b"", **depth), 404)


def test_mkcol_succeeds_and_stores_nothing(client: Client) -> None:
    """201 for any path."""
    before = dict(client.cache.records)
    for path in ("/", "/any/", "/any"):
        assert client.ask("MKCOL", path)[::2] == ("201 Created", b"")
    assert client.cache.records == before
