/* SPDX-License-Identifier: Apache-2.0 */

/*
 * eviction: what share of the blocks of real prompts one tier of some size would still hold, under
 * each policy: the public traces with prefixes, replayed through the block_table as the agent uses
 * it. A request holds what it finds, uses it, and saves the rest behind it; what it has is not
 * evicted meanwhile. A hit is a block of the unbroken prefix. Belady knows the future: the block
 * that is asked for last goes first.
 *
 * Times are of the processor: of picking and making leave, an eviction; of everything, a block.
 */
#include "kvtier/tiers/eviction.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kvtier/tiers/block_table.h"
#include "tests/bench/eviction_trace.h"

static const double NEAR_POINTS = 1.0; /* to the better of the two parts */
static const double NEAR_SHARE_GOAL = 90;
static const double LOSS_POINTS_GOAL = 0.5; /* against recency, in the worst cell */
static const double EVICTION_NS_GOAL = 200;

enum { CAPACITY_COUNT_MAX = 8, CHAIN_COUNT_MAX = 1 << 14, SESSION_COUNT = 40 };
enum policy { LRU, LFU, ADAPTIVE, BELADY, POLICY_COUNT };

struct workload {
    const char *name;
    const char *file; /* in the folder of traces; NULL: generated */
    uint32_t capacities[CAPACITY_COUNT_MAX];
};

static const struct workload workloads[] = {
    {"generated", NULL, {200, 400, 800, 1600, 3200}},
    {"conversation",
     "mooncake_conversation_trace.jsonl.gz",
     {300, 1000, 3000, 5859, 10000, 30000, 50000, 100000}},
    {"synthetic", "mooncake_synthetic_trace.jsonl.gz", {1000, 3000, 5859, 10000, 30000}},
    {"agentic", "agentic_sessions.jsonl.gz", {8000, 20000, 40000, 80000, 160000}},
};

struct outcome {
    double hit_ratio;
    uint64_t evictions;
    double eviction_ns;
    double block_ns;
};

static bool is_reached = true;
static bool is_broken = false;

static void judge(const char *what, double value, double goal, bool reached)
{
    printf("%-58s %8.2f  goal %6.2f  %s\n", what, value, goal, reached ? "REACHED" : "SHORT");
    is_reached &= reached;
}

static double now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static struct block_key key_of(uint32_t number)
{
    return (struct block_key){.name = {number * 0x9e3779b97f4a7c15u | 1, number}, .check = number};
}

/* What Belady knows: by block number, the next request that has it. */
static uint32_t *next_request;

/* The policy is recency over another number; the rest of it is not written twice. */
struct belady_state {
    struct eviction_order order;
    const struct tier_block *blocks;
};

static struct eviction_state *belady_create(struct eviction_config config)
{
    struct belady_state *state = calloc(1, sizeof *state);

    if (state == NULL ||
        eviction_order_init(&state->order, config.slot_count, config.block_count) < 0)
        abort();
    state->blocks = config.blocks;
    return (struct eviction_state *)state;
}

static struct belady_state *belady_of(struct eviction_state *state)
{
    return (struct belady_state *)state;
}

static void belady_destroy(struct eviction_state *state)
{
    eviction_order_release(&belady_of(state)->order);
    free(belady_of(state));
}

static struct eviction_rank belady_rank(const struct eviction_state *state, uint32_t index)
{
    const struct tier_block *block = &((const struct belady_state *)state)->blocks[index];

    return (struct eviction_rank){UINT64_MAX - next_request[block->key.check],
                                  UINT32_MAX - block->depth};
}

static void belady_on_touched(struct eviction_state *state, uint32_t index)
{
    (void)state;
    (void)index;
}

static void belady_on_candidate(struct eviction_state *state, uint32_t index)
{
    eviction_order_add(&belady_of(state)->order, index, belady_rank(state, index));
}

static void belady_on_needed(struct eviction_state *state, uint32_t index)
{
    eviction_order_remove(&belady_of(state)->order, index);
}

static void belady_on_left(struct eviction_state *state, uint32_t index, bool was_evicted)
{
    (void)state;
    (void)index;
    (void)was_evicted;
}

static size_t belady_pick(struct eviction_state *state, uint32_t *victims, size_t count)
{
    return eviction_order_first(&belady_of(state)->order, victims, count);
}

static const struct eviction_ops belady = {
    .name = "belady",
    .create = belady_create,
    .destroy = belady_destroy,
    .on_held = belady_on_touched,
    .on_used = belady_on_touched,
    .on_candidate = belady_on_candidate,
    .on_needed = belady_on_needed,
    .on_left = belady_on_left,
    .pick = belady_pick,
    .rank = belady_rank,
};

static const struct eviction_ops *const policies[POLICY_COUNT] = {
    [LRU] = &eviction_lru_leaf,
    [LFU] = &eviction_lfu_aged,
    [ADAPTIVE] = &eviction_adaptive,
    [BELADY] = &belady,
};

