/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/redis_reply.h"

#include <hiredis/hiredis.h>

#include <assert.h>
#include <errno.h>
#include <string.h>

/*
 * DESIGN
 *
 * Of hiredis we take the reader of replies, which has seen every Redis there is, and not its
 * asynchronous connections: a reply that nobody asked for, from a server that is none, aborts the
 * process there (an assert in redisProcessCallbacks(), seen with 0.14.1); they resolve names while
 * the loop waits, know no deadline for a command, and free themselves by rules that differ from one
 * version to the next. A socket of libuv and a queue of who waits for an answer is all that is left
 * to do, and it is the same with every hiredis.
 *
 * hiredis's object is the only thing in each of ours, so that a pointer to one is a pointer to the
 * other.
 */

struct redis_reply {
    redisReply hiredis;
};

struct redis_reader {
    redisReader hiredis;
};

static_assert(REDIS_REPLY_STRING == REDIS_REPLY_TEXT && REDIS_REPLY_ARRAY == REDIS_REPLY_LIST,
              "the numbers of those that hiredis names otherwise");

static const struct {
    const char *word; /* that an error begins with */
    int error;
} refusals[] = {
    {"ASK", -EXDEV},      {"BUSY", -EBUSY},       {"CLUSTERDOWN", -EXDEV}, {"CROSSSLOT", -EXDEV},
    {"DENIED", -EACCES},  {"LOADING", -EBUSY},    {"MASTERDOWN", -EBUSY},  {"MOVED", -EXDEV},
    {"NOAUTH", -EACCES},  {"NOPERM", -EACCES},    {"OOM", -ENOSPC},        {"READONLY", -EROFS},
    {"TRYAGAIN", -EBUSY}, {"WRONGPASS", -EACCES},
};

/* ---- a reply ---- */

enum redis_reply_kind redis_reply_kind(const struct redis_reply *reply)
{
    const int type = reply->hiredis.type;

    return (enum redis_reply_kind)(type == REDIS_REPLY_STATUS ? REDIS_REPLY_TEXT : type);
}

struct slice redis_reply_text(const struct redis_reply *reply)
{
    switch (reply->hiredis.type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
    case REDIS_REPLY_ERROR:
        return slice_of(reply->hiredis.str, reply->hiredis.len);
    default:
        return slice_of(NULL, 0);
    }
}

int64_t redis_reply_integer(const struct redis_reply *reply)
{
    return reply->hiredis.type == REDIS_REPLY_INTEGER ? reply->hiredis.integer : 0;
}

size_t redis_reply_count(const struct redis_reply *reply)
{
    return reply->hiredis.type == REDIS_REPLY_ARRAY ? reply->hiredis.elements : 0;
}

const struct redis_reply *redis_reply_at(const struct redis_reply *reply, size_t index)
{
    assert(index < redis_reply_count(reply));

    return (const struct redis_reply *)reply->hiredis.element[index];
}

int redis_reply_error(const struct redis_reply *reply)
{
    const struct slice text = redis_reply_text(reply);
    const char *space = text.len > 0 ? memchr(text.ptr, ' ', text.len) : NULL;
    const struct slice word =
        slice_of(text.ptr, space != NULL ? (size_t)(space - text.ptr) : text.len);

    if (reply->hiredis.type != REDIS_REPLY_ERROR)
        return 0;
    for (size_t i = 0; i < array_count(refusals); i++) {
        if (slice_eq(word, slice_of_string(refusals[i].word)))
            return refusals[i].error;
    }
    return -EREMOTEIO;
}

void redis_reply_destroy(struct redis_reply *reply)
{
    freeReplyObject(&reply->hiredis);
}

/* ---- the reader ---- */

struct redis_reader *redis_reader_create(void)
{
    return (struct redis_reader *)redisReaderCreate();
}

int redis_reader_feed(struct redis_reader *reader, struct slice bytes)
{
    return redisReaderFeed(&reader->hiredis, bytes.ptr, bytes.len) == REDIS_OK ? 0 : -ENOMEM;
}

int redis_reader_next(struct redis_reader *reader, struct redis_reply **next)
{
    void *reply = NULL;
    int status = redisReaderGetReply(&reader->hiredis, &reply);

    *next = reply;
    return status == REDIS_OK ? 0 : -EPROTO;
}

const char *redis_reader_error(const struct redis_reader *reader)
{
    return reader->hiredis.errstr;
}

size_t redis_reader_unread(const struct redis_reader *reader)
{
    return reader->hiredis.len;
}

void redis_reader_destroy(struct redis_reader *reader)
{
    redisReaderFree(&reader->hiredis);
}
