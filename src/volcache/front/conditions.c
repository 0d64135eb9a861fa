#define _GNU_SOURCE
#include "conditions.h"

#include <time.h>

enum { RANGE_DIGITS_MAX = 18 };

static const uint32_t CONDITIONS = 1u << VC_FIELD_IF_MATCH | 1u << VC_FIELD_IF_NONE_MATCH |
                                   1u << VC_FIELD_IF_MODIFIED_SINCE |
                                   1u << VC_FIELD_IF_UNMODIFIED_SINCE;

bool vc_has_condition(const vc_request *request) {
    return vc_request_has(request, VC_FIELD_IF_NONE_MATCH) ||
           vc_request_has(request, VC_FIELD_IF_MODIFIED_SINCE) ||
           vc_request_has(request, VC_FIELD_IF_MATCH) ||
           vc_request_has(request, VC_FIELD_IF_UNMODIFIED_SINCE);
}

/* --- Dates -------------------------------------------------------------------------------- */

int64_t vc_parse_date(vc_text text) {
    char given[VC_DATE_BYTES + 1] = "", again[VC_DATE_BYTES];
    struct tm parts = {0};
    if (text.length != VC_DATE_BYTES) return -1;
    memcpy(given, text.at, VC_DATE_BYTES);
    if (!strptime(given, "%a, %d %b %Y %H:%M:%S GMT", &parts)) return -1;
    int64_t second = timegm(&parts);
    /* strptime takes more than what is written here, and days that there are not. */
    if (second < 0) return -1;
    vc_put_date(again, second);
    return memcmp(given, again, VC_DATE_BYTES) ? -1 : second;
}

/* The date of a record: the end of its second, as `modified_of` says. */
static int64_t date_of(const vc_record *record) {
    return (int64_t)(record->stored_us / 1000000) + 1;
}

/* --- Entity tags -------------------------------------------------------------------------- */

/* Write the tag of a record with its quotes. */
static vc_text put_quoted_tag(char to[VC_TAG_BYTES + 2], const vc_record *record) {
    const char *end = vc_put_text(vc_put_tag(vc_put_text(to, "\""), record), "\"");
    return (vc_text){to, (size_t)(end - to)};
}

/* Whether a list of tags, or `*`, has the tag of a record; `record` may be NULL. */
static bool has_tag(vc_text list, const vc_record *record, bool weakly) {
    char room[VC_TAG_BYTES + 2];
    if (!record || vc_text_is(list, "*")) return record;
    vc_text tag = put_quoted_tag(room, record);
    const char *at = list.at, *end = list.at + list.length, *open, *close;
    while ((open = memchr(at, '"', (size_t)(end - at))) &&
           (close = memchr(open + 1, '"', (size_t)(end - open - 1)))) {
        bool is_weak = open - at >= 2 && !memcmp(open - 2, "W/", 2);
        vc_text one = {open, (size_t)(close + 1 - open)};
        if ((weakly || !is_weak) && vc_text_equals(one, tag)) return true;
        at = close + 1;
    }
    return false;
}

/* --- Conditions --------------------------------------------------------------------------- */

/* If-Match, and If-Unmodified-Since without it. */
static vc_verdict require_match(const vc_request *request, const vc_record *record) {
    const vc_text *values = request->values;
    if (vc_request_has(request, VC_FIELD_IF_MATCH))
        return has_tag(values[VC_FIELD_IF_MATCH], record, false) ? VC_TRUE : VC_FALSE_MATCH;
    if (!vc_request_has(request, VC_FIELD_IF_UNMODIFIED_SINCE) || !record) return VC_TRUE;
    int64_t date = vc_parse_date(values[VC_FIELD_IF_UNMODIFIED_SINCE]);
    if (date < 0) return VC_UNDECIDED;
    return date_of(record) > date ? VC_FALSE_UNMODIFIED_SINCE : VC_TRUE;
}

