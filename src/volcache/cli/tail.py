"""
`volcache tail`: shows the lines of access logs that match, and new ones as they come.

The files are those of the setting log_access, in both formats. They are followed by name:
a file that was moved away is read to its end before the new one is.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections import deque
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from volcache.cli.client import SECONDS_MAX
from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    FILES,
    Command,
    FileError,
    complain,
    completing,
    flush,
    print_line,
    seconds,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

_STANDARD: Final = "-"
_LINES: Final = 10
_BLOCK_BYTES: Final = 1 << 16
_LINE_BYTES_MAX: Final = 1 << 20  # What is longer is no line of an access log.
_WAIT_SECONDS: Final = 0.25  # An instance writes twice per second.
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
_TEXT: Final = re.compile(
    rb'\S+ - \S+ \[[^]]*\] "(\S+) (\S+) [^"]*" (\d{3}) .* seconds=([0-9.]+)$'
)
_STATUS: Final = re.compile(r"[1-5]xx|[1-5][0-9][0-9]")
_NOT_REGULAR: Final = "not a regular file; allowed are files, and - for standard input"
_ALL: Final = -1
_PREVIOUS_POLLS: Final = (
    240  # A minute: logrotate signals after it has moved all files.
)


class LoggedRequest(NamedTuple):
    """What a line says of a request, as far as it is filtered by."""

    method: str
    key: bytes  # Of the path as it was sent.
    status: str
    seconds: float


def parse_line(line: bytes) -> LoggedRequest | None:
    """
    Return what a line of an access log says; None if it is no such line.

    Args:
        line: Of either format, without its end.
    """
    try:
        if line.startswith(b"{"):
            fields = json.loads(line)
            uri = fields["uri"].encode("ascii")
            method, status = str(fields["method"]), str(fields["status"])
            seconds = float(fields["seconds"])
        else:
            found = _TEXT.match(line)
            if found is None:
                return None
            uri, seconds = found[2], float(found[4])
            method, status = found[1].decode("ascii"), found[3].decode("ascii")
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    key = unquote_to_bytes(uri.partition(b"?")[0]).removeprefix(b"/")
    return LoggedRequest(method, key, status, seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which requests are shown; an empty field allows all."""

    prefix: bytes = b""
    statuses: tuple[str, ...] = ()  # "404", or "5" for all from 500 to 599.
    methods: tuple[str, ...] = ()  # Upper case; those of lines may be any.
    slower: float = 0.0  # Seconds.

    def allows(self, line: bytes) -> bool:
        """Whether a line is shown; one that is not of an access log is, if all are."""
        if self == Filter():
            return True
        request = parse_line(line)
        return (
            request is not None
            and request.key.startswith(self.prefix)
            and (not self.statuses or request.status.startswith(self.statuses))
            and (not self.methods or request.method.upper() in self.methods)
            and request.seconds >= self.slower
        )


class _LogReader:
    """
    An open file, from its beginning on.

    Invariants:
        - `_rest` is what was read of a line whose end is not written yet.
    """

    def __init__(self, name: str) -> None:
        """
        Open a file.

        Raises:
            FileError: It cannot be read, or is not a regular file.
            FileNotFoundError: There is none.
        """
        try:
            fd = os.open(name, _FLAGS)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise FileError(name, "read", error) from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileError(name, "read", OSError(_NOT_REGULAR))
        self._name = name
        self._file = os.fdopen(fd, "rb")
        self._rest = b""

    def is_at(self, name: str) -> bool:
        """Whether a name is that of this file."""
        try:
            return os.path.samestat(Path(name).stat(), os.fstat(self._file.fileno()))
        except OSError:
            return False

    def last(self, count: int, allows: Callable[[bytes], bool]) -> list[bytes]:
        """
        Return the last complete lines that are allowed; `lines` continues behind them.

        Raises:
            FileError: The file cannot be read.
        """
        found: deque[bytes] = deque()
        with self._errors():
            start = end = self._end_of_lines()
            rest = b""  # The end of a line that begins before `start`.
            while start and len(found) < count:
                size = min(start, _BLOCK_BYTES)
                start -= size
                self._file.seek(start)
                rest, *lines = (self._file.read(size) + rest).split(b"\n")
                if not start:
                    lines.insert(0, rest)
                # A longer one is not of an access log.
                rest = rest[:_LINE_BYTES_MAX]
                for line in reversed(lines):
                    if line and len(found) < count and allows(line):
                        found.appendleft(line)
            self._file.seek(end)
        return list(found)

    def _end_of_lines(self) -> int:
        """Return where the last complete line ends."""
        end = self._file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - _BLOCK_BYTES)
            self._file.seek(start)
            at = self._file.read(end - start).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            end = start
        return 0

    def lines(self) -> Iterator[bytes]:
        """
        Yield the complete lines that were written since the last call.

        Raises:
            FileError: The file cannot be read.
        """
        with self._errors():
            if os.fstat(self._file.fileno()).st_size < self._file.tell():
                self._file.seek(0)  # It was truncated.
                self._rest = b""
        while data := self._block():
            *lines, self._rest = (self._rest + data).split(b"\n")
            yield from filter(None, lines)
            if len(self._rest) > _LINE_BYTES_MAX:
                yield from self.last_line()

    def last_line(self) -> Iterator[bytes]:
        """Yield a line whose end is missing, if there is one."""
        if self._rest:
            yield self._rest
            self._rest = b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _block(self) -> bytes:
        with self._errors():
            return self._file.read(_BLOCK_BYTES)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileError(self._name, "read", error) from error


