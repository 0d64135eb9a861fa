"""
The inventory: a TOML file with the machines of a cluster, their disks, ports and weights.

    [defaults]
    disks = 12

    [machines]
    cache-1 = "10.0.0.5"
    cache-2 = { address = "10.0.0.6", disks = ["/srv/nvme0", "/srv/nvme1"], weight = 20 }

Everything that a machine has may be a default. docs/CLUSTER.md lists all keys.
"""

from __future__ import annotations

import difflib
import json
import re
import string
import tomllib
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from volcache import kinds
from volcache.errors import ConfigError
from volcache.settings import SETTINGS
from volcache.text import one_line, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from volcache.kinds import Kind

    Table = Mapping[str, object]
    # Where a table is, and the table; the first one that has a key decides.
    Layers = tuple[tuple[str, Table], ...]

# As conf/systemd/volcache@.service and volcache@.socket have them.
MOUNT_POINT_DEFAULT: Final = "/srv/volcache/{port}"
LISTEN_DEFAULT: Final = "127.0.0.1"
_ANY: Final = ("0.0.0.0", "[::]")  # noqa: S104 - Compared.
_PORT_MAX: Final = 65535
_SHOWN_MAX: Final = 80  # Characters of a wrong value that an error repeats.
# Given by the inventory itself.
_NOT_SETTINGS: Final = {
    "ip": "use listen of the machine or disk",
    "port": "use port of the machine or disk",
    "mount_point": "use mount_point of the machine or disk",
    "ring": "it follows from the inventory",
    "ring_self": "it follows from the inventory",
}

