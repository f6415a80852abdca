/* SPDX-License-Identifier: Apache-2.0 */

#include "kvtier/identity/alignment.h"

#include "tests/support/leak_check.h"
#include "tests/unit/identity/world.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

TestSuite(alignment, .fini = leak_check);

Test(alignment, any_order_of_record_anchor_and_event_gives_the_same)
{
    static const enum part orders[6][3] = {
        {RECORD, ANCHOR, EVENT}, {RECORD, EVENT, ANCHOR}, {ANCHOR, RECORD, EVENT},
        {ANCHOR, EVENT, RECORD}, {EVENT, RECORD, ANCHOR}, {EVENT, ANCHOR, RECORD},
    };

    for (size_t order = 0; order < 12; order++) {
        struct world world;
        struct request first, second;
        make_world(&world);
        make_plain(&world, &first, 4, 1000, 1);
        make_plain(&world, &second, 4, 2000, 2);

        for (size_t i = 0; i < 3; i++) {
            give(&world, &first, orders[order % 6][i]);
            if (order >= 6) /* with and without a look in between */
                alignment_flush(&world.alignment, 0);
        }
        alignment_flush(&world.alignment, 0);
        for (size_t i = 0; i < 3; i++)
            give(&world, &second, orders[5 - order % 6][i]);
        alignment_flush(&world.alignment, 0);

        cr_assert(eq(u64, world.alignment.stats.joined, 2), "order %zu", order);
        cr_assert(eq(sz, count_claimed(&world, &first), 10));
        cr_assert(eq(sz, count_claimed(&world, &second), 10));
        for (size_t i = 0; i < 10; i++) {
            cr_assert(eq(u32, tokens_at(&world, &first, i), (uint32_t)(i + 1) * 64));
            cr_assert(eq(u32, tokens_at(&world, &second, i), (uint32_t)(i + 1) * 64));
        }
        alignment_release(&world.alignment);
    }
}

Test(alignment, an_evicted_token_block_ends_the_claim_of_the_text_over_it_alone)
{
    struct world world;
    struct request request;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    give_all(&world, &request);

    evict(&world, &request, 39, TOKEN_TIER_HBM); /* the last of the tenth text block */
    size_t after_last = count_claimed(&world, &request);
    evict(&world, &request, 21, TOKEN_TIER_HBM); /* the second of the sixth */
    size_t after_middle = count_claimed(&world, &request);
    give(&world, &request, EVENT);
    alignment_flush(&world.alignment, 0);

    cr_assert(eq(sz, after_last, 9));
    cr_assert(eq(sz, after_middle, 5));
    cr_assert(eq(u8, alignment_claim(&world.alignment, request.text[6].hash, NULL), HBM));
    cr_assert(eq(sz, count_claimed(&world, &request), 10));
    alignment_release(&world.alignment);
}

Test(alignment, a_tier_is_claimed_when_it_has_all_else_the_slowest_needed)
{
    struct world world;
    struct request request;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    give_all(&world, &request);
    request.store.tier = TOKEN_TIER_SSD;
    give(&world, &request, EVENT);
    alignment_flush(&world.alignment, 0);

    uint8_t both = alignment_claim(&world.alignment, request.text[0].hash, NULL);
    evict(&world, &request, 1, TOKEN_TIER_HBM);
    uint8_t from_ssd = alignment_claim(&world.alignment, request.text[0].hash, NULL);
    evict(&world, &request, 2, TOKEN_TIER_SSD);
    uint8_t mixed = alignment_claim(&world.alignment, request.text[0].hash, NULL);
    token_chain_clear_tier(&world.alignment.tokens, TOKEN_TIER_SSD);
    alignment_flush(&world.alignment, 0);
    uint8_t cleared = alignment_claim(&world.alignment, request.text[0].hash, NULL);

    cr_assert(eq(u8, both, HBM | SSD));
    cr_assert(eq(u8, from_ssd, SSD));
    cr_assert(eq(u8, mixed, SSD));
    cr_assert(eq(u8, cleared, 0));
    alignment_release(&world.alignment);
}