class _Followed:
    """A file that is followed by its name, over rotations."""

    def __init__(self, name: str) -> None:
        """Open nothing yet."""
        self.name = name
        self._reader: _LogReader | None = None
        # The file before: the instance writes to it until it has noticed the rotation.
        self._previous: _LogReader | None = None
        self._polls_left = 0
        self._is_missing = False

    def open(self) -> bool:
        """
        Open the file that has the name; whether there is one.

        Raises:
            FileError: It cannot be read, or is not a regular file.
        """
        try:
            reader = _LogReader(self.name)
        except FileNotFoundError as error:
            if not self._is_missing:
                complain(str(FileError(self.name, "read", error)))
            self._is_missing = True
            return False
        self._is_missing = False
        if self._previous is not None:
            self._previous.close()
        self._previous, self._reader = self._reader, reader
        self._polls_left = _PREVIOUS_POLLS
        return True

    def last(self, count: int, allows: Callable[[bytes], bool]) -> list[bytes]:
        """Return the last lines; see `_LogReader`."""
        return [] if self._reader is None else self._reader.last(count, allows)

    def lines(self) -> Iterator[bytes]:
        """
        Yield the lines that were written since the last call, also after a rotation.

        Raises:
            FileError: A file cannot be read.
        """
        if self._previous is not None:
            yield from self._previous.lines()
            self._polls_left -= 1
            if self._polls_left <= 0:
                yield from self._previous.last_line()
                self._previous.close()
                self._previous = None
        if self._reader is not None:
            yield from self._reader.lines()
        # While there is no new file, the instance writes to the one that was moved.
        if (self._reader is None or not self._reader.is_at(self.name)) and self.open():
            yield from self.lines()

    def rest(self) -> Iterator[bytes]:
        """Yield all lines that there are, also one whose end is missing."""
        if self._reader is not None:
            yield from self._reader.lines()
            yield from self._reader.last_line()

    def close(self) -> None:
        """Close the files."""
        for reader in (self._reader, self._previous):
            if reader is not None:
                reader.close()


class _Printer:
    """Prints lines that are wanted; of several files, with their names above."""

    def __init__(self, wanted: Filter, files: int) -> None:
        self._allows = wanted.allows
        self._has_names = files > 1
        self._name: str | None = None

    def print(self, name: str, lines: Iterable[bytes]) -> None:
        """Print lines of a file."""
        for line in filter(self._allows, lines):
            if self._has_names and name != self._name:
                print_line(f"{'' if self._name is None else chr(10)}==> {name} <==")
                self._name = name
            text = line.decode("utf-8", "backslashreplace")
            # An instance has escaped what a terminal acts on; other files may have it.
            print_line(text if text.isprintable() else "".join(map(_escaped, text)))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode("ascii")


def tail(
    names: list[str],
    wanted: Filter,
    *,
    count: int | None,
    follows: bool,
    pause: Callable[[], object] = lambda: time.sleep(_WAIT_SECONDS),
) -> bool:
    """
    Print lines of files, and then those that are written, until interrupted.

    Args:
        names: Of the files; `-`: standard input, which is read to its end.
        wanted: Which lines.
        count: How many lines of each file are printed at first; None: all.
        follows: Whether to wait for more, and for files that do not exist.
        pause: Waits until the files are looked at again.

    Returns:
        Whether there are all files.

    Raises:
        FileError: A file cannot be read, or is not one.
        BrokenPipeError, OutputError: As `print_line`.
    """
    printer = _Printer(wanted, len(names))
    with ExitStack() as stack:
        files = [_Followed(name) for name in names if name != _STANDARD]
        for followed in files:
            stack.callback(followed.close)
        missing = [followed for followed in files if not followed.open()]
        for followed in files:
            if count is not None:
                printer.print(followed.name, followed.last(count, wanted.allows))
            elif not follows:
                printer.print(followed.name, followed.rest())
        if _STANDARD in names:
            _print_input(printer)
        while follows and files:
            _print_new(printer, files)
            pause()
    return not missing