_NGINX: Final = re.compile(r"^\[nginx\].*$", re.MULTILINE)
# Without comments, which a new list would not have.
_DRAINED: Final = re.compile(r"^[ \t]*drained[ \t]*=[ \t]*\[[^]#]*\]", re.MULTILINE)
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
_PATH: Final = re.compile(r"(/[A-Za-z0-9._@+:-]+)+")
_HOST: Final = kinds.text(
    "a host name or an IP address",
    lambda text: re.fullmatch(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+", text),
)
_PORT: Final = kinds.integer(1, _PORT_MAX)
_WEIGHT: Final = kinds.integer(1, 1000)
_PROCESSES: Final = kinds.integer(1, 64)
_DISK_NAME: Final = kinds.text(
    "a number of disks from 1 to 1000, or a list of disks, each a number, a name, a path,"
    ' or a table such as { name = "/srv/disk3", weight = 20 }',
    re.compile(r"[A-Za-z0-9._/@+-]{1,200}").fullmatch,
)
_DISK_NUMBER: Final = replace(kinds.integer(1, 1000), allowed=_DISK_NAME.allowed)
_MOUNT_POINT: Final = kinds.text(
    'a path such as "/srv/{disk}/{port}", in which {machine}, {disk} and {port} are'
    " replaced",
    lambda text: _is_template(text),  # noqa: PLW0108 - It is defined below.
)
_MACHINE_KEYS: Final = (
    *("address", "listen", "disks", "port", "processes", "weight", "mount_point"),
    "settings",
)
_DEFAULT_KEYS: Final = _MACHINE_KEYS[1:]
_DISK_KEYS: Final = ("name", "port", "weight", "mount_point", "settings")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of the inventory."""

    name: str
    address: str  # Where nginx and Prometheus reach its instances.
    listen: str  # The IP address its instances listen on.


@dataclass(frozen=True, slots=True)
class Instance:
    """One process."""

    machine: Machine
    disk: str
    port: int
    mount_point: str
    weight: int  # In nginx's list.
    # Of this instance, by name, as in an environment variable.
    settings: Mapping[str, str]

    @property
    def name(self) -> str:
        """The machine's name and the port."""
        return f"{self.machine.name}:{self.port}"

    @property
    def address(self) -> str:
        """HOST:PORT, as in nginx's list."""
        return f"{in_brackets(self.machine.address)}:{self.port}"

    @property
    def operator_address(self) -> str:
        """HOST:PORT where the paths under /-/ are: by the setting admin_listen."""
        given = self.settings.get("admin_listen", "").replace("%i", str(self.port))
        host, _, port = given.rpartition(":")
        if not port.isdecimal():  # None, or a unix socket.
            return self.address
        if host in _ANY:
            host = in_brackets(self.machine.address)
        return f"{host}:{port}"


@dataclass(frozen=True, slots=True)
class Inventory:
    """All machines and instances, in the order of the file."""

    machines: tuple[Machine, ...]
    instances: tuple[Instance, ...]
    # Whether nginx includes failover.conf, or growing.conf.
    is_failover: bool = False
    is_growing: bool = False
    # Names of those that nginx asks nothing.
    drained: frozenset[str] = frozenset()

    def of(self, machine: Machine) -> list[Instance]:
        """Return the instances of a machine."""
        return [found for found in self.instances if found.machine is machine]


class _Disk(NamedTuple):
    """A disk as a machine lists it."""

    where: str  # The key, for errors.
    name: str
    number: int  # From 1; decides the port.
    own: Table


def with_drained(path: Path, names: Iterable[str]) -> str:
    """
    Return the text of a valid inventory, with other instances drained.

    Raises:
        ConfigError: It has the list in a form that is not changed.
    """
    text = read_text(path)
    wanted = tomllib.loads(text)
    wanted.setdefault("nginx", {})["drained"] = sorted(names)
    line = f"drained = {json.dumps(sorted(names))}"
    if _DRAINED.search(text):
        new = _DRAINED.sub(lambda _: line, text, count=1)
    elif _NGINX.search(text):
        new = _NGINX.sub(lambda match: f"{match[0]}\n{line}", text, count=1)
    else:
        new = f"{text.rstrip()}\n\n[nginx]\n{line}\n"
    with suppress(tomllib.TOMLDecodeError):
        if tomllib.loads(new) == wanted:
            return new
    words = (rf"^[^#\n]*\b{word}\b" for word in ("drained", "nginx"))
    found = next(filter(None, (re.search(one, text, re.MULTILINE) for one in words)))
    number = text.count("\n", 0, found.end()) + 1
    raise ConfigError(
        f"{path}: line {number}: cannot be changed by a command; allowed is a list"
        f" without comments, below [nginx]: {line}"
    )


def load_inventory(path: Path) -> Inventory:
    """
    Read an inventory.

    Raises:
        ConfigError: One line that names the file, the key, its value and what is allowed.
    """
    try:
        found = tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        # ValueError itself: a number with more digits than Python converts.
        reason = one_line(str(error), 2 * _SHOWN_MAX)
        raise ConfigError(f"{path}: not valid TOML: {reason}") from error
    try:
        return _read(found)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _read(found: Table) -> Inventory:
    _check_keys("", found, ("defaults", "machines", "nginx"))
    own = _table("defaults", found.get("defaults", {}))
    _check_keys("defaults", own, _DEFAULT_KEYS)
    defaults = (("defaults", own),)
    # Also what every machine replaces is checked.
    probe = (*defaults, ("", {"address": "127.0.0.1"}))
    list(_instances(_machine("defaults", "any", probe), defaults))
    tables = _table("machines", found.get("machines", {}))
    if not tables:
        raise ConfigError(
            'machines: no machine; at least one is needed, such as cache-1 = "10.0.0.5"'
            " in the table [machines]"
        )
    machines: list[Machine] = []
    instances: list[Instance] = []
    for name, raw in tables.items():
        where = f"machines.{name if _NAME.fullmatch(name) else _shown(name)}"
        own = {"address": raw} if isinstance(raw, str) else _table(where, raw)
        _check_keys(where, own, _MACHINE_KEYS)
        layers = ((where, own), *defaults)
        machines.append(_machine(where, name, layers))
        instances += _instances(machines[-1], layers)
    _refuse_twice((found.address.lower(), found) for found in instances)
    _refuse_twice(
        ((found.machine.name, found.mount_point), found) for found in instances
    )
    nginx = _table("nginx", found.get("nginx", {}))
    modes = ("failover", "growing")
    _check_keys("nginx", nginx, (*modes, "drained"))
    failover, growing = (
        _value((("nginx", nginx),), mode, kinds.FLAG, default=False) for mode in modes
    )
    drained = nginx.get("drained", [])
    names = {found.name for found in instances}
    if not isinstance(drained, list) or not {*map(str, drained)} <= names:
        allowed = "a list of instances, MACHINE:PORT, of this inventory"
        raise _not_allowed("nginx.drained", drained, allowed)
    return Inventory(
        tuple(machines), tuple(instances), failover, growing, frozenset(drained)
    )


def _machine(where: str, name: str, layers: Layers) -> Machine:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: not the name of a machine; allowed are up to 63 letters, digits,"
            " . and -"
        )
    address = _value(layers, "address", _HOST, name)
    listen = _value(layers, "listen", kinds.ADDRESS, "")
    if not listen and not kinds.is_ip_address(address):
        raise ConfigError(
            f"{where}.address = {_shown(address)} is a host name; then listen is"
            ' needed, an IP address of the machine, or "0.0.0.0" for all'
        )
    return Machine(name, address, listen or address)


