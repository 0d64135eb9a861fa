"""
Write what Cython has to know of C headers: `python tools/make_pxd.py`; setup.py does it.

The headers are in the style of this project: macros are constants, a struct has a typedef,
an inline function ends with a line of its own, no argument is named as a keyword of Python,
and no declaration depends on the preprocessor.
"""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES: Final = Path(__file__).parent.parent / "src/volcache"
CORE: Final = [
    *(
        "clock.h",
        "index.h",
        "purges.h",
        "record.h",
        "lines.h",
        "core.h",
        "read_ahead.h",
    ),
    *("scan.h", "reclaim.h", "functions.h", "guest.h"),
]
# Without those that only C needs. Each comes after those whose types it has.
FRONT: Final = [
    *("text.h", "answer.h", "request.h", "log.h", "ring.h", "copies.h", "tokens.h"),
    *("readers.h", "common.h", "hot_client.h", "protocol.h", "events.h", "news.h"),
    *("lookup.h", "http.h", "server.h", "recent.h", "memcache.h", "local.h"),
]
CORE_HEAD: Final = '''"""Made of the headers of the core by tools/make_pxd.py."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from posix.types cimport off_t


cdef extern from "<stdbool.h>" nogil:
    ctypedef bint c_bool "bool"


cdef extern from "<errno.h>" nogil:
    enum: ECANCELED


cdef extern from "clock.h" nogil:
    int64_t monotonic_ns "vc_monotonic_ns"()


cdef extern from "<sys/uio.h>" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len
'''
FRONT_HEAD: Final = '''"""Made of the headers of the front by tools/make_pxd.py."""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from volcache.store._core.core cimport *


cdef extern from "<stdatomic.h>" nogil:
    ctypedef bint atomic_bool


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t: pass
    ctypedef struct pthread_cond_t: pass


cdef extern from "loop.h" nogil:
    ctypedef struct vc_loop
'''
_DEFINE: Final = re.compile(r'^#define (VC_\w+) ("?)', re.MULTILINE)
_INLINE: Final = re.compile(
    r"static inline ([^{}]*)\{(?:[^\n]*\}$|.*?^\})", re.DOTALL | re.MULTILINE
)


def declarations(text: str) -> Iterator[str]:
    """Yield the declarations of a header without comments, each in one line."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    for name, quote in _DEFINE.findall(text):
        yield f"const char *{name}" if quote else f"const uint64_t {name}"
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    text = _INLINE.sub(r"\1;", text)
    for part in re.findall(r"[^;{]*(?:\{[^}]*\})?[^;{]*;", text):
        yield " ".join(part.rstrip(";").split())


def translated(text: str) -> str:
    """Return a declaration as Cython has it."""
    text = re.sub(r"^(?:extern|static) ", "", text)
    text = re.sub(r"\b_Atomic |\b_Alignas\(\d+\) |\bstruct (?=iovec)", "", text)
    text = re.sub(r"^(const \w+ \w+) = .*", r"\1", text)
    text = text.replace("*const ", "*")
    text = re.sub(r"\bbool(?= \*| \(\*)", "c_bool", text)
    text = re.sub(r"\bbool\b", "bint", text)
    text = re.sub(r"\(\*(\w+)\)(\([^()]*\))", r"(*\1)\2 noexcept", text)
    text = re.sub(r"(\w+)\[[^]]*\](?=(,[^(]*)?\))", r"*\1", text)  # An argument.
    return text.replace("(void)", "()")


def sized(text: str, numbers: dict[str, int]) -> str:
    """Return a declaration with the sizes of arrays as numbers; one without has 1."""
    return re.sub(
        r"\[([^]]*)\]",
        lambda size: f"[{eval(size[1] or '1', {}, numbers)}]",  # noqa: S307
        text,
    )


def fields(
    body: str, numbers: dict[str, int], protocols: dict[str, str]
) -> Iterator[str]:
    """Yield the fields of a struct."""
    for field in filter(None, map(str.strip, body.split(";"))):
        if found := re.fullmatch(r"__typeof__\((\w+)\) \*(\w+)", field):
            result, arguments = protocols[found[1]].split(f"{found[1]}(", 1)
            yield f"{result}(*{found[2]})({arguments} noexcept nogil"
            continue
        first, *others = re.split(r", (?![^(]*\))", translated(field))
        kind = re.match(r"(?:const )?\w+", first)
        for one in (first, *(f"{kind and kind[0]} {other}" for other in others)):
            yield sized(one, numbers)


def members(body: str, numbers: dict[str, int]) -> Iterator[str]:
    """Yield the names of an enumeration, and note their numbers."""
    last = -1
    for item in filter(None, map(str.strip, body.split(","))):
        name, _, value = item.partition(" = ")
        last = eval(value, {}, numbers) if value else last + 1  # noqa: S307
        numbers[name] = last
        yield f"        {name}"


def block(
    header: Path, numbers: dict[str, int], protocols: dict[str, str]
) -> Iterator[str]:
    """Yield the lines of one header."""
    yield f'\n\ncdef extern from "{header.name}" nogil:'
    for one in declarations(header.read_text()):
        if found := re.fullmatch(r"(?:typedef )?enum \{(.*)\} ?(\w*)", one):
            yield f"    ctypedef enum {found[2]}:" if found[2] else "    enum:"
            yield from members(found[1], numbers)
        elif found := re.fullmatch(r"(?:typedef )?struct (\w* ?)\{(.*)\} ?(\w*)", one):
            yield f"    ctypedef struct {found[3] or found[1].strip()}:"
            yield from (
                f"        {line}" for line in fields(found[2], numbers, protocols)
            )
        elif found := re.fullmatch(r"typedef struct (\w+) \1", one):
            yield f"    ctypedef struct {found[1]}"
        elif one.startswith("typedef "):
            yield f"    c{translated(one)}"
        elif one:
            protocols[re.split(r"\W+", one.partition("(")[0])[-1]] = translated(one)
            yield f"    {sized(translated(one), numbers)}"


def main() -> None:
    """Write core.pxd and front.pxd, unless they are the same."""
    numbers: dict[str, int] = {}
    protocols: dict[str, str] = {}
    for name, head, headers in (
        ("store/_core/core.pxd", CORE_HEAD, CORE),
        ("front/front.pxd", FRONT_HEAD, FRONT),
    ):
        path = SOURCES / name
        made = [block(path.parent / header, numbers, protocols) for header in headers]
        text = head + "\n".join(chain.from_iterable(made)) + "\n"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main()
