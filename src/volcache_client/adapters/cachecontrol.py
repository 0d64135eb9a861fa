"""
A cache of HTTP answers for CacheControl, and with it for requests.

    session = CacheControl(requests.Session(), cache=VolcacheStorage(client))
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Final

try:
    from cachecontrol.cache import BaseCache
except ImportError as error:
    raise ImportError(
        "volcache_client.adapters.cachecontrol needs CacheControl:"
        " pip install CacheControl requests"
    ) from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache_client.client import Client


class VolcacheStorage(BaseCache):
    """Answers by the SHA-256 of their URL; used by all threads."""

    def __init__(
        self,
        client: Client[bytes],
        prefix: str = "http/",
        *,
        ttl: float | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """
        Take a client, which is not closed here.

        Args:
            client: Without a serializer.
            prefix: Of the keys.
            ttl: Seconds for which an answer is kept that names no time itself; it may be
                asked for again with its ETag. None = as the client or service decides.
            now: The time.
        """
        self._client: Final = client
        self._prefix: Final = prefix
        self._ttl: Final = ttl
        self._now: Final = now

    def get(self, key: str) -> bytes | None:
        """Return what is stored for a URL."""
        return self._client.get(self._key(key))

    def set(
        self, key: str, value: bytes, expires: int | datetime | None = None
    ) -> None:
        """Store an answer for some seconds, or until a time, of UTC if it has no zone."""
        if isinstance(expires, datetime):
            at = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
            seconds = (at - self._now()).total_seconds()
        elif expires is None:
            self._client.set(self._key(key), value, self._ttl)
            return
        else:
            seconds = expires
        if seconds > 0:
            self._client.set(self._key(key), value, seconds)
        else:
            self._client.delete(self._key(key))

    def delete(self, key: str) -> None:
        """Remove what is stored for a URL."""
        self._client.delete(self._key(key))

    def _key(self, url: str) -> str:
        return self._prefix + sha256(url.encode("utf-8", "surrogatepass")).hexdigest()