def _instances(machine: Machine, layers: Layers) -> Iterator[Instance]:
    """Yield the instances of a machine; `layers`: its table, and the defaults."""
    processes = _value(layers, "processes", _PROCESSES, 1)
    first = _value(layers, "port", _PORT, 1234)
    for disk in _disks(layers):
        all_layers = ((disk.where, disk.own), *layers)
        usual = "{disk}/{port}" if disk.name.startswith("/") else MOUNT_POINT_DEFAULT
        template = _value(all_layers, "mount_point", _MOUNT_POINT, usual)
        weight = _value(all_layers, "weight", _WEIGHT, 10)
        port = _value(
            all_layers[:1], "port", _PORT, first + (disk.number - 1) * processes
        )
        settings: dict[str, str] = {}
        for where, table in reversed(all_layers):
            settings |= _settings(where, table)
        for number in range(port, port + processes):
            if number > _PORT_MAX:
                raise ConfigError(
                    f"{disk.where}: its port would be {number}; at most {_PORT_MAX} is"
                    " allowed"
                )
            path = _mount_point(disk, template, machine.name, number)
            yield Instance(machine, disk.name, number, path, weight, settings)


def _mount_point(disk: _Disk, template: str, machine: str, port: int) -> str:
    path = template.format(machine=machine, disk=disk.name, port=port)
    path = path.replace("//", "/")
    if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        raise ConfigError(
            f"{disk.where}: the mount point would be {_shown(path)}; allowed is a path"
            " from / on, of letters, digits and . _ @ + : -, without .."
        )
    return path


def _disks(layers: Layers) -> Iterator[_Disk]:
    where, raw = _lookup(layers, "disks", 1)
    key = f"{where}.disks"
    if isinstance(raw, int):
        count = _checked(key, raw, _DISK_NUMBER)
        raw = list(range(1, count + 1))
    if not isinstance(raw, list) or not raw:
        raise _not_allowed(key, raw, _DISK_NUMBER.allowed)
    seen: set[str] = set()
    for position, item in enumerate(raw, 1):
        place = f"{key}[{position}]"
        own: Table = {}
        name = item
        if isinstance(item, dict):
            own = item
            _check_keys(place, own, _DISK_KEYS)
            name = item.get("name")
        if isinstance(name, int):
            number = _checked(place, name, _DISK_NUMBER)
            disk = _Disk(place, str(name), number, own)
        else:
            text = _checked(place, name, _DISK_NAME)
            disk = _Disk(place, text.rstrip("/") or "/", position, own)
        if disk.name in seen:
            raise ConfigError(f"{place}: disk {disk.name} is in the list twice")
        seen.add(disk.name)
        yield disk