Test(alignment, a_restarted_engine_holds_nothing_until_it_says_so_and_needs_no_new_anchor)
{
    struct world world;
    struct request request;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    give_all(&world, &request);

    token_chain_begin_epoch(&world.alignment.tokens);
    alignment_flush(&world.alignment, 0);
    size_t after_restart = count_claimed(&world, &request);
    give(&world, &request, EVENT);
    alignment_flush(&world.alignment, 0);

    cr_assert(eq(sz, after_restart, 0));
    cr_assert(eq(sz, count_claimed(&world, &request), 10));
    alignment_release(&world.alignment);
}

Test(alignment, text_before_the_first_full_block_is_claimed_exactly_while_something_behind_it_is)
{
    struct world world;
    struct request request;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    request.id_count = 100; /* ten tokens a text block, and sixteen in one of the engine's */
    finish_request(&world, &request, 1);

    give(&world, &request, RECORD);
    give(&world, &request, ANCHOR);
    alignment_flush(&world.alignment, 0);
    size_t before_events = count_claimed(&world, &request);
    give(&world, &request, EVENT);
    alignment_flush(&world.alignment, 0);
    size_t held = count_claimed(&world, &request);
    uint32_t tokens = tokens_at(&world, &request, 0);
    evict(&world, &request, 0, TOKEN_TIER_HBM);
    size_t first_evicted = count_claimed(&world, &request);
    give(&world, &request, EVENT);
    token_chain_begin_epoch(&world.alignment.tokens);
    alignment_flush(&world.alignment, 0);

    cr_assert(eq(sz, before_events, 0));
    cr_assert(eq(sz, held, 10));
    cr_assert(eq(u32, tokens, 0));
    cr_assert(eq(sz, first_evicted, 0));
    cr_assert(eq(sz, count_claimed(&world, &request), 0)); /* the engine's next life has nothing */
    cr_assert(eq(u64, world.alignment.stats.claimed[TOKEN_TIER_HBM], 0));
    alignment_release(&world.alignment);
}

Test(alignment, equal_text_under_another_salt_lora_or_image_is_not_shared)
{
    for (unsigned what = 0; what < 3; what++) {
        struct world world;
        struct request mine, theirs;
        make_world(&world);
        make_plain(&world, &mine, 0, 1000, 1);
        world.salt = what == 0 ? "tenant b" : "";
        world.lora = what == 1 ? "adapter b" : "";
        world.image = what == 2 ? 12345 : 0;
        make_plain(&world, &theirs, 0, 1000, 2);

        give_all(&world, &mine);
        give(&world, &theirs, RECORD);
        give(&world, &theirs, ANCHOR);
        alignment_flush(&world.alignment, 0);

        cr_assert(eq(sz, count_claimed(&world, &mine), 10));
        cr_assert(eq(sz, count_claimed(&world, &theirs), 0));
        alignment_release(&world.alignment);
    }
}

Test(alignment, one_prompt_sent_twice_is_claimed_once_and_does_not_flip)
{
    struct world world;
    struct request one, two;
    make_world(&world);
    make_plain(&world, &one, 0, 1000, 1);
    make_plain(&world, &two, 0, 1000, 2); /* another router, at the same moment */

    give(&world, &one, RECORD);
    give(&world, &two, RECORD);
    give(&world, &two, ANCHOR);
    give(&world, &one, EVENT);
    give(&world, &one, ANCHOR);
    alignment_flush(&world.alignment, 0);
    give_all(&world, &one);

    cr_assert(eq(u64, world.alignment.stats.joined, 3));
    cr_assert(eq(u64, world.alignment.stats.flipped, 0));
    cr_assert(eq(sz, count_claimed(&world, &one), 10));
    cr_assert(eq(u32, world.alignment.text.node_count, 10));
    alignment_release(&world.alignment);
}

