"""Every spelling of a path: nginx and the instance derive one key, and `/-/` is closed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import pytest

from support.nginx import SOURCE, Nginx
from support.process import SHARED, ServerProcess
from support.stub_instance import StubInstance
from support.waiting import wait_until
from support.wire import exchange
from volcache.errors import BadKeyError
from volcache.keys import RESERVED_PREFIX, parse_key

pytestmark = pytest.mark.integration

SEGMENTS = ["-", "%2d", ".", "..", "%2E%2e", "a", ""]
SLASHES = ["/", "%2F"]
# Paths of up to three segments in all spellings, and some longer ones.
SPELLINGS = [
    "/" + "".join(itertools.chain(*zip(segments, slashes, strict=False))) + segments[-1]
    for count in (1, 2, 3)
    for segments in itertools.product(SEGMENTS, repeat=count)
    for slashes in itertools.product(SLASHES, repeat=count - 1)
] + [
    *("/-/healthy/../../a", "/-/stats/..%2f../a", "/-%2F..%2Fa", "/-/./healthy"),
    *("/-/%2e%2e/%2d/healthy", "/a/../-/healthy", "/a/b/../../-/healthy"),
    *("/a/../-/../-/healthy", "/./././-/healthy", "//../-/healthy", "/%2e/-/healthy"),
    *("/-/healthy?a=/../..", "/-/../a?x", "/-?/healthy", "/-/../?/-/"),
    *("/%2D%2Fhealthy", "/%2d%2fx%2f..%2f..%2fa", "/-/%00/../../a", "/-/..%00/a"),
    *("/-\\healthy", "/\\-/healthy", "/-;/healthy", "/-/;/../../a", "/%252d/healthy"),
    *("/-%252fhealthy", "/pkg/-/x", "/pkg/../-/x", "/-x/../a", "/-x"),
    *("/%c0%af-/healthy", "/%e2%80%90/healthy", "/-/%zz/../../a", "/-/#/../../a"),
    "/a#/../-/healthy",
]


class Front(NamedTuple):
    """nginx in front of one instance with an access log."""

    nginx: Nginx
    instance: ServerProcess
    access: Path

    def paths(self) -> list[str]:
        """Return the paths that the instance answered, as it received them."""
        lines = self.access.read_text().splitlines() if self.access.exists() else []
        return [line.split('"')[1].split(" ")[1] for line in lines]


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    """Run both; nginx also logs `$uri`."""
    folder = tmp_path_factory.mktemp("paths")
    access = folder / "access"
    text = (SOURCE / "volcache.conf").read_text()
    uris = "log_format uris escape=none '$request_uri\t$uri\t$upstream_status';\n"
    settings = {**SHARED, "log_access": access}
    with ServerProcess(folder / "disk", settings=settings) as instance:
        nginx = Nginx(
            folder / "nginx",
            [f"127.0.0.1:{instance.port}"],
            files={"volcache.conf": uris + text},
        )
        log = (nginx.folder / "volcache/log.conf").read_text()
        nginx.write("volcache/log.conf", f"{log}access_log uris.log uris;\n")
        with nginx:
            yield Front(nginx, instance, access)


def key_of(path: str) -> bytes | None:
    """Return the key that an instance derives; None: the path is not one of a key."""
    with suppress(BadKeyError):
        decoded = unquote_to_bytes(path.partition("?")[0]).decode("latin-1")
        return parse_key(decoded, size_max=1024)
    return None


def is_for_the_operator(path: str) -> bool:
    """Whether the path begins with `/-/`, decoded or also resolved."""
    decoded = unquote_to_bytes(path.partition("?")[0]).decode("latin-1")
    try:
        parse_key(decoded, size_max=1024)
    except BadKeyError as error:
        return decoded.startswith(RESERVED_PREFIX) or "is reserved" in str(error)
    return decoded.startswith(RESERVED_PREFIX)


def test_nginx_and_the_instance_derive_one_key_and_none_of_the_operator(
    front: Front,
) -> None:
    """
    For every spelling that the instance receives, `$uri` is its key; else it is 400.

    Spellings of the paths of the operator are refused by nginx with 400 or 403 and one line
    of text; the access log of the instance shows that it received none of them.
    """
    assert len(SPELLINGS) > 1400
    refused, passed = 0, 0
    for number, path in enumerate(SPELLINGS):
        # Each method with a part of them.
        method = ("GET", "HEAD", "DELETE")[number % 3]
        prefix = "http://host" if number % 4 == 3 else ""
        reply = exchange(front.nginx.port, method, prefix + path)
        if is_for_the_operator(path):
            assert reply.status in {400, 403}, path
            assert reply.headers["Cache-Control"] == "no-store"  # By nginx.
            refused += 1
        elif reply.headers.get("X-Instance"):
            assert reply.status == (400 if key_of(path) is None else 404), path
            passed += 1
    assert refused > 250
    assert passed > 500
    wait_until(lambda: len(front.paths()) >= passed, "the access log")
    received = [path for path in front.paths() if path != "/-/healthy"]
    assert len(received) == passed
    assert not any(map(is_for_the_operator, received))
    keys = 0
    log = (front.nginx.folder / "uris.log").read_bytes().decode("latin-1")
    for line in log.splitlines():
        raw, uri, answer = line.split("\t")
        if answer == "404":
            assert b"/" + (key_of(raw) or b"?") == uri.encode("latin-1"), raw
            keys += 1
    assert keys > 400


def test_operator_path_that_resolves_to_a_key_is_forbidden(
    mode: dict[str, str], stub: StubInstance, nginx_with: Callable[..., Nginx]
) -> None:
    """403 for each method in each failure mode; 405 for a method that is not allowed."""
    nginx = nginx_with(mode)
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS", "POST"):
        for path in ("/-/../200", "/%2d%2F..%2f200", "/-%2F../200", "/-/x/../../200"):
            reply = exchange(nginx.port, method, path, b"")
            assert reply.status == (405 if method == "POST" else 403), (method, path)
    assert not stub.received
    assert exchange(nginx.port, "PUT", "/./x/../200", b"").status == 200
    assert len(stub.received) == 1
