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
import textwrap
import tomllib
from dataclasses import dataclass, field
from stat import S_ISREG
from typing import TYPE_CHECKING, Any, Final

from volcache.errors import ConfigError
from volcache.geometry import volumes_max
from volcache.memory import default_body_memory
from volcache.settings import DEFAULTS, SETTINGS, Config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from volcache.settings import Setting

ENVIRONMENT_PREFIX: Final = "VOLCACHE_"
INSTANCE_VARIABLE: Final = "VOLCACHE_INSTANCE"
RECORD_OVERHEAD_MAX: Final = 4096  # Bytes; header, content type and encoding fit well.
FILE_BYTES_MAX: Final = 1 << 20
SHOWN_MAX: Final = 80  # Characters of a wrong value that an error repeats.
SAMPLE_COLUMNS: Final = 88
_HIDDEN: Final = "(not shown)"
_OPTION: Final = "option --set"
_INSTANCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SPECIFIER: Final = re.compile("%(.?)", re.DOTALL)
_AT_LINE: Final = re.compile(r"\(at line ([0-9]+)")
# The name at the beginning of a line: of a setting, or of a table.
_BEGINNING: Final = re.compile(r"[\s\[]*[\"']?([^\s\"'=.\[\]]+)[\"']?\s*[]=.]")
_LINES_TRIED_MAX: Final = 20
_LISTS_MAX: Final = 2
_PROBLEMS_MAX: Final = 100  # of a file that are looked at


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
class _Reader:
    """Collects values, where they come from, and what is wrong with them."""

    values: dict[str, Any]
    sources: dict[str, str]
    instance: str = ""
    problems: list[Problem] = field(default_factory=list)

    def take(
        self,
        setting: Setting,
        raw: object,
        source: str,
        *,
        is_text: bool,
        line: int = 0,
    ) -> None:
        """Check a value; the last one counts."""
        try:
            expanded = raw if setting.is_secret else _expanded(raw, self.instance)
        except _SpecifierError as error:
            text = f"{setting.name} = {_shown(raw)} {error}"
            self.problems.append(Problem(source, text, line))
            return
        kind = setting.kind
        # A number that contains the name of the instance can only be written as text.
        is_text = is_text or (isinstance(raw, str) and expanded != raw)
        try:
            value = (
                kind.from_text(expanded)
                if is_text and isinstance(expanded, str)
                else kind.from_toml(expanded)
            )
        except (TypeError, ValueError):
            self.problems.append(_not_allowed(source, setting, raw, line))
            return
        self.values[setting.name] = value
        self.sources[setting.name] = source


class _SpecifierError(Exception):
    """A percent sign in a text that cannot be replaced."""


def load_config(
    path: Path | None,
    environ: Mapping[str, str],
    existing: Mapping[str, int] | None = None,
    *,
    options: Sequence[str] = (),
    instance: str = "",
) -> Config:
    """
    Read the settings; the arguments are those of `read_settings`.

    Raises:
        ConfigError: One line that names the source, the setting, its value and what is
            allowed; or why the file cannot be read. Of several, the first.
    """
    reading = read_settings(path, environ, existing, options=options, instance=instance)
    if reading.problems:
        raise ConfigError(_first_of(reading.problems))
    return reading.config


def load_config_again(
    path: Path | None,
    environ: Mapping[str, str],
    *,
    options: Sequence[str] = (),
    instance: str = "",
) -> Config:
    """
    Read the settings as `load_config` has read them when the process started.

    Raises:
        ConfigError: Also if the file is not a regular file, or is empty: a pipe has ended,
            or a file is being written. Every setting would have its default, and there
            would be no tokens.
    """
    if path is not None:
        try:
            found = path.stat()
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        if not S_ISREG(found.st_mode):
            raise ConfigError(f"{path}: not a regular file; it can be read only once")
        if not found.st_size:
            raise ConfigError(
                f"{path}: empty; write at least a comment, and replace the file by renaming"
                " another"
            )
    return load_config(path, environ, options=options, instance=instance)


def _first_of(problems: Sequence[Problem]) -> str:
    more = len(problems) - 1
    hint = f" (and {more} more: volcache config check lists them)" if more else ""
    return f"{problems[0]}{hint}"


def read_settings(
    path: Path | None,
    environ: Mapping[str, str],
    existing: Mapping[str, int] | None = None,
    *,
    options: Sequence[str] = (),
    instance: str = "",
) -> Reading:
    """
    Read the settings: defaults, then the file, then the environment, then options.

    In a text that is not a secret, `%i` stands for the name of the instance, and `%%` for
    a percent sign.

    Args:
        path: A TOML file, or None for none.
        environ: Variables; those that begin with `VOLCACHE_` are settings.
        existing: Values of an existing mount point, by name; they replace the defaults.
        options: Each `NAME=VALUE`, with the value as in a variable.
        instance: The name; empty = that of the variable VOLCACHE_INSTANCE, if any.
    """
    sources = dict.fromkeys((setting.name for setting in SETTINGS), "default")
    sources |= dict.fromkeys(existing or {}, "of the existing volumes")
    reader = _Reader(dict(existing or {}), sources)
    _take_instance(reader, environ, instance)
    if path is not None:
        _take_file(reader, path)
    _take_environment(reader, environ)
    _take_options(reader, options)
    config = dataclasses.replace(DEFAULTS, **reader.values)
    if not reader.problems:
        reader.problems += _check_volume_holds_largest_record(config, sources)
        reader.problems += _check_number_of_volumes(config, sources)
        reader.problems += _check_memory_holds_largest_body(config, sources)
        reader.problems += _check_ring(config, sources)
    return Reading(config, sources, tuple(reader.problems))


