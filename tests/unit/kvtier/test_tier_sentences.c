/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tier_sentences.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <string.h>

enum { TEXT_BYTES_MAX = 16384 };

/* Tiers that are as they should be, with an engine. */
static struct node_tiers_stats well(void)
{
    struct node_tiers_stats stats = {.layout_count = 1, .ssd_writable_count = 1};

    stats.engines.engine_count = 2;
    stats.engines.registered_total = 3;
    stats.engines.request_count = 4;
    stats.engines.lookups_total[IPC_FOUND_HIT] = 6;
    stats.engines.lookups_total[IPC_FOUND_MISS] = 3;
    stats.engines.lookups_total[IPC_FOUND_SLOWER] = 1;
    stats.engines.lookups_total[IPC_FOUND_LATER] = 90;
    stats.saved_blocks = 11;
    stats.loaded_cpu_blocks = 12;
    stats.loaded_ssd_blocks = 13;
    stats.demoted_blocks = 14;
    stats.tier[BLOCK_TIER_CPU] = (struct node_tier_stats){
        .slots = 200, .held_blocks = 50, .held_bytes = 3 << 20, .load_bytes_per_s = 7000000};
    stats.tier[BLOCK_TIER_SSD] = (struct node_tier_stats){.slots = 400};
    return stats;
}

/* Good until the next call. */
static const char *written(const struct node_tiers_stats *stats)
{
    static char text[TEXT_BYTES_MAX];
    struct buf out;

    buf_init(&out, sizeof text - 1);
    cr_assert(eq(int, tier_sentences_write(&out, stats, "/run/agent.sock"), 0));
    memcpy(text, buf_slice(&out).ptr, buf_len(&out));
    text[buf_len(&out)] = '\0';
    buf_release(&out);
    return text;
}

static void assert_said(const char *text, const char *sentence)
{
    cr_assert(strstr(text, sentence) != NULL, "%s\nis not in\n%s", sentence, text);
}

TestSuite(tier_sentences, .fini = leak_check);

Test(tier_sentences, without_tiers_that_is_said)
{
    cr_assert(eq(str, (char *)(uintptr_t)written(NULL),
                 "fine   there are no tiers beneath the engines (--cpu-bytes)\n"));
}

Test(tier_sentences, tiers_that_are_well_are_told_in_figures_and_nothing_is_doubtful)
{
    struct node_tiers_stats stats = well();

    const char *text = written(&stats);

    cr_assert(eq(ptr, strstr(text, "doubt"), NULL));
    cr_assert(eq(ptr, strstr(text, "WRONG"), NULL));
    assert_said(text, "fine   engines connected: 2; requests that they have open: 4\n");
    assert_said(text, "fine   CPU memory holds 50 of 200 blocks (25 %), 3 MiB; a load from there "
                      "runs at 7 MB/s\n");
    assert_said(text, "fine   the SSD holds 0 of 400 blocks (0 %), 0 MiB; a load from there runs "
                      "at 0 MB/s, as far as is known: there was none yet\n");
    assert_said(text, "fine   of 10 questions of engines 60 % found something to load, 30 % "
                      "nothing, 10 % only what is computed faster\n");
    assert_said(text, "fine   11 blocks were saved, 12 loaded from CPU memory, 13 from the SSD, 14 "
                      "written there\n");
}

Test(tier_sentences, before_any_engine_came_it_is_said_what_one_needs)
{
    struct node_tiers_stats stats = {0};

    const char *text = written(&stats);

    cr_assert(eq(str, (char *)(uintptr_t)text,
                 "doubt  no engine has come yet: does vLLM load SamovarConnector, with "
                 "\"socket\": \"/run/agent.sock\" ?\n"));
}

/* One counter each, and what must be said of it. */
struct fault {
    void (*make)(struct node_tiers_stats *stats);
    const char *sentence;
};

#define FAULT(name, change)                                                                        \
    static void name(struct node_tiers_stats *stats)                                               \
    {                                                                                              \
        change;                                                                                    \
    }
