/* SPDX-License-Identifier: Apache-2.0 */

#include "hashing/token_name.h"
#include "kvtier/identity/token_chain.h"

#include "tests/support/leak_check.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>

#include <errno.h>
#include <string.h>

enum { BLOCK_TOKENS = 16, BLOCK_COUNT = 8 };

static uint8_t secret[DIGEST_SECRET_BYTES];

/* What was reported last, and how often. */
struct changes {
    unsigned count;
    uint64_t name;
    uint8_t before, after;
};

static void note_change(void *ctx, uint64_t name, uint8_t before, uint8_t after)
{
    struct changes *changes = ctx;

    *changes = (struct changes){changes->count + 1, name, before, after};
}

static struct token_chain make_chain(uint32_t node_count_max, struct changes *changes)
{
    struct token_chain chain;
    struct token_chain_config config = {.secret = secret,
                                        .node_count_max = node_count_max,
                                        .groups = 1,
                                        .on_changed = changes != NULL ? note_change : NULL,
                                        .ctx = changes};

    digest_secret_derive(secret, "token chain", 11);
    cr_assert(eq(int, token_chain_init(&chain, config), 0));
    return chain;
}

/* BLOCK_COUNT blocks whose ids begin with first, under aliases base, base + 1, ... */
struct prompt {
    uint32_t ids[BLOCK_COUNT * BLOCK_TOKENS];
    uint64_t aliases[BLOCK_COUNT];
    struct token_store store;
};

static void make_prompt(struct prompt *prompt, uint32_t first, uint64_t base)
{
    for (uint32_t i = 0; i < BLOCK_COUNT * BLOCK_TOKENS; i++)
        prompt->ids[i] = first + i;
    for (size_t i = 0; i < BLOCK_COUNT; i++)
        prompt->aliases[i] = base + i;
    prompt->store = (struct token_store){.root = token_name_root(secret, NULL, 0, NULL, 0),
                                         .aliases = prompt->aliases,
                                         .block_count = BLOCK_COUNT,
                                         .ids = prompt->ids,
                                         .block_tokens = BLOCK_TOKENS};
}

/* The name of the last of the first count blocks of store. */
static uint64_t name_of(const struct token_store *store, size_t count)
{
    struct digest_128 digest = store->root;

    for (size_t i = 0; i < count; i++)
        digest = token_name_next(secret, digest, store->ids + i * BLOCK_TOKENS, BLOCK_TOKENS,
                                 store->extras != NULL ? store->extras[i] : 0);
    return digest.low;
}

static uint8_t tiers_of(const struct token_chain *chain, uint64_t name)
{
    const struct token_node *node = token_chain_find(chain, name);

    return node != NULL ? node->tiers : 0;
}

TestSuite(token_chain, .fini = leak_check);

Test(token_chain, stored_blocks_are_held_and_know_their_place)
{
    struct token_chain chain = make_chain(64, NULL);
    struct prompt prompt;
    make_prompt(&prompt, 100, 1);

    size_t stored = token_chain_store(&chain, &prompt.store);
    const struct token_node *third = token_chain_find(&chain, name_of(&prompt.store, 3));

    cr_assert(eq(sz, stored, BLOCK_COUNT));
    cr_assert(ne(ptr, (void *)third, NULL));
    cr_assert(eq(u32, third->depth, 3));
    cr_assert(eq(u32, third->token_end, 3 * BLOCK_TOKENS));
    cr_assert(eq(u8, third->tiers, 1 << TOKEN_TIER_HBM));
    cr_assert(
        eq(u64, token_chain_at(&chain, third->parent)->digest.low, name_of(&prompt.store, 2)));
    token_chain_release(&chain);
}