def _take_instance(reader: _Reader, environ: Mapping[str, str], given: str) -> None:
    name = given or environ.get(INSTANCE_VARIABLE, "")
    if not name or _INSTANCE.fullmatch(name):
        reader.instance = name
        return
    source = (
        "option --instance" if given else f"environment variable {INSTANCE_VARIABLE}"
    )
    text = (
        f"{_shown(name)} is not allowed; allowed are 1 to 64 letters, digits, dots,"
        " underscores and hyphens, the first one a letter or a digit"
    )
    reader.problems.append(Problem(source, text))
    reader.instance = "1"  # So that it is the only problem.


def _take_file(reader: _Reader, path: Path) -> None:
    """Take the settings of a file."""
    source = str(path)
    try:
        text = _read_file(path)
        found = tomllib.loads(text)
    except ConfigError as error:
        reader.problems.append(Problem(source, str(error)))
        return
    except (ValueError, RecursionError) as error:
        # ValueError itself: a number with more digits than Python converts.
        line = _AT_LINE.search(str(error))
        problem = Problem(
            source, f"not valid TOML: {error}", int(line[1]) if line else 0
        )
        reader.problems.append(problem)
        return
    by_name = {setting.name: setting for setting in SETTINGS}
    before = len(reader.problems)
    names: list[str] = []
    for name, raw in found.items():
        setting = by_name.get(name)
        if setting is None:
            reader.problems.append(_unknown_name(source, "setting", name, raw, by_name))
        else:
            reader.take(setting, raw, source, is_text=False)
        names += [name] * (len(reader.problems) - before - len(names))
        if len(names) >= _PROBLEMS_MAX:
            break
    reader.problems[before:] = _located(reader.problems[before:], names, text)


def _read_file(path: Path) -> str:
    """
    Return the text of a file.

    Raises:
        ConfigError: Why not, without the name of the file.
    """
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(
            f"larger than {FILE_BYTES_MAX} bytes, the most that is allowed"
        )
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: invalid byte at offset {error.start}"
        raise ConfigError(message) from error


def _located(
    problems: Sequence[Problem], names: Sequence[str], text: str
) -> Iterator[Problem]:
    """Yield problems with the settings of these names, with the number of the line."""
    lines = text.splitlines(keepends=True)
    beginnings: dict[str, list[int]] = {}
    for number, line in enumerate(lines if problems else ()):
        match = _BEGINNING.match(line)
        if match:
            beginnings.setdefault(match[1], []).append(number)
    tried = 0
    for problem, name in zip(problems, names, strict=True):
        found = beginnings.get(name, [])
        if len(found) > 1:
            # Others may be inside of a text of several lines, or in a table.
            tried += len(found)
            is_start = _is_toml if tried <= _LINES_TRIED_MAX else lambda _text: False
            found = [n for n in found if is_start("".join(lines[:n]))]
        yield Problem(problem.source, problem.text, found[0] + 1 if found else 0)


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _take_environment(reader: _Reader, environ: Mapping[str, str]) -> None:
    """Take the settings of the environment; other variables are ignored."""
    by_variable = {ENVIRONMENT_PREFIX + s.name.upper(): s for s in SETTINGS}
    for variable, text in sorted(environ.items()):
        is_ours = variable.startswith(ENVIRONMENT_PREFIX)
        if not is_ours or variable == INSTANCE_VARIABLE:
            continue
        setting = by_variable.get(variable)
        if setting is None:
            reader.problems.append(
                _unknown_name("environment", "variable", variable, text, by_variable)
            )
            continue
        reader.take(setting, text, f"environment variable {variable}", is_text=True)


def _take_options(reader: _Reader, options: Sequence[str]) -> None:
    """Take the settings of options."""
    by_name = {setting.name: setting for setting in SETTINGS}
    for option in options:
        name, equals, text = option.partition("=")
        setting = by_name.get(name)
        if not equals:
            # It may be a token whose name was forgotten.
            problem = Problem(_OPTION, "not of the form NAME=VALUE")
            if setting is not None:
                problem = Problem(_OPTION, f"{name} has no value; write {name}=VALUE")
            reader.problems.append(problem)
        elif setting is None:
            reader.problems.append(
                _unknown_name(_OPTION, "setting", name, text, by_name)
            )
        else:
            reader.take(setting, text, _OPTION, is_text=True)


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


