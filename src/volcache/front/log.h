/* The access log: a line for each request and command, made where it is answered. The lines are
 * kept until a thread takes them, which writes them to a file: no loop waits for the disk.
 *
 * A line has the format `main` of nginx with some fields more, or is a JSON object. What comes from
 * a client is escaped to ASCII that cannot end its field. What may be as long as a client likes is
 * cut, with "..." appended.
 *
 * Threads: any may add and take lines. */
#ifndef VC_LOG_H
#define VC_LOG_H

#include "record.h"
#include "request.h"

typedef struct vc_log vc_log;

/* Of texts, at == NULL: absent. */
typedef struct {
    const char *remote;
    const vc_request *request; /* NULL: it is a command */
    const char *command, *result;
    vc_text key; /* of a command */
    int status;
    uint64_t bytes; /* of the answer's body */
    int64_t took_ns;
    vc_text cache, position;
    const vc_record *record; /* in place of `position`; NULL: none */
} vc_log_line;

/* Return NULL without memory. Above `bytes_max`, lines are dropped. */
vc_log *vc_log_new(bool is_json, size_t bytes_max);
void vc_log_free(vc_log *log);
void vc_log_add(vc_log *log, const vc_log_line *line);
/* Return the lines since the last call, valid until the next one. `dropped`: lines since the
 * start. */
const char *vc_log_take(vc_log *log, size_t *length, uint64_t *dropped);

#endif