Test(alignment, parts_that_never_meet_leave_after_their_time)
{
    struct world world;
    struct request request;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    give(&world, &request, RECORD);
    give(&world, &request, EVENT);

    alignment_flush(&world.alignment, 9999);
    uint64_t expired_before = world.alignment.attempts.expired;
    alignment_flush(&world.alignment, 10000);
    alignment_anchor(&world.alignment, &request.anchor, 10001);
    alignment_flush(&world.alignment, 10001);

    cr_assert(eq(u64, expired_before, 0));
    cr_assert(eq(u64, world.alignment.attempts.expired, 1));
    cr_assert(eq(sz, count_claimed(&world, &request), 0));
    alignment_release(&world.alignment);
}

Test(alignment, waiting_attempts_are_bounded_and_the_oldest_leave_first)
{
    struct world world;
    struct request request;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);

    for (uint64_t attempt = 1; attempt <= 20; attempt++) {
        request.record.attempt = attempt;
        give(&world, &request, RECORD);
    }
    give(&world, &request, EVENT);
    request.anchor.attempt = 4;
    give(&world, &request, ANCHOR);
    alignment_flush(&world.alignment, 0);
    uint64_t joined_pushed_out = world.alignment.stats.joined;
    request.anchor.attempt = 20;
    give(&world, &request, ANCHOR);
    alignment_flush(&world.alignment, 0);

    cr_assert(eq(u64, joined_pushed_out, 0));
    cr_assert(eq(u64, world.alignment.stats.joined, 1));
    cr_assert(eq(u64, world.alignment.attempts.pushed_out, 5));
    alignment_release(&world.alignment);
}

Test(alignment, an_anchor_that_does_not_fit_its_own_block_is_dropped)
{
    struct world world;
    struct request request;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    give(&world, &request, RECORD);
    give(&world, &request, EVENT);
    request.anchor.token_count += BLOCK_TOKENS;

    give(&world, &request, ANCHOR);
    alignment_flush(&world.alignment, 0);

    cr_assert(eq(u64, world.alignment.stats.unfit, 1));
    cr_assert(eq(sz, count_claimed(&world, &request), 0));
    alignment_release(&world.alignment);
}

/* Two prompts that share four blocks of 64 tokens each and have six of 16 each of their own: at
 * first all of the first one's look like 35. They are to be finished. */
static void make_uneven_pair(struct world *world, struct request *first, struct request *second)
{
    uint32_t words[10 * TEXT_WORDS];

    make_plain(world, first, 4, 1000, 1);
    for (size_t i = 0; i < 6 * TEXT_WORDS; i++)
        first->ids[4 * 64 + i] = 5000 + (uint32_t)i;
    first->id_count = 4 * 64 + 6 * TEXT_WORDS;
    for (uint32_t w = 0; w < 10 * TEXT_WORDS; w++)
        words[w] = w < 4 * TEXT_WORDS ? w : 2000 + w;
    make_request(world, second, words, 10 * TEXT_WORDS);
}

Test(alignment, what_was_interpolated_behind_a_parting_is_corrected)
{
    struct world world;
    struct request first, second;
    make_world(&world);
    make_uneven_pair(&world, &first, &second);
    finish_request(&world, &first, 1);
    finish_request(&world, &second, 2);
    second.anchor.cached_tokens = 4 * 64;

    give_all(&world, &first);
    uint32_t tokens_before = tokens_at(&world, &first, 3);
    give_all(&world, &second);

    cr_assert(lt(u32, tokens_before, 150));
    cr_assert(ge(u32, tokens_at(&world, &second, 3), 4 * 64 - 85 - 15));
    cr_assert(le(u32, tokens_at(&world, &second, 3), 4 * 64));
    cr_assert(eq(u64, world.alignment.stats.corrected, 1));
    cr_assert(eq(u64, world.alignment.stats.flipped, 0));
    alignment_release(&world.alignment);
}

