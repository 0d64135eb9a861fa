"""The mutations of `make mutations` apply to the code as it is."""

from __future__ import annotations

from mutations import MUTATIONS, ROOT
from support.code_changes import NotFoundError

ALL = [mutation for some in MUTATIONS.values() for mutation in some]
PACKAGE = ROOT / "src" / "volcache"


def test_each_mutation_applies_exactly_once() -> None:
    """Whoever moves or rewrites a mutated function updates the list."""
    wrong = []
    for mutation in ALL:
        try:
            path, text = mutation.changed_file(PACKAGE)
            if path.suffix == ".py":
                compile(text, path, "exec")
        except (OSError, NotFoundError, SyntaxError) as error:
            wrong.append(f"{mutation.fault}: {error}")
    assert not wrong


def test_each_mutation_names_tests_that_are_there() -> None:
    """A program of tests/native by its name, or a file by its path."""
    names = {test for mutation in ALL for test in mutation.tests}
    paths = {name: name if "/" in name else f"tests/native/{name}.c" for name in names}
    assert [name for name, path in paths.items() if not (ROOT / path).exists()] == []
    assert [mutation.fault for mutation in ALL if not mutation.tests] == []
