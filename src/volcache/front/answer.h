/* The headers of the answers about stored values, byte for byte as `ValueHeaders` and
 * `stored_response` of http/responses.py make them. */
#ifndef VC_ANSWER_H
#define VC_ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "record.h"
#include "text.h"

enum {
    VC_HEADERS_BYTES = 2048, /* VC_TYPES_BYTES_MAX of them are stored */
    VC_DATE_BYTES = 29,
};
/* The end of the year 9999. */
#define VC_SECOND_MAX INT64_C(253402300799)

/* A second, and its text for the header Date. */
typedef struct {
    int64_t second;  /* since the epoch */
    int64_t ends_ns; /* by the monotonic clock */
    char text[VC_DATE_BYTES];
} vc_date;

enum { VC_SUFFIX_BYTES = 16, VC_TYPE_BYTES = 64 }; /* with zeros behind them */

/* Content types by the suffix of a key, with its dot and in lower case; in ascending order. */
typedef struct {
    char suffix[VC_SUFFIX_BYTES], type[VC_TYPE_BYTES];
} vc_type;
typedef struct {
    const vc_type *rows;
    size_t count;
} vc_types;

/* Return the type for the suffix of a key, in any case: before its first question mark, where a
 * query may begin, or at its end. */
const char *vc_types_guess(const vc_types *types, const uint8_t *key, size_t length);

/* Write an HTTP date; `second` is 0 to VC_SECOND_MAX. */
char *vc_put_date(char *to, int64_t second);

enum { VC_TAG_BYTES = 25 };
/* Write the entity tag of a record, without its quotes: at most VC_TAG_BYTES. */
char *vc_put_tag(char *to, const vc_record *record);

/* Write Content-Length and all that follows it, without Date and without the last line end.
 *   source        "DISK" or "MEMC";
 *   length        of the body: of the value, or of a part of it;
 *   remaining_ms  how long the record still lives, if it expires. */
char *vc_put_headers_from(char *to, const char *source, const vc_record *record, uint64_t length,
                          const vc_types *guess, int64_t second, int64_t remaining_ms);
/* The same for a 304. */
char *vc_put_unmodified_headers(char *to, const vc_record *record, int64_t second,
                                int64_t remaining_ms);
/* The same for a PUT that stored a record. */
char *vc_put_stored_headers(char *to, const vc_record *record);

#endif
