"""
Read the part of the Dockerfile language that this project uses.

For `image_check.py`, which executes the steps without a container engine, and for tests.
What is not understood is an error: a step is never skipped.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

KEYWORDS: Final = frozenset({
    *("ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK"),
    *("LABEL", "RUN", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
})  # fmt: skip
_OPTION: Final = re.compile(r"--([a-z-]+)=(\S*)\s*")
_VARIABLE: Final = re.compile(r"\$(?:(\w+)|\{(\w+)\}|(.?))")


class DockerfileError(Exception):
    """A line that is not understood; the message begins with its number."""


class Step(NamedTuple):
    """One instruction."""

    line: int  # the first of its lines, from 1
    keyword: str  # in capitals
    options: dict[str, list[str]]  # such as from=build; one may be repeated
    text: str  # what follows, in one line

    def words(self) -> list[str]:
        """
        Return the words of a list in JSON, or of a line for the shell.

        Raises:
            DockerfileError: It is neither.
        """
        try:
            found = (
                json.loads(self.text)
                if self.text.startswith("[")
                else shlex.split(self.text)
            )
        except ValueError as error:
            raise DockerfileError(f"{self.line}: {self.keyword}: {error}") from error
        return [str(word) for word in found]

    def argv(self) -> list[str]:
        """
        Return a command in its exec form, without a shell, so that it gets the signals.

        Raises:
            DockerfileError: It is in the shell form.
        """
        if not self.text.startswith("["):
            raise DockerfileError(
                f'{self.line}: {self.keyword} needs a list: ["program", "argument"]'
            )
        return self.words()

    def pairs(self) -> dict[str, str]:
        """
        Return the names and values of ENV, LABEL or ARG.

        Raises:
            DockerfileError: A word is not NAME=VALUE; for ARG, NAME alone is left out.
        """
        found = {}
        for word in self.words():
            name, equals, value = word.partition("=")
            if equals:
                found[name] = value
            elif self.keyword != "ARG":
                raise DockerfileError(f"{self.line}: {word}: write NAME=VALUE")
        return found


@dataclass(slots=True)
class Stage:
    """One FROM, and what follows until the next."""

    base: str  # an image, or the name of a stage before
    name: str  # empty if it has none
    steps: list[Step] = field(default_factory=list)

    def last(self, keyword: str) -> Step | None:
        """Return the last step of a kind, which is the one that counts."""
        found = [step for step in self.steps if step.keyword == keyword]
        return found[-1] if found else None


def parse(text: str, arguments: Mapping[str, str] | None = None) -> list[Stage]:
    """
    Return the stages of a Dockerfile.

    Args:
        text: The file.
        arguments: Of the build; they replace the defaults of ARG before the first FROM.

    Raises:
        DockerfileError: A line is not understood.
    """
    stages: list[Stage] = []
    variables: dict[str, str] = {}
    for number, line in _lines(text):
        step = _step(number, line)
        if step.keyword == "FROM":
            stages.append(_stage(step, variables))
        elif stages:
            stages[-1].steps.append(step)
        elif step.keyword == "ARG":
            variables |= step.pairs()
            variables |= {
                name: value
                for name, value in (arguments or {}).items()
                if name in variables
            }
        else:
            raise DockerfileError(f"{number}: {step.keyword} before the first FROM")
    if not stages:
        raise DockerfileError("1: there is no FROM")
    return stages


def expand(text: str, variables: Mapping[str, str]) -> str:
    """
    Put variables in, `$NAME` or `${NAME}`; an unknown one is empty.

    Raises:
        DockerfileError: A dollar sign is followed by something else.
    """

    def replaced(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if not name:
            raise DockerfileError(f"0: ${match[3]} is not understood in {text!r}")
        return variables.get(name, "")

    return _VARIABLE.sub(replaced, text)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield instructions with the number of their first line, without comments."""
    first, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("#") or not (stripped or parts):
            continue
        first = first if parts else number
        is_continued = stripped.endswith("\\")
        parts.append(line.rstrip().removesuffix("\\") if is_continued else line)
        if not is_continued:
            yield first, "".join(parts).strip()
            parts = []
    if parts:
        raise DockerfileError(f"{first}: the last line ends with a backslash")


def _step(number: int, line: str) -> Step:
    keyword, _, text = line.partition(" ")
    keyword, text = keyword.upper(), text.strip()
    if keyword not in KEYWORDS:
        raise DockerfileError(
            f"{number}: {keyword} is not understood; known are"
            f" {', '.join(sorted(KEYWORDS))}"
        )
    if keyword in {"RUN", "COPY"} and "<<" in text:
        raise DockerfileError(f"{number}: here-documents are not understood")
    options: dict[str, list[str]] = {}
    while match := _OPTION.match(text):
        options.setdefault(match[1], []).append(match[2])
        text = text[match.end() :]
    if not text:
        raise DockerfileError(f"{number}: nothing follows {keyword}")
    return Step(number, keyword, options, text)


def _stage(step: Step, variables: Mapping[str, str]) -> Stage:
    match step.words():
        case [base]:
            return Stage(expand(base, variables), "")
        case [base, between, name] if between.upper() == "AS":
            return Stage(expand(base, variables), name)
        case _:
            raise DockerfileError(f"{step.line}: write FROM image [AS name]")