Test(alignment, behind_the_end_of_a_message_prompts_part_at_once)
{
    struct world world;
    struct request first, second;
    make_world(&world);
    make_uneven_pair(&world, &first, &second);
    for (size_t i = 3; i < 10; i++) /* the fourth block is not full: a message ends there */
        first.text[i].end = second.text[i].end -= 100;
    finish_request(&world, &first, 1);
    finish_request(&world, &second, 2);
    second.anchor.cached_tokens = 4 * 64;

    give_all(&world, &first);
    uint32_t tokens_before = tokens_at(&world, &first, 3);
    give_all(&world, &second);

    cr_assert(lt(u32, tokens_before, 150));
    cr_assert(eq(u32, tokens_at(&world, &second, 3), 4 * 64));
    alignment_release(&world.alignment);
}

Test(alignment, a_prompt_that_ends_a_block_behind_the_parting_is_a_known_one_too)
{
    struct world world;
    struct request first, second;
    uint32_t words[5 * TEXT_WORDS];
    make_world(&world);
    /* What both have is 64 tokens a block, what each has of its own is 16. */
    for (uint32_t w = 0; w < 5 * TEXT_WORDS; w++)
        words[w] = w;
    make_request(&world, &first, words, 5 * TEXT_WORDS);
    for (uint32_t w = 4 * TEXT_WORDS; w < 5 * TEXT_WORDS; w++)
        words[w] = 2000 + w;
    make_request(&world, &second, words, 5 * TEXT_WORDS);
    for (uint32_t i = 0; i < 4 * 64 + TEXT_WORDS; i++) {
        first.ids[i] = i < 4 * 64 ? 1000 + i : 5000 + i;
        second.ids[i] = i < 4 * 64 ? 1000 + i : 6000 + i;
    }
    first.id_count = second.id_count = 4 * 64 + TEXT_WORDS;
    for (size_t i = 3; i < 5; i++) /* the fourth block ends a message */
        first.text[i].end = second.text[i].end -= 100;
    finish_request(&world, &first, 1);
    finish_request(&world, &second, 2);
    second.anchor.cached_tokens = 4 * 64;

    give_all(&world, &first);
    uint32_t tokens_before = tokens_at(&world, &first, 3);
    give_all(&world, &second);

    cr_assert(lt(u32, tokens_before, 4 * 64 - BLOCK_TOKENS));
    cr_assert(eq(u32, tokens_at(&world, &second, 3), 4 * 64));
    alignment_release(&world.alignment);
}

Test(alignment, what_the_engine_found_of_a_turn_that_nobody_told_of_moves_no_place)
{
    struct world world;
    struct request system, second;
    make_world(&world);
    make_plain(&world, &system, 4, 1000, 1);
    make_plain(&world, &second, 4, 2000, 2);
    give_all(&world, &system);
    uint32_t tokens_before = tokens_at(&world, &second, 3);
    second.anchor.cached_tokens = (uint32_t)second.id_count - BLOCK_TOKENS;

    give_all(&world, &second);

    cr_assert(gt(u32, tokens_before, 0));
    cr_assert(eq(u32, tokens_at(&world, &second, 3), tokens_before));
    cr_assert(eq(u64, world.alignment.stats.corrected, 0));
    alignment_release(&world.alignment);
}

/* The same text, but its tokens from the block first on are others each time. */
static void give_changed(struct world *world, size_t first, uint32_t change)
{
    struct request request;

    make_plain(world, &request, 0, 1000, 100 + change);
    for (size_t i = first * BLOCK_TOKENS; i < request.id_count; i++)
        request.ids[i] += 100000 * change;
    finish_request(world, &request, 100 + change);
    give_all(world, &request);
}

Test(alignment, the_newest_anchor_wins_from_where_it_parts_and_what_flips_on_is_not_claimed)
{
    struct world world;
    struct request request;
    make_world(&world);
    make_plain(&world, &request, 0, 1000, 1);
    give_all(&world, &request);

    give_changed(&world, 20, 1);
    size_t claimed_once = count_claimed(&world, &request);
    for (size_t i = 20; i < 40; i++)
        token_chain_remove(&world.alignment.tokens, request.aliases[i], TOKEN_TIER_HBM, 0);
    alignment_flush(&world.alignment, 0);
    size_t claimed_without_old = count_claimed(&world, &request);
    give_changed(&world, 20, 2);
    give_changed(&world, 20, 3);
    size_t claimed_three = count_claimed(&world, &request);
    give_changed(&world, 20, 4);

    cr_assert(eq(sz, claimed_once, 10));
    cr_assert(eq(sz, claimed_without_old, 10)); /* the newer tokens are there */
    cr_assert(eq(sz, claimed_three, 10));
    cr_assert(eq(sz, count_claimed(&world, &request), 5));
    alignment_release(&world.alignment);
}

