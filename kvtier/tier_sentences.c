/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/tier_sentences.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/*
 * DESIGN
 *
 * In the order in which things must work: engines come, there is room, what was kept is found and
 * loaded. A part that is as it should be is one sentence with its figures; what went wrong since
 * the start is one of its own, with the name of its metric or log line, which say more.
 *
 * The first failed append is remembered, and the rest left out.
 */

enum { SENTENCE_BYTES_MAX = 512 };

enum level { FINE, DOUBT, BAD };

struct page {
    struct buf *out;
    int status;
};

static void say(struct page *page, enum level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void say(struct page *page, enum level level, const char *format, ...)
{
    static const char *const words[] = {[FINE] = "fine", [DOUBT] = "doubt", [BAD] = "WRONG"};
    char sentence[SENTENCE_BYTES_MAX];
    va_list args;

    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    if (page->status == 0)
        page->status = buf_printf(page->out, "%-5s  %s\n", words[level], sentence);
}

static double percent(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

static double mib(uint64_t bytes)
{
    return (double)bytes / (1 << 20);
}

/* ---- engines ---- */

static void say_engines(struct page *page, const struct node_tiers_stats *stats, const char *socket)
{
    const struct engine_sessions_stats *engines = &stats->engines;

    if (engines->engine_count > 0)
        say(page, FINE, "engines connected: %" PRIu32 "; requests that they have open: %" PRIu32,
            engines->engine_count, engines->request_count);
    else if (engines->registered_total > 0)
        say(page, DOUBT, "no engine is connected any more: their logs say why (\"samovar: \")");
    else
        say(page, DOUBT,
            "no engine has come yet: does vLLM load SamovarConnector, with \"socket\": \"%s\" ?",
            socket);
    for (size_t code = 1; code < IPC_REFUSAL_COUNT; code++)
        if (engines->refused_total[code] > 0)
            say(page, DOUBT,
                "%" PRIu64 " connectors were refused (%s): engine_refused in the log says why",
                engines->refused_total[code], ipc_refusal_name((enum ipc_refusal)code));
}

static void say_connections(struct page *page, const struct ipc_server_stats *server)
{
    if (server->stranger_total > 0)
        say(page, DOUBT,
            "%" PRIu64 " connections were of users who may not come: run engines as this agent's "
            "user, or in the group of --ipc-group",
            server->stranger_total);
    if (server->crowded_total > 0)
        say(page, DOUBT, "%" PRIu64 " connections were too many: raise --ipc-clients-max",
            server->crowded_total);
    if (server->starved_total > 0)
        say(page, DOUBT,
            "no descriptor was left for an engine, %" PRIu64
            " times: raise the limit of open files (ulimit -n, LimitNOFILE=)",
            server->starved_total);
    if (server->unread_total > 0)
        say(page, DOUBT,
            "%" PRIu64 " connections ended because their engine did not read: it hung, or was "
            "stopped",
            server->unread_total);
}

static void say_gpus(struct page *page, const struct cuda_device_stats *gpus)
{
    if (gpus->gpu_count == 0)
        return;
    say(page, gpus->open_gpus > 0 ? FINE : BAD,
        "%" PRIu32 " of %" PRIu32 " GPUs can be copied from and to; %.0f MiB of CPU memory are "
        "pinned for that%s",
        gpus->open_gpus, gpus->gpu_count, mib(gpus->pinned_bytes),
        gpus->open_gpus > 0 ? "" : ": gpu_not_opened in the log says why");
    if (gpus->lost_gpus > 0)
        say(page, BAD, "%" PRIu32 " GPUs failed for good: restart the agent to use them",
            gpus->lost_gpus);
    if (gpus->unpinned_chunks > 0)
        say(page, DOUBT,
            "%" PRIu64 " pieces of CPU memory could not be pinned, copies there are slower: raise "
            "the limit of locked memory (ulimit -l, LimitMEMLOCK=)",
            gpus->unpinned_chunks);
    if (gpus->failed_copies > 0)
        say(page, DOUBT,
            "%" PRIu64 " copies of GPUs failed: their blocks were computed, or not saved",
            gpus->failed_copies);
}

/* ---- room ---- */

static void say_room(struct page *page, const struct node_tier_stats *tier, const char *name)
{
    say(page, FINE,
        "%s holds %" PRIu64 " of %" PRIu64 " blocks (%.0f %%), %.0f MiB; a load from there runs at "
        "%.0f MB/s%s",
        name, tier->held_blocks, tier->slots, percent(tier->held_blocks, tier->slots),
        mib(tier->held_bytes), (double)tier->load_bytes_per_s / 1e6,
        tier->load_bytes_per_s > 0 ? "" : ", as far as is known: there was none yet");
}

static void say_ssd(struct page *page, const struct node_tiers_stats *stats)
{
    if (stats->tier[BLOCK_TIER_SSD].slots == 0) {
        say(page, FINE, "there is no SSD beneath CPU memory (--ssd-bytes)");
        return;
    }
    say_room(page, &stats->tier[BLOCK_TIER_SSD], "the SSD");
    if (stats->scanning_count > 0)
        say(page, FINE, "the SSD is still being read for what it held before: more will be found");
    if (stats->ssd_writable_count < stats->layout_count)
        say(page, BAD,
            "nothing is written to the SSD (%s), it is tried again now and then; what is on it is "
            "still loaded: make room on its file system, or replace it",
            stats->ssd_status < 0 ? strerror(-stats->ssd_status) : "it cannot be used");
    else if (stats->ssd_write_errors > 0)
        say(page, DOUBT, "%" PRIu64 " writes to the SSD failed, and it was tried again since",
            stats->ssd_write_errors);
}

static void say_guard(struct page *page, const struct node_tiers_stats *stats)
{
    if (stats->closed_count > 0)
        say(page, DOUBT,
            "blocks go before they are wanted again (%" PRIu64 " %% of what is saved): next to "
            "nothing new is let in, so that some stay: raise --cpu-bytes or --ssd-bytes, or "
            "spread the load",
            stats->pressure_percent);
    else if (stats->closed > 0)
        say(page, DOUBT,
            "there was too little room %" PRIu64 " times, and next to nothing was let in then; "
            "now there is enough",
            stats->closed);
    if (stats->save_refused_blocks > 0)
        say(page, DOUBT,
            "%" PRIu64 " blocks were not saved, because all room was in use: raise --cpu-bytes",
            stats->save_refused_blocks);
}

/* ---- what it is good for ---- */

static void say_lookups(struct page *page, const struct engine_sessions_stats *engines)
{
    const uint64_t *by = engines->lookups_total;
    uint64_t all = 0;

    for (size_t why = 0; why < IPC_FOUND_WHY_COUNT; why++)
        all += why == IPC_FOUND_LATER ? 0 : by[why]; /* it is asked again */
    if (all == 0) {
        say(page, FINE, "no engine has asked for anything yet");
        return;
    }
    say(page, FINE,
        "of %" PRIu64 " questions of engines %.0f %% found something to load, %.0f %% nothing, "
        "%.0f %% only what is computed faster",
        all, percent(by[IPC_FOUND_HIT], all), percent(by[IPC_FOUND_MISS], all),
        percent(by[IPC_FOUND_SLOWER], all));
    if (by[IPC_FOUND_NO_ROOM] > 0)
        say(page, DOUBT,
            "%" PRIu64 " questions had no answer: too many requests at once, or an engine whose "
            "memory is not in reach",
            by[IPC_FOUND_NO_ROOM]);
}

static void say_moves(struct page *page, const struct node_tiers_stats *stats)
{
    say(page, FINE,
        "%" PRIu64 " blocks were saved, %" PRIu64 " loaded from CPU memory, %" PRIu64
        " from the SSD, %" PRIu64 " written there",
        stats->saved_blocks, stats->loaded_cpu_blocks, stats->loaded_ssd_blocks,
        stats->demoted_blocks);
    if (stats->load_failed_blocks > 0)
        say(page, DOUBT, "%" PRIu64 " blocks of loads did not reach their engine: it computed them",
            stats->load_failed_blocks);
    if (stats->engines.save_discarded_total > 0)
        say(page, DOUBT,
            "%" PRIu64 " saves were thrown away, because their engine had not waited: more "
            "--save-threads, or the machine has too few processors",
            stats->engines.save_discarded_total);
    if (stats->corrupt_blocks > 0)
        say(page, BAD,
            "%" PRIu64 " blocks were not what they should be, and counted as misses: memory or "
            "SSD fails, or somebody writes below --ssd-dir",
            stats->corrupt_blocks);
}

int tier_sentences_write(struct buf *out, const struct node_tiers_stats *stats, const char *socket)
{
    struct page page = {.out = out};

    if (stats == NULL) {
        say(&page, FINE, "there are no tiers beneath the engines (--cpu-bytes)");
        return page.status;
    }
    say_engines(&page, stats, socket);
    say_connections(&page, &stats->engines.server);
    say_gpus(&page, &stats->gpus);
    if (stats->layout_count > 0) { /* before an engine came, nobody knows how large a block is */
        say_room(&page, &stats->tier[BLOCK_TIER_CPU], "CPU memory");
        say_ssd(&page, stats);
        say_guard(&page, stats);
        say_lookups(&page, &stats->engines);
        say_moves(&page, stats);
    }
    return page.status;
}
