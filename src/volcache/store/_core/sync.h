/* Mutexes whose use `make lint` checks, with VC_CHECK_MUTEXES: clang reports a field that is used
 * without the mutex that guards it. Compilers see nothing of this: clang before 20 cannot parse it. */
#ifndef VC_SYNC_H
#define VC_SYNC_H

#include <pthread.h>
#include <time.h>

#ifdef VC_CHECK_MUTEXES
#define VC_CHECK(attribute) __attribute__((attribute))
typedef pthread_mutex_t vc_mutex VC_CHECK(capability("mutex"));
int pthread_mutex_lock(vc_mutex *mutex) VC_CHECK(acquire_capability(*mutex));
int pthread_mutex_trylock(vc_mutex *mutex) VC_CHECK(try_acquire_capability(0, *mutex));
int pthread_mutex_clocklock(vc_mutex *mutex, clockid_t clock, const struct timespec *until)
    VC_CHECK(try_acquire_capability(0, *mutex));
int pthread_mutex_unlock(vc_mutex *mutex) VC_CHECK(release_capability(*mutex));
#else
#define VC_CHECK(attribute)
typedef pthread_mutex_t vc_mutex;
#endif

/* A field that is read and written with this mutex. */
#define VC_GUARDED_BY(mutex) VC_CHECK(guarded_by(mutex))
/* A function that is called with it; that acquires it; that releases it. */
#define VC_REQUIRES(mutex) VC_CHECK(requires_capability(mutex))
#define VC_ACQUIRES(mutex) VC_CHECK(acquire_capability(mutex))
#define VC_RELEASES(mutex) VC_CHECK(release_capability(mutex))
/* A function that has the only reference, or uses what does not change. */
#define VC_UNCHECKED VC_CHECK(no_thread_safety_analysis)

#endif
