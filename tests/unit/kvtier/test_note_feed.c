/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/note_feed.h"

#include "tests/support/loop_fixture.h"
#include "tests/support/redis_server.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdio.h>
#include <string.h>

enum { WAIT_MS = 20000, ENTRY_COUNT_MAX = 256 };

static const char *const workers[] = {"http://10.0.0.1:8000", "http://10.0.0.2:8000"};

/* A feed of two streams, and what it gave: "<index>:<bytes>". */
struct world {
    struct redis_server *server;
    struct note_feed *feed;
    char entries[ENTRY_COUNT_MAX][32];
    size_t entry_count;
    size_t awaited_count;
};

static void on_entry(void *ctx, size_t index, struct slice entry)
{
    struct world *world = ctx;

    cr_assert(lt(sz, world->entry_count, ENTRY_COUNT_MAX));
    snprintf(world->entries[world->entry_count++], sizeof world->entries[0], "%zu:%.*s", index,
             (int)entry.len, entry.ptr);
}

static const struct note_feed_callbacks callbacks = {.on_entry = on_entry};

static void ask(struct world *world, const char *command)
{
    char reply[256];

    redis_server_ask(world->server, command, reply, sizeof reply);
    cr_assert(ne(chr, reply[0], '-'), "%s: %s", command, reply);
}

/* As a router writes it. id: "*" or one of its own. */
static void add(struct world *world, size_t index, const char *id, const char *bytes)
{
    char command[256];

    snprintf(command, sizeof command, "XADD smv:{%s}:in %s b %s", workers[index], id, bytes);
    ask(world, command);
}

static struct world *world_create(void)
{
    static const char *const no_options[] = {NULL};
    static struct world world;

    world.server = redis_server_create(no_options);
    return &world;
}

static void open_feed(struct world *world)
{
    struct note_feed_config config = {
        .link = {.url = redis_server_url(world->server),
                 .name = "test",
                 .connect_ms = WAIT_MS,
                 .back_off_ms = 10,
                 .back_off_ms_max = 50},
        .workers = workers,
        .worker_count = 2,
    };

    cr_assert(
        eq(int, note_feed_create(loop_fixture_loop(), config, &callbacks, world, &world->feed), 0));
}

static bool has_entries(void *ctx)
{
    struct world *world = ctx;

    return world->entry_count >= world->awaited_count;
}

static void await_entries(struct world *world, size_t count)
{
    world->awaited_count = count;
    cr_assert(loop_run_until(has_entries, world, WAIT_MS), "%zu entries", world->entry_count);
    cr_assert(eq(sz, world->entry_count, count));
}

static void world_release(struct world *world)
{
    note_feed_close(&world->feed);
    redis_server_destroy(world->server);
}

TestSuite(note_feed, .init = loop_fixture_init, .fini = loop_fixture_fini, .timeout = 60);

Test(note_feed, what_was_written_before_comes_first_then_what_comes)
{
    struct world *world = world_create();
    add(world, 0, "*", "a");
    add(world, 0, "*", "b");

    open_feed(world);
    await_entries(world, 2);
    add(world, 1, "*", "c");
    await_entries(world, 3);

    cr_assert(eq(str, world->entries[0], "0:a"));
    cr_assert(eq(str, world->entries[1], "0:b"));
    cr_assert(eq(str, world->entries[2], "1:c"));
    world_release(world);
}

Test(note_feed, each_entry_comes_once_over_a_connection_that_breaks)
{
    struct world *world = world_create();
    add(world, 0, "*", "a");
    open_feed(world);
    await_entries(world, 1);

    ask(world, "CLIENT KILL TYPE normal SKIPME yes");
    add(world, 0, "*", "b");
    await_entries(world, 2);

    cr_assert(eq(str, world->entries[1], "0:b"));
    cr_assert(ge(u64, note_feed_stats(world->feed).link.connect_count, 2));
    world_release(world);
}

/* The ids of a stream that begins anew are below the old ones when the server's clock went back. */
Test(note_feed, a_stream_that_begins_anew_with_an_older_clock_is_read)
{
    struct world *world = world_create();
    add(world, 0, "99999999999999-5", "a");
    open_feed(world);
    await_entries(world, 1);

    redis_server_restart(world->server);
    add(world, 0, "5-0", "b");
    await_entries(world, 2);

    cr_assert(eq(str, world->entries[1], "0:b"));
    cr_assert(eq(u64, note_feed_stats(world->feed).rewind_count, 1));
    world_release(world);
}

Test(note_feed, a_stream_that_was_emptied_under_a_connection_is_found_anew)
{
    struct world *world = world_create();
    add(world, 0, "99999999999999-5", "a");
    open_feed(world);
    await_entries(world, 1);

    ask(world, "FLUSHALL");
    add(world, 0, "5-0", "b");
    await_entries(world, 2); /* within CHECK_MS */

    cr_assert(eq(str, world->entries[1], "0:b"));
    world_release(world);
}

Test(note_feed, a_key_of_another_type_and_entries_without_bytes_do_no_harm)
{
    struct world *world = world_create();
    char command[128];
    snprintf(command, sizeof command, "SET smv:{%s}:in nonsense", workers[1]);
    ask(world, command);
    snprintf(command, sizeof command, "XADD smv:{%s}:in * c d", workers[0]);
    ask(world, command);

    open_feed(world);
    snprintf(command, sizeof command, "DEL smv:{%s}:in", workers[1]);
    loop_run_for(50);
    ask(world, command);
    add(world, 0, "*", "a");
    await_entries(world, 1);

    cr_assert(eq(str, world->entries[0], "0:a"));
    world_release(world);
}
