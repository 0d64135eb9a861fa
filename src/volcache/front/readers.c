#define _GNU_SOURCE
#include "readers.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "clock.h"

enum {
    /* For so many jobs more there is one thread more, while the disk is quick: each has as large a
     * share of the processors as a loop. */
    JOBS_PER_THREAD = 64,
    /* The disk is slow if more than half of the last reads, about so many, were. */
    READS_KEPT = 32,
    READER_NICENESS = 10, /* above that of the loops */
};
/* A read that takes longer is slow. That of a disk in the machine takes 0.1 ms, that of one in a
 * network 0.3 ms or more: several threads have to wait for it at a time. */
static const int64_t QUICK_NS = 200000;
/* After a job has waited for so long, another thread begins: the others may wait for the disk. */
static const int64_t PATIENCE_NS = 5000000;

struct vc_readers {
    vc_core *core;
    const vc_core_functions *functions;
    pthread_mutex_t mutex;
    pthread_cond_t more, more_puts, ended;
    vc_jobs jobs, puts;
    unsigned sleeping; /* threads that wait for a job, without those woken */
    unsigned woken;    /* threads that are to stop waiting */
    unsigned slowness; /* grows with each slow read up to READS_KEPT, else shrinks */
    bool is_stopped;
    pthread_t threads[VC_READERS_MAX];
    unsigned thread_count;
    pthread_t writer; /* stores values, once there was one */
    bool has_writer;
};

static void append_job(vc_jobs *to, vc_job *job) {
    job->next = NULL;
    if (to->last) to->last->next = job;
    else to->first = job;
    to->last = job;
    to->length++;
}

/* Take a job out of a list; `before` is the one before it, NULL if it is the first. */
static void unlink_job(vc_jobs *from, vc_job *before, vc_job *job) {
    if (before) before->next = job->next;
    else from->first = job->next;
    if (from->last == job) from->last = before;
    from->length--;
}

/* --- Owners ----------------------------------------------------------------------------- */

void vc_job_owner_start(vc_job_owner *owner) { pthread_mutex_init(&owner->mutex, NULL); }

vc_job *vc_job_owner_take(vc_job_owner *owner) {
    pthread_mutex_lock(&owner->mutex);
    vc_job *first = owner->done.first;
    owner->done = (vc_jobs){0};
    pthread_mutex_unlock(&owner->mutex);
    return first;
}

static void add_done(vc_job *job) {
    vc_job_owner *owner = job->owner;
    pthread_mutex_lock(&owner->mutex);
    append_job(&owner->done, job);
    pthread_mutex_unlock(&owner->mutex);
}

void vc_job_end(vc_job *job) {
    const vc_job_owner *owner = job->owner;
    add_done(job);
    owner->wake(owner->context);
}

/* Let an owner end, with the mutex, if this was the last of its jobs. */
static void end_job(vc_readers *readers, vc_job_owner *owner) {
    if (!--owner->running) pthread_cond_broadcast(&readers->ended);
}

/* --- The threads ------------------------------------------------------------------------ */

/* Returns how long the read took. */
static int64_t run(vc_readers *readers, vc_job *job) {
    int64_t started_ns = vc_monotonic_ns();
    vc_record record;
    uint8_t *bytes = job->work ? NULL : malloc(job->at.size);
    job->status = VC_NO_MEMORY;
    if (job->work) job->work(job, readers->core, readers->functions);
    else if (bytes)
        job->status = readers->functions->read(readers->core, job->key, job->key_length, &job->at,
                                               false, bytes, &record);
    free(bytes);
    if (!job->keeps_read) readers->functions->end_read(readers->core);
    int64_t read_ns = vc_monotonic_ns() - started_ns;
    vc_job_end(job);
    return read_ns;
}

/* Wait for a job, with the mutex. */
static vc_job *take_next(vc_readers *readers) {
    while (!readers->jobs.first && !readers->is_stopped) {
        readers->sleeping++;
        while (!readers->woken && !readers->is_stopped)
            pthread_cond_wait(&readers->more, &readers->mutex);
        if (readers->woken) readers->woken--;
        else readers->sleeping--;
    }
    vc_job *job = readers->jobs.first;
    if (job) unlink_job(&readers->jobs, NULL, job);
    return job;
}

static void readers_count_read(vc_readers *readers, int64_t read_ns) {
    if (read_ns <= QUICK_NS) readers->slowness -= readers->slowness > 0;
    else if (readers->slowness < READS_KEPT) readers->slowness++;
}

static void *read_jobs(void *context) {
    vc_readers *readers = context;
    vc_job *job;
    /* So it does not take the processor from a loop or a client, and gives it to one that wakes up. */
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &(struct sched_param){0});
    (void)!nice(READER_NICENESS);
    pthread_mutex_lock(&readers->mutex);
    while ((job = take_next(readers))) {
        vc_job_owner *owner = job->owner;
        pthread_mutex_unlock(&readers->mutex);
        int64_t read_ns = run(readers, job);
        pthread_mutex_lock(&readers->mutex);
        readers_count_read(readers, read_ns);
        end_job(readers, owner);
    }
    pthread_mutex_unlock(&readers->mutex);
    return NULL;
}

/* --- The thread that stores values ------------------------------------------------------- */

