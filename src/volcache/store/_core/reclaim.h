/* The reclaim of one volume, step by step: which of its records are used, and copies of them.
 *
 * First the index is searched for records of the volume with enough hits, segment by segment.
 * Then these are copied, in the order of the volume. What is dropped stays in the index until
 * `vc_core_reclaim`; it can be read and replaced until then. Used by the one thread that
 * changes the core. */
#ifndef VC_RECLAIM_H
#define VC_RECLAIM_H

#include "core.h"

enum { VC_SIZE_STEPS = 4 };

/* Which records are worth a copy. */
typedef struct {
    /* A record of a size below limit[i], and not below limit[i - 1], needs need[i] hits; one
     * that is not below the last limit needs the last number. Limits grow. */
    double limit[VC_SIZE_STEPS - 1];
    int need[VC_SIZE_STEPS];
    unsigned hits_taken; /* a copy has as many hits less, at least 0 */
    bool is_probation;   /* what is dropped goes into the ghost */
    uint64_t now_ms;     /* what has expired is not copied */
} vc_thresholds;

/* What happened to the live records that were looked at. */
typedef struct {
    uint64_t copied, copied_bytes;
    uint64_t unused; /* too few hits */
    uint64_t unpaid; /* too few tokens */
    uint64_t expired, damaged, unreadable;
    uint64_t left; /* not copied because copying was over */
    uint64_t purged;
} vc_disposition;

typedef enum {
    VC_RECLAIM_MORE,
    VC_RECLAIM_DONE,       /* all that were found were looked at */
    VC_RECLAIM_FULL,       /* the volume that gets the copies has no room for the next one */
    VC_RECLAIM_UNREADABLE, /* the disk refused to read; errno says why */
    VC_RECLAIM_REFUSED,    /* the disk refused to write; errno says why */
    VC_RECLAIM_DAMAGED,    /* a record failed a check: it is at `offset` */
} vc_reclaim_result;

typedef struct vc_reclaim vc_reclaim;

/* Begin; NULL without memory. */
vc_reclaim *vc_reclaim_new(vc_core *core, uint32_t slot);
void vc_reclaim_free(vc_reclaim *reclaim);
/* Search some of the 2^VC_SEGMENT_BITS segments; records without enough hits are dropped. */
void vc_reclaim_collect(vc_reclaim *reclaim, uint32_t segments, const vc_thresholds *thresholds,
                        vc_disposition *disposition);
/* Look at the records found until one begins at `end` or later, or until `copy_bytes` were copied.
 * After any result but VC_RECLAIM_DONE, call it again to go on; a record that was refused was
 * passed, except after VC_RECLAIM_FULL.
 *   writer  gets the copies; NULL: nothing more is copied.
 *   offset  of the record that the result is about. */
vc_reclaim_result vc_reclaim_step(vc_reclaim *reclaim, uint64_t end, uint64_t copy_bytes,
                                  const vc_thresholds *thresholds, vc_writer *writer,
                                  vc_disposition *disposition, uint64_t *offset);

#endif
