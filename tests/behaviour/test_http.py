"""
http.txt says what each request is answered: on four surfaces.

What an instance answers is also as docs/openapi.yaml says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from email.utils import formatdate, parsedate_to_datetime
from itertools import groupby
from typing import Final

import pytest

from support.http_requests import Request, make_request
from support.openapi import check_described
from support.rows import END, HTTP_ROWS, Row, expanded, read_rows
from support.surfaces import SURFACES, Connection, Instances, Surface, Wired
from support.waiting import wait_until
from support.wire import Reply

TEXT: Final = {"text/plain; charset=utf-8", "text/plain"}
TWICE: Final = {"WWW-Authenticate"}


def blocks() -> Mapping[str, list[tuple[int, Row]]]:
    """Return the numbered rows by the names of their blocks, without alternatives."""
    numbered = enumerate(read_rows(HTTP_ROWS))
    return {
        name: list(rows)
        for name, rows in groupby(numbered, lambda one: one[1].name.partition(" [")[0])
    }


BLOCKS: Final = blocks()
ROWS: Final = [row for rows in BLOCKS.values() for row in rows]


def settings_of(row: Row) -> str:
    """Return the settings of the instance."""
    text = "".join(expanded(line) for mark, line in row.lines if mark == "=")
    return text.encode("latin-1").decode()


def request_of(line: str) -> Request:
    """Return a request; version, Host and length are added."""
    head, mark, body = line.partition(";;")
    first, *fields = map(expanded, END.split(head))
    method, target, *_ = first.split(" ")
    value = expanded(body).encode("latin-1")
    names = {field.partition(":")[0].lower() for field in fields}
    fields += ["Host: localhost"] if "host" not in names else []
    encoded = b"%x\r\n%s\r\n" % (len(value), value) if value else b""
    if mark and not names & {"transfer-encoding", "content-length"}:
        fields.append(f"Content-Length: {len(value)}")
    is_chunked = "transfer-encoding" in names
    coded = encoded + b"0\r\n\r\n" if is_chunked else None
    return make_request(method, target, fields, value, encoded=coded)


class Exchange:
    """What a row says, on one connection to a surface."""

    def __init__(self, row: Row, name: str, mark: str, surface: Surface) -> None:
        """`name` is that of the keys of this row alone."""
        self._mark, self._surface = mark, surface
        # Tokens as the bytes that a client sends, each as a character.
        sent = {n: t.encode().decode("latin-1") for n, t in surface.settings.items()}
        self._known = {n: t.replace("\\", r"\\") for n, t in sent.items()} | {"k": name}
        self._lines = [(mark, line) for mark, line in row.lines if line != "-"]
        self._asked, self._method = "", ""
        self._reply: Reply | None = None  # not compared yet

    def store(self) -> None:
        """Store what is there before."""
        for mark, line in self._lines:
            if mark == ":":
                with self._surface.connect() as connection:
                    reply = connection.ask(request_of(self._filled(line)))
                    assert reply.status == 200, (line, reply)

    def check(self) -> None:
        """Send the requests of the row; fail if one is not answered as it says."""
        with self._surface.connect() as connection:
            self._look(connection)
            for is_answer, group in groupby(
                self._lines, lambda line: line[0].strip("abfn") in {"<", ""}
            ):
                if is_answer:
                    lines = list(group)
                    own = [line for mark, line in lines if self._mark in mark]
                    expected = own or [line for mark, line in lines if mark == "<"]
                    assert expected, "no answer is known"
                    for one in expected:
                        self._read(connection, one)
                    continue
                for mark, line in group:
                    self._send(connection, mark, line)
            assert self._reply is None or self._reply.status == 200, self._reply
            assert connection.has_ended(), "there is more than the answer"

    def _look(self, connection: Connection) -> None:
        """Learn what is known of the value that was stored last."""
        stored = [line for mark, line in self._lines if mark == ":"]
        if not stored:
            return
        asked = self._filled(stored[-1]).partition(";;")[0].replace("PUT", "HEAD", 1)
        headers = connection.ask(request_of(asked)).headers
        tag, date = headers["ETag"], headers["Last-Modified"]
        if tag and date:
            second = parsedate_to_datetime(date).timestamp()
            dates = {"date": second, "before": second - 1, "future": second + 1e6}
            self._known |= {n: formatdate(s, usegmt=True) for n, s in dates.items()}
            self._known |= {"tag": tag, "now": headers["Date"]}

    def _filled(self, line: str) -> str:
        return re.sub(r"\$(k|[a-z_]+)", lambda found: self._known[found[1]], line)

    def _send(self, connection: Connection, mark: str, line: str) -> None:
        assert self._reply is None or self._reply.status == 200, self._reply
        self._asked = line
        if mark == "+":
            self._surface.pass_time(float(line))
        elif mark == ">":
            request = request_of(self._filled(line))
            self._method, self._reply = request.method, connection.ask(request)
            if self._mark == "f":
                check_described(request.method, line.split(" ")[1], self._reply)
        elif mark == ">>":
            assert isinstance(connection, Wired)
            text = expanded(END.sub(r"\\r\\n", self._filled(line)))
            self._method = text.partition(" ")[0]
            connection.send(text.encode("latin-1"))

    def _read(self, connection: Connection, expected: str) -> None:
        reply, self._reply = self._reply, None
        if reply is None:
            assert isinstance(connection, Wired)
            reply = connection.read(self._method)
        self._check_form(reply)
        head, mark, body = expected.partition(";;")
        status, *fields = END.split(head)
        seen = (
            self._asked[:200],
            reply.status,
            [*reply.headers.items()],
            reply.body[:200],
        )
        assert reply.status == int(status), seen
        for field in fields:
            name, _, value = field.partition(": ")
            if name.startswith("!"):
                assert name[1:] not in reply.headers, (field, seen)
            else:
                found = ", ".join(reply.headers.get_all(name, ["(absent)"]))
                assert self._is_like(value, found), (field, seen)
        if mark and self._method != "HEAD":
            assert self._is_like(body, reply.body.decode("latin-1")), seen
        elif mark and not re.search(r"\.\.\.|\$", body):
            assert reply.headers["Content-Length"] == str(len(expanded(body))), seen

    def _check_form(self, reply: Reply) -> None:
        """Check what is true of every answer."""
        if reply.status == 100:
            return
        names = [name for name in reply.headers if name not in TWICE]
        assert len(names) == len(set(names)), names
        parsedate_to_datetime(reply.headers["Date"])
        if self._method == "HEAD" or reply.status == 304:
            assert not reply.body
        elif reply.status >= 400:
            assert reply.headers["Content-Type"] in TEXT
            assert reply.body.count(b"\n") == 1
            assert reply.body.endswith(b"\n")

    def _is_like(self, expected: str, found: str) -> bool:
        """Compare; what has no value yet gets it."""
        pattern = re.escape(expanded(expected)).replace(r"\.\.\.", ".*")
        for name in dict.fromkeys(re.findall(r"\\\$(k|[a-z_]+)", pattern)):
            known = name in self._known
            first = re.escape(self._known[name]) if known else f"(?P<{name}>.+)"
            pattern = pattern.replace(rf"\${name}", first)
        like = re.fullmatch(pattern, found, re.DOTALL)
        self._known |= like.groupdict() if like else {}
        return like is not None


class Site:
    """A surface with all settings that rows ask for, and all that they have stored."""

    def __init__(self, name: str, instances: Instances, stack: ExitStack) -> None:
        """Start all at the same time; return in the second after the last PUT."""
        self._mark, kind = SURFACES[name]
        self._letter = "abcde"[list(SURFACES).index(name)]
        rows = [one for one in ROWS if is_asked(one[1], self._mark)]
        texts = dict.fromkeys(settings_of(row) for _, row in rows)
        self._surfaces = {
            text: kind(
                instances.folder / f"{self._letter}{number}",
                dict(word.split("=", 1) for word in text.split()),
                instances,
            )
            for number, text in enumerate(texts)
        }
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(stack.enter_context, self._surfaces.values()))
        for number, row in rows:
            self.exchange(number, row).store()
        for surface in self._surfaces.values():
            surface.pass_time(2)
        self.surface = self._surfaces[""]
        self._wait()

    def exchange(self, number: int, row: Row) -> Exchange:
        """Return the exchange of a row."""
        surface = self._surfaces[settings_of(row)]
        return Exchange(row, f"{self._letter}{number:04}", self._mark, surface)

    def _wait(self) -> None:
        """Wait until a value of this second has a date."""
        with self.surface.connect() as connection:
            connection.ask(request_of("PUT /last;;x"))
            self.surface.pass_time(2)

            def is_dated() -> bool:
                return (
                    "Last-Modified" in connection.ask(request_of("HEAD /last")).headers
                )

            wait_until(is_dated, "the end of the second")


def is_asked(row: Row, mark: str) -> bool:
    """Whether a surface is asked what a row says."""
    own = [line for marks, line in row.lines if mark in marks and marks.isalpha()]
    marks = {mark for mark, _ in row.lines}
    if "-" in own or (mark == "b" and "=" in marks) or (mark != "a" and "+" in marks):
        return False
    return bool(own) or ">>" not in marks or mark in "fn"


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Site]]:
    """Return the surfaces that run."""

    class Sites(dict[str, Site]):
        def __missing__(self, name: str) -> Site:
            self[name] = Site(name, instances, stack)
            return self[name]

    with ExitStack() as stack:
        instances = Instances(tmp_path_factory.mktemp("surfaces"), stack)
        yield Sites()


@pytest.mark.parametrize("block", BLOCKS, ids=lambda name: name[:90])
@pytest.mark.parametrize(
    "surface",
    [
        pytest.param(
            name,
            marks=[]
            if name == "application"
            else [pytest.mark.integration, pytest.mark.slow],
        )
        for name in SURFACES
    ],
)
def test_request_is_answered_as_the_row_says(
    sites: dict[str, Site], surface: str, block: str
) -> None:
    """For each alternative of the row."""
    for number, row in BLOCKS[block]:
        if is_asked(row, SURFACES[surface][0]):
            try:
                sites[surface].exchange(number, row).check()
            except Exception as error:
                error.add_note(row.name)
                raise


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("surface", ["bjoern", "front", "nginx"])
def test_get_in_the_second_of_its_put_has_no_last_modified(
    sites: dict[str, Site], surface: str
) -> None:
    """Their clocks are not ours, so that it is tried until both are in one second."""
    with sites[surface].surface.connect() as connection:

        def is_without() -> bool:
            put = connection.ask(request_of("PUT /new;;value")).headers
            found = connection.ask(request_of("GET /new")).headers
            is_same = put["Date"] == found["Date"]
            assert not is_same or "Last-Modified" not in found
            return is_same

        wait_until(is_without, "a PUT and a GET within a second")
