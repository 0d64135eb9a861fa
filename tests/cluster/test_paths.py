"""Every spelling of a path: nginx and the instance derive one key, and `/-/` is closed."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

import pytest

from support.nginx import SOURCE, Nginx
from support.process import SHARED, ServerProcess
from support.waiting import wait_until
from support.wire import exchange
from volcache.errors import BadKeyError
from volcache.keys import RESERVED_PREFIX, parse_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.stub_instance import StubInstance

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
    "/-/healthy/../../a",
    "/-/stats/..%2f../a",
    "/-%2F..%2Fa",
    "/-/./healthy",
    "/-/%2e%2e/%2d/healthy",
    "/a/../-/healthy",
    "/a/b/../../-/healthy",
    "/a/../-/../-/healthy",
    "/./././-/healthy",
    "//../-/healthy",
    "/%2e/-/healthy",
    "/-/healthy?a=/../..",
    "/-/../a?x",
    "/-?/healthy",
    "/-/../?/-/",
    "/%2D%2Fhealthy",
    "/%2d%2fx%2f..%2f..%2fa",
    "/-/%00/../../a",
    "/-/..%00/a",
    "/-\\healthy",
    "/\\-/healthy",
    "/-;/healthy",
    "/-/;/../../a",
    "/%252d/healthy",
    "/-%252fhealthy",
    "/pkg/-/x",
    "/pkg/../-/x",
    "/-x/../a",
    "/-x",
    "/%c0%af-/healthy",
    "/%e2%80%90/healthy",
    "/-/%zz/../../a",
    "/-/#/../../a",
    "/a#/../-/healthy",
]


class Log(NamedTuple):
    """A line of nginx's log."""

    path: str  # as the client wrote it
    uri: bytes  # as nginx resolved it
    answers: str


class Front(NamedTuple):
    """nginx in front of one instance with an access log."""

    nginx: Nginx
    instance: ServerProcess
    access: Path

    def paths(self) -> list[str]:
        """Return the paths that the instance answered, as it received them."""
        lines = self.access.read_text().splitlines() if self.access.exists() else []
        return [line.split('"')[1].split(" ")[1] for line in lines]

    def answered(self) -> int:
        """Return how many requests the instance answered."""
        stats = exchange(self.instance.port, "GET", "/-/metrics").body.decode()
        return sum(
            int(float(line.split()[-1]))
            for line in stats.splitlines()
            if line.startswith("volcache_requests_total{")
        )


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


def is_for_the_operator(path: str) -> bool:
    """Whether the path begins with `/-/`, decoded or also resolved."""
    decoded = unquote_to_bytes(path.partition("?")[0]).decode("latin-1")
    try:
        parse_key(decoded, size_max=1024)
    except BadKeyError as error:
        return decoded.startswith(RESERVED_PREFIX) or "is reserved" in str(error)
    return decoded.startswith(RESERVED_PREFIX)


def test_no_spelling_reaches_the_paths_of_the_operator(front: Front) -> None:
    """
    Each is refused by nginx with 400 or 403 and one line of text.

    The instance's counter and its access log show that it received none of them, and for
    the others that its key is nginx's `$uri`.
    """
    assert len(SPELLINGS) > 1400
    before = front.answered()
    refused, passed = [], []
    for number, path in enumerate(SPELLINGS):
        # Each method with a part of them.
        method = ("GET", "HEAD", "DELETE")[number % 3]
        prefix = "http://host" if number % 4 == 3 else ""
        reply = exchange(front.nginx.port, method, prefix + path)
        if is_for_the_operator(path):
            assert reply.status in {400, 403}, path
            assert reply.headers["Cache-Control"] == "no-store"  # By nginx.
            refused.append(path)
        elif reply.headers.get("X-Instance"):
            passed.append(path)
    assert len(refused) > 250
    assert len(passed) > 500
    # The two readings of the counter are requests, too.
    assert front.answered() - before == len(passed) + 1
    wait_until(lambda: len(front.paths()) > len(passed), "the access log")
    operator = [path for path in front.paths() if is_for_the_operator(path)]
    assert set(operator) <= {"/-/healthy", "/-/metrics"}
    assert len(operator) < 20


def test_nginx_and_the_instance_derive_the_same_key(front: Front) -> None:
    """
    For every spelling that an instance receives, `$uri` is its key.

    What is not a key for the instance is 400.
    """
    for path in SPELLINGS:
        exchange(front.nginx.port, "GET", path)
    log = front.nginx.folder / "uris.log"
    keys = 0
    for line in log.read_bytes().split(b"\n"):
        raw, _, rest = line.decode("latin-1").partition("\t")
        uri, _, answers = rest.partition("\t")
        if answers not in {"404", "400"}:
            continue
        decoded = unquote_to_bytes(raw.partition("?")[0]).decode("latin-1")
        try:
            key = parse_key(decoded, size_max=1024)
        except BadKeyError:
            assert answers == "400", raw
        else:
            assert answers == "404", raw
            assert b"/" + key == uri.encode("latin-1"), raw
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
