/* What the files of the memcached protocol share: a command, and what became of it. */
#ifndef VC_MC_PARTS_H
#define VC_MC_PARTS_H

#include "memcache.h"

enum {
    VC_MC_WORDS = 24, /* of a line; memcached reads no more */
    /* Of a reply without its value: a key in base64 and the numbers of a meta reply, or the text
     * of an error. */
    VC_MC_REPLY_BYTES = 768,
    VC_MC_TEXT_BYTES_MAX = 500, /* of an error */
    VC_MC_REASON_BYTES = 160,
};

/* No version has it: a command with this cas unique fails. */
#define VC_MC_NO_VERSION UINT64_MAX
#define VC_MC_NONE ((vc_text){"", 0})
#define VC_MC_BAD_FORMAT "CLIENT_ERROR bad command line format"
#define VC_MC_BAD_CHUNK "CLIENT_ERROR bad data chunk"

typedef enum {
    VC_MC_READ,
    VC_MC_WRITE,
    VC_MC_COUNT,
    VC_MC_TOUCHING,
    VC_MC_REMOVE,
    VC_MC_ANSWERING, /* its reply is known: errors, too */
    VC_MC_FLUSHING,
    VC_MC_REPORT,
    VC_MC_LISTING,
    VC_MC_LOGIN,
} vc_mc_action;

typedef enum { VC_MC_TEXT, VC_MC_META, VC_MC_BINARY } vc_mc_form;

/* A command that is whole. All texts are parts of the input, or of the command. */
typedef struct {
    vc_mc_name name;
    vc_mc_action action;
    size_t used;        /* bytes of the input; of MORE: those that are not needed again */
    uint64_t skipped;   /* bytes after these that are part of no command */
    bool skips_line;    /* likewise, up to the end of the line */
    vc_text key, value; /* value: or what statistics are about, or a token */
    uint32_t flags;
    int64_t exptime;
    bool has_exptime; /* of READ: the record is touched; of COUNT: it is set */
    bool creates;     /* of READ, COUNT, append and prepend: if there is no value */
    int64_t initial_exptime;
    bool is_peek;         /* it is not counted as a read */
    bool has_recache;     /* of READ: wins if the record expires within `recache` */
    bool is_recache_late; /* it counts from `exptime` */
    int64_t recache;
    vc_mc_name mode;   /* of WRITE: SET, ADD, REPLACE, APPEND or PREPEND */
    bool is_too_large; /* of WRITE: the value is skipped */
    uint64_t cas;      /* 0: none */
    bool is_decrement; /* of COUNT */
    uint64_t delta, initial;
    /* The reply. */
    vc_mc_form form;
    const char *answer; /* of ANSWERING; NULL: none. Text is without its line end. */
    bool is_error, closes;
    bool is_uncounted; /* it ends a get whose keys are answered */
    bool is_silent;    /* nothing is answered */
    bool is_quiet;     /* META: no success */
    bool wants_value;
    bool has_cas;   /* of a value */
    bool is_last;   /* of the keys of a get */
    bool is_base64; /* the key */
    bool is_debug;  /* of "me" */
    bool wants_earlier_ttl;
    uint64_t known_cas; /* META: no value if it is the version */
    unsigned word_count;
    uint8_t opcode;
    uint8_t opaque[4];
    uint16_t status;   /* BINARY: of ANSWERING */
    bool is_sasl_step; /* the next request is to be the second message */
    /* Not cleared: it takes as long as a lookup. */
    vc_text words[VC_MC_WORDS]; /* that a meta reply repeats */
    uint8_t decoded[VC_MC_KEY_BYTES];
} vc_mc_command;

/* What became of a command. */
typedef struct {
    vc_mc_result result;
    bool has_record, is_copy;
    vc_record record;
    uint8_t *value;  /* of the record; it may be in the room of the reply */
    int64_t ttl_ms;  /* -1: it does not expire */
    int64_t idle;    /* seconds; -1: unknown */
    char token;      /* 'W': the client has won, 'Z': another one, 0: none */
    uint64_t number; /* of COUNT */
    vc_text text;    /* of errors and statistics */
} vc_mc_outcome;

