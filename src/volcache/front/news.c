#include "news.h"

#include <string.h>

#include "clock.h"
#include "common.h"

static const int64_t NEWS_PATIENCE_NS = 1000000000;

void vc_news_start(vc_news *news) {
    memset(news, 0, sizeof(*news));
    pthread_mutex_init(&news->mutex, NULL);
    vc_condition_start(&news->told);
    vc_condition_start(&news->taken);
}

void vc_news_wait(vc_news *news, int64_t timeout_ns) {
    int64_t until_ns = vc_monotonic_ns() + timeout_ns;
    pthread_mutex_lock(&news->mutex);
    while (!news->has_news && vc_condition_wait(&news->told, &news->mutex, until_ns)) {}
    news->has_news = false;
    pthread_mutex_unlock(&news->mutex);
}

void vc_news_tell(vc_news *news) {
    pthread_mutex_lock(&news->mutex);
    news->has_news = true;
    pthread_cond_signal(&news->told);
    pthread_mutex_unlock(&news->mutex);
}

void vc_news_end(vc_news *news) {
    pthread_mutex_lock(&news->mutex);
    news->times_taken++;
    pthread_cond_broadcast(&news->taken);
    pthread_mutex_unlock(&news->mutex);
}

bool vc_news_take_due(vc_news *news) { return atomic_exchange(&news->has_deferred, false); }

bool vc_news_take_full(vc_news *news) { return atomic_exchange(&news->is_full, false); }

/* Wait until events were taken. */
static void news_wait_for_room(vc_news *news) {
    int64_t until_ns = vc_monotonic_ns() + NEWS_PATIENCE_NS;
    pthread_mutex_lock(&news->mutex);
    uint64_t times = news->times_taken;
    news->is_full = news->has_news = true;
    pthread_cond_signal(&news->told);
    while (news->times_taken == times && vc_condition_wait(&news->taken, &news->mutex, until_ns)) {}
    pthread_mutex_unlock(&news->mutex);
}

void vc_report_event(vc_reporter *reporter, vc_event_sizes *event, size_t size, const void *key,
                     size_t key_length) {
    if (vc_events_add(&reporter->events, event, size, key, key_length)) return;
    news_wait_for_room(reporter->news);
    (void)vc_events_add(&reporter->events, event, size, key, key_length);
}

void vc_report_hot(vc_reporter *reporter, const uint8_t *key, size_t length,
                   const vc_record *record) {
    vc_hot_event event = {.expires_ms = record->expires_ms};
    /* Without room, it gets hot again. */
    if (vc_events_add(&reporter->hot, &event.sizes, sizeof(event), key, length))
        vc_news_tell(reporter->news);
}

void vc_report_due(vc_reporter *reporter) {
    vc_news *news = reporter->news;
    if (!atomic_exchange(&news->has_deferred, true)) vc_news_tell(news);
}