Test(token_chain, equal_tokens_under_another_salt_lora_or_image_are_other_blocks)
{
    struct token_chain chain = make_chain(64, NULL);
    struct prompt prompt;
    uint64_t extras[BLOCK_COUNT] = {0, 0, 77};
    make_prompt(&prompt, 100, 1);
    struct token_store plain = prompt.store, salted = plain, lora = plain, image = plain;
    salted.root = token_name_root(secret, NULL, 0, "a", 1);
    lora.root = token_name_root(secret, "a", 1, NULL, 0);
    image.extras = extras;

    token_chain_store(&chain, &plain);

    cr_assert(eq(u8, tiers_of(&chain, name_of(&plain, 1)), 1));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&salted, 1)), 0));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&lora, 1)), 0));
    cr_assert(ne(u64, salted.root.low, lora.root.low));
    cr_assert(eq(u64, name_of(&image, 2), name_of(&plain, 2)));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&image, 3)), 0));
    token_chain_release(&chain);
}

Test(token_chain, a_block_is_held_until_the_last_of_its_copies_goes)
{
    struct changes changes = {0};
    struct token_chain chain = make_chain(64, &changes);
    struct prompt prompt;
    make_prompt(&prompt, 100, 1);
    const uint64_t last = name_of(&prompt.store, BLOCK_COUNT);
    token_chain_store(&chain, &prompt.store);
    token_chain_store(&chain, &prompt.store);
    changes.count = 0;

    bool is_first_known = token_chain_remove(&chain, BLOCK_COUNT, TOKEN_TIER_HBM, 0);
    uint8_t tiers_between = tiers_of(&chain, last);
    bool is_second_known = token_chain_remove(&chain, BLOCK_COUNT, TOKEN_TIER_HBM, 0);
    bool is_third_known = token_chain_remove(&chain, BLOCK_COUNT, TOKEN_TIER_HBM, 0);

    cr_assert(is_first_known && is_second_known && !is_third_known);
    cr_assert(eq(u8, tiers_between, 1));
    cr_assert(eq(u8, tiers_of(&chain, last), 0));
    cr_assert(eq(uint, changes.count, 1));
    cr_assert(eq(u64, changes.name, last));
    cr_assert(eq(u8, changes.before, 1));
    cr_assert(eq(u8, changes.after, 0));
    cr_assert(eq(u64, chain.stats.unknown_drops, 1));
    token_chain_release(&chain);
}

Test(token_chain, a_report_that_was_asked_for_adds_no_copy)
{
    struct token_chain chain = make_chain(64, NULL);
    struct prompt prompt;
    make_prompt(&prompt, 100, 1);
    token_chain_store(&chain, &prompt.store);
    prompt.store.is_report = true;

    token_chain_store(&chain, &prompt.store);
    token_chain_remove(&chain, BLOCK_COUNT, TOKEN_TIER_HBM, 0);

    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, BLOCK_COUNT)), 0));
    token_chain_release(&chain);
}

Test(token_chain, a_removal_from_one_tier_leaves_the_others)
{
    struct token_chain chain = make_chain(64, NULL);
    struct prompt prompt;
    make_prompt(&prompt, 100, 1);
    token_chain_store(&chain, &prompt.store);
    prompt.store.tier = TOKEN_TIER_CPU;
    prompt.store.ids = NULL; /* a placeholder: named by alias only */

    size_t stored = token_chain_store(&chain, &prompt.store);
    prompt.store.ids = prompt.ids;
    token_chain_remove(&chain, 1, TOKEN_TIER_HBM, 0);

    cr_assert(eq(sz, stored, BLOCK_COUNT));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 1)), 1 << TOKEN_TIER_CPU));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 2)),
                 1 << TOKEN_TIER_CPU | 1 << TOKEN_TIER_HBM));
    token_chain_release(&chain);
}

Test(token_chain, clearing_a_tier_leaves_the_others)
{
    struct changes changes = {0};
    struct token_chain chain = make_chain(64, &changes);
    struct prompt prompt;
    make_prompt(&prompt, 100, 1);
    token_chain_store(&chain, &prompt.store);
    prompt.store.tier = TOKEN_TIER_CPU;
    token_chain_store(&chain, &prompt.store);
    changes.count = 0;

    token_chain_clear_tier(&chain, TOKEN_TIER_HBM);

    cr_assert(eq(uint, changes.count, BLOCK_COUNT));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, BLOCK_COUNT)), 1 << TOKEN_TIER_CPU));
    token_chain_release(&chain);
}

