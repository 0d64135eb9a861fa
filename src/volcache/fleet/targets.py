"""
The instances of a cluster, from what an operator has: a file that lists them, or addresses.

A file is nginx's list (`instances.conf`) or a list of addresses, one in each line, as the
clients read them, or an inventory (TOML). Each is a target: an argument of a command, or in
`VOLCACHE_TARGET`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import ConfigError
from volcache.fleet.remote import url_of
from volcache.text import one_line
from volcache_client.discovery import read_servers
from volcache_client.errors import CacheError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_SHOWN_MAX: Final = 300  # Characters of an error.
TARGETS: Final = "VOLCACHE_TARGET"
# Where nginx reads the list, if it was installed as docs/NGINX.md says.
INSTANCES_DEFAULT: Final = "/etc/nginx/volcache/instances.conf"


class Target(NamedTuple):
    """One instance as a list has it."""

    name: str  # As the list names it; of an inventory, MACHINE:PORT.
    url: str  # From `url_of`.
    weight: int = 1
    machine: str = ""  # Empty: the list does not say.
    is_down: bool = False  # nginx's list excludes it.
    operator: str = ""  # Where the paths under /-/ are, if not at `url`.

    @property
    def operator_url(self) -> str:
        """The URL before the paths under /-/."""
        return self.operator or self.url


def read_targets(
    sources: Sequence[str], default: str = INSTANCES_DEFAULT
) -> list[Target]:
    """
    Return the instances that files and addresses name, in their order.

    Args:
        sources: Paths of files, and addresses as `url_of` takes them. A path that exists
            is a file. Without any, those of `VOLCACHE_TARGET`.
        default: If there is no such variable.

    Raises:
        ConfigError: A file cannot be read, something in it is not an instance, an
            instance is named twice, or there are no instances at all.
    """
    places: dict[str, str] = {}
    targets: list[Target] = []
    sources = list(sources) or os.environ.get(TARGETS, "").split() or [default]
    for source in sources:
        where = source if _is_file(Path(source)) else "the arguments"
        for target in _read(source):
            place = places.setdefault(target.url.lower(), where)
            if len(places) == len(targets):
                raise ConfigError(
                    f"{where}: {target.name} is also in {place}; name each instance once"
                )
            targets.append(target)
    if not targets:
        raise ConfigError(f"{', '.join(sources)}: no instances; at least one is needed")
    return targets


def _read(source: str) -> Iterator[Target]:
    """Yield what one source names."""
    path = Path(source)
    if not _is_file(path):
        yield _of_address(source)
    elif path.suffix == ".toml":
        # Loads all settings, which a command for one address does not need.
        from volcache.fleet.inventory import load_inventory  # noqa: PLC0415

        inventory = load_inventory(path)
        for instance in inventory.instances:
            yield Target(
                instance.name,
                f"http://{instance.address}",
                instance.weight,
                instance.machine.name,
                instance.name in inventory.drained,
                f"http://{instance.operator_address}",
            )
    else:
        try:
            servers = read_servers(path)
        except CacheError as error:
            raise ConfigError(one_line(str(error), _SHOWN_MAX)) from error
        for server in servers:
            found = _of_address(server.name)
            yield found._replace(weight=server.weight, is_down=server.is_down)


def _is_file(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # Too long for a name, or with a NUL.
        return False


def _of_address(source: str) -> Target:
    try:
        url = url_of(source)
    except ConfigError as error:
        if "/" in source and "://" not in source:
            raise ConfigError(
                f"{source}: there is no such file; give one that lists instances, or"
                " addresses such as 127.0.0.1:1234"
            ) from None
        raise ConfigError(f"{error}, or the path of a file that exists") from None
    return Target(url.partition("://")[2], url)
