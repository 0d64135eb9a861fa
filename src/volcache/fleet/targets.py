"""
The instances of a cluster, from what an operator has: a file that lists them, or addresses.

A file is nginx's list (`instances.conf`), a list of addresses, one in each line, or an
inventory (TOML). Each is a target: an argument of a command, or in `VOLCACHE_TARGET`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.errors import ConfigError
from volcache.fleet.inventory import load_inventory
from volcache.fleet.remote import url_of
from volcache.text import one_line, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_HTTP_PORT: Final = 80  # nginx's default for a server without a port.
_SHOWN_MAX: Final = 80  # Characters of a wrong text that an error repeats.
_PARAMETERS: Final = (
    *("weight", "max_fails", "fail_timeout", "max_conns", "slow_start"),
    *("backup", "down", "resolve", "drain", "route", "service"),
)
_SERVER_ALLOWED: Final = "allowed is: server HOST:PORT weight=10 max_fails=0;"
_WEIGHT: Final = re.compile(r"[1-9][0-9]{0,5}")

TARGETS: Final = "VOLCACHE_TARGET"
# Where nginx reads the list, if it was installed as docs/OPERATIONS.md says.
INSTANCES_DEFAULT: Final = "/etc/nginx/volcache/instances.conf"


class Target(NamedTuple):
    """One instance as a list has it."""

    name: str  # As the list names it; of an inventory, MACHINE:PORT.
    url: str  # From `url_of`.
    weight: int = 1
    machine: str = ""  # Empty: the list does not say.
    is_down: bool = False  # nginx's list excludes it.


class _Named(NamedTuple):
    """A target, and where it is written."""

    target: Target
    place: str


def sources_of(given: Sequence[str], default: str = INSTANCES_DEFAULT) -> list[str]:
    """Return what was given, else the words of the environment, else the default."""
    return list(given) or os.environ.get(TARGETS, "").split() or [default]


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
    known: dict[str, _Named] = {}
    sources = sources_of(sources, default)
    for source in sources:
        for found in _read(source):
            key = found.target.url.lower()
            if key in known:
                raise ConfigError(
                    f"{found.place}: {found.target.name} is also in {known[key].place};"
                    " name each instance once"
                )
            known[key] = found
    if not known:
        where = ", ".join(sources)
        raise ConfigError(f"{where}: no instances; at least one is needed")
    return [found.target for found in known.values()]


def _read(source: str) -> Iterator[_Named]:
    """Yield what one source names."""
    if not _is_file(source):
        try:
            url = url_of(source)
        except ConfigError as error:
            if "/" in source and "://" not in source:
                raise ConfigError(
                    f"{source}: there is no such file; give one that lists instances, or"
                    " addresses such as 127.0.0.1:1234"
                ) from None
            raise ConfigError(f"{error}, or the path of a file that exists") from None
        yield _Named(Target(url.partition("://")[2], url), "the arguments")
        return
    path = Path(source)
    if path.suffix == ".toml":
        yield from _of_inventory(path)
        return
    text = read_text(path)
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1)]
    words = [_without_comment(line).strip() for _, line in lines]
    is_nginx = any(";" in line or line.split()[:1] == ["server"] for line in words)
    yield from (_of_nginx if is_nginx else _of_list)(source, lines)


def _is_file(source: str) -> bool:
    try:
        return Path(source).exists()
    except (OSError, ValueError):  # Too long for a name, or with a NUL.
        return False


def _of_inventory(path: Path) -> Iterator[_Named]:
    for instance in load_inventory(path).instances:
        target = Target(
            instance.name,
            f"http://{instance.address}",
            instance.weight,
            instance.machine.name,
        )
        yield _Named(target, str(path))


def _of_list(source: str, lines: Iterable[tuple[int, str]]) -> Iterator[_Named]:
    """Yield the addresses of a list with one in each line."""
    for number, line in lines:
        text = _without_comment(line).strip()
        if not text:
            continue
        place = f"{source}, line {number}"
        try:
            url = url_of(text)
        except ConfigError:
            raise ConfigError(
                f'{place}: "{_shown(text)}" is not the address of an instance; allowed is'
                " one HOST:PORT or URL in each line, and comments after #"
            ) from None
        yield _Named(Target(url.partition("://")[2], url), place)


def _of_nginx(source: str, lines: Iterable[tuple[int, str]]) -> Iterator[_Named]:
    """Yield the servers of nginx's list."""
    words: list[str] = []
    first = 0
    for number, line in lines:
        *ended, rest = _without_comment(line).split(";")
        for part in ended:
            words += part.split()
            if words:
                place = f"{source}, line {first or number}"
                yield _Named(_server(place, words), place)
            words, first = [], 0
        words += rest.split()
        first = first or (number if words else 0)
    if words:
        raise ConfigError(
            f"{source}, line {first}: the ; at the end is missing; {_SERVER_ALLOWED}"
        )


def _server(place: str, words: list[str]) -> Target:
    """Return the server of one directive, without the semicolon."""
    shown = _shown(" ".join(words))
    if words[0] != "server" or len(words) == 1:
        raise ConfigError(f'{place}: "{shown}" is not a server; {_SERVER_ALLOWED}')
    _, name, *parameters = words
    if name.startswith("unix:"):
        raise ConfigError(
            f'{place}: "{_shown(name)}" is a unix socket, which cannot be asked from'
            f" other programs; {_SERVER_ALLOWED}"
        )
    weight, is_down = 1, False
    for parameter in parameters:
        key, _, value = parameter.partition("=")
        is_down = is_down or parameter == "down"
        if key not in _PARAMETERS:
            raise ConfigError(
                f'{place}: "{_shown(parameter)}" is not a parameter of a server, or'
                f" the ; before it is missing; {_SERVER_ALLOWED}"
            )
        if key == "weight":
            if not _WEIGHT.fullmatch(value):
                raise ConfigError(
                    f'{place}: "{_shown(parameter)}" is not a weight; allowed is an'
                    " integer from 1 to 999999"
                )
            weight = int(value)
    return Target(name, _server_url(place, name), weight, is_down=is_down)


def _server_url(place: str, name: str) -> str:
    """Return the URL of a server; without a port it is that of HTTP, as in nginx."""
    for address in (name, f"{name}:{_HTTP_PORT}"):
        try:
            url = url_of(address)
        except ConfigError:
            continue
        if "://" not in name and "/" not in name:
            return url
    raise ConfigError(
        f'{place}: "{_shown(name)}" is not the address of an instance;'
        f" {_SERVER_ALLOWED}"
    )


def _without_comment(line: str) -> str:
    return line.partition("#")[0]


def _shown(text: str) -> str:
    return one_line(text, _SHOWN_MAX)
