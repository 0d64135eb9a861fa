/* Conditions and ranges of RFC 9110, sections 13 and 14, as http/preconditions.py evaluates them.
 *
 * What clients usually send is decided here. All other forms are VC_UNDECIDED, and the application
 * decides: dates in another form than Thu, 01 Jan 1970 00:00:00 GMT, several fields of a name,
 * several ranges, and ranges that are to be ignored or have no bytes. */
#ifndef VC_CONDITIONS_H
#define VC_CONDITIONS_H

#include <stdbool.h>

#include "answer.h"
#include "request.h"

typedef enum {
    VC_TRUE,       /* the request is to be executed */
    VC_UNMODIFIED, /* a GET or HEAD: the client has the record already */
    VC_FALSE_MATCH,
    VC_FALSE_NONE_MATCH,
    VC_FALSE_UNMODIFIED_SINCE, /* this one fails */
    VC_UNDECIDED,
} vc_verdict;

/* Parse a date as `vc_put_date` writes it. Returns -1 for anything else. */
int64_t vc_parse_date(vc_text text);

/* Whether a request has a condition. */
bool vc_has_condition(const vc_request *request);
/* Evaluate the conditions of a GET or HEAD; `second` is that of the answer's Date. */
vc_verdict vc_is_unmodified(const vc_request *request, const vc_record *record, int64_t second);
/* Evaluate the conditions of a PUT or DELETE; `record` is NULL if the key is absent. */
vc_verdict vc_may_change(const vc_request *request, const vc_record *record);

typedef struct {
    uint64_t first, length;
} vc_range;

typedef enum { VC_WHOLE, VC_PART, VC_RANGE_UNDECIDED } vc_extent;

/* Find out which bytes of the value of a record a GET asks for. VC_PART: `range`, which is not
 * empty; otherwise that is all of them. */
vc_extent vc_requested_range(const vc_request *request, const vc_record *record, int64_t second,
                             vc_range *range);

#endif