def _settings(where: str, values: Table) -> dict[str, str]:
    """Return the settings of a table as text, checked like those of an instance."""
    where = f"{where}.settings"
    known = {s.name: s for s in SETTINGS}
    found: dict[str, str] = {}
    for name, raw in _table(where, values.get("settings", {})).items():
        setting = known.get(name)
        if name in _NOT_SETTINGS:
            raise ConfigError(f"{where}.{name}: not allowed; {_NOT_SETTINGS[name]}")
        if setting is None:
            raise _unknown(where, name, known)
        if setting.is_secret:
            raise ConfigError(
                f"{where}.{name}: a token is not allowed here; write it to the settings"
                " file of the machines"
            )
        value = _checked(f"{where}.{name}", raw, setting.kind)
        found[name] = _as_text(raw, value)
    return found


def _refuse_twice(found: Iterable[tuple[object, Instance]]) -> None:
    known: dict[object, Instance] = {}
    for key, instance in found:
        other = known.setdefault(key, instance)
        if other is not instance:
            shown = key if isinstance(key, str) else instance.mount_point
            raise ConfigError(
                f"{_place(instance)} and {_place(other)} both have {shown}; each"
                " instance needs an address and port of its own, and a mount point of"
                " its own"
            )


def _table(where: str, raw: object) -> dict[str, object]:
    if not isinstance(raw, dict):
        raise _not_allowed(where, raw, "a table")
    return raw


def _check_keys(where: str, table: Table, known: Iterable[str]) -> None:
    for key in table:
        if key not in known:
            raise _unknown(where, key, known)


def _unknown(where: str, key: str, known: Iterable[str]) -> ConfigError:
    near = difflib.get_close_matches(key.lower(), known, n=1, cutoff=0.5)
    hint = f"the closest known is {near[0]}" if near else ""
    hint = hint or f"known are {', '.join(known)}"
    if where.startswith("machines.") and "." not in where.removeprefix("machines."):
        hint += "; the name of a machine with a dot needs quotes"
    place = f"{where}: " if where else ""
    return ConfigError(f"{place}unknown key {_shown(key)}; {hint}")


def _value(layers: Layers, key: str, kind: Kind[T], default: T) -> T:
    """Return a value of the first layer that has it."""
    where, raw = _lookup(layers, key, None)
    if raw is None:  # TOML has no null.
        return default
    return _checked(f"{where}.{key}", raw, kind)


def _checked(where: str, raw: object, kind: Kind[T]) -> T:
    try:
        return kind.from_toml(raw)
    except (TypeError, ValueError):
        raise _not_allowed(where, raw, kind.allowed) from None


def _not_allowed(where: str, raw: object, allowed: str) -> ConfigError:
    return ConfigError(f"{where} = {_shown(raw)} is not allowed; allowed is {allowed}")


def _lookup(layers: Layers, key: str, default: object) -> tuple[str, object]:
    """Return a value of the first layer that has it, and where that is."""
    found = ((where, table[key]) for where, table in layers if key in table)
    return next(found, (layers[0][0], default))


def _place(instance: Instance) -> str:
    return f"machines.{instance.machine.name}, disk {instance.disk}"


def _is_template(text: str) -> bool:
    """Return whether text has no placeholders but the known ones."""
    parts = list(string.Formatter().parse(text))  # ValueError: a single brace.
    names = {name for _, name, _, _ in parts if name is not None}
    is_plain = not any(form or conversion for _, _, form, conversion in parts)
    return is_plain and bool(text) and names <= {"machine", "disk", "port"}


def _as_text(raw: object, value: object) -> str:
    """Return a setting as an environment variable has it, as it is written if possible."""
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, bool):
        return str(value).lower()
    return str(raw)


def in_brackets(host: str) -> str:
    """Return a host as an address with a port has it."""
    return f"[{host}]" if ":" in host else host


def _shown(raw: object) -> str:
    """Write a value as TOML does, on one line and cut off."""
    if isinstance(raw, str | bool):
        return one_line(json.dumps(raw, ensure_ascii=False), _SHOWN_MAX)
    return one_line(str(raw), _SHOWN_MAX)
