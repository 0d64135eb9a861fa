#include "news.h"

#include <string.h>
#include <time.h>

#include "clock.h"

static const int64_t NEWS_SECOND_NS = 1000000000;
/* Then what there is no room for is lost. */
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

void vc_report_full(void *reporter) {
    vc_news *news = ((vc_reporter *)reporter)->news;
    int64_t until_ns = vc_monotonic_ns() + NEWS_PATIENCE_NS;
    pthread_mutex_lock(&news->mutex);
    uint64_t times = news->times_taken;
    news->is_full = news->has_news = true;
    pthread_cond_signal(&news->told);
    while (news->times_taken == times && news_wait_until(news, &news->taken, until_ns)) {}
    pthread_mutex_unlock(&news->mutex);
}

static void news_drop(void *context) { (void)context; }

void vc_report_hot(void *reporter, const uint8_t *key, size_t length, const vc_record *record) {
    vc_reporter *from = reporter;
    size_t room = sizeof(vc_hot_event) + length;
    /* It gets hot again. */
    vc_hot_event *event = vc_events_add(&from->hot, &room, news_drop, NULL);
    if (!event) return;
    event->length = (uint32_t)room;
    event->key_length = (uint32_t)length;
    event->expires_ms = record->expires_ms;
    memcpy(event->key, key, length);
    vc_events_end(&from->hot);
    vc_news_tell(from->news);
}

void vc_report_due(void *reporter) {
    vc_news *news = ((vc_reporter *)reporter)->news;
    if (!atomic_exchange(&news->has_deferred, true)) vc_news_tell(news);
}
