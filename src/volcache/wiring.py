"""
The one place that knows every part: settings in, a running service out.

What is opened here is closed here, in reverse order, however the service ends.
"""

from __future__ import annotations

import gc
import logging
import os
import secrets
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from volcache.cache import FileCache, TieredCache
from volcache.errors import MountPointError
from volcache.hot.memcached import MemcachedTier
from volcache.hot.promotion import MissCounters
from volcache.hot.versions import KeyVersions
from volcache.http.access_log import AccessLog
from volcache.http.app import App
from volcache.http.slow_log import SlowLog
from volcache.http.ttl import TtlPolicy
from volcache.log_writer import LogWriter
from volcache.logs import reopen_logs, unusable_file
from volcache.malloc import keep_freed_memory
from volcache.monitoring.requests import RequestStats
from volcache.monitoring.snapshot import Monitor
from volcache.server.bjoern import activated_listener, listen, serve
from volcache.server.connections import IdleReaper
from volcache.server.drain import hold_hangups, stop_signals_held
from volcache.store import PeriodicSync, Store

if TYPE_CHECKING:
    from volcache.settings import Config
    from volcache.store import SyncMode

_logger = logging.getLogger("volcache")


def run(config: Config) -> None:
    """
    Serve until SIGTERM or SIGINT, then write and sync what is buffered.

    Raises:
        StoreError: The mount point cannot be used.
        ListenError: The address cannot be listened on.
    """
    keep_freed_memory()
    has_log_file = bool(config.log_file or config.log_access)
    if has_log_file:
        hold_hangups()
    with ExitStack() as parts:
        # A signal that comes while something is opened or closed waits its turn.
        parts.enter_context(stop_signals_held())
        # First what fails most often, and before the mount point is touched.
        inherited = activated_listener(os.environ)
        listener = inherited or listen(config.ip, config.port)
        parts.callback(listener.close)
        access_file = _open_access_file(config, parts)
        store, boot_seconds = _open_store(config)
        parts.callback(_close_store, store)
        if config.sync_mode == "periodic":
            syncer = PeriodicSync(store, config.sync_interval)
            parts.callback(syncer.stop)
        draining = threading.Event()
        status = Monitor(
            _make_cache(config, store, parts),
            RequestStats(),
            mount_point=config.mount_point,
            sync_mode=config.sync_mode,
            boot_seconds=boot_seconds,
            is_draining=draining.is_set,
        )
        app = _make_app(config, status)
        if config.idle_timeout:
            reaper = IdleReaper(listener, config.idle_timeout)
            parts.callback(reaper.stop)
        # What is alive now lives as long as the process: the collector need not look
        # at millions of keys again and again.
        gc.collect()
        gc.freeze()
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        _logger.info("serving.started url=http://%s:%d", shown, port)
        # A socket of somebody else's stays open: what comes waits for the next process.
        serve(
            listener,
            _with_access_log(app, access_file, config),
            owns_listener=inherited is None,
            on_draining=draining.set,
            on_hangup=partial(_reopen_logs, access_file) if has_log_file else None,
        )
        _logger.info("serving.ended")


def _make_app(config: Config, status: Monitor) -> App:
    """Put the web layer before the cache that `status` watches."""
    cache = status.cache
    return App(
        cache,
        key_size_max=config.max_key_size,
        value_size_max=config.max_value_size,
        admin_token=config.admin_token,
        is_ready=cache.store.is_ready,
        lifetimes=TtlPolicy(default_ttl=config.default_ttl, max_ttl=config.max_ttl),
        status=status,
        stats=status.requests,
        slow_seconds=config.log_slow,
        on_slow=SlowLog().note,
    )


def _open_access_file(config: Config, parts: ExitStack) -> LogWriter | None:
    """Open the access log if there is to be one."""
    if not config.log_access:
        return None
    try:
        file = LogWriter(config.log_access)
    except OSError as error:
        raise unusable_file("log_access", config.log_access, error) from error
    parts.callback(file.close)
    return file


def _with_access_log(
    app: App, file: LogWriter | None, config: Config
) -> App | AccessLog:
    """Put the access log around the application; without one nothing is."""
    if file is None:
        return app
    return AccessLog(app, file.add, as_json=config.log_format == "json")


def _reopen_logs(access_file: LogWriter | None) -> None:
    """Go on in new files where the old ones were moved away."""
    reopen_logs()
    if access_file is not None:
        access_file.flush()
    _logger.info("log.reopened")


def _open_store(config: Config) -> tuple[Store, float]:
    """Open the store, and tell how many seconds that took."""
    started = time.monotonic()
    _logger.info("recovery.started mount_point=%r", config.mount_point)
    store = Store.open(
        config.mount_point,
        volume_size=config.volume_size,
        volume_num=config.volume_num,
        sync_mode=cast("SyncMode", config.sync_mode),
    )
    seconds = time.monotonic() - started
    report = store.recovery
    _logger.info(
        "recovery.completed mount_point=%r keys=%d entries=%d scanned=%d torn=%d damaged=%d"
        " rebuilt=%d seconds=%.3f",
        config.mount_point,
        store.count,
        report.entries,
        report.scanned,
        report.torn,
        report.damaged,
        report.rebuilt,
        seconds,
    )
    return store, seconds


def _make_cache(config: Config, store: Store, parts: ExitStack) -> FileCache:
    """Put the hot tier before the store, if there is to be one."""
    if not config.memc_on:
        return FileCache(store)
    servers = config.memc_servers or (
        _server_address(config.memc_ip, config.memc_port),
    )
    try:
        names = KeyVersions(
            store.journal(), store_id=store.store_id, boot_id=_boot_id()
        )
    except OSError as error:
        raise MountPointError(
            f"mount point {config.mount_point!r}: HOT.txt cannot be used:"
            f" {error.strerror or error}"
        ) from error
    hot = MemcachedTier(
        servers,
        names,
        timeout=config.memc_timeout,
        item_size_max=config.memc_max_value_size,
    )
    parts.callback(hot.close)
    counters = MissCounters(
        count=config.cache_after_miss_count,
        duration_ms=round(config.cache_after_miss_count_duration * 1000),
        clock=lambda: time.monotonic_ns() // 1_000_000,
    )
    return TieredCache(store, hot, counters)


def _server_address(host: str, port: int) -> str:
    if host.startswith("/"):
        return host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _boot_id() -> str:
    """Return what changes with every start of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return secrets.token_hex()  # Not to be told: then each start is a new one.


def _close_store(store: Store) -> None:
    started = time.monotonic()
    store.close()
    _logger.info(
        "store.closed keys=%d seconds=%.3f", store.count, time.monotonic() - started
    )