Test(token_chain, a_block_counts_when_all_groups_hold_it)
{
    struct token_chain chain;
    struct token_chain_config config = {.secret = secret, .node_count_max = 64, .groups = 5};
    struct prompt prompt;
    make_prompt(&prompt, 100, 1);
    cr_assert(eq(int, token_chain_init(&chain, config), 0));

    token_chain_store(&chain, &prompt.store);
    uint8_t tiers_of_one = tiers_of(&chain, name_of(&prompt.store, 1));
    prompt.store.group = 1;
    size_t stored_sparse = token_chain_store(&chain, &prompt.store);
    prompt.store.group = 2;
    token_chain_store(&chain, &prompt.store);

    cr_assert(eq(u8, tiers_of_one, 0));
    cr_assert(eq(sz, stored_sparse, 0));
    cr_assert(eq(u64, chain.stats.ignored_groups, 1));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 1)), 1));
    token_chain_release(&chain);
}

Test(token_chain, a_new_epoch_holds_and_knows_nothing)
{
    struct changes changes = {0};
    struct token_chain chain = make_chain(64, &changes);
    struct prompt prompt;
    make_prompt(&prompt, 100, 1);
    token_chain_store(&chain, &prompt.store);
    changes.count = 0;

    token_chain_begin_epoch(&chain);

    cr_assert(eq(uint, changes.count, BLOCK_COUNT));
    cr_assert(eq(ptr, (void *)token_chain_find(&chain, name_of(&prompt.store, 1)), NULL));
    cr_assert(not(token_chain_remove(&chain, 1, TOKEN_TIER_HBM, 0)));
    cr_assert(eq(sz, token_chain_store(&chain, &prompt.store), BLOCK_COUNT));
    token_chain_release(&chain);
}

/* Puts the first count blocks of store beneath, as its agent would. */
static void place(struct token_chain *chain, const struct token_store *store, size_t count,
                  uint8_t tiers)
{
    struct digest_128 parent = {0}, name = store->root;

    for (size_t i = 0; i < count; i++) {
        name = token_name_next(secret, name, store->ids + i * BLOCK_TOKENS, BLOCK_TOKENS, 0);
        cr_assert(
            token_chain_place(chain, &(struct token_place){name, parent, BLOCK_TOKENS, tiers}));
        parent = name;
    }
}

enum { HBM = 1 << TOKEN_TIER_HBM, CPU = 1 << TOKEN_TIER_CPU, SSD = 1 << TOKEN_TIER_SSD };

Test(token_chain, what_lies_beneath_is_beside_what_the_engine_holds)
{
    struct changes changes = {0};
    struct token_chain chain = make_chain(64, &changes);
    struct prompt prompt;

    make_prompt(&prompt, 100, 1);
    token_chain_store(&chain, &prompt.store);
    place(&chain, &prompt.store, 3, CPU);
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 3)), HBM | CPU));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 4)), HBM));

    token_chain_clear_tier(&chain, TOKEN_TIER_HBM);
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 3)), CPU));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 4)), 0));

    place(&chain, &prompt.store, 3, CPU | SSD);
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 2)), CPU | SSD));
    token_chain_displace_all(&chain);
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 1)), 0));
    cr_assert(eq(uint, changes.after, 0));
    token_chain_release(&chain);
}

Test(token_chain, what_lies_beneath_first_is_the_same_block_when_the_engine_stores_it)
{
    struct token_chain chain = make_chain(64, NULL);
    struct prompt prompt;

    make_prompt(&prompt, 100, 1);
    place(&chain, &prompt.store, BLOCK_COUNT, SSD);
    cr_assert(eq(sz, token_chain_store(&chain, &prompt.store), BLOCK_COUNT));

    for (size_t i = 1; i <= BLOCK_COUNT; i++) {
        const struct token_node *node = token_chain_find(&chain, name_of(&prompt.store, i));

        cr_assert(eq(u8, node->tiers, HBM | SSD));
        cr_assert(eq(u32, node->depth, (uint32_t)i));
        cr_assert(eq(u32, node->token_end, (uint32_t)i * BLOCK_TOKENS));
    }
    cr_assert(eq(u32, chain.node_count, BLOCK_COUNT + 2)); /* the root, and the one unsaid */
    token_chain_release(&chain);
}