struct replay {
    struct block_table *table;
    struct block_key keys[CHAIN_COUNT_MAX]; /* of the request's blocks */
    uint32_t chain[CHAIN_COUNT_MAX];        /* their indices */
    uint64_t hits;
    uint64_t evictions;
    double evicting_ns;
};

/* Makes room for count more blocks; as much as can be had. */
static void make_room(struct replay *replay, size_t count)
{
    const uint64_t *free_slots = &block_table_stats(replay->table)->free_slots[BLOCK_TIER_CPU];
    uint32_t victims[EVICTION_PICK_MAX];
    const double begin = now_ns();

    while (*free_slots < count) {
        const size_t missing = count - (size_t)*free_slots;
        const size_t picked = block_table_pick(replay->table, BLOCK_TIER_CPU, victims, missing);

        if (picked == 0)
            break;
        for (size_t i = 0; i < picked; i++) {
            block_table_set_place(replay->table, victims[i], BLOCK_TIER_CPU, BLOCK_LEAVING, 0);
            block_table_set_place(replay->table, victims[i], BLOCK_TIER_CPU, BLOCK_ABSENT, 0);
        }
        replay->evictions += picked;
    }
    replay->evicting_ns += now_ns() - begin;
}

static uint32_t save(struct replay *replay, uint32_t number, uint32_t parent, uint32_t depth)
{
    const uint32_t slot = block_table_take_slot(replay->table, BLOCK_TIER_CPU);
    uint32_t index;

    if (slot == BLOCK_SLOT_NONE)
        return 0;
    index = block_table_add(replay->table, key_of(number), parent, depth);
    assert(index != 0);
    block_table_set_place(replay->table, index, BLOCK_TIER_CPU, BLOCK_WRITING, slot);
    block_table_set_place(replay->table, index, BLOCK_TIER_CPU, BLOCK_HELD, 0);
    block_table_hold(replay->table, index);
    return index;
}

static void replay_request(struct replay *replay, const uint32_t *refs, size_t count)
{
    uint32_t parent;
    size_t held;

    for (size_t i = 0; i < count; i++)
        replay->keys[i] = key_of(refs[i]);
    held = block_table_hold_chain(replay->table, replay->keys, count, replay->chain);
    block_table_use(replay->table, replay->chain, held);
    replay->hits += held;
    parent = held > 0 ? replay->chain[held - 1] : 0;
    if (held < count)
        make_room(replay, count - held);
    while (held < count && (parent = save(replay, refs[held], parent, (uint32_t)held)) != 0)
        replay->chain[held++] = parent;
    for (size_t i = 0; i < held; i++)
        block_table_unhold(replay->table, replay->chain[i]);
}

static struct outcome replay_trace(const struct eviction_trace *trace, uint32_t capacity,
                                   const struct eviction_ops *policy)
{
    struct replay *replay = calloc(1, sizeof *replay);
    struct block_table_config config = {
        .block_count_max = capacity,
        .slot_count = {[BLOCK_TIER_CPU] = capacity},
        .eviction = policy,
    };
    struct outcome outcome;
    double begin;

    next_request = calloc((size_t)trace->block_count + 1, sizeof *next_request);
    if (replay == NULL || next_request == NULL || block_table_create(config, &replay->table) < 0)
        abort();
    begin = now_ns();
    for (size_t i = 0; i < trace->request_count; i++) {
        const size_t first = trace->begin[i], count = trace->begin[i + 1] - first;

        if (policy == &belady)
            for (size_t j = first; j < first + count; j++)
                next_request[trace->refs[j]] = trace->next[j];
        assert(count <= CHAIN_COUNT_MAX);
        replay_request(replay, trace->refs + first, count);
    }
    outcome = (struct outcome){
        .hit_ratio = (double)replay->hits / (double)trace->ref_count,
        .evictions = replay->evictions,
        .eviction_ns = replay->evictions > 0 ? replay->evicting_ns / (double)replay->evictions : 0,
        .block_ns = (now_ns() - begin) / (double)trace->ref_count,
    };
    is_broken |= !block_table_is_sound(replay->table);
    block_table_destroy(replay->table);
    free(next_request);
    free(replay);
    return outcome;
}

/* Of all cells. */
struct summary {
    unsigned cells;
    unsigned near_cells;
    double loss_points_max;
    double eviction_ns_sum[POLICY_COUNT];
    uint64_t evictions[POLICY_COUNT];
};

