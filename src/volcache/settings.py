"""
The settings: `Config` is the only list of their names, types, defaults and ranges.

A field of `Config` is one setting: its type, what is allowed (a kind of setting, defined
in the first part of this module), its default, what it does and what it costs. `SETTINGS`
is the same table for code that works on all settings: reading them (`config.py`), the
help of `volcache serve`, `conf/volcache.toml` and the reference page.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

TTL_MAX: Final = 2**31  # Seconds, 68 years: the longest time HTTP has a number for.

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB
UNITS: Final = {
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": KIB,
    "MiB": MIB,
    "GiB": GIB,
    "TiB": TIB,
}

_SIZE: Final = re.compile(rf"([0-9]{{1,15}}) ?({'|'.join(UNITS)})")
_LINE: Final = re.compile(r"[^\x00-\x1f\x7f]*")
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+|/[!-~]+")
_SERVER: Final = re.compile(
    r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}|/[!-~]+"
)

_LISTEN: Final = re.compile(
    r"|([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}|/[!-~]{1,106}"
)
_PORT_MAX: Final = 65535
_IPV6: Final = 6

_INTERFACE: Final = re.compile(r"[A-Za-z0-9_.-]{1,15}")  # Of the network.
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,252}")
_ORIGIN: Final = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*)://([a-z0-9._-]+|\[[0-9a-f:.]+\])"
    r"(:(?P<port>[1-9][0-9]{0,4}))?"
)
_ORIGIN_LENGTH_MAX: Final = 255
_SECRET_LENGTH_MAX: Final = 1024

VOLUME_SIZE_MIN: Final = MIB
AUTO: Final = 0  # The value of a number that is determined at the start.

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# --- Kinds of setting ------------------------------------------------------------


@dataclass(frozen=True)
class Kind(ABC, Generic[T_co]):
    """What the value of a setting may be."""

    @property
    @abstractmethod
    def allowed(self) -> str:
        """The allowed values, to follow the words "allowed is"."""

    @abstractmethod
    def from_toml(self, raw: object) -> T_co:
        """
        Check a value as TOML has it.

        Raises:
            TypeError: It has the wrong type.
            ValueError: It is out of range.
        """

    def from_text(self, text: str) -> T_co:
        """
        Check a value as an environment variable has it.

        Raises:
            TypeError: It has the wrong type.
            ValueError: It cannot be read as that type, or is out of range.
        """
        return self.from_toml(text)


@dataclass(frozen=True)
class Integer(Kind[int]):
    """An integer from `low` to `high`, both included; a bool is rejected."""

    low: int
    high: int
    unit: str = ""

    @property
    def allowed(self) -> str:
        """The range, with its unit."""
        return f"an integer from {self.low} to {self.high}{_in_brackets(self.unit)}"

    def from_toml(self, raw: object) -> int:
        """Check type and range."""
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise TypeError(raw)
        if not self.low <= raw <= self.high:
            raise ValueError(raw)
        return raw

    def from_text(self, text: str) -> int:
        """Read decimal digits."""
        return self.from_toml(int(text))


@dataclass(frozen=True)
class IntegerOrAuto(Integer):
    """An integer from `low` to `high`, or "auto", which is read as `AUTO`."""

    @property
    def allowed(self) -> str:
        """The range, and the word."""
        return f'{super().allowed}, or "auto"'

    def from_toml(self, raw: object) -> int:
        """Check the word, or type and range."""
        return AUTO if raw == "auto" else super().from_toml(raw)

    def from_text(self, text: str) -> int:
        """Read the word, or decimal digits."""
        return AUTO if text == "auto" else super().from_text(text)


@dataclass(frozen=True)
class Size(Integer):
    """A number of bytes, or text with a unit such as "160MiB"."""

    unit: str = "bytes"

    @property
    def allowed(self) -> str:
        """The range, and how a size is written."""
        return (
            f"a size from {format_size(self.low)} to {format_size(self.high)}: an integer"
            f' (bytes), or text such as "160MiB" with one of the units {", ".join(UNITS)}'
        )

    def from_toml(self, raw: object) -> int:
        """Check a number, or text that has a unit."""
        if not isinstance(raw, str):
            return super().from_toml(raw)
        match = _SIZE.fullmatch(raw)
        if match is None:
            raise ValueError(raw)
        return super().from_toml(int(match[1]) * UNITS[match[2]])

    def from_text(self, text: str) -> int:
        """Read decimal digits, with or without a unit."""
        return self.from_toml(text if text.endswith("B") else int(text))


@dataclass(frozen=True)
class SizeOrAuto(IntegerOrAuto, Size):
    """A number of bytes, or "auto"."""


@dataclass(frozen=True)
class Number(Kind[float]):
    """A number from `low` to `high`, both included, returned as float."""

    low: float
    high: float
    unit: str = ""

    @property
    def allowed(self) -> str:
        """The range, with its unit."""
        return f"a number from {self.low} to {self.high}{_in_brackets(self.unit)}"

    def from_toml(self, raw: object) -> float:
        """Check type and range; NaN is in no range."""
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise TypeError(raw)
        if not self.low <= raw <= self.high:
            raise ValueError(raw)
        return float(raw)

    def from_text(self, text: str) -> float:
        """Read a decimal number."""
        return self.from_toml(float(text))


@dataclass(frozen=True)
class Flag(Kind[bool]):
    """On or off."""

    @property
    def allowed(self) -> str:
        """Both words."""
        return "true or false"

    def from_toml(self, raw: object) -> bool:
        """Check the type."""
        if not isinstance(raw, bool):
            raise TypeError(raw)
        return raw

    def from_text(self, text: str) -> bool:
        """Read the two words as TOML writes them."""
        if text not in {"true", "false"}:
            raise ValueError(text)
        return text == "true"


@dataclass(frozen=True)
class Choice(Kind[str]):
    """One of a few words, exactly as written."""

    choices: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """All words."""
        return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)

    def from_toml(self, raw: object) -> str:
        """Check that it is one of the words."""
        if not isinstance(raw, str) or raw not in self.choices:
            raise ValueError(raw)
        return raw


@dataclass(frozen=True)
class Text(Kind[str]):
    """Text for which `is_valid` returns true; it may also raise ValueError."""

    rule: str
    is_valid: Callable[[str], object] = _LINE.fullmatch

    @property
    def allowed(self) -> str:
        """The rule in words."""
        return self.rule

    def from_toml(self, raw: object) -> str:
        """Check the type and the text; it is returned as written."""
        if not isinstance(raw, str):
            raise TypeError(raw)
        if not self.is_valid(raw):
            raise ValueError(raw)
        return raw


@dataclass(frozen=True)
class Secret(Kind[str]):
    """A token, which is never shown; what a header can carry."""

    @property
    def allowed(self) -> str:
        """The rule in words."""
        return (
            f"text of up to {_SECRET_LENGTH_MAX} characters without control characters and"
            " without spaces around it"
        )

    def from_toml(self, raw: object) -> str:
        """Check type and characters; an error does not contain it."""
        if not isinstance(raw, str):
            raise TypeError
        if len(raw) > _SECRET_LENGTH_MAX or not raw.isprintable() or raw != raw.strip():
            raise ValueError
        return raw


@dataclass(frozen=True)
class Texts(Kind[tuple[str, ...]]):
    """A list of texts, none of them twice, for which `is_valid` returns true."""

    rule: str
    is_valid: Callable[[str], object]

    @property
    def allowed(self) -> str:
        """The rule in words."""
        return (
            f"a list, possibly empty, of {self.rule}; in the environment, separated by"
            " commas"
        )

    def from_toml(self, raw: object) -> tuple[str, ...]:
        """Check every text."""
        if not isinstance(raw, list) or len(set(map(str, raw))) != len(raw):
            raise TypeError(raw)
        for text in raw:
            if not isinstance(text, str) or not self.is_valid(text):
                raise ValueError(raw)
        return tuple(raw)

    def from_text(self, text: str) -> tuple[str, ...]:
        """Split at commas."""
        return self.from_toml(
            [part.strip() for part in text.split(",") if part.strip()]
        )


def is_origin(text: str) -> bool:
    """Return whether a browser may send this as the origin of a page."""
    match = _ORIGIN.fullmatch(text)
    if match is None or len(text) > _ORIGIN_LENGTH_MAX:
        return False
    # Browsers leave the default port out, so it would never be equal.
    return (match["scheme"], match["port"]) not in {("http", "80"), ("https", "443")}


@dataclass(frozen=True)
class Origins(Texts):
    """A list of origins, or "*", which stands alone."""

    rule: str = (
        "origins as browsers send them, scheme://host or scheme://host:port (in lower case,"
        " without the default port, without a path)"
    )
    is_valid: Callable[[str], object] = is_origin

    @property
    def allowed(self) -> str:
        """The rule in words."""
        return f'"*" for all origins, or {super().allowed}'

    def from_toml(self, raw: object) -> tuple[str, ...]:
        """Check every origin."""
        return ("*",) if raw in ("*", ["*"]) else super().from_toml(raw)


LINE: Final = Text("text without control characters")
PATH: Final = Text(
    "text that is not empty and without control characters",
    lambda text: text and _LINE.fullmatch(text),
)
HOST: Final = Text(
    "a host name, an IPv4 or IPv6 address, or the path of a unix socket",
    _HOST.fullmatch,  # Names are not resolved here.
)
SERVERS: Final = Texts(
    '"host:port", "[IPv6]:port" or the path of a unix socket',
    _SERVER.fullmatch,  # Names are not resolved.
)


# At most two, see `config.py`.
LISTS: Final = Texts(
    "one or two paths of nginx's list of instances, in the second place the list before an"
    " instance was added",
    PATH.is_valid,
)


def is_listen_address(text: str) -> bool:
    """Return whether `memcache_listen` may be this; names are not resolved."""
    if _LISTEN.fullmatch(text) is None:
        return False
    return text[:1] in {"", "/"} or int(text.rpartition(":")[2]) <= _PORT_MAX


LISTEN: Final = Text(
    '"host:port", "[IPv6]:port" or the absolute path of a unix socket, up to 107 bytes',
    is_listen_address,
)
HOST_NAMES: Final = Texts(
    'host names without a port, such as "cache-1.example.org"', _HOST_NAME.fullmatch
)


def is_ip_address(text: str) -> bool:
    """Return whether text is an IP address; one of IPv6 may name an interface."""
    address, sign, interface = text.partition("%")
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return False
    is_interface = _INTERFACE.fullmatch(interface) is not None
    return not sign or (version == _IPV6 and is_interface)


ADDRESS: Final = Text(
    'an IPv4 or IPv6 address such as "127.0.0.1", "0.0.0.0", "::1" or "fe80::1%eth0"',
    is_ip_address,
)


def format_size(size: int) -> str:
    """Write a size in the largest unit that needs no fraction: `1MiB`, `1000`, `0`."""
    units = sorted(UNITS.items(), key=lambda unit: -unit[1])
    fitting = (f"{size // n}{name}" for name, n in units if size and size % n == 0)
    return next(fitting, str(size))


def _in_brackets(unit: str) -> str:
    return f" ({unit})" if unit else ""


# --- The table -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table."""

    name: str
    kind: Kind[int | float | str | bool | tuple[str, ...]]
    default: int | float | str | bool | tuple[str, ...]
    text: str  # One sentence: what the setting does.
    cost: str  # What it costs in disk, memory, time or risk.
    section: str  # The group of settings it belongs to.
    reloads: bool  # Whether it changes at a reload; otherwise at a restart.

    @property
    def allowed(self) -> str:
        """The allowed values, to follow the words "allowed is"."""
        return self.kind.allowed

    @property
    def is_secret(self) -> bool:
        """Whether the value must not be shown."""
        return isinstance(self.kind, Secret)

    @property
    def unit(self) -> str:
        """The unit of a number, such as "bytes"; empty: it has none."""
        return self.kind.unit if isinstance(self.kind, Integer | Number) else ""

    @property
    def default_toml(self) -> str:
        """The default as a TOML file has it."""
        if isinstance(self.default, float):
            return f"{self.default:g}"
        if isinstance(self.kind, IntegerOrAuto) and self.default == AUTO:
            return '"auto"'
        if isinstance(self.kind, Size):
            size = format_size(self.kind.from_toml(self.default))
            return size if size.isdigit() else json.dumps(size)
        # JSON is TOML for strings, integers, booleans and lists of strings.
        return json.dumps(self.default)


