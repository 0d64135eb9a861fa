"""
Read acknowledged files over several connections and compare them.

Uses the server by HTTP only. Which files may be missing is for the caller to decide.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from support.uploads import Ack, Client, value_digest

if TYPE_CHECKING:
    from collections.abc import Sequence


def is_same(ack: Ack, value: bytes) -> bool:
    """Compare a value with the file, or with the bytes sent if the file has changed."""
    try:
        if ack.file.path.read_bytes() == value:
            return True
    except OSError:
        pass
    return value_digest(value) == ack.digest


@dataclass(slots=True)
class ReadBack:
    """The results, by key."""

    missing: list[str]
    differing: list[str]
    found: int = 0

    def read(self, url: str, acks: Sequence[Ack]) -> None:
        """Read every acknowledged file over one connection and compare it."""
        with Client(url) as client:
            for ack in acks:
                status, _, value = client.request("GET", ack.file.key)
                if status == HTTPStatus.NOT_FOUND:
                    self.missing.append(ack.file.key)
                elif status == HTTPStatus.OK and is_same(ack, value):
                    self.found += 1
                else:
                    self.differing.append(f"{ack.file.key} ({status})")


def read_back(url: str, acks: Sequence[Ack], connections: int) -> ReadBack:
    """Read every acknowledged file over several connections."""
    results = [ReadBack(missing=[], differing=[]) for _ in range(connections)]
    with ThreadPoolExecutor(connections) as pool:
        jobs = [
            pool.submit(result.read, url, acks[number::connections])
            for number, result in enumerate(results)
        ]
    for job in jobs:
        job.result()
    return ReadBack(
        missing=[key for result in results for key in result.missing],
        differing=[key for result in results for key in result.differing],
        found=sum(result.found for result in results),
    )