/* Wait for puts, with the mutex; return how many there are, at most VC_GROUP_PUTS_MAX. */
static size_t wait_for_puts(vc_readers *readers, vc_put **puts) {
    size_t count = 0;
    while (!readers->puts.first && !readers->is_stopped)
        pthread_cond_wait(&readers->more_puts, &readers->mutex);
    for (vc_job *job = readers->puts.first; job && count < VC_GROUP_PUTS_MAX; job = job->next)
        puts[count++] = job->put;
    return count;
}

/* Hand back the first put, with the mutex. */
static void end_put(vc_readers *readers) {
    vc_job *job = readers->puts.first;
    vc_job_owner *owner = job->owner;
    unlink_job(&readers->puts, NULL, job);
    vc_job_end(job);
    end_job(readers, owner);
}

static void *store_puts(void *context) {
    vc_readers *readers = context;
    vc_put *puts[VC_GROUP_PUTS_MAX];
    size_t count;
    pthread_mutex_lock(&readers->mutex);
    while ((count = wait_for_puts(readers, puts))) {
        pthread_mutex_unlock(&readers->mutex);
        count = readers->functions->group_commit(readers->core, puts, count);
        pthread_mutex_lock(&readers->mutex);
        while (count--) end_put(readers);
    }
    pthread_mutex_unlock(&readers->mutex);
    return NULL;
}

void vc_readers_put(vc_readers *readers, vc_job *job) {
    pthread_mutex_lock(&readers->mutex);
    append_job(&readers->puts, job);
    job->owner->running++;
    if (!readers->has_writer)
        readers->has_writer = !pthread_create(&readers->writer, NULL, store_puts, readers);
    if (!readers->has_writer) { /* So this is the only one. */
        job->put->status = VC_DEFERRED;
        end_put(readers);
    }
    pthread_mutex_unlock(&readers->mutex);
    pthread_cond_signal(&readers->more_puts);
}

/* --- The pool --------------------------------------------------------------------------- */

vc_readers *vc_readers_new(vc_core *core, const vc_core_functions *functions, unsigned threads) {
    vc_readers *readers = calloc(1, sizeof(vc_readers));
    if (!readers) return NULL;
    readers->core = core;
    readers->functions = functions;
    pthread_mutex_init(&readers->mutex, NULL);
    pthread_cond_init(&readers->more, NULL);
    pthread_cond_init(&readers->more_puts, NULL);
    pthread_cond_init(&readers->ended, NULL);
    while (readers->thread_count < threads && readers->thread_count < VC_READERS_MAX &&
           !pthread_create(&readers->threads[readers->thread_count], NULL, read_jobs, readers))
        readers->thread_count++;
    if (readers->thread_count) return readers;
    free(readers);
    return NULL;
}

void vc_readers_free(vc_readers *readers) {
    if (!readers) return;
    pthread_mutex_lock(&readers->mutex);
    readers->is_stopped = true;
    pthread_mutex_unlock(&readers->mutex);
    pthread_cond_broadcast(&readers->more);
    pthread_cond_signal(&readers->more_puts);
    for (unsigned i = 0; i < readers->thread_count; i++) pthread_join(readers->threads[i], NULL);
    if (readers->has_writer) pthread_join(readers->writer, NULL);
    free(readers);
}

void vc_readers_add(vc_readers *readers, vc_job *job) {
    pthread_mutex_lock(&readers->mutex);
    job->owner->running++;
    append_job(&readers->jobs, job);
    pthread_mutex_unlock(&readers->mutex);
}

/* How many threads are to be woken, with the mutex. A look for what is in memory lets the kernel
 * begin to read what is not. So a thread that waits for a quick disk finds the next records in
 * memory: with more threads, the same reads take more changes from one to the other. */
static unsigned threads_wanted(const vc_readers *readers) {
    unsigned waiting = readers->jobs.length, awake = readers->thread_count - readers->sleeping;
    if (waiting && readers->slowness <= READS_KEPT / 2) {
        unsigned enough = 1 + waiting / JOBS_PER_THREAD;
        if (vc_monotonic_ns() - readers->jobs.first->added_ns > PATIENCE_NS) enough += awake;
        waiting = enough > awake ? enough - awake : 0;
    }
    return waiting < readers->sleeping ? waiting : readers->sleeping;
}

void vc_readers_wake(vc_readers *readers) {
    pthread_mutex_lock(&readers->mutex);
    unsigned wanted = threads_wanted(readers);
    readers->sleeping -= wanted;
    readers->woken += wanted;
    pthread_mutex_unlock(&readers->mutex);
    while (wanted--) pthread_cond_signal(&readers->more);
}

void vc_readers_give_up(vc_readers *readers, vc_job_owner *owner, int64_t added_ns) {
    vc_job *before = NULL, *next;
    pthread_mutex_lock(&readers->mutex);
    for (vc_job *job = readers->jobs.first; job; job = next) {
        next = job->next;
        if (job->owner != owner || job->added_ns > added_ns || job->keeps_read) {
            before = job;
            continue;
        }
        unlink_job(&readers->jobs, before, job);
        readers->functions->end_read(readers->core);
        job->is_given_up = true;
        add_done(job);
        end_job(readers, owner);
    }
    pthread_mutex_unlock(&readers->mutex);
}

void vc_readers_end(vc_readers *readers, vc_job_owner *owner) {
    pthread_mutex_lock(&readers->mutex);
    while (owner->running) pthread_cond_wait(&readers->ended, &readers->mutex);
    pthread_mutex_unlock(&readers->mutex);
}
