"""
How full the volumes of a log are, and how long a purge stays.

Reads of its parts. The caller holds the lock of the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from volcache.store.format import VOLUME_HEADER_BYTES, Ring
from volcache.store.purges import PURGES_MAX, PurgeStay
from volcache.store.rings import RING_NAMES
from volcache.store.stats import EvictionUsage, RingUsage, StoreUsage, VolumeUsage

if TYPE_CHECKING:
    from volcache.store.log import CircularLog
    from volcache.store.rings import Rings
    from volcache.store.stats import State
    from volcache.store.volume import Volume


def usage_of(log: CircularLog, *, volumes: bool = True) -> StoreUsage:
    """
    Return how full a store is.

    Args:
        log: Of the store.
        volumes: List the volumes: ten times as expensive, some microseconds for each.
    """
    active = log.rings.last_started
    return StoreUsage(
        volumes=_volume_usages(log) if volumes else [],
        states=_count_states(log),
        volume_size=log.space.volume_size,
        volume_num=log.space.volume_num,
        active_id=active.id,
        active_seq=active.seq,
        active_end=active.end,
        active_started_ms=active.started_ms,
        eviction=_eviction_usage(log),
        purges=log.kept_purges.count,
        disk=log.space.usage(),
    )


def _volume_usages(log: CircularLog) -> list[VolumeUsage]:
    """Return how full each volume is, by id."""
    size, ids = log.space.volume_size, range(log.space.volume_num)
    found = {volume: VolumeUsage(volume, size=size) for volume in ids}
    for volume in log.volumes.values():
        use, end, state = volume.use, volume.end, _state(log, volume)
        size = max(end, _size_or_zero(log.rings, volume))
        records, live = log.rings.index.live(use.seq)
        live = min(live, end - VOLUME_HEADER_BYTES)  # It is known to an eighth only.
        since, ring = volume.started_ms, RING_NAMES[use.ring]
        found[volume.id] = VolumeUsage(
            volume.id, use.seq, state, size, end, records, live, since, ring
        )
    return [found[volume] for volume in sorted(found)]


def _state(log: CircularLog, volume: Volume) -> State:
    """Return the state of a volume."""
    if log.evictor.reclaimer is not None and volume is log.evictor.reclaimer.volume:
        return "reclaiming"
    return "active" if volume in log.actives else "sealed"


def _size_or_zero(rings: Rings, volume: Volume) -> int:
    """Return the length of the data file; 0 if the disk does not answer."""
    try:
        return rings.directory.fs.stat(volume.fd).st_size
    except OSError:
        return 0


def _count_states(log: CircularLog) -> dict[State, int]:
    """Return the number of volumes in each state."""
    number, active = log.space.volume_num, len(log.rings.written)
    reclaiming = int(log.evictor.reclaimer is not None)  # That one is not active.
    used = sum(volume.id < number for volume in log.volumes.values())
    return {
        "active": active,
        "sealed": len(log.volumes) - active - reclaiming,
        "reclaiming": reclaiming,
        "empty": number - used,
    }


def _ring_usage(rings: Rings, ring: Ring) -> RingUsage:
    """Return the sums of a ring; half a microsecond for each volume."""
    volumes = [v for v in rings.volumes.values() if v.use.ring is ring]
    found = [(v.end, *rings.index.live(v.seq)) for v in volumes]
    return RingUsage(
        len(volumes),
        sum(end for end, _, _ in found),
        sum(min(live, end - VOLUME_HEADER_BYTES) for end, _, live in found),
        sum(records for _, records, _ in found),
        min((v.started_ms for v in volumes if v.started_ms), default=0),
    )


def _eviction_usage(log: CircularLog) -> EvictionUsage:
    rings, evictor, policy_stats = (
        log.rings,
        log.evictor,
        log.rings.index.policy_stats(),
    )
    reclaimer, policy = evictor.reclaimer, evictor.policy
    return EvictionUsage(
        policy="fifo" if policy is None else "frequency",
        main=_ring_usage(rings, Ring.MAIN),
        probation=_ring_usage(rings, Ring.PROBATION),
        probation_max=0 if policy is None else policy.probation_max,
        put_bytes=evictor.put_bytes,
        disposition=rings.stats.disposition,
        tokens=policy_stats.tokens,
        ghost_hits=policy_stats.ghost_hits,
        older_hits=policy_stats.older_hits,
        gained_hits=evictor.gained_hits(policy_stats),
        next_id=_next_id(log),
        reclaiming=-1 if reclaimer is None else reclaimer.volume.id,
        reclaimed=0.0 if reclaimer is None else reclaimer.progress,
    )


def _next_id(log: CircularLog) -> int:
    """Return which volume is reclaimed now, or would be if it began now."""
    volume = log.evictor.next_to_drop()
    is_single = len(log.volumes) == len(log.rings.written)
    return -1 if volume is None or is_single else volume.id


def purge_stay_of(log: CircularLog) -> PurgeStay:
    """Return how long a purge that is made now stays in the list."""
    rings, space, policy = log.rings, log.space, log.evictor.policy
    probation = 0 if policy is None else -(-policy.probation_max // space.volume_size)
    numbers = {Ring.MAIN: space.volume_num - probation, Ring.PROBATION: probation}
    elapsed = max(1, rings.clock.now_us() - log.kept_purges.opened_us) / 1e6
    rates = [appended / elapsed for appended in rings.appended()]
    found = []
    for ring in filter(rings.of, Ring):
        active = rings.actives[ring]
        room = 0 if active is None else active.room
        left = room + max(0, numbers[ring] - 1) * space.volume_size
        found.append((left, rates[ring]))
    is_known = all(rate > 0 for _, rate in found)
    return PurgeStay(
        len(rings.volumes),
        sum(left for left, _ in found),
        max(left / rate for left, rate in found) if is_known else None,
        log.kept_purges.count,
        PURGES_MAX,
    )
