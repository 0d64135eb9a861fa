#define _GNU_SOURCE
#include "local.h"

#include <string.h>
#include <sys/socket.h>

enum {
    LOCAL_PARTS = 3,    /* of a reply: its head, the headers, the value */
    LOCAL_READS = 1024, /* of a request, at most */
};

typedef struct {
    vc_stream base;
    uint64_t number; /* from 1 on; 0: it has not asked for anything yet */
    bool has_held;
} local_peer;

/* A request that is whole. */
typedef struct {
    vc_local *local;
    const vc_local_request *head;
    vc_wanted wanted;
    const uint8_t *types, *value;
    vc_out *out;
} local_run;

/* A descriptor that comes with a reply. */
typedef union {
    struct cmsghdr head;
    char room[CMSG_SPACE(sizeof(int))];
} local_rights;

/* --- Replies ---------------------------------------------------------------------------- */

/* Reply with a record, whose headers are at `types` and whose value is at `value`, both within the
 * room of the reply behind its head. */
static vc_step local_reply(const local_run *run, vc_local_status status, const vc_record *record,
                           const uint8_t *value, size_t sent) {
    vc_out *out = run->out;
    char *at = out->at + out->used;
    vc_local_reply reply = {.status = (uint8_t)status, .sent = (uint32_t)sent};
    if (record) {
        reply.flags = record->flags;
        reply.length = record->length;
        reply.checksum = record->checksum;
        reply.volume = record->volume;
        reply.type_length = record->type_length;
        reply.encoding_length = record->encoding_length;
        reply.cache_length = record->cache_length;
        reply.stored_us = record->stored_us;
        reply.expires_ms = record->expires_ms;
        reply.offset = record->offset;
        reply.size = record->size;
    }
    memcpy(at, &reply, sizeof(reply));
    vc_out_add(out, at, sizeof(reply));
    if (record && vc_record_types(record))
        vc_out_add(out, (const char *)record->type, (size_t)vc_record_types(record));
    if (sent) vc_out_add(out, (const char *)value, sent);
    return VC_STEP_NEXT;
}

/* --- Requests --------------------------------------------------------------------------- */

/* Reply with the record of a key, or with its header only. */
static vc_step local_read(const local_run *run) {
    const vc_executor *by = &run->local->by;
    size_t used = run->out->used;
    uint8_t *bytes = (uint8_t *)run->out->at + used + sizeof(vc_local_reply);
    size_t room = run->out->room - used - sizeof(vc_local_reply);
    bool is_head = run->head->operation == VC_LOCAL_STAT;
    vc_status status = VC_COLD;
    vc_lookup at;
    vc_record record;
    if (!vc_find_record(&run->wanted, run->head->operation == VC_LOCAL_GET, room, &at))
        return vc_find_absent(&run->wanted, is_head)
                   ? local_reply(run, VC_LOCAL_NONE, NULL, NULL, 0)
                   : VC_STEP_CALL;
    if (is_head || at.size <= room)
        status = vc_read_record(&run->wanted, &at, is_head, false, bytes, &record);
    by->functions->end_read(by->core);
    if (status != VC_OK) return used ? VC_STEP_FLUSH : VC_STEP_CALL;
    if (record.expires_ms && (int64_t)record.expires_ms <= vc_now_ms(by))
        return local_reply(run, VC_LOCAL_NONE, NULL, NULL, 0);
    return local_reply(run, VC_LOCAL_DONE, &record, bytes + record.prefix,
                       is_head ? 0 : record.length);
}

static vc_step local_change(const local_run *run) {
    vc_executor *by = &run->local->by;
    const vc_local_request *head = run->head;
    bool is_done, is_deletion = head->operation == VC_LOCAL_DELETE;
    vc_condition condition = {(vc_if)head->condition, head->if_stored_us, head->if_expires_ms};
    vc_put put = {
        .record =
            {
                .key_length = head->key_length,
                .type_length = head->type_length,
                .encoding_length = head->encoding_length,
                .cache_length = head->cache_length,
                .length = head->value_length,
                .stored_us = head->stored_us,
                .expires_ms = head->expires_ms,
                .flags = head->flags,
                .kind = is_deletion,
            },
        .key = run->wanted.key,
        .type = run->types,
        .encoding = run->types + head->type_length,
        .cache = run->types + head->type_length + head->encoding_length,
        .value = run->value,
    };
    if (head->condition > VC_IF_OLDER || head->expires_ms >= VC_TIME_END) return VC_STEP_CALL;
    /* Who has the lock never sees a change without the invalidation of the copies. */
    bool is_locked = by->copies;
    if (is_locked && !vc_acquire_soon(by)) return VC_STEP_CALL;
    vc_status status = by->functions->change(by->core, &put, &condition, (uint64_t)vc_now_ms(by),
                                             false, &is_done);
    if (status == VC_OK) vc_end_change(&run->wanted, &put);
    if (is_locked) by->functions->release(by->core);
    if (status != VC_OK) return VC_STEP_CALL;
    if (is_deletion || !is_done)
        return local_reply(run, is_done ? VC_LOCAL_DONE : VC_LOCAL_NONE, NULL, NULL, 0);
    /* The client has the headers. */
    put.record.type_length = put.record.encoding_length = put.record.cache_length = 0;
    return local_reply(run, VC_LOCAL_DONE, &put.record, NULL, 0);
}

