/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Whatever comes in whatever order (notes, events, evictions, restarts of the engine and of the
 * agent, with its state saved or lost), no prompt is claimed to be held further than it is. The
 * model is the engine's cache as a plain set. Text becomes tokens evenly here, so that nothing is
 * off by interpolation and "further" means by a single token.
 */
#include "kvtier/identity/alignment_state.h"

#include "tests/support/leak_check.h"
#include "tests/unit/identity/world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <stdlib.h>

enum { REQUESTS = 40, STEPS = 4000, BLOCKS = 40, IDENTITY = 5 };

struct model {
    struct world world;
    struct request *requests;
    uint64_t held[REQUESTS * BLOCKS]; /* aliases */
    size_t held_count;
    uint64_t random;
    uint64_t attempt;
    uint64_t joined; /* before the agent's last restart */
    uint64_t claimed_tokens;
    struct buf state;  /* saved last; empty: never */
    struct buf saving; /* by the save that is under way */
    uint64_t saved_total;
};

static uint64_t below(struct model *model, uint64_t limit)
{
    uint64_t z = model->random += 0x9e3779b97f4a7c15;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (z ^ z >> 31) % limit;
}

static bool is_held(const struct model *model, uint64_t alias)
{
    for (size_t i = 0; i < model->held_count; i++)
        if (model->held[i] == alias)
            return true;
    return false;
}

/* The engine computes a prompt, or its first blocks so far, as far as it does not have them. */
static void compute(struct model *model, struct request *request)
{
    request->store.block_count = below(model, 4) > 0 ? BLOCKS : 1 + below(model, BLOCKS);
    for (size_t i = 0; i < request->store.block_count; i++)
        if (!is_held(model, request->aliases[i]))
            model->held[model->held_count++] = request->aliases[i];
    token_chain_store(&model->world.alignment.tokens, &request->store);
}

static void evict_some(struct model *model)
{
    for (uint64_t n = below(model, 30); n > 0 && model->held_count > 0; n--) {
        const size_t at = below(model, model->held_count);

        (void)token_chain_remove(&model->world.alignment.tokens, model->held[at], TOKEN_TIER_HBM,
                                 0);
        model->held[at] = model->held[--model->held_count];
    }
}

static void restart_engine(struct model *model)
{
    token_chain_begin_epoch(&model->world.alignment.tokens);
    model->held_count = 0;
}

/* A save goes on, in slices of some blocks, or another one begins. */
static void save_some(struct model *model)
{
    struct alignment *alignment = &model->world.alignment;
    int status;

    if (alignment->saving == NULL) {
        buf_clear(&model->saving);
        cr_assert(eq(int, alignment_save_begin(alignment, IDENTITY, &model->saving), 0));
    }
    status = alignment_save_step(alignment, 1 + (uint32_t)below(model, 4));
    cr_assert(ge(int, status, 0));
    if (status == 0) {
        cr_assert(eq(int, alignment_save_seal(model->world.secret, &model->saving, 0), 0));
        buf_clear(&model->state);
        cr_assert(eq(int, buf_append(&model->state, buf_slice(&model->saving)), 0));
        model->saved_total++;
    }
}

/* The agent has to be told everything by the engine again; its state is of some time before, or has
 * been lost. */
static void restart_agent(struct model *model)
{
    struct alignment *alignment = &model->world.alignment;

    model->joined += alignment->stats.joined;
    alignment_release(alignment);
    cr_assert(eq(int, alignment_init(alignment, config_of(&model->world)), 0));
    if (below(model, 3) > 0 && buf_len(&model->state) > 0)
        cr_assert(eq(int, alignment_load(alignment, IDENTITY, buf_slice(&model->state)), 0));
    for (size_t r = 0; r < REQUESTS; r++) { /* the replay: runs of what is held */
        struct request *request = &model->requests[r];

        request->store.block_count = 0;
        while (request->store.block_count < BLOCKS &&
               is_held(model, request->aliases[request->store.block_count]))
            request->store.block_count++;
        token_chain_store(&alignment->tokens, &request->store);
    }
}

static void step(struct model *model)
{
    struct request *request = &model->requests[below(model, REQUESTS)];

    if (below(model, 2) == 0)
        save_some(model);
    switch (below(model, 40)) {
    case 0:
        evict_some(model);
        break;
    case 1:
        if (below(model, 5) == 0)
            restart_engine(model);
        break;
    case 2:
        if (below(model, 5) == 0)
            restart_agent(model);
        break;
    default:
        request->record.attempt = request->anchor.attempt = ++model->attempt;
        for (unsigned parts = 0; parts < 3; parts++) { /* some twice, some never */
            switch (below(model, 4)) {
            case RECORD:
                give(&model->world, request, RECORD);
                break;
            case ANCHOR:
                give(&model->world, request, ANCHOR);
                break;
            default:
                compute(model, request);
            }
        }
    }
}

static void check(struct model *model)
{
    for (size_t r = 0; r < REQUESTS; r++) {
        const struct request *request = &model->requests[r];
        const size_t run = count_claimed(&model->world, request);
        const uint32_t claimed = run > 0 ? tokens_at(&model->world, request, run - 1) : 0;
        uint32_t held = 0;

        while (held < BLOCKS && is_held(model, request->aliases[held]))
            held++;
        cr_assert(le(u32, claimed, held * BLOCK_TOKENS), "request %zu", r);
        model->claimed_tokens += claimed;
    }
}

TestSuite(alignment_model, .fini = leak_check);

Test(alignment_model, no_prompt_is_ever_claimed_further_than_it_is_held)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct model model = {.random = seed};
        model.requests = calloc(REQUESTS, sizeof *model.requests);
        make_world(&model.world);
        buf_init(&model.state, 1 << 20);
        buf_init(&model.saving, 1 << 20);
        for (uint32_t r = 0; r < REQUESTS; r++) /* eight families that part at each depth */
            make_plain(&model.world, &model.requests[r], r % 8, 1000 * (r + 1), r + 1);

        for (uint64_t i = 0; i < STEPS; i++) {
            step(&model);
            if (below(&model, 4) > 0) {
                alignment_flush(&model.world.alignment, i);
                check(&model);
            }
        }

        model.joined += model.world.alignment.stats.joined;
        cr_assert(gt(u64, model.joined, 500));
        cr_assert(gt(u64, model.claimed_tokens, 1000000)); /* and it does claim */
        cr_assert(gt(u64, model.saved_total, 10));
        alignment_release(&model.world.alignment);
        buf_release(&model.state);
        buf_release(&model.saving);
        free(model.requests);
    }
}
