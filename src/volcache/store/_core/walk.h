/* Passes the intact records of a volume that follow one another: to index them, to write their
 * entries, or to compare those with the index file. */
#ifndef VC_WALK_H
#define VC_WALK_H

#include "ahead.h"

/* The caller sets the fields up to `lines_length`, the others are 0 at first. */
typedef struct {
    vc_ahead *ahead;        /* of the data file */
    uint16_t volume;
    uint64_t length;        /* nothing behind is read */
    vc_writer *writer;      /* gets the entries */
    const uint8_t *lines;   /* otherwise compared with them: of blocks that are checked; or NULL */
    size_t lines_length;
    size_t at;              /* the next line begins here */
    vc_writer expected;     /* of which only the lines are used: the one of a record */
    uint8_t prefix[VC_PREFIX_BYTES_MAX];    /* of a record that is in several pieces */
} vc_walk;

/* What was passed. */
typedef struct {
    uint64_t end;           /* where what was not passed begins */
    uint64_t records;
    uint64_t latest_us;     /* the latest time stored, below VC_CLOCK_END */
} vc_run;

/* Pass the intact records that follow one another from `offset` on, with the next lines. With
 * `core`, set their positions in the index. Not passed are: a record that begins at or after
 * `limit`; one of ring main whose key has a value in ring probation: the caller compares their
 * times; what cannot be read, which is not told from damage. Returns false without memory. */
bool vc_walk_run(vc_walk *walk, vc_core *core, uint32_t slot, uint64_t salt, uint64_t offset,
                 uint64_t limit, vc_run *run);

#endif
