"""What is read from the kernel."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from bench import machine

if TYPE_CHECKING:
    from pathlib import Path


def test_cpu_time_is_that_of_the_process() -> None:
    """The same clock as Python's for this process, to a millisecond."""
    before = time.process_time()
    used = machine.usage([os.getpid()])
    assert before <= used.user + used.system <= time.process_time()


def test_usage_is_the_sum_of_the_processes() -> None:
    """Twice the same process counts twice."""
    once = machine.usage([os.getpid()])
    twice = machine.usage([os.getpid(), os.getpid()])
    assert twice.user + twice.system >= 2 * (once.user + once.system)


def test_memory_is_in_bytes_and_at_most_its_peak() -> None:
    """As the kernel reports both."""
    resident = machine.memory_bytes(os.getpid())
    assert 1 << 20 < resident <= machine.memory_bytes(os.getpid(), "VmHWM")
    assert machine.resident_bytes([]) == 0


def test_an_unknown_field_is_an_error() -> None:
    """Another kernel may have other fields."""
    with pytest.raises(KeyError, match="VmNone"):
        machine.memory_bytes(os.getpid(), "VmNone")


def test_dropping_pages_leaves_the_files_as_they_are(tmp_path: Path) -> None:
    """Only the page cache changes."""
    (tmp_path / "a").write_bytes(b"x" * 10_000)
    machine.drop_pages(tmp_path)
    assert (tmp_path / "a").read_bytes() == b"x" * 10_000


def test_a_description_names_processor_kernel_and_commit(tmp_path: Path) -> None:
    """Nothing in it is empty."""
    found = machine.describe(tmp_path)
    assert {"processor", "kernel", "commit", "file system"} <= found.keys()
    assert all(found.values())
