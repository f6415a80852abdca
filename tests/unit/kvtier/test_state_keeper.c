/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/state_keeper.h"

#include "hashing/digest.h"
#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { FINGERPRINT = 7, TEXT_MAX = 8192 };

static const uint8_t secret[DIGEST_SECRET_BYTES] = {1};

/* A directory of the test's own, ours alone. */
static char directory[] = "/tmp/samovar-keeper-XXXXXX";
static struct io_loop io;

static size_t file_count(bool is_removing)
{
    DIR *files = opendir(directory);
    size_t count = 0;

    for (struct dirent *file; (file = readdir(files)) != NULL;) {
        char path[512];

        if (file->d_name[0] == '.')
            continue;
        count++;
        snprintf(path, sizeof path, "%s/%s", directory, file->d_name);
        if (is_removing)
            (void)unlink(path);
    }
    closedir(files);
    return count;
}

static void init(void)
{
    cr_assert(ne(ptr, mkdtemp(directory), NULL));
    cr_assert(zero(int, io_loop_init(&io)));
}

static void fini(void)
{
    io_loop_stop_tick(&io);
    uv_run(&io.loop, UV_RUN_DEFAULT);
    io_loop_release(&io);
    (void)file_count(true);
    (void)!rmdir(directory);
    leak_check();
}

TestSuite(state_keeper, .init = init, .fini = fini);

static void on_claimed(void *ctx, uint64_t hash, uint8_t tiers, uint32_t tokens)
{
    (void)ctx, (void)hash, (void)tiers, (void)tokens;
}

static void note_closed(void *ctx)
{
    bool *is_closed = ctx;

    *is_closed = true;
}

static void begin_life(struct state_keeper *keeper, struct alignment *alignment, const char *dir)
{
    cr_assert(
        zero(int, alignment_init(alignment, (struct alignment_config){.secret = secret,
                                                                      .token_nodes_max = 16,
                                                                      .text_nodes_max = TEXT_MAX,
                                                                      .depth_max = 16,
                                                                      .attempts_max = 4,
                                                                      .wait_ms = 1000,
                                                                      .groups = 1,
                                                                      .on_claimed = on_claimed})));
    state_keeper_init(keeper, (struct state_keeper_config){.io = &io,
                                                           .alignment = alignment,
                                                           .dir = dir,
                                                           .worker = "http://10.0.0.1:8000",
                                                           .secret = secret,
                                                           .fingerprint = FINGERPRINT});
}

/* The life of an agent whose engine lists model. */
static struct state_keeper_stats live_once(const char *dir, const char *model)
{
    struct alignment alignment;
    struct state_keeper keeper;
    bool is_closed = false;

    begin_life(&keeper, &alignment, dir);
    (void)state_keeper_take_up(&keeper, model);
    cr_assert(not(state_keeper_take_up(&keeper, model)));
    state_keeper_close(&keeper, note_closed, &is_closed);
    cr_assert(is_closed);
    alignment_release(&alignment);
    return keeper.stats;
}

Test(state_keeper, what_is_saved_at_the_end_is_taken_up_by_the_next)
{
    struct state_keeper_stats first = live_once(directory, "llama");
    struct state_keeper_stats second = live_once(directory, "llama");

    cr_assert(eq(sz, file_count(false), 1));
    cr_assert(eq(u64, first.saved_total, 1));
    cr_assert(eq(u64, second.saved_total, 1));
    cr_assert(zero(u64, first.failed_total + second.failed_total));
}

Test(state_keeper, the_state_of_another_model_is_refused_and_replaced)
{
    struct state_keeper_stats stats;

    (void)live_once(directory, "llama");
    stats = live_once(directory, "qwen");

    cr_assert(eq(u64, stats.failed_total, 1));
    cr_assert(zero(u64, live_once(directory, "qwen").failed_total));
}

Test(state_keeper, nothing_is_kept_before_the_model_is_known)
{
    struct state_keeper_stats stats = live_once(directory, "");

    cr_assert(zero(sz, file_count(false)));
    cr_assert(zero(u64, stats.saved_total + stats.failed_total));
}

Test(state_keeper, nothing_is_kept_without_a_directory)
{
    struct state_keeper_stats stats = live_once("", "llama");

    cr_assert(zero(u64, stats.saved_total + stats.failed_total));
}

Test(state_keeper, a_directory_that_is_gone_is_a_failure_and_ends_nothing)
{
    struct state_keeper_stats stats = live_once("/tmp/samovar-keeper-none", "llama");

    cr_assert(zero(u64, stats.saved_total));
    cr_assert(eq(u64, stats.failed_total, 1));
}

/* So many prompts of one block, each joined, the last one so long ago that they are to be saved. */
static void learn(struct state_keeper *keeper, struct alignment *alignment, uint32_t count)
{
    uint32_t tip;

    for (uint32_t i = 1; i <= count; i++) {
        cr_assert(zero(
            int, text_chain_extend(&alignment->text, 0, &(struct text_block){i, 256}, 1, &tip)));
        alignment->aligned[tip].is_mapped = true;
    }
    alignment->stats.joined += count;
    keeper->pace.begun_ms -= STATE_PACE_MS;
}

Test(state_keeper, what_was_learned_is_saved_in_slices_and_once)
{
    struct alignment alignment;
    struct state_keeper keeper;
    bool is_closed = false;
    size_t slices = 1;
    begin_life(&keeper, &alignment, directory);
    (void)state_keeper_take_up(&keeper, "llama");
    bool is_early = state_keeper_save_if_due(&keeper);
    learn(&keeper, &alignment, TEXT_MAX);

    while (state_keeper_save_if_due(&keeper))
        slices++;
    while (keeper.stats.saved_total == 0)
        uv_run(&io.loop, UV_RUN_ONCE);
    keeper.pace.begun_ms -= STATE_PACE_MS;
    bool is_again = state_keeper_save_if_due(&keeper);

    cr_assert(not(is_early));
    cr_assert(not(is_again));
    cr_assert(gt(sz, slices, 2));
    cr_assert(eq(sz, file_count(false), 1));
    cr_assert(eq(u64, keeper.pace.bytes, 24 + TEXT_MAX * (16 + 24)));
    state_keeper_close(&keeper, note_closed, &is_closed);
    cr_assert(is_closed);
    alignment_release(&alignment);
}

Test(state_keeper, who_ends_between_two_slices_saves_all_of_it)
{
    struct alignment alignment;
    struct state_keeper keeper;
    bool is_closed = false;
    begin_life(&keeper, &alignment, directory);
    (void)state_keeper_take_up(&keeper, "llama");
    learn(&keeper, &alignment, TEXT_MAX);
    cr_assert(state_keeper_save_if_due(&keeper));

    state_keeper_close(&keeper, note_closed, &is_closed);

    cr_assert(is_closed);
    cr_assert(eq(u64, keeper.stats.saved_total, 1));
    alignment_release(&alignment);
    begin_life(&keeper, &alignment, directory);
    (void)state_keeper_take_up(&keeper, "llama");
    cr_assert(eq(u32, alignment.text.node_count, TEXT_MAX));
    state_keeper_close(&keeper, note_closed, &is_closed);
    alignment_release(&alignment);
}