def _setting(
    kind: Kind[T],
    default: T,
    text: str,
    *,
    cost: str,
    section: str = "",
    reloads: bool = False,
) -> T:
    """
    Define a field of `Config`.

    Args:
        kind: What the value may be.
        default: Allowed by `kind`.
        text: One sentence.
        cost: One or more sentences.
        section: Title of the group that begins with this setting.
        reloads: Whether a running instance takes over a new value.
    """
    about = {
        "kind": kind,
        "text": text,
        "cost": cost,
        "section": section,
        "reloads": reloads,
    }
    return dataclasses.field(
        default=default, metadata=about, repr=not isinstance(kind, Secret)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One checked value per setting."""

    mount_point: str = _setting(
        PATH,
        "data",
        "Directory of the store; created if it does not exist.",
        cost="One process per directory; a second process is refused.",
        section="Storage",
    )
    volume_size: int = _setting(
        Size(VOLUME_SIZE_MIN, TIB),
        160 * MIB,
        "Size of one volume; at least max_value_size + max_key_size + 4KiB.",
        cost="volume_size * volume_num of disk space when all volumes are in use, plus the"
        " index files. A volume takes its space when it is first written, and is"
        " overwritten as a whole. Above 2 GiB, volume_num is limited: 32767 up to 4 GiB,"
        " half of that for each further doubling, 127 for 1 TiB.",
    )
    volume_num: int = _setting(
        IntegerOrAuto(2, 65535),
        64,
        "Number of volumes; when all are full, one is overwritten: see eviction.",
        cost="One open file per volume. auto = as many as the disk holds (at most 8192)"
        " except a twentieth of it (at least 64 MiB, but at most an eighth) and the space"
        " of the index files; determined at the start, and never fewer than there are."
        " If the disk has less space, it determines the number. With more and smaller"
        " volumes, fewer files are evicted at a time: with 16, misses are 4 % more than"
        " with 64, with 10 it is 8 %.",
    )
    eviction: str = _setting(
        Choice(("frequency", "fifo")),
        "frequency",
        "What is evicted: frequency = files that are not read again; fifo = the oldest.",
        cost="frequency misses a sixth less, and writes 1.2 times as much on average: files"
        " that are used are copied when their volume is overwritten. fifo is for files that"
        " are all read once, in the order in which they were stored. Below 4 volumes,"
        " frequency is the same as fifo.",
    )
    reinsert_reads: float = _setting(
        Number(0, 1, "bytes"),
        0.10,
        "With frequency: bytes that may be copied for each byte read.",
        cost="0 = at most 1.3 bytes are written for each byte stored.",
    )
    ip: str = _setting(
        ADDRESS,
        "127.0.0.1",
        "Address to listen on.",
        cost="On any address but loopback, everyone who can reach the port can read and"
        " write, unless tokens are set: put nginx or a firewall in front of it.",
        section="Listening",
    )
    port: int = _setting(
        Integer(0, 65535),
        1234,
        "TCP port to listen on; 0 = any free port, or no HTTP if memcache_listen is set.",
        cost="A port below 1024 needs the privilege to bind it.",
    )
    memcache_listen: str = _setting(
        LISTEN,
        "",
        "Address, or path of a unix socket, for the memcached protocol; empty = off.",
        cost="One thread. Half of the connections that the limit of descriptors allows"
        " are reserved for it. On any address but loopback, everyone who can reach the"
        " port can read and write, unless tokens are set.",
    )
    memcache_flush: bool = _setting(
        Flag(),
        default=False,
        text="Allow flush_all to clients of the memcached protocol that may write.",
        cost="Each of them can delete everything.",
        reloads=True,
    )
    idle_timeout: float = _setting(
        Number(0, 86400, "seconds"),
        120.0,
        "Time without a request after which a connection is closed; 0 = never.",
        cost="Half a kilobyte of memory per idle connection. Keep it above nginx's"
        " keepalive_timeout for upstream servers, 60 seconds, so that nginx closes first.",
    )
    head_timeout: float = _setting(
        Number(0, 3600, "seconds"),
        10.0,
        "Time for the head of a request, from its first byte on; 0 = no limit.",
        cost="A client that is slower is answered 408 and disconnected.",
    )
    transfer_timeout: float = _setting(
        Number(0, 3600, "seconds"),
        60.0,
        "Time without a byte of a body, or of an answer that is being sent; 0 = no limit.",
        cost="A client that is slower is disconnected, as is one that after this time has"
        " sent fewer than 500 bytes of its body per second.",
    )
    read_threads: int = _setting(
        Integer(1, 64),
        4,
        "Threads that read files which are not in memory.",
        cost="More can use a disk better that answers many reads at a time, but they take"
        " CPU from the thread that answers all other requests.",
    )
    log_level: str = _setting(
        Choice(("debug", "info", "warning", "error")),
        "info",
        "Lowest level of the events that are logged.",
        cost='A few lines per hour; "debug" is for investigating a problem.',
        section="Logging",
        reloads=True,
    )
    log_file: str = _setting(
        LINE,
        "",
        "File that log lines are appended to; empty = standard error.",
        cost="volcache does not rotate it. After it was renamed, SIGHUP or the next line"
        " opens a new file.",
    )
    log_format: str = _setting(
        Choice(("text", "json")),
        "text",
        "Format of log lines: text, or one JSON object per line.",
        cost="A JSON line is about twice as long.",
    )
    log_access: str = _setting(
        LINE,
        "",
        "File that one line per request or memcached command is appended to; empty = none.",
        cost='About 4 microseconds of CPU per request, 7 with log_format "json", and up to'
        " 16 MiB of memory while its disk does not respond. Requests do not wait for it.",
    )
    log_slow: float = _setting(
        Number(0, 3600, "seconds"),
        0.1,
        "Requests and commands that take longer are logged, with a breakdown of the time;"
        " 0 = none.",
        cost="At most ten lines per second; the next line says how many were omitted.",
        reloads=True,
    )
    sync_mode: str = _setting(
        Choice(("none", "periodic", "always")),
        "periodic",
        "When stored files are synced to the disk.",
        cost="A stored file survives the death of the process in every mode. A power loss"
        ' loses what the kernel had not written ("none"), at most the files of the last'
        ' sync_interval ("periodic") or nothing ("always"; each PUT waits for the disk).',
        section="Durability",
    )
    sync_interval: float = _setting(
        Number(0.01, 3600, "seconds"),
        1.0,
        'Time between two syncs if sync_mode is "periodic".',
        cost="One sync of the disk each time; requests do not wait for it.",
    )
    scrub_rate: int = _setting(
        Size(0, 100 * GIB),
        0,
        "Bytes per second that are read in the background to verify the volumes; 0 = off.",
        cost="The disk reads that much all the time, and a request may wait for one read of"
        " 256 KiB. A terabyte takes 28 hours at 10MB. A damaged file is then noticed before"
        " it is asked for.",
    )
    max_value_size: int = _setting(
        Size(0, GIB),
        MIB,
        "Size of the largest file that a PUT may store.",
        cost="A file is held in memory while it is stored or read. Set nginx's"
        " client_max_body_size to the same value.",
        section="Limits",
    )
    max_key_size: int = _setting(
        Size(1, 4 * KIB),
        KIB,
        "Size of the longest key.",
        cost="Every record contains its key, and so do the index files. Memory holds"
        " fingerprints, not keys.",
    )
    ring: tuple[str, ...] = _setting(
        LISTS,
        (),
        "nginx's list of instances (instances.conf), for which keys are this instance's;"
        " empty = all are.",
        cost="Less than 1 % of a GET; a list of 1,200 instances takes a second to read."
        " A GET or HEAD of another instance's key is a miss, a"
        " PUT or DELETE is answered 503. Keys of a second list, that of growing.conf, are"
        " read and not written. A list that is wrong stops the start; a reload keeps the"
        " one before. Must be empty with failover.conf.",
        section="Behind nginx",
        reloads=True,
    )
    ring_self: str = _setting(
        LINE,
        "",
        "The name of this instance in the list of ring, as it is written there.",
        cost='None. For an instance of systemd "10.0.0.5:%i".',
        reloads=True,
    )
    body_memory: int = _setting(
        SizeOrAuto(0, 1024 * GIB),
        AUTO,
        "Memory for the bodies of all requests that are being received; at least"
        " max_value_size.",
        cost="auto = a quarter of the memory of the machine or container, at least 64 MiB."
        " Room for a whole body is reserved before it is received, for a chunked one"
        " max_value_size. A request without room waits for head_timeout at most, and is"
        " then answered 503.",
    )
    memc_on: bool = _setting(
        Flag(),
        default=False,
        text="Keep copies of frequently read files in memcached.",
        cost="Each PUT, DELETE and miss computes a digest, about one microsecond; reads are"
        " counted.",
        section="Hot tier (memcached)",
    )
    memc_ip: str = _setting(
        HOST,
        "127.0.0.1",
        "Host of memcached; with the path of a unix socket, memc_port is ignored.",
        cost="A call to memcached takes about 15 microseconds of CPU and 30 of waiting.",
    )
    memc_port: int = _setting(
        Integer(1, 65535),
        11211,
        "TCP port of memcached.",
        cost="None.",
    )
    memc_servers: tuple[str, ...] = _setting(
        SERVERS,
        (),
        "Several memcached servers; replaces memc_ip and memc_port.",
        cost="Each key belongs to one of the servers; a changed list discards all copies.",
    )
    memc_timeout: float = _setting(
        Number(0.001, 10, "seconds"),
        0.05,
        "Longest time a request waits for memcached.",
        cost="When memcached hangs, one request waits this long; then it is bypassed.",
    )
    memc_max_value_size: int = _setting(
        Size(1, GIB),
        1_000_000,
        "Size of the largest file that is copied to memcached, including its header.",
        cost="memcached refuses items larger than its option -I, 1 MiB by default.",
    )
    cache_after_miss_count: int = _setting(
        Integer(1, 1000),
        3,
        "Number of reads from disk after which a file is copied to memcached.",
        cost="With a low number, more files are copied that are not read again.",
    )
    cache_after_miss_count_duration: float = _setting(
        Number(0.001, 86400, "seconds"),
        60.0,
        "Period in which these reads must occur.",
        cost="Counters of up to 65,536 keys are kept, about 20 MB; the least recently read"
        " keys are dropped first.",
    )
    read_token: str = _setting(
        Secret(),
        "",
        "Token that is needed to read; empty = everyone may read.",
        cost="Two to three microseconds per read, and GETs are not answered by the gate."
        " Whoever has the write_token may read, too.",
        section="Access",
        reloads=True,
    )
    write_token: str = _setting(
        Secret(),
        "",
        "Token that is needed to write; empty = everyone may write.",
        cost="Two to three microseconds per PUT. Without TLS, everyone on the network"
        " between can read it.",
        reloads=True,
    )
    cors_origins: tuple[str, ...] = _setting(
        Origins(),
        (),
        "Origins whose pages may use the cache from a browser; empty = no other site's.",
        cost='All answers get a header, with "*" two. Pages of these origins can read and'
        " write as far as the tokens allow it.",
        reloads=True,
    )
    admin_token: str = _setting(
        Secret(),
        "",
        "Token for POST /-/flush, /-/purge and /-/reload; empty = all are disabled.",
        cost="Anyone who has it can delete everything.",
        reloads=True,
    )
    admin_hosts: tuple[str, ...] = _setting(
        HOST_NAMES,
        (),
        "Host names under which /-/ is answered; addresses and localhost always are.",
        cost="None. /-/healthy, /-/ready and /-/metrics are answered under every name.",
        reloads=True,
    )
    metrics_volumes: bool = _setting(
        Flag(),
        default=False,
        text="Also show the metrics of each volume to Prometheus, 7 series for each.",
        cost="Requests wait 20 ms during a scrape with 1,000 volumes; 3 ms without.",
    )
    default_ttl: int = _setting(
        Integer(0, TTL_MAX, "seconds"),
        0,
        "Time to live of a file whose PUT does not set one; 0 = no expiry.",
        cost="None. The space of an expired file is freed when its volume is overwritten.",
        section="Expiry",
    )
    max_ttl: int = _setting(
        Integer(0, TTL_MAX, "seconds"),
        0,
        "Longest time to live, whatever the PUT sets; 0 = no limit.",
        cost="None. Files stored before it was set keep their expiry.",
    )


def _settings() -> tuple[Setting, ...]:
    """Return the fields of `Config` as a table."""
    rows: list[Setting] = []
    for field in dataclasses.fields(Config):
        about: dict[str, Any] = dict(field.metadata, default=field.default)
        about["section"] = about["section"] or rows[-1].section
        rows.append(Setting(name=field.name, **about))
    return tuple(rows)


SETTINGS: Final = _settings()


def value_of(config: Config, setting: Setting) -> object:
    """Return the value of a setting as it is written: a number, or the word "auto"."""
    value: object = getattr(config, setting.name)
    return "auto" if isinstance(setting.kind, IntegerOrAuto) and not value else value


def visible_settings(config: Config) -> dict[str, object]:
    """Return all settings by name, for JSON; of a secret, whether it is set."""
    found: dict[str, object] = {}
    for setting in SETTINGS:
        value = value_of(config, setting)
        if setting.is_secret:
            value = bool(value)
        found[setting.name] = list(value) if isinstance(value, tuple) else value
    return found