static vc_step local_count(const local_run *run) {
    uint64_t reads[LOCAL_READS];
    size_t length = run->head->value_length;
    if (length > sizeof(reads)) length = sizeof(reads);
    memcpy(reads, run->value, length);
    const vc_executor *by = &run->local->by;
    by->functions->count_reads(by->core, reads, length / sizeof(*reads));
    return local_reply(run, VC_LOCAL_DONE, NULL, NULL, 0);
}

/* Reply at once: a descriptor cannot wait for its turn. */
static vc_step local_share(const local_run *run, int fd) {
    local_rights rights = {.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    vc_local_reply reply = {.status = VC_LOCAL_DONE};
    struct iovec part = {&reply, sizeof(reply)};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &rights,
                             .msg_controllen = sizeof(rights)};
    if (run->out->used) return VC_STEP_FLUSH;
    int shared = run->local->by.functions->share(run->local->by.core);
    if (shared < 0) return local_reply(run, VC_LOCAL_NONE, NULL, NULL, 0);
    memcpy(CMSG_DATA(&rights.head), &shared, sizeof(int));
    if (sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof(reply)) return VC_STEP_NEXT;
    return local_reply(run, VC_LOCAL_NONE, NULL, NULL, 0);
}

/* Find the request at the beginning of the data. Returns false if it is not whole. */
static bool local_parse(vc_stream *stream, const char *data, size_t length, size_t *total,
                        vc_local_request *head) {
    size_t most = 2 * length + sizeof(*head);
    stream->at = length ? VC_AT_BODY : VC_AT_IDLE;
    *total = sizeof(*head);
    if (length >= sizeof(*head)) {
        memcpy(head, data, sizeof(*head));
        *total += (size_t)head->key_length + head->type_length + head->encoding_length +
                  head->cache_length + head->value_length;
    }
    /* Memory grows with what has arrived. */
    stream->needed = *total < most ? *total : most;
    return length >= *total;
}

static vc_step local_execute(void *executor, vc_stream *stream, char *data, size_t length,
                             size_t *used, vc_out *out) {
    vc_local *local = executor;
    local_peer *peer = (local_peer *)stream;
    vc_local_request head;
    size_t total;
    if (!local_parse(stream, data, length, &total, &head)) return VC_STEP_MORE;
    if (out->room - out->used < sizeof(vc_local_reply) + VC_HEAD_BYTES_MAX(head.key_length) ||
        out->count + LOCAL_PARTS > VC_OUT_PARTS)
        return VC_STEP_FLUSH;
    if (!peer->number) peer->number = ++local->guests;
    if (head.operation == VC_LOCAL_HOLD) peer->has_held = true;
    const uint8_t *key = (const uint8_t *)data + sizeof(head), *types = key + head.key_length;
    const uint8_t *value = types + head.type_length + head.encoding_length + head.cache_length;
    vc_wanted wanted = {&local->by, stream, key, head.key_length};
    local_run run = {local, &head, wanted, types, value, out};
    vc_step step = VC_STEP_CALL;
    if (head.operation == VC_LOCAL_READS) step = local_count(&run);
    else if (head.operation == VC_LOCAL_SHARE) step = local_share(&run, stream->fd);
    else if (!head.operation || !head.key_length) step = VC_STEP_CALL;
    else if (head.operation <= VC_LOCAL_STAT) step = local_read(&run);
    else if (head.operation <= VC_LOCAL_DELETE) step = local_change(&run);
    if (step == VC_STEP_NEXT) *used = total;
    return step;
}

static bool local_call(void *caller, vc_stream *stream, const char *data, size_t length,
                       size_t *used, vc_reply *reply) {
    vc_local *local = caller;
    vc_local_request head;
    /* It is whole. */
    (void)local_parse(stream, data, length, used, &head);
    return local->answer(local->context, ((local_peer *)stream)->number, data, *used, reply);
}

static void local_refuse(void *executor, vc_stream *stream, vc_refusal why, vc_out *out) {
    local_run run = {.local = executor, .out = out};
    (void)stream;
    if (why == VC_REFUSED_END) (void)local_reply(&run, VC_LOCAL_GONE, NULL, NULL, 0);
}

static void local_end(void *executor, vc_stream *stream) {
    const vc_local *local = executor;
    const local_peer *peer = (const local_peer *)stream;
    if (peer->has_held) local->gone(local->context, peer->number);
}

const vc_protocol vc_local_protocol = {
    .stream_size = sizeof(local_peer),
    .first_bytes = SIZE_MAX,
    .tells_end = true,
    .execute = local_execute,
    .call = local_call,
    .refuse = local_refuse,
    .end = local_end,
};

/* --- Guests ----------------------------------------------------------------------------- */

bool vc_local_send(int fd, struct iovec *parts, size_t count) {
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    while (message.msg_iovlen) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent < 0) return false;
        for (; message.msg_iovlen; message.msg_iov++, message.msg_iovlen--) {
            struct iovec *part = message.msg_iov;
            size_t done = (size_t)sent < part->iov_len ? (size_t)sent : part->iov_len;
            part->iov_base = (char *)part->iov_base + done;
            part->iov_len -= done;
            sent -= (ssize_t)done;
            if (part->iov_len) break;
        }
    }
    return true;
}

ssize_t vc_local_receive(int fd, void *to, size_t room, int *passed) {
    local_rights rights;
    struct iovec part = {to, room};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &rights,
                             .msg_controllen = sizeof(rights)};
    ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
    const struct cmsghdr *head = got > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (head && head->cmsg_type == SCM_RIGHTS) memcpy(passed, CMSG_DATA(head), sizeof(int));
    return got;
}