Test(token_chain, what_lies_beneath_outlives_the_engine_s_process)
{
    struct token_chain chain = make_chain(64, NULL);
    struct prompt prompt;

    make_prompt(&prompt, 100, 1);
    token_chain_store(&chain, &prompt.store);
    place(&chain, &prompt.store, 2, CPU);

    token_chain_begin_epoch(&chain);
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 2)), CPU));
    cr_assert(eq(ptr, (void *)token_chain_find(&chain, name_of(&prompt.store, 3)), NULL));
    cr_assert_not(token_chain_remove(&chain, 1, TOKEN_TIER_HBM, 0)); /* aliases are gone */

    place(&chain, &prompt.store, 2, 0);
    token_chain_begin_epoch(&chain);
    cr_assert(eq(u32, chain.node_count, 0));
    token_chain_release(&chain);
}

Test(token_chain, what_lies_beneath_an_unknown_parent_is_counted_and_not_held)
{
    struct token_chain chain = make_chain(64, NULL);
    const struct token_place orphan = {{5, 6}, {3, 4}, BLOCK_TOKENS, CPU};
    const struct token_place nowhere = {{5, 6}, {3, 4}, BLOCK_TOKENS, 0};

    cr_assert_not(token_chain_place(&chain, &orphan));
    cr_assert(token_chain_place(&chain, &nowhere)); /* it is as was said */

    cr_assert(eq(u64, chain.stats.orphans, 1));
    cr_assert(eq(u32, chain.node_count, 0));
    token_chain_release(&chain);
}

Test(token_chain, what_lies_beneath_under_the_name_of_another_block_is_counted_and_not_held)
{
    struct token_chain chain = make_chain(64, NULL);
    struct prompt prompt;

    make_prompt(&prompt, 100, 1);
    token_chain_store(&chain, &prompt.store);
    const uint64_t first = name_of(&prompt.store, 1);
    const uint64_t high = token_chain_find(&chain, first)->digest.high;

    cr_assert_not(token_chain_place(
        &chain, &(struct token_place){{first, high + 1}, {0}, BLOCK_TOKENS, CPU}));

    cr_assert(eq(u8, tiers_of(&chain, first), HBM));
    cr_assert(eq(u64, chain.stats.collisions, 1));
    token_chain_release(&chain);
}

Test(token_chain, what_lies_beneath_and_has_no_place_is_counted_and_not_held)
{
    struct token_chain chain = make_chain(BLOCK_COUNT + 2, NULL); /* both roots */
    const struct token_place more = {{5, 6}, {0}, BLOCK_TOKENS, CPU};
    struct prompt prompt;

    make_prompt(&prompt, 100, 1);
    token_chain_store(&chain, &prompt.store); /* held: they make room for nobody */

    cr_assert_not(token_chain_place(&chain, &more));

    cr_assert(eq(u64, chain.stats.refused, 1));
    cr_assert(eq(u8, tiers_of(&chain, 5), 0));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, BLOCK_COUNT)), HBM));
    token_chain_release(&chain);
}

Test(token_chain, a_dropped_parent_is_still_known_when_its_child_is_stored_again)
{
    struct token_chain chain = make_chain(64, NULL);
    struct prompt prompt;
    make_prompt(&prompt, 100, 1);
    token_chain_store(&chain, &prompt.store);
    for (uint64_t alias = 1; alias <= BLOCK_COUNT; alias++)
        token_chain_remove(&chain, alias, TOKEN_TIER_HBM, 0);
    struct token_store tail = prompt.store;
    tail.has_parent = true;
    tail.parent = 4;
    tail.aliases += 4;
    tail.ids += (ptrdiff_t)4 * BLOCK_TOKENS;
    tail.block_count -= 4;

    size_t stored = token_chain_store(&chain, &tail);

    cr_assert(eq(sz, stored, BLOCK_COUNT - 4));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 4)), 0));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&prompt.store, 5)), 1));
    token_chain_release(&chain);
}

