/* The functions of the core that another extension may call. An extension does not see the
 * symbols of another one, so it receives this table, in a capsule. */
#ifndef VC_FUNCTIONS_H
#define VC_FUNCTIONS_H

#include "core.h"

/* The name of the capsule. Its number changes with the table, and with every struct that the two
 * extensions share. */
#define VC_FUNCTIONS_NAME "volcache.store._core._native.functions 17"

typedef struct {
    __typeof__(vc_core_try_acquire) *try_acquire;
    __typeof__(vc_core_release) *release;
    __typeof__(vc_core_is_absent) *is_absent;
    __typeof__(vc_core_lookup) *lookup;
    __typeof__(vc_core_prefetch) *prefetch;
    __typeof__(vc_core_read) *read;
    __typeof__(vc_core_end_read) *end_read;
    __typeof__(vc_core_check) *check;
    __typeof__(vc_core_put) *put;
    __typeof__(vc_core_put_many) *put_many;
    __typeof__(vc_core_group_commit) *group_commit;
    __typeof__(vc_core_delete) *delete;
    __typeof__(vc_core_change) *change;
    __typeof__(vc_core_count_reads) *count_reads;
    __typeof__(vc_core_share) *share;
} vc_core_functions;

extern const vc_core_functions vc_functions;

#endif
