/* SPDX-License-Identifier: Apache-2.0 */

#include "router/prompt/echo_strip.h"

#include "backends/runtime/buf.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>

enum { ID_COUNT_MAX = 8 };

struct world {
    struct echo_strip strip;
    struct buf out;
    uint32_t ids[ID_COUNT_MAX];
    size_t id_count;
};

static int on_out(void *ctx, struct slice bytes)
{
    struct world *world = ctx;

    cr_assert(gt(sz, bytes.len, 0));
    return buf_append(&world->out, bytes);
}

static void on_id(void *ctx, uint32_t id)
{
    struct world *world = ctx;

    cr_assert(lt(sz, world->id_count, ID_COUNT_MAX));
    world->ids[world->id_count++] = id;
}

/* text in pieces of step bytes. */
static void feed(struct world *world, bool is_sse, const char *text, size_t step)
{
    const struct slice whole = slice_of_string(text);

    *world = (struct world){.id_count = 0};
    buf_init(&world->out, 1 << 16);
    echo_strip_init(&world->strip, is_sse, on_out, on_id, world);
    for (size_t at = 0; at < whole.len; at += step) {
        size_t len = whole.len - at < step ? whole.len - at : step;

        cr_assert(eq(int, echo_strip_feed(&world->strip, slice_of(whole.ptr + at, len)), 0));
    }
}

struct row {
    const char *in, *out;
    enum echo_ids ids;
    size_t id_count;
};

static void check(const struct row *row, bool is_sse)
{
    static const size_t steps[] = {1, 2, 3, 7, SIZE_MAX / 2};

    for (size_t i = 0; i < array_count(steps); i++) {
        struct world world;
        feed(&world, is_sse, row->in, steps[i]);

        cr_assert(slice_eq(buf_slice(&world.out), slice_of_string(row->out)), "%s became %.*s",
                  row->in, (int)buf_len(&world.out), buf_slice(&world.out).ptr);
        cr_assert(eq(int, world.strip.ids, row->ids), "%s", row->in);
        cr_assert(eq(sz, world.id_count, row->id_count), "%s", row->in);
        for (uint32_t id = 0; id < world.id_count; id++)
            cr_assert(eq(u32, world.ids[id], id + 1));
        buf_release(&world.out);
    }
}

TestSuite(echo_strip, .fini = leak_check);

Test(echo_strip, null_stands_where_ids_stood_and_nothing_else_changes)
{
    static const struct row rows[] = {
        {"{\"prompt_token_ids\":[1,2,3],\"a\":[7]}", "{\"prompt_token_ids\":null,\"a\":[7]}",
         ECHO_IDS_WHOLE, 3},
        {" { \"x\" : 1 , \"prompt_token_ids\" : [ 1 , 2 ] } \n",
         " { \"x\" : 1 , \"prompt_token_ids\" : null } \n", ECHO_IDS_WHOLE, 2},
        {"{\"choices\":[{\"token_ids\":[9],\"index\":0},{\"i\":[],\"token_ids\":[]}]}",
         "{\"choices\":[{\"token_ids\":null,\"index\":0},{\"i\":[],\"token_ids\":null}]}",
         ECHO_IDS_NONE, 0},
        {"{\"choices\":[{\"prompt_token_ids\":[1],\"token_ids\":[5]}]}",
         "{\"choices\":[{\"prompt_token_ids\":null,\"token_ids\":null}]}", ECHO_IDS_WHOLE, 1},
        {"{\"prompt_token_ids\":null}", "{\"prompt_token_ids\":null}", ECHO_IDS_NONE, 0},
        {"{\"prompt_token_ids\":[]}", "{\"prompt_token_ids\":null}", ECHO_IDS_WHOLE, 0},
        {"{\"prompt_token_ids\":[4294967296]}", "{\"prompt_token_ids\":null}", ECHO_IDS_ODD, 0},
        {"{\"prompt_token_ids\":[\"]\\\"]\",[2]],\"a\":1}", "{\"prompt_token_ids\":null,\"a\":1}",
         ECHO_IDS_ODD, 0},
    };

    for (size_t i = 0; i < array_count(rows); i++)
        check(&rows[i], false);
}

Test(echo_strip, the_same_words_elsewhere_are_the_models_own)
{
    static const char *const rows[] = {
        "{\"a\":{\"prompt_token_ids\":[1]}}",
        "{\"token_ids\":[1]}",
        "{\"choices\":{\"token_ids\":[1]}}",
        "{\"choices\":[[\"token_ids\",[1]]]}",
        "{\"choices\":[{\"message\":{\"token_ids\":[1],\"content\":\"token_ids\"}}]}",
        "{\"choices\":[{\"text\":\"\\\"token_ids\\\":[1]\"}]}",
        "{\"choice\":[{\"token_ids\":[1]}],\"a\":\"prompt_token_ids\",\"b\":[1]}",
        "[{\"prompt_token_ids\":[1]}]",
        "{} {\"prompt_token_ids\":[1]}",
        "{\"prompt_token_ids2\":[1],\"prompt_token_id\":[1]}",
        "no JSON at all: {\"prompt_token_ids\":[1]}",
    };

    for (size_t i = 0; i < array_count(rows); i++)
        check(&(struct row){rows[i], rows[i], ECHO_IDS_NONE, 0}, false);
}

Test(echo_strip, each_event_of_a_stream_is_a_document)
{
    check(&(struct row){": {\"prompt_token_ids\":[1]}\n\n"
                        "data: {\"prompt_token_ids\":[1,2],\"choices\":[]}\r\n\r\n"
                        "event: x\ndata:{\"choices\":[{\"token_ids\":[5,6]}]}\n\n"
                        "data: {\"prompt_token_ids\":[9]}\n\n"
                        "data: [DONE]\n\n",
                        ": {\"prompt_token_ids\":[1]}\n\n"
                        "data: {\"prompt_token_ids\":null,\"choices\":[]}\r\n\r\n"
                        "event: x\ndata:{\"choices\":[{\"token_ids\":null}]}\n\n"
                        "data: {\"prompt_token_ids\":null}\n\n"
                        "data: [DONE]\n\n",
                        ECHO_IDS_WHOLE, 2},
          true);
}

Test(echo_strip, an_event_that_breaks_off_spoils_no_other)
{
    check(&(struct row){"data: {\"prompt_token_ids\":[1,2\n\ndata: {\"a\":[1]}\n\n",
                        "data: {\"prompt_token_ids\":null\n\ndata: {\"a\":[1]}\n\n", ECHO_IDS_ODD,
                        1},
          true);
}

static int refuse(void *ctx, struct slice bytes)
{
    (void)ctx, (void)bytes;
    return -ENOMEM;
}

Test(echo_strip, what_its_receiver_says_comes_back)
{
    struct echo_strip strip;
    echo_strip_init(&strip, false, refuse, on_id, NULL);

    cr_assert(eq(int, echo_strip_feed(&strip, SLICE("{}")), -ENOMEM));
}
