/* The one way through the records of a volume, in order: a start, a check, a scrub and a list of
 * keys differ only in what they do with a record.
 *
 * A torn record at the end is normal: the process or the machine stopped while it was written, and
 * it was not acknowledged. Damage with records behind it is an event. The two are told apart by
 * looking for a record of the same use of the volume further on, and for a single wrong bit, which
 * a torn record does not have. The offset and the salt in each header prevent that a copy of a
 * record, stored as part of a value, is taken for one.
 *
 * A part of the disk that cannot be read is not an empty one: a record may be there. */
#ifndef VC_SCAN_H
#define VC_SCAN_H

#include "read_ahead.h"

/* The caller sets the fields up to `line_at`, the others are 0 at first. */
typedef struct {
    vc_read_ahead *ahead;       /* of the data file */
    const vc_segment *segments; /* of the volume, in order, the first one from offset 0 */
    size_t segment_count;
    uint16_t volume;
    uint64_t at;          /* the next event begins here */
    uint64_t length;      /* nothing behind is read */
    uint64_t window;      /* so far behind what is no record another one is looked for */
    uint64_t step;        /* intact records are passed together up to so many bytes; 0: none */
    bool has_lost;        /* a power loss may have taken what was not synced */
    bool has_values;      /* values are checked */
    vc_core *core;        /* gets the positions of the records passed together; or NULL */
    uint32_t slot;        /* of the volume */
    vc_writer *writer;    /* gets their entries; or NULL */
    const uint8_t *lines; /* otherwise compared with them: of blocks that are checked; or NULL */
    size_t lines_length;
    size_t line_at;     /* the next line begins here */
    vc_writer expected; /* of which only the lines are used: the one of a record */
    vc_segment segment; /* the one that was looked at last, and where it ends */
    uint64_t segment_end;
    uint64_t synced_end;                 /* what records say of the volume; 0: not read yet */
    uint8_t prefix[VC_PREFIX_BYTES_MAX]; /* of the record that is looked at */
} vc_scan;

typedef enum {
    VC_SCAN_END,        /* there is nothing more */
    VC_SCAN_RUN,        /* intact records, passed together */
    VC_SCAN_RECORD,     /* an intact record */
    VC_SCAN_DAMAGED,    /* a record of which only the header is known */
    VC_SCAN_GAP,        /* bytes without a record, although there are records behind */
    VC_SCAN_TORN,       /* a record that was not completely written; nothing follows */
    VC_SCAN_UNREADABLE, /* bytes that cannot be read where a record may be */
    VC_SCAN_NO_MEMORY,
} vc_scan_kind;

typedef struct {
    vc_scan_kind kind;
    uint64_t start, end;
    uint64_t records;   /* of a run */
    uint64_t latest_us; /* likewise: the latest time stored, below VC_CLOCK_END */
    vc_record record;   /* its bytes stay until the next call */
} vc_event;

/* Say what is at scan->at, and move that behind it. Records are passed together if they are
 * intact and have the next lines; but not one of ring main whose key has a value in ring
 * probation: the caller compares their times.
 *
 * After a power loss, a damaged value that was not synced when later records were written is a
 * gap: its key has the value from before. */
void vc_scan_next(vc_scan *scan, vc_event *event);

/* The offset of the next record, at most `window` bytes behind `offset`; UINT64_MAX: there is
 * none. */
uint64_t vc_scan_find(vc_scan *scan, uint64_t offset);

#endif
