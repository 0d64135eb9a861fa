"""
The part of WebDAV that sccache needs: it looks for the directory before it stores a file.

There are no directories. A path that ends with a slash counts as one that cannot be listed,
and MKCOL changes nothing; any other path is a file if a value is stored under it.
"""

from __future__ import annotations

from html import escape
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import quote

from volcache.http.content_types import content_type_of
from volcache.http.responses import format_date, text_response

if TYPE_CHECKING:
    from volcache.http.responses import Response
    from volcache.store import Record

_TEMPLATE = """<?xml version="1.0" encoding="utf-8"?>
<D:multistatus xmlns:D="DAV:"><D:response><D:href>{href}</D:href><D:propstat><D:prop>\
{properties}</D:prop><D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>\
</D:multistatus>
"""


def directory_response(path: str, depth: str, now: int) -> Response:
    """
    Return the 207 for a directory; a 403 if what is in it is asked for.

    Args:
        path: That of the request.
        depth: The header Depth; without one it means `infinity`.
        now: Seconds since the epoch.
    """
    if depth != "0":
        # An empty list would be worse: programs that synchronise delete what it lacks.
        return text_response(
            HTTPStatus.FORBIDDEN,
            "keys cannot be listed; allowed for a path that ends with a slash is Depth: 0",
        )
    return _multi_status(
        path,
        "<D:resourcetype><D:collection/></D:resourcetype>"
        f"<D:getlastmodified>{format_date(now)}</D:getlastmodified>",
    )


def file_response(path: str, key: bytes, record: Record) -> Response:
    """Return the 207 for a stored value."""
    # Earlier than Last-Modified, so that no condition is true for it.
    modified = format_date(record.stored_us // 1_000_000)
    content_type = escape(content_type_of(key, record.content_type))
    return _multi_status(
        path,
        "<D:resourcetype/>"
        f"<D:getlastmodified>{modified}</D:getlastmodified>"
        f"<D:getcontentlength>{record.length}</D:getcontentlength>"
        f"<D:getcontenttype>{content_type}</D:getcontenttype>"
        f"<D:getetag>{escape(record.etag)}</D:getetag>",
    )


def _multi_status(path: str, properties: str) -> Response:
    """Return a 207 with the properties of one path."""
    href = quote(path.encode("latin-1"))  # Leaves no character that XML would escape.
    body = _TEMPLATE.format(href=href, properties=properties).encode()
    headers = [
        ("Content-Type", "application/xml; charset=utf-8"),
        ("Content-Length", str(len(body))),
    ]
    return "207 Multi-Status", headers, [body], ""