/* The prompt is the first six text blocks, the answer the other four; 24 and 16 token blocks. */
static void make_answer(const struct world *world, struct request *prompt, struct request *answer)
{
    make_plain(world, prompt, 0, 1000, 1);
    make_plain(world, answer, 0, 1000, 2);
    prompt->text_count = 6;
    prompt->id_count = 6 * 64;
    finish_request(world, prompt, 1);
    answer->id_count -= 1; /* the last token is never computed: its block is not full */
    finish_request(world, answer, 2);
    answer->anchor.token_count++;
    answer->anchor.last_block = prompt->anchor.last_block;
    answer->anchor.is_answer = true;
}

Test(alignment, an_answer_is_found_behind_its_prompt_in_any_order)
{
    static const enum part orders[6][3] = {
        {RECORD, ANCHOR, EVENT}, {RECORD, EVENT, ANCHOR}, {ANCHOR, RECORD, EVENT},
        {ANCHOR, EVENT, RECORD}, {EVENT, RECORD, ANCHOR}, {EVENT, ANCHOR, RECORD},
    };

    for (size_t order = 0; order < 6; order++) {
        struct world world;
        struct request prompt, answer;
        make_world(&world);
        make_answer(&world, &prompt, &answer);
        give_all(&world, &prompt);

        for (size_t i = 0; i < 3; i++) {
            give(&world, &answer, orders[order][i]);
            alignment_flush(&world.alignment, 0);
        }

        cr_assert(eq(u64, world.alignment.stats.joined, 2), "order %zu", order);
        cr_assert(eq(sz, count_claimed(&world, &answer), 10));
        cr_assert(eq(u32, tokens_at(&world, &answer, 8), 9 * 64));
        cr_assert(eq(u32, tokens_at(&world, &answer, 9), 10 * 64 - BLOCK_TOKENS));
        alignment_release(&world.alignment);
    }
}

struct told {
    unsigned claims, withdrawals;
    uint64_t withdrawn;
};

static void note_claim(void *ctx, uint64_t hash, uint8_t tiers, uint32_t tokens)
{
    struct told *told = ctx;

    cr_assert(eq(int, tiers == 0, tokens == 0));
    if (tiers != 0)
        told->claims++;
    else
        told->withdrawals++;
    if (tiers == 0)
        told->withdrawn = hash;
}

Test(alignment, every_change_is_told_once_and_forgetting_is_a_withdrawal)
{
    struct world world;
    struct told told = {0};
    struct request first, second;
    make_world(&world);
    struct alignment_config config = config_of(&world);
    alignment_release(&world.alignment);
    config.text_nodes_max = 15;
    config.on_claimed = note_claim;
    config.ctx = &told;
    cr_assert(eq(int, alignment_init(&world.alignment, config), 0));
    make_plain(&world, &first, 0, 1000, 1);
    make_plain(&world, &second, 0, 3000, 2);

    give_all(&world, &first);
    alignment_flush(&world.alignment, 0);
    struct told after_first = told;
    give_all(&world, &second);

    cr_assert(eq(uint, after_first.claims, 10));
    cr_assert(eq(uint, after_first.withdrawals, 0));
    cr_assert(eq(uint, told.claims, 20));
    cr_assert(eq(uint, told.withdrawals, 5));
    cr_assert(eq(u64, told.withdrawn, first.text[5].hash));
    alignment_release(&world.alignment);
}

