"""
The mutations of the C code, which mutations.py tests.

Each names the tests that should notice it, so that it takes seconds: programs of
tests/native by their names, and tests of Python by their paths. The programs are run first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from support.c_changes import TextChange, changed_c, replace_text

if TYPE_CHECKING:
    from pathlib import Path


class CMutation(NamedTuple):
    """A fault, the changes of one function that cause it, and who should notice it."""

    fault: str
    where: str  # `file:function` below `volcache`.
    changes: tuple[TextChange, ...]
    tests: tuple[str, ...]
    survives: str = ""  # Why none of them fails.

    @property
    def file(self) -> str:
        """The path of the file below `volcache`."""
        return self.where.partition(":")[0]

    def changed_file(self, package: Path) -> tuple[Path, str]:
        """
        Return the path of the file in a package, and its changed source.

        Raises:
            NotFoundError: The function, or a text in it, is not found exactly once.
        """
        path = package / self.file
        function = self.where.partition(":")[2]
        return path, changed_c(path.read_text(), function, *self.changes)


def mutation(
    fault: str,
    where: str,
    *changes: TextChange,
    tests: tuple[str, ...],
    survives: str = "",
) -> CMutation:
    """Return a mutation of one change or more."""
    return CMutation(fault, where, changes, tests, survives)


# For what the tests of the store, which are those of both cores, cannot see.
GAPS: Final = "tests/unit/store/test_c_gaps.py"
INDEX: Final = ("index_model",)
RECORD: Final = ("record_fuzz",)
LINES: Final = ("lines_fuzz", GAPS)
REQUEST: Final = ("request_test", "request_fuzz")
GATE: Final = ("gate_fuzz",)
GATE_OF_THREADS: Final = ("gate_threads", "gate_fuzz")
# With a server, and bjoern.
GATE_OF_SERVER: Final = ("tests/integration/test_gate.py",)
# Any history gives the same as in Python: the slowest, and so the last.
TWIN: Final = "tests/property/test_native_twin.py"
STORE: Final = (
    "tests/unit/store/test_store.py",
    "tests/unit/store/test_native.py",
    TWIN,
)
RECLAIM: Final = ("tests/unit/store/test_reclaim.py", GAPS, TWIN)
PURGES: Final = ("tests/unit/store/test_purges.py", GAPS, TWIN)
START: Final = (
    "tests/unit/store/test_recovery.py",
    "tests/unit/store/test_cross_check.py",
    TWIN,
)

C_MUTATIONS: Final = (
    # --- The index ---------------------------------------------------------------------
    mutation(
        "two keys whose tags have the same low bits share an entry",
        "store/_core/index.c:match",
        replace_text("full_tag(b->word[k], low) == tag", "true"),
        tests=INDEX,
    ),
    mutation(
        "the second bucket of a key is not searched",
        "store/_core/index.c:find_entry",
        replace_text("if (b->flags < OVERFLOW_ONE) return NULL;", "return NULL;"),
        tests=INDEX,
    ),
    mutation(
        "an entry in its second bucket is not counted in its first",
        "store/_core/index.c:put",
        replace_text("first->flags += OVERFLOW_ONE", "(void)0"),
        tests=INDEX,
    ),
    mutation(
        "a full count of entries in second buckets begins again at 0",
        "store/_core/index.c:put",
        replace_text("first != b && first->flags < OVERFLOW_MAX", "first != b"),
        tests=INDEX,
    ),
    mutation(
        "a full count of entries in second buckets is lowered",
        "store/_core/index.c:take",
        replace_text("first != b && first->flags < OVERFLOW_MAX", "first != b"),
        tests=INDEX,
    ),
    mutation(
        "a new entry has the hits of the one that was in its place",
        "store/_core/index.c:take",
        replace_text("~(HITS_MASK(k) | TOMBSTONE_MASK(k))", "~TOMBSTONE_MASK(k)"),
        tests=INDEX,
    ),
    mutation(
        "a new entry is a tombstone as the one that was in its place",
        "store/_core/index.c:take",
        replace_text("~(HITS_MASK(k) | TOMBSTONE_MASK(k))", "~HITS_MASK(k)"),
        tests=INDEX,
    ),
    mutation(
        "a removed entry still counts in the load of its segment",
        "store/_core/index.c:take",
        replace_text("seg->used--;", ""),
        tests=INDEX,
    ),
    mutation(
        "a slot stays in use after its last stale entry",
        "store/_core/index.c:discount_entry",
        replace_text("count->entries == 0", "false"),
        tests=INDEX,
    ),
    mutation(
        "a stale entry that is removed counts as a live record",
        "store/_core/index.c:discount_entry",
        replace_text("index->slot_state[slot] == SLOT_STALE", "false"),
        tests=INDEX,
    ),
    mutation(
        "tombstones count as records",
        "store/_core/index.c:count_entry",
        replace_text("!is_tombstone", "true"),
        tests=INDEX,
    ),
    mutation(
        "an entry of a reclaimed volume is found",
        "store/_core/index.c:find_live",
        replace_text(" && is_live(index, b->word[*k])", ""),
        tests=INDEX,
    ),
    mutation(
        "a deleted key counts as one that was evicted",
        "store/_core/index.c:vc_index_is_stale",
        replace_text(" && !(b->flags & TOMBSTONE_MASK(k))", ""),
        tests=(*INDEX, GAPS),
    ),
    mutation(
        "a read of a record that was just appended counts as a hit",
        "store/_core/index.c:is_old_enough",
        replace_text("offset <= index->clock[slot->ring] - slot->from", "true"),
        tests=INDEX,
    ),
    mutation(
        "a record is old enough for hits one byte too late",
        "store/_core/index.c:is_old_enough",
        replace_text("offset <= index", "offset < index"),
        tests=INDEX,
    ),
    mutation(
        "a fourth hit is counted for the next entry of the bucket",
        "store/_core/index.c:vc_index_hit",
        replace_text("(b->flags & HITS_MASK(k)) != HITS_MASK(k)", "true"),
        tests=INDEX,
    ),
    mutation(
        "a key that is set again has two entries",
        "store/_core/index.c:vc_index_set",
        replace_text("if (b != NULL) {", "if (false) {"),
        tests=INDEX,
    ),
    mutation(
        "an entry that replaces another one is not counted",
        "store/_core/index.c:vc_index_set",
        replace_text(
            "put(seg, b, k, e);\n        count_entry(index, e.word, is_tombstone);",
            "put(seg, b, k, e);",
        ),
        tests=INDEX,
    ),
    mutation(
        "a put that displaces another key says that nothing was lost",
        "store/_core/index.c:vc_index_set",
        replace_text("return index->displaced == displaced;", "return true;"),
        tests=INDEX,
    ),
    mutation(
        "entries that are lost for want of room are not counted",
        "store/_core/index.c:displace",
        replace_text("index->displaced++;", ""),
        tests=INDEX,
    ),
    mutation(
        "the deletion of a key of a reclaimed volume says that it was there",
        "store/_core/index.c:vc_index_delete",
        replace_text("return was_live;", "return true;"),
        tests=INDEX,
    ),
    mutation(
        "a record whose types were noted meanwhile is taken for another one",
        "store/_core/index.c:vc_index_is_same",
        replace_text("((word ^ other) & ~TYPES_MASK) == 0", "word == other"),
        tests=INDEX,
    ),
    mutation(
        "an entry is removed although it was replaced meanwhile",
        "store/_core/index.c:find_same",
        replace_text("vc_index_is_same(b->word[*k], word)", "true"),
        tests=INDEX,
    ),
    mutation(
        "an entry that is moved counts in its old volume, too",
        "store/_core/index.c:replace_entry",
        replace_text("discount_entry(index, before.word, before.is_tombstone);", ""),
        tests=INDEX,
    ),
    mutation(
        "a record that is copied loses all its hits",
        "store/_core/index.c:vc_index_move",
        replace_text(".hits = hits", ".hits = 0"),
        tests=INDEX,
    ),
    mutation(
        "a buried entry still has its value",
        "store/_core/index.c:vc_index_bury",
        replace_text(".is_tombstone = true", ".is_tombstone = false"),
        tests=INDEX,
    ),
    mutation(
        "of many changes the first one of a key counts",
        "store/_core/index.c:vc_index_set_many",
        replace_text("for (size_t i = n; i-- > 0;)", "for (size_t i = 0; i < n; i++)"),
        tests=INDEX,
    ),
    mutation(
        "a deletion among many changes is a value",
        "store/_core/index.c:apply",
        replace_text("c->size == VC_TOMBSTONE);", "false);"),
        tests=INDEX,
    ),
    mutation(
        "the records of a reclaimed volume stay counted",
        "store/_core/index.c:vc_index_reclaim",
        replace_text("index->records -= lost.records;", ""),
        tests=INDEX,
    ),
    mutation(
        "a slot is used again while it has stale entries",
        "store/_core/index.c:vc_index_reclaim",
        replace_text("count->entries > 0 ? SLOT_STALE : SLOT_FREE", "SLOT_FREE"),
        tests=INDEX,
    ),
    mutation(
        "the clock of a ring goes back",
        "store/_core/index.c:vc_index_set_clock",
        replace_text("if (bytes > index->clock[ring])", ""),
        tests=INDEX,
    ),
    mutation(
        "tombstones are visited as records",
        "store/_core/index.c:vc_index_visit",
        replace_text("(b->flags & TOMBSTONE_MASK(k))", "false"),
        tests=INDEX,
    ),
    mutation(
        "records of other volumes are visited",
        "store/_core/index.c:vc_index_visit",
        replace_text("(b->word[k] & slot_mask) != slot_bits", "false"),
        tests=INDEX,
    ),
    mutation(
        "a sweep begins although few entries are stale",
        "store/_core/index.c:has_to_sweep",
        replace_text("index->stale * 8 > index->entries", "true"),
        tests=(*INDEX, GAPS),
    ),
    mutation(
        "a sweep stays at the same segment",
        "store/_core/index.c:vc_index_sweep",
        replace_text("(index->hand_segment + 1) % SEGMENTS", "index->hand_segment"),
        tests=(*INDEX, "tests/unit/store/test_index.py"),
    ),
    mutation(
        "a new volume takes a slot with stale entries",
        "store/_core/index.c:vc_index_add_volume",
        replace_text(
            "index->slot_state[slot] != SLOT_FREE",
            "index->slot_state[slot] == SLOT_LIVE",
        ),
        tests=INDEX,
    ),
    mutation(
        "a new volume is in the ring of the one that had its slot",
        "store/_core/index.c:vc_index_add_volume",
        replace_text("index->slot_counts[slot].ring = VC_MAIN;", ""),
        tests=INDEX,
    ),
    mutation(
        "the segments after one that grows stay where they are",
        "store/_core/index.c:resize",
        replace_text("if (total > before)", "if (false)"),
        tests=INDEX,
    ),
    mutation(
        "an entry that finds no place in a larger segment is forgotten",
        "store/_core/index.c:refill",
        replace_text(
            "if (!may_displace) return false;", "if (!may_displace) continue;"
        ),
        tests=INDEX,
        survives="A segment that has grown has had room for all entries so far.",
    ),
    mutation(
        "sizes are rounded down",
        "store/_core/index.c:size_class",
        replace_text("(size - 1) >> shift & 7)) + 1", "(size - 1) >> shift & 7))"),
        tests=INDEX,
    ),
    mutation(
        "the table of types has no end",
        "store/_core/index.c:types_code",
        replace_text("index->types_known == VC_TYPES_KNOWN", "false"),
        tests=INDEX,
    ),
    # --- A record that is decoded or encoded -------------------------------------------
    mutation(
        "a record with another salt is read",
        "store/_core/record.c:vc_record_decode",
        replace_text("get(data + AT_SALT, 8) != salt", "false"),
        tests=RECORD,
    ),
    mutation(
        "the checksum of a header is not compared",
        "store/_core/record.c:vc_record_decode",
        replace_text(
            "vc_crc32c(0, data, checked) != get(data + checked, CHECKSUM_BYTES)",
            "false",
        ),
        tests=(*RECORD, *START),
    ),
    mutation(
        "a record of another offset is read",
        "store/_core/record.c:vc_record_decode",
        replace_text("record->offset != offset", "false"),
        tests=RECORD,
    ),
    mutation(
        "a record of another volume is read",
        "store/_core/record.c:vc_record_decode",
        replace_text("record->volume != volume", "false"),
        tests=RECORD,
    ),
    mutation(
        "a record without a key is read",
        "store/_core/record.c:vc_record_decode",
        replace_text("!record->key_length", "false"),
        tests=RECORD,
    ),
    mutation(
        "a record of another version is read",
        "store/_core/record.c:vc_record_decode",
        replace_text("sizeof MAGIC", "3"),
        tests=(*RECORD, GAPS),
    ),
    mutation(
        "a header is read beyond the bytes that there are",
        "store/_core/record.c:vc_record_decode",
        replace_text("record->prefix > length", "record->prefix > length + 4"),
        tests=(*RECORD, *START),
    ),
    mutation(
        "the key is looked for in front of the stored Cache-Control",
        "store/_core/record.c:vc_record_decode",
        replace_text(
            "record->type + types;",
            "record->type + record->type_length + record->encoding_length;",
        ),
        tests=(*RECORD, *STORE),
    ),
    mutation(
        "the flags of a record are not written",
        "store/_core/record.c:vc_record_encode",
        replace_text("record->flags", "0"),
        tests=(*RECORD, "tests/unit/store/test_format.py", *STORE),
    ),
    mutation(
        "a deletion is written as a value",
        "store/_core/record.c:vc_record_encode",
        replace_text("= record->kind", "= 0"),
        tests=(*RECORD, *STORE, *START),
    ),
    mutation(
        "the time when a record expires is not written",
        "store/_core/record.c:vc_record_encode",
        replace_text("record->expires_ms", "0"),
        tests=(*RECORD, *STORE),
    ),
    # --- A record that is read ---------------------------------------------------------
    mutation(
        "a value whose checksum is wrong is returned",
        "store/_core/core.c:check_record",
        replace_text(
            "vc_crc32c(0, start, record->length) != record->checksum", "false"
        ),
        tests=STORE,
    ),
    mutation(
        "a position of another key returns its value",
        "store/_core/core.c:check_record",
        replace_text("memcmp(record->key, key, key_length)", "false"),
        tests=(GAPS,),
    ),
    mutation(
        "a key that begins with the one asked for is taken for it",
        "store/_core/core.c:check_record",
        replace_text("record->key_length != key_length", "false"),
        tests=(GAPS,),
    ),
    mutation(
        "a purged record is returned",
        "store/_core/core.c:check_record",
        replace_text(
            "vc_core_is_purged(core, key, key_length, record->stored_us)", "false"
        ),
        tests=PURGES,
    ),
    mutation(
        "a record is returned whose purge was dropped while it was read",
        "store/_core/core.c:check_record",
        replace_text("return VC_OUTDATED;", ""),
        tests=PURGES,
    ),
    mutation(
        "a deletion is returned as an empty value",
        "store/_core/core.c:check_record",
        replace_text("if (record->kind) return VC_DAMAGED;", ""),
        tests=(GAPS,),
    ),
    mutation(
        "a value whose last bytes were not read is compared",
        "store/_core/core.c:check_record",
        replace_text("record->size > length", "false"),
        tests=(*STORE, *START),
        survives="What is behind the bytes read is compared, and is something else.",
    ),
    mutation(
        "a hit that was not counted counts among those of older records",
        "store/_core/core.c:check_record",
        replace_text("if (at->is_raised)", ""),
        tests=("tests/unit/store/test_usage.py",),
    ),
    mutation(
        "a closed store is read",
        "store/_core/core.c:look_up",
        replace_text("!core->is_closed", "true"),
        tests=("threads",),
    ),
    mutation(
        "the record of a deletion is looked up",
        "store/_core/core.c:look_up",
        replace_text("!entry.is_tombstone", "true"),
        tests=("threads",),
    ),
    mutation(
        "a record is read where its volume is not known yet",
        "store/_core/core.c:look_up",
        replace_text("core->places[entry.slot].segments;", "true;"),
        tests=STORE,
    ),
    mutation(
        "a store is closed while it is read",
        "store/_core/core.c:vc_core_close",
        replace_text("while (atomic_load(&core->readers)) sched_yield();", ""),
        tests=("threads",),
    ),
    mutation(
        "the first record of a segment is read with the salt of the one before",
        "store/_core/core.c:vc_core_salt_at",
        replace_text(".start > offset", ".start >= offset"),
        tests=(GAPS,),
    ),
    mutation(
        "a deleted key is not known to be absent",
        "store/_core/core.c:vc_core_is_absent",
        replace_text("(!is_found || entry.is_tombstone)", "!is_found"),
        tests=("core_test",),
    ),
    mutation(
        "a miss that the gate answers is not remembered",
        "store/_core/core.c:vc_core_is_absent",
        replace_text("vc_ghost_add(&core->missed, fingerprint);", "(void)0;"),
        tests=("core_test",),
    ),
    mutation(
        "a record of which one page is not in memory is damaged",
        "store/_core/core.c:vc_core_read_cached",
        replace_text("is_cold ? VC_COLD : status", "status"),
        tests=GATE,
    ),
    mutation(
        "a record that is not in memory cannot be read",
        "store/_core/core.c:vc_core_read_cached",
        replace_text("errno == EAGAIN ? VC_COLD : VC_IO_ERROR", "VC_IO_ERROR"),
        tests=GATE,
    ),
    mutation(
        "no purge is seen",
        "store/_core/core.c:vc_core_set_purges",
        replace_text("vc_purges_newest(list)", "0"),
        tests=PURGES,
    ),
    mutation(
        "a record is not purged that was stored at the time of the purge",
        "store/_core/core.c:vc_core_is_purged",
        replace_text("stored_us > atomic_load", "stored_us >= atomic_load"),
        tests=PURGES,
    ),
    # --- Eviction ----------------------------------------------------------------------
    mutation(
        "a hit of a value that others are to read is counted",
        "store/_core/core.c:count_read",
        replace_text("entry->size <= size_max", "true"),
        tests=("core_test",),
    ),
    mutation(
        "reads earn no tokens",
        "store/_core/core.c:count_read",
        replace_text(
            "add_tokens(core, core->policy.hit_rate *"
            " (double)vc_size_middle(entry->size));",
            "",
        ),
        tests=("core_test", GAPS),
    ),
    mutation(
        "a key that was asked for and not there is not remembered",
        "store/_core/core.c:count_read",
        replace_text("vc_ghost_add(&core->missed, fingerprint);", ""),
        tests=RECLAIM,
    ),
    mutation(
        "a read of a deleted key counts as a hit",
        "store/_core/core.c:count_read",
        replace_text("!entry->is_tombstone", "true"),
        tests=(GAPS,),
    ),
    mutation(
        "there may be any number of tokens",
        "store/_core/core.c:add_tokens",
        replace_text("tokens < core->policy.tokens_max", "true"),
        tests=RECLAIM,
    ),
    mutation(
        "a value of a key in ring main is put into probation",
        "store/_core/core.c:vc_core_ring_for",
        replace_text("vc_index_find(core->index, fingerprint, &entry)", "false"),
        tests=("tests/unit/store/test_log.py",),
    ),
    mutation(
        "a key whose entry may have been lost is put into ring main",
        "store/_core/core.c:vc_core_ring_for",
        replace_text("displaced_of(core) != core->displaced_seen", "false"),
        tests=("tests/unit/store/test_log.py",),
        survives="An index loses an entry only without memory, or under an attack.",
    ),
    mutation(
        "a key that probation has dropped is put into probation again",
        "store/_core/core.c:vc_core_ring_for",
        replace_text("vc_ghost_has(&core->ghost, fingerprint)", "false"),
        tests=("tests/unit/store/test_log.py", *RECLAIM),
    ),
    mutation(
        "a key that nobody has asked for is put into probation",
        "store/_core/core.c:vc_core_ring_for",
        replace_text("!vc_ghost_has(&core->missed, fingerprint)", "false"),
        tests=("tests/unit/store/test_log.py", *RECLAIM),
    ),
    mutation(
        "a put of a key that probation has dropped is not counted",
        "store/_core/core.c:count_put",
        replace_text("core->ghost_hits += ", ""),
        tests=RECLAIM,
    ),
    mutation(
        "a put leaves its key among those that were asked for",
        "store/_core/core.c:count_put",
        replace_text("vc_ghost_remove(&core->missed, fingerprint);", ""),
        tests=RECLAIM,
    ),
    mutation(
        "the clock of a ring stands still while records are put",
        "store/_core/core.c:count_put",
        replace_text("advance(core, slot, offset + size);", ""),
        tests=RECLAIM,
    ),
    # --- Positions ---------------------------------------------------------------------
    mutation(
        "an index file may name the offset 0",
        "store/_core/core.c:is_position",
        replace_text("offset > 0", "true"),
        tests=STORE,
    ),
    mutation(
        "an index file may name an offset behind the end of all volumes",
        "store/_core/core.c:is_position",
        replace_text("offset < core->volume_bytes", "true"),
        tests=STORE,
    ),
    mutation(
        "a deletion is set as a value",
        "store/_core/core.c:vc_core_set_tombstone",
        replace_text("VC_TYPES_UNKNOWN, true)", "VC_TYPES_UNKNOWN, false)"),
        tests=STORE,
    ),
    mutation(
        "a key is forgotten although it is stored elsewhere by now",
        "store/_core/core.c:vc_core_bury",
        replace_text("entry.offset == offset", "true"),
        tests=(GAPS,),
    ),
    mutation(
        "a reclaimed volume keeps its memory and gives it back again",
        "store/_core/core.c:vc_core_reclaim",
        replace_text("core->places[slot].segments = NULL;", ""),
        tests=("threads", *STORE),
    ),
    # --- Appending ---------------------------------------------------------------------
    mutation(
        "the rest of a write that was cut short overwrites its start",
        "store/_core/core.c:write_all",
        replace_text("offset += (uint64_t)written;", ""),
        tests=("tests/unit/store/test_files.py", *STORE),
    ),
    mutation(
        "a write that was cut short in a part writes the part again",
        "store/_core/core.c:write_all",
        replace_text("parts->iov_base = (char *)parts->iov_base + left;", ""),
        tests=("tests/unit/store/test_files.py", *STORE),
    ),
    mutation(
        "a record may not end where the volume ends",
        "store/_core/core.c:vc_writer_append",
        replace_text(
            "if (end > writer->capacity) return VC_NO_ROOM;",
            "if (end >= writer->capacity) return VC_NO_ROOM;",
        ),
        tests=STORE,
    ),
    mutation(
        "zeros are written behind the end of a volume",
        "store/_core/core.c:vc_writer_append",
        replace_text(
            "if (written_end > writer->capacity) written_end = writer->capacity;", ""
        ),
        tests=(*STORE, "tests/unit/store/test_volume.py"),
    ),
    mutation(
        "sync mode always does not sync",
        "store/_core/core.c:vc_writer_append",
        replace_text("sync && calls->fdatasync", "false && calls->fdatasync"),
        tests=STORE,
    ),
    mutation(
        "a record whose sync has failed is not overwritten",
        "store/_core/core.c:vc_writer_append",
        replace_text(
            "return VC_SYNC_ERROR;", "return writer->end = end, VC_SYNC_ERROR;"
        ),
        tests=(*STORE, "tests/unit/store/test_volume.py"),
    ),
    mutation(
        "a record that the disk has refused is not overwritten",
        "store/_core/core.c:vc_writer_append",
        replace_text("return VC_IO_ERROR;", "return writer->end = end, VC_IO_ERROR;"),
        tests=(*STORE, "tests/unit/store/test_volume.py"),
    ),
    mutation(
        "a deletion is a value in the index file",
        "store/_core/core.c:vc_writer_append",
        replace_text("record->kind ? 0 : record->size);", "record->size);"),
        tests=(*STORE, *START),
    ),
    # --- A start -----------------------------------------------------------------------
    mutation(
        "a deletion in an index file is a value",
        "store/_core/core.c:take_entry",
        replace_text(": VC_TOMBSTONE", ": 1"),
        tests=START,
    ),
    mutation(
        "an index file may name any position",
        "store/_core/core.c:take_entry",
        replace_text("!is_position(to->core, offset, size)", "false"),
        tests=(GAPS,),
    ),
    mutation(
        "an index file that cannot be read is complete",
        "store/_core/core.c:vc_core_load",
        replace_text("if (got < 0) status = VC_IO_ERROR;", ""),
        tests=(GAPS,),
    ),
    mutation(
        "entries that were read last are not applied",
        "store/_core/core.c:vc_core_lock",
        replace_text("if (core->filling.count) apply(core, &core->filling);", ""),
        tests=START,
    ),
    mutation(
        "a value that is torn is used at a start",
        "store/_core/core.c:vc_core_replay",
        replace_text(
            "vc_crc32c(0, at + record.prefix, record.length) != record.checksum",
            "false",
        ),
        tests=RECORD,
    ),
    mutation(
        "a record of an unknown kind is used at a start",
        "store/_core/core.c:vc_core_replay",
        replace_text("record.kind > 1", "false"),
        tests=RECORD,
    ),
    mutation(
        "a value that is longer than the volume is used at a start",
        "store/_core/core.c:vc_core_replay",
        replace_text("record.size > left", "false"),
        tests=RECORD,
    ),
    mutation(
        "a record at the limit is replayed",
        "store/_core/core.c:vc_core_replay",
        replace_text("run->end < limit", "run->end <= limit"),
        tests=(*RECORD, *START),
    ),
    mutation(
        "a replayed record of ring main replaces a newer one of probation",
        "store/_core/core.c:vc_core_replay",
        replace_text("is_compared && is_in_probation(core, fingerprint)", "false"),
        tests=(GAPS,),
    ),
    mutation(
        "the time of replayed records is not seen",
        "store/_core/core.c:vc_core_replay",
        replace_text("run->latest_us = record.stored_us;", "(void)0;"),
        tests=(*RECORD, "tests/unit/store/test_clock.py"),
    ),
    mutation(
        "a volume that differs from its index file is not noticed",
        "store/_core/core.c:pass_line",
        replace_text("memcmp(line, expected->lines, expected->lines_used)", "false"),
        tests=START,
    ),
    mutation(
        "a damaged value agrees with its index file",
        "store/_core/core.c:read_record",
        replace_text(
            "vc_crc32c(0, at + record->prefix, record->length) == record->checksum",
            "true",
        ),
        tests=START,
    ),
    mutation(
        "the time of compared records is not seen",
        "store/_core/core.c:vc_core_compare",
        replace_text("run->latest_us = record.stored_us;", "(void)0;"),
        tests=(GAPS,),
    ),
    # --- Index files -------------------------------------------------------------------
    mutation(
        "the checksum of a block is not compared",
        "store/_core/lines.c:is_intact",
        replace_text("crc == block->checksum", "true"),
        tests=LINES,
    ),
    mutation(
        "a block may end its volume before the block in front of it",
        "store/_core/lines.c:is_intact",
        replace_text("block->volume_end >= lines->volume_end", "true"),
        tests=LINES,
    ),
    mutation(
        "a record may end behind the end that its block names",
        "store/_core/lines.c:is_intact",
        replace_text("block->furthest <= block->volume_end", "true"),
        tests=LINES,
    ),
    mutation(
        "the checksum of a block does not depend on the block before",
        "store/_core/lines.c:checksum_before",
        replace_text("!lines->has_checksum", "true"),
        tests=LINES,
    ),
    mutation(
        "a block that names another segment is used",
        "store/_core/lines.c:is_ours",
        replace_text("!block->is_foreign", "true"),
        tests=LINES,
    ),
    mutation(
        "a block that leaves a segment out is used",
        "store/_core/lines.c:is_ours",
        replace_text(
            "lines->segments[block->named].start >= block->volume_end", "true"
        ),
        tests=LINES,
    ),
    mutation(
        "the salt of a segment is not compared",
        "store/_core/lines.c:check_comment",
        replace_text("lines->segments[block->named].salt == found.salt", "true"),
        tests=LINES,
    ),
    mutation(
        "a line with a space in its key is an entry",
        "store/_core/lines.c:check_entry",
        replace_text("memchr(entry.key, ' ', entry.length)", "false"),
        tests=LINES,
    ),
    mutation(
        "a line with too long a key is an entry",
        "store/_core/lines.c:check_entry",
        replace_text("entry.length > KEY_BYTES_MAX", "false"),
        tests=(*LINES, *START),
    ),
    mutation(
        "a record may begin inside the header of its volume",
        "store/_core/lines.c:check_entry",
        replace_text("entry.offset < VOLUME_HEADER_BYTES", "false"),
        tests=LINES,
    ),
    mutation(
        "more may follow the checksum of a block",
        "store/_core/lines.c:read_checkpoint",
        replace_text(" || at != end", ""),
        tests=LINES,
    ),
    mutation(
        "keys with percent signs are not decoded",
        "store/_core/lines.c:take_entries",
        replace_text("is_encoded && memchr(", "false && memchr("),
        tests=LINES,
    ),
    mutation(
        "the last entry of a long block is taken twice",
        "store/_core/lines.c:take_entries",
        replace_text("if (i < KEPT)", "if (i <= KEPT)"),
        tests=(*LINES, *START, "tests/unit/store/test_index_format.py"),
    ),
    mutation(
        "the entries of the blocks are not counted",
        "store/_core/lines.c:vc_lines_read",
        replace_text("lines->entries += block.entries;", ""),
        tests=LINES,
    ),
    mutation(
        "a sealed index file is open",
        "store/_core/lines.c:vc_lines_read",
        replace_text("lines->is_sealed = block.is_sealed;", ""),
        tests=LINES,
    ),
    mutation(
        "a key that begins a comment is written as it is",
        "store/_core/lines.c:are_plain",
        replace_text("(hash - ones)", "0"),
        tests=LINES,
    ),
    mutation(
        "a byte that is not printable is written as it is",
        "store/_core/lines.c:vc_line_encode",
        replace_text("byte < 127", "byte <= 127"),
        tests=LINES,
    ),
    mutation(
        "a number may have any number of digits",
        "store/_core/lines.c:read_back",
        replace_text("*end - at > digits", "false"),
        tests=LINES,
    ),
    mutation(
        "a percent sign with one hexadecimal digit is decoded",
        "store/_core/lines.c:decode_key",
        replace_text("high >= 0 && low >= 0", "high >= 0"),
        tests=LINES,
    ),
    # --- Reclaiming --------------------------------------------------------------------
    mutation(
        "a record with a wrong checksum is copied",
        "store/_core/reclaim.c:read_whole",
        replace_text(
            "vc_crc32c(0, reclaim->buffer + record->prefix, record->length)"
            " != record->checksum",
            "false",
        ),
        tests=RECLAIM,
    ),
    mutation(
        "a record of another key is copied",
        "store/_core/reclaim.c:read_whole",
        replace_text("found == one->fingerprint ? VC_OK : VC_OTHER_KEY", "VC_OK"),
        tests=RECLAIM,
    ),
    mutation(
        "a damaged record is left in the index",
        "store/_core/reclaim.c:copy",
        replace_text("forget(reclaim, one);", ""),
        tests=RECLAIM,
    ),
    mutation(
        "a record that expires now is copied",
        "store/_core/reclaim.c:copy",
        replace_text("record.expires_ms <= terms->now_ms", "false"),
        tests=RECLAIM,
    ),
    mutation(
        "a purged record is copied",
        "store/_core/reclaim.c:copy",
        replace_text(
            "vc_core_is_purged(core, record.key, record.key_length, record.stored_us)",
            "false",
        ),
        tests=PURGES,
    ),
    mutation(
        "a copy keeps all its hits",
        "store/_core/reclaim.c:copy",
        replace_text("entry->hits - terms->hits_taken", "entry->hits"),
        tests=RECLAIM,
    ),
    mutation(
        "copies cost no tokens",
        "store/_core/reclaim.c:copy",
        replace_text("core->tokens -= (double)written.size;", ""),
        tests=RECLAIM,
    ),
    mutation(
        "a record that is too large for the target waits for the next one",
        "store/_core/reclaim.c:copy",
        replace_text(
            "VC_VOLUME_HEADER_BYTES + record.size > writer->capacity", "false"
        ),
        tests=RECLAIM,
    ),
    mutation(
        "the clock of a ring does not count copies",
        "store/_core/reclaim.c:copy",
        replace_text("+ written.offset + written.size", ""),
        tests=RECLAIM,
    ),
    mutation(
        "a record that was replaced meanwhile is copied",
        "store/_core/reclaim.c:decide",
        replace_text("vc_index_is_same(entry->word, one->word)", "true"),
        tests=RECLAIM,
    ),
    mutation(
        "a record that was deleted meanwhile is copied",
        "store/_core/reclaim.c:decide",
        replace_text("!entry->is_tombstone", "true"),
        tests=RECLAIM,
    ),
    mutation(
        "records are copied without tokens for them",
        "store/_core/reclaim.c:decide",
        replace_text("core->tokens < (double)entry->size", "false"),
        tests=RECLAIM,
    ),
    mutation(
        "a key that is dropped at the last look is not remembered",
        "store/_core/reclaim.c:decide",
        replace_text("vc_ghost_add(&core->ghost, one->fingerprint);", "(void)0;"),
        tests=RECLAIM,
    ),
    mutation(
        "a key of ring main that is dropped is remembered as one of probation",
        "store/_core/reclaim.c:decide",
        replace_text("decided == DROP && terms->is_probation", "decided == DROP"),
        tests=RECLAIM,
    ),
    mutation(
        "a step goes one record too far",
        "store/_core/reclaim.c:vc_reclaim_step",
        replace_text("one->offset >= end", "one->offset > end"),
        tests=RECLAIM,
    ),
    mutation(
        "a record that has found no room is passed",
        "store/_core/reclaim.c:vc_reclaim_step",
        replace_text("if (step == VC_STEP_FULL) return step;", ""),
        tests=RECLAIM,
    ),
    mutation(
        "a step does not stop when enough was copied",
        "store/_core/reclaim.c:vc_reclaim_step",
        replace_text("fate->copied_bytes < copy_bytes", "true"),
        tests=RECLAIM,
    ),
    mutation(
        "a key without hits that probation drops is not remembered",
        "store/_core/reclaim.c:take",
        replace_text("vc_ghost_add(&reclaim->core->ghost, fingerprint);", "(void)0;"),
        tests=RECLAIM,
    ),
    mutation(
        "a record at a limit of the sizes needs the hits of smaller ones",
        "store/_core/reclaim.c:need_of",
        replace_text("(double)size >=", "(double)size >"),
        tests=RECLAIM,
    ),
    mutation(
        "records are copied from the last to the first",
        "store/_core/reclaim.c:by_offset",
        replace_text("(one > other) - (one < other)", "(one < other) - (one > other)"),
        tests=RECLAIM,
    ),
    # --- The ghost ---------------------------------------------------------------------
    mutation(
        "a key that is added again takes two places",
        "store/_core/ghost.c:vc_ghost_add",
        replace_text("if (find(bucket, tag) >= 0) return;", ""),
        tests=RECLAIM,
    ),
    mutation(
        "the newest key of a bucket leaves first",
        "store/_core/ghost.c:vc_ghost_add",
        replace_text("memmove(bucket + 1, bucket, (WAYS - 1) * sizeof *bucket);", ""),
        tests=RECLAIM,
    ),
    mutation(
        "a key whose tag is 0 is in every bucket with an empty place",
        "store/_core/ghost.c:tag_of",
        replace_text("tag ? tag : 1", "tag"),
        tests=RECLAIM,
    ),
    mutation(
        "the last key of a bucket is there twice after another one was removed",
        "store/_core/ghost.c:vc_ghost_remove",
        replace_text("bucket[WAYS - 1] = 0;", ""),
        tests=RECLAIM,
    ),
    mutation(
        "a ghost that shrinks to less than an eighth forgets all keys",
        "store/_core/ghost.c:vc_ghost_resize",
        replace_text("if (!kept) kept = 1;", ""),
        tests=RECLAIM,
    ),
    mutation(
        "a ghost that shrinks keeps the oldest keys",
        "store/_core/ghost.c:vc_ghost_resize",
        replace_text(
            "const uint16_t *from = ghost->buckets[i & ghost->mask];",
            "const uint16_t *from = ghost->buckets[i & ghost->mask] + WAYS - kept;",
        ),
        tests=RECLAIM,
    ),
    # --- Purges ------------------------------------------------------------------------
    mutation(
        "a record stored at the time of a purge stays",
        "store/_core/purges.c:vc_purges_cover",
        replace_text("stored_us > one->us", "stored_us >= one->us"),
        tests=PURGES,
    ),
    mutation(
        "a key that is shorter than the prefix is purged",
        "store/_core/purges.c:vc_purges_cover",
        replace_text("length < one->length", "false"),
        tests=PURGES,
    ),
    mutation(
        "only the first bytes of a prefix are compared",
        "store/_core/purges.c:vc_purges_cover",
        replace_text("one->length <= HEAD_BYTES", "true"),
        tests=PURGES,
    ),
    mutation(
        "the first bytes of a prefix are not compared",
        "store/_core/purges.c:vc_purges_cover",
        replace_text("(head ^ one->head) & one->mask", "false"),
        tests=PURGES,
    ),
    mutation(
        "the oldest purge is taken for the newest",
        "store/_core/purges.c:vc_purges_new",
        replace_text("purge->us > list->newest_us", "!i"),
        tests=PURGES,
    ),
    mutation(
        "all long prefixes end as the last one",
        "store/_core/purges.c:vc_purges_new",
        replace_text("rest += left;", ""),
        tests=PURGES,
    ),
    # --- Heads of requests -------------------------------------------------------------
    mutation(
        "a body may have two framings",
        "server/_gate/request.c:check_framing",
        replace_text("request->is_chunked && request->has_length", "false"),
        tests=REQUEST,
    ),
    mutation(
        "a request needs no Host",
        "server/_gate/request.c:check_framing",
        replace_text("!request->is_http_1_0 && !seen->has_host", "false"),
        tests=REQUEST,
    ),
    mutation(
        "Connection: close is ignored",
        "server/_gate/request.c:check_framing",
        replace_text("!seen->has_close &&", ""),
        tests=REQUEST,
    ),
    mutation(
        "a chunked body may be that of HTTP/1.0",
        "server/_gate/request.c:check_framing",
        replace_text("request->is_chunked && request->is_http_1_0", "false"),
        tests=REQUEST,
    ),
    mutation(
        "of two Host fields the second one counts",
        "server/_gate/request.c:parse_known",
        replace_text("if (seen->has_host)", "if (false)"),
        tests=REQUEST,
    ),
    mutation(
        "of two Content-Length fields the second one counts",
        "server/_gate/request.c:parse_known",
        replace_text("if (request->has_length)", "if (false)"),
        tests=REQUEST,
    ),
    mutation(
        "a coding that is not known is taken for chunked",
        "server/_gate/request.c:parse_known",
        replace_text('!is_text(field->value, "chunked")', "false"),
        tests=REQUEST,
    ),
    mutation(
        "a length may have a sign",
        "server/_gate/request.c:parse_length",
        replace_text(
            "if (!(CLASSES[(uint8_t)text.at[i]] & DIGIT)) return false;",
            "if (text.at[i] == '+') continue;",
        ),
        tests=REQUEST,
    ),
    mutation(
        "a length may have more digits than a number",
        "server/_gate/request.c:parse_length",
        replace_text("text.length - i > 18", "text.length - i > 20"),
        tests=REQUEST,
    ),
    mutation(
        "a line may end without CR",
        "server/_gate/request.c:find_end",
        replace_text("feed == data || feed[-1] != '\\r'", "false"),
        tests=REQUEST,
    ),
    mutation(
        "a field may have a space before its colon",
        "server/_gate/request.c:parse_field",
        replace_text("!is_all(at, colon, TOKEN)", "!is_all(at, colon, TOKEN | VALUE)"),
        tests=REQUEST,
    ),
    mutation(
        "a value may have a control byte",
        "server/_gate/request.c:parse_field",
        replace_text("!is_all(value, stop, VALUE)", "false"),
        tests=REQUEST,
    ),
    mutation(
        "there may be one field more than there is room for",
        "server/_gate/request.c:parse_field",
        replace_text(
            "request->field_count == VC_FIELDS", "request->field_count > VC_FIELDS"
        ),
        tests=REQUEST,
    ),
    mutation(
        "a percent sign with one hexadecimal digit is accepted in a path",
        "server/_gate/request.c:parse_target",
        replace_text("p + 3, HEX", "p + 2, HEX"),
        tests=REQUEST,
    ),
    mutation(
        "the host of an absolute target is not looked at",
        "server/_gate/request.c:parse_target",
        replace_text("slash == at || !is_all(at, slash, HOST)", "false"),
        tests=REQUEST,
    ),
    mutation(
        "HTTP/1.2 is accepted",
        "server/_gate/request.c:parse_line",
        replace_text("(version[7] != '0' && version[7] != '1')", "version[7] > '2'"),
        tests=REQUEST,
    ),
    mutation(
        "a head may be one byte too long",
        "server/_gate/request.c:vc_request_parse",
        replace_text("found > VC_HEAD_BYTES", "found > VC_HEAD_BYTES + 1"),
        tests=REQUEST,
    ),
    mutation(
        "a token is found in a longer one",
        "server/_gate/request.c:has_token",
        replace_text(
            "is_text((vc_text){first, (size_t)(last - first)}, token)",
            "(size_t)(last - first) >= strlen(token) &&"
            " !strncasecmp(first, token, strlen(token))",
        ),
        tests=REQUEST,
    ),
    # --- Requests as bjoern gets them --------------------------------------------------
    mutation(
        "of several fields of one name only the first one is passed",
        "server/_gate/request.c:put_field",
        replace_text("i = number + 1; i < request->field_count", "i = 0; i < 0"),
        tests=REQUEST,
    ),
    mutation(
        "several fields of one name are passed several times",
        "server/_gate/request.c:put_field",
        replace_text("if (has_name(request, 0, number, field->name)) return;", ""),
        tests=REQUEST,
    ),
    mutation(
        "the end of a connection is not passed",
        "server/_gate/request.c:vc_request_write",
        replace_text("if (!request->keeps_alive)", "if (false)"),
        tests=REQUEST,
    ),
    mutation(
        "Host is passed where the target names another host",
        "server/_gate/request.c:vc_request_write",
        replace_text(
            "request->authority.at ? request->authority", "false ? (vc_text){0}"
        ),
        tests=REQUEST,
    ),
    mutation(
        "a head that does not fit is passed without its end",
        "server/_gate/request.c:vc_request_write",
        replace_text(
            "out.end == last ? (size_t)(out.at - to) : 0", "(size_t)(out.at - to)"
        ),
        tests=REQUEST,
        survives="No head that is accepted grows by as much as there is room for.",
    ),
    # --- Chunked bodies ----------------------------------------------------------------
    mutation(
        "the size of a chunk may have any number of digits",
        "server/_gate/request.c:vc_chunks_take",
        replace_text(
            "chunks->digits > SIZE_DIGITS || chunks->line > SIZE_BYTES", "false"
        ),
        tests=REQUEST,
    ),
    mutation(
        "a chunk without a size is the last one",
        "server/_gate/request.c:vc_chunks_take",
        replace_text("!chunks->digits", "false"),
        tests=REQUEST,
    ),
    mutation(
        "the bytes of chunks are not counted",
        "server/_gate/request.c:vc_chunks_take",
        replace_text("chunks->total += chunks->left;", ""),
        tests=REQUEST,
    ),
    mutation(
        "any two bytes end a chunk",
        "server/_gate/request.c:vc_chunks_take",
        replace_text("byte != (chunks->state == DATA_RETURN ? '\\r' : '\\n')", "false"),
        tests=REQUEST,
    ),
    mutation(
        "the trailers may have any length",
        "server/_gate/request.c:vc_chunks_take",
        replace_text("chunks->line++ > LINE_BYTES", "chunks->line++ > UINT32_MAX"),
        tests=REQUEST,
    ),
    mutation(
        "a chunk takes bytes of what follows it",
        "server/_gate/request.c:vc_chunks_take",
        replace_text("if (some > chunks->left) some", "if (false) some"),
        tests=REQUEST,
    ),
    # --- The gate: what it answers -----------------------------------------------------
    mutation(
        "an expired value is sent",
        "server/_gate/gate.c:is_plain",
        replace_text("!record->expires_ms", "true"),
        tests=GATE,
    ),
    mutation(
        "a miss is answered while reads fail",
        "server/_gate/gate.c:answer_miss",
        replace_text("!gate->is_ready", "false"),
        tests=GATE,
    ),
    mutation(
        "a miss is answered for too long a key",
        "server/_gate/gate.c:answer_miss",
        replace_text("path.length - 1 > gate->config.key_size", "false"),
        tests=(*GATE, *GATE_OF_SERVER),
    ),
    mutation(
        "a miss is answered for a path that is not canonical",
        "server/_gate/gate.c:is_ordinary",
        replace_text("path[i] == '.' && path[i - 1] == '/'", "false"),
        tests=GATE,
    ),
    mutation(
        "absent keys count as evicted ones",
        "server/_gate/gate.c:answer_miss",
        replace_text("if (is_stale)", "if (true)"),
        tests=(*GATE, *GATE_OF_SERVER),
    ),
    mutation(
        "after a read has failed misses are still answered",
        "server/_gate/gate.c:answer_get",
        replace_text("if (status == VC_IO_ERROR) gate->is_ready = false;", ""),
        tests=(*GATE, *GATE_OF_SERVER),
    ),
    mutation(
        "a page of the service is looked up as a key",
        "server/_gate/gate.c:answer_get",
        replace_text(
            "(path.length > 2 && path.at[1] == '-' && path.at[2] == '/')", "false"
        ),
        tests=GATE,
        survives="No key begins so, and Python answers a miss of such a path.",
    ),
    mutation(
        "a large record is read in the loop",
        "server/_gate/gate.c:answer_get",
        replace_text("at.size > RECORD_BYTES", "false"),
        tests=(*GATE, *GATE_OF_SERVER),
    ),
    mutation(
        "a request with a condition is answered as one without",
        "server/_gate/gate.c:decide",
        replace_text("!request->is_special", "true"),
        tests=GATE,
    ),
    mutation(
        "a GET with a body is answered before the body",
        "server/_gate/gate.c:decide",
        replace_text("!request->content_length", "true"),
        tests=GATE,
    ),
    mutation(
        "a GET with a chunked body is answered before the body",
        "server/_gate/gate.c:decide",
        replace_text("!request->is_chunked", "true"),
        tests=GATE,
    ),
    mutation(
        "the second part of an answer is sent again from its start",
        "server/_gate/gate.c:send_parts",
        replace_text("done -= skipped;", "done = 0;"),
        tests=GATE,
    ),
    mutation(
        "more is read from a connection that is to be closed",
        "server/_gate/gate.c:finish",
        replace_text("is_good && c->keeps_alive", "is_good"),
        tests=GATE,
    ),
    mutation(
        "a connection that is to be closed stays open after a slow answer",
        "server/_gate/gate.c:on_writable",
        replace_text("if (!c->keeps_alive) end(c);", ""),
        tests=GATE,
    ),
    mutation(
        "misses count as hits",
        "server/_gate/gate.c:count",
        replace_text(
            "record ? &gate->counts.hits : &gate->counts.misses", "&gate->counts.hits"
        ),
        tests=(*GATE, *GATE_OF_SERVER),
    ),
    mutation(
        "the headers of an answer do not depend on the origin of its page",
        "server/_gate/gate.c:headers_for",
        replace_text("origin && i < config->origin_count", "false"),
        tests=(*GATE, "tests/integration/test_cors.py"),
    ),
    # --- The gate: what it passes ------------------------------------------------------
    mutation(
        "a value may be one byte too long",
        "server/_gate/gate.c:is_allowed",
        replace_text("<= gate->config.value_size", "<= gate->config.value_size + 1"),
        tests=GATE,
    ),
    mutation(
        "a chunked value may have any length",
        "server/_gate/gate.c:take_chunks",
        replace_text("c->chunks.total > gate->config.value_size", "false"),
        tests=GATE,
    ),
    mutation(
        "bjoern gets the next request as part of a body",
        "server/_gate/gate.c:pass",
        replace_text("length < c->body_left ? length : (size_t)c->body_left", "length"),
        tests=GATE,
    ),
    mutation(
        "a body that is passed at once is awaited again",
        "server/_gate/gate.c:pass",
        replace_text("c->body_left -= *used;", ""),
        tests=GATE,
    ),
    mutation(
        "bjoern gets bytes behind the end of a body",
        "server/_gate/gate.c:take_body",
        replace_text("if (length > c->body_left) length = (size_t)c->body_left;", ""),
        tests=GATE,
    ),
    mutation(
        "what follows a chunked body is dropped",
        "server/_gate/gate.c:take_body",
        replace_text("!keep(c, gate->input + used, (size_t)got - used)", "false"),
        tests=GATE,
    ),
    mutation(
        "bjoern gets bytes of another connection",
        "server/_gate/gate.c:on_take",
        replace_text("gate->passed_used && gate->passed_fd == fd", "gate->passed_used"),
        tests=GATE,
        survives="bjoern reads at once from a connection that it is told to read from.",
    ),
    mutation(
        "what was to be passed is passed to the next client of the same number",
        "server/_gate/gate.c:on_closing",
        replace_text("if (gate->passed_fd == fd) gate->passed_used = 0;", ""),
        tests=GATE,
        survives="bjoern reads at once from a connection that it is told to read from.",
    ),
    mutation(
        "a client that waits for 100 Continue gets none",
        "server/_gate/gate.c:handle_one",
        replace_text("request->awaits_continue && !is_body_complete(c)", "false"),
        tests=(*GATE, *GATE_OF_SERVER),
    ),
    # --- The gate: reader threads and time ---------------------------------------------
    mutation(
        "the loop is not told of a read that it waits for",
        "server/_gate/gate.c:hand_back",
        replace_text("job->is_awaited || job->outcome != JOB_SENT", "job->is_awaited"),
        tests=GATE_OF_THREADS,
    ),
    mutation(
        "a request that a thread could not answer is given to a thread again",
        "server/_gate/gate.c:finish_job",
        replace_text("c->is_warm = true;", ""),
        tests=GATE,
    ),
    mutation(
        "a request that a thread has answered is answered again",
        "server/_gate/gate.c:finish_job",
        replace_text("if (!c->is_ending) drop(c, c->head_length);", ""),
        tests=GATE,
    ),
    mutation(
        "a thread sends a value although another answer is due",
        "server/_gate/gate.c:run_job",
        replace_text("!job->answers || status != VC_OK", "status != VC_OK"),
        tests=GATE,
    ),
    mutation(
        "the read of a thread does not end",
        "server/_gate/gate.c:run_job",
        replace_text("vc_core_end_read(config->core);", ""),
        tests=GATE_OF_THREADS,
    ),
    mutation(
        "there may be one connection more than is allowed",
        "server/_gate/gate.c:on_accepted",
        replace_text(
            "gate->stats.open < gate->config.connections",
            "gate->stats.open <= gate->config.connections",
        ),
        tests=GATE,
    ),
    mutation(
        "connections are closed before the end of their time",
        "server/_gate/gate.c:on_tick",
        replace_text("c->since_ns + gate->limits_ns[i] <= now_ns", "true"),
        tests=GATE,
    ),
    mutation(
        "a slow body is accepted for any time",
        "server/_gate/gate.c:is_too_slow",
        replace_text("SLOWEST_BYTES_PER_SECOND > bytes", "0 > bytes"),
        tests=(*GATE, "tests/unit/http/test_native_app.py"),
    ),
    mutation(
        "what a client sends after a refusal is handled",
        "server/_gate/gate.c:refuse",
        replace_text("enter(gate, c, LINGER, started_ns);", ""),
        tests=GATE,
    ),
)
