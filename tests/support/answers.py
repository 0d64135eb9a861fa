"""Answers of HTTP as broken servers send them, before they close the connection."""

from __future__ import annotations

OK = b"HTTP/1.1 200 OK\r\n"
BROKEN = [
    b"",
    b"HTTP/1.1 200 OK\r\n",
    OK + b"Content-Le",
    OK + b"\r\nno length",
    OK + b"Content-Length: 5\r\n\r\nabc",
    OK + b"Content-Length: -5\r\n\r\nabcde",
    OK + b"Content-Length: abc\r\n\r\nabcde",
    OK + b"Content-Length: 999999999999999999\r\n\r\nabc",
    OK + b"Content-Length: 4\r\nContent-Length: 5\r\n\r\nabcde",
    OK + "Content-Length: ٣\r\n\r\nabc".encode(),
    OK + b"Content-Length\r\n\r\n",
    OK + b"Name : value\r\n\r\n",
    OK + b"A: b\r\n folded\r\n\r\n",
    OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
    OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\nabc",
    b"HTTP/2 200 OK\r\n\r\n",
    b"HTTP/1.1 2x0 OK\r\n\r\n",
    b"SSH-2.0-OpenSSH\r\n\r\n",
    b"\r\n\r\n",
    bytes(range(256)) * 4,
    OK + b"A: " + bytes(200_000),
]