def _print_new(printer: _Printer, files: Iterable[_Followed]) -> None:
    for followed in files:
        printer.print(followed.name, followed.lines())
    flush()


def _print_input(printer: _Printer) -> None:
    try:
        with open(0, "rb", buffering=0, closefd=False) as source:
            rest = b""
            while data := source.read(_BLOCK_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                printer.print(_STANDARD, filter(None, lines))
                flush()
                if len(rest) > _LINE_BYTES_MAX:
                    printer.print(_STANDARD, [rest])
                    rest = b""
            printer.print(_STANDARD, filter(None, [rest]))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise FileError("standard input", "read", error) from error


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="an access log, as the setting log_access names it; -: standard input",
    )
    completing(files, FILES)
    parser.add_argument(
        "--prefix", default="", metavar="P", help="only keys that begin with P"
    )
    parser.add_argument(
        "--status",
        type=_statuses,
        default=(),
        metavar="S",
        help="only these statuses, such as 404,5xx",
    )
    parser.add_argument(
        "--method",
        type=_methods,
        default=(),
        metavar="M",
        help="only these methods or memcached commands, such as PUT,DELETE",
    )
    parser.add_argument(
        "--slower",
        type=seconds(SECONDS_MAX),
        default=0.0,
        metavar="S",
        help="only requests that took S seconds or longer, such as 0.05",
    )
    parser.add_argument(
        *("-n", "--lines"),
        type=_count,
        metavar="N",
        help=f"begin with the last N lines of each file that match, or with all"
        f' ("all"; default: {_LINES}, with --once all)',
    )
    parser.add_argument(
        *("--once", "--no-follow"),
        action="store_true",
        help="do not wait for further lines",
    )


def _statuses(text: str) -> tuple[str, ...]:
    found = text.lower().split(",")
    if not all(map(_STATUS.fullmatch, found)):
        raise ValueError
    return tuple(one.rstrip("x") for one in found)


def _methods(text: str) -> tuple[str, ...]:
    found = tuple(text.upper().split(","))
    if not all(one.isascii() and one.replace("_", "").isalpha() for one in found):
        raise ValueError
    return found


def _count(text: str) -> int:
    if text == "all":
        return _ALL
    if not (text.isascii() and text.isdecimal()):
        raise ValueError
    return int(text)


# In errors of argparse.
_statuses.__name__ = "list of statuses (allowed is 404,5xx)"
_methods.__name__ = "list of methods (allowed is PUT,DELETE)"
_count.__name__ = 'number of lines (allowed are 0 and above, and "all")'


def _run(arguments: argparse.Namespace) -> int:
    wanted = Filter(
        prefix=os.fsencode(arguments.prefix),
        statuses=arguments.status,
        methods=arguments.method,
        slower=arguments.slower,
    )
    count = arguments.lines
    if count is None:
        count = _ALL if arguments.once else _LINES
    is_complete = tail(
        arguments.files,
        wanted,
        count=None if count == _ALL else count,
        follows=not arguments.once,
    )
    return EXIT_OK if is_complete else EXIT_FAILED


_EPILOG: Final = """\
The files are those of log_access, with log_format "text" or "json"; of nginx's access log
only lines in its format "main" with the fields of volcache behind it. A line is printed as
it is. With a filter, lines that are not of an access log are left out. A filter has one or
more values with commas between them, and all filters must match. P is not percent-encoded.
Files are followed by name until Ctrl-C: over a rotation, a truncation, and before they
exist. -n does not apply to standard input, which ends the command when no file is followed.

exit code: 0 done; 1 a file cannot be read; 2 a wrong argument; 130 Ctrl-C
examples:
  volcache tail /var/log/volcache/access.log --status 5xx
  volcache tail access.log --once --prefix tiles/12/ --method GET --slower 0.05
"""

COMMAND: Final = Command(
    name="tail",
    text="Show the lines of access logs that match, and new ones as they come.",
    epilog=_EPILOG,
    add_arguments=_add_arguments,
    run=_run,
)
