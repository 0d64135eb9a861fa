"""
The table of log events: what each means and what the operator should do.

Names, levels and fields are those of the log calls; a test compares the names. The events
are listed with these texts in docs/REFERENCE.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Event(NamedTuple):
    """The description of an event; both texts may use Markdown."""

    meaning: str
    action: str = ""  # empty if there is nothing to do


_KERNEL_LOG: Final = "Look at the kernel log."
_DISK_SPACE: Final = "Look at the free space on the disk."
_BUG: Final = "Report it, with the traceback."

EVENTS: Final[dict[str, Event]] = {
    "serving.started": Event("The instance accepts requests."),
    "serving.ended": Event("The last connection is closed."),
    "serving.failed": Event(
        "The start failed. Logged only with `log_file`; standard error has the same line.",
        "Correct what the line names.",
    ),
    "recovery.started": Event("The store is being opened."),
    "recovery.completed": Event(
        "The store is open. `volumes`: that the disk has room for, of `volume_num`, which"
        ' is determined with `volume_num = "auto"`; `disk_free`: bytes of the file system;'
        " `keys`: keys that can be read; `entries`: read from index"
        " files; `scanned`: records found by reading volumes; `torn`: incomplete records"
        " at the end of a volume, normal after a crash; `damaged`: places in volumes that"
        " failed a check; `rebuilt`: index files that were missing or damaged and were"
        " written again."
    ),
    "recovery.torn_tail": Event(
        "A record was being written when the process stopped, or was refused; it was"
        " removed."
    ),
    "recovery.damaged": Event(
        "Bytes `offset` to `end` of a volume failed a check. Logged for the first 20"
        " places of a start.",
        "Check the disk.",
    ),
    "recovery.index_rebuilt": Event(
        "An index file was missing or damaged and was rebuilt from its volume."
    ),
    "recovery.meta_lost": Event(
        "META.txt was missing or damaged and was rebuilt from the volumes."
    ),
    "recovery.volume_dropped": Event(
        "A volume was dropped because `volume_num` was decreased, or after"
        " `recovery.keys_unknown`."
    ),
    "recovery.stale_volume": Event(
        "After a crash the header of a volume is that of an earlier use, which was already"
        " reclaimed. The present header had not been written or synced."
    ),
    "recovery.file_rejected": Event(
        "A data file or index file is not the one that META.txt names; it is not read.",
        "Find out who replaced it. Put back the right file before the volume is reused.",
    ),
    "recovery.keys_unknown": Event(
        "Records of a volume, from `offset` on, are lost with their keys: all older volumes"
        " are dropped, because their values may be outdated.",
        "Check the disk.",
    ),
    "recovery.foreign_volume": Event(
        "A volume in `data` belongs to another store; it is not read.",
        "Remove it, or let the store overwrite it.",
    ),
    "recovery.file_unreadable": Event(
        "An index file cannot be read; its volume is read instead.",
        _KERNEL_LOG,
    ),
    "recovery.sectors_unreadable": Event(
        "This number of sectors of a volume cannot be read.", _KERNEL_LOG
    ),
    "disk.too_small": Event(
        "The disk cannot hold the configured capacity, `volume_num` times `volume_size`."
        " `holds`: bytes that are free or taken by this store; `volumes`: those it allows.",
        "Lower `volume_num` or set it to `auto`, or free disk space. Until then the disk"
        " determines the capacity.",
    ),
    "disk.limited": Event(
        "The disk has no space for another volume: there are `volumes` of `volume_num`, and"
        " the oldest is overwritten.",
        "Free disk space, if more capacity is needed: it is used when the next volume is"
        " started.",
    ),
    "disk.unlimited": Event("The disk has space for all volumes again."),
    "disk.volume_given_up": Event(
        "The disk was so full that a file of the store could not be written: the oldest"
        " volume was dropped, and its space freed.",
        "Find out what else fills the disk.",
    ),
    "disk.refuses_writes": Event(
        "The disk does not accept writes, because it is full or read-only (`reason`): PUTs"
        " and DELETEs are answered 507, reads continue.",
        "Look at the kernel log, and at the free space on the disk.",
    ),
    "disk.accepts_writes": Event("The disk accepts writes again."),
    "disk.not_writable": Event(
        "The store was opened to be read only, because the disk is read-only, or full:"
        " PUTs and DELETEs are answered 507.",
        "Make the disk writable, or free space; then restart the instance.",
    ),
    "rotation.started": Event("The active volume is full; `volume` is the next one."),
    "reclaim.started": Event(
        "The used records of a volume are being copied, before it is overwritten."
    ),
    "reclaim.damaged": Event(
        "A record failed a check before it was copied; its key is a miss.",
        "Check the disk if there are many.",
    ),
    "rotation.reclaimed": Event(
        "A volume was reclaimed; `evicted` live records, which were not copied, were lost.",
        "If values are evicted too early, use more or larger volumes.",
    ),
    "rotation.completed": Event("`volume` is the active volume."),
    "rotation.failed": Event(
        "The disk refused the next volume, or it is full and there is no older volume to"
        " overwrite. PUTs that need it are answered 507; reads continue.",
        "Free disk space, or lower `volume_size`. Look at the kernel log.",
    ),
    "rotation.take_back_failed": Event(
        "Disk space of a failed allocation could not be released.", _KERNEL_LOG
    ),
    "scrub.started": Event(
        "The scrub begins to verify the volumes; those being written are not among them."
    ),
    "scrub.damaged": Event(
        "The scrub found damage, as `volcache check` would. Logged for the first 20"
        " places of a pass. The key of a damaged record is a miss.",
        "Check the disk.",
    ),
    "scrub.completed": Event("All these volumes were verified."),
    "read.damaged": Event(
        "A record failed a check; its key is a miss.",
        "Check the disk if there are many.",
    ),
    "read.failed": Event(
        "The disk refused a read, which is answered 503.", _KERNEL_LOG
    ),
    "write.failed": Event(
        "The disk refused a PUT or DELETE, which is answered 507; at startup, the space"
        " for the active volume.",
        "Free disk space, or lower `volume_size`. Look at the kernel log.",
    ),
    "sync.failed": Event(
        "The disk refused a sync; nothing more is appended to the volume.", _KERNEL_LOG
    ),
    "disk.not_ready": Event(
        "This number of consecutive reads failed: `/-/ready` answers 503 from now on.",
        _KERNEL_LOG,
    ),
    "disk.ready": Event("Reads work again; `/-/ready` answers 200."),
    "index.failed": Event(
        "An index file could not be written, or is missing or incomplete. Nothing is lost;"
        " the next start reads the volume instead.",
        _DISK_SPACE,
    ),
    "store.flushed": Event("`POST /-/flush` removed everything."),
    "store.purged": Event(
        "`POST /-/purge`: everything stored before under `prefix`, percent-encoded, is a"
        " miss. `entries`: length of the purge list."
    ),
    "purge.dropped": Event(
        "Purges were removed from the list, because all volumes that existed at their time"
        " were reclaimed."
    ),
    "store.closed": Event("Everything is written and synced."),
    "hot.down": Event(
        "A memcached server failed and is not used until it responds again; `kind` is the"
        " kind of failure.",
    ),
    "hot.up": Event("The memcached server is used again."),
    "hot.snapshot_failed": Event(
        "HOT.txt could not be read or written: after this stop or start, files are promoted"
        " again.",
        _DISK_SPACE,
    ),
    "request.slow": Event(
        "A request took longer than `log_slow`. `seconds` is the total; `memcached`,"
        " `disk` and `rest` are its parts. The key is percent-encoded. At most ten lines"
        " per second; `left_out` is the number of lines suppressed before this one."
    ),
    "command.slow": Event(
        "A command of the memcached protocol took longer than `log_slow`; the fields are"
        " those of `request.slow`. `disk` and `memcached` include what requests over HTTP"
        " waited for meanwhile.",
        "As for `request.slow`.",
    ),
    "request.refused": Event(
        "The disk refused; the request was answered 507.", _DISK_SPACE
    ),
    "request.unauthorized": Event(
        "A request had no token (`reason=missing`) or not the right one (`wrong`), and was"
        " answered 401, or too many wrong ones (`limited`), and was answered 429. `kind`:"
        " whether it was to read, write or administrate; `forwarded`: its"
        " `X-Forwarded-For`, which the client may have invented. At most one line in ten"
        " seconds for each kind; `left_out` is the number of those suppressed before it.",
        "If it is a client of yours, correct its token. Else find out who it is.",
    ),
    "ring.misdirected": Event(
        "Requests for keys of other instances, and their number since the last such line;"
        " `path`: that of the last one. Reads were misses, writes were answered 503. At"
        " most one line in ten seconds.",
        "See [one instance hangs](OPERATIONS.md#one-instance-hangs).",
    ),
    "request.failed": Event(
        "A bug in volcache; the request was answered 500. A traceback follows.", _BUG
    ),
    "memcache.started": Event("Clients of the memcached protocol can connect."),
    "memcache.ended": Event(
        "The last connection of the memcached protocol is closed. `cut`: connections that"
        " were closed although a command was incomplete or a reply not sent."
    ),
    "memcache.full": Event(
        "A connection was refused, since as many are open as the limit of descriptors"
        " allows. At most one line in ten seconds.",
        "Raise `LimitNOFILE`, or find out which client opens them.",
    ),
    "memcache.accept_failed": Event(
        "No connection can be accepted for want of descriptors or memory; it is tried"
        " again after half a second. At most one line in ten seconds.",
        "Raise `LimitNOFILE`.",
    ),
    "memcache.memory_full": Event(
        "Commands that are not executed, and replies that are not sent, took more memory"
        " than is allowed, so the connection that had made no progress for the longest"
        " time was closed. At most one line in ten seconds.",
        "Find out which clients send or read so slowly.",
    ),
    "memcache.refused": Event(
        "The disk refused; the command was answered `SERVER_ERROR`.", _DISK_SPACE
    ),
    "memcache.flushed": Event("A `flush_all` with a delay was executed."),
    "memcache.failed": Event(
        "A bug in volcache. The connection was closed; the client was answered"
        " `SERVER_ERROR` if possible. Or the loop has failed, which is logged at most once"
        " in ten seconds. A traceback follows.",
        _BUG,
    ),
    "config.warning": Event(
        "At a start: a setting is allowed, and may not be what you want. `text` says why,"
        " as `volcache config check` does.",
        "Change the setting, if it is not intended. With another `volume_num` and"
        " `volume_size`, volumes keep their size until they are used again: up to twice the"
        " space is needed meanwhile.",
    ),
    "config.reloaded": Event(
        "After SIGHUP or `POST /-/reload`: the settings were read again. `changed`: those"
        " that have another value now; `restart`: those that will have it after a restart."
    ),
    "config.rejected": Event(
        "At a reload: a setting is wrong, or the file cannot be read. Nothing has changed.",
        "Correct what the line names; `volcache config check` lists everything.",
    ),
    "config.failed": Event("A bug in volcache; a traceback follows.", _BUG),
    "notify.failed": Event(
        "The service manager could not be sent a message, by the socket that the variable"
        " NOTIFY_SOCKET names. Logged once.",
        "Look at the unit: `Type=notify` needs `NotifyAccess=main`, which is the default.",
    ),
    "watchdog.withheld": Event(
        "The watchdog notification is withheld, and systemd restarts the instance: reads or"
        " syncs of the disk have been waiting for `seconds`, and it completes none; or the"
        " memcached protocol has failed for so long, see `memcache.failed`.",
        _KERNEL_LOG,
    ),
    "log.reopened": Event("After SIGHUP, log files that were moved are created again."),
    "access.failed": Event(
        "`log_access` cannot be written; its lines are buffered. Logged for the 1st, 2nd,"
        " 4th, 8th, ... failure.",
        _DISK_SPACE,
    ),
    "access.left_out": Event(
        "This number of lines of `log_access` were dropped because 16 MiB were already"
        " buffered.",
        _KERNEL_LOG,
    ),
    "access.line_failed": Event(
        "A bug in volcache; a traceback follows. The response is not affected.", _BUG
    ),
    "gate.missing": Event(
        "bjoern was built without the gate: malformed requests can end the process, slow"
        " and idle connections are not closed, and each read of the disk makes all clients"
        " wait.",
        "Install libev's headers and a C compiler, then run `volcache gate`, in a checkout"
        " `tools/setup.sh run`; put nginx in front until then.",
    ),
    "gate.failed": Event("A bug in volcache; a traceback follows.", _BUG),
    "connections.full": Event(
        "The limit of connections was reached: `closed_idle` of them, those idle for"
        " longest, were closed, and `turned_away` were answered 503, since the last such"
        " line. At most one line in ten seconds.",
        "Raise `LimitNOFILE`, or limit the connections of clients in nginx.",
    ),
    "descriptors.limited": Event(
        "The limit of open files could not be raised to the one that is allowed."
    ),
    "stop.started": Event(
        "A stop signal arrived; requests in progress may complete within `drain_seconds`."
    ),
    "stop.completed": Event(
        "All connections are closed, `cut` of them at the deadline."
    ),
    "stop.failed": Event("A bug in volcache; a traceback follows.", _BUG),
    "dashboard.failed": Event(
        "`volcache dashboard` could not poll or answer because of an unexpected error; it"
        " continues. To standard error.",
        _BUG,
    ),
}
