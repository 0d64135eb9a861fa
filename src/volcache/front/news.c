#include "news.h"

#include <string.h>
#include <time.h>

#include "clock.h"

static const int64_t NEWS_SECOND_NS = 1000000000;
static const int64_t NEWS_PATIENCE_NS = 1000000000;

static bool news_wait_until(vc_news *news, pthread_cond_t *condition, int64_t until_ns) {
    struct timespec until = {until_ns / NEWS_SECOND_NS, until_ns % NEWS_SECOND_NS};
    return !pthread_cond_timedwait(condition, &news->mutex, &until);
}

void vc_news_start(vc_news *news) {
    pthread_condattr_t by_monotonic_clock;
    memset(news, 0, sizeof(*news));
    pthread_mutex_init(&news->mutex, NULL);
    pthread_condattr_init(&by_monotonic_clock);
    pthread_condattr_setclock(&by_monotonic_clock, CLOCK_MONOTONIC);
    pthread_cond_init(&news->told, &by_monotonic_clock);
    pthread_cond_init(&news->taken, &by_monotonic_clock);
    pthread_condattr_destroy(&by_monotonic_clock);
}

void vc_news_wait(vc_news *news, int64_t timeout_ns) {
    int64_t until_ns = vc_monotonic_ns() + timeout_ns;
    pthread_mutex_lock(&news->mutex);
    while (!news->has_news && news_wait_until(news, &news->told, until_ns)) {}
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
    while (news->times_taken == times && news_wait_until(news, &news->taken, until_ns)) {}
    pthread_mutex_unlock(&news->mutex);
}

void *vc_report_event(vc_reporter *reporter, size_t *length) {
    void *event = vc_events_add(&reporter->events, length);
    if (event) return event;
    news_wait_for_room(reporter->news);
    return vc_events_add(&reporter->events, length);
}

void vc_report_hot(vc_reporter *reporter, const uint8_t *key, size_t length,
                   const vc_record *record) {
    size_t room = sizeof(vc_hot_event) + length;
    vc_hot_event *event = vc_events_add(&reporter->hot, &room);
    if (!event) return; /* It gets hot again. */
    event->length = (uint32_t)room;
    event->key_length = (uint32_t)length;
    event->expires_ms = record->expires_ms;
    memcpy(event->key, key, length);
    vc_events_end(&reporter->hot);
    vc_news_tell(reporter->news);
}

void vc_report_due(vc_reporter *reporter) {
    vc_news *news = reporter->news;
    if (!atomic_exchange(&news->has_deferred, true)) vc_news_tell(news);
}
