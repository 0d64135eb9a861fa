"""
Wiring: creates every part of an instance from the settings, and runs it.

Only this module imports all parts. What it opens it closes, in reverse order, however the
instance ends.
"""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from volcache.cache import Cache
from volcache.hot.promotion import MissCounters
from volcache.hot.versions import KeyVersions
from volcache.http.access_log import AccessLog
from volcache.http.admin import Admin
from volcache.http.app import App, Limits
from volcache.http.auth import Refusals, TokenCheck
from volcache.http.cors import Cors, CorsHeaders
from volcache.http.native_app import set_gate, with_fast_path
from volcache.http.slow_log import SlowLog
from volcache.log_writer import LogWriter
from volcache.logs import reopen_logs, unusable_file
from volcache.malloc import keep_freed_memory
from volcache.monitoring.requests import RequestStats
from volcache.monitoring.snapshot import Monitor
from volcache.server.bjoern import activated_listener, gate_link, listen, serve
from volcache.server.drain import block_hangups, stop_signals_blocked
from volcache.server.gate import Timeouts, open_gate, raise_descriptor_limit
from volcache.store import PeriodicSync, Store
from volcache.store.eviction import VOLUMES_ADVISED, cost_of_few
from volcache.store.native import warn_if_python

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from volcache.settings import Config
    from volcache.store import SyncMode
    from volcache.store.eviction import Eviction

_logger: Final = logging.getLogger("volcache")


def run(config: Config) -> None:
    """
    Serve until SIGTERM or SIGINT, then write and sync what is buffered.

    Raises:
        ConfigError: The access log cannot be opened.
        ListenError: The address cannot be listened on.
        StoreError: The mount point cannot be used.
    """
    keep_freed_memory()
    raise_descriptor_limit()
    has_log_file = bool(config.log_file or config.log_access)
    if has_log_file:
        block_hangups()
    with ExitStack() as parts:
        # A signal that arrives while a part is opened or closed stays pending.
        parts.enter_context(stop_signals_blocked())
        # The listener first: it fails most often, and the mount point is untouched then.
        inherited = activated_listener(os.environ)
        listener = inherited or listen(config.ip, config.port)
        parts.callback(listener.close)
        access_file = _open_access_file(config, parts)
        store, boot_seconds = _open_store(config)
        parts.callback(_close_store, store)
        if config.sync_mode == "periodic":
            syncer = PeriodicSync(store, config.sync_interval)
            parts.callback(syncer.stop)
        cache = _make_cache(config, store, parts)
        draining = threading.Event()
        status = Monitor(
            cache,
            RequestStats(),
            mount_point=config.mount_point,
            sync_mode=config.sync_mode,
            boot_seconds=boot_seconds,
            is_draining=draining.is_set,
        )
        refusals = Refusals(status.requests)
        app = _make_app(config, cache, status, refusals)
        application = _open_gate(app, access_file, status, refusals, config, parts)
        # All objects that exist now live as long as the process: the garbage collector
        # need not visit millions of keys.
        gc.collect()
        gc.freeze()
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        _logger.info("serving.started url=http://%s:%d", shown, port)
        serve(
            listener,
            application,
            # An inherited socket stays open: connections wait for the next process.
            owns_listener=inherited is None,
            on_draining=draining.set,
            on_hangup=partial(_reopen_logs, access_file) if has_log_file else None,
        )
        _logger.info("serving.ended")


def _make_app(config: Config, cache: Cache, status: Monitor, refusals: Refusals) -> App:
    return App(
        cache,
        Limits(
            key_size=config.max_key_size,
            value_size=config.max_value_size,
            default_ttl=config.default_ttl,
            max_ttl=config.max_ttl,
        ),
        stats=status.requests,
        admin=Admin(
            cache,
            token=config.admin_token,
            hosts=config.admin_hosts,
            status=status,
            refusals=refusals,
            key_size=config.max_key_size,
        ),
        slow_log=SlowLog(config.log_slow),
    )


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


def _open_gate(
    app: App,
    file: LogWriter | None,
    status: Monitor,
    refusals: Refusals,
    config: Config,
    parts: ExitStack,
) -> WSGIApplication:
    """Return the application with all that is around it, behind the gate."""
    fast = with_fast_path(app, is_merged=file is None)
    served = fast
    if config.read_token or config.write_token:
        served = TokenCheck(
            fast, app, refusals, read=config.read_token, write=config.write_token
        )
    cors = CorsHeaders(config.cors_origins)
    if cors:
        served = Cors(served, cors)
    log = None
    if file is not None:
        log = AccessLog(served, file.add, as_json=config.log_format == "json")
    gate = open_gate(
        app,
        gate_link(),
        timeouts=Timeouts(
            config.head_timeout, config.idle_timeout, config.transfer_timeout
        ),
        threads=config.read_threads,
        answers=not config.read_token,
        cors=cors,
        log_answer=log.add_native if log else None,
    )
    if gate is not None:
        parts.callback(gate.close)
        set_gate(fast, gate)
        status.count_connections = gate.stats
    return log or served


def _reopen_logs(access_file: LogWriter | None) -> None:
    """Continue in new files if the present ones were renamed."""
    reopen_logs()
    if access_file is not None:
        access_file.flush()
    _logger.info("log.reopened")


def _open_store(config: Config) -> tuple[Store, float]:
    """Open the store; return it with the seconds that this took."""
    started = time.monotonic()
    warn_if_python()
    _logger.info("recovery.started mount_point=%r", config.mount_point)
    store = Store.open(
        config.mount_point,
        volume_size=config.volume_size,
        volume_num=config.volume_num,
        sync_mode=cast("SyncMode", config.sync_mode),
        eviction=cast("Eviction", config.eviction),
        reinsert_reads=config.reinsert_reads,
    )
    _warn_of_few_volumes(config)
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


def _warn_of_few_volumes(config: Config) -> None:
    """Log what it costs if there are too few volumes for the eviction policy."""
    if config.eviction == "frequency" and config.volume_num < VOLUMES_ADVISED:
        _logger.warning(
            "eviction.few_volumes volume_num=%d advised=64 volume_size=%d cost=%r",
            config.volume_num,
            config.volume_size * config.volume_num // 64,
            cost_of_few(config.volume_num),
        )


def _close_store(store: Store) -> None:
    started = time.monotonic()
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
