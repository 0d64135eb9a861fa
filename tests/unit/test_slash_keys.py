"""
A key that begins with a slash is a path: it is refused with the key of that path.

Over HTTP it is a key, that of a path with two slashes. Whoever gives it to the library or
to the command line would not find the value at the path that was given. The methods of the
library are in tests/integration/test_vocabulary.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from volcache.cli.main import main
from volcache_client import Client
from volcache_client.errors import InvalidArgumentError

NOWHERE: Final = ["127.0.0.1:1"]  # Nothing is sent.


def test_prefix_of_a_client_is_a_part_of_the_key() -> None:
    """Only what the service stores under counts."""
    with pytest.raises(InvalidArgumentError, match="begins with a slash"):
        Client(NOWHERE, prefix="/app")


def test_command_line_refuses_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """With exit code 2, before anything is sent; also percent-encoded."""
    file = tmp_path / "file"
    file.write_bytes(b"value")
    for key in ("/abs", "//abs", "/abs/", "/-/abs"):
        for words in (["get", key], ["put", key, str(file)], ["rm", "good", key]):
            assert main([*words, "-t", NOWHERE[0]]) == 2
            error = capsys.readouterr().err
            assert f"the key of this path is {key.lstrip('/')}" in error
    assert main(["get", "--encoded", "%2Fabs", "-t", NOWHERE[0]]) == 2
