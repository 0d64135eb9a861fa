"""
Just enough WebDAV for clients that will not store a file before they have seen its folder.

There are no folders here. A path that ends with a slash is said to be one, and making one
changes nothing; any other path is a file if something is stored under it.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from volcache.http.responses import content_type_of, etag_of, format_date

if TYPE_CHECKING:
    from wsgiref.types import StartResponse

    from volcache.store.format import Record

_TEMPLATE = """<?xml version="1.0" encoding="utf-8"?>
<D:multistatus xmlns:D="DAV:"><D:response><D:href>{href}</D:href><D:propstat><D:prop>\
{properties}</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>\
</D:multistatus>
"""


def is_folder(path: str) -> bool:
    """Tell whether a path is said to be a folder."""
    return path.endswith("/")


def send_folder(start_response: StartResponse, path: str, now: int) -> list[bytes]:
    """Answer a PROPFIND of a folder; `now` in seconds since the epoch."""
    return _send(
        start_response,
        path,
        "<D:resourcetype><D:collection/></D:resourcetype>"
        f"<D:getlastmodified>{format_date(now)}</D:getlastmodified>",
    )


def send_file(
    start_response: StartResponse, path: str, key: bytes, record: Record
) -> list[bytes]:
    """Answer a PROPFIND of a file."""
    modified = format_date(record.stored_ms // 1000)
    return _send(
        start_response,
        path,
        "<D:resourcetype/>"
        f"<D:getlastmodified>{modified}</D:getlastmodified>"
        f"<D:getcontentlength>{record.length}</D:getcontentlength>"
        f"<D:getcontenttype>{escape(content_type_of(key, record))}</D:getcontenttype>"
        f"<D:getetag>{escape(etag_of(record))}</D:getetag>",
    )


def send_made(start_response: StartResponse) -> list[bytes]:
    """Answer a MKCOL."""
    start_response("201 Created", [("Content-Length", "0")])
    return [b""]


def _send(start_response: StartResponse, path: str, properties: str) -> list[bytes]:
    """Answer 207 with what is known of one path."""
    href = quote(path.encode("latin-1"))  # No character that XML would mind is left.
    body = _TEMPLATE.format(href=href, properties=properties).encode()
    headers = [
        ("Content-Type", "application/xml; charset=utf-8"),
        ("Content-Length", str(len(body))),
    ]
    start_response("207 Multi-Status", headers)
    return [body]