FAULT(make_gone, stats->engines.engine_count = 0)
FAULT(make_refused, stats->engines.refused_total[IPC_REFUSED_LAYOUT] = 5)
FAULT(make_foreign, stats->engines.server.stranger_total = 5)
FAULT(make_crowded, stats->engines.server.crowded_total = 5)
FAULT(make_starved, stats->engines.server.starved_total = 5)
FAULT(make_unread, stats->engines.server.unread_total = 5)
FAULT(make_shut, stats->gpus.gpu_count = 5)
FAULT(make_lost, stats->gpus.gpu_count = stats->gpus.open_gpus = stats->gpus.lost_gpus = 5)
FAULT(make_unpinned, stats->gpus.gpu_count = stats->gpus.open_gpus = 5;
      stats->gpus.unpinned_chunks = 5)
FAULT(make_uncopied, stats->gpus.gpu_count = stats->gpus.open_gpus = 5;
      stats->gpus.failed_copies = 5)
FAULT(make_full, stats->ssd_writable_count = 0; stats->ssd_status = -ENOSPC)
FAULT(make_failing, stats->ssd_write_errors = 5)
FAULT(make_thrashing, stats->closed_count = 1; stats->pressure_percent = 55)
FAULT(make_thrashed, stats->closed = 5)
FAULT(make_held, stats->save_refused_blocks = 5)
FAULT(make_busy, stats->engines.lookups_total[IPC_FOUND_NO_ROOM] = 5)
FAULT(make_unloaded, stats->load_failed_blocks = 5)
FAULT(make_discarded, stats->engines.save_discarded_total = 5)
FAULT(make_corrupt, stats->corrupt_blocks = 5)

static const struct fault faults[] = {
    {make_gone, "doubt  no engine is connected any more"},
    {make_refused, "doubt  5 connectors were refused (layout)"},
    {make_foreign, "doubt  5 connections were of users who may not come"},
    {make_crowded, "doubt  5 connections were too many: raise --ipc-clients-max"},
    {make_starved, "doubt  no descriptor was left for an engine, 5 times"},
    {make_unread, "doubt  5 connections ended because their engine did not read"},
    {make_shut, "WRONG  0 of 5 GPUs can be copied from and to"},
    {make_lost, "WRONG  5 GPUs failed for good: restart the agent"},
    {make_unpinned, "doubt  5 pieces of CPU memory could not be pinned"},
    {make_uncopied, "doubt  5 copies of GPUs failed"},
    {make_full, "WRONG  nothing is written to the SSD (No space left on device)"},
    {make_failing, "doubt  5 writes to the SSD failed"},
    {make_thrashing, "doubt  blocks go before they are wanted again (55 %"},
    {make_thrashed, "doubt  there was too little room 5 times"},
    {make_held, "doubt  5 blocks were not saved, because all room was in use"},
    {make_busy, "doubt  5 questions had no answer"},
    {make_unloaded, "doubt  5 blocks of loads did not reach their engine"},
    {make_discarded, "doubt  5 saves were thrown away"},
    {make_corrupt, "WRONG  5 blocks were not what they should be"},
};

Test(tier_sentences, each_fault_is_one_sentence_that_is_not_fine)
{
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        struct node_tiers_stats stats = well();
        const char *text;
        size_t count = 0;

        faults[i].make(&stats);
        text = written(&stats);

        assert_said(text, faults[i].sentence);
        for (const char *line = text; *line != '\0'; line = strchr(line, '\n') + 1)
            count += strncmp(line, "fine ", 5) != 0;
        cr_assert(eq(sz, count, 1), "%s", text);
    }
}

Test(tier_sentences, what_does_not_fit_is_said_by_the_status)
{
    struct node_tiers_stats stats = well();
    struct buf out;

    buf_init(&out, 64);
    cr_assert(eq(int, tier_sentences_write(&out, &stats, "/run/agent.sock"), -ENOBUFS));
    buf_release(&out);
}