Test(token_chain, blocks_behind_an_unknown_parent_are_counted_and_not_held)
{
    struct token_chain chain = make_chain(64, NULL);
    struct prompt prompt;
    make_prompt(&prompt, 100, 1);
    prompt.store.has_parent = true;
    prompt.store.parent = 999;

    size_t stored = token_chain_store(&chain, &prompt.store);

    cr_assert(eq(sz, stored, 0));
    cr_assert(eq(u64, chain.stats.orphans, BLOCK_COUNT));
    cr_assert(eq(u32, chain.node_count, 0));
    token_chain_release(&chain);
}

Test(token_chain, an_alias_that_means_another_block_leaves_no_phantom)
{
    struct token_chain chain = make_chain(64, NULL);
    struct prompt one, two;
    make_prompt(&one, 100, 1);
    make_prompt(&two, 5000, 1);
    token_chain_store(&chain, &one.store);

    token_chain_store(&chain, &two.store);

    cr_assert(eq(u64, chain.stats.rebound, BLOCK_COUNT));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&one.store, 1)), 0));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&two.store, 1)), 1));
    token_chain_release(&chain);
}

Test(token_chain, two_aliases_of_a_block_both_find_it)
{
    struct token_chain chain = make_chain(64, NULL);
    struct prompt one, two;
    make_prompt(&one, 100, 1);
    make_prompt(&two, 100, 50);

    token_chain_store(&chain, &one.store);
    token_chain_store(&chain, &two.store);
    bool is_one_known = token_chain_remove(&chain, 1, TOKEN_TIER_HBM, 0);
    bool is_two_known = token_chain_remove(&chain, 50, TOKEN_TIER_HBM, 0);

    cr_assert(is_one_known && is_two_known);
    cr_assert(eq(u32, chain.node_count, BLOCK_COUNT + 1));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&one.store, 1)), 0));
    token_chain_release(&chain);
}

Test(token_chain, held_blocks_are_never_forgotten_for_new_ones)
{
    struct token_chain chain = make_chain(BLOCK_COUNT + 2, NULL);
    struct prompt one, two;
    make_prompt(&one, 100, 1);
    make_prompt(&two, 5000, 50);
    token_chain_store(&chain, &one.store);

    size_t stored = token_chain_store(&chain, &two.store);

    cr_assert(eq(sz, stored, 1));
    cr_assert(eq(u64, chain.stats.refused, 1));
    cr_assert(eq(u64, chain.stats.forgotten, 0));
    cr_assert(eq(u8, tiers_of(&chain, name_of(&one.store, BLOCK_COUNT)), 1));
    token_chain_release(&chain);
}

/* Also: no link, alias or map entry is lost over thousands of turnovers (ASan, and the counts). */
Test(token_chain, memory_is_bounded_and_dropped_blocks_make_room)
{
    enum { NODES = 5 * BLOCK_COUNT, ROUNDS = 5000 };
    struct token_chain chain = make_chain(NODES, NULL);
    struct prompt prompt;
    uint32_t seed = 1;

    for (uint64_t round = 1; round <= ROUNDS; round++) {
        seed = seed * 1664525 + 1013904223;
        make_prompt(&prompt, (seed >> 8) % 64 * 1000, (seed >> 8) % 64 * 100 + 1);
        cr_assert(eq(sz, token_chain_store(&chain, &prompt.store), BLOCK_COUNT));
        for (size_t i = BLOCK_COUNT; i-- > 0;)
            cr_assert(token_chain_remove(&chain, prompt.aliases[i], TOKEN_TIER_HBM, 0));
        cr_assert(chain.node_count <= NODES);
    }

    cr_assert(gt(u64, chain.stats.forgotten, NODES));
    cr_assert(eq(u64, chain.stats.refused, 0));
    cr_assert(eq(sz, block_map_count(&chain.by_name), chain.node_count));
    cr_assert(le(sz, block_map_count(&chain.by_alias), chain.node_count));
    token_chain_release(&chain);
}

