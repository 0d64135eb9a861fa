"""
Wiring: creates every part of an instance from the settings, and runs it.

Only this module imports all parts. What it opens it closes, in reverse order, however the
instance ends.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from volcache.advice import warnings
from volcache.cache import Cache
from volcache.errors import ConfigError
from volcache.hot.promotion import MissCounters
from volcache.hot.versions import KeyVersions
from volcache.http.access_log import AccessLog
from volcache.http.admin import Admin
from volcache.http.app import App, Limits
from volcache.http.auth import TokenCheck
from volcache.http.cors import Cors, CorsHeaders
from volcache.http.native_app import with_fast_path
from volcache.http.slow_log import SlowLog
from volcache.kinds import AUTO
from volcache.log_writer import LogWriter
from volcache.logs import reopen_logs, unusable_file
from volcache.malloc import keep_freed_memory
from volcache.memcache.command_log import CommandLog
from volcache.memcache.commands import KEY_BYTES_MAX
from volcache.memcache.executor import Executor
from volcache.memcache.executor import Limits as ExecutorLimits
from volcache.memcache.listener import HELD_BYTES, Listener
from volcache.memcache.listener import Limits as ListenerLimits
from volcache.memcache.protocol import Connection, WireLimits
from volcache.memcache.service import Access, Facts, Service
from volcache.memcache.sockets import ListeningSocket
from volcache.memory import default_body_memory
from volcache.monitoring.commands import CommandStats
from volcache.monitoring.requests import RequestStats
from volcache.monitoring.snapshot import Monitor
from volcache.monitoring.status_line import StatusLine
from volcache.reload import Reloader, Settings
from volcache.ring import load_ring
from volcache.server.bjoern import activated_listener, gate_link, listen, serve
from volcache.server.drain import (
    DRAIN_SECONDS,
    block_hangups,
    stop_signals_blocked,
    wait_for_stop,
)
from volcache.server.gate import (
    Timeouts,
    change_gate,
    connections_max,
    open_gate,
    raise_descriptor_limit,
)
from volcache.server.notify import (
    Heartbeat,
    Notifier,
    alarm_calls,
    completed_requests,
)
from volcache.settings import visible_settings
from volcache.store import PeriodicSync, Store
from volcache.tokens import Refusals

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket
    from wsgiref.types import WSGIApplication

    from volcache.front import Gate
    from volcache.http.responses import WsgiApp
    from volcache.settings import Config
    from volcache.store import SyncMode
    from volcache.store.eviction import Eviction
    from volcache.store.stats import StoreUsage

_logger: Final = logging.getLogger("volcache")
# With a second thread that runs Python all the time, the longest time that one waits for
# the other.
_SWITCH_SECONDS: Final = 0.001


def run(  # noqa: C901, PLR0915 - One part after the other.
    config: Config, read_again: Callable[[], Config] | None = None
) -> None:
    """
    Serve until SIGTERM or SIGINT, then write and sync what is buffered.

    SIGHUP opens log files again that were moved, and lets changed settings take effect.

    Args:
        config: The settings.
        read_again: Reads them again at a reload; raises `ConfigError`. By default they
            stay as they are.

    Raises:
        ConfigError: The access log cannot be opened, or a list of `ring` is wrong.
        ListenError: The address cannot be listened on.
        StoreError: The mount point cannot be used.
    """
    block_hangups()
    keep_freed_memory()
    raise_descriptor_limit()
    with ExitStack() as parts:
        # A signal that arrives while a part is opened or closed stays pending.
        parts.enter_context(stop_signals_blocked())
        notifier = Notifier(os.environ)
        parts.callback(notifier.close)
        # The listeners first: they fail most often, and the mount point is untouched then.
        inherited = activated_listener(os.environ)
        listener = inherited or _listen(config)
        if listener is not None:
            parts.callback(listener.close)
        memcache_socket = _listen_memcache(config, parts)
        access_file = _open_access_file(config, parts)
        settings = _with_ring(config)
        with notifier.extending(f"opening the store {config.mount_point}"):
            store, boot_seconds = _open_store(config)
        parts.callback(_close_store, store, notifier)
        syncer = _start_threads(config, store, parts)
        cache = _make_cache(config, store, parts)
        draining = threading.Event()
        status = Monitor(
            cache,
            RequestStats(),
            mount_point=config.mount_point,
            sync_mode=config.sync_mode,
            boot_seconds=boot_seconds,
            settings=visible_settings(config),
            is_draining=draining.is_set,
        )
        server = _Server(settings, cache, status, read_again or (lambda: config))
        application = None
        connections = connections_max()
        memcache: Listener | None = None
        if memcache_socket is not None:
            share = connections // 2 if listener else connections
            connections -= share
            memcache = server.open_memcache(memcache_socket, share, access_file, parts)
        if listener is not None:
            application = server.open(access_file, connections, parts)
        server.start_heartbeat(notifier, syncer, parts, has_http=listener is not None)
        # All objects that exist now live as long as the process: the garbage collector
        # need not visit millions of keys.
        gc.collect()
        gc.freeze()
        on_hangup = partial(server.on_hangup, access_file, notifier)

        def on_draining() -> None:
            draining.set()
            notifier.stopping()
            server.drain()
            if memcache is not None:
                memcache.drain()

        if memcache_socket is not None and memcache is not None:
            memcache.start()
            _logger.info("memcache.started address=%s", memcache_socket.name)
        if listener is None or application is None:
            wait_for_stop(on_hangup)
            _logger.info("stop.started drain_seconds=%g", DRAIN_SECONDS)
            on_draining()
        else:
            host, port = listener.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            _logger.info("serving.started url=http://%s:%d", shown, port)
            serve(
                listener,
                application,
                # An inherited socket stays open: connections wait for the next process.
                owns_listener=inherited is None,
                on_draining=on_draining,
                on_hangup=on_hangup,
            )
        if memcache is not None:
            memcache.close()
        _logger.info("serving.ended")


def _start_threads(
    config: Config, store: Store, parts: ExitStack
) -> PeriodicSync | None:
    """Start what works on the store in the background; it ends before the store."""
    syncer: PeriodicSync | None = None
    if config.sync_mode == "periodic":
        syncer = PeriodicSync(store, config.sync_interval)
        parts.callback(syncer.stop)
    if config.scrub_rate:
        parts.callback(store.scrub(config.scrub_rate).stop)
    return syncer


class _Server:
    """What answers requests, and how a reload changes it."""

    def __init__(
        self,
        settings: Settings,
        cache: Cache,
        status: Monitor,
        read_again: Callable[[], Config],
    ) -> None:
        self._config = config = settings.config
        self._status = status
        self._reloader = Reloader(
            settings, lambda: _with_ring(read_again()), self._apply
        )
        self._refusals = Refusals(status.requests.refused)
        self._admin = Admin(
            cache,
            token=config.admin_token,
            hosts=config.admin_hosts,
            status=status,
            refusals=self._refusals,
            key_size=config.max_key_size,
            metrics_volumes=config.metrics_volumes,
            reload=self._reloader.reload,
            stalled=self._stalled_seconds,
        )
        self._app = App(
            cache,
            Limits(
                key_size=config.max_key_size,
                value_size=config.max_value_size,
                default_ttl=config.default_ttl,
                max_ttl=config.max_ttl,
            ),
            stats=status.requests,
            admin=self._admin,
            slow_log=SlowLog(config.log_slow),
            ring=settings.ring,
        )
        self._fast = with_fast_path(self._app, is_merged=not config.log_access)
        self._gate: Gate | None = None
        self._memcache: _Memcache | None = None

    def open(
        self, file: LogWriter | None, connections: int, parts: ExitStack
    ) -> WSGIApplication:
        """Return the application with all that is around it, behind the gate."""
        config = self._config
        log = None
        if file is not None:
            log = AccessLog(self._fast, file.add, as_json=config.log_format == "json")
        cors = CorsHeaders(config.cors_origins)
        self._gate = open_gate(
            self._app,
            gate_link(),
            timeouts=Timeouts(
                config.head_timeout, config.idle_timeout, config.transfer_timeout
            ),
            threads=config.read_threads,
            connections=connections,
            body_memory=config.body_memory or default_body_memory(),
            answers=not config.read_token,
            cors=cors,
            log_answer=log.add_native if log else None,
        )
        if self._gate is not None:
            parts.callback(self._gate.close)
            self._fast.gate = self._gate
            self._status.count_connections = self._gate.stats
        self._fast.front = self._front(config, cors)
        return log or self._fast

    def open_memcache(
        self,
        listening: ListeningSocket,
        connections: int,
        file: LogWriter | None,
        parts: ExitStack,
    ) -> Listener:
        """Return what serves the memcached protocol; the caller starts it."""
        sys.setswitchinterval(_SWITCH_SECONDS)
        status = self._status
        status.commands = CommandStats()
        memcache = self._memcache = _open_memcache(
            self._config, status, listening, connections, self._refusals, file
        )
        parts.callback(memcache.listener.close)
        return memcache.listener

    def _stalled_seconds(self) -> float:
        return self._memcache.listener.stalled_seconds() if self._memcache else 0.0

    def _front(self, config: Config, cors: CorsHeaders) -> WsgiApp | None:
        """Return what is in front of the application; None: nothing."""
        front: WsgiApp | None = None
        if config.read_token or config.write_token:
            front = TokenCheck(
                self._fast.answer,
                self._app.send,
                self._refusals,
                read=config.read_token,
                write=config.write_token,
            )
        return Cors(front or self._fast.answer, cors) if cors else front

    def _apply(self, settings: Settings) -> None:
        """Let settings take effect that a reload may change."""
        config, self._app.ring = settings
        cors = CorsHeaders(config.cors_origins)
        front = self._front(config, cors)
        self._app.set_slow(config.log_slow)
        self._fast.refresh()
        if self._gate is not None:
            change_gate(self._gate, self._app, answers=not config.read_token, cors=cors)
        self._fast.front = front
        self._admin.set_access(config.admin_token, config.admin_hosts)
        if self._memcache is not None:
            self._memcache.change(config)
        self._status.settings = visible_settings(config)

    def on_hangup(self, access_file: LogWriter | None, notifier: Notifier) -> None:
        """Open logs again and reload; called by the thread that takes signals."""
        try:
            _reopen_logs(access_file)
            notifier.reloading()
            try:
                number, found = self._reloader.read()
            except ConfigError:  # It is logged.
                notifier.ready()
                return

            def take() -> None:
                try:
                    self._reloader.take(number, found)
                finally:
                    notifier.ready()

            if self._gate is None:
                take()
            else:
                # The gate uses the settings without Python's lock, in its own thread.
                self._gate.call_soon(take)
        except Exception:
            _logger.exception("config.failed")

    def drain(self) -> None:
        """Let clients use their connections for one more request; from any thread."""
        if self._gate is not None:
            self._gate.drain()

    def start_heartbeat(
        self,
        notifier: Notifier,
        syncer: PeriodicSync | None,
        parts: ExitStack,
        *,
        has_http: bool,
    ) -> None:
        """Let the loop tell the service manager, if there is one, how it is."""
        if not notifier.is_on:
            return
        line, gate = StatusLine(self._status), self._gate
        memcache = self._memcache.listener if self._memcache else None

        def status() -> str:
            self._fast.flush()
            if gate is not None:
                gate.flush()
            return line.text()

        def stalled() -> float:
            syncing = syncer.stalled_seconds() if syncer else 0.0
            loops = (gate, memcache)
            return max(
                syncing, *(loop.stalled_seconds() if loop else 0 for loop in loops)
            )

        answered = completed_requests(self._config.mount_point)

        def completed() -> int | None:
            # A disk that answers does not excuse a loop that fails.
            return None if memcache and memcache.is_failing else answered()

        heartbeat = Heartbeat(
            notifier,
            stalled=stalled,
            completed=completed,
            status=None if gate is None and has_http else status,
        )
        if gate is not None:
            gate.set_pulse(heartbeat.interval, heartbeat.beat)
        elif has_http or memcache is None:
            parts.enter_context(alarm_calls(heartbeat.interval, heartbeat.beat))
        else:
            memcache.set_pulse(heartbeat.interval, heartbeat.beat)


class _Memcache(NamedTuple):
    """What serves the memcached protocol."""

    service: Service
    listener: Listener
    log: CommandLog

    def change(self, config: Config) -> None:
        """Let settings take effect that a reload may change."""
        access = Access(read=config.read_token, write=config.write_token)
        self.service.change(access, may_flush=config.memcache_flush)
        self.log.set_slow(config.log_slow)


def _with_ring(config: Config) -> Settings:
    return Settings(config, load_ring(config.ring, config.ring_self))


def _listen(config: Config) -> socket | None:
    """Open the socket of HTTP unless the memcached protocol is to be served alone."""
    if config.port == 0 and config.memcache_listen:
        return None
    return listen(config.ip, config.port)


def _listen_memcache(config: Config, parts: ExitStack) -> ListeningSocket | None:
    """Open the socket of the memcached protocol if it is configured."""
    if not config.memcache_listen:
        return None
    listening = ListeningSocket(config.memcache_listen)
    parts.callback(listening.close)
    return listening


def _open_memcache(
    config: Config,
    status: Monitor,
    listening: ListeningSocket,
    connections: int,
    refusals: Refusals,
    file: LogWriter | None,
) -> _Memcache:
    cache, stats = status.cache, status.commands or CommandStats()
    log = CommandLog(
        config.log_slow,
        cache.waited_since,
        add=file.add if file else None,
        as_json=config.log_format == "json",
    )
    limits = ExecutorLimits(
        key_size=min(KEY_BYTES_MAX, config.max_key_size),
        value_size=config.max_value_size,
        default_ttl=config.default_ttl,
        max_ttl=config.max_ttl,
    )
    service = Service(
        cache,
        Executor(cache, limits),
        stats,
        refusals,
        Facts(
            listen=listening.name,
            connections_max=connections,
            value_size=limits.value_size,
        ),
        access=Access(read=config.read_token, write=config.write_token),
        may_flush=config.memcache_flush,
    )
    listener = Listener(
        listening,
        service,
        partial(Connection, WireLimits(limits.key_size, limits.value_size)),
        limits=ListenerLimits(
            connections=connections,
            transfer_seconds=config.transfer_timeout,
            held_bytes=max(HELD_BYTES, 4 * limits.value_size),
        ),
        stats=stats,
        log=log,
        sample=status.requests.sample,
    )
    return _Memcache(service, listener, log)


def _open_access_file(config: Config, parts: ExitStack) -> LogWriter | None:
    """Open the access log if it is configured."""
    if not config.log_access:
        return None
    try:
        file = LogWriter(config.log_access)
    except OSError as error:
        raise unusable_file("log_access", config.log_access, error) from error
    parts.callback(file.close)
    return file


def _reopen_logs(access_file: LogWriter | None) -> None:
    """Continue in new files if the present ones were renamed."""
    reopen_logs()
    if access_file is not None:
        access_file.flush()
    _logger.info("log.reopened")


def _open_store(config: Config) -> tuple[Store, float]:
    """Open the store; return it with the seconds that this took."""
    started = time.monotonic()
    _logger.info("recovery.started mount_point=%r", config.mount_point)
    store = Store.open(
        config.mount_point,
        volume_size=config.volume_size,
        volume_num=None if config.volume_num == AUTO else config.volume_num,
        sync_mode=cast("SyncMode", config.sync_mode),
        eviction=cast("Eviction", config.eviction),
        reinsert_reads=config.reinsert_reads,
    )
    usage = store.usage()
    _warn_of_small_disk(config, store, usage)
    # What the disk holds, and `auto` has become.
    for text in warnings(replace(config, volume_num=usage.disk.volumes)):
        _logger.warning("config.warning text=%r", text)
    seconds = time.monotonic() - started
    report = store.recovery
    _logger.info(
        "recovery.completed mount_point=%r keys=%d entries=%d scanned=%d torn=%d damaged=%d"
        " rebuilt=%d volumes=%d volume_num=%d disk_free=%d seconds=%.3f",
        config.mount_point,
        store.count,
        report.entries,
        report.scanned,
        report.torn,
        report.damaged,
        report.rebuilt,
        usage.disk.volumes,
        usage.volume_num,
        usage.disk.free,
        seconds,
    )
    return store, seconds


def _warn_of_small_disk(config: Config, store: Store, usage: StoreUsage) -> None:
    """Log it if the disk does not hold what the settings promise, or is not written."""
    if store.refusal:
        _logger.error("disk.not_writable error=%r", store.refusal)
    holding = store.holding
    capacity = usage.volume_num * config.volume_size
    if capacity > holding.total:
        _logger.warning(
            "disk.too_small configured=%d holds=%d free=%d volume_num=%d volumes=%d",
            capacity,
            holding.total,
            holding.free,
            usage.volume_num,
            usage.disk.volumes,
        )


def _close_store(store: Store, notifier: Notifier) -> None:
    started = time.monotonic()
    with notifier.extending("writing and syncing what is buffered"):
        store.close()
    _logger.info(
        "store.closed keys=%d seconds=%.3f", store.count, time.monotonic() - started
    )


def _make_cache(config: Config, store: Store, parts: ExitStack) -> Cache:
    """Create the cache, with a hot tier if it is configured."""
    if not config.memc_on:
        return Cache(store)
    # Here, so that an instance without memcached starts faster: 30 of 200 ms.
    from volcache.hot.memcached import MemcachedTier  # noqa: PLC0415

    servers = config.memc_servers or (
        _server_address(config.memc_ip, config.memc_port),
    )
    versions = KeyVersions(*store.take_hot_snapshot())
    hot = MemcachedTier(
        servers,
        versions,
        timeout=config.memc_timeout,
        item_size_max=config.memc_max_value_size,
    )
    parts.callback(store.write_hot_snapshot, versions.encode)
    parts.callback(hot.close)
    promotion = MissCounters(
        count=config.cache_after_miss_count,
        duration_ms=round(config.cache_after_miss_count_duration * 1000),
        clock=lambda: time.monotonic_ns() // 1_000_000,
    )
    return Cache(store, hot, promotion)


def _server_address(host: str, port: int) -> str:
    if host.startswith("/"):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
