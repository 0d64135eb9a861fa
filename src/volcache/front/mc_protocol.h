/* The memcached protocol as the loops serve it: memcache.h with the contract of protocol.h. */
#ifndef VC_MC_PROTOCOL_H
#define VC_MC_PROTOCOL_H

#include "memcache.h"
#include "protocol.h"

/* The executor of one loop. */
typedef struct {
    vc_mc *mc;
    vc_mc_access access;
    unsigned generation;        /* of `access` */
} vc_mc_executor;

/* A call is executed by a `vc_mc` that may wait. */
extern const vc_protocol vc_mc_protocol;

/* Use other settings; by the thread of the loop, and once before it begins. */
void vc_mc_executor_change(vc_mc_executor *executor, const vc_mc_access *access, int64_t slow_ns);

#endif