/* What is claimed must be what a look at everything from scratch would say. */
static void check_claims(const struct world *world)
{
    const struct alignment *a = &world->alignment;

    for (uint32_t i = 1; i <= a->config.text_nodes_max; i++) {
        const struct text_node *text = text_chain_at(&a->text, i);
        const struct aligned *aligned = &a->aligned[i];
        const struct token_node *node = token_chain_find(&a->tokens, aligned->block);
        const uint32_t depth = text->parent != 0 ? a->aligned[text->parent].depth : 0;
        bool is_held = node != NULL && aligned->flips <= 3;

        if (text->hash == 0 || !aligned->is_mapped || aligned->block == 0)
            continue;
        for (bool is_first = true; is_held && (is_first || node->depth > depth); is_first = false) {
            is_held = node->tiers != 0;
            node = token_chain_at(&a->tokens, node->parent);
        }
        cr_assert(eq(int, aligned->claimed != 0, is_held), "text node %u", i);
    }
}

Test(alignment, claims_stay_true_under_random_requests_and_evictions)
{
    struct world world;
    uint32_t seed = 3;
    make_world(&world);

    for (uint64_t round = 1; round <= 3000; round++) {
        struct request request;
        const uint32_t drift = seed >> 28; /* tokens of equal text are not always equal */

        seed = seed * 1664525 + 1013904223;
        make_plain(&world, &request, (seed >> 8) % 10, 1000 * ((seed >> 12) % 40), round);
        for (size_t i = 200; i < request.id_count && drift == 0; i++)
            request.ids[i] += 50000;
        finish_request(&world, &request, round);
        if ((seed >> 20) % 4 != 0)
            give(&world, &request, EVENT);
        if ((seed >> 22) % 8 != 0)
            give(&world, &request, RECORD);
        give(&world, &request, ANCHOR);
        if (round % 3 == 0)
            alignment_flush(&world.alignment, round * 100);
        for (size_t i = (seed >> 16) % 40; i < 40; i += 1 + (seed >> 24) % 7)
            token_chain_remove(&world.alignment.tokens, request.aliases[i], TOKEN_TIER_HBM, 0);
        if (round % 500 == 0)
            token_chain_begin_epoch(&world.alignment.tokens);
        alignment_flush(&world.alignment, round * 100);
        check_claims(&world);
    }

    cr_assert(gt(u64, world.alignment.stats.joined, 1000));
    cr_assert(gt(u64, world.alignment.stats.flipped, 10));
    cr_assert(gt(u64, world.alignment.text.stats.forgotten, 100));
    alignment_release(&world.alignment);
}

/* Two answers to one prompt, generated side by side: the second is two text blocks longer. */
struct answers {
    struct request prompt, first, second;
};

static void make_answers(const struct world *world, struct answers *answers)
{
    make_plain(world, &answers->prompt, 0, 1000, 1);
    answers->prompt.text_count = 4;
    answers->prompt.id_count = 4 * 64;
    finish_request(world, &answers->prompt, 1);
    make_plain(world, &answers->first, 4, 1000, 2);
    make_plain(world, &answers->second, 4, 2000, 3);
    for (uint32_t i = 0; i < 4; i++) /* both go on from this prompt's text and tokens */
        answers->first.text[i] = answers->second.text[i] = answers->prompt.text[i];
    memcpy(answers->first.ids, answers->prompt.ids, 4 * 64 * sizeof answers->first.ids[0]);
    memcpy(answers->second.ids, answers->prompt.ids, 4 * 64 * sizeof answers->second.ids[0]);
    answers->first.text_count = 8;
    answers->first.id_count = 8 * 64;
    for (size_t i = 0; i < 2; i++) {
        struct request *answer = i == 0 ? &answers->first : &answers->second;

        finish_request(world, answer, 2 + i);
        answer->anchor.token_count++; /* the last token fills no block */
        answer->anchor.last_block = answers->prompt.anchor.last_block;
        answer->anchor.is_answer = true;
    }
}

