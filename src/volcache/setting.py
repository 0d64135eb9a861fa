"""
The kinds of setting: what a value may be, and how it is read from TOML and from text.

A setting is data: name, default, text, and a range or choices. Knows no setting by
name, no file and no environment; `settings.py` has the table.
"""

from __future__ import annotations

import ipaddress
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")  # A path with one is a mistake.
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]+|/[!-~]+")
_SERVER: Final = re.compile(
    r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):[1-9][0-9]{0,4}|/[!-~]+"
)
_UNITS: Final = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting(ABC):
    """What is common to all kinds; `text` is one sentence on what the setting does."""

    name: str
    default: int | float | str | bool | tuple[str, ...]
    text: str

    @property
    @abstractmethod
    def allowed(self) -> str:
        """What the value may be, to follow the words "allowed is"."""

    @abstractmethod
    def from_toml(self, raw: object) -> int | float | str | bool | tuple[str, ...]:
        """
        Check a value as TOML has it.

        Raises:
            TypeError: It is of another type.
            ValueError: It is out of range. The caller words both.
        """

    def from_text(self, text: str) -> int | float | str | bool | tuple[str, ...]:
        """
        Check a value as an environment variable has it.

        Raises:
            ValueError: It cannot be read as the type or is out of range.
        """
        return self.from_toml(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerSetting(Setting):
    """A whole number; True and False are none."""

    low: int
    high: int
    unit: str = ""

    @property
    def allowed(self) -> str:
        """What the value may be."""
        return f"an integer{_range_text(self.low, self.high, self.unit)}"

    def from_toml(self, raw: object) -> int:
        """Check the type and the range, both ends included."""
        if isinstance(raw, bool) or not isinstance(raw, int):
            raise TypeError(raw)
        if not self.low <= raw <= self.high:
            raise ValueError(raw)
        return raw

    def from_text(self, text: str) -> int:
        """Read decimal digits."""
        return self.from_toml(int(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberSetting(Setting):
    """A number with or without a fraction; given as float."""

    low: float
    high: float
    unit: str = ""

    @property
    def allowed(self) -> str:
        """What the value may be."""
        return f"a number{_range_text(self.low, self.high, self.unit)}"

    def from_toml(self, raw: object) -> float:
        """Check the type and the range, both ends included; NaN is in no range."""
        if isinstance(raw, bool) or not isinstance(raw, int | float):
            raise TypeError(raw)
        if not self.low <= raw <= self.high:
            raise ValueError(raw)
        return float(raw)

    def from_text(self, text: str) -> float:
        """Read a decimal number."""
        return self.from_toml(float(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceSetting(Setting):
    """One of a few words."""

    choices: tuple[str, ...]

    @property
    def allowed(self) -> str:
        """What the value may be."""
        return "one of " + ", ".join(f'"{choice}"' for choice in self.choices)

    def from_toml(self, raw: object) -> str:
        """Check that the word is one of the choices, exactly as written."""
        if not isinstance(raw, str) or raw not in self.choices:
            raise ValueError(raw)
        return raw


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSetting(Setting):
    """Any text on one line."""

    empty: bool = True

    @property
    def allowed(self) -> str:
        """What the value may be."""
        kind = "text" if self.empty else "text that is not empty and"
        return f"{kind} without control characters"

    def from_toml(self, raw: object) -> str:
        """Check the type, the emptiness and the characters."""
        if not isinstance(raw, str) or _CONTROL.search(raw):
            raise ValueError(raw)
        if not raw and not self.empty:
            raise ValueError(raw)
        return raw


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSetting(Setting):
    """On or off."""

    @property
    def allowed(self) -> str:
        """What the value may be."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersSetting(Setting):
    """Where servers are: a list in TOML, separated by commas in the environment."""

    @property
    def allowed(self) -> str:
        """What the value may be."""
        return (
            'a list, perhaps empty, of "host:port", "[IPv6]:port" or the path of a unix'
            " socket"
        )

    def from_toml(self, raw: object) -> tuple[str, ...]:
        """Check every address and that none is there twice."""
        if not isinstance(raw, list) or len(set(map(str, raw))) != len(raw):
            raise TypeError(raw)
        for address in raw:
            if not isinstance(address, str) or not _SERVER.fullmatch(address):
                raise ValueError(raw)
        return tuple(raw)

    def from_text(self, text: str) -> tuple[str, ...]:
        """Split at commas."""
        return self.from_toml(
            [part.strip() for part in text.split(",") if part.strip()]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSetting(Setting):
    """A host name, an address, or the path of a unix socket."""

    @property
    def allowed(self) -> str:
        """What the value may be."""
        return "a host name, an IPv4 or IPv6 address, or the path of a unix socket"

    def from_toml(self, raw: object) -> str:
        """Check the characters; names are not resolved."""
        if not isinstance(raw, str) or not _HOST.fullmatch(raw):
            raise ValueError(raw)
        return raw


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressSetting(Setting):
    """The address of a network interface, as numbers: names are not resolved."""

    @property
    def allowed(self) -> str:
        """What the value may be."""
        return 'an IPv4 or IPv6 address such as "127.0.0.1", "0.0.0.0" or "::1"'

    def from_toml(self, raw: object) -> str:
        """Check that the text is an address; it is given as written."""
        if not isinstance(raw, str):
            # ip_address would take an integer.
            raise TypeError(raw)
        ipaddress.ip_address(raw)
        return raw


def _range_text(low: float, high: float, unit: str) -> str:
    """Write a range, sizes also in the unit that a person thinks in."""
    if unit != "bytes":
        return f" from {low} to {high}" + (f" ({unit})" if unit else "")
    return f" from {_size_text(low)} to {_size_text(high)} (bytes)"


def _size_text(size: float) -> str:
    """Write bytes: `1048576 = 1 MiB`."""
    for factor, name in _UNITS:
        if size >= factor and size % factor == 0:
            return f"{size} = {size // factor} {name}"
    return str(size)