Test(token_chain, more_may_be_allowed_while_it_holds_blocks)
{
    struct changes changes = {0};
    struct token_chain chain = make_chain(BLOCK_COUNT + 1, &changes);
    struct prompt first, second;
    make_prompt(&first, 100, 1);
    make_prompt(&second, 5000, 100);
    (void)token_chain_store(&chain, &first.store);
    cr_assert(eq(sz, token_chain_store(&chain, &second.store), 0));
    cr_assert(eq(u64, chain.stats.refused, 1));
    changes.count = 0;

    cr_assert(eq(int, token_chain_allow(&chain, 2 * BLOCK_COUNT + 1), 0));

    cr_assert(eq(sz, token_chain_store(&chain, &second.store), BLOCK_COUNT));
    for (size_t i = 1; i <= BLOCK_COUNT; i++) {
        cr_assert(eq(u8, tiers_of(&chain, name_of(&first.store, i)), 1 << TOKEN_TIER_HBM));
        cr_assert(eq(u8, tiers_of(&chain, name_of(&second.store, i)), 1 << TOKEN_TIER_HBM));
        cr_assert(token_chain_remove(&chain, first.aliases[i - 1], TOKEN_TIER_HBM, 0));
        cr_assert(token_chain_remove(&chain, second.aliases[i - 1], TOKEN_TIER_HBM, 0));
    }
    cr_assert(eq(u32, changes.count, 3 * BLOCK_COUNT));
    cr_assert(eq(u64, chain.stats.refused, 1));
    cr_assert(eq(u32, chain.node_count, 2 * BLOCK_COUNT + 1));
    token_chain_release(&chain);
}

Test(token_chain, nodes_that_were_never_needed_are_never_touched)
{
    struct token_chain chain = make_chain(TOKEN_NODE_COUNT_BOUND, NULL);
    struct prompt prompt;
    make_prompt(&prompt, 100, 1);

    for (int round = 0; round < 3; round++) {
        (void)token_chain_store(&chain, &prompt.store);
        token_chain_begin_epoch(&chain);
    }

    cr_assert(eq(u32, chain.node_used, BLOCK_COUNT + 1));
    cr_assert(eq(u32, chain.alias_used, BLOCK_COUNT));
    cr_assert(le(sz, block_map_bytes(&chain.by_name), 4096));
    token_chain_release(&chain);
}

Test(token_chain, aliases_of_bytes_and_numbers_are_never_zero_and_differ)
{
    digest_secret_derive(secret, "token chain", 11);

    uint64_t of_zero = token_alias_of_number(secret, 0);
    uint64_t of_one = token_alias_of_number(secret, 1);
    uint64_t of_bytes = token_alias_of_bytes(secret, "0123456789abcdef", 16);

    cr_assert(ne(u64, of_zero, 0));
    cr_assert(ne(u64, of_zero, of_one));
    cr_assert(ne(u64, of_bytes, of_one));
}

Test(token_chain, a_config_that_could_hold_nothing_is_refused)
{
    struct token_chain chain;
    struct token_chain_config config = {.secret = secret, .groups = 1};

    int without_nodes = token_chain_init(&chain, config);
    config.node_count_max = 1;
    config.groups = 0;
    int without_groups = token_chain_init(&chain, config);
    config.groups = 1 << TOKEN_GROUP_COUNT_MAX;
    int with_unknown_group = token_chain_init(&chain, config);

    cr_assert(eq(int, without_nodes, -EINVAL));
    cr_assert(eq(int, without_groups, -EINVAL));
    cr_assert(eq(int, with_unknown_group, -EINVAL));
}
