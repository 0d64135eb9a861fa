"""
Warnings about settings that are allowed, and may not be what the operator wants.

`volcache config check` prints them, and a start logs them.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import pwd
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volcache.config import volume_size_least
from volcache.kinds import AUTO, MIB, format_size
from volcache.store.eviction import VOLUMES_ADVISED, cost_of_few
from volcache.text import size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from volcache.settings import Config
    from volcache.store import Store
    from volcache.store.stats import StoreUsage

_logger: Final = logging.getLogger("volcache")

_MEMCACHED_ITEM_MAX: Final = MIB
_VOLUMES_BEST: Final = 64  # With more, the eviction policy is hardly better.
_FAILOVER: Final = re.compile(r"^\s*include\s+\S*failover\.conf", re.MULTILINE)


def log_warnings(config: Config, store: Store, usage: StoreUsage) -> None:
    """Log what the operator may not want, of the disk and of the settings."""
    if store.refusal:
        _logger.error("disk.not_writable error=%r", store.refusal)
    holding = store.holding
    volume_size, number = usage.volume_size, usage.volume_num
    if usage.capacity > holding.total:
        _logger.warning(
            "disk.too_small configured=%d holds=%d free=%d volume_num=%d volumes=%d",
            *(usage.capacity, holding.total, holding.free, number, usage.disk.volumes),
        )
    unused = holding.unused(volume_size, number)
    if config.volume_num == AUTO and unused:
        _logger.warning(
            "disk.unused bytes=%d volume_size=%d volume_num=%d",
            *(unused, volume_size, number),
        )
    # What the disk holds, and `auto` has become.
    found = replace(config, volume_size=volume_size, volume_num=usage.disk.volumes)
    for text in warnings(found):
        _logger.warning("config.warning text=%r", text)


def warnings(config: Config) -> Iterator[str]:
    """Yield one line for each warning."""
    yield from _of_access(config)
    yield from _of_place(Path(config.mount_point))
    yield from _of_ring(config)
    if config.eviction == "frequency" and 0 < config.volume_num < VOLUMES_ADVISED:
        yield _of_few_volumes(config)
    if config.default_ttl and 0 < config.max_ttl < config.default_ttl:
        yield (
            f"default_ttl = {config.default_ttl} has no effect: max_ttl ="
            f" {config.max_ttl} is lower"
        )
    if not config.memc_on and config.memc_servers:
        yield "memc_servers has no effect: memc_on is false"
    if config.memc_on and config.memc_max_value_size > _MEMCACHED_ITEM_MAX:
        yield (
            f"memc_max_value_size = {size(config.memc_max_value_size)} needs a memcached"
            " whose option -I allows larger items; its default is 1 MiB"
        )


def _of_access(config: Config) -> Iterator[str]:
    is_local = ipaddress.ip_address(config.ip).is_loopback
    what = "write" if config.read_token else "read and write"
    if not is_local and not config.write_token:
        missing = "write_token" if config.read_token else "tokens"
        yield (
            f'ip = "{config.ip}" without {missing}: everyone who can reach the port can'
            f" {what}"
        )
    elif config.read_token and not config.write_token:
        yield "read_token without write_token: everyone who can reach the port can write"


def _of_place(place: Path) -> Iterator[str]:
    """Yield what can be known of a mount point without opening it."""
    named = f'mount_point = "{place}"'
    if place.is_dir():
        if not os.access(place, os.W_OK | os.X_OK):
            yield f"{named} is not writable by the user {_user()}"
    elif os.path.lexists(place):
        yield f"{named} is not a directory"
    else:
        yield f"{named} does not exist; the start creates it: is the disk mounted?"
        parent = place.absolute().parent
        while not parent.exists():
            parent = parent.parent
        if not os.access(parent, os.W_OK | os.X_OK):
            yield f'{named} cannot be created in "{parent}" by the user {_user()}'


def _user() -> str:
    """Return the name of the user of this process, or its number without one."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _of_ring(config: Config) -> Iterator[str]:
    """Yield what nginx is told to do with keys that this instance refuses."""
    for file in config.ring:
        nginx = Path(file).absolute().parent.parent
        for main in (nginx / "volcache.conf", nginx / "conf.d/volcache.conf"):
            text = ""
            with suppress(OSError):  # There is none, or it is not for this user.
                text = main.read_text("utf-8", "replace")
            if _FAILOVER.search(text):
                yield (
                    f'ring must be empty with failover.conf, which is in "{main}": the'
                    " keys of an instance that fails would be misses, and not stored"
                )


def _of_few_volumes(config: Config) -> str:
    """Return what too few volumes cost, and a better division of their space."""
    volumes = config.volume_num
    least = volume_size_least(config)
    better = max(least, config.volume_size * volumes // _VOLUMES_BEST // MIB * MIB)
    number = config.volume_size * volumes // better
    if number <= volumes:  # Only more capacity would help.
        number, better = VOLUMES_ADVISED, config.volume_size
    return (
        f"volume_num = {volumes} is low: {cost_of_few(volumes)}; better is volume_num ="
        f" {number} with volume_size = {format_size(better)}"
    )
