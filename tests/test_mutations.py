"""The mutations of `make mutations` apply to the code as it is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from mutations import MUTATIONS, ROOT
from support.code_changes import NotFoundError, changed
from support.tables import each_row

ALL = [mutation for some in MUTATIONS.values() for mutation in some]
PACKAGE = ROOT / "src" / "volcache"
SOURCE = """\
class Log:

    def rotate(self):
        sync(1)
        if full(self) or self.closed:
            self.end = 0
            seal(self)
        start(self)
"""


C_SOURCE = """\
static int find(int key) {
    return key;
}

int rotate(int end,
           int last) {
    if (end > last || !find(end)) {
        return -1;
    }
    return end;
}

int find(int);
static int
seal(void)
{
    return find(end);
}
"""


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


def test_no_mutation_is_there_twice() -> None:
    """Neither under two names nor with one name for two."""
    for found in (
        Counter((mutation.language, mutation.fault) for mutation in ALL),
        Counter((mutation.where, mutation.changes) for mutation in ALL),
    ):
        assert [name for name, count in found.items() if count > 1] == []


def test_each_mutation_names_tests_that_are_there() -> None:
    """A program of tests/native by its name, or a file by its path."""
    names = {test for mutation in ALL for test in mutation.tests}
    paths = {name: name if "/" in name else f"tests/native/{name}.c" for name in names}
    assert [name for name, path in paths.items() if not (ROOT / path).exists()] == []
    assert [mutation.fault for mutation in ALL if not mutation.tests] == []


@each_row(
    ("function", "change", "expected"),
    [
        ("Log.rotate", ("self.closed", "False"), "or False:"),
        ("Log.rotate", ("self.end = 0 seal(self)", "pass"), "pass\n        start"),
        ("Log.rotated", ("seal(self)", "pass"), ""),
        ("rotate", ("seal(self)", "pass"), ""),
        ("Log", ("seal(self)", "pass"), ""),
        ("Log.rotate", ("sealed", "pass"), ""),
        ("Log.rotate", ("self", "None"), ""),
        ("Log.rotate", ("full", "full"), ""),
    ],
)
def test_a_text_of_python_is_replaced_in_its_function_once(
    function: str, change: tuple[str, str], expected: str
) -> None:
    """Otherwise it is an error, for which no text is expected here."""
    check("log.py", SOURCE, function, change, expected)


@each_row(
    ("function", "change", "expected"),
    [
        ("rotate", ("end > last", "end >= last"), "if (end >= last ||"),
        ("rotate", ("return -1;", ""), "{\n        \n    }"),
        ("rotate", ("find(end)", "0"), "|| !0)"),
        ("find", ("return key", "return 0"), "{\n    return 0;"),
        ("seal", ("find(end)", "0"), "return 0;\n}\n"),
        ("rotated", ("end > last", "true"), ""),
        ("rotate", ("return key", "return 0"), ""),
        ("rotate", ("return", "(void)"), ""),
        ("rotate", ("end > last", "end > last"), ""),
    ],
)
def test_a_text_of_c_is_replaced_in_its_function_once(
    function: str, change: tuple[str, str], expected: str
) -> None:
    """Likewise."""
    check("log.c", C_SOURCE, function, change, expected)


def check(
    name: str, source: str, function: str, change: tuple[str, str], expected: str
) -> None:
    """Change a file; all but one place stays."""
    with TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_text(source)
        if not expected:
            with pytest.raises(NotFoundError):
                changed(path, function, change)
            return
        text = changed(path, function, change)
    assert expected in text
    assert expected not in source
    before, _, after = text.partition(expected)
    assert source.startswith(before)
    assert source.endswith(after)
