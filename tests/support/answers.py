"""Answers of HTTP as broken servers send them, before they close the connection."""

from __future__ import annotations

OK = b"HTTP/1.1 200 OK\r\n"
BROKEN = [
    b"HTTP/1.1 200 OK\r\n",
    OK + b"Content-Length: 5\r\n\r\nabc",
    OK + b"Content-Length: -5\r\n\r\nabcde",
    OK + b"Content-Length: 5, 5\r\n\r\nabcde",
    OK + "Content-Length: ٣\r\n\r\nabc".encode(),
    OK + b"Content-Length\r\n\r\n",
    OK + b"Name : value\r\n\r\n",
    OK + b"A: b\r\n folded\r\n\r\n",
    OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    b"HTTP/2 200 OK\r\n\r\n",
    b"HTTP/1.1 2x0 OK\r\n\r\n",
    b"SSH-2.0-OpenSSH\r\n\r\n",
    b"\r\n\r\n",
    OK + b"A: " + bytes(70_000),
]
