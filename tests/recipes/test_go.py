"""The cache of go build in volcache, by tools/gocacheprog.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.recipes import a_cache, need, run, snippet

pytestmark = [pytest.mark.nightly, pytest.mark.integration, pytest.mark.slow]

PROGRAM = """package main

import "fmt"

func main() { fmt.Println("hello") }
"""
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("way", ["alone", "with a token"])
def test_second_machine_compiles_nothing(tmp_path: Path, way: str) -> None:
    """With an empty cache of its own."""
    need("go")
    (tmp_path / "main.go").write_text(PROGRAM)
    run(["go", "mod", "init", "hello"], tmp_path)
    more = {"volume_size": 64 << 20, "max_value_size": 32 << 20}
    with a_cache(tmp_path, way, more) as cache:
        text = cache.placed(snippet("go build", "sh")).replace(
            "tools/", f"{ROOT}/tools/"
        )
        if way == "with a token":
            text = f"export VOLCACHE_TOKEN=secret\n{text}"
        line = text.strip().replace("go build", "go build -x -o program main.go")

        def compiled(number: int) -> int:
            environ = {
                "GOCACHE": str(tmp_path / f"own{number}"),
                "GOCACHEPROG_DIR": str(tmp_path / f"files{number}"),
                "HOME": os.environ.get("HOME", "/root"),
            }
            (tmp_path / f"files{number}").mkdir()
            said = run(["bash", "-ec", line], tmp_path, environ)
            assert run([tmp_path / "program"], tmp_path) == "hello\n"
            return said.count("/compile -o ")

        assert compiled(1) > 20
        assert compiled(2) == 0
