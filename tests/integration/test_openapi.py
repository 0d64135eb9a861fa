"""docs/openapi.yaml against the running server, by schemathesis."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

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


def test_description_has_the_version_of_the_package() -> None:
    """A release changes both."""
    assert SCHEMA.raw_schema["info"]["version"] == __version__
