#include "conditions.h"

#include <string.h>
#include <strings.h>

enum { RANGE_DIGITS_MAX = 18, YEAR_MIN = 1970 };

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

/* Return the number that `count` digits make, -1 if one of them is none. */
static int date_number(const char *at, int count) {
    int number = 0;
    for (int i = 0; i < count; i++) {
        if (at[i] < '0' || at[i] > '9') return -1;
        number = 10 * number + at[i] - '0';
    }
    return number;
}

/* Return which of some words of three letters this is, -1 for none. */
static int date_word(const char *at, const char *words, int count) {
    for (int i = 0; i < count; i++)
        if (!memcmp(at, words + 3 * i, 3)) return i;
    return -1;
}

/* Return the days from 1970-01-01 to the first of a month, which is 0 for January. */
static int64_t date_days(int year, int month) {
    static const int BEFORE[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
    int64_t past = year - 1;
    bool is_leap = year % 4 == 0 && (year % 100 || year % 400 == 0);
    return 365 * (past - 1969) + past / 4 - past / 100 + past / 400 - (1969 / 4 - 1969 / 100 + 1969 / 400) +
           BEFORE[month] + (is_leap && month > 1);
}

int64_t vc_parse_date(vc_text text) {
    const char *at = text.at;
    if (text.length != VC_DATE_BYTES || date_word(at, "MonTueWedThuFriSatSun", 7) < 0 ||
        memcmp(at + 3, ", ", 2) || at[7] != ' ' || at[11] != ' ' || at[16] != ' ' ||
        at[19] != ':' || at[22] != ':' || memcmp(at + 25, " GMT", 4))
        return -1;
    int month = date_word(at + 8, "JanFebMarAprMayJunJulAugSepOctNovDec", 12);
    int day = date_number(at + 5, 2), year = date_number(at + 12, 4);
    int hour = date_number(at + 17, 2), minute = date_number(at + 20, 2);
    int second = date_number(at + 23, 2);
    if (month < 0 || day < 1 || year < YEAR_MIN || hour < 0 || hour > 23 || minute < 0 ||
        minute > 59 || second < 0 || second > 59)
        return -1;
    int64_t first = date_days(year, month);
    int64_t next = month < 11 ? date_days(year, month + 1) : date_days(year + 1, 0);
    if (day > next - first) return -1;
    return (first + day - 1) * 86400 + hour * 3600 + minute * 60 + second;
}

/* The date of a record: the end of its second, as `modified_of` says. */
static int64_t date_of(const vc_record *record) {
    return (int64_t)(record->stored_us / 1000000) + 1;
}

/* --- Entity tags -------------------------------------------------------------------------- */

static bool conditions_is_text(vc_text text, const char *other, size_t length) {
    return text.length == length && !memcmp(text.at, other, length);
}

/* Write the tag of a record with its quotes; returns its length. */
static size_t put_quoted_tag(char to[VC_TAG_BYTES + 2], const vc_record *record) {
    char *end = to;
    *end++ = '"';
    end = vc_put_tag(end, record);
    *end++ = '"';
    return (size_t)(end - to);
}

/* Whether a list of tags, or `*`, has the tag of a record; `record` may be NULL. */
static bool has_tag(vc_text list, const vc_record *record, bool weakly) {
    char tag[VC_TAG_BYTES + 2];
    if (!record || conditions_is_text(list, "*", 1)) return record;
    size_t length = put_quoted_tag(tag, record);
    const char *at = list.at, *end = list.at + list.length, *open, *close;
    while ((open = memchr(at, '"', (size_t)(end - at))) &&
           (close = memchr(open + 1, '"', (size_t)(end - open - 1)))) {
        bool is_weak = open - at >= 2 && !memcmp(open - 2, "W/", 2);
        if ((weakly || !is_weak) &&
            conditions_is_text((vc_text){open, (size_t)(close + 1 - open)}, tag, length))
            return true;
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

/* Read the digits at `*at`, which is moved behind them. Returns false if there are too many. */
static bool range_number(const char **at, const char *end, uint64_t *number, bool *is_there) {
    const char *start = *at;
    *number = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; ++*at)
        if (*at - start < RANGE_DIGITS_MAX) *number = 10 * *number + (uint64_t)(**at - '0');
    *is_there = *at > start;
    return *at - start <= RANGE_DIGITS_MAX;
}

/* Whether If-Range is absent, or names the record by its tag or its date. */
static vc_extent if_range(const vc_request *request, const vc_record *record, int64_t second) {
    vc_text condition = request->values[VC_FIELD_IF_RANGE];
    char tag[VC_TAG_BYTES + 2];
    if (!condition.length) return VC_PART;
    if (condition.at[condition.length - 1] == '"')
        return conditions_is_text(condition, tag, put_quoted_tag(tag, record)) ? VC_PART : VC_WHOLE;
    int64_t date = vc_parse_date(condition), modified = date_of(record);
    if (date < 0) return VC_RANGE_UNDECIDED;
    return date == modified && modified <= second ? VC_PART : VC_WHOLE;
}

vc_extent vc_requested_range(const vc_request *request, const vc_record *record, int64_t second,
                             vc_range *range) {
    vc_text text = request->values[VC_FIELD_RANGE];
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