Test(alignment, two_answers_to_one_prompt_are_told_apart_by_their_length_in_any_order)
{
    for (unsigned order = 0; order < 8; order++) {
        struct world world;
        struct answers a;
        struct request *earlier = order & 1 ? &a.second : &a.first;
        struct request *later = order & 1 ? &a.first : &a.second;
        make_world(&world);
        make_answers(&world, &a);
        give_all(&world, &a.prompt);

        give(&world, order & 2 ? earlier : later, EVENT);
        give(&world, order & 2 ? later : earlier, EVENT);
        give(&world, earlier, RECORD);
        give(&world, earlier, ANCHOR);
        if (order & 4)
            alignment_flush(&world.alignment, 0);
        give(&world, later, RECORD);
        give(&world, later, ANCHOR);
        alignment_flush(&world.alignment, 0);
        alignment_flush(&world.alignment, 0);

        cr_assert(eq(sz, count_claimed(&world, &a.first), 8), "order %u", order);
        cr_assert(eq(sz, count_claimed(&world, &a.second), 10), "order %u", order);
        evict(&world, &a.second, 20, TOKEN_TIER_HBM); /* they were not taken for each other */
        cr_assert(eq(sz, count_claimed(&world, &a.first), 8));
        cr_assert(eq(sz, count_claimed(&world, &a.second), 5));
        alignment_release(&world.alignment);
    }
}

Test(alignment, an_answer_that_could_be_either_is_not_claimed_before_the_next_turn_proves_it)
{
    struct world world;
    struct answers a;
    make_world(&world);
    make_answers(&world, &a);
    give_all(&world, &a.prompt);
    give(&world, &a.first, EVENT);
    give(&world, &a.second,
         EVENT); /* as long as it gets; it was cancelled, and nobody tells of it */
    give(&world, &a.first, RECORD);
    give(&world, &a.first, ANCHOR);
    alignment_flush(&world.alignment, 0);
    size_t unproved = count_claimed(&world, &a.first);

    struct request turn = a.first; /* the next turn's prompt begins with it all */
    finish_request(&world, &turn, 9);
    give_all(&world, &turn);

    cr_assert(eq(sz, unproved, 4));
    cr_assert(eq(sz, count_claimed(&world, &a.first), 8));
    alignment_release(&world.alignment);
}

Test(alignment, one_attempts_text_on_two_engines_is_known_to_both_and_held_where_its_tokens_are)
{
    struct world first, second;
    struct request request;
    make_world(&first);
    make_world(&second);
    make_plain(&first, &request, 0, 1000, 1);

    give(&first, &request, RECORD); /* it was refused there, and sent on */
    give_all(&second, &request);
    alignment_flush(&first.alignment, 10000);

    cr_assert(eq(sz, count_claimed(&first, &request), 0));
    cr_assert(eq(u64, first.alignment.attempts.expired, 1));
    cr_assert(eq(sz, count_claimed(&second, &request), 10));
    alignment_release(&first.alignment);
    alignment_release(&second.alignment);
}

Test(alignment, the_same_attempt_key_again_is_one_attempt_more)
{
    struct world world;
    struct request one, two;
    make_world(&world);
    make_plain(&world, &one, 0, 1000, 7); /* clients that number their requests from 7 on */
    make_plain(&world, &two, 0, 3000, 7);

    give_all(&world, &one);
    give_all(&world, &two);

    cr_assert(eq(u64, world.alignment.stats.joined, 2));
    cr_assert(eq(sz, count_claimed(&world, &one), 10));
    cr_assert(eq(sz, count_claimed(&world, &two), 10));
    alignment_release(&world.alignment);
}

Test(alignment, parts_of_two_requests_under_one_key_join_nothing_wrong)
{
    struct world world;
    struct request one, two;
    make_world(&world);
    make_plain(&world, &one, 0, 1000, 7);
    make_plain(&world, &two, 0, 3000, 7);
    two.id_count = 9 * 64 + 5; /* it is shorter: an anchor of the one contradicts the other */
    finish_request(&world, &two, 7);

    give(&world, &one, RECORD);
    give(&world, &two, RECORD);
    give(&world, &one, EVENT);
    give(&world, &two, EVENT);
    give(&world, &two, ANCHOR);
    alignment_flush(&world.alignment, 0);

    cr_assert(eq(sz, count_claimed(&world, &one), 0));
    cr_assert(eq(sz, count_claimed(&world, &two), 10));
    alignment_release(&world.alignment);
}

