/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/redis_reply.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

#include "tests/support/leak_check.h"

TestSuite(redis_reply, .fini = leak_check);

static void feed(struct redis_reader *reader, struct slice bytes)
{
    cr_assert(eq(int, redis_reader_feed(reader, bytes), 0));
}

static struct redis_reply *next(struct redis_reader *reader)
{
    struct redis_reply *reply;

    cr_assert(eq(int, redis_reader_next(reader, &reply), 0));
    return reply;
}

Test(redis_reply, comes_out_whole_of_bytes_that_come_one_by_one)
{
    const struct slice bytes = slice_of_string("*4\r\n$3\r\na\r\n\r\n:-7\r\n$-1\r\n+OK\r\n");
    struct redis_reader *reader = redis_reader_create();
    struct redis_reply *reply;

    for (size_t i = 0; i < bytes.len; i++) {
        cr_assert(zero(ptr, next(reader)));
        feed(reader, slice_of(bytes.ptr + i, 1));
    }
    reply = next(reader);

    cr_assert(eq(int, redis_reply_kind(reply), REDIS_REPLY_LIST));
    cr_assert(eq(sz, redis_reply_count(reply), 4));
    cr_assert(slice_eq(redis_reply_text(redis_reply_at(reply, 0)), slice_of("a\r\n", 3)));
    cr_assert(eq(i64, redis_reply_integer(redis_reply_at(reply, 1)), -7));
    cr_assert(eq(int, redis_reply_kind(redis_reply_at(reply, 2)), REDIS_REPLY_NIL));
    cr_assert(eq(int, redis_reply_kind(redis_reply_at(reply, 3)), REDIS_REPLY_TEXT));
    cr_assert(zero(ptr, next(reader)));
    redis_reply_destroy(reply);
    redis_reader_destroy(reader);
}

Test(redis_reply, has_nothing_of_another_kind)
{
    struct redis_reader *reader = redis_reader_create();
    struct redis_reply *text, *integer;

    feed(reader, slice_of_string("+7\r\n:7\r\n"));
    text = next(reader);
    integer = next(reader);

    cr_assert(zero(i64, redis_reply_integer(text)));
    cr_assert(zero(sz, redis_reply_count(text)));
    cr_assert(zero(sz, redis_reply_text(integer).len));
    cr_assert(zero(int, redis_reply_error(text)));
    redis_reply_destroy(text);
    redis_reply_destroy(integer);
    redis_reader_destroy(reader);
}

Test(redis_reply, tells_what_a_refusal_means)
{
    static const struct {
        const char *line;
        int error;
    } cases[] = {
        {"-NOPERM this user has no permissions\r\n", -EACCES},
        {"-LOADING Redis is loading the dataset in memory\r\n", -EBUSY},
        {"-READONLY You can't write against a read only replica.\r\n", -EROFS},
        {"-MOVED 3999 127.0.0.1:6381\r\n", -EXDEV},
        {"-OOM command not allowed\r\n", -ENOSPC},
        {"-OOMPH\r\n", -EREMOTEIO}, /* the word is to be whole */
        {"-ERR unknown command\r\n", -EREMOTEIO},
        {"-\r\n", -EREMOTEIO},
    };
    struct redis_reader *reader = redis_reader_create();

    for (size_t i = 0; i < array_count(cases); i++) {
        struct redis_reply *reply;

        feed(reader, slice_of_string(cases[i].line));
        reply = next(reader);

        cr_assert(eq(int, redis_reply_kind(reply), REDIS_REPLY_ERROR), "%s", cases[i].line);
        cr_assert(eq(int, redis_reply_error(reply), cases[i].error), "%s", cases[i].line);
        redis_reply_destroy(reply);
    }
    redis_reader_destroy(reader);
}

Test(redis_reply, of_a_server_that_is_no_redis_is_an_error)
{
    struct redis_reader *reader = redis_reader_create();
    struct redis_reply *reply;

    feed(reader, slice_of_string("HTTP/1.1 400 Bad Request\r\n"));

    cr_assert(eq(int, redis_reader_next(reader, &reply), -EPROTO));
    cr_assert(zero(ptr, reply));
    cr_assert(gt(sz, strlen(redis_reader_error(reader)), 0));
    redis_reader_destroy(reader);
}

Test(redis_reply, that_never_ends_is_seen_by_what_waits)
{
    struct redis_reader *reader = redis_reader_create();

    feed(reader, slice_of_string("$1000000\r\nabc"));

    cr_assert(zero(ptr, next(reader)));
    cr_assert(ge(sz, redis_reader_unread(reader), 3));
    redis_reader_destroy(reader);
}
