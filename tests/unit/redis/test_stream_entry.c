/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/redis/stream_entry.h"

#include "tests/support/loop_fixture.h"
#include "tests/support/redis_server.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>

enum { WAIT_MS = 20000 };

/* The first entry of a stream, as it was read. */
struct world {
    struct redis_server *server;
    struct redis_link *link;
    bool reads_reply; /* all of it, in place of the entry */
    bool is_read;
    bool is_entry;
    bool has_bytes;
    char id[32];
    char bytes[32];
};

static void on_ready(void *ctx)
{
    (void)ctx;
}

static void on_away(void *ctx, int error, const char *why)
{
    (void)ctx;
    (void)error;
    (void)why;
}

static bool is_ready(void *ctx)
{
    const struct world *world = ctx;

    return redis_link_state(world->link) == REDIS_LINK_READY;
}

static bool is_read(void *ctx)
{
    const struct world *world = ctx;

    return world->is_read;
}

static void on_range(void *ctx, int error, const struct redis_reply *reply)
{
    struct world *world = ctx;
    struct stream_entry entry;

    cr_assert(eq(int, error, 0));
    world->is_read = true;
    world->is_entry =
        stream_entry_read(world->reads_reply ? reply : redis_reply_at(reply, 0), &entry);
    world->has_bytes = entry.has_bytes;
    snprintf(world->id, sizeof world->id, "%.*s", (int)entry.id.len, entry.id.ptr);
    snprintf(world->bytes, sizeof world->bytes, "%.*s", (int)entry.bytes.len, entry.bytes.ptr);
}

static void world_init(struct world *world)
{
    static const char *const no_options[] = {NULL};
    struct redis_link_config config = {.name = "test",
                                       .connect_ms = WAIT_MS,
                                       .command_ms = WAIT_MS,
                                       .back_off_ms = 10,
                                       .back_off_ms_max = 50,
                                       .pending_max = 16};

    *world = (struct world){.server = redis_server_create(no_options)};
    config.url = redis_server_url(world->server);
    cr_assert(
        eq(int,
           redis_link_open(loop_fixture_loop(), config,
                           (struct redis_link_callbacks){on_ready, on_away}, world, &world->link),
           0));
    cr_assert(loop_run_until(is_ready, world, WAIT_MS));
}

/* Adds an entry of these fields, and reads it. */
static void add_and_read(struct world *world, const struct slice *fields, size_t count)
{
    const struct slice range[] = {SLICE("XRANGE"), SLICE("s"), SLICE("-"), SLICE("+")};
    struct slice words[16] = {SLICE("XADD"), SLICE("s"), SLICE("7-1")};

    for (size_t i = 0; i < count; i++)
        words[3 + i] = fields[i];
    cr_assert(eq(int, redis_link_send(world->link, words, 3 + count, NULL, NULL), 0));
    cr_assert(eq(int, redis_link_send(world->link, range, array_count(range), on_range, world), 0));
    cr_assert(loop_run_until(is_read, world, WAIT_MS));
}

static void world_release(struct world *world)
{
    redis_link_close(&world->link, NULL, NULL);
    redis_server_destroy(world->server);
}

TestSuite(stream_entry, .init = loop_fixture_init, .fini = loop_fixture_fini, .timeout = 60);

Test(stream_entry, its_bytes_are_the_field_b_wherever_it_stands)
{
    const struct slice fields[] = {SLICE("x"), SLICE("b"), SLICE("b"), SLICE("said")};
    struct world world;
    world_init(&world);

    add_and_read(&world, fields, array_count(fields));

    cr_assert(world.is_entry && world.has_bytes);
    cr_assert(eq(str, world.id, "7-1"));
    cr_assert(eq(str, world.bytes, "said"));
    world_release(&world);
}

Test(stream_entry, an_entry_of_other_fields_has_an_id_and_no_bytes)
{
    const struct slice fields[] = {SLICE("a"), SLICE("b")};
    struct world world;
    world_init(&world);

    add_and_read(&world, fields, array_count(fields));

    cr_assert(world.is_entry && !world.has_bytes);
    cr_assert(eq(str, world.id, "7-1"));
    world_release(&world);
}

Test(stream_entry, what_is_no_list_of_two_is_no_entry)
{
    const struct slice fields[] = {SLICE("b"), SLICE("said")};
    struct world world;
    world_init(&world);
    world.reads_reply = true;

    add_and_read(&world, fields, array_count(fields));

    cr_assert(not(world.is_entry));
    cr_assert(not(world.has_bytes));
    world_release(&world);
}