def _check_volume_holds_largest_record(
    config: Config, sources: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield a problem if the limits accept a file which no volume can hold."""
    needed = config.max_value_size + config.max_key_size + RECORD_OVERHEAD_MAX
    if config.volume_size >= needed:
        return

    def described(name: str) -> str:
        return f"{name} = {getattr(config, name)} ({sources[name]})"

    yield Problem(
        "",
        f"{described('volume_size')} is too small for the largest record; "
        f"allowed is at least {needed}: {described('max_value_size')} + "
        f"{described('max_key_size')} + {RECORD_OVERHEAD_MAX}",
    )


def _check_number_of_volumes(
    config: Config, sources: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield a problem if the index has too few positions for the number of volumes."""
    most = volumes_max(config.volume_size)
    if config.volume_num > most:
        yield Problem(
            "",
            f"volume_num = {config.volume_num} ({sources['volume_num']}) is too high for"
            f" volume_size = {config.volume_size} ({sources['volume_size']}); allowed is at"
            f" most {most}",
        )


def _check_memory_holds_largest_body(
    config: Config, sources: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield a problem if there is never room for a body that is allowed."""
    memory = config.body_memory or default_body_memory()
    if memory < config.max_value_size:
        yield Problem(
            "",
            f"body_memory = {memory} ({sources['body_memory']}) is too small for the"
            f" largest body; allowed is at least max_value_size = {config.max_value_size}"
            f" ({sources['max_value_size']})",
        )


def _check_ring(config: Config, sources: Mapping[str, str]) -> Iterator[Problem]:
    """Yield a problem if there is a list without a name in it, or too many of them."""
    if len(config.ring) > _LISTS_MAX:
        text = f"ring has {len(config.ring)} lists; allowed are at most {_LISTS_MAX}"
        yield Problem(sources["ring"], text)
    if config.ring and not config.ring_self:
        yield Problem(
            sources["ring"],
            "ring needs ring_self, the name of this instance in the list, such as"
            ' "10.0.0.5:1234"',
        )


def _not_allowed(source: str, setting: Setting, raw: object, line: int) -> Problem:
    """Return the problem of a value that is not allowed."""
    shown = _HIDDEN if setting.is_secret else _shown(raw)
    text = f"{setting.name} = {shown} is not allowed; allowed is {setting.kind.allowed}"
    return Problem(source, text, line)


def _unknown_name(
    source: str, kind: str, name: str, raw: object, known: Iterable[str]
) -> Problem:
    """Return the problem of an unknown name, with the closest known one."""
    folded = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), folded, n=1, cutoff=0.5)
    if isinstance(raw, dict):
        hint = "settings are not in a [table]: write each on a line of its own"
    elif near:
        hint = f"the closest known is {folded[near[0]]}"
    else:
        hint = f"known are {', '.join(folded.values())}"
    shown_name = name if name.isidentifier() else _shown(name)
    # It may be that of a token whose name is misspelt.
    is_secret = "token" in f"{name} {near} {raw}".lower()
    shown = _HIDDEN if is_secret else _shown(raw)
    return Problem(source, f"unknown {kind} {shown_name} = {shown}; {hint}")


def _shown(raw: object) -> str:
    """Write a value as TOML does, on one line and cut off after `SHOWN_MAX`."""
    if isinstance(raw, bool):
        return str(raw).lower()
    is_json = isinstance(raw, str | list)
    text = json.dumps(raw, default=str) if is_json else " ".join(str(raw).split())
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX] + "..."


def sample() -> str:
    """Return `conf/volcache.toml`: every setting at its default, with an explanation."""
    intro = (
        "volcache: every setting at its default. A line that is left out has the same"
        f" effect. Environment variables {ENVIRONMENT_PREFIX}<SETTING>, such as"
        f" {ENVIRONMENT_PREFIX}PORT=8000, override this file. A wrong name or value stops"
        " the start with one line that states the reason. Relative paths are relative to"
        " the working directory. In text other than a token, %i stands for the name of the"
        f" instance (serve --instance NAME, or {INSTANCE_VARIABLE}) and %% for a percent"
        ' sign; a number may be text that contains it, as in port = "%i". Settings marked'
        " with (R) change at a reload, the others at a restart."
    )
    parts = [_comment(intro)]
    section = ""
    for setting in SETTINGS:
        if setting.section != section:
            section = setting.section
            parts.append(f"# --- {section} ".ljust(SAMPLE_COLUMNS - 3, "-"))
        reloads = " (R)" if setting.reloads else ""
        lines = (
            setting.text + reloads,
            f"Allowed: {setting.kind.allowed}.",
            f"Cost: {setting.cost}",
        )
        explained = "\n".join(map(_comment, lines))
        parts.append(f"{explained}\n{setting.name} = {setting.default_toml}")
    return "\n\n".join(parts) + "\n"


def _comment(text: str) -> str:
    return textwrap.fill(
        text,
        SAMPLE_COLUMNS,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
