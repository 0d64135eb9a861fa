#include "functions.h"

const vc_core_functions vc_functions = {
    .try_acquire = vc_core_try_acquire,
    .release = vc_core_release,
    .is_absent = vc_core_is_absent,
    .lookup = vc_core_lookup,
    .prefetch = vc_core_prefetch,
    .read = vc_core_read,
    .end_read = vc_core_end_read,
    .check = vc_core_check,
    .put = vc_core_put,
    .put_many = vc_core_put_many,
    .group_commit = vc_core_group_commit,
    .delete = vc_core_delete,
    .change = vc_core_change,
    .count_reads = vc_core_count_reads,
    .share = vc_core_share,
};
