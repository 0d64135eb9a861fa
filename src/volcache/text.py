"""
Numbers in the sentences that people read.

What a client sent, as a log line can hold it: printable ASCII that ends no field.

So nobody can forge a line, a field or a colour of the terminal, whatever is in a path or
a header; and all of it can be told back.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote


def counted(count: int, noun: str, form: str = "d") -> str:
    """
    Return how many there are of something: "1 file", "2 files".

    Args:
        count: How many.
        noun: What, for one of them; its plural is made by an `s`.
        form: Of the number, as `format` takes it.
    """
    return f"{count:{form}} {noun}{'' if count == 1 else 's'}"


# What a path may hold as it is (RFC 3986): no space, no quote, no control character.
_PATH_SAFE: Final = "/~!$&'()*+,;=:@"
_UNSAFE: Final = re.compile(r"[^ !#-\[\]-~]")
_CUT: Final = "..."


def escape_path(path: str, size_max: int) -> str:
    """
    Write a path percent-encoded, as it would stand in a request line.

    Args:
        path: Decoded, a character for each byte, as WSGI has it.
        size_max: Characters after which it is cut off, with `...` behind.
    """
    text = quote(path, safe=_PATH_SAFE, encoding="latin-1", errors="replace")
    return text if len(text) <= size_max else text[:size_max] + _CUT


def escape_header(text: str, size_max: int) -> str:
    r"""
    Write a header for a field in double quotes.

    Quotes, backslashes and what is not printable ASCII become `\xHH`, a byte each, as in
    nginx's logs; `size_max` is where it is cut off before that, with `...` behind.
    """
    if len(text) > size_max:
        text = text[:size_max] + _CUT
    return _UNSAFE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    """Write one character as its bytes; WSGI has no others than those of latin-1."""
    return "".join(f"\\x{byte:02X}" for byte in _bytes_of(match.group()))


def _bytes_of(character: str) -> bytes:
    encoding = "latin-1" if character <= "\xff" else "utf-8"
    return character.encode(encoding, "surrogatepass")
