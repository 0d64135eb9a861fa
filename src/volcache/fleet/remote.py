"""
Requests to running instances: to the paths under `/-/`.

What answers may be down, hang, or not be volcache: each is an `InstanceError` of one line,
after a limited time. All answers that are being read at the same time are at most 64 MiB
large: 512 of 128 KiB.
"""

from __future__ import annotations

import json
from concurrent.futures import Future
from http import HTTPStatus
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

from volcache.errors import ConfigError, InstanceError
from volcache_client.errors import CacheError, NodeTimeoutError
from volcache_client.transport import fetch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from volcache_client.messages import Answer

TIMEOUT_SECONDS: Final = 5.0
ANSWER_BYTES_MAX: Final = 128 << 10  # Of one; usually 6 KB.
# Instances that are asked at the same time: a poll takes one time-out however many hang.
AT_ONCE_MAX: Final = 512
_LINE_CHARACTERS_MAX: Final = 400
_SCHEMES: Final = ("http", "https")

Stats = dict[str, Any]
T = TypeVar("T")


def url_of(target: str) -> str:
    """
    Return the address of an instance as a URL without a slash at its end.

    Args:
        target: `HOST:PORT`, a URL, or the URL of a path under `/-/` of it, as copied from
            a browser.

    Raises:
        ConfigError: It is none of these.
    """
    try:
        where = urlsplit(target if "://" in target else f"http://{target}")
        host, port = where.hostname, where.port
    except ValueError:  # An unfinished IPv6 address, or an invalid port.
        where, host, port = urlsplit(""), None, None
    is_complete = "://" in target or port is not None
    if where.scheme not in _SCHEMES or not host or where.username or not is_complete:
        raise ConfigError(
            f"{target}: not the address of an instance; allowed are HOST:PORT, such as"
            " 127.0.0.1:1234, and a URL, such as http://127.0.0.1:1234"
        )
    front, _, _ = f"{where.path}/".partition("/-/")
    return f"{where.scheme}://{where.netloc}{front.rstrip('/')}"


def first_line(body: bytes) -> str:
    """Return the first line of an answer, without control characters, cut off if long."""
    text = body[: 4 * _LINE_CHARACTERS_MAX].decode(errors="replace")
    line = text.strip().partition("\n")[0][:_LINE_CHARACTERS_MAX]
    return "".join(c if c.isprintable() else " " for c in line)


def _ask(
    url: str,
    path: str,
    *,
    timeout: float,
    method: str = "GET",
    token: str = "",
) -> Answer:
    """
    Return the answer of an instance to one request, whatever its status.

    Raises:
        InstanceError: There is no answer in time, or not one of HTTP, or it is too long.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        return fetch(
            f"{url}{path}",
            method=method,
            headers=headers,
            body=b"" if method == "POST" else None,
            timeout=timeout,
            limit_bytes=ANSWER_BYTES_MAX,
        )
    except NodeTimeoutError as error:
        raise InstanceError(url, f"no answer within {timeout:g} s") from error
    except CacheError as error:
        reason = str(error).partition(": ")[2] or str(error)
        raise InstanceError(url, reason.removeprefix("cannot connect: ")) from error


def fetch_stats(url: str, *, timeout: float = TIMEOUT_SECONDS) -> Stats:
    """
    Return the decoded JSON of `/-/stats` of an instance, without the list of volumes.

    Args:
        url: Of the instance, from `url_of`.
        timeout: For the connection and the whole answer together, seconds.

    Raises:
        InstanceError: There is no answer, or not one of volcache with status 200.
    """
    answer = _ask(url, "/-/stats?volumes=0", timeout=timeout)
    if answer.status != HTTPStatus.OK:
        reason = f"/-/stats is answered with {answer.status}"
        if answer.status == HTTPStatus.MISDIRECTED_REQUEST:
            reason += f": {first_line(answer.body)}"
        raise InstanceError(url, reason)
    try:
        stats = json.loads(answer.body)
        _ = stats["store"]["keys"], stats["requests"]["total"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise InstanceError(url, "the response is not from volcache") from error
    return dict(stats)


def problem_of(url: str, *, timeout: float) -> str:
    """Return why an instance is not ready; empty if it is."""
    try:
        answer = _ask(url, "/-/ready", timeout=timeout)
    except InstanceError as error:
        return error.reason
    return "" if answer.status == HTTPStatus.OK else first_line(answer.body)


def act(url: str, path: str, token: str, *, timeout: float) -> str:
    """
    Let an instance do something; return the line that it answers.

    Args:
        url: Of the instance, from `url_of`.
        path: Of the action, with its query, such as `/-/flush`.
        token: The `admin_token` of the instance.
        timeout: As for `fetch_stats`.

    Raises:
        InstanceError: It does not answer, or refuses.
    """
    answer = _ask(url, path, method="POST", token=token, timeout=timeout)
    if answer.status != HTTPStatus.OK:
        raise refusal(url, answer)
    return first_line(answer.body)


def refusal(where: str, answer: Answer) -> InstanceError:
    """Return the error for an answer that refuses a request of the operator."""
    reason = f"{answer.status} {first_line(answer.body)}"
    # That of an instance names the setting.
    if answer.status == HTTPStatus.FORBIDDEN and "admin_token" not in reason:
        reason += "; is this nginx? Give the addresses of the instances"
    return InstanceError(where, reason)


def each(
    urls: Sequence[str], call: Callable[[str], T]
) -> Iterator[tuple[str, T | InstanceError]]:
    """
    Call a function for each instance, several at a time.

    Args:
        urls: Of the instances.
        call: Returns something of the instance at a URL, or raises `InstanceError`.

    Yields:
        Each URL with what was returned or raised, in the order of `urls`.
    """
    room = BoundedSemaphore(AT_ONCE_MAX)

    def run(url: str, future: Future[T | InstanceError]) -> None:
        try:
            future.set_result(call(url))
        except InstanceError as error:
            future.set_result(error)
        except BaseException as error:  # noqa: BLE001 - It is raised below.
            future.set_exception(error)
        finally:
            room.release()

    found: list[tuple[str, Future[T | InstanceError]]] = [(u, Future()) for u in urls]
    for item in found:
        room.acquire()
        # A daemon: Ctrl-C ends the program at once, although a call may take a minute.
        Thread(target=run, args=item, name="fleet", daemon=True).start()
    for url, future in found:
        yield url, future.result()
