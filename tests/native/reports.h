/* Takes what executors tell, as the thread of Python does. A program defines REPORTERS. */
#ifndef VC_REPORTS_H
#define VC_REPORTS_H

#include <stdatomic.h>

#include "check.h"
#include "news.h"

static vc_news news;
static vc_reporter reporters[REPORTERS];
static uint64_t events; /* that were taken */
static atomic_bool is_told;
static pthread_t news_thread;

static void take_events(void) {
    size_t length;
    for (unsigned i = 0; i < REPORTERS; i++) {
        const uint8_t *at = vc_events_take(&reporters[i].events, &length);
        for (const uint8_t *end = at + length; at < end; at += *(const uint32_t *)(const void *)at)
            events++;
    }
    vc_news_end(&news);
}

static void *take_news(void *context) {
    while (!is_told) {
        vc_news_wait(&news, 10000000);
        take_events();
    }
    return context;
}

static void start_reports(void) {
    vc_news_start(&news);
    for (unsigned i = 0; i < REPORTERS; i++) reporters[i].news = &news;
    CHECK(!pthread_create(&news_thread, NULL, take_news, NULL));
}

/* After the last executor has ended. */
static void end_reports(void) {
    is_told = true;
    CHECK(!pthread_join(news_thread, NULL));
    take_events();
}

#endif
