/* The pool of threads that read: which of them begin, and what becomes of the jobs.
 *
 *     readers_test
 *
 * readers.c is included, not linked: the test has its own clock, and waits until all threads
 * sleep. There is no disk: a read ends when the test lets it. Any failed check aborts. */
#define _GNU_SOURCE
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

static int test_clock_gettime(clockid_t clock, struct timespec *now);

#define clock_gettime test_clock_gettime
#include "readers.c"
#undef clock_gettime
#include "check.h"

enum { THREADS = 4, JOBS = 256 };

static _Atomic int64_t now_ns = 1000000000, read_takes_ns;
static sem_t begun, may_end, woken;
static const uint8_t keys[JOBS][6];
static atomic_uint ended_reads;
static size_t puts_at_once[JOBS], rounds;
static vc_job jobs[JOBS];
static pthread_t reader_of[JOBS];
static vc_job_owner owners[2];
static vc_readers *readers;

static int test_clock_gettime(clockid_t clock, struct timespec *now) {
    (void)clock;
    *now = (struct timespec){now_ns / 1000000000, now_ns % 1000000000};
    return 0;
}

/* Wait for `count` of something. */
static void wait_for(sem_t *what, unsigned count) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    while (count--) CHECK(!sem_timedwait(what, &until));
}

static void post(sem_t *what, unsigned count) {
    while (count--) sem_post(what);
}

static vc_status test_read(vc_core *core, const uint8_t *key, size_t key_length,
                           const vc_lookup *at, bool is_cached, uint8_t *record_bytes,
                           vc_record *record) {
    (void)core, (void)is_cached, (void)record_bytes, (void)record;
    CHECK(key_length < at->size);
    reader_of[(key - keys[0]) / sizeof keys[0]] = pthread_self();
    sem_post(&begun);
    wait_for(&may_end, 1);
    now_ns += read_takes_ns;
    return VC_OK;
}

/* Make the puts up to one with the key of the first. */
static size_t test_group_commit(vc_core *core, vc_put *const *puts, size_t count) {
    size_t made = 0;
    (void)core;
    sem_post(&begun);
    wait_for(&may_end, 1);
    for (; made < count && !(made && puts[made]->key == puts[0]->key); made++)
        puts[made]->status = VC_OK;
    puts_at_once[rounds++] = made;
    return made;
}

static void test_end_read(vc_core *core) {
    (void)core;
    ended_reads++;
}

static void wake(void *context) {
    (void)context;
    sem_post(&woken);
}

static void add(unsigned number, unsigned owner, int64_t added_ns) {
    jobs[number] = (vc_job){
        .owner = &owners[owner],
        .at.size = 1000,
        .key = keys[number],
        .key_length = sizeof keys[number],
        .added_ns = added_ns,
    };
    vc_readers_add(readers, &jobs[number]);
}

static void add_many(unsigned count) {
    for (unsigned i = 0; i < count; i++) add(i, 0, now_ns);
}

static unsigned take(unsigned owner) {
    unsigned count = 0;
    for (vc_job *job = vc_job_owner_take(&owners[owner]); job; job = job->next)
        count += job->is_given_up || job->status == VC_OK;
    return count;
}

/* Let all reads end, and the threads fall asleep. */
static void finish(unsigned count) {
    post(&may_end, count);
    wait_for(&woken, count);
    vc_readers_end(readers, &owners[0]);
    CHECK(take(0) == count);
    for (bool is_idle = false; !is_idle; sched_yield()) {
        pthread_mutex_lock(&readers->mutex);
        is_idle = readers->sleeping == THREADS;
        pthread_mutex_unlock(&readers->mutex);
    }
    while (!sem_trywait(&begun)) continue;
}

