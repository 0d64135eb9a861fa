"""docs/openapi.yaml against the running server, by schemathesis."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any, Final

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from support.process import ServerProcess, Servers
from volcache import __version__

pytestmark = [pytest.mark.sampled(2), pytest.mark.integration, pytest.mark.property]

PATH = Path(__file__).parents[2] / "docs" / "openapi.yaml"
CHECKS = [
    *(not_a_server_error, status_code_conformance, content_type_conformance),
    *(response_headers_conformance, response_schema_conformance),
]
SCHEMA = schemathesis.openapi.from_path(PATH)


@pytest.fixture(scope="module")
def server(servers: Servers) -> Iterator[ServerProcess]:
    """Return an instance for all operations, with a file to read."""
    with servers.server() as running:
        yield running


def test_reference_in_openapi_names_a_part_of_the_description() -> None:
    """One that does not is ignored by the checks."""
    references = re.findall(r'\$ref: "#/([^"]+)"', PATH.read_text())
    assert len(references) > 50
    for reference in references:
        reduce(getitem, reference.split("/"), SCHEMA.raw_schema)


@SCHEMA.parametrize()
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_responses_are_as_described(case: Any, server: ServerProcess) -> None:
    """Status, content type and headers of every operation."""
    case.call_and_validate(base_url=server.url, checks=CHECKS)


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        *(("GET", {}, 200), ("GET", {"Range": "bytes=1-2"}, 206)),
        ("GET", {"Range": "bytes=0-1, -1"}, 206),
        *(("GET", {"Range": "bytes=900-"}, 416), ("GET", {"If-None-Match": "*"}, 304)),
        *(("GET", {"If-Match": '"0"'}, 412), ("HEAD", {"If-None-Match": "*"}, 304)),
        ("PUT", {"If-None-Match": "*"}, 412),
        ("PUT", {"Content-Range": "bytes 0-1/2"}, 400),
        *(("DELETE", {"If-Match": '"0"'}, 412), ("DELETE", {}, 200)),
    ],
)
def test_responses_with_a_file_are_as_described(
    server: ServerProcess, method: str, headers: dict[str, str], status: int
) -> None:
    """Generated requests do not find a file."""
    operation = SCHEMA["/{key}"]
    kept = {"Cache-Control": "max-age=60"}
    put: dict[str, Any] = {
        "body": b"value" * 100,
        "media_type": "application/octet-stream",
    }
    stored = operation["PUT"].Case(path_parameters={"key": "k"}, headers=kept, **put)
    assert stored.call(base_url=server.url).status_code == 200
    case = operation[method].Case(
        path_parameters={"key": "k"},
        headers=headers,
        **(put if method == "PUT" else {}),
    )
    answer = case.call(base_url=server.url)
    assert answer.status_code == status
    case.validate_response(answer, checks=CHECKS)


REFUSALS: Final = [
    ("/{key}", "GET", {}, 401),
    ("/{key}", "HEAD", {}, 401),
    ("/{key}", "PUT", {}, 401),
    ("/{key}", "DELETE", {}, 401),
    ("/{key}", "GET", {"Service-Worker": "script", "Authorization": "Bearer r"}, 403),
    ("/{key}", "GET", {"Origin": "http://a", "Authorization": "Bearer r"}, 404),
    ("/{key}", "PUT", {"Origin": "http://a", "Authorization": "Bearer w"}, 200),
    ("/{key}", "GET", {"Origin": "http://a", "Authorization": "Bearer w"}, 200),
    (
        *("/{key}", "OPTIONS"),
        {"Origin": "http://a", "Access-Control-Request-Method": "PUT"},
        200,
    ),
    ("/-/", "GET", {"Host": "other"}, 421),
    ("/-/", "HEAD", {"Host": "other"}, 421),
    ("/-/stats", "GET", {"Host": "other"}, 421),
    ("/-/stats", "HEAD", {"Host": "other"}, 421),
    ("/-/flush", "POST", {"Host": "other"}, 421),
    *[("/-/flush", "POST", {"Authorization": "Bearer x"}, 401)] * 10,
    ("/-/flush", "POST", {"Authorization": "Bearer x"}, 429),
]


def test_refusals_are_as_described(server_with: Callable[..., ServerProcess]) -> None:
    """With tokens, and with headers for pages of another origin."""
    tokens = {"read_token": "r", "write_token": "w"}
    server = server_with(cors_origins="http://a", **tokens)
    for path, method, headers, status in REFUSALS:
        more: dict[str, Any] = {}
        if path == "/{key}":
            more["path_parameters"] = {"key": "k"}
        if method == "PUT":
            more |= {"body": b"value" * 100, "media_type": "application/octet-stream"}
        case = SCHEMA[path][method].Case(headers=headers, **more)
        answer = case.call(base_url=server.url)
        assert answer.status_code == status, (path, method, headers)
        case.validate_response(answer, checks=CHECKS)


def test_description_has_the_version_of_the_package() -> None:
    """A release changes both."""
    assert SCHEMA.raw_schema["info"]["version"] == __version__
