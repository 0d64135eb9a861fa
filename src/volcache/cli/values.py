"""
`volcache get`, `put`, `rm`, `ls` and `purge`: values of running instances.

They work with an instance, with nginx in front of a cluster, and with the instances of a
cluster themselves: then each key is asked of the instance that nginx would ask.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote_to_bytes, urlsplit

from volcache.cli.command import (
    EXIT_FAILED,
    EXIT_OK,
    FileError,
    command,
    complain,
    output,
    print_line,
)
from volcache.cli.streams import (
    exit_on_sigterm,
    reading,
    source_name,
    writing,
)
from volcache.cli.token import read_token, token_of
from volcache.errors import BadKeyError, ConfigError, InstanceError
from volcache.fleet.remote import act, each, refusal
from volcache.fleet.targets import read_targets
from volcache.keys import parse_key
from volcache.text import counted
from volcache.tokens import WRONG_TOKEN
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
    from collections.abc import Iterator, Sequence

    from volcache.fleet.targets import Target
    from volcache_client.messages import Answer

DEFAULT_TARGET: Final = "127.0.0.1:1234"
_READ_TOKEN: Final = "VOLCACHE_READ_TOKEN"  # noqa: S105 - A name.
_WRITE_TOKEN: Final = "VOLCACHE_WRITE_TOKEN"  # noqa: S105 - A name.
KEY_BYTES_MAX: Final = 65535  # Of a record; the limit of an instance may be lower.
# What looks like HOST:PORT, or like the URL of an instance.
_ADDRESS: Final = re.compile(
    r"https?://\S+|[^/\s]+:[0-9]{1,5}(/|/-/.*)?", re.IGNORECASE
)
_STORED: Final = {HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.NO_CONTENT}


# --- What they share ---------------------------------------------------------------


def targets_of(arguments: argparse.Namespace) -> list[Target]:
    """
    Return the instances that arguments name.

    Raises:
        ConfigError: As `read_targets`.
    """
    given = [*getattr(arguments, "targets", ()), *arguments.target]
    return read_targets(given, DEFAULT_TARGET)


def _refuse_address(arguments: argparse.Namespace, name: str, text: str) -> None:
    """
    Refuse an argument that was probably meant to be a target.

    Raises:
        ConfigError: It looks like an address, and is not behind `--`.
    """
    if _ADDRESS.fullmatch(text) and not arguments.is_literal:
        raise ConfigError(
            f"{_shown(text)}: looks like an address, and is in the place of {name}; give"
            f" the address behind {name} or by --target; if it is {name}, give -- before"
            " it"
        )


def key_of(arguments: argparse.Namespace) -> bytes:
    """
    Return the key that the arguments name.

    Raises:
        ConfigError: It looks like an address.
        BadKeyError, KeyTooLongError: It is not a key.
    """
    text: str = arguments.key
    _refuse_address(arguments, "KEY", text)
    key = os.fsencode(text)
    if arguments.encoded:
        key = unquote_to_bytes(key)
    if key.startswith(b"/"):
        raise BadKeyError(
            f"bad key {_shown(text)}: it begins with a slash; the key of this path is"
            f" {_shown(text.lstrip('/'))}"
        )
    return parse_key(f"/{key.decode('latin-1')}", KEY_BYTES_MAX)


def _client(arguments: argparse.Namespace, variable: str) -> Client[bytes]:
    """
    Return a client of the targets; it raises errors of `_translated`.

    Raises:
        ConfigError: A target or the token cannot be used.
    """
    nodes = [(target.url, target.weight) for target in in_use(arguments)]
    with _translated(""):
        return Client(
            nodes,
            token=token_of(arguments.token_file, variable),
            timeout=arguments.timeout,
            connect_timeout=arguments.timeout,
        )


def in_use(arguments: argparse.Namespace) -> list[Target]:
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
        if isinstance(error, AccessDeniedError) and (
            error.status == HTTPStatus.UNAUTHORIZED and WRONG_TOKEN not in reason
        ):
            reason += "; give the token by --token-file or in the environment"
        raise InstanceError(node, reason) from error


def _shown(text: str) -> str:
    """Return a key for a line of an error: without control characters."""
    return "".join(c if c.isprintable() else "?" for c in text)


# --- get, rm -----------------------------------------------------------------------


def _get(arguments: argparse.Namespace) -> None:
    text, key = arguments.key, key_of(arguments)
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


def _rm(arguments: argparse.Namespace) -> None:
    text, key = arguments.key, key_of(arguments)
    with _client(arguments, _WRITE_TOKEN) as client, _translated(text):
        is_deleted = client.delete(key)
    if not (is_deleted or arguments.force):
        raise InstanceError(_shown(text), "not found")


# --- put ---------------------------------------------------------------------------


def _put(arguments: argparse.Namespace) -> None:
    text, file, key = arguments.key, arguments.file, key_of(arguments)
    if not os.path.exists(file):  # noqa: PTH110 - It may have any bytes.
        _refuse_address(arguments, "FILE", file)
    headers = put_headers(arguments)
    targets = {urlsplit(target.url).netloc: target for target in in_use(arguments)}
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


def put_headers(arguments: argparse.Namespace) -> dict[str, str]:
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
        "If-None-Match": "*" if getattr(arguments, "if_absent", False) else "",
    }
    for name, value in found.items():
        if value and not (value.isascii() and value.isprintable()):
            raise ConfigError(f"{name}: {value!r}; allowed is printable ASCII text")
    found["Authorization"] = f"Bearer {token}" if token else ""
    return {name: value for name, value in found.items() if value}


# --- ls, purge ---------------------------------------------------------------------


def _ls(arguments: argparse.Namespace) -> int:
    _refuse_address(arguments, "PREFIX", arguments.prefix)
    token, timeout = read_token(arguments.token_file), arguments.timeout
    prefix = quote(os.fsencode(arguments.prefix), safe="/")
    after = dict.fromkeys((one.operator_url for one in targets_of(arguments)), "")
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
        raise refusal(urlsplit(url).netloc, answer)
    try:
        rows = [json.loads(line) for line in answer.body.splitlines()]
        _ = rows[-1]["after"], [row["key"] for row in rows[:-1]]
    except (ValueError, LookupError, TypeError) as error:
        raise InstanceError(url, "the answer is not a list of keys") from error
    return rows


def _purge(arguments: argparse.Namespace) -> int:
    _refuse_address(arguments, "PREFIX", arguments.prefix)
    prefix, dry = quote(os.fsencode(arguments.prefix), safe="/"), arguments.dry_run
    return tell_all(
        targets_of(arguments),
        f"/-/purge?prefix={prefix}{'&dry-run' if dry else ''}",
        f"{'would purge' if dry else 'purged'} {_shown(arguments.prefix)}",
        arguments,
    )


def tell_all(
    targets: Sequence[Target], path: str, done: str, arguments: argparse.Namespace
) -> int:
    """
    Let all instances do something, also if some fail; return the exit code.

    Args:
        targets: The instances.
        path: Of the action, with its query.
        done: What those that do not fail have done.
        arguments: With the token and the timeout.
    """
    token = read_token(arguments.token_file)
    rows: list[dict[str, object]] = []
    failed: list[str] = []
    with output() as report:
        answers = each(
            [target.operator_url for target in targets],
            lambda url: act(url, path, token, timeout=arguments.timeout),
        )
        for target, (url, answer) in zip(targets, answers, strict=True):
            is_done = not isinstance(answer, InstanceError)
            text = answer.reason if isinstance(answer, InstanceError) else answer
            rows.append({"url": url, "done": is_done, "answer": text})
            if not is_done:
                failed.append(f"failed: {target.name}: {text}")
            elif not arguments.json:
                report(f"{target.name}: {text}")
        count = f"{len(targets) - len(failed)} of {counted(len(targets), 'instance')}"
        again = "; run it again for the others" if failed else ""
        lines = [*failed, f"{done} on {count}{again}"]
        for line in [json.dumps({"instances": rows})] if arguments.json else lines:
            report(line)
    return EXIT_FAILED if failed else EXIT_OK


COMMANDS: Final = {
    "get": command("get", _get),
    "put": command("put", _put),
    "rm": command("rm", _rm),
    "ls": command("ls", _ls),
    "purge": command("purge", _purge),
}
