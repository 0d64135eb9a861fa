"""
`volcache get`, `put`, `rm`, `stat`, `ls` and `purge`: values of running instances.

They work with an instance, with nginx in front of a cluster, and with the instances of a
cluster themselves: then each key is asked of the instance that nginx would ask.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    FILES,
    FileError,
    add_json,
    command,
    complain,
    completing,
    output,
    print_line,
    seconds,
)
from volcache.cli.streams import (
    STANDARD,
    exit_on_sigterm,
    reading,
    source_name,
    writing,
)
from volcache.cli.token import ADMIN_TOKEN, add_token_file, read_token, token_of
from volcache.errors import BadKeyError, ConfigError, InstanceError
from volcache.fleet.remote import act, each
from volcache.fleet.targets import TARGETS, read_targets
from volcache.keys import parse_key
from volcache_client import Client
from volcache_client.errors import (
    AccessDeniedError,
    CacheError,
    InvalidArgumentError,
    error_of,
)
from volcache_client.ring import HashRing
from volcache_client.transport import fetch
from volcache_client.uploads import SourceFailed, Upload

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from volcache.fleet.targets import Target
    from volcache_client.messages import Answer

DEFAULT_TARGET: Final = "127.0.0.1:1234"
SECONDS_MAX: Final = 1e6
_READ_TOKEN: Final = "VOLCACHE_READ_TOKEN"  # noqa: S105 - A name.
_WRITE_TOKEN: Final = "VOLCACHE_WRITE_TOKEN"  # noqa: S105 - A name.
_KEY_BYTES_MAX: Final = 65535  # Of a record; the limit of an instance may be lower.
_STORED: Final = {HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT}


# --- What they share ---------------------------------------------------------------


def add_targets(parser: argparse.ArgumentParser, *, is_positional: bool = True) -> None:
    """Add the arguments for `targets_of`, behind all others without a dash."""
    text = (
        "an instance or nginx: HOST:PORT or URL; or all instances of a cluster: nginx's"
        " list of them, a file with an address in each line, an inventory (.toml)"
        f" (default: the variable {TARGETS}, else {DEFAULT_TARGET})"
    )
    if is_positional:
        parser.add_argument("targets", nargs="*", metavar="TARGET", help=text)
        text = "the same; may be repeated"
    parser.add_argument(
        *("-t", "--target"), action="append", default=[], metavar="TARGET", help=text
    )


def targets_of(arguments: argparse.Namespace) -> list[Target]:
    """
    Return the instances that arguments name.

    Raises:
        ConfigError: As `read_targets`.
    """
    given = [*getattr(arguments, "targets", ()), *arguments.target]
    return read_targets(given, DEFAULT_TARGET)


def _add_service(
    parser: argparse.ArgumentParser, variable: str, *, is_positional: bool = True
) -> None:
    """Add what a request needs; a token of values comes with a key."""
    add_targets(parser, is_positional=is_positional)
    add_token_file(parser, variable)
    if variable != ADMIN_TOKEN:
        parser.add_argument(
            "--encoded", action="store_true", help="the key is percent-encoded already"
        )
    parser.add_argument(
        "--timeout",
        type=seconds(SECONDS_MAX),
        default=10.0,
        metavar="S",
        help="seconds to wait for the connection and for each answer (default: 10)",
    )


def key_of(text: str, *, is_encoded: bool) -> bytes:
    """
    Return the key that an argument names.

    Raises:
        BadKeyError, KeyTooLongError: It is not a key.
    """
    key = os.fsencode(text)
    if is_encoded:
        key = unquote_to_bytes(key)
    if key.startswith(b"/"):
        raise BadKeyError(
            f"bad key {_shown(text)}: it begins with a slash; the key of this path is"
            f" {_shown(text.lstrip('/'))}"
        )
    return parse_key(f"/{key.decode('latin-1')}", _KEY_BYTES_MAX)


def _client(arguments: argparse.Namespace, variable: str) -> Client[bytes]:
    """
    Return a client of the targets; it raises errors of `_translated`.

    Raises:
        ConfigError: A target or the token cannot be used.
    """
    nodes = [(target.url, target.weight) for target in _in_use(arguments)]
    with _translated(""):
        return Client(
            nodes,
            token=token_of(arguments.token_file, variable),
            timeout=arguments.timeout,
            connect_timeout=arguments.timeout,
        )


def _in_use(arguments: argparse.Namespace) -> list[Target]:
    """Return the targets that have keys: what nginx's list excludes has none."""
    targets = targets_of(arguments)
    return [target for target in targets if not target.is_down] or targets


