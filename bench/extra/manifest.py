"""
Time to write META.txt at a rotation, by the number of volumes.

Writes the manifest of a store with so many volumes again and again, as a rotation does:
encoded, written, synced, renamed, and the directory synced. `encode` is the part that
uses the processor.

    .venv/bin/python -m bench.extra.manifest --rounds 100
"""

from __future__ import annotations

import time
from typing import Final

from bench.extra.script import make_parser, measuring
from bench.report import Spread, table
from volcache.store.directory import StoreDirectory
from volcache.store.files import OsFileSystem
from volcache.store.format import Ring, VolumeUse
from volcache.store.manifest import ListedVolume, Manifest, encode_manifest

VOLUMES: Final = (1, 64, 1000, 10_000)


def make_manifest(number: int) -> Manifest:
    """Return a manifest of so many volumes."""
    uses = [VolumeUse(at, 10**6 + at, Ring.MAIN, at**5) for at in range(number)]
    sealed = [ListedVolume(use, "synced", 167_772_160, 2**31) for use in uses[:-1]]
    volumes = (*sealed, ListedVolume(uses[-1]))
    return Manifest(2**63, 12, 1_790_000_000_000_000, 2**31, volumes)


def main() -> None:
    """Measure and print."""
    parser = make_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="for each (100)")
    options = parser.parse_args()
    manifests = {number: make_manifest(number) for number in VOLUMES}
    encoding: dict[int, list[float]] = {number: [] for number in VOLUMES}
    writing: dict[int, list[float]] = {number: [] for number in VOLUMES}
    with measuring(options.directory) as (_, work):
        directory = StoreDirectory.open(OsFileSystem(), str(work / "store"))
        for _ in range(options.rounds):
            for number, manifest in manifests.items():
                began = time.perf_counter()
                encode_manifest(manifest)
                encoded = time.perf_counter()
                directory.write_manifest(manifest)
                encoding[number].append((encoded - began) * 1000)
                writing[number].append((time.perf_counter() - encoded) * 1000)
        directory.close()
    rows = [
        [
            str(number),
            str(len(encode_manifest(manifest))),
            Spread.of(encoding[number]).text(2),
            Spread.of(writing[number]).text(2),
        ]
        for number, manifest in manifests.items()
    ]
    print()
    print(table(["volumes", "bytes", "encode, ms", "encode and write, ms"], rows))


if __name__ == "__main__":
    main()
