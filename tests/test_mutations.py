"""The mutations of `make mutations` apply to the code as it is."""

from __future__ import annotations

from collections import Counter

import pytest

from mutations import MUTATIONS, ROOT
from support.c_changes import changed_c
from support.code_changes import (
    Change,
    NotFoundError,
    changed,
    move,
    remove,
    replace,
    replace_call,
)

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


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (replace("self.closed", "False"), "self.closed", "False"),
        (replace_call("full", "True"), "full(self)", "True"),
        (remove("seal"), "seal(self)", "pass"),
        (remove("self.end"), "self.end = 0", "pass"),
        (
            move("start", "sync"),
            SOURCE.partition("rotate(self):\n")[2],
            "        start(self)\n"
            + SOURCE.partition("rotate(self):\n")[2].replace(
                "        start(self)\n", ""
            ),
        ),
    ],
    ids=lambda value: value.text if isinstance(value, Change) else "",
)
def test_a_change_is_made_in_its_place_only(change: Change, old: str, new: str) -> None:
    """All other code stays."""
    assert changed(SOURCE, "Log.rotate", change) == SOURCE.replace(old, new)


@pytest.mark.parametrize(
    ("function", "change"),
    [
        ("Log.rotated", remove("seal")),
        ("rotate", remove("seal")),
        ("Log", remove("seal")),
        ("Log.rotate", remove("sealed")),
        ("Log.rotate", replace("self", "None")),
        ("Log.rotate", move("sync", "start")),
        ("Log.rotate", move("seal", "sync")),
    ],
)
def test_a_change_that_does_not_apply_once_is_an_error(
    function: str, change: Change
) -> None:
    """No such function, no such place, several places, or a move that moves nothing."""
    with pytest.raises(NotFoundError):
        changed(SOURCE, function, change)


@pytest.mark.parametrize(
    ("function", "before", "text", "by"),
    [
        ("rotate", "int rotate", "end > last", "end >= last"),
        ("rotate", "int rotate", "return -1;", ""),
        ("rotate", "int rotate", "find(end)", "0"),
        ("find", "", "return key", "return 0"),
        ("seal", "static int\nseal", "find(end)", "0"),
    ],
)
def test_a_text_of_c_is_replaced_in_its_function_only(
    function: str, before: str, text: str, by: str
) -> None:
    """All other code stays."""
    begin = C_SOURCE.index(f"\n{before}") if before else 0
    place = C_SOURCE.index(text, begin)
    expected = C_SOURCE[:place] + by + C_SOURCE[place + len(text) :]
    assert changed_c(C_SOURCE, function, (text, by)) == expected


@pytest.mark.parametrize(
    ("function", "text", "by"),
    [
        ("rotated", "end > last", "true"),
        ("rotate", "return key", "return 0"),
        ("rotate", "return", "(void)"),
        ("rotate", "end > last", "end > last"),
    ],
)
def test_a_text_of_c_that_is_not_there_once_is_an_error(
    function: str, text: str, by: str
) -> None:
    """No such function, no such text in it, several of them, or no change."""
    with pytest.raises(NotFoundError):
        changed_c(C_SOURCE, function, (text, by))
