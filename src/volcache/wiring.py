"""
Wiring: creates every part of an instance from the settings, and runs it.

Only this module imports all parts. `run` creates them in order: each function is called
once, in the order in which they follow. What they open they close, in reverse order,
however the instance ends. What a reload changes is set by `_Parts.change`, also at the
start.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from volcache.access import Access, Limits
from volcache.advice import log_warnings
from volcache.cache import Cache
from volcache.config import value_size_max, volume_size_least
from volcache.errors import ConfigError
from volcache.front import AccessLog, CommandFacts, Copies, HotClient, Readers
from volcache.hot import versions
from volcache.hot.memcached import MemcachedTier
from volcache.http.admin import Admin
from volcache.http.app import App
from volcache.http.auth import TokenCheck
from volcache.http.cors import Cors, CorsHeaders
from volcache.http.entrance import Entrance
from volcache.kinds import AUTO
from volcache.log_writer import LogWriter
from volcache.logs import reopen_logs, unusable_file
from volcache.malloc import keep_freed_memory
from volcache.memcache.service import KEY_BYTES_MAX, Service
from volcache.memcache.statistics import ServerFacts, ServerStatistics
from volcache.memory import default_body_memory
from volcache.monitoring.commands import CommandStats
from volcache.monitoring.history import History
from volcache.monitoring.requests import RequestStats
from volcache.monitoring.snapshot import Monitor
from volcache.monitoring.status_line import StatusLine
from volcache.reload import Reloader
from volcache.server.addresses import Addresses, open_addresses
from volcache.server.front import (
    Front,
    Timeouts,
    connections_max,
    raise_descriptor_limit,
    usual_threads,
)
from volcache.server.notify import (
    BEAT_SECONDS,
    Heartbeat,
    Notifier,
    completed_requests,
)
from volcache.server.signals import (
    DRAIN_SECONDS,
    block_hangups,
    stop_signals_blocked,
    wait_for_stop,
)
from volcache.settings import visible_settings
from volcache.sharing.owner import Sharing
from volcache.slow_log import CommandLog
from volcache.store import PeriodicSync, Store
from volcache.tokens import Refusals

if TYPE_CHECKING:
    from collections.abc import Callable

    from volcache.http.responses import WsgiApp
    from volcache.reload import Settings
    from volcache.settings import Config

_logger: Final = logging.getLogger("volcache")


def run(config: Config, read_again: Callable[[], Config]) -> None:
    """
    Serve until SIGTERM or SIGINT, then write and sync what is buffered.

    SIGHUP opens log files again that were moved, and lets changed settings take effect.

    Args:
        config: The settings.
        read_again: Reads them again at a reload; raises `ConfigError`.

    Raises:
        ConfigError: The access log cannot be opened, or a list of `ring` is wrong.
        ListenError: The address cannot be listened on.
        StoreError: The mount point cannot be used.
    """
    block_hangups()
    keep_freed_memory()
    raise_descriptor_limit()
    with ExitStack() as closing:
        # A signal that arrives while a part is opened or closed stays pending.
        closing.enter_context(stop_signals_blocked())
        outside = _open_outside(config, closing)
        reloader = Reloader(config, read_again)
        core = _open_core(config, outside, closing)
        parts = _open_front(config, core, reloader.reload, closing)
        reloader.start(parts.change)
        # All objects that exist now live as long as the process: the garbage collector
        # need not visit millions of keys.
        gc.collect()
        gc.freeze()
        _serve(config, parts, partial(_reload, parts, reloader))
        _logger.info("serving.ended")


class _Outside(NamedTuple):
    """What is opened first: it fails most often, and the mount point is untouched then."""

    notifier: Notifier
    addresses: Addresses
    access_log: LogWriter | None
    lines: AccessLog | None  # of it


def _open_outside(config: Config, closing: ExitStack) -> _Outside:
    """Open the sockets and the access log that are configured."""
    notifier = Notifier(os.environ)
    closing.callback(notifier.close)
    addresses = open_addresses(
        os.environ,
        closing,
        ip=config.ip,
        port=config.port,
        admin_listen=config.admin_listen,
        memcache_listen=config.memcache_listen,
    )
    access_log: LogWriter | None = None
    lines: AccessLog | None = None
    if config.log_access:
        try:
            lines = AccessLog(as_json=config.log_format == "json")
            access_log = LogWriter(config.log_access, lines)
        except OSError as error:
            raise unusable_file("log_access", config.log_access, error) from error
        closing.callback(access_log.close)
    return _Outside(notifier, addresses, access_log, lines)


class _Core(NamedTuple):
    """What all protocols share."""

    outside: _Outside
    cache: Cache
    readers: Readers
    syncer: PeriodicSync | None
    status: Monitor
    history: History
    refusals: Refusals
    draining: threading.Event
    connections: int  # that each protocol may have


def _open_core(config: Config, outside: _Outside, closing: ExitStack) -> _Core:
    """Open the store and the hot tier; start what reads and syncs in the background."""
    with outside.notifier.extending(f"opening the store {config.mount_point}"):
        store, seconds = _open_store(config)
    closing.callback(_close_store, store, outside.notifier)
    readers = Readers(store.index, threads=config.read_threads)
    closing.callback(readers.close)
    syncer: PeriodicSync | None = None
    if config.sync_mode == "periodic":
        syncer = PeriodicSync(store, config.sync_interval)
        closing.callback(syncer.stop)
    if config.scrub_rate:
        closing.callback(store.scrub(config.scrub_rate).stop)
    cache = _make_cache(config, store, closing)
    closing.callback(Sharing(store, config.mount_point, cache.hot_keys).close)
    draining = threading.Event()
    status = Monitor(
        cache,
        RequestStats(),
        settings=visible_settings(config),
        boot_seconds=seconds,
        is_draining=draining.is_set,
    )
    refusals = Refusals(status.requests.refused)
    # After the store, which has descriptors as well.
    addresses = outside.addresses
    is_shared = addresses.http and addresses.memcache
    connections = connections_max() // (2 if is_shared else 1)
    return _Core(
        outside,
        cache,
        readers,
        syncer,
        status,
        History(status),
        refusals,
        draining,
        connections,
    )


def _open_store(config: Config) -> tuple[Store, float]:
    """Open the store; return it with the seconds that this took."""
    started = time.monotonic()
    _logger.info("recovery.started mount_point=%r", config.mount_point)
    store = Store.open(
        config.mount_point,
        volume_size=config.volume_size,
        volume_num=None if config.volume_num == AUTO else config.volume_num,
        volume_size_least=volume_size_least(config),
        sync_mode=config.sync_mode,
        eviction=config.eviction,
        reinsert_reads=config.reinsert_reads,
    )
    usage, report = store.usage(), store.recovery
    log_warnings(config, store, usage)
    seconds = time.monotonic() - started
    _logger.info(
        "recovery.completed mount_point=%r keys=%d entries=%d scanned=%d torn=%d damaged=%d"
        " rebuilt=%d volumes=%d volume_num=%d volume_size=%d disk_free=%d seconds=%.3f",
        *(config.mount_point, store.count, report.entries, report.scanned, report.torn),
        *(report.damaged, report.rebuilt, usage.disk.volumes, usage.volume_num),
        *(usage.volume_size, usage.disk.free, seconds),
    )
    return store, seconds


def _close_store(store: Store, notifier: Notifier) -> None:
    started = time.monotonic()
    with notifier.extending("writing and syncing what is buffered"):
        store.close()
    _logger.info(
        "store.closed keys=%d seconds=%.3f", store.count, time.monotonic() - started
    )


def _make_cache(config: Config, store: Store, closing: ExitStack) -> Cache:
    """Create the cache, with a hot tier if it is configured."""
    if not config.memc_on:
        return Cache(store)
    server, port = config.memc_ip, config.memc_port
    if not server.startswith("/"):
        server = f"[{server}]:{port}" if ":" in server else f"{server}:{port}"
    keys = Copies(
        reads=config.cache_after_miss_count,
        seconds=config.cache_after_miss_count_duration,
    )
    versions.restore(keys, *store.take_hot_snapshot())
    servers = config.memc_servers or (server,)
    client = HotClient(
        servers,
        timeout=config.memc_timeout,
        record_max=config.memc_max_value_size,
        loops=config.threads or usual_threads(),
    )
    hot = MemcachedTier(
        servers,
        keys,
        client,
        timeout=config.memc_timeout,
        item_size_max=config.memc_max_value_size,
    )
    closing.callback(store.write_hot_snapshot, partial(versions.encode, keys))
    closing.callback(hot.close)
    return Cache(store, hot, memory_first=not config.memc_first)


def _limits(config: Config) -> Limits:
    """Return what clients may store."""
    return Limits(
        config.max_key_size,
        value_size_max(config),
        config.query,
        config.default_ttl,
        config.max_ttl,
    )


def _make_commands(config: Config, core: _Core) -> CommandFacts | None:
    """Create what the memcached protocol needs, if it is configured."""
    socket_ = core.outside.addresses.memcache
    if socket_ is None:
        return None
    stats = core.status.commands = CommandStats()
    limits = _limits(config)
    limits = limits._replace(key_size=min(KEY_BYTES_MAX, limits.key_size))
    log = CommandLog(0, core.cache.waited_since)
    shown = ServerFacts(
        socket_.name,
        core.connections,
        limits.value_size,
        config.threads or usual_threads(),
        config.memcache_idle_timeout,
    )
    statistics = ServerStatistics(core.cache, stats, shown)
    service = Service(core.cache, limits, statistics, core.refusals)
    sample, lines = core.status.requests.sample, core.outside.lines
    return CommandFacts(service, stats, log, sample, lines)


class _Parts(NamedTuple):
    """What answers requests."""

    core: _Core
    commands: CommandFacts | None
    app: App
    admin: Admin
    entrance: Entrance
    front: Front

    def change(self, settings: Settings) -> None:
        """Let settings take effect that a reload may change."""
        config, self.app.ring = settings
        access = Access(read=config.read_token, write=config.write_token)
        cors = CorsHeaders(config.cors_origins)
        front: WsgiApp = self.entrance.answer
        if access.needs_token:
            front = TokenCheck(front, self.app.send, self.core.refusals, access)
        if cors:
            front = Cors(front, cors)
        self.app.set_slow(config.log_slow)
        if self.commands is not None:
            may_flush, ring = config.memcache_flush, settings.ring
            self.commands.service.change(access, may_flush=may_flush, ring=ring)
            self.commands.log.set_threshold(config.log_slow)
        self.front.change(access, cors)
        self.entrance.front = front
        self.admin.set_access(config.admin_token, config.admin_hosts)
        self.core.status.settings = visible_settings(config)


def _make_app(
    config: Config, core: _Core, reload: Callable[[], str]
) -> tuple[App, Admin]:
    """Create the application with the paths of the operator."""
    admin = Admin(
        core.status,
        history=core.history,
        refusals=core.refusals,
        key_size=config.max_key_size,
        metrics_volumes=config.metrics_volumes,
        reload=reload,
    )
    limits, stats = _limits(config), core.status.requests
    return App(core.cache, limits, stats=stats, admin=admin), admin


def _open_front(
    config: Config, core: _Core, reload: Callable[[], str], closing: ExitStack
) -> _Parts:
    """Create the application with all that is around it, behind the front."""
    app, admin = _make_app(config, core, reload)
    addresses = core.outside.addresses
    entrance = Entrance(app, has_admin=addresses.admin is not None)
    commands = _make_commands(config, core)
    front = Front(
        app,
        addresses=addresses,
        threads=config.threads or usual_threads(),
        timeouts=Timeouts(
            config.head_timeout,
            config.idle_timeout,
            config.transfer_timeout,
            config.memcache_idle_timeout,
        ),
        readers=core.readers,
        connections=core.connections,
        memory=config.body_memory or default_body_memory(),
        commands=commands,
        access_log=core.outside.lines,
    )
    closing.callback(front.close)
    admin.stalled = front.calls_stalled_seconds
    entrance.loops = front.loops
    if addresses.http:
        core.status.count_connections = partial(front.loops.figures, "http")
    return _Parts(core, commands, app, admin, entrance, front)


def _start(parts: _Parts, beat: Heartbeat | None) -> None:
    """Answer requests, keep recent numbers, and tell the service manager how it is."""
    front, core = parts.front, parts.core

    def pulse() -> None:
        front.loops.flush()
        core.status.beat()
        core.history.beat()
        if beat is not None:
            beat.beat()

    front.start(parts.entrance, pulse, beat.interval if beat else BEAT_SECONDS)


def _heartbeat(config: Config, parts: _Parts) -> Heartbeat | None:
    """Return what tells the service manager how the instance is; None without one."""
    notifier, syncer = parts.core.outside.notifier, parts.core.syncer
    if not notifier.is_on:
        return None
    line, answered = (
        StatusLine(parts.core.status),
        completed_requests(config.mount_point),
    )

    def stalled() -> float:
        syncing = syncer.stalled_seconds() if syncer else 0.0
        return max(syncing, parts.front.stalled_seconds())

    def completed() -> int | None:
        # A disk that answers does not excuse a thread that fails.
        is_failing = parts.front.is_failing or (syncer and syncer.is_failing)
        return None if is_failing else answered()

    return Heartbeat(notifier, stalled=stalled, completed=completed, status=line.text)


def _reload(parts: _Parts, reloader: Reloader) -> None:
    """Open logs again and reload; called by the thread that receives signals."""
    outside = parts.core.outside
    try:
        # New files, if the present ones were renamed.
        reopen_logs()
        if outside.access_log is not None:
            outside.access_log.flush()
        _logger.info("log.reopened")
        outside.notifier.reloading()
        try:
            number, found = reloader.read()
        except ConfigError:  # It is logged.
            outside.notifier.ready()
            return
        try:
            reloader.apply(number, found)
        finally:
            outside.notifier.ready()
    except Exception:
        _logger.exception("config.failed")


def _serve(config: Config, parts: _Parts, on_hangup: Callable[[], None]) -> None:
    """Answer requests until a signal ends it."""
    outside, front = parts.core.outside, parts.front
    _start(parts, _heartbeat(config, parts))
    outside.addresses.log_started()
    wait_for_stop(on_hangup)
    started = time.monotonic()
    parts.core.draining.set()
    outside.notifier.stopping()
    _logger.info("stop.started drain_seconds=%g", DRAIN_SECONDS)
    cut = front.drain(DRAIN_SECONDS)
    _logger.info("stop.completed cut=%d seconds=%.2f", cut, time.monotonic() - started)