vc_verdict vc_is_unmodified(const vc_request *request, const vc_record *record, int64_t second) {
    if (vc_request_repeats(request, CONDITIONS)) return VC_UNDECIDED;
    vc_verdict verdict = require_match(request, record);
    if (verdict != VC_TRUE) return verdict;
    if (vc_request_has(request, VC_FIELD_IF_NONE_MATCH))
        return has_tag(request->values[VC_FIELD_IF_NONE_MATCH], record, true) ? VC_UNMODIFIED
                                                                              : VC_TRUE;
    if (!vc_request_has(request, VC_FIELD_IF_MODIFIED_SINCE)) return VC_TRUE;
    int64_t date = vc_parse_date(request->values[VC_FIELD_IF_MODIFIED_SINCE]);
    if (date < 0) return VC_UNDECIDED;
    return date_of(record) <= date && date <= second ? VC_UNMODIFIED : VC_TRUE;
}

vc_verdict vc_may_change(const vc_request *request, const vc_record *record) {
    if (vc_request_repeats(request, CONDITIONS)) return VC_UNDECIDED;
    vc_verdict verdict = require_match(request, record);
    if (verdict != VC_TRUE || !vc_request_has(request, VC_FIELD_IF_NONE_MATCH)) return verdict;
    return has_tag(request->values[VC_FIELD_IF_NONE_MATCH], record, true) ? VC_FALSE_NONE_MATCH
                                                                          : VC_TRUE;
}

/* --- Ranges ------------------------------------------------------------------------------- */

/* Read a number that may be absent. Returns false if it has too many digits. */
static bool range_number(const char **at, const char *end, uint64_t *number, bool *is_there) {
    const char *start = *at;
    bool is_large;
    *is_there = vc_read_digits(at, end, number, &is_large);
    return *at - start <= RANGE_DIGITS_MAX;
}

/* Whether If-Range is absent, or names the record by its tag or its date. */
static vc_extent if_range(const vc_request *request, const vc_record *record, int64_t second) {
    vc_text condition = request->values[VC_FIELD_IF_RANGE];
    char tag[VC_TAG_BYTES + 2];
    if (!condition.length) return VC_PART;
    if (condition.at[condition.length - 1] == '"')
        return vc_text_equals(condition, put_quoted_tag(tag, record)) ? VC_PART : VC_WHOLE;
    int64_t date = vc_parse_date(condition), modified = date_of(record);
    if (date < 0) return VC_RANGE_UNDECIDED;
    return date == modified && modified <= second ? VC_PART : VC_WHOLE;
}

vc_extent vc_requested_range(const vc_request *request, const vc_record *record, int64_t second,
                             vc_range *range) {
    vc_text text = request->values[VC_FIELD_RANGE];
    *range = (vc_range){0, record->length};
    if (!text.at) return VC_WHOLE;
    if (vc_request_repeats(request, 1u << VC_FIELD_RANGE | 1u << VC_FIELD_IF_RANGE) ||
        text.length < 6 || strncasecmp(text.at, "bytes=", 6))
        return VC_RANGE_UNDECIDED;
    const char *at = text.at + 6, *end = text.at + text.length;
    uint64_t first, last, length = record->length;
    bool has_first, has_last;
    if (!range_number(&at, end, &first, &has_first) || at == end || *at++ != '-' ||
        !range_number(&at, end, &last, &has_last) || at != end)
        return VC_RANGE_UNDECIDED;
    vc_extent extent = if_range(request, record, second);
    if (extent != VC_PART) return extent;
    if (!has_first) { /* The last bytes of the value. */
        if (!has_last || !last || !length) return VC_RANGE_UNDECIDED;
        first = last < length ? length - last : 0;
        last = length - 1;
    } else if (!has_last || last >= length) {
        if (has_last && last < first) return VC_RANGE_UNDECIDED;
        last = length - 1;
    }
    if (first >= length || last < first) return VC_RANGE_UNDECIDED;
    *range = (vc_range){first, last - first + 1};
    return VC_PART;
}
