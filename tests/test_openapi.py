"""docs/openapi.yaml is a valid description; tests/behaviour compares it with answers."""

from __future__ import annotations

from pathlib import Path

import yaml  # type: ignore[import-untyped]
from openapi_spec_validator import validate

from volcache import __version__

DESCRIPTION = Path(__file__).parents[1] / "docs" / "openapi.yaml"


def test_description_of_the_api_is_valid() -> None:
    """By the schema of OpenAPI 3.1, with all references; it has our version."""
    description = yaml.safe_load(DESCRIPTION.read_text())
    validate(description)
    assert description["info"]["version"] == __version__
