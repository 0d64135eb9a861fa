"""Requests in two forms: as bytes, and as what bjoern passes to the application."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes


class Request(NamedTuple):
    """A valid request: its bytes, and what bjoern passes to the application."""

    sent: bytes
    environ: dict[str, Any]

    @property
    def method(self) -> str:
        """The method."""
        return str(self.environ["REQUEST_METHOD"])

    @property
    def closes(self) -> bool:
        """Whether its answer is the last one of the connection."""
        text = self.environ.get("HTTP_CONNECTION", "")
        options = {option.strip(" \t").lower() for option in text.split(",")}
        if self.environ["SERVER_PROTOCOL"] == "HTTP/1.0":
            return "keep-alive" not in options or "close" in options
        return "close" in options


def make_request(
    method: str,
    target: str,
    fields: Iterable[str] = (),
    body: bytes = b"",
    *,
    encoded: bytes | None = None,
    version: str = "HTTP/1.1",
) -> Request:
    """Return a request; `encoded` is the body as it is sent, if that is not the same."""
    lines = [f"{method} {target} {version}", *fields, "", ""]
    path, mark, query = re.sub("^(?i:http)://[^/?]*", "", target).partition("?")
    path = path if path.startswith(("/", "*")) else f"/{path}"
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": unquote_to_bytes(path.encode("latin-1")).decode("latin-1"),
        "SERVER_PROTOCOL": version,
        "wsgi.input": io.BytesIO(body),
    }
    if mark:
        environ["QUERY_STRING"] = query
    for field in fields:
        name, _, value = (part.strip(" \t") for part in field.partition(":"))
        key = name.upper().replace("-", "_")
        key = key if key in {"CONTENT_LENGTH", "CONTENT_TYPE"} else f"HTTP_{key}"
        if key not in environ and "_" not in name:
            environ[key] = value
        elif value and "_" not in name:
            environ[key] += f", {value}"
    if encoded is not None:
        environ["HTTP_TRANSFER_ENCODING"] = "chunked"
    head = "\r\n".join(lines).encode("latin-1")
    return Request(head + (body if encoded is None else encoded), environ)