@contextmanager
def _translated(text: str) -> Iterator[None]:
    """
    Turn errors of the client into those of the command line.

    Args:
        text: The key, as an argument of the command; empty: none.
    """
    try:
        yield
    except InvalidArgumentError as error:
        raise ConfigError(str(error)) from error
    except CacheError as error:
        node, _, reason = str(error).partition(": ")
        if text:
            reason = f"{_shown(text)}: {reason}"
        if isinstance(error, AccessDeniedError):
            reason += "; give the token by --token-file or in the environment"
        raise InstanceError(node, reason) from error


def _shown(text: str) -> str:
    """Return a key for a line of an error: without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


# --- get, stat, rm -----------------------------------------------------------------


def _add_get(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="the key of the value")
    _add_service(parser, _READ_TOKEN)
    action = parser.add_argument(
        *("-o", "--output"),
        default=STANDARD,
        metavar="FILE",
        help="write to this file (default: -, standard output)",
    )
    completing(action, FILES)


def _get(arguments: argparse.Namespace) -> None:
    text = arguments.key
    key = key_of(text, is_encoded=arguments.encoded)
    with (
        exit_on_sigterm(),
        _client(arguments, _READ_TOKEN) as client,
        _translated(text),
        client.stream(key) as reader,
    ):
        if reader is None:
            raise InstanceError(_shown(text), "not found")
        with writing(arguments.output) as file, _translated(text):
            for piece in reader:
                file.write(piece)


def _add_stat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="the key of the value")
    _add_service(parser, _READ_TOKEN)
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _stat(arguments: argparse.Namespace) -> None:
    text = arguments.key
    key = key_of(text, is_encoded=arguments.encoded)
    with _client(arguments, _READ_TOKEN) as client, _translated(text):
        stat = client.stat(key)
    if stat is None:
        raise InstanceError(_shown(text), "not found")
    fields = stat._asdict()
    if arguments.json:
        print_line(json.dumps(fields))
        return
    for name, value in fields.items():
        print_line(
            f"{name.replace('_', ' '):<13}{'-' if value in {None, ''} else value}"
        )


def _add_rm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("keys", nargs="+", metavar="KEY", help="a key to delete")
    _add_service(parser, _WRITE_TOKEN, is_positional=False)
    parser.add_argument(
        *("-f", "--force"),
        action="store_true",
        help="a key without a value is no error",
    )


def _rm(arguments: argparse.Namespace) -> int:
    keys = [(t, key_of(t, is_encoded=arguments.encoded)) for t in arguments.keys]
    code = EXIT_OK
    with _client(arguments, _WRITE_TOKEN) as client:
        for text, key in keys:
            try:
                _delete(client, text, key, is_forced=arguments.force)
            except InstanceError as error:
                complain(str(error))
                code = EXIT_FAILED
    return code


def _delete(client: Client[bytes], text: str, key: bytes, *, is_forced: bool) -> None:
    with _translated(text):
        is_deleted = client.delete(key)
    if not (is_deleted or is_forced):
        raise InstanceError(_shown(text), "not found")


# --- put ---------------------------------------------------------------------------


def _add_put(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="the key of the value")
    file = parser.add_argument(
        "file",
        nargs="?",
        default=STANDARD,
        metavar="FILE",
        help="what is stored (default: -, standard input)",
    )
    completing(file, FILES)
    _add_service(parser, _WRITE_TOKEN)
    parser.add_argument(
        "--content-type", metavar="TYPE", help="stored with the value, as image/png"
    )
    parser.add_argument(
        "--content-encoding", metavar="CODING", help="stored with the value, as gzip"
    )
    parser.add_argument(
        "--max-age",
        type=_whole_seconds,
        metavar="S",
        help="the time to live in seconds (default: the setting default_ttl)",
    )
    parser.add_argument(
        "--cache-control", metavar="TEXT", help="further directives, as immutable"
    )
    parser.add_argument(
        "--if-absent",
        action="store_true",
        help="fail (exit code 1) if there is a value, and keep it",
    )


def _whole_seconds(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise ValueError
    return int(text)


_whole_seconds.__name__ = "number of seconds"  # In an error of argparse.


def _put(arguments: argparse.Namespace) -> None:
    text, file = arguments.key, arguments.file
    key = key_of(text, is_encoded=arguments.encoded)
    headers = _headers(arguments)
    targets = {urlsplit(target.url).netloc: target for target in _in_use(arguments)}
    name = next(iter(targets))
    if len(targets) > 1:
        ring = HashRing([(name, target.weight) for name, target in targets.items()])
        name = ring.node(key)
    try:
        with reading(file) as source, _translated(text):
            answer = fetch(
                f"{targets[name].url}/{quote(key, safe='/')}",
                method="PUT",
                headers=headers,
                body=Upload(source),
                timeout=arguments.timeout,
            )
            if answer.status not in _STORED:
                raise error_of(name, answer.status, answer.body)
    except SourceFailed as failed:
        error = failed.error
        if not isinstance(error, OSError):  # It became shorter.
            error = OSError(str(error))
        raise FileError(source_name(file), "read", error) from failed


def _headers(arguments: argparse.Namespace) -> dict[str, str]:
    """
    Return the headers of the request.

    Raises:
        ConfigError: One cannot be sent.
    """
    age = arguments.max_age
    directives = [f"max-age={age}"] if age else []
    if arguments.cache_control:
        directives.append(arguments.cache_control)
    token = token_of(arguments.token_file, _WRITE_TOKEN)
    found = {
        "Content-Type": arguments.content_type,
        "Content-Encoding": arguments.content_encoding,
        "Cache-Control": ", ".join(directives),
        "If-None-Match": "*" if arguments.if_absent else "",
    }
    for name, value in found.items():
        if value and not (value.isascii() and value.isprintable()):
            raise ConfigError(f"{name}: {value!r}; allowed is printable ASCII text")
    found["Authorization"] = f"Bearer {token}" if token else ""
    return {name: value for name, value in found.items() if value}


# --- ls, purge ---------------------------------------------------------------------


def _add_ls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "prefix",
        nargs="?",
        default="",
        metavar="PREFIX",
        help="what the keys begin with",
    )
    _add_service(parser, ADMIN_TOKEN)
    add_json(parser)


def _ls(arguments: argparse.Namespace) -> int:
    token, timeout = read_token(arguments.token_file), arguments.timeout
    prefix = quote(os.fsencode(arguments.prefix), safe="/")
    after = dict.fromkeys((target.url for target in targets_of(arguments)), "")
    failed, count = 0, 0

    def page(url: str) -> list[Any]:
        query = f"prefix={prefix}" + (f"&after={after[url]}" if after[url] else "")
        with _translated(""):
            headers = {"Authorization": f"Bearer {token}"}
            path = f"{url}/-/keys?{query}"
            return _rows(url, fetch(path, headers=headers, timeout=timeout))

    while after:
        for url, found in each(list(after), page):
            if isinstance(found, InstanceError):
                complain(str(found))
                del after[url]
                failed += 1
                continue
            *rows, last = found
            for row in rows:
                print_line(json.dumps(row) if arguments.json else row["key"])
            count += len(rows)
            after[url] = last["after"]
            if not after[url]:
                del after[url]
    if arguments.json:
        print_line(json.dumps({"summary": {"keys": count, "failed": failed}}))
    return EXIT_FAILED if failed else EXIT_OK


def _rows(url: str, answer: Answer) -> list[Any]:
    """
    Return the lines of a page of keys.

    Raises:
        InstanceError: It is not such a page.
    """
    if answer.status != HTTPStatus.OK:
        raise error_of(urlsplit(url).netloc, answer.status, answer.body)
    try:
        rows = [json.loads(line) for line in answer.body.splitlines()]
        _ = rows[-1]["after"], [row["key"] for row in rows[:-1]]
    except (ValueError, LookupError, TypeError) as error:
        raise InstanceError(url, "the answer is not a list of keys") from error
    return rows


def _add_purge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prefix", metavar="PREFIX", help="what the keys begin with")
    _add_service(parser, ADMIN_TOKEN)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="change nothing; tell how long the purge would stay in the list",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _purge(arguments: argparse.Namespace) -> int:
    token = read_token(arguments.token_file)
    prefix = quote(os.fsencode(arguments.prefix), safe="/")
    path = f"/-/purge?prefix={prefix}{'&dry-run' if arguments.dry_run else ''}"
    timeout = arguments.timeout
    urls = [target.url for target in targets_of(arguments)]
    rows: list[dict[str, object]] = []
    with output() as report:
        for url, answer in each(
            urls, lambda url: act(url, path, token, timeout=timeout)
        ):
            is_done = not isinstance(answer, InstanceError)
            text = answer.reason if isinstance(answer, InstanceError) else answer
            rows.append({"url": url, "done": is_done, "answer": text})
            if not arguments.json:
                report(f"{'' if is_done else 'failed: '}{url}: {text}")
        if arguments.json:
            report(json.dumps({"prefix": arguments.prefix, "instances": rows}))
    return EXIT_OK if all(row["done"] for row in rows) else EXIT_FAILED


COMMANDS: Final = {
    "get": command("get", _add_get, _get),
    "put": command("put", _add_put, _put),
    "rm": command("rm", _add_rm, _rm),
    "stat": command("stat", _add_stat, _stat),
    "ls": command("ls", _add_ls, _ls),
    "purge": command("purge", _add_purge, _purge),
}