struct vc_mc {
    vc_executor by;
    vc_mc_config config;
    vc_mc_access access;
    unsigned generation; /* of it */
    vc_mc_counts counts;
    vc_mc_command command;
    vc_mc_command sets[VC_PUTS_AT_ONCE]; /* those that follow it */
    size_t fetched;                      /* keys of a get that are fetched already */
    int64_t ended_ns;                    /* when the last command was executed */
    int64_t second;                      /* of the store's clock, in this turn; 0: not yet known */
    char reason[VC_MC_REASON_BYTES];     /* why a key is refused */
};

/* The execution of a command. */
typedef struct {
    vc_mc *mc;
    vc_mc_stream *stream;
    const vc_mc_command *command;
    vc_wanted wanted; /* its key */
    vc_out *out;
    vc_mc_outcome outcome;
    int64_t started_ns, read_ns, write_ns;
    uint64_t *absent; /* the counter of misses to count it in; NULL: none */
} vc_mc_run;

/* --- mc_words.c: what lines consist of --------------------------------------------------- */

/* Return the word that begins at `at`, and let `at` be where the next one begins, or `end`. */
vc_text vc_mc_next_word(const char **at, const char *end);
/* Read numbers of 64 bits as strtoull and strtol do: of a command, or the value of a key. */
bool vc_mc_read_unsigned(vc_text word, uint64_t largest, uint64_t *number);
bool vc_mc_read_signed(vc_text word, int64_t *number);
/* Let the key be what it is decoded from base64. */
bool vc_mc_decode_key(vc_mc_command *command);
/* Why a key cannot be stored; NULL: it can. A key is what a path of HTTP leads to. */
const char *vc_mc_refuse_key(vc_text key, size_t size_max, char reason[VC_MC_REASON_BYTES]);

/* --- mc_text.c, mc_meta.c, mc_binary.c --------------------------------------------------- */

/* Find the next command: NEXT if `command` is one, otherwise MORE. */
vc_step vc_mc_parse_text(uint64_t value_size, vc_mc_stream *stream, const char *data, size_t length,
                         vc_mc_command *command);
vc_step vc_mc_parse_binary(uint64_t value_size, vc_mc_stream *stream, const char *data,
                           size_t length, vc_mc_command *command);
/* Read the words of a meta command. Returns an error, which has the form of a line; NULL: none.
 * Of "ms", `size` is that of the value; NULL after an error: no value follows. */
const char *vc_mc_parse_meta(const vc_text *words, unsigned count, vc_mc_command *command,
                             const vc_text **size);

/* --- mc_store.c: what commands do in the store ------------------------------------------- */

/* Execute a command in the store. Returns NEXT, also if it was refused: `outcome` has the result. */
vc_step vc_mc_run_command(vc_mc_run *run);

/* Prepare the put of a plain set. Returns false if the command is another one, or refused. */
bool vc_mc_prepare_set(vc_mc_run *run, vc_put *put);

/* --- mc_replies.c, mc_binary.c ------------------------------------------------------------ */

/* Add a reply to `out`, which has room for VC_MC_REPLY_BYTES and the value. A value that was read
 * into that room is not moved, if the head has room before it. */
void vc_mc_add_reply(vc_out *out, const char *head, size_t length, vc_text value, const char *end);

/* Add the reply to a command. */
void vc_mc_reply_text(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_out *out);
void vc_mc_reply_meta(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_out *out);
void vc_mc_reply_binary(const vc_mc_command *command, const vc_mc_outcome *outcome, vc_out *out);

/* Begin with a command that uses so many bytes. */
static inline void vc_mc_clear(vc_mc_command *command, vc_mc_name name, size_t used) {
    memset(command, 0, offsetof(vc_mc_command, words));
    command->name = name;
    command->used = used;
    command->known_cas = VC_MC_NO_VERSION;
}

/* As memcached: if the value itself is not too large, only the sum of two is. */
static inline vc_mc_result vc_mc_shown(const vc_mc_command *command, vc_mc_result result) {
    bool is_edit = command->mode == VC_MC_APPEND || command->mode == VC_MC_PREPEND;
    bool is_sum = command->action == VC_MC_WRITE && is_edit && !command->is_too_large;
    return result == VC_MC_TOO_LARGE && is_sum ? VC_MC_NOT_STORED : result;
}

#endif
