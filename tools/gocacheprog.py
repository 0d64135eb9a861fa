#!/usr/bin/env python3
"""
The cache of go build in volcache: GOCACHEPROG="gocacheprog.py http://127.0.0.1:1234/go".

Files that go reads are in $GOCACHEPROG_DIR, or in a temporary folder. No answer is a miss.
"""

import base64
import http.client
import json
import os
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

URL = urlsplit(sys.argv[1])
FOLDER = Path(os.environ.get("GOCACHEPROG_DIR") or tempfile.mkdtemp(prefix="go-cache-"))
TOKEN = os.environ.get("VOLCACHE_TOKEN")
HEADERS = {"Authorization": f"Bearer {TOKEN}"} if TOKEN else {}
LOCK, LOCAL = threading.Lock(), threading.local()


def ask(method: str, key: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Return status and body of an answer; 0: there is none."""
    for _ in range(2):  # An idle connection may have been closed.
        try:
            if not hasattr(LOCAL, "link"):
                LOCAL.link = http.client.HTTPConnection(URL.netloc, timeout=10)
            LOCAL.link.request(method, f"{URL.path}/{key}", body, HEADERS)
            answer = LOCAL.link.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            vars(LOCAL).pop("link").close()
    return 0, b""


def handle(request: dict[str, str], body: bytes) -> dict[str, object]:
    """Do what go asks for: a value is the id of its output, a line end, and the file."""
    name = base64.b64decode(request.get("ActionID") or "").hex()
    path, output = FOLDER / f"{name}.{request['ID']}", request.get("OutputID", "")
    if request["Command"] == "put":
        ask("PUT", name, output.encode() + b"\n" + body)
    elif request["Command"] == "get":
        status, value = ask("GET", name)
        if status != http.client.OK:
            return {"Miss": True}
        output, body = (
            value[: value.index(b"\n")].decode(),
            value[value.index(b"\n") + 1 :],
        )
    path.write_bytes(body)
    return {"OutputID": output, "Size": len(body), "DiskPath": str(path)}


def answer(given: dict[str, str], body: bytes) -> None:
    """Write the answer as one line."""
    text = json.dumps({"ID": given["ID"], **handle(given, body)})
    with LOCK:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


sys.stdout.write('{"ID": 0, "KnownCommands": ["get", "put", "close"]}\n')
sys.stdout.flush()
with ThreadPoolExecutor(16) as pool:
    lines = filter(str.strip, sys.stdin)
    for given in map(json.loads, lines):
        body = json.loads(next(lines)) if given.get("BodySize") else ""
        pool.submit(answer, given, base64.b64decode(body))
