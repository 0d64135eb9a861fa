#!/usr/bin/env python3
"""
Write nginx's `tokens.conf`: maps that accept the same tokens as an instance.

Reads `read_token` and `write_token` from a TOML file, which may be the configuration of an
instance; without an argument from standard input. Needs nothing but Python.

    tools/nginx_tokens.py tokens.toml > /etc/nginx/volcache/tokens.conf
"""

from __future__ import annotations

import re
import sys
import tomllib
from base64 import b64encode
from pathlib import Path

HEAD = """\
# Tokens, written by tools/nginx_tokens.py. A secret: `chmod 600`.
#
# The lines of a token: Bearer; Basic with any user and the token as password.
"""
# A token for writing is enough to read. Browsers and load balancers send OPTIONS without.
TAIL = """
map $request_method $volcache_may {
    default  $volcache_may_write;
    GET      $volcache_may_read;
    HEAD     $volcache_may_read;
    PROPFIND $volcache_may_read;
    OPTIONS  1;
}
"""
# A character of base64.
_ANY = "[A-Za-z0-9+/]"


def render(read_token: str, write_token: str) -> str:
    """Return the file; an empty token means that everyone may."""
    reading = [read_token, write_token] if read_token else []
    writing = [write_token] if write_token else []
    maps = [
        f"\nmap $http_authorization $volcache_may_{name} {{\n{_lines(tokens)}}}\n"
        for name, tokens in (("read", reading), ("write", writing))
    ]
    return "".join([HEAD, *maps, TAIL])


def _lines(tokens: list[str]) -> str:
    if not tokens:
        return "    default 1;\n"
    found = [
        f'    "{expression}" 1;\n'
        for token in dict.fromkeys(filter(None, tokens))
        for form in _forms(token)
        for expression in (_bearer(form), _basic(form))
    ]
    return "".join(["    default 0;\n", *found])


def _forms(token: str) -> list[bytes]:
    """Return the token as UTF-8, and as latin-1 if possible: clients send either."""
    forms = [token.encode()]
    if not token.isascii() and max(token) <= "\xff":
        forms.append(token.encode("latin-1"))
    return forms


def _bearer(token: bytes) -> str:
    return f"~^(?i:bearer) +{_literal(token)}$"


def _basic(token: bytes) -> str:
    """
    Return an expression for `user:token` in base64, with any user.

    The user's length modulo three decides where the colon is in a group of four
    characters. Of the character that it shares with the user some bits are free: after
    one byte of the user in the group two, after two bytes four.
    """
    known = b":" + token
    whole = b64encode(known)
    after_one = b64encode(b"\0" + known)[2:]
    after_two = b64encode(b"\0\0" + known)[3:]
    endings = (
        _literal(whole),
        f"{_ANY}[DTjz]{_literal(after_one)}",
        f"{_ANY}{{2}}[AEIMQUYcgkosw048]{_literal(after_two)}",
    )
    return f"~^(?i:basic) +(?:{_ANY}{{4}})*(?:{'|'.join(endings)})$"


def _literal(text: bytes) -> str:
    """Return an expression for the bytes that nginx and PCRE read in the same way."""
    return "".join(
        chr(byte) if chr(byte).isascii() and chr(byte).isalnum() else f"\\x{byte:02x}"
        for byte in text
    )


def main(arguments: list[str]) -> str:
    """Return the file, for the command line."""
    text = Path(arguments[0]).read_text("utf-8") if arguments else sys.stdin.read()
    settings = tomllib.loads(text)
    tokens = [settings.get(name, "") for name in ("read_token", "write_token")]
    for token in tokens:
        if not isinstance(token, str) or re.search(r"^\s|[\x00-\x1f\x7f]|\s$", token):
            sys.exit(
                "a token is text without control characters and without spaces around it"
            )
    if not any(tokens):
        sys.exit("no token found; allowed are the settings read_token and write_token")
    return render(*tokens)


if __name__ == "__main__":
    sys.stdout.write(main(sys.argv[1:]))
