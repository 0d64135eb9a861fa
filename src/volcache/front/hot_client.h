/* memcached as the hot tier uses it: items that are asked for.
 *
 * Commands are those of the text protocol. An item is stored under "volcache:" and its name in
 * hexadecimal; it begins with its name, then come the bytes of the record.
 *
 * In a loop: one connection for each server, on which commands follow one another without waiting.
 * Commands of one round of the loop are sent at once, before the loop waits. Replies come in the
 * order of the commands. The oldest command has a deadline; when it passes, or when anything comes
 * that is no reply, the connection is closed, and all commands on it fail. Without a connection
 * no command is accepted. What is kept is bounded: commands by VC_HOT_CALLS, a reply by the largest
 * item.
 *
 * Who connects and probes servers is in hot/servers.py: it gives a connection, and asks why the
 * last one failed. It sends items, too.
 *
 * Threads. The functions under "In a loop" are for the thread of the loop, which needs no lock
 * of Python, except those that say otherwise. Each loop has a client of its own. Those above are for any thread: other threads wait
 * for replies on sockets of their own. */
#ifndef VC_HOT_CLIENT_H
#define VC_HOT_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common.h"
#include "copies.h"
#include "loop.h"

enum {
    VC_HOT_CALLS = 16384,                      /* that wait for a reply, for each server */
    VC_HOT_LINE_BYTES = 512,                   /* of a reply's line, at most */
    VC_HOT_KEY_BYTES = 9 + 2 * VC_ITEM_BYTES,  /* of a key in memcached */
    VC_HOT_HEAD_BYTES = VC_HOT_KEY_BYTES + 64, /* of a command without item */
};

typedef enum {
    VC_HOT_MORE, /* the reply is not whole */
    VC_HOT_FOUND,
    VC_HOT_ABSENT,
    VC_HOT_STORED,
    VC_HOT_NOT_STORED,
    VC_HOT_REFUSED, /* an error of the server: no memory, or the item is too large */
    /* Failures: the connection is not used again. */
    VC_HOT_TIMEOUT,
    VC_HOT_CLOSED,
    VC_HOT_PROTOCOL, /* this is no reply to the command */
    VC_HOT_OTHER,
} vc_hot_result;

/* --- Commands and replies --------------------------------------------------------------- */

typedef struct {
    vc_hot_result result;
    size_t length;        /* of the whole reply; of MORE: it is at least one byte longer */
    const uint8_t *value; /* of FOUND: the item */
    size_t value_length;
} vc_hot_reply;

/* Parse the reply at the start of some bytes. `name` is the item that was asked for; NULL: an item
 * was sent. An item of more than `value_max` bytes is no reply. Linear in VC_HOT_LINE_BYTES. */
vc_hot_reply vc_hot_parse(const uint8_t *data, size_t length, const uint8_t *name,
                          size_t value_max);
/* Write a command to VC_HOT_HEAD_BYTES; return its length. After that of a set come the name, the
 * record and CR LF. `expires_s`: since the epoch; 0: never. */
size_t vc_hot_write_get(char *to, const uint8_t name[VC_ITEM_BYTES]);
size_t vc_hot_write_set(char *to, const uint8_t name[VC_ITEM_BYTES], uint64_t expires_s,
                        size_t record_length);

/* --- In a loop ---------------------------------------------------------------------------- */

typedef struct vc_hot vc_hot;

/* Return NULL without memory.
 *   addresses   of the servers; they live longer;
 *   timeout_ns  of a command;
 *   record_max  bytes of a record, at most. */
vc_hot *vc_hot_new(const char *const *addresses, unsigned count, int64_t timeout_ns,
                   size_t record_max);
void vc_hot_free(vc_hot *hot);
/* A get of an owner was answered, with a record that is valid until this returns, or NULL. */
typedef void vc_hot_on_get(void *context, void *owner, const uint8_t *record, size_t length);
/* Serve a loop. `loop` NULL: no longer; it does not run. */
void vc_hot_install(vc_hot *hot, vc_loop *loop, vc_hot_on_get *on_get, void *context);

/* The server that an item belongs to, also while it is down; any thread. */
unsigned vc_hot_server_of(const vc_hot *hot, const uint8_t name[VC_ITEM_BYTES]);
/* Give a server a connection, which is taken over, in place of the one it has; any thread. Why
 * that one has failed is forgotten. */
void vc_hot_give(vc_hot *hot, unsigned server, int fd);
/* Why the connection of a server has failed since the last call; VC_HOT_MORE: it has not. Any
 * thread. */
vc_hot_result vc_hot_take_failure(vc_hot *hot, unsigned server);

/* Ask for an item. Returns false if nothing was asked; otherwise `on_get` is called later. */
bool vc_hot_get(vc_hot *hot, const uint8_t name[VC_ITEM_BYTES], void *owner);
/* `on_get` is not called for an owner any more. */
void vc_hot_cancel(vc_hot *hot, const void *owner);

/* Send what was asked for, and end what is late; before the loop waits, at most for the time that is
 * returned. */
int64_t vc_hot_settle(vc_hot *hot);
/* From now on, wait for no more than a second: the process stops. */
void vc_hot_hurry(vc_hot *hot);

/* Since the start. */
typedef struct {
    uint64_t gets, hits, stale, refused;
    vc_durations calls;
} vc_hot_counts;

/* Add them; any thread. */
void vc_hot_add_counts(const vc_hot *hot, vc_hot_counts *counts);

#endif
