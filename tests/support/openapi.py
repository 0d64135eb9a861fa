"""What docs/openapi.yaml says of an answer."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from support.wire import Reply

PATH: Final = Path(__file__).parents[2] / "docs" / "openapi.yaml"
_DESCRIPTION: Final = yaml.safe_load(PATH.read_text())


def _resolved(part: dict[str, Any]) -> dict[str, Any]:
    """Return a part of the description, or what it refers to."""
    words = part.get("$ref", "#").split("/")[1:]
    found = reduce(lambda whole, word: whole[word], words, _DESCRIPTION)
    return found if words else part


def _validate(value: object, schema: dict[str, Any]) -> None:
    """Compare with a schema, whose references are parts of the description."""
    Draft202012Validator(_DESCRIPTION | schema).validate(value)


def check_described(method: str, target: str, reply: Reply) -> None:
    """Fail if an answer differs from what is said of it; other methods are left out."""
    path = target.partition("?")[0]
    path = path if path.startswith("/-/") else "/{key}"
    operation = _DESCRIPTION["paths"].get(path, {}).get(method.lower())
    if operation is None:
        return
    answers = operation["responses"]
    assert str(reply.status) in answers, f"{method} {path}: {reply.status}"
    answer = _resolved(answers[str(reply.status)])
    for name, header in answer.get("headers", {}).items():
        text: str | None = reply.headers.get(name)
        found = _resolved(header)
        assert text is not None or not found.get("required"), name
        if text is not None:
            schema = _resolved(found["schema"])
            is_number = schema.get("type") == "integer"
            _validate(int(text) if is_number else text, schema)
    types = answer.get("content", {"*/*": {}})
    if reply.body and "*/*" not in types:
        kind = types[reply.headers["Content-Type"]]
        if reply.headers["Content-Type"].startswith("application/json"):
            _validate(json.loads(reply.body), kind["schema"])
