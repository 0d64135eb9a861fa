/* What memcache.c, mc_text.c and mc_binary.c share: a command, and what became of it. */
#ifndef VC_MC_PARTS_H
#define VC_MC_PARTS_H

#include <string.h>

#include "memcache.h"

enum {
    VC_MC_WORDS = 24,
    /* Of a reply without its value: a key in base64 and the numbers of a meta reply. */
    VC_MC_REPLY_BYTES = 768,
};

typedef enum { VC_MC_READ, VC_MC_WRITE, VC_MC_TOUCHING, VC_MC_REMOVE, VC_MC_NOTHING } vc_mc_action;

typedef enum { VC_MC_TEXT, VC_MC_META, VC_MC_BINARY } vc_mc_form;

/* A command that is whole and plain. All texts are parts of the input, or of the stream. */
typedef struct {
    vc_mc_name name;
    vc_mc_action action;
    size_t used;            /* bytes of the input */
    vc_text key, value;
    uint32_t flags;
    int64_t exptime;
    bool has_exptime;       /* of READ: the record is touched */
    bool wants_value;
    bool is_peek;           /* it is not counted as a read */
    vc_mc_name mode;        /* of WRITE: SET, ADD or REPLACE */
    uint64_t cas;           /* 0: none */
    /* The reply. */
    vc_mc_form form;
    bool is_quiet;          /* TEXT: nothing is answered; META: no success */
    bool has_cas;           /* of a value */
    bool is_last;           /* of the keys of a get */
    bool is_base64;         /* the key */
    bool wants_earlier_ttl;
    vc_text words[VC_MC_WORDS];     /* that a meta reply repeats */
    unsigned word_count;
    uint8_t opcode;
    uint8_t opaque[4];
    uint8_t decoded[VC_MC_KEY_BYTES];
} vc_mc_command;

/* What became of a command. */
typedef struct {
    vc_mc_result result;
    bool has_record;
    vc_record record;
    const uint8_t *value;   /* of the record; it may be in the room of the reply */
    int64_t ttl_ms;         /* -1: it does not expire */
    int64_t idle;           /* seconds; -1: unknown */
    bool has_won;           /* another client has the right to replace it */
} vc_mc_outcome;

/* No version has it: a command with this cas unique fails. */
#define VC_MC_NO_VERSION UINT64_MAX

/* Find the next command: NEXT if `command` is one, otherwise MORE or PASS. */
vc_mc_step vc_mc_parse_text(const vc_mc_config *config, vc_mc_stream *stream, const char *data,
                            size_t length, vc_mc_command *command);
vc_mc_step vc_mc_parse_binary(const vc_mc_config *config, vc_mc_stream *stream, const char *data,
                              size_t length, vc_mc_command *command);
/* Write a reply to the end of `out`, which has room for VC_MC_REPLY_BYTES and the value. */
void vc_mc_reply_text(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_mc_out *out);
void vc_mc_reply_meta(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_mc_out *out);
void vc_mc_reply_binary(const vc_mc_command *command, const vc_mc_outcome *outcome,
                        vc_mc_out *out);

static inline char *vc_mc_copy(char *to, const void *data, size_t length) {
    memcpy(to, data, length);
    return to + length;
}

#endif
