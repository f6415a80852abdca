/* SPDX-License-Identifier: Apache-2.0 */

/*
 * redis_reply: reads what a server says: bytes go into a reader as they come, and whole replies
 * come out of it. Alone it knows hiredis. No I/O, no loop; one thread at a time.
 */
#ifndef BACKENDS_REDIS_REDIS_REPLY_H
#define BACKENDS_REDIS_REDIS_REPLY_H

#include <stddef.h>
#include <stdint.h>

#include "backends/runtime/must_check.h"
#include "backends/runtime/slice.h"

struct redis_reader;
struct redis_reply;

/* Numbered as hiredis numbers them, which has macros of the same names. What a newer
 * protocol than we ask for has beside them is none of these. */
enum redis_reply_kind {
    REDIS_REPLY_TEXT = 1, /* a string or a status */
    REDIS_REPLY_LIST = 2,
    REDIS_REPLY_INTEGER = 3,
    REDIS_REPLY_NIL = 4,
    REDIS_REPLY_ERROR = 6,
};

enum redis_reply_kind redis_reply_kind(const struct redis_reply *reply);

/* Of TEXT, ERROR; a NUL follows it. Else {NULL, 0}. */
struct slice redis_reply_text(const struct redis_reply *reply);

int64_t redis_reply_integer(const struct redis_reply *reply); /* of INTEGER; else 0 */
size_t redis_reply_count(const struct redis_reply *reply);    /* of LIST; else 0 */
const struct redis_reply *redis_reply_at(const struct redis_reply *reply, size_t index);

/* 0, or for an ERROR what redis_done_fn says of it: for those in the list of an EXEC. */
int redis_reply_error(const struct redis_reply *reply);

/* Of one that redis_reader_next() gave, with all that is in it. */
void redis_reply_destroy(struct redis_reply *reply);

/* NULL: no memory. */
struct redis_reader *redis_reader_create(void);

/* A copy is kept of what is no whole reply yet. -ENOMEM. */
MUST_CHECK int redis_reader_feed(struct redis_reader *reader, struct slice bytes);

/* The next whole reply, which the caller destroys; NULL: there is none yet. -EPROTO: what came is
 * no reply, and nothing that follows can be one. */
MUST_CHECK int redis_reader_next(struct redis_reader *reader, struct redis_reply **reply);

/* One line on the last error; the reader's. */
const char *redis_reader_error(const struct redis_reader *reader);

/* How many bytes wait for the end of their reply. */
size_t redis_reader_unread(const struct redis_reader *reader);

void redis_reader_destroy(struct redis_reader *reader);

#endif
