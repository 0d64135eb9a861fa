/* Threads that wait for the disk, for all loops that serve clients: they read records which are
 * not in memory, and one stores values that are to be synced.
 *
 * A loop is an owner of jobs. It looks a key up, adds a job with what it has found, and goes on.
 * A thread reads the record, and so lets the kernel have it in memory, and ends the read. Then the
 * job is in `done` of the owner, who is woken.
 *
 * All puts that have arrived while the disk was synced are stored together, with the next sync.
 *
 * The threads leave the processors to the loops while these are short of time: they are nicer, of
 * the kind SCHED_BATCH, and while the disk is quick, as many are awake as have enough to do.
 *
 * Threads. Any may add jobs. The pool has a job from the time it is added until it is in `done`.
 * `wake` is called by the threads of the pool. */
#ifndef VC_READERS_H
#define VC_READERS_H

#include <pthread.h>

#include "functions.h"

typedef struct vc_job vc_job;
typedef struct vc_job_owner vc_job_owner;

typedef struct {
    vc_job *first, *last;
    unsigned length;
} vc_jobs;

/* One read or put. The owner sets what is before the result. */
struct vc_job {
    vc_job *next;
    vc_job_owner *owner;
    /* Of a put; it has its result, and has no use of the fields below. NULL: of a read. */
    vc_put *put;
    vc_lookup at;
    const uint8_t *key;
    size_t key_length;
    int64_t added_ns; /* for `vc_readers_give_up` */
    /* What a thread does in place of the read; sets the status. NULL: it reads. */
    void (*work)(vc_job *job, vc_core *core, const vc_core_functions *functions);
    bool keeps_read; /* the read goes on afterwards; it is not given up */
    bool is_call;    /* it is for another thread than those of the pool */
    /* The result. */
    bool is_given_up; /* nothing was read */
    vc_status status;
};

struct vc_job_owner {
    void (*wake)(void *context);
    void *context;
    pthread_mutex_t mutex;
    vc_jobs done;     /* changed with `mutex` */
    unsigned running; /* not in `done` yet; changed with the mutex of the pool */
};

void vc_job_owner_start(vc_job_owner *owner);
/* Return the jobs that are done, as a list. */
vc_job *vc_job_owner_take(vc_job_owner *owner);
/* A job is done: its owner has it then. */
void vc_job_end(vc_job *job);

typedef struct vc_readers vc_readers;

enum { VC_READERS_MAX = 64 };

/* Return a pool of threads, at least one; NULL without memory or threads. */
vc_readers *vc_readers_new(vc_core *core, const vc_core_functions *functions, unsigned threads);
/* Stop the threads. There is no owner any more. */
void vc_readers_free(vc_readers *readers);
/* Add a job, which no thread need begin before `vc_readers_wake`. */
void vc_readers_add(vc_readers *readers, vc_job *job);
/* Add a put: what it points to stays as it is until it is done. */
void vc_readers_put(vc_readers *readers, vc_job *job);
/* Wake threads for the jobs that were added, if too few are awake. To be called in each turn of a
 * loop that has jobs, and at least some times in a second: a job may wait behind a slow one. */
void vc_readers_wake(vc_readers *readers);
/* Hand back the jobs of an owner that no thread has begun, and that were added up to a time; the
 * owner is not woken. */
void vc_readers_give_up(vc_readers *readers, vc_job_owner *owner, int64_t added_ns);
/* Wait until all jobs of an owner are done: none is added to it any more. */
void vc_readers_end(vc_readers *readers, vc_job_owner *owner);

#endif
