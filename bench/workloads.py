"""
The workloads by name: what is stored, what is asked for, and who takes part.

The first row of a workload is what is measured; the others are what it is held against.
Those that share their keys stand together, so that servers are filled once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from contenders import MIB, Keys
from instances import measure_instances
from ladder import STEPS
from restart import restarting
from rotation import BARE, measure_rotation
from runner import Workload, under_traffic
from traffic import Traffic

if TYPE_CHECKING:
    from scale import Scale

KIB: Final = 1024
FLOOR: Final = "floor"
NAIVE: Final = "one file per key"
OTHERS: Final = (FLOOR, "nginx", "memcached", NAIVE)
LADDER: Final = ("volcache", *reversed(STEPS), FLOOR)
ON_DISK: Final = ("volcache", "nginx", NAIVE)
GET: Final = Traffic(kind="get")
PUT: Final = Traffic(kind="put")


def small(scale: Scale) -> Keys:
    """Return what is read: 1 KiB under each key."""
    return Keys(count=scale.keys, value_bytes=KIB)


def large(scale: Scale) -> Keys:
    """Return what is read: 64 KiB under each key."""
    return Keys(
        count=scale.keys, value_bytes=64 * KIB, volume_size=896 * MIB, volume_num=3
    )


def small_empty(scale: Scale) -> Keys:
    """
    Return what is written: 1 KiB, into volumes that are soon overwritten.

    Writing to memory that the machine has not used before costs more than writing to
    it again, above all in a virtual machine.
    """
    return Keys(count=scale.keys, value_bytes=KIB, stored=False, volume_size=64 * MIB)


def large_empty(scale: Scale) -> Keys:
    """Return what is written: 64 KiB, into volumes that are soon overwritten."""
    return Keys(
        count=scale.write_keys,
        value_bytes=64 * KIB,
        stored=False,
        volume_size=256 * MIB,
    )


def hot(scale: Scale) -> Keys:
    """Return few keys, all of which memcached holds."""
    return Keys(count=scale.keys // 40, value_bytes=KIB)


WORKLOADS: Final = (
    Workload(
        name="write-1k",
        text="PUT of 1 KiB under keys drawn at random",
        rows=("volcache", *OTHERS),
        measure=under_traffic("write-1k", small_empty, PUT),
    ),
    Workload(
        name="write-64k",
        text="PUT of 64 KiB under keys drawn at random",
        rows=("volcache", *OTHERS),
        measure=under_traffic("write-64k", large_empty, PUT),
    ),
    Workload(
        name="read-64k",
        text="GET of 64 KiB, keys drawn at random, from the page cache",
        rows=("volcache", *OTHERS),
        measure=under_traffic("large", large, GET),
    ),
    Workload(
        name="read-1k",
        text="GET of 1 KiB, keys drawn at random, from the page cache",
        rows=("volcache", FLOOR, "nginx", "nginx, open_file_cache", "memcached", NAIVE),
        measure=under_traffic("small", small, GET),
    ),
    Workload(
        name="one-file",
        text="GET of the same 1 KiB again and again",
        rows=("volcache", *OTHERS),
        measure=under_traffic("small", small, Traffic(kind="get", first=1)),
    ),
    Workload(
        name="misses",
        text="GET of keys nobody stored",
        rows=("volcache", "floor 404", "nginx", "memcached", NAIVE),
        measure=under_traffic("small", small, Traffic(kind="miss")),
    ),
    Workload(
        name="zipf",
        text="GET of 1 KiB, keys drawn by Zipf's law with exponent 0.99",
        rows=("volcache", *OTHERS),
        measure=under_traffic("small", small, Traffic(kind="get", exponent=0.99)),
    ),
    Workload(
        name="through-nginx",
        text="GET of 1 KiB through nginx, whose CPU counts with the instance's",
        rows=("through nginx", "volcache", "nginx"),
        measure=under_traffic("small", small, GET),
    ),
    Workload(
        name="read-1k-cold",
        text="GET of 1 KiB, some keys once each in random order, from the disk",
        rows=ON_DISK,
        measure=under_traffic("small", small, Traffic(kind="sample"), is_cold=True),
    ),
    Workload(
        name="sequential-cold",
        text="GET of 1 KiB, all keys in the order they were stored, from the disk",
        rows=ON_DISK,
        measure=under_traffic("small", small, Traffic(kind="all"), is_cold=True),
    ),
    Workload(
        name="mix-95-5",
        text="95 % GET and 5 % PUT of 1 KiB, keys drawn at random",
        rows=("volcache", FLOOR, "nginx", NAIVE),
        measure=under_traffic("small", small, Traffic(kind="mix")),
    ),
    Workload(
        name="ladder-get",
        text="GET of 1 KiB; each row does one thing more than the one below it",
        rows=LADDER,
        measure=under_traffic("small", small, GET),
    ),
    Workload(
        name="ladder-put",
        text="PUT of 1 KiB; each row does one thing more than the one below it",
        rows=LADDER,
        measure=under_traffic("ladder-put", small_empty, PUT),
    ),
    Workload(
        name="hot-tier",
        text="GET of 1 KiB that memcached holds, whose CPU counts with the instance's",
        rows=("hot tier", "volcache", "memcached"),
        measure=under_traffic("hot", hot, GET),
    ),
    Workload(
        name="rotation",
        text="PUT of 1 KiB without pause while volumes are overwritten in turn",
        rows=("volcache", *BARE),
        measure=measure_rotation,
    ),
    Workload(
        name="instances-cold",
        text="GET of 1 KiB from the disk, the keys spread over instances on one disk",
        rows=("1 instance", "4 instances", "16 instances"),
        measure=measure_instances,
    ),
    Workload(
        name="restart-1m",
        text="Opening a store of a million keys of 100 bytes",
        rows=(),
        measure=restarting(0),
    ),
    Workload(
        name="restart-5m",
        text="Opening a store of five million keys of 100 bytes",
        rows=(),
        measure=restarting(1),
        is_extra=True,
    ),
)
