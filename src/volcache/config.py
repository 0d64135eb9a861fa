"""
Read the settings from a TOML file, the environment and options, and check them.

The result is a `Config` (`settings.py`). Only `wiring.py` and `cli/` use it; all other
modules receive plain values.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import tomllib
from dataclasses import dataclass, field
from itertools import islice
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from volcache.errors import ConfigError
from volcache.geometry import volumes_max
from volcache.kinds import MIB, VOLUME_SIZE_MIN
from volcache.memory import default_body_memory
from volcache.settings import DEFAULTS, SETTINGS, Config
from volcache.text import read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from volcache.settings import Setting

ENVIRONMENT_PREFIX: Final = "VOLCACHE_"
INSTANCE_VARIABLE: Final = "VOLCACHE_INSTANCE"
# No settings; a shell in which the commands are used has the other one (fleet/targets.py).
_NO_SETTINGS: Final = frozenset({INSTANCE_VARIABLE, "VOLCACHE_TARGET"})
RECORD_OVERHEAD_MAX: Final = 4096  # Bytes; header, content type and encoding fit well.
SHOWN_MAX: Final = 80  # Characters of a wrong value that an error repeats.
_HIDDEN: Final = "(not shown)"
_OPTION: Final = "option --set"
_INSTANCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SPECIFIER: Final = re.compile("%(.?)", re.DOTALL)
_AT_LINE: Final = re.compile(r"\(at line ([0-9]+)")
_LINES_TRIED_MAX: Final = 20
_LISTS_MAX: Final = 2
# With "auto": bytes of the largest value, and how many of them the memory for bodies holds.
_VALUE_SIZE_MAX: Final = 64 * MIB
_VALUES_MIN: Final = 4
_PROBLEMS_MAX: Final = 100  # of a file that are looked at
_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
_BY_VARIABLE: Final = {
    f"{ENVIRONMENT_PREFIX}{name.upper()}": setting for name, setting in _BY_NAME.items()
}


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a setting is refused."""

    source: str  # a file, the environment or an option; empty if it is in the text
    text: str
    line: int = 0  # of the file; 0 = not known

    def __str__(self) -> str:
        """Return one line without the number of the line in the file."""
        return f"{self.source}: {self.text}" if self.source else self.text

    @property
    def located(self) -> str:
        """The same with that number."""
        return f"{self.source}:{self.line}: {self.text}" if self.line else str(self)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read: `config` is what is in effect, if there are no problems."""

    config: Config
    sources: Mapping[str, str]  # of each setting
    problems: Sequence[Problem]


@dataclass(slots=True)
class _Collector:
    """Collects values, where they come from, and what is wrong with them."""

    values: dict[str, Any]
    sources: dict[str, str]
    instance: str
    problems: list[Problem] = field(default_factory=list)

    def add_text(
        self, known: Mapping[str, Setting], name: str, text: str, source: str
    ) -> None:
        """Check a value of the environment or of an option."""
        why = self.add(known, name, text, source, is_text=True)
        if why:
            self.problems.append(Problem(source, why))

    def add(
        self,
        known: Mapping[str, Setting],
        name: str,
        raw: object,
        source: str,
        *,
        is_text: bool = False,
    ) -> str:
        """Check a value, of which the last one counts; return what is wrong with it."""
        setting = known.get(name)
        if setting is None:
            return _unknown_name(name, raw, known)
        try:
            expanded = raw if setting.is_secret else _expanded(raw, self.instance)
            # A number that contains the name of the instance can only be written as text.
            is_read = is_text or (isinstance(raw, str) and expanded != raw)
            value = setting.kind.read(str(expanded)) if is_read else expanded
            self.values[setting.name] = setting.kind.from_toml(value)
        except _SpecifierError as error:
            return f"{setting.name} = {_shown(raw)} {error}"
        except (TypeError, ValueError):
            shown = _HIDDEN if setting.is_secret else _shown(raw)
            return (
                f"{setting.name} = {shown} is not allowed; allowed is"
                f" {setting.kind.allowed}"
            )
        self.sources[setting.name] = source
        return ""


class _SpecifierError(Exception):
    """A percent sign in a text that cannot be replaced."""


class Sources(NamedTuple):
    """
    Where settings are read from: defaults, then a file, the environment, and options.

    In a text that is not a secret, `%i` stands for the name of the instance, and `%%` for
    a percent sign.

    Attributes:
        path: A TOML file, or None for none.
        environ: Variables; those that begin with `VOLCACHE_` are settings.
        options: Each `NAME=VALUE`, with the value as in a variable.
        instance: The name; empty = that of the variable VOLCACHE_INSTANCE, if any.
    """

    path: Path | None
    environ: Mapping[str, str]
    options: Sequence[str] = ()
    instance: str = ""

    def load(self) -> Config:
        """
        Return the settings.

        Raises:
            ConfigError: One line that names the source, the setting, its value and what
                is allowed; or why the file cannot be read. Of several, the first.
        """
        reading = self.read()
        if reading.problems:
            more = len(reading.problems) - 1
            hint = f" (and {more} more: volcache config check lists them)"
            raise ConfigError(f"{reading.problems[0]}{hint if more else ''}")
        return reading.config

    def load_again(self) -> Config:
        """
        Return the settings, after `load` when the process started.

        Raises:
            ConfigError: Also if the file is not a regular file, or is empty: a pipe has
                ended, or a file is being written. Every setting would have its default,
                and there would be no tokens.
        """
        if self.path is not None:
            try:
                found = self.path.stat()
            except OSError as error:
                reason = f"cannot be read: {error.strerror}"
                raise ConfigError(f"{self.path}: {reason}") from error
            if not S_ISREG(found.st_mode):
                reason = "not a regular file; it can be read only once"
                raise ConfigError(f"{self.path}: {reason}")
            if not found.st_size:
                raise ConfigError(
                    f"{self.path}: empty; write at least a comment, and replace the file by"
                    " renaming another"
                )
        return self.load()

    def read(self) -> Reading:
        """Read the settings, and find all that is wrong."""
        sources = dict.fromkeys(_BY_NAME, "default")
        name = self.instance or self.environ.get(INSTANCE_VARIABLE, "")
        found = _Collector({}, sources, name)
        if name and not _INSTANCE.fullmatch(name):
            found.instance = "1"  # So that it is the only problem.
            source = "option --instance"
            if not self.instance:
                source = f"environment variable {INSTANCE_VARIABLE}"
            text = (
                f"{_shown(name)} is not allowed; allowed are 1 to 64 letters, digits, dots,"
                " underscores and hyphens, the first one a letter or a digit"
            )
            found.problems.append(Problem(source, text))
        if self.path is not None:
            _add_file(found, self.path)
        _add_environment(found, self.environ)
        _add_options(found, self.options)
        config = dataclasses.replace(DEFAULTS, **found.values)
        if not found.problems:
            found.problems += _conflicts(config, sources)
        return Reading(config, sources, tuple(found.problems))


def value_size_max(config: Config) -> int:
    """Return the size of the largest value; "auto" is what memory and volumes allow."""
    if config.max_value_size:
        return config.max_value_size
    memory = config.body_memory or default_body_memory()
    room = config.volume_size - config.max_key_size - RECORD_OVERHEAD_MAX
    return min(_VALUE_SIZE_MAX, memory // _VALUES_MIN, room)


def volume_size_least(config: Config) -> int:
    """Return the size of the smallest volume in which the largest record fits."""
    least = value_size_max(config) + config.max_key_size + RECORD_OVERHEAD_MAX
    return max(VOLUME_SIZE_MIN, least + -least % MIB)


def _add_file(found: _Collector, path: Path) -> None:
    source = str(path)
    try:
        text = read_text(path, mib=1)
        table = tomllib.loads(text)
    except ConfigError as error:
        found.problems.append(Problem("", str(error)))
        return
    except (ValueError, RecursionError) as error:
        # ValueError itself: a number with more digits than Python converts.
        line = _AT_LINE.search(str(error))
        why = f"not valid TOML: {error}"
        found.problems.append(Problem(source, why, int(line[1]) if line else 0))
        return
    wrong = (
        (name, why)
        for name, raw in table.items()
        if (why := found.add(_BY_NAME, name, raw, source))
    )
    found.problems += _located(source, islice(wrong, _PROBLEMS_MAX), text)


def _located(
    source: str, wrong: Iterable[tuple[str, str]], text: str
) -> Iterator[Problem]:
    """Yield what is wrong with settings of a file, with the number of the line."""
    tries = iter(range(_LINES_TRIED_MAX))
    for name, why in wrong:
        lines = re.finditer(
            rf"^[ \t\[]*[\"']?{re.escape(name)}[\"']?[ \t]*[]=.]", text, re.MULTILINE
        )
        found = [line.start() for line in lines]
        if len(found) > 1:
            # Others may be inside of a text of several lines, or in a table.
            found = [n for n in found if next(tries, -1) >= 0 and _is_toml(text[:n])]
        yield Problem(source, why, text.count("\n", 0, found[0]) + 1 if found else 0)


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _add_environment(found: _Collector, environ: Mapping[str, str]) -> None:
    """Add the settings of the environment; other variables are ignored."""
    for variable, text in sorted(environ.items()):
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in _NO_SETTINGS:
            is_known = variable in _BY_VARIABLE
            source = f"environment variable {variable}" if is_known else "environment"
            found.add_text(_BY_VARIABLE, variable, text, source)


def _add_options(found: _Collector, options: Sequence[str]) -> None:
    for option in options:
        name, equals, text = option.partition("=")
        if equals:
            found.add_text(_BY_NAME, name, text, _OPTION)
            continue
        # It may be a token whose name was forgotten.
        why = "not of the form NAME=VALUE"
        if name in _BY_NAME:
            why = f"{name} has no value; write {name}=VALUE"
        found.problems.append(Problem(_OPTION, why))


def _expanded(raw: object, instance: str) -> object:
    """
    Return a value with the name of the instance put in.

    Raises:
        _SpecifierError: There is no name, or another percent sign.
    """
    if isinstance(raw, list):
        return [_expanded(part, instance) for part in raw]
    if not isinstance(raw, str):
        return raw

    def replaced(match: re.Match[str]) -> str:
        if match[1] == "%":
            return "%"
        if match[1] != "i":
            raise _SpecifierError(
                'is not allowed; allowed after "%" are "i", the name of the instance, and'
                ' "%", a percent sign'
            )
        if not instance:
            raise _SpecifierError(
                "contains %i, but the instance has no name; set it by --instance NAME or"
                f" {INSTANCE_VARIABLE}, or write %% for a percent sign"
            )
        return instance

    return _SPECIFIER.sub(replaced, raw)


def _conflicts(config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Yield what is wrong with settings that are allowed each by itself."""

    def named(name: str, value: object = None) -> str:
        found = getattr(config, name) if value is None else value
        return f"{name} = {found} ({sources[name]})"

    volume, value = named("volume_size"), named("max_value_size")
    least = config.max_value_size + config.max_key_size + RECORD_OVERHEAD_MAX
    if config.volume_size < least:
        yield Problem(
            "",
            f"{volume} is too small for the largest record; allowed is at least {least}:"
            f" {value} + {named('max_key_size')} + {RECORD_OVERHEAD_MAX}",
        )
    # The index has so many positions.
    most = volumes_max(config.volume_size)
    if config.volume_num > most:
        number = named("volume_num")
        text = f"{number} is too high for {volume}; allowed is at most {most}"
        yield Problem("", text)
    memory = config.body_memory or default_body_memory()
    if memory < config.max_value_size:
        yield Problem(
            "",
            f"{named('body_memory', memory)} is too small for the largest body; allowed is"
            f" at least {value}",
        )
    if len(config.ring) > _LISTS_MAX:
        text = f"ring has {len(config.ring)} lists; allowed are at most {_LISTS_MAX}"
        yield Problem(sources["ring"], text)
    if config.ring and not config.ring_self:
        text = "ring needs ring_self, the name of this instance in the list, such as"
        yield Problem(sources["ring"], f'{text} "10.0.0.5:1234"')


def _unknown_name(name: str, raw: object, known: Mapping[str, Setting]) -> str:
    """Return what is wrong with an unknown name, with the closest known one."""
    folded = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    if isinstance(raw, dict):
        hint = "settings are not in a [table]: write each on a line of its own"
    elif near:
        hint = f"the closest known is {folded[near[0]]}"
    else:
        hint = f"known are {', '.join(known)}"
    kind = "variable" if known is _BY_VARIABLE else "setting"
    shown_name = name if name.isidentifier() else _shown(name)
    # It may be that of a token whose name is misspelt.
    is_secret = "token" in f"{name} {near} {raw}".lower()
    return (
        f"unknown {kind} {shown_name} = {_HIDDEN if is_secret else _shown(raw)}; {hint}"
    )


def _shown(raw: object) -> str:
    """Write a value as TOML does, on one line and cut off after `SHOWN_MAX`."""
    if isinstance(raw, bool):
        return str(raw).lower()
    is_json = isinstance(raw, str | list)
    text = json.dumps(raw, default=str) if is_json else " ".join(str(raw).split())
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."