/* While the disk is quick, one thread has enough with a few jobs; with many, all begin. */
static void check_quick_disk(void) {
    for (unsigned i = 0; i < 10; i++) {
        add(i, 0, now_ns);
        vc_readers_wake(readers);
    }
    finish(10);
    for (unsigned i = 1; i < 10; i++) CHECK(pthread_equal(reader_of[i], reader_of[0]));
    add_many(JOBS);
    vc_readers_wake(readers);
    wait_for(&begun, THREADS);
    finish(JOBS);
}

/* A job that has waited for too long gets a thread. */
static void check_patience(void) {
    add(0, 0, now_ns);
    vc_readers_wake(readers);
    wait_for(&begun, 1);
    add(1, 0, now_ns);
    now_ns += 6000000;
    vc_readers_wake(readers);
    wait_for(&begun, 1);
    finish(2);
}

/* While the disk is slow, each job has a thread, if there are enough. */
static void check_slow_disk(void) {
    read_takes_ns = 1000000;
    add_many(JOBS);
    vc_readers_wake(readers);
    finish(JOBS);
    add_many(THREADS);
    vc_readers_wake(readers);
    wait_for(&begun, THREADS);
    finish(THREADS);
    read_takes_ns = 0;
    add_many(JOBS);
    vc_readers_wake(readers);
    finish(JOBS);
    check_quick_disk();
}

/* The jobs of an owner that wait are handed back, and it is not woken for them. */
static void check_giving_up(void) {
    unsigned before = ended_reads;
    add(0, 0, 0);
    vc_readers_wake(readers);
    wait_for(&begun, 1);
    add(1, 0, 5);
    add(2, 1, 5);
    add(3, 0, 6);
    add(4, 0, 5);
    vc_readers_give_up(readers, &owners[0], 5);
    CHECK(take(0) == 2 && jobs[1].is_given_up && jobs[4].is_given_up);
    CHECK(readers->jobs.length == 2 && ended_reads == before + 2);
    CHECK(sem_trywait(&woken));
    post(&may_end, 3);
    wait_for(&woken, 3);
    for (unsigned i = 0; i < 2; i++) {
        vc_readers_end(readers, &owners[i]);
        CHECK(take(i) == 2 - i);
    }
    CHECK(ended_reads == before + 5);
}

/* Puts that come while others are synced are made together. */
static void check_puts(void) {
    static vc_put puts[4];
    for (unsigned i = 0; i < 4; i++) {
        puts[i].key = (const uint8_t *)"abcd" + (i == 3 ? 1 : i);
        jobs[i] = (vc_job){.owner = &owners[i % 2], .put = &puts[i], .status = VC_OK};
    }
    while (!sem_trywait(&begun)) continue;
    vc_readers_put(readers, &jobs[0]);
    wait_for(&begun, 1);
    for (unsigned i = 1; i < 4; i++) vc_readers_put(readers, &jobs[i]);
    CHECK(!readers->jobs.length && !take(0));
    post(&may_end, 3);
    for (unsigned i = 0; i < 2; i++) {
        vc_readers_end(readers, &owners[i]);
        CHECK(take(i) == 2);
    }
    CHECK(rounds == 3 && puts_at_once[0] == 1 && puts_at_once[1] == 2 && puts_at_once[2] == 1);
    wait_for(&begun, 2);
    wait_for(&woken, 4);
    CHECK(sem_trywait(&woken));
    for (unsigned i = 0; i < 4; i++) CHECK(puts[i].status == VC_OK);
}

int main(void) {
    static const vc_core_functions functions = {
        .read = test_read, .end_read = test_end_read, .group_commit = test_group_commit};
    sem_init(&begun, 0, 0);
    sem_init(&may_end, 0, 0);
    sem_init(&woken, 0, 0);
    for (unsigned i = 0; i < 2; i++) {
        owners[i] = (vc_job_owner){.wake = wake};
        vc_job_owner_start(&owners[i]);
    }
    readers = vc_readers_new(NULL, &functions, THREADS);
    CHECK(readers);
    finish(0);
    check_quick_disk();
    check_patience();
    check_slow_disk();
    check_giving_up();
    check_puts();
    vc_readers_free(readers);
    return 0;
}
