#define _GNU_SOURCE
#include "transfer.h"

#include <stdlib.h>
#include <unistd.h>

#include "crc32c.h"

enum { TRANSFER_PIECE_BYTES = 1 << 18 };

struct vc_transfer {
    vc_lookup at;
    uint64_t offset, left; /* of the next piece, from the beginning of the record; of all */
    char *piece;
    size_t length;
};

/* Read the head of a record, and check it. */
static vc_status transfer_read_head(const vc_job *job, vc_core *core,
                                    const vc_core_functions *functions, vc_record *record) {
    uint8_t head[VC_HEAD_BYTES_MAX(VC_KEY_BYTES_MAX)];
    vc_lookup at = job->at;
    size_t most = VC_HEAD_BYTES_MAX(job->key_length);
    if (at.size > most) at.size = most;
    record->key = NULL;
    vc_status status = functions->read(core, job->key, job->key_length, &at, false, head, record);
    /* Only the value is short, if the head was decoded. */
    return status == VC_SHORT && record->key ? VC_OK : status;
}

/* Returns false if the disk refuses, or has fewer bytes. */
static bool transfer_read(int fd, char *to, size_t length, uint64_t offset) {
    while (length) {
        ssize_t got = pread(fd, to, length, (off_t)offset);
        if (got <= 0) return false;
        to += got;
        length -= (size_t)got;
        offset += (uint64_t)got;
    }
    return true;
}

void vc_transfer_verify(vc_job *job, vc_core *core, const vc_core_functions *functions) {
    vc_record record, again;
    uint32_t checksum = 0;
    char *piece = malloc(TRANSFER_PIECE_BYTES);
    job->status = piece ? transfer_read_head(job, core, functions, &record) : VC_NO_MEMORY;
    for (uint64_t at = 0; job->status == VC_OK && at < record.length; at += TRANSFER_PIECE_BYTES) {
        size_t length = record.length - at < TRANSFER_PIECE_BYTES ? (size_t)(record.length - at)
                                                                  : TRANSFER_PIECE_BYTES;
        if (!transfer_read(job->at.fd, piece, length, job->at.offset + record.prefix + at))
            job->status = VC_IO_ERROR;
        checksum = vc_crc32c(checksum, piece, length);
    }
    free(piece);
    if (job->status == VC_OK && checksum != record.checksum) job->status = VC_DAMAGED;
    if (job->status == VC_OK) job->status = transfer_read_head(job, core, functions, &again);
}

static void transfer_read_piece(vc_job *job, vc_core *core, const vc_core_functions *functions) {
    vc_connection *c = vc_connection_of(job);
    struct vc_transfer *t = c->transfer;
    vc_record record;
    job->status = VC_IO_ERROR;
    if (transfer_read(t->at.fd, t->piece, t->length, t->at.offset + t->offset))
        job->status = transfer_read_head(job, core, functions, &record);
}

bool vc_transfer_open(vc_connection *c) {
    struct vc_transfer *t = calloc(1, sizeof(struct vc_transfer));
    if (!t) return false;
    *t = (struct vc_transfer){
        .at = c->stream->found,
        .offset = c->stream->value_offset,
        .left = c->stream->value_length,
    };
    c->transfer = t;
    return true;
}

void vc_transfer_free(vc_connection *c) {
    const vc_server_config *config = &c->home->server->config;
    config->functions->end_read(config->core);
    free(c->transfer->piece);
    free(c->transfer);
    c->transfer = NULL;
    c->extra = 0;
}

void vc_transfer_go_on(vc_connection *c) {
    struct vc_transfer *t = c->transfer;
    if (!t->left) {
        vc_transfer_free(c);
        vc_connection_answered(c);
        return;
    }
    t->length = t->left < TRANSFER_PIECE_BYTES ? (size_t)t->left : TRANSFER_PIECE_BYTES;
    t->piece = malloc(t->length);
    if (!t->piece) {
        vc_connection_close(c);
        return;
    }
    c->extra = t->length;
    vc_connection_work(c, transfer_read_piece, &t->at);
}

void vc_transfer_send(vc_connection *c) {
    struct vc_transfer *t = c->transfer;
    if (c->job.status != VC_OK) {
        vc_connection_close(c);
        return;
    }
    t->offset += t->length;
    t->left -= t->length;
    c->unsent = t->piece;
    c->unsent_length = t->length;
    c->sent = 0;
    t->piece = NULL;
    c->extra = 0;
    vc_connection_enter(c, VC_SENDING);
    vc_connection_queue(c);
}
