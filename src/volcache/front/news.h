/* What the loops tell the thread of Python that works for them: that there are events, that a key
 * is hot, that something is due after a change. No loop waits for that thread, unless there is no
 * room for events. */
#ifndef VC_NEWS_H
#define VC_NEWS_H

#include <stdatomic.h>

#include "events.h"
#include "record.h"

/* A key that is to be promoted. */
typedef struct {
    vc_event_sizes sizes;
    uint64_t expires_ms;
} vc_hot_event;

typedef struct {
    pthread_mutex_t mutex;
    pthread_cond_t told, taken;
    bool has_news;
    uint64_t times_taken;
    atomic_bool has_deferred, is_full;
} vc_news;

/* Of one executor; zero at first, except `news`. */
typedef struct {
    vc_news *news;
    vc_events events; /* of its protocol */
    vc_events hot;
} vc_reporter;

void vc_news_start(vc_news *news);
/* Wait until there are some, at most for a time. */
void vc_news_wait(vc_news *news, int64_t timeout_ns);
void vc_news_tell(vc_news *news);
/* The events were taken. */
void vc_news_end(vc_news *news);
/* Whether something is due, or a loop waits until its events are taken; from then on nothing is. */
bool vc_news_take_due(vc_news *news);
bool vc_news_take_full(vc_news *news);

/* As `vc_events_add`, for an event of a protocol. Without room, wait until some were taken, for a
 * second at most: then it is lost. */
void vc_report_event(vc_reporter *reporter, vc_event_sizes *event, size_t size, const void *key,
                     size_t key_length);
/* A key is hot and is to be promoted. */
void vc_report_hot(vc_reporter *reporter, const uint8_t *key, size_t length,
                   const vc_record *record);
/* What is due after a change is to be done, so that the next one is plain. */
void vc_report_due(vc_reporter *reporter);

#endif