Test(alignment, ten_times_what_there_is_room_for_stays_within_the_limits)
{
    struct world world;
    struct request request;
    make_world(&world);
    const struct alignment *a = &world.alignment;

    for (uint32_t round = 1; round <= 10 * 512 / 10; round++) {
        make_plain(&world, &request, 0, 1000 * round, round);
        give_all(&world, &request);
        for (size_t i = 40; i-- > 0 && round % 2 == 0;)
            token_chain_remove(&world.alignment.tokens, request.aliases[i], TOKEN_TIER_HBM, 0);
        for (uint64_t extra = 0; extra < 3; extra++) /* parts that never meet */
            alignment_anchor(&world.alignment,
                             &(struct alignment_anchor){.attempt = 100000 + 3 * round + extra}, 0);
        alignment_flush(&world.alignment, 0);

        cr_assert(le(u32, a->text.node_count, 512));
        cr_assert(le(u32, a->tokens.node_count, 4096));
        cr_assert(le(u64, a->attempts.next - a->attempts.oldest, 16));
        cr_assert(le(sz, block_map_count(&a->by_block), 512));
    }
    cr_assert(gt(u64, a->text.stats.forgotten, 4000));
    alignment_release(&world.alignment);
}

/* A conversation's second turn under a template that drops what the first one's answer was. */
static void make_next_turn(const struct world *world, struct request *turn,
                           const struct answers *answers, uint64_t attempt)
{
    *turn = answers->second; /* the text is all there: prompt 4, answer 4, and 2 more */
    memmove(turn->ids + 4 * 64, turn->ids + 8 * 64, 2 * 64 * sizeof turn->ids[0]);
    turn->id_count = 6 * 64;
    finish_request(world, turn, attempt);
}

Test(alignment, where_the_template_drops_answers_they_are_soon_not_claimed_and_none_for_long)
{
    struct world world;
    size_t claimed_first = 0, claimed_last = 0;
    make_world(&world);

    for (uint32_t round = 0; round < 20; round++) {
        struct answers a;
        struct request turn;
        make_answers(&world, &a);
        /* each conversation has words of its own */
        make_plain(&world, &a.second, 0, 5000 * (round + 1), 10 * round + 2);
        a.prompt = a.first = a.second;
        a.prompt.text_count = 4;
        a.prompt.id_count = 4 * 64;
        finish_request(&world, &a.prompt, 10 * round + 1);
        a.first.text_count = 8;
        a.first.id_count = 8 * 64;
        finish_request(&world, &a.first, 10 * round + 2);
        a.first.anchor.token_count++;
        a.first.anchor.last_block = a.prompt.anchor.last_block;
        a.first.anchor.is_answer = true;
        give_all(&world, &a.prompt);
        give_all(&world, &a.first);
        claimed_last = count_claimed(&world, &a.first);
        if (round == 0)
            claimed_first = claimed_last;
        make_next_turn(&world, &turn, &a, 10 * round + 3);
        give_all(&world, &turn);

        /* What was claimed too much is corrected by the first turn that shows it. */
        uint32_t tokens = 0;
        for (size_t i = 0; i < count_claimed(&world, &turn); i++)
            tokens = tokens_at(&world, &turn, i);
        cr_assert(le(u32, tokens, 6 * 64));
        cr_assert(le(u32, tokens_at(&world, &turn, 7), 6 * 64));
    }

    cr_assert(eq(sz, claimed_first, 8));
    cr_assert(eq(sz, claimed_last, 4));
    cr_assert(lt(dbl, world.alignment.answer_share, 0.01));
    cr_assert(eq(u64, world.alignment.stats.flipped, 0));
    alignment_release(&world.alignment);
}
