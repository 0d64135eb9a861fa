"""`tools/budget.py` counts code, and reports what is larger than its budget."""

from __future__ import annotations

import tomllib
from pathlib import Path

import budget

TEXT = '''\
"""A module."""

import os  # Three lines of code with the two
TEXT = """
below."""


class Store:
    """Two methods and two fields."""

    size: int

    def open(self) -> None:
        """One line of code, and its head."""
        # Why.
        self.fd = os.open("/", 0)

    def close(self) -> None: ...
'''


def test_code_is_counted_without_comments_and_docstrings(tmp_path: Path) -> None:
    """Of modules, classes and functions; a larger one is named, with its budget."""
    path = tmp_path / "src" / "store.py"
    path.parent.mkdir()
    path.write_text(TEXT)
    module = budget.Module(path, tmp_path)
    assert {(kind, name.partition(":")[2]): n for kind, name, n in module.sizes()} == {
        ("module", ""): 8,
        ("methods", "Store"): 2,
        ("fields", "Store"): 2,
        ("function", "open"): 2,
        ("function", "close"): 1,
    }
    parts = {"store": {"python": ["src/"], "lines": 7}}
    assert list(budget.part_sizes(parts, [module])) == [
        "store: 8 code lines, the budget is 7"
    ]
    limits = {
        kind: {"limit": 9, "larger": {}} for kind in ("module", "fields", "function")
    } | {"methods": {"limit": 9, "larger": {"src/store.py:Store": 1}}}
    assert list(budget.object_sizes(limits, [module])) == [
        "src/store.py:Store: methods of size 2, the budget is 1"
    ]
    assert list(budget.doubled_names({}, [module, module])) == [
        "class Store is defined in src/store.py, src/store.py"
    ]
    assert list(budget.doubled_names({"Store": 2}, [module, module])) == []


def test_imports_of_the_store_in_cython(tmp_path: Path) -> None:
    """Whatever names another part is found, in each kind of file; the tree has none."""
    (tmp_path / "a.pyx").write_text("import os, http.client\nfrom libc cimport errno\n")
    (tmp_path / "b.pxd").write_text("cimport volcache.server as s  # Why.\nimport os\n")
    (tmp_path / "c.pxi").write_text('include "gate.pxi"\nif a:\n  from oss import b\n')
    assert list(budget.cython_imports(["libc", "os"], tmp_path)) == [
        "a.pyx imports http.client",
        "b.pxd imports volcache.server",
        "c.pxi imports gate.pxi",
        "c.pxi imports oss",
    ]
    allowed = tomllib.loads(budget.BUDGETS.read_text())["cython"]["imports"]
    assert list(budget.cython_imports(allowed)) == []
    parts = {name.split(".")[1] for name in allowed if name.startswith("volcache.")}
    assert parts == {"errors", "store"}