static void sum_up(struct summary *summary, const struct outcome outcomes[POLICY_COUNT])
{
    const double lru = outcomes[LRU].hit_ratio, lfu = outcomes[LFU].hit_ratio;
    const double better = lru > lfu ? lru : lfu;
    const double adaptive = outcomes[ADAPTIVE].hit_ratio;

    summary->cells++;
    summary->near_cells += adaptive >= better - NEAR_POINTS / 100;
    if ((lru - adaptive) * 100 > summary->loss_points_max)
        summary->loss_points_max = (lru - adaptive) * 100;
    for (int policy = 0; policy < POLICY_COUNT; policy++) {
        const struct outcome *outcome = &outcomes[policy];

        summary->eviction_ns_sum[policy] += outcome->eviction_ns * (double)outcome->evictions;
        summary->evictions[policy] += outcome->evictions;
        /* It counts references, not prefixes, so it is nearly the best and not quite. */
        if (outcome->hit_ratio > outcomes[BELADY].hit_ratio + 0.001) {
            printf("broken: %s beats who knows the future\n", policies[policy]->name);
            is_broken = true;
        }
    }
}

static void bench_workload(const struct workload *workload, const struct eviction_trace *trace,
                           struct summary *summary)
{
    printf("%s: %zu requests, %zu blocks, %u of them distinct\n", workload->name,
           trace->request_count, trace->ref_count, trace->block_count);
    printf("%10s %9s %9s %9s %9s   ns an eviction: lru lfu adaptive; a block, adaptive\n", "slots",
           "lru_leaf", "lfu_aged", "adaptive", "belady");
    for (size_t i = 0; i < CAPACITY_COUNT_MAX && workload->capacities[i] > 0; i++) {
        struct outcome outcomes[POLICY_COUNT];

        for (int policy = 0; policy < POLICY_COUNT; policy++)
            outcomes[policy] = replay_trace(trace, workload->capacities[i], policies[policy]);
        printf("%10u %9.4f %9.4f %9.4f %9.4f   %.0f %.0f %.0f; %.0f\n", workload->capacities[i],
               outcomes[LRU].hit_ratio, outcomes[LFU].hit_ratio, outcomes[ADAPTIVE].hit_ratio,
               outcomes[BELADY].hit_ratio, outcomes[LRU].eviction_ns, outcomes[LFU].eviction_ns,
               outcomes[ADAPTIVE].eviction_ns, outcomes[ADAPTIVE].block_ns);
        fflush(stdout);
        sum_up(summary, outcomes);
    }
}

/* False: it is not here. */
static bool read_workload(const struct workload *workload, const char *folder,
                          struct eviction_trace *trace)
{
    char path[4096];
    int status;

    if (folder == NULL)
        return false;
    snprintf(path, sizeof path, "%s/%s", folder, workload->file);
    status = strstr(workload->file, "sessions") != NULL
                 ? eviction_trace_read_sessions(path, SESSION_COUNT, trace)
                 : eviction_trace_read_requests(path, trace);
    if (status < 0)
        printf("%s: %s\n", path, strerror(-status));
    return status == 0;
}

static void judge_all(const struct summary *summary)
{
    const uint64_t evictions = summary->evictions[ADAPTIVE];

    judge("adaptive within 1 point of the better part, % of cells",
          100.0 * summary->near_cells / summary->cells, NEAR_SHARE_GOAL,
          100.0 * summary->near_cells >= NEAR_SHARE_GOAL * summary->cells);
    judge("adaptive below lru_leaf in the worst cell, points", summary->loss_points_max,
          LOSS_POINTS_GOAL, summary->loss_points_max <= LOSS_POINTS_GOAL);
    if (evictions > 0)
        judge("an eviction, adaptive, ns", summary->eviction_ns_sum[ADAPTIVE] / (double)evictions,
              EVICTION_NS_GOAL,
              summary->eviction_ns_sum[ADAPTIVE] <= EVICTION_NS_GOAL * (double)evictions);
}

int main(int argc, char **argv)
{
    const char *folder = getenv("SAMOVAR_TRACES");
    bool is_quick = false;
    struct summary summary = {0};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            is_quick = true;
        } else if (strcmp(argv[i], "--traces") == 0 && i + 1 < argc) {
            folder = argv[++i];
        } else {
            fprintf(stderr, "usage: eviction [--quick] [--traces FOLDER]\n");
            return 2;
        }
    }
    for (size_t i = 0; i < sizeof workloads / sizeof *workloads; i++) {
        struct eviction_trace trace = {0};

        if (workloads[i].file == NULL)
            eviction_trace_generate(is_quick ? 2000 : 20000, 1, &trace);
        if (workloads[i].file == NULL ||
            (!is_quick && read_workload(&workloads[i], folder, &trace)))
            bench_workload(&workloads[i], &trace, &summary);
        else
            printf("%s: skipped%s\n", workloads[i].name,
                   is_quick ? "" : " (--traces FOLDER or SAMOVAR_TRACES)");
        eviction_trace_release(&trace);
    }
    judge_all(&summary);
    if (is_broken) {
        printf("verdict: BROKEN\n");
        return 3;
    }
    printf("%s\n", is_reached ? "verdict: REACHED" : "verdict: SHORT of the goal");
    return is_reached ? 0 : 1;
}
