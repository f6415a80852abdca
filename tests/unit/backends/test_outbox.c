/* SPDX-License-Identifier: Apache-2.0 */

#include "backends/outbox.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "backends/io_loop.h"
#include "tests/support/loop_fixture.h"

/* An outbox on one end of a socket pair; the test holds the other end. */
struct outbox_world {
    struct outbox_hub hub;
    struct outbox outbox;
    uv_pipe_t stream;
    int peer;
    unsigned progress_count;
    int failed_status;
};

static void on_progress(void *ctx)
{
    struct outbox_world *world = ctx;

    world->progress_count++;
}

static void on_failed(void *ctx, int status)
{
    struct outbox_world *world = ctx;

    world->failed_status = status;
}

static const struct outbox_callbacks callbacks = {on_progress, on_failed};

static void world_init(struct outbox_world *world)
{
    int fds[2];

    *world = (struct outbox_world){.peer = -1};
    cr_assert(eq(int, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0));
    world->peer = fds[1];
    cr_assert(eq(int, uv_pipe_init(&loop_fixture_io()->loop, &world->stream, 0), 0));
    cr_assert(eq(int, uv_pipe_open(&world->stream, fds[0]), 0));
    outbox_hub_init(&world->hub);
    outbox_init(&world->outbox, &world->hub, (uv_stream_t *)&world->stream, &callbacks, world);
}

static void world_release(struct outbox_world *world)
{
    if (world->outbox.callbacks != NULL)
        outbox_close(&world->outbox);
    uv_close((uv_handle_t *)&world->stream, NULL);
    uv_run(&loop_fixture_io()->loop, UV_RUN_NOWAIT);
    uv_run(&loop_fixture_io()->loop, UV_RUN_NOWAIT);
    outbox_hub_release(&world->hub);
    close(world->peer);
}

static int write_text(struct outbox_world *world, const char *text)
{
    struct slice piece = slice_of_string(text);

    return outbox_write(&world->outbox, &piece, 1);
}

/* What the peer can read now. */
static char *received(struct outbox_world *world)
{
    static char bytes[4096];
    ssize_t len = read(world->peer, bytes, sizeof bytes - 1);

    bytes[len > 0 ? len : 0] = '\0';
    return bytes;
}

TestSuite(outbox, .init = loop_fixture_init, .fini = loop_fixture_fini);

Test(outbox, small_writes_leave_together_at_the_end_of_the_turn)
{
    struct outbox_world world;
    world_init(&world);

    cr_assert(eq(int, write_text(&world, "one "), 0));
    cr_assert(eq(int, write_text(&world, "two"), 0));
    cr_assert(eq(str, received(&world), ""));
    cr_assert(eq(sz, outbox_bytes(&world.outbox), 7));
    outbox_hub_flush(&world.hub);

    cr_assert(eq(str, received(&world), "one two"));
    cr_assert(eq(sz, outbox_bytes(&world.outbox), 0));
    cr_assert(eq(u32, world.progress_count, 1));
    world_release(&world);
}

Test(outbox, a_large_write_takes_what_was_gathered_along_in_order)
{
    static char large[OUTBOX_GATHERED_BYTES];
    struct outbox_world world;
    struct slice pieces[2] = {SLICE("-"), {large, sizeof large}};
    world_init(&world);
    memset(large, 'x', sizeof large);

    cr_assert(eq(int, write_text(&world, "head"), 0));
    cr_assert(eq(int, outbox_write(&world.outbox, pieces, 2), 0));

    char *seen = received(&world);
    cr_assert(eq(sz, strlen(seen), 5 + sizeof large));
    cr_assert(slice_starts_with(slice_of_string(seen), SLICE("head-xxx")));
    cr_assert(eq(sz, outbox_bytes(&world.outbox), 0));
    world_release(&world);
}

Test(outbox, what_the_kernel_does_not_take_is_queued_and_keeps_its_order)
{
    enum { TOTAL = 4 << 20 };
    char *large = malloc(TOTAL);
    struct slice piece = {large, TOTAL};
    struct outbox_world world;
    size_t seen = 0;
    char last = 0;
    world_init(&world);
    memset(large, 'x', TOTAL);

    cr_assert(eq(int, outbox_write(&world.outbox, &piece, 1), 0));
    free(large);
    cr_assert(eq(int, write_text(&world, "end"), 0));
    cr_assert(gt(sz, outbox_bytes(&world.outbox), 0));
    while (seen < TOTAL + 3) {
        char *bytes = received(&world);
        size_t len = strlen(bytes);

        seen += len;
        last = len > 0 ? bytes[len - 1] : last;
        uv_run(&loop_fixture_io()->loop, UV_RUN_NOWAIT);
    }

    cr_assert(eq(chr, last, 'd'));
    cr_assert(eq(sz, outbox_bytes(&world.outbox), 0));
    cr_assert(gt(u32, world.progress_count, 0));
    world_release(&world);
}

Test(outbox, a_peer_that_is_gone_is_told_at_the_flush)
{
    struct outbox_world world;
    world_init(&world);
    cr_assert(eq(int, write_text(&world, "nobody reads this"), 0));
    close(world.peer);

    outbox_hub_flush(&world.hub);

    cr_assert(eq(int, world.failed_status, -EPIPE));
    world.peer = open("/dev/null", O_RDONLY);
    world_release(&world);
}

Test(outbox, closing_sends_what_was_gathered_and_calls_nobody)
{
    struct outbox_world world;
    world_init(&world);
    cr_assert(eq(int, write_text(&world, "goodbye"), 0));

    outbox_close(&world.outbox);

    cr_assert(eq(str, received(&world), "goodbye"));
    cr_assert(eq(u32, world.progress_count, 0));
    world_release(&world);
}
