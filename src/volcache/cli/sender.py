"""
Sends PUTs to the instances of their keys: many at once, by the mechanism of the client.

One batch is sent while the next is collected. A PUT may be sent twice: after a broken
connection, and after an answer from 500 on.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from volcache.errors import ConfigError
from volcache.fleet.remote import first_line
from volcache_client.core import Core
from volcache_client.errors import InvalidArgumentError
from volcache_client.exchanges import run
from volcache_client.keys import path_of
from volcache_client.many import Many
from volcache_client.messages import Answer, Request
from volcache_client.options import make_options
from volcache_client.serializers import make_codec
from volcache_client.threads import Workers
from volcache_client.transport import ThreadDriver

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from volcache.fleet.targets import Target
    from volcache_client.nodes import Node

_PUTS: Final = 256  # In a batch,
_BYTES: Final = 8 << 20  # and of their values; one of any size is allowed.
_INSTANCES: Final = 32  # That are sent to at the same time.
_TRIES: Final = 6
_PAUSE_SECONDS: Final = 0.25  # It doubles with each try.
_NEVER: Final = (
    1 << 62
)  # Failures after which the client would ask an instance no more.
NO_ANSWER: Final = 0


class Put(NamedTuple):
    """A value to store."""

    number: int
    key: bytes
    value: bytes
    headers: Mapping[str, str]


class Ended(NamedTuple):
    """What became of it."""

    put: Put
    status: int  # Of the answer; or `NO_ANSWER`.
    why: str  # It is not stored; empty: it is.

    @property
    def is_failure(self) -> bool:
        """Whether it may be stored by another try."""
        return (
            self.status == NO_ANSWER or self.status >= HTTPStatus.INTERNAL_SERVER_ERROR
        )


class _PlainCore(Core[bytes]):
    """Takes keys as they are: `Put` has them as an instance derives them."""

    def stored_key(self, key: str | bytes) -> bytes:
        return key if isinstance(key, bytes) else key.encode()


class Sender:
    """
    Sends PUTs until the context ends, which waits for those in flight.

    Attributes:
        ended: What was answered; the caller takes it out.
    """

    def __init__(self, targets: Sequence[Target], timeout: float) -> None:
        """
        Connect to nothing yet.

        Args:
            targets: The instances, or one proxy.
            timeout: For a connection, and for an answer, seconds.

        Raises:
            ConfigError: The address of a target has a path.
        """
        options = make_options(
            {"timeout": timeout, "connect_timeout": timeout, "failures": _NEVER}
        )
        self._driver = ThreadDriver(options)
        nodes = [(one.url, one.weight) for one in targets]
        try:
            self._core = _PlainCore(self._driver, nodes, make_codec(None), options)
        except InvalidArgumentError as error:
            raise ConfigError(str(error)) from error
        self._workers = Workers(_INSTANCES)
        self._thread = ThreadPoolExecutor(1)
        self._batch: dict[bytes, Put] = {}
        self._bytes = 0
        self._sent: Future[list[Ended]] | None = None
        self._tries = _TRIES  # One, while an instance does not answer.
        self.ended: list[Ended] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tries = 1
        self._thread.shutdown()
        self._driver.keep(())
        self._workers.close()

    def add(self, put: Put) -> None:
        """Send a value soon; wait for the last batch if this completes one."""
        if put.key in self._batch:
            self._send()
        self._batch[put.key] = put
        self._bytes += len(put.value)
        if len(self._batch) >= _PUTS or self._bytes >= _BYTES:
            self._send()

    def wait(self) -> None:
        """Send what was added, and wait until all is answered."""
        self._send()
        self._take()

    def _send(self) -> None:
        self._take()
        if self._batch:
            self._sent = self._thread.submit(self._store, self._batch)
            self._batch, self._bytes = {}, 0

    def _take(self) -> None:
        if self._sent is not None:
            self.ended += self._sent.result()
            self._sent = None

    def _store(self, batch: dict[bytes, Put]) -> list[Ended]:
        """Send a batch as often as it is needed; return what became of each value."""
        ended: list[Ended] = []
        failed: list[Ended] = []
        for number in range(_TRIES):
            found = self._exchange(batch)
            ended += (one for one in found if not one.is_failure)
            failed = [one for one in found if one.is_failure]
            batch = {one.put.key: one.put for one in failed}
            if not batch or number + 1 >= self._tries:
                break
            time.sleep(_PAUSE_SECONDS * 2**number)
        self._tries = 1 if batch else _TRIES
        return ended + failed

    def _exchange(self, batch: Mapping[bytes, Put]) -> list[Ended]:
        def ask(key: bytes, _: bytes) -> Request:
            return Request("PUT", path_of(key), batch[key].headers, batch[key].value)

        many = Many(self._core, "set", batch, ask, _outcome)
        self._workers.run([partial(run, steps) for steps in run(many.by_node())])
        found: dict[bytes, Any] = {k: _told(one) for k, one in many.found().items()}
        return [Ended(put, *found[key]) for key, put in batch.items()]


def _outcome(node: Node, answer: Answer) -> tuple[int, str]:
    is_stored = HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES
    why = f"{node.name}: {answer.status} {first_line(answer.body)}"
    return answer.status, "" if is_stored else why


def _told(found: object) -> tuple[int, str]:
    """Return the status and why it is not stored, of a result or an error."""
    return found if isinstance(found, tuple) else (NO_ANSWER, str(found))
